//! What interprets a program: the simulator, the CPU executor, the CUDA executor.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

use thiserror::Error as ThisError;

use crate::machine::ResourceId;
use crate::program::{Op, Program, TaskId};
use crate::trace::Trace;
use crate::units::Seconds;

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Until {
    /// A task's end. The task must have been submitted.
    Task(TaskId),
    /// A time on the executor's clock. What runs then stays in flight; where all has ended before, the
    /// clock still goes on to this time, since more may arrive at it. A time that has passed, or is not a number, is no wait.
    Time(Seconds),
    /// The end of all that was submitted.
    Idle,
}

/// Why an execution stopped.
#[derive(Debug, ThisError)]
pub enum ExecutionError {
    /// The user asked for it.
    #[error("interrupted")]
    Interrupted,
    /// A task failed; the others were stopped.
    #[error("task {} ({what}) failed: {source}", task.0)]
    Task {
        /// Which.
        task: TaskId,
        /// Its operation, in words.
        what: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The executor cannot go on at all.
    #[error("{0}")]
    Executor(Box<dyn Error + Send + Sync>),
}

/// A wait that would never end.
#[derive(Debug, ThisError)]
#[error("task {} was not submitted, so it never ends; submit its piece before waiting for it", task.0)]
pub struct NotSubmitted {
    /// What was waited for.
    pub task: TaskId,
}

impl From<NotSubmitted> for ExecutionError {
    fn from(error: NotSubmitted) -> ExecutionError {
        ExecutionError::Executor(Box::new(error))
    }
}

/// How long tasks take, of an executor whose time is modelled.
pub trait Times: Debug {
    /// A task alone.
    fn seconds(&self, on: ResourceId, op: &Op) -> Seconds;

    /// What a resource keeps of its pace, at the least, while another has a task as well.
    fn share(&self, of: ResourceId, beside: ResourceId) -> f64;

    /// From the end of a task on one resource to the start of one on another that waited for it.
    fn handoff(&self, from: ResourceId, to: ResourceId) -> Seconds;
}

/// Runs pieces of a program on resources that each keep program order.
///
/// Submitting returns at once; what was submitted earlier may still be in flight, and a new piece may
/// wait for it. The clock starts with the first [`Executor::wait`]: what was submitted before begins
/// together, however long writing it took.
pub trait Executor {
    /// Takes the next piece. The caller has verified it.
    ///
    /// # Errors
    /// Where the executor cannot take it, or an earlier task has failed.
    fn submit(&mut self, piece: Arc<Program>) -> Result<(), ExecutionError>;

    /// Goes on until something has happened and returns the clock.
    ///
    /// # Errors
    /// Where a task failed or the user interrupted; [`NotSubmitted`].
    fn wait(&mut self, until: Until) -> Result<Seconds, ExecutionError>;

    /// Lets go of the first piece that it still has, all tasks of which have ended, and of their spans where
    /// it can: nobody asks for them any more.
    fn forget(&mut self, piece: &Program);

    /// What has ended so far, but what was let go of.
    fn trace(&self) -> &Trace;

    /// How long tasks take, where that is known and nobody else disturbs them. Who knows need not submit what ends at a time
    /// that can be told: to wait for that time is the same, and faster.
    fn times(&self) -> Option<Box<dyn Times>> {
        None
    }
}
