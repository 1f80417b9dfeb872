//! A named error for each invariant.

use thiserror::Error;

use crate::program::{BufferId, TaskId};
use crate::tier::Tier;
use crate::units::Bytes;

/// The rule that a program breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VerifyError {
    /// Pieces must run on from one another.
    #[error("the piece starts at task {}, not at {}", found.0, expected.0)]
    NotNext {
        /// The next free number.
        expected: TaskId,
        /// The piece's first.
        found: TaskId,
    },
    /// A task waits for itself or a later one, so the graph need not be acyclic.
    #[error("task {} waits for task {}, which does not come before it", task.0, dep.0)]
    Cycle {
        /// The task.
        task: TaskId,
        /// What it waits for.
        dep: TaskId,
    },
    /// The machine has no such engine.
    #[error("task {} runs on a resource that the machine does not have", task.0)]
    NoSuchResource {
        /// The task.
        task: TaskId,
    },
    /// The machine has no such memory.
    #[error("buffer {} lies in an arena that the machine does not have", buffer.0)]
    NoSuchArena {
        /// The buffer.
        buffer: BufferId,
    },
    /// Nobody declared the buffer.
    #[error("task {} names buffer {}, which is not declared", task.0, buffer.0)]
    NoSuchBuffer {
        /// The task.
        task: TaskId,
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer reaches past the end of its tier.
    #[error(
        "buffer {} reaches to {needed} of the {tier} tier, which holds {capacity}",
        buffer.0
    )]
    OverCapacity {
        /// The buffer.
        buffer: BufferId,
        /// Its tier.
        tier: Tier,
        /// Where it ends.
        needed: Bytes,
        /// Where the tier ends.
        capacity: Bytes,
    },
    /// Two buffers may be alive in the same place at once, so a tier could hold more than it has.
    #[error(
        "task {} takes buffer {} while buffer {} may still lie there",
        task.0, buffer.0, other.0
    )]
    Overlap {
        /// The taker.
        task: TaskId,
        /// The new buffer.
        buffer: BufferId,
        /// The old one.
        other: BufferId,
    },
    /// A buffer comes to life twice.
    #[error("task {} takes buffer {} again", task.0, buffer.0)]
    TakenTwice {
        /// The second taker.
        task: TaskId,
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer is used before it is taken or after it was given back.
    #[error("task {} uses buffer {}, which is not alive then", task.0, buffer.0)]
    NotAlive {
        /// The user.
        task: TaskId,
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer is read before anything was put in it.
    #[error("task {} reads buffer {} before its contents are there", task.0, buffer.0)]
    NotResident {
        /// The reader.
        task: TaskId,
        /// The buffer.
        buffer: BufferId,
    },
    /// A write is not ordered with another use.
    #[error("task {} and an earlier task may touch buffer {} at once", task.0, buffer.0)]
    Race {
        /// The later task.
        task: TaskId,
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer is given back a second time, or was never to be.
    #[error("task {} gives back buffer {}, which is not its to give", task.0, buffer.0)]
    GivenTwice {
        /// The giver.
        task: TaskId,
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer is given back while a task may still use it.
    #[error("task {} gives back buffer {} while it may be in use", task.0, buffer.0)]
    GivenInUse {
        /// The giver.
        task: TaskId,
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer outlives its program.
    #[error("buffer {} is never given back", buffer.0)]
    NeverGiven {
        /// The buffer.
        buffer: BufferId,
    },
}
