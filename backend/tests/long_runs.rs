//! A run of many rounds keeps no more than one of a few.

mod common;

use common::{execute, plan, prompts, tiny_opt};
use plimsoll_backend::cpu::{CpuExecutor, CpuOptions};
use plimsoll_backend::weights::Synthetic;
use plimsoll_core::Dtype;
use plimsoll_core::flow::Flow;
use plimsoll_core::lower::Lowering;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::summary::Summary;
use plimsoll_core::tier::Tier;
use plimsoll_core::timing::Timing;
use plimsoll_core::workload::Workload;

const MIXED: [f64; 6] = [30.0, 40.0, 25.0, 40.0, 40.0, 30.0];

/// Two GPU batches of two prompts a block, so many blocks.
fn of_rounds(policy: &Policy, rounds: u64) -> Plan {
    let workload = Workload {
        prompt_len: 5,
        gen_len: 4,
        num_prompts: Some(rounds * policy.block_size()),
    };
    plan(&tiny_opt(), Dtype::F32, *policy, workload)
}

/// What came of a plan's run.
struct Came {
    tokens: Vec<Vec<u32>>,
    summary: Summary,
    /// The most buffers and tasks that the executor knew, without the texts, which lie in memory from the
    /// start.
    most: usize,
}

/// Runs a plan and lets go of what has ended.
fn streamed(plan: &Plan, prompts: &[Vec<u32>]) -> Came {
    let folder = tempfile::tempdir().expect("a folder");
    let (lowering, source) = (Lowering::new(plan).expect("it fits"), Synthetic { seed: 3 });
    let (placement, texts) = (lowering.placement().clone(), lowering.texts().clone());
    let options = CpuOptions::new(folder.path());
    let mut executor = CpuExecutor::new(plan, &placement, &source, &options).expect("an executor");
    executor.set_prompts(&texts, prompts).expect("prompts");
    let outlets = executor.outlets(&texts);
    let (mut flow, mut most) = (Flow::new(plan, lowering), 0);
    let mut tokens: Vec<Vec<u32>> = Vec::new();
    while let Some(ended) = flow.next(&mut executor).expect("it goes on") {
        flow.forget(&ended.piece, &mut executor);
        most = most.max(executor.num_known() - 2 * texts.iter().flatten().count());
        let rest = outlets[tokens.len()..].iter();
        let rest = rest.map(|outlet| executor.so_far(outlet));
        let whole = rest.take_while(|ids| ids.len() == plan.workload.gen_len as usize);
        tokens.extend(whole.collect::<Vec<_>>());
        if let Some(next) = outlets.get(tokens.len()) {
            executor.forget_before(next);
        }
    }
    let all: usize = tokens.iter().map(Vec::len).sum();
    assert_eq!(executor.num_generated(), all);
    assert!(executor.so_far(&outlets[0]).is_empty());
    Came {
        tokens,
        summary: flow.summary().0,
        most,
    }
}

#[test]
fn what_has_ended_is_let_go_of_and_changes_no_token() {
    let base = Policy::from_percent(2, 2, MIXED).expect("a policy");
    let free = Policy {
        barrier: false,
        ..base
    };
    let pipeline = Pipeline {
        stages: 2,
        micro_batches: 2,
        ..Pipeline::default()
    };
    let policies = [
        base,
        free,
        Policy {
            overlap: false,
            ..base
        },
        Policy {
            schedule: Schedule::Diagonal,
            ..free
        },
        Policy { pipeline, ..base },
    ];
    for policy in policies {
        let [few, many] = [4, 24].map(|rounds| {
            let plan = of_rounds(&policy, rounds);
            let count = plan.workload.num_prompts.expect("stated") as u32;
            (prompts(count, 5, plan.model.vocab_size), plan)
        });
        let whole = execute_whole(&many.1, &many.0);
        let came = streamed(&many.1, &many.0);
        assert_eq!(came.tokens, whole.0, "{policy:?}");
        for tier in Tier::ALL {
            let (peak, room) = (came.summary.peak_bytes[tier], many.1.capacity_bytes[tier]);
            assert!(peak <= room, "{tier:?}: {peak} of {room}, {policy:?}");
        }
        let tokens = (came.summary.generated_tokens, whole.1.generated_tokens);
        assert_eq!(tokens.0, tokens.1, "{policy:?}");
        assert_eq!(came.most, streamed(&few.1, &few.0).most, "{policy:?}");
    }
}

/// The same with all pieces submitted first and kept: its tokens and its figures.
fn execute_whole(plan: &Plan, prompts: &[Vec<u32>]) -> (Vec<Vec<u32>>, Summary) {
    let folder = tempfile::tempdir().expect("a folder");
    let options = CpuOptions::new(folder.path());
    let outcome = execute(plan, &Synthetic { seed: 3 }, prompts, &options);
    let timing = Timing::of_plan(plan, &outcome.run);
    (outcome.tokens, Summary::timed(&outcome.run, timing))
}
