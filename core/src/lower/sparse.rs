//! Sparse attention over rows of the cache that live off the device and are attended to on it.
//!
//! The device has all keys of the past and scores them. Which values are needed is known only then: the
//! picked positions go to the host, the CPU collects their values from where the cache lives (its home,
//! or for rows on disk the staging slot that they were read into whole), and the values alone follow the
//! keys. In the working copy they lie where the values of its first positions would.

use super::cache::Staged;
use super::compute::{Mid, Pending};
use super::emit::{Draft, Emitter};
use super::layout;
use super::stage::StageLowering;
use super::unit::Unit;
use crate::program::{Access, AttentionPart, HostPages, Op, ResourceKind, Strided, TaskId};
use crate::sparse::Picked;
use crate::tier::Tier;
use crate::units::Bytes;

impl StageLowering {
    /// What a unit's rows off the device pick.
    pub(super) fn picked(&self, unit: &Unit) -> Picked {
        layout::picked(&self.plan, unit.shape.rows_off_device(), unit.position)
    }

    /// Scores the keys of rows off the device and has the CPU collect the values that they pick.
    /// Returns the task that has collected them.
    pub(super) fn pick(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        staged: &mut Staged,
        mid: &Mid,
        projected: TaskId,
    ) -> TaskId {
        let picked = self.picked(unit);
        let op = self.attention(unit, AttentionPart::Scores, picked.rows);
        let draft = Draft::new(ResourceKind::Gpu, op, unit.cell)
            .with(Access::Update, [mid.off_device])
            .with(Access::Read, [staged.device.host, staged.device.disk])
            .with(Access::Update, [Some(self.workspace)])
            .after([Some(projected)]);
        let scored = out.emit(draft);
        let host = mid.host.map(|(_, host)| host);
        let op = Op::Move {
            bytes: picked.positions_bytes(),
            from: layout::queries_bytes(&self.plan, picked.rows),
            to: Bytes::ZERO,
            host: HostPages::Locked,
        };
        let copy = Draft::new(ResourceKind::D2h, op, unit.cell)
            .with(Access::Read, [mid.off_device])
            .with(Access::Write, [host])
            .taking([host])
            .after([Some(scored)])
            .after(
                mid.host
                    .map(|(lease, _)| lease.free_after)
                    .unwrap_or_default(),
            );
        let sent = out.emit(copy);
        let op = Op::Gather {
            rows: picked.rows,
            picks: picked.picks,
            head: unit.shape.head,
        };
        let draft = Draft::new(ResourceKind::Cpu, op, unit.cell)
            .with(Access::Update, [host])
            .after([Some(sent)]);
        let from = (unit, staged);
        self.cache.gather_values(out, &mut self.layout, draft, from)
    }

    /// Brings the values that were collected to the device and weighs them. Returns the last task on
    /// the GPU.
    pub(super) fn weigh(
        &mut self,
        out: &mut Emitter,
        pending: &mut Pending,
        gathered: TaskId,
    ) -> TaskId {
        let (unit, staged) = (pending.unit, pending.staged);
        let picked = self.picked(&unit);
        let off_device = pending.mid.off_device;
        let mut draft = Draft::new(
            ResourceKind::Gpu,
            self.attention(&unit, AttentionPart::Values, picked.rows),
            unit.cell,
        )
        .with(Access::Update, [off_device])
        .with(Access::Update, [Some(self.workspace)]);
        let mut start = picked.positions_bytes();
        let host = pending.mid.host;
        let mut copied = None;
        for tier in [Tier::Host, Tier::Disk] {
            let Some(device) = staged.device[tier] else {
                continue;
            };
            let part = unit.shape.head * u64::from(unit.shape.rows[tier]);
            let op = Op::MoveParts {
                parts: picked.picks,
                part,
                from: Strided {
                    start,
                    stride: part,
                },
                to: Strided {
                    start: part,
                    stride: unit.shape.record[tier],
                },
                host: HostPages::Locked,
            };
            start += part * u64::from(picked.picks);
            let is_last = tier == Tier::Disk || staged.device.disk.is_none();
            let buffer = host.map(|(_, buffer)| buffer);
            let copy = Draft::new(ResourceKind::H2d, op, unit.cell)
                .with(Access::Read, [buffer])
                .with(Access::Update, [Some(device)])
                .after([Some(gathered)])
                .giving([buffer.filter(|_| is_last)]);
            copied = Some(out.emit(copy));
            draft = draft.with(Access::Read, [Some(device)]).after([copied]);
        }
        if let Some((lease, _)) = host {
            self.layout.mid_staging.release(lease, [copied, None]);
        }
        out.emit(draft)
    }
}
