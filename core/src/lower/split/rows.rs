//! The device's rows of a split module on their way: home, page-locked buffer, device (HeteGen Figures 5 and 6).

use super::room::buffer_of;
use super::{Step, room};
use crate::lower::emit::{Draft, Emitter};
use crate::lower::ring::Lease;
use crate::lower::stage::StageLowering;
use crate::lower::unit::Unit;
use crate::model::TensorSpec;
use crate::program::{Access, BufferId, Content, Op, ResourceKind, TaskId};
use crate::split::{Module, Route, RowSplit};
use crate::tier::Tier;
use crate::units::Bytes;

/// A module's rows on the device.
pub(super) struct Brought {
    pub slot: Lease,
    pub buffer: BufferId,
    /// The last move.
    pub moved: TaskId,
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
    /// Brings the device's rows of a module.
    pub(super) fn bring_rows(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (module, weight, rows): (Module, &TensorSpec, RowSplit),
        (step, made): (Step, TaskId),
    ) -> Brought {
        let (compression, dtype) = (self.plan.policy.compression, self.plan.dtype);
        let bytes = |rows| compression.rows_bytes(weight, rows, dtype);
        let from = self.layout.weights.blocks[usize::from(unit.cell.block)]
            .offset_of(module.weight())
            .unwrap_or_default()
            + bytes(rows.host);
        let what = (module, from, bytes(rows.device));
        let parts = self.pin_rows(out, unit, what, (step, made));
        let (slot, buffer, moved) = self.move_rows(out, unit, what, &parts);
        let pinned = parts.last().and_then(|part| part.pinned);
        self.split.before[1] = Some(moved);
        Brought {
            slot,
            buffer,
            moved,
            pinned: pinned.map(|(.., task)| task),
        }
    }

    /// Copies rows into page-locked memory, where the route has such; gives their parts.
    fn pin_rows(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (module, from, bytes): (Module, Bytes, Bytes),
        (step, made): (Step, TaskId),
    ) -> Vec<RowsPart> {
        let Some(split) = self.plan.policy.split.filter(|split| split.route.pins()) else {
            let start = Bytes::ZERO;
            let pinned = None;
            return vec![RowsPart {
                start,
                bytes,
                pinned,
            }];
        };
        let begins_half = step == super::PROJECT || step == super::INNER;
        let waits = match split.route {
            Route::Blocking => self.split.before,
            _ if !split.hands_on && begins_half => [Some(made), None],
            _ => [None; 2],
        };
        let home = self.weights.home(unit.cell.block, Tier::Host);
        let content = rows_of(unit, module);
        let mut parts = Vec::new();
        let room = room(&mut self.layout);
        let most = room.pinned_at_once(module, bytes);
        let mut start = Bytes::ZERO;
        while start < bytes {
            let bytes = most.min(bytes.saturating_sub(start));
            let lease = room.pinned[buffer_of(module)].lease();
            let buffer = out.declare((Tier::Host, lease.offset), bytes, content);
            let op = Op::Move {
                bytes,
                from: from + start,
                to: Bytes::ZERO,
                page_locked: true,
            };
            let pin = Draft::new(ResourceKind::Pin, op, unit.cell)
                .with(Access::Read, [home])
                .with(Access::Write, [Some(buffer)])
                .taking([Some(buffer)])
                .after(lease.free_after)
                .after(waits);
            let pinned = Some((lease, buffer, out.emit(pin)));
            parts.push(RowsPart {
                start,
                bytes,
                pinned,
            });
            start += bytes;
        }
        parts
    }

    /// Moves the parts of a module's rows to the device.
    fn move_rows(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (module, from, bytes): (Module, Bytes, Bytes),
        parts: &[RowsPart],
    ) -> (Lease, BufferId, TaskId) {
        let policy = &self.plan.policy;
        let blocks = policy
            .split
            .is_some_and(|split| split.route == Route::Blocking);
        let all_pinned = parts.last().and_then(|part| part.pinned);
        let all_pinned = all_pinned.filter(|_| blocks).map(|(.., task)| task);
        let home = self.weights.home(unit.cell.block, Tier::Host);
        let page_locked = policy.page_locked.weights;
        let room = room(&mut self.layout);
        let slot = room.rows.lease();
        let buffer = out.declare((Tier::Device, slot.offset), bytes, rows_of(unit, module));
        let mut moved = None;
        for part in parts {
            let (source, from, page_locked) = match part.pinned {
                Some((_, pinned, _)) => (Some(pinned), Bytes::ZERO, true),
                None => (home, from, page_locked),
            };
            let op = Op::Move {
                bytes: part.bytes,
                from,
                to: part.start,
                page_locked,
            };
            let mut copy = Draft::new(ResourceKind::H2d, op, unit.cell)
                .with(Access::Read, [source])
                .with(Access::Write, [Some(buffer)])
                .after([part.pinned.map(|(.., task)| task), all_pinned])
                .giving([part.pinned.map(|(_, pinned, _)| pinned)]);
            if moved.is_none() {
                copy = copy.taking([Some(buffer)]).after(slot.free_after);
            }
            let task = out.emit(copy);
            if let Some((lease, ..)) = part.pinned {
                room.pinned[buffer_of(module)].release(lease, [Some(task), None]);
            }
            moved = Some(task);
        }
        let moved = moved.expect("a module that is brought has rows");
        (slot, buffer, moved)
    }
}

fn rows_of(unit: &Unit, module: Module) -> Content {
    Content::Rows {
        block: unit.cell.block,
        module,
    }
}
