//! A simulation that goes on for long, with what it asked of the profile: pieces are seen before they are forgotten.

use std::sync::Arc;

use plimsoll_core::executor::{ExecutionError, Executor, Times, Until};
use plimsoll_core::extrapolation::Extrapolation;
use plimsoll_core::program::{Machine, Program};
use plimsoll_core::trace::Trace;
use plimsoll_core::units::Seconds;

use crate::reliance::Reliance;
use crate::{CostModel, Simulator};

/// A simulator that notes where it asked the profile what nobody measured.
pub struct Relying<'m> {
    simulator: Simulator,
    machine: &'m Machine,
    cost: CostModel,
    reliance: Reliance,
    /// Pieces that are to be seen before they are forgotten.
    unseen: Vec<Arc<Program>>,
    /// How many pieces there were.
    pieces: usize,
}

/// Pieces of long runs are much alike: one in so many is seen, since to ask the cost model for all of them again would take half as
/// long as the simulation.
const SEEN_EVERY: usize = 8;

impl<'m> Relying<'m> {
    /// Around a simulator of a machine by a cost model, which are given again.
    pub fn new(simulator: Simulator, machine: &'m Machine, cost: CostModel) -> Relying<'m> {
        Relying {
            simulator,
            machine,
            cost,
            reliance: Reliance::default(),
            unseen: Vec::new(),
            pieces: 0,
        }
    }

    fn see(&mut self, piece: &Program) {
        let all = (Seconds::ZERO, Seconds(f64::INFINITY));
        let where_it_ran = (self.machine, self.simulator.trace());
        self.reliance.see(piece, where_it_ran, all, &self.cost);
    }

    /// The curves that were asked outside their points in a run that took so long, the longest busy first.
    pub fn extrapolations(mut self, took: Seconds) -> Vec<Extrapolation> {
        for piece in std::mem::take(&mut self.unseen) {
            self.see(&piece);
        }
        let seen = self.pieces.div_ceil(SEEN_EVERY) as f64;
        let share = seen / self.pieces.max(1) as f64;
        self.reliance
            .timed(Seconds(took.0 * share))
            .extrapolations()
    }
}

impl Executor for Relying<'_> {
    fn submit(&mut self, piece: Arc<Program>) -> Result<(), ExecutionError> {
        if self.pieces.is_multiple_of(SEEN_EVERY) {
            self.unseen.push(Arc::clone(&piece));
        }
        self.pieces += 1;
        self.simulator.submit(piece)
    }

    fn wait(&mut self, until: Until) -> Result<Seconds, ExecutionError> {
        self.simulator.wait(until)
    }

    fn forget(&mut self, piece: &Program) {
        let is_it = |it: &Arc<Program>| it.first_task() == piece.first_task();
        if let Some(at) = self.unseen.iter().position(is_it) {
            self.see(piece);
            self.unseen.remove(at);
        }
        self.simulator.forget(piece);
    }

    fn trace(&self) -> &Trace {
        self.simulator.trace()
    }

    fn times(&self) -> Option<Box<dyn Times>> {
        self.simulator.times()
    }
}
