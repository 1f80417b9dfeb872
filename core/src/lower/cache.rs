//! Moves the KV cache between its homes and where attention runs.
//!
//! A home is one page or more (`pages.rs`): its first has a fixed place, the others come and go.
//! Rows that live off the device have a working copy for the unit at hand: attention's device slot,
//! or, for rows on disk that the CPU attends to, a staging slot of the host. Before a decode step it
//! holds the past; the step appends its tokens; then those alone are stored.

use std::ops::Range;

use super::emit::{Draft, Emitter};
use super::layout::{Layout, slot_positions};
use super::pages::{Cut, PageTable};
use super::ring::{Lease, Released};
use super::schedule::Turn;
use super::stages::StageBlocks;
use super::unit::{Unit, move_at, pages};
use crate::policy::Policy;
use crate::program::{Access, BufferId, Content, HostPages, Op, ResourceKind, Strided, TaskId};
use crate::tier::{PerTier, Tier};
use crate::units::Bytes;
use crate::workload::Workload;

/// The rows of one layer and batch that live in one tier.
#[derive(Debug, Clone, Default)]
struct Home {
    /// In the order of their positions.
    pages: Vec<BufferId>,
    written: Option<TaskId>,
    /// After which the first page's place is free.
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
    /// A copy on the host of rows that live there.
    workspace: Option<(Lease, BufferId)>,
    /// What must end before they are complete.
    pub ready: PerTier<Option<TaskId>>,
}

impl Staged {
    /// The task that copied rows on the host for the CPU.
    pub(super) fn copied(&self) -> Option<TaskId> {
        self.workspace.and(self.ready.host)
    }
}

/// All cache traffic of a program.
#[derive(Debug)]
pub(super) struct CacheStream {
    homes: Vec<PerTier<Home>>,
    num_batches: usize,
    /// Of the stage.
    layers: u64,
    /// The block of the first of them.
    first_layer: u16,
    cut: Cut,
    pages: PageTable,
    /// By page and layer, after which its place is free.
    pages_released: PerTier<Vec<Option<TaskId>>>,
    positions: u64,
    slot_positions: u64,
    cpu_attention: bool,
    gathers_values: bool,
    copies: bool,
    page_locked: bool,
}

impl CacheStream {
    pub(super) fn new(
        policy: &Policy,
        workload: &Workload,
        stage: &StageBlocks,
        (cut, pages): (Cut, PageTable),
    ) -> CacheStream {
        let layers = stage.num_layers();
        let of_pages = vec![None; pages.count() * layers as usize];
        CacheStream {
            homes: vec![PerTier::default(); layers as usize * pages.places()],
            num_batches: pages.places(),
            layers: u64::from(layers),
            first_layer: stage.first_layer() as u16,
            cut,
            pages,
            pages_released: PerTier::from_fn(|_| of_pages.clone()),
            positions: u64::from(workload.cache_len()),
            slot_positions: slot_positions(policy, workload),
            cpu_attention: policy.cpu_attention,
            gathers_values: policy.gathers_values(),
            copies: policy.copies_cache(),
            page_locked: policy.page_locked.cache,
        }
    }

    /// Gives each batch of the next pass the pages that it needs.
    pub(super) fn begin_pass(&mut self, turns: &[Turn]) {
        self.pages.begin_pass(turns);
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
        usize::from(unit.cell.block - self.first_layer) * self.num_batches
            + unit.cell.batch as usize
    }

    fn content(unit: &Unit, home: Tier, start: u64) -> Content {
        Content::Cache {
            block: unit.cell.block,
            batch: unit.cell.batch,
            home,
            start: start as u32,
        }
    }

    /// The number of a further page of a unit's home among those of all layers.
    fn place_of(&self, unit: &Unit, page: usize) -> u64 {
        let layer = u64::from(unit.cell.block - self.first_layer);
        u64::from(self.pages.of(unit.cell.batch)[page - 1]) * self.layers + layer
    }

    /// Declares the next page of a home. Returns it and after which task its place is free.
    fn take_page(
        &mut self,
        emitter: &mut Emitter,
        layout: &Layout,
        unit: &Unit,
        tier: Tier,
    ) -> (BufferId, Option<TaskId>) {
        let index = self.index(unit);
        let page = self.homes[index][tier].pages.len();
        let (offset, released) = if page == 0 {
            let offset = layout.cache_homes[tier].at(index as u64);
            (offset, self.homes[index][tier].released)
        } else {
            let place = self.place_of(unit, page);
            let released = self.pages_released[tier][place as usize];
            (layout.cache_pages[tier].at(place), released)
        };
        let bytes = unit.shape.record[tier] * self.cut.length(page);
        let content = Self::content(unit, tier, self.cut.start(page));
        let buffer = emitter.declare((tier, offset), bytes, content);
        self.homes[index][tier].pages.push(buffer);
        (buffer, released)
    }

    /// Adds the page that a unit's new tokens go to, which is taken where they are its first.
    fn attach_newest(
        &mut self,
        emitter: &mut Emitter,
        layout: &Layout,
        draft: Draft,
        (unit, tier, access): (&Unit, Tier, Access),
    ) -> Draft {
        let index = self.index(unit);
        let page = self.cut.page_of(u64::from(unit.position));
        let written = self.homes[index][tier].written;
        match self.homes[index][tier].pages.get(page).copied() {
            Some(newest) => draft.with(access, [Some(newest)]).after([written]),
            None => {
                let (newest, released) = self.take_page(emitter, layout, unit, tier);
                draft
                    .with(Access::Write, [Some(newest)])
                    .after([written])
                    .taking([Some(newest)])
                    .after([released])
            }
        }
    }

    /// Adds the pages of a home up to one that holds none of the first `positions`, to read.
    fn attach_filled(&self, draft: Draft, (unit, tier): (&Unit, Tier), positions: u64) -> Draft {
        let home = &self.homes[self.index(unit)][tier];
        let filled = self.cut.filled(positions).zip(&home.pages);
        draft
            .with(Access::Read, filled.map(|(_, page)| Some(*page)))
            .after([home.written])
    }

    /// Gives back a home with its last use.
    fn give_after_last(&mut self, draft: Draft, (unit, tier): (&Unit, Tier)) -> Draft {
        if !unit.last_pass {
            return draft;
        }
        let index = self.index(unit);
        let pages = std::mem::take(&mut self.homes[index][tier].pages);
        draft.giving(pages.into_iter().map(Some))
    }

    fn wrote(&mut self, unit: &Unit, tier: Tier, task: TaskId) {
        let index = self.index(unit);
        let home = &mut self.homes[index][tier];
        home.written = Some(task);
        home.released = Some(task);
        if unit.last_pass {
            for page in 1..=self.pages.of(unit.cell.batch).len() {
                let place = self.place_of(unit, page);
                self.pages_released[tier][place as usize] = Some(task);
            }
        }
    }

    /// Moves the past of a unit's rows, or its keys alone, from their pages to a buffer that has it in
    /// one piece.
    fn load_pages(
        &self,
        emitter: &mut Emitter,
        (on, keys_only): (ResourceKind, bool),
        (unit, tier): (&Unit, Tier),
        (into, free_after): (BufferId, Released),
    ) -> Option<TaskId> {
        let home = &self.homes[self.index(unit)][tier];
        let filled = self.cut.filled(u64::from(unit.position));
        let mut moved = None;
        for (positions, page) in filled.zip(&home.pages) {
            let op = self.move_past((unit, tier), positions, keys_only);
            let mut copy = Draft::new(on, op, unit.cell)
                .with(Access::Read, [Some(*page)])
                .after([home.written])
                .with(Access::Write, [Some(into)]);
            if moved.is_none() {
                copy = copy.taking([Some(into)]).after(free_after);
            }
            moved = Some(emitter.emit(copy));
        }
        moved
    }

    /// A move of some positions of a unit's past, or of their keys alone, from a buffer that begins with
    /// them to their places in one that has all.
    fn move_past(&self, (unit, tier): (&Unit, Tier), positions: Range<u64>, keys_only: bool) -> Op {
        let record = unit.shape.record[tier];
        let count = positions.end - positions.start;
        let to = record * positions.start;
        let host = pages(self.page_locked, tier);
        if !keys_only {
            return Op::Move {
                bytes: record * count,
                from: Bytes::ZERO,
                to,
                host,
            };
        }
        let strided = |start| Strided {
            start,
            stride: record,
        };
        Op::MoveParts {
            parts: count as u32,
            part: unit.shape.head * u64::from(unit.shape.rows[tier]),
            from: strided(Bytes::ZERO),
            to: strided(to),
            host,
        }
    }

    /// A move of a unit's new tokens from a working copy to the page that they belong to.
    fn move_new(&self, unit: &Unit, tier: Tier) -> Op {
        let (record, position) = (unit.shape.record[tier], u64::from(unit.position));
        let page = self.cut.page_of(position);
        Op::Move {
            bytes: record * u64::from(unit.query_len),
            from: record * position,
            to: record * (position - self.cut.start(page)),
            host: pages(self.page_locked, tier),
        }
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
            if self.copies && unit.shape.rows.host > 0 {
                self.copy_host(emitter, layout, unit, &mut staged);
            }
            return staged;
        }
        self.lease_slot(emitter, layout, unit, &mut staged);
        for tier in [Tier::Host, Tier::Disk] {
            let Some(device) = staged.device[tier] else {
                continue;
            };
            let free_after = staged.slot.map(|s| s.free_after).unwrap_or_default();
            if tier == Tier::Host {
                let (home, into) = ((unit, Tier::Host), (device, free_after));
                let on = (ResourceKind::H2d, gathers);
                staged.ready.host = self.load_pages(emitter, on, home, into);
                continue;
            }
            let past = 0..u64::from(unit.position);
            let source = staged.host;
            let done = if gathers { None } else { staged.host.take() };
            let op = self.move_past((unit, tier), past, gathers);
            let copy = Draft::new(ResourceKind::H2d, op, unit.cell)
                .with(Access::Read, [source])
                .after([staged.ready.disk])
                .giving([done])
                .with(Access::Write, [Some(device)])
                .taking([Some(device)])
                .after(free_after);
            let copied = emitter.emit(copy);
            if !gathers && let Some(lease) = staged.staging.take() {
                layout.cache_staging.release(lease, [Some(copied), None]);
            }
            staged.ready.disk = Some(copied);
        }
        staged
    }

    /// Reads the past of the rows on disk into a staging slot.
    fn read_disk(
        &self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        unit: &Unit,
        staged: &mut Staged,
    ) {
        let staging = self.lease_staging(emitter, layout, unit, staged);
        let free_after = staged.staging.map(|s| s.free_after).unwrap_or_default();
        let (home, into) = ((unit, Tier::Disk), (staging, free_after));
        let on = (ResourceKind::DiskRead, false);
        staged.ready.disk = self.load_pages(emitter, on, home, into);
    }

    /// Copies the past of the rows on the host for the CPU to attend to.
    fn copy_host(
        &self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        unit: &Unit,
        staged: &mut Staged,
    ) {
        let lease = layout.cache_workspaces.lease();
        let bytes = unit.shape.record.host * self.positions;
        let content = Self::content(unit, Tier::Host, 0);
        let copy = emitter.declare((Tier::Host, lease.offset), bytes, content);
        let (home, into) = ((unit, Tier::Host), (copy, lease.free_after));
        staged.ready.host = self.load_pages(emitter, (ResourceKind::Cpu, false), home, into);
        staged.workspace = Some((lease, copy));
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
        let content = Self::content(unit, Tier::Disk, 0);
        let staging = emitter.declare((Tier::Host, lease.offset), bytes, content);
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
                let content = Self::content(unit, tier, 0);
                let place = (Tier::Device, offset);
                staged.device[tier] = Some(emitter.declare(place, bytes, content));
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
            draft = self.attach_newest(emitter, layout, draft, (unit, Tier::Device, access));
        }
        draft
            .with(access, [staged.device.host, staged.device.disk])
            .after([staged.device.host.and(staged.ready.host)])
            .after([staged.device.disk.and(staged.ready.disk)])
    }

    /// Adds the cache that attention on the device reads.
    pub(super) fn attach_past(&mut self, draft: Draft, (unit, staged): (&Unit, &Staged)) -> Draft {
        let mut draft = draft;
        if unit.shape.rows.device > 0 {
            let home = (unit, Tier::Device);
            let positions = u64::from(unit.position + unit.query_len);
            draft = self.attach_filled(draft, home, positions);
            draft = self.give_after_last(draft, home);
        }
        if self.gathers(unit) {
            return draft;
        }
        draft.with(Access::Read, [staged.device.host, staged.device.disk])
    }

    /// Adds the cache that values are collected from, and gives back the staging slot of rows on disk.
    /// Returns the task.
    pub(super) fn gather_values(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        draft: Draft,
        (unit, staged): (&Unit, &mut Staged),
    ) -> TaskId {
        let mut draft = draft;
        if unit.shape.rows.host > 0 {
            draft = self.attach_filled(draft, (unit, Tier::Host), u64::from(unit.position));
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
        if let Some((_, copy)) = staged.workspace {
            draft = draft
                .with(Access::Update, [Some(copy)])
                .after([staged.ready.host]);
        } else if unit.shape.rows.host > 0 {
            let page = self.cut.page_of(u64::from(unit.position));
            let home = (unit, Tier::Host);
            draft = self.attach_filled(draft, home, self.cut.start(page));
            let newest = (unit, Tier::Host, Access::Update);
            draft = self.attach_newest(emitter, layout, draft, newest);
            draft = self.give_after_last(draft, home);
        }
        draft
            .with(Access::Update, [staged.host])
            .after([staged.ready.disk])
    }

    /// Says that CPU attention wrote a unit's home, unless it had a copy.
    pub(super) fn attended_on_cpu(&mut self, (unit, staged): (&Unit, &Staged), task: TaskId) {
        if staged.workspace.is_none() {
            self.wrote_in_place(unit, Tier::Host, task);
        }
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
        if let Some(workspace) = staged.workspace {
            self.store_copy(emitter, layout, (unit, workspace), after);
        }
        let mut released = [None; 2];
        for (tier, released) in [Tier::Host, Tier::Disk].into_iter().zip(&mut released) {
            let Some(device) = staged.device[tier] else {
                continue;
            };
            let op = match tier {
                Tier::Disk => {
                    let record = unit.shape.record.disk;
                    let bytes = record * u64::from(unit.query_len);
                    move_at(bytes, record * u64::from(unit.position), HostPages::Locked)
                }
                Tier::Device | Tier::Host => self.move_new(unit, tier),
            };
            let copy = Draft::new(ResourceKind::D2h, op, unit.cell)
                .with(Access::Read, [Some(device)])
                .after([Some(after)])
                .giving([Some(device)]);
            let copied = if tier == Tier::Host {
                let newest = (unit, Tier::Host, Access::Write);
                let copy = self.attach_newest(emitter, layout, copy, newest);
                let copy = self.give_after_last(copy, (unit, Tier::Host));
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

    /// Brings a unit's new tokens home from the copy that CPU attention had.
    fn store_copy(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        (unit, (lease, copy)): (&Unit, (Lease, BufferId)),
        after: TaskId,
    ) {
        let store = Draft::new(
            ResourceKind::Cpu,
            self.move_new(unit, Tier::Host),
            unit.cell,
        )
        .with(Access::Read, [Some(copy)])
        .after([Some(after)])
        .giving([Some(copy)]);
        let newest = (unit, Tier::Host, Access::Write);
        let store = self.attach_newest(emitter, layout, store, newest);
        let store = self.give_after_last(store, (unit, Tier::Host));
        let stored = emitter.emit(store);
        self.wrote(unit, Tier::Host, stored);
        layout.cache_workspaces.release(lease, [Some(stored), None]);
    }

    /// Writes a unit's new tokens from a staging slot to disk.
    fn write_disk(
        &mut self,
        emitter: &mut Emitter,
        layout: &mut Layout,
        (unit, staged): (&Unit, Staged),
        after: TaskId,
    ) {
        let op = self.move_new(unit, Tier::Disk);
        let write = Draft::new(ResourceKind::DiskWrite, op, unit.cell)
            .with(Access::Read, [staged.host])
            .after([Some(after)])
            .giving([staged.host]);
        let newest = (unit, Tier::Disk, Access::Write);
        let write = self.attach_newest(emitter, layout, write, newest);
        let write = self.give_after_last(write, (unit, Tier::Disk));
        let written = emitter.emit(write);
        self.wrote(unit, Tier::Disk, written);
        if let Some(lease) = staged.staging {
            layout.cache_staging.release(lease, [Some(written), None]);
        }
    }
}
