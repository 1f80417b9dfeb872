//! Where nothing fits, what is asked for is what is needed: with it a plan is found, and all that lacks is named.

use plimsoll::planner::{Allowed, Answer, Infeasible, Objective, Request, Strategy, search};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_core::model::registry;
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;

fn asked(prompt_len: u32, gen_len: u32, prompts: u64, allowed: Allowed) -> Request {
    Request {
        workload: Workload {
            prompt_len,
            gen_len,
            num_prompts: Some(prompts),
        },
        objective: Objective::Throughput,
        max_latency_s: None,
        allowed,
    }
}

/// A machine with so many bytes on device, host and disk.
fn machine(name: &str, [device, host, disk]: [u64; 3]) -> HardwareProfile {
    let profile = embedded::profile(name).expect("embedded");
    profile.with_capacities(Some(Bytes(device)), Some(Bytes(host)), Some(Bytes(disk)))
}

fn answer(profile: &HardwareProfile, model: &str, request: &Request) -> Answer {
    let model = registry::find(model).expect("registered");
    search(profile, &model, Dtype::F16, request).expect("a request")
}

fn infeasible(answer: Answer) -> Infeasible {
    match answer {
        Answer::Infeasible(infeasible) => *infeasible,
        other => panic!("{other:?}"),
    }
}

/// The machine with as much more as the nearest plan needs.
fn with_needs(profile: &HardwareProfile, needs: &PerTier<Bytes>) -> HardwareProfile {
    let (tiers, usable) = (&profile.tiers, profile.usable());
    let whole = PerTier {
        device: tiers.device_capacity_bytes.value,
        host: tiers.host_capacity_bytes.value,
        disk: tiers.disk_capacity_bytes.value,
    };
    let all = |tier: Tier| Some(whole[tier] + needs[tier].saturating_sub(usable[tier]));
    profile.with_capacities(all(Tier::Device), all(Tier::Host), all(Tier::Disk))
}

#[test]
fn a_machine_that_has_what_is_asked_for_has_a_plan() {
    let gb = |sizes: [u64; 3]| sizes.map(|gb| gb * 1_000_000_000);
    let on_cpu = |cpu_attention| Allowed {
        cpu_attention: Some(cpu_attention),
        ..Allowed::default()
    };
    let whole = Allowed::default();
    for (name, memory, model, request) in [
        (
            "rtx3090-flexgen",
            gb([16, 16, 0]),
            "qwen2.5-14b",
            asked(1, 32, 1, on_cpu(true)),
        ),
        (
            "rtx3090-flexgen",
            gb([16, 64, 200]),
            "bloom-176b",
            asked(1, 64, 1, whole),
        ),
        (
            "rtx4090",
            gb([24, 16, 5]),
            "llama-3-70b",
            asked(1, 2, 1, on_cpu(false)),
        ),
        (
            "t4-direct",
            gb([24, 64, 0]),
            "opt-66b",
            asked(1900, 1, 1, whole),
        ),
    ] {
        let small = machine(name, memory);
        let lacking = infeasible(answer(&small, model, &request));
        let enough = with_needs(&small, &lacking.nearest_needs);
        let found = answer(&enough, model, &request);
        assert!(
            matches!(found, Answer::Plan(_)),
            "{name} {model}: {found:?}"
        );
    }
}

/// Where every tier is full it takes tensors of the right sizes to fill them.
#[test]
fn a_machine_that_has_no_more_than_is_asked_for_has_a_plan() {
    for (name, model, memory, prompt_len) in [
        ("t4", "opt-1.3b", [0.55e9, 6.7e9, 0.45e9], 1),
        ("a10", "llama-3-8b", [0.55e9, 8e9, 0.45e9], 64),
        ("a10", "opt-6.7b", [0.55e9, 13e9, 4.9e9], 64),
    ] {
        let request = asked(prompt_len, 2, 2, Allowed::default());
        let small = machine(name, memory.map(|bytes| bytes as u64));
        let needs = infeasible(answer(&small, model, &request)).nearest_needs;
        let tiers = &small.tiers;
        let exact = machine(
            name,
            [
                (needs.device + tiers.device_reserved_bytes.value).0,
                (needs.host + tiers.host_reserved_bytes.value).0,
                needs.disk.0,
            ],
        );
        let found = answer(&exact, model, &request);
        assert!(
            matches!(found, Answer::Plan(_)),
            "{name} {model}: {found:?}"
        );
    }
}

#[test]
fn all_that_lacks_is_named() {
    let small = machine("a10", [1_000_000_000, 16_000_000_000, 50_000_000_000]);
    let lacking = infeasible(answer(
        &small,
        "bloom-176b",
        &asked(1, 1, 1, Allowed::default()),
    ));
    assert_eq!(lacking.also.len(), 2, "{:?}", lacking.also);
    let said = lacking.to_string();
    for tier in Tier::ALL.map(|tier| format!("the {tier} tier")) {
        assert!(said.contains(&tier), "no {tier} in {said}");
    }
}

/// What is split, too: its shares are those of what it page-locks.
#[test]
fn a_split_plan_lacks_something_where_there_is_none() {
    let split = Allowed {
        strategy: Strategy::HeteGen,
        compression: Compression::of(true, false),
        cpu_attention: Some(true),
        ..Allowed::default()
    };
    let machine = machine("t4", [2_776_743_936, 102_773_030_912, 200_000_000_000]);
    match answer(&machine, "opt-175b", &asked(64, 64, 2, split)) {
        Answer::Infeasible(lacking) => assert!(lacking.lacks() > Bytes::ZERO, "{lacking}"),
        Answer::Plan(_) => {}
        other => panic!("{other:?}"),
    }
}
