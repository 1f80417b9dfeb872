//! The profiler's fit of who slows whom against the simulator's rule: what one reads is what the other does.

use std::sync::Arc;

use plimsoll_backend::probe::contention;
use plimsoll_core::Dtype;
use plimsoll_core::control::Run;
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::hardware::{
    Contention, Curve, HardwareProfile, ProfileError, Quantity, WeightRead,
};
use plimsoll_core::model::registry;
use plimsoll_core::program::{
    Cell, Gemm, Gemms, HostPages, Machine, NewTask, Op, Program, ResourceKind, Stage, TaskId,
};
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::Bytes;
use plimsoll_sim::{CostModel, Simulator};

const PAIRS: [(ResourceKind, ResourceKind, f64); 4] = [
    (ResourceKind::H2d, ResourceKind::D2h, 0.6),
    (ResourceKind::H2d, ResourceKind::DiskRead, 0.45),
    (ResourceKind::D2h, ResourceKind::H2d, 0.8),
    (ResourceKind::DiskRead, ResourceKind::D2h, 0.5),
];

fn profile() -> HardwareProfile {
    let no_parent = |name: &str| Err(ProfileError::no_such_profile(name, []));
    let text = include_str!("golden/machine.toml");
    let mut profile = HardwareProfile::parse(text, "machine.toml", &no_parent).expect("a profile");
    let pair = |(victim, beside, rate)| Contention {
        victim,
        beside,
        rate: Quantity::new(rate, "made-up"),
        while_reading: None,
    };
    profile.contention = PAIRS.map(pair).to_vec();
    profile
}

/// Copies to the device one after the other, now and then another engine's beside them; or all of it one
/// by one.
fn moves(machine: &Machine, one_by_one: bool) -> Program {
    let mut program = Program::new();
    let mut push = |kind: ResourceKind, tens_of_mb: u64, after: Option<TaskId>| {
        let op = program.op(Op::Move {
            bytes: Bytes(tens_of_mb * 10_000_000),
            from: Bytes(0),
            to: Bytes(0),
            host: HostPages::Locked,
        });
        let before = program.end_task().0.checked_sub(1).map(TaskId);
        program.push(NewTask {
            op,
            resource: machine.resource(kind, 0).expect("a resource"),
            cell: Cell::default(),
            deps: if one_by_one { before } else { after }.as_slice(),
            args: &[],
            takes: &[],
            gives: &[],
        })
    };
    for index in 0..600 {
        let copied = push(ResourceKind::H2d, 20 + index % 7, None);
        if index % 2 == 0 {
            push(ResourceKind::D2h, 12 + index % 5, Some(copied));
        }
        if index % 3 == 0 {
            push(ResourceKind::DiskRead, 8 + index % 4, Some(copied));
        }
    }
    program
}

fn simulate(one_by_one: bool) -> Run {
    let machine = Machine::single_gpu(PerTier::from_fn(|_| Bytes(0)));
    let piece = Arc::new(moves(&machine, one_by_one));
    let mut simulator = Simulator::new(&machine, CostModel::new(&profile(), Dtype::F32));
    simulator.submit(Arc::clone(&piece)).expect("taken");
    simulator.wait(Until::Idle).expect("ends");
    Run {
        trace: simulator.trace().clone(),
        pieces: vec![piece],
        machine,
    }
}

#[test]
fn the_fit_gives_the_simulators_constants_back() {
    let found = contention(&simulate(false), &simulate(true), None);
    for (victim, beside, rate) in PAIRS {
        let pair = found
            .iter()
            .find(|c| c.victim == victim && c.beside == beside);
        let found = pair.map_or(1.0, |c| c.rate.value);
        assert!(
            (found - rate).abs() < 0.01,
            "{} beside {}: {found}, not {rate}",
            victim.name(),
            beside.name()
        );
    }
    assert_eq!(found.len(), PAIRS.len(), "{found:?}");
}

/// Copies beside products of one row, which read their weights all the while, and of many, which read them for a part of it.
fn products_and_copies(machine: &Machine, one_by_one: bool) -> Program {
    let mut program = Program::new();
    let mut push = |op: Op, kind: ResourceKind| {
        let op = program.op(op);
        let before = program.end_task().0.checked_sub(1).map(TaskId);
        program.push(NewTask {
            op,
            resource: machine.resource(kind, 0).expect("a resource"),
            cell: Cell::default(),
            deps: if one_by_one { before } else { None }.as_slice(),
            args: &[],
            takes: &[],
            gives: &[],
        });
    };
    for index in 0..900 {
        let product = Op::Linear {
            stage: Stage::Mlp,
            m: if index % 30 < 15 { 1 } else { 4096 },
            gemms: Gemms::new(&[Gemm { n: 4096, k: 4096 }]),
            position: 0,
            reused: false,
            compressed: false,
            packed_elements: 0,
        };
        push(product, ResourceKind::Gpu);
        if index % 3 == 0 {
            let copy = Op::Move {
                bytes: Bytes(400_000_000),
                from: Bytes(0),
                to: Bytes(0),
                host: HostPages::Locked,
            };
            push(copy, ResourceKind::H2d);
        }
    }
    program
}

#[test]
fn the_fit_tells_a_gpu_that_reads_from_one_that_computes() {
    use ResourceKind::{Gpu, H2d};
    let mut profile = profile();
    let rate = Curve::new(vec![(1.0, 2e8)], "made-up", None).expect("a point");
    let read = WeightRead {
        dtype: Dtype::F32,
        rate,
    };
    profile.compute.weight_read = vec![read.clone()];
    let pair = |victim, beside, [rate, reading]: [f64; 2]| Contention {
        victim,
        beside,
        rate: Quantity::new(rate, "made-up"),
        while_reading: Some(Quantity::new(reading, "made-up")),
    };
    let pairs = [pair(Gpu, H2d, [0.9, 0.6]), pair(H2d, Gpu, [0.8, 0.5])];
    profile.contention = pairs.to_vec();
    profile.validate().expect("numbers");
    let model = registry::find("opt-1.3b").expect("registered");
    let cost = CostModel::of_model(&profile, &model, Dtype::F32);
    let machine = Machine::single_gpu(PerTier::from_fn(|_| Bytes(0)));
    let run = |one_by_one| {
        let piece = Arc::new(products_and_copies(&machine, one_by_one));
        let mut simulator = Simulator::new(&machine, cost.clone());
        simulator.submit(Arc::clone(&piece)).expect("taken");
        simulator.wait(Until::Idle).expect("ends");
        Run {
            trace: simulator.trace().clone(),
            pieces: vec![piece],
            machine: machine.clone(),
        }
    };
    let all = model.weight_bytes(Dtype::F32).as_f64();
    let found = contention(&run(false), &run(true), Some((read, all)));
    for expected in pairs {
        let pair = found
            .iter()
            .find(|it| (it.victim, it.beside) == (expected.victim, expected.beside));
        let rates = |of: &Contention| [of.rate.value, of.while_reading.as_ref().unwrap().value];
        let (found, expected) = (rates(pair.expect("both")), rates(&expected));
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found - expected).abs() < 0.02, "{found}, not {expected}");
        }
    }
}
