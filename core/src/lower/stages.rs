//! The stages of a plan: which blocks each has, and where each lies in its tiers.

use std::ops::Range;
use std::sync::Arc;

use super::layout::Layout;
use super::schedule::Passes;
use crate::machine::Machine;
use crate::placement::{LayerPart, WeightPlacement};
use crate::plan::Plan;
use crate::tier::{PerTier, Tier};
use crate::units::Bytes;

/// The blocks of one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StageBlocks {
    range: Range<u32>,
    /// The model's head.
    head: u32,
    /// Whether layers are computed half by half.
    halves: bool,
}

impl StageBlocks {
    /// Those of every stage of a plan.
    pub(super) fn of_plan(plan: &Plan) -> Vec<StageBlocks> {
        let model = &plan.model;
        let head = model.num_blocks() - 1;
        let ranges = plan.policy.pipeline.blocks(model.num_hidden_layers);
        let blocks = ranges.into_iter();
        let of = |range| StageBlocks {
            range,
            head,
            halves: plan.policy.halves_layers(),
        };
        blocks.map(of).collect()
    }

    /// All blocks, by number.
    pub(super) fn range(&self) -> Range<u32> {
        self.range.clone()
    }

    /// The same, to index with.
    pub(super) fn as_range(&self) -> Range<usize> {
        self.range.start as usize..self.range.end as usize
    }

    /// What a block is computed in, in order.
    pub(super) fn parts(&self, block: u32) -> &'static [LayerPart] {
        match self.halves && block != 0 && block != self.head {
            true => &[LayerPart::Attention, LayerPart::Mlp],
            false => &[LayerPart::Whole],
        }
    }

    /// The first block.
    pub(super) fn first(&self) -> u32 {
        self.range.start
    }

    /// The first block that is a layer.
    pub(super) fn first_layer(&self) -> u32 {
        self.range.start.max(1)
    }

    /// Blocks that are layers.
    pub(super) fn num_layers(&self) -> u32 {
        self.range.end.min(self.head) - self.first_layer()
    }

    /// Whether it has the embedding.
    pub(super) fn is_first(&self) -> bool {
        self.range.start == 0
    }

    /// Whether it has the head.
    pub(super) fn is_last(&self) -> bool {
        self.range.end > self.head
    }

    /// Whether a block is the model's head.
    pub(super) fn is_head(&self, block: u16) -> bool {
        u32::from(block) == self.head
    }

    /// Whether a block is the stage's first.
    pub(super) fn begins_with(&self, block: u16) -> bool {
        u32::from(block) == self.range.start
    }

    /// Whether a block is the stage's last.
    pub(super) fn ends_with(&self, block: u16) -> bool {
        u32::from(block) + 1 == self.range.end
    }
}

/// Every stage's layout, and how far each arena is filled. Stages of one host lie behind each other.
#[derive(Debug)]
pub(super) struct Layouts {
    pub stages: Vec<Layout>,
    /// By [`ArenaId`](crate::machine::ArenaId).
    pub ends: Vec<Bytes>,
}

impl Layouts {
    pub(super) fn new(plan: &Plan, machine: &Machine, passes: &Passes) -> Layouts {
        let weights = WeightPlacement::of(plan);
        let weights = Arc::new(weights);
        let mut ends = vec![Bytes::ZERO; machine.arenas.len()];
        let mut stages = Vec::new();
        for (gpu, blocks) in StageBlocks::of_plan(plan).iter().enumerate() {
            let arenas = PerTier::from_fn(|tier| arena_of(machine, tier, gpu));
            let taken = arenas.map(|arena| ends[arena]);
            let layout = Layout::new(plan, passes, Arc::clone(&weights), (blocks, taken));
            for tier in Tier::ALL {
                ends[arenas[tier]] = layout.end[tier];
            }
            stages.push(layout);
        }
        Layouts { stages, ends }
    }
}

/// The number of the arena of a tier that serves a GPU of a plan's machine, which has one.
pub(super) fn arena_of(machine: &Machine, tier: Tier, gpu: usize) -> usize {
    let arena = machine.arena(tier, gpu as u8);
    arena.map_or(0, |arena| usize::from(arena.0))
}
