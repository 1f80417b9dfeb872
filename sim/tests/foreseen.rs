//! Iterations of swapped layers that are foreseen are those that are simulated layer by layer.

#[path = "common/requests.rs"]
mod requests;

use plimsoll_core::Dtype;
use plimsoll_core::control::follow;
use plimsoll_core::executor::Executor;
use plimsoll_core::hardware::{Quantity, embedded};
use plimsoll_core::machine::Machine;
use plimsoll_core::model::registry;
use plimsoll_core::serve::pie::{Adaptive, Lanes, Pie, Settings};
use plimsoll_core::serve::{
    IterationRow, Limits, Preemption, Request, Scheduler, ServeSummary, Shape, Vllm,
};
use plimsoll_core::traffic::Background;
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_sim::{CostModel, Simulator};
use proptest::prelude::*;
use requests::requests;

/// A machine, a model, the layers off the GPU (none: found), gigabytes of cache.
#[derive(Debug, Clone, Copy)]
struct Setting {
    hw: &'static str,
    model: &'static str,
    off: Option<u16>,
    kv_gb: f64,
    /// From a move to the layer that waited for it.
    handoff_s: f64,
}

/// Tries much within few iterations.
const RESTLESS: Settings = Settings {
    window: 3,
    stalled_max: 0.05,
    stalled_windows: 1,
    stalled_at_once: 1.0,
    stalled_growing_max: 0.1,
    early_min: 0.0,
    scaling_min: 0.0,
    probe_after: 40,
    trials_max: f64::INFINITY,
};

fn served(
    it: Setting,
    requests: &[Request],
    foreseen: bool,
) -> (ServeSummary, Vec<IterationRow>, usize) {
    let mut profile = embedded::profile(it.hw).expect("embedded");
    let source = &profile.compute.launch.source;
    profile.compute.handoff = Some(Quantity::new(Seconds(it.handoff_s), source));
    let model = registry::find(it.model).expect("registered");
    let machine = Machine::single_gpu(profile.usable());
    let cost = CostModel::new(&profile, Dtype::F16);
    let mut simulator = Simulator::new(&machine, cost);
    let shape = Shape::of(&model, Dtype::F16);
    let kv = Bytes((it.kv_gb * 1e9) as u64);
    let lanes = Lanes::of(&machine);
    let pie = match it.off {
        Some(off) => Pie::fixed(lanes, kv, &shape, off),
        None => Pie::adaptive(lanes, kv, &shape, Adaptive::new(shape.layers, RESTLESS)),
    };
    let limits = Limits {
        sequences: 64,
        tokens: 2048,
    };
    let tokens = kv.0 / shape.bytes_per_token().0;
    let manager = Box::new(Vllm::new(tokens, Preemption::Recompute));
    let mut scheduler = Scheduler::new(machine, shape, limits, manager, requests)
        .with_layers_swapped(pie)
        .logged();
    if foreseen {
        scheduler = scheduler.foreseeing(simulator.times());
    }
    follow(&mut scheduler, &mut simulator).expect("modelled time does not fail");
    let iterations = scheduler.iterations().to_vec();
    (scheduler.summary(0.1875), iterations, simulator.num_tasks())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn foreseen_iterations_are_the_simulated_ones(
        lengths in prop::collection::vec((1_u32..300, 1_u32..120), 2..40),
        gap in prop::sample::select(vec![0.0, 0.003, 0.2]),
        off in prop::option::of(0_u16..40),
        kv_gb in 0.3_f64..3.0,
        // Moves disturb each other on the second machine, and its link is slow.
        hw in prop::sample::select(vec!["gh200-vllm", "a100-80"]),
        model in prop::sample::select(vec!["opt-13b", "opt-1.3b"]),
        handoff_s in prop::sample::select(vec![0.0, 40e-6]),
    ) {
        let off = off.map(|off| if model == "opt-13b" { off } else { off / 2 });
        let setting = Setting { hw, model, off, kv_gb, handoff_s };
        let requests = requests(&lengths, gap);
        let (fast, fast_log, submitted) = served(setting, &requests, true);
        let (slow, slow_log, _) = served(setting, &requests, false);
        prop_assert_eq!(submitted, 0);
        prop_assert!(fast.completed > 0);
        prop_assert_eq!(fast, slow);
        prop_assert_eq!(fast_log, slow_log);
    }
}

#[test]
fn they_wait_for_their_caches_as_long() {
    let requests = requests(&[(160, 200); 60], 0.01);
    for hw in ["gh200-vllm", "a100-80"] {
        let setting = Setting {
            hw,
            model: "opt-13b",
            off: Some(36),
            kv_gb: 4.0,
            handoff_s: 30e-6,
        };
        let (fast, ..) = served(setting, &requests, true);
        let (slow, _, submitted) = served(setting, &requests, false);
        assert!(fast.layers.as_ref().expect("layers").stalled_s > 0.1 * fast.duration_s);
        assert!(submitted > 0);
        assert_eq!(fast, slow);
    }
}

#[test]
fn where_others_use_the_link_nobody_foresees() {
    let profile = embedded::profile("gh200").expect("embedded");
    let machine = Machine::single_gpu(profile.usable());
    let simulator = Simulator::new(&machine, CostModel::new(&profile, Dtype::F16));
    assert!(simulator.times().is_some());
    let traffic = Background(vec!["1..2:100".parse().expect("right")]);
    assert!(simulator.with_traffic(&machine, &traffic).times().is_none());
}
