//! A prediction that lets go of what has ended is that of the whole run.

mod common;

use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::embedded;
use plimsoll_core::model::registry;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::timing::Timing;
use plimsoll_core::workload::Workload;
use plimsoll_sim::{predict, prediction, simulate, time};

const ON_HOST: [f64; 6] = [20.0, 80.0, 0.0, 100.0, 0.0, 100.0];
const ON_DISK: [f64; 6] = [0.0, 50.0, 0.0, 50.0, 0.0, 0.0];

fn policy(schedule: Schedule, percent: [f64; 6], cpu_attention: bool, barrier: bool) -> Policy {
    Policy {
        schedule,
        cpu_attention,
        barrier,
        ..Policy::from_percent(4, 3, percent).expect("a policy")
    }
}

fn plan(policy: Policy, num_prompts: Option<u64>, gen_len: u32) -> Plan {
    let workload = Workload {
        prompt_len: 64,
        gen_len,
        num_prompts,
    };
    common::plan(
        registry::find("opt-1.3b").expect("registered"),
        workload,
        policy,
    )
}

fn assert_same(plan: &Plan) {
    let profile = embedded::profile("t4x4").expect("embedded");
    let run = simulate(plan, &profile).expect("fits");
    let whole = prediction(plan, &profile, &run);
    let streamed = predict(plan, &profile).expect("fits");
    assert_eq!(streamed, whole, "{:?}", plan.policy);
}

#[test]
fn of_one_gpu() {
    for percent in [ON_HOST, ON_DISK] {
        for cpu_attention in [false, true] {
            for barrier in [false, true] {
                let policy = policy(Schedule::ZigZag, percent, cpu_attention, barrier);
                assert_same(&plan(policy, None, 12));
                assert_same(&plan(policy, Some(20), 6));
            }
            let policy = policy(Schedule::Diagonal, percent, cpu_attention, false);
            assert_same(&plan(policy, None, 12));
            assert_same(&plan(policy, Some(20), 6));
        }
        let serial = Policy {
            overlap: false,
            ..policy(Schedule::ZigZag, percent, false, false)
        };
        assert_same(&plan(serial, None, 6));
    }
}

#[test]
fn of_rows_and_of_what_is_compressed_or_sparse() {
    for percent in [ON_HOST, ON_DISK] {
        // Of many rounds only a few are simulated, so that sums are others.
        assert_same(&plan(
            policy(Schedule::Row, percent, true, false),
            Some(8),
            6,
        ));
        for schedule in [Schedule::ZigZag, Schedule::Diagonal] {
            let compressed = Policy {
                compression: Compression::of(true, true),
                ..policy(schedule, percent, false, false)
            };
            assert_same(&plan(compressed, None, 6));
            let sparse = Policy {
                sparse_attention: 0.25,
                ..policy(schedule, percent, false, false)
            };
            assert_same(&plan(sparse, None, 6));
        }
    }
}

#[test]
fn of_pipelines() {
    for (stages, micro_batches) in [(2, 1), (2, 2), (4, 4), (4, 16)] {
        for barrier in [false, true] {
            let pipeline = Pipeline {
                stages,
                micro_batches,
                ..Pipeline::default()
            };
            let policy = Policy {
                pipeline,
                ..policy(Schedule::ZigZag, ON_HOST, true, barrier)
            };
            assert_same(&plan(policy, None, 6));
        }
    }
}

#[test]
fn of_one_token_there_is_no_decode() {
    let policy = policy(Schedule::ZigZag, ON_HOST, false, false);
    let summary = predict(
        &plan(policy, None, 1),
        &embedded::profile("t4").expect("embedded"),
    );
    let summary = summary.expect("fits");
    assert_eq!(summary.decode_s, None);
    assert_eq!(summary.decode_throughput_tok_s, None);
}

#[test]
fn what_is_timed_needs_no_more_than_comes_before_its_end() {
    let profile = embedded::profile("t4").expect("embedded");
    for percent in [ON_HOST, ON_DISK] {
        for (cpu_attention, barrier, num_gpu_batches) in [
            (false, false, 4),
            (true, false, 4),
            (true, true, 4),
            (true, false, 1),
        ] {
            let policy = Policy {
                num_gpu_batches,
                ..policy(Schedule::Diagonal, percent, cpu_attention, barrier)
            };
            let plan = plan(policy, None, 12);
            let whole = Timing::of_plan(&plan, &simulate(&plan, &profile).expect("fits"));
            assert_eq!(time(&plan, &profile).expect("fits"), whole, "{policy:?}");
        }
    }
}
