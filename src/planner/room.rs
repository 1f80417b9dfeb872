//! What tensors may fill of a machine, and what of the host's part may be page-locked.

use std::ops::Index;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, page_locked_bytes};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;

/// What is tried where not all of the host may be page-locked, most first: which copies gain most from it differs. The last is for
/// where even activations, which are few, are more.
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

/// The same policy with less page-locked, most first.
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

/// Bytes that a plan may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    tiers: PerTier<f64>,
    /// Of the host's, what may be page-locked; infinite where nobody asks.
    pub page_locked: f64,
}

impl Room {
    pub(super) fn of(profile: &HardwareProfile) -> Room {
        let lockable = profile.tiers.page_lockable_bytes.as_ref();
        Room {
            tiers: profile.usable().map(Bytes::as_f64),
            page_locked: lockable.map_or(f64::INFINITY, |most| most.value.as_f64()),
        }
    }

    /// The same where anything may be page-locked.
    pub(super) fn locking_anything(self) -> Room {
        Room {
            page_locked: f64::INFINITY,
            ..self
        }
    }

    /// With less room in a tier.
    pub(super) fn take(&mut self, tier: Tier, bytes: f64) {
        self.tiers[tier] -= bytes;
    }

    /// By how many bytes a plan page-locks too much. What locks no homes does not: it has slots only, and nothing locks less.
    pub(super) fn over_locked(&self, plan: &Plan) -> Result<f64, LowerError> {
        if self.page_locked.is_infinite() || plan.policy.page_locked == PageLocked::NONE {
            return Ok(0.0);
        }
        let locked = page_locked_bytes(plan)?.as_f64();
        Ok((locked - self.page_locked).max(0.0))
    }

    /// The plan, or the same with the most page-locked that may be.
    pub(super) fn locking_less(&self, plan: Plan) -> Result<Plan, LowerError> {
        for policy in std::iter::once(plan.policy).chain(less_locked(plan.policy)) {
            let less = Plan {
                policy,
                ..plan.clone()
            };
            if self.over_locked(&less)? == 0.0 {
                return Ok(less);
            }
        }
        Ok(plan)
    }
}

impl Index<Tier> for Room {
    type Output = f64;
    fn index(&self, tier: Tier) -> &f64 {
        &self.tiers[tier]
    }
}
