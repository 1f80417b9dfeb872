//! A layer whose linear layers the CPU and the device compute together (HeteGen section 4.2 and 4.3).
//!
//! A layer is four **steps**, each the modules that read one input: queries, keys and values; attention's output;
//! the MLP's first; its last. In a step the input goes down to the host. For each module its rows go by way of a page-locked
//! buffer to the device (`rows.rs`), the CPU computes its outputs and they come up, and the device computes the
//! others, some at a time as their rows arrive; then the step's outputs are joined, which makes the next step's input. Nothing but
//! needs, slots and the order of each engine decides when rows move, so they do while the step before computes.

mod room;
mod rows;

pub use room::BUFFER_PARTS;
pub(super) use room::Room;

use super::LowerError;
use super::emit::{Draft, Emitter};
use super::hidden::Work;
use super::layout::Layout;
use super::ring::Lease;
use super::stage::StageLowering;
use super::unit::{Unit, move_whole};
use crate::model::{ModelSpec, QkvLayout, TensorSpec};
use crate::program::{Access, BufferId, Content, Gemm, Gemms, Op, ResourceKind, Stage, TaskId};
use crate::split::{Module, PerModule, RowSplit, SplitLinears};
use crate::tier::Tier;
use crate::units::Bytes;
use room::slot_bytes;

/// The modules of a step.
type Step = &'static [Module];

const PROJECT: Step = &[Module::Q, Module::K, Module::V];
const OUTPUT: Step = &[Module::O];
const INNER: Step = &[Module::Gate, Module::Up];
const DOWN: Step = &[Module::Down];

/// In the order of a layer.
const STEPS: [Step; 4] = [PROJECT, OUTPUT, INNER, DOWN];

/// The weights of a model's modules, which are alike in all layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Specs(PerModule<Option<TensorSpec>>);

impl Specs {
    pub(super) fn of(model: &ModelSpec) -> Specs {
        let tensors = model.tensors(1);
        let weight = |module: Module| {
            let mut tensors = tensors.iter();
            tensors.find(|t| t.role == module.weight()).copied()
        };
        Specs(PerModule::from_fn(weight))
    }

    /// Those of a step that the model has.
    fn of_step(&self, step: Step) -> impl Iterator<Item = (Module, &TensorSpec)> {
        let found = step
            .iter()
            .map(|module| (*module, self.0[*module].as_ref()));
        found.filter_map(|(module, weight)| Some((module, weight?)))
    }
}

/// What of a model stands against splitting its linear layers, if anything does.
pub fn obstacle(model: &ModelSpec) -> Option<&'static str> {
    let obstacles = [
        (
            model.qkv_layout != QkvLayout::Separate,
            "fused query, key and value matrices",
        ),
        (
            model.gated_mlp && model.fused_gate_up,
            "a fused gate and up matrix",
        ),
        (model.parallel_residual, "a parallel residual"),
    ];
    let mut obstacles = obstacles.into_iter().filter(|(has, _)| *has);
    obstacles.next().map(|(_, what)| what)
}

/// Whether a model's linear layers can be split, and so.
pub(super) fn check(split: &SplitLinears, model: &ModelSpec) -> Result<(), LowerError> {
    if let Some(what) = obstacle(model) {
        let model = model.name.clone();
        return Err(LowerError::NotSplit { model, what });
    }
    let layers = model.num_hidden_layers;
    let mut asked = split.layers_on_device.iter();
    match asked.find(|(_, asked)| *asked > layers) {
        Some((module, asked)) => Err(LowerError::LayersOnDevice {
            module: module.name(),
            asked,
            model: model.name.clone(),
            layers,
        }),
        None => Ok(()),
    }
}

/// What of a split goes on from task to task.
#[derive(Debug)]
pub(super) struct SplitStream {
    specs: Specs,
    /// The last tasks that moved or computed anything of the module before.
    before: [Option<TaskId>; 2],
    /// Rows of which a first part was sent already.
    ahead: Option<rows::Coming>,
}

impl SplitStream {
    pub(super) fn new(model: &ModelSpec) -> SplitStream {
        SplitStream {
            specs: Specs::of(model),
            before: [None; 2],
            ahead: None,
        }
    }
}

/// The input of a step on the device.
#[derive(Debug)]
struct Input {
    slot: Lease,
    buffer: BufferId,
}

/// A step whose outputs are on their way to the device.
#[derive(Debug)]
pub(super) struct Joining {
    input: Input,
    outputs: Lease,
}

/// A step while it is written.
struct Begun {
    step: Step,
    input: BufferId,
    made: TaskId,
    /// On the host, and the copy to there.
    host: Option<(Lease, BufferId, TaskId)>,
    outputs: Lease,
    outputs_host: Option<Lease>,
    /// How far outputs fill their slots.
    filled: Bytes,
    filled_host: Bytes,
    parts: Vec<BufferId>,
    /// What the CPU computes, in bytes: on the host, its place on the device, and what computes it.
    by_cpu: Vec<(Bytes, [BufferId; 2], TaskId)>,
}

/// The room of a plan with a split.
fn room(layout: &mut Layout) -> &mut Room {
    let room = layout.split.as_mut();
    room.expect("who lowers a split has a layout with its room")
}

impl StageLowering {
    /// Computes queries, keys and values in parts; gives the draft of the task that joins them.
    pub(super) fn project_in_parts(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        work: &Work,
    ) -> (Draft, Joining) {
        let draft = self.on_device(Stage::Normalise, unit);
        let draft = draft.after([self.copied.take()]);
        let draft = self.hidden.attach(draft, unit, work, Access::Read);
        let (input, made) = self.make_input(out, unit, (draft, PROJECT));
        self.compute(out, unit, (PROJECT, input, made), Stage::JoinProject)
    }

    /// Ends a layer in parts, from attention's output on. Returns the task that took that, and the last.
    pub(super) fn finish_in_parts(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (attended, work): (Draft, &Work),
    ) -> (TaskId, TaskId) {
        let (input, taken) = self.make_input(out, unit, (attended, OUTPUT));
        let (draft, joining) = self.compute(out, unit, (OUTPUT, input, taken), Stage::JoinOutput);
        let draft = self.hidden.attach(draft, unit, work, Access::Update);
        let (input, made) = self.make_input(out, unit, (draft, INNER));
        self.joined(joining, made);
        let (draft, joining) = self.compute(out, unit, (INNER, input, made), Stage::JoinInner);
        let (input, made) = self.make_input(out, unit, (draft, DOWN));
        self.joined(joining, made);
        let (draft, joining) = self.compute(out, unit, (DOWN, input, made), Stage::JoinMlp);
        let task = out.emit(self.hidden.attach(draft, unit, work, Access::Update));
        self.joined(joining, task);
        (taken, task)
    }

    /// Says which task joined a step.
    pub(super) fn joined(&mut self, joining: Joining, task: TaskId) {
        let room = room(&mut self.layout);
        room.inputs.release(joining.input.slot, [Some(task), None]);
        room.outputs.release(joining.outputs, [Some(task), None]);
    }

    /// A task on the device that has no product, with what lives there of the block.
    pub(super) fn on_device(&self, stage: Stage, unit: &Unit) -> Draft {
        let op = self.linear(stage, unit.tokens(), unit);
        self.weights
            .attach(Draft::new(ResourceKind::Gpu, op, unit.cell), unit, false)
    }

    /// Emits a task that makes a step's input besides.
    fn make_input(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (draft, step): (Draft, Step),
    ) -> (Input, TaskId) {
        let slot = room(&mut self.layout).inputs.lease();
        let place = (Tier::Device, slot.offset);
        let buffer = out.declare(place, self.input_bytes(unit, step), input_of(unit));
        let draft = draft
            .with(Access::Write, [Some(buffer)])
            .taking([Some(buffer)])
            .after(slot.free_after);
        (Input { slot, buffer }, out.emit(draft))
    }

    fn input_bytes(&self, unit: &Unit, step: Step) -> Bytes {
        let mut modules = self.split.specs.of_step(step);
        let columns = modules.next().map_or(0, |(_, weight)| weight.cols);
        slot_bytes(u64::from(unit.tokens()), columns)
    }

    /// Writes a step's parts; gives the draft of the task that joins them.
    fn compute(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (step, input, made): (Step, Input, TaskId),
        join: Stage,
    ) -> (Draft, Joining) {
        let mut begun = Begun {
            step,
            input: input.buffer,
            made,
            host: None,
            outputs: room(&mut self.layout).outputs.lease(),
            outputs_host: None,
            filled: Bytes::ZERO,
            filled_host: Bytes::ZERO,
            parts: Vec::new(),
            by_cpu: Vec::new(),
        };
        let specs = self.split.specs;
        for (module, weight) in specs.of_step(step) {
            self.compute_module(out, unit, (module, weight), &mut begun);
        }
        let arrived = self.bring_outputs(out, unit, &begun);
        let parts = begun.parts.iter().copied().map(Some);
        let draft = self
            .on_device(join, unit)
            .with(Access::Read, parts.clone())
            .giving(parts)
            .giving([Some(begun.input)])
            .after([arrived]);
        let joining = Joining {
            input,
            outputs: begun.outputs,
        };
        (draft, joining)
    }

    /// Writes what the device and the CPU compute of a module.
    fn compute_module(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (module, weight): (Module, &TensorSpec),
        begun: &mut Begun,
    ) {
        let plan = std::sync::Arc::clone(&self.plan);
        let Some(split) = &plan.policy.split else {
            return;
        };
        let layer = u32::from(unit.cell.block) - 1;
        if split.is_on_device(module, layer, plan.model.num_hidden_layers) {
            let task = self.device_part(unit, (module, weight, weight.rows));
            let home = self.weights.home(unit.cell.block, Tier::Device);
            let draft = task.with(Access::Read, [home]);
            self.emit_device_part(out, unit, (draft, module, weight.rows), begun);
            return;
        }
        let rows = split.rows((module, weight), unit.is_prefill(), plan.policy.compression);
        let brought = (rows.device > 0)
            .then(|| self.bring_rows(out, unit, (module, weight, rows), (begun.step, begun.made)));
        if rows.host > 0 {
            let pinned = brought.as_ref().and_then(|brought| brought.pinned);
            let blocked = pinned.filter(|_| split.route == crate::split::Route::Blocking);
            self.host_part(out, unit, (module, weight, rows), (begun, blocked));
        }
        if let Some(brought) = brought {
            let mut last = None;
            for arrived in &brought.arrived {
                let draft = self
                    .device_part(unit, (module, weight, arrived.rows))
                    .with(Access::Read, [Some(arrived.buffer)])
                    .giving([Some(arrived.buffer)])
                    .after([Some(arrived.moved)]);
                last = Some(self.emit_device_part(out, unit, (draft, module, arrived.rows), begun));
            }
            let rows = &mut room(&mut self.layout).rows;
            rows.release(brought.slot, [last, None]);
        }
    }

    /// Rows in 4 bits may be unpacked before their product.
    fn device_part(&self, unit: &Unit, module: (Module, &TensorSpec, u64)) -> Draft {
        let op = self.part(unit, module);
        let unpacks = self.plan.policy.compression.packs(module.1);
        let workspace = unpacks.then_some(self.workspace);
        Draft::new(ResourceKind::Gpu, op, unit.cell).with(Access::Update, [workspace])
    }

    fn emit_device_part(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (draft, module, rows): (Draft, Module, u64),
        begun: &mut Begun,
    ) -> TaskId {
        let outputs = begun.add_outputs(out, unit, (module, rows, Tier::Device));
        out.emit(
            draft
                .with(Access::Read, [Some(begun.input)])
                .with(Access::Write, [Some(outputs)])
                .taking([Some(outputs)])
                .after(begun.outputs.free_after),
        )
    }

    /// Computes a module's first rows on the CPU and brings the outputs to the device.
    fn host_part(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (module, weight, rows): (Module, &TensorSpec, RowSplit),
        (begun, pinned): (&mut Begun, Option<TaskId>),
    ) {
        let (_, input, copied) = match begun.host {
            Some(host) => host,
            None => self.copy_input(out, unit, begun),
        };
        let lease = match begun.outputs_host {
            Some(lease) => lease,
            None => room(&mut self.layout).outputs_host.lease(),
        };
        begun.outputs_host = Some(lease);
        let tokens = u64::from(unit.tokens());
        let bytes = output_bytes(tokens, rows.host);
        let content = outputs_of(unit, module, Tier::Host);
        let place = (Tier::Host, lease.offset + begun.filled_host);
        begun.filled_host += slot_bytes(tokens, rows.host);
        let on_host = out.declare(place, bytes, content);
        let op = self.part(unit, (module, weight, rows.host));
        let mut draft = Draft::new(ResourceKind::Cpu, op, unit.cell)
            .with(
                Access::Read,
                [self.weights.home(unit.cell.block, Tier::Host), Some(input)],
            )
            .with(Access::Write, [Some(on_host)])
            .taking([Some(on_host)])
            .after([Some(copied), pinned])
            .after(lease.free_after);
        if self.is_last_on_cpu(unit, begun.step, module) {
            draft = draft.giving([Some(input)]);
        }
        let computed = out.emit(draft);
        self.split.before[0] = Some(computed);
        let on_device = begun.add_outputs(out, unit, (module, rows.host, Tier::Host));
        begun.by_cpu.push((bytes, [on_host, on_device], computed));
    }

    /// Brings to the device what the CPU computes of a step, behind a part of the rows that are needed next; returns the last copy.
    fn bring_outputs(&mut self, out: &mut Emitter, unit: &Unit, begun: &Begun) -> Option<TaskId> {
        let (_, _, computed) = begun.by_cpu.last()?;
        self.send_ahead(out, unit, begun.step);
        let copies = begun
            .by_cpu
            .iter()
            .map(|(bytes, [host, device], computed)| {
                let copy = move_whole(*bytes);
                let copy = Draft::new(ResourceKind::H2d, copy, unit.cell)
                    .with(Access::Read, [Some(*host)])
                    .with(Access::Write, [Some(*device)])
                    .taking([Some(*device)])
                    .giving([Some(*host)])
                    .after([Some(*computed)])
                    .after(begun.outputs.free_after);
                out.emit(copy)
            });
        let arrived = copies.last();
        let room = room(&mut self.layout);
        if let Some((lease, ..)) = begun.host {
            room.inputs_host.release(lease, [Some(*computed), None]);
        }
        if let Some(lease) = begun.outputs_host {
            room.outputs_host.release(lease, [arrived, None]);
        }
        arrived
    }

    /// The next module whose rows come to the device, after a step and before the pass ends: where, and with what shares.
    fn split_after(
        &self,
        unit: &Unit,
        step: Step,
    ) -> Option<(Unit, Step, (Module, TensorSpec, RowSplit))> {
        let split = self.plan.policy.split?;
        let layers = self.plan.model.num_hidden_layers;
        let block = u32::from(unit.cell.block);
        let rest = STEPS.into_iter().skip_while(|s| *s != step).skip(1);
        let next = STEPS.into_iter().filter(|_| block < layers);
        let steps = rest
            .map(|step| (block, step))
            .chain(next.map(|step| (block + 1, step)));
        for (block, step) in steps {
            for (module, weight) in self.split.specs.of_step(step) {
                let compression = self.plan.policy.compression;
                let rows = split.rows((module, weight), unit.is_prefill(), compression);
                if rows.device > 0 && !split.is_on_device(module, block - 1, layers) {
                    let mut unit = *unit;
                    unit.cell.block = block as u16;
                    return Some((unit, step, (module, *weight, rows)));
                }
            }
        }
        None
    }

    /// Whether none of a step's modules after this one is the CPU's, too.
    fn is_last_on_cpu(&self, unit: &Unit, step: Step, module: Module) -> bool {
        let policy = &self.plan.policy;
        let Some(split) = &policy.split else {
            return true;
        };
        let (layer, layers) = (
            u32::from(unit.cell.block) - 1,
            self.plan.model.num_hidden_layers,
        );
        let mut later = self.split.specs.of_step(step).filter(|(m, _)| *m > module);
        !later.any(|(module, weight)| {
            let rows = split.rows((module, weight), unit.is_prefill(), policy.compression);
            rows.host > 0 && !split.is_on_device(module, layer, layers)
        })
    }

    /// Copies a step's input to the host.
    fn copy_input(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        begun: &mut Begun,
    ) -> (Lease, BufferId, TaskId) {
        let lease = room(&mut self.layout).inputs_host.lease();
        let bytes = self.input_bytes(unit, begun.step);
        let host = out.declare((Tier::Host, lease.offset), bytes, input_of(unit));
        let copy = Draft::new(ResourceKind::D2h, move_whole(bytes), unit.cell)
            .with(Access::Read, [Some(begun.input)])
            .with(Access::Write, [Some(host)])
            .taking([Some(host)])
            .after([Some(begun.made)])
            .after(lease.free_after);
        let copied = (lease, host, out.emit(copy));
        begun.host = Some(copied);
        copied
    }

    /// The product of so many rows of a module.
    fn part(&self, unit: &Unit, (_, weight, rows): (Module, &TensorSpec, u64)) -> Op {
        let gemm = Gemm {
            n: rows as u32,
            k: weight.cols as u32,
        };
        Op::Linear {
            stage: Stage::Part,
            m: unit.tokens(),
            gemms: Gemms::new(&[gemm]),
            position: unit.position,
            reused: false,
            compressed: self.plan.policy.compression.packs(weight),
            packed_elements: 0,
        }
    }
}

impl Begun {
    /// Declares the place on the device of a part's outputs.
    fn add_outputs(
        &mut self,
        out: &mut Emitter,
        unit: &Unit,
        (module, rows, by): (Module, u64, Tier),
    ) -> BufferId {
        let tokens = u64::from(unit.tokens());
        let place = (Tier::Device, self.outputs.offset + self.filled);
        let bytes = output_bytes(tokens, rows);
        let buffer = out.declare(place, bytes, outputs_of(unit, module, by));
        self.filled += slot_bytes(tokens, rows);
        self.parts.push(buffer);
        buffer
    }
}

/// What a part gives, and nothing more: how many rows it is of follows from its buffer's length.
fn output_bytes(tokens: u64, rows: u64) -> Bytes {
    Bytes(tokens * rows * room::ELEMENT_BYTES)
}

fn input_of(unit: &Unit) -> Content {
    Content::Input {
        batch: unit.cell.batch,
    }
}

fn outputs_of(unit: &Unit, module: Module, by: Tier) -> Content {
    Content::Outputs {
        batch: unit.cell.batch,
        module,
        by,
    }
}
