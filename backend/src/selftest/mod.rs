//! Every kernel against arithmetic in f64, on random operands of several shapes: the CPU's, and CUDA's on a GPU or on
//! whatever else is a [`KernelDevice`](crate::cuda::KernelDevice).
//!
//! Results lie in memory that was filled with NaNs, and what lies behind them must stay as it was. What is
//! allowed is a rounding to the stored type and some of f32's for the sum of the terms' sizes.

mod cpu;
mod cuda;
mod reference;

use thiserror::Error;

use crate::cuda::CudaError;
use crate::kernels::KernelError;

pub use cpu::cpu;
pub use cuda::cuda;

/// How one kernel did.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Which, in words.
    pub name: &'static str,
    /// Operands it was given.
    pub cases: usize,
    /// The largest error, as a share of what is allowed.
    pub worst: f64,
    /// What is wrong, if anything.
    pub wrong: Option<Wrong>,
}

/// What a kernel did wrong.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Wrong {
    /// It could not be run on a GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// It refused its operands.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A number that is not near the reference's.
    #[error("{case}: element {index} is {found}, and should be {expected} (within {allowed})")]
    Value {
        /// The operands.
        case: String,
        /// Where.
        index: usize,
        /// What was computed.
        found: f64,
        /// By the reference.
        expected: f64,
        /// How far off it may be.
        allowed: f64,
    },
    /// Bytes that should be others, or were none of its.
    #[error("{case}: {what}")]
    Bytes {
        /// The operands.
        case: String,
        /// What is not as it should be.
        what: String,
    },
}
