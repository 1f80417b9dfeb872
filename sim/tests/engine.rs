//! The engine's times, checked by hand.

use std::sync::Arc;

use plimsoll_core::Dtype;
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::hardware::{Contention, Curve, Engine, HardwareProfile, Quantity, embedded};
use plimsoll_core::program::{Cell, Machine, NewTask, Op, Program, ResourceKind, TaskId};
use plimsoll_core::tier::PerTier;
use plimsoll_core::trace::Trace;
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_sim::{CostModel, Simulator};

use ResourceKind::{D2h, DiskRead, H2d, Sync};

/// Copies carry a byte a second, and nothing else takes time.
fn profile() -> HardwareProfile {
    let mut profile = embedded::profile("t4").expect("embedded");
    let slow = Curve::new(vec![(1.0, 1.0)], "test", None).expect("a point");
    for link in [&mut profile.links.h2d, &mut profile.links.d2h] {
        link.latency.value = Seconds::ZERO;
        link.page_locked = slow.clone();
    }
    profile.links.disk_read.latency.value = Seconds::ZERO;
    profile.links.disk_read.rate = slow;
    profile.compute.barrier.value = Seconds::ZERO;
    profile.contention.clear();
    profile
}

/// Runs moves of so many bytes, or barriers, each after those named.
fn run(profile: &HardwareProfile, tasks: &[(ResourceKind, u64, &[u32])]) -> Trace {
    let machine = Machine::single_gpu(PerTier::from_fn(|_| Bytes(0)));
    let mut program = Program::new();
    for (kind, bytes, after) in tasks {
        let op = match kind {
            Sync => Op::Barrier,
            _ => Op::Move {
                bytes: Bytes(*bytes),
                from: Bytes(0),
                to: Bytes(0),
                page_locked: true,
            },
        };
        let op = program.op(op);
        let deps: Vec<TaskId> = after.iter().copied().map(TaskId).collect();
        program.push(NewTask {
            op,
            resource: machine.resource(*kind, 0).expect("a resource"),
            cell: Cell::default(),
            deps: &deps,
            args: &[],
            takes: &[],
            gives: &[],
        });
    }
    let mut simulator = Simulator::new(&machine, CostModel::new(profile, Dtype::F16));
    simulator.submit(Arc::new(program)).expect("taken");
    simulator.wait(Until::Idle).expect("ends");
    simulator.trace().clone()
}

fn ends(trace: &Trace) -> Vec<f64> {
    trace.spans().map(|(_, span)| span.end.0).collect()
}

#[test]
fn a_barrier_costs_itself_and_one_hand_off() {
    let mut profile = profile();
    profile.compute.barrier.value = Seconds(0.25);
    profile.compute.handoff = Some(Quantity::new(Seconds(0.5), "test"));
    let trace = run(&profile, &[(H2d, 1, &[]), (Sync, 0, &[0]), (D2h, 1, &[1])]);
    assert_eq!(ends(&trace), [1.0, 1.25, 2.75]);
}

#[test]
fn streams_hand_off_to_each_other_in_their_own_time() {
    let mut profile = profile();
    profile.compute.handoff = Some(Quantity::new(Seconds(0.5), "test"));
    profile.compute.stream_handoff = Some(Quantity::new(Seconds(0.125), "test"));
    let tasks = [
        (H2d, 1, &[][..]),
        (D2h, 1, &[0]),
        // The host, from and to streams.
        (DiskRead, 1, &[1]),
        (H2d, 1, &[2]),
    ];
    let trace = run(&profile, &tasks);
    assert_eq!(ends(&trace), [1.0, 2.125, 3.625, 5.125]);
}

#[test]
fn delays_add_and_what_is_left_is_timed_again() {
    let mut profile = profile();
    let half = |beside| Contention {
        victim: Engine::H2d,
        beside,
        rate: Quantity::new(0.5, "test"),
    };
    profile.contention = vec![half(Engine::D2h), half(Engine::DiskRead)];
    let trace = run(
        &profile,
        &[(H2d, 4, &[]), (D2h, 3, &[]), (DiskRead, 5, &[])],
    );
    // A third of the pace for 3 s, a half for 2 s, and then alone.
    assert_eq!(ends(&trace), [7.0, 3.0, 5.0]);
}
