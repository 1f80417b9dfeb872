//! The simulator's verdict on whole plans.
//!
//! Simulating a large plan takes longer than finding it, so where there is much to simulate, plans
//! are first compared by a short simulation of a model of fewer layers and tokens: by how much it
//! takes longer than its closed form says is by how much the whole plan would. The best of each kind are then
//! compared by a longer one. (What is simulated in full besides is the pool's.)

use std::cmp::Ordering;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::footprint;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_core::workload::Workload;
use plimsoll_sim::closed_form::{ClosedForms, Estimate, stage_model};
use plimsoll_sim::{predict, time};

use super::kind::first_of_each;
use super::{Objective, PlanError};
use crate::parallel::on_all_processors;

/// So many (block, GPU batch, pass) squares are simulated in full without a thought: less than a tenth
/// of a second.
const FEW_SQUARES: u64 = 20_000;

/// A part of a simulation that stands for the whole.
#[derive(Debug, Clone, Copy)]
struct Sample {
    layers: u32,
    /// Prefill, then one decode pass a token.
    tokens: u32,
}

/// What is simulated to compare plans of one kind, and then the best of each. In a diagonal
/// schedule some passes prefill and most do not, so that many tokens are needed, and few layers have
/// to do.
#[derive(Debug, Clone, Copy)]
pub(super) enum Length {
    Short,
    Longer,
}

impl Length {
    fn sample(self, schedule: Schedule) -> Sample {
        let (layers, tokens) = match (self, schedule) {
            (Length::Short, Schedule::Diagonal) => (2, 24),
            (Length::Longer, Schedule::Diagonal) => (5, 32),
            (Length::Short, _) => (12, 3),
            (Length::Longer, _) => (32, 3),
        };
        Sample { layers, tokens }
    }
}

/// How many plans at least are compared by more than a short simulation.
const FINALISTS: usize = 2;

/// How closely the best plans are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Enough to rank them. Only small plans have predictions.
    Ranked,
    /// Simulated in full: all have predictions.
    Predicted,
}

/// A plan and how it was judged: its own prediction, or by the simulation of a part.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    plan: Plan,
    latency_s: Seconds,
    throughput_tok_s: f64,
}

impl Judged {
    /// The simulated time of the whole workload.
    pub(super) fn latency_s(&self) -> Seconds {
        self.latency_s
    }

    /// Generated tokens over that time.
    pub(super) fn throughput_tok_s(&self) -> f64 {
        self.throughput_tok_s
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn into_plan(self) -> Plan {
        self.plan
    }

    /// Seconds a token, or seconds: less is better.
    pub(super) fn cost(&self, objective: Objective) -> f64 {
        objective.cost(self.latency_s, self.throughput_tok_s * self.latency_s.0)
    }

    /// With a prediction, if it has none yet.
    pub(super) fn predicted(self, profile: &HardwareProfile) -> Result<Judged, PlanError> {
        match self.plan.prediction {
            Some(_) => Ok(self),
            None => Judged::in_full(self.plan, profile),
        }
    }

    pub(super) fn in_full(mut plan: Plan, profile: &HardwareProfile) -> Result<Judged, PlanError> {
        let prediction = predict(&plan, profile)?;
        let (latency_s, throughput_tok_s) = (prediction.latency_s, prediction.throughput_tok_s);
        plan.prediction = Some(prediction);
        Ok(Judged {
            plan,
            latency_s,
            throughput_tok_s,
        })
    }

    fn by_sample(
        plan: Plan,
        profile: &HardwareProfile,
        forms: &ClosedForms,
        length: Length,
    ) -> Result<Judged, PlanError> {
        let short = shortened(&plan, length.sample(plan.policy.schedule))?;
        let simulated = time(&short, profile)?;
        let short_forms = ClosedForms::new(
            profile,
            &stage_model(&short.model, &short.policy.pipeline),
            short.dtype,
            short.workload,
            (&[short.policy.compression], short.policy.sparse_attention),
        )?;
        let (expected, whole) = (estimate(&short, &short_forms), estimate(&plan, forms));
        let corrected = |whole: Seconds, simulated: Seconds, expected: Seconds| {
            if expected.0 > 0.0 {
                whole * (simulated.0 / expected.0)
            } else {
                whole
            }
        };
        let decoded = simulated.decode_s().unwrap_or(Seconds::ZERO);
        let latency_s = if plan.policy.schedule == Schedule::Diagonal {
            // Prefill and decode share passes.
            corrected(whole.latency_s, simulated.latency_s, expected.latency_s)
        } else {
            corrected(whole.prefill_s, simulated.prefill_s, expected.prefill_s)
                + corrected(whole.decode_s, decoded, expected.decode_s)
        };
        let tokens = whole.throughput_tok_s * whole.latency_s.0;
        Ok(Judged {
            plan,
            latency_s,
            throughput_tok_s: tokens / latency_s.0,
        })
    }
}

/// Simulates plans and sorts them, best first; of many the finalists come back. Only small plans have
/// predictions.
pub(super) fn judge(
    plans: Vec<Plan>,
    profile: &HardwareProfile,
    forms: &ClosedForms,
    objective: Objective,
) -> Result<Vec<Judged>, PlanError> {
    if are_few(&plans) {
        let judged = all(plans, &|plan| Judged::in_full(plan, profile))?;
        return Ok(sorted(judged, objective));
    }
    let judged = |plans, length| {
        let judged = by_samples(plans, profile, forms, length)?;
        Ok::<_, PlanError>(sorted(judged, objective))
    };
    let finalists = if plans.len() <= FINALISTS {
        plans
    } else {
        finalists(judged(plans, Length::Short)?)
    };
    judged(finalists, Length::Longer)
}

/// Each plan by a simulation of a part; the order stays.
pub(super) fn by_samples(
    plans: Vec<Plan>,
    profile: &HardwareProfile,
    forms: &ClosedForms,
    length: Length,
) -> Result<Vec<Judged>, PlanError> {
    all(plans, &|plan| {
        Judged::by_sample(plan, profile, forms, length)
    })
}

/// Of plans, best first: the best of each kind, and as many of the others as are simulated without a
/// thought.
fn finalists(judged: Vec<Judged>) -> Vec<Plan> {
    let plans = judged.into_iter().map(Judged::into_plan).collect();
    let (mut plans, kinds) = first_of_each(plans, |plan: &Plan| &plan.policy);
    let mut done = 0;
    let others = plans.iter().skip(kinds).take_while(|plan| {
        done = squares(plan).saturating_add(done);
        done <= FEW_SQUARES
    });
    let count = kinds + others.count();
    plans.truncate(count.max(FINALISTS));
    plans
}

pub(super) fn sorted(mut judged: Vec<Judged>, objective: Objective) -> Vec<Judged> {
    judged.sort_by(|a, b| better_first(a, b, objective));
    judged
}

/// The order of plans, best first.
pub(super) fn better_first(a: &Judged, b: &Judged, objective: Objective) -> Ordering {
    a.cost(objective).total_cmp(&b.cost(objective))
}

/// Judges each plan; the order stays.
fn all(
    plans: Vec<Plan>,
    judge: &(dyn Fn(Plan) -> Result<Judged, PlanError> + Sync),
) -> Result<Vec<Judged>, PlanError> {
    on_all_processors(plans, judge).into_iter().collect()
}

/// Whether simulating all of them in full takes next to no time.
pub(super) fn are_few(plans: &[Plan]) -> bool {
    plans.iter().map(squares).fold(0, u64::saturating_add) <= FEW_SQUARES
}

/// Squares of FlexGen's figure 2.
fn squares(plan: &Plan) -> u64 {
    let policy = &plan.policy;
    let prompts = plan.workload.num_prompts.unwrap_or(policy.block_size());
    let batches = prompts.div_ceil(u64::from(policy.gpu_batch_size));
    let squares = u64::from(plan.model.num_blocks()).saturating_mul(batches);
    squares.saturating_mul(u64::from(plan.workload.gen_len))
}

/// The closed form of a plan's policy with the shares of weights that its whole tensors have.
pub(super) fn estimate(plan: &Plan, forms: &ClosedForms) -> Estimate {
    let form = forms.form(&plan.policy);
    let bytes = WeightPlacement::new(&plan.model, plan.dtype, &plan.policy).bytes();
    let bytes = bytes.map(Bytes::as_f64);
    let all = bytes.device + bytes.host + bytes.disk;
    form.evaluate(&Policy {
        weights: bytes.map(|bytes| bytes / all),
        ..plan.policy
    })
}

/// The same policy on one block of a smaller problem.
fn shortened(plan: &Plan, sample: Sample) -> Result<Plan, PlanError> {
    let workload = &plan.workload;
    let mut short = Plan {
        model: ModelSpec {
            num_hidden_layers: plan
                .model
                .num_hidden_layers
                .min(sample.layers.max(plan.policy.pipeline.stages)),
            ..plan.model.clone()
        },
        workload: Workload {
            gen_len: workload.gen_len.min(sample.tokens),
            num_prompts: match plan.policy.schedule {
                // A few batches that come and go are not like many.
                Schedule::Diagonal => None,
                _ => workload
                    .num_prompts
                    .map(|p| p.min(plan.policy.block_size())),
            },
            ..*workload
        },
        ..plan.clone()
    };
    // A smaller model's tensors may round up where the whole one's do not.
    short.capacity_bytes = footprint(&short)?;
    Ok(short)
}
