//! FlexGen's closed form (section 4.3 and appendix A.3): time and memory of a policy as linear
//! functions of its nine shares, so that a linear program can choose them.
//!
//! No time is written here: each is [`CostModel::seconds`] of an operation of the lowering's shape.
//! No size of a slot is either: memory is read off [`footprint`](plimsoll_core::lower::footprint)
//! of pure placements. What A.3 leaves out and the lowering has is here too: the embedding and the
//! head, fixed costs, and the path of one GPU batch through a layer where batches are too few to
//! hide it.
//!
//! Of a pipeline it is the form of one stage (section 4.4): a model of its layers on one GPU, whose passes
//! follow each other micro-batch by micro-batch. Memory is that of the fullest stage, or host.

mod linear;
mod memory;
mod phase;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, StageGemms};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, PolicyError, Schedule};
use plimsoll_core::program::ResourceKind;
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Seconds;
use plimsoll_core::workload::Workload;

use crate::cost::CostModel;
pub use linear::Linear;
use memory::Memory;
pub use phase::Phase;
use phase::{Pass, Weights};

/// What closed forms of one machine, model and workload share.
#[derive(Debug, Clone)]
pub struct ClosedForms {
    cost: CostModel,
    /// All of it, and what it is divided by.
    whole: (ModelSpec, Pipeline),
    /// Of the largest stage.
    model: ModelSpec,
    dtype: Dtype,
    workload: Workload,
    gemms: StageGemms,
    /// As they are, compressed.
    weights: [Weights; 2],
    memory: Memory,
}

/// The closed form of a block of GPU batches: everything of a policy but its shares is fixed.
#[derive(Debug, Clone)]
pub struct ClosedForm {
    prefill: Phase,
    decode: Phase,
    decode_passes: f64,
    rounds: f64,
    tokens: f64,
    memory: PerTier<Linear>,
    page_locked: Linear,
}

/// What the closed form expects of a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Prefill of all rounds.
    pub prefill_s: Seconds,
    /// Decode of all rounds.
    pub decode_s: Seconds,
    /// Both.
    pub latency_s: Seconds,
    /// Generated tokens over the whole time.
    pub throughput_tok_s: f64,
    /// How long each resource is busy with a block's prefill.
    pub prefill_terms: [(ResourceKind, Seconds); 6],
    /// How long each resource is busy with an average decode pass of a block.
    pub decode_terms: [(ResourceKind, Seconds); 6],
}

/// The model of whose time a pipeline's is made (FlexGen section 4.4): as many layers as its largest stage, with the embedding and the
/// head.
fn stage_model(model: &ModelSpec, pipeline: &Pipeline) -> ModelSpec {
    let layers = pipeline.layers(model.num_hidden_layers);
    thinned(model, layers.into_iter().max().unwrap_or(1))
}

impl ClosedForms {
    /// Prepares the closed forms of a workload on a model that a pipeline has, for policies with one of these compressions and this share
    /// of values in [sparse attention](plimsoll_core::sparse).
    ///
    /// # Errors
    /// A workload that means nothing, or is too long for the model; a share that is none.
    pub fn new(
        profile: &HardwareProfile,
        (whole, pipeline): (&ModelSpec, &Pipeline),
        dtype: Dtype,
        workload: Workload,
        approximations: (&[Compression], f64),
    ) -> Result<ClosedForms, LowerError> {
        let model = stage_model(whole, pipeline);
        Ok(ClosedForms {
            cost: CostModel::of_layers(profile, &model, dtype),
            gemms: StageGemms::of(&model),
            weights: [false, true]
                .map(|weights| Weights::of(&model, dtype, Compression::of(weights, false))),
            memory: Memory::of((whole, pipeline), dtype, workload, approximations)?,
            whole: (whole.clone(), *pipeline),
            model,
            dtype,
            workload,
        })
    }

    /// The same for policies with one of these compressions and this share of values.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with(
        &self,
        compressions: &[Compression],
        sparse_attention: f64,
    ) -> Result<ClosedForms, LowerError> {
        let approximations = (compressions, sparse_attention);
        Ok(ClosedForms {
            memory: Memory::of(
                (&self.whole.0, &self.whole.1),
                self.dtype,
                self.workload,
                approximations,
            )?,
            ..self.clone()
        })
    }

    /// The same on another machine: only times change.
    pub fn on(&self, profile: &HardwareProfile) -> ClosedForms {
        ClosedForms {
            cost: CostModel::of_layers(profile, &self.model, self.dtype),
            ..self.clone()
        }
    }

    /// The closed form of a policy whose shares are open.
    pub fn form(&self, policy: &Policy) -> ClosedForm {
        let workload = &self.workload;
        let (prompt_len, gen_len) = (workload.prompt_len, workload.gen_len);
        let sequences = match workload.num_prompts {
            Some(prompts) => prompts.min(u64::from(policy.gpu_batch_size)) as u32,
            None => policy.gpu_batch_size,
        };
        let in_order = policy.schedule == Schedule::Row;
        let asked = workload.num_prompts.unwrap_or(policy.block_size());
        let most = asked.div_ceil(u64::from(sequences));
        let batches = if in_order {
            1
        } else {
            most.min(u64::from(policy.num_gpu_batches))
        };
        let pipeline = &policy.pipeline;
        let micro_batches = most
            .div_ceil(batches)
            .min(u64::from(pipeline.micro_batches));
        let block = u64::from(sequences) * batches * micro_batches;
        let pass = |query_len: u32, context_len: u32| {
            let pass = Pass {
                forms: self,
                policy,
                sequences,
                batches: batches as u32,
                query_len,
                context_len,
            };
            pass.phase()
        };
        let mut prefill = pass(prompt_len, prompt_len);
        // A.3: the cache of a decode step is on average that of s + n/2 tokens.
        let decode = pass(1, prompt_len + (gen_len / 2).max(1));
        // The last stage begins when the first has had as many micro-batches as come before it; a token
        // later a stage has had all, and one micro-batch has gone through all.
        let (stages, micro_batches) = (f64::from(pipeline.stages), micro_batches as f64);
        prefill = prefill.times(micro_batches + stages - 1.0);
        let decode = decode.times(micro_batches.max(stages));
        let mut decode_passes = f64::from(gen_len) - 1.0;
        if policy.schedule == Schedule::Diagonal {
            // Some passes prefill a batch beside the others' decode, the others are decode alone.
            let admitting = f64::from(gen_len).min(batches as f64);
            prefill = prefill.beside(&decode, admitting - 1.0);
            decode_passes = f64::from(gen_len) - admitting;
        }
        let mut rounds = asked.div_ceil(block) as f64;
        if policy.schedule == Schedule::Diagonal && workload.num_prompts.is_some() {
            // Passes in which batches come or go take as long as those in between.
            let last = (asked.div_ceil(u64::from(sequences)) - 1) as f64;
            rounds = last / batches as f64 + 1.0;
        }
        let (memory, homes) =
            self.memory
                .of_block(policy, sequences, batches * micro_batches as u64, asked);
        ClosedForm {
            prefill,
            decode,
            decode_passes,
            rounds,
            tokens: asked as f64 * f64::from(gen_len),
            page_locked: memory.host.less_pageable(&homes, policy.page_locked),
            memory,
        }
    }
}

impl ClosedForm {
    /// What the closed form expects of a policy's shares. The rest of the policy is the one that the
    /// form was made for. A last round that is not full counts as full.
    pub fn evaluate(&self, policy: &Policy) -> Estimate {
        let prefill = self.prefill.seconds(policy) * self.rounds;
        let decode = self.decode.seconds(policy) * (self.decode_passes * self.rounds);
        let latency = prefill + decode;
        Estimate {
            prefill_s: prefill,
            decode_s: decode,
            latency_s: latency,
            throughput_tok_s: self.tokens / latency.0.max(f64::MIN_POSITIVE),
            prefill_terms: self.prefill.terms_at(policy),
            decode_terms: self.decode.terms_at(policy),
        }
    }

    /// The same where a resource takes so many times as long.
    pub fn slowed(&self, kind: ResourceKind, by: f64) -> ClosedForm {
        ClosedForm {
            prefill: self.prefill.slowed(kind, by),
            decode: self.decode.slowed(kind, by),
            ..self.clone()
        }
    }

    /// How long resources are busy in all behind the busiest one of each phase.
    pub fn hidden_s(&self, estimate: &Estimate) -> Seconds {
        let behind = |terms: &[(ResourceKind, Seconds); 6]| {
            let busy = terms.iter().map(|(_, seconds)| seconds.0);
            busy.clone().sum::<f64>() - busy.fold(0.0, f64::max)
        };
        let prefill = behind(&estimate.prefill_terms) * self.rounds;
        let decode = behind(&estimate.decode_terms) * (self.decode_passes * self.rounds);
        Seconds(prefill + decode)
    }

    /// A prefill pass over the model, for one block; in a pipeline with its bubbles.
    pub fn prefill(&self) -> &Phase {
        &self.prefill
    }

    /// An average decode pass over the model, for one block; in a pipeline, of all micro-batches.
    pub fn decode(&self) -> &Phase {
        &self.decode
    }

    /// Decode passes a round.
    pub fn decode_passes(&self) -> f64 {
        self.decode_passes
    }

    /// Blocks that answer all prompts.
    pub fn rounds(&self) -> f64 {
        self.rounds
    }

    /// Tokens generated in all rounds.
    pub fn tokens(&self) -> f64 {
        self.tokens
    }

    /// Peak memory of each tier in bytes. Tensors are not yet whole, so it is close, and
    /// [`footprint`](plimsoll_core::lower::footprint) decides.
    pub fn memory(&self) -> &PerTier<Linear> {
        &self.memory
    }

    /// What is page-locked of a host's memory, in bytes, as close.
    pub fn page_locked(&self) -> &Linear {
        &self.page_locked
    }

    /// Seconds that no shares can beat: what must be spent wherever tensors live.
    pub fn lowest_latency_s(&self) -> Seconds {
        let decode = self.decode.lowest_s() * self.decode_passes;
        (self.prefill.lowest_s() + decode) * self.rounds
    }
}

/// The model with so many layers.
fn thinned(model: &ModelSpec, layers: u32) -> ModelSpec {
    ModelSpec {
        num_hidden_layers: layers,
        ..model.clone()
    }
}

/// A plan of one sequence with everything on the device.
fn reference_plan(
    model: &ModelSpec,
    dtype: Dtype,
    workload: Workload,
) -> Result<Plan, PolicyError> {
    Ok(Plan::given(
        model.clone(),
        dtype,
        workload,
        Policy::from_percent(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0])?.in_whole_layers(),
    ))
}

/// All on one tier.
fn all_on(tier: Tier) -> PerTier<f64> {
    PerTier::from_fn(|t| if t == tier { 1.0 } else { 0.0 })
}
