//! A plan's run while its pieces come and go: none is written before it is needed, or kept after.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::control::{Controller, DriveError};
use crate::executor::{Executor, Until};
use crate::lower::{AHEAD, Lowering};
use crate::plan::Plan;
use crate::program::{Program, TaskId};
use crate::summary::Summary;
use crate::tally::Tally;
use crate::timing::{Part, Timing, last_of_passes};
use crate::trace::Trace;
use crate::units::Seconds;
use crate::verify::Verifier;

/// The pieces between their submission and their end, and what those before them amount to.
#[derive(Debug)]
pub struct Flow<'p> {
    plan: &'p Plan,
    lowering: Lowering,
    /// None where nobody checks the program.
    verifier: Option<Verifier>,
    ahead: usize,
    pieces: VecDeque<Submitted>,
    num_submitted: u64,
    /// The part that counts begins, and ends, after these.
    marks: Option<[Mark; 2]>,
    tally: Tally,
    /// By resource, when the last task of the pieces that have ended ended there.
    ends: Vec<Seconds>,
    now: Seconds,
}

/// A piece that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// What was submitted.
    pub piece: Arc<Program>,
    /// What counts of it, as far as is known by now: from one time to another.
    pub part: (Seconds, Seconds),
    /// The executor's clock since.
    pub at: Seconds,
}

/// A piece that has not ended.
#[derive(Debug)]
struct Submitted {
    piece: Arc<Program>,
    /// By resource, its first and its last task there.
    lanes: Vec<Option<(TaskId, TaskId)>>,
}

/// The end of a pass.
#[derive(Debug)]
struct Mark {
    pass: u64,
    tasks: Vec<TaskId>,
    /// When it was, once that is known.
    time: Option<Seconds>,
}

impl Mark {
    fn new(pass: u64) -> Mark {
        Mark {
            pass,
            tasks: Vec::new(),
            time: None,
        }
    }

    /// When it was; a mark that is yet to come is later than all that has ended.
    fn time(&mut self, trace: &Trace) -> Seconds {
        let ends = self
            .tasks
            .iter()
            .map(|id| trace.span(*id).map(|span| span.end.0));
        let last = || ends.reduce(|a, b| Some(a?.max(b?)))?;
        self.time = self.time.or_else(|| last().map(Seconds));
        self.time.unwrap_or(Seconds(f64::INFINITY))
    }
}

impl<'p> Flow<'p> {
    /// The run of a plan's program, each piece of which is verified before it is submitted. An executor that
    /// moves real bytes gets verified programs only.
    pub fn new(plan: &'p Plan, lowering: Lowering) -> Flow<'p> {
        let verifier = Verifier::new(lowering.machine());
        Flow {
            verifier: Some(verifier),
            ..Flow::unverified(plan, lowering)
        }
    }

    /// The same without verification, which takes longer than predicting does.
    pub fn unverified(plan: &'p Plan, lowering: Lowering) -> Flow<'p> {
        let machine = lowering.machine();
        let stages = machine.num_gpus() as u64;
        let micro_batches = lowering.passes().micro_batches();
        Flow {
            plan,
            verifier: None,
            // A pipeline's first stage may be ahead of its last besides.
            ahead: (stages + micro_batches.max(stages) + AHEAD) as usize,
            pieces: VecDeque::new(),
            num_submitted: 0,
            marks: match Part::of(plan) {
                Part::Whole => None,
                Part::Passes { after, to } => Some([after, to].map(Mark::new)),
            },
            tally: Tally::new(machine),
            ends: vec![Seconds::ZERO; machine.resources.len()],
            now: Seconds::ZERO,
            lowering,
        }
    }

    /// Goes on until the next piece has ended, and counts it; none where all have.
    ///
    /// # Errors
    /// A piece that fails verification, or a task that fails.
    pub fn next(&mut self, executor: &mut dyn Executor) -> Result<Option<Ended>, DriveError> {
        self.submit_ahead(executor)?;
        let Some(Submitted { piece, lanes }) = self.pieces.pop_front() else {
            self.verifier.as_ref().map_or(Ok(()), Verifier::finish)?;
            return Ok(None);
        };
        for (_, last) in lanes.iter().flatten() {
            self.now = executor.wait(Until::Task(*last))?;
        }
        let trace = executor.trace();
        for (end, lane) in self.ends.iter_mut().zip(&lanes) {
            let span = lane.and_then(|(_, last)| trace.span(last));
            *end = span.map_or(*end, |span| span.end);
        }
        let part = self.part(trace);
        self.tally.see(&piece, trace, part);
        self.tally.settle(self.begun_since(trace));
        let at = self.now;
        Ok(Some(Ended { piece, part, at }))
    }

    /// Lets go of the first piece that has ended and was not let go of.
    pub fn forget(&mut self, piece: &Program, executor: &mut dyn Executor) {
        executor.forget(piece);
        if let Some(verifier) = &mut self.verifier {
            verifier.forget(piece);
        }
    }

    /// What all of it amounts to, and when.
    pub fn summary(self) -> (Summary, Timing) {
        let timing = Timing::of_tally(self.plan, &self.tally);
        (self.tally.summary(timing), timing)
    }

    fn submit_ahead(&mut self, executor: &mut dyn Executor) -> Result<(), DriveError> {
        while self.pieces.len() < self.ahead
            && let Some(piece) = self.lowering.next_pass()
        {
            if let Some(verifier) = &mut self.verifier {
                verifier.check(&piece)?;
            }
            let piece = Arc::new(piece);
            for mark in self.marks.iter_mut().flatten() {
                // Only plans of one stage have marks, and there a piece is a pass.
                if mark.pass == self.num_submitted {
                    mark.tasks = last_of_passes(&piece).collect();
                }
            }
            self.num_submitted += 1;
            self.pieces.push_back(Submitted {
                lanes: lanes(&piece, self.ends.len()),
                piece: Arc::clone(&piece),
            });
            executor.submit(piece)?;
        }
        Ok(())
    }

    /// What counts of a piece that has ended, as far as is known now.
    fn part(&mut self, trace: &Trace) -> (Seconds, Seconds) {
        match &mut self.marks {
            None => (Seconds::ZERO, Seconds(f64::INFINITY)),
            Some([from, to]) => (from.time(trace), to.time(trace)),
        }
    }

    /// No task of the pieces that have not ended began before this time: a resource takes its tasks in turn.
    fn begun_since(&self, trace: &Trace) -> Seconds {
        let lanes = self.ends.iter().enumerate();
        let since = lanes.filter_map(|(lane, end)| {
            let first = self.pieces.iter().find_map(|piece| piece.lanes[lane]);
            let span = trace.span(first?.0);
            Some(span.map_or(*end, |span| span.start))
        });
        since.fold(self.now, |since, begun| Seconds(since.0.min(begun.0)))
    }
}

/// By resource, the first and the last task of a piece.
fn lanes(piece: &Program, resources: usize) -> Vec<Option<(TaskId, TaskId)>> {
    let mut lanes = vec![None; resources];
    for (task, id) in piece.tasks().iter().zip(piece.first_task().0..) {
        let lane: &mut Option<(TaskId, TaskId)> = &mut lanes[usize::from(task.resource.0)];
        lane.get_or_insert((TaskId(id), TaskId(id))).1 = TaskId(id);
    }
    lanes
}
