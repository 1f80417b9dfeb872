//! HeteGen's way to a plan: linear layers split between the CPU and the device, by the law (section 3.2) over the
//! machine's costs, and modules on the device as long as there is memory (section 4.5). The simulator judges.

mod loss;
mod modules;
mod shares;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, check_fits, footprint, page_locked_bytes};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Fractions, PageLocked, Policy, PolicyError, Schedule};
use plimsoll_core::split::{PerModule, Route, SplitError, SplitLinears};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_core::workload::Workload;
use plimsoll_sim::predict;

use super::judge::{Judged, better_first};
use super::room::Room;
use super::whole::Maker;
use super::{
    Allowed, Answer, Objective, PlanError, Planned, Request, Subject, advice, infeasible,
    workload_of,
};
use crate::parallel::on_all_processors;

pub use loss::{GreedysLoss, loss_of};
pub use modules::{Candidate, Layers, exact, greedy, greedys_loss, saved, taken};
pub use shares::{Module, Modules};

/// Sequences of a block are tried up to here, doubling: a split is for few (HeteGen section 1).
pub(super) const SEQUENCES_MAX: u32 = 64;

/// A plan that is this close to the best one is next to as good.
const AS_GOOD: f64 = 0.98;

/// How modules are chosen for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// None is on the device whole.
    Off,
    /// What saves most a byte first.
    Greedy,
    /// The best that fits.
    Exact,
}

/// What a prompt's rows do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompts {
    /// All go to the device.
    Streamed,
    /// The law shares them out, as those of a token.
    Split,
}

/// What a token's rows do of modules that are not on the device whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// The law shares them out.
    Split,
    /// The CPU computes all.
    OnCpu,
}

/// Who computes which rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sharing {
    pub prompts: Prompts,
    pub tokens: Tokens,
}

/// The best split plan of a request.
///
/// # Errors
/// A request that means nothing; an error of ours in simulating.
pub(super) fn answer(subject: Subject<'_>, request: &Request) -> Result<Answer, PlanError> {
    let workload = workload_of(request);
    let profile = subject.profile;
    let maker = Maker::new(subject, workload);
    let mut policies = Vec::new();
    for sequences in sizes(workload) {
        policies.extend(open_policies(sequences, &request.allowed));
    }
    let considered = policies.len();
    if considered == 0 {
        let what = "overlap and the zig-zag schedule";
        return Err(LowerError::from(PolicyError::from(SplitError::Needs { what })).into());
    }
    let mut found = judged((&maker, profile), policies.clone())?;
    if found.is_empty() {
        let nearest =
            infeasible::least_of((&maker, profile), nearest((&maker, profile), policies))?;
        return Ok(Answer::Infeasible(Box::new(nearest)));
    }
    found.sort_by(|a, b| better_first(a, b, request.objective));
    let in_time = |j: &Judged| {
        request
            .max_latency_s
            .is_none_or(|most| j.latency_s() <= most)
    };
    let quick = found.iter().position(in_time);
    let quickest = (0..found.len()).min_by(|a, b| {
        let latency = |index: &usize| found[*index].latency_s().0;
        latency(a).total_cmp(&latency(b))
    });
    let winner = quick
        .map(|best| locking_least((&found, best), request.objective, in_time))
        .transpose()?;
    let winner = found.swap_remove(winner.or(quickest).unwrap_or(0));
    let planned = Box::new(Planned {
        latency_s: winner.latency_s(),
        throughput_tok_s: winner.throughput_tok_s(),
        advice: advice::of_split((winner.plan(), winner.throughput_tok_s()), profile)?,
        plan: winner.into_plan(),
        runner_up: None,
        considered,
        not_split: None,
    });
    Ok(match quick {
        Some(_) => Answer::Plan(planned),
        None => Answer::TooSlow(planned),
    })
}

/// Of plans, best first, the one from the best on that is next to as good and page-locks least.
fn locking_least(
    (found, best): (&[Judged], usize),
    objective: Objective,
    in_time: impl Fn(&Judged) -> bool,
) -> Result<usize, LowerError> {
    let most = found[best].cost(objective) / AS_GOOD;
    let as_good = (best..found.len()).filter(|index| {
        let judged = &found[*index];
        in_time(judged) && judged.cost(objective) <= most
    });
    let locks = |index: usize| Ok((page_locked_bytes(found[index].plan())?, index));
    let locked: Result<Vec<(Bytes, usize)>, LowerError> = as_good.map(locks).collect();
    let least = locked?.into_iter().min();
    Ok(least.map_or(best, |(_, index)| index))
}

/// Tokens a second of the best split plan with blocks of one of these numbers of sequences, of the `open` policies; none where none fits, or the
/// model has none.
pub(super) fn rate(
    subject: Subject<'_>,
    request: &Request,
    (blocks, open): (&[u32], impl Fn(&Policy) -> bool),
) -> Result<Option<f64>, PlanError> {
    let maker = Maker::new(subject, workload_of(request));
    let of_block = |sequences: &u32| open_policies(*sequences, &request.allowed);
    let mut policies: Vec<_> = blocks.iter().flat_map(of_block).collect();
    policies.retain(|(policy, _)| open(policy));
    let found = match judged((&maker, subject.profile), policies) {
        Err(PlanError::Request(_)) => return Ok(None),
        found => found?,
    };
    let rates = found.iter().map(Judged::throughput_tok_s);
    Ok(rates.reduce(f64::max))
}

/// The plans of open policies that fit, each with its prediction.
pub(super) fn judged(
    (maker, profile): (&Maker, &HardwareProfile),
    policies: Vec<(Policy, Sharing)>,
) -> Result<Vec<Judged>, PlanError> {
    let judged = |(policy, sharing)| -> Result<Option<Judged>, PlanError> {
        let plan = whole(maker.plan(policy), sharing, profile)?;
        plan.map(|plan| Judged::in_full(plan, profile)).transpose()
    };
    let found = on_all_processors(policies, &judged).into_iter();
    let found: Result<Vec<Option<Judged>>, PlanError> = found.collect();
    Ok(found?.into_iter().flatten().collect())
}

/// An open plan with its shares, what may be page-locked, and modules on the device; none where it has no room.
fn whole(
    open: Plan,
    sharing: Sharing,
    profile: &HardwareProfile,
) -> Result<Option<Plan>, PlanError> {
    let plan = shared_as_locked(open, sharing, profile)?;
    let plan = scheduled(plan, profile, Scheduler::Greedy)?;
    let room = Room::of(profile);
    Ok(plan.filter(|plan| room.holds(plan).is_ok_and(|holds| holds)))
}

/// An open plan with its shares and what may be page-locked.
fn shared_as_locked(
    open: Plan,
    sharing: Sharing,
    profile: &HardwareProfile,
) -> Result<Plan, LowerError> {
    let asked = open.policy.page_locked;
    let plan = Room::of(profile).locking_less(shared(open, sharing, profile))?;
    Ok(match plan.policy.page_locked == asked {
        true => plan,
        // Copies from pageable homes are slower, so that the law's shares are others.
        false => shared(plan, sharing, profile),
    })
}

/// Tokens a second of a split plan as it would be made on another machine, in the way that is best there; none where it has no room.
pub(super) fn rate_on(plan: &Plan, profile: &HardwareProfile) -> Result<Option<f64>, PlanError> {
    let Some(split) = plan.policy.split else {
        return Ok(None);
    };
    let mut open = Plan {
        capacity_bytes: profile.usable(),
        ..plan.clone()
    };
    let mut best = None;
    for (policy, sharing) in ways(plan.policy) {
        open.policy = policy;
        if sharing.prompts == prompts_of(&split)
            && let Some(plan) = whole(open.clone(), sharing, profile)?
        {
            let rate = predict(&plan, profile)?.throughput_tok_s;
            best = Some(best.map_or(rate, |best: f64| best.max(rate)));
        }
    }
    Ok(best)
}

fn prompts_of(split: &SplitLinears) -> Prompts {
    match split.prefill_share == 1.0 {
        true => Prompts::Streamed,
        false => Prompts::Split,
    }
}

/// The policies with the law's shares, and modules on the device as far as it has memory: the least of the host that they can take.
pub(super) fn nearest(
    (maker, profile): (&Maker, &HardwareProfile),
    policies: Vec<(Policy, Sharing)>,
) -> Vec<Policy> {
    let plan = |(policy, sharing)| {
        let open = maker.plan(policy);
        // What means nothing is said of the plan without.
        let plan = shared_as_locked(open.clone(), sharing, profile).unwrap_or(open);
        filled(plan.clone(), profile, Scheduler::Greedy).unwrap_or(plan)
    };
    policies.into_iter().map(|open| plan(open).policy).collect()
}

/// Numbers of sequences that are tried.
fn sizes(workload: Workload) -> Vec<u32> {
    let most = workload.num_prompts.unwrap_or(u64::MAX);
    let sizes = std::iter::successors(Some(1), |size: &u32| Some(size * 2));
    let sizes = sizes.take_while(|size| *size <= SEQUENCES_MAX && u64::from(*size) <= most);
    let mut sizes: Vec<u32> = sizes.collect();
    if most < u64::from(SEQUENCES_MAX) && !sizes.contains(&(most as u32)) {
        sizes.push(most as u32);
    }
    sizes
}

/// One sequence's split before its shares are known, with all but linear layers on the device (HeteGen section 4.2).
pub fn blank() -> Policy {
    let split = SplitLinears::even(0.0);
    Policy {
        page_locked: locked(split.route),
        split: Some(split),
        ..super::space::blank()
    }
}

/// What is page-locked. Where rows pass through locked buffers, their homes are as they were read.
fn locked(route: Route) -> PageLocked {
    PageLocked {
        weights: !route.pins(),
        ..PageLocked::ALL
    }
}

/// Ways in which a token's rows come to the device: through buffers, as HeteGen's do; from homes that are page-locked, which takes the
/// host's memory less; not at all, but a prompt's.
const WAYS: [(Route, Tokens); 4] = [
    (Route::Ahead, Tokens::Split),
    (Route::Direct, Tokens::Split),
    (Route::Ahead, Tokens::OnCpu),
    (Route::Direct, Tokens::OnCpu),
];

/// Splits before their shares are known: where the cache lives and who attends to it, how rows come to the device, and whether
/// prompts' all do.
pub(super) fn open_policies(sequences: u32, allowed: &Allowed) -> Vec<(Policy, Sharing)> {
    let all = |tier: Tier| -> Fractions { PerTier::from_fn(|t| f64::from(u8::from(t == tier))) };
    let caches = [
        (Tier::Device, false),
        (Tier::Host, false),
        (Tier::Host, true),
    ];
    let asked = |on: bool| allowed.cpu_attention.is_none_or(|asked| asked == on);
    let mut policies = Vec::new();
    if !allowed.overlap || allowed.schedule.is_some_and(|s| s != Schedule::ZigZag) {
        return policies;
    }
    for compression in allowed.compression.choices() {
        for (cache, cpu_attention) in caches {
            let useless = cpu_attention && compression.cache;
            if useless || (cache == Tier::Host && !asked(cpu_attention)) {
                continue;
            }
            let policy = Policy {
                gpu_batch_size: sequences,
                cache: all(cache),
                cpu_attention,
                compression,
                sparse_attention: allowed.sparse_attention,
                ..blank()
            };
            policies.extend(ways(policy));
        }
    }
    policies
}

/// A split policy's ways before its shares are known.
fn ways(policy: Policy) -> impl Iterator<Item = (Policy, Sharing)> {
    WAYS.into_iter().flat_map(move |(route, tokens)| {
        let split = SplitLinears {
            route,
            ..SplitLinears::even(0.0)
        };
        let policy = Policy {
            page_locked: locked(route),
            split: Some(split),
            ..policy
        };
        let prompts = [Prompts::Streamed, Prompts::Split];
        prompts.map(|prompts| (policy, Sharing { prompts, tokens }))
    })
}

/// A plan whose split has the law's shares on a machine, and no module on the device.
pub fn by_law(mut plan: Plan, prompts: Prompts, profile: &HardwareProfile) -> Plan {
    let modules = Modules::of(&plan, profile);
    if let Some(split) = &mut plan.policy.split {
        split.share = modules.shares();
        split.prefill_share = match prompts {
            Prompts::Streamed => 1.0,
            Prompts::Split => modules.prefill_share,
        };
        split.layers_on_device = Layers::default();
    }
    plan
}

/// The same with a sharing's.
fn shared(open: Plan, sharing: Sharing, profile: &HardwareProfile) -> Plan {
    let mut plan = by_law(open, sharing.prompts, profile);
    if let (Some(split), Tokens::OnCpu) = (&mut plan.policy.split, sharing.tokens) {
        split.share = PerModule::default();
    }
    plan
}

/// A split plan whose modules are on the device as far as it has memory; none where it does not fit.
///
/// # Errors
/// A request that means nothing.
pub fn scheduled(
    plan: Plan,
    profile: &HardwareProfile,
    scheduler: Scheduler,
) -> Result<Option<Plan>, PlanError> {
    let plan = filled(plan, profile, scheduler)?;
    match check_fits(&plan) {
        Ok(()) => Ok(Some(plan)),
        Err(LowerError::DoesNotFit { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A split plan with modules on the device as far as that has memory, whatever the other tiers have: the host has the others.
fn filled(plan: Plan, profile: &HardwareProfile, scheduler: Scheduler) -> Result<Plan, PlanError> {
    let (candidates, room) = candidates(&plan, profile)?;
    let layers = match scheduler {
        Scheduler::Off => Layers::default(),
        Scheduler::Greedy => greedy(&candidates, room),
        Scheduler::Exact => exact(&candidates, room),
    };
    Ok(with_layers(plan, layers)?)
}

/// The modules of a plan that has none on the device, and the room that it leaves there.
fn candidates(
    plan: &Plan,
    profile: &HardwareProfile,
) -> Result<(Vec<Candidate>, Bytes), PlanError> {
    let modules = Modules::of(plan, profile);
    let used = footprint(plan)?.device;
    let room = plan.capacity_bytes.device.saturating_sub(used);
    let mut candidates = modules.candidates(plan.model.num_hidden_layers);
    let split = plan.policy.split.as_ref();
    if split.is_some_and(|split| split.share == PerModule::default()) {
        // The CPU computes all of each.
        for (candidate, module) in candidates.iter_mut().zip(&modules.all) {
            candidate.saved = Seconds(module.times.cpu);
        }
    }
    Ok((candidates, room))
}

/// The plan with these layers on the device, less what whole pages make too much.
fn with_layers(mut plan: Plan, mut layers: Layers) -> Result<Plan, LowerError> {
    loop {
        if let Some(split) = &mut plan.policy.split {
            split.layers_on_device = layers;
        }
        let largest = plimsoll_core::split::Module::ALL
            .into_iter()
            .max_by_key(|module| layers[*module]);
        let is_over = footprint(&plan)?.device > plan.capacity_bytes.device;
        match largest.filter(|module| is_over && layers[*module] > 0) {
            Some(module) => layers[module] -= 1,
            None => return Ok(plan),
        }
    }
}
