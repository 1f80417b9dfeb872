//! The policy search: FlexGen's two levels (section 4.3), with the simulator as the judge.
//!
//! `space` enumerates GPU batch sizes, GPU batches a block and where attention runs. For each, a
//! linear program (`lp`) over the closed form places weights, cache and activations; the best are
//! made whole so that they really fit (`whole`); the simulator says which is best (`judge`).
//! Where layers take most of the device, or nothing fits, it is done again for steps of half a layer.
//! Where there are several GPUs, that is done for each pipeline (`pipelines`). Of what all of them found the
//! best few are simulated in full, and the best one is taken (`pool`). Where the time of a block is limited,
//! shapes are tried as what was learned from others says (`within`).
//! `blocks` asks the same for one block size after another, under the rules of some system.
//! That no plan fits is an answer, not an error (`infeasible`).

mod advice;
mod around;
mod blocks;
mod bound;
mod flags;
mod infeasible;
mod judge;
mod kind;
mod lp;
mod neighbour;
mod pipelines;
mod pool;
mod room;
mod simpler;
mod space;
pub mod split;
mod whole;
mod within;

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
use plimsoll_sim::closed_form::{ClosedForms, stage_model};
use plimsoll_sim::{SimulateError, predict};
use thiserror::Error;

pub use advice::Advice;
pub use blocks::{Block, Blocks, Excess, Outcome, Rules};
pub use bound::Bound;
pub use flags::{Flag, Unasked, unasked};
pub use infeasible::Infeasible;
use judge::Judged;
pub use kind::Kind;
use pool::Pool;
use space::{Proposal, Shape};
use whole::Maker;

/// How many proposals are tried to be made whole, best first.
const PROPOSED: usize = 16;

/// How many are where none of those can be.
const PROPOSED_AT_MOST: usize = 100;

/// How many whole plans of each kind the simulator judges at least, both ways to make a proposal
/// whole counted.
const JUDGED: usize = 6;

/// How many more where prompts come to an end: blocks of other numbers of rounds.
const JUDGED_OF_ROUNDS: usize = 4;

/// How many of the best diagonals with usual blocks, and how many of the best with others, a short simulation leaves to a
/// longer one.
const DIAGONALS: usize = 8;

/// How many of the best proposals are made whole before those that are unlike them.
const BEST: usize = 2;

/// By what factor the closed form, which thinks that all overlaps, may misjudge one plan beside another.
const CLOSED_FORM_OFF: f64 = 1.5;

/// What makes a plan better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objective {
    /// Generated tokens a second, prefill included (FlexGen section 6).
    #[default]
    Throughput,
    /// The time until the workload's prompts are answered; one prompt where they are endless.
    Latency,
}

impl Objective {
    /// Seconds a token, or seconds: less is better.
    fn cost(self, latency: Seconds, tokens: f64) -> f64 {
        match self {
            Objective::Throughput => latency.0 / tokens,
            Objective::Latency => latency.0,
        }
    }
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
    /// Whose plans are looked for.
    pub strategy: Strategy,
}

/// Ways to place and compute a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// The better of both by simulation.
    Auto,
    /// Whole linear layers on the device, and what lives elsewhere moves.
    #[default]
    FlexGen,
    /// Linear layers that the CPU and the device compute together.
    HeteGen,
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
            strategy: Strategy::default(),
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
    /// The simulator's winner, with its prediction.
    pub plan: Plan,
    /// The time of the whole workload as judged: by its prediction, or by the simulation of a part.
    pub latency_s: Seconds,
    /// Generated tokens over that time.
    pub throughput_tok_s: f64,
    /// The best of another [`Kind`], as the winner; none where no other kind is allowed, or fits.
    pub runner_up: Option<Plan>,
    /// Shapes (GPU batch size, GPU batches, where attention runs) that were compared.
    pub considered: usize,
    /// The change of the machine that would help most, of those tried; none are for [very long answers](is_too_long_for_advice).
    pub advice: Option<Advice>,
    /// Why no plan with split linear layers was looked at, or fits, where one was allowed.
    pub not_split: Option<String>,
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

/// Whether a plan takes too long to simulate for changes of its machine to be tried.
pub fn is_too_long_for_advice(plan: &Plan) -> bool {
    judge::is_large(plan)
}

impl PlanError {
    /// Whether a plan is too large to be simulated.
    fn is_of_size(&self) -> bool {
        let too_much = |error: &LowerError| matches!(error, LowerError::TooMuch { .. });
        match self {
            PlanError::Request(error) | PlanError::Simulate(SimulateError::Lower(error)) => {
                too_much(error)
            }
            PlanError::Simulate(_) | PlanError::Solver(_) => false,
        }
    }
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
    search_watched((profile, model, dtype), request, &mut |_, _| ())
}

/// [`search`], which says after each of its steps how many of how many are done.
///
/// # Errors
/// As [`search`].
pub fn search_watched(
    machine: (&HardwareProfile, &ModelSpec, Dtype),
    request: &Request,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Answer, PlanError> {
    match request.allowed.strategy {
        Strategy::FlexGen => search_unsplit(machine, request, watch),
        Strategy::HeteGen => split::answer(machine, request),
        Strategy::Auto => {
            let whole = search_unsplit(machine, request, watch)?;
            let answer = match split::answer(machine, request) {
                Ok(Answer::Infeasible(why)) => match whole {
                    Answer::Infeasible(whole) => {
                        Answer::Infeasible(Box::new(whole.or_nearer(*why)))
                    }
                    whole => not_split(whole, why.to_string()),
                },
                Ok(split) => better(whole, split, request.objective),
                // Not with this model, or not with what was asked for.
                Err(PlanError::Request(error)) => not_split(whole, error.to_string()),
                Err(error) => return Err(error),
            };
            Ok(match answer {
                Answer::Plan(mut planned) => {
                    planned.advice = flags::advice_of_both(machine, request, &planned)?;
                    Answer::Plan(planned)
                }
                answer => answer,
            })
        }
    }
}

/// An answer that says why it has no split to compare with.
fn not_split(whole: Answer, why: String) -> Answer {
    let said = |mut planned: Box<Planned>| {
        planned.not_split = Some(why);
        planned
    };
    match whole {
        Answer::Plan(planned) => Answer::Plan(said(planned)),
        Answer::TooSlow(planned) => Answer::TooSlow(said(planned)),
        infeasible => infeasible,
    }
}

/// The better of two strategies' answers, with the other's plan as the next best.
fn better(whole: Answer, split: Answer, objective: Objective) -> Answer {
    let cost = |p: &Planned| objective.cost(p.latency_s, p.throughput_tok_s * p.latency_s.0);
    match (whole, split) {
        (Answer::Plan(whole), Answer::Plan(split)) => {
            let considered = whole.considered + split.considered;
            let (mut best, other) = match cost(&split) < cost(&whole) {
                true => (split, whole),
                false => (whole, split),
            };
            best.runner_up = Some(other.plan);
            best.considered = considered;
            Answer::Plan(best)
        }
        (Answer::Plan(one), _) | (_, Answer::Plan(one)) => Answer::Plan(one),
        (Answer::TooSlow(a), Answer::TooSlow(b)) => {
            Answer::TooSlow(if a.latency_s <= b.latency_s { a } else { b })
        }
        (Answer::TooSlow(slow), _) | (_, Answer::TooSlow(slow)) => Answer::TooSlow(slow),
        (whole, _) => whole,
    }
}

/// The best of plans whose linear layers are whole.
fn search_unsplit(
    machine: (&HardwareProfile, &ModelSpec, Dtype),
    request: &Request,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Answer, PlanError> {
    let answer = answer(machine, request, &mut *watch)?;
    let answer = match (answer, request.max_latency_s) {
        (Answer::Plan(planned), _) if request.objective == Objective::Throughput => {
            Answer::Plan(pipelines::with_lighter_end(planned, machine.0)?)
        }
        // Of so many prompts, what was found is the quickest already.
        (Answer::TooSlow(slow), Some(limit)) if request.workload.num_prompts.is_none() => {
            quickest(machine, request, (slow, limit), watch)?
        }
        (answer, _) => answer,
    };
    Ok(answer)
}

/// The answer of the searches on all of the machine's pipelines: of a limit on time, that of no limit if it is in time. Where it is
/// not, all is searched twice.
fn answer(
    machine: (&HardwareProfile, &ModelSpec, Dtype),
    request: &Request,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Answer, PlanError> {
    if let Some(limit) = request.max_latency_s {
        let free = Request {
            max_latency_s: None,
            ..*request
        };
        let pool = searched(machine, &free, watch)?;
        if pool.may_be_in(limit)
            && let Answer::Plan(planned) = pool.asked_within(limit).answer()?
            && planned.latency_s <= limit
        {
            return Ok(Answer::Plan(planned));
        }
    }
    searched(machine, request, watch)?.answer()
}

/// What the searches on all of the machine's pipelines find.
fn searched<'a>(
    machine: (&'a HardwareProfile, &ModelSpec, Dtype),
    request: &Request,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Pool<'a>, PlanError> {
    let (profile, model, dtype) = machine;
    let pipelines = pipelines::of_machine(profile, model, request).into_iter();
    // A pipeline's stages are zig-zags.
    let schedule = request.allowed.schedule;
    let zigzag = schedule.is_none_or(|s| s == Schedule::ZigZag);
    let pipelines = pipelines.filter(|pipeline| zigzag || pipeline.is_default());
    let pipelines: Vec<Pipeline> = pipelines.collect();
    // The finalists are a step of their own.
    let steps = pipelines.len() as u64 + 1;
    let mut pool = Pool::new(profile, request);
    watch(0, steps);
    for (done, pipeline) in (1..).zip(pipelines) {
        let base = Search::new(profile, model, dtype, request, pipeline)?;
        let fits = |found: &Found| matches!(found.verdict, Fit::Plans(_));
        for (search, found) in base.in_turn(|search| search.found(request), fits)? {
            pool.add(search, found);
        }
        watch(done, steps);
    }
    Ok(pool)
}

/// Where no plan was in time: the plan that a search for the least latency finds, if that is quicker. What
/// that search finds of one prompt is the block of that one where prompts are endless.
fn quickest(
    machine: (&HardwareProfile, &ModelSpec, Dtype),
    request: &Request,
    (slow, limit): (Box<Planned>, Seconds),
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Answer, PlanError> {
    let hurried = Request {
        objective: Objective::Latency,
        max_latency_s: None,
        ..*request
    };
    let mut planned = match answer(machine, &hurried, watch)? {
        Answer::Plan(planned) if planned.latency_s < slow.latency_s => planned,
        _ => return Ok(Answer::TooSlow(slow)),
    };
    planned.considered += slow.considered;
    let workload = workload_of(request);
    for plan in [Some(&mut planned.plan), planned.runner_up.as_mut()] {
        let other = plan.filter(|plan| plan.workload != workload);
        if let Some(plan) = other {
            plan.workload = workload;
            plan.prediction = Some(predict(plan, machine.0)?);
        }
    }
    if let Some(prediction) = &planned.plan.prediction {
        planned.latency_s = prediction.latency_s;
        planned.throughput_tok_s = prediction.throughput_tok_s;
    }
    let in_time = |plan: &Plan| {
        let prediction = plan.prediction.as_ref();
        prediction.is_some_and(|prediction| prediction.latency_s <= limit)
    };
    planned.runner_up = planned.runner_up.filter(in_time);
    Ok(match in_time(&planned.plan) {
        true => Answer::Plan(planned),
        false => Answer::TooSlow(planned),
    })
}

/// What is asked for; endless prompts mean nothing to a latency, so that it is of one.
fn workload_of(request: &Request) -> Workload {
    let mut workload = request.workload;
    if request.objective == Objective::Latency && workload.num_prompts.is_none() {
        workload.num_prompts = Some(1);
    }
    workload
}

/// What all parts of one search share.
#[derive(Clone)]
struct Search<'a> {
    profile: &'a HardwareProfile,
    forms: ClosedForms,
    /// The discrete choices besides sizes.
    open: Vec<Policy>,
    allowed: Allowed,
    /// How long a block may take.
    limit: Option<Seconds>,
    maker: Maker,
}

/// What a search on one pipeline comes to.
struct Found {
    verdict: Fit,
    /// What the plans come from, best first.
    proposals: Vec<Proposal>,
    /// Shapes that were compared.
    considered: usize,
}

/// Plans in their order, and the proposals of the search that they come from.
type Ranked = (Vec<Judged>, Vec<Proposal>);

/// Judged plans, or why there are none.
enum Fit {
    /// They fit.
    Plans(Vec<Judged>),
    /// None fits.
    Infeasible(Box<Infeasible>),
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
            open: space::choices(&allowed, pipeline),
            forms: ClosedForms::new(profile, &stage, dtype, workload, approximations)?,
            allowed,
            limit: request.max_latency_s,
            maker: Maker::new(profile, model, dtype, workload),
        })
    }

    fn found(&self, request: &Request) -> Result<Found, PlanError> {
        let shapes = self.shapes();
        let endless = self.maker.workload().num_prompts.is_none();
        // Of so many prompts, what has the most throughput ends soonest.
        let found = match request.max_latency_s.filter(|_| endless) {
            Some(limit) => self.within(&shapes, limit)?,
            None => self.best(&shapes, request.objective)?,
        };
        let (verdict, proposals) = match found {
            Some((plans, proposals)) => (Fit::Plans(plans), proposals),
            None => (self.nearest()?, Vec::new()),
        };
        Ok(Found {
            verdict,
            proposals,
            considered: shapes.len(),
        })
    }

    /// What is found by this search and, where the device is small, by that of half layers; with the searches.
    fn in_turn<T>(
        &self,
        find: impl Fn(&Search<'a>) -> Result<T, PlanError>,
        fits: impl Fn(&T) -> bool,
    ) -> Result<Vec<(Search<'a>, T)>, PlanError> {
        let lists = space::also_in_halves(self.open.clone());
        let searched = |choices: &[Policy]| {
            let search = Search {
                open: choices.to_vec(),
                ..self.clone()
            };
            let found = find(&search)?;
            Ok((search, found))
        };
        let machine = (&self.forms, self.maker.room());
        space::in_turn(&lists, machine, searched, |(_, found)| fits(found))
    }

    fn shapes(&self) -> Vec<Shape> {
        let (asked, room) = (self.maker.workload(), self.maker.room());
        space::shapes(&self.forms, &self.open, asked, room)
    }

    /// Plans that fit, best by the closed form first, and the proposals that they come from.
    fn propose(
        &self,
        shapes: &[Shape],
        objective: Objective,
    ) -> Result<(Vec<Plan>, Vec<Proposal>), PlanError> {
        let more = match self.maker.workload().num_prompts {
            None => 0,
            Some(_) => JUDGED_OF_ROUNDS,
        };
        for count in [PROPOSED, PROPOSED_AT_MOST] {
            let room = self.maker.room();
            let mut plans = Vec::new();
            let mut unlikely = Vec::new();
            let mut proposals = Vec::new();
            // The closed form errs differently on plans of different kinds, so each has its candidates.
            let scanned = space::scan_each(shapes, Kind::of, (room, objective, count));
            // What the solver cannot place at all is left to the smallest blocks, and to the nearest plan.
            let scanned = scanned.unwrap_or_default();
            // Of pipelines none: they take long.
            let is_single = self.open.iter().all(|choice| choice.pipeline.stages == 1);
            let asked = (room, objective, count);
            let simpler = match is_single {
                true => simpler::moving_less(shapes, &scanned, Kind::of, asked),
                false => Vec::new(),
            };
            let scanned = scanned.into_iter().map(|best| (best, JUDGED + more));
            let simpler = simpler.into_iter().map(|best| (best, simpler::JUDGED));
            for (best, most) in scanned.chain(simpler) {
                let may_win = |plan: &Plan| self.may_win(plan, &best, objective);
                for alike in by_way(&best) {
                    let before = plans.len();
                    for proposal in unlike_first(alike) {
                        // Of small plans, more are judged in the same time.
                        if plans.len() < before + most || judge::are_few(&plans[before..]) {
                            let made = self.maker.make(proposal)?.into_iter();
                            let (likely, others): (Vec<_>, Vec<_>) = made.partition(may_win);
                            plans.extend(likely);
                            unlikely.extend(others);
                        }
                    }
                }
                proposals.extend(best);
            }
            proposals.sort_by(|a, b| a.score.total_cmp(&b.score));
            // Where so few fit, others may have been missed.
            let are_few = plans.len() < JUDGED;
            if plans.is_empty() {
                // Of few large tensors, none may be near what was asked.
                unlikely.truncate(JUDGED);
                plans = unlikely;
            }
            if !plans.is_empty() {
                if are_few {
                    plans.extend(self.smallest(shapes, objective)?);
                }
                return Ok((plans, proposals));
            }
        }
        Ok((self.smallest(shapes, objective)?, Vec::new()))
    }

    /// Blocks from the smallest on, which leave tensors the most room, for as long as some can be made whole; the best
    /// of them. Whole tensors may also take less than their shares, so that a placement may fit that exceeds the machine
    /// by a little.
    fn smallest(&self, shapes: &[Shape], objective: Objective) -> Result<Vec<Plan>, PlanError> {
        let room = self.maker.room();
        let mut order: Vec<&Shape> = shapes.iter().collect();
        order.sort_by_key(|shape| shape.policy.block_size());
        let mut made: Vec<Plan> = Vec::new();
        for some in order.chunks(space::AT_ONCE) {
            let before = made.len();
            let placed = space::place_all(some.to_vec(), room, objective);
            for (shape, placed) in some.iter().zip(placed) {
                // What the solver cannot place is left to the other shapes.
                let mut plans = Vec::new();
                for proposal in placed.unwrap_or_default() {
                    plans.extend(self.maker.make(&proposal)?);
                }
                if plans.is_empty() {
                    let shapes = std::iter::once(*shape).chain(&shape.less_locked);
                    let nearest = shapes.filter_map(|s| lp::place_with_least_excess(s, room));
                    plans.extend(nearest.map(|policy| self.maker.plan(policy)));
                    plans.retain(|plan| self.maker.fits(plan));
                }
                made.append(&mut plans);
            }
            if before > 0 && made.len() == before {
                break;
            }
        }
        let score = |plan: &Plan| self.score(plan, objective);
        made.sort_by(|a, b| score(a).total_cmp(&score(b)));
        made.truncate(2 * JUDGED);
        Ok(made)
    }

    /// What the closed form says of a whole plan: seconds a token, or seconds.
    fn score(&self, plan: &Plan, objective: Objective) -> f64 {
        let estimate = judge::estimate(plan, &self.forms);
        let tokens = estimate.throughput_tok_s * estimate.latency_s.0;
        objective.cost(estimate.latency_s, tokens)
    }

    /// Whether a plan made whole is still near the best proposal. Whole tensors may be far from the shares
    /// that were asked.
    fn may_win(&self, plan: &Plan, proposals: &[Proposal], objective: Objective) -> bool {
        let scores = proposals.iter().map(|proposal| proposal.score);
        let best = scores.fold(f64::INFINITY, f64::min);
        self.score(plan, objective) <= best * CLOSED_FORM_OFF
    }

    /// The best, ranked, or none where nothing fits.
    fn best(&self, shapes: &[Shape], objective: Objective) -> Result<Option<Ranked>, PlanError> {
        let (plans, proposals) = self.propose(shapes, objective)?;
        let plans = judge::judge(plans, self.profile, &self.forms, (objective, DIAGONALS))?;
        Ok((!plans.is_empty()).then_some((plans, proposals)))
    }

    /// The nearest plan; where it fits after all, it is the answer.
    fn nearest(&self) -> Result<Fit, PlanError> {
        let nearest = infeasible::nearest(self)?;
        if nearest.needed > nearest.capacity {
            return Ok(Fit::Infeasible(Box::new(nearest)));
        }
        let plan = Judged::in_full(nearest.nearest, self.profile)?;
        Ok(Fit::Plans(vec![plan]))
    }
}

/// The proposals of each way to page-lock, in the order of the first of each: the closed form errs differently on them.
fn by_way(proposals: &[Proposal]) -> Vec<Vec<&Proposal>> {
    let mut ways: Vec<Vec<&Proposal>> = Vec::new();
    for proposal in proposals {
        let is_alike =
            |way: &&mut Vec<&Proposal>| way[0].policy.page_locked == proposal.policy.page_locked;
        match ways.iter_mut().find(is_alike) {
            Some(way) => way.push(proposal),
            None => ways.push(vec![proposal]),
        }
    }
    ways
}

/// The very best, then the best of each other number of rounds (endless prompts have one), of each other
/// GPU batch size, then the others: the closed form errs much alike on shapes that are, and knows nothing of how a round begins and ends.
fn unlike_first(mut best: Vec<&Proposal>) -> Vec<&Proposal> {
    let others = best.split_off(best.len().min(BEST));
    let (best, others) = with_unlike(best, others, |p| p.form.rounds().ceil() as u64);
    let (mut best, others) = with_unlike(best, others, |p| p.policy.gpu_batch_size);
    best.extend(others);
    best
}

/// Some, and of others the first of each that none before is like; and what is left.
fn with_unlike<'p, K: PartialEq>(
    mut some: Vec<&'p Proposal>,
    others: Vec<&'p Proposal>,
    key: impl Fn(&Proposal) -> K,
) -> (Vec<&'p Proposal>, Vec<&'p Proposal>) {
    let mut known: Vec<K> = some.iter().map(|proposal| key(proposal)).collect();
    let is_first = |proposal: &&Proposal| {
        let key = key(proposal);
        let first = !known.contains(&key);
        known.push(key);
        first
    };
    let (first, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(is_first);
    some.extend(first);
    (some, rest)
}
