//! The policy search: FlexGen's two levels (section 4.3), with the simulator as the judge.
//!
//! `space` enumerates GPU batch sizes, GPU batches a block and where attention runs. For each, a
//! linear program (`lp`) over the closed form places weights, cache and activations; the best are
//! made whole so that they really fit (`whole`); the simulator says which is best (`judge`).
//! Where there are several GPUs, that is done for each pipeline (`pipelines`), and the best one is taken.
//! `blocks` asks the same for one block size after another, under the rules of some system.
//! That no plan fits is an answer, not an error (`infeasible`).

mod advice;
mod blocks;
mod infeasible;
mod judge;
mod lp;
mod pipelines;
mod space;
mod whole;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::LowerError;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::sparse::DENSE;
use plimsoll_core::units::Seconds;
use plimsoll_core::workload::Workload;
use plimsoll_sim::SimulateError;
use plimsoll_sim::closed_form::{ClosedForms, stage_model};
use thiserror::Error;

pub use advice::Advice;
pub use blocks::{Block, Blocks, Excess, Outcome, Rules};
pub use infeasible::Infeasible;
use judge::{Judged, Verdict};
use space::{Proposal, Shape};
use whole::Maker;

/// How many proposals are tried to be made whole, best first.
const PROPOSED: usize = 16;

/// How many are where none of those can be.
const PROPOSED_AT_MOST: usize = 100;

/// How many whole plans of each schedule the simulator judges at least, both ways to make a proposal
/// whole counted.
const JUDGED: usize = 6;

/// How often the latency asked of proposals is lowered because the simulator disagrees.
const LIMITS_TRIED: usize = 4;

/// What makes a plan better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objective {
    /// Generated tokens a second, prefill included (FlexGen section 6).
    #[default]
    Throughput,
    /// The time until the workload's prompts are answered; one prompt where they are endless.
    Latency,
}

/// What is asked of the planner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// Prompts in, tokens out.
    pub workload: Workload,
    /// What makes a plan better.
    pub objective: Objective,
    /// The simulated time of the whole workload (of one block, where prompts are endless) must not
    /// be longer.
    pub max_latency_s: Option<Seconds>,
    /// What may be decided.
    pub allowed: Allowed,
}

/// What the search may choose from, besides sizes and where tensors live.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowed {
    /// What may be kept in 4 bits an element, where that is better.
    pub compression: Compression,
    /// The share of past tokens whose values a decode step reads; 1 is dense. It is not searched, since
    /// it changes what comes out.
    pub sparse_attention: f64,
    /// Whether decode attention over cache that is not on the device runs on the CPU; none: where that is
    /// better.
    pub cpu_attention: Option<bool>,
    /// The order of computation; none: zig-zag or diagonal, the better one.
    pub schedule: Option<Schedule>,
    /// Whether copies, disk and computation overlap.
    pub overlap: bool,
}

impl Default for Allowed {
    /// All that changes no token.
    fn default() -> Allowed {
        Allowed {
            compression: Compression::default(),
            sparse_attention: DENSE,
            cpu_attention: None,
            schedule: None,
            overlap: true,
        }
    }
}

/// What the search finds.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A plan that fits.
    Plan(Box<Planned>),
    /// No plan fits the machine.
    Infeasible(Box<Infeasible>),
    /// Plans fit, but none that was found is fast enough; this one is the fastest.
    TooSlow(Box<Planned>),
}

/// A plan with what the search knows of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The simulator's winner, with its prediction; see [`choose`] for a winner without.
    pub plan: Plan,
    /// The time of the whole workload as judged: by its prediction, or by the simulation of a part.
    pub latency_s: Seconds,
    /// Generated tokens over that time.
    pub throughput_tok_s: f64,
    /// The next best, as the winner.
    pub runner_up: Option<Plan>,
    /// Shapes (GPU batch size, GPU batches, where attention runs) that were compared.
    pub considered: usize,
    /// The busiest resource of the prediction, in words; empty where there is none.
    pub bottleneck: String,
    /// The change of the machine that would help most, of those tried.
    pub advice: Option<Advice>,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The request means nothing for this model.
    #[error(transparent)]
    Request(#[from] LowerError),
    /// A plan of ours has no simulation.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The linear program's solver failed.
    #[error("the linear program has no answer: {0}")]
    Solver(String),
}

/// Finds the best plan for a machine, a model and a workload.
///
/// # Errors
/// A request that means nothing; an error of ours in solving or simulating.
pub fn search(
    profile: &HardwareProfile,
    model: &ModelSpec,
    dtype: Dtype,
    request: &Request,
) -> Result<Answer, PlanError> {
    let answers = answers((profile, model, dtype), request, Verdict::Predicted)?;
    let best = pipelines::best(answers, request.objective);
    match best.ok_or_else(no_pipeline)? {
        Answer::Plan(planned) if request.objective == Objective::Throughput => {
            pipelines::with_lighter_end(planned, profile).map(Answer::Plan)
        }
        answer => Ok(answer),
    }
}

/// What a search on each of the machine's pipelines finds.
fn answers(
    (profile, model, dtype): (&HardwareProfile, &ModelSpec, Dtype),
    request: &Request,
    verdict: Verdict,
) -> Result<Vec<Answer>, PlanError> {
    let workload = workload_of(request);
    let pipelines = pipelines::of_machine(profile, model, &workload).into_iter();
    // A pipeline's stages are zig-zags.
    let zigzag = request
        .allowed
        .schedule
        .is_none_or(|s| s == Schedule::ZigZag);
    let pipelines = pipelines.filter(|pipeline| zigzag || pipeline.is_default());
    let answer =
        |pipeline| Search::new(profile, model, dtype, request, pipeline)?.answer(request, verdict);
    pipelines.map(answer).collect()
}

fn no_pipeline() -> PlanError {
    PlanError::Solver("no pipeline was searched".to_owned())
}

/// What is asked for; endless prompts mean nothing to a latency, so that it is of one.
fn workload_of(request: &Request) -> Workload {
    let mut workload = request.workload;
    if request.objective == Objective::Latency && workload.num_prompts.is_none() {
        workload.num_prompts = Some(1);
    }
    workload
}

/// [`search`] without its last step, the full simulation of the best two plans, which takes most of
/// its time: they are ranked by simulations of a part, and a plan has a prediction only if it is
/// small or a limit on its latency had to be held. The full simulation may still change their order.
///
/// # Errors
/// As [`search`].
pub fn choose(
    profile: &HardwareProfile,
    model: &ModelSpec,
    dtype: Dtype,
    request: &Request,
) -> Result<Answer, PlanError> {
    let answers = answers((profile, model, dtype), request, Verdict::Ranked)?;
    pipelines::best(answers, request.objective).ok_or_else(no_pipeline)
}

/// The first half of [`search`]: the plans that linear programs propose, made whole so that they fit,
/// best by the closed form first, on one GPU. Nothing is simulated, so none has a prediction.
///
/// # Errors
/// As [`search`].
pub fn propose(
    profile: &HardwareProfile,
    model: &ModelSpec,
    dtype: Dtype,
    request: &Request,
) -> Result<Vec<Plan>, PlanError> {
    let search = Search::new(profile, model, dtype, request, Pipeline::default())?;
    let shapes = search.shapes();
    let (plans, _) = search.propose(&shapes, request.objective, request.max_latency_s)?;
    Ok(plans)
}

/// What all parts of one search share.
struct Search<'a> {
    profile: &'a HardwareProfile,
    pipeline: Pipeline,
    forms: ClosedForms,
    allowed: Allowed,
    maker: Maker,
}

/// Judged plans, best first, and the proposals that they come from.
struct Found {
    plans: Vec<Judged>,
    proposals: Vec<Proposal>,
}

impl<'a> Search<'a> {
    fn new(
        profile: &'a HardwareProfile,
        model: &ModelSpec,
        dtype: Dtype,
        request: &Request,
        pipeline: Pipeline,
    ) -> Result<Search<'a>, PlanError> {
        let workload = workload_of(request);
        let stage = stage_model(model, &pipeline);
        let allowed = request.allowed;
        let compressions = allowed.compression.choices();
        let approximations = (compressions.as_slice(), allowed.sparse_attention);
        Ok(Search {
            profile,
            pipeline,
            forms: ClosedForms::new(profile, &stage, dtype, workload, approximations)?,
            allowed,
            maker: Maker::new(profile, model, dtype, workload),
        })
    }

    fn answer(&self, request: &Request, verdict: Verdict) -> Result<Answer, PlanError> {
        let shapes = self.shapes();
        if let Some(limit) = request.max_latency_s {
            return self.within(&shapes, request.objective, limit);
        }
        match self.best(&shapes, (request.objective, verdict), None)? {
            Some(found) => found.answer(self, &shapes).map(Answer::Plan),
            None => self.nearest(&shapes, request.objective, None),
        }
    }

    /// The discrete choices besides sizes.
    fn open(&self) -> Vec<Policy> {
        space::choices(&self.allowed, self.pipeline)
    }

    fn shapes(&self) -> Vec<Shape> {
        let open = self.open();
        space::shapes(&self.forms, &open, self.maker.workload(), self.maker.room())
    }

    /// Plans that fit, best by the closed form first, and the proposals that they come from.
    fn propose(
        &self,
        shapes: &[Shape],
        objective: Objective,
        limit: Option<Seconds>,
    ) -> Result<(Vec<Plan>, Vec<Proposal>), PlanError> {
        for count in [PROPOSED, PROPOSED_AT_MOST] {
            let room = self.maker.room();
            let mut plans = Vec::new();
            let mut proposals = Vec::new();
            // The closed form errs differently on different schedules, so each has its candidates.
            for schedule in [Schedule::Row, Schedule::ZigZag, Schedule::Diagonal] {
                let of_it = |shape: &&Shape| shape.policy.schedule == schedule;
                let shapes: Vec<&Shape> = shapes.iter().filter(of_it).collect();
                let best = space::scan(&shapes, room, (objective, limit), count)?;
                let before = plans.len();
                for proposal in &best {
                    // Of small plans, more are judged in the same time.
                    if plans.len() < before + JUDGED || judge::are_few(&plans[before..]) {
                        plans.extend(self.maker.make(proposal, limit)?);
                    }
                }
                proposals.extend(best);
            }
            proposals.sort_by(|a, b| a.score.total_cmp(&b.score));
            if !plans.is_empty() {
                return Ok((plans, proposals));
            }
        }
        Ok((Vec::new(), Vec::new()))
    }

    /// The judged best, or none where nothing fits within the closed form's limit.
    fn best(
        &self,
        shapes: &[Shape],
        (objective, verdict): (Objective, Verdict),
        limit: Option<Seconds>,
    ) -> Result<Option<Found>, PlanError> {
        let (plans, proposals) = self.propose(shapes, objective, limit)?;
        let wanted = (objective, verdict);
        let plans = judge::judge(plans, self.profile, &self.forms, wanted)?;
        Ok((!plans.is_empty()).then_some(Found { plans, proposals }))
    }

    /// The best plan whose simulated latency is within a limit.
    fn within(
        &self,
        shapes: &[Shape],
        objective: Objective,
        limit: Seconds,
    ) -> Result<Answer, PlanError> {
        let predicted = |objective| (objective, Verdict::Predicted);
        let mut asked = limit;
        let mut fastest: Option<Found> = None;
        for _ in 0..LIMITS_TRIED {
            let Some(mut found) = self.best(shapes, predicted(objective), Some(asked))? else {
                break;
            };
            let quickest = found.quickest();
            if quickest <= limit {
                found.plans.retain(|judged| judged.latency_s() <= limit);
                return found.answer(self, shapes).map(Answer::Plan);
            }
            asked = asked * (0.99 * limit.0 / quickest.0);
            if fastest.as_ref().is_none_or(|f| quickest < f.quickest()) {
                fastest = Some(found);
            }
        }
        let hurried = self.best(shapes, predicted(Objective::Latency), None)?;
        let found = [fastest, hurried].into_iter().flatten();
        match found.min_by(|a, b| a.quickest().0.total_cmp(&b.quickest().0)) {
            Some(mut found) => {
                let latency = |judged: &Judged| judged.latency_s().0;
                found
                    .plans
                    .sort_by(|a, b| latency(a).total_cmp(&latency(b)));
                let in_time = found.quickest() <= limit;
                let answer = if in_time {
                    Answer::Plan
                } else {
                    Answer::TooSlow
                };
                found.answer(self, shapes).map(answer)
            }
            None => self.nearest(shapes, objective, Some(limit)),
        }
    }

    /// The nearest plan; where it fits after all, it is the answer.
    fn nearest(
        &self,
        shapes: &[Shape],
        objective: Objective,
        limit: Option<Seconds>,
    ) -> Result<Answer, PlanError> {
        let nearest = infeasible::nearest(self)?;
        if nearest.needed > nearest.capacity {
            return Ok(Answer::Infeasible(Box::new(nearest)));
        }
        let wanted = (objective, Verdict::Predicted);
        let plans = judge::judge(vec![nearest.nearest], self.profile, &self.forms, wanted)?;
        let found = Found {
            plans,
            proposals: Vec::new(),
        };
        let in_time = limit.is_none_or(|limit| found.quickest() <= limit);
        let answer = if in_time {
            Answer::Plan
        } else {
            Answer::TooSlow
        };
        found.answer(self, shapes).map(answer)
    }
}

impl Found {
    fn quickest(&self) -> Seconds {
        let latencies = self.plans.iter().map(Judged::latency_s);
        Seconds(latencies.fold(f64::INFINITY, |least, s| least.min(s.0)))
    }

    fn answer(mut self, search: &Search<'_>, shapes: &[Shape]) -> Result<Box<Planned>, PlanError> {
        self.plans.truncate(2);
        let mut plans = self.plans.into_iter();
        let Some(winner) = plans.next() else {
            return Err(PlanError::Solver("no plan was judged".to_owned()));
        };
        let (latency_s, throughput_tok_s) = (winner.latency_s(), winner.throughput_tok_s());
        let plan = winner.into_plan();
        let bottleneck = advice::bottleneck(&plan);
        Ok(Box::new(Planned {
            advice: advice::best(search, &self.proposals, &plan)?,
            runner_up: plans.next().map(Judged::into_plan),
            considered: shapes.len(),
            bottleneck,
            latency_s,
            throughput_tok_s,
            plan,
        }))
    }
}
