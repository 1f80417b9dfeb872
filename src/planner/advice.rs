//! What would help a plan: the search's closed form on a changed machine.

use std::collections::HashSet;

use plimsoll_core::hardware::{Curve, HardwareProfile};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::{Bytes, BytesPerSecond};
use plimsoll_sim::closed_form::ClosedForms;
use plimsoll_sim::predict;

use super::space::{Proposal, Shape, lowest_latency_s};
use super::split::{self, Prompts, Scheduler};
use super::{PlanError, Search, lp};
use crate::parallel::on_all_processors;

/// Proposals of the search whose shapes are tried on a changed machine.
const SHAPES_TRIED: usize = 3;

/// Gains below this are within the closed form's own error.
const GAIN_MIN: f64 = 1.05;

/// A change of the machine and what it brings.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// The change, as in "16 GB more host memory".
    pub change: String,
    /// Tokens a second with it over those without, both by the closed form at its best placement.
    pub gain: f64,
}

/// The change that helps a plan most of those tried, with all that was `open` to it; none where none helps.
pub(super) fn best(
    (search, open): (&Search<'_>, &[Policy]),
    proposals: &[Proposal],
    plan: &Plan,
) -> Result<Option<Advice>, PlanError> {
    let policies = policies(proposals, plan);
    // The same schedule on another machine.
    let mut open = open.to_vec();
    open.retain(|choice| choice.schedule == plan.policy.schedule);
    let now = least_score(&search.forms, &open, &policies, search.maker.room())?;
    let scored = on_all_processors(changes(search.profile), &|(change, profile)| {
        let room = profile.usable().map(Bytes::as_f64);
        let then = least_score(&search.forms.on(&profile), &open, &policies, &room);
        then.map(|then| (change, now / then))
    });
    let mut best: Option<Advice> = None;
    for scored in scored {
        let (change, gain) = scored?;
        if gain >= best.as_ref().map_or(GAIN_MIN, |advice| advice.gain) {
            best = Some(Advice { change, gain });
        }
    }
    Ok(best)
}

/// The change that helps a split plan most, by simulating it on each changed machine with the shares and modules that are best
/// there; none where none helps.
pub(super) fn of_split(
    plan: &Plan,
    prompts: Prompts,
    profile: &HardwareProfile,
) -> Result<Option<Advice>, PlanError> {
    let rate = |profile: &HardwareProfile| -> Result<Option<f64>, PlanError> {
        let changed = Plan {
            capacity_bytes: profile.usable(),
            ..plan.clone()
        };
        let open = split::by_law(changed, prompts, profile);
        let plan = split::scheduled(open, profile, Scheduler::Greedy)?;
        let rate = |plan| Ok(predict(&plan, profile)?.throughput_tok_s);
        plan.map(rate).transpose()
    };
    let Some(now) = rate(profile)? else {
        return Ok(None);
    };
    let scored = on_all_processors(changes(profile), &|(change, profile)| {
        rate(&profile).map(|then| (change, then.unwrap_or(0.0) / now))
    });
    let mut best: Option<Advice> = None;
    for scored in scored {
        let (change, gain) = scored?;
        if gain >= best.as_ref().map_or(GAIN_MIN, |advice| advice.gain) {
            best = Some(Advice { change, gain });
        }
    }
    Ok(best)
}

/// (GPU batch size, GPU batches) near the best, the plan's own first: as proposed, and larger. Without
/// proposals, as where time is limited, the plan's own alone.
fn policies(proposals: &[Proposal], plan: &Plan) -> Vec<(u32, u32)> {
    let (size, batches) = (plan.policy.gpu_batch_size, plan.policy.num_gpu_batches);
    let proposed = proposals.iter().take(SHAPES_TRIED).map(|p| &p.policy);
    let mut pairs = vec![(size, batches)];
    pairs.extend(proposed.map(|p| (p.gpu_batch_size, p.num_gpu_batches)));
    if plan.workload.num_prompts.is_none() && !proposals.is_empty() {
        for factor in [1.25, 1.5, 2.0] {
            let larger = |count: u32| (f64::from(count) * factor).ceil() as u32;
            pairs.push((larger(size), batches));
            pairs.push((size, larger(batches)));
        }
    }
    let mut seen = HashSet::new();
    pairs.retain(|pair| seen.insert(*pair));
    pairs
}

/// Seconds a token of the best placement of any of the shapes.
fn least_score(
    forms: &ClosedForms,
    choices: &[Policy],
    pairs: &[(u32, u32)],
    room: &PerTier<f64>,
) -> Result<f64, PlanError> {
    let mut least = f64::INFINITY;
    for (size, batches) in pairs {
        for choice in choices {
            let policy = Policy {
                gpu_batch_size: *size,
                num_gpu_batches: *batches,
                ..*choice
            };
            let form = forms.form(&policy);
            if lowest_latency_s(&form, room).0 / form.tokens() >= least {
                continue;
            }
            let shape = Shape { policy, form };
            if let Ok(Some(policy)) = lp::place(&shape, room) {
                let latency = shape.form.evaluate(&policy).latency_s;
                least = least.min(latency.0 / shape.form.tokens());
            }
        }
    }
    Ok(least)
}

/// Machines that are one thing better.
fn changes(profile: &HardwareProfile) -> Vec<(String, HardwareProfile)> {
    let tiers = &profile.tiers;
    let more = |bytes: Bytes, gb: u64| Some(bytes + Bytes(gb * 1_000_000_000));
    let changed = |change: &dyn Fn(&mut HardwareProfile)| {
        let mut profile = profile.clone();
        change(&mut profile);
        profile
    };
    let host = more(tiers.host_capacity_bytes.value, 16);
    let device = more(tiers.device_capacity_bytes.value, 8);
    [
        (
            "16 GB more host memory",
            profile.with_capacities(None, host, None),
        ),
        (
            "8 GB more device memory",
            profile.with_capacities(device, None, None),
        ),
        ("a disk of twice the rate", changed(&faster_disk)),
        ("a link of twice the rate", changed(&faster_link)),
        ("a GPU of twice the rate", changed(&faster_gpu)),
        ("half the fixed time of a GPU task", changed(&faster_launch)),
        ("attention twice as fast on the CPU", changed(&faster_cpu)),
        (
            "a CPU that multiplies twice as fast",
            changed(&faster_products),
        ),
    ]
    .map(|(change, profile)| (change.to_owned(), profile))
    .into()
}

fn double(curve: &mut Curve) {
    let points = curve
        .points()
        .iter()
        .map(|(size, rate)| (*size, 2.0 * rate))
        .collect();
    // Twice a positive rate is one.
    if let Ok(doubled) = Curve::new(points, curve.source.clone(), curve.spread) {
        *curve = doubled;
    }
}

fn faster_disk(profile: &mut HardwareProfile) {
    double(&mut profile.links.disk_read.rate);
    double(&mut profile.links.disk_write.rate);
}

fn faster_link(profile: &mut HardwareProfile) {
    for link in [&mut profile.links.h2d, &mut profile.links.d2h] {
        double(&mut link.page_locked);
        link.pageable.iter_mut().for_each(double);
    }
}

fn faster_gpu(profile: &mut HardwareProfile) {
    let bandwidth = &mut profile.tiers.device_bandwidth.value;
    *bandwidth = BytesPerSecond(2.0 * bandwidth.0);
    profile
        .compute
        .gemm
        .iter_mut()
        .for_each(|gemm| double(&mut gemm.rate));
    double(&mut profile.compute.attention_prefill);
    double(&mut profile.compute.attention_decode);
    profile.compute.unpack.iter_mut().for_each(double);
}

fn faster_launch(profile: &mut HardwareProfile) {
    let launch = &mut profile.compute.launch.value;
    *launch = *launch * 0.5;
}

fn faster_cpu(profile: &mut HardwareProfile) {
    double(&mut profile.compute.cpu_attention);
}

/// Where a profile does not say how fast, host memory bounds them.
fn faster_products(profile: &mut HardwareProfile) {
    let products = &mut profile.compute.cpu_gemm;
    products.iter_mut().for_each(|gemm| double(&mut gemm.rate));
    let bandwidth = &mut profile.tiers.host_bandwidth.value;
    *bandwidth = BytesPerSecond(2.0 * bandwidth.0);
}
