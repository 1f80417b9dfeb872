//! The latency of a block against throughput, over block sizes: FlexGen's figure 1.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::policy::{Granularity, PageLocked, Policy, Schedule};
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;
use serde::Serialize;

use crate::baseline::{Baseline, System};
use crate::parallel::on_all_processors;
use crate::planner::{Outcome, PlanError};

/// Where doubling ends at the latest.
const EFFECTIVE_BATCH_MAX: u32 = 4096;

/// A larger size that gains less throughput than this, as a fraction, is of no use.
const GAIN_MIN: f64 = 0.01;

/// Useless sizes in a row after which no more are tried.
const IDLE_SIZES_MAX: usize = 2;

/// Sizes that are tried before it is asked whether they are enough.
const AT_ONCE: usize = 2;

/// A system's best block of one size: a point of the picture, a row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// The system.
    pub system: &'static str,
    /// Sequences in a block.
    pub effective_batch: u32,
    /// The time of a block; none where it does not fit.
    pub latency_s: Option<f64>,
    /// Generated tokens over that time.
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
    /// Which host memory is page-locked.
    pub page_lock: Option<&'static str>,
    /// Whether weights are kept in 4 bits.
    pub compress_weight: Option<bool>,
    /// Whether the cache is.
    pub compress_cache: Option<bool>,
    /// Out of memory: the tier that binds.
    pub exceeds: Option<Tier>,
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
) -> Result<Vec<Point>, PlanError> {
    let curve = |system: System| curve(setting, system, batches);
    let curves = on_all_processors(systems.to_vec(), &curve);
    let curves = curves.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(curves.into_iter().flatten().collect())
}

fn curve(
    setting: Setting<'_>,
    system: System,
    batches: Option<&[u32]>,
) -> Result<Vec<Point>, PlanError> {
    let Setting {
        profile,
        model,
        workload,
    } = setting;
    let baseline = Baseline::new(system, profile, model, workload)?;
    let point = |size| Ok(Point::of(system, size, &baseline.block(size)?));
    let mut points = match batches {
        Some(batches) => {
            let all = on_all_processors(batches.to_vec(), &point).into_iter();
            all.collect::<Result<_, PlanError>>()?
        }
        None => doubling(&point)?,
    };
    if batches.is_none()
        && let Some(size) = baseline.favourite()?
        && points.iter().all(|point| point.effective_batch != size)
    {
        points.push(point(size)?);
        points.sort_by_key(|point| point.effective_batch);
    }
    mark_frontier(&mut points);
    Ok(points)
}

/// Points of sizes that double, until more are of no use.
fn doubling(
    point: &(dyn Fn(u32) -> Result<Point, PlanError> + Sync),
) -> Result<Vec<Point>, PlanError> {
    let sizes = std::iter::successors(Some(1), |size| Some(size * 2));
    let sizes: Vec<u32> = sizes
        .take_while(|size| *size <= EFFECTIVE_BATCH_MAX)
        .collect();
    let mut points = Vec::new();
    for some in sizes.chunks(AT_ONCE) {
        for point in on_all_processors(some.to_vec(), &point) {
            points.push(point?);
            if are_enough(&points) {
                return Ok(points);
            }
        }
    }
    Ok(points)
}

/// Whether larger blocks do not fit, or the last ones were of no use.
fn are_enough(points: &[Point]) -> bool {
    let rates: Option<Vec<f64>> = points.iter().map(|p| p.throughput_tok_s).collect();
    let Some(rates) = rates else {
        return true;
    };
    let (before, last) = rates.split_at(rates.len().saturating_sub(IDLE_SIZES_MAX));
    let best = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    !before.is_empty() && best(last) <= best(before) * (1.0 + GAIN_MIN)
}

impl Point {
    fn of(system: System, effective_batch: u32, outcome: &Outcome) -> Point {
        let mut point = Point {
            system: system.name(),
            effective_batch,
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
            compress_weight: None,
            compress_cache: None,
            exceeds: None,
            needed_bytes: None,
            capacity_bytes: None,
        };
        match outcome {
            Outcome::Fits(block) => {
                let policy = &block.plan.policy;
                point.latency_s = Some(block.latency_s.0);
                point.throughput_tok_s = Some(block.throughput_tok_s);
                let range = block.interval().map(|i| i.throughput_tok_s);
                point.low_tok_s = range.map(|range| range.low);
                point.high_tok_s = range.map(|range| range.high);
                point.set_policy(policy);
            }
            Outcome::DoesNotFit(excess) => {
                point.exceeds = Some(excess.tier);
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
        self.cpu_compute = Some(policy.cpu_attention && policy.cache.device < 1.0);
        self.schedule = Some(policy.schedule);
        self.overlap = Some(policy.overlap);
        self.barrier = Some(policy.barrier);
        self.granularity = Some(policy.granularity);
        self.page_lock = Some(match policy.page_locked {
            PageLocked::ALL => "all",
            PageLocked::NONE => "none",
            _ => "flexgen",
        });
        self.compress_weight = Some(policy.compression.weights);
        self.compress_cache = Some(policy.compression.cache);
    }

    /// Latency and throughput, where it fits.
    pub fn place(&self) -> Option<(f64, f64)> {
        self.latency_s.zip(self.throughput_tok_s)
    }

    /// What does not fit: the tier, asked, there.
    pub fn out_of_memory(&self) -> Option<(Tier, Bytes, Bytes)> {
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
        let points = points(setting, &systems, None).unwrap();
        let of = |system: System| points.iter().filter(move |p| p.system == system.name());
        let deepspeed: Vec<&Point> = of(System::DeepSpeed).collect();
        assert_eq!(deepspeed.last().unwrap().exceeds, Some(Tier::Device));
        assert!(deepspeed.len() <= 4);
        let frontier: Vec<_> = of(System::FlexGen).filter(|p| p.on_frontier).collect();
        assert!(frontier.len() >= 3);
        let ascends = |pair: &[&Point]| pair[0].throughput_tok_s < pair[1].throughput_tok_s;
        assert!(frontier.windows(2).all(ascends));
    }
}
