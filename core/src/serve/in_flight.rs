//! Batches that follow each other through the stages of a pipeline.

use super::log::IterationRow;
use super::metrics::{Ledger, ServeSummary};
use super::scheduler::{Refusal, Scheduler};
use super::sequence::Sequence;
use crate::control::{Controller, Decision};
use crate::executor::Until;
use crate::machine::Machine;
use crate::program::TaskId;
use crate::trace::Trace;
use crate::units::Seconds;

/// Several schedulers on one machine, each with its own share of the requests and of the cache, as vLLM's virtual engines:
/// while one's batch is at a stage, those of the others are at others, so that no stage has to stand still until a token has
/// gone through all. A request that comes while batches are in flight is seen when the oldest of them has ended.
#[derive(Debug)]
pub struct InFlight {
    batches: Vec<Scheduler>,
    steps: Vec<Step>,
    next_task: TaskId,
}

/// What a batch's scheduler does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// It is to be asked.
    Due,
    /// It said what it waits for.
    Waits(Until),
    /// It has nothing more.
    Done,
}

impl Step {
    fn is_due(self, now: Seconds, trace: &Trace) -> bool {
        match self {
            Step::Due => true,
            Step::Waits(Until::Task(task)) => trace.span(task).is_some(),
            Step::Waits(Until::Time(time)) => time.0 <= now.0,
            Step::Waits(Until::Idle) | Step::Done => false,
        }
    }
}

impl InFlight {
    /// Of schedulers that know the same machine and the same requests. Request `i` is the one's that is at `i` modulo their
    /// number.
    ///
    /// # Panics
    /// Without any.
    pub fn new(schedulers: Vec<Scheduler>) -> InFlight {
        assert!(!schedulers.is_empty(), "a pipeline has a batch in flight");
        let count = schedulers.len();
        let each = (0..).zip(schedulers);
        InFlight {
            batches: each
                .map(|(index, of)| of.every(index, count as u32))
                .collect(),
            steps: vec![Step::Due; count],
            next_task: TaskId(0),
        }
    }

    /// The requests, and what has become of them.
    pub fn sequences(&self) -> Vec<Sequence> {
        let all = self.batches[0].running().sequences().len();
        let of = |id: usize| &self.batches[id % self.batches.len()];
        (0..all)
            .map(|id| of(id).running().sequences()[id])
            .collect()
    }

    /// Requests that could not be served, in their order.
    pub fn refusals(&self) -> Vec<Refusal> {
        let all = self.batches.iter().flat_map(Scheduler::refusals);
        let mut all: Vec<Refusal> = all.cloned().collect();
        all.sort_by_key(|refusal| refusal.request);
        all
    }

    /// Iterations of all batches in the order of their ends; none where nobody wanted them.
    pub fn iterations(&self) -> Vec<IterationRow> {
        let each = (0..).zip(&self.batches);
        let all = each.flat_map(|(batch, of)| {
            let rows = of.iterations().iter();
            rows.map(move |row| IterationRow { batch, ..*row })
        });
        let mut all: Vec<IterationRow> = all.collect();
        all.sort_by(|a, b| a.ended_s.total_cmp(&b.ended_s));
        all
    }

    /// What it amounts to, when all have ended. An answer is good within so many seconds a token.
    pub fn summary(&self, slo_s: f64) -> ServeSummary {
        let ledger = Ledger::of_all(self.batches.iter().map(Scheduler::ledger));
        let tokens = self.batches.iter().map(Scheduler::capacity_tokens).sum();
        ServeSummary::of(&self.sequences(), (&ledger, None), tokens, slo_s)
    }

    /// What ends first of all that batches wait for: stages are first in, first out, so the oldest task.
    fn wait(&self) -> Decision {
        let waits = self.steps.iter().filter_map(|step| match step {
            Step::Waits(until) => Some(*until),
            Step::Due | Step::Done => None,
        });
        let (mut oldest, mut soonest) = (None, None);
        for until in waits {
            match until {
                Until::Task(TaskId(task)) => {
                    oldest = Some(oldest.map_or(task, |other: u32| other.min(task)));
                }
                Until::Time(Seconds(time)) => {
                    soonest = Some(soonest.map_or(time, |other: f64| other.min(time)));
                }
                Until::Idle => {}
            }
        }
        match (oldest, soonest) {
            (Some(task), _) => Decision::Wait(Until::Task(TaskId(task))),
            (None, Some(time)) => Decision::Wait(Until::Time(Seconds(time))),
            (None, None) => Decision::Done,
        }
    }
}

impl Controller for InFlight {
    fn machine(&self) -> &Machine {
        self.batches[0].machine()
    }

    fn decide(&mut self, now: Seconds, trace: &Trace) -> Decision {
        for (batch, step) in self.batches.iter_mut().zip(&mut self.steps) {
            if !step.is_due(now, trace) {
                continue;
            }
            batch.number_from(self.next_task);
            match batch.decide(now, trace) {
                Decision::Submit(piece) => {
                    self.next_task = piece.end_task();
                    *step = Step::Due;
                    return Decision::Submit(piece);
                }
                Decision::Wait(until) => *step = Step::Waits(until),
                Decision::Done => *step = Step::Done,
            }
        }
        self.wait()
    }
}
