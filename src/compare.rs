//! Why one plan is better than another: from the one to the other, decision by decision.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, page_locked_bytes};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::summary::Summary;
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_sim::{SimulateError, predict};
use serde::Serialize;

/// Fields of a policy that are decided together.
struct Decision {
    /// What is decided, in words.
    what: &'static str,
    /// Takes it from the other policy.
    take: fn(&mut Policy, &Policy),
}

/// Each field of a policy is in one of these. What a machine's software decides comes first, what is
/// limited by memory later, so that most policies between two that fit will fit as well.
const DECISIONS: [Decision; 10] = [
    Decision {
        what: "page-locked host memory",
        take: |policy, other| policy.page_locked = other.page_locked,
    },
    Decision {
        what: "overlap and barrier",
        take: |policy, other| {
            (policy.overlap, policy.barrier) = (other.overlap, other.barrier);
            policy.half_layers = other.half_layers;
            policy.cache_workspace = other.cache_workspace;
            policy.stored_scores = other.stored_scores;
            policy.relayed_weights = other.relayed_weights;
        },
    },
    Decision {
        what: "how tensors are made whole",
        take: |policy, other| policy.granularity = other.granularity,
    },
    Decision {
        what: "compression",
        take: |policy, other| policy.compression = other.compression,
    },
    Decision {
        what: "sparse attention",
        take: |policy, other| policy.sparse_attention = other.sparse_attention,
    },
    Decision {
        what: "attention on the CPU",
        take: |policy, other| policy.cpu_attention = other.cpu_attention,
    },
    Decision {
        what: "stages and micro-batches",
        take: |policy, other| policy.pipeline = other.pipeline,
    },
    Decision {
        what: "GPU batches and where tensors live",
        take: |policy, other| {
            policy.gpu_batch_size = other.gpu_batch_size;
            policy.num_gpu_batches = other.num_gpu_batches;
            policy.weights = other.weights;
            policy.cache = other.cache;
            policy.activations = other.activations;
        },
    },
    Decision {
        what: "schedule",
        take: |policy, other| policy.schedule = other.schedule,
    },
    Decision {
        what: "linear layers that CPU and device split",
        take: |policy, other| policy.split = other.split,
    },
];

/// A change of one decision, or of some that only fit together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// What changed, in words.
    pub changed: Vec<&'static str>,
    /// Throughput after it.
    pub throughput_tok_s: f64,
    /// That over the throughput before it.
    pub gain: f64,
}

/// From a plan to a better one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The first.
    #[serde(skip)]
    pub from: Policy,
    /// Throughput of the first.
    pub from_tok_s: f64,
    /// How long that takes, of what the second's latency is of.
    pub from_latency_s: Seconds,
    /// What it page-locks of a host's memory.
    pub from_page_locked_bytes: Bytes,
    /// In order; the last leads to the second plan.
    pub steps: Vec<Step>,
}

/// Goes from a policy to a plan on the plan's machine and workload; the inner error says what keeps the
/// policy from running there. A policy between them that does not fit, or that is no policy, is passed over.
///
/// # Errors
/// A plan that means nothing.
pub fn compare(
    from: &Policy,
    to: &Plan,
    profile: &HardwareProfile,
) -> Result<Result<Comparison, LowerError>, SimulateError> {
    let Summary {
        throughput_tok_s: from_tok_s,
        latency_s: from_latency_s,
        ..
    } = match predicted(from, to, profile)? {
        Ok(summary) => summary,
        Err(refused) => return Ok(Err(refused)),
    };
    let from_page_locked_bytes = page_locked_bytes(&with(from, to))?;
    let mut policy = *from;
    let mut steps = Vec::new();
    let (mut changed, mut before) = (Vec::new(), from_tok_s);
    for decision in &DECISIONS {
        let mut next = policy;
        (decision.take)(&mut next, &to.policy);
        if next == policy {
            continue;
        }
        policy = next;
        changed.push(decision.what);
        if let Ok(summary) = predicted(&policy, to, profile)? {
            let throughput_tok_s = summary.throughput_tok_s;
            steps.push(Step {
                changed: std::mem::take(&mut changed),
                throughput_tok_s,
                gain: throughput_tok_s / before,
            });
            before = throughput_tok_s;
        }
    }
    Ok(Ok(Comparison {
        from: *from,
        from_tok_s,
        from_latency_s,
        from_page_locked_bytes,
        steps,
    }))
}

fn with(policy: &Policy, of: &Plan) -> Plan {
    Plan {
        policy: *policy,
        ..of.clone()
    }
}

fn predicted(
    policy: &Policy,
    of: &Plan,
    profile: &HardwareProfile,
) -> Result<Result<Summary, LowerError>, SimulateError> {
    match predict(&with(policy, of), profile) {
        Ok(summary) => Ok(Ok(summary)),
        Err(SimulateError::Lower(
            refused @ (LowerError::DoesNotFit { .. }
            | LowerError::Policy(_)
            | LowerError::TooMuch { .. }),
        )) => Ok(Err(refused)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;
    use plimsoll_core::hardware::embedded;
    use plimsoll_core::model::registry;
    use plimsoll_core::policy::{Granularity, PageLocked, Schedule};
    use plimsoll_core::workload::Workload;

    use super::*;

    fn plan(policy: Policy) -> (Plan, HardwareProfile) {
        let profile = embedded::profile("t4").unwrap();
        let workload = Workload {
            prompt_len: 128,
            gen_len: 4,
            num_prompts: None,
        };
        let model = registry::find("opt-1.3b").unwrap();
        let plan = Plan::given(model, Dtype::F16, workload, policy).on(&profile);
        (plan, profile)
    }

    fn policies() -> [Policy; 2] {
        let from = Policy::from_percent(4, 1, [0.0, 100.0, 0.0, 100.0, 0.0, 100.0]).unwrap();
        let to = Policy {
            schedule: Schedule::Diagonal,
            granularity: Granularity::Spread,
            page_locked: PageLocked::ALL,
            barrier: false,
            cpu_attention: true,
            sparse_attention: 0.5,
            ..Policy::from_percent(8, 4, [50.0, 50.0, 0.0, 100.0, 0.0, 100.0])
                .unwrap()
                .in_whole_layers()
        };
        [from, to]
    }

    #[test]
    fn the_steps_lead_from_one_to_the_other() {
        let [from, to] = policies();
        let (plan, profile) = plan(to);
        let found = compare(&from, &plan, &profile).unwrap().unwrap();
        let gains: f64 = found.steps.iter().map(|step| step.gain).product();
        let whole = predict(&plan, &profile).unwrap().throughput_tok_s;
        assert!((found.from_tok_s * gains / whole - 1.0).abs() < 1e-9);
        let named: Vec<&str> = found.steps.iter().flat_map(|s| s.changed.clone()).collect();
        assert_eq!(named.len(), 7, "{named:?}");
    }

    #[test]
    fn every_field_is_decided_somewhere() {
        let [from, to] = policies();
        let mut policy = from;
        for decision in &DECISIONS {
            (decision.take)(&mut policy, &to);
        }
        assert_eq!(policy, to);
    }

    #[test]
    fn the_same_policy_has_no_steps_and_one_too_large_no_comparison() {
        let [from, to] = policies();
        let (mut plan, profile) = plan(to);
        let same = compare(&to, &plan, &profile).unwrap().unwrap();
        assert_eq!(same.steps, []);
        plan.capacity_bytes.host.0 = 1 << 20;
        let refused = compare(&from, &plan, &profile).unwrap();
        assert!(matches!(refused, Err(LowerError::DoesNotFit { .. })));
    }
}
