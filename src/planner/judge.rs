//! The simulator's verdict on whole plans.
//!
//! Simulating a large plan takes longer than finding it, so where there is much to simulate, plans
//! are first compared by a short simulation of a model of fewer layers and tokens: by how much it
//! takes longer than its closed form says is by how much the whole plan would. The best of each kind are then
//! compared by whole answers over few layers. (What is simulated in full besides is the pool's.)

use std::cmp::Ordering;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::footprint;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::timing::Part;
use plimsoll_core::units::Seconds;
use plimsoll_core::workload::Workload;
use plimsoll_sim::closed_form::{ClosedForms, Estimate};
use plimsoll_sim::{predict, rounds_are_alike, time};

use super::kind::{self, Alike};
use super::{Objective, PlanError};
use crate::parallel::on_all_processors;

/// So many (block, GPU batch, pass) squares are simulated in full without a thought: less than a tenth
/// of a second.
const FEW_SQUARES: u64 = 20_000;

/// So many are for the last look: about a second.
const SOME_SQUARES: u64 = 1_500_000;

/// With more, a plan takes some seconds: next to none can be compared in full.
const LARGE_SQUARES: u64 = 3_000_000;

/// Rounds that are simulated where there are more.
const ROUNDS: u64 = 4;

/// A plan has at most so many where some dozens of its like are simulated in such a time.
const SMALL_SQUARES: u64 = 25_000;

/// A part of a simulation that stands for the whole.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Of each stage.
    layers: u32,
    /// Prefill, then one decode pass a token.
    tokens: u32,
}

/// Layers of samples. What a pass begins and ends with weighs more in few, as one over their number: two samples say how
/// much.
const FEW_LAYERS: [u32; 2] = [2, 5];

/// The same where whole tensors are to lie much as those of all layers do.
const SOME_LAYERS: [u32; 2] = [4, 12];

/// So many squares of whole answers are simulated to compare plans, or twice as many where the schedule is diagonal (more
/// where it takes more to show passes of all sorts): some tenths of a second.
const SAMPLED_SQUARES: u64 = 100_000;

/// What is simulated to compare plans.
#[derive(Debug, Clone, Copy)]
pub(super) enum Length {
    /// A prefill and two passes; of a diagonal schedule as many as show passes of all sorts.
    Short,
    /// Answers from end to end, unless they are very long: what binds the first tokens need not bind the last.
    Long,
    /// The same of more layers.
    Longer,
}

impl Length {
    fn samples(self, policy: &Policy) -> Vec<Sample> {
        let diagonal = policy.schedule == Schedule::Diagonal;
        let least = match diagonal {
            true => all_sorts(policy.num_gpu_batches),
            false => 3,
        };
        let whole_answers = |layers: &[u32; 2]| {
            let blocks = u64::from(layers[1] * policy.pipeline.stages + 2);
            let tokens = SAMPLED_SQUARES / (blocks * policy.batches_in_block());
            least.max(tokens as u32)
        };
        let some = [12_u32.div_ceil(policy.pipeline.stages)];
        let (layers, tokens): (&[u32], u32) = match self {
            Length::Short if diagonal => (&FEW_LAYERS, least),
            Length::Short => (&some, least),
            Length::Long => (&FEW_LAYERS, whole_answers(&FEW_LAYERS)),
            Length::Longer => (&SOME_LAYERS, whole_answers(&SOME_LAYERS)),
        };
        let of = |layers: &u32| Sample {
            layers: *layers,
            tokens,
        };
        layers.iter().map(of).collect()
    }
}

/// Tokens of answers of which some passes admit one of so many GPU batches, and some none, as those of long ones do.
fn all_sorts(batches: u32) -> u32 {
    24.max(batches + (batches / 2).min(20))
}

/// How many of those that are alike are compared by more than a short simulation, which may misjudge them by a percent.
const ALIKE: usize = 3;

/// How many plans at least are compared by more than a short simulation.
const FINALISTS: usize = 2;

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
        let off = Off::at(layers_of_stage(&plan), &offs);
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
            (&short.model, &short.policy.pipeline),
            short.dtype,
            short.workload,
            (&[short.policy.compression], short.policy.sparse_attention),
        )?;
        let expected = estimate(&short, &forms);
        let prefilled = simulated.prefill_s * admitting_passes(&short);
        let decoded = simulated.latency_s - prefilled;
        let prefill = prefilled.0 / expected.prefill_s.0;
        let decode = match expected.decode_s.0 > 0.0 {
            true => decoded.0 / expected.decode_s.0,
            false => prefill,
        };
        Ok(Off {
            layers: layers_of_stage(&short),
            prefill,
            decode,
        })
    }

    /// That of so many layers a stage, on the line through the first and the last sample over one over their layers.
    fn at(layers: f64, samples: &[Off]) -> Off {
        let (few, more) = (samples[0], samples[samples.len() - 1]);
        let on_line = |of: fn(&Off) -> f64| {
            if few.layers == more.layers {
                return of(&more);
            }
            let slope = (of(&few) - of(&more)) / (1.0 / few.layers - 1.0 / more.layers);
            let there = of(&more) + slope * (1.0 / layers - 1.0 / more.layers);
            // Few passes of a sort are no reason to believe in next to no time.
            there.max(0.5 * of(&more))
        };
        Off {
            layers,
            prefill: on_line(|off| off.prefill),
            decode: on_line(|off| off.decode),
        }
    }
}

fn layers_of_stage(plan: &Plan) -> f64 {
    f64::from(plan.model.num_hidden_layers) / f64::from(plan.policy.pipeline.stages)
}

/// Passes that admit GPU batches in what is timed, where each takes [`prefill_s`](plimsoll_core::timing::Timing::prefill_s); 1
/// where that is all of prefill.
fn admitting_passes(plan: &Plan) -> f64 {
    match Part::of(plan) {
        Part::Passes { .. } => f64::from(plan.policy.num_gpu_batches.min(plan.workload.gen_len)),
        Part::Whole => 1.0,
    }
}

/// Simulates plans and sorts them, best first; of many the finalists come back, the best few of those that are alike and so many
/// diagonals of the best kind of these, of usual blocks and of others, which a short simulation may misjudge by some percent.
/// Only small plans have predictions.
pub(super) fn judge(
    plans: Vec<Plan>,
    profile: &HardwareProfile,
    forms: &ClosedForms,
    (objective, diagonals): (Objective, usize),
) -> Result<Vec<Judged>, PlanError> {
    if are_few(&plans) {
        return Ok(sorted(in_full(plans, profile)?, objective));
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

/// Of plans, best first: the best few of those that are alike, of the best diagonals with usual blocks, and with others, so many, and as
/// many of the rest as are simulated without a thought.
fn finalists(judged: Vec<Judged>, diagonals: usize) -> Vec<Plan> {
    let mut seen: Vec<Alike> = Vec::new();
    let is_first = |plan: &Plan| {
        let way = kind::alike(&plan.policy);
        let before = seen.iter().filter(|known| **known == way).count();
        seen.push(way);
        let mut of_diagonals = seen
            .iter()
            .filter(|(kind, usual, ..)| kind.schedule == Schedule::Diagonal && *usual == way.1);
        let best = of_diagonals.next() == Some(&way);
        before < if best { diagonals } else { ALIKE }
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

/// Whether so many plans like this one are simulated in full in little time that shares can be tried one by one.
pub(super) fn is_small(plan: &Plan) -> bool {
    squares(plan) <= SMALL_SQUARES
}

/// How many of the first plans are simulated in full in little time.
pub(super) fn first_some(plans: &[Plan]) -> usize {
    let sums = plans.iter().scan(0_u64, |sum, plan| {
        *sum = sum.saturating_add(squares(plan));
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= SOME_SQUARES).count()
}

/// Each plan simulated in full; the order stays.
pub(super) fn in_full(
    plans: Vec<Plan>,
    profile: &HardwareProfile,
) -> Result<Vec<Judged>, PlanError> {
    all(plans, &|plan| Judged::in_full(plan, profile))
}

/// Whether a plan takes so long to simulate that hardly another is besides. Of many rounds only some are simulated, where they are alike.
pub(super) fn is_large(plan: &Plan) -> bool {
    let block = plan.policy.block_size();
    let all = plan.workload.num_prompts.unwrap_or(block);
    let prompts = match rounds_are_alike(plan) {
        true => all.min(block.saturating_mul(ROUNDS)),
        false => all,
    };
    squares_of(plan, prompts) > LARGE_SQUARES
}

/// Squares of FlexGen's figure 2.
fn squares(plan: &Plan) -> u64 {
    let all = plan.workload.num_prompts;
    squares_of(plan, all.unwrap_or(plan.policy.block_size()))
}

fn squares_of(plan: &Plan, prompts: u64) -> u64 {
    let batches = prompts.div_ceil(u64::from(plan.policy.gpu_batch_size));
    let squares = u64::from(plan.model.num_blocks()).saturating_mul(batches);
    squares.saturating_mul(u64::from(plan.workload.gen_len))
}

/// The closed form of a plan's policy with the shares of weights that its whole tensors have.
pub(super) fn estimate(plan: &Plan, forms: &ClosedForms) -> Estimate {
    let form = forms.form(&plan.policy);
    form.evaluate(&Policy {
        weights: WeightPlacement::of(plan).shares(),
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
                .min(sample.layers * plan.policy.pipeline.stages),
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
    // Stages of as many layers each; fewer in the last is a matter of the whole model.
    short.policy.pipeline.last_stage_layers = None;
    // A smaller model's tensors may round up where the whole one's do not.
    short.capacity_bytes = footprint(&short)?;
    Ok(short)
}

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;
    use plimsoll_core::compression::Compression;
    use plimsoll_core::hardware::embedded;
    use plimsoll_core::lower::schedule::Passes;
    use plimsoll_core::model::registry;
    use plimsoll_core::pipeline::Pipeline;
    use plimsoll_core::sparse::DENSE;
    use plimsoll_core::tier::PerTier;
    use plimsoll_core::units::Bytes;

    use super::*;

    fn policy(batches: u32, schedule: Schedule, cpu_attention: bool) -> Policy {
        let percent = [30.0, 70.0, 0.0, 100.0, 0.0, 100.0];
        Policy {
            schedule,
            cpu_attention,
            barrier: false,
            ..Policy::from_percent(20, batches, percent).expect("a policy")
        }
    }

    fn profile() -> HardwareProfile {
        embedded::profile("t4x4").expect("embedded")
    }

    fn plan(policy: Policy, gen_len: u32) -> Plan {
        let model = registry::find("opt-13b").expect("registered");
        let workload = Workload {
            prompt_len: 64,
            gen_len,
            num_prompts: None,
        };
        Plan {
            capacity_bytes: PerTier::from_fn(|_| Bytes(1 << 50)),
            ..Plan::given(model, Dtype::F16, workload, policy).on(&profile())
        }
    }

    /// What samples say of a plan's time, over the time of the whole.
    fn over_whole(plan: &Plan, length: Length) -> f64 {
        let profile = profile();
        let model = (&plan.model, &plan.policy.pipeline);
        let only = (&[Compression::default()][..], DENSE);
        let forms = ClosedForms::new(&profile, model, plan.dtype, plan.workload, only);
        let forms = forms.expect("a workload");
        let part = Judged::by_sample(plan.clone(), &profile, &forms, length).expect("fits");
        let whole = Judged::in_full(plan.clone(), &profile).expect("fits");
        part.latency_s().0 / whole.latency_s().0
    }

    /// Attention on the CPU binds a long answer's last tokens and not its first.
    #[test]
    fn whole_answers_over_few_layers_tell_the_time_of_all() {
        for (schedule, cpu_attention) in [
            (Schedule::ZigZag, true),
            (Schedule::Diagonal, true),
            (Schedule::Diagonal, false),
        ] {
            let plan = plan(policy(10, schedule, cpu_attention), 256);
            for length in [Length::Long, Length::Longer] {
                let over = over_whole(&plan, length);
                assert!((over - 1.0).abs() < 0.03, "{:?}: {over}", plan.policy);
            }
        }
    }

    /// Of a sample's 24 passes 10 admit a GPU batch, and of the whole's 256 too.
    #[test]
    fn a_few_passes_tell_the_time_of_another_mixture() {
        let plan = plan(policy(10, Schedule::Diagonal, false), 256);
        let over = over_whole(&plan, Length::Short);
        assert!((over - 1.0).abs() < 0.05, "{over}");
    }

    #[test]
    fn few_layers_of_each_stage_tell_the_time_of_a_pipeline() {
        for (stages, micro_batches) in [(2, 2), (4, 4), (4, 16)] {
            let pipeline = Pipeline {
                stages,
                micro_batches,
                ..Pipeline::default()
            };
            let base = policy(1, Schedule::ZigZag, false);
            let plan = plan(Policy { pipeline, ..base }, 8);
            for length in [Length::Short, Length::Long, Length::Longer] {
                let over = over_whole(&plan, length);
                assert!((over - 1.0).abs() < 0.1, "{pipeline:?} {length:?}: {over}");
            }
        }
    }

    #[test]
    fn samples_of_diagonals_have_passes_of_all_sorts() {
        for batches in [2, 20, 64, 96] {
            let diagonal = policy(batches, Schedule::Diagonal, false);
            let lengths = [Length::Short, Length::Long, Length::Longer];
            for sample in lengths.map(|length| length.samples(&diagonal)) {
                assert!(sample.iter().all(|s| s.tokens > batches), "{sample:?}");
            }
        }
    }

    #[test]
    fn passes_that_admit_are_counted_in_what_is_timed() {
        for (batches, gen_len) in [(3, 8), (8, 8), (12, 8), (5, 1)] {
            let plan = plan(policy(batches, Schedule::Diagonal, false), gen_len);
            let passes = Passes::new(&plan.policy, &plan.workload);
            let stay = u64::from(gen_len);
            let admits = |pass: &u64| passes.turns(*pass).iter().any(|turn| turn.token == 0);
            let counted = (stay..2 * stay).filter(admits).count();
            assert_eq!(
                admitting_passes(&plan),
                counted as f64,
                "{batches} {gen_len}"
            );
        }
    }
}
