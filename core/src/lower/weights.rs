//! Streams the weights that are not on the device, a visit ahead.
//!
//! A block's slab comes in chunks, one with each GPU batch of the visit before, as Algorithm 1's
//! `load_weight(i, j + 1, k)` does. Where steps are half layers, a visit is of a half. Chunks from disk pass
//! through a staging slot of the host.

use std::sync::Arc;

use super::emit::{Draft, Emitter};
use super::layout::Layout;
use super::ring::Lease;
use super::stages::StageBlocks;
use super::unit::Unit;
use crate::placement::{BlockWeights, LayerPart, PAGE_BYTES};
use crate::program::{Access, BufferId, Cell, Content, HostPages, Op, ResourceKind, TaskId};
use crate::tier::{PerTier, Tier};
use crate::units::Bytes;

/// Smaller chunks would cost more in fixed time than they gain in overlap.
pub const CHUNK_BYTES_MIN: u64 = 1 << 20;

/// Weights on their way to, or on, the device for one visit.
#[derive(Debug)]
struct Visit {
    number: u64,
    cell: Cell,
    part: LayerPart,
    chunks: u64,
    loaded: u64,
    /// What is read from disk of the chunk that was begun last, and where it lies on the host.
    reading: Option<(Chunk, TaskId, BufferId)>,
    slot: Option<Lease>,
    staging: Option<Lease>,
    /// Device buffers by the tier that the weights live in.
    staged: PerTier<Option<BufferId>>,
    ready: PerTier<Option<TaskId>>,
}

/// All weight traffic of a program.
#[derive(Debug)]
pub(super) struct WeightStream {
    /// Of the stage's blocks.
    homes: Vec<PerTier<Option<BufferId>>>,
    first_block: u16,
    visits: Vec<Visit>,
    host: HostPages,
    /// Whether rows of the host's weights come by themselves, where linear layers are split.
    split: bool,
}

impl WeightStream {
    /// Declares the homes of a stage's weights in the first piece.
    pub(super) fn new(
        emitter: &mut Emitter,
        layout: &Layout,
        stage: &StageBlocks,
        host: HostPages,
    ) -> WeightStream {
        let mut declare = |(index, block): (usize, usize)| {
            PerTier::from_fn(|home| {
                let bytes = layout.weights.blocks[block].slab[home];
                let content = Content::Weights {
                    block: block as u16,
                    part: LayerPart::Whole,
                    home,
                };
                let place = (home, layout.weight_homes[home][index]);
                (bytes.0 > 0).then(|| emitter.declare_resident(place, bytes, content))
            })
        };
        WeightStream {
            homes: stage.as_range().enumerate().map(&mut declare).collect(),
            first_block: stage.first() as u16,
            visits: Vec::new(),
            host,
            split: layout.split.is_some(),
        }
    }

    /// A block's weights that live in a tier.
    pub(super) fn home(&self, block: u16, tier: Tier) -> Option<BufferId> {
        self.homes_of(block)[tier]
    }

    fn homes_of(&self, block: u16) -> PerTier<Option<BufferId>> {
        self.homes[usize::from(block - self.first_block)]
    }

    /// Announces the next visit; its weights come in at most `batches` chunks.
    pub(super) fn announce(
        &mut self,
        layout: &Layout,
        (number, cell, part): (u64, Cell, LayerPart),
        batches: usize,
    ) {
        if self.split {
            return;
        }
        let weights = &layout.weights.blocks[cell.block as usize];
        let [host, disk] = [Tier::Host, Tier::Disk].map(|tier| weights.bytes(part, tier));
        let most = host.max(disk).0.div_ceil(CHUNK_BYTES_MIN);
        self.visits.push(Visit {
            number,
            cell,
            part,
            chunks: most.min(batches as u64),
            loaded: 0,
            reading: None,
            slot: None,
            staging: None,
            staged: PerTier::default(),
            ready: PerTier::default(),
        });
    }

    /// Loads the next chunk of the visit that was announced last, if one is missing.
    pub(super) fn load_chunk(&mut self, emitter: &mut Emitter, layout: &mut Layout) {
        self.begin_chunk(emitter, layout);
        self.end_chunk(emitter, layout);
    }

    /// Copies the host's part of the next chunk and reads the disk's, which [`WeightStream::end_chunk`]
    /// copies on.
    pub(super) fn begin_chunk(&mut self, emitter: &mut Emitter, layout: &mut Layout) {
        let host = self.host;
        let Some(next) = self.visits.last().map(|visit| visit.cell.block) else {
            return;
        };
        let homes = self.homes_of(next);
        let Some(visit) = self.visits.last_mut().filter(|v| v.loaded < v.chunks) else {
            return;
        };
        let weights = Arc::clone(&layout.weights);
        let weights = &weights.blocks[visit.cell.block as usize];
        let slot = *visit
            .slot
            .get_or_insert_with(|| layout.weight_slots.lease());
        for tier in [Tier::Host, Tier::Disk] {
            let Some(home) = homes[tier] else { continue };
            let span = weights.span(visit.part, tier);
            let all = (span.end - span.start).0;
            let chunk = all.div_ceil(visit.chunks).next_multiple_of(PAGE_BYTES);
            let start = (chunk * visit.loaded).min(all);
            let bytes = Bytes(chunk.min(all - start));
            if bytes == Bytes::ZERO {
                continue;
            }
            let chunk = Chunk {
                home: span.start + Bytes(start),
                start: Bytes(start),
                bytes,
                host,
                last: start + bytes.0 == all,
            };
            if tier == Tier::Host {
                let copy = Draft::new(ResourceKind::H2d, chunk.to_device(tier), visit.cell);
                let copy = copy.with(Access::Read, [Some(home)]);
                visit.copy(emitter, (copy, tier), slot, weights);
            } else {
                let (read, staging) = visit.read_chunk(emitter, layout, home, chunk);
                visit.reading = Some((chunk, read, staging));
            }
        }
        visit.loaded += 1;
    }

    /// Copies on what was read from disk of the chunk that was begun last.
    pub(super) fn end_chunk(&mut self, emitter: &mut Emitter, layout: &mut Layout) {
        let Some(visit) = self.visits.last_mut() else {
            return;
        };
        let (Some((chunk, read, staging)), Some(slot)) = (visit.reading.take(), visit.slot) else {
            return;
        };
        let op = chunk.to_device(Tier::Disk);
        let copy = Draft::new(ResourceKind::H2d, op, visit.cell)
            .with(Access::Read, [Some(staging)])
            .after([Some(read)])
            .giving([Some(staging)]);
        let weights = &layout.weights.blocks[visit.cell.block as usize];
        let copied = visit.copy(emitter, (copy, Tier::Disk), slot, weights);
        if let (true, Some(lease)) = (chunk.last, visit.staging) {
            layout.weight_staging.release(lease, [Some(copied), None]);
        }
    }

    /// Loads what is still missing of the visit that was announced last.
    pub(super) fn load_rest(&mut self, emitter: &mut Emitter, layout: &mut Layout) {
        while self.visits.last().is_some_and(|v| v.loaded < v.chunks) {
            self.load_chunk(emitter, layout);
        }
    }

    fn visit(&self, unit: &Unit) -> Option<&Visit> {
        self.visits.iter().find(|v| v.number == unit.visit)
    }

    /// Adds the weights that a unit computes with to its task. The last batch's task of a visit
    /// gives them back; tell [`WeightStream::end_visit`].
    pub(super) fn attach(&self, draft: Draft, unit: &Unit, last_use: bool) -> Draft {
        let home = self.homes_of(unit.cell.block).device;
        let draft = draft.with(Access::Read, [home]);
        let Some(visit) = self.visit(unit) else {
            return draft;
        };
        let staged = [visit.staged.host, visit.staged.disk];
        let draft = draft
            .with(Access::Read, staged)
            .after([visit.ready.host, visit.ready.disk]);
        if last_use && unit.last_batch {
            draft.giving(staged)
        } else {
            draft
        }
    }

    /// Frees the slot of a visit whose last task this is.
    pub(super) fn end_visit(&mut self, layout: &mut Layout, unit: &Unit, task: TaskId) {
        if !unit.last_batch {
            return;
        }
        if let Some(slot) = self.visit(unit).and_then(|v| v.slot) {
            layout.weight_slots.release(slot, [Some(task), None]);
        }
        self.visits.retain(|v| v.number != unit.visit);
    }
}

/// A part of a slab on its way.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// In the home's slab.
    home: Bytes,
    /// In what is loaded.
    start: Bytes,
    bytes: Bytes,
    host: HostPages,
    /// Whether none follows in its slab.
    last: bool,
}

impl Chunk {
    fn moved(self, from: Bytes, to: Bytes, home: Tier) -> Op {
        Op::Move {
            bytes: self.bytes,
            from,
            to,
            host: match home {
                Tier::Host => self.host,
                _ => HostPages::Locked,
            },
        }
    }

    /// From a home on the host, or from a staging buffer that holds this chunk alone.
    fn to_device(self, home: Tier) -> Op {
        let from = if home == Tier::Host {
            self.home
        } else {
            Bytes::ZERO
        };
        self.moved(from, self.start, home)
    }
}

impl Visit {
    /// Writes a copy to its place on the device.
    fn copy(
        &mut self,
        emitter: &mut Emitter,
        (copy, tier): (Draft, Tier),
        slot: Lease,
        weights: &BlockWeights,
    ) -> TaskId {
        let fresh = self.staged[tier].is_none();
        let device = self.staged_buffer(emitter, slot, tier, weights);
        let mut copy = copy.with(Access::Write, [Some(device)]);
        if fresh {
            copy = copy.taking([Some(device)]).after(slot.free_after);
        }
        let copied = emitter.emit(copy);
        self.ready[tier] = Some(copied);
        copied
    }

    /// The buffer on the device of the weights that live in `tier`: the host's first, then the disk's.
    fn staged_buffer(
        &mut self,
        emitter: &mut Emitter,
        slot: Lease,
        tier: Tier,
        weights: &BlockWeights,
    ) -> BufferId {
        let place = if tier == Tier::Host {
            Bytes::ZERO
        } else {
            weights.bytes(self.part, Tier::Host)
        };
        let content = Content::Weights {
            block: self.cell.block,
            part: self.part,
            home: tier,
        };
        let place = (Tier::Device, slot.offset + place);
        let bytes = weights.bytes(self.part, tier);
        *self.staged[tier].get_or_insert_with(|| emitter.declare(place, bytes, content))
    }

    /// Reads a chunk from disk into its place in the visit's staging slot. Each chunk is a buffer of
    /// its own there: one is copied on while the next is read.
    fn read_chunk(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        home: BufferId,
        chunk: Chunk,
    ) -> (TaskId, BufferId) {
        let first = self.staging.is_none();
        let lease = *self
            .staging
            .get_or_insert_with(|| layout.weight_staging.lease());
        let content = Content::Weights {
            block: self.cell.block,
            part: self.part,
            home: Tier::Disk,
        };
        let offset = lease.offset + chunk.start;
        let staging = emitter.declare((Tier::Host, offset), chunk.bytes, content);
        let op = chunk.moved(chunk.home, Bytes::ZERO, Tier::Disk);
        let mut read = Draft::new(ResourceKind::DiskRead, op, self.cell)
            .with(Access::Read, [Some(home)])
            .with(Access::Write, [Some(staging)])
            .taking([Some(staging)]);
        if first {
            read = read.after(lease.free_after);
        }
        (emitter.emit(read), staging)
    }
}
