//! Where everything of a stage lies: homes of weights, cache and activations, and the slots between them.
//!
//! Offsets are decided once. What the tiers must hold (FlexGen A.3's peak memory constraints) is
//! then known before anything runs, and no executor allocates while it runs.

use std::ops::Range;
use std::sync::Arc;

use super::pages::Cut;
use super::ring::Ring;
use super::schedule::{Passes, Round};
use super::split::Room;
use super::stages::StageBlocks;
use crate::batch_shape::BatchShape;
use crate::model::ModelSpec;
use crate::pipeline::Comm;
use crate::placement::{BlockWeights, LayerPart, PAGE_BYTES, WeightPlacement};
use crate::plan::Plan;
use crate::policy::{PageLocked, Policy};
use crate::sparse::Picked;
use crate::tier::{PerTier, Tier};
use crate::units::Bytes;
use crate::workload::Workload;

/// Offsets of all homes and slots of a stage, for full batches.
#[derive(Debug)]
pub(super) struct Layout {
    /// Where the weights of the whole model live.
    pub weights: Arc<WeightPlacement>,
    /// By tier, the slab of each of the stage's blocks.
    pub weight_homes: PerTier<Vec<Bytes>>,
    /// All of the host's.
    weights_on_host: Range<Bytes>,
    pub weight_slots: Ring,
    pub weight_staging: Ring,
    /// The first pages of the cache.
    pub cache_homes: PerTier<Homes>,
    /// Pages after the first, each of all layers.
    pub cache_pages: PerTier<Homes>,
    /// How many of them there are.
    pub num_cache_pages: u64,
    pub cache_slots: Ring,
    pub cache_staging: Ring,
    /// On the host, for copies of rows that live there and that the CPU attends to.
    pub cache_workspaces: Ring,
    pub hidden_homes: PerTier<Homes>,
    pub hidden_slots: Ring,
    pub hidden_staging: Ring,
    /// On the host, for what comes from another stage or goes there and does not live there.
    pub comm_staging: Ring,
    pub mid_slots: Ring,
    pub mid_staging: Ring,
    pub token_homes: Homes,
    pub prompt_slots: Ring,
    pub workspace: (Bytes, Bytes),
    /// Where linear layers are split.
    pub split: Option<Room>,
    /// Where each tier's buffers end; prompts and results are behind those of the host tier.
    pub end: PerTier<Bytes>,
}

/// Equal regions, one a GPU batch (and layer).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Homes {
    start: Bytes,
    stride: Bytes,
    count: u64,
}

impl Homes {
    pub(super) fn at(&self, index: u64) -> Bytes {
        self.start + self.stride * index
    }

    fn region(&self) -> Range<Bytes> {
        self.start..self.at(self.count)
    }
}

/// Hands out regions of each tier, one after another.
pub(super) struct Bump {
    end: PerTier<Bytes>,
}

impl Bump {
    fn region(&mut self, tier: Tier, bytes: Bytes) -> Bytes {
        let start = self.end[tier];
        self.end[tier] = start + bytes.align_up(PAGE_BYTES);
        start
    }

    /// A home for each block's slab, by tier.
    fn slabs(&mut self, blocks: &[BlockWeights]) -> PerTier<Vec<Bytes>> {
        PerTier::from_fn(|tier| {
            let slabs = blocks.iter().map(|b| b.slab[tier]);
            slabs.map(|bytes| self.region(tier, bytes)).collect()
        })
    }

    fn homes(&mut self, tier: Tier, count: u64, bytes: Bytes) -> Homes {
        let stride = bytes.align_up(PAGE_BYTES);
        let start = self.region(tier, stride * count);
        Homes {
            start,
            stride,
            count,
        }
    }

    pub(super) fn ring(&mut self, tier: Tier, count: usize, bytes: Bytes) -> Ring {
        Ring::new((0..count).map(|_| self.region(tier, bytes)).collect())
    }
}

impl Layout {
    /// Lays out a stage of a plan for its rounds, behind what lies in its tiers already.
    pub(super) fn new(
        plan: &Plan,
        passes: &Passes,
        weights: Arc<WeightPlacement>,
        (stage, taken): (&StageBlocks, PerTier<Bytes>),
    ) -> Layout {
        let (policy, workload) = (&plan.policy, &plan.workload);
        let shape = BatchShape::most(plan, batch_sizes(passes.rounds()));
        let num_batches = super::most_batches(passes.rounds()) as u64;
        let cut = Cut::new(policy, workload);
        let num_cache_pages = passes.most_pages(cut);
        let prompt_len = u64::from(workload.prompt_len);
        let positions = u64::from(workload.cache_len());
        let hidden = |sequences: u32| hidden_bytes(plan, sequences);
        let largest = |tiers: &[Tier]| largest_load(stage, &weights, tiers);
        let (layers, mid) = (u64::from(stage.num_layers()), mid_bytes(plan, &shape));
        let mut bump = Bump { end: taken };
        let weight_homes = bump.slabs(&weights.blocks[stage.as_range()]);
        let weights_on_host = taken.host..bump.end.host;
        let tokens = Bytes(u64::from(shape.sequences) * 4);
        let workspace = workspace_bytes(plan, shape.sequences) + unpacked_bytes(plan);
        Layout {
            weight_slots: bump.ring(Tier::Device, 2, largest(streamed(policy))),
            weight_staging: bump.ring(Tier::Host, 2, largest(&[Tier::Disk])),
            cache_homes: PerTier::from_fn(|tier| {
                bump.homes(tier, layers * num_batches, shape.record[tier] * cut.first)
            }),
            cache_pages: PerTier::from_fn(|tier| {
                let count = layers * num_cache_pages;
                bump.homes(tier, count, shape.record[tier] * cut.further)
            }),
            num_cache_pages,
            cache_slots: bump.ring(
                Tier::Device,
                cache_slots(policy),
                shape.record_off_device() * slot_positions(policy, workload),
            ),
            cache_staging: bump.ring(Tier::Host, 3, shape.record.disk * positions),
            cache_workspaces: bump.ring(
                Tier::Host,
                if policy.copies_cache() { 2 } else { 0 },
                shape.record.host * positions,
            ),
            hidden_homes: PerTier::from_fn(|tier| {
                bump.homes(tier, num_batches, hidden(shape.hidden[tier]))
            }),
            hidden_slots: bump.ring(
                Tier::Device,
                3,
                hidden(shape.hidden.host) + hidden(shape.hidden.disk),
            ),
            hidden_staging: bump.ring(Tier::Host, 3, hidden(shape.hidden.disk)),
            comm_staging: bump.ring(
                Tier::Host,
                comm_slots(policy),
                hidden(staged_sequences(policy, &shape)).max(tokens),
            ),
            mid_slots: bump.ring(Tier::Device, 2, mid.0),
            mid_staging: bump.ring(Tier::Host, 2, mid.1),
            token_homes: bump.homes(Tier::Device, num_batches, tokens),
            prompt_slots: bump.ring(Tier::Device, 2, tokens * prompt_len),
            workspace: (bump.region(Tier::Device, workspace), workspace),
            split: Room::of(plan, &shape, &mut bump),
            weight_homes,
            weights_on_host,
            weights,
            end: bump.end,
        }
    }

    /// Where on the host the homes lie that are not page-locked. Slots are few, and always are.
    pub(super) fn pageable(&self, locked: PageLocked) -> Vec<Range<Bytes>> {
        let homes = [
            (locked.weights, self.weights_on_host.clone()),
            (locked.cache, self.cache_homes.host.region()),
            (locked.cache, self.cache_pages.host.region()),
            (locked.activations, self.hidden_homes.host.region()),
        ];
        let pageable = homes
            .into_iter()
            .filter(|(locked, homes)| !locked && !homes.is_empty());
        pageable.map(|(_, homes)| homes).collect()
    }
}

/// Room for the activations of so many prompts.
fn hidden_bytes(plan: &Plan, sequences: u32) -> Bytes {
    let tokens = u64::from(sequences) * u64::from(plan.workload.prompt_len);
    let bytes = tokens * u64::from(plan.model.hidden_size) * plan.dtype.size_bytes();
    Bytes(bytes).align_up(PAGE_BYTES)
}

/// The tiers whose weights come layer by layer: where linear layers are split, none.
fn streamed(policy: &Policy) -> &'static [Tier] {
    match policy.split {
        Some(_) => &[],
        None => &[Tier::Host, Tier::Disk],
    }
}

/// The most of a stage's weights that comes from some tiers for one visit.
fn largest_load(stage: &StageBlocks, weights: &WeightPlacement, tiers: &[Tier]) -> Bytes {
    let visits = stage.range().flat_map(|block| {
        let parts = stage.parts(block).iter();
        parts.map(move |part| (block as usize, *part))
    });
    let bytes = |(block, part): (usize, LayerPart)| -> Bytes {
        let of_tier = |tier: &Tier| weights.blocks[block].bytes(part, *tier);
        tiers.iter().map(of_tier).sum()
    };
    visits.map(bytes).max().unwrap_or_default()
}

/// Working copies of the cache on the device: a unit's and the next one's, and, where values are
/// collected while another batch computes, that of the unit whose values they are.
fn cache_slots(policy: &Policy) -> usize {
    if policy.gathers_values() { 3 } else { 2 }
}

/// Sequences in each batch of a run.
fn batch_sizes(rounds: &[Round]) -> impl Iterator<Item = u32> + '_ {
    rounds
        .iter()
        .flat_map(|round| round.batches.iter().copied())
}

/// Positions of a working copy of the cache on the device: where the CPU attends in decode, those of the
/// prompt are the most that it has.
pub(super) fn slot_positions(policy: &Policy, workload: &Workload) -> u64 {
    u64::from(match policy.cpu_attention {
        true => workload.prompt_len,
        false => workload.cache_len(),
    })
}

/// Places on a host for what is on its way to or from another stage: one each way, and the next one's.
fn comm_slots(policy: &Policy) -> usize {
    if policy.pipeline.stages > 1 { 4 } else { 0 }
}

/// Sequences of the largest part of a GPU batch that passes through such a place.
fn staged_sequences(policy: &Policy, shape: &BatchShape) -> u32 {
    match policy.pipeline.comm {
        Comm::Device => shape.hidden.disk,
        Comm::Host => shape.hidden.disk.max(shape.hidden.device),
    }
}

/// Bytes of a slot for queries and attention output, on the device and on the host.
fn mid_bytes(plan: &Plan, shape: &BatchShape) -> (Bytes, Bytes) {
    let model = &plan.model;
    let element = plan.dtype.size_bytes();
    let tokens = u64::from(shape.sequences) * u64::from(plan.workload.prompt_len);
    let prefill = Bytes(tokens * model.q_size() * element);
    if shape.rows_off_device() == 0 {
        return (prefill, Bytes::ZERO);
    }
    let gathers = plan.policy.gathers_values();
    if !gathers && !plan.policy.cpu_attention {
        return (prefill, Bytes::ZERO);
    }
    let last = plan.workload.cache_len().saturating_sub(1);
    let room = |rows| {
        let picked = gathers.then(|| (picked(plan, rows, last), shape.head));
        mid_off_device(plan, rows, picked)
    };
    // Rows on the device take no more of it than those off it.
    let [decode, _] = room(shape.sequences * model.num_key_value_heads);
    let [_, host] = room(shape.rows_off_device());
    (prefill.max(decode), host)
}

/// What lies on the device, and on the host, between the parts of a decode step's attention over rows of the
/// cache that are off the device: queries, with new keys and values where the CPU attends; else what they
/// pick, with the size of a value as stored.
pub(super) fn mid_off_device(
    plan: &Plan,
    rows: u32,
    picked: Option<(Picked, Bytes)>,
) -> [Bytes; 2] {
    let queries = queries_bytes(plan, rows);
    match picked {
        Some((picked, value)) => {
            let positions = picked.positions_bytes();
            [
                queries + positions + picked.weights_bytes(),
                positions + picked.values_bytes(value),
            ]
        }
        None => {
            let head = u64::from(plan.model.head_dim) * plan.dtype.size_bytes();
            let new = Bytes(u64::from(rows) * 2 * head);
            [queries + new; 2]
        }
    }
}

/// Bytes of a token's queries for rows of the cache.
pub(super) fn queries_bytes(plan: &Plan, rows: u32) -> Bytes {
    let heads = u64::from(rows) * u64::from(group(&plan.model));
    Bytes(heads * u64::from(plan.model.head_dim) * plan.dtype.size_bytes())
}

/// What rows off the device pick of the past of a token at `position`.
pub(super) fn picked(plan: &Plan, rows: u32, position: u32) -> Picked {
    let past = plan.model.past_seen(position);
    Picked {
        rows,
        group: group(&plan.model),
        picks: plan.policy.picks(past).unwrap_or(0),
    }
}

/// Query heads that share a key/value head.
pub(super) fn group(model: &ModelSpec) -> u32 {
    model.num_attention_heads / model.num_key_value_heads
}

/// Room for the largest matrix of a layer or the head, unpacked: each is before its product.
fn unpacked_bytes(plan: &Plan) -> Bytes {
    let largest = plan.policy.compression.unpacked_elements(&plan.model);
    Bytes(largest * plan.dtype.size_bytes())
}

/// Scratch of the kernels in prefill, the larger of the two phases (FlexGen A.3, `gpu_w` less what
/// has buffers of its own): new queries, keys and values with their input; attention scores, where these are stored; the
/// MLP's input and inner activations.
fn workspace_bytes(plan: &Plan, batch: u32) -> Bytes {
    let (model, prompt_len) = (&plan.model, u64::from(plan.workload.prompt_len));
    let tokens = u64::from(batch) * prompt_len;
    let hidden = u64::from(model.hidden_size);
    let halves = if model.gated_mlp { 2 } else { 1 };
    let project = tokens * (hidden + model.q_size() + 2 * model.kv_size());
    let scores = match plan.policy.stores_scores() {
        true => tokens * prompt_len * u64::from(model.num_attention_heads),
        false => 0,
    };
    let mlp = tokens * (hidden + halves * u64::from(model.intermediate_size));
    Bytes(project.max(scores).max(mlp) * plan.dtype.size_bytes())
}
