//! The computation of one unit: what runs on the GPU and on the CPU, and on which operands.

use super::cache::Staged;
use super::emit::{Draft, Emitter};
use super::hidden::Work;
use super::layout::{group, mid_off_device, queries_bytes};
use super::ring::Lease;
use super::split::Joining;
use super::stage::StageLowering;
use super::unit::Unit;
use crate::model::{ModelSpec, TensorRole};
use crate::placement::LayerPart;
use crate::program::{
    Access, AttentionPart, BufferId, Content, Gemm, Gemms, HostPages, Op, ResourceKind, Stage,
    TaskId,
};
use crate::tier::Tier;
use crate::units::Bytes;

/// Matrix products of each stage of the model.
#[derive(Debug, Clone, Copy)]
pub struct StageGemms {
    /// Queries, keys and values.
    pub project: Gemms,
    /// The attention's output and the MLP, of whole layers.
    pub finish: Gemms,
    /// The attention's output alone.
    pub output: Gemms,
    /// The MLP alone.
    pub mlp: Gemms,
    /// Logits.
    pub head: Gemms,
}

impl StageGemms {
    /// Those of a model, whose layers are alike.
    pub fn of(model: &ModelSpec) -> StageGemms {
        use TensorRole::{
            DownWeight, GateUpWeight, GateWeight, KWeight, LmHead, OWeight, ProjectOut, QWeight,
            QkvWeight, UpWeight, VWeight,
        };
        let collect = |block: u32, roles: &[TensorRole]| {
            let tensors = model.tensors(block);
            let wanted = tensors.iter().filter(|t| roles.contains(&t.role));
            let gemms: Vec<Gemm> = wanted
                .map(|t| Gemm {
                    n: t.rows as u32,
                    k: t.cols as u32,
                })
                .collect();
            Gemms::new(&gemms)
        };
        StageGemms {
            project: collect(1, &[QWeight, KWeight, VWeight, QkvWeight]),
            finish: collect(
                1,
                &[OWeight, GateWeight, UpWeight, GateUpWeight, DownWeight],
            ),
            output: collect(1, &[OWeight]),
            mlp: collect(1, &[GateWeight, UpWeight, GateUpWeight, DownWeight]),
            head: collect(model.num_blocks() - 1, &[ProjectOut, LmHead]),
        }
    }
}

/// A layer's computation between its attention and its end, perhaps held back so that the GPU
/// projects the next batch while the CPU attends to this one.
#[derive(Debug)]
pub(super) struct Pending {
    pub unit: Unit,
    pub staged: Staged,
    pub work: Work,
    pub(super) mid: Mid,
    attended: TaskId,
    cpu: Option<TaskId>,
    gathered: Option<TaskId>,
}

impl Pending {
    /// The last task that used the unit's working copies of the cache.
    pub(super) fn last_cache_task(&self) -> TaskId {
        self.cpu.unwrap_or(self.attended)
    }
}

/// Bytes of a unit's next tokens: an id a sequence.
pub(super) fn token_bytes(unit: &Unit) -> Bytes {
    Bytes(u64::from(unit.shape.sequences) * 4)
}

/// Queries and attention output of a unit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mid {
    slot: Option<Lease>,
    /// Rows whose keys and values the GPU has.
    device: Option<BufferId>,
    /// Rows that the CPU attends to, or whose values it collects, on the device.
    pub off_device: Option<BufferId>,
    /// The same on the host.
    pub host: Option<(Lease, BufferId)>,
}

impl StageLowering {
    /// Gathers a unit's embeddings. Returns the task that made its activations.
    pub(super) fn embed(&mut self, out: &mut Emitter, unit: &Unit) -> (TaskId, Work) {
        let batch = unit.cell.batch as usize;
        let op = Op::Embed {
            tokens: unit.tokens(),
            hidden_size: self.plan.model.hidden_size,
            position: unit.position,
        };
        let draft = Draft::new(ResourceKind::Gpu, op, unit.cell).after([self.copied.take()]);
        let mut draft = self.weights.attach(draft, unit, true);
        let mut prompt = None;
        if unit.is_prefill() {
            let (lease, ids, copied) = self.copy_prompt(out, unit);
            draft = draft
                .with(Access::Read, [Some(ids)])
                .after([Some(copied)])
                .giving([Some(ids)]);
            prompt = Some(lease);
        } else {
            let tokens = &mut self.tokens[batch];
            draft = draft
                .with(Access::Read, [tokens.buffer])
                .after([tokens.arrived.take()]);
            if unit.last_pass && !self.blocks.is_last() {
                draft = draft.giving([tokens.buffer.take()]);
            }
        }
        let (draft, work) = self.hidden.attach_new(out, &mut self.layout, draft, unit);
        let task = out.emit(draft);
        if let Some(lease) = prompt {
            self.layout.prompt_slots.release(lease, [Some(task), None]);
        }
        self.weights.end_visit(&mut self.layout, unit, task);
        (task, work)
    }

    fn copy_prompt(&mut self, out: &mut Emitter, unit: &Unit) -> (Lease, BufferId, TaskId) {
        let lease = self.layout.prompt_slots.lease();
        let bytes = Bytes(u64::from(unit.tokens()) * 4);
        let content = Content::Prompt {
            batch: unit.cell.batch,
        };
        let ids = out.declare((Tier::Device, lease.offset), bytes, content);
        let op = super::unit::move_whole(bytes);
        let (prompt, _) = self.texts[unit.cell.round as usize][unit.cell.batch as usize];
        let copy = Draft::new(ResourceKind::H2d, op, unit.cell)
            .with(Access::Read, [Some(prompt)])
            .with(Access::Write, [Some(ids)])
            .taking([Some(ids)])
            .after(lease.free_after);
        (lease, ids, out.emit(copy))
    }

    /// Projects a unit's queries, keys and values and attends. What is left is [`StageLowering::finish`].
    pub(super) fn attend(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        mut staged: Staged,
        work: Work,
    ) -> Pending {
        let (on_cpu, gathers) = (self.cache.on_cpu(unit), self.cache.gathers(unit));
        let mut mid = self.lease_mid(out, unit, on_cpu || gathers);
        let (draft, joining) = self.project(out, unit, &work);
        let mids = [mid.device, mid.off_device];
        let draft = draft
            .with(Access::Write, mids)
            .taking(mids)
            .after(mid.slot.map(|s| s.free_after).unwrap_or_default())
            .with(Access::Update, [Some(self.workspace)]);
        let new = (unit, &mut staged);
        let draft = self.cache.attach_new(out, &mut self.layout, draft, new);
        let projected = out.emit(draft);
        if let Some(joining) = joining {
            self.joined(joining, projected);
        }
        self.cache.wrote_in_place(unit, Tier::Device, projected);
        if on_cpu {
            self.send_to_cpu(out, unit, &mut mid, projected);
        }
        let rows = if on_cpu || gathers {
            unit.shape.rows.device
        } else {
            self.rows(unit)
        };
        let mut attended = projected;
        if rows > 0 {
            let op = self.attention(unit, AttentionPart::Whole, rows);
            let draft = Draft::new(ResourceKind::Gpu, op, unit.cell)
                .with(Access::Update, [mid.device])
                .after([Some(projected)]);
            let past = (unit, &staged);
            let draft = self.cache.attach_past(draft, past);
            attended = out.emit(draft.with(Access::Update, [Some(self.workspace)]));
        }
        let cpu = on_cpu.then(|| self.attend_on_cpu(out, unit, &staged, &mid));
        let gathered = gathers.then(|| self.pick(out, unit, &mut staged, &mid, projected));
        Pending {
            unit: *unit,
            staged,
            work,
            mid,
            attended,
            cpu,
            gathered,
        }
    }

    /// The draft of the task that gives a unit's queries, keys and values; where linear layers are split, what it
    /// joins besides.
    fn project(&mut self, out: &mut Emitter, unit: &Unit, work: &Work) -> (Draft, Option<Joining>) {
        if self.layout.split.is_some() {
            let (draft, joining) = self.project_in_parts(out, unit, work);
            return (draft, Some(joining));
        }
        let op = self.linear(Stage::Project, unit.tokens(), unit);
        let draft = Draft::new(ResourceKind::Gpu, op, unit.cell).after([self.copied.take()]);
        let draft = self.weights.attach(draft, unit, false);
        let draft = self.hidden.attach(draft, unit, work, Access::Read);
        (draft, None)
    }

    fn rows(&self, unit: &Unit) -> u32 {
        unit.shape.sequences * self.plan.model.num_key_value_heads
    }

    fn lease_mid(&mut self, out: &mut Emitter, unit: &Unit, apart: bool) -> Mid {
        let lease = self.layout.mid_slots.lease();
        let mut mid = Mid {
            slot: Some(lease),
            ..Mid::default()
        };
        let rows = match apart {
            true => unit.shape.rows.device,
            false => self.rows(unit),
        };
        let bytes = queries_bytes(&self.plan, rows) * u64::from(unit.query_len);
        let batch = unit.cell.batch;
        if rows > 0 {
            let content = Content::Mid {
                batch,
                home: Tier::Device,
            };
            mid.device = Some(out.declare((Tier::Device, lease.offset), bytes, content));
        }
        if apart {
            let content = Content::Mid {
                batch,
                home: Tier::Host,
            };
            let picked = self.cache.gathers(unit).then(|| self.picked(unit));
            let rows = unit.shape.rows_off_device();
            let room = mid_off_device(&self.plan, rows, picked.map(|it| (it, unit.shape.head)));
            let offset = lease.offset + bytes;
            mid.off_device = Some(out.declare((Tier::Device, offset), room[0], content));
            let lease = self.layout.mid_staging.lease();
            let host = out.declare((Tier::Host, lease.offset), room[1], content);
            mid.host = Some((lease, host));
        }
        mid
    }

    /// Copies queries and new keys and values of the rows that the CPU attends to.
    fn send_to_cpu(&mut self, out: &mut Emitter, unit: &Unit, mid: &mut Mid, projected: TaskId) {
        let Some((lease, host)) = mid.host else {
            return;
        };
        let model = &self.plan.model;
        let row = (u64::from(group(model)) + 2) * u64::from(model.head_dim);
        let elements = u64::from(unit.shape.rows_off_device()) * row;
        let bytes = Bytes(elements * self.plan.dtype.size_bytes());
        let op = super::unit::move_whole(bytes);
        let copy = Draft::new(ResourceKind::D2h, op, unit.cell)
            .with(Access::Read, [mid.off_device])
            .with(Access::Write, [Some(host)])
            .taking([Some(host)])
            .after([Some(projected)])
            .after(lease.free_after);
        self.sent = Some(out.emit(copy));
    }

    fn attend_on_cpu(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        staged: &Staged,
        mid: &Mid,
    ) -> TaskId {
        let rows = unit.shape.rows_off_device();
        let part = match self.plan.policy.copies_cache() {
            true => AttentionPart::Copied,
            false => AttentionPart::Whole,
        };
        let op = self.attention(unit, part, rows);
        let draft = Draft::new(ResourceKind::Cpu, op, unit.cell)
            .with(Access::Update, mid.host.map(|(_, host)| Some(host)))
            .after([self.sent]);
        let past = (unit, staged);
        let draft = self.cache.attach_cpu(out, &self.layout, draft, past);
        let task = out.emit(draft);
        self.cache.attended_on_cpu(past, task);
        task
    }

    /// Brings the CPU's attention, or the values that it collected, back and ends the layer. Returns the
    /// last task on the GPU.
    pub(super) fn finish(&mut self, out: &mut Emitter, pending: &mut Pending) -> TaskId {
        let unit = pending.unit;
        let mut back = None;
        if let Some(gathered) = pending.gathered {
            pending.attended = self.weigh(out, pending, gathered);
        } else if let (Some(cpu), Some((lease, host))) = (pending.cpu, pending.mid.host) {
            let model = &self.plan.model;
            let row = u64::from(group(model)) * u64::from(model.head_dim);
            let elements = u64::from(unit.shape.rows_off_device()) * row;
            let bytes = Bytes(elements * self.plan.dtype.size_bytes());
            let op = super::unit::move_whole(bytes);
            let copy = Draft::new(ResourceKind::H2d, op, unit.cell)
                .with(Access::Read, [Some(host)])
                .with(Access::Write, [pending.mid.off_device])
                .after([Some(cpu)])
                .giving([Some(host)]);
            let copied = out.emit(copy);
            self.layout.mid_staging.release(lease, [Some(copied), None]);
            back = Some(copied);
        }
        let mids = [pending.mid.device, pending.mid.off_device];
        if self.layout.split.is_some() {
            let draft = self
                .on_device(Stage::Attended, &unit)
                .with(Access::Read, mids)
                .giving(mids)
                .after([back, Some(pending.attended)]);
            let (taken, task) = self.finish_in_parts(out, &unit, (draft, &pending.work));
            if let Some(slot) = pending.mid.slot {
                self.layout.mid_slots.release(slot, [Some(taken), None]);
            }
            return task;
        }
        let stage = match unit.part {
            LayerPart::Whole => Stage::Finish,
            // What is left of its attention; its MLP is a unit of its own.
            _ => Stage::Output,
        };
        let op = self.linear(stage, unit.tokens(), &unit);
        let draft = Draft::new(ResourceKind::Gpu, op, unit.cell);
        let draft = self.weights.attach(draft, &unit, true);
        let draft = self
            .hidden
            .attach(draft, &unit, &pending.work, Access::Update);
        let draft = draft
            .with(Access::Read, mids)
            .giving(mids)
            .with(Access::Update, [Some(self.workspace)])
            .after([back, Some(pending.attended)]);
        let task = out.emit(draft);
        if let Some(slot) = pending.mid.slot {
            self.layout.mid_slots.release(slot, [Some(task), None]);
        }
        self.weights.end_visit(&mut self.layout, &unit, task);
        task
    }

    /// Computes a unit's MLP, where that is a step of its own.
    pub(super) fn mlp(&mut self, out: &mut Emitter, unit: &Unit, work: &Work) -> TaskId {
        let op = self.linear(Stage::Mlp, unit.tokens(), unit);
        let draft = Draft::new(ResourceKind::Gpu, op, unit.cell).after([self.copied.take()]);
        let draft = self.weights.attach(draft, unit, true);
        let draft = self.hidden.attach(draft, unit, work, Access::Update);
        let task = out.emit(draft.with(Access::Update, [Some(self.workspace)]));
        self.weights.end_visit(&mut self.layout, unit, task);
        task
    }

    /// Chooses a unit's next tokens and copies them to the host.
    pub(super) fn head(&mut self, out: &mut Emitter, unit: &Unit, work: Work) {
        let batch = unit.cell.batch as usize;
        let op = self.linear(Stage::Head, unit.shape.sequences, unit);
        let draft = Draft::new(ResourceKind::Gpu, op, unit.cell);
        let draft = self.weights.attach(draft, unit, true);
        let draft = self.hidden.attach(draft, unit, &work, Access::Read);
        let mut draft = self
            .hidden
            .giving_all(draft, unit, &work)
            .with(Access::Update, [Some(self.workspace)])
            .after([self.tokens[batch].copied]);
        let bytes = token_bytes(unit);
        if self.tokens[batch].buffer.is_none() {
            let fresh = Some(self.declare_tokens(out, unit));
            self.tokens[batch].buffer = fresh;
            draft = draft.taking([fresh]);
        }
        let tokens = self.tokens[batch].buffer;
        let task = out.emit(draft.with(Access::Write, [tokens]));
        self.tokens[batch].written = Some(task);
        self.hidden.release(&mut self.layout, (unit, &work), task);
        self.weights.end_visit(&mut self.layout, unit, task);
        let (_, generated) = self.texts[unit.cell.round as usize][batch];
        let op = Op::Move {
            bytes,
            from: Bytes::ZERO,
            to: bytes * u64::from(unit.cell.pass),
            host: HostPages::Locked,
        };
        let mut copy = Draft::new(ResourceKind::D2h, op, unit.cell)
            .with(Access::Read, [tokens])
            .with(Access::Write, [Some(generated)])
            .after([Some(task)]);
        if unit.last_pass {
            copy = copy.giving([self.tokens[batch].buffer.take()]);
        }
        self.tokens[batch].copied = Some(out.emit(copy));
    }

    /// Declares the buffer of a unit's next tokens on the device.
    pub(super) fn declare_tokens(&self, out: &mut Emitter, unit: &Unit) -> BufferId {
        let batch = unit.cell.batch;
        let place = (Tier::Device, self.layout.token_homes.at(u64::from(batch)));
        let content = Content::Tokens { batch };
        out.declare(place, token_bytes(unit), content)
    }

    pub(super) fn linear(&self, stage: Stage, m: u32, unit: &Unit) -> Op {
        let gemms = match stage {
            Stage::Project => self.gemms.project,
            Stage::Finish => self.gemms.finish,
            Stage::Output => self.gemms.output,
            Stage::Mlp => self.gemms.mlp,
            Stage::Head => self.gemms.head,
            // Products of split linear layers are tasks of their own.
            _ => Gemms::default(),
        };
        Op::Linear {
            stage,
            m,
            gemms,
            position: unit.position,
            reused: !unit.first_batch,
            compressed: self.plan.policy.compression.weights,
            packed_elements: self.packed_elements(stage, m),
        }
    }

    fn packed_elements(&self, stage: Stage, m: u32) -> u64 {
        match stage {
            Stage::Project | Stage::JoinProject if self.plan.policy.compression.cache => {
                2 * self.plan.model.kv_size() * u64::from(m)
            }
            _ => 0,
        }
    }

    pub(super) fn attention(&self, unit: &Unit, part: AttentionPart, rows: u32) -> Op {
        let context_len = unit.position + unit.query_len;
        let past = self.plan.model.past_seen(context_len - 1);
        let picks = match unit.is_prefill() {
            true => None,
            false => self.plan.policy.picks(past),
        };
        Op::Attention {
            part,
            rows,
            group: group(&self.plan.model),
            head_dim: self.plan.model.head_dim,
            query_len: unit.query_len,
            context_len,
            seen_len: past + 1,
            // The newest token's values are at hand.
            value_len: picks.unwrap_or(past) + 1,
            element_bytes: self.plan.dtype.size_bytes() as u32,
            compressed: self.plan.policy.compression.cache,
        }
    }
}
