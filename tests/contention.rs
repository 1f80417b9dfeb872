//! The profiler's fit of who slows whom against the simulator's rule: what one reads is what the other does.

use std::sync::Arc;

use plimsoll_backend::probe::contention;
use plimsoll_core::Dtype;
use plimsoll_core::control::Run;
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::hardware::{Contention, HardwareProfile, ProfileError, Quantity};
use plimsoll_core::program::{
    Cell, HostPages, Machine, NewTask, Op, Program, ResourceKind, TaskId,
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
    let found = contention(&simulate(false), &simulate(true));
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
