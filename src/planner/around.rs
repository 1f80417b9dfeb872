//! A last look around the best plan.
//!
//! The closed form thinks that all but the busiest resource is hidden, and proposes shares that are best then. Where that is not so, as with
//! few prompts, others are better: they are found by placing the plan's shape, and shapes near it, as if one resource after
//! another were slower. The simulator decides, as ever.

use plimsoll_core::machine::ResourceKind;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Seconds;

use super::judge::{self, Judged, Length};
use super::space::{self, Shape};
use super::{Objective, PlanError, Search, lp, within};
use crate::flexgen;
use crate::parallel::on_all_processors;

/// How much slower a resource is thought to be.
const SLOWER: [f64; 3] = [1.1, 1.5, 3.0];

/// The resources that shares move work between; the disk's last, which many plans do not use.
const SLOWED: [ResourceKind; 6] = [
    ResourceKind::Gpu,
    ResourceKind::H2d,
    ResourceKind::D2h,
    ResourceKind::Cpu,
    ResourceKind::DiskRead,
    ResourceKind::DiskWrite,
];

/// Parts of a block's GPU batches.
const FEWER: [f64; 5] = [0.25, 0.4, 0.5, 0.67, 0.8];

/// Steps of a share of weights, to either side, and how large they are.
const SHARES: i32 = 40;
const SHARE: f64 = 0.001;

/// How often it is looked around the best that was found so far.
const LOOKS: usize = 3;

/// How many of the plans that look better are simulated in full, where that takes long.
const IN_FULL: usize = 3;

/// How many plans are looked at by samples.
const SAMPLED: usize = 64;

/// By the closed form they cost at most so many times what the best does.
const CLOSED_FORM_OFF: f64 = 2.0;

/// By what factor short samples may misjudge a plan beside another.
const SHORT_OFF: f64 = 1.05;

/// By what factor a plan must be better: others are as good.
const BETTER: f64 = 0.998;

impl Search<'_> {
    /// What is better than a plan of this search, simulated in full; none where nothing near is.
    pub(super) fn around(
        &self,
        best: &Judged,
        objective: Objective,
    ) -> Result<Option<Judged>, PlanError> {
        let mut found: Option<Judged> = None;
        for _ in 0..LOOKS {
            let from = found.as_ref().unwrap_or(best);
            let shaped = self.better_near(from, objective)?;
            let from = shaped.as_ref().unwrap_or(from);
            let shared = self.better_shares(from.plan(), from, objective)?;
            match shared.or(shaped) {
                Some(better) => found = Some(better),
                None => break,
            }
        }
        Ok(found)
    }

    /// What is better than a plan of those that are as another, but with a little more or less of the weights on the device; none where
    /// simulations take long. How evenly whole tensors lie over the layers changes by leaps, of which no closed form knows.
    pub(super) fn better_shares(
        &self,
        of: &Plan,
        than: &Judged,
        objective: Objective,
    ) -> Result<Option<Judged>, PlanError> {
        if !judge::is_small(of) {
            return Ok(None);
        }
        let mut plans: Vec<Plan> = shares_near(&of.policy)
            .map(|policy| self.maker.plan(policy))
            .filter(|plan| self.maker.fits(plan))
            .collect();
        plans.truncate(judge::first_some(&plans));
        self.better_of(plans, than, objective)
    }

    fn better_near(
        &self,
        best: &Judged,
        objective: Objective,
    ) -> Result<Option<Judged>, PlanError> {
        // Of those with the same shares the closed form knows nothing, and short samples little.
        let same = self.with_the_same_shares(&best.plan().policy);
        let (few, many) = match judge::is_small(best.plan()) {
            true => (same, Vec::new()),
            false => (Vec::new(), same),
        };
        let mut plans = self.likely(self.near(best.plan())?, objective);
        plans.extend(many);
        let mut plans = match judge::first_some(&plans) == plans.len() {
            true => plans,
            false => self.promising(best.plan(), plans, objective)?,
        };
        plans.extend(few);
        self.better_of(plans, best, objective)
    }

    /// The best of some plans, simulated in full, that is in time where throughput is asked for, if it is better than a plan.
    fn better_of(
        &self,
        plans: Vec<Plan>,
        best: &Judged,
        objective: Objective,
    ) -> Result<Option<Judged>, PlanError> {
        let mut judged = judge::in_full(plans, self.profile)?;
        let limit = self.limit_of(objective);
        judged.retain(|plan| limit.is_none_or(|limit| plan.latency_s() <= limit));
        let judged = judge::sorted(judged, objective).into_iter().next();
        let is_better = |judged: &Judged| judged.cost(objective) < best.cost(objective) * BETTER;
        Ok(judged.filter(is_better))
    }

    /// How long a plan may take. Who looks for the quickest, since nothing is in time, begins with what is not.
    fn limit_of(&self, objective: Objective) -> Option<Seconds> {
        self.limit.filter(|_| objective == Objective::Throughput)
    }

    /// The best by the closed form, of those that may be in time.
    fn likely(&self, plans: Vec<Plan>, objective: Objective) -> Vec<Plan> {
        let most = self
            .limit_of(objective)
            .map(|limit| limit * within::CLOSED_FORM_OFF);
        let in_time = |plan: &Plan| {
            most.is_none_or(|most| judge::estimate(plan, &self.forms).latency_s <= most)
        };
        let scored = plans.into_iter().filter(in_time);
        let mut scored: Vec<(f64, Plan)> = scored
            .map(|plan| (self.score(&plan, objective), plan))
            .collect();
        scored.sort_by(|a, b| a.0.total_cmp(&b.0));
        let most = scored.first().map_or(0.0, |best| best.0 * CLOSED_FORM_OFF);
        let likely = scored.into_iter().take_while(|(score, _)| *score <= most);
        likely.take(SAMPLED).map(|(_, plan)| plan).collect()
    }

    /// Of many those that short samples think best: as many as are simulated in full in little time, or a few that longer samples say
    /// are better than a plan.
    fn promising(
        &self,
        best: &Plan,
        plans: Vec<Plan>,
        objective: Objective,
    ) -> Result<Vec<Plan>, PlanError> {
        let mut plans = self.better_by(Length::Short, (best, plans), (objective, SHORT_OFF))?;
        if judge::is_small(best) {
            plans.truncate(judge::first_some(&plans));
            return Ok(plans);
        }
        plans.truncate(2 * IN_FULL);
        let mut plans = self.better_by(Length::Longer, (best, plans), (objective, BETTER))?;
        plans.truncate(IN_FULL);
        Ok(plans)
    }

    /// Plans that by samples cost no more than so many times what a plan does, best first.
    fn better_by(
        &self,
        length: Length,
        (best, mut plans): (&Plan, Vec<Plan>),
        (objective, times): (Objective, f64),
    ) -> Result<Vec<Plan>, PlanError> {
        plans.insert(0, best.clone());
        let mut judged = judge::by_samples(plans, self.profile, &self.forms, length)?;
        let own = judged.remove(0).cost(objective);
        judged.retain(|judged| judged.cost(objective) <= own * times);
        let judged = judge::sorted(judged, objective).into_iter();
        Ok(judged.map(Judged::into_plan).collect())
    }

    /// Other plans of shapes near a plan's.
    fn near(&self, plan: &Plan) -> Result<Vec<Plan>, PlanError> {
        let shapes = self.shapes_near(&plan.policy);
        let Policy {
            weights,
            cache,
            activations,
            ..
        } = plan.policy;
        let on_disk = [weights, cache, activations].map(|shares| shares.disk);
        let slowed = match on_disk.iter().sum::<f64>() > 0.0 {
            true => &SLOWED[..],
            false => &SLOWED[..SLOWED.len() - 2],
        };
        let placed = on_all_processors(shapes, &|policy| self.placed(policy, slowed));
        let mut plans: Vec<Plan> = Vec::new();
        for plan_near in placed.into_iter().collect::<Result<Vec<_>, _>>()?.concat() {
            let is_known = |known: &Plan| known.policy == plan_near.policy;
            if !is_known(plan) && !plans.iter().any(is_known) {
                plans.push(plan_near);
            }
        }
        Ok(plans)
    }

    /// Policies with shapes near one's, in every way that is open and with halves of layers, which leave the device more room; shares are
    /// open too.
    fn shapes_near(&self, of: &Policy) -> Vec<Policy> {
        let workload = self.maker.workload();
        let prompts = workload.num_prompts.unwrap_or(u64::MAX);
        let alike = self.open.iter().filter(|choice| {
            (choice.compression, choice.pipeline) == (of.compression, of.pipeline)
        });
        let choices: Vec<Policy> = alike.copied().collect();
        let choices = match of.half_layers {
            true => choices,
            false => space::also_in_halves(choices).concat(),
        };
        let sizes = sizes_near(of, workload.gen_len, prompts);
        let policies = sizes.into_iter().flat_map(|(size, batches)| {
            choices.iter().map(move |choice| Policy {
                gpu_batch_size: size,
                num_gpu_batches: batches,
                page_locked: of.page_locked,
                ..*choice
            })
        });
        policies
            .filter(|it| space::is_meant(it, workload, &choices))
            .collect()
    }

    /// Plans in which all lies where it does in one, with fewer GPU batches, or with attention elsewhere. A diagonal's passes that admit GPU
    /// batches and those that do not are more alike with some numbers of them, of which the closed form knows nothing.
    fn with_the_same_shares(&self, of: &Policy) -> Vec<Plan> {
        let fewer = fewer_batches(of.num_gpu_batches, self.maker.workload().gen_len);
        let fewer = fewer.map(|num_gpu_batches| Policy {
            num_gpu_batches,
            ..*of
        });
        let elsewhere = Policy {
            cpu_attention: !of.cpu_attention,
            ..*of
        };
        let is_open = |choice: &Policy| {
            (
                choice.cpu_attention,
                choice.schedule,
                choice.compression,
                choice.pipeline,
            ) == (
                elsewhere.cpu_attention,
                of.schedule,
                of.compression,
                of.pipeline,
            )
        };
        let elsewhere = self.open.iter().any(is_open).then_some(elsewhere);
        let is_meant = |it: &Policy| space::is_meant(it, self.maker.workload(), &self.open);
        let policies = fewer.chain(elsewhere).filter(is_meant);
        let plans = policies.map(|policy| self.maker.plan(policy));
        plans.filter(|plan| self.maker.fits(plan)).collect()
    }

    /// Plans of a policy whose shares are open: as the closed form has it, and as if a resource were slower.
    fn placed(&self, policy: Policy, slowed: &[ResourceKind]) -> Result<Vec<Plan>, PlanError> {
        let room = self.maker.room();
        let Some(shape) = Shape::that_may_fit(&self.forms, policy, room) else {
            return Ok(Vec::new());
        };
        let slowed = slowed.iter().flat_map(|kind| {
            let form = &shape.form;
            SLOWER.map(move |by| form.slowed(*kind, by))
        });
        let open = slowed.map(|form| Shape::settled(policy, &form));
        let open = open.chain(shape.with_cache_on_device(room));
        let mut plans = Vec::new();
        for open in std::iter::once(shape.clone()).chain(open) {
            // What the solver cannot place is left to the others.
            if let Ok(Some(policy)) = lp::place(&open, room) {
                plans.extend(self.maker.whole(&Shape { policy, ..open })?);
            }
        }
        Ok(plans)
    }
}

/// The same policy with shares of weights on the device near its own, the nearest first, beside the cache as it is and beside one of which
/// nothing is on the device; what is off the device stays where more of it is.
fn shares_near(of: &Policy) -> impl Iterator<Item = Policy> {
    let of = *of;
    let steps = (1..=SHARES).flat_map(|step| [step, -step]);
    let moved = steps.filter_map(move |step| {
        let device = of.weights.device + f64::from(step) * SHARE;
        let rest = 1.0 - device;
        let weights = match of.weights.host >= of.weights.disk {
            true => (device, rest - of.weights.disk, of.weights.disk),
            false => (device, of.weights.host, rest - of.weights.host),
        };
        let (device, host, disk) = weights;
        let weights = PerTier { device, host, disk };
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        let are_shares = Tier::ALL.into_iter().all(|tier| is_share(weights[tier]));
        are_shares.then_some(Policy { weights, ..of })
    });
    moved.flat_map(|policy| {
        let away = PerTier {
            device: 0.0,
            host: policy.cache.host + policy.cache.device,
            disk: policy.cache.disk,
        };
        let without = (policy.cache.device > 0.0).then_some(Policy {
            cache: away,
            ..policy
        });
        std::iter::once(policy).chain(without)
    })
}

/// Fewer GPU batches a block: parts of them, and as many as answers have tokens, once, twice, or one more than that.
fn fewer_batches(batches: u32, gen_len: u32) -> impl Iterator<Item = u32> {
    let parts = FEWER.map(|part| (f64::from(batches) * part).round() as u32);
    let whole = [gen_len, 2 * gen_len, 2 * gen_len + 1];
    let mut fewer: Vec<u32> = parts.into_iter().chain(whole).collect();
    fewer.retain(|fewer| (1..batches).contains(fewer));
    fewer.sort_unstable();
    fewer.dedup();
    fewer.into_iter()
}

/// GPU batch sizes and GPU batches a block near some, itself the first.
fn sizes_near(of: &Policy, gen_len: u32, prompts: u64) -> Vec<(u32, u32)> {
    let (size, batches) = (of.gpu_batch_size, of.num_gpu_batches);
    let scaled = |number: u32, by: f64| (f64::from(number) * by).round() as u32;
    let mut near = vec![(size, batches)];
    near.extend([(size + 1, batches), (size - 1, batches)]);
    near.extend([(size, batches + 1), (size, batches - 1)]);
    for by in [0.5, 0.75, 1.5, 2.0] {
        near.push((scaled(size, by), scaled(batches, 1.0 / by)));
        near.push((scaled(size, by), batches));
    }
    // A diagonal with as many GPU batches as answers have tokens has every pass alike: one comes, one goes.
    near.extend([(size * batches, 1), (size * batches / gen_len, gen_len)]);
    // More than are usual are proposed only where the closed form calls them better.
    let most = flexgen::BATCHES_MAX.max(batches);
    let is_meant = |(size, batches): &(u32, u32)| {
        let before_last = u64::from(*size) * u64::from(batches.saturating_sub(1));
        *size > 0 && (1..=most).contains(batches) && before_last < prompts
    };
    // A GPU batch of more than all prompts is one of all of them.
    let all = u32::try_from(prompts).unwrap_or(u32::MAX);
    let near = near
        .into_iter()
        .map(|(size, batches)| (size.min(all), batches));
    let mut unlike: Vec<(u32, u32)> = Vec::new();
    for it in near.filter(is_meant) {
        if !unlike.contains(&it) {
            unlike.push(it);
        }
    }
    unlike
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_near_one_are_blocks_that_make_sense() {
        let near = |size: u32, batches: u32, gen_len: u32, prompts: u64| {
            let of = Policy {
                gpu_batch_size: size,
                num_gpu_batches: batches,
                ..space::blank()
            };
            sizes_near(&of, gen_len, prompts)
        };
        assert_eq!(near(1, 1, 8, 1), [(1, 1)]);
        // All prompts in one GPU batch, where the last of several is not full.
        assert!(near(8, 4, 8, 31).contains(&(31, 1)));
        // No GPU batch of which no prompt is left.
        let few = near(4, 2, 128, 8);
        assert!(
            few.iter().all(|(size, batches)| size * (batches - 1) < 8),
            "{few:?}"
        );
        assert!(few.contains(&(8, 1)) && few.contains(&(2, 4)), "{few:?}");
        // As many GPU batches as tokens, but no more than are usual, or than there were.
        assert!(near(320, 10, 8, u64::MAX).contains(&(400, 8)));
        let many = near(100, 10, 64, u64::MAX);
        assert!(many.iter().all(|(_, batches)| *batches <= 20), "{many:?}");
        let larger = near(100, 64, 32, u64::MAX);
        assert!(
            larger.iter().all(|(_, batches)| *batches <= 64),
            "{larger:?}"
        );
    }
}
