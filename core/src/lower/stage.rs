//! One stage's part of a program: its blocks, GPU batch by GPU batch, pass after pass.

use std::sync::Arc;

use super::Texts;
use super::cache::{CacheStream, Staged};
use super::compute::{Pending, StageGemms};
use super::emit::{Emitter, Mode};
use super::hidden::{HiddenStream, Work};
use super::layout::Layout;
use super::pages::{Cut, PageTable};
use super::schedule::Turn;
use super::split::SplitStream;
use super::stages::StageBlocks;
use super::unit::Unit;
use super::weights::WeightStream;
use crate::batch_shape::BatchShape;
use crate::placement::LayerPart;
use crate::plan::Plan;
use crate::program::{BufferId, Cell, Content, TaskId};
use crate::tier::Tier;

/// The next token of each sequence of a batch, on the device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tokens {
    pub buffer: Option<BufferId>,
    /// The head that chose them.
    pub written: Option<TaskId>,
    /// Their copy to the host.
    pub copied: Option<TaskId>,
    /// What brought them from the last stage, until they are embedded.
    pub arrived: Option<TaskId>,
}

/// Writes what one GPU does, with its host.
#[derive(Debug)]
pub(super) struct StageLowering {
    pub plan: Arc<Plan>,
    pub blocks: StageBlocks,
    pub layout: Layout,
    pub weights: WeightStream,
    pub cache: CacheStream,
    pub hidden: HiddenStream,
    pub gemms: StageGemms,
    pub split: SplitStream,
    pub tokens: Vec<Tokens>,
    pub texts: Arc<Texts>,
    pub workspace: BufferId,
    /// The copy that the next CPU attention waits for.
    pub sent: Option<TaskId>,
    /// The copy on the host that the next computation waits for: the thread that makes it begins that, too.
    pub copied: Option<TaskId>,
    visits: u64,
    pass: Pass,
}

impl StageLowering {
    /// Declares what is there from the start.
    pub(super) fn new(
        out: &mut Emitter,
        plan: &Arc<Plan>,
        (blocks, layout): (StageBlocks, Layout),
        num_batches: usize,
        texts: &Arc<Texts>,
    ) -> StageLowering {
        let (policy, workload) = (&plan.policy, &plan.workload);
        let weights = WeightStream::new(out, &layout, &blocks, policy.weights_on_host());
        let cut = Cut::new(policy, workload);
        let pages = PageTable::new(cut, num_batches, layout.num_cache_pages, workload.gen_len);
        let token_bytes = u64::from(plan.model.hidden_size) * plan.dtype.size_bytes();
        let (offset, bytes) = layout.workspace;
        let place = (Tier::Device, offset);
        StageLowering {
            workspace: out.declare_resident(place, bytes, Content::Workspace),
            cache: CacheStream::new(policy, workload, &blocks, (cut, pages)),
            hidden: HiddenStream::new(
                num_batches,
                token_bytes,
                workload.prompt_len,
                (policy.page_locked.activations, !blocks.is_first()),
            ),
            gemms: StageGemms::of(&plan.model),
            split: SplitStream::new(&plan.model),
            tokens: vec![Tokens::default(); num_batches],
            plan: Arc::clone(plan),
            blocks,
            layout,
            weights,
            texts: Arc::clone(texts),
            sent: None,
            copied: None,
            visits: 0,
            pass: Pass::default(),
        }
    }

    /// Begins a pass of these turns; `next` is the pass after it.
    pub(super) fn begin_pass(&mut self, out: &mut Emitter, turns: &[Turn], next: &[Turn]) {
        let units = self.units(turns);
        if self.visits == 0
            && let Some(first) = units.first()
        {
            let visit = (0, first.cell, first.part);
            self.weights.announce(&self.layout, visit, 1);
            self.weights.load_rest(out, &mut self.layout);
        }
        self.cache.begin_pass(turns);
        self.pass = Pass {
            holds_back: self.holds_back(out, &units, turns.len()),
            direct: turns.len() == 1,
            num_batches: turns.len(),
            next: next.first().map(|turn| {
                let block = self.blocks.first();
                (self.cell(turn, block), self.blocks.parts(block)[0])
            }),
            units,
            ..Pass::default()
        };
        self.visits += self.visits_of_pass().count() as u64;
    }

    /// The squares of the pass.
    pub(super) fn pass_units(&self) -> &[Unit] {
        &self.pass.units
    }

    /// Blocks and their parts, in order.
    fn visits_of_pass(&self) -> impl Iterator<Item = (u32, LayerPart)> {
        let parts = |block| {
            self.blocks
                .parts(block)
                .iter()
                .map(move |part| (block, *part))
        };
        self.blocks.range().flat_map(parts)
    }

    fn cell(&self, turn: &Turn, block: u32) -> Cell {
        Cell {
            round: turn.round,
            pass: turn.token as u16,
            block: block as u16,
            batch: turn.batch,
        }
    }

    /// The squares of a pass, layer by layer.
    fn units(&self, turns: &[Turn]) -> Vec<Unit> {
        let plan = &self.plan;
        let (prompt_len, gen_len) = (plan.workload.prompt_len, plan.workload.gen_len);
        let visits = self.visits_of_pass();
        let mut units = Vec::with_capacity(turns.len() * visits.size_hint().0);
        let shapes = turns
            .iter()
            .map(|turn| BatchShape::of(plan, turn.sequences));
        let shapes: Vec<BatchShape> = shapes.collect();
        for (visit, (block, part)) in (self.visits..).zip(visits) {
            for (index, (turn, shape)) in turns.iter().zip(&shapes).enumerate() {
                let (query_len, position) = match turn.token {
                    0 => (prompt_len, 0),
                    token => (1, prompt_len + token - 1),
                };
                units.push(Unit {
                    cell: self.cell(turn, block),
                    part,
                    visit,
                    shape: *shape,
                    query_len,
                    position,
                    last_pass: turn.token + 1 == gen_len,
                    first_batch: index == 0,
                    last_batch: index + 1 == turns.len(),
                });
            }
        }
        units
    }

    /// Writes the `index`-th square of the pass.
    pub(super) fn step(&mut self, out: &mut Emitter, index: usize) {
        let Some(unit) = self.pass.units.get(index).copied() else {
            return;
        };
        let next = self.pass.units.get(index + 1).copied();
        if unit.first_batch {
            self.announce_next(&unit, index);
        }
        if index == 0 && !self.blocks.is_first() {
            self.load(out, &unit);
        }
        self.lower_unit(out, &unit, next.as_ref());
        if unit.last_batch {
            self.weights.load_rest(out, &mut self.layout);
        }
        if next.is_none() {
            self.release_held(out);
            self.store_unstored(out);
        }
        out.end_step(unit.cell);
    }

    /// Announces the weights of the visit after a unit's.
    fn announce_next(&mut self, unit: &Unit, index: usize) {
        let num_batches = self.pass.num_batches;
        let next = self.pass.units.get(index + num_batches);
        // After the last block comes the first of the next pass, unless there is none.
        if let Some((cell, part)) = next.map(|u| (u.cell, u.part)).or(self.pass.next) {
            let chunks = match self.plan.policy.loads_weights_at_once() {
                true => 1,
                false => num_batches,
            };
            let visit = (unit.visit + 1, cell, part);
            self.weights.announce(&self.layout, visit, chunks);
        }
    }

    /// Whether a layer's end is held back behind the next batch's projection, so that CPU attention, or
    /// the CPU's collecting of values, has something to hide behind. A batch must not meet itself in the
    /// next layer before its end.
    fn holds_back(&self, out: &Emitter, units: &[Unit], num_batches: usize) -> bool {
        let apart = |unit: &Unit| self.cache.on_cpu(unit) || self.cache.gathers(unit);
        out.mode() == Mode::Free && num_batches > 1 && units.iter().any(apart)
    }

    /// Brings a unit's cache and activations, where they are not on the device.
    fn load(&mut self, out: &mut Emitter, unit: &Unit) {
        self.load_cache(out, unit);
        self.load_ahead(out, unit);
    }

    fn load_cache(&mut self, out: &mut Emitter, unit: &Unit) {
        let attends = !self.blocks.is_head(unit.cell.block) && unit.cell.block != 0;
        if attends && unit.begins_block() {
            self.pass.cache = self.cache.load(out, &mut self.layout, unit);
            self.copied = self.pass.cache.copied();
        }
    }

    /// Brings a unit's activations a unit ahead of it.
    fn load_ahead(&mut self, out: &mut Emitter, unit: &Unit) {
        if unit.cell.block != 0 && !self.pass.direct {
            self.pass.hidden = Some(self.load_hidden(out, unit));
        }
    }

    fn lower_unit(&mut self, out: &mut Emitter, unit: &Unit, next: Option<&Unit>) {
        self.store_unstored(out);
        let staged = std::mem::take(&mut self.pass.cache);
        let mut work = self.pass.hidden.take();
        // As in FlexGen's released code, what is copied in a step stands behind the host's weights; the disk's are
        // copied on by who has read them.
        let weights_first = out.mode() == Mode::Barrier;
        if weights_first {
            self.weights.begin_chunk(out, &mut self.layout);
        }
        // Of two batches, what the next one begins with is the end that is held back.
        let late = next.filter(|_| self.pass.holds_back && self.pass.num_batches == 2);
        if let Some(next) = next {
            self.load_cache(out, next);
        }
        if let Some(next) = next.filter(|_| late.is_none()) {
            self.load_ahead(out, next);
        }
        if self.pass.direct && unit.cell.block != 0 {
            work = Some(self.load_hidden(out, unit));
        }
        if !self.pass.holds_back && !weights_first {
            self.weights.load_chunk(out, &mut self.layout);
        }
        let work = work.unwrap_or_default();
        if unit.cell.block == 0 {
            let (task, work) = self.embed(out, unit);
            self.hidden
                .store(out, &mut self.layout, (unit, &work), task);
        } else if self.blocks.is_head(unit.cell.block) {
            self.release_held(out);
            self.head(out, unit, work);
        } else if unit.part == LayerPart::Mlp {
            let task = self.mlp(out, unit, &work);
            let ended = Ended {
                unit: *unit,
                work,
                cache: None,
                by: task,
            };
            self.end(out, ended);
        } else {
            let pending = self.attend(out, unit, staged, work);
            self.release_held(out);
            if self.pass.holds_back {
                self.pass.held = Some(pending);
            } else {
                self.end_layer(out, pending);
            }
        }
        if let Some(next) = late {
            self.load_ahead(out, next);
        }
        if weights_first {
            self.weights.end_chunk(out, &mut self.layout);
        }
        if self.pass.holds_back {
            self.weights.load_chunk(out, &mut self.layout);
        }
    }

    fn load_hidden(&mut self, out: &mut Emitter, unit: &Unit) -> Work {
        let last_block = self.blocks.is_head(unit.cell.block);
        self.hidden.load(out, &mut self.layout, unit, last_block)
    }

    fn release_held(&mut self, out: &mut Emitter) {
        if let Some(held) = self.pass.held.take() {
            self.end_layer(out, held);
        }
    }

    fn store_unstored(&mut self, out: &mut Emitter) {
        if let Some(ended) = self.pass.unstored.take() {
            self.store(out, &ended);
        }
    }

    /// Ends a layer for a batch; with a barrier, what it stores goes with the next batch's step.
    fn end_layer(&mut self, out: &mut Emitter, mut pending: Pending) {
        let task = self.finish(out, &mut pending);
        let ended = Ended {
            unit: pending.unit,
            work: pending.work,
            cache: Some((pending.staged, pending.last_cache_task())),
            by: task,
        };
        self.end(out, ended);
    }

    fn end(&mut self, out: &mut Emitter, mut ended: Ended) {
        let unit = &ended.unit;
        if self.blocks.ends_with(unit.cell.block) && unit.ends_block() {
            self.hidden.written(unit, Tier::Device, ended.by);
        }
        if out.mode() != Mode::Barrier {
            self.store(out, &ended);
        } else {
            if self.pass.direct {
                let stored = (unit, &ended.work);
                self.hidden.store(out, &mut self.layout, stored, ended.by);
                ended.work = Work::default();
            }
            self.pass.unstored = Some(ended);
        }
    }

    fn store(&mut self, out: &mut Emitter, ended: &Ended) {
        let (layout, unit) = (&mut self.layout, &ended.unit);
        if let Some((staged, after)) = ended.cache {
            self.cache.store(out, layout, (unit, staged), after);
        }
        let stored = (unit, &ended.work);
        self.hidden.store(out, layout, stored, ended.by);
    }
}

/// What is under way between the units of a pass.
#[derive(Debug, Default)]
struct Pass {
    /// Layer by layer.
    units: Vec<Unit>,
    num_batches: usize,
    /// What the next pass begins with.
    next: Option<(Cell, LayerPart)>,
    holds_back: bool,
    /// One GPU batch: the next unit needs the activations of this one, so nothing can be ahead.
    direct: bool,
    cache: Staged,
    hidden: Option<Work>,
    held: Option<Pending>,
    unstored: Option<Ended>,
}

/// A layer, or its half, that was computed for a batch and is to be stored.
#[derive(Debug)]
struct Ended {
    unit: Unit,
    work: Work,
    /// Working copies of the cache, where it has any, and the last task that used them.
    cache: Option<(Staged, TaskId)>,
    /// The task that changed the activations.
    by: TaskId,
}
