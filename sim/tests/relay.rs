//! Weights that are pageable pass through page-locked memory that is kept, where steps are those of code that does so.

mod common;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_core::model::registry;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::program::{HostPages, Op, ResourceKind};
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;
use plimsoll_sim::{CostModel, predict};

const WORKLOAD: Workload = Workload {
    prompt_len: 64,
    gen_len: 3,
    num_prompts: Some(4),
};

fn seconds(profile: &HardwareProfile, host: HostPages) -> f64 {
    let bytes = Bytes(1 << 24);
    let op = Op::Move {
        bytes,
        from: Bytes::ZERO,
        to: Bytes::ZERO,
        host,
    };
    let cost = CostModel::new(profile, Dtype::F16);
    cost.seconds(ResourceKind::H2d, &op).0
}

/// The T4, and the same where nobody told relayed copies from other pageable ones.
fn machines() -> [HardwareProfile; 2] {
    let t4 = embedded::profile("t4").expect("embedded");
    let mut unknown = t4.clone();
    unknown.links.h2d.relayed = None;
    [t4, unknown]
}

/// Weights on the host and the rest on the device, in FlexGen's steps.
fn policy(weights: bool) -> Policy {
    Policy {
        page_locked: PageLocked {
            weights,
            ..PageLocked::FLEXGEN
        },
        ..Policy::from_percent(4, 1, [0.0, 100.0, 100.0, 0.0, 100.0, 0.0]).expect("a policy")
    }
}

#[test]
fn a_relayed_copy_has_the_nearest_rate_that_is_known() {
    use HostPages::{Locked, Pageable, Relayed};
    let [t4, mut unknown] = machines();
    assert!(seconds(&t4, Locked) < seconds(&t4, Relayed));
    assert!(seconds(&t4, Relayed) < seconds(&t4, Pageable));
    assert_eq!(seconds(&unknown, Relayed), seconds(&unknown, Pageable));
    unknown.links.h2d.pageable = None;
    assert_eq!(seconds(&unknown, Relayed), seconds(&unknown, Locked));
}

#[test]
fn flexgens_pageable_weights_are_relayed_and_no_others() {
    let model = registry::find("opt-6.7b").expect("registered");
    let gains = |policy: Policy| {
        let plan = common::plan(model.clone(), WORKLOAD, policy);
        let [known, unknown] = machines().map(|machine| predict(&plan, &machine).expect("a plan"));
        unknown.latency_s.0 / known.latency_s.0
    };
    let flexgen = policy(false);
    let gain = gains(flexgen);
    assert!(gain > 1.5, "{gain}");
    for other in [
        policy(true),
        flexgen.in_whole_layers(),
        Policy {
            relayed_weights: false,
            ..flexgen
        },
        // No steps: who runs it copies as a driver does.
        Policy {
            barrier: false,
            ..flexgen
        },
    ] {
        assert_eq!(gains(other), 1.0, "{other:?}");
    }
}

#[test]
fn the_cache_is_not_relayed() {
    let model = registry::find("opt-1.3b").expect("registered");
    let policy =
        Policy::from_percent(4, 1, [100.0, 0.0, 0.0, 100.0, 100.0, 0.0]).expect("a policy");
    assert!(policy.relayed_weights && !policy.page_locked.cache);
    let plan = common::plan(model, WORKLOAD, policy);
    let [known, unknown] = machines().map(|machine| predict(&plan, &machine).expect("a plan"));
    assert_eq!(known.latency_s, unknown.latency_s);
}
