//! What a plan may take of a machine, and what it takes: of each tier, and of what may be page-locked.

use std::ops::Index;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, footprint, page_locked_bytes};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;
use plimsoll_sim::closed_form::{ClosedForm, Linear};

use super::bound::Bound;

/// What is tried where not all of the host may be page-locked: which copies gain most from it differs.
const LESS: [PageLocked; 4] = [
    PageLocked {
        cache: false,
        ..PageLocked::ALL
    },
    PageLocked {
        weights: false,
        ..PageLocked::ALL
    },
    PageLocked {
        activations: true,
        ..PageLocked::NONE
    },
    PageLocked::NONE,
];

/// The same policy with less page-locked, and last with the least.
pub(super) fn less_locked(policy: Policy) -> impl Iterator<Item = Policy> {
    let all = policy.page_locked;
    let less = LESS.map(|less| PageLocked {
        weights: all.weights && less.weights,
        cache: all.cache && less.cache,
        activations: all.activations && less.activations,
    });
    let mut before = vec![all];
    less.into_iter().filter_map(move |page_locked| {
        let is_new = !before.contains(&page_locked);
        before.push(page_locked);
        is_new.then_some(Policy {
            page_locked,
            ..policy
        })
    })
}

/// Something of each bound.
#[derive(Debug, Clone, Copy)]
pub(super) struct PerBound<T> {
    pub tiers: PerTier<T>,
    page_locked: T,
}

/// Bytes that a plan may take; what may be page-locked is infinite where nobody asks.
pub(super) type Room = PerBound<f64>;

/// Bytes that a plan takes; nothing is page-locked where nobody asks.
pub(super) type Needs = PerBound<Bytes>;

impl Room {
    pub(super) fn of(profile: &HardwareProfile) -> Room {
        let lockable = profile.tiers.page_lockable_bytes.as_ref();
        Room {
            tiers: profile.usable().map(Bytes::as_f64),
            page_locked: lockable.map_or(f64::INFINITY, |most| most.value.as_f64()),
        }
    }

    /// What of a plan counts as page-locked. Where nothing may be, what copies pass through does not: there is no plan without.
    fn locked(&self, plan: &Plan) -> Result<Bytes, LowerError> {
        if self.page_locked.is_infinite() {
            return Ok(Bytes::ZERO);
        }
        let all = page_locked_bytes(plan)?;
        if self.page_locked > 0.0 {
            return Ok(all);
        }
        let mut pageable = plan.clone();
        pageable.policy.page_locked = PageLocked::NONE;
        Ok(all.saturating_sub(page_locked_bytes(&pageable)?))
    }

    /// The same where anything may be page-locked.
    pub(super) fn locking_anything(self) -> Room {
        Room {
            page_locked: f64::INFINITY,
            ..self
        }
    }

    /// The same with nothing on disk.
    pub(super) fn without_disk(mut self) -> Room {
        self.tiers[Tier::Disk] = 0.0;
        self
    }

    /// With less of something.
    pub(super) fn take(&mut self, bound: Bound, bytes: f64) {
        match bound {
            Bound::Tier(tier) => self.tiers[tier] -= bytes,
            Bound::PageLocked => self.page_locked -= bytes,
        }
    }

    /// Less what is too much.
    pub(super) fn less(mut self, exceeded: impl Iterator<Item = (Bound, f64)>) -> Room {
        exceeded.for_each(|(bound, bytes)| self.take(bound, bytes.min(self[bound])));
        self
    }

    /// So many times as much.
    pub(super) fn times(&self, factor: f64) -> Room {
        Room {
            tiers: self.tiers.map(|bytes| factor * bytes),
            page_locked: factor * self.page_locked,
        }
    }

    /// Between this and other room.
    pub(super) fn half_way(&self, other: &Room) -> Room {
        let half = |a: f64, b: f64| a / 2.0 + b / 2.0;
        Room {
            tiers: PerTier::from_fn(|tier| half(self.tiers[tier], other.tiers[tier])),
            page_locked: half(self.page_locked, other.page_locked),
        }
    }

    /// What a closed form says of each bound, and how much there may be.
    pub(super) fn rows<'f>(&self, form: &'f ClosedForm) -> [(&'f Linear, f64); 4] {
        Bound::ALL.map(|bound| {
            let row = match bound {
                Bound::Tier(tier) => &form.memory()[tier],
                Bound::PageLocked => form.page_locked(),
            };
            // As `locked`: shares decide nothing of what copies pass through.
            match bound == Bound::PageLocked && self.page_locked <= 0.0 {
                true => (row, f64::INFINITY),
                false => (row, self[bound]),
            }
        })
    }

    /// A policy, and where less than all may be page-locked, the same with less.
    pub(super) fn variants(&self, policy: Policy) -> impl Iterator<Item = Policy> {
        let less = less_locked(policy).filter(|_| self.page_locked.is_finite());
        std::iter::once(policy).chain(less)
    }

    /// What a plan takes.
    pub(super) fn needs(&self, plan: &Plan) -> Result<Needs, LowerError> {
        Ok(Needs {
            tiers: footprint(plan)?,
            page_locked: self.locked(plan)?,
        })
    }

    /// What is too much, and by how many bytes.
    pub(super) fn exceeded(&self, needs: &Needs) -> impl Iterator<Item = (Bound, f64)> {
        let over = |bound: Bound| (bound, needs[bound].as_f64() - self[bound]);
        let over = Bound::ALL.map(over).into_iter();
        over.filter(|(_, bytes)| *bytes > 0.0)
    }

    /// Whether nothing is.
    pub(super) fn holds(&self, plan: &Plan) -> Result<bool, LowerError> {
        Ok(self.exceeded(&self.needs(plan)?).next().is_none())
    }

    /// The plan if it may page-lock what it does, else the first that may of the same with less; where even buffers alone are more
    /// than may be, with these alone.
    pub(super) fn locking_less(&self, mut plan: Plan) -> Result<Plan, LowerError> {
        let asked = self.page_locked.is_finite();
        for policy in less_locked(plan.policy).filter(|_| asked) {
            if self.locked(&plan)?.as_f64() <= self.page_locked {
                break;
            }
            plan.policy = policy;
        }
        Ok(plan)
    }
}

impl<T> Index<Bound> for PerBound<T> {
    type Output = T;
    fn index(&self, bound: Bound) -> &T {
        match bound {
            Bound::Tier(tier) => &self.tiers[tier],
            Bound::PageLocked => &self.page_locked,
        }
    }
}

impl<T> Index<Tier> for PerBound<T> {
    type Output = T;
    fn index(&self, tier: Tier) -> &T {
        &self.tiers[tier]
    }
}
