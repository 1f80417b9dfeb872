//! Where a task finds what it computes with. Stages are the same for a plan and for requests that are served.

use plimsoll_core::Dtype;
use plimsoll_core::model::{ModelSpec, TensorRole};
use plimsoll_core::program::Content;
use plimsoll_core::units::Bytes;

use super::beside::Beside;
use super::issue::{Piece, Tensor};
use crate::cpu::error::TaskError;
use crate::cpu::turn::Turn;
use crate::cuda::Launch;
use crate::cuda::launches::put_places;
use crate::decoder::DecoderError;
use crate::kernels::activation::Activation;

/// A batch and a block of the model, on the device.
pub(super) trait Ground {
    fn model(&self) -> &ModelSpec;
    /// What weights, cache and activations are stored as.
    fn dtype(&self) -> Dtype;
    /// What the MLP applies.
    fn activation(&self) -> Activation;
    /// A tensor of the block at hand, if the model has it.
    fn tensor(&self, role: TensorRole) -> Result<Option<Tensor<'_>>, TaskError>;
    /// How many tokens the batch has, which is computed from a position on.
    fn tokens(&self, position: u32) -> usize;
    /// Its activations, in the order of its sequences.
    fn hidden(&self, position: u32) -> Result<Vec<Piece>, TaskError>;
    /// Where its tokens are by their numbers, u32.
    fn ids(&self) -> Result<u64, TaskError>;
    /// What writes the positions of its tokens in their texts beside the arena; none where they are there.
    fn places(&self, beside: &Beside, position: u32) -> Option<Launch>;
}

impl Ground for Turn<'_> {
    fn model(&self) -> &ModelSpec {
        &self.engine.plan.model
    }

    fn dtype(&self) -> Dtype {
        self.engine.plan.dtype
    }

    fn activation(&self) -> Activation {
        self.engine.decoder.activation()
    }

    fn tensor(&self, role: TensorRole) -> Result<Option<Tensor<'_>>, TaskError> {
        let engine = self.engine;
        let block = self.cell.block;
        let weights = engine.placement.blocks.get(usize::from(block));
        let weights = weights.ok_or(TaskError::NoOperand("a block of the model"))?;
        let Some(tensor) = weights.tensors.iter().find(|t| t.spec.role == role) else {
            return Ok(None);
        };
        let missing = || DecoderError::NoTensor { role };
        let mut slabs = self.operands.all().iter().enumerate();
        let slab = slabs.find_map(|(index, operand)| match operand.content {
            Content::Weights {
                block: of,
                part,
                home,
            } if of == block && home == tensor.home => Some((index, part)),
            _ => None,
        });
        let (index, part) = slab.ok_or_else(missing)?;
        let start = weights.span(part, tensor.home).start;
        let offset = tensor.offset.0.checked_sub(start.0).ok_or_else(missing)?;
        let compression = engine.plan.policy.compression;
        let bytes = compression.tensor_bytes(&tensor.spec, engine.plan.dtype);
        let operand = self.operands.get(index)?;
        operand.part(Bytes(offset), bytes)?;
        Ok(Some(Tensor {
            address: self.operands.address(index)? + offset,
            spec: &tensor.spec,
            packed: compression.packs(&tensor.spec),
        }))
    }

    fn tokens(&self, position: u32) -> usize {
        let batch = self.batch(position);
        batch.sequences * batch.query_len
    }

    fn hidden(&self, position: u32) -> Result<Vec<Piece>, TaskError> {
        let batch = self.batch(position);
        let width = self.engine.plan.model.hidden_size as usize;
        let mut first = 0;
        let mut pieces = Vec::new();
        for (index, elements) in self.hidden_parts(batch) {
            let index = index.ok_or(TaskError::NoOperand("a buffer of activations"))?;
            let bytes = Bytes(elements as u64 * self.dtype().size_bytes());
            self.operands.get(index)?.part(Bytes::ZERO, bytes)?;
            let tokens = elements / width;
            pieces.push(Piece {
                address: self.operands.address(index)?,
                first,
                tokens,
            });
            first += tokens;
        }
        Ok(pieces)
    }

    fn ids(&self) -> Result<u64, TaskError> {
        let ids = self.need("a buffer of token ids", |content| {
            matches!(content, Content::Prompt { .. } | Content::Tokens { .. })
        })?;
        self.operands.address(ids)
    }

    fn places(&self, beside: &Beside, position: u32) -> Option<Launch> {
        let batch = self.batch(position);
        let shape = [batch.sequences, batch.query_len, batch.position];
        let firsts = beside.firsts_from(self.prompts().start);
        Some(put_places((firsts, beside.at.places), shape))
    }
}
