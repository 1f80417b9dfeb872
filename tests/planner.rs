//! The planner's promises: its plans fit, beat given ones, keep limits, and say no with a reason.

use plimsoll::baseline::{Baseline, System};
use plimsoll::flexgen::BATCHES_MAX;
use plimsoll::planner::{
    Allowed, Answer, Bound, Flag, Kind, Objective, Outcome, Planned, Request, Strategy, Subject,
    Unasked, search, unasked,
};
use plimsoll_core::Dtype;
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_core::lower::{footprint, page_locked_bytes};
use plimsoll_core::model::{ModelSpec, registry};
use plimsoll_core::plan::{ChosenBy, Plan};
use plimsoll_core::policy::{PageLocked, Policy, Schedule};
use plimsoll_core::sparse::DENSE;
use plimsoll_core::tier::Tier;
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_core::workload::Workload;
use plimsoll_sim::{predict, simulate};
use proptest::prelude::*;

/// Plans so near to the best are as good to the planner, which takes the quickest of them.
const EQUAL: f64 = 1.002;

/// FlexGen's main experiment (section 6).
const FLEXGEN: Workload = Workload {
    prompt_len: 512,
    gen_len: 32,
    num_prompts: None,
};

fn t4() -> HardwareProfile {
    embedded::profile("t4").expect("embedded")
}

fn model(name: &str) -> ModelSpec {
    registry::find(name).expect("registered")
}

fn request(workload: Workload) -> Request {
    Request {
        workload,
        objective: Objective::Throughput,
        max_latency_s: None,
        allowed: Allowed::default(),
    }
}

fn planned(profile: &HardwareProfile, model: &ModelSpec, request: &Request) -> Planned {
    match search(profile, model, Dtype::F16, request).expect("a request") {
        Answer::Plan(planned) => *planned,
        other => panic!("no plan: {other:?}"),
    }
}

fn throughput(plan: &Plan) -> f64 {
    plan.prediction.as_ref().expect("judged").throughput_tok_s
}

fn assert_fits(plan: &Plan) {
    let needed = footprint(plan).expect("a policy");
    for tier in Tier::ALL {
        assert!(
            needed[tier] <= plan.capacity_bytes[tier],
            "{tier}: {needed:?} {:?}",
            plan.policy
        );
    }
}

/// A policy of FlexGen's with and without its barrier, where it fits.
fn baselines(
    planned: &Planned,
    size: u32,
    batches: u32,
    percent: [f64; 6],
    cpu: bool,
) -> Vec<Plan> {
    let policy = Policy::from_percent(size, batches, percent).expect("a policy");
    [true, false]
        .map(|barrier| Plan {
            policy: Policy {
                barrier,
                cpu_attention: cpu,
                ..policy
            },
            ..planned.plan.clone()
        })
        .into_iter()
        .filter(|plan| {
            let needed = footprint(plan).expect("a policy");
            Tier::ALL
                .into_iter()
                .all(|t| needed[t] <= plan.capacity_bytes[t])
        })
        .collect()
}

fn assert_not_worse(profile: &HardwareProfile, planned: &Planned, baselines: &[Plan]) {
    let best = throughput(&planned.plan);
    for baseline in baselines {
        let theirs = predict(baseline, profile).expect("fits").throughput_tok_s;
        assert!(
            best * EQUAL >= theirs,
            "{best} < {theirs}: {:?}",
            baseline.policy
        );
    }
}

#[test]
fn beats_flexgen_s_published_policy_for_opt_30b() {
    let profile = t4();
    let found = planned(&profile, &model("opt-30b"), &request(FLEXGEN));
    assert_fits(&found.plan);
    assert_eq!(found.plan.provenance.chosen_by, ChosenBy::Planner);
    let published = baselines(&found, 48, 3, [20.0, 80.0, 0.0, 100.0, 100.0, 0.0], true);
    assert_not_worse(&profile, &found, &published);
    let all_host = baselines(&found, 8, 8, [0.0, 100.0, 0.0, 100.0, 0.0, 100.0], false);
    assert!(!all_host.is_empty());
    assert_not_worse(&profile, &found, &all_host);
}

#[test]
fn opt_175b_uses_the_disk_and_beats_flexgen_s_published_policy() {
    let profile = t4();
    let found = planned(&profile, &model("opt-175b"), &request(FLEXGEN));
    assert_fits(&found.plan);
    assert!(
        found.plan.policy.weights.disk > 0.0,
        "{:?}",
        found.plan.policy
    );
    let published = baselines(&found, 32, 8, [0.0, 50.0, 0.0, 0.0, 0.0, 100.0], false);
    assert_not_worse(&profile, &found, &published);
}

/// What is promised is there, and little more.
#[test]
fn advice_is_what_a_plan_on_the_changed_machine_gains() {
    let found = planned(&t4(), &model("opt-175b"), &request(FLEXGEN));
    let advice = found.advice.as_ref().expect("something helps");
    assert_eq!(advice.change, "a disk of twice the rate");
    let mut faster = t4();
    for link in [&mut faster.links.disk_read, &mut faster.links.disk_write] {
        link.rate = link.rate.slower(|_| 0.5);
    }
    let there = planned(&faster, &model("opt-175b"), &request(FLEXGEN));
    let gain = throughput(&there.plan) / throughput(&found.plan);
    assert!(
        (advice.gain / gain - 1.0).abs() < 0.1,
        "{advice:?}: {gain:.3}"
    );
}

/// Weights in 4 bits and split layers are named with about what they bring, or less, and only where they were not asked for.
#[test]
fn flags_that_were_not_given_bring_what_is_said_of_them() {
    let (profile, model) = (t4(), model("opt-30b"));
    let subject = Subject {
        profile: &profile,
        model: &model,
        dtype: Dtype::F16,
    };
    for (prompts, limit) in [(4, None), (16, None), (16, Some(Seconds(240.0)))] {
        let workload = Workload {
            num_prompts: Some(prompts),
            ..FLEXGEN
        };
        let asked = Request {
            max_latency_s: limit,
            ..request(workload)
        };
        let found = planned(&profile, &model, &asked);
        let said = unasked(subject, &asked, &found).expect("no error of ours");
        let mut packed = asked;
        packed.allowed.compression.weights = true;
        let mut split = asked;
        split.allowed.strategy = Strategy::Auto;
        for (flag, given) in [(Flag::CompressWeight, packed), (Flag::SplitLayers, split)] {
            let of = |said: &[Unasked]| said.iter().find(|it| it.flag == flag).map(|it| it.gain);
            let promised = of(&said).unwrap_or_else(|| panic!("{prompts}: {flag:?} of {said:?}"));
            let there = planned(&profile, &model, &given);
            let gain = throughput(&there.plan) / throughput(&found.plan);
            assert!(
                (1.05..1.02 * gain).contains(&promised),
                "{prompts}, {flag:?}: {promised:.3}, {gain:.3}"
            );
            assert_eq!(of(&unasked(subject, &given, &there).expect("none")), None);
        }
    }
}

/// A plan with split layers is told of 4 bits too; one of many prompts is not told of splits, which are for few.
#[test]
fn flags_are_named_where_they_mean_something() {
    let profile = embedded::profile("rtx4090").expect("embedded");
    let model = model("opt-30b");
    let subject = Subject {
        profile: &profile,
        model: &model,
        dtype: Dtype::F16,
    };
    let named = |prompts: u64, strategy: Strategy| {
        let workload = Workload {
            num_prompts: Some(prompts),
            ..FLEXGEN
        };
        let mut asked = request(workload);
        asked.allowed.strategy = strategy;
        let found = planned(&profile, &model, &asked);
        let said = unasked(subject, &asked, &found).expect("no error of ours");
        said.iter().map(|it| it.flag).collect::<Vec<_>>()
    };
    assert!(named(1, Strategy::HeteGen).contains(&Flag::CompressWeight));
    assert!(!named(65, Strategy::FlexGen).contains(&Flag::SplitLayers));
}

fn t4_locking(most: Option<u64>) -> HardwareProfile {
    let mut profile = t4();
    let lockable = &mut profile.tiers.page_lockable_bytes;
    match most {
        Some(bytes) => lockable.as_mut().expect("known").value = Bytes(bytes),
        None => *lockable = None,
    }
    profile
}

#[test]
fn plans_page_lock_no_more_than_the_machine_is_known_to_let() {
    let found = |most: Option<u64>| {
        let profile = t4_locking(most);
        let found = planned(&profile, &model("opt-30b"), &request(FLEXGEN));
        assert_fits(&found.plan);
        let plan = found.plan;
        let locked = page_locked_bytes(&plan).expect("a plan").0;
        (throughput(&plan), plan.policy.page_locked, locked)
    };
    let (all, locked, bytes) = found(None);
    assert_eq!(locked, PageLocked::ALL);
    assert!(bytes > 200_000_000_000, "{bytes}");
    // Weights, and not the cache, to which the CPU attends.
    let (some, locked, bytes) = found(Some(64_000_000_000));
    assert_eq!(locked, PageLocked::FLEXGEN);
    assert!(bytes <= 64_000_000_000, "{bytes}");
    let (few, locked, bytes) = found(Some(20_000_000_000));
    assert!(!locked.weights || !locked.cache);
    assert!(bytes <= 20_000_000_000, "{bytes}");
    // Slots for what is on the disk are more than the activations that they displace.
    let (little, _, bytes) = found(Some(2_000_000_000));
    assert!(bytes <= 2_000_000_000, "{bytes}");
    // Of what is equally good the search does not see which is a thousandth better.
    assert!(
        all >= some && some > 0.999 * few && few > little,
        "{all} {some} {few} {little}"
    );
    // Prompts and results are there whatever may be locked.
    let answer = search(
        &t4_locking(Some(4096)),
        &model("opt-30b"),
        Dtype::F16,
        &request(FLEXGEN),
    );
    let Answer::Infeasible(why) = answer.expect("a request") else {
        panic!("its results have no room")
    };
    assert_eq!(why.bound, Bound::PageLocked);
    assert!(why.needed > why.capacity, "{why}");
    assert_eq!(why.nearest.policy.page_locked, PageLocked::NONE);
    let locked = page_locked_bytes(&why.nearest).expect("a plan");
    assert_eq!(locked, why.needed);
    // With as much, the nearest plan fits.
    planned(
        &t4_locking(Some(locked.0)),
        &model("opt-30b"),
        &request(FLEXGEN),
    );
    // Nothing is nothing but what copies pass through.
    let (none, locked, bytes) = found(Some(0));
    assert_eq!(locked, PageLocked::NONE);
    assert!(bytes > 0 && none < some, "{bytes} {none}");
}

/// The first tensor on disk has page-locked buffers to go through, of which the closed form knows a share only.
#[test]
fn a_disk_makes_no_plan_worse_where_little_may_be_page_locked() {
    let asked = request(Workload {
        num_prompts: Some(16),
        ..FLEXGEN
    });
    for lockable in [1_000_000, 10_000_000] {
        let profile = t4_locking(Some(lockable));
        let rate = |profile: &HardwareProfile| {
            throughput(&planned(profile, &model("opt-30b"), &asked).plan)
        };
        let without = profile.with_capacities(None, None, Some(Bytes(1_000_000)));
        let (with, without) = (rate(&profile), rate(&without));
        assert!(with >= 0.995 * without, "{with} {without}");
    }
}

/// A pass over half a layer needs half of what a whole one's weights need to come from the disk.
#[test]
fn half_layers_are_tried_where_whole_ones_page_lock_too_much() {
    let found = planned(
        &t4_locking(Some(2_600_000_000)),
        &model("opt-175b"),
        &request(FLEXGEN),
    );
    assert!(found.plan.policy.half_layers);
    let locked = page_locked_bytes(&found.plan).expect("a plan").0;
    assert!(locked <= 2_600_000_000, "{locked}");
}

/// One whose buffers are too many is no answer, however fast.
#[test]
fn split_plans_page_lock_no_more_either() {
    let auto = Request {
        allowed: Allowed {
            strategy: Strategy::Auto,
            ..Allowed::default()
        },
        ..request(FLEXGEN)
    };
    let hetegen = Request {
        allowed: Allowed {
            strategy: Strategy::HeteGen,
            ..Allowed::default()
        },
        ..auto
    };
    let alone = planned(&t4_locking(Some(520_000_000)), &model("opt-30b"), &hetegen);
    let locked = page_locked_bytes(&alone.plan).expect("a plan").0;
    assert!(locked <= 520_000_000, "{locked}");
    for most in [100_000_000, 400_000_000, 1_000_000_000] {
        let answer = search(
            &t4_locking(Some(most)),
            &model("opt-30b"),
            Dtype::F16,
            &auto,
        );
        if let Answer::Plan(found) = answer.expect("a request") {
            let locked = page_locked_bytes(&found.plan).expect("a plan").0;
            assert!(locked <= most, "{locked} of {most}");
        }
    }
}

/// FlexGen's code would need 85 GB for them.
#[test]
fn a_long_prompt_needs_no_room_for_all_its_scores() {
    let long = Workload {
        prompt_len: 32_000,
        gen_len: 100,
        num_prompts: Some(1),
    };
    let profile = embedded::profile("h100").expect("embedded");
    let found = planned(&profile, &model("mistral-7b"), &request(long));
    assert_fits(&found.plan);
    assert_eq!(found.plan.policy.weights.device, 1.0);
    let stored = Policy {
        stored_scores: true,
        barrier: true,
        ..found.plan.policy
    };
    let plan = Plan {
        policy: stored,
        ..found.plan
    };
    let needed = footprint(&plan).expect("a policy").device;
    // 32 heads, each with a score in 2 bytes of each token to each.
    assert!(needed.as_f64() > 32.0 * 32_000f64.powi(2) * 2.0, "{needed}");
}

/// Where weights come from the disk, a larger block is worth most (FlexGen appendix A.2.1).
#[test]
fn where_memory_binds_a_diagonal_holds_what_a_zigzag_cannot() {
    let workload = Workload {
        prompt_len: 64,
        gen_len: 256,
        num_prompts: None,
    };
    let mut plan = planned(&t4(), &model("opt-175b"), &request(workload)).plan;
    assert_fits(&plan);
    assert_eq!(plan.policy.schedule, Schedule::Diagonal);
    plan.policy.schedule = Schedule::ZigZag;
    let needed = footprint(&plan).expect("a policy");
    let over = |tier: Tier| needed[tier].as_f64() / plan.capacity_bytes[tier].as_f64();
    let most = Tier::ALL.map(over).into_iter().fold(0.0, f64::max);
    assert!(
        most > 1.2,
        "{most} of a tier as a zig-zag: {:?}",
        plan.policy
    );
}

#[test]
fn a_runner_up_fits_is_of_another_kind_and_not_better() {
    let found = planned(&t4(), &model("opt-30b"), &request(FLEXGEN));
    let second = found.runner_up.expect("more than one kind fits");
    assert_fits(&second);
    assert!(throughput(&second) <= throughput(&found.plan) * EQUAL);
    assert_ne!(Kind::of(&second.policy), Kind::of(&found.plan.policy));
}

#[test]
fn a_prediction_is_what_the_simulator_says_of_the_plan() {
    let profile = t4();
    for name in ["opt-6.7b", "opt-30b", "opt-175b"] {
        let found = planned(&profile, &model(name), &request(FLEXGEN));
        for plan in [Some(&found.plan), found.runner_up.as_ref()]
            .into_iter()
            .flatten()
        {
            let simulated = predict(plan, &profile).expect("fits");
            assert_eq!(plan.prediction.as_ref(), Some(&simulated), "{name}");
            // Predictions are made of programs that nobody verified.
            simulate(plan, &profile).expect("it verifies");
        }
    }
}

#[test]
fn a_device_of_one_gigabyte_is_infeasible_and_named() {
    let small = t4().with_capacities(Some(Bytes(1 << 30)), None, None);
    let answer = search(&small, &model("opt-30b"), Dtype::F16, &request(FLEXGEN));
    let Answer::Infeasible(why) = answer.expect("a request") else {
        panic!("it cannot fit")
    };
    assert_eq!(why.bound, Bound::Tier(Tier::Device));
    assert!(why.needed > why.capacity, "{why:?}");
    // The nearest plan fits where it says.
    let mut enough = small;
    enough.tiers.device_capacity_bytes.value =
        why.nearest_needs.device + enough.tiers.device_reserved_bytes.value;
    let answer = search(&enough, &model("opt-30b"), Dtype::F16, &request(FLEXGEN));
    assert!(matches!(answer, Ok(Answer::Plan(_))), "{answer:?}");
}

/// What one sequence takes on the device is then mostly the weights of the layers at hand.
#[test]
fn a_device_too_small_for_whole_layers_takes_half_layers() {
    let opt = model("opt-30b");
    let workload = Workload {
        num_prompts: Some(1),
        ..FLEXGEN
    };
    let bytes = |gb: f64| Some(Bytes((gb * 1e9) as u64));
    let small = embedded::profile("a10").expect("embedded");
    let small = small.with_capacities(bytes(2.5), None, None);
    let found = planned(&small, &opt, &request(workload));
    assert_fits(&found.plan);
    assert!(found.plan.policy.halves_layers(), "{:?}", found.plan.policy);
    let one_after_another = Request {
        allowed: Allowed {
            overlap: false,
            ..Allowed::default()
        },
        ..request(workload)
    };
    let found = planned(&small, &opt, &one_after_another);
    assert!(found.plan.policy.halves_layers(), "{:?}", found.plan.policy);
    let endless = Baseline::new(System::Plimsoll, &small, &opt, FLEXGEN).expect("a workload");
    assert!(endless.favourite().expect("a search").is_some());
    // Three sequences at a time fit, and four do not.
    let found = planned(&small, &opt, &request(FLEXGEN));
    assert_eq!(
        found.plan.policy.gpu_batch_size, 3,
        "{:?}",
        found.plan.policy
    );
    // Nor is it refused for a frontier, or slower there than a system that always takes them; where whole layers have room
    // as well, the plan is the better of both.
    for (name, gb) in [("opt-30b", 2.5), ("opt-13b", 2.0)] {
        let opt = model(name);
        let small = small.with_capacities(bytes(gb), None, None);
        let [ours, flexgen] = [System::Plimsoll, System::FlexGen].map(|system| {
            let blocks = Baseline::new(system, &small, &opt, workload).expect("a workload");
            match blocks.block(1).expect("a block") {
                Outcome::Fits(block) => block.throughput_tok_s,
                Outcome::DoesNotFit(excess) => panic!("{name}: {excess:?}"),
            }
        });
        assert!(ours > flexgen, "{name}: {ours} beside {flexgen}");
        let found = planned(&small, &opt, &request(workload));
        let policy = &found.plan.policy;
        assert!(policy.halves_layers(), "{name}: {policy:?}");
        assert!(throughput(&found.plan) > flexgen, "{name}: {policy:?}");
    }
}

/// Of a block whose GPU batches are three sequences, weights are read once for all of them.
#[test]
fn a_small_device_takes_more_gpu_batches_than_flexgen_would() {
    let opt = model("opt-30b");
    let small = embedded::profile("a10").expect("embedded");
    let small = small.with_capacities(Some(Bytes(2_500_000_000)), None, None);
    let found = planned(&small, &opt, &request(FLEXGEN));
    let policy = &found.plan.policy;
    assert!(policy.num_gpu_batches > BATCHES_MAX, "{policy:?}");
    let mut fewer = found.plan.clone();
    fewer.policy.num_gpu_batches = BATCHES_MAX;
    let fewer = predict(&fewer, &small).expect("a plan").throughput_tok_s;
    assert!(throughput(&found.plan) > 1.2 * fewer, "{fewer}");
    let flexgen = Baseline::new(System::FlexGen, &small, &opt, FLEXGEN).expect("a workload");
    for block in [20, 60] {
        let Outcome::Fits(block) = flexgen.block(block).expect("a block") else {
            panic!("{block} does not fit");
        };
        assert!(block.plan.policy.num_gpu_batches <= BATCHES_MAX);
    }
}

/// Whole layers have room in 4 bits, half layers as they are.
#[test]
fn what_may_be_compressed_makes_no_block_slower() {
    let small = t4().with_capacities(Some(Bytes(4_000_000_000)), None, None);
    let llama = model("llama-2-70b");
    for sequences in [5, 40, 80] {
        let [whole, packed] = [System::Plimsoll, System::Plimsoll4Bit].map(|system| {
            let blocks = Baseline::new(system, &small, &llama, FLEXGEN).expect("a workload");
            match blocks.block(sequences).expect("a block") {
                Outcome::Fits(block) => block.throughput_tok_s,
                Outcome::DoesNotFit(excess) => panic!("{sequences}: {excess:?}"),
            }
        });
        assert!(packed >= whole, "{sequences}: {packed} beside {whole}");
    }
}

/// Not that of the strategy that lacks more.
#[test]
fn of_both_strategies_the_nearest_plan_is_named() {
    let small = embedded::profile("a10").expect("embedded");
    let small = small.with_capacities(Some(Bytes(2_500_000_000)), None, None);
    let workload = Workload {
        num_prompts: Some(1),
        ..FLEXGEN
    };
    let strategies = [Strategy::FlexGen, Strategy::HeteGen, Strategy::Auto];
    let [whole, split, auto] = strategies.map(|strategy| {
        let asked = Request {
            allowed: Allowed {
                strategy,
                ..Allowed::default()
            },
            ..request(workload)
        };
        match search(&small, &model("llama-2-70b"), Dtype::F16, &asked).expect("a request") {
            Answer::Infeasible(why) => why.needed,
            other => panic!("it cannot fit: {other:?}"),
        }
    });
    assert!(split < whole, "{split} {whole}");
    assert_eq!(auto, split);
}

/// Where the tiers hold little more than the weights, whole tensors leave room for small blocks only.
#[test]
fn a_machine_that_is_barely_large_enough_has_a_plan() {
    let (host, disk) = (Bytes(8_000_000_000), Bytes(50_000_000_000));
    let tight = t4().with_capacities(None, Some(host), Some(disk));
    let found = planned(&tight, &model("opt-30b"), &request(FLEXGEN));
    assert_fits(&found.plan);
    let opt = model("opt-30b");
    let blocks = Baseline::new(System::Plimsoll, &tight, &opt, FLEXGEN).expect("a workload");
    let Outcome::Fits(four) = blocks.block(4).expect("a block") else {
        panic!("it fits")
    };
    let plan = throughput(&found.plan);
    assert!(plan > 0.99 * four.throughput_tok_s, "{plan}");
}

/// Short simulations tell diagonals of one kind apart badly; `plan` is not to fall behind the points of a frontier.
#[test]
fn no_block_of_a_frontier_is_much_better_than_the_plan() {
    let profile = embedded::profile("h100").expect("embedded");
    let opt = model("opt-66b");
    let found = planned(&profile, &opt, &request(FLEXGEN));
    let blocks = Baseline::new(System::Plimsoll, &profile, &opt, FLEXGEN).expect("a workload");
    let Outcome::Fits(block) = blocks.block(128).expect("a block") else {
        panic!("it fits")
    };
    let (plan, block) = (throughput(&found.plan), block.throughput_tok_s);
    assert!(plan > 0.99 * block, "{plan} beside {block}");
}

#[test]
fn weights_that_fit_nowhere_are_infeasible() {
    let small = t4().with_capacities(None, Some(Bytes(64 << 30)), Some(Bytes(64 << 30)));
    let answer = search(&small, &model("opt-175b"), Dtype::F16, &request(FLEXGEN));
    let Answer::Infeasible(why) = answer.expect("a request") else {
        panic!("it cannot fit")
    };
    assert!(why.needed > why.capacity, "{why}");
    let lacking = why.needed.saturating_sub(why.capacity).as_f64();
    assert!(lacking > 150e9 && lacking < 300e9, "{why}");
}

#[test]
fn a_latency_limit_is_kept_or_refused() {
    let (profile, model) = (t4(), model("opt-6.7b"));
    let free = planned(&profile, &model, &request(FLEXGEN));
    let latency = |plan: &Plan| plan.prediction.as_ref().expect("judged").latency_s;
    let limit = Seconds(latency(&free.plan).0 / 2.0);
    let hurried = Request {
        max_latency_s: Some(limit),
        ..request(FLEXGEN)
    };
    let found = planned(&profile, &model, &hurried);
    assert!(latency(&found.plan) <= limit);
    assert!(throughput(&found.plan) <= throughput(&free.plan) * EQUAL);
    // What keeps nothing out changes nothing.
    for factor in [1.0, 1.1, 2.0] {
        let unhurried = Request {
            max_latency_s: Some(Seconds(latency(&free.plan).0 * factor)),
            ..request(FLEXGEN)
        };
        let found = planned(&profile, &model, &unhurried);
        assert_eq!(found.plan, free.plan, "{factor}");
    }
    let impossible = Request {
        max_latency_s: Some(Seconds(1e-3)),
        ..request(FLEXGEN)
    };
    let answer = search(&profile, &model, Dtype::F16, &impossible).expect("a request");
    let Answer::TooSlow(fastest) = answer else {
        panic!("{answer:?}")
    };
    assert_fits(&fastest.plan);
}

/// Endless prompts, and so many.
#[test]
fn a_little_more_than_the_least_latency_is_never_too_short() {
    for (machine, name, num_prompts) in [
        ("t4", "opt-6.7b", None),
        ("t4", "opt-30b", None),
        ("t4", "opt-30b", Some(3)),
        ("t4x4", "opt-30b", None),
        ("t4x4", "opt-13b", Some(2)),
    ] {
        let profile = embedded::profile(machine).expect("embedded");
        let model = model(name);
        let workload = Workload {
            gen_len: 8,
            num_prompts,
            ..FLEXGEN
        };
        let soonest = Request {
            objective: Objective::Latency,
            ..request(workload)
        };
        let least = planned(&profile, &model, &soonest).latency_s;
        let limit = Seconds(least.0 * 1.001);
        let hurried = Request {
            max_latency_s: Some(limit),
            ..request(workload)
        };
        let found = planned(&profile, &model, &hurried);
        let what = format!("{name} on {machine}: {:?}", found.plan.policy);
        let prediction = found.plan.prediction.as_ref().expect("judged");
        assert!(prediction.latency_s <= limit, "{what}");
        assert_eq!(found.plan.workload, workload, "{what}");
        assert_fits(&found.plan);
    }
}

/// Of the blocks of one size, the best is a plan that the search under a limit of its time may find.
#[test]
fn a_limited_plan_is_about_as_good_as_the_best_block_that_is_in_time() {
    let (profile, model) = (t4(), model("opt-30b"));
    let ours = Baseline::new(System::Plimsoll, &profile, &model, FLEXGEN).expect("a workload");
    for sequences in [4, 16, 64] {
        let Outcome::Fits(block) = ours.block(sequences).expect("simulated") else {
            panic!("{sequences} sequences do not fit")
        };
        let hurried = Request {
            max_latency_s: Some(block.latency_s),
            ..request(FLEXGEN)
        };
        let found = planned(&profile, &model, &hurried);
        assert!(found.latency_s <= block.latency_s);
        let share = throughput(&found.plan) / block.throughput_tok_s;
        assert!(share > 0.98, "{share} of a block of {sequences}");
    }
}

/// Simulations of a part may be off by as much as the limit is away.
#[test]
fn a_limit_close_to_the_best_plan_s_time_costs_little() {
    let (profile, model) = (t4(), model("opt-30b"));
    let free = planned(&profile, &model, &request(FLEXGEN));
    for factor in [0.999, 1.001] {
        let limit = Seconds(free.latency_s.0 * factor);
        let hurried = Request {
            max_latency_s: Some(limit),
            ..request(FLEXGEN)
        };
        let found = planned(&profile, &model, &hurried);
        assert!(found.latency_s <= limit);
        let share = throughput(&found.plan) / free.throughput_tok_s;
        assert!(share > 0.95, "{share} at {factor} of its time");
    }
}

#[test]
fn what_is_not_allowed_is_not_decided() {
    let (profile, model) = (t4(), model("opt-13b"));
    let free = planned(&profile, &model, &request(FLEXGEN));
    for (cpu_attention, schedule, overlap) in [
        (Some(true), None, true),
        (Some(false), Some(Schedule::ZigZag), true),
        (None, Some(Schedule::Diagonal), true),
        (None, Some(Schedule::Row), true),
        (None, None, false),
    ] {
        let allowed = Allowed {
            cpu_attention,
            schedule,
            overlap,
            ..Allowed::default()
        };
        let limited = Request {
            allowed,
            ..request(FLEXGEN)
        };
        let found = planned(&profile, &model, &limited);
        assert_fits(&found.plan);
        let policy = &found.plan.policy;
        assert!(
            cpu_attention.is_none_or(|on| on == policy.cpu_attention),
            "{allowed:?}"
        );
        assert!(schedule.is_none_or(|s| s == policy.schedule), "{allowed:?}");
        assert_eq!(policy.overlap, overlap);
        assert!(
            throughput(&found.plan) <= throughput(&free.plan) * 1.02,
            "{allowed:?}"
        );
        assert!(
            throughput(&found.plan) >= throughput(&free.plan) * 0.7,
            "{allowed:?}"
        );
    }
}

#[test]
fn latency_of_endless_prompts_is_that_of_one() {
    let (profile, model) = (t4(), model("opt-13b"));
    let quick = Request {
        objective: Objective::Latency,
        ..request(FLEXGEN)
    };
    let found = planned(&profile, &model, &quick);
    assert_eq!(found.plan.policy.block_size(), 1);
    let percent = [40.0, 60.0, 100.0, 0.0, 100.0, 0.0];
    assert_not_worse(&profile, &found, &baselines(&found, 1, 1, percent, false));
}

#[test]
fn a_prompt_that_is_too_long_is_an_error() {
    let long = Workload {
        prompt_len: 5000,
        ..FLEXGEN
    };
    assert!(search(&t4(), &model("opt-30b"), Dtype::F16, &request(long)).is_err());
}

#[test]
fn the_same_request_has_the_same_answer() {
    let (profile, model) = (t4(), model("opt-6.7b"));
    let once = search(&profile, &model, Dtype::F16, &request(FLEXGEN)).expect("a request");
    assert_eq!(
        once,
        search(&profile, &model, Dtype::F16, &request(FLEXGEN)).expect("a request")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn no_plan_exceeds_a_tier_or_is_worse_than_a_pure_one(
        device_mib in 40u64..1500,
        host_mib in 0u64..3000,
        disk_mib in 0u64..6000,
        prompt_len in 1u32..300,
        gen_len in 1u32..20,
        num_prompts in proptest::option::of(1u64..60),
    ) {
        let reserved = t4();
        let usable = |mib: u64, reserved: Bytes| Some(Bytes(mib << 20) + reserved);
        let profile = reserved.with_capacities(
            usable(device_mib, reserved.tiers.device_reserved_bytes.value),
            usable(host_mib, reserved.tiers.host_reserved_bytes.value),
            Some(Bytes(disk_mib << 20)),
        );
        let model = model("opt-125m");
        let request = request(Workload { prompt_len, gen_len, num_prompts });
        match search(&profile, &model, Dtype::F16, &request).expect("a request") {
            Answer::Plan(found) => {
                assert_fits(&found.plan);
                for percent in [
                    [100.0, 0.0, 100.0, 0.0, 100.0, 0.0],
                    [0.0, 100.0, 0.0, 100.0, 0.0, 100.0],
                    [0.0, 100.0, 100.0, 0.0, 100.0, 0.0],
                    [0.0, 0.0, 0.0, 100.0, 100.0, 0.0],
                ] {
                    for (size, batches) in [(1, 1), (4, 2), (8, 4)] {
                        let given = baselines(&found, size, batches, percent, false);
                        assert_not_worse(&profile, &found, &given);
                    }
                }
            }
            Answer::Infeasible(why) => {
                assert!(why.needed > why.capacity, "{}", why.description);
            }
            Answer::TooSlow(_) => panic!("no limit was given"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(16) })]

    #[test]
    fn no_plan_page_locks_more_than_may_be(
        lockable_mib in 1u64..600,
        device_mib in 200u64..800,
        host_mib in 100u64..3000,
        (prompt_len, gen_len) in (1u32..300, 1u32..20),
        num_prompts in proptest::option::of(1u64..60),
        (in_pipeline, latency_s) in (any::<bool>(), proptest::option::of(1.0f64..30.0)),
    ) {
        let mut t4 = embedded::profile(if in_pipeline { "t4x4" } else { "t4" }).expect("embedded");
        t4.tiers.page_lockable_bytes.as_mut().expect("known").value = Bytes(lockable_mib << 20);
        let reserved = [&t4.tiers.device_reserved_bytes, &t4.tiers.host_reserved_bytes];
        let [device, host] = [(device_mib, reserved[0]), (host_mib, reserved[1])]
            .map(|(mib, reserved)| Some(Bytes(mib << 20) + reserved.value));
        let profile = t4.with_capacities(device, host, Some(Bytes(4 << 30)));
        let asked = Request {
            max_latency_s: latency_s.map(Seconds),
            allowed: Allowed { strategy: Strategy::Auto, ..Allowed::default() },
            ..request(Workload { prompt_len, gen_len, num_prompts })
        };
        let opt = model("opt-125m");
        let mut plans = Vec::new();
        if let Answer::Plan(found) | Answer::TooSlow(found) = search(&profile, &opt, Dtype::F16, &asked).expect("a request") {
            plans.extend(found.runner_up);
            plans.push(found.plan);
        }
        let endless = Workload { num_prompts: None, ..asked.workload };
        let blocks = Baseline::new(System::Plimsoll, &profile, &opt, endless).expect("a workload");
        if let Outcome::Fits(block) = blocks.block_or_split(4).expect("a block") {
            plans.push(block.plan);
        }
        for plan in plans {
            assert_fits(&plan);
            let locked = page_locked_bytes(&plan).expect("a plan");
            prop_assert!(locked <= Bytes(lockable_mib << 20), "{locked}: {:?}", plan.policy);
        }
    }
}

#[test]
fn sparse_attention_is_applied_as_asked_and_helps_where_the_cache_is_large() {
    let profile = t4();
    let dense = request(FLEXGEN);
    let sparse = Request {
        allowed: Allowed {
            sparse_attention: 0.1,
            ..Allowed::default()
        },
        ..dense
    };
    let [dense, sparse] = [dense, sparse].map(|r| planned(&profile, &model("opt-30b"), &r));
    assert_fits(&sparse.plan);
    assert_eq!(sparse.plan.policy.sparse_attention, 0.1);
    assert_eq!(dense.plan.policy.sparse_attention, DENSE);
    let gain = throughput(&sparse.plan) / throughput(&dense.plan);
    assert!(gain > 1.1, "{gain}");

    let none = Request {
        allowed: Allowed {
            sparse_attention: f64::NAN,
            ..Allowed::default()
        },
        ..request(FLEXGEN)
    };
    let error = search(&profile, &model("opt-30b"), Dtype::F16, &none).expect_err("no share");
    assert!(error.to_string().contains("sparse_attention"), "{error}");
}

#[test]
fn two_gpus_are_better_than_one_and_a_pipeline_of_them_fits() {
    let mut two = embedded::profile("t4x4").expect("embedded");
    two.cluster.as_mut().expect("a cluster").hosts.value = 2;
    let model = model("opt-6.7b");
    let workload = Workload {
        gen_len: 8,
        ..FLEXGEN
    };
    let alone = planned(&t4(), &model, &request(workload));
    let planned = planned(&two, &model, &request(workload));
    assert_fits(&planned.plan);
    let pipeline = planned.plan.policy.pipeline;
    assert_eq!((pipeline.stages, pipeline.stages_per_host), (2, 1));
    assert!(pipeline.micro_batches >= 2, "{pipeline:?}");
    let gain = throughput(&planned.plan) / throughput(&alone.plan);
    assert!(gain > 1.2, "{gain}: {:?}", planned.plan.policy);
    assert!(planned.considered > alone.considered);
    let again = predict(&planned.plan, &two).expect("simulates");
    assert_eq!(Some(again), planned.plan.prediction);
}
