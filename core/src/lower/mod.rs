//! From a plan to its program: passes over the model's blocks, GPU batch by GPU batch.
//!
//! Each pass is a piece. A pass loads the weights of the visit after each visit, the cache and
//! activations of the batch after each batch, and stores those of the batch before, as FlexGen's
//! Algorithm 1 does; without its barrier, only needs and buffers order the tasks.

mod cache;
mod compute;
mod emit;
mod hidden;
mod layout;
mod pages;
mod ring;
pub mod schedule;
mod sparse;
mod unit;
mod weights;

use thiserror::Error;

use crate::control::{Controller, Decision};
use crate::executor::Until;
use crate::placement::{PAGE_BYTES, WeightPlacement};
use crate::plan::Plan;
use crate::policy::PolicyError;
use crate::program::{Buffer, BufferId, Cell, Content, Machine, Program, TaskId};
use crate::tier::{PerTier, Tier};
use crate::trace::Trace;
use crate::units::{Bytes, Seconds};
use cache::{CacheStream, Staged};
use compute::{Pending, StageGemms};
use emit::{Emitter, Mode};
use hidden::{HiddenStream, Work};
use layout::{BatchShape, Layout};
pub use pages::cache_positions;
use pages::{Cut, PageTable};
use schedule::{Passes, Round, Turn};
use unit::{Unit, arena_of};
pub use weights::CHUNK_BYTES_MIN;
use weights::WeightStream;

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
    /// A count is past what a program can number.
    #[error("{what} is {value}, and a program has at most {max}; state less: rounds repeat")]
    TooMuch {
        /// What is counted.
        what: &'static str,
        /// How many.
        value: u64,
        /// How many there may be.
        max: u64,
    },
    /// A tier is too small. Infeasible is an answer.
    #[error("the {tier} tier needs {needed} and has {capacity}: {} too little", needed.saturating_sub(*capacity))]
    DoesNotFit {
        /// The tier that binds.
        tier: Tier,
        /// What the plan asks of it.
        needed: Bytes,
        /// What it has.
        capacity: Bytes,
    },
}

/// The next token of each sequence of a batch, on the device.
#[derive(Debug, Clone, Copy, Default)]
struct Tokens {
    buffer: Option<BufferId>,
    copied: Option<TaskId>,
}

/// Where prompts and results are, by round and GPU batch: prompt ids, generated ids.
pub type Texts = Vec<Vec<(BufferId, BufferId)>>;

/// Writes a plan's program, pass by pass. It is the controller of a static plan.
#[derive(Debug)]
pub struct Lowering {
    plan: Plan,
    machine: Machine,
    passes: Passes,
    layout: Layout,
    emitter: Emitter,
    weights: WeightStream,
    cache: CacheStream,
    hidden: HiddenStream,
    gemms: StageGemms,
    tokens: Vec<Tokens>,
    texts: Texts,
    workspace: BufferId,
    /// The copy that the next CPU attention waits for.
    sent: Option<TaskId>,
    visits: u64,
    pass: u64,
    last_tasks: Vec<TaskId>,
    waited: usize,
}

/// What each tier must hold for a plan, homes and slots together.
///
/// # Errors
/// A workload or policy that means nothing.
pub fn footprint(plan: &Plan) -> Result<PerTier<Bytes>, LowerError> {
    check(plan)?;
    let passes = Passes::new(&plan.policy, &plan.workload);
    let layout = Layout::new(plan, &passes);
    Ok(with_texts(plan, &layout, passes.rounds()))
}

fn most_batches(rounds: &[Round]) -> usize {
    rounds.iter().map(|r| r.batches.len()).max().unwrap_or(0)
}

fn with_texts(plan: &Plan, layout: &Layout, rounds: &[Round]) -> PerTier<Bytes> {
    let mut end = layout.end;
    for batch in rounds.iter().flat_map(|r| &r.batches) {
        let (prompt, generated) = text_bytes(plan, *batch);
        end.host = end.host + prompt + generated;
    }
    end
}

/// Room for the prompts and results of a GPU batch.
fn text_bytes(plan: &Plan, sequences: u32) -> (Bytes, Bytes) {
    let ids = |len: u32| Bytes(u64::from(sequences) * u64::from(len) * 4).align_up(PAGE_BYTES);
    (ids(plan.workload.prompt_len), ids(plan.workload.gen_len))
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
    check_counts(plan)?;
    if workload.cache_len() > plan.model.max_position_embeddings {
        return Err(LowerError::TooLong {
            model: plan.model.name.clone(),
            max: plan.model.max_position_embeddings,
            prompt_len: workload.prompt_len,
            gen_len: workload.gen_len,
        });
    }
    Ok(())
}

/// Keeps every number of a program in its type.
fn check_counts(plan: &Plan) -> Result<(), LowerError> {
    let (policy, workload) = (&plan.policy, &plan.workload);
    let size = u64::from(policy.gpu_batch_size);
    let blocks = u64::from(plan.model.num_blocks());
    let passes = u64::from(workload.gen_len);
    let heads = u64::from(plan.model.num_attention_heads);
    let widest = u64::from(workload.prompt_len).max(heads);
    for (what, value, max) in [
        (
            "the number of tokens to generate",
            passes,
            u64::from(u16::MAX),
        ),
        (
            "the number of the model's blocks",
            blocks,
            u64::from(u16::MAX),
        ),
        (
            "the number of GPU batches",
            u64::from(policy.num_gpu_batches),
            u64::from(u16::MAX),
        ),
        (
            "GPU batch size times tokens or heads",
            size.saturating_mul(widest),
            u64::from(u32::MAX),
        ),
    ] {
        if value > max {
            return Err(LowerError::TooMuch { what, value, max });
        }
    }
    Ok(())
}

/// Squares (a block of the model on a GPU batch in a pass) of a whole run: about ten tasks each.
const SQUARES_MAX: u64 = 20_000_000;

/// Keeps the whole of a program in memory.
fn check_size(plan: &Plan) -> Result<(), LowerError> {
    let (policy, workload) = (&plan.policy, &plan.workload);
    let prompts = schedule::prompts(policy, workload);
    let batches = prompts.div_ceil(u64::from(policy.gpu_batch_size));
    let passes = u64::from(workload.gen_len);
    let squares = batches.saturating_mul(u64::from(plan.model.num_blocks()));
    let squares = squares.saturating_mul(passes);
    if squares > SQUARES_MAX {
        return Err(LowerError::TooMuch {
            what: "the number of GPU batches times blocks times tokens",
            value: squares,
            max: SQUARES_MAX,
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
                needed,
                capacity,
            });
        }
    }
    Ok(())
}

impl Lowering {
    /// Prepares the program of a plan.
    ///
    /// # Errors
    /// A plan that means nothing, or that does not fit its machine.
    pub fn new(plan: &Plan) -> Result<Lowering, LowerError> {
        check_fits(plan)?;
        check_size(plan)?;
        let passes = Passes::new(&plan.policy, &plan.workload);
        let rounds = passes.rounds();
        let num_batches = most_batches(rounds);
        let layout = Layout::new(plan, &passes);
        let (model, policy, workload) = (&plan.model, &plan.policy, &plan.workload);
        let machine = Machine::single_gpu(plan.capacity_bytes);
        let mut emitter = Emitter::new(&machine, Mode::of(policy));
        let weights = WeightStream::new(&mut emitter.program, &layout, policy.page_locked.weights);
        let cut = Cut::new(policy, workload);
        let pages = PageTable::new(cut, num_batches, layout.num_cache_pages, workload.gen_len);
        let layers = model.num_hidden_layers;
        let token_bytes = u64::from(model.hidden_size) * plan.dtype.size_bytes();
        let texts = declare_texts(plan, &mut emitter.program, layout.end.host, rounds);
        let workspace = emitter.program.buffer(Buffer {
            arena: arena_of(Tier::Device),
            offset: layout.workspace.0,
            bytes: layout.workspace.1,
            content: Content::Workspace,
            resident: true,
        });
        Ok(Lowering {
            cache: CacheStream::new(policy, workload, layers, (cut, pages)),
            hidden: HiddenStream::new(
                num_batches,
                token_bytes,
                workload.prompt_len,
                policy.page_locked.activations,
            ),
            gemms: StageGemms::of(model),
            tokens: vec![Tokens::default(); num_batches],
            plan: plan.clone(),
            machine,
            passes,
            layout,
            emitter,
            weights,
            texts,
            workspace,
            sent: None,
            visits: 0,
            pass: 0,
            last_tasks: Vec::new(),
            waited: 0,
        })
    }

    /// Where every weight lives, for whoever fills the tiers.
    pub fn placement(&self) -> &WeightPlacement {
        &self.layout.weights
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

    /// The last task of each pass that was handed over so far.
    pub fn pass_ends(&self) -> &[TaskId] {
        &self.last_tasks
    }

    /// The next piece: one pass over the model, or none when all rounds are done.
    pub fn next_pass(&mut self) -> Option<Program> {
        let turns = self.passes.turns(self.pass);
        let units = self.units(&turns);
        let first = units.first()?.cell;
        if self.visits == 0 {
            self.weights.announce(&self.layout, 0, first, 1);
            self.weights.load_rest(&mut self.emitter, &mut self.layout);
        }
        self.cache.begin_pass(&turns);
        self.pass += 1;
        let last = self.pass == self.passes.count();
        self.lower_pass(&units, turns.len(), last);
        self.visits += u64::from(self.plan.model.num_blocks());
        let piece = self.emitter.cut();
        self.last_tasks.push(TaskId(piece.end_task().0 - 1));
        Some(piece)
    }

    /// The squares of a pass, layer by layer.
    fn units(&self, turns: &[Turn]) -> Vec<Unit> {
        let plan = &self.plan;
        let (prompt_len, gen_len) = (plan.workload.prompt_len, plan.workload.gen_len);
        let blocks = plan.model.num_blocks();
        let mut units = Vec::with_capacity(turns.len() * blocks as usize);
        let shape =
            |turn: &Turn| BatchShape::new(&plan.model, plan.dtype, &plan.policy, turn.sequences);
        let shapes: Vec<BatchShape> = turns.iter().map(shape).collect();
        for block in 0..blocks {
            for (index, (turn, shape)) in turns.iter().zip(&shapes).enumerate() {
                let (query_len, position) = match turn.token {
                    0 => (prompt_len, 0),
                    token => (1, prompt_len + token - 1),
                };
                units.push(Unit {
                    cell: Cell {
                        round: turn.round,
                        pass: turn.token as u16,
                        block: block as u16,
                        batch: turn.batch,
                    },
                    visit: self.visits + u64::from(block),
                    shape: *shape,
                    query_len,
                    position,
                    last_pass: turn.token + 1 == gen_len,
                    first_batch: index == 0,
                    last_batch: index + 1 == turns.len(),
                });
            }
        }
        units
    }

    fn lower_pass(&mut self, units: &[Unit], num_batches: usize, last: bool) {
        let mut pass = Pass {
            holds_back: self.holds_back(units, num_batches),
            direct: num_batches == 1,
            cache: Staged::default(),
            hidden: None,
            held: None,
            unstored: None,
        };
        for (index, unit) in units.iter().enumerate() {
            if unit.first_batch {
                let next = units.get(index + num_batches).map(|u| u.cell);
                // After the head comes the embedding of the next pass, unless there is none.
                let wraps = Cell {
                    block: 0,
                    pass: unit.cell.pass + 1,
                    ..unit.cell
                };
                pass.prefetch(self, unit, next.or((!last).then_some(wraps)), num_batches);
            }
            self.lower_unit(&mut pass, unit, units.get(index + 1));
            if unit.last_batch {
                self.weights.load_rest(&mut self.emitter, &mut self.layout);
            }
            self.emitter.end_step(unit.cell);
        }
    }

    /// Whether a layer's end is held back behind the next batch's projection, so that CPU attention, or
    /// the CPU's collecting of values, has something to hide behind. A batch must not meet itself in the next layer before its end.
    fn holds_back(&self, units: &[Unit], num_batches: usize) -> bool {
        let apart = |unit: &&Unit| self.cache.on_cpu(unit) || self.cache.gathers(unit);
        let Some(unit) = units.iter().find(apart) else {
            return false;
        };
        let moves_hidden = unit.shape.hidden.host + unit.shape.hidden.disk > 0;
        let enough = if moves_hidden { 3 } else { 2 };
        self.emitter.mode() == Mode::Free && num_batches >= enough
    }

    fn lower_unit(&mut self, pass: &mut Pass, unit: &Unit, next: Option<&Unit>) {
        let head = self.plan.model.num_blocks() - 1;
        if let Some(mut before) = pass.unstored.take() {
            self.store(&mut before.0, before.1, true);
        }
        let staged = std::mem::take(&mut pass.cache);
        let mut work = pass.hidden.take();
        if let Some(next) = next {
            if u32::from(next.cell.block) != head && next.cell.block != 0 {
                pass.cache = self.cache.load(&mut self.emitter, &mut self.layout, next);
            }
            if next.cell.block != 0 && !pass.direct {
                pass.hidden = Some(self.load_hidden(next));
            }
        }
        if pass.direct && unit.cell.block != 0 {
            work = Some(self.load_hidden(unit));
        }
        if !pass.holds_back {
            self.weights.load_chunk(&mut self.emitter, &mut self.layout);
        }
        let work = work.unwrap_or_default();
        if unit.cell.block == 0 {
            let (task, work) = self.embed(unit);
            let layout = &mut self.layout;
            self.hidden
                .store(&mut self.emitter, layout, (unit, &work), task);
        } else if u32::from(unit.cell.block) == head {
            self.release_held(pass);
            self.head(unit, work);
        } else {
            let pending = self.attend(unit, staged, work);
            self.release_held(pass);
            if pass.holds_back {
                pass.held = Some(pending);
            } else {
                self.end_layer(pass, pending);
            }
        }
        if pass.holds_back {
            self.weights.load_chunk(&mut self.emitter, &mut self.layout);
        }
    }

    fn load_hidden(&mut self, unit: &Unit) -> Work {
        let last_block = u32::from(unit.cell.block) + 1 == self.plan.model.num_blocks();
        self.hidden
            .load(&mut self.emitter, &mut self.layout, unit, last_block)
    }

    fn release_held(&mut self, pass: &mut Pass) {
        if let Some(held) = pass.held.take() {
            self.end_layer(pass, held);
        }
    }

    /// Ends a layer for a batch; with a barrier, what it stores goes with the next batch's step.
    fn end_layer(&mut self, pass: &mut Pass, mut pending: Pending) {
        let task = self.finish(&mut pending);
        if self.emitter.mode() != Mode::Barrier {
            self.store(&mut pending, task, true);
        } else if pass.direct {
            let stored = (&pending.unit, &pending.work);
            self.hidden
                .store(&mut self.emitter, &mut self.layout, stored, task);
            pending.work = Work::default();
            pass.unstored = Some((pending, task));
        } else {
            pass.unstored = Some((pending, task));
        }
    }

    fn store(&mut self, pending: &mut Pending, after: TaskId, with_hidden: bool) {
        let (emitter, layout) = (&mut self.emitter, &mut self.layout);
        let unit = &pending.unit;
        let after_cache = pending.last_cache_task().unwrap_or(after);
        self.cache
            .store(emitter, layout, (unit, pending.staged), after_cache);
        if with_hidden {
            self.hidden
                .store(emitter, layout, (unit, &pending.work), after);
        }
    }
}

/// What is under way between the units of a pass.
struct Pass {
    holds_back: bool,
    /// One GPU batch: the next unit needs the activations of this one, so nothing can be ahead.
    direct: bool,
    cache: Staged,
    hidden: Option<Work>,
    held: Option<Pending>,
    unstored: Option<(Pending, TaskId)>,
}

impl Pass {
    fn prefetch(&self, to: &mut Lowering, unit: &Unit, next: Option<Cell>, num_batches: usize) {
        if let Some(mut cell) = next {
            cell.batch = 0;
            let chunks = if to.plan.policy.loads_weights_at_once() {
                1
            } else {
                num_batches
            };
            to.weights
                .announce(&to.layout, unit.visit + 1, cell, chunks);
        }
    }
}

fn declare_texts(plan: &Plan, program: &mut Program, end: Bytes, rounds: &[Round]) -> Texts {
    let mut offset = end;
    let mut text = |bytes: Bytes, content: Content| {
        let id = program.buffer(Buffer {
            arena: arena_of(Tier::Host),
            offset,
            bytes,
            content,
            resident: true,
        });
        offset += bytes;
        id
    };
    let round = |round: &Round| {
        let batches = round.batches.iter().enumerate();
        batches
            .map(|(batch, sequences)| {
                let (prompt, generated) = text_bytes(plan, *sequences);
                let batch = batch as u16;
                (
                    text(prompt, Content::Prompt { batch }),
                    text(generated, Content::Generated { batch }),
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
            return Decision::Submit(piece);
        }
        self.waited += 1;
        match self.last_tasks.get(self.waited - 1) {
            Some(task) => Decision::Wait(Until::Task(*task)),
            None => Decision::Done,
        }
    }
}
