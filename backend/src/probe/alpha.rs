//! How long the parts of split linear layers take here, at stated shares (HeteGen section 4.4).
//!
//! Two layers of the model, with a vocabulary of a few words, run as any split plan does: the CPU computes,
//! rows are copied into page-locked memory and moved, all beside each other, so what engines take from each
//! other is in the times. Those of prompts are left out.

use std::collections::BTreeMap;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::control::{Controller, Run, drive};
use plimsoll_core::lower::{LowerError, Lowering};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::program::{Buffer, BufferId, Cell, Content, ResourceKind, TaskId};
use plimsoll_core::split::{Module, PerModule, RowSplit, SplitLinears};
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_core::workload::Workload;

use super::stats::median;
use super::{ProbeError, prompts, split};
use crate::cpu::{CpuExecutor, CpuOptions};
use crate::weights::WeightSource;

/// Layers that run: enough that buffers are handed on from one to the next.
const LAYERS: u32 = 2;

/// Words of the vocabulary, which is not measured.
const VOCABULARY: u32 = 64;

/// What is measured.
#[derive(Debug, Clone)]
pub struct PartOptions {
    /// How the executor runs; throttles are kept, since they are the link that is asked about.
    pub cpu: CpuOptions,
    /// Whose layers.
    pub model: ModelSpec,
    /// What weights are stored as.
    pub dtype: Dtype,
    /// Whether they are in 4 bits.
    pub compression: Compression,
    /// Sequences that are computed together.
    pub sequences: u32,
    /// Tokens that are measured at each share.
    pub tokens: u32,
}

/// Times of the parts of a module at a share: medians over layers and tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartTimes {
    /// Which.
    pub module: Module,
    /// The share of its outputs that the device computed, in whole rows.
    pub share: f64,
    /// The CPU's part.
    pub cpu: Seconds,
    /// Copies of the device's rows into page-locked memory.
    pub pin: Seconds,
    /// Their moves to the device.
    pub transfer: Seconds,
    /// The device's part.
    pub device: Seconds,
}

/// What a run says.
#[derive(Debug, Clone, PartialEq)]
pub struct Parts {
    /// By module, those that the model has.
    pub modules: Vec<PartTimes>,
    /// Copies into page-locked memory: how many bytes each, and how long it took.
    pub pinned: Vec<(Bytes, Seconds)>,
}

/// Runs the layers at some shares, with weights of a source, and reads the times of their parts.
///
/// # Errors
/// A model that cannot be split or executed; memory that cannot be had.
pub fn measure_parts(
    options: &PartOptions,
    shares: PerModule<f64>,
    source: &dyn WeightSource,
) -> Result<Parts, ProbeError> {
    let plan = plan(options, shares)?;
    let mut lowering = Lowering::new(&plan)?;
    let mut executor = CpuExecutor::new(&plan, lowering.placement(), source, &options.cpu)?;
    executor.set_prompts(lowering.texts(), &prompts(&plan, options.sequences))?;
    let run = drive(&mut lowering as &mut dyn Controller, &mut executor)?;
    let rows = |module: Module| {
        let tensors = plan.model.tensors(1).into_iter();
        let weight = tensors.into_iter().find(|t| t.role == module.weight())?;
        let split = RowSplit::new(&weight, shares[module], options.compression);
        Some(split.device as f64 / weight.rows as f64)
    };
    let mut all = times(&run);
    let found = Module::ALL.into_iter().filter_map(|module| {
        let mut of = |kind| {
            let found = all.remove(&(module, kind));
            Seconds(found.map_or(0.0, |times| median(&times)))
        };
        Some(PartTimes {
            module,
            share: rows(module)?,
            cpu: of(ResourceKind::Cpu),
            pin: of(ResourceKind::Pin),
            transfer: of(ResourceKind::H2d),
            device: of(ResourceKind::Gpu),
        })
    });
    Ok(Parts {
        modules: found.collect(),
        pinned: pinned(&run),
    })
}

fn plan(options: &PartOptions, shares: PerModule<f64>) -> Result<Plan, LowerError> {
    let model = ModelSpec {
        num_hidden_layers: LAYERS,
        vocab_size: options.model.vocab_size.min(VOCABULARY),
        ..options.model.clone()
    };
    let workload = Workload {
        prompt_len: 1,
        gen_len: options.tokens + 1,
        num_prompts: None,
    };
    let split = SplitLinears {
        share: shares,
        ..SplitLinears::even(0.0)
    };
    let given = (model, options.dtype);
    split::plan(
        given,
        workload,
        options.sequences,
        (split, options.compression),
    )
}

/// By module and engine, seconds in each layer of each token: a module's rows come in several copies.
fn times(run: &Run) -> BTreeMap<(Module, ResourceKind), Vec<f64>> {
    let mut sums = BTreeMap::<(Module, ResourceKind, u16, u16), f64>::new();
    for piece in &run.pieces {
        let first = piece.first_buffer().0;
        let content = |buffer: BufferId| -> Option<&Buffer> {
            let index = buffer.0.checked_sub(first)?;
            piece.buffers().get(index as usize)
        };
        for (index, task) in piece.tasks().iter().enumerate() {
            let kind = run.machine.resources[task.resource.0 as usize].kind;
            let Cell { pass, block, .. } = task.cell;
            let id = TaskId(piece.first_task().0 + index as u32);
            // What is written last says what the task is for.
            let target = piece.args_at(index).last();
            let target = target.and_then(|arg| content(arg.buffer));
            let module = target.and_then(|buffer| part_of(kind, buffer.content));
            if let (Some(module), Some(span)) = (module, run.trace.span(id))
                && pass > 0
            {
                let key = (module, kind, pass, block);
                *sums.entry(key).or_default() += span.duration().0;
            }
        }
    }
    let mut all = BTreeMap::<_, Vec<f64>>::new();
    for ((module, kind, ..), seconds) in sums {
        all.entry((module, kind)).or_default().push(seconds);
    }
    all
}

/// Every copy of rows into page-locked memory after the prompt.
fn pinned(run: &Run) -> Vec<(Bytes, Seconds)> {
    let copies = run.tasks().filter_map(|(id, op, resource, cell)| {
        let pins = run.machine.resources[resource].kind == ResourceKind::Pin && cell.pass > 0;
        let bytes = op.moved_bytes().filter(|_| pins)?;
        Some((bytes, run.trace.span(id)?.duration()))
    });
    copies.collect()
}

/// The module that a task which writes this does a part of; none of the moves of outputs.
fn part_of(kind: ResourceKind, written: Content) -> Option<Module> {
    match (kind, written) {
        (ResourceKind::Pin | ResourceKind::H2d, Content::Rows { module, .. })
        | (ResourceKind::Cpu | ResourceKind::Gpu, Content::Outputs { module, .. }) => Some(module),
        _ => None,
    }
}
