//! From a plan to its program: passes over the model's blocks, GPU batch by GPU batch.
//!
//! Each pass is a piece. A pass loads the weights of the visit after each visit, the cache and
//! activations of the batch after each batch, and stores those of the batch before, as FlexGen's
//! Algorithm 1 does; without its barrier, only needs and buffers order the tasks.

mod cache;
mod compute;
mod emit;
mod footprint;
mod hand_over;
mod hidden;
mod layout;
mod pages;
mod ring;
pub mod schedule;
mod sparse;
mod split;
mod stage;
mod stages;
mod unit;
mod weights;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use thiserror::Error;

use crate::control::{Controller, Decision};
use crate::executor::Until;
use crate::machine::Machine;
use crate::placement::WeightPlacement;
use crate::plan::Plan;
use crate::policy::PolicyError;
use crate::program::{BufferId, Content, Program, TaskId};
use crate::tier::Tier;
use crate::timing::Part;
use crate::trace::Trace;
use crate::units::{Bytes, Seconds};
pub use compute::StageGemms;
use emit::{Emitter, Mode};
pub use footprint::{arena_footprints, footprint, page_locked_bytes, pageable_homes};
use footprint::{text_arenas, text_bytes};
pub use pages::cache_positions;
use schedule::{Passes, Round};
pub use split::{BUFFER_PARTS, obstacle as obstacle_to_splits};
use stage::StageLowering;
use stages::{Layouts, StageBlocks};
pub use weights::CHUNK_BYTES_MIN;

/// Pieces of which a task may run beside the last of one piece: no task of a piece can begin before the
/// piece two before it has ended, as a rule, since working copies are used in turn.
pub(crate) const AHEAD: u64 = 2;

/// Why a plan has no program.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum LowerError {
    /// The policy is not one.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A length is zero.
    #[error("{key} is 0; give at least 1")]
    EmptyWorkload {
        /// Which.
        key: &'static str,
    },
    /// The model cannot see that far.
    #[error(
        "prompt_len {prompt_len} + gen_len {gen_len} is past the {max} positions of {model}; shorten one"
    )]
    TooLong {
        /// The model's name.
        model: String,
        /// Its `max_position_embeddings`.
        max: u32,
        /// Asked.
        prompt_len: u32,
        /// Asked.
        gen_len: u32,
    },
    /// A stage would have no layer.
    #[error(
        "{stages} stages{} have not a layer each of the {layers} of {model}; give fewer stages",
        last.map_or(String::new(), |last| format!(", the last of {last} layers,"))
    )]
    Stages {
        /// Asked.
        stages: u32,
        /// Layers of the last one, where they are stated.
        last: Option<u32>,
        /// What the model has.
        layers: u32,
        /// The model's name.
        model: String,
    },
    /// The linear layers of a model are not those that can be split.
    #[error("{model} has {what}, and linear layers are split one by one; plan it without a split")]
    NotSplit {
        /// The model's name.
        model: String,
        /// What stands against it.
        what: &'static str,
    },
    /// A split keeps a module on the device in more layers than there are.
    #[error(
        "split.layers_on_device.{module} is {asked}, and {model} has {layers} layers; give at most those"
    )]
    LayersOnDevice {
        /// Which module.
        module: &'static str,
        /// Asked.
        asked: u32,
        /// The model's name.
        model: String,
        /// What the model has.
        layers: u32,
    },
    /// A count is past what a program can number.
    #[error("{what} is {value}, and a program has at most {max}; {remedy}")]
    TooMuch {
        /// What is counted.
        what: &'static str,
        /// How many.
        value: u64,
        /// How many there may be.
        max: u64,
        /// What there may be less of.
        remedy: &'static str,
    },
    /// A tier is too small. Infeasible is an answer.
    #[error(
        "the {tier} tier{} needs {needed} and has {capacity}: {} too little",
        stages.as_ref().map_or(String::new(), |stages| format!(" of {stages}")),
        needed.saturating_sub(*capacity)
    )]
    DoesNotFit {
        /// The tier that binds.
        tier: Tier,
        /// The stages whose it is; none where there is one stage.
        stages: Option<Stages>,
        /// What the plan asks of it.
        needed: Bytes,
        /// What it has.
        capacity: Bytes,
    },
}

/// Stages that have a memory between them, counted from 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stages {
    first: u8,
    last: u8,
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "stage {}", self.first),
            false => write!(f, "stages {} to {}", self.first, self.last),
        }
    }
}

/// Where prompts and results are, by round and GPU batch: prompt ids, generated ids.
pub type Texts = Vec<Vec<(BufferId, BufferId)>>;

/// Writes a plan's program, pass by pass. It is the controller of a static plan.
///
/// With several stages a piece has a pass of each that is not idle: while a stage has a micro-batch, the
/// stage before it has the next.
#[derive(Debug)]
pub struct Lowering {
    plan: Arc<Plan>,
    machine: Machine,
    passes: Passes,
    emitter: Emitter,
    stages: Vec<StageLowering>,
    texts: Arc<Texts>,
    /// The next slot: see [`Lowering::pass_in`].
    slot: u64,
    /// Where it ends.
    slots: u64,
    last_tasks: Vec<TaskId>,
    waited: usize,
}

fn most_batches(rounds: &[Round]) -> usize {
    rounds.iter().map(|r| r.batches.len()).max().unwrap_or(0)
}

fn check(plan: &Plan) -> Result<(), LowerError> {
    plan.policy.validate()?;
    let workload = &plan.workload;
    for (key, length) in [
        ("prompt_len", u64::from(workload.prompt_len)),
        ("gen_len", u64::from(workload.gen_len)),
        ("num_prompts", workload.num_prompts.unwrap_or(1)),
    ] {
        if length == 0 {
            return Err(LowerError::EmptyWorkload { key });
        }
    }
    if workload.cache_len() > plan.model.max_position_embeddings {
        return Err(LowerError::TooLong {
            model: plan.model.name.clone(),
            max: plan.model.max_position_embeddings,
            prompt_len: workload.prompt_len,
            gen_len: workload.gen_len,
        });
    }
    let (layers, pipeline) = (plan.model.num_hidden_layers, &plan.policy.pipeline);
    if !pipeline.fills_stages(layers) {
        return Err(LowerError::Stages {
            stages: pipeline.stages,
            last: pipeline.last_stage_layers,
            layers,
            model: plan.model.name.clone(),
        });
    }
    check_counts(plan)?;
    match &plan.policy.split {
        Some(split) => split::check(split, &plan.model),
        None => Ok(()),
    }
}

/// Keeps every number of a program in its type.
fn check_counts(plan: &Plan) -> Result<(), LowerError> {
    let (policy, workload) = (&plan.policy, &plan.workload);
    let size = u64::from(policy.gpu_batch_size);
    let blocks = u64::from(plan.model.num_blocks());
    let passes = u64::from(workload.gen_len);
    let heads = u64::from(plan.model.num_attention_heads);
    let widest = u64::from(workload.prompt_len).max(heads);
    let engines = plan.machine().resources.len() as u64;
    let batches = schedule::prompts(policy, workload).div_ceil(size.max(1));
    let most = u64::from(u16::MAX);
    for (what, value, max, remedy) in [
        (
            "the number of tokens to generate",
            passes,
            most,
            "state fewer",
        ),
        (
            "the number of the model's blocks",
            blocks,
            most,
            "take a model of fewer layers",
        ),
        (
            "the number of GPU batches",
            policy.batches_in_block(),
            most,
            "state smaller blocks",
        ),
        (
            "the number of GPU batches of all prompts",
            batches,
            BATCHES_MAX,
            "rounds repeat: state fewer prompts, or none, for a rate without end, or larger GPU batches",
        ),
        (
            "the number of engines of all stages",
            engines,
            Machine::MAX_RESOURCES as u64,
            "state fewer stages",
        ),
        (
            "GPU batch size times tokens or heads",
            size.saturating_mul(widest),
            u64::from(u32::MAX),
            "state a smaller GPU batch",
        ),
    ] {
        if value > max {
            return Err(LowerError::TooMuch {
                what,
                value,
                max,
                remedy,
            });
        }
    }
    Ok(())
}

/// GPU batches of a whole run, which are listed round by round where it runs.
const BATCHES_MAX: u64 = 10_000_000;

/// Squares (a block of the model on a GPU batch in a pass) of a run whose pieces are let go of: ten to thirty tasks each, or sixty where
/// linear layers are split, which 32 bits number.
const SQUARES_MAX: u64 = 60_000_000;

/// The same of one that is kept, in some gigabytes.
const KEPT_SQUARES_MAX: u64 = 20_000_000;

/// Whether all pieces of a plan's program may be kept until its end.
///
/// # Errors
/// That there are too many.
pub fn check_kept(plan: &Plan) -> Result<(), LowerError> {
    check_size(plan, KEPT_SQUARES_MAX)
}

fn check_size(plan: &Plan, max: u64) -> Result<(), LowerError> {
    let (policy, workload) = (&plan.policy, &plan.workload);
    let prompts = schedule::prompts(policy, workload);
    let batches = prompts.div_ceil(u64::from(policy.gpu_batch_size));
    let passes = u64::from(workload.gen_len);
    let squares = batches.saturating_mul(u64::from(plan.model.num_blocks()));
    let squares = squares.saturating_mul(passes);
    if squares > max {
        let remedy = match squares > SQUARES_MAX {
            true => "state fewer prompts or tokens: rounds repeat",
            false => "keep no trace, which is all of it, or state fewer prompts or tokens",
        };
        return Err(LowerError::TooMuch {
            what: "the number of GPU batches times blocks times tokens",
            value: squares,
            max,
            remedy,
        });
    }
    Ok(())
}

/// Checks that a plan means something and fits its machine.
///
/// # Errors
/// What is wrong with it, or the tier that is too small.
pub fn check_fits(plan: &Plan) -> Result<(), LowerError> {
    let needed = footprint(plan)?;
    for tier in Tier::ALL {
        let (needed, capacity) = (needed[tier], plan.capacity_bytes[tier]);
        if needed > capacity {
            return Err(LowerError::DoesNotFit {
                tier,
                stages: fullest_stages(plan, tier)?,
                needed,
                capacity,
            });
        }
    }
    Ok(())
}

/// The stages whose memory of a tier must hold most; none where there is one stage.
///
/// # Errors
/// A workload or policy that means nothing.
pub fn fullest_stages(plan: &Plan, tier: Tier) -> Result<Option<Stages>, LowerError> {
    let machine = plan.machine();
    let last = machine.num_gpus() - 1;
    if last == 0 {
        return Ok(None);
    }
    let footprints = arena_footprints(plan)?;
    let of_tier = machine.arenas.iter().zip(footprints);
    let of_tier = of_tier.filter(|(arena, _)| arena.tier == tier);
    // The first of those that are as full.
    let fullest = of_tier.rev().max_by_key(|(_, bytes)| *bytes);
    Ok(fullest.map(|(arena, _)| Stages {
        first: arena.gpu,
        last: match tier {
            Tier::Device => arena.gpu,
            Tier::Host | Tier::Disk => (arena.gpu + machine.gpus_per_host - 1).min(last as u8),
        },
    }))
}

impl Lowering {
    /// Prepares the program of a plan.
    ///
    /// # Errors
    /// A plan that means nothing, or that does not fit its machine.
    pub fn new(plan: &Plan) -> Result<Lowering, LowerError> {
        check_fits(plan)?;
        check_size(plan, SQUARES_MAX)?;
        let passes = Passes::new(&plan.policy, &plan.workload);
        let num_batches = most_batches(passes.rounds());
        let machine = plan.machine();
        let layouts = Layouts::new(plan, &machine, &passes);
        let mut emitter = Emitter::new(&machine, Mode::of(&plan.policy));
        let plan = Arc::new(plan.clone());
        let texts = declare_texts(&plan, &mut emitter, layouts.ends, passes.rounds());
        let texts = Arc::new(texts);
        let blocks = StageBlocks::of_plan(&plan).into_iter();
        let mut stages = Vec::new();
        for (gpu, stage) in blocks.zip(layouts.stages).enumerate() {
            emitter.turn_to(gpu);
            let out = &mut emitter;
            stages.push(StageLowering::new(out, &plan, stage, num_batches, &texts));
        }
        let slots = slots(&passes, machine.num_gpus() as u64);
        Ok(Lowering {
            plan,
            machine,
            passes,
            emitter,
            stages,
            texts,
            slot: 0,
            slots,
            last_tasks: Vec::new(),
            waited: 0,
        })
    }

    /// Without the passes whose tasks begin after the [`Part`] that is timed: enough to time it.
    #[must_use]
    pub fn as_far_as_timed(mut self) -> Lowering {
        // Only plans of one stage have such passes, and there a slot is a pass.
        if let Part::Passes { to, .. } = Part::of(&self.plan) {
            self.slots = self.slots.min(to + 1 + AHEAD);
        }
        self
    }

    /// What it writes the program of.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where every weight lives, for whoever fills the tiers.
    pub fn placement(&self) -> &WeightPlacement {
        &self.stages[0].layout.weights
    }

    /// Where prompts go and results come from.
    pub fn texts(&self) -> &Texts {
        &self.texts
    }

    /// The rounds of GPU batches.
    pub fn rounds(&self) -> &[Round] {
        self.passes.rounds()
    }

    /// Which GPU batches take part in each pass.
    pub fn passes(&self) -> &Passes {
        &self.passes
    }

    /// The pass that a stage has in a slot of the pipeline, if any. Each stage has a micro-batch a slot
    /// after the one before. With fewer micro-batches than stages the first stage pauses until the last
    /// has chosen a token.
    fn pass_in(&self, slot: u64, stage: usize) -> Option<u64> {
        let since = slot.checked_sub(stage as u64)?;
        let micro_batches = self.passes.micro_batches();
        let slots = micro_batches.max(self.stages.len() as u64);
        let (token, turn) = (since / slots, since % slots);
        let pass = token * micro_batches + turn;
        (turn < micro_batches && pass < self.passes.count()).then_some(pass)
    }

    /// How many pieces there will be at most: passes, and where there are several stages those in which
    /// the first ones have none any more.
    pub fn num_pieces(&self) -> u64 {
        self.slots
    }

    /// The next piece: a pass over the model, or with several stages one over each that has a
    /// micro-batch; none when all rounds are done.
    pub fn next_pass(&mut self) -> Option<Program> {
        while self.slot < self.slots {
            let slot = self.slot;
            self.slot += 1;
            // A block that is not full may leave a slot empty.
            let active = self.begin_slot(slot);
            if active.is_empty() {
                continue;
            }
            self.lower_slot(&active);
            let piece = self.emitter.cut();
            self.last_tasks.push(TaskId(piece.end_task().0 - 1));
            return Some(piece);
        }
        None
    }

    /// Begins the pass of each stage that has one in a slot; returns those.
    fn begin_slot(&mut self, slot: u64) -> Vec<usize> {
        let mut active = Vec::new();
        for stage in 0..self.stages.len() {
            let Some(pass) = self.pass_in(slot, stage) else {
                continue;
            };
            let turns = self.passes.turns(pass);
            if !turns.is_empty() {
                let next = (pass + 1..self.passes.count()).map(|pass| self.passes.turns(pass));
                let next = next.into_iter().find(|turns| !turns.is_empty());
                self.emitter.turn_to(stage);
                let next = next.unwrap_or_default();
                self.stages[stage].begin_pass(&mut self.emitter, &turns, &next);
                active.push(stage);
            }
        }
        active
    }

    /// Writes a pass of each of these stages, square by square in turn, since stages may share a host,
    /// whose engines take their tasks in the program's order.
    fn lower_slot(&mut self, active: &[usize]) {
        self.begin_with_hand_overs(active);
        let squares = |stage: &usize| self.stages[*stage].pass_units().len();
        let longest = active.iter().map(squares).max().unwrap_or(0);
        for index in 0..longest {
            for &stage in active {
                // One ahead, as all loads of activations.
                self.hand_over_ahead(stage, index + 1);
                self.emitter.turn_to(stage);
                self.stages[stage].step(&mut self.emitter, index);
            }
        }
    }

    /// With a barrier, stages meet with all that a pass begins with before it begins; else they begin with
    /// what the first square needs.
    fn begin_with_hand_overs(&mut self, active: &[usize]) {
        if self.stages.len() == 1 {
            return;
        }
        let barrier = self.emitter.mode() == Mode::Barrier;
        for &stage in active {
            let count = match barrier {
                true => self.stages[stage].pass_units().len(),
                false => 1,
            };
            for index in 0..count {
                self.hand_over_square(stage, index);
            }
        }
        for &stage in active {
            let first = self.stages[stage].pass_units().first().map(|u| u.cell);
            self.emitter.turn_to(stage);
            self.emitter.end_step(first.unwrap_or_default());
        }
    }

    fn hand_over_ahead(&mut self, stage: usize, index: usize) {
        if self.stages.len() > 1 && self.emitter.mode() != Mode::Barrier {
            self.hand_over_square(stage, index);
        }
    }

    /// Hands over what a stage's `index`-th square begins with, if it is one of the first block.
    fn hand_over_square(&mut self, stage: usize, index: usize) {
        let unit = self.stages[stage].pass_units().get(index).copied();
        if let Some(unit) = unit
            && self.stages[stage].blocks.begins_with(unit.cell.block)
            && unit.begins_block()
        {
            self.hand_over(stage, &unit);
        }
    }
}

/// How many slots there are until the last pass has left the last stage.
fn slots(passes: &Passes, stages: u64) -> u64 {
    let micro_batches = passes.micro_batches();
    let last = passes.count().saturating_sub(1);
    let first_stage = last / micro_batches * micro_batches.max(stages) + last % micro_batches;
    first_stage + stages
}

/// Prompts and results lie behind what else is on their hosts.
fn declare_texts(plan: &Plan, out: &mut Emitter, mut ends: Vec<Bytes>, rounds: &[Round]) -> Texts {
    let machine = plan.machine();
    let arenas = text_arenas(&machine);
    let mut text = |gpu: usize, arena: usize, bytes: Bytes, content: Content| {
        out.turn_to(gpu);
        let id = out.declare_resident((Tier::Host, ends[arena]), bytes, content);
        ends[arena] += bytes;
        id
    };
    let last = machine.num_gpus() - 1;
    let round = |round: &Round| {
        let batches = round.batches.iter().enumerate();
        batches
            .map(|(batch, sequences)| {
                let (prompt, generated) = text_bytes(plan, *sequences);
                let batch = batch as u16;
                (
                    text(0, arenas[0], prompt, Content::Prompt { batch }),
                    text(last, arenas[1], generated, Content::Generated { batch }),
                )
            })
            .collect()
    };
    rounds.iter().map(round).collect()
}

/// Submits every pass at once, then waits for them one by one, so that progress can be seen.
impl Controller for Lowering {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn decide(&mut self, _now: Seconds, _trace: &Trace) -> Decision {
        if let Some(piece) = self.next_pass() {
            return Decision::Submit(Box::new(piece));
        }
        self.waited += 1;
        match self.last_tasks.get(self.waited - 1) {
            Some(task) => Decision::Wait(Until::Task(*task)),
            None => Decision::Done,
        }
    }
}
