//! Element by element, in place.

use plimsoll_core::Dtype;

use super::{BLOCKS_MAX, launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};
use crate::kernels::activation::Activation;

pub(super) const THREADS: usize = 256;

/// What is computed on.
#[derive(Debug, Clone, Copy)]
pub struct Elements {
    /// Their type.
    pub dtype: Dtype,
    /// Where they are; the result takes their place.
    pub x: u64,
    /// The other operand; 0: none.
    pub other: u64,
    /// How many.
    pub count: usize,
    /// A row of them.
    pub width: usize,
}

/// An activation, as kernels know it.
pub(super) fn code(activation: Option<Activation>) -> usize {
    match activation {
        None => 0,
        Some(Activation::Relu) => 1,
        Some(Activation::GeluTanh) => 2,
        Some(Activation::GeluErf) => 3,
        Some(Activation::Silu) => 4,
    }
}

/// Blocks of threads that have an element each, or some in turn.
pub(super) fn blocks_of(count: usize) -> usize {
    count.div_ceil(THREADS).clamp(1, BLOCKS_MAX)
}

fn each(
    kernel: &str,
    elements: &Elements,
    activation: Option<Activation>,
) -> Result<Launch, CudaError> {
    let arguments = Arguments::new()
        .wides([elements.x, elements.other, elements.count as u64])
        .counts([elements.width, code(activation)]);
    let kernel = named(kernel, elements.dtype)?;
    // A thread takes eight at a time where it can.
    let shape = ([blocks_of(elements.count.div_ceil(8)), 1, 1], THREADS);
    Ok(launch("activation", kernel, shape, arguments))
}

/// `x = activation(x + bias)`, where `other` is a bias of one row, or 0.
///
/// # Errors
/// [`CudaError::Type`].
pub fn bias_activation(
    elements: &Elements,
    activation: Option<Activation>,
) -> Result<Launch, CudaError> {
    each("bias_activation", elements, activation)
}

/// `x = activation(x) * other`.
///
/// # Errors
/// [`CudaError::Type`].
pub fn activate_gate(elements: &Elements, activation: Activation) -> Result<Launch, CudaError> {
    each("activate_gate", elements, Some(activation))
}

/// `x = x + other`.
///
/// # Errors
/// [`CudaError::Type`].
pub fn residual(elements: &Elements) -> Result<Launch, CudaError> {
    each("residual", elements, None)
}
