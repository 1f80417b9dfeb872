//! Peak memory of each tier (FlexGen A.3), as differences between footprints of pure placements.

use std::sync::OnceLock;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::lower::{LowerError, cache_positions, footprint};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::workload::Workload;

use super::{Linear, all_on, reference_plan, stage_model, thinned};

/// Sequences of the placements that are measured: enough that whole pages do not show.
const SEQUENCES: u32 = 16;

/// What a model takes whatever the block, what a sequence of a GPU batch takes (slots), and what a
/// sequence of a block takes (homes). All in bytes, by tier.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    /// By [`Steps`]; but for the planner's own few ask for any.
    rows: [OnceLock<Vec<(Kept, Rows)>>; Steps::COUNT],
    measured: Measured,
    text_bytes: f64,
    /// Of one block.
    workload: Workload,
}

/// What of FlexGen's released code a policy does, and memory depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Steps {
    half_layers: bool,
    cache_workspace: bool,
    stored_scores: bool,
}

impl Steps {
    const COUNT: usize = 8;

    fn of(policy: &Policy) -> Steps {
        Steps {
            half_layers: policy.halves_layers(),
            cache_workspace: policy.copies_cache(),
            stored_scores: policy.stores_scores(),
        }
    }

    /// Below [`Steps::COUNT`].
    fn index(self) -> usize {
        let flags = [self.half_layers, self.cache_workspace, self.stored_scores];
        flags
            .into_iter()
            .fold(0, |index, flag| 2 * index + usize::from(flag))
    }
}

/// What is compressed, and whether the CPU attends.
type Kept = (Compression, bool);

#[derive(Debug, Clone, Copy, Default)]
struct Rows {
    fixed: PerTier<Linear>,
    per_sequence: PerTier<Linear>,
    per_block_sequence: PerTier<Linear>,
}

/// The footprint of one policy, in the same three parts.
#[derive(Debug, Clone, Copy)]
struct Parts {
    fixed: PerTier<f64>,
    per_sequence: PerTier<f64>,
    per_block_sequence: PerTier<f64>,
}

impl Memory {
    pub(super) fn of(
        (model, pipeline): (&ModelSpec, &Pipeline),
        dtype: Dtype,
        workload: Workload,
        (compressions, sparse_attention): (&[Compression], f64),
    ) -> Result<Memory, LowerError> {
        let endless = Workload {
            num_prompts: None,
            ..workload
        };
        let plan = reference_plan(model, dtype, endless)?;
        let of_layers =
            |each: u32| reference_plan(&thinned(model, each * pipeline.stages), dtype, endless);
        let base = Policy {
            gpu_batch_size: SEQUENCES,
            sparse_attention,
            // Micro-batches are so many more GPU batches.
            pipeline: Pipeline {
                micro_batches: 1,
                last_stage_layers: None,
                ..*pipeline
            },
            ..plan.policy
        };
        base.validate()?;
        let measured = Measured {
            layers: f64::from(stage_model(model, pipeline).num_hidden_layers),
            plans: Box::new([of_layers(1)?, of_layers(2)?]),
            base,
            compressions: compressions.to_vec(),
        };
        let ids = f64::from(workload.prompt_len) + f64::from(workload.gen_len);
        let rows: [OnceLock<_>; Steps::COUNT] = Default::default();
        // What means nothing is said at once.
        let ours = measured.all_rows(base)?;
        rows[Steps::of(&base).index()].get_or_init(|| ours);
        Ok(Memory {
            rows,
            measured,
            text_bytes: 4.0 * ids,
            workload: endless,
        })
    }

    /// The memory of `batches` GPU batches of `sequences`, for a workload of `asked` prompts, and what of the host's is homes.
    pub(super) fn of_block(
        &self,
        policy: &Policy,
        sequences: u32,
        batches: u64,
        asked: u64,
    ) -> (PerTier<Linear>, Linear) {
        let key = (policy.compression, policy.cpu_attention);
        let steps = Steps::of(policy);
        let rows = self.rows[steps.index()].get_or_init(|| self.measured.stepped(steps));
        let rows = rows.iter().find(|(known, _)| *known == key);
        let (_, rows) = rows.expect("forms are made for the compressions that are asked for");
        let sequences = f64::from(sequences);
        let block = sequences * batches as f64;
        let cache_share = self.cache_share(policy);
        // Prompts and results of the other rounds wait on the host.
        let waiting = (asked as f64 - block).max(0.0) * self.text_bytes;
        let memory = PerTier::from_fn(|tier| {
            let mut row = rows.fixed[tier]
                + rows.per_sequence[tier] * sequences
                + rows.of_block_sequence(tier, cache_share) * block;
            if tier == Tier::Host {
                row.constant += waiting;
            }
            row
        });
        // What grows with the size of a GPU batch alone is slots.
        let of_block = rows.of_block_sequence(Tier::Host, cache_share) * block;
        let homes = rows.fixed.host.host_weights() + of_block.host_but_weights();
        (memory, homes)
    }

    /// The part of the cache's homes that is set aside: in a diagonal schedule, batches at different
    /// tokens share pages.
    fn cache_share(&self, policy: &Policy) -> f64 {
        let whole = u64::from(policy.num_gpu_batches) * u64::from(self.workload.cache_len());
        match policy.schedule {
            Schedule::Row | Schedule::ZigZag => 1.0,
            Schedule::Diagonal => cache_positions(policy, &self.workload) as f64 / whole as f64,
        }
    }
}

/// Footprints by the layers of each stage: all homes and slots grow evenly with them from the first on. Of several stages and hosts
/// they are the fullest's, which need not be the same one for every share; what is made whole is held to its footprint.
#[derive(Debug, Clone)]
struct Measured {
    layers: f64,
    plans: Box<[Plan; 2]>,
    base: Policy,
    compressions: Vec<Compression>,
}

impl Measured {
    /// In such steps; what lowers in whole layers does in any.
    fn stepped(&self, steps: Steps) -> Vec<(Kept, Rows)> {
        let policy = Policy {
            barrier: true,
            half_layers: steps.half_layers,
            cache_workspace: steps.cache_workspace,
            stored_scores: steps.stored_scores,
            ..self.base
        };
        self.all_rows(policy).expect("as of whole layers")
    }

    fn all_rows(&self, base: Policy) -> Result<Vec<(Kept, Rows)>, LowerError> {
        let mut rows = Vec::new();
        for &compression in &self.compressions {
            for cpu_attention in [false, true] {
                let policy = Policy {
                    cpu_attention,
                    compression,
                    ..base
                };
                if policy.validate().is_ok() {
                    rows.push(((compression, cpu_attention), self.rows(policy)?));
                }
            }
        }
        Ok(rows)
    }

    fn footprint(&self, policy: Policy) -> Result<PerTier<f64>, LowerError> {
        let mut bytes = [PerTier::<f64>::default(); 2];
        for (bytes, plan) in bytes.iter_mut().zip(self.plans.iter()) {
            let plan = Plan {
                policy,
                ..plan.clone()
            };
            *bytes = footprint(&plan)?.map(|b| b.as_f64());
        }
        let [one, two] = bytes;
        Ok(PerTier::from_fn(|t| {
            one[t] + (self.layers - 1.0) * (two[t] - one[t])
        }))
    }

    fn parts(&self, policy: Policy) -> Result<Parts, LowerError> {
        let once = self.footprint(policy)?;
        let twice_the_batches = self.footprint(Policy {
            num_gpu_batches: 2,
            ..policy
        })?;
        let twice_the_batch = self.footprint(Policy {
            gpu_batch_size: 2 * policy.gpu_batch_size,
            ..policy
        })?;
        let sequences = f64::from(policy.gpu_batch_size);
        let per_block_sequence = PerTier::from_fn(|t| (twice_the_batches[t] - once[t]) / sequences);
        let both = PerTier::from_fn(|t| (twice_the_batch[t] - once[t]) / sequences);
        Ok(Parts {
            fixed: PerTier::from_fn(|t| once[t] - sequences * both[t]),
            per_sequence: PerTier::from_fn(|t| both[t] - per_block_sequence[t]),
            per_block_sequence,
        })
    }

    fn rows(&self, base: Policy) -> Result<Rows, LowerError> {
        let mut rows = Rows::default();
        let origin = self.parts(base)?;
        rows.set(origin, |row| &mut row.constant);
        for tier in [Tier::Host, Tier::Disk] {
            let shares = all_on(tier);
            let moved = self.parts(Policy {
                weights: shares,
                ..base
            })?;
            rows.set(moved.less(origin), |row| &mut row.weights[tier]);
            let moved = self.parts(Policy {
                cache: shares,
                ..base
            })?;
            rows.set(moved.less(origin), |row| &mut row.cache[tier]);
            let moved = self.parts(Policy {
                activations: shares,
                ..base
            })?;
            rows.set(moved.less(origin), |row| &mut row.activations[tier]);
        }
        Ok(rows)
    }
}

impl Parts {
    fn less(self, other: Parts) -> Parts {
        let less = |a: PerTier<f64>, b: PerTier<f64>| PerTier::from_fn(|t| a[t] - b[t]);
        Parts {
            fixed: less(self.fixed, other.fixed),
            per_sequence: less(self.per_sequence, other.per_sequence),
            per_block_sequence: less(self.per_block_sequence, other.per_block_sequence),
        }
    }
}

impl Rows {
    /// What a sequence of a block takes where only `share` of the cache's homes is set aside.
    fn of_block_sequence(&self, tier: Tier, share: f64) -> Linear {
        let mut row = self.per_block_sequence[tier];
        // Rows count from all of the cache on the device, which its homes leave where it moves.
        let on_device = (-row.cache.host).max(0.0);
        row.constant -= (1.0 - share) * on_device;
        row.cache = row.cache.map(|slope| share * slope);
        row
    }

    fn set(&mut self, parts: Parts, place: impl Fn(&mut Linear) -> &mut f64) {
        for tier in Tier::ALL {
            *place(&mut self.fixed[tier]) = parts.fixed[tier];
            *place(&mut self.per_sequence[tier]) = parts.per_sequence[tier];
            *place(&mut self.per_block_sequence[tier]) = parts.per_block_sequence[tier];
        }
    }
}
