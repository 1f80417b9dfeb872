//! Layouts of few rounds stand for those of many.

use super::*;
use crate::Dtype;
use crate::model::registry;
use crate::pipeline::Pipeline;
use crate::policy::{Policy, Schedule};
use crate::workload::Workload;

/// What each arena must hold, by all rounds.
fn by_all_rounds(plan: &Plan) -> Vec<Bytes> {
    let machine = plan.machine();
    let passes = Passes::new(&plan.policy, &plan.workload);
    let mut ends = Layouts::new(plan, &machine, &passes).ends;
    let [prompts, results] = text_arenas(&machine);
    for batch in passes.rounds().iter().flat_map(|round| &round.batches) {
        let (prompt, generated) = text_bytes(plan, *batch);
        ends[prompts] += prompt;
        ends[results] += generated;
    }
    ends
}

#[test]
fn what_a_plan_needs_is_known_without_all_its_rounds() {
    let model = registry::find("opt-125m").expect("registered");
    let percent = [20.0, 50.0, 30.0, 40.0, 50.0, 50.0];
    let mut shortened = 0;
    for (schedule, stages, micro_batches) in [
        (Schedule::Row, 1, 1),
        (Schedule::ZigZag, 1, 1),
        (Schedule::Diagonal, 1, 1),
        (Schedule::ZigZag, 2, 2),
    ] {
        for (size, batches, gen_len) in [(1, 1, 1), (3, 1, 9), (2, 3, 40), (5, 4, 2), (1, 7, 17)] {
            let policy = Policy {
                schedule,
                pipeline: Pipeline {
                    stages,
                    micro_batches,
                    ..Pipeline::default()
                },
                ..Policy::from_percent(size, batches, percent).expect("a policy")
            };
            for num_prompts in (1..90).step_by(3).map(Some).chain([None]) {
                let workload = Workload {
                    prompt_len: 300,
                    gen_len,
                    num_prompts,
                };
                let plan = Plan::given(model.clone(), Dtype::F16, workload, policy);
                let Ok(found) = arena_footprints(&plan) else {
                    continue;
                };
                let stay = schedule::rounds_to_lay_out(&policy);
                shortened += u32::from(schedule::shortened(&policy, &workload, stay).is_some());
                assert_eq!(found, by_all_rounds(&plan), "{policy:?} {workload:?}");
            }
        }
    }
    assert!(shortened > 200, "{shortened}");
}
