//! GPUs that serve a model together.

use std::ops::Range;

use plimsoll_core::compression::Kept;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::machine::Machine;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::serve::Stages;
use plimsoll_core::units::Bytes;

/// Where a model that is served lies. Each GPU has the weights and the cache of its own layers; the embedding is with the
/// first, the head with the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gpus {
    /// On one.
    One,
    /// In stages, through which `micro_batches` batches follow each other, each with its share of the requests and of the
    /// cache.
    Pipeline(Pipeline),
    /// As S3 counts (section 4.2): a batch has the whole cache, and a token of each of its sequences is there whenever one
    /// stage has computed. No machine does that: what the stage computes next would have to be other batches, and their
    /// caches would have to be somewhere.
    StageForAll {
        /// The stage's first layer, from 0 on.
        first: u32,
        /// Its layers.
        layers: u32,
    },
}

impl Gpus {
    /// Batches that are computed at once, each with its part of the cache.
    pub fn batches(&self) -> u32 {
        match self {
            Gpus::Pipeline(of) => of.micro_batches,
            Gpus::One | Gpus::StageForAll { .. } => 1,
        }
    }

    /// Device memory that weights leave for the cache, of all GPUs together: what the one with the least room a layer allows.
    /// None where the weights do not fit.
    pub fn kv_left(
        &self,
        profile: &HardwareProfile,
        model: &ModelSpec,
        kept: impl Into<Kept>,
    ) -> Option<Bytes> {
        let kept = kept.into();
        match self {
            Gpus::One => {
                let weights = kept.weights(model);
                let left = profile.tiers.device_usable().saturating_sub(weights);
                (left > Bytes::ZERO).then_some(left)
            }
            Gpus::Pipeline(of) => {
                let stages = of.blocks(model.num_hidden_layers).into_iter();
                let tokens = stages.map(|blocks| tokens_beside(profile, model, kept, &blocks));
                let least = tokens.collect::<Option<Vec<u64>>>()?.into_iter().min()?;
                Some(model.kv_bytes_per_token(kept.dtype) * least)
            }
            Gpus::StageForAll { first, layers } => {
                let blocks = first + 1..first + layers + 1;
                let tokens = tokens_beside(profile, model, kept, &blocks)?;
                Some(model.kv_bytes_per_token(kept.dtype) * tokens)
            }
        }
    }

    /// Of the GPU that has the most of them, its stage from 1 on and its weights; none where one GPU has all.
    pub fn heaviest(&self, model: &ModelSpec, kept: Kept) -> Option<(usize, Bytes)> {
        let Gpus::Pipeline(of) = self else {
            return None;
        };
        let stages = of.blocks(model.num_hidden_layers).into_iter();
        let weights = stages.map(|blocks| weights_of(model, kept, &blocks));
        weights
            .enumerate()
            .map(|(at, bytes)| (at + 1, bytes))
            .max_by_key(|(_, bytes)| *bytes)
    }

    /// The whole cache where each GPU has so many GB of 10^9 bytes for its layers' part of it.
    pub fn kv_of(&self, each_gb: f64, model: &ModelSpec) -> Bytes {
        let each = Bytes((each_gb * 1e9) as u64);
        match self {
            Gpus::One => each,
            Gpus::Pipeline(of) => {
                let layers = of.layers(model.num_hidden_layers);
                share_of_all(each, layers.into_iter().max().unwrap_or(1), model)
            }
            Gpus::StageForAll { layers, .. } => share_of_all(each, *layers, model),
        }
    }

    /// [`Gpus::kv_of`], of what is left.
    ///
    /// # Errors
    /// That it is less, in words.
    pub fn kv_within(&self, left: Bytes, each_gb: f64, model: &ModelSpec) -> Result<Bytes, String> {
        let asked = self.kv_of(each_gb, model);
        match asked <= left {
            true => Ok(asked),
            false => Err(format!("the weights leave {left} in all; give less")),
        }
    }

    /// The machine that pieces are written for.
    pub(super) fn machine(&self, profile: &HardwareProfile) -> Machine {
        let number = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
        match self {
            Gpus::One | Gpus::StageForAll { .. } => Machine::single_gpu(profile.usable()),
            Gpus::Pipeline(of) => {
                let (stages, on_host) = (number(of.stages), number(of.stages_per_host));
                Machine::several_gpus(profile.usable(), stages, on_host)
            }
        }
    }

    /// Where that machine computes the layers of a model of so many.
    pub(super) fn stages(&self, machine: &Machine, num_layers: u32) -> Stages {
        match self {
            Gpus::One => Stages::alone(machine, 0, num_layers as u16),
            Gpus::Pipeline(of) => Stages::of(machine, &of.layers(num_layers)),
            Gpus::StageForAll { first, layers } => {
                Stages::alone(machine, *first as u16, *layers as u16)
            }
        }
    }
}

/// What all layers have where some of them have so much.
fn share_of_all(of_some: Bytes, layers: u32, model: &ModelSpec) -> Bytes {
    Bytes(of_some.0 / u64::from(layers.max(1)) * u64::from(model.num_hidden_layers))
}

/// What a GPU stores of the weights of some blocks.
fn weights_of(model: &ModelSpec, kept: Kept, blocks: &Range<u32>) -> Bytes {
    let tensors = blocks.clone().flat_map(|block| model.tensors(block));
    // A head that is the embedding once more lies beside it once.
    let stored = tensors.filter(|it| blocks.start > 0 || !model.is_tied_head(it));
    stored.map(|it| kept.bytes(&it)).sum()
}

/// Tokens of which a GPU has room for the keys and values of some blocks' layers, beside these blocks' weights; none where
/// the weights leave nothing. Block 0 is the embedding, the last the head.
pub fn tokens_beside(
    profile: &HardwareProfile,
    model: &ModelSpec,
    kept: impl Into<Kept>,
    blocks: &Range<u32>,
) -> Option<u64> {
    let kept = kept.into();
    let weights = weights_of(model, kept, blocks);
    let left = profile.tiers.device_usable().saturating_sub(weights);
    let layers = blocks.clone();
    let layers = layers.filter(|block| (1..=model.num_hidden_layers).contains(block));
    let a_token = 2 * model.kv_size() * kept.dtype.size_bytes() * layers.count() as u64;
    (left > Bytes::ZERO).then(|| left.0.checked_div(a_token).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;

    use super::*;
    use crate::files::{find_model, find_profile};

    fn gpt3(stages: u32, last_stage_layers: Option<u32>) -> (HardwareProfile, ModelSpec, Gpus) {
        let profile = find_profile("a100x12-s3").unwrap();
        let model = find_model("gpt-3-175b").unwrap().spec;
        let pipeline = Pipeline {
            stages,
            micro_batches: stages,
            stages_per_host: 4,
            last_stage_layers,
            ..Pipeline::default()
        };
        (profile, model, Gpus::Pipeline(pipeline))
    }

    #[test]
    fn the_gpu_with_the_least_room_a_layer_decides() {
        // Of 16 layers 12 * 12288^2 weights each and their biases, an embedding of 50257 tokens and 2048 positions.
        let (profile, model, gpus) = gpt3(6, None);
        let layer = 12 * 12288_u64.pow(2) + 13 * 12288;
        let first = 2 * (16 * layer + (50257 + 2048) * 12288);
        let tokens = (80_000_000_000 - first) / (16 * 4 * 12288);
        let kv = gpus.kv_left(&profile, &model, Dtype::F16).unwrap();
        assert_eq!(kv.0, tokens * 96 * 4 * 12288);
        // Nine GPUs of 10 layers and one of 6: the first binds, by its embedding.
        let (_, _, ten) = gpt3(10, Some(6));
        let first = 2 * (10 * layer + (50257 + 2048) * 12288);
        let tokens = (80_000_000_000 - first) / (10 * 4 * 12288);
        let kv = ten.kv_left(&profile, &model, Dtype::F16).unwrap();
        assert_eq!(kv.0, tokens * 96 * 4 * 12288);
        // Four do not hold the weights.
        let (_, _, four) = gpt3(4, None);
        assert_eq!(four.kv_left(&profile, &model, Dtype::F16), None);
    }

    #[test]
    fn room_on_each_gpu_is_cut_by_the_stage_of_the_most_layers() {
        let (_, model, gpus) = gpt3(10, Some(6));
        assert_eq!(gpus.kv_of(10e-6, &model), Bytes(96_000));
        assert_eq!(Gpus::One.kv_of(10e-6, &model), Bytes(10_000));
    }
}
