//! The engine's times, checked by hand.

use std::sync::Arc;

use plimsoll_core::Dtype;
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::hardware::{Contention, Curve, HardwareProfile, Quantity, WeightRead, embedded};
use plimsoll_core::model::registry;
use plimsoll_core::program::{
    BufferId, Cell, Gemm, Gemms, HostPages, Machine, NewTask, Op, Program, ResourceKind, Stage,
    TaskId,
};
use plimsoll_core::tier::PerTier;
use plimsoll_core::trace::Trace;
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_sim::{CostModel, Simulator};

use ResourceKind::{D2h, DiskRead, Gpu, H2d, Sync};

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
    run_of(profile, tasks, |_| true)
}

/// The same, where the moves that are named come from page-locked memory, or go to it.
fn run_of(
    profile: &HardwareProfile,
    tasks: &[(ResourceKind, u64, &[u32])],
    page_locked: impl Fn(usize) -> bool,
) -> Trace {
    let machine = Machine::single_gpu(PerTier::from_fn(|_| Bytes(0)));
    let program = written(Program::new(), &machine, tasks, page_locked);
    let mut simulator = Simulator::new(&machine, CostModel::new(profile, Dtype::F16));
    simulator.submit(Arc::new(program)).expect("taken");
    simulator.wait(Until::Idle).expect("ends");
    simulator.trace().clone()
}

/// Appends tasks to a program.
fn written(
    mut program: Program,
    machine: &Machine,
    tasks: &[(ResourceKind, u64, &[u32])],
    page_locked: impl Fn(usize) -> bool,
) -> Program {
    for (number, (kind, bytes, after)) in tasks.iter().enumerate() {
        let op = match kind {
            Sync => Op::Barrier,
            _ => Op::Move {
                bytes: Bytes(*bytes),
                from: Bytes(0),
                to: Bytes(0),
                host: HostPages::of(page_locked(number)),
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
    program
}

/// Copies from and to pageable memory take four times as long, hand-offs half a second, and so many bytes are staged.
fn staging(room: Option<u64>) -> HardwareProfile {
    let mut profile = profile();
    let four_times = Curve::new(vec![(1.0, 0.25)], "test", None).expect("a point");
    for link in [&mut profile.links.h2d, &mut profile.links.d2h] {
        link.pageable = Some(four_times.clone());
    }
    profile.compute.handoff = Some(Quantity::new(Seconds(0.5), "test"));
    profile.links.staged_ahead = room.map(|bytes| Quantity::new(Bytes(bytes), "test"));
    profile
}

/// When tasks end on such a machine, some of which are copies of pageable memory.
fn ends_staged(
    room: Option<u64>,
    tasks: &[(ResourceKind, u64, &[u32])],
    pageable: &[usize],
) -> Vec<f64> {
    let trace = run_of(&staging(room), tasks, |number| !pageable.contains(&number));
    ends(&trace)
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

/// A driver puts pageable memory into some of its own while the link carries other copies, as much as it has room for.
#[test]
fn copies_from_pageable_memory_are_staged_before_their_turn() {
    let tasks = [
        (H2d, 4, &[][..]),
        // Behind none of its kind, for 4 s: that much of its 16 s is over.
        (H2d, 4, &[]),
        // At once behind another.
        (H2d, 4, &[]),
        (H2d, 40, &[]),
        // For 40 s, but there is room for 3 bytes, of 4 s each.
        (H2d, 8, &[]),
        (H2d, 100, &[]),
        // The link has to carry it in any case.
        (H2d, 1, &[]),
    ];
    let ends = |room| ends_staged(room, &tasks, &[1, 2, 4, 6]);
    assert_eq!(ends(None), [4.0, 20.0, 36.0, 76.0, 108.0, 208.0, 212.0]);
    assert_eq!(ends(Some(3)), [4.0, 16.0, 32.0, 72.0, 92.0, 192.0, 193.0]);
}

/// What the host has yet to bring is not staged, nor what a stream has to issue behind it, nor what a copy down has only just brought.
#[test]
fn copies_are_staged_from_when_they_are_issued() {
    let tasks = [
        (DiskRead, 100, &[][..]),
        (H2d, 4, &[]),
        // The disk's bytes, half a second after they came.
        (H2d, 2, &[0]),
        // The copy in front of it was issued then only, so this one is staged for the 2 s since.
        (H2d, 4, &[]),
        (DiskRead, 50, &[]),
        (H2d, 40, &[]),
        // What the disk brought while the link was busy: for the 6 s since.
        (H2d, 8, &[4]),
        (D2h, 1, &[6]),
        (H2d, 1, &[7]),
    ];
    let ends = |room| ends_staged(room, &tasks, &[3, 6, 7, 8]);
    let unstaged = [100.0, 4.0, 102.5, 118.5, 150.0, 158.5, 190.5, 195.0, 199.5];
    assert_eq!(ends(None), unstaged);
    let staged = [100.0, 4.0, 102.5, 116.5, 150.0, 156.5, 182.5, 187.0, 191.5];
    assert_eq!(ends(Some(3)), staged);
}

/// Pieces that come one by one give the times of one that came whole.
#[test]
fn staging_goes_on_across_pieces() {
    let tasks = [
        (H2d, 4, &[][..]),
        (H2d, 4, &[]),
        (H2d, 40, &[]),
        (H2d, 8, &[]),
    ];
    let profile = staging(Some(3));
    let whole = run_of(&profile, &tasks, |number| number % 2 == 0);
    let machine = Machine::single_gpu(PerTier::from_fn(|_| Bytes(0)));
    let mut simulator = Simulator::new(&machine, CostModel::new(&profile, Dtype::F16));
    let mut first = TaskId(0);
    for (number, task) in tasks.iter().enumerate() {
        let piece = written(
            Program::numbered(first, BufferId(0)),
            &machine,
            &[*task],
            |_| number % 2 == 0,
        );
        first = piece.end_task();
        simulator.submit(Arc::new(piece)).expect("taken");
    }
    simulator.wait(Until::Idle).expect("ends");
    assert_eq!(ends(simulator.trace()), ends(&whole));
}

#[test]
fn delays_add_and_what_is_left_is_timed_again() {
    let mut profile = profile();
    let half = |beside| Contention {
        victim: H2d,
        beside,
        rate: Quantity::new(0.5, "test"),
        while_reading: None,
    };
    profile.contention = vec![half(D2h), half(DiskRead)];
    let trace = run(
        &profile,
        &[(H2d, 4, &[]), (D2h, 3, &[]), (DiskRead, 5, &[])],
    );
    // A third of the pace for 3 s, a half for 2 s, and then alone.
    assert_eq!(ends(&trace), [7.0, 3.0, 5.0]);
}

/// Beside a copy, one product that does nothing but read weights, and then one of so many rows that it reads for a part of its time.
#[test]
fn copies_wait_longer_beside_products_that_read_their_weights() {
    let mut profile = profile();
    let curve = |rate| Curve::new(vec![(1.0, rate)], "test", None).expect("a point");
    profile.compute.launch.value = Seconds::ZERO;
    profile.compute.weight_read = vec![WeightRead {
        dtype: Dtype::F16,
        rate: curve(1e9),
    }];
    let pair = |victim, beside| Contention {
        victim,
        beside,
        rate: Quantity::new(0.8, "test"),
        while_reading: Some(Quantity::new(0.5, "test")),
    };
    profile.contention = vec![pair(H2d, Gpu), pair(Gpu, H2d)];
    let model = registry::find("opt-1.3b").expect("registered");
    let cost = CostModel::of_model(&profile, &model, Dtype::F16);
    let machine = Machine::single_gpu(PerTier::from_fn(|_| Bytes(0)));
    let product = |m| Op::Linear {
        stage: Stage::Mlp,
        m,
        gemms: Gemms::new(&[Gemm { n: 8192, k: 8192 }]),
        position: 0,
        reused: false,
        compressed: false,
        packed_elements: 0,
    };
    let copy = Op::Move {
        bytes: Bytes(10),
        from: Bytes(0),
        to: Bytes(0),
        host: HostPages::Locked,
    };
    let mut program = Program::new();
    for (op, kind) in [(copy, H2d), (product(1), Gpu), (product(8192), Gpu)] {
        let op = program.op(op);
        program.push(NewTask {
            op,
            resource: machine.resource(kind, 0).expect("a resource"),
            cell: Cell::default(),
            deps: &[],
            args: &[],
            takes: &[],
            gives: &[],
        });
    }
    let gpu = machine.resources[usize::from(machine.resource(Gpu, 0).expect("one").0)];
    let [one_row, many] = [1, 8192].map(|m| cost.seconds(gpu, &product(m)).0);
    let read_s = 8192.0 * 8192.0 * 2.0 / 1e9;
    assert!((one_row / read_s - 1.0).abs() < 1e-9, "{one_row}");
    let share = read_s / many;
    assert!((0.1..0.9).contains(&share), "{share}");
    let mut simulator = Simulator::new(&machine, cost);
    simulator.submit(Arc::new(program)).expect("taken");
    simulator.wait(Until::Idle).expect("ends");
    let found = ends(simulator.trace());
    // Delays of 1 and a quarter.
    let of_many = 1.0 + 0.25 + 0.75 * share;
    let (first, second) = (2.0 * one_row, many * of_many);
    let expected = [10.0 + one_row + second - many, first, first + second];
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }
}
