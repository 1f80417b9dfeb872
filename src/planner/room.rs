//! What tensors may fill of a machine, and what of the host's part may be page-locked.

use std::ops::Index;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, page_locked_bytes};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;

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

    /// By how many bytes a plan page-locks too much.
    pub(super) fn over_locked(&self, plan: &Plan) -> Result<f64, LowerError> {
        if self.page_locked.is_infinite() {
            return Ok(0.0);
        }
        let locked = page_locked_bytes(plan)?.as_f64();
        Ok((locked - self.page_locked).max(0.0))
    }

    /// The plan if it may page-lock what it does, else the first that may of the same with less; where even slots alone are more
    /// than may be, with these alone.
    pub(super) fn locking_less(&self, mut plan: Plan) -> Result<Plan, LowerError> {
        for policy in less_locked(plan.policy) {
            if self.over_locked(&plan)? == 0.0 {
                break;
            }
            plan.policy = policy;
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
