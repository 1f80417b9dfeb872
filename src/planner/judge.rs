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

use super::kind::{self, Alike};
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

impl Sample {
    const fn new(layers: u32, tokens: u32) -> Sample {
        Sample { layers, tokens }
    }
}

/// Squares of the larger sample of whole answers at most: a tenth of a second or two.
const SAMPLED_SQUARES: u32 = 60_000;

/// What is simulated to compare plans of one kind, and then the best of each. What a pass begins and ends with
/// weighs more in few layers, as one over their number: two samples say how much.
#[derive(Debug, Clone, Copy)]
pub(super) enum Length {
    /// A few passes.
    Short,
    /// Answers from end to end, unless they are very long: what binds the first tokens need not bind the last.
    Longer,
}

impl Length {
    fn samples(self, policy: &Policy) -> Vec<Sample> {
        let of_both = |tokens| [2, 5].map(|layers| Sample::new(layers, tokens)).into();
        let batches = policy.num_gpu_batches;
        match (self, policy.schedule) {
            // Some passes prefill one GPU batch, as in long answers, and some none.
            (Length::Short, Schedule::Diagonal) => of_both((batches * 3 / 2).clamp(24, 60)),
            (Length::Short, Schedule::Row | Schedule::ZigZag) => vec![Sample::new(12, 3)],
            (Length::Longer, _) => of_both((SAMPLED_SQUARES / (7 * batches)).max(32)),
        }
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
        let mut offs = Vec::new();
        for sample in length.samples(&plan.policy) {
            offs.push(Off::of(&plan, sample, profile)?);
        }
        let off = Off::at(plan.model.num_hidden_layers, &offs);
        let whole = estimate(&plan, forms);
        let latency_s = whole.prefill_s * off.prefill + whole.decode_s * off.decode;
        let tokens = whole.throughput_tok_s * whole.latency_s.0;
        Ok(Judged {
            plan,
            latency_s,
            throughput_tok_s: tokens / latency_s.0,
        })
    }
}

/// How much longer a simulated part takes than its closed form says: passes that prefill, and those that only decode.
#[derive(Debug, Clone, Copy)]
struct Off {
    layers: f64,
    prefill: f64,
    decode: f64,
}

impl Off {
    fn of(plan: &Plan, sample: Sample, profile: &HardwareProfile) -> Result<Off, PlanError> {
        let short = shortened(plan, sample)?;
        let simulated = time(&short, profile)?;
        let forms = ClosedForms::new(
            profile,
            &stage_model(&short.model, &short.policy.pipeline),
            short.dtype,
            short.workload,
            (&[short.policy.compression], short.policy.sparse_attention),
        )?;
        let expected = estimate(&short, &forms);
        let prefilled = simulated.prefill_s * prefills_timed(&short);
        let decoded = simulated.latency_s - prefilled;
        let prefill = prefilled.0 / expected.prefill_s.0;
        let decode = match expected.decode_s.0 > 0.0 {
            true => decoded.0 / expected.decode_s.0,
            false => prefill,
        };
        Ok(Off {
            layers: f64::from(short.model.num_hidden_layers),
            prefill,
            decode,
        })
    }

    /// That of so many layers, on the line through the first and the last sample over one over their layers.
    fn at(layers: u32, samples: &[Off]) -> Off {
        let (few, more) = (samples[0], samples[samples.len() - 1]);
        let layers = f64::from(layers);
        let on_line = |of: fn(&Off) -> f64| {
            if few.layers == more.layers {
                return of(&more);
            }
            let slope = (of(&few) - of(&more)) / (1.0 / few.layers - 1.0 / more.layers);
            of(&more) + slope * (1.0 / layers - 1.0 / more.layers)
        };
        Off {
            layers,
            prefill: on_line(|off| off.prefill),
            decode: on_line(|off| off.decode),
        }
    }
}

/// How often what is timed has its [`prefill_s`](plimsoll_core::timing::Timing::prefill_s): that of a steady state is a pass
/// that admits GPU batches.
fn prefills_timed(plan: &Plan) -> f64 {
    match plan.policy.schedule {
        Schedule::Diagonal => f64::from(plan.policy.num_gpu_batches.min(plan.workload.gen_len)),
        Schedule::Row | Schedule::ZigZag => 1.0,
    }
}

/// Simulates plans and sorts them, best first; of many the finalists come back, the best of those that are alike and so many
/// diagonals of the best kind of these, of usual blocks and of others, which a short simulation may misjudge by a tenth either way.
/// Only small plans have predictions.
pub(super) fn judge(
    plans: Vec<Plan>,
    profile: &HardwareProfile,
    forms: &ClosedForms,
    (objective, diagonals): (Objective, usize),
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
        finalists(judged(plans, Length::Short)?, diagonals)
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

/// Of plans, best first: the best of those that are alike, of the best diagonals with usual blocks, and with others, so many, and as
/// many of the rest as are simulated without a thought.
fn finalists(judged: Vec<Judged>, diagonals: usize) -> Vec<Plan> {
    let mut seen: Vec<Alike> = Vec::new();
    let is_first = |plan: &Plan| {
        let way = kind::alike(&plan.policy);
        let before = seen.iter().filter(|known| **known == way).count();
        seen.push(way);
        let mut of_diagonals = seen
            .iter()
            .filter(|(kind, usual)| kind.schedule == Schedule::Diagonal && *usual == way.1);
        let best = of_diagonals.next() == Some(&way);
        before < if best { diagonals } else { 1 }
    };
    let plans = judged.into_iter().map(Judged::into_plan);
    let (mut finalists, others): (Vec<Plan>, Vec<Plan>) = plans.partition(is_first);
    let mut done = 0;
    for plan in others {
        done = squares(&plan).saturating_add(done);
        if done <= FEW_SQUARES || finalists.len() < FINALISTS {
            finalists.push(plan);
        }
    }
    finalists
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
