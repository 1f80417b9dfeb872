//! What a stage hands over to the next: activations; and the last to the first: the tokens that it chose.
//!
//! Activations go from home to home. What lives on a host goes from host to host; what lives on a disk
//! is read for it and written again; what lives on a device goes the plan's way ([`Comm`]).

use super::Lowering;
use super::compute::token_bytes;
use super::emit::Draft;
use super::hidden::{HiddenStream, page_aligned};
use super::unit::{Unit, move_at, move_whole, pages};
use crate::pipeline::Comm;
use crate::program::{Access, BufferId, Content, HostPages, Op, ResourceKind, TaskId};
use crate::tier::Tier;
use crate::units::Bytes;

/// Something on a host to be sent to another stage's host.
struct Parcel {
    buffer: BufferId,
    /// Where it begins there.
    from: Bytes,
    bytes: Bytes,
    /// What it takes on the other host.
    room: Bytes,
    content: Content,
    /// Since when it is complete.
    ready: Option<TaskId>,
    /// Whether nobody needs it once it is sent.
    gives: bool,
}

impl Lowering {
    /// Brings a stage what a unit of its first block begins with.
    pub(super) fn hand_over(&mut self, to: usize, unit: &Unit) {
        match to.checked_sub(1) {
            Some(from) => {
                for tier in Tier::ALL {
                    if unit.shape.hidden[tier] > 0 {
                        self.hand_over_hidden((from, to), unit, tier);
                    }
                }
            }
            None if !unit.is_prefill() => self.hand_over_tokens(unit),
            None => {}
        }
    }

    fn hand_over_hidden(&mut self, between: (usize, usize), unit: &Unit, tier: Tier) {
        match (tier, self.plan.policy.pipeline.comm) {
            (Tier::Disk, _) => {
                let ways = (ResourceKind::DiskRead, ResourceKind::DiskWrite);
                self.hand_over_by_hosts(between, unit, (tier, ways));
            }
            (Tier::Device, Comm::Host) => {
                let ways = (ResourceKind::D2h, ResourceKind::H2d);
                self.hand_over_by_hosts(between, unit, (tier, ways));
            }
            (Tier::Device, Comm::Device) | (Tier::Host, _) => {
                self.hand_over_directly(between, unit, tier);
            }
        }
    }

    /// From a home to the one of the same tier.
    fn hand_over_directly(&mut self, (from, to): (usize, usize), unit: &Unit, tier: Tier) {
        let hidden = &mut self.stages[from].hidden;
        let (home, written) = hidden.leave(unit, tier);
        let host = pages(self.plan.policy.page_locked.activations, tier);
        let op = move_at(
            self.stages[from].hidden.bytes(unit, tier),
            Bytes::ZERO,
            host,
        );
        let link = Draft::new(ResourceKind::PeerLink, op, unit.cell)
            .with(Access::Read, [home])
            .giving([home])
            .after([written]);
        let link = self.attach_home(to, link, (unit, tier));
        let arrived = self.emit_between((from, to), link);
        self.stages[from].hidden.released(unit, tier, arrived);
        self.stages[to].hidden.written(unit, tier, arrived);
    }

    /// From a home to its host, to the other host, and `up` to the home there.
    fn hand_over_by_hosts(
        &mut self,
        (from, to): (usize, usize),
        unit: &Unit,
        (tier, (down, up)): (Tier, (ResourceKind, ResourceKind)),
    ) {
        let stage = &mut self.stages[from];
        let (home, written) = stage.hidden.leave(unit, tier);
        let (bytes, room) = (
            stage.hidden.bytes(unit, tier),
            stage.hidden.room(unit, tier),
        );
        let content = HiddenStream::content(unit, tier);
        let lease = stage.layout.comm_staging.lease();
        self.emitter.turn_to(from);
        let place = (Tier::Host, lease.offset);
        let staging = self.emitter.declare(place, room, content);
        let op = match tier {
            Tier::Disk => page_aligned(move_whole(bytes)),
            Tier::Device | Tier::Host => move_whole(bytes),
        };
        let lifted = Draft::new(down, op, unit.cell)
            .with(Access::Read, [home])
            .giving([home])
            .with(Access::Write, [Some(staging)])
            .taking([Some(staging)])
            .after([written])
            .after(lease.free_after);
        let lifted = self.emitter.emit(lifted);
        self.stages[from].hidden.released(unit, tier, lifted);
        let parcel = Parcel {
            buffer: staging,
            from: Bytes::ZERO,
            bytes,
            room,
            content,
            ready: Some(lifted),
            gives: true,
        };
        let settle = self.attach_home(to, Draft::new(up, op, unit.cell), (unit, tier));
        let (sent, arrived) = self.send((from, to), unit, parcel, settle);
        let comm_staging = &mut self.stages[from].layout.comm_staging;
        comm_staging.release(lease, [Some(sent), None]);
        self.stages[to].hidden.written(unit, tier, arrived);
    }

    /// Brings the last stage's choice of a unit's tokens to the first stage, which embeds them.
    fn hand_over_tokens(&mut self, unit: &Unit) {
        let batch = unit.cell.batch as usize;
        let (from, to) = (self.stages.len() - 1, 0);
        let chosen = self.stages[from].tokens[batch];
        let bytes = token_bytes(unit);
        let op = move_whole(bytes);
        self.emitter.turn_to(to);
        let known = self.stages[to].tokens[batch].buffer;
        let tokens = known.unwrap_or_else(|| {
            let stage = &self.stages[to];
            stage.declare_tokens(&mut self.emitter, unit)
        });
        self.stages[to].tokens[batch].buffer = Some(tokens);
        let fresh = Some(tokens).filter(|_| known.is_none());
        let into = |draft: Draft| draft.with(Access::Write, [Some(tokens)]).taking([fresh]);
        let arrived = match self.plan.policy.pipeline.comm {
            Comm::Device => {
                let link = Draft::new(ResourceKind::PeerLink, op, unit.cell)
                    .with(Access::Read, [chosen.buffer])
                    .after([chosen.written]);
                self.emit_between((from, to), into(link))
            }
            Comm::Host => {
                // The results are on the last stage's host already.
                let (_, generated) = self.texts[unit.cell.round as usize][batch];
                let parcel = Parcel {
                    buffer: generated,
                    from: bytes * u64::from(unit.cell.pass - 1),
                    bytes,
                    room: bytes,
                    content: Content::Tokens {
                        batch: unit.cell.batch,
                    },
                    ready: chosen.copied,
                    gives: false,
                };
                let settle = into(Draft::new(ResourceKind::H2d, op, unit.cell));
                self.send((from, to), unit, parcel, settle).1
            }
        };
        self.stages[to].tokens[batch].arrived = Some(arrived);
    }

    /// Sends a parcel from host to host, and from there to where `settle` brings it. Returns both tasks.
    fn send(
        &mut self,
        (from, to): (usize, usize),
        unit: &Unit,
        parcel: Parcel,
        settle: Draft,
    ) -> (TaskId, TaskId) {
        let lease = self.stages[to].layout.comm_staging.lease();
        self.emitter.turn_to(to);
        let place = (Tier::Host, lease.offset);
        let staging = self.emitter.declare(place, parcel.room, parcel.content);
        let op = Op::Move {
            bytes: parcel.bytes,
            from: parcel.from,
            to: Bytes::ZERO,
            host: HostPages::Locked,
        };
        let source = Some(parcel.buffer);
        let link = Draft::new(ResourceKind::PeerLink, op, unit.cell)
            .with(Access::Read, [source])
            .giving([source.filter(|_| parcel.gives)])
            .with(Access::Write, [Some(staging)])
            .taking([Some(staging)])
            .after([parcel.ready])
            .after(lease.free_after);
        let sent = self.emit_between((from, to), link);
        self.emitter.turn_to(to);
        let settle = settle
            .from(staging)
            .giving([Some(staging)])
            .after([Some(sent)]);
        let settled = self.emitter.emit(settle);
        let comm_staging = &mut self.stages[to].layout.comm_staging;
        comm_staging.release(lease, [Some(settled), None]);
        (sent, settled)
    }

    /// Emits a task on the link of a stage that brings something to another.
    fn emit_between(&mut self, (from, to): (usize, usize), link: Draft) -> TaskId {
        self.emitter.turn_to(from);
        let task = self.emitter.emit(link);
        self.emitter.turn_to(to);
        self.emitter.arrives(task);
        task
    }

    fn attach_home(&mut self, to: usize, draft: Draft, home: (&Unit, Tier)) -> Draft {
        self.emitter.turn_to(to);
        let stage = &mut self.stages[to];
        let (emitter, layout) = (&mut self.emitter, &stage.layout);
        stage.hidden.attach_home(emitter, layout, draft, home)
    }
}
