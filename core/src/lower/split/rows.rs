//! The device's rows of a split module on their way: home, page-locked buffer, device (HeteGen Figures 5 and 6).

use super::room::buffer_of;
use super::{Step, room};
use crate::lower::emit::{Draft, Emitter};
use crate::lower::ring::Lease;
use crate::lower::stage::StageLowering;
use crate::lower::unit::Unit;
use crate::model::TensorSpec;
use crate::program::{Access, BufferId, Content, Op, ResourceKind, TaskId};
use crate::split::{Module, Route, RowSplit, SplitLinears};
use crate::tier::Tier;
use crate::units::Bytes;

/// The device's rows of a module, on their way.
#[derive(Debug)]
pub(super) struct Coming {
    module: Module,
    /// Where they begin in the block's weights on the host, and how many bytes they are.
    from: Bytes,
    bytes: Bytes,
    /// How many of them were sent.
    sent: Bytes,
    /// Where they come to.
    pub slot: Lease,
    pub buffer: BufferId,
    /// The last move.
    pub moved: Option<TaskId>,
    /// The last copy into page-locked memory.
    pub pinned: Option<TaskId>,
}

/// A part of a module's rows.
struct RowsPart {
    /// In the rows.
    start: Bytes,
    bytes: Bytes,
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
        let mut coming =
            ahead.unwrap_or_else(|| self.begin_rows(out, unit, (module, weight, rows)));
        let split = self.plan.policy.split;
        let waits = match split.map(|split| (split.route, split.hands_on)) {
            Some((Route::Blocking, _)) => self.split.before,
            Some((_, false)) if begins_half(step) => [Some(made), None],
            _ => [None; 2],
        };
        let rest = coming.bytes.saturating_sub(coming.sent);
        self.send_rows(out, unit, (&mut coming, rest), waits);
        self.split.before[1] = coming.moved;
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
            let mut coming = self.begin_rows(out, &unit, (module, &weight, rows));
            let first = room(&mut self.layout).ahead(unit.is_prefill());
            let first = first.min(coming.bytes);
            self.send_rows(out, &unit, (&mut coming, first), [None; 2]);
            self.split.ahead = Some(coming);
        }
    }

    /// Takes the place that a module's rows come to.
    fn begin_rows(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (module, weight, rows): (Module, &TensorSpec, RowSplit),
    ) -> Coming {
        let (compression, dtype) = (self.plan.policy.compression, self.plan.dtype);
        let bytes = |rows| compression.rows_bytes(weight, rows, dtype);
        let from = self.layout.weights.blocks[usize::from(unit.cell.block)]
            .offset_of(module.weight())
            .unwrap_or_default()
            + bytes(rows.host);
        let slot = room(&mut self.layout).rows.lease();
        let place = (Tier::Device, slot.offset);
        let bytes = bytes(rows.device);
        Coming {
            module,
            from,
            bytes,
            sent: Bytes::ZERO,
            slot,
            buffer: out.declare(place, bytes, rows_of(unit, module)),
            moved: None,
            pinned: None,
        }
    }

    /// Sends the next so many bytes of a module's rows.
    fn send_rows(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (coming, bytes): (&mut Coming, Bytes),
        waits: [Option<TaskId>; 2],
    ) {
        let parts = self.pin_rows(out, unit, (coming, bytes), waits);
        self.move_rows(out, unit, coming, &parts);
        coming.sent += bytes;
    }

    /// Copies rows into page-locked memory, where the route has such; gives their parts.
    fn pin_rows(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (coming, bytes): (&mut Coming, Bytes),
        waits: [Option<TaskId>; 2],
    ) -> Vec<RowsPart> {
        let mut start = coming.sent;
        if !self
            .plan
            .policy
            .split
            .is_some_and(|split| split.route.pins())
        {
            let pinned = None;
            return vec![RowsPart {
                start,
                bytes,
                pinned,
            }];
        }
        let module = coming.module;
        let home = self.weights.home(unit.cell.block, Tier::Host);
        let content = rows_of(unit, module);
        let mut parts = Vec::new();
        let room = room(&mut self.layout);
        let goes_ahead = bytes < coming.bytes && start == Bytes::ZERO;
        let most = room.pinned_at_once(module, bytes, goes_ahead);
        let end = start + bytes;
        while start < end {
            let bytes = most.min(end.saturating_sub(start));
            let lease = room.pinned[buffer_of(module)].lease();
            let buffer = out.declare((Tier::Host, lease.offset), bytes, content);
            let op = Op::Move {
                bytes,
                from: coming.from + start,
                to: Bytes::ZERO,
                page_locked: true,
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
                start,
                bytes,
                pinned: Some((lease, buffer, task)),
            });
            start += bytes;
        }
        parts
    }

    /// Moves parts of a module's rows to the device.
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
        let page_locked = policy.page_locked.weights;
        let room = room(&mut self.layout);
        for part in parts {
            let (source, from, page_locked) = match part.pinned {
                Some((_, pinned, _)) => (Some(pinned), Bytes::ZERO, true),
                None => (home, coming.from + part.start, page_locked),
            };
            let op = Op::Move {
                bytes: part.bytes,
                from,
                to: part.start,
                page_locked,
            };
            let mut copy = Draft::new(ResourceKind::H2d, op, unit.cell)
                .with(Access::Read, [source])
                .with(Access::Write, [Some(coming.buffer)])
                .after([part.pinned.map(|(.., task)| task), all_pinned])
                .giving([part.pinned.map(|(_, pinned, _)| pinned)]);
            if coming.moved.is_none() {
                copy = copy
                    .taking([Some(coming.buffer)])
                    .after(coming.slot.free_after);
            }
            let task = out.emit(copy);
            if let Some((lease, ..)) = part.pinned {
                room.pinned[buffer_of(coming.module)].release(lease, [Some(task), None]);
            }
            coming.moved = Some(task);
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
