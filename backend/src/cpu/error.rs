//! What keeps the CPU executor from running a plan, or a task from ending.

use plimsoll_core::Dtype;
use plimsoll_core::lower::LowerError;
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;
use thiserror::Error;

use crate::cuda::CudaError;
use crate::decoder::{DecoderError, wider};
use crate::serving::ServingError;
use crate::tiers::TierError;
use crate::weights::WeightError;

/// Why a plan cannot be executed here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CpuError {
    /// A tier cannot be had.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The plan has no program.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A tier is smaller than what the program keeps there.
    #[error(
        "the {tier} tier holds {capacity}, and the program keeps {needed} there; plan again for this machine"
    )]
    TooSmall {
        /// Which.
        tier: Tier,
        /// What the program keeps there.
        needed: Bytes,
        /// What it holds.
        capacity: Bytes,
    },
    /// The model cannot be computed.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// The GPU refuses.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The plan has something that no GPU executes yet.
    #[error("{what} is not executed on GPUs yet: {remedy}")]
    NotOnGpus {
        /// Which.
        what: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// Weights cannot be had.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The prompts are not such as the plan was made for.
    #[error(
        "{what}: {found} given, the plan has {expected}; give prompts such as were planned for"
    )]
    Prompts {
        /// What is counted.
        what: &'static str,
        /// By the plan.
        expected: usize,
        /// As given.
        found: usize,
    },
    /// The program computes prompts and nobody gave any.
    #[error("no prompts were set; call set_prompts before the first piece is submitted")]
    NoPrompts,
    /// The user asked for it, while memory was taken or weights were loaded.
    #[error("interrupted before anything was computed")]
    Interrupted,
    /// A worker thread cannot be had.
    #[error("no worker thread could be started: {0}")]
    Thread(std::io::Error),
    /// A piece that is not right: it was not verified.
    #[error("the program is not right: {0}; verify it before it is submitted")]
    Program(String),
    /// What serving needs cannot be had.
    #[error(transparent)]
    Serving(ServingError),
    /// Something failed before.
    #[error("the executor stopped after an earlier failure; make a new one")]
    Stopped,
}

/// Why a task did not end.
#[derive(Debug, Error)]
pub(crate) enum TaskError {
    /// The GPU refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A stage refused.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// A tier refused.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// An iteration of a serving system is not right.
    #[error(transparent)]
    Serving(ServingError),
    /// The program names a buffer that no piece declared, or none of the kind that is needed.
    #[error("{0} is not among its operands")]
    NoOperand(&'static str),
    /// An operation that this executor does not know.
    #[error("{0} are simulated only; replay the trace on a profile")]
    NotExecuted(&'static str),
    /// A move past the end of a buffer.
    #[error("it moves {bytes} of a buffer of {room}")]
    PastEnd {
        /// To where.
        bytes: Bytes,
        /// Its length.
        room: Bytes,
    },
    /// A move between tiers that no resource of this machine makes.
    #[error("nothing moves from {from} to {to}")]
    NoLink {
        /// From.
        from: Tier,
        /// To.
        to: Tier,
    },
    /// A head on a GPU gave a NaN, so no token is the likeliest.
    #[error(
        "the logits of sequence {sequence} of the batch are not all numbers: activations went past what {} holds; {}",
        dtype.name(), wider(*dtype)
    )]
    NotANumber {
        /// Which of the batch's sequences.
        sequence: usize,
        /// What activations are stored as.
        dtype: Dtype,
    },
    /// A bug.
    #[error("it panicked: {0}")]
    Panic(String),
}
