//! A plan's prediction while its pieces come and go.

use plimsoll_core::executor::Executor;
use plimsoll_core::flow::Flow;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::Lowering;
use plimsoll_core::plan::Plan;
use plimsoll_core::summary::Summary;

use crate::cost::CostModel;
use crate::engine::Simulator;
use crate::reliance::Reliance;
use crate::simulate::{SimulateError, resting_on};

/// What a plan's run amounts to, exactly as if all pieces had been submitted first; none where a task
/// came too late for that to be sure.
pub(crate) fn predict_streamed(
    plan: &Plan,
    profile: &HardwareProfile,
) -> Result<Option<Summary>, SimulateError> {
    let lowering = Lowering::new(plan)?.as_far_as_timed();
    let machine = plan.machine();
    let cost = CostModel::of_plan(profile, plan);
    let mut simulator = Simulator::new(&machine, cost.clone());
    let mut reliance = Reliance::default();
    let mut flow = Flow::unverified(plan, lowering);
    while let Some(ended) = flow.next(&mut simulator)? {
        if simulator.came_late() {
            return Ok(None);
        }
        let run = (&machine, simulator.trace());
        reliance.see(&ended.piece, run, ended.part, &cost);
        flow.forget(&ended.piece, &mut simulator);
    }
    let (summary, timing) = flow.summary();
    let reliance = reliance.timed(timing.latency_s);
    Ok(Some(resting_on(summary, (plan, &cost), &reliance)))
}

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;
    use plimsoll_core::hardware::embedded;
    use plimsoll_core::model::registry;
    use plimsoll_core::pipeline::Pipeline;
    use plimsoll_core::policy::{Policy, Schedule};
    use plimsoll_core::tier::PerTier;
    use plimsoll_core::units::Bytes;
    use plimsoll_core::workload::Workload;

    use super::*;

    fn streams(policy: Policy) -> bool {
        let mut plan = Plan::given(
            registry::find("opt-1.3b").expect("registered"),
            Dtype::F16,
            Workload {
                prompt_len: 64,
                gen_len: 8,
                num_prompts: None,
            },
            policy,
        );
        plan.capacity_bytes = PerTier::from_fn(|_| Bytes(1 << 50));
        let profile = embedded::profile("t4x4").expect("embedded");
        predict_streamed(&plan, &profile).expect("fits").is_some()
    }

    #[test]
    fn the_usual_plans_need_no_whole_run() {
        let percent = [20.0, 80.0, 0.0, 100.0, 0.0, 100.0];
        let base = Policy::from_percent(4, 3, percent).expect("a policy");
        for schedule in [Schedule::ZigZag, Schedule::Row, Schedule::Diagonal] {
            for cpu_attention in [false, true] {
                let policy = Policy {
                    schedule,
                    cpu_attention,
                    barrier: false,
                    ..base
                };
                assert!(streams(policy), "{policy:?}");
            }
        }
        for (stages, micro_batches) in [(2, 1), (4, 4)] {
            let pipeline = Pipeline {
                stages,
                micro_batches,
                ..Pipeline::default()
            };
            assert!(streams(Policy { pipeline, ..base }), "{pipeline:?}");
        }
    }
}
