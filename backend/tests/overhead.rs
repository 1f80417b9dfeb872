//! What the executor itself costs a task, and that its spans keep the program's order.

mod common;

use std::sync::Arc;

use common::{plan, tiny_opt};
use plimsoll_backend::cpu::{CpuExecutor, CpuOptions};
use plimsoll_backend::weights::Synthetic;
use plimsoll_core::Dtype;
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::lower::Lowering;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{
    Access, Arg, Buffer, BufferId, Cell, Content, HostPages, Machine, NewTask, Op, Program,
    ResourceKind, TaskId,
};
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;
use plimsoll_core::verify::Verifier;
use plimsoll_core::workload::Workload;

const TASKS: u32 = 4000;

/// Copies of 64 bytes, each waiting for the one before, on these resources in turn.
fn chain(machine: &Machine, kinds: &[ResourceKind]) -> Program {
    let mut program = Program::new();
    let [device, host] = [Tier::Device, Tier::Host].map(|tier| {
        program.buffer(Buffer {
            arena: machine.arena(tier, 0).expect("a tier"),
            offset: Bytes(0),
            bytes: Bytes(64),
            content: Content::Workspace,
            resident: true,
        })
    });
    let op = program.op(Op::Move {
        bytes: Bytes(64),
        from: Bytes(0),
        to: Bytes(0),
        host: HostPages::Locked,
    });
    let barrier = program.op(Op::Barrier);
    for index in 0..TASKS {
        let kind = kinds[index as usize % kinds.len()];
        let args = |from: BufferId, to: BufferId| {
            let [read, write] = [Access::Read, Access::Write];
            [
                Arg {
                    buffer: from,
                    access: read,
                },
                Arg {
                    buffer: to,
                    access: write,
                },
            ]
        };
        let args = match kind {
            ResourceKind::Sync => Vec::new(),
            ResourceKind::H2d => args(host, device).to_vec(),
            _ => args(device, host).to_vec(),
        };
        let before = index.checked_sub(1).map(TaskId);
        program.push(NewTask {
            op: if kind == ResourceKind::Sync {
                barrier
            } else {
                op
            },
            resource: machine.resource(kind, 0).expect("a resource"),
            cell: Cell::default(),
            deps: before.as_slice(),
            args: &args,
            takes: &[],
            gives: &[],
        });
    }
    program
}

/// The median time from a task's end to the start of the one `apart` tasks later, in microseconds.
fn median_gap(kinds: &[ResourceKind], apart: usize) -> f64 {
    let policy =
        Policy::from_percent(1, 1, [0.0, 100.0, 0.0, 100.0, 0.0, 100.0]).expect("a policy");
    let workload = Workload {
        prompt_len: 4,
        gen_len: 2,
        num_prompts: Some(1),
    };
    let plan = plan(&tiny_opt(), Dtype::F32, policy, workload);
    let dir = tempfile::tempdir().expect("a directory");
    let (source, options) = (Synthetic { seed: 1 }, CpuOptions::new(dir.path()));
    let placement = Lowering::new(&plan).expect("it fits").placement().clone();
    let mut executor = CpuExecutor::new(&plan, &placement, &source, &options).expect("an executor");
    let machine = Machine::single_gpu(plan.capacity_bytes);
    let program = chain(&machine, kinds);
    Verifier::new(&machine)
        .check(&program)
        .expect("it is right");
    executor.submit(Arc::new(program)).expect("taken");
    executor.wait(Until::Idle).expect("done");
    let spans: Vec<_> = (0..TASKS)
        .filter_map(|task| executor.trace().span(TaskId(task)))
        .collect();
    assert_eq!(spans.len(), TASKS as usize);
    let early = spans.windows(2).find(|two| two[1].start.0 < two[0].end.0);
    assert_eq!(
        early, None,
        "a task began before what it waits for had ended"
    );
    let pairs = spans.iter().zip(&spans[apart..]).step_by(apart);
    let mut gaps: Vec<f64> = pairs
        .map(|(one, next)| (next.start - one.end).0 * 1e6)
        .collect();
    gaps.sort_unstable_by(f64::total_cmp);
    gaps[gaps.len() / 2]
}

#[test]
fn a_task_costs_microseconds_and_order_is_kept() {
    use ResourceKind::{D2h, H2d, Sync};
    let same = median_gap(&[H2d], 1);
    let different = median_gap(&[H2d, D2h], 1);
    let barrier = median_gap(&[H2d, Sync, D2h, Sync], 2);
    println!(
        "median gap: same worker {same:.2} us, other worker {different:.2} us, over a barrier {barrier:.2} us"
    );
    // Generous, for machines that are busy with other tests.
    assert!(same < 200.0 && different < 2000.0 && barrier < 2000.0);
}
