//! The latency of a block against throughput, over block sizes: FlexGen's figure 1.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::page_locked_bytes;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Granularity, Policy, Schedule};
use plimsoll_core::program::HostPages;
use plimsoll_core::term::Term;
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_core::workload::Workload;
use plimsoll_sim::predict;
use serde::Serialize;

use crate::baseline::{Baseline, System};
use crate::parallel::{Watch, on_all_processors, watched};
use crate::planner::{Block, Bound, Outcome, PlanError};

/// Where doubling ends at the latest.
const EFFECTIVE_BATCH_MAX: u32 = 4096;

/// A larger size that gains less throughput than this, as a fraction, is of no use.
const GAIN_MIN: f64 = 0.01;

/// Useless sizes in a row after which no more are tried.
const IDLE_SIZES_MAX: usize = 2;

/// Sizes that are tried before it is asked whether they are enough.
const AT_ONCE: usize = 4;

/// A system's best block of one size: a point of the picture, a row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// The system.
    pub system: &'static str,
    /// Sequences in a block.
    pub effective_batch: u32,
    /// The time of a block; none where it does not fit. Of a diagonal one alone.
    pub latency_s: Option<f64>,
    /// Generated tokens over that time; of a diagonal block, over that of a block's worth of prompts that come without end.
    pub throughput_tok_s: Option<f64>,
    /// The lower end of its 90% interval; none where the machine is unprofiled.
    pub low_tok_s: Option<f64>,
    /// Its upper end.
    pub high_tok_s: Option<f64>,
    /// No point of this system is both faster and of more throughput.
    pub on_frontier: bool,
    /// Sequences computed together.
    pub gpu_batch_size: Option<u32>,
    /// GPU batches in the block.
    pub num_gpu_batches: Option<u32>,
    /// Percentages: weights on the device, and so on in FlexGen's order.
    pub wg: Option<f64>,
    /// Weights on the host.
    pub wc: Option<f64>,
    /// Cache on the device.
    pub cg: Option<f64>,
    /// Cache on the host.
    pub cc: Option<f64>,
    /// Activations on the device.
    pub hg: Option<f64>,
    /// Activations on the host.
    pub hc: Option<f64>,
    /// Whether the CPU attends to what is not on the device.
    pub cpu_compute: Option<bool>,
    /// The rest of the policy, in the words of `plimsoll simulate`'s flags.
    pub schedule: Option<Schedule>,
    /// Whether copies, disk and computation overlap.
    pub overlap: Option<bool>,
    /// Whether all resources synchronise after every GPU batch.
    pub barrier: Option<bool>,
    /// How percentages of weights become whole tensors.
    pub granularity: Option<Granularity>,
    /// Whether a prompt's scores lie on the device all at once.
    pub stored_scores: Option<bool>,
    /// What is page-locked on the host.
    pub page_lock: Option<String>,
    /// What of FlexGen's steps the policy does without, of those that its barrier would bring.
    pub without: Option<String>,
    /// Whether weights are kept in 4 bits.
    pub compress_weight: Option<bool>,
    /// Whether the cache is.
    pub compress_cache: Option<bool>,
    /// Out of memory: what binds.
    pub exceeds: Option<Bound>,
    /// Whether its plan splits linear layers; not written.
    #[serde(skip)]
    pub is_split: bool,
    /// What its plan page-locks on the host; not written.
    #[serde(skip)]
    pub page_locked: Bytes,
    /// What the nearest plan asks of it.
    pub needed_bytes: Option<u64>,
    /// What it has.
    pub capacity_bytes: Option<u64>,
}

/// A machine, a model, prompts of one length.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// The machine.
    pub profile: &'a HardwareProfile,
    /// What runs.
    pub model: &'a ModelSpec,
    /// Prompts in, tokens out; endless.
    pub workload: Workload,
}

/// The points of some systems, system by system, sizes ascending. Without `batches` sizes double
/// until one does not fit or more sequences are of no use; a system of ours has the size of its best plan besides.
///
/// # Errors
/// A workload that means nothing for the model; an error of ours.
pub fn points(
    setting: Setting<'_>,
    systems: &[System],
    batches: Option<&[u32]>,
    watch: &Watch<'_>,
) -> Result<Vec<Point>, PlanError> {
    // Which sizes are of use is known when they are found; those that are not tried count as done.
    let each = batches.map_or(sizes().count() + 1, <[u32]>::len) as u64;
    let (all, done) = (each * systems.len() as u64, AtomicU64::new(0));
    let found = |more: u64| watch(done.fetch_add(more, Ordering::Relaxed) + more, all);
    found(0);
    let curve = |system: System| {
        let tried = AtomicU64::new(0);
        let blocks = curve(setting, system, batches, &|| {
            tried.fetch_add(1, Ordering::Relaxed);
            found(1);
        })?;
        found(each.saturating_sub(tried.into_inner()));
        Ok(blocks)
    };
    let curves = on_all_processors(systems.to_vec(), &curve);
    let curves = curves.into_iter().collect::<Result<Vec<_>, PlanError>>()?;
    let blocks = curves.into_iter().flatten().collect();
    let before = done.into_inner();
    let blocks = predicted(setting.profile, blocks, &|done, of| {
        watch(before + done, before + of);
    })?;
    let mut points: Vec<Point> = blocks.iter().map(Point::of).collect();
    for curve in points.chunk_by_mut(|a, b| a.system == b.system) {
        let latency = |point: &Point| point.latency_s.unwrap_or(f64::INFINITY);
        curve.sort_by(|a, b| {
            let in_size = || latency(a).total_cmp(&latency(b));
            a.effective_batch.cmp(&b.effective_batch).then_with(in_size)
        });
        mark_frontier(curve);
    }
    Ok(points)
}

/// A system's best block of a size.
#[derive(Debug)]
struct Best {
    system: System,
    sequences: u32,
    outcome: Outcome,
}

/// All blocks with their predictions. Large ones take long, so they come first: then no processor waits.
fn predicted(
    profile: &HardwareProfile,
    blocks: Vec<Best>,
    watch: &Watch<'_>,
) -> Result<Vec<Best>, PlanError> {
    let mut placed: Vec<(usize, Best)> = blocks.into_iter().enumerate().collect();
    placed.sort_by_key(|(_, best)| Reverse(best.sequences));
    let predicted = watched(placed, watch, &|(place, best): (usize, Best)| {
        let mut outcome = best.outcome.predicted(profile)?;
        if let Outcome::Fits(block) = &mut outcome {
            block.latency_s = alone(block, profile)?;
        }
        Ok((place, Best { outcome, ..best }))
    });
    let mut placed = predicted
        .into_iter()
        .collect::<Result<Vec<_>, PlanError>>()?;
    placed.sort_by_key(|(place, _)| *place);
    Ok(placed.into_iter().map(|(_, best)| best).collect())
}

/// The time of a block's prompts. Of a diagonal schedule in its steady state a block's worth comes out in less, since it begins before
/// the one before has ended: what a prompt takes it does not say.
fn alone(block: &Block, profile: &HardwareProfile) -> Result<Seconds, PlanError> {
    let plan = &block.plan;
    if plan.policy.schedule != Schedule::Diagonal {
        return Ok(block.latency_s);
    }
    let workload = Workload {
        num_prompts: Some(plan.policy.block_size()),
        ..plan.workload
    };
    let alone = Plan {
        workload,
        prediction: None,
        ..plan.clone()
    };
    Ok(predict(&alone, profile)?.latency_s)
}

/// A system's blocks, ranked by simulations of a part.
fn curve(
    setting: Setting<'_>,
    system: System,
    batches: Option<&[u32]>,
    found: &(dyn Fn() + Sync),
) -> Result<Vec<Best>, PlanError> {
    let Setting {
        profile,
        model,
        workload,
    } = setting;
    let baseline = Baseline::new(system, profile, model, workload)?;
    let best = |sequences| {
        let outcome = baseline.ranked(sequences)?;
        found();
        Ok(Best {
            system,
            sequences,
            outcome,
        })
    };
    let with_others = |blocks: Vec<Best>| with_block_by_block(&baseline, blocks);
    let Some(batches) = batches else {
        let favourite = baseline.favourite()?;
        let mut blocks = doubling(&best, favourite)?;
        if let Some(size) = favourite
            && blocks.iter().all(|block| block.sequences != size)
        {
            blocks.push(best(size)?);
        }
        return with_others(blocks);
    };
    let sizes: BTreeSet<u32> = batches.iter().copied().collect();
    let all = on_all_processors(sizes.into_iter().collect(), &best);
    with_others(all.into_iter().collect::<Result<_, _>>()?)
}

/// With the best of other schedules where a block's is diagonal, which has more throughput and answers later.
fn with_block_by_block(
    baseline: &Baseline<'_>,
    mut blocks: Vec<Best>,
) -> Result<Vec<Best>, PlanError> {
    let is_diagonal = |best: &&Best| match &best.outcome {
        Outcome::Fits(block) => block.plan.policy.schedule == Schedule::Diagonal,
        Outcome::DoesNotFit(_) => false,
    };
    let diagonals = blocks.iter().filter(is_diagonal);
    let diagonals = diagonals
        .map(|best| (best.system, best.sequences))
        .collect();
    let other = |(system, sequences): (System, u32)| -> Result<Option<Best>, PlanError> {
        let outcome = baseline.ranked_block_by_block(sequences)?;
        let fits = outcome.filter(|outcome| matches!(outcome, Outcome::Fits(_)));
        Ok(fits.map(|outcome| Best {
            system,
            sequences,
            outcome,
        }))
    };
    for found in on_all_processors(diagonals, &other) {
        blocks.extend(found?);
    }
    Ok(blocks)
}

/// Sizes that double.
fn sizes() -> impl Iterator<Item = u32> {
    let sizes = std::iter::successors(Some(1), |size| Some(size * 2));
    sizes.take_while(|size| *size <= EFFECTIVE_BATCH_MAX)
}

/// Blocks of sizes that double, past the favourite one, until more are of no use.
fn doubling(
    best: &(dyn Fn(u32) -> Result<Best, PlanError> + Sync),
    favourite: Option<u32>,
) -> Result<Vec<Best>, PlanError> {
    let sizes: Vec<u32> = sizes().collect();
    let mut blocks = Vec::new();
    for some in sizes.chunks(AT_ONCE) {
        for block in on_all_processors(some.to_vec(), &best) {
            blocks.push(block?);
            let is_past = |best: &Best| favourite.is_none_or(|size| best.sequences >= size);
            if are_enough(&blocks, blocks.last().is_none_or(is_past)) {
                return Ok(blocks);
            }
        }
    }
    Ok(blocks)
}

/// Whether larger blocks do not fit, or the last ones, past the favourite one, were of no use.
fn are_enough(blocks: &[Best], are_past: bool) -> bool {
    let rate = |best: &Best| match &best.outcome {
        Outcome::Fits(block) => Some(block.throughput_tok_s),
        Outcome::DoesNotFit(_) => None,
    };
    let rates: Option<Vec<f64>> = blocks.iter().map(rate).collect();
    let Some(rates) = rates else {
        return true;
    };
    let (before, last) = rates.split_at(rates.len().saturating_sub(IDLE_SIZES_MAX));
    let best = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    are_past && !before.is_empty() && best(last) <= best(before) * (1.0 + GAIN_MIN)
}

impl Point {
    fn of(best: &Best) -> Point {
        let mut point = Point {
            system: best.system.name(),
            effective_batch: best.sequences,
            latency_s: None,
            throughput_tok_s: None,
            low_tok_s: None,
            high_tok_s: None,
            on_frontier: false,
            gpu_batch_size: None,
            num_gpu_batches: None,
            wg: None,
            wc: None,
            cg: None,
            cc: None,
            hg: None,
            hc: None,
            cpu_compute: None,
            schedule: None,
            overlap: None,
            barrier: None,
            granularity: None,
            page_lock: None,
            stored_scores: None,
            without: None,
            compress_weight: None,
            compress_cache: None,
            exceeds: None,
            is_split: false,
            page_locked: Bytes::ZERO,
            needed_bytes: None,
            capacity_bytes: None,
        };
        match &best.outcome {
            Outcome::Fits(block) => {
                let policy = &block.plan.policy;
                // A plan that fits has a layout.
                point.page_locked = page_locked_bytes(&block.plan).unwrap_or_default();
                point.latency_s = Some(block.latency_s.0);
                point.throughput_tok_s = Some(block.throughput_tok_s);
                let range = block.interval().map(|i| i.throughput_tok_s);
                point.low_tok_s = range.map(|range| range.low);
                point.high_tok_s = range.map(|range| range.high);
                point.set_policy(policy);
                point.is_split = policy.split.is_some();
                if point.is_split {
                    // Layers that are split lie on the host, whatever the policy's shares.
                    let lie = WeightPlacement::of(&block.plan).shares();
                    (point.wg, point.wc) = (Some(100.0 * lie.device), Some(100.0 * lie.host));
                }
            }
            Outcome::DoesNotFit(excess) => {
                point.exceeds = Some(excess.bound);
                point.needed_bytes = Some(excess.needed.0);
                point.capacity_bytes = Some(excess.capacity.0);
            }
        }
        point
    }

    /// A policy in the words of `plimsoll simulate`'s flags, so that it can be simulated again.
    fn set_policy(&mut self, policy: &Policy) {
        let percent = |share: f64| Some(share * 100.0);
        self.gpu_batch_size = Some(policy.gpu_batch_size);
        self.num_gpu_batches = Some(policy.num_gpu_batches);
        self.wg = percent(policy.weights.device);
        self.wc = percent(policy.weights.host);
        self.cg = percent(policy.cache.device);
        self.cc = percent(policy.cache.host);
        self.hg = percent(policy.activations.device);
        self.hc = percent(policy.activations.host);
        self.cpu_compute = Some(policy.attends_on_cpu());
        self.schedule = Some(policy.schedule);
        self.overlap = Some(policy.overlap);
        self.barrier = Some(policy.barrier);
        self.granularity = Some(policy.granularity);
        self.page_lock = Some(policy.page_locked.name());
        self.stored_scores = Some(policy.stores_scores());
        let without: Vec<&str> = [
            (Term::HalfLayers, policy.halves_layers()),
            (
                Term::CacheWorkspace,
                !policy.cpu_attention || policy.copies_cache(),
            ),
            (
                Term::WeightRelay,
                policy.weights_on_host() != HostPages::Pageable,
            ),
        ]
        .into_iter()
        .filter(|(_, is_there)| policy.loads_weights_at_once() && !is_there)
        .map(|(term, _)| term.name())
        .collect();
        self.without = (!without.is_empty()).then(|| without.join(","));
        self.compress_weight = Some(policy.compression.weights);
        self.compress_cache = Some(policy.compression.cache);
    }

    /// Latency and throughput, where it fits.
    pub fn place(&self) -> Option<(f64, f64)> {
        self.latency_s.zip(self.throughput_tok_s)
    }

    /// What does not fit: of what, asked, there.
    pub fn out_of_memory(&self) -> Option<(Bound, Bytes, Bytes)> {
        let (needed, capacity) = self.needed_bytes.zip(self.capacity_bytes)?;
        Some((self.exceeds?, Bytes(needed), Bytes(capacity)))
    }
}

/// Marks the points that no other is better than in both.
fn mark_frontier(points: &mut [Point]) {
    let places: Vec<(f64, f64)> = points.iter().filter_map(Point::place).collect();
    for point in points {
        let Some((latency, rate)) = point.place() else {
            continue;
        };
        let beats =
            |(l, r): &(f64, f64)| *l <= latency && *r >= rate && (*l, *r) != (latency, rate);
        point.on_frontier = !places.iter().any(beats);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::hardware::embedded;
    use plimsoll_core::model::registry;
    use plimsoll_core::tier::Tier;

    #[test]
    fn sizes_double_until_memory_ends_and_the_frontier_ascends() {
        let profile = embedded::profile("t4").unwrap();
        let model = registry::find("opt-175b").unwrap();
        let setting = Setting {
            profile: &profile,
            model: &model,
            workload: Workload {
                prompt_len: 512,
                gen_len: 32,
                num_prompts: None,
            },
        };
        let systems = [System::DeepSpeed, System::FlexGen];
        let points = points(setting, &systems, None, &|_, _| ()).unwrap();
        let of = |system: System| points.iter().filter(move |p| p.system == system.name());
        let deepspeed: Vec<&Point> = of(System::DeepSpeed).collect();
        assert_eq!(
            deepspeed.last().unwrap().exceeds,
            Some(Bound::Tier(Tier::Device))
        );
        assert!(deepspeed.len() <= 4);
        let frontier: Vec<_> = of(System::FlexGen).filter(|p| p.on_frontier).collect();
        assert!(frontier.len() >= 3);
        let ascends = |pair: &[&Point]| pair[0].throughput_tok_s < pair[1].throughput_tok_s;
        assert!(frontier.windows(2).all(ascends));
    }

    /// In the steady state a block's worth comes out in less time than any of its prompts takes.
    #[test]
    fn a_diagonal_point_has_its_blocks_own_latency_and_another_schedule_beside_it() {
        let profile = embedded::profile("t4").unwrap();
        let profile = profile.with_capacities(Some(Bytes(4_000_000_000)), None, None);
        let model = registry::find("opt-6.7b").unwrap();
        let setting = Setting {
            profile: &profile,
            model: &model,
            workload: Workload {
                prompt_len: 33,
                gen_len: 4,
                num_prompts: None,
            },
        };
        let points = points(setting, &[System::Plimsoll], Some(&[1, 64]), &|_, _| ()).unwrap();
        let is_diagonal = |point: &&Point| point.schedule == Some(Schedule::Diagonal);
        let diagonal = points.iter().find(is_diagonal).expect("one of 64");
        let steady = f64::from(diagonal.effective_batch * 4) / diagonal.throughput_tok_s.unwrap();
        assert!(diagonal.latency_s.unwrap() > 1.05 * steady, "{diagonal:?}");
        let beside = points
            .iter()
            .find(|point| point.effective_batch == diagonal.effective_batch && !is_diagonal(point));
        let beside = beside.expect("zig-zag");
        assert!(beside.latency_s < diagonal.latency_s, "{beside:?}");
        assert!(points[0].latency_s < beside.latency_s && points[0].effective_batch == 1);
    }
}
