//! A model's weights, all on the device for as long as requests are served.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Kept;
use plimsoll_core::model::{ModelSpec, TensorSpec};
use plimsoll_core::placement::{BlockWeights, WeightPlacement};
use plimsoll_core::policy::Policy;
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;

use crate::cpu::CpuError;
use crate::cpu::load_packed;
use crate::decoder::BlockTensors;
use crate::tiers::Region;
use crate::weights::WeightSource;

/// Every block's tensors, as they are computed with.
#[derive(Debug)]
pub struct Resident {
    placement: WeightPlacement,
    /// By block.
    slabs: Vec<Region>,
    kept: Kept,
}

impl Resident {
    /// Bytes that a model's weights take.
    pub fn bytes(model: &ModelSpec, kept: impl Into<Kept>) -> Bytes {
        placement(model, kept.into()).bytes()[Tier::Device]
    }

    /// Reads all of a model's weights.
    ///
    /// # Errors
    /// What the source says; memory that cannot be had.
    pub fn load(
        model: &ModelSpec,
        kept: impl Into<Kept>,
        source: &dyn WeightSource,
    ) -> Result<Resident, CpuError> {
        let kept = kept.into();
        let placement = placement(model, kept);
        let mut slabs = Vec::with_capacity(placement.blocks.len());
        for block in &placement.blocks {
            let mut slab = Region::new("device", block.slab[Tier::Device])?;
            fill(block, kept, source, slab.bytes_mut())?;
            slabs.push(slab);
        }
        Ok(Resident {
            placement,
            slabs,
            kept,
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
            dtype: self.kept.dtype,
            compression: self.kept.compression,
        }
    }
}

/// Reads a block's tensors to its slab.
///
/// # Errors
/// What the source says.
pub(crate) fn fill(
    block: &BlockWeights,
    kept: Kept,
    source: &dyn WeightSource,
    slab: &mut [u8],
) -> Result<(), CpuError> {
    for tensor in &block.tensors {
        let length = kept.bytes(&tensor.spec);
        let place = tensor.offset.0 as usize..(tensor.offset + length).0 as usize;
        let place = &mut slab[place];
        match kept.compression.packs(&tensor.spec) {
            false => source.load(&tensor.spec, kept.dtype, place)?,
            true => pack(&tensor.spec, kept.dtype, source, place)?,
        }
    }
    Ok(())
}

/// Reads a matrix and packs it.
fn pack(
    tensor: &TensorSpec,
    dtype: Dtype,
    source: &dyn WeightSource,
    place: &mut [u8],
) -> Result<(), CpuError> {
    let bytes = Bytes(tensor.elements() * dtype.size_bytes());
    let mut whole = Region::new("host", bytes)?;
    load_packed(source, (tensor, dtype), whole.bytes_mut(), place)
}

/// All on the device.
pub(crate) fn placement(model: &ModelSpec, kept: Kept) -> WeightPlacement {
    let percent = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
    let policy = Policy {
        compression: kept.compression,
        ..Policy::from_percent(1, 1, percent).expect("one hundred percent each")
    };
    WeightPlacement::new(model, kept.dtype, &policy)
}
