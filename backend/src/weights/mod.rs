//! Where weights come from: a checkpoint on disk, or a generator.
//!
//! A source writes one tensor at a time, in the stored type of the plan, to wherever the tensor lives.

mod checkpoint;
mod error;
mod remembered;
mod synthetic;

use plimsoll_core::Dtype;
use plimsoll_core::model::TensorSpec;

use crate::kernels::{ElementsMut, KernelError};

pub use checkpoint::Safetensors;
pub use error::WeightError;
pub use remembered::Remembered;
pub use synthetic::Synthetic;

/// Gives the elements of a model's tensors.
pub trait WeightSource: Sync {
    /// Writes all elements of `tensor`, row after row, as `dtype`; `into` has exactly their bytes.
    ///
    /// # Errors
    /// Where the source does not have the tensor, or not in that shape.
    fn load(&self, tensor: &TensorSpec, dtype: Dtype, into: &mut [u8]) -> Result<(), WeightError>;
}

/// Sees the place of a tensor as its elements, if it has exactly their bytes.
fn place_of<'a>(
    tensor: &TensorSpec,
    dtype: Dtype,
    into: &'a mut [u8],
) -> Result<ElementsMut<'a>, WeightError> {
    let refused = |source| WeightError::Place {
        tensor: tensor.name.to_string(),
        source,
    };
    let expected = (tensor.elements() * dtype.size_bytes()) as usize;
    if into.len() != expected {
        return Err(refused(KernelError::Shape {
            what: "its bytes",
            expected,
            found: into.len(),
        }));
    }
    ElementsMut::from_bytes(into, dtype).map_err(refused)
}
