//! A simulation that goes on for long, with what it asked of the profile: pieces are seen as they are forgotten.

use std::collections::VecDeque;
use std::sync::Arc;

use plimsoll_core::executor::{ExecutionError, Executor, Times, Until};
use plimsoll_core::extrapolation::Extrapolation;
use plimsoll_core::program::{Machine, Program, TaskId};
use plimsoll_core::trace::Trace;
use plimsoll_core::units::Seconds;

use crate::reliance::Reliance;
use crate::{CostModel, Simulator};

/// A simulator that notes where it asked the profile what nobody measured.
pub struct Relying<'m> {
    simulator: Simulator,
    machine: &'m Machine,
    cost: CostModel,
    /// By all pieces of the beginning.
    exact: Reliance,
    /// By some pieces of all.
    sampled: Reliance,
    /// How long these took, and all pieces.
    sampled_s: f64,
    all_s: f64,
    /// Pieces that were not forgotten yet.
    pieces: VecDeque<Arc<Program>>,
    /// How many were.
    seen: usize,
}

/// To ask the cost model for all pieces of a long run again would take half as long as the simulation: of runs of more pieces than
/// this, only some are seen.
const EXACT_UP_TO: usize = 512;

/// Whether a piece of a long run is seen: one of eight, in no order, since pieces may be alike in turns.
fn is_sampled(number: usize) -> bool {
    (number as u32).wrapping_mul(0x9e37_79b9) >> 29 == 0
}

impl<'m> Relying<'m> {
    /// Around a simulator of a machine by a cost model, which are given again.
    pub fn new(simulator: Simulator, machine: &'m Machine, cost: CostModel) -> Relying<'m> {
        Relying {
            simulator,
            machine,
            cost,
            exact: Reliance::default(),
            sampled: Reliance::default(),
            sampled_s: 0.0,
            all_s: 0.0,
            pieces: VecDeque::new(),
            seen: 0,
        }
    }

    /// Looks at a piece that has ended.
    fn see(&mut self, piece: &Program) {
        let trace = self.simulator.trace();
        let tasks = piece.first_task().0..piece.end_task().0;
        let spans = tasks.filter_map(|task| trace.span(TaskId(task)));
        let seconds: f64 = spans.map(|span| span.duration().0).sum();
        let part = (Seconds::ZERO, Seconds(f64::INFINITY));
        self.all_s += seconds;
        if self.seen < EXACT_UP_TO {
            self.exact
                .see(piece, (self.machine, trace), part, &self.cost);
        }
        if is_sampled(self.seen) {
            self.sampled
                .see(piece, (self.machine, trace), part, &self.cost);
            self.sampled_s += seconds;
        }
        self.seen += 1;
    }

    /// The curves that were asked outside their points in a run that took so long, the longest busy first.
    pub fn extrapolations(mut self, took: Seconds) -> Vec<Extrapolation> {
        for piece in std::mem::take(&mut self.pieces) {
            self.see(&piece);
        }
        let reliance = match self.seen <= EXACT_UP_TO {
            true => self.exact.timed(took),
            // As if those that were seen had been all.
            false => self
                .sampled
                .timed(Seconds(took.0 * self.sampled_s / self.all_s)),
        };
        reliance.extrapolations()
    }
}

impl Executor for Relying<'_> {
    fn submit(&mut self, piece: Arc<Program>) -> Result<(), ExecutionError> {
        self.pieces.push_back(Arc::clone(&piece));
        self.simulator.submit(piece)
    }

    fn wait(&mut self, until: Until) -> Result<Seconds, ExecutionError> {
        self.simulator.wait(until)
    }

    fn forget(&mut self, piece: &Program) {
        // They are forgotten in their order.
        self.pieces.pop_front();
        self.see(piece);
        self.simulator.forget(piece);
    }

    fn trace(&self) -> &Trace {
        self.simulator.trace()
    }

    fn times(&self) -> Option<Box<dyn Times>> {
        self.simulator.times()
    }
}
