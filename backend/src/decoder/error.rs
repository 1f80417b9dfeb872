//! What can go wrong in a stage.

use plimsoll_core::Dtype;
use plimsoll_core::model::{Family, TensorRole};
use thiserror::Error;

use crate::kernels::KernelError;

/// Why a stage was not computed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DecoderError {
    /// The model has parts that are only planned and simulated yet.
    #[error(
        "{model} can be planned and simulated, but not executed: {missing} (family {family}) are not \
         implemented; execute an OPT, Llama, Mistral, Qwen2 or Qwen3 model"
    )]
    Unsupported {
        /// The model.
        model: String,
        /// Its family.
        family: Family,
        /// What is missing.
        missing: String,
    },
    /// A block does not have a tensor that its stage needs, or not in a buffer of the task.
    #[error("the {role} tensor is not among what the task was given; this is an error of Plimsoll")]
    NoTensor {
        /// Which.
        role: TensorRole,
    },
    /// Operands do not have the lengths that the stage needs.
    #[error("{what}: {found} elements given, {expected} needed")]
    Operand {
        /// Which.
        what: &'static str,
        /// What the shape asks for.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// The system gave no threads.
    #[error(
        "the threads of the emulated device could not be started: {0}; give --device-threads 1"
    )]
    Threads(String),
    /// A head gave a NaN, so no token is the likeliest.
    #[error(
        "logit {token} of sequence {sequence} of the batch is not a number: activations went past what {} \
         holds; {}", dtype.name(), wider(*dtype)
    )]
    NotANumber {
        /// Which of the batch's sequences.
        sequence: usize,
        /// The first token whose logit is not a number.
        token: usize,
        /// What activations are stored as.
        dtype: Dtype,
    },
    /// A kernel refused its operands.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// What helps where activations are too large for a type. No other holds more than bf16 and f32 do.
pub(crate) fn wider(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "run in bf16 or f32",
        Dtype::Bf16 | Dtype::F32 => "get other weights",
    }
}

/// An error unless an operand has at least the elements that its shape asks for.
pub(super) fn at_least(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), DecoderError> {
    if found >= expected {
        Ok(())
    } else {
        Err(DecoderError::Operand {
            what,
            expected,
            found,
        })
    }
}
