//! HeteGen's plans: the better strategy is found and said, plans fit and run, and the alpha benchmark's curves
//! come into a profile.

mod common;

use common::{Place, SMALL, small_machine, tiny_opt};
use plimsoll::compare::compare;
use plimsoll::planner::split::{Modules, Prompts, Scheduler, by_law, greedys_loss, scheduled};
use plimsoll::planner::{Allowed, Answer, Objective, Planned, Request, Strategy, search};
use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Curve, HardwareProfile, embedded};
use plimsoll_core::lower::footprint;
use plimsoll_core::model::{ModelSpec, registry};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::split::{Route, SplitLinears};
use plimsoll_core::tier::Tier;
use plimsoll_core::units::{Bytes, BytesPerSecond};
use plimsoll_core::workload::Workload;
use plimsoll_sim::cost::CostModel;
use plimsoll_sim::{predict, simulate};

/// HeteGen section 5: one user, one prompt.
const ONE_PROMPT: Workload = Workload {
    prompt_len: 512,
    gen_len: 64,
    num_prompts: Some(1),
};

fn a10() -> HardwareProfile {
    embedded::profile("a10").expect("embedded")
}

fn model(name: &str) -> ModelSpec {
    registry::find(name).expect("registered")
}

fn request(strategy: Strategy) -> Request {
    Request {
        workload: ONE_PROMPT,
        objective: Objective::Throughput,
        max_latency_s: None,
        allowed: Allowed {
            strategy,
            ..Allowed::default()
        },
    }
}

fn answer(profile: &HardwareProfile, name: &str, strategy: Strategy) -> Answer {
    search(profile, &model(name), Dtype::F16, &request(strategy)).expect("a request")
}

fn planned(profile: &HardwareProfile, name: &str, strategy: Strategy) -> Planned {
    match answer(profile, name, strategy) {
        Answer::Plan(planned) => *planned,
        other => panic!("no plan: {other:?}"),
    }
}

fn with_device(bytes: f64) -> HardwareProfile {
    let mut profile = a10();
    profile.tiers.device_capacity_bytes.value = Bytes(bytes as u64);
    profile
}

#[test]
fn auto_is_the_better_of_both_and_keeps_the_other() {
    for (name, split) in [("opt-6.7b", false), ("opt-30b", true)] {
        let profile = a10();
        let [auto, flexgen, hetegen] = [Strategy::Auto, Strategy::FlexGen, Strategy::HeteGen]
            .map(|strategy| planned(&profile, name, strategy));
        let best = flexgen.throughput_tok_s.max(hetegen.throughput_tok_s);
        assert_eq!(auto.throughput_tok_s, best, "{name}");
        assert_eq!(auto.plan.policy.split.is_some(), split, "{name}");
        let other = auto.runner_up.expect("the other strategy's");
        assert_eq!(other.policy.split.is_some(), !split, "{name}");
        assert_eq!(auto.considered, flexgen.considered + hetegen.considered);
    }
}

#[test]
fn at_the_cpu_speed_that_the_paper_implies_the_gain_is_the_papers() {
    let profile = a10();
    let gain = |profile: &HardwareProfile| {
        let [split, whole] = [Strategy::HeteGen, Strategy::FlexGen]
            .map(|strategy| planned(profile, "opt-30b", strategy));
        split.throughput_tok_s / whole.throughput_tok_s
    };
    let found = gain(&profile);
    // 317 %, read as 3.17 times: the CPU's speed was taken from there, the rest was not.
    assert!((found / 3.17 - 1.0).abs() < 0.15, "{found}");
    let mut faster = profile.clone();
    for curve in &mut faster.compute.cpu_gemm {
        curve.rate = curve.rate.slower(|_| 65.1 / 95.1);
    }
    let read_otherwise = gain(&faster);
    println!("{found:.2} at 65.1 GB/s, {read_otherwise:.2} at 95.1 GB/s");
    assert!(read_otherwise > 1.15 * found, "{read_otherwise}");
}

#[test]
fn plans_fit_and_more_device_memory_is_never_slower() {
    let mut before = 0.0;
    for gigabytes in [5.0, 8.0, 12.0, 16.0, 24.0] {
        let planned = planned(&with_device(gigabytes * 1e9), "opt-13b", Strategy::HeteGen);
        let needed = footprint(&planned.plan).expect("a policy");
        for tier in Tier::ALL {
            assert!(needed[tier] <= planned.plan.capacity_bytes[tier], "{tier}");
        }
        let rate = planned.throughput_tok_s;
        println!("{gigabytes} GB: {rate:.2} tok/s");
        assert!(rate >= before, "{gigabytes} GB: {rate}, with less {before}");
        before = rate;
    }
}

/// The host has room for what the device does not hold, and for no more.
#[test]
fn modules_on_the_device_leave_the_host_room() {
    let profile = embedded::profile("rtx3090").expect("embedded");
    let found = planned(&profile, "llama-2-70b", Strategy::HeteGen);
    let needed = footprint(&found.plan).expect("a policy");
    for tier in Tier::ALL {
        assert!(needed[tier] <= found.plan.capacity_bytes[tier], "{tier}");
    }
    let mut without = found.plan.clone();
    let split = without.policy.split.as_mut().expect("a split");
    split.layers_on_device = Default::default();
    let needed = footprint(&without).expect("a policy").host;
    assert!(needed > without.capacity_bytes.host, "{needed}");
}

#[test]
fn what_cannot_be_is_said() {
    let tiny = with_device(1.5e9);
    let Answer::Infeasible(infeasible) = answer(&tiny, "opt-30b", Strategy::HeteGen) else {
        panic!("a plan of 30 billion in a gigabyte");
    };
    assert_eq!(infeasible.bound.tier(), Some(Tier::Device));
    assert!(infeasible.needed > infeasible.capacity);
    let fused = model("gpt-neox-20b");
    let profile = a10();
    let of = |strategy| search(&profile, &fused, Dtype::F16, &request(strategy));
    let said = of(Strategy::HeteGen).expect_err("refused").to_string();
    assert!(said.contains("fused query, key and value"), "{said}");
    let Ok(Answer::Plan(whole)) = of(Strategy::Auto) else {
        panic!("FlexGen's plans are there");
    };
    assert!(whole.plan.policy.split.is_none());
}

/// A split plan of a model on the card, before its shares are known.
fn open(name: &str, profile: &HardwareProfile) -> Plan {
    let policy = Policy {
        barrier: false,
        split: Some(SplitLinears::even(0.5)),
        ..Policy::from_percent(1, 1, [100.0, 0.0, 0.0, 100.0, 100.0, 0.0]).expect("a policy")
    };
    Plan::given(model(name), Dtype::F16, ONE_PROMPT, policy).on(profile)
}

#[test]
fn what_a_split_is_worth_is_told_both_ways() {
    let profile = a10();
    let [split, whole] = [Strategy::HeteGen, Strategy::FlexGen]
        .map(|strategy| planned(&profile, "opt-30b", strategy).plan);
    for (from, to) in [(&whole, &split), (&split, &whole)] {
        let walked = compare(&from.policy, to, &profile);
        let walked = walked.expect("plans").expect("it runs there");
        let rate = |plan: &Plan| predict(plan, &profile).expect("a plan").throughput_tok_s;
        assert!((walked.from_tok_s / rate(from) - 1.0).abs() < 1e-9);
        let last = walked.steps.last().expect("they differ");
        assert!((last.throughput_tok_s / rate(to) - 1.0).abs() < 1e-9);
        let said = walked.steps.iter().flat_map(|step| &step.changed);
        assert!(said.into_iter().any(|what| what.contains("split")));
    }
}

#[test]
fn the_greedy_scheduler_loses_little_and_without_one_much_is_lost() {
    let profile = a10();
    let plan = by_law(open("opt-30b", &profile), Prompts::Streamed, &profile);
    let modules = Modules::of(&plan, &profile);
    let candidates = modules.candidates(plan.model.num_hidden_layers);
    for gigabytes in [2, 7, 13, 19] {
        let loss = greedys_loss(&candidates, Bytes(gigabytes * 1_000_000_000));
        println!("{gigabytes} GB: greedy loses {:.3} %", loss * 100.0);
        assert!(loss < 0.03, "{gigabytes} GB: {loss}");
    }
    let rate = |scheduler| {
        let plan = scheduled(plan.clone(), &profile, scheduler).expect("solved");
        let summary = predict(&plan.expect("fits"), &profile).expect("runs");
        summary.throughput_tok_s
    };
    let [off, greedy, exact] = [Scheduler::Off, Scheduler::Greedy, Scheduler::Exact].map(rate);
    println!("no scheduler {off:.3}, greedy {greedy:.3}, exact {exact:.3} tok/s");
    assert!(greedy > 1.3 * off);
    assert!((exact / greedy - 1.0).abs() < 0.03);
}

#[test]
fn what_the_greedy_choice_loses_is_said_of_whatever_plan_is_split() {
    let place = Place::new();
    let asked = "plan --hw a10 --model opt-13b --num-prompts 1 --gen-len 16";
    let json = place.json(&format!("{asked} --strategy hetegen --format json"));
    let loss = &json["search"]["greedys_loss"];
    let share = loss["share_of_saving"].as_f64().expect("a number");
    assert!((0.0..0.03).contains(&share), "{share}");
    let exact = loss["exact_throughput_tok_s"].as_f64().expect("a number");
    let greedy = json["prediction"]["throughput_tok_s"].as_f64();
    assert!(
        (exact / greedy.expect("a number") - 1.0).abs() < 0.03,
        "{exact}"
    );
    let said = place.text(&format!("{asked} --strategy auto"));
    let line = format!(
        "{:.2}% less time saved a token than by the exact choice",
        100.0 * share
    );
    assert!(said.contains(&line), "{said}");
    let said = place.text(&format!("{asked} --strategy flexgen"));
    assert!(!said.contains("modules    "), "{said}");
}

/// `rtx4090` with a CPU that somebody measured, at so many bytes a second of weights for one token.
fn desktop(gb_s: f64) -> HardwareProfile {
    let mut profile = embedded::profile("rtx4090").expect("embedded");
    let mut curve = profile.compute.cpu_gemm[0].clone();
    curve.dtype = Dtype::F16;
    let points = vec![(1.0, gb_s * 1e9), (32.0, 32.0 * gb_s * 1e9)];
    curve.rate = Curve::new(points, curve.rate.source.clone(), None).expect("rates");
    profile.compute.cpu_gemm = vec![curve];
    profile
}

#[test]
fn where_host_memory_is_short_rows_do_not_pass_through_buffers() {
    let split = |profile: &HardwareProfile| {
        let plan = planned(profile, "qwen3-32b", Strategy::HeteGen).plan;
        (plan.policy.split.expect("split"), plan)
    };
    // What the CPU leaves is enough for copies from where weights are, and not to page-lock them first.
    let (direct, plan) = split(&desktop(60.0));
    assert_eq!(direct.route, Route::Direct);
    assert!(plan.policy.page_locked.weights && direct.share.up > 0.2);
    let mut through_buffers = plan.clone();
    through_buffers.policy.split = Some(SplitLinears {
        route: Route::Ahead,
        ..direct
    });
    through_buffers.policy.page_locked.weights = false;
    let rate = |plan: &Plan| {
        predict(plan, &desktop(60.0))
            .expect("it runs")
            .throughput_tok_s
    };
    assert!(rate(&plan) > 1.2 * rate(&through_buffers));
    // A CPU that leaves nothing computes all, and nothing is page-locked for next to nothing.
    let mut all_taken = embedded::profile("rtx4090").expect("embedded");
    all_taken.tiers.host_shared = Some(all_taken.tiers.host_bandwidth.clone());
    let (alone, plan) = split(&all_taken);
    assert_eq!(alone.share.up, 0.0);
    assert!(!plan.policy.page_locked.weights);
}

#[test]
fn what_locks_less_is_as_quick_where_that_is_asked() {
    let profile = a10();
    let mut asked = request(Strategy::HeteGen);
    asked.workload.num_prompts = Some(16);
    let latency = |objective: Objective| {
        let asked = Request { objective, ..asked };
        match search(&profile, &model("opt-13b"), Dtype::F16, &asked).expect("a request") {
            Answer::Plan(planned) => planned.latency_s.0,
            other => panic!("no plan: {other:?}"),
        }
    };
    let [quick, much] = [Objective::Latency, Objective::Throughput].map(latency);
    assert!(quick <= much / 0.98, "{quick} {much}");
}

#[test]
fn no_plan_of_a_published_machine_reads_host_memory_faster_than_it_is() {
    for (name, of) in [
        ("rtx4090", "opt-30b"),
        ("rtx3090", "opt-30b"),
        ("a10", "opt-66b"),
        ("h100", "llama-2-70b"),
    ] {
        let profile = embedded::profile(name).expect("embedded");
        let memory = profile.tiers.host_shared.clone().expect("stated").value.0;
        let plan = planned(&profile, of, Strategy::HeteGen).plan;
        let run = simulate(&plan, &profile).expect("it runs");
        let cost = CostModel::of_plan(&profile, &plan);
        let moved = run
            .tasks()
            .map(|(_, op, resource, _)| cost.host_traffic(run.machine.resources[resource], op));
        let rate = moved.sum::<f64>() / run.trace.makespan().0;
        println!("{name}: {:.1} of {:.1} GB/s", rate / 1e9, memory / 1e9);
        assert!(rate <= memory, "{name}: {rate}");
    }
}

#[test]
fn a_split_plan_is_written_read_simulated_and_run() {
    let place = Place::new();
    place.write("machine.toml", &small_machine(SMALL));
    let opt = tiny_opt();
    let asked = "--prompt-len 8 --gen-len 4 --num-prompts 2";
    let line =
        format!("plan --hw machine.toml --model {opt} {asked} --strategy hetegen -o plan.json");
    let said = place.text(&line);
    assert!(
        said.contains("split      nothing: the device has all linear layers whole\n"),
        "{said}"
    );
    assert!(said.contains("compute.cpu_gemm"), "{said}");
    let simulated = place.json("simulate --plan plan.json --hw machine.toml --format json");
    assert!(
        simulated["policy"]["split"]["share"]["up"]
            .as_f64()
            .expect("a share")
            > 0.0
    );
    place.text(&format!(
        "run --plan plan.json --model {opt} -o answers.jsonl"
    ));
    let answers = place.read("answers.jsonl");
    let whole = format!("run --hw machine.toml --model {opt} {asked} -o whole.jsonl");
    place.text(&whole);
    assert_eq!(answers, place.read("whole.jsonl"));
    let auto = format!("plan --hw machine.toml --model {opt} {asked} --strategy auto");
    let said = place.text(&auto);
    assert!(said.contains("strategy   "), "{said}");
    assert!(said.contains("'s best plan"), "{said}");
}

#[test]
fn the_alpha_benchmark_puts_curves_into_a_profile() {
    let place = Place::new();
    place.write("machine.toml", &small_machine(SMALL));
    let opt = tiny_opt();
    let line = format!(
        "alpha --model {opt} --around 0.04 --tokens 2 --hw machine.toml -o with.toml --format json"
    );
    let measured = place.json(&line);
    let modules = measured["modules"].as_array().expect("modules");
    assert_eq!(modules.len(), 6);
    for module in modules {
        let share = module["balance"]["share"].as_f64().expect("a share");
        assert!((0.0..=1.0).contains(&share), "{module}");
        assert_eq!(module["times"].as_array().expect("times").len(), 5);
    }
    let shown = place.text("hw show with.toml");
    assert!(shown.contains("compute.cpu_gemm"), "{shown}");
    assert!(shown.contains("links.page_lock"), "{shown}");
    let plan = format!(
        "plan --hw with.toml --model {opt} --prompt-len 8 --gen-len 4 --num-prompts 1 --strategy hetegen"
    );
    assert!(!place.text(&plan).contains("does not say how fast"));
    place.refused(&format!("alpha --model {opt} --step 0"), 2, &["--step"]);
    // What a CPU that is held back does is not the machine's.
    let held = format!("alpha --model {opt} --cpu-gb-s 1 --hw machine.toml -o with.toml");
    place.refused(&held, 2, &["--cpu-gb-s", "--output"]);
    place.refused(
        &format!("alpha --model {opt} --around -1"),
        2,
        &["--around"],
    );
}

#[test]
fn a_split_on_a_machine_whose_cpu_nobody_knows_has_no_interval() {
    let place = Place::new();
    let asked = "plan --model opt-13b --num-prompts 1 --strategy hetegen --format json";
    for (machine, whole) in [("t4", false), ("a10", true)] {
        let plan = place.json(&format!("{asked} --hw {machine}"));
        let profile = embedded::profile(machine).expect("embedded");
        assert_eq!(profile.knows_cpu_products(), whole, "{machine}");
        let prediction = &plan["prediction"];
        assert!(prediction["throughput_tok_s"].as_f64().is_some(), "{plan}");
        assert!(prediction["interval"].is_null(), "{machine}");
    }
    let unsplit = place.json("plan --model opt-13b --num-prompts 1 --hw t4 --format json");
    assert!(!unsplit["prediction"]["interval"].is_null());
}

#[test]
fn advice_knows_that_a_faster_cpu_helps_a_split() {
    let profile = a10();
    let planned = planned(&profile, "opt-30b", Strategy::HeteGen);
    let advice = planned.advice.expect("something helps");
    let mut faster = profile.clone();
    for curve in &mut faster.compute.cpu_gemm {
        curve.rate = curve.rate.slower(|_| 0.5);
    }
    let then = self::planned(&faster, "opt-30b", Strategy::HeteGen).throughput_tok_s;
    let gain = then / planned.throughput_tok_s;
    println!("{advice:?}; twice the CPU {gain:.2}");
    // The search may move the cache as well.
    assert!(
        gain > 1.3 && advice.gain >= gain * 0.97,
        "{advice:?}, {gain}"
    );
}

/// Only a larger host has room for a split, and only a larger device for the whole model.
#[test]
fn advice_of_auto_knows_plans_of_either_strategy() {
    let rtx4090 = embedded::profile("rtx4090").expect("embedded");
    let of = |profile: &HardwareProfile| planned(profile, "llama-2-70b", Strategy::Auto);
    let small = of(&rtx4090);
    assert!(small.plan.policy.split.is_none());
    let advice = small.advice.expect("a change helps");
    assert_eq!(advice.change, "twice the host memory");
    let twice = Bytes(2 * rtx4090.tiers.host_capacity_bytes.value.0);
    let large = of(&rtx4090.with_capacities(None, Some(twice), None));
    assert!(large.plan.policy.split.is_some());
    let gain = large.throughput_tok_s / small.throughput_tok_s;
    assert!(
        (advice.gain / gain - 1.0).abs() < 0.02,
        "{} and {gain}",
        advice.gain
    );

    // A model that the device all but holds, and with 8 GB more does.
    let small = a10().with_capacities(Some(Bytes(24_000_000_000)), None, None);
    let split = planned(&small, "opt-13b", Strategy::Auto);
    assert!(split.plan.policy.split.is_some());
    let large = a10().with_capacities(Some(Bytes(32_000_000_000)), None, None);
    let gain = planned(&large, "opt-13b", Strategy::Auto).throughput_tok_s / split.throughput_tok_s;
    let advice = split.advice.expect("a change helps");
    assert_eq!(advice.change, "8 GB more device memory");
    assert!(
        (advice.gain / gain - 1.0).abs() < 0.02,
        "{} and {gain}",
        advice.gain
    );
}

#[test]
fn auto_says_why_there_is_no_split() {
    let place = Place::new();
    let asked = "plan --hw a10 --num-prompts 1 --strategy auto --model";
    let fused = place.text(&format!("{asked} gpt-neox-20b"));
    assert!(
        fused.contains("hetegen has no plan") && fused.contains("fused query"),
        "{fused}"
    );
    let split = place.text(&format!("{asked} opt-30b"));
    assert!(
        split.contains("weights but split linear layers") || split.contains("next best"),
        "{split}"
    );
}

#[test]
fn throughput_over_device_memory_is_printed_and_drawn() {
    let place = Place::new();
    let asked = "pareto --x device-memory --hw a10 --model opt-6.7b --prompt-len 32 --gen-len 4";
    let found = place.json(&format!(
        "{asked} --systems hetegen,flexgen --format json -o m.svg -o m.csv"
    ));
    assert_eq!(found["points"].as_array().expect("points").len(), 48);
    let ranges = found["ranges"].as_array().expect("ranges");
    assert_eq!(ranges[0]["system"], "hetegen");
    assert!(ranges[0]["most_bytes"].as_u64() > ranges[0]["least_bytes"].as_u64());
    assert!(place.read("m.svg").contains("device memory"));
    assert_eq!(place.read("m.csv").lines().count(), 49);
    place.refused(
        &format!("{asked} --batches 2"),
        2,
        &["--batches", "one prompt"],
    );
}

#[test]
fn what_a_slower_cpu_multiplies_is_stated() {
    let profile = a10().with_cpu_products(BytesPerSecond(32.5e9));
    let curve = &profile.compute.cpu_gemm[0].rate;
    let known = &a10().compute.cpu_gemm[0].rate;
    assert!((curve.at(1.0) - 32.5e9).abs() < 1.0);
    assert_eq!(curve.peak(), known.peak());
}
