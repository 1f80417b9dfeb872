//! Outputs of split linear layers among all rows, and operands from the stored type to f32 and back.

use plimsoll_core::Dtype;

use super::elements::{THREADS, blocks_of, code};
use super::{launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};
use crate::kernels::activation::Activation;

/// Some rows of a linear layer's outputs, and where they go.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Of outputs, once they are whole, and of the bias.
    pub dtype: Dtype,
    /// f32 `[tokens, rows]`.
    pub part: u64,
    /// `[rows]`; 0: none.
    pub bias: u64,
    /// The place of the first token's first of these rows, `[tokens, width]`.
    pub y: u64,
    /// Tokens.
    pub tokens: usize,
    /// These rows.
    pub rows: usize,
    /// All rows.
    pub width: usize,
}

/// What is done with them.
#[derive(Debug, Clone, Copy)]
pub enum Join {
    /// They are put there.
    Put,
    /// They are added to what is there.
    Add,
    /// They are activated, and put there as f32.
    Activate(Option<Activation>),
    /// What is there, f32, is activated and multiplied with them.
    Gate(Activation),
}

impl Part {
    /// Brings them to their place.
    ///
    /// # Errors
    /// [`CudaError::Type`].
    pub fn join(&self, how: Join) -> Result<Launch, CudaError> {
        let (kernel, activation) = match how {
            Join::Put => ("put_part", None),
            Join::Add => ("add_part", None),
            Join::Activate(activation) => ("activate_part", activation),
            Join::Gate(activation) => ("gate_part", Some(activation)),
        };
        let count = self.tokens * self.rows;
        let arguments = Arguments::new()
            .wides([self.y, self.part, self.bias, count as u64])
            .counts([self.rows, self.width, code(activation)]);
        Ok(each(named(kernel, self.dtype)?, count, arguments))
    }
}

fn each(kernel: String, count: usize, arguments: Arguments) -> Launch {
    let shape = ([blocks_of(count), 1, 1], THREADS);
    launch("parts", kernel, shape, arguments)
}

fn converted(
    kernel: &str,
    dtype: Dtype,
    [y, x]: [u64; 2],
    count: usize,
) -> Result<Launch, CudaError> {
    let arguments = Arguments::new().wides([y, x, count as u64]);
    Ok(each(named(kernel, dtype)?, count, arguments))
}

/// Writes numbers of the stored type to `y` as f32.
///
/// # Errors
/// [`CudaError::Type`].
pub fn to_wide(dtype: Dtype, [y, x]: [u64; 2], count: usize) -> Result<Launch, CudaError> {
    converted("to_wide", dtype, [y, x], count)
}

/// Writes f32 to `y` in the stored type.
///
/// # Errors
/// [`CudaError::Type`].
pub fn to_stored(dtype: Dtype, [y, x]: [u64; 2], count: usize) -> Result<Launch, CudaError> {
    converted("to_stored", dtype, [y, x], count)
}
