//! How many stages, and micro-batches through them: a search on one GPU for each (FlexGen section 4.4).

use std::collections::BTreeSet;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::machine::Machine;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::tier::PerTier;
use plimsoll_sim::predict;

use super::room::Room;
use super::{PlanError, Planned, Request, workload_of};

/// Micro-batches for each stage: as many keep all stages busy while tokens are chosen; more make the
/// bubbles of prefill smaller, and each loads the weights once more. So many as the last are tried where prompts come to an end, of
/// which bubbles may be much.
const MICRO_BATCHES: [u32; 4] = [1, 2, 4, 8];

/// How many lighter last stages in a row may be no better than what was found: a layer fewer need not bring what two do.
const NO_BETTER: u32 = 2;

/// Every pipeline that is searched on a machine: one GPU, then twice as many until there are no more. There are no more micro-batches
/// than prompts. One is tried as well with fewer prompts than stages, or where a latency is limited, and of few prompts half as many.
/// Activations go from device to device, which is never slower here.
pub(super) fn of_machine(
    profile: &HardwareProfile,
    model: &ModelSpec,
    request: &Request,
) -> Vec<Pipeline> {
    let most = profile.num_gpus().min(model.num_hidden_layers);
    let most = stages_most(most, profile.gpus_per_host());
    let doubled = std::iter::successors(Some(2_u32), |stages| stages.checked_mul(2));
    let mut stages: Vec<u32> = doubled.take_while(|stages| *stages < most).collect();
    stages.extend((most > 1).then_some(most));
    let asked = workload_of(request).num_prompts;
    let prompts = asked.unwrap_or(u64::MAX);
    let each = match asked {
        Some(_) => &MICRO_BATCHES[..],
        None => &MICRO_BATCHES[..MICRO_BATCHES.len() - 1],
    };
    let hurried = request.max_latency_s.is_some();
    let of_stages = |stages: u32| {
        let at_most = |count: u64| count.min(prompts) as u32;
        let enough = each.iter().map(|each| at_most(u64::from(stages * each)));
        let is_few = prompts < u64::from(stages);
        let one = (hurried || is_few).then_some(1);
        let half = is_few.then(|| at_most(prompts.div_ceil(2)));
        let micro_batches: BTreeSet<u32> = one.into_iter().chain(half).chain(enough).collect();
        micro_batches
            .into_iter()
            .map(move |micro_batches| Pipeline {
                stages,
                micro_batches,
                stages_per_host: profile.gpus_per_host().min(stages),
                ..Pipeline::default()
            })
    };
    let several = stages.into_iter().flat_map(of_stages);
    std::iter::once(Pipeline::default())
        .chain(several)
        .collect()
}

/// So many stages, or as many as a program can number the engines of.
fn stages_most(most: u32, gpus_per_host: u32) -> u32 {
    let number = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
    let engines = |stages: u32| {
        let on_host = number(gpus_per_host.min(stages));
        let machine = Machine::several_gpus(PerTier::default(), number(stages), on_host);
        machine.resources.len()
    };
    let most = most.min(Machine::MAX_RESOURCES as u32);
    let fits = (1..=most)
        .rev()
        .find(|stages| engines(*stages) <= Machine::MAX_RESOURCES);
    fits.unwrap_or(1)
}

/// A plan without micro-batches that have no prompts.
fn as_filled(
    mut planned: Box<Planned>,
    profile: &HardwareProfile,
) -> Result<Box<Planned>, PlanError> {
    let policy = &planned.plan.policy;
    let each = u64::from(policy.gpu_batch_size) * u64::from(policy.num_gpu_batches);
    let prompts = planned.plan.workload.num_prompts;
    let filled = prompts.map_or(u64::MAX, |prompts| prompts.div_ceil(each));
    if policy.pipeline.stages == 1 || filled >= u64::from(policy.pipeline.micro_batches) {
        return Ok(planned);
    }
    let mut plan = planned.plan.clone();
    plan.policy.pipeline.micro_batches = filled as u32;
    let prediction = predict(&plan, profile)?;
    if Room::of(profile).holds(&plan)? && prediction.latency_s <= planned.latency_s {
        planned.throughput_tok_s = prediction.throughput_tok_s;
        planned.latency_s = prediction.latency_s;
        plan.prediction = Some(prediction);
        planned.plan = plan;
    }
    Ok(planned)
}

/// A plan whose last stage has fewer layers, since it has the head besides, where that is faster.
pub(super) fn with_lighter_end(
    planned: Box<Planned>,
    profile: &HardwareProfile,
) -> Result<Box<Planned>, PlanError> {
    let mut planned = as_filled(planned, profile)?;
    let pipeline = planned.plan.policy.pipeline;
    let layers = pipeline.layers(planned.plan.model.num_hidden_layers);
    let Some(last) = layers.last().filter(|_| pipeline.stages > 1) else {
        return Ok(planned);
    };
    let mut no_better = 0;
    for fewer in 1..*last {
        let policy = Policy {
            pipeline: Pipeline {
                last_stage_layers: Some(last - fewer),
                ..pipeline
            },
            ..planned.plan.policy
        };
        let mut plan = Plan {
            policy,
            ..planned.plan.clone()
        };
        if !Room::of(profile).holds(&plan)? {
            break;
        }
        let prediction = predict(&plan, profile)?;
        let is_later = prediction.latency_s > planned.latency_s;
        if is_later || prediction.throughput_tok_s <= planned.throughput_tok_s {
            no_better += 1;
            if no_better == NO_BETTER {
                break;
            }
            continue;
        }
        no_better = 0;
        planned.throughput_tok_s = prediction.throughput_tok_s;
        planned.latency_s = prediction.latency_s;
        plan.prediction = Some(prediction);
        planned.plan = plan;
    }
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_stages_than_a_program_has_engines_for() {
        // As many as GPUs, but of hosts with one each 8 engines a stage: 128 in all.
        assert_eq!(
            [4, 16, 17, 32].map(|gpus| stages_most(gpus, 1)),
            [4, 16, 16, 16]
        );
        for (gpus, on_host) in [(24, 8), (64, 8), (40, 4), (1000, 2)] {
            let most = stages_most(gpus, on_host);
            let engines = |stages: u32| {
                let machine =
                    Machine::several_gpus(PerTier::default(), stages as u8, on_host as u8);
                machine.resources.len()
            };
            assert!(engines(most) <= Machine::MAX_RESOURCES, "{gpus} {on_host}");
            assert!(
                engines(most + 1) > Machine::MAX_RESOURCES,
                "{gpus} {on_host}"
            );
        }
    }
}
