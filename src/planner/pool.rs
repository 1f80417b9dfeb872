//! One answer from the searches on all pipelines.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::plan::Plan;

use super::judge::{self, Judged, Verdict};
use super::kind::{Kind, first_of_each};
use super::{
    Answer, Fit, Found, Infeasible, Objective, PlanError, Planned, Proposal, Search, advice,
};
use crate::parallel::on_all_processors;

/// A plan that costs more than so many times the best one is not worth a simulation in full.
const CLOSE: f64 = 1.1;

/// How many plans are simulated in full at most, where that is much work.
const FINALISTS_MAX: usize = 3;

/// What the searches have found.
pub(super) struct Pool<'a> {
    profile: &'a HardwareProfile,
    objective: Objective,
    searches: Vec<(Search<'a>, Vec<Proposal>)>,
    plans: Vec<Candidate>,
    slow: Vec<Candidate>,
    infeasible: Vec<Infeasible>,
    considered: usize,
}

/// A judged plan, and which search it is of.
struct Candidate {
    judged: Judged,
    search: usize,
}

impl Candidate {
    fn plan(&self) -> &Plan {
        self.judged.plan()
    }

    fn kind(&self) -> Kind {
        Kind::of(&self.plan().policy)
    }
}

impl<'a> Pool<'a> {
    pub(super) fn new(profile: &'a HardwareProfile, objective: Objective) -> Pool<'a> {
        Pool {
            profile,
            objective,
            searches: Vec::new(),
            plans: Vec::new(),
            slow: Vec::new(),
            infeasible: Vec::new(),
            considered: 0,
        }
    }

    pub(super) fn add(&mut self, search: Search<'a>, found: Found) {
        let index = self.searches.len();
        let candidate = |judged| Candidate {
            judged,
            search: index,
        };
        match found.verdict {
            Fit::Plans(plans) => self.plans.extend(plans.into_iter().map(candidate)),
            Fit::TooSlow(plans) => self.slow.extend(plans.into_iter().map(candidate)),
            Fit::Infeasible(why) => self.infeasible.push(*why),
        }
        self.considered += found.considered;
        self.searches.push((search, found.proposals));
    }

    /// The best plan, else the quickest that is too slow, else the one that lacks least.
    pub(super) fn answer(mut self, verdict: Verdict) -> Result<Answer, PlanError> {
        let plans = std::mem::take(&mut self.plans);
        if !plans.is_empty() {
            let plans = self.judged(sorted(plans, self.objective), verdict)?;
            return self.planned(plans).map(Answer::Plan);
        }
        let slow = sorted(std::mem::take(&mut self.slow), Objective::Latency);
        if !slow.is_empty() {
            return self.planned(slow).map(Answer::TooSlow);
        }
        let lacks = |why: &Infeasible| why.needed.saturating_sub(why.capacity);
        let infeasible = std::mem::take(&mut self.infeasible).into_iter();
        let nearest = infeasible.min_by_key(lacks).map(Box::new);
        let none = || PlanError::Solver("no pipeline was searched".to_owned());
        nearest.map(Answer::Infeasible).ok_or_else(none)
    }

    /// Those that come first, simulated in full where that is asked.
    fn judged(&self, plans: Vec<Candidate>, verdict: Verdict) -> Result<Vec<Candidate>, PlanError> {
        if verdict == Verdict::Ranked {
            return Ok(plans);
        }
        let in_full = |candidate: Candidate| {
            let judged = candidate.judged.predicted(self.profile)?;
            Ok(Candidate {
                judged,
                ..candidate
            })
        };
        let finalists = self.finalists(plans);
        let judged = on_all_processors(finalists, &in_full).into_iter();
        let judged = judged.collect::<Result<Vec<_>, PlanError>>()?;
        Ok(sorted(judged, self.objective))
    }

    /// The best, those that come close to it in another way, and at least one of another kind; besides all
    /// that have a prediction already.
    fn finalists(&self, plans: Vec<Candidate>) -> Vec<Candidate> {
        let Some(best) = plans.first() else {
            return plans;
        };
        let (kind, close) = (best.kind(), CLOSE * best.judged.cost(self.objective));
        let mut seen = Vec::new();
        let mut others = 0;
        let mut finalists = Vec::new();
        for candidate in plans {
            let policy = &candidate.plan().policy;
            let way = (candidate.kind(), policy.pipeline.micro_batches);
            let another_kind = candidate.kind() != kind;
            let is_close = candidate.judged.cost(self.objective) <= close
                && !seen.contains(&way)
                && seen.len() < FINALISTS_MAX;
            if is_close || (another_kind && others == 0) {
                seen.push(way);
                others += usize::from(another_kind);
                finalists.push(candidate);
            } else if candidate.plan().prediction.is_some() {
                finalists.push(candidate);
            }
        }
        finalists
    }

    /// The first plan with what is known of it; of the others, the first of another kind.
    fn planned(self, plans: Vec<Candidate>) -> Result<Box<Planned>, PlanError> {
        let (plans, _) = first_of_each(plans, |candidate| &candidate.plan().policy);
        let mut plans = plans.into_iter();
        let Some(winner) = plans.next() else {
            return Err(PlanError::Solver("no plan was judged".to_owned()));
        };
        let kind = winner.kind();
        let (search, proposals) = &self.searches[winner.search];
        let winner = winner.judged;
        let (latency_s, throughput_tok_s) = (winner.latency_s(), winner.throughput_tok_s());
        let plan = winner.into_plan();
        let second = plans.next().filter(|second| second.kind() != kind);
        Ok(Box::new(Planned {
            advice: advice::best(search, proposals, &plan)?,
            runner_up: second.map(|second| second.judged.into_plan()),
            considered: self.considered,
            latency_s,
            throughput_tok_s,
            plan,
        }))
    }
}

fn sorted(mut plans: Vec<Candidate>, objective: Objective) -> Vec<Candidate> {
    plans.sort_by(|a, b| judge::better_first(&a.judged, &b.judged, objective));
    plans
}
