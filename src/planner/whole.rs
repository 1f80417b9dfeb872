//! Makes a proposal whole: tensors, cache rows and sequences that really fit.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::footprint;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::placement::PAGE_BYTES;
use plimsoll_core::plan::{ChosenBy, PLAN_SCHEMA_VERSION, Plan, Provenance};
use plimsoll_core::policy::{Granularity, Policy};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;

use super::room::Room;
use super::space::{Proposal, Shape};
use super::{PlanError, lp};

/// How often a proposal is placed again in less room before it is given up.
const TRIES: i32 = 8;

/// Makes plans of policies.
#[derive(Debug, Clone)]
pub(super) struct Maker {
    blank: Plan,
    room: Room,
}

impl Maker {
    pub(super) fn new(
        profile: &HardwareProfile,
        model: &ModelSpec,
        dtype: Dtype,
        workload: Workload,
    ) -> Maker {
        let blank = Plan {
            schema_version: PLAN_SCHEMA_VERSION,
            model: model.clone(),
            dtype,
            workload,
            policy: super::space::blank(),
            capacity_bytes: profile.usable(),
            prediction: None,
            provenance: Provenance::of(profile, ChosenBy::Planner, env!("CARGO_PKG_VERSION")),
        };
        Maker {
            room: Room::of(profile),
            blank,
        }
    }

    /// What tensors may fill.
    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// The same for whom what is page-locked counts for nothing.
    pub(super) fn locking_anything(&self) -> Maker {
        Maker {
            room: self.room.locking_anything(),
            ..self.clone()
        }
    }

    /// What is asked.
    pub(super) fn workload(&self) -> &Workload {
        &self.blank.workload
    }

    /// A plan with a policy, which need not fit.
    pub(super) fn plan(&self, policy: Policy) -> Plan {
        Plan {
            policy,
            ..self.blank.clone()
        }
    }

    /// Whether a plan's tensors have room, and what it page-locks may be.
    pub(super) fn fits(&self, plan: &Plan) -> bool {
        let within = |needs: PerTier<Bytes>| {
            let mut tiers = Tier::ALL.into_iter();
            tiers.all(|tier| needs[tier] <= plan.capacity_bytes[tier])
        };
        footprint(plan).is_ok_and(within)
            && self.room.over_locked(plan).is_ok_and(|over| over == 0.0)
    }

    /// Plans of a proposal that fit: with rounding errors carried through the model, and with each
    /// layer alike, which is coarser but loads as much for each layer.
    pub(super) fn make(&self, proposal: &Proposal) -> Result<Vec<Plan>, PlanError> {
        let mut plans = Vec::new();
        for granularity in [Granularity::Spread, Granularity::Layer] {
            let split = Tier::ALL
                .into_iter()
                .all(|tier| proposal.policy.weights[tier] < 1.0);
            if granularity == Granularity::Spread || split {
                let policy = Policy {
                    granularity,
                    ..proposal.policy
                };
                plans.extend(self.fitting(&Shape::settled(policy, &proposal.form))?);
            }
        }
        Ok(plans)
    }

    /// Where whole tensors are more than their share, what is over is taken from the tier's room and
    /// the shape is placed again. Where only what is page-locked remains over, less is.
    pub(super) fn fitting(&self, shape: &Shape) -> Result<Option<Plan>, PlanError> {
        let mut plan = self.plan(shape.policy);
        let mut locks_too_much = None;
        let mut room = self.room;
        for tried in 0..TRIES {
            let needed = footprint(&plan)?;
            let over = PerTier::from_fn(|t| needed[t].saturating_sub(plan.capacity_bytes[t]));
            let over_locked = self.room.over_locked(&plan)?;
            if Tier::ALL.into_iter().all(|t| over[t] == Bytes::ZERO) {
                if over_locked == 0.0 {
                    return Ok(Some(plan));
                }
                locks_too_much.get_or_insert_with(|| plan.clone());
            }
            // A little less room need not move a tensor, so each try takes more.
            let less = |over: f64| (over + PAGE_BYTES as f64) * 2f64.powi(tried);
            for tier in Tier::ALL.into_iter().filter(|t| over[*t] > Bytes::ZERO) {
                room.take(tier, less(over[tier].as_f64()));
            }
            if over_locked > 0.0 {
                room.page_locked -= less(over_locked);
            }
            // What the solver cannot place again is left to the other proposals.
            match lp::place(shape, &room) {
                Ok(Some((policy, _))) => plan.policy = policy,
                Ok(None) | Err(_) => break,
            }
        }
        let settled = locks_too_much.map(|plan| self.room.locking_less(plan));
        Ok(settled.transpose()?.filter(|plan| self.fits(plan)))
    }
}
