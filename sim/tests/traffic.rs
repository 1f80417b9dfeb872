//! Traffic of others on a machine's links, in modelled time.

use std::sync::Arc;

use plimsoll_core::Dtype;
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::hardware::{Contention, Curve, Quantity, WeightRead, embedded};
use plimsoll_core::machine::{Machine, ResourceKind};
use plimsoll_core::model::registry;
use plimsoll_core::program::{
    BufferId, Cell, Gemm, Gemms, HostPages, NewTask, Op, Program, Span, TaskId,
};
use plimsoll_core::traffic::{Background, Traffic, Ways};
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};
use plimsoll_sim::{CostModel, Simulator};

/// A program of one task.
fn alone(machine: &Machine, kind: ResourceKind, op: Op) -> Program {
    let mut piece = Program::numbered(TaskId(0), BufferId(0));
    let op = piece.op(op);
    piece.push(NewTask {
        op,
        resource: machine.resource(kind, 0).expect("one"),
        cell: Cell::default(),
        deps: &[],
        args: &[],
        takes: &[],
        gives: &[],
    });
    piece
}

/// When a move of so many bytes on a link ends that carries 1 GB/s, and when an idle clock that waits for 5 s does.
fn ends(kind: ResourceKind, bytes: Bytes, traffic: &Background) -> (f64, f64) {
    let cap = Some(BytesPerSecond(1e9));
    let mut profile = embedded::profile("t4")
        .expect("embedded")
        .with_link_cap(cap, cap);
    profile.links.h2d.latency.value = Seconds::ZERO;
    profile.links.d2h.latency.value = Seconds::ZERO;
    let machine = Machine::single_gpu(profile.usable());
    let cost = CostModel::new(&profile, Dtype::F16);
    let mut simulator = Simulator::new(&machine, cost).with_traffic(&machine, traffic);
    let copy = Op::Move {
        bytes,
        from: Bytes::ZERO,
        to: Bytes::ZERO,
        host: HostPages::Locked,
    };
    let piece = alone(&machine, kind, copy);
    simulator.submit(Arc::new(piece)).expect("taken");
    let end = simulator.wait(Until::Task(TaskId(0))).expect("it ends");
    let idle = simulator.wait(Until::Idle).expect("nothing is left");
    assert_eq!(end, idle, "traffic is no work");
    let later = simulator.wait(Until::Time(Seconds(5.0))).expect("a time");
    (end.0, later.0)
}

fn traffic(ways: Ways) -> Background {
    Background(vec![Traffic {
        from: Seconds(1.0),
        to: Seconds(3.0),
        rate: BytesPerSecond(0.75e9),
        ways,
    }])
}

#[test]
fn a_move_goes_slower_while_traffic_lasts() {
    for (gb, expected) in [(0.5, 0.5), (1.25, 2.0), (2.0, 3.5)] {
        let bytes = Bytes((gb * 1e9) as u64);
        for kind in [ResourceKind::H2d, ResourceKind::D2h] {
            let (end, later) = ends(kind, bytes, &traffic(Ways::Both));
            assert!((end - expected).abs() < 1e-9, "{kind:?}: {end} {expected}");
            assert_eq!(later, 5.0);
        }
        let (end, _) = ends(ResourceKind::D2h, bytes, &traffic(Ways::H2d));
        let alone = bytes.as_f64() / 1e9;
        // The other way is delayed only as far as the profile says of one beside the other.
        assert!(
            end >= alone - 1e-9 && end < expected.max(1.2 * alone),
            "{end}"
        );
    }
}

#[test]
fn simulator_and_definition_agree() {
    let both = traffic(Ways::Both);
    for bytes in [1e8, 9e8, 1.3e9, 2.5e9] {
        let bytes = Bytes(bytes as u64);
        let start = (Seconds::ZERO, bytes);
        let said = both.arrival(ResourceKind::H2d, start, BytesPerSecond(1e9));
        let (end, _) = ends(ResourceKind::H2d, bytes, &both);
        assert!((end - said.0).abs() < 1e-9, "{end} {said:?}");
    }
}

/// A served layer of one row reads its weights all the while: what half of a link takes from it is half of the delay beside a whole one.
#[test]
fn a_gpu_that_reads_loses_more_beside_traffic() {
    let cap = Some(BytesPerSecond(1e9));
    let mut profile = embedded::profile("t4")
        .expect("embedded")
        .with_link_cap(cap, cap);
    profile.compute.launch.value = Seconds::ZERO;
    let rate = Curve::new(vec![(1.0, 1e9)], "test", None).expect("a point");
    let dtype = Dtype::F16;
    profile.compute.weight_read = vec![WeightRead { dtype, rate }];
    profile.contention = vec![Contention {
        victim: ResourceKind::Gpu,
        beside: ResourceKind::H2d,
        rate: Quantity::new(0.8, "test"),
        while_reading: Some(Quantity::new(0.5, "test")),
    }];
    let model = registry::find("opt-1.3b").expect("registered");
    let machine = Machine::single_gpu(profile.usable());
    let layer = Op::Span(Span {
        layers: 1,
        gemms: Gemms::new(&[Gemm { n: 8192, k: 8192 }]),
        compressed: false,
        embeds: false,
        head: None,
        sequences: 1,
        tokens: 1,
        prompt_tokens: 0,
        prompt_pairs: 0,
        context_tokens: 0,
        q_size: 8192,
        kv_size: 8192,
        element_bytes: 2,
    });
    let half = Background(vec![Traffic {
        from: Seconds(0.0),
        to: Seconds(100.0),
        rate: BytesPerSecond(0.5e9),
        ways: Ways::Both,
    }]);
    let end = |traffic: &Background| {
        let cost = CostModel::of_model(&profile, &model, dtype);
        let mut simulator = Simulator::new(&machine, cost).with_traffic(&machine, traffic);
        let piece = alone(&machine, ResourceKind::Gpu, layer);
        simulator.submit(Arc::new(piece)).expect("taken");
        simulator.wait(Until::Idle).expect("it ends").0
    };
    let read_s = 8192.0 * 8192.0 * 2.0 / 1e9;
    for (traffic, expected) in [(Background::default(), read_s), (half, 1.5 * read_s)] {
        let found = end(&traffic);
        assert!(
            (found / expected - 1.0).abs() < 1e-9,
            "{found}, not {expected}"
        );
    }
}
