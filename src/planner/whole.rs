//! Makes a proposal whole: tensors, cache rows and sequences that really fit.

use plimsoll_core::placement::PAGE_BYTES;
use plimsoll_core::plan::{ChosenBy, Plan};
use plimsoll_core::policy::{Granularity, Policy};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::workload::Workload;

use super::bound::Bound;
use super::room::Room;
use super::space::{Proposal, Shape};
use super::{PlanError, Subject, lp};

/// How often a proposal is placed again in less room before it is given up.
const TRIES: i32 = 8;

/// How often what was taken too much of is halved then.
const HALVINGS: usize = 4;

/// Makes plans of policies.
#[derive(Debug, Clone)]
pub(super) struct Maker {
    blank: Plan,
    room: Room,
}

impl Maker {
    pub(super) fn new(subject: Subject<'_>, workload: Workload) -> Maker {
        let model = subject.model.clone();
        let given = Plan::given(model, subject.dtype, workload, super::space::blank());
        let mut blank = given.on(subject.profile);
        blank.provenance.chosen_by = ChosenBy::Planner;
        Maker {
            room: Room::of(subject.profile),
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

    /// The same where tiers have so much.
    pub(super) fn with_tiers(&self, tiers: PerTier<f64>) -> Maker {
        let mut room = self.room;
        room.tiers = tiers;
        Maker {
            room,
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

    /// Whether a plan is within what may be taken.
    pub(super) fn fits(&self, plan: &Plan) -> bool {
        self.room.holds(plan).is_ok_and(|holds| holds)
    }

    /// Plans of a proposal that fit: with rounding errors carried through the model, and with each
    /// layer alike, which is coarser but loads as much for each layer.
    pub(super) fn make(&self, proposal: &Proposal) -> Result<Vec<Plan>, PlanError> {
        self.whole(&Shape {
            undivided: proposal.undivided,
            ..Shape::settled(proposal.policy, &proposal.form)
        })
    }

    /// The same of a shape with shares.
    pub(super) fn whole(&self, shape: &Shape) -> Result<Vec<Plan>, PlanError> {
        let mut plans = Vec::new();
        for granularity in [Granularity::Spread, Granularity::Layer] {
            let split = Tier::ALL
                .into_iter()
                .all(|tier| shape.policy.weights[tier] < 1.0);
            if granularity == Granularity::Spread || split {
                let policy = Policy {
                    granularity,
                    ..shape.policy
                };
                plans.extend(self.fitting(&Shape {
                    policy,
                    ..shape.clone()
                })?);
            }
        }
        Ok(plans)
    }

    /// Where whole tensors are more than their share, what is over is taken from the room and
    /// the shape is placed again. Where only what is page-locked remains over, less is.
    pub(super) fn fitting(&self, shape: &Shape) -> Result<Option<Plan>, PlanError> {
        let mut plan = self.plan(shape.policy);
        let mut locks_too_much = None;
        let (mut room, mut too_much) = (self.room, None);
        for tried in 0..=TRIES {
            let needs = self.room.needs(&plan)?;
            let exceeded: Vec<(Bound, f64)> = self.room.exceeded(&needs).collect();
            match exceeded[..] {
                [] => return self.closer(shape, plan, (room, too_much)).map(Some),
                [(Bound::PageLocked, _)] => {
                    locks_too_much.get_or_insert_with(|| plan.clone());
                }
                _ => {}
            }
            if tried == TRIES {
                break;
            }
            too_much = Some(room);
            for (bound, bytes) in exceeded {
                // A little less room need not move a tensor, so each try takes more.
                room.take(bound, (bytes + PAGE_BYTES as f64) * 2f64.powi(tried));
            }
            // What the solver cannot place again is left to the other proposals.
            match lp::place_again(shape, &room) {
                Ok(Some(policy)) => plan.policy = policy,
                Ok(None) | Err(_) => break,
            }
        }
        let settled = locks_too_much.map(|plan| self.room.locking_less(plan));
        Ok(settled.transpose()?.filter(|plan| self.fits(plan)))
    }

    /// A plan that fits, or the same shape placed in more room, between that plan's and one that was too much.
    fn closer(
        &self,
        shape: &Shape,
        mut plan: Plan,
        (mut room, too_much): (Room, Option<Room>),
    ) -> Result<Plan, PlanError> {
        let Some(mut too_much) = too_much else {
            return Ok(plan);
        };
        for _ in 0..HALVINGS {
            let between = room.half_way(&too_much);
            let placed = lp::place_again(shape, &between);
            let closer = placed.ok().flatten().map(|policy| self.plan(policy));
            match closer.filter(|plan| self.fits(plan)) {
                Some(closer) => (plan, room) = (closer, between),
                None => too_much = between,
            }
        }
        Ok(plan)
    }
}
