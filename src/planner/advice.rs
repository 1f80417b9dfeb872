//! What would help a plan: the search's closed form on changed machines, and simulations of a part of the best that it finds there.

use std::collections::HashSet;

use plimsoll_core::hardware::{Curve, HardwareProfile};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::units::{Bytes, BytesPerSecond};
use plimsoll_sim::closed_form::ClosedForms;

use super::judge::{self, Judged, Length};
use super::room::Room;
use super::space::{self, Proposal, Shape};
use super::split;
use super::whole::Maker;
use super::{Objective, PlanError, Planned, Search, Subject};
use crate::parallel::on_all_processors;

/// Proposals of the search whose shapes are tried on a changed machine.
const SHAPES_TRIED: usize = 3;

/// Smaller gains are not worth a word.
pub(super) const GAIN_MIN: f64 = 1.05;

/// Changes that are simulated, those that help most by the closed form first.
const SIMULATED: usize = 4;

/// Placements on each changed machine that are.
const PLACEMENTS: usize = 2;

/// A change of the machine and what it brings.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// The change, as in "16 GB more host memory".
    pub change: String,
    /// Tokens a second with it over those without.
    pub gain: f64,
    /// Whether the plan with it splits linear layers, for which the CPU's own rate counts.
    pub is_split: bool,
}

impl Advice {
    fn unsplit(change: String, gain: f64) -> Advice {
        Advice {
            change,
            gain,
            is_split: false,
        }
    }
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
    let placed = |profile: &HardwareProfile| {
        let (forms, room) = (search.forms.on(profile), Room::of(profile));
        placements(&forms, (&open, &policies), &room)
    };
    let score = |placed: &[Proposal]| placed.first().map_or(f64::INFINITY, |best| best.score);
    let here = placed(search.profile);
    let now = score(&here);
    let then = on_all_processors(changes(search.profile), &|(change, profile)| {
        let placed = placed(&profile);
        (change, profile, placed)
    });
    // Of ways to page-lock the closed form knows little.
    let is_open = |profile: &HardwareProfile| {
        let lockable = |profile: &HardwareProfile| profile.tiers.page_lockable_bytes.is_none();
        lockable(profile) && !lockable(search.profile)
    };
    let (lockable, mut then): (Vec<_>, Vec<_>) = then
        .into_iter()
        .partition(|(_, profile, _)| is_open(profile));
    then.retain(|(_, _, placed)| now / score(placed) >= GAIN_MIN);
    then.sort_by(|(_, _, a), (_, _, b)| score(a).total_cmp(&score(b)));
    then.truncate(SIMULATED);
    then.extend(lockable);
    if then.is_empty() {
        return Ok(None);
    }
    // The plan fits a machine that is better.
    let sampled = |placed: &[Proposal], profile: &HardwareProfile| {
        let own = Plan {
            capacity_bytes: profile.usable(),
            prediction: None,
            ..plan.clone()
        };
        best_by_samples(placed, (plan, Some(own)), (profile, &search.forms))
    };
    let Some(now) = sampled(&here, search.profile)? else {
        return Ok(None);
    };
    let mut there = Vec::new();
    for (change, profile, placed) in then {
        let best = sampled(&placed, &profile)?;
        there.extend(best.map(|best| (change, profile, best)));
    }
    let rate = |judged: &Judged| judged.throughput_tok_s();
    there.sort_by(|(.., a), (.., b)| rate(b).total_cmp(&rate(a)));
    for (change, profile, best) in there {
        let gain = match &plan.prediction {
            _ if rate(&best) < GAIN_MIN * rate(&now) => break,
            // A part may be off by tens of percents.
            Some(own) => rate(&best.predicted(&profile)?) / own.throughput_tok_s,
            None => rate(&best) / rate(&now),
        };
        if gain >= GAIN_MIN {
            return Ok(Some(Advice::unsplit(change, gain)));
        }
    }
    Ok(None)
}

/// Tokens a second of a plan that was judged by a part, beside another that has its prediction: by a simulation in full, since a part may be off by
/// tens of percents, or where that takes long by how much better its part is than the other's.
pub(super) fn rate_beside(
    judged: Judged,
    other: &Plan,
    (profile, forms): (&HardwareProfile, &ClosedForms),
) -> Result<f64, PlanError> {
    let predicted = match &other.prediction {
        Some(other) if judge::is_large(judged.plan()) => other.throughput_tok_s,
        _ => return Ok(judged.predicted(profile)?.throughput_tok_s()),
    };
    let own = judge::by_samples(vec![other.clone()], profile, forms, Length::Long)?;
    Ok(predicted * judged.throughput_tok_s() / own[0].throughput_tok_s())
}

/// The best by simulations of a part of some placements of a plan's model and workload, and another, on a machine; none where none can
/// be made whole.
pub(super) fn best_by_samples(
    placed: &[Proposal],
    (plan, another): (&Plan, Option<Plan>),
    (profile, forms): (&HardwareProfile, &ClosedForms),
) -> Result<Option<Judged>, PlanError> {
    let subject = Subject {
        profile,
        model: &plan.model,
        dtype: plan.dtype,
    };
    let maker = Maker::new(subject, plan.workload);
    let mut plans: Vec<Plan> = another.into_iter().collect();
    for proposal in placed {
        plans.extend(maker.make(proposal)?.into_iter().next());
    }
    let judged = judge::by_samples(plans, profile, &forms.on(profile), Length::Long)?;
    let best = judge::sorted(judged, Objective::Throughput);
    Ok(best.into_iter().next())
}

/// The change with the most gain, if it is worth a word.
fn most(all: impl Iterator<Item = Result<Advice, PlanError>>) -> Result<Option<Advice>, PlanError> {
    let mut best: Option<Advice> = None;
    for advice in all {
        let advice = advice?;
        if advice.gain >= best.as_ref().map_or(GAIN_MIN, |best| best.gain) {
            best = Some(advice);
        }
    }
    Ok(best)
}

/// What plans, split or not, come to on each changed machine, at a `rate` in tokens a second, none where none fits; beside so many now.
fn of_changes(
    profile: &HardwareProfile,
    now: f64,
    (is_split, rate): (bool, Rate<'_>),
) -> Vec<Result<Advice, PlanError>> {
    on_all_processors(changes(profile), &|(change, profile)| {
        rate(&profile).map(|then| Advice {
            change,
            gain: then.unwrap_or(0.0) / now,
            is_split,
        })
    })
}

/// Tokens a second on a machine.
type Rate<'r> = &'r (dyn Fn(&HardwareProfile) -> Result<Option<f64>, PlanError> + Sync);

/// The change that helps a split plan of so many tokens a second most, by simulating it on each changed machine with the shares and
/// modules that are best there; none where none helps.
pub(super) fn of_split(
    (plan, now): (&Plan, f64),
    profile: &HardwareProfile,
) -> Result<Option<Advice>, PlanError> {
    let rate = |profile: &HardwareProfile| split::rate_on(plan, profile);
    most(of_changes(profile, now, (true, &rate)).into_iter())
}

/// What helps most of a plan's own advice and of what plans of the other strategy come to on changed machines.
pub(super) fn most_of_changes(
    profile: &HardwareProfile,
    planned: &Planned,
    rate: Rate<'_>,
) -> Result<Option<Advice>, PlanError> {
    let other = planned.plan.policy.split.is_none();
    let others = of_changes(profile, planned.throughput_tok_s, (other, rate));
    let own = planned.advice.clone().map(Ok);
    most(own.into_iter().chain(others))
}

/// (GPU batch size, GPU batches) near the best, the plan's own first: as proposed, all in one, larger, and smaller. Without
/// proposals, as where time is limited, the plan's own alone.
fn policies(proposals: &[Proposal], plan: &Plan) -> Vec<(u32, u32)> {
    let (size, batches) = (plan.policy.gpu_batch_size, plan.policy.num_gpu_batches);
    let proposed = proposals.iter().take(SHAPES_TRIED).map(|p| &p.policy);
    let mut pairs = vec![(size, batches)];
    pairs.extend(proposed.map(|p| (p.gpu_batch_size, p.num_gpu_batches)));
    if !proposals.is_empty() {
        // Where weights need not be brought any more, nothing is gained by several.
        pairs.push((size.saturating_mul(batches), 1));
    }
    if plan.workload.num_prompts.is_none() && !proposals.is_empty() {
        for factor in [1.25, 1.5, 2.0] {
            let larger = |count: u32| (f64::from(count) * factor).ceil() as u32;
            pairs.push((larger(size), batches));
            pairs.push((size, larger(batches)));
        }
        // Where weights need not be read from disk any more, smaller blocks do.
        let half = |count: u32| count.div_ceil(2);
        pairs.extend([
            (half(size), batches),
            (size, half(batches)),
            (half(size), half(batches)),
        ]);
    }
    let mut seen = HashSet::new();
    pairs.retain(|pair| seen.insert(*pair));
    pairs
}

/// The best placements of any of the shapes, best by the closed form first.
fn placements(
    forms: &ClosedForms,
    (choices, pairs): (&[Policy], &[(u32, u32)]),
    room: &Room,
) -> Vec<Proposal> {
    let sized = pairs.iter().flat_map(|(size, batches)| {
        choices.iter().map(|choice| Policy {
            gpu_batch_size: *size,
            num_gpu_batches: *batches,
            ..*choice
        })
    });
    let shapes = sized.filter_map(|policy| Shape::that_may_fit(forms, policy, room));
    best_of(&shapes.collect::<Vec<Shape>>(), room)
}

/// The best placements of some shapes, best by the closed form first.
pub(super) fn best_of(shapes: &[Shape], room: &Room) -> Vec<Proposal> {
    let shapes = shapes.iter().collect::<Vec<_>>();
    // What the solver cannot place is left to the others.
    let best = space::scan(&shapes, (room, Objective::Throughput), PLACEMENTS);
    let mut best = best.unwrap_or_default();
    // There are as many of each way to page-lock.
    best.truncate(PLACEMENTS);
    best
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
    // Where weights are read from disk, less than all of them in memory may bring little.
    let twice_host = Some(tiers.host_capacity_bytes.value * 2);
    let device = more(tiers.device_capacity_bytes.value, 8);
    [
        (
            "16 GB more host memory",
            profile.with_capacities(None, host, None),
        ),
        (
            "twice the host memory",
            profile.with_capacities(None, twice_host, None),
        ),
        (
            "8 GB more device memory",
            profile.with_capacities(device, None, None),
        ),
        (
            "page-locking all of the host's memory",
            changed(&all_lockable),
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
        (
            "host memory of twice the rate",
            changed(&faster_host_memory),
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

fn all_lockable(profile: &mut HardwareProfile) {
    profile.tiers.page_lockable_bytes = None;
}

fn faster_disk(profile: &mut HardwareProfile) {
    double(&mut profile.links.disk_read.rate);
    double(&mut profile.links.disk_write.rate);
}

fn faster_link(profile: &mut HardwareProfile) {
    for link in [&mut profile.links.h2d, &mut profile.links.d2h] {
        double(&mut link.page_locked);
        link.pageable_mut().for_each(double);
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
    let compute = &mut profile.compute;
    let products = compute.products.iter_mut();
    products.flat_map(|it| it.curves_mut()).for_each(double);
    let beside = compute.beside_products.iter_mut();
    beside.for_each(|it| double(&mut it.rate));
    double(&mut compute.attention_prefill);
    double(&mut compute.attention_decode);
    let groups = compute.unpack.iter_mut().chain(&mut compute.pack);
    groups.for_each(double);
}

fn faster_launch(profile: &mut HardwareProfile) {
    let compute = &mut profile.compute;
    let embed = compute.embed.iter_mut();
    for time in embed.chain(std::iter::once(&mut compute.launch)) {
        time.value = time.value * 0.5;
    }
}

fn faster_cpu(profile: &mut HardwareProfile) {
    double(&mut profile.compute.cpu_attention);
}

fn faster_products(profile: &mut HardwareProfile) {
    let products = &mut profile.compute.cpu_gemm;
    products.iter_mut().for_each(|gemm| double(&mut gemm.rate));
}

fn faster_host_memory(profile: &mut HardwareProfile) {
    let tiers = &mut profile.tiers;
    let shared = tiers.host_shared.iter_mut();
    for rate in shared.chain([&mut tiers.host_bandwidth]) {
        rate.value = BytesPerSecond(2.0 * rate.value.0);
    }
}
