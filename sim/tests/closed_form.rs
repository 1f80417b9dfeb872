//! The closed form and the simulator agree where nothing shares anything with anything.

mod common;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_core::lower::page_locked_bytes;
use plimsoll_core::model::{ModelSpec, registry};
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Granularity, PageLocked, Policy, Schedule};
use plimsoll_core::program::ResourceKind;
use plimsoll_core::sparse::DENSE;
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Seconds;
use plimsoll_core::workload::Workload;
use plimsoll_sim::closed_form::ClosedForms;
use plimsoll_sim::predict;

use common::plan;

const WORKLOAD: Workload = Workload {
    prompt_len: 512,
    gen_len: 16,
    num_prompts: None,
};

fn quiet_t4() -> HardwareProfile {
    let mut profile = embedded::profile("t4").expect("embedded");
    profile.contention.clear();
    profile
}

fn model(name: &str) -> ModelSpec {
    registry::find(name).expect("registered")
}

fn policy(gbs: u32, batches: u32, percent: [f64; 6], cpu_attention: bool) -> Policy {
    Policy {
        barrier: false,
        granularity: Granularity::Spread,
        cpu_attention,
        ..Policy::from_percent(gbs, batches, percent).expect("a policy")
    }
}

/// Closed form over simulation, of prefill, of decode and of both.
struct Ratios {
    prefill: f64,
    decode: f64,
    latency: f64,
    /// Whether in prefill and in decode one resource has half as much again to do as any other.
    dominated: bool,
}

fn ratios(name: &str, policy: Policy) -> Ratios {
    ratios_of(model(name), policy)
}

fn ratios_of(model: ModelSpec, policy: Policy) -> Ratios {
    let profile = quiet_t4();
    let plan = plan(model, WORKLOAD, policy);
    let forms = ClosedForms::new(
        &profile,
        (&plan.model, &Pipeline::default()),
        plan.dtype,
        WORKLOAD,
        (&[policy.compression], policy.sparse_attention),
    )
    .expect("a workload");
    let expected = forms.form(&policy).evaluate(&policy);
    let simulated = predict(&plan, &profile).expect("fits its footprint");
    let dominated = |terms: [(ResourceKind, Seconds); 6]| {
        let mut busy = terms.map(|(_, seconds)| seconds.0);
        busy.sort_by(f64::total_cmp);
        busy[5] > 1.5 * busy[4]
    };
    Ratios {
        prefill: expected.prefill_s.0 / simulated.prefill_s.0,
        decode: expected.decode_s.0 / simulated.decode_s.expect("several tokens").0,
        latency: expected.latency_s.0 / simulated.latency_s.0,
        dominated: dominated(expected.prefill_terms) && dominated(expected.decode_terms),
    }
}

/// (model, GPU batch size, GPU batches, percent as FlexGen writes them, attention on the CPU)
type Case = (&'static str, u32, u32, [f64; 6], bool);

const CASES: [Case; 21] = [
    // One kind of tensor in one place.
    ("opt-30b", 8, 4, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0], false),
    ("opt-30b", 8, 4, [0.0, 100.0, 100.0, 0.0, 100.0, 0.0], false),
    (
        "opt-30b",
        32,
        1,
        [0.0, 100.0, 100.0, 0.0, 100.0, 0.0],
        false,
    ),
    ("opt-30b", 8, 4, [0.0, 0.0, 100.0, 0.0, 100.0, 0.0], false),
    (
        "opt-30b",
        32,
        8,
        [0.0, 100.0, 0.0, 100.0, 100.0, 0.0],
        false,
    ),
    ("opt-30b", 32, 8, [0.0, 100.0, 0.0, 100.0, 100.0, 0.0], true),
    ("opt-30b", 16, 4, [0.0, 100.0, 0.0, 0.0, 100.0, 0.0], false),
    ("opt-30b", 16, 4, [0.0, 100.0, 0.0, 0.0, 100.0, 0.0], true),
    (
        "opt-30b",
        16,
        8,
        [0.0, 100.0, 100.0, 0.0, 0.0, 100.0],
        false,
    ),
    ("opt-30b", 16, 8, [100.0, 0.0, 100.0, 0.0, 0.0, 0.0], false),
    (
        "opt-30b",
        64,
        1,
        [0.0, 100.0, 100.0, 0.0, 0.0, 100.0],
        false,
    ),
    // Too few batches to hide the CPU's attention.
    ("opt-30b", 4, 1, [100.0, 0.0, 0.0, 100.0, 100.0, 0.0], true),
    ("opt-30b", 4, 2, [100.0, 0.0, 0.0, 100.0, 100.0, 0.0], true),
    ("opt-30b", 4, 1, [0.0, 100.0, 0.0, 100.0, 100.0, 0.0], true),
    // FlexGen's published policies for OPT-30B and OPT-175B, and mixtures.
    ("opt-30b", 48, 3, [20.0, 80.0, 0.0, 100.0, 100.0, 0.0], true),
    ("opt-175b", 32, 8, [0.0, 50.0, 0.0, 0.0, 0.0, 100.0], false),
    ("opt-175b", 32, 8, [0.0, 50.0, 0.0, 100.0, 0.0, 100.0], true),
    (
        "opt-175b",
        16,
        8,
        [10.0, 40.0, 20.0, 80.0, 100.0, 0.0],
        true,
    ),
    // The link, and the disk.
    ("opt-175b", 8, 4, [0.0, 0.0, 0.0, 100.0, 100.0, 0.0], true),
    (
        "opt-175b",
        4,
        8,
        [0.0, 100.0, 0.0, 100.0, 100.0, 0.0],
        false,
    ),
    (
        "llama-2-70b",
        16,
        4,
        [0.0, 100.0, 0.0, 100.0, 100.0, 0.0],
        false,
    ),
];

#[test]
fn agrees_with_the_simulator() {
    let near = |ratio: f64, tolerance: f64| (ratio - 1.0).abs() < tolerance;
    let mut dominated = 0;
    for (name, size, batches, percent, cpu_attention) in CASES {
        let Ratios {
            prefill,
            decode,
            latency,
            dominated: by_one,
        } = ratios(name, policy(size, batches, percent, cpu_attention));
        let case = format!(
            "{name} {size}x{batches} {percent:?} {cpu_attention}: prefill {prefill:.3}, decode \
             {decode:.3}, both {latency:.3} of the simulator's{}",
            if by_one {
                ", one resource dominates"
            } else {
                ""
            }
        );
        eprintln!("{case}");
        assert!(
            near(prefill, 0.1) && near(decode, 0.1) && near(latency, 0.1),
            "{case}"
        );
        if by_one {
            dominated += 1;
            assert!(near(latency, 0.02), "{case}");
        }
    }
    assert!(
        dominated > 5,
        "few cases are dominated by one resource: {dominated}"
    );
}

/// Where the CPU attends, it decides decode; through a window it has less to read, and less to pick from.
#[test]
fn agrees_where_a_window_slides() {
    let windowed = ModelSpec {
        sliding_window: Some(128),
        ..model("mistral-7b")
    };
    let cpu = policy(32, 8, [100.0, 0.0, 0.0, 100.0, 100.0, 0.0], true);
    for share in [DENSE, 0.2] {
        let policy = Policy {
            sparse_attention: share,
            ..cpu
        };
        let decode = |model: &ModelSpec| {
            let plan = plan(model.clone(), WORKLOAD, policy);
            predict(&plan, &quiet_t4())
                .expect("fits")
                .decode_s
                .expect("several tokens")
                .0
        };
        let (seen, all) = (decode(&windowed), decode(&model("mistral-7b")));
        assert!(seen < 0.7 * all, "{seen} of {all}");
        let found = ratios_of(windowed.clone(), policy);
        let (prefill, decode) = (found.prefill, found.decode);
        let case = format!("share {share}: prefill {prefill:.3}, decode {decode:.3}");
        assert!(
            (prefill - 1.0).abs() < 0.1 && (decode - 1.0).abs() < 0.1,
            "{case}"
        );
    }
}

/// Where values are collected a batch's path is long, and several engines have their part of it.
#[test]
fn agrees_where_attention_is_sparse() {
    for (name, size, batches, percent, _) in CASES {
        for (share, barrier, cpu_attention, tolerance) in [
            (0.1, false, false, 0.05),
            (0.1, false, true, 0.05),
            (0.5, false, false, 0.05),
            (0.1, true, false, 0.3),
        ] {
            let sparse = Policy {
                sparse_attention: share,
                barrier,
                // A step of the closed form is a layer; of halves it may miss a third here.
                half_layers: false,
                ..policy(size, batches, percent, cpu_attention)
            };
            let found = ratios(name, sparse);
            let case = format!(
                "{name} {size}x{batches} {percent:?} share {share}, barrier {barrier}, CPU \
                 {cpu_attention}: {:.3} of the simulator's decode, {:.3} of both",
                found.decode, found.latency
            );
            eprintln!("{case}");
            assert!((found.decode - 1.0).abs() < tolerance, "{case}");
        }
    }
}

#[test]
fn without_overlap_moves_wait_for_computation() {
    let serial = Policy {
        overlap: false,
        ..policy(16, 4, [0.0, 50.0, 0.0, 50.0, 100.0, 0.0], true)
    };
    let ratio = ratios("opt-30b", serial).latency;
    assert!((ratio - 1.0).abs() < 0.05, "{ratio}");
}

/// With a barrier, a step waits for the longest of its chains, which shares do not decide linearly: the
/// closed form is then no better than a quarter. The planner's own plans have a barrier in half layers only.
#[test]
fn with_a_barrier_it_is_within_a_quarter() {
    for (name, size, batches, percent, cpu_attention) in CASES {
        let barrier = Policy {
            barrier: true,
            ..policy(size, batches, percent, cpu_attention)
        };
        let Ratios {
            prefill, decode, ..
        } = ratios(name, barrier);
        let near = |ratio: f64| (ratio - 1.0).abs() < 0.25;
        let case = format!("{name} {size}x{batches} {percent:?} {prefill:.3} {decode:.3}");
        assert!(near(prefill) && near(decode), "{case}");
    }
}

#[test]
fn memory_is_close_to_the_footprint_and_exact_for_pure_placements() {
    let cases: [(Case, f64); 5] = [
        (
            ("opt-30b", 16, 4, [0.0, 100.0, 0.0, 0.0, 100.0, 0.0], true),
            1e-3,
        ),
        (
            ("opt-175b", 32, 8, [100.0, 0.0, 0.0, 100.0, 0.0, 0.0], false),
            1e-3,
        ),
        (
            (
                "llama-2-70b",
                12,
                3,
                [0.0, 0.0, 100.0, 0.0, 0.0, 100.0],
                true,
            ),
            1e-3,
        ),
        (
            ("opt-30b", 48, 3, [20.0, 80.0, 0.0, 100.0, 100.0, 0.0], true),
            0.05,
        ),
        (
            ("opt-30b", 16, 4, [30.0, 30.0, 30.0, 30.0, 30.0, 30.0], true),
            0.05,
        ),
    ];
    // Dense, with sparse attention, and in half layers with FlexGen's workspaces and without.
    let variants = [
        (1.0, false, true, true),
        (0.1, false, true, true),
        (1.0, true, true, true),
        (1.0, true, false, true),
        (1.0, true, false, false),
    ];
    let variants = cases
        .into_iter()
        .flat_map(|case| variants.map(|variant| (case, variant)));
    for (((name, size, batches, percent, cpu_attention), tolerance), variant) in variants {
        let (sparse_attention, barrier, cache_workspace, stored_scores) = variant;
        let policy = Policy {
            sparse_attention,
            barrier,
            cache_workspace,
            stored_scores,
            ..policy(size, batches, percent, cpu_attention)
        };
        let forms = ClosedForms::new(
            &quiet_t4(),
            (&model(name), &Pipeline::default()),
            Dtype::F16,
            WORKLOAD,
            (&Compression::ALL, policy.sparse_attention),
        );
        let forms = forms.expect("a workload");
        let form = forms.form(&policy);
        let plan = plan(model(name), WORKLOAD, policy);
        let footprint = plan.capacity_bytes;
        for tier in Tier::ALL {
            let (expected, needed) = (form.memory()[tier].at(&policy), footprint[tier].as_f64());
            // A few pages of the smallest buffers are nobody's concern.
            let close = (expected - needed).abs() < tolerance * needed + 1e6;
            assert!(close, "{name} {percent:?} {tier}: {expected} for {needed}");
        }
        assert_locks_as_much(&forms, &plan, tolerance);
    }
}

/// Whichever homes are page-locked: what is left are slots, which count as well.
fn assert_locks_as_much(forms: &ClosedForms, plan: &Plan, tolerance: f64) {
    for bits in 0..8 {
        let page_locked = PageLocked {
            weights: bits & 1 > 0,
            cache: bits & 2 > 0,
            activations: bits & 4 > 0,
        };
        let policy = Policy {
            page_locked,
            ..plan.policy
        };
        let plan = Plan {
            policy,
            ..plan.clone()
        };
        let (expected, locked) = (
            forms.form(&policy).page_locked().at(&policy),
            page_locked_bytes(&plan).expect("a plan").as_f64(),
        );
        // Whole tensors of half a layer are coarser than those of all: slots are off by more than all of the host is.
        let host = plan.capacity_bytes.host.as_f64();
        let close = (expected - locked).abs() < tolerance * host.min(10.0 * locked) + 1e6;
        assert!(
            close,
            "{} {policy:?}: {expected} for {locked}",
            plan.model.name
        );
    }
}

/// The same of a diagonal schedule, whose GPU batches share pages of the cache.
#[test]
fn memory_of_a_diagonal_is_that_of_its_footprint() {
    let cases: [Case; 4] = [
        ("opt-30b", 16, 4, [0.0, 100.0, 0.0, 100.0, 100.0, 0.0], true),
        ("opt-30b", 16, 5, [0.0, 100.0, 0.0, 0.0, 100.0, 0.0], false),
        ("opt-175b", 8, 16, [0.0, 0.0, 100.0, 0.0, 100.0, 0.0], false),
        (
            "llama-2-70b",
            12,
            20,
            [0.0, 100.0, 0.0, 100.0, 0.0, 100.0],
            true,
        ),
    ];
    let workload = Workload {
        gen_len: 128,
        ..WORKLOAD
    };
    for (name, size, batches, percent, cpu_attention) in cases {
        let policy = Policy {
            schedule: Schedule::Diagonal,
            ..policy(size, batches, percent, cpu_attention)
        };
        let profile = quiet_t4();
        let compressions = [Compression::default()];
        let forms = ClosedForms::new(
            &profile,
            (&model(name), &Pipeline::default()),
            Dtype::F16,
            workload,
            (&compressions, DENSE),
        );
        let forms = forms.expect("a workload");
        let form = forms.form(&policy);
        let plan = plan(model(name), workload, policy);
        let footprint = plan.capacity_bytes;
        for tier in Tier::ALL {
            let (expected, needed) = (form.memory()[tier].at(&policy), footprint[tier].as_f64());
            let close = (expected - needed).abs() < 1e-3 * needed + 1e6;
            assert!(close, "{name} {percent:?} {tier}: {expected} for {needed}");
        }
        assert_locks_as_much(&forms, &plan, 1e-3);
    }
}

/// All that resources do but for the busiest of each phase, in every round and pass.
#[test]
fn what_is_hidden_is_all_but_the_busiest() {
    let workload = Workload {
        num_prompts: Some(120),
        ..WORKLOAD
    };
    let policy = policy(20, 3, [20.0, 80.0, 0.0, 100.0, 0.0, 100.0], true);
    let only = (&[policy.compression][..], policy.sparse_attention);
    let forms = ClosedForms::new(
        &quiet_t4(),
        (&model("opt-30b"), &Pipeline::default()),
        Dtype::F16,
        workload,
        only,
    );
    let form = forms.expect("a workload").form(&policy);
    let expected = form.evaluate(&policy);
    let all = |terms: [(ResourceKind, Seconds); 6]| terms.map(|(_, s)| s.0).iter().sum::<f64>();
    let (prefill, decode) = (all(expected.prefill_terms), all(expected.decode_terms));
    // Two rounds of 15 passes.
    let busy = 2.0 * prefill + 2.0 * 15.0 * decode;
    let hidden = form.hidden_s(&expected).0;
    assert!(hidden > 0.0, "{expected:?}");
    let binds = busy - hidden;
    let off = binds / expected.latency_s.0 - 1.0;
    assert!(off.abs() < 0.05, "{off}: {expected:?}");
}

/// A layer's end is held back behind the other batch's projection, whether the activations stay on the device or move.
#[test]
fn two_batches_hide_the_cpu_although_activations_move() {
    let latency = |percent: [f64; 6]| {
        let policy = Policy {
            page_locked: PageLocked::ALL,
            ..policy(8, 2, percent, true)
        };
        let plan = plan(model("opt-1.3b"), WORKLOAD, policy);
        predict(&plan, &quiet_t4()).expect("fits").latency_s.0
    };
    let stay = latency([100.0, 0.0, 0.0, 100.0, 100.0, 0.0]);
    let some_move = latency([100.0, 0.0, 0.0, 100.0, 80.0, 20.0]);
    assert!(some_move < stay * 1.03, "{some_move} s beside {stay} s");
}
