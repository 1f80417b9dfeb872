//! A model's weights, all on the device for as long as requests are served.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::placement::{BlockWeights, WeightPlacement};
use plimsoll_core::policy::Policy;
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;

use crate::cpu::CpuError;
use crate::decoder::BlockTensors;
use crate::tiers::Region;
use crate::weights::WeightSource;

/// Every block's tensors, as they are computed with.
#[derive(Debug)]
pub struct Resident {
    placement: WeightPlacement,
    /// By block.
    slabs: Vec<Region>,
    dtype: Dtype,
}

impl Resident {
    /// Bytes that a model's weights take.
    pub fn bytes(model: &ModelSpec, dtype: Dtype) -> Bytes {
        placement(model, dtype).bytes()[Tier::Device]
    }

    /// Reads all of a model's weights.
    ///
    /// # Errors
    /// What the source says; memory that cannot be had.
    pub fn load(
        model: &ModelSpec,
        dtype: Dtype,
        source: &dyn WeightSource,
    ) -> Result<Resident, CpuError> {
        let placement = placement(model, dtype);
        let mut slabs = Vec::with_capacity(placement.blocks.len());
        for block in &placement.blocks {
            let mut slab = Region::new("device", block.slab[Tier::Device])?;
            fill(block, dtype, source, slab.bytes_mut())?;
            slabs.push(slab);
        }
        Ok(Resident {
            placement,
            slabs,
            dtype,
        })
    }

    /// A block's tensors: the embedding is the first block, the head the last.
    ///
    /// # Panics
    /// Where the model has no such block.
    pub fn block(&self, block: usize) -> BlockTensors<'_> {
        BlockTensors {
            weights: &self.placement.blocks[block],
            slabs: PerTier {
                device: Some(self.slabs[block].bytes()),
                ..PerTier::default()
            },
            starts: PerTier::default(),
            dtype: self.dtype,
            compression: Compression::default(),
        }
    }
}

/// Reads a block's tensors to its slab.
///
/// # Errors
/// What the source says.
pub(crate) fn fill(
    block: &BlockWeights,
    dtype: Dtype,
    source: &dyn WeightSource,
    slab: &mut [u8],
) -> Result<(), CpuError> {
    for tensor in &block.tensors {
        let length = tensor.spec.elements() * dtype.size_bytes();
        let place = tensor.offset.0 as usize..(tensor.offset.0 + length) as usize;
        source.load(&tensor.spec, dtype, &mut slab[place])?;
    }
    Ok(())
}

/// All on the device.
pub(crate) fn placement(model: &ModelSpec, dtype: Dtype) -> WeightPlacement {
    let percent = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
    let policy = Policy::from_percent(1, 1, percent).expect("one hundred percent each");
    WeightPlacement::new(model, dtype, &policy)
}
