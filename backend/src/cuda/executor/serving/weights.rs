//! A model's weights on a card, for as long as requests are served.

use plimsoll_core::compression::{Compression, Kept};
use plimsoll_core::model::{ModelSpec, TensorRole};
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::tier::Tier;

use super::super::issue::Tensor;
use crate::cpu::CpuError;
use crate::cuda::Card;
use crate::cuda::arena::ALIGNMENT;
use crate::serving::resident::{fill, placement};
use crate::tiers::Region;
use crate::weights::WeightSource;

/// Every block's tensors.
#[derive(Debug)]
pub(super) struct CardWeights {
    placement: WeightPlacement,
    /// By block.
    addresses: Vec<u64>,
    compression: Compression,
}

impl CardWeights {
    /// Reads all of a model's weights, a block at a time, and writes them to the card.
    ///
    /// # Errors
    /// What the source or the card says; memory that cannot be had.
    pub(super) fn load(
        card: &dyn Card,
        (model, kept): (&ModelSpec, Kept),
        source: &dyn WeightSource,
    ) -> Result<CardWeights, CpuError> {
        let placement = placement(model, kept);
        let sizes = placement
            .blocks
            .iter()
            .map(|block| block.slab[Tier::Device]);
        let offsets = sizes.scan(0, |end, bytes| {
            let start = *end;
            *end = (start + bytes.0 as usize).next_multiple_of(ALIGNMENT);
            Some((start, bytes))
        });
        let offsets: Vec<_> = offsets.collect();
        let all = offsets
            .last()
            .map_or(0, |(start, bytes)| start + bytes.0 as usize);
        let base = card.take(all)?;
        let mut addresses = Vec::with_capacity(offsets.len());
        for (block, (start, bytes)) in placement.blocks.iter().zip(offsets) {
            let mut slab = Region::new(Tier::Host.name(), bytes)?;
            fill(block, kept, source, slab.bytes_mut())?;
            card.write(base + start as u64, slab.bytes())?;
            addresses.push(base + start as u64);
        }
        Ok(CardWeights {
            placement,
            addresses,
            compression: kept.compression,
        })
    }

    /// A tensor of a block, if that has it.
    pub(super) fn tensor(&self, block: usize, role: TensorRole) -> Option<Tensor<'_>> {
        let tensors = &self.placement.blocks.get(block)?.tensors;
        let tensor = tensors.iter().find(|tensor| tensor.spec.role == role)?;
        Some(Tensor {
            address: self.addresses[block] + tensor.offset.0,
            spec: &tensor.spec,
            packed: self.compression.packs(&tensor.spec),
        })
    }
}
