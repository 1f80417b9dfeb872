//! One search: on one pipeline, with some choices open.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::units::Seconds;
use plimsoll_sim::closed_form::ClosedForms;

use super::judge::{self, Judged};
use super::space::{self, Proposal, Shape};
use super::whole::Maker;
use super::{
    Allowed, Infeasible, Kind, Objective, PlanError, Request, Subject, infeasible, lp, simpler,
    workload_of,
};

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
pub(super) const CLOSED_FORM_OFF: f64 = 1.5;

/// Sequences of a plan that was found as the nearest one and fits, at most, where prompts have no end.
const MORE_BATCHES: u64 = 64;

/// What all parts of one search share.
#[derive(Clone)]
pub(super) struct Search<'a> {
    pub(super) profile: &'a HardwareProfile,
    pub(super) forms: ClosedForms,
    /// The discrete choices besides sizes.
    pub(super) open: Vec<Policy>,
    pub(super) allowed: Allowed,
    /// How long a block may take.
    pub(super) limit: Option<Seconds>,
    pub(super) maker: Maker,
}

/// What a search on one pipeline comes to.
pub(super) struct Found {
    pub(super) verdict: Fit,
    /// What the plans come from, best first.
    pub(super) proposals: Vec<Proposal>,
    /// Shapes that were compared.
    pub(super) considered: usize,
}

/// Plans in their order, and the proposals of the search that they come from.
pub(super) type Ranked = (Vec<Judged>, Vec<Proposal>);

/// Judged plans, or why there are none.
pub(super) enum Fit {
    /// They fit.
    Plans(Vec<Judged>),
    /// None fits.
    Infeasible(Box<Infeasible>),
}

impl<'a> Search<'a> {
    pub(super) fn new(
        subject: Subject<'a>,
        request: &Request,
        pipeline: Pipeline,
    ) -> Result<Search<'a>, PlanError> {
        let workload = workload_of(request);
        let allowed = request.allowed;
        let compressions = allowed.compression.choices();
        let approximations = (compressions.as_slice(), allowed.sparse_attention);
        Ok(Search {
            profile: subject.profile,
            open: space::choices(&allowed, pipeline),
            forms: ClosedForms::new(
                subject.profile,
                (subject.model, &pipeline),
                subject.dtype,
                workload,
                approximations,
            )?,
            allowed,
            limit: request.max_latency_s,
            maker: Maker::new(subject, workload),
        })
    }

    pub(super) fn found(&self, request: &Request) -> Result<Found, PlanError> {
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
    pub(super) fn in_turn<T>(
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

    pub(super) fn shapes(&self) -> Vec<Shape> {
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
    pub(super) fn score(&self, plan: &Plan, objective: Objective) -> f64 {
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
    pub(super) fn best(
        &self,
        shapes: &[Shape],
        objective: Objective,
    ) -> Result<Option<Ranked>, PlanError> {
        let (plans, proposals) = self.propose(shapes, objective)?;
        let plans = judge::judge(plans, self.profile, &self.forms, (objective, DIAGONALS))?;
        Ok((!plans.is_empty()).then_some((plans, proposals)))
    }

    /// The nearest plan; where it fits after all, it is the answer.
    fn nearest(&self) -> Result<Fit, PlanError> {
        let nearest = infeasible::nearest(self)?;
        if !nearest.fits() {
            return Ok(Fit::Infeasible(Box::new(nearest)));
        }
        let plan = match self.limit {
            None => self.with_more_batches(nearest.nearest),
            Some(_) => nearest.nearest,
        };
        let plan = Judged::in_full(plan, self.profile)?;
        Ok(Fit::Plans(vec![plan]))
    }

    /// The same plan with twice the GPU batches as often as these fit and there are prompts for them: they share what is brought.
    fn with_more_batches(&self, mut plan: Plan) -> Plan {
        let prompts = self.maker.workload().num_prompts.unwrap_or(MORE_BATCHES);
        loop {
            let policy = Policy {
                num_gpu_batches: 2 * plan.policy.num_gpu_batches,
                ..plan.policy
            };
            let more = self.maker.plan(policy);
            let is_asked = policy.block_size() <= prompts && policy.validate().is_ok();
            if !is_asked || !self.maker.fits(&more) {
                return plan;
            }
            plan = more;
        }
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
