//! Moves activations between their homes and the unit that computes with them.
//!
//! Sequences that live on the device are computed in place. The others have a working copy in a slot
//! of the device, loaded before the unit and stored after it; those on disk pass through the host.

use super::emit::{Draft, Emitter};
use super::layout::Layout;
use super::ring::Lease;
use super::unit::{Unit, move_at, pages};
use crate::placement::PAGE_BYTES;
use crate::program::{Access, BufferId, Content, Op, ResourceKind, TaskId};
use crate::tier::{PerTier, Tier};
use crate::units::Bytes;

#[derive(Debug, Clone, Copy, Default)]
struct Home {
    buffer: Option<BufferId>,
    /// Off the device, or where another stage or this one's end wrote it: the last writer.
    written: Option<TaskId>,
    /// After which the place is free again, where another stage took what was there.
    released: Option<TaskId>,
}

/// Working copies for one unit, by the tier that the sequences live in.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    slot: Option<Lease>,
    device: PerTier<Option<BufferId>>,
    ready: PerTier<Option<TaskId>>,
}

/// All activation traffic of a program.
#[derive(Debug)]
pub(super) struct HiddenStream {
    homes: Vec<PerTier<Home>>,
    token_bytes: u64,
    prompt_len: u64,
    page_locked: bool,
    /// Whether they come from another stage, so that who gives back a home says so.
    receives: bool,
}

impl HiddenStream {
    pub(super) fn new(
        num_batches: usize,
        token_bytes: u64,
        prompt_len: u32,
        (page_locked, receives): (bool, bool),
    ) -> HiddenStream {
        HiddenStream {
            homes: vec![PerTier::default(); num_batches],
            token_bytes,
            prompt_len: u64::from(prompt_len),
            page_locked,
            receives,
        }
    }

    /// Bytes of a unit's activations in a tier.
    pub(super) fn bytes(&self, unit: &Unit, tier: Tier) -> Bytes {
        let tokens = u64::from(unit.shape.hidden[tier]) * u64::from(unit.query_len);
        Bytes(tokens * self.token_bytes)
    }

    /// Bytes that are set aside for a unit's activations in a tier: those of prefill, the most.
    pub(super) fn room(&self, unit: &Unit, tier: Tier) -> Bytes {
        let tokens = u64::from(unit.shape.hidden[tier]) * self.prompt_len;
        Bytes(tokens * self.token_bytes).align_up(PAGE_BYTES)
    }

    pub(super) fn content(unit: &Unit, home: Tier) -> Content {
        Content::Hidden {
            batch: unit.cell.batch,
            home,
        }
    }

    fn lease(&self, emitter: &mut Emitter, layout: &mut Layout, unit: &Unit) -> Work {
        let mut work = Work::default();
        if unit.shape.hidden.host + unit.shape.hidden.disk == 0 {
            return work;
        }
        let lease = layout.hidden_slots.lease();
        let mut offset = lease.offset;
        for tier in [Tier::Host, Tier::Disk] {
            if unit.shape.hidden[tier] > 0 {
                let content = Self::content(unit, tier);
                let bytes = self.room(unit, tier);
                let place = (Tier::Device, offset);
                work.device[tier] = Some(emitter.declare(place, bytes, content));
                offset += bytes;
            }
        }
        work.slot = Some(lease);
        work
    }

    /// Brings a unit's activations to the device.
    pub(super) fn load(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        unit: &Unit,
        last_block: bool,
    ) -> Work {
        let mut work = self.lease(emitter, layout, unit);
        let batch = unit.cell.batch as usize;
        for tier in [Tier::Host, Tier::Disk] {
            let Some(device) = work.device[tier] else {
                continue;
            };
            let op = move_at(
                self.bytes(unit, tier),
                Bytes::ZERO,
                pages(self.page_locked, tier),
            );
            let home = self.homes[batch][tier];
            let last = if last_block { home.buffer } else { None };
            if last_block {
                self.homes[batch][tier].buffer = None;
            }
            let mut copy = Draft::new(ResourceKind::H2d, op, unit.cell);
            let mut staging = None;
            let mut given = None;
            if tier == Tier::Host {
                copy = copy
                    .with(Access::Read, [home.buffer])
                    .after([home.written])
                    .giving([last]);
            } else {
                let lease = layout.hidden_staging.lease();
                let room = self.room(unit, tier);
                let place = (Tier::Host, lease.offset);
                let host = emitter.declare(place, room, Self::content(unit, tier));
                let read = Draft::new(ResourceKind::DiskRead, page_aligned(op), unit.cell)
                    .with(Access::Read, [home.buffer])
                    .with(Access::Write, [Some(host)])
                    .after([home.written])
                    .after(lease.free_after)
                    .taking([Some(host)])
                    .giving([last]);
                let read = emitter.emit(read);
                given = Some(read);
                copy = copy
                    .with(Access::Read, [Some(host)])
                    .after([Some(read)])
                    .giving([Some(host)]);
                staging = Some(lease);
            }
            let copy = copy
                .with(Access::Write, [Some(device)])
                .taking([Some(device)])
                .after(work.slot.map(|s| s.free_after).unwrap_or_default());
            let copied = emitter.emit(copy);
            work.ready[tier] = Some(copied);
            if last_block && self.receives {
                self.homes[batch][tier].released = given.or(Some(copied));
            }
            if let Some(lease) = staging {
                layout.hidden_staging.release(lease, [Some(copied), None]);
            }
        }
        work
    }

    /// Adds fresh activations to the task that makes them: the embedding.
    pub(super) fn attach_new(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        draft: Draft,
        unit: &Unit,
    ) -> (Draft, Work) {
        let work = self.lease(emitter, layout, unit);
        let batch = unit.cell.batch as usize;
        let mut draft = draft;
        if unit.shape.hidden.device > 0 {
            let place = (Tier::Device, layout.hidden_homes.device.at(batch as u64));
            let bytes = self.room(unit, Tier::Device);
            let home = emitter.declare(place, bytes, Self::content(unit, Tier::Device));
            let slot = &mut self.homes[batch].device;
            slot.buffer = Some(home);
            draft = draft
                .with(Access::Write, [Some(home)])
                .taking([Some(home)])
                .after([slot.released]);
        }
        let fresh = [work.device.host, work.device.disk];
        let draft = draft
            .with(Access::Write, fresh)
            .taking(fresh)
            .after(work.slot.map(|s| s.free_after).unwrap_or_default());
        (draft, work)
    }

    /// Adds a unit's activations to a task that reads or changes them.
    pub(super) fn attach(
        &mut self,
        draft: Draft,
        unit: &Unit,
        work: &Work,
        access: Access,
    ) -> Draft {
        let home = &mut self.homes[unit.cell.batch as usize].device;
        // Who comes first waits for what another stage wrote; the others come after it on the GPU.
        draft
            .with(access, [home.buffer, work.device.host, work.device.disk])
            .after([work.ready.host, work.ready.disk, home.written.take()])
    }

    /// What the last task of a pass gives back.
    pub(super) fn giving_all(&mut self, draft: Draft, unit: &Unit, work: &Work) -> Draft {
        let home = self.homes[unit.cell.batch as usize].device.buffer.take();
        draft.giving([home, work.device.host, work.device.disk])
    }

    /// Frees what a pass's last task gave back.
    pub(super) fn release(
        &mut self,
        layout: &mut Layout,
        (unit, work): (&Unit, &Work),
        task: TaskId,
    ) {
        if self.receives {
            self.homes[unit.cell.batch as usize].device.released = Some(task);
        }
        if let Some(slot) = work.slot {
            layout.hidden_slots.release(slot, [Some(task), None]);
        }
    }

    /// A unit's home in a tier, for another stage to take what is there, and who wrote it; see
    /// [`HiddenStream::released`].
    pub(super) fn leave(&mut self, unit: &Unit, tier: Tier) -> (Option<BufferId>, Option<TaskId>) {
        let home = &mut self.homes[unit.cell.batch as usize][tier];
        (home.buffer.take(), home.written.take())
    }

    /// Says which task gave back a home.
    pub(super) fn released(&mut self, unit: &Unit, tier: Tier, task: TaskId) {
        self.homes[unit.cell.batch as usize][tier].released = Some(task);
    }

    /// Says which task wrote a home: the last of a stage, or what brought it from another.
    pub(super) fn written(&mut self, unit: &Unit, tier: Tier, task: TaskId) {
        self.homes[unit.cell.batch as usize][tier].written = Some(task);
    }

    /// Stores a unit's activations in their homes, after the task that changed them.
    pub(super) fn store(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        (unit, work): (&Unit, &Work),
        after: TaskId,
    ) {
        let mut released = [None; 2];
        for (tier, released) in [Tier::Host, Tier::Disk].into_iter().zip(&mut released) {
            let Some(device) = work.device[tier] else {
                continue;
            };
            let op = move_at(
                self.bytes(unit, tier),
                Bytes::ZERO,
                pages(self.page_locked, tier),
            );
            let copy = Draft::new(ResourceKind::D2h, op, unit.cell)
                .with(Access::Read, [Some(device)])
                .after([Some(after)])
                .giving([Some(device)]);
            if tier == Tier::Host {
                let copy = self.attach_home(emitter, layout, copy, (unit, tier));
                let copied = emitter.emit(copy);
                self.homes[unit.cell.batch as usize][tier].written = Some(copied);
                *released = Some(copied);
            } else {
                *released = Some(self.write_disk(emitter, layout, unit, copy));
            }
        }
        if let Some(slot) = work.slot {
            layout.hidden_slots.release(slot, released);
        }
    }

    /// Finishes a copy from the device by way of the host to disk; returns the copy.
    fn write_disk(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        unit: &Unit,
        copy: Draft,
    ) -> TaskId {
        let lease = layout.hidden_staging.lease();
        let room = self.room(unit, Tier::Disk);
        let place = (Tier::Host, lease.offset);
        let host = emitter.declare(place, room, Self::content(unit, Tier::Disk));
        let write = Draft::new(ResourceKind::DiskWrite, page_aligned(copy.op), unit.cell);
        let copy = copy
            .with(Access::Write, [Some(host)])
            .taking([Some(host)])
            .after(lease.free_after);
        let copied = emitter.emit(copy);
        let write = write
            .with(Access::Read, [Some(host)])
            .after([Some(copied)])
            .giving([Some(host)]);
        let write = self.attach_home(emitter, layout, write, (unit, Tier::Disk));
        let written = emitter.emit(write);
        self.homes[unit.cell.batch as usize].disk.written = Some(written);
        layout.hidden_staging.release(lease, [Some(written), None]);
        copied
    }

    /// Adds a unit's home in a tier to the task that writes it, which takes it where there is none yet.
    pub(super) fn attach_home(
        &mut self,
        emitter: &mut Emitter,
        layout: &Layout,
        draft: Draft,
        (unit, tier): (&Unit, Tier),
    ) -> Draft {
        let batch = unit.cell.batch as usize;
        let fresh = self.homes[batch][tier].buffer.is_none();
        let released = self.homes[batch][tier].released;
        let room = self.room(unit, tier);
        let buffer = *self.homes[batch][tier].buffer.get_or_insert_with(|| {
            let place = (tier, layout.hidden_homes[tier].at(batch as u64));
            emitter.declare(place, room, Self::content(unit, tier))
        });
        let draft = draft.with(Access::Write, [Some(buffer)]);
        if fresh {
            draft.taking([Some(buffer)]).after([released])
        } else {
            draft
        }
    }
}

/// Disk moves are whole pages; the rest of the last page is not anybody's.
pub(super) fn page_aligned(op: Op) -> Op {
    match op {
        Op::Move {
            bytes,
            from,
            to,
            host,
        } => Op::Move {
            bytes: bytes.align_up(PAGE_BYTES),
            from,
            to,
            host,
        },
        other => other,
    }
}
