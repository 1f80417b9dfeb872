//! Many rounds predicted from a few are as if all had been simulated.

mod common;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_core::lower::{LowerError, Lowering, check_kept};
use plimsoll_core::model::registry;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::summary::Summary;
use plimsoll_core::tier::PerTier;
use plimsoll_core::timing::Timing;
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;
use plimsoll_sim::{SimulateError, predict, simulate};

fn t4() -> HardwareProfile {
    embedded::profile("t4").expect("embedded")
}

fn plan(schedule: Schedule, barrier: bool, num_prompts: Option<u64>) -> Plan {
    let percent = [50.0, 50.0, 0.0, 100.0, 0.0, 100.0];
    let policy = Policy {
        schedule,
        barrier,
        cpu_attention: true,
        ..Policy::from_percent(2, 4, percent).expect("a policy")
    };
    let model = registry::find("opt-1.3b").expect("registered");
    let workload = Workload {
        prompt_len: 64,
        gen_len: 8,
        num_prompts,
    };
    common::plan(model, workload, policy)
}

/// Both within a share of each other.
fn close(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * a.abs().max(b.abs())
}

/// All rounds, simulated.
fn whole(plan: &Plan, profile: &HardwareProfile) -> Summary {
    let run = simulate(plan, profile).expect("fits");
    Summary::timed(&run, Timing::of_plan(plan, &run))
}

#[test]
fn a_few_rounds_stand_for_many() {
    let cases = [
        (Schedule::ZigZag, true, Some(8 * 12), 1e-3),
        // The last round has a batch that is not full.
        (Schedule::ZigZag, false, Some(8 * 9 + 3), 1e-3),
        (Schedule::Row, true, Some(2 * 20), 1e-3),
        // A block's rows are rounds of their own.
        (Schedule::Row, true, None, 1e-3),
        (Schedule::Diagonal, false, Some(8 * 11 + 5), 1e-2),
    ];
    for (schedule, barrier, prompts, share) in cases {
        let plan = plan(schedule, barrier, prompts);
        let few = predict(&plan, &t4()).expect("fits");
        let all = whole(&plan, &t4());
        let what = format!("{schedule:?} {prompts:?}: {few:?} and {all:?}");
        assert!(close(few.latency_s.0, all.latency_s.0, share), "{what}");
        let [some, every] = [&few, &all].map(|s| s.decode_s.expect("several tokens").0);
        assert!(close(some, every, 2.0 * share), "{what}");
        let (busy, whole) = (few.busy_fraction.gpu, all.busy_fraction.gpu);
        assert!(close(busy, whole, 2.0 * share), "{what}");
        assert_eq!(few.generated_tokens, all.generated_tokens, "{what}");
        assert_eq!(few.peak_bytes, all.peak_bytes, "{what}");
    }
}

/// Of one token nobody reads the cache, so that a disk that writes it falls behind round after round.
#[test]
fn a_disk_that_falls_behind_is_waited_for() {
    let percent = [100.0, 0.0, 16.0, 0.0, 100.0, 0.0];
    let mut plan = plan(Schedule::ZigZag, false, Some(16 * 40));
    plan.policy = Policy {
        barrier: false,
        ..Policy::from_percent(16, 1, percent).expect("a policy")
    };
    plan.workload.prompt_len = 512;
    plan.workload.gen_len = 1;
    plan.capacity_bytes = PerTier::from_fn(|_| Bytes(1 << 50));
    let predicted = predict(&plan, &t4()).expect("fits").latency_s;
    let simulated = simulate(&plan, &t4()).expect("fits").trace.makespan();
    assert!(
        close(predicted.0, simulated.0, 1e-9),
        "{predicted:?} and {simulated:?}"
    );
}

#[test]
fn what_is_too_much_for_one_program_has_a_prediction() {
    let plan = plan(Schedule::ZigZag, true, Some(1_000_000));
    let refused = simulate(&plan, &t4()).expect_err("too much");
    let too_much = matches!(refused, SimulateError::Lower(LowerError::TooMuch { .. }));
    assert!(too_much, "{refused}");
    let predicted = predict(&plan, &t4()).expect("rounds repeat");
    assert_eq!(predicted.generated_tokens, 8_000_000);
}

/// What is let go of piece by piece may be longer than what is kept.
#[test]
fn a_program_that_is_too_long_to_keep_can_be_streamed() {
    let mut plan = plan(Schedule::ZigZag, true, Some(8));
    plan.model.max_position_embeddings = 70_000;
    let long = |gen_len: u32, prompts: u64| {
        let mut long = plan.clone();
        long.workload.gen_len = gen_len;
        long.workload.num_prompts = Some(prompts);
        long.capacity_bytes = PerTier::from_fn(|_| Bytes(u64::MAX >> 8));
        long
    };
    let answers = |plan: &Plan| (Lowering::new(plan).is_ok(), check_kept(plan).is_ok());
    assert_eq!(answers(&long(100, 8)), (true, true));
    let streamed = long(60_000, 32);
    assert_eq!(answers(&streamed), (true, false));
    let said = simulate(&streamed, &t4())
        .expect_err("too long")
        .to_string();
    assert!(said.contains("keep no trace"), "{said}");
    let never = long(60_000, 8000);
    assert_eq!(answers(&never), (false, false));
    let said = check_kept(&never).expect_err("too long").to_string();
    assert!(said.contains("fewer prompts"), "{said}");
}

#[test]
fn the_whole_workload_must_fit() {
    let mut plan = plan(Schedule::ZigZag, true, Some(8 * 100));
    plan.capacity_bytes.host.0 -= 1;
    let refused = predict(&plan, &t4()).expect_err("prompts take room too");
    let does_not_fit = matches!(refused, SimulateError::Lower(LowerError::DoesNotFit { .. }));
    assert!(does_not_fit, "{refused}");
}

#[test]
fn stages_of_a_few_rounds_stand_for_those_of_many() {
    let profile = embedded::profile("t4x4").expect("embedded");
    let mut plan = plan(Schedule::ZigZag, false, Some(32 * 9 + 2));
    plan.policy.pipeline = Pipeline {
        stages: 4,
        micro_batches: 4,
        ..Pipeline::default()
    };
    plan.capacity_bytes = PerTier::from_fn(|_| Bytes(1 << 50));
    let few = predict(&plan, &profile).expect("fits");
    let all = whole(&plan, &profile);
    assert_eq!([few.stages.len(), all.stages.len()], [4, 4]);
    for (some, every) in few.stages.iter().zip(&all.stages) {
        for (some, every) in [
            (some.bubble, every.bubble),
            (some.prefill_bubble, every.prefill_bubble),
            (
                some.decode_bubble.expect("decodes"),
                every.decode_bubble.expect("decodes"),
            ),
            (some.busy_fraction.gpu, every.busy_fraction.gpu),
            (some.busy_fraction.peer_link, every.busy_fraction.peer_link),
        ] {
            assert!((some - every).abs() < 2e-3, "{some} and {every}: {few:?}");
        }
        assert_eq!(some.peak_bytes, every.peak_bytes);
    }
}

#[test]
fn a_type_without_rates_says_whose_it_has() {
    let mut plan = plan(Schedule::ZigZag, true, Some(8));
    let rates_of = |plan: &Plan| predict(plan, &t4()).expect("fits").rates_of;
    assert_eq!(rates_of(&plan), None);
    plan.dtype = Dtype::Bf16;
    assert_eq!(rates_of(&plan), Some(Dtype::F16));
    plan.workload.num_prompts = Some(8 * 30);
    plan.capacity_bytes = PerTier::from_fn(|_| Bytes(1 << 50));
    assert_eq!(rates_of(&plan), Some(Dtype::F16));
}
