//! The device's rows of a split module on their way: home, page-locked buffer, device (HeteGen Figures 5 and 6).

use super::room::{Band, buffer_of};
use super::{Step, room};
use crate::lower::emit::{Draft, Emitter};
use crate::lower::ring::Lease;
use crate::lower::stage::StageLowering;
use crate::lower::unit::Unit;
use crate::model::TensorSpec;
use crate::program::{Access, BufferId, Content, HostPages, Op, ResourceKind, TaskId};
use crate::split::{Module, Route, RowSplit, SplitLinears};
use crate::tier::Tier;
use crate::units::Bytes;

/// The device's rows of a module, on their way.
#[derive(Debug)]
pub(super) struct Coming {
    module: Module,
    /// Where they begin in the block's weights on the host, and how many they are.
    from: Bytes,
    all: Band,
    /// How many of them were sent.
    sent: u64,
    /// Where they come to.
    pub slot: Lease,
    /// Those that were sent, in their order.
    pub arrived: Vec<Arrived>,
    /// The last copy into page-locked memory.
    pub pinned: Option<TaskId>,
}

/// Some of a module's rows on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub rows: u64,
    pub buffer: BufferId,
    /// What brings them.
    pub moved: TaskId,
}

/// Some of a module's rows before they are moved.
struct RowsPart {
    band: Band,
    /// Where they begin in the module's rows that come.
    start: Bytes,
    /// In page-locked memory: where, what is there, and what put it there.
    pinned: Option<(Lease, BufferId, TaskId)>,
}

impl StageLowering {
    /// Brings the device's rows of a module: all of them, or those that were not sent ahead.
    pub(super) fn bring_rows(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (module, weight, rows): (Module, &TensorSpec, RowSplit),
        (step, made): (Step, TaskId),
    ) -> Coming {
        let ahead = self.split.ahead.take();
        let mut coming = ahead.unwrap_or_else(|| self.begin_rows(unit, (module, weight, rows)));
        let split = self.plan.policy.split;
        let waits = match split.map(|split| (split.route, split.hands_on)) {
            Some((Route::Blocking, _)) => self.split.before,
            Some((_, false)) if begins_half(step) => [Some(made), None],
            _ => [None; 2],
        };
        let rest = coming.all.rows - coming.sent;
        self.send_rows(out, unit, (&mut coming, rest), waits);
        self.split.before[1] = coming.arrived.last().map(|last| last.moved);
        coming
    }

    /// Sends a first part of the rows that are needed next, if they may go before the step's end. Outputs of the CPU take the same
    /// link, which is first in, first out, and would stand idle until they are computed.
    pub(super) fn send_ahead(&mut self, out: &mut Emitter, unit: &Unit, step: Step) {
        let Some((unit, step, (module, weight, rows))) = self.split_after(unit, step) else {
            return;
        };
        let split = self.plan.policy.split;
        let may = |split: SplitLinears| {
            split.route == Route::Ahead && (split.hands_on || !begins_half(step))
        };
        if self.split.ahead.is_none() && split.is_some_and(may) {
            let mut coming = self.begin_rows(&unit, (module, &weight, rows));
            let first = room(&mut self.layout).ahead(unit.is_prefill(), coming.all);
            self.send_rows(out, &unit, (&mut coming, first), [None; 2]);
            self.split.ahead = Some(coming);
        }
    }

    /// Takes the place that a module's rows come to.
    fn begin_rows(
        &mut self,
        unit: &Unit,
        (module, weight, rows): (Module, &TensorSpec, RowSplit),
    ) -> Coming {
        let all = Band::of(&self.plan, weight, rows.device);
        let blocks = &self.layout.weights.blocks;
        let weights = blocks[usize::from(unit.cell.block)].offset_of(module.weight());
        Coming {
            module,
            from: weights.unwrap_or_default() + all.with(rows.host).bytes(),
            all,
            sent: 0,
            slot: room(&mut self.layout).rows.lease(),
            arrived: Vec::new(),
            pinned: None,
        }
    }

    /// Sends the next so many of a module's rows.
    fn send_rows(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (coming, rows): (&mut Coming, u64),
        waits: [Option<TaskId>; 2],
    ) {
        let parts = match self.plan.policy.split {
            Some(split) if split.route.pins() => self.pin_rows(out, unit, (coming, rows), waits),
            _ => vec![RowsPart {
                band: coming.all.with(rows),
                start: coming.all.with(coming.sent).bytes(),
                pinned: None,
            }],
        };
        self.move_rows(out, unit, coming, &parts);
        coming.sent += rows;
    }

    /// Copies rows into page-locked memory; gives their parts.
    fn pin_rows(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (coming, rows): (&mut Coming, u64),
        waits: [Option<TaskId>; 2],
    ) -> Vec<RowsPart> {
        let module = coming.module;
        let home = self.weights.home(unit.cell.block, Tier::Host);
        let content = rows_of(unit, module);
        let mut parts = Vec::new();
        let room = room(&mut self.layout);
        let goes_ahead = rows < coming.all.rows && coming.sent == 0;
        let most = room.pinned_at_once(module, coming.all.with(rows), goes_ahead);
        let (mut first, end) = (coming.sent, coming.sent + rows);
        while first < end {
            let band = coming.all.with(most.min(end - first));
            let start = coming.all.with(first).bytes();
            let lease = room.pinned[buffer_of(module)].lease();
            let buffer = out.declare((Tier::Host, lease.offset), band.bytes(), content);
            let op = Op::Move {
                bytes: band.bytes(),
                from: coming.from + start,
                to: Bytes::ZERO,
                host: HostPages::Locked,
            };
            let pin = Draft::new(ResourceKind::Pin, op, unit.cell)
                .with(Access::Read, [home])
                .with(Access::Write, [Some(buffer)])
                .taking([Some(buffer)])
                .after(lease.free_after)
                .after(waits);
            let task = out.emit(pin);
            coming.pinned = Some(task);
            parts.push(RowsPart {
                band,
                start,
                pinned: Some((lease, buffer, task)),
            });
            first += band.rows;
        }
        parts
    }

    /// Moves parts of a module's rows to the device, each to a buffer of its own: the device computes with one while the next comes.
    fn move_rows(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        coming: &mut Coming,
        parts: &[RowsPart],
    ) {
        let policy = &self.plan.policy;
        let blocks = policy
            .split
            .is_some_and(|split| split.route == Route::Blocking);
        let all_pinned = coming.pinned.filter(|_| blocks);
        let home = self.weights.home(unit.cell.block, Tier::Host);
        let pages = HostPages::of(policy.page_locked.weights);
        let room = room(&mut self.layout);
        for part in parts {
            let (source, from, host) = match part.pinned {
                Some((_, pinned, _)) => (Some(pinned), Bytes::ZERO, HostPages::Locked),
                None => (home, coming.from + part.start, pages),
            };
            let bytes = part.band.bytes();
            let place = (Tier::Device, coming.slot.offset + part.start);
            let buffer = out.declare(place, bytes, rows_of(unit, coming.module));
            let op = Op::Move {
                bytes,
                from,
                to: Bytes::ZERO,
                host,
            };
            let copy = Draft::new(ResourceKind::H2d, op, unit.cell)
                .with(Access::Read, [source])
                .with(Access::Write, [Some(buffer)])
                .taking([Some(buffer)])
                .after(coming.slot.free_after)
                .after([part.pinned.map(|(.., task)| task), all_pinned])
                .giving([part.pinned.map(|(_, pinned, _)| pinned)]);
            let moved = out.emit(copy);
            if let Some((lease, ..)) = part.pinned {
                room.pinned[buffer_of(coming.module)].release(lease, [Some(moved), None]);
            }
            coming.arrived.push(Arrived {
                rows: part.band.rows,
                buffer,
                moved,
            });
        }
    }
}

/// Whether a page-locked buffer's modules begin with a step: attention's or the MLP's.
fn begins_half(step: Step) -> bool {
    step == super::PROJECT || step == super::INNER
}

fn rows_of(unit: &Unit, module: Module) -> Content {
    Content::Rows {
        block: unit.cell.block,
        module,
    }
}
