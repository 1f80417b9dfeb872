//! A policy: the decisions that FlexGen's search makes (section 4.3), and a few that it leaves out.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::compression::Compression;
use crate::pipeline::Pipeline;
use crate::program::HostPages;
use crate::sparse;
use crate::split::{SplitError, SplitLinears};
use crate::tier::{PerTier, Tier};

/// Shares of one kind of tensor on each tier; they sum to one.
pub type Fractions = PerTier<f64>;

/// The order in which (batch, layer, token) squares are computed (FlexGen section 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// One GPU batch from its prompt to its last token, then the next: weights are read again for each.
    Row,
    /// The zig-zag block schedule: all GPU batches of a block share each layer's weights.
    ZigZag,
    /// The diagonal block schedule: the GPU batches of a block are at different tokens, and as one leaves,
    /// the next is prefilled beside the others (appendix A.2).
    Diagonal,
}

/// How a fraction of the weights becomes whole tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    /// FlexGen's rule: in each layer's attention, and in its MLP, by itself, a tensor goes where the
    /// middle of its share falls.
    Layer,
    /// Rounding errors are carried from tensor to tensor over the whole model, so that the model's
    /// split is close to what was asked and every layer carries about its part.
    Spread,
}

/// All decisions of one plan.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Sequences computed together on the GPU (FlexGen's gbs).
    pub gpu_batch_size: u32,
    /// GPU batches that share a load of the weights: of a block, or of each of its micro-batches.
    pub num_gpu_batches: u32,
    /// Where weights live.
    pub weights: Fractions,
    /// Where the KV cache lives.
    pub cache: Fractions,
    /// Where activations live between layers.
    pub activations: Fractions,
    /// How weight fractions are made whole.
    pub granularity: Granularity,
    /// The order of computation.
    pub schedule: Schedule,
    /// Whether copies, disk and computation overlap.
    pub overlap: bool,
    /// Whether all resources synchronise after every GPU batch, as FlexGen's Algorithm 1 does.
    pub barrier: bool,
    /// Whether attention and MLP are steps of their own, as in FlexGen's released code (its `sep_layer`), each
    /// with its own load of weights; see [`Policy::halves_layers`].
    #[serde(default, skip_serializing_if = "is_not")]
    pub half_layers: bool,
    /// Whether the CPU attends to a copy of the cache, made while the GPU batch before computes, as in FlexGen's
    /// released code (its attention workspace); see [`Policy::copies_cache`].
    #[serde(default, skip_serializing_if = "is_not")]
    pub cache_workspace: bool,
    /// Whether a prompt's attention scores lie on the device all at once, as in FlexGen's released code (its appendix A.3),
    /// and not some at a time; see [`Policy::stores_scores`].
    #[serde(default, skip_serializing_if = "is_not")]
    pub stored_scores: bool,
    /// Whether weights that are pageable come by way of page-locked memory that is kept for the next of that size, as in FlexGen's
    /// released code; see [`Policy::weights_on_host`].
    #[serde(default, skip_serializing_if = "is_not")]
    pub relayed_weights: bool,
    /// Whether decode attention over cache that is not on the device runs on the CPU beside it.
    pub cpu_attention: bool,
    /// Which homes on the host are page-locked.
    pub page_locked: PageLocked,
    /// What is kept in 4 bits an element.
    #[serde(default)]
    pub compression: Compression,
    /// The share of past tokens whose values a decode step reads (FlexGen section 5; [`sparse`]); 1 is
    /// dense. It changes what comes out, so it is asked for and never searched.
    #[serde(default = "dense", skip_serializing_if = "is_dense")]
    pub sparse_attention: f64,
    /// Linear layers that the CPU and the device compute together (HeteGen); none: each runs where its task does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitLinears>,
    /// How the model is spread over GPUs.
    #[serde(default, skip_serializing_if = "Pipeline::is_default")]
    pub pipeline: Pipeline,
}

fn is_not(value: &bool) -> bool {
    !value
}

fn dense() -> f64 {
    sparse::DENSE
}

fn is_dense(share: &f64) -> bool {
    *share == sparse::DENSE
}

/// Which homes on the host are page-locked. Copies from and to the others take the pageable rate. All else there always is: slots, prompts
/// and results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageLocked {
    /// Those of weights.
    pub weights: bool,
    /// Those of the KV cache.
    pub cache: bool,
    /// Those of activations.
    pub activations: bool,
}

impl PageLocked {
    /// All of them.
    pub const ALL: PageLocked = PageLocked {
        weights: true,
        cache: true,
        activations: true,
    };

    /// None of them.
    pub const NONE: PageLocked = PageLocked {
        weights: false,
        cache: false,
        activations: false,
    };

    /// "all", "none", or what is, as in "weights+activations".
    pub fn name(self) -> String {
        match self {
            PageLocked::ALL => "all".to_owned(),
            PageLocked::NONE => "none".to_owned(),
            some => {
                let is = [some.weights, some.cache, some.activations];
                let kinds = PageLocked::KINDS.into_iter().zip(is);
                let names: Vec<&str> = kinds.filter(|(_, is)| *is).map(|(kind, _)| kind).collect();
                names.join("+")
            }
        }
    }

    /// What has such a name.
    pub fn named(name: &str) -> Option<PageLocked> {
        let given: Vec<&str> = match name {
            "all" => return Some(PageLocked::ALL),
            "none" => return Some(PageLocked::NONE),
            some => some.split('+').collect(),
        };
        let [weights, cache, activations] = PageLocked::KINDS.map(|kind| given.contains(&kind));
        let known = given.iter().all(|kind| PageLocked::KINDS.contains(kind));
        known.then_some(PageLocked {
            weights,
            cache,
            activations,
        })
    }

    const KINDS: [&str; 3] = ["weights", "cache", "activations"];

    /// As FlexGen's released code does: not the cache, since its allocator would take too much.
    pub const FLEXGEN: PageLocked = PageLocked {
        cache: false,
        ..PageLocked::ALL
    };
}

/// Why a policy is refused.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PolicyError {
    /// A count is zero.
    #[error("{key} is 0; give at least 1")]
    Zero {
        /// The policy's key.
        key: &'static str,
    },
    /// A share is negative, above one or not a number.
    #[error("{key} on {tier} is {percent}%; give a percentage from 0 to 100")]
    Share {
        /// Which tensors.
        key: &'static str,
        /// Which tier.
        tier: Tier,
        /// What was given.
        percent: f64,
    },
    /// Shares do not add up.
    #[error("{key} add up to {percent}% over device, host and disk; they must make 100%")]
    Sum {
        /// Which tensors.
        key: &'static str,
        /// Their sum.
        percent: f64,
    },
    /// No such share of values can be read.
    #[error(
        "sparse_attention is {share}; give the share of values to read, above 0 and at most 1 (dense)"
    )]
    SparseAttention {
        /// What was given.
        share: f64,
    },
    /// Stages follow each other micro-batch by micro-batch, and these schedules have none.
    #[error(
        "{stages} stages and {micro_batches} micro-batches need the zig-zag schedule; give that, or one of each"
    )]
    PipelineSchedule {
        /// Asked.
        stages: u32,
        /// Asked.
        micro_batches: u32,
    },
    /// The CPU would have to unpack the cache for every token.
    #[error(
        "the CPU cannot attend to a compressed cache; turn CPU attention off, or keep the cache as it is"
    )]
    CompressedOnCpu,
    /// No such split of linear layers.
    #[error(transparent)]
    Split(#[from] SplitError),
}

impl Policy {
    /// FlexGen's convention: percentages of weights, cache and activations on GPU and CPU; the rest
    /// is on disk. Zig-zag in the steps of its released code, with Algorithm 1's barrier after each half of a layer;
    /// overlap on, no CPU attention, nothing compressed, the cache pageable.
    ///
    /// # Errors
    /// A share outside 0 to 100, or a pair above 100 by more than a rounding error.
    pub fn from_percent(
        gpu_batch_size: u32,
        num_gpu_batches: u32,
        percent: [f64; 6],
    ) -> Result<Policy, PolicyError> {
        let rest = |device: f64, host: f64| PerTier {
            device: device / 100.0,
            host: host / 100.0,
            // A pair above 100 leaves nothing; the check of the sum has it.
            disk: ((100.0 - device - host) / 100.0).max(0.0),
        };
        let [wg, wc, cg, cc, hg, hc] = percent;
        let policy = Policy {
            gpu_batch_size,
            num_gpu_batches,
            weights: rest(wg, wc),
            cache: rest(cg, cc),
            activations: rest(hg, hc),
            granularity: Granularity::Layer,
            schedule: Schedule::ZigZag,
            overlap: true,
            barrier: true,
            half_layers: true,
            cache_workspace: true,
            stored_scores: true,
            relayed_weights: true,
            cpu_attention: false,
            page_locked: PageLocked::FLEXGEN,
            compression: Compression::default(),
            sparse_attention: sparse::DENSE,
            split: None,
            pipeline: Pipeline::default(),
        };
        policy.validate()?;
        Ok(policy)
    }

    /// The same without the steps of FlexGen's released code: a layer is one, the CPU attends where the cache is, scores are used
    /// some at a time, and pageable weights are left to the driver.
    #[must_use]
    pub fn in_whole_layers(self) -> Policy {
        Policy {
            half_layers: false,
            cache_workspace: false,
            stored_scores: false,
            relayed_weights: false,
            ..self
        }
    }

    /// Whether a layer's weights come in one piece with the first GPU batch of the layer before, as in
    /// FlexGen's released code (its `load_weight` acts where k = 0), rather than a part with each.
    pub fn loads_weights_at_once(&self) -> bool {
        self.barrier || !self.overlap
    }

    /// Whether a step is half a layer: only where steps load weights at once, since nothing else has steps.
    pub fn halves_layers(&self) -> bool {
        self.half_layers && self.loads_weights_at_once()
    }

    /// Whether the CPU attends to any of the cache: to what is not on the device.
    pub fn attends_on_cpu(&self) -> bool {
        self.cpu_attention && self.cache.device < 1.0
    }

    /// Whether a prompt's scores have room on the device all at once: only where there are steps as in code of their time. No executor
    /// here needs it.
    pub fn stores_scores(&self) -> bool {
        self.stored_scores && self.loads_weights_at_once()
    }

    /// What weights on the host lie in, for who copies them. That they are relayed counts only where there are steps as in code that
    /// does so, and no executor here needs it.
    pub fn weights_on_host(&self) -> HostPages {
        match HostPages::of(self.page_locked.weights) {
            HostPages::Pageable if self.relayed_weights && self.loads_weights_at_once() => {
                HostPages::Relayed
            }
            pages => pages,
        }
    }

    /// What is a step, where that is not a layer.
    pub fn steps_in_words(&self) -> &'static str {
        match self.halves_layers() {
            true => " in half layers",
            false => "",
        }
    }

    /// Whether the CPU attends to a copy of the cache: only where steps meet, so that one thread makes the copy
    /// and then begins the computation.
    pub fn copies_cache(&self) -> bool {
        self.cache_workspace && self.cpu_attention && self.loads_weights_at_once()
    }

    /// GPU batches in a full block: those of all its micro-batches.
    pub fn batches_in_block(&self) -> u64 {
        u64::from(self.num_gpu_batches) * u64::from(self.pipeline.micro_batches)
    }

    /// Sequences in a full block, the block size or effective batch size: all that are in flight.
    pub fn block_size(&self) -> u64 {
        u64::from(self.gpu_batch_size).saturating_mul(self.batches_in_block())
    }

    /// Past tokens whose values a decode step reads, of `past`; none where attention is dense.
    pub fn picks(&self, past: u32) -> Option<u32> {
        sparse::picks(self.sparse_attention, past)
    }

    /// Whether values of rows off the device are collected on the host and weighed on the device: what
    /// sparse attention means for a cache that is elsewhere and does not stay there.
    pub fn gathers_values(&self) -> bool {
        self.sparse_attention < sparse::DENSE && !self.cpu_attention
    }

    /// Checks counts and shares.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self) -> Result<(), PolicyError> {
        for (key, count) in [
            ("gpu_batch_size", self.gpu_batch_size),
            ("num_gpu_batches", self.num_gpu_batches),
            ("pipeline.stages", self.pipeline.stages),
            ("pipeline.micro_batches", self.pipeline.micro_batches),
            ("pipeline.stages_per_host", self.pipeline.stages_per_host),
        ] {
            if count == 0 {
                return Err(PolicyError::Zero { key });
            }
        }
        for (key, shares) in [
            ("weights", &self.weights),
            ("cache", &self.cache),
            ("activations", &self.activations),
        ] {
            check_shares(key, shares)?;
        }
        if self.cpu_attention && self.compression.cache {
            return Err(PolicyError::CompressedOnCpu);
        }
        let Pipeline {
            stages,
            micro_batches,
            ..
        } = self.pipeline;
        if stages.max(micro_batches) > 1 && self.schedule != Schedule::ZigZag {
            return Err(PolicyError::PipelineSchedule {
                stages,
                micro_batches,
            });
        }
        let share = self.sparse_attention;
        if !(share > 0.0 && share <= sparse::DENSE) {
            return Err(PolicyError::SparseAttention { share });
        }
        if let Some(split) = &self.split {
            split.validate(self)?;
        }
        Ok(())
    }
}

/// Each share is from 0 to 1, and they make one to 0.1%: what rounding leaves (a third typed as
/// 33.3%) is given away where shares are made whole.
fn check_shares(key: &'static str, shares: &Fractions) -> Result<(), PolicyError> {
    const ROUNDING: f64 = 1e-3;
    const FLOAT_ERROR: f64 = 1e-9;
    let percent = |share: f64| (share * 1e5).round() / 1e3;
    for tier in Tier::ALL {
        let share = shares[tier];
        if !(-FLOAT_ERROR..=1.0 + FLOAT_ERROR).contains(&share) {
            let percent = percent(share);
            return Err(PolicyError::Share { key, tier, percent });
        }
    }
    let sum = shares.device + shares.host + shares.disk;
    if (sum - 1.0).abs() > ROUNDING + FLOAT_ERROR {
        let percent = percent(sum);
        return Err(PolicyError::Sum { key, percent });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(device: f64, host: f64) -> Result<Policy, PolicyError> {
        Policy::from_percent(1, 1, [device, host, 100.0, 0.0, 100.0, 0.0])
    }

    #[test]
    fn percentages_are_right_to_a_tenth() {
        let (device, host) = (33.3, 66.7);
        assert_eq!(weights(device, host).unwrap().weights.disk, 0.0);
        assert!(weights(66.7, 33.4).is_ok());
        let said = weights(66.7, 33.5).unwrap_err().to_string();
        assert!(said.starts_with("weights add up to 100.2% over"), "{said}");
        let mut policy = weights(100.0, 0.0).unwrap();
        for (third, accepted) in [(0.333, true), (0.3329, false)] {
            policy.cache = PerTier::from_fn(|_| third);
            assert_eq!(policy.validate().is_ok(), accepted, "{third}");
        }
    }

    #[test]
    fn sparse_attention_is_a_share_above_0() {
        let dense = weights(100.0, 0.0).unwrap();
        for (share, accepted) in [
            (1.0, true),
            (0.1, true),
            (0.0, false),
            (-0.1, false),
            (1.1, false),
            (f64::NAN, false),
        ] {
            let policy = Policy {
                sparse_attention: share,
                ..dense
            };
            assert_eq!(policy.validate().is_ok(), accepted, "{share}");
        }
    }

    #[test]
    fn a_policy_without_a_share_of_values_is_dense() {
        let dense = weights(100.0, 0.0).unwrap();
        let text = serde_json::to_string(&dense).unwrap();
        assert!(!text.contains("sparse"), "{text}");
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), dense);
        let sparse = Policy {
            sparse_attention: 0.1,
            ..dense
        };
        let text = serde_json::to_string(&sparse).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), sparse);
    }

    #[test]
    fn a_policy_for_one_gpu_says_nothing_of_stages() {
        let one = weights(100.0, 0.0).unwrap();
        let text = serde_json::to_string(&one).unwrap();
        assert!(!text.contains("pipeline"), "{text}");
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), one);
        let pipeline = Pipeline {
            stages: 4,
            micro_batches: 8,
            last_stage_layers: Some(3),
            ..Pipeline::default()
        };
        let four = Policy { pipeline, ..one };
        let text = serde_json::to_string(&four).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), four);
        assert_eq!(four.block_size(), 8);
    }

    #[test]
    fn only_the_zigzag_has_stages() {
        let pipeline = |stages, micro_batches| Pipeline {
            stages,
            micro_batches,
            ..Pipeline::default()
        };
        let of = |schedule, pipeline| Policy {
            schedule,
            pipeline,
            ..weights(100.0, 0.0).unwrap()
        };
        assert!(of(Schedule::ZigZag, pipeline(2, 2)).validate().is_ok());
        assert!(of(Schedule::Row, pipeline(1, 1)).validate().is_ok());
        for (stages, micro_batches) in [(2, 1), (1, 2)] {
            let said = of(Schedule::Diagonal, pipeline(stages, micro_batches)).validate();
            let said = said.unwrap_err().to_string();
            assert!(said.contains("need the zig-zag schedule"), "{said}");
        }
        let said = of(Schedule::ZigZag, pipeline(0, 1)).validate().unwrap_err();
        assert!(said.to_string().starts_with("pipeline.stages is 0"));
    }

    #[test]
    fn a_share_is_from_0_to_100() {
        for (device, host) in [(-0.1, 100.0), (100.1, 0.0), (f64::NAN, 0.0)] {
            let said = weights(device, host).unwrap_err().to_string();
            assert!(said.starts_with("weights on device is"), "{said}");
        }
    }
}
