//! The most throughput of endless prompts where the time of a block is limited.
//!
//! Of all shapes, the one wanted is as large as ends in time, and just there the closed form, which thinks that
//! all overlaps, tells shapes apart worst. So shapes are judged a few at a time, those that look best by what
//! was learned from the ones before: by how much their neighbours took longer than the closed form says.

use plimsoll_core::policy::Policy;
use plimsoll_core::units::Seconds;

use super::judge::{self, Judged, Length};
use super::kind::Kind;
use super::neighbour::{Neighbour, ratio};
use super::search::{Ranked, Search};
use super::space::{self, Proposal, Shape};
use super::{Objective, PlanError, simpler};

/// How many shapes are judged before the others are looked at again.
const AT_ONCE: usize = 4;

/// How often the others are looked at again.
const LOOKS: usize = 32;

/// A plan that takes so many times the limit by its closed form is not simulated.
pub(super) const CLOSED_FORM_OFF: f64 = 1.1;

/// What a simulation of a part may be off, as a factor.
pub(super) const SLACK: f64 = 1.04;

impl Search<'_> {
    /// Plans, ranked: the best of each kind that end in time, as far as simulations of a part can tell. Where none
    /// does, the quickest; where nothing fits, none.
    pub(super) fn within(
        &self,
        shapes: &[Shape],
        limit: Seconds,
    ) -> Result<Option<Ranked>, PlanError> {
        let Some((plans, proposals)) = self.best(shapes, Objective::Throughput)? else {
            return Ok(None);
        };
        let surely = |best: &Judged| best.latency_s() * SLACK <= limit;
        if plans.first().is_some_and(surely) {
            return Ok(Some((plans, proposals)));
        }
        let mut in_time = plans;
        in_time.retain(|plan| plan.latency_s() <= limit * SLACK);
        for of_kind in space::grouped(shapes, Kind::of) {
            in_time.extend(self.within_of(&of_kind, limit)?);
        }
        if in_time.is_empty() {
            return self.best(shapes, Objective::Latency);
        }
        // The proposals are of plans that take longer.
        Ok(Some((in_time, Vec::new())))
    }

    /// The best of one kind.
    fn within_of(&self, shapes: &[&Shape], limit: Seconds) -> Result<Vec<Judged>, PlanError> {
        let room = self.maker.room();
        let may_be = |s: &&Shape| space::lowest_latency_s(&s.form, room) <= limit;
        let shapes: Vec<&Shape> = shapes.iter().copied().filter(may_be).collect();
        let mut untried = simpler::placed(&shapes, room, Objective::Throughput);
        let mut known = Vec::new();
        let mut in_time: Vec<Judged> = Vec::new();
        for _ in 0..LOOKS {
            let chosen = promising(&mut untried, &known, (&in_time, limit));
            if chosen.is_empty() {
                break;
            }
            for judged in self.judged(&chosen, limit)? {
                known.push(Neighbour::new(
                    judged.plan(),
                    judged.latency_s(),
                    self.expected(&judged),
                ));
                in_time.extend((judged.latency_s() <= limit * SLACK).then_some(judged));
            }
            in_time = judge::sorted(in_time, Objective::Throughput);
        }
        Ok(in_time)
    }

    /// Those of the proposals' plans judged that may be in time once they are whole.
    fn judged(&self, proposals: &[Proposal], limit: Seconds) -> Result<Vec<Judged>, PlanError> {
        let mut plans = Vec::new();
        for proposal in proposals {
            plans.extend(self.maker.make(proposal)?);
        }
        plans
            .retain(|plan| judge::estimate(plan, &self.forms).latency_s <= limit * CLOSED_FORM_OFF);
        judge::by_samples(plans, self.profile, &self.forms, Length::Long)
    }

    /// What the closed form says of the shares that were asked for, as it does of the proposals.
    fn expected(&self, judged: &Judged) -> Seconds {
        let policy = &judged.plan().policy;
        self.forms.form(policy).evaluate(policy).latency_s
    }
}

/// Takes those out that look in time and better than what is known to be, best first, one of a shape: what is found of it says what to
/// think of the others.
fn promising(
    untried: &mut Vec<Proposal>,
    known: &[Neighbour],
    (in_time, limit): (&[Judged], Seconds),
) -> Vec<Proposal> {
    // Those that may be late after all do not keep others out.
    let surely = in_time.iter().find(|p| p.latency_s() * SLACK <= limit);
    let best = surely.map_or(f64::INFINITY, |best| best.cost(Objective::Throughput));
    let looks = |proposal: &Proposal| {
        let ratio = ratio(&proposal.policy, known);
        let cost = proposal.score * ratio;
        (cost * proposal.form.tokens() <= limit.0 * SLACK && cost < best).then_some(cost)
    };
    let mut order: Vec<(f64, usize)> = untried
        .iter()
        .enumerate()
        .filter_map(|(index, proposal)| Some((looks(proposal)?, index)))
        .collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut shapes = Vec::new();
    order.retain(|(_, index)| {
        let Policy {
            gpu_batch_size,
            num_gpu_batches,
            ..
        } = untried[*index].policy;
        let is_first =
            !shapes.contains(&(gpu_batch_size, num_gpu_batches)) && shapes.len() < AT_ONCE;
        shapes.extend(is_first.then_some((gpu_batch_size, num_gpu_batches)));
        is_first
    });
    let mut indices: Vec<usize> = order.into_iter().map(|(_, index)| index).collect();
    indices.sort_unstable();
    let taken = indices.into_iter().rev();
    taken.map(|index| untried.swap_remove(index)).collect()
}
