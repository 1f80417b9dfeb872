//! A decode whose weights come over the link for each token: how near it comes to what the link carries, and to its busiest
//! resource.

use std::sync::Arc;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::control::{Run, drive};
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::lower::{LowerError, Lowering};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::program::{
    Access, Arg, Buffer, BufferId, Cell, Content, HostPages, Machine, NewTask, Op, Program,
    ResourceKind, Stage, TaskId,
};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::trace::Trace;
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_core::verify::Verifier;
use plimsoll_core::workload::Workload;

use super::BenchOptions;
use crate::cpu::{CpuExecutor, CpuOptions};
use crate::probe::ProbeError;
use crate::weights::{Synthetic, WeightSource};

/// Tokens of the prompt, which is not timed.
const PROMPT_LEN: u32 = 4;

/// Of fewer, none are in the middle.
const TOKENS_LEAST: u32 = 5;

/// What the link carries is told by copies of so many bytes, so many of them, of which the first few are not timed.
const COPY_BYTES: u64 = 64 << 20;
const COPIES: usize = 24;
const COPIES_BEFORE: usize = 4;

/// Decode with all weights on the host, one sequence, over some tokens in the middle.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkBound {
    /// Layers that ran.
    pub layers: u32,
    /// Bytes that came over the link for each token.
    pub bytes_per_token: f64,
    /// Seconds a token.
    pub seconds_per_token: f64,
    /// What copies alone carry, one behind another: bytes/s.
    pub link_bytes_per_s: f64,
    /// Whose work takes longest.
    pub busiest: &'static str,
    /// Share of the time that it was busy.
    pub busiest_share: f64,
}

impl LinkBound {
    /// What decode makes of the link.
    pub fn share_of_link(&self) -> f64 {
        self.bytes_per_token / self.seconds_per_token / self.link_bytes_per_s
    }

    /// The time over the busiest resource's work.
    pub fn over_busiest(&self) -> f64 {
        1.0 / self.busiest_share
    }
}

/// Runs it, then copies alone on the same executor's links.
pub(super) fn measure(options: &BenchOptions) -> Result<LinkBound, ProbeError> {
    let plan = plan(options)?;
    let source = Synthetic { seed: 1 };
    let run = decode(&plan, &source, &options.cpu)?;
    let steady = Steady::of(&run);
    let link_bytes_per_s = copies(&plan, &source, &options.cpu)?;
    Ok(LinkBound {
        layers: plan.model.num_hidden_layers,
        bytes_per_token: steady.bytes / steady.tokens,
        seconds_per_token: steady.seconds / steady.tokens,
        link_bytes_per_s,
        busiest: steady.busiest.name(),
        busiest_share: steady.busiest_s / steady.seconds,
    })
}

/// As many layers as so many bytes hold, one at least.
fn cut(model: &ModelSpec, most: u64, (dtype, compression): (Dtype, Compression)) -> ModelSpec {
    let bytes = |block: u32| -> u64 {
        let tensors = model.tensors(block).into_iter();
        tensors
            .map(|tensor| compression.tensor_bytes(&tensor, dtype).0)
            .sum()
    };
    let ends = bytes(0) + bytes(model.num_blocks() - 1);
    let layers = most.saturating_sub(ends) / bytes(1).max(1);
    let layers = u32::try_from(layers).unwrap_or(u32::MAX);
    ModelSpec {
        num_hidden_layers: model.num_hidden_layers.min(layers.max(1)),
        ..model.clone()
    }
}

pub(super) fn plan(options: &BenchOptions) -> Result<Plan, LowerError> {
    let compression = Compression::of(options.packed, false);
    let percent = [0.0, 100.0, 100.0, 0.0, 100.0, 0.0];
    let policy = Policy {
        barrier: false,
        page_locked: PageLocked::ALL,
        compression,
        ..Policy::from_percent(1, 1, percent)?.in_whole_layers()
    };
    let plan = Plan::given(
        cut(
            &options.model,
            options.weights_most.0,
            (options.dtype, compression),
        ),
        options.dtype,
        Workload {
            prompt_len: PROMPT_LEN,
            gen_len: options.tokens.max(TOKENS_LEAST),
            num_prompts: Some(1),
        },
        policy,
    );
    plan.with_room()
}

fn decode(plan: &Plan, source: &dyn WeightSource, cpu: &CpuOptions) -> Result<Run, ProbeError> {
    let mut lowering = Lowering::new(plan)?;
    let mut executor = CpuExecutor::new(plan, lowering.placement(), source, cpu)?;
    let prompt = (0..PROMPT_LEN).map(|token| token % plan.model.vocab_size);
    executor.set_prompts(lowering.texts(), &[prompt.collect()])?;
    Ok(drive(&mut lowering, &mut executor)?)
}

/// What happened between the end of the second token and that of the last but one, where each token is like the others: weights
/// are on their way ahead of the token that needs them.
struct Steady {
    tokens: f64,
    seconds: f64,
    /// That came over the link.
    bytes: f64,
    busiest: ResourceKind,
    busiest_s: f64,
}

impl Steady {
    fn of(run: &Run) -> Steady {
        let ends = token_ends(run);
        let (from, to) = (ends[1], ends[ends.len() - 2]);
        let mut busy = vec![0.0; run.machine.resources.len()];
        let mut bytes = 0.0;
        for (id, op, resource, _) in run.tasks() {
            let span = run.trace.span(id).unwrap_or_default();
            let within = span.within(from, to).0;
            busy[resource] += within;
            if run.machine.resources[resource].kind == ResourceKind::H2d && within > 0.0 {
                let moved = op.moved_bytes().unwrap_or(Bytes::ZERO).0 as f64;
                bytes += moved * within / span.duration().0;
            }
        }
        let kinds = run.machine.resources.iter().map(|resource| resource.kind);
        // A barrier works on nothing.
        let working = kinds
            .zip(busy)
            .filter(|(kind, _)| *kind != ResourceKind::Sync);
        let longest = working.max_by(|a, b| a.1.total_cmp(&b.1));
        let (busiest, busiest_s) = longest.unwrap_or((ResourceKind::H2d, 0.0));
        Steady {
            tokens: (ends.len() - 3) as f64,
            seconds: (to - from).0,
            bytes,
            busiest,
            busiest_s,
        }
    }
}

/// When each token was there.
fn token_ends(run: &Run) -> Vec<Seconds> {
    let heads = run.tasks().filter(|(_, op, ..)| {
        matches!(
            op,
            Op::Linear {
                stage: Stage::Head,
                ..
            }
        )
    });
    let ends = heads.filter_map(|(id, ..)| run.trace.span(id));
    ends.map(|span| span.end).collect()
}

/// Bytes/s of copies to the device with nothing beside them, in memory such as the plan's.
fn copies(plan: &Plan, source: &dyn WeightSource, cpu: &CpuOptions) -> Result<f64, ProbeError> {
    let lowering = Lowering::new(plan)?;
    let whole = CpuOptions {
        whole_tiers: true,
        ..cpu.clone()
    };
    let mut executor = CpuExecutor::new(plan, lowering.placement(), source, &whole)?;
    let machine = plan.machine();
    let (program, bytes) = copies_of(&machine, plan.capacity_bytes);
    Verifier::new(&machine).check(&program)?;
    executor.submit(Arc::new(program))?;
    executor.wait(Until::Idle)?;
    Ok(rate(executor.trace(), bytes))
}

/// A program of copies, each to one of two places in turn as weights come, and the bytes of each.
fn copies_of(machine: &Machine, capacity: PerTier<Bytes>) -> (Program, u64) {
    let bytes = COPY_BYTES.min(capacity.device.0 / 2).min(capacity.host.0);
    let mut program = Program::new();
    let [host, device] = [Tier::Host, Tier::Device].map(|tier| {
        program.buffer(Buffer {
            arena: machine
                .arena(tier, 0)
                .expect("a machine of one GPU has all tiers"),
            offset: Bytes::ZERO,
            bytes: capacity[tier],
            content: Content::Workspace,
            resident: true,
        })
    });
    let link = machine.resource(ResourceKind::H2d, 0);
    let link = link.expect("a machine of one GPU has a link");
    let arg = |buffer: BufferId, access| Arg { buffer, access };
    for copy in 0..COPIES as u64 {
        let place = |places: u64| Bytes(copy % places * bytes);
        let op = program.op(Op::Move {
            bytes: Bytes(bytes),
            from: place(capacity.host.0 / bytes),
            to: place(2),
            host: HostPages::Locked,
        });
        program.push(NewTask {
            op,
            resource: link,
            cell: Cell::default(),
            deps: &[],
            args: &[arg(host, Access::Read), arg(device, Access::Write)],
            takes: &[],
            gives: &[],
        });
    }
    (program, bytes)
}

/// Bytes/s from the end of the first few on.
fn rate(trace: &Trace, bytes: u64) -> f64 {
    let end = |copy: usize| {
        trace
            .span(TaskId(copy as u32))
            .map_or(f64::NAN, |s| s.end.0)
    };
    let seconds = end(COPIES - 1) - end(COPIES_BEFORE - 1);
    (COPIES - COPIES_BEFORE) as f64 * bytes as f64 / seconds.max(1e-9)
}
