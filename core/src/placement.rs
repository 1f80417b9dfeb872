//! Fractions made whole: which tensor lives in which tier, and where in that tier's slab.

use std::ops::Range;

use crate::Dtype;
use crate::compression::Compression;
use crate::model::{ModelSpec, TensorRole, TensorSpec};
use crate::plan::Plan;
use crate::policy::{Fractions, Granularity, Policy};
use crate::split::{Module, SplitLinears};
use crate::tier::{PerTier, Tier};
use crate::units::Bytes;

/// Offsets in a slab, and slabs themselves, are multiples of this: one page, which direct disk I/O needs.
pub const PAGE_BYTES: u64 = 4096;

/// Tensors in a slab start at multiples of this: a cache line.
const TENSOR_ALIGNMENT_BYTES: u64 = 64;

/// A tensor and where it lives.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedTensor {
    /// The tensor.
    pub spec: TensorSpec,
    /// Its tier.
    pub home: Tier,
    /// Its first byte in its block's slab of that tier.
    pub offset: Bytes,
}

/// The tensors of one block. Those of one tier lie together in a slab, so that one copy moves them.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockWeights {
    /// In the model's order.
    pub tensors: Vec<PlacedTensor>,
    /// Bytes of each tier's slab, whole pages.
    pub slab: PerTier<Bytes>,
}

/// A block of the model, or one half of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerPart {
    /// All of it.
    Whole,
    /// Its attention.
    Attention,
    /// Its MLP.
    Mlp,
}

/// Where every weight lives.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightPlacement {
    /// By model block.
    pub blocks: Vec<BlockWeights>,
}

impl WeightPlacement {
    /// Places every tensor of a model as a policy's shares of the weights ask.
    pub fn new(model: &ModelSpec, dtype: Dtype, policy: &Policy) -> WeightPlacement {
        let shares = &policy.weights;
        let stages = policy.pipeline.blocks(model.num_hidden_layers);
        let begins_stage = |block| stages.iter().any(|stage| stage.start == block);
        let mut spread = Spread::new(*shares);
        let blocks = (0..model.num_blocks())
            .map(|block| {
                if begins_stage(block) {
                    // A stage's tiers are its own.
                    spread = Spread::new(*shares);
                }
                let tensors = model.tensors(block);
                let homes = match (&policy.split, policy.granularity) {
                    (Some(split), _) => by_modules((model, block), &tensors, split),
                    (None, Granularity::Layer) => by_halves(&tensors, shares),
                    (None, Granularity::Spread) => {
                        tensors.iter().map(|t| spread.place(t.elements())).collect()
                    }
                };
                BlockWeights::pack(tensors, &homes, (dtype, policy.compression))
            })
            .collect();
        WeightPlacement { blocks }
    }

    /// That of a plan.
    pub fn of(plan: &Plan) -> WeightPlacement {
        WeightPlacement::new(&plan.model, plan.dtype, &plan.policy)
    }

    /// Shares of each tier by the tensors as they really lie.
    pub fn shares(&self) -> PerTier<f64> {
        let bytes = self.bytes().map(Bytes::as_f64);
        let all = bytes.device + bytes.host + bytes.disk;
        bytes.map(|bytes| bytes / all.max(1.0))
    }

    /// Bytes that live in each tier.
    pub fn bytes(&self) -> PerTier<Bytes> {
        PerTier::from_fn(|tier| self.blocks.iter().map(|b| b.slab[tier]).sum())
    }
}

impl BlockWeights {
    fn pack(
        tensors: Vec<TensorSpec>,
        homes: &[Tier],
        (dtype, compression): (Dtype, Compression),
    ) -> BlockWeights {
        let mut slab = PerTier::<Bytes>::default();
        let tensors = tensors
            .into_iter()
            .zip(homes)
            .map(|(spec, &home)| {
                let offset = slab[home];
                let bytes = compression.tensor_bytes(&spec, dtype);
                slab[home] = offset + bytes.align_up(TENSOR_ALIGNMENT_BYTES);
                PlacedTensor { spec, home, offset }
            })
            .collect();
        let slab = slab.map(|bytes| bytes.align_up(PAGE_BYTES));
        BlockWeights { tensors, slab }
    }

    /// Where a part's tensors lie in a tier's slab, in whole pages: two parts may share one.
    pub fn span(&self, part: LayerPart, tier: Tier) -> Range<Bytes> {
        let end = self.slab[tier];
        let of_mlp = |t: &&PlacedTensor| t.home == tier && in_mlp(t.spec.role);
        // The MLP's come behind the attention's.
        let begins = || {
            let first = self.tensors.iter().find(of_mlp);
            first.map_or(end, |tensor| tensor.offset)
        };
        match part {
            LayerPart::Whole => Bytes::ZERO..end,
            LayerPart::Attention => Bytes::ZERO..begins().align_up(PAGE_BYTES),
            LayerPart::Mlp => Bytes(begins().0 / PAGE_BYTES * PAGE_BYTES)..end,
        }
    }

    /// Where a tensor begins in its slab; none where the block has no such tensor.
    pub fn offset_of(&self, role: TensorRole) -> Option<Bytes> {
        let mut tensors = self.tensors.iter();
        let tensor = tensors.find(|tensor| tensor.spec.role == role)?;
        Some(tensor.offset)
    }

    /// Bytes of a part in a tier's slab.
    pub fn bytes(&self, part: LayerPart, tier: Tier) -> Bytes {
        let span = self.span(part, tier);
        span.end - span.start
    }
}

/// Where linear layers are split, their weights live on the host and all else on the device, and so do modules
/// that the device has whole.
fn by_modules(
    (model, block): (&ModelSpec, u32),
    tensors: &[TensorSpec],
    split: &SplitLinears,
) -> Vec<Tier> {
    let layers = model.num_hidden_layers;
    let home = |tensor: &TensorSpec| match Module::of(tensor.role) {
        Some(module) if !split.is_on_device(module, block - 1, layers) => Tier::Host,
        _ => Tier::Device,
    };
    tensors.iter().map(home).collect()
}

/// FlexGen places a layer's attention and its MLP each by itself. (Its code has the norm of either behind the matrices, and not before
/// them as here, which matters where a matrix's middle falls on a percentage: with three quarters of OPT on the host.)
fn by_halves(tensors: &[TensorSpec], shares: &Fractions) -> Vec<Tier> {
    tensors
        .chunk_by(|a, b| in_mlp(a.role) == in_mlp(b.role))
        .flat_map(|half| {
            let sizes: Vec<u64> = half.iter().map(TensorSpec::elements).collect();
            by_middle(&sizes, shares)
        })
        .collect()
}

fn in_mlp(role: TensorRole) -> bool {
    use TensorRole::{
        DownBias, DownWeight, GateBias, GateUpBias, GateUpWeight, GateWeight, MlpNormBias,
        MlpNormWeight, UpBias, UpWeight,
    };
    matches!(
        role,
        MlpNormWeight
            | MlpNormBias
            | GateWeight
            | GateBias
            | UpWeight
            | UpBias
            | GateUpWeight
            | GateUpBias
            | DownWeight
            | DownBias
    )
}

/// FlexGen's rule: tensors in order are shares of a line that is disk first, then host, then device;
/// each goes where its middle falls.
fn by_middle(sizes: &[u64], shares: &Fractions) -> Vec<Tier> {
    let total: u64 = sizes.iter().sum();
    let mut before = 0;
    sizes
        .iter()
        .map(|size| {
            let middle = (before as f64 + *size as f64 / 2.0) / total as f64;
            before += size;
            if middle < shares.disk {
                Tier::Disk
            } else if middle < shares.disk + shares.host {
                Tier::Host
            } else {
                Tier::Device
            }
        })
        .collect()
}

/// Gives each tensor to the tier that lags furthest behind its share so far.
struct Spread {
    shares: Fractions,
    placed: PerTier<f64>,
    total: f64,
}

impl Spread {
    fn new(shares: Fractions) -> Spread {
        Spread {
            shares,
            placed: PerTier::default(),
            total: 0.0,
        }
    }

    fn place(&mut self, elements: u64) -> Tier {
        self.total += elements as f64;
        let lag = |tier: Tier| self.shares[tier] * self.total - self.placed[tier];
        let furthest = Tier::ALL
            .into_iter()
            .filter(|tier| self.shares[*tier] > 0.0)
            .max_by(|a, b| lag(*a).total_cmp(&lag(*b)))
            .unwrap_or(Tier::Host);
        self.placed[furthest] += elements as f64;
        furthest
    }
}

/// Splits whole things (sequences, cache rows) over the tiers: the device's come first, then the host's.
pub fn split_whole(total: u32, shares: &Fractions) -> PerTier<u32> {
    let upto = |share: f64| ((f64::from(total) * share).round() as u32).min(total);
    let device = upto(shares.device);
    let host = upto(shares.device + shares.host).max(device) - device;
    // What rounding errors in the shares leave is nobody's unless the disk is meant to have some.
    let disk = total - device - host;
    if shares.disk > 1e-9 || disk == 0 {
        PerTier { device, host, disk }
    } else if shares.host > 1e-9 {
        PerTier {
            device,
            host: host + disk,
            disk: 0,
        }
    } else {
        PerTier {
            device: device + disk,
            host,
            disk: 0,
        }
    }
}
