//! The best plan of each block size under some system's rules: the points of FlexGen's figure 1.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::interval::Interval;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Fractions, Granularity, PageLocked, Policy, Schedule};
use plimsoll_core::sparse::DENSE;
use plimsoll_core::tier::Tier;
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_core::workload::Workload;
use plimsoll_sim::closed_form::ClosedForms;

use super::bound::Bound;
use super::judge::{self, Judged};
use super::space::{self, Shape, Undivided};
use super::whole::Maker;
use super::{Allowed, Objective, PlanError, Request, Search, Subject, infeasible, simpler, split};

/// How many proposals of a block are made whole and judged, best first.
const PROPOSED: usize = 8;

/// What a system may decide.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Its discrete choices; batches and shares are open. Later lists stand for the first, choice by choice, where nothing fits, or
    /// not much.
    pub choices: Vec<Vec<Policy>>,
    /// GPU batches a block, at most.
    pub batches_max: u32,
    /// Whether activations, and a cache in 4 bits, each lie on one tier.
    pub undivided: bool,
    /// Its ways to make shares of weights whole.
    pub granularities: Vec<Granularity>,
    /// What it page-locks once a plan is whole, where its search knows nothing of that; none: as much as the machine is known to let.
    pub page_locks: Option<fn(&HardwareProfile, &Plan) -> PageLocked>,
}

impl Rules {
    /// All that the planner has, with what may be compressed.
    pub fn free(compression: Compression) -> Rules {
        let allowed = Allowed {
            compression,
            ..Allowed::default()
        };
        let choices = space::choices(&allowed, Pipeline::default());
        Rules {
            choices: space::also_in_halves(choices),
            batches_max: u32::MAX,
            undivided: false,
            granularities: vec![Granularity::Spread, Granularity::Layer],
            page_locks: None,
        }
    }

    /// A shape for each way in which what is not to be divided may lie.
    fn shapes(&self, shape: Shape) -> Vec<Shape> {
        if !self.undivided {
            return vec![shape];
        }
        let caches: &[Option<Tier>] = match shape.policy.compression.cache {
            true => &Tier::ALL.map(Some),
            false => &[None],
        };
        let ways = caches.iter().flat_map(|cache| {
            Tier::ALL.map(|tier| Undivided {
                cache: *cache,
                activations: Some(tier),
            })
        });
        ways.map(|way| shape.undivided(way)).collect()
    }

    /// Whether what is not to be divided is not.
    fn allows(&self, policy: &Policy) -> bool {
        let is_on_one = |shares: &Fractions| Tier::ALL.iter().any(|tier| shares[*tier] >= 1.0);
        let cache = !policy.compression.cache || is_on_one(&policy.cache);
        !self.undivided || (cache && is_on_one(&policy.activations))
    }

    /// Who makes its plans.
    fn maker(&self, maker: &Maker) -> Maker {
        match self.page_locks {
            None => maker.clone(),
            Some(_) => maker.locking_anything(),
        }
    }

    /// A plan that fits with what is page-locked of it.
    fn settled(&self, mut plan: Plan, profile: &HardwareProfile) -> Plan {
        if let Some(page_locks) = self.page_locks {
            plan.policy.page_locked = page_locks(profile, &plan);
        }
        plan
    }
}

/// A plan and how it runs, as predicted where it has a prediction, else as a simulation of a part says.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// One block of it is the whole workload.
    pub plan: Plan,
    /// The time of a block.
    pub latency_s: Seconds,
    /// Generated tokens over that time.
    pub throughput_tok_s: f64,
}

impl From<Judged> for Block {
    fn from(judged: Judged) -> Block {
        Block {
            latency_s: judged.latency_s(),
            throughput_tok_s: judged.throughput_tok_s(),
            plan: judged.into_plan(),
        }
    }
}

impl Block {
    /// With a prediction, if it has none yet.
    ///
    /// # Errors
    /// An error of ours in simulating.
    pub fn predicted(self, profile: &HardwareProfile) -> Result<Block, PlanError> {
        match self.plan.prediction {
            Some(_) => Ok(self),
            None => Ok(Judged::in_full(self.plan, profile)?.into()),
        }
    }

    /// Where nine of ten measurements are expected; none where the machine is unprofiled.
    pub fn interval(&self) -> Option<Interval> {
        self.plan.prediction.as_ref()?.interval
    }
}

/// What the nearest plan asks of what binds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Excess {
    /// What binds.
    pub bound: Bound,
    /// Asked.
    pub needed: Bytes,
    /// What there is.
    pub capacity: Bytes,
    /// What the nearest plan lacks of all, each as a share of its size.
    pub lack: f64,
}

/// A block size's plan, or why it has none. Plans are ranked by simulations of a part.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The best that was found.
    Fits(Box<Block>),
    /// Out of memory.
    DoesNotFit(Excess),
}

impl Outcome {
    /// With a prediction of what fits.
    ///
    /// # Errors
    /// An error of ours in simulating.
    pub fn predicted(self, profile: &HardwareProfile) -> Result<Outcome, PlanError> {
        match self {
            Outcome::Fits(block) => Ok(Outcome::Fits(Box::new(block.predicted(profile)?))),
            Outcome::DoesNotFit(_) => Ok(self),
        }
    }
}

/// What all block sizes share.
#[derive(Debug)]
pub struct Blocks<'a> {
    profile: &'a HardwareProfile,
    forms: ClosedForms,
    maker: Maker,
}

impl<'a> Blocks<'a> {
    /// Prepares the blocks of a workload whose prompts are endless.
    ///
    /// # Errors
    /// A workload that means nothing for the model.
    pub fn new(
        profile: &'a HardwareProfile,
        model: &ModelSpec,
        dtype: Dtype,
        workload: Workload,
        compressions: &[Compression],
    ) -> Result<Blocks<'a>, PlanError> {
        let subject = Subject {
            profile,
            model,
            dtype,
        };
        Ok(Blocks {
            profile,
            forms: ClosedForms::new(
                profile,
                (model, &Pipeline::default()),
                dtype,
                workload,
                (compressions, DENSE),
            )?,
            maker: Maker::new(subject, workload),
        })
    }

    /// The machine.
    pub fn profile(&self) -> &'a HardwareProfile {
        self.profile
    }

    /// The size of the block of the best plan of all, with what may be compressed; none where nothing fits.
    ///
    /// # Errors
    /// An error of ours in solving or simulating.
    pub fn favourite(&self, compression: Compression) -> Result<Option<u32>, PlanError> {
        let Plan {
            model,
            dtype,
            workload,
            ..
        } = self.maker.plan(space::blank());
        let request = Request {
            workload,
            objective: Objective::Throughput,
            max_latency_s: None,
            allowed: Allowed {
                compression,
                ..Allowed::default()
            },
        };
        let subject = Subject {
            profile: self.profile,
            model: &model,
            dtype,
        };
        let base = Search::new(subject, &request, Pipeline::default())?;
        let ranked = base.in_turn(
            |search| search.best(&search.shapes(), request.objective),
            Option::is_some,
        )?;
        let plans = ranked.into_iter().filter_map(|(_, ranked)| ranked);
        let plans = plans.flat_map(|(plans, _)| plans).collect();
        let best = judge::sorted(plans, request.objective).into_iter().next();
        Ok(best.and_then(|best| u32::try_from(best.plan().policy.block_size()).ok()))
    }

    /// The best plan of a block of so many sequences.
    ///
    /// # Errors
    /// An error of ours in solving or simulating.
    pub fn best(&self, rules: &Rules, sequences: u32) -> Result<Outcome, PlanError> {
        let maker = rules.maker(&self.maker);
        let machine = (&self.forms, maker.room());
        let find = |choices: &[Policy]| {
            let open = open(choices, (sequences, rules.batches_max));
            let plans = self.made((rules, &maker), &open)?;
            Ok((open, plans))
        };
        let tried = space::in_turn(&rules.choices, machine, find, |(_, plans)| {
            !plans.is_empty()
        })?;
        let (open, plans): (Vec<_>, Vec<_>) = tried.into_iter().unzip();
        let plans = plans.concat();
        if !plans.is_empty() {
            return self.judged(plans);
        }
        // What is nearest may fit after all: whole tensors may take less than their share.
        let mut nearest = infeasible::smallest((&self.forms, maker.room()), &open.concat());
        nearest.retain(|policy| rules.allows(policy));
        self.outcome(&maker, nearest, |plan| rules.settled(plan, self.profile))
    }

    /// The best plans that fit of some policies whose shares are open.
    fn made(
        &self,
        (rules, maker): (&Rules, &Maker),
        open: &[Policy],
    ) -> Result<Vec<Plan>, PlanError> {
        let room = maker.room();
        let may_fit = |policy: &Policy| Shape::that_may_fit(&self.forms, *policy, room);
        let may_fit = open.iter().filter_map(may_fit);
        let shapes: Vec<Shape> = may_fit.flat_map(|shape| rules.shapes(shape)).collect();
        let mut plans: Vec<Plan> = Vec::new();
        // The closed form errs otherwise on each schedule, and on what is compressed, so each has its candidates.
        let alike = |policy: &Policy| (policy.schedule, policy.compression);
        let most = (room, Objective::Throughput, PROPOSED);
        let scanned = space::scan_each(&shapes, alike, most)?;
        let simpler = simpler::moving_less(&shapes, &scanned, alike, most);
        for proposal in scanned.into_iter().chain(simpler).flatten() {
            for &granularity in &rules.granularities {
                let policy = Policy {
                    granularity,
                    ..proposal.policy
                };
                let shape = Shape {
                    undivided: proposal.undivided,
                    ..Shape::settled(policy, &proposal.form)
                };
                let Some(plan) = maker.fitting(&shape)? else {
                    continue;
                };
                let plan = rules.settled(plan, self.profile);
                if !plans.contains(&plan) {
                    plans.push(plan);
                }
            }
        }
        Ok(plans)
    }

    /// The best split plan (HeteGen) of a block of so many sequences, of those policies that `wanted` says.
    ///
    /// # Errors
    /// A model that cannot be split; an error of ours in simulating.
    pub fn split(
        &self,
        sequences: u32,
        wanted: impl Fn(&Policy) -> bool,
    ) -> Result<Outcome, PlanError> {
        let mut open = split::open_policies(sequences, &Allowed::default());
        open.retain(|(policy, _)| wanted(policy));
        let machine = (&self.maker, self.profile);
        let mut judged = split::judged(machine, open.clone())?;
        judged.sort_by(|a, b| judge::better_first(a, b, Objective::Throughput));
        match judged.into_iter().next() {
            Some(best) => Ok(Outcome::Fits(Box::new(best.into()))),
            None => self.outcome(&self.maker, split::nearest(machine, open), |plan| plan),
        }
    }

    /// The first policy that fits, in the order that a system tries them, whatever may be page-locked.
    ///
    /// # Errors
    /// An error of ours in simulating.
    pub fn first_that_fits(&self, policies: &[Policy]) -> Result<Outcome, PlanError> {
        let maker = self.maker.locking_anything();
        for policy in policies {
            let (plan, excess) = excess((&maker, self.profile), [*policy])?;
            if excess.is_none() {
                return self.judged(vec![plan]);
            }
        }
        self.outcome(&maker, policies.to_vec(), |plan| plan)
    }

    /// The plan of the policy that exceeds the machine by least if it fits, else what it asks too much.
    fn outcome(
        &self,
        maker: &Maker,
        policies: Vec<Policy>,
        settled: impl Fn(Plan) -> Plan,
    ) -> Result<Outcome, PlanError> {
        match excess((maker, self.profile), policies)? {
            (_, Some(excess)) => Ok(Outcome::DoesNotFit(excess)),
            (plan, None) => self.judged(vec![settled(plan)]),
        }
    }

    fn judged(&self, plans: Vec<Plan>) -> Result<Outcome, PlanError> {
        // Of one block size, shapes of a kind are much alike.
        let wanted = (Objective::Throughput, 1);
        let judged = judge::judge(plans, self.profile, &self.forms, wanted)?;
        let Some(best) = judged.into_iter().next() else {
            return Err(PlanError::Solver("no plan was judged".to_owned()));
        };
        Ok(Outcome::Fits(Box::new(best.into())))
    }
}

/// The plan of some policies that exceeds the machine by least, and what it asks too much, if anything.
fn excess(
    machine: (&Maker, &HardwareProfile),
    policies: impl IntoIterator<Item = Policy>,
) -> Result<(Plan, Option<Excess>), PlanError> {
    let least = infeasible::least_of(machine, policies)?;
    let excess = Excess {
        bound: least.bound,
        needed: least.needed,
        capacity: least.capacity,
        lack: least.lack,
    };
    Ok((
        least.nearest,
        (excess.needed > excess.capacity).then_some(excess),
    ))
}

/// Every way to make a block under some rules; shares are open.
fn open(choices: &[Policy], (sequences, batches_max): (u32, u32)) -> Vec<Policy> {
    let sized = |(gpu_batch_size, num_gpu_batches)| {
        choices.iter().map(move |choice| Policy {
            gpu_batch_size,
            num_gpu_batches,
            ..*choice
        })
    };
    let all = space::pairs_of_block(sequences, batches_max).flat_map(sized);
    // One batch at a time has nobody to be beside.
    all.filter(|p| p.schedule != Schedule::Diagonal || p.num_gpu_batches > 1)
        .collect()
}
