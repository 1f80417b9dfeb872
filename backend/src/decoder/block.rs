//! The tensors of a block, wherever they lie.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::model::{TensorRole, TensorSpec};
use plimsoll_core::placement::BlockWeights;
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::Bytes;

use super::DecoderError;
use crate::kernels::groups::PackedMatrix;
use crate::kernels::linear::LinearWeight;
use crate::kernels::norm::NormWeight;
use crate::kernels::{Elements, Matrix};

/// A block's tensors in the slabs that hold them: those that live in a tier lie in one slab, at home or
/// staged.
#[derive(Debug, Clone, Copy)]
pub struct BlockTensors<'a> {
    /// Where each tensor is in its slab.
    pub weights: &'a BlockWeights,
    /// By the tier the tensors live in.
    pub slabs: PerTier<Option<&'a [u8]>>,
    /// Where what is there of a slab begins in it: a staged one may hold a part of the block.
    pub starts: PerTier<Bytes>,
    /// What they are stored as.
    pub dtype: Dtype,
    /// Whether matrices are packed.
    pub compression: Compression,
}

impl<'a> BlockTensors<'a> {
    /// A tensor that the model may not have, and its bytes.
    fn find(&self, role: TensorRole) -> Result<Option<(&'a TensorSpec, &'a [u8])>, DecoderError> {
        let mut tensors = self.weights.tensors.iter();
        let Some(tensor) = tensors.find(|tensor| tensor.spec.role == role) else {
            return Ok(None);
        };
        let bytes = self.compression.tensor_bytes(&tensor.spec, self.dtype);
        // One that lies before the part has no place in it.
        let start = tensor.offset.0.checked_sub(self.starts[tensor.home].0);
        let bytes = self.slabs[tensor.home]
            .zip(start)
            .and_then(|(slab, start)| {
                let start = start as usize;
                slab.get(start..start + bytes.0 as usize)
            });
        let bytes = bytes.ok_or(DecoderError::NoTensor { role })?;
        Ok(Some((&tensor.spec, bytes)))
    }

    /// A vector that the model may not have.
    pub(super) fn vector(&self, role: TensorRole) -> Result<Option<Elements<'a>>, DecoderError> {
        let found = self.find(role)?;
        let elements = found.map(|(_, bytes)| Elements::from_bytes(bytes, self.dtype));
        Ok(elements.transpose()?)
    }

    /// A matrix that the model may not have.
    ///
    /// # Errors
    /// Where the model has it and the slab is not there.
    pub(super) fn optional(&self, role: TensorRole) -> Result<Option<Matrix<'a>>, DecoderError> {
        let Some((spec, bytes)) = self.find(role)? else {
            return Ok(None);
        };
        Ok(Some(if self.compression.packs(spec) {
            let (rows, columns) = (spec.rows as usize, spec.cols as usize);
            Matrix::Packed(PackedMatrix::new(bytes, rows, columns)?)
        } else {
            Elements::from_bytes(bytes, self.dtype)?.into()
        }))
    }

    /// A matrix that the stage cannot do without.
    ///
    /// # Errors
    /// Where it is not there.
    pub fn get(&self, role: TensorRole) -> Result<Matrix<'a>, DecoderError> {
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
            bias: self.vector(bias)?,
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
            bias: self.vector(bias)?,
            ..self.unbiased_norm(weight, epsilon)?
        })
    }

    /// A norm that no model has a bias for.
    pub(super) fn unbiased_norm(
        &self,
        weight: TensorRole,
        epsilon: f64,
    ) -> Result<NormWeight<'a>, DecoderError> {
        Ok(NormWeight {
            weight: self
                .vector(weight)?
                .ok_or(DecoderError::NoTensor { role: weight })?,
            bias: None,
            epsilon: epsilon as f32,
        })
    }
}
