//! One answer from the searches on all pipelines.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::units::Seconds;

use super::judge::{self, Judged};
use super::kind::{self, Kind, first_of_each};
use super::neighbour::{Neighbour, ratio};
use super::search::{Fit, Found, Search};
use super::space::Proposal;
use super::within::SLACK;
use super::{Answer, Infeasible, Objective, PlanError, Planned, Request, advice, lp};
use crate::parallel::on_all_processors;

/// A plan that costs more than so many times the best one is not worth a simulation in full.
const CLOSE: f64 = 1.1;

/// Plans that cost so many times the best one are as good: predictions are not that sure, and larger blocks take longer.
const EQUAL: f64 = 1.002;

/// How many plans are simulated in full at most, where that is much work.
const FINALISTS_MAX: usize = 5;

/// How many of these are of the best one's way.
const OF_BEST: usize = 3;

/// With so many simulated in full, and one of them in time, no other kind of plan is waited for.
const PREDICTED_MAX: usize = 9;

/// What is found around the best plans, or uses the disk, must be better by this factor: others are simpler, and predictions are not that sure.
const WORTH_ANOTHER: f64 = 0.99;

/// By what factor looking around what a simulation of a part says may make a plan quicker.
const MAY_BE: f64 = 1.2;

/// How many of the best plans are tried with other shares before it is looked around one.
const STARTS: usize = 4;

/// Answers of so few tokens are short: a diagonal's passes that admit GPU batches are many of all.
const SHORT_ANSWER: u32 = 8;

/// What costs so many times as much is too far from the best to be looked around.
const FAR: f64 = 1.5;

/// How much later than its neighbours say a plan may be, as a factor.
const NEARLY: f64 = 1.01;

/// What the searches have found.
pub(super) struct Pool<'a> {
    profile: &'a HardwareProfile,
    objective: Objective,
    limit: Option<Seconds>,
    /// How much time who asks has, whether plans were looked for that keep within it or not.
    asked_within: Option<Seconds>,
    searches: Vec<(Search<'a>, Vec<Proposal>)>,
    plans: Vec<Candidate>,
    infeasible: Vec<Infeasible>,
    considered: usize,
}

/// A judged plan, and which search it is of.
#[derive(Clone)]
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
    pub(super) fn new(profile: &'a HardwareProfile, request: &Request) -> Pool<'a> {
        Pool {
            profile,
            objective: request.objective,
            limit: request.max_latency_s,
            asked_within: request.max_latency_s,
            searches: Vec::new(),
            plans: Vec::new(),
            infeasible: Vec::new(),
            considered: 0,
        }
    }

    /// Whether something that comes close to the best, by simulations of a part, may end in so much time.
    pub(super) fn may_be_in(&self, limit: Seconds) -> bool {
        let cost = |candidate: &Candidate| candidate.judged.cost(self.objective);
        let best = self.plans.iter().map(cost).fold(f64::INFINITY, f64::min);
        let mut close = self.plans.iter().filter(|it| cost(it) <= CLOSE * best);
        close.any(|it| it.judged.latency_s() <= limit * MAY_BE)
    }

    /// The same, whose answer is for who has so much time: nothing larger is advised, and what is next best is in time.
    pub(super) fn asked_within(self, limit: Seconds) -> Pool<'a> {
        Pool {
            asked_within: Some(limit),
            ..self
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
            Fit::Infeasible(why) => self.infeasible.push(*why),
        }
        self.considered += found.considered;
        self.searches.push((search, found.proposals));
    }

    /// The best plan in time, else the quickest that is too slow, else the one that lacks least.
    pub(super) fn answer(mut self) -> Result<Answer, PlanError> {
        let plans = std::mem::take(&mut self.plans);
        if plans.is_empty() {
            return self.lacking();
        }
        let plans = sorted(plans, self.objective);
        let may_be_in_time = |c: &Candidate| {
            let limit = self.limit;
            limit.is_none_or(|limit| c.judged.latency_s() <= limit * SLACK)
        };
        let others = self.with_cache_elsewhere(&plans).into_iter();
        let others = others.chain(self.with_else_in_4_bits(&plans));
        let others = others.chain(self.of_other_ways(&plans));
        let others = others.filter(may_be_in_time).collect();
        let judged = match self.limit {
            None => {
                let predicted = self.predicted(finalists(plans, self.objective))?;
                let plans = sorted(predicted, self.objective);
                let cost = |candidate: &Candidate| candidate.judged.cost(self.objective);
                let plans =
                    quickest_of_equals(plans, cost, |candidate| candidate.judged.latency_s());
                sparing_disk(plans, cost, |candidate| {
                    lp::uses_disk(&candidate.plan().policy)
                })
            }
            Some(limit) => self.until_in_time(plans, limit)?,
        };
        let limit = self.limit;
        let is_in_time = |c: &Candidate| limit.is_none_or(|limit| c.judged.latency_s() <= limit);
        let (mut in_time, slow): (Vec<_>, Vec<_>) = judged.into_iter().partition(is_in_time);
        if !in_time.is_empty() {
            in_time = self.looked_around(in_time, others, self.objective)?;
        }
        if in_time.is_empty() {
            let slow = sorted(slow, Objective::Latency);
            let slow = self.looked_around(slow, Vec::new(), Objective::Latency)?;
            return match slow.first().is_some_and(is_in_time) {
                true => self
                    .planned(slow.into_iter().filter(is_in_time).collect())
                    .map(Answer::Plan),
                false => self.planned(slow).map(Answer::TooSlow),
            };
        }
        self.planned(in_time).map(Answer::Plan)
    }

    /// The best of plans, best first, that have all of the cache on the device where the first has not, or the other way round, if it comes close:
    /// other plans are near it.
    fn with_cache_elsewhere(&self, plans: &[Candidate]) -> Option<Candidate> {
        let cost = |candidate: &Candidate| candidate.judged.cost(self.objective);
        let stays = |candidate: &Candidate| candidate.plan().policy.cache.device >= 1.0;
        let best = plans.first()?;
        let other = plans.iter().find(|other| stays(other) != stays(best));
        other
            .filter(|other| cost(other) <= CLOSE * cost(best))
            .cloned()
    }

    /// The best of plans, best first, of each other choice of what is in 4 bits, if it comes close: it is looked around a plan with what
    /// that has in 4 bits, and what is better may be near another.
    fn with_else_in_4_bits(&self, plans: &[Candidate]) -> Vec<Candidate> {
        let Some(best) = plans.first() else {
            return Vec::new();
        };
        let cost = |candidate: &Candidate| candidate.judged.cost(self.objective);
        let kept = |candidate: &Candidate| candidate.plan().policy.compression;
        let mut seen = vec![kept(best)];
        let mut others = Vec::new();
        for other in plans.iter().filter(|it| cost(it) <= CLOSE * cost(best)) {
            if !seen.contains(&kept(other)) {
                seen.push(kept(other));
                others.push(other.clone());
            }
        }
        others
    }

    /// Where answers are short, the best of plans, best first, of each other schedule and place of attention, unless that is far worse or takes
    /// long to simulate: how alike passes are decides there, of which nothing that proposed them knows, so that much better ones may be near.
    fn of_other_ways(&self, plans: &[Candidate]) -> Vec<Candidate> {
        let Some(best) = plans.first() else {
            return Vec::new();
        };
        let way = |candidate: &Candidate| {
            let policy = &candidate.plan().policy;
            (policy.schedule, policy.cpu_attention)
        };
        let cost = |candidate: &Candidate| candidate.judged.cost(self.objective);
        let is_near = |other: &Candidate| {
            other.plan().workload.gen_len <= SHORT_ANSWER
                && cost(other) <= FAR * cost(best)
                && judge::is_small(other.plan())
        };
        let mut seen = vec![way(best)];
        let mut others = Vec::new();
        for other in plans.iter().filter(|other| is_near(other)) {
            if !seen.contains(&way(other)) {
                seen.push(way(other));
                others.push(other.clone());
            }
        }
        others
    }

    /// With what is near the best plan, and better, in front of it. Pipelines and very long answers are left alone, which take long.
    fn looked_around(
        &self,
        mut judged: Vec<Candidate>,
        others: Vec<Candidate>,
        objective: Objective,
    ) -> Result<Vec<Candidate>, PlanError> {
        let is_long = |best: &Candidate| {
            best.plan().policy.pipeline.stages > 1 || judge::is_large(best.plan())
        };
        if judged.first().is_none_or(is_long) {
            return Ok(judged);
        }
        let cost = |candidate: &Candidate| candidate.judged.cost(objective);
        let mut best = judged[0].clone();
        for start in judged.iter().take(STARTS) {
            let (search, _) = &self.searches[start.search];
            let found = search.better_shares(start.plan(), &best.judged, objective)?;
            best = found.map_or(best, |judged| Candidate { judged, ..*start });
        }
        let mut starts = vec![best.clone()];
        for other in others {
            match self.predicted(vec![other]) {
                Err(error) if error.is_of_size() => {}
                other => starts.extend(other?),
            }
        }
        for start in starts {
            let (search, _) = &self.searches[start.search];
            let found = search.around(&start.judged, objective)?;
            let found = found.map(|judged| Candidate { judged, ..start });
            best = found
                .filter(|found| cost(found) < cost(&best))
                .unwrap_or(best);
        }
        // What is in time where the first is not is worth it in any case.
        let is_late = |c: &Candidate| self.limit.is_some_and(|limit| c.judged.latency_s() > limit);
        let is_rescued = is_late(&judged[0]) && !is_late(&best);
        // So is less in 4 bits, which changes what comes out.
        let in_4_bits = |candidate: &Candidate| {
            let of = candidate.plan().policy.compression;
            u8::from(of.weights) + u8::from(of.cache)
        };
        let needed = match in_4_bits(&best) < in_4_bits(&judged[0]) {
            true => 1.0,
            false => WORTH_ANOTHER,
        };
        if is_rescued || cost(&best) < cost(&judged[0]) * needed {
            judged.insert(0, best);
        }
        Ok(judged)
    }

    /// Why there is none.
    fn lacking(self) -> Result<Answer, PlanError> {
        let nearest = self
            .infeasible
            .into_iter()
            .min_by(|a, b| a.lack.total_cmp(&b.lack));
        let nearest = nearest.map(Box::new);
        let none = || PlanError::Solver("no pipeline was searched".to_owned());
        nearest.map(Answer::Infeasible).ok_or_else(none)
    }

    /// Simulated in full, but for those that are too large for that.
    fn predicted(&self, plans: Vec<Candidate>) -> Result<Vec<Candidate>, PlanError> {
        let in_full = |candidate: Candidate| -> Result<Candidate, PlanError> {
            let judged = candidate.judged.predicted(self.profile)?;
            Ok(Candidate {
                judged,
                ..candidate
            })
        };
        let (mut predicted, mut too_large) = (Vec::new(), None);
        for candidate in on_all_processors(plans, &in_full) {
            match candidate {
                Ok(candidate) => predicted.push(candidate),
                Err(error) if error.is_of_size() => too_large = Some(error),
                Err(error) => return Err(error),
            }
        }
        match too_large {
            Some(error) if predicted.is_empty() => Err(error),
            _ => Ok(predicted),
        }
    }

    /// Simulated in full, a few at a time, until enough are in time.
    fn until_in_time(
        &self,
        plans: Vec<Candidate>,
        limit: Seconds,
    ) -> Result<Vec<Candidate>, PlanError> {
        let about_in_time = |c: &Candidate| c.judged.latency_s() <= limit * SLACK;
        let (mut rest, slow): (Vec<_>, Vec<_>) = plans.into_iter().partition(about_in_time);
        if rest.is_empty() {
            let slow = sorted(slow, Objective::Latency);
            return self.predicted(finalists(slow, Objective::Latency));
        }
        let mut judged: Vec<Candidate> = Vec::new();
        let mut known: Vec<Neighbour> = Vec::new();
        while !rest.is_empty() && !are_enough(&judged, &rest, limit) {
            let later = rest.split_off(rest.len().min(FINALISTS_MAX));
            let thought = |c: &Candidate| (c.plan().policy, c.judged.latency_s());
            let thought: Vec<(Policy, Seconds)> = rest.iter().map(thought).collect();
            let predicted = match self.predicted(rest) {
                // What was found before is an answer.
                Err(error) if error.is_of_size() && !judged.is_empty() => break,
                predicted => predicted?,
            };
            for candidate in predicted {
                let found = candidate.judged.latency_s();
                let policy = candidate.plan().policy;
                let thought = thought.iter().find(|(known, _)| *known == policy);
                known.extend(thought.map(|(_, it)| Neighbour::new(candidate.plan(), found, *it)));
                judged.push(candidate);
            }
            rest = later;
            rest.retain(|candidate| {
                let off = ratio(&candidate.plan().policy, &known);
                candidate.judged.latency_s() * off <= limit * NEARLY
            });
        }
        Ok(sorted(judged, self.objective))
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
        let plan = without_idle_cpu(winner.into_plan());
        // Another machine may have room for what does not fit, or is slower, on this one.
        let open = self.searches.iter().flat_map(|(search, _)| &search.open);
        let open = open.filter(|choice| choice.pipeline == plan.policy.pipeline);
        let open: Vec<Policy> = open.copied().collect();
        let second = plans.next().filter(|second| second.kind() != kind);
        let second = second.map(|second| without_idle_cpu(second.judged.into_plan()));
        // The same plan in other words is no other way.
        let second = second.filter(|second| second.policy != plan.policy);
        let limit = self.asked_within.filter(|limit| latency_s <= *limit);
        let is_late = |second: &Plan| {
            let prediction = second.prediction.as_ref();
            prediction.is_some_and(|it| limit.is_some_and(|limit| it.latency_s > limit))
        };
        let second = second.filter(|second| !is_late(second));
        // Larger blocks than the plan's would take longer than they may.
        let near = proposals.iter().filter(|_| self.asked_within.is_none());
        let near: Vec<Proposal> = near.cloned().collect();
        // Where answers are very long parts tell too little, and all of it takes too long.
        let advice = match judge::is_large(&plan) {
            true => None,
            false => advice::best((search, &open), &near, &plan)?,
        };
        Ok(Box::new(Planned {
            not_split: None,
            advice,
            runner_up: second,
            considered: self.considered,
            latency_s,
            throughput_tok_s,
            plan,
        }))
    }
}

/// The same plan, where the CPU is said to attend to what is off the device and nothing is.
fn without_idle_cpu(mut plan: Plan) -> Plan {
    let all_on_device = plan.policy.cache.device >= 1.0;
    plan.policy.cpu_attention &= !all_on_device;
    plan
}

fn sorted(mut plans: Vec<Candidate>, objective: Objective) -> Vec<Candidate> {
    plans.sort_by(|a, b| judge::better_first(&a.judged, &b.judged, objective));
    plans
}

/// Plans, those of least cost first, with the one in front that takes least time of those as good as the first.
fn quickest_of_equals<T>(
    mut plans: Vec<T>,
    cost: impl Fn(&T) -> f64,
    latency: impl Fn(&T) -> Seconds,
) -> Vec<T> {
    let best = plans.first().map_or(0.0, &cost);
    let equals = plans.partition_point(|plan| cost(plan) <= EQUAL * best);
    let latency = |index: &usize| latency(&plans[*index]).0;
    let quickest = (0..equals).min_by(|a, b| latency(a).total_cmp(&latency(b)));
    if let Some(quickest) = quickest {
        plans[..=quickest].rotate_right(1);
    }
    plans
}

/// Plans, those of least cost first, with the best that leaves the disk alone in front, if it is as good as the first: writes wear a disk
/// out, and what it really takes is less sure.
fn sparing_disk<T>(
    mut plans: Vec<T>,
    cost: impl Fn(&T) -> f64,
    uses_disk: impl Fn(&T) -> bool,
) -> Vec<T> {
    let best = plans.first().map_or(0.0, &cost);
    let sparing = plans.iter().position(|plan| !uses_disk(plan));
    if let Some(sparing) = sparing.filter(|at| cost(&plans[*at]) * WORTH_ANOTHER <= best) {
        plans[..=sparing].rotate_right(1);
    }
    plans
}

/// Whether some are in time, of more than one kind if that can be had soon.
fn are_enough(judged: &[Candidate], rest: &[Candidate], limit: Seconds) -> bool {
    let mut in_time = judged.iter().filter(|c| c.judged.latency_s() <= limit);
    let Some(first) = in_time.next() else {
        return false;
    };
    let another = |candidate: &Candidate| candidate.kind() != first.kind();
    judged.len() >= PREDICTED_MAX || in_time.any(another) || !rest.iter().any(another)
}

/// The best, some that are alike and those that come close to it in another way, and at least one of another kind; besides all
/// that have a prediction already. Plans are in the objective's order.
fn finalists(plans: Vec<Candidate>, objective: Objective) -> Vec<Candidate> {
    let Some(best) = plans.first() else {
        return plans;
    };
    let (kind_of_best, close) = (best.kind(), CLOSE * best.judged.cost(objective));
    let most = match judge::is_large(best.plan()) {
        true => 1,
        false => FINALISTS_MAX,
    };
    let mut seen = Vec::new();
    let mut others = 0;
    let mut finalists = Vec::new();
    for candidate in plans {
        let policy = &candidate.plan().policy;
        let way = (
            kind::alike(policy),
            policy.pipeline.micro_batches,
            lp::uses_disk(policy),
        );
        let another_kind = candidate.kind() != kind_of_best;
        let before = seen.iter().filter(|known| **known == way).count();
        let of_best = seen.first().is_none_or(|best| *best == way);
        let is_close = candidate.judged.cost(objective) <= close
            && before < if of_best { OF_BEST } else { 1 }
            && seen.len() < most;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_plans_as_good_as_the_best_the_quickest_comes_first() {
        let plans = vec![(1.0, 900.0), (1.0005, 800.0), (1.001, 850.0), (1.01, 10.0)];
        let order = quickest_of_equals(plans, |plan| plan.0, |plan| Seconds(plan.1));
        let latencies: Vec<f64> = order.into_iter().map(|plan| plan.1).collect();
        assert_eq!(latencies, [800.0, 900.0, 850.0, 10.0]);
    }

    #[test]
    fn a_plan_that_leaves_the_disk_alone_is_preferred_within_a_percent() {
        let order = |plans: Vec<(f64, bool)>| {
            let order = sparing_disk(plans, |plan| plan.0, |plan| plan.1);
            order.into_iter().map(|plan| plan.0).collect::<Vec<f64>>()
        };
        let near = vec![(1.0, true), (1.005, true), (1.009, false), (1.01, false)];
        assert_eq!(order(near), [1.009, 1.0, 1.005, 1.01]);
        assert_eq!(order(vec![(1.0, true), (1.02, false)]), [1.0, 1.02]);
        assert_eq!(order(vec![(1.0, true)]), [1.0]);
        assert!(order(Vec::new()).is_empty());
    }
}
