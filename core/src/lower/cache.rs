//! Moves the KV cache between its homes and where attention runs.
//!
//! Rows that live off the device have a working copy for the unit at hand: attention's device slot,
//! or, for rows on disk that the CPU attends to, a staging slot of the host. Before a decode step it
//! holds the past; the step appends its tokens; then those alone are stored.

use super::emit::{Draft, Emitter};
use super::layout::Layout;
use super::ring::Lease;
use super::unit::{Unit, declare, locked, move_at};
use crate::policy::Policy;
use crate::program::{Access, BufferId, Content, Op, ResourceKind, Strided, TaskId};
use crate::tier::{PerTier, Tier};
use crate::units::Bytes;

/// The rows of one layer and batch that live in one tier.
#[derive(Debug, Clone, Copy, Default)]
struct Home {
    buffer: Option<BufferId>,
    written: Option<TaskId>,
    released: Option<TaskId>,
}

/// Working copies for one unit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Staged {
    slot: Option<Lease>,
    /// On the device, by the tier the rows live in.
    pub device: PerTier<Option<BufferId>>,
    /// On the host, of rows that live on disk.
    pub host: Option<BufferId>,
    staging: Option<Lease>,
    /// What must end before they are complete.
    pub ready: PerTier<Option<TaskId>>,
}

/// All cache traffic of a program.
#[derive(Debug)]
pub(super) struct CacheStream {
    homes: Vec<PerTier<Home>>,
    num_batches: usize,
    positions: u64,
    slot_positions: u64,
    cpu_attention: bool,
    gathers_values: bool,
    page_locked: bool,
}

impl CacheStream {
    pub(super) fn new(
        policy: &Policy,
        layers: u32,
        num_batches: usize,
        positions: (u32, u32),
    ) -> CacheStream {
        let (prompt_len, cache_len) = positions;
        CacheStream {
            homes: vec![PerTier::default(); layers as usize * num_batches],
            num_batches,
            positions: u64::from(cache_len),
            slot_positions: u64::from(if policy.cpu_attention {
                prompt_len
            } else {
                cache_len
            }),
            cpu_attention: policy.cpu_attention,
            gathers_values: policy.gathers_values(),
            page_locked: policy.page_locked.cache,
        }
    }

    /// Whether the CPU attends to this unit's rows off the device.
    pub(super) fn on_cpu(&self, unit: &Unit) -> bool {
        self.cpu_attention && !unit.is_prefill() && unit.shape.rows_off_device() > 0
    }

    /// Whether the device scores this unit's rows off the device, and the CPU collects the values that
    /// were picked.
    pub(super) fn gathers(&self, unit: &Unit) -> bool {
        self.gathers_values && !unit.is_prefill() && unit.shape.rows_off_device() > 0
    }

    fn index(&self, unit: &Unit) -> usize {
        (unit.cell.block as usize - 1) * self.num_batches + unit.cell.batch as usize
    }

    fn content(unit: &Unit, home: Tier) -> Content {
        Content::Cache {
            block: unit.cell.block,
            batch: unit.cell.batch,
            home,
        }
    }

    /// The home of rows in a tier, declared if it is not alive.
    fn home(
        &mut self,
        emitter: &mut Emitter,
        layout: &Layout,
        unit: &Unit,
        tier: Tier,
    ) -> BufferId {
        let index = self.index(unit);
        let positions = self.positions;
        *self.homes[index][tier].buffer.get_or_insert_with(|| {
            let bytes = unit.shape.record[tier] * positions;
            let offset = layout.cache_homes[tier].at(index as u64);
            declare(
                &mut emitter.program,
                tier,
                offset,
                bytes,
                Self::content(unit, tier),
            )
        })
    }

    /// Adds a home to a task: taken with the round's first use, given back with its last.
    fn attach_home(
        &mut self,
        emitter: &mut Emitter,
        layout: &Layout,
        draft: Draft,
        (unit, tier, access): (&Unit, Tier, Access),
    ) -> Draft {
        let last_use = unit.last_pass && (access != Access::Read || tier == Tier::Device);
        let index = self.index(unit);
        let fresh = self.homes[index][tier].buffer.is_none();
        let buffer = self.home(emitter, layout, unit, tier);
        let home = &mut self.homes[index][tier];
        let mut draft = draft.with(access, [Some(buffer)]).after([home.written]);
        if fresh {
            draft = draft.taking([Some(buffer)]).after([home.released]);
        }
        // The device's rows are written by the projection but still read by attention.
        if last_use && !(tier == Tier::Device && access != Access::Read) {
            home.buffer = None;
            draft = draft.giving([Some(buffer)]);
        }
        draft
    }

    fn wrote(&mut self, unit: &Unit, tier: Tier, task: TaskId) {
        let index = self.index(unit);
        let home = &mut self.homes[index][tier];
        home.written = Some(task);
        home.released = Some(task);
    }

    /// Brings the past of a unit to where its attention runs: its keys, where values are collected.
    pub(super) fn load(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        unit: &Unit,
    ) -> Staged {
        let mut staged = Staged::default();
        if unit.is_prefill() || unit.shape.rows_off_device() == 0 {
            return staged;
        }
        let (on_cpu, gathers) = (self.on_cpu(unit), self.gathers(unit));
        if unit.shape.rows.disk > 0 {
            self.read_disk(emitter, layout, unit, &mut staged);
        }
        if on_cpu {
            return staged;
        }
        self.lease_slot(emitter, layout, unit, &mut staged);
        for tier in [Tier::Host, Tier::Disk] {
            let Some(device) = staged.device[tier] else {
                continue;
            };
            let locked = locked(self.page_locked, tier);
            let op = if gathers {
                past_keys(unit, tier, locked)
            } else {
                let bytes = unit.shape.record[tier] * u64::from(unit.position);
                move_at(bytes, Bytes::ZERO, locked)
            };
            let mut copy = Draft::new(ResourceKind::H2d, op, unit.cell);
            copy = if tier == Tier::Host {
                self.attach_home(emitter, layout, copy, (unit, Tier::Host, Access::Read))
            } else {
                let copy = copy.with(Access::Read, [staged.host]);
                let done = if gathers { None } else { staged.host.take() };
                copy.after([staged.ready.disk]).giving([done])
            };
            let copy = copy
                .with(Access::Write, [Some(device)])
                .taking([Some(device)])
                .after(staged.slot.map(|s| s.free_after).unwrap_or_default());
            let copied = emitter.emit(copy);
            if tier == Tier::Disk
                && !gathers
                && let Some(lease) = staged.staging.take()
            {
                layout.cache_staging.release(lease, [Some(copied), None]);
            }
            staged.ready[tier] = Some(copied);
        }
        staged
    }

    /// Reads the past of the rows on disk into a staging slot.
    fn read_disk(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        unit: &Unit,
        staged: &mut Staged,
    ) {
        let staging = self.lease_staging(emitter, layout, unit, staged);
        let bytes = unit.shape.record.disk * u64::from(unit.position);
        let op = move_at(bytes, Bytes::ZERO, true);
        let read = Draft::new(ResourceKind::DiskRead, op, unit.cell);
        let read = self
            .attach_home(emitter, layout, read, (unit, Tier::Disk, Access::Read))
            .with(Access::Write, [Some(staging)])
            .taking([Some(staging)])
            .after(staged.staging.map(|s| s.free_after).unwrap_or_default());
        staged.ready.disk = Some(emitter.emit(read));
    }

    fn lease_staging(
        &self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        unit: &Unit,
        staged: &mut Staged,
    ) -> BufferId {
        let lease = layout.cache_staging.lease();
        let bytes = unit.shape.record.disk * self.positions;
        let content = Self::content(unit, Tier::Disk);
        let staging = declare(
            &mut emitter.program,
            Tier::Host,
            lease.offset,
            bytes,
            content,
        );
        staged.staging = Some(lease);
        staged.host = Some(staging);
        staging
    }

    fn lease_slot(
        &self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        unit: &Unit,
        staged: &mut Staged,
    ) {
        let lease = layout.cache_slots.lease();
        let mut offset = lease.offset;
        for tier in [Tier::Host, Tier::Disk] {
            if unit.shape.rows[tier] > 0 {
                let bytes = unit.shape.record[tier] * self.slot_positions;
                let content = Self::content(unit, tier);
                let program = &mut emitter.program;
                staged.device[tier] = Some(declare(program, Tier::Device, offset, bytes, content));
                offset += bytes;
            }
        }
        staged.slot = Some(lease);
    }

    /// Adds the places that new keys and values on the device go to, to the task that computes them.
    pub(super) fn attach_new(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        draft: Draft,
        (unit, staged): (&Unit, &mut Staged),
    ) -> Draft {
        let access = if unit.is_prefill() {
            Access::Write
        } else {
            Access::Update
        };
        let mut draft = draft;
        if unit.is_prefill() && unit.shape.rows_off_device() > 0 {
            self.lease_slot(emitter, layout, unit, staged);
            draft = draft
                .taking([staged.device.host, staged.device.disk])
                .after(staged.slot.map(|s| s.free_after).unwrap_or_default());
        }
        if unit.shape.rows.device > 0 {
            draft = self.attach_home(emitter, layout, draft, (unit, Tier::Device, access));
        }
        draft
            .with(access, [staged.device.host, staged.device.disk])
            .after([staged.device.host.and(staged.ready.host)])
            .after([staged.device.disk.and(staged.ready.disk)])
    }

    /// Adds the cache that attention on the device reads.
    pub(super) fn attach_past(
        &mut self,
        emitter: &mut Emitter,
        layout: &Layout,
        draft: Draft,
        (unit, staged): (&Unit, &Staged),
    ) -> Draft {
        let mut draft = draft;
        if unit.shape.rows.device > 0 {
            let home = (unit, Tier::Device, Access::Read);
            draft = self.attach_home(emitter, layout, draft, home);
        }
        if self.gathers(unit) {
            return draft;
        }
        draft.with(Access::Read, [staged.device.host, staged.device.disk])
    }

    /// Adds the cache that values are collected from, and gives back the staging slot of rows on disk.
    /// Returns the task.
    pub(super) fn gather(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        draft: Draft,
        (unit, staged): (&Unit, &mut Staged),
    ) -> TaskId {
        let mut draft = draft;
        if unit.shape.rows.host > 0 {
            let home = (unit, Tier::Host, Access::Read);
            draft = self.attach_home(emitter, layout, draft, home);
        }
        let draft = draft
            .with(Access::Read, [staged.host])
            .after([staged.ready.disk])
            .giving([staged.host.take()]);
        let task = emitter.emit(draft);
        if let Some(lease) = staged.staging.take() {
            layout.cache_staging.release(lease, [Some(task), None]);
        }
        task
    }

    /// Adds the cache that attention on the CPU appends to and reads.
    pub(super) fn attach_cpu(
        &mut self,
        emitter: &mut Emitter,
        layout: &Layout,
        draft: Draft,
        (unit, staged): (&Unit, &Staged),
    ) -> Draft {
        let mut draft = draft;
        if unit.shape.rows.host > 0 {
            let home = (unit, Tier::Host, Access::Update);
            draft = self.attach_home(emitter, layout, draft, home);
        }
        draft
            .with(Access::Update, [staged.host])
            .after([staged.ready.disk])
    }

    /// Says which task wrote homes in place: the projection (device) or CPU attention (host).
    pub(super) fn wrote_in_place(&mut self, unit: &Unit, tier: Tier, task: TaskId) {
        if unit.shape.rows[tier] > 0 {
            self.wrote(unit, tier, task);
        }
    }

    /// Stores a unit's new tokens in their homes, after the task that used them last.
    pub(super) fn store(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        (unit, mut staged): (&Unit, Staged),
        after: TaskId,
    ) {
        let start = u64::from(unit.position);
        let mut released = [None; 2];
        for (tier, released) in [Tier::Host, Tier::Disk].into_iter().zip(&mut released) {
            let Some(device) = staged.device[tier] else {
                continue;
            };
            let record = unit.shape.record[tier];
            let op = move_at(
                record * u64::from(unit.query_len),
                record * start,
                locked(self.page_locked, tier),
            );
            let copy = Draft::new(ResourceKind::D2h, op, unit.cell)
                .with(Access::Read, [Some(device)])
                .after([Some(after)])
                .giving([Some(device)]);
            let copied = if tier == Tier::Host {
                let home = (unit, Tier::Host, Access::Write);
                let copy = self.attach_home(emitter, layout, copy, home);
                let copied = emitter.emit(copy);
                self.wrote(unit, Tier::Host, copied);
                copied
            } else {
                let staging = self.lease_staging(emitter, layout, unit, &mut staged);
                let copy = copy
                    .with(Access::Write, [Some(staging)])
                    .taking([Some(staging)])
                    .after(staged.staging.map(|s| s.free_after).unwrap_or_default());
                emitter.emit(copy)
            };
            *released = Some(copied);
        }
        if let Some(slot) = staged.slot {
            layout.cache_slots.release(slot, released);
        }
        if staged.host.is_some() {
            let after = released[1].unwrap_or(after);
            self.write_disk(emitter, layout, (unit, staged), after);
        }
    }

    /// Writes a unit's new tokens from a staging slot to disk.
    fn write_disk(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        (unit, staged): (&Unit, Staged),
        after: TaskId,
    ) {
        let record = unit.shape.record.disk;
        let bytes = record * u64::from(unit.query_len);
        let op = move_at(bytes, record * u64::from(unit.position), true);
        let write = Draft::new(ResourceKind::DiskWrite, op, unit.cell)
            .with(Access::Read, [staged.host])
            .after([Some(after)])
            .giving([staged.host]);
        let home = (unit, Tier::Disk, Access::Write);
        let write = self.attach_home(emitter, layout, write, home);
        let written = emitter.emit(write);
        self.wrote(unit, Tier::Disk, written);
        if let Some(lease) = staged.staging {
            layout.cache_staging.release(lease, [Some(written), None]);
        }
    }
}

/// Moves the keys of a unit's past to their places in the working copy.
fn past_keys(unit: &Unit, tier: Tier, page_locked: bool) -> Op {
    let place = Strided {
        start: Bytes::ZERO,
        stride: unit.shape.record[tier],
    };
    Op::MoveParts {
        parts: unit.position,
        part: unit.shape.head * u64::from(unit.shape.rows[tier]),
        from: place,
        to: place,
        page_locked,
    }
}
