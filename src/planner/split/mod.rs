//! HeteGen's way to a plan: linear layers split between the CPU and the device, by the law (section 3.2) over the
//! machine's costs, and modules on the device as long as there is memory (section 4.5). The simulator judges.

mod loss;
mod modules;
mod shares;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, check_fits, footprint};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Fractions, PageLocked, Policy, PolicyError, Schedule};
use plimsoll_core::split::{SplitError, SplitLinears};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;

use super::judge::{Judged, better_first};
use super::room::Room;
use super::whole::Maker;
use super::{Allowed, Answer, PlanError, Planned, Request, advice, infeasible, workload_of};
use crate::parallel::on_all_processors;

pub use loss::{GreedysLoss, loss_of};
pub use modules::{Candidate, Layers, exact, greedy, greedys_loss, saved, taken};
pub use shares::{Module, Modules};

/// Sequences of a block are tried up to here, doubling: a split is for few (HeteGen section 1).
pub(super) const SEQUENCES_MAX: u32 = 64;

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

/// The best split plan of a request.
///
/// # Errors
/// A request that means nothing; an error of ours in simulating.
pub(super) fn answer(
    (profile, model, dtype): (&HardwareProfile, &ModelSpec, Dtype),
    request: &Request,
) -> Result<Answer, PlanError> {
    let workload = workload_of(request);
    let maker = Maker::new(profile, model, dtype, workload);
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
    let winner = found.swap_remove(quick.or(quickest).unwrap_or(0));
    let streams = |split: &SplitLinears| split.prefill_share == 1.0;
    let prompts = match winner.plan().policy.split.as_ref().is_none_or(streams) {
        true => Prompts::Streamed,
        false => Prompts::Split,
    };
    let planned = Box::new(Planned {
        latency_s: winner.latency_s(),
        throughput_tok_s: winner.throughput_tok_s(),
        advice: advice::of_split(winner.plan(), prompts, profile)?,
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

/// Tokens a second of the best split plan with blocks of one of these numbers of sequences, of the `open` policies; none where none fits, or the
/// model has none.
pub(super) fn rate(
    (profile, model, dtype): (&HardwareProfile, &ModelSpec, Dtype),
    request: &Request,
    (blocks, open): (&[u32], impl Fn(&Policy) -> bool),
) -> Result<Option<f64>, PlanError> {
    let maker = Maker::new(profile, model, dtype, workload_of(request));
    let of_block = |sequences: &u32| open_policies(*sequences, &request.allowed);
    let mut policies: Vec<_> = blocks.iter().flat_map(of_block).collect();
    policies.retain(|(policy, _)| open(policy));
    let found = match judged((&maker, profile), policies) {
        Err(PlanError::Request(_)) => return Ok(None),
        found => found?,
    };
    let rates = found.iter().map(Judged::throughput_tok_s);
    Ok(rates.reduce(f64::max))
}

/// The plans of open policies that fit, each with its prediction.
pub(super) fn judged(
    (maker, profile): (&Maker, &HardwareProfile),
    policies: Vec<(Policy, Prompts)>,
) -> Result<Vec<Judged>, PlanError> {
    let judged = |(policy, prompts)| -> Result<Option<Judged>, PlanError> {
        let plan = whole(maker.plan(policy), prompts, profile)?;
        plan.map(|plan| Judged::in_full(plan, profile)).transpose()
    };
    let found = on_all_processors(policies, &judged).into_iter();
    let found: Result<Vec<Option<Judged>>, PlanError> = found.collect();
    Ok(found?.into_iter().flatten().collect())
}

/// An open plan with the law's shares, what may be page-locked, and modules on the device; none where it has no room.
pub(super) fn whole(
    open: Plan,
    prompts: Prompts,
    profile: &HardwareProfile,
) -> Result<Option<Plan>, PlanError> {
    let room = Room::of(profile);
    let plan = room.locking_less(by_law(open, prompts, profile))?;
    let plan = scheduled(plan, profile, Scheduler::Greedy)?;
    Ok(plan.filter(|plan| room.holds(plan).is_ok_and(|holds| holds)))
}

/// The policies with the law's shares, and modules on the device as far as it has memory: the least of the host that they can take.
pub(super) fn nearest(
    (maker, profile): (&Maker, &HardwareProfile),
    policies: Vec<(Policy, Prompts)>,
) -> Vec<Policy> {
    let plan = |(policy, prompts)| {
        let plan = by_law(maker.plan(policy), prompts, profile);
        // What means nothing is said of the plan without.
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
    Policy {
        // Rows pass through locked buffers; their homes are as they were read.
        page_locked: PageLocked {
            weights: false,
            ..PageLocked::ALL
        },
        split: Some(SplitLinears::even(0.0)),
        ..super::space::blank()
    }
}

/// Splits before their shares are known: where the cache lives and who attends to it, and whether prompts'
/// rows all go to the device.
pub(super) fn open_policies(sequences: u32, allowed: &Allowed) -> Vec<(Policy, Prompts)> {
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
            policies.extend([Prompts::Streamed, Prompts::Split].map(|prompts| (policy, prompts)));
        }
    }
    policies
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
    Ok((modules.candidates(plan.model.num_hidden_layers), room))
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
