//! The answer where nothing fits: what binds, by how much, and what would fit.

use std::fmt;

use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::{HardwareProfile, Quantity};
use plimsoll_core::lower::fullest_stages;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Granularity, Policy};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;
use plimsoll_sim::closed_form::ClosedForms;

use super::bound::Bound;
use super::room::{Needs, Room};
use super::space::Shape;
use super::whole::Maker;
use super::{PlanError, Search, lp};

/// No plan fits: of the smallest plans, one sequence at a time, even the nearest is too large.
#[derive(Debug, Clone, PartialEq)]
pub struct Infeasible {
    /// What binds: of that of which there is too little, the one that lacks most of its size.
    pub bound: Bound,
    /// What the nearest plan asks of it.
    pub needed: Bytes,
    /// What a plan may take of it.
    pub capacity: Bytes,
    /// What that plan asks too much of besides, and how much.
    pub also: Vec<(Bound, Bytes)>,
    /// All that there is of it, and what of that no plan may take; both 0 of what may be page-locked.
    pub whole_and_reserved: [Bytes; 2],
    /// What the nearest plan lacks of all, each as a share of its size, the device's counted twice.
    pub(super) lack: f64,
    /// The plan that lacks least; it fits a machine whose tiers hold `nearest_needs`, if that may be page-locked.
    pub nearest: Plan,
    /// What the nearest plan asks of each tier.
    pub nearest_needs: PerTier<Bytes>,
    /// The nearest plan in words.
    pub description: String,
    /// What kept in 4 bits would let a plan fit, as little as does; none where nothing more would, or where linear layers are
    /// split, for which it is not looked for.
    pub fits_in_4_bits: Option<Compression>,
}

impl Infeasible {
    /// Whether nothing is too much after all.
    pub(super) fn fits(&self) -> bool {
        self.needed <= self.capacity
    }

    /// What lacks of what binds, until what is reserved has its room as well.
    pub fn lacks(&self) -> Bytes {
        let [whole, reserved] = self.whole_and_reserved;
        let lacks = self.needed.saturating_sub(self.capacity);
        match lacks > Bytes::ZERO {
            true => lacks + reserved.saturating_sub(whole),
            false => lacks,
        }
    }

    /// The nearer of two answers; what 4 bits would do is known of the first.
    pub(super) fn or_nearer(self, other: Infeasible) -> Infeasible {
        if self.lack <= other.lack {
            return self;
        }
        Infeasible {
            fits_in_4_bits: self.fits_in_4_bits,
            ..other
        }
    }

    /// What lets a plan fit.
    pub fn remedy(&self) -> String {
        let kept = self.fits_in_4_bits;
        let flags = kept.map(|kept| match (kept.weights, kept.cache) {
            (true, true) => "--compress-weight --compress-cache",
            (true, false) => "--compress-weight",
            (false, _) => "--compress-cache",
        });
        match (flags, self.bound) {
            (Some(flags), _) => format!("a plan with {flags} fits"),
            (None, Bound::Tier(_)) => {
                "give the machine that much more, or take a smaller model or shorter sequences"
                    .to_owned()
            }
            (None, Bound::PageLocked) => {
                "where the machine allows more, say so (`page_lockable_bytes` under `[tiers]` in a profile that \
                 extends this one), or take a smaller model or shorter sequences"
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Infeasible {
            needed,
            description,
            ..
        } = self;
        let mut holds = self.bound.holds(self.capacity);
        let [whole, reserved] = self.whole_and_reserved;
        if reserved > Bytes::ZERO {
            holds += &format!(" for a plan, {reserved} of its {whole} being reserved,");
        }
        let tier = self.bound.tier().unwrap_or(Tier::Host);
        let stages = fullest_stages(&self.nearest, tier).ok().flatten();
        let of_stages = stages.map_or(String::new(), |stages| format!(" in {stages}"));
        let (remedy, lacks) = (self.remedy(), self.lacks());
        let also = self.also.iter().map(|(bound, bytes)| match bound {
            Bound::Tier(tier) => format!("; the {tier} tier is {bytes} too small for it as well"),
            Bound::PageLocked => format!("; {bytes} too much is to be page-locked as well"),
        });
        let also: String = also.collect();
        write!(
            f,
            "no plan fits: {holds} and the nearest plan needs {needed}{of_stages}, {lacks} too much{also}; \
             that plan: {description}; {remedy}"
        )
    }
}

/// How often what is nearest is sought again.
const AGAIN: usize = 4;

/// The plan of one sequence that exceeds the machine by least, of those that a search finds where there is as much as they ask.
pub(super) fn nearest(search: &Search<'_>) -> Result<Infeasible, PlanError> {
    let own = &search.maker;
    let mut nearest = nearest_of(search, own)?;
    for _ in 0..AGAIN {
        if nearest.fits() {
            return Ok(nearest);
        }
        let Some(there) = lacking_there(search, &nearest.nearest_needs)? else {
            break;
        };
        nearest = least_of((own, search.profile), [there])?;
    }
    nearest.fits_in_4_bits = fits_in_4_bits(search)?;
    Ok(nearest)
}

/// What is nearest and does not fit where each tier has just what is needed, or where those that have more keep it; none where
/// something fits on both machines.
fn lacking_there(search: &Search<'_>, needs: &PerTier<Bytes>) -> Result<Option<Policy>, PlanError> {
    let own = &search.maker;
    let needs = needs.map(Bytes::as_f64);
    let with_more = PerTier::from_fn(|tier| own.room()[tier].max(needs[tier]));
    for tiers in [needs, with_more] {
        let there = nearest_of(search, &own.with_tiers(tiers))?;
        if !there.fits() {
            return Ok(Some(there.nearest.policy));
        }
    }
    Ok(None)
}

/// How far the shares of weights beside a plan's own go that are tried, and in which steps, in layers.
const BESIDE: (i32, f64) = (4, 1.0 / 6.0);

/// A plan's policy with shares of weights near its own: where all tiers are nearly full it takes tensors of the right sizes to fill
/// them, and which ones go where changes with every step. Steps are whole from zero on, and cache and activations may lie where most
/// of them do, so that what is found for a machine is found for one that has just that.
fn beside(plan: &Plan) -> Vec<Policy> {
    let (most, step) = BESIDE;
    let step = step / f64::from(plan.model.num_hidden_layers);
    let own = plan.policy.weights.map(|share| (share / step).round());
    let moved = |device: i32, host: i32| {
        let [device, host] = [(Tier::Device, device), (Tier::Host, host)]
            .map(|(tier, steps)| (step * (own[tier] + f64::from(steps))).clamp(0.0, 1.0));
        let disk = 1.0 - device - host;
        let disk = if disk.abs() < 1e-9 { 0.0 } else { disk };
        (disk >= 0.0).then_some(PerTier { device, host, disk })
    };
    let steps = (-most..=most).flat_map(|d| (-most..=most).filter_map(move |h| moved(d, h)));
    let mut policies = Vec::new();
    for weights in steps {
        for granularity in [Granularity::Spread, Granularity::Layer] {
            let policy = Policy {
                weights,
                granularity,
                ..plan.policy
            };
            let settled = Policy {
                cache: mostly(&policy.cache),
                activations: mostly(&policy.activations),
                ..policy
            };
            policies.push(policy);
            policies.extend((settled != policy).then_some(settled));
        }
    }
    policies
}

/// All in the tier that has most.
fn mostly(shares: &PerTier<f64>) -> PerTier<f64> {
    let most = Tier::ALL
        .into_iter()
        .max_by(|a, b| shares[*a].total_cmp(&shares[*b]));
    PerTier::from_fn(|tier| f64::from(u8::from(Some(tier) == most)))
}

/// The plan of one sequence that exceeds a maker's room by least. Whole tensors take more than their shares, so placements are sought
/// again in as much less room.
fn nearest_of(search: &Search<'_>, maker: &Maker) -> Result<Infeasible, PlanError> {
    let policies = |room: &Room| smallest((&search.forms, room), &search.open);
    let found = |room: &Room| least_of((maker, search.profile), policies(room));
    let all = maker.room();
    let mut room = *all;
    let mut nearest = found(&room)?;
    for _ in 0..AGAIN {
        if nearest.fits() {
            break;
        }
        room = room.less(all.exceeded(&all.needs(&nearest.nearest)?));
        nearest = nearest.or_nearer(found(&room)?);
    }
    for _ in 0..AGAIN {
        if nearest.fits() {
            break;
        }
        let nearer = least_of((maker, search.profile), beside(&nearest.nearest))?;
        if nearest.lack <= nearer.lack {
            break;
        }
        nearest = nearer;
    }
    Ok(nearest)
}

/// The least of what was not allowed to be kept in 4 bits with which one of some policies fits.
fn fits_in_4_bits(search: &Search<'_>) -> Result<Option<Compression>, PlanError> {
    let allowed = &search.allowed;
    let tried = allowed.compression.choices();
    for compression in Compression::ALL {
        let open = packed(&search.open, compression);
        if tried.contains(&compression) || open.is_empty() {
            continue;
        }
        let forms = search
            .forms
            .with(&[compression], allowed.sparse_attention)?;
        let policies = smallest((&forms, search.maker.room()), &open);
        let nearest = least_of((&search.maker, search.profile), policies)?;
        if nearest.fits() || can_be_placed(&open, (&forms, &search.maker))? {
            return Ok(Some(compression));
        }
    }
    Ok(None)
}

/// Whether one of some policies has shares with which a whole plan fits, as a search would find them.
fn can_be_placed(
    open: &[Policy],
    (forms, maker): (&ClosedForms, &Maker),
) -> Result<bool, PlanError> {
    for policy in open {
        let Some(shape) = Shape::that_may_fit(forms, *policy, maker.room()) else {
            continue;
        };
        // What the solver cannot place is left to the others.
        for (policy, of) in lp::place_each(&shape, maker.room()).unwrap_or_default() {
            let shape = Shape {
                policy,
                ..of.clone()
            };
            if !maker.whole(&shape)?.is_empty() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Policies with so much in 4 bits, each once; the CPU attends to a cache as it is only.
fn packed(open: &[Policy], compression: Compression) -> Vec<Policy> {
    let mut packed: Vec<Policy> = Vec::new();
    for policy in open {
        let policy = Policy {
            compression,
            ..*policy
        };
        if policy.validate().is_ok() && !packed.contains(&policy) {
            packed.push(policy);
        }
    }
    packed
}

/// That none of some policies fits, by the plan that exceeds the machine by least.
pub(super) fn least_of(
    (maker, profile): (&Maker, &HardwareProfile),
    policies: impl IntoIterator<Item = Policy>,
) -> Result<Infeasible, PlanError> {
    let (plan, needs, lack) = least_lacking(maker, policies)?;
    let bound = binding(maker.room(), &needs);
    let exceeded = maker.room().exceeded(&needs);
    let others = exceeded.filter(|(other, _)| *other != bound);
    Ok(Infeasible {
        bound,
        also: others
            .map(|(other, by)| (other, Bytes(by.ceil() as u64)))
            .collect(),
        needed: needs[bound],
        lack,
        capacity: Bytes(maker.room()[bound] as u64),
        whole_and_reserved: whole_and_reserved(profile, bound),
        description: describe(&plan, &needs.tiers),
        nearest_needs: needs.tiers,
        nearest: plan,
        fits_in_4_bits: None,
    })
}

fn whole_and_reserved(profile: &HardwareProfile, bound: Bound) -> [Bytes; 2] {
    let tiers = &profile.tiers;
    let of = |whole: &Quantity<Bytes>, reserved: &Quantity<Bytes>| [whole.value, reserved.value];
    match bound {
        Bound::Tier(Tier::Device) => of(&tiers.device_capacity_bytes, &tiers.device_reserved_bytes),
        Bound::Tier(Tier::Host) => of(&tiers.host_capacity_bytes, &tiers.host_reserved_bytes),
        Bound::Tier(Tier::Disk) => [tiers.disk_capacity_bytes.value, Bytes::ZERO],
        Bound::PageLocked => [Bytes::ZERO; 2],
    }
}

/// Of some policies the plan that exceeds the machine by least, what it needs, and what it lacks of all as shares of their sizes, by
/// their [`weight`].
fn least_lacking(
    maker: &Maker,
    policies: impl IntoIterator<Item = Policy>,
) -> Result<(Plan, Needs, f64), PlanError> {
    let room = maker.room();
    let mut nearest: Option<(f64, Plan, Needs)> = None;
    for policy in policies {
        let plan = room.locking_less(maker.plan(policy))?;
        let needs = room.needs(&plan)?;
        let lacks = room
            .exceeded(&needs)
            .map(|it| weight(it.0) * share(room, it));
        let lacks = lacks.sum();
        if nearest.as_ref().is_none_or(|(least, ..)| lacks < *least) {
            nearest = Some((lacks, plan, needs));
        }
    }
    match nearest {
        Some((lacks, plan, needs)) => Ok((plan, needs, lacks)),
        None => Err(PlanError::Solver("not even with room to spare".to_owned())),
    }
}

/// Of that of which there is too little, what lacks most of its size.
fn binding(room: &Room, needs: &Needs) -> Bound {
    let lack = |it: &(Bound, f64)| share(room, *it);
    let most = room
        .exceeded(needs)
        .max_by(|a, b| lack(a).total_cmp(&lack(b)));
    most.map_or(Bound::Tier(Tier::Device), |(bound, _)| bound)
}

/// How much farther a plan is for what lacks of this: nobody can give a GPU more memory.
fn weight(bound: Bound) -> f64 {
    match bound {
        Bound::Tier(Tier::Device) => 2.0,
        Bound::Tier(_) | Bound::PageLocked => 1.0,
    }
}

/// What lacks of its size. What is next to nothing counts as the device's size: else little that lacks there would be more than all of
/// the model elsewhere.
fn share(room: &Room, (bound, bytes): (Bound, f64)) -> f64 {
    bytes / room[bound].max(room[Tier::Device]).max(1.0)
}

/// Placements of policies whose shares are open: those that a linear program finds nearest, and all pure ones.
pub(super) fn smallest((forms, room): (&ClosedForms, &Room), open: &[Policy]) -> Vec<Policy> {
    let mut policies = Vec::new();
    for &policy in open {
        for policy in room.variants(policy) {
            let shape = Shape::settled(policy, &forms.form(&policy));
            policies.extend(lp::place_with_least_excess(&shape, room));
        }
        let all = |tier| PerTier::from_fn(|t| if t == tier { 1.0 } else { 0.0 });
        for weights in Tier::ALL.map(all) {
            for cache in Tier::ALL.map(all) {
                policies.extend(Tier::ALL.map(|tier| Policy {
                    weights,
                    cache,
                    activations: all(tier),
                    ..policy
                }));
            }
        }
    }
    policies
}

fn describe(plan: &Plan, needs: &PerTier<Bytes>) -> String {
    let policy = &plan.policy;
    let shares = |name: &str, shares: &PerTier<f64>| {
        let percent = Tier::ALL.into_iter().filter(|t| shares[*t] > 0.0);
        let percent: Vec<String> = percent
            .map(|t| format!("{:.0}% {t}", shares[t] * 100.0))
            .collect();
        format!("{name} {}", percent.join(" + "))
    };
    let stages = match policy.pipeline.stages {
        1 => String::new(),
        stages => format!(" over {stages} stages"),
    };
    let steps = policy.steps_in_words();
    format!(
        "one sequence at a time{stages}{steps}, {}, {}, {}: needs {} of device, {} of host and {} of disk",
        match policy.split {
            Some(_) => "all weights but split linear layers on the device".to_owned(),
            None => shares("weights", &policy.weights),
        },
        shares("cache", &policy.cache),
        shares("activations", &policy.activations),
        needs.device,
        needs.host,
        needs.disk,
    )
}
