//! The tensors of a block, wherever they lie.

use plimsoll_core::Dtype;
use plimsoll_core::model::TensorRole;
use plimsoll_core::placement::BlockWeights;
use plimsoll_core::tier::PerTier;

use super::DecoderError;
use crate::kernels::Elements;
use crate::kernels::linear::LinearWeight;
use crate::kernels::norm::NormWeight;

/// A block's tensors in the slabs that hold them: those that live in a tier lie in one slab, at home or
/// staged.
#[derive(Debug, Clone, Copy)]
pub struct BlockTensors<'a> {
    /// Where each tensor is in its slab.
    pub weights: &'a BlockWeights,
    /// By the tier the tensors live in.
    pub slabs: PerTier<Option<&'a [u8]>>,
    /// What they are stored as.
    pub dtype: Dtype,
}

impl<'a> BlockTensors<'a> {
    /// A tensor that the model may not have.
    ///
    /// # Errors
    /// Where the model has it and the slab is not there.
    pub(super) fn optional(&self, role: TensorRole) -> Result<Option<Elements<'a>>, DecoderError> {
        let mut tensors = self.weights.tensors.iter();
        let Some(tensor) = tensors.find(|tensor| tensor.spec.role == role) else {
            return Ok(None);
        };
        let start = tensor.offset.0 as usize;
        let end = start + (tensor.spec.elements() * self.dtype.size_bytes()) as usize;
        let slab = self.slabs[tensor.home];
        let bytes = slab.and_then(|slab| slab.get(start..end));
        let bytes = bytes.ok_or(DecoderError::NoTensor { role })?;
        Ok(Some(Elements::from_bytes(bytes, self.dtype)?))
    }

    /// A tensor that the stage cannot do without.
    ///
    /// # Errors
    /// Where it is not there.
    pub(super) fn get(&self, role: TensorRole) -> Result<Elements<'a>, DecoderError> {
        self.optional(role)?.ok_or(DecoderError::NoTensor { role })
    }

    /// A matrix with its bias, if it has one.
    pub(super) fn linear(
        &self,
        weight: TensorRole,
        bias: TensorRole,
    ) -> Result<LinearWeight<'a>, DecoderError> {
        Ok(LinearWeight {
            weight: self.get(weight)?,
            bias: self.optional(bias)?,
        })
    }

    /// A norm with its bias, if it has one.
    pub(super) fn norm(
        &self,
        weight: TensorRole,
        bias: TensorRole,
        epsilon: f64,
    ) -> Result<NormWeight<'a>, DecoderError> {
        Ok(NormWeight {
            weight: self.get(weight)?,
            bias: self.optional(bias)?,
            epsilon: epsilon as f32,
        })
    }
}
