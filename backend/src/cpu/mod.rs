//! The CPU executor: an emulated accelerator.
//!
//! Memory is real and bounded: the device and the host are arenas of the plan's size, the disk is a file
//! read and written past the page cache. Each resource is a thread that keeps program order; copies
//! really copy (at a stated rate, if one is given), and the arithmetic is that of the kernels. Only the
//! accelerator is emulated: its work runs on cores of the CPU. On a GPU ([`CpuOptions::card`]) it is not: then
//! the device's arena and its resources are the GPU's (`crate::cuda::executor`), and all else is as here.

pub(crate) mod engine;
pub(crate) mod error;
mod load;
pub(crate) mod memory;
mod parts;
pub(crate) mod scheduler;
mod texts;
pub(crate) mod threads;
pub(crate) mod turn;
pub(crate) mod worker;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use plimsoll_core::executor::{ExecutionError, Executor, Until};
use plimsoll_core::lower::{arena_footprints, pageable_homes, schedule};
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::plan::Plan;
use plimsoll_core::program::{Access, Arg, BufferId, Cell, Machine, Op, Program, ResourceKind};
use plimsoll_core::tier::Tier;
use plimsoll_core::trace::Trace;
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};
use plimsoll_core::workload::Workload;

use crate::cuda::executor::{self, CardDevice, Issue, Planned};
use crate::cuda::{Card, UnifiedMaximum};
use crate::decoder::Decoder;
use crate::dispatch::Dispatch;
use crate::kernels::draw::Sampling;
use crate::tiers::{DiskMode, DiskTier, check_memory};
use crate::weights::WeightSource;
use engine::Engine;
use memory::{Buffers, Memory, Operands};
use threads::{Doers, Threads};
pub(crate) use worker::Cores;

pub use error::CpuError;
pub use load::Progress;
pub(crate) use load::load_packed;
pub use texts::Outlet;

/// The most that each link carries, and that the CPU reads of weights as they are stored; none: as fast as it goes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Throttles {
    /// From host to device.
    pub h2d: Option<BytesPerSecond>,
    /// From device to host.
    pub d2h: Option<BytesPerSecond>,
    /// From disk.
    pub disk_read: Option<BytesPerSecond>,
    /// To disk.
    pub disk_write: Option<BytesPerSecond>,
    /// Of weights, where the CPU computes a part of a linear layer.
    pub cpu: Option<BytesPerSecond>,
}

impl Throttles {
    pub(crate) fn of(&self, kind: ResourceKind, op: &Op) -> Option<BytesPerSecond> {
        match kind {
            ResourceKind::H2d => self.h2d,
            ResourceKind::D2h => self.d2h,
            ResourceKind::DiskRead => self.disk_read,
            ResourceKind::DiskWrite => self.disk_write,
            ResourceKind::Cpu if matches!(op, Op::Linear { .. }) => self.cpu,
            _ => None,
        }
    }
}

/// How tokens are drawn, and for whom.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draws {
    /// How.
    pub sampling: Sampling,
    /// The number that the first prompt has among all that are to be answered, of which these may be the
    /// last: prompts are told apart by theirs.
    pub first_prompt: u64,
}

/// How to emulate.
#[derive(Debug, Clone)]
pub struct CpuOptions {
    /// Where the disk tier's file goes.
    pub disk_dir: PathBuf,
    /// How fast the links are.
    pub throttles: Throttles,
    /// Threads that the emulated accelerator computes with. Where it is a GPU, the CPU computes its rows of split linear layers
    /// with them.
    pub device_threads: usize,
    /// Whether the accelerator has cores of its own, and all else the others.
    pub pin_cores: bool,
    /// How tokens are drawn; none: the likeliest is taken.
    pub draws: Option<Draws>,
    /// Tokens that each prompt goes on with, whatever the model makes likely: by prompt, then by place in
    /// its answer.
    pub given: Option<Arc<[Vec<u32>]>>,
    /// Whether every head's logits are kept.
    pub capture_logits: bool,
    /// Whether memory is taken for the plan's whole capacity, not only for what its program keeps, and beside a disk the host's is
    /// filled with what no disk takes for zeros: for programs that move what nobody wrote.
    pub whole_tiers: bool,
    /// Set to end the run at the next task.
    pub interrupt: Arc<AtomicBool>,
    /// Which implementation computes which product on the device.
    pub dispatch: Dispatch,
    /// The GPU that is the device, which has one executor at a time; none: it is emulated.
    pub card: Option<Arc<dyn Card>>,
}

impl CpuOptions {
    /// No throttle, one thread, no pinning.
    pub fn new(disk_dir: impl Into<PathBuf>) -> CpuOptions {
        CpuOptions {
            disk_dir: disk_dir.into(),
            throttles: Throttles::default(),
            device_threads: 1,
            pin_cores: false,
            draws: None,
            given: None,
            capture_logits: false,
            whole_tiers: false,
            interrupt: Arc::default(),
            dispatch: Dispatch::default(),
            card: None,
        }
    }

    /// For work that has no executor to stop it.
    pub(crate) fn check_goes_on(&self) -> Result<(), ExecutionError> {
        match self.interrupt.load(Ordering::Relaxed) {
            true => Err(ExecutionError::Interrupted),
            false => Ok(()),
        }
    }
}

/// What a head computed, before the choice.
#[derive(Debug, Clone, PartialEq)]
pub struct CapturedLogits {
    /// Round, pass and batch.
    pub cell: Cell,
    /// `[sequence][vocab_size]`.
    pub logits: Vec<f32>,
}

/// Runs a plan's program on this machine's CPU, memory and disk.
///
/// Pieces must have been verified ([`Executor::submit`]): their tasks touch memory in the order that
/// the verifier proved to be safe.
pub struct CpuExecutor<'s> {
    engine: Arc<Engine>,
    threads: Threads,
    source: &'s dyn WeightSource,
    progress: Box<Progress<'s>>,
    interrupt: Arc<AtomicBool>,
    /// None before they are set.
    prompts: Option<texts::Placed>,
    /// None where the device is emulated.
    device: Option<Arc<CardDevice>>,
}

impl<'s> CpuExecutor<'s> {
    /// Makes the tiers and the workers of a plan. Memory is taken for what the program keeps in a tier,
    /// which may be less than the plan's capacity. Weights are loaded with the first piece, before the
    /// clock starts.
    ///
    /// On a GPU the device's tier is its own memory, and the host's is page-locked but for homes that the plan has pageable.
    ///
    /// # Errors
    /// A model that cannot be computed; a tier that is too small, or cannot be had; what the GPU says;
    /// [`CpuError::NotOnGpus`] for what no GPU executes yet.
    pub fn new(
        plan: &Plan,
        placement: &WeightPlacement,
        source: &'s dyn WeightSource,
        options: &CpuOptions,
    ) -> Result<CpuExecutor<'s>, CpuError> {
        let card = options.card.as_ref();
        if card.is_some() {
            executor::check_plan(plan, options)?;
        }
        let built = CpuExecutor::build(plan, placement, source, options);
        if let (Err(_), Some(card)) = (&built, card) {
            card.close();
        }
        built
    }

    fn build(
        plan: &Plan,
        placement: &WeightPlacement,
        source: &'s dyn WeightSource,
        options: &CpuOptions,
    ) -> Result<CpuExecutor<'s>, CpuError> {
        let card = options.card.as_ref();
        let compression = plan.policy.compression;
        let threads = options.device_threads;
        let decoder = Decoder::new(&plan.model, plan.dtype, compression, threads)?
            .with_dispatch(&options.dispatch);
        let machine = plan.machine();
        let sizes = sizes_here(plan, &machine, options)?;
        let rounds = schedule::rounds(&plan.policy, &plan.workload);
        if let Some(card) = card {
            let of = (&plan.model, plan.dtype, compression);
            let rows = rows(&rounds, &plan.workload);
            CardDevice::open(&**card, &options.dispatch, &machine, of, &rows)?;
        }
        let on_card = card.map(|card| &**card);
        let tiers = (&sizes[..], &pageable_homes(plan)?[..]);
        let at = (&*options.disk_dir, &*options.interrupt);
        let mut memory = Memory::new(&machine, tiers, at, on_card)?;
        if options.whole_tiers {
            memory.fill_hosts();
        }
        let engine = Arc::new(Engine {
            memory,
            decoder,
            plan: plan.clone(),
            placement: placement.clone(),
            rounds,
            throttles: options.throttles,
            draws: options.draws,
            given: options.given.clone(),
            capture_logits: options.capture_logits,
            on_card: on_card.is_some(),
            padding: RwLock::default(),
            buffers: RwLock::default(),
            logits: Mutex::default(),
            results: Mutex::default(),
        });
        let device = card.map(|card| {
            let device = CardDevice::new(Arc::clone(card), &options.dispatch, &engine);
            device.inspect_err(|_| card.close())
        });
        let mut executor = CpuExecutor {
            engine,
            threads: Threads::new(&machine, options),
            source,
            progress: Box::new(|_, _| {}),
            interrupt: Arc::clone(&options.interrupt),
            prompts: None,
            device: device.transpose()?.map(Arc::new),
        };
        executor.start(&machine, options)?;
        Ok(executor)
    }

    /// Tells how far loading is: bytes of weights so far, and in all.
    pub fn on_progress(&mut self, progress: impl FnMut(Bytes, Bytes) + Send + 's) {
        self.progress = Box::new(progress);
    }

    fn start(&mut self, machine: &Machine, options: &CpuOptions) -> Result<(), CpuError> {
        let planned = |device: &Arc<CardDevice>| -> Arc<dyn Issue> {
            Arc::new(Planned {
                engine: Arc::clone(&self.engine),
                device: Arc::clone(device),
            })
        };
        let doers = Doers {
            host: Arc::clone(&self.engine) as _,
            streams: self.device.as_ref().map(planned),
            cores: &Cores::of(options),
        };
        self.threads.start(machine, &doers)
    }

    /// The logits of every head, in the order in which they were computed, if they were asked for.
    pub fn take_logits(&mut self) -> Vec<CapturedLogits> {
        let mut logits = self
            .engine
            .logits
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut logits)
    }

    /// How many buffers and tasks it knows: those of pieces that were not let go of, and homes.
    pub fn num_known(&self) -> usize {
        let buffers = &self.engine.buffers;
        let buffers = buffers.read().unwrap_or_else(PoisonError::into_inner);
        buffers.len() + self.threads.scheduler().num_known()
    }

    /// The unified maximum of attention's scores that a GPU has found so far; none where the device is emulated.
    ///
    /// # Errors
    /// What the GPU says.
    pub fn unified_maximum(&self) -> Result<Option<UnifiedMaximum>, CpuError> {
        let device = self.device.as_ref();
        Ok(device.map(|d| d.unified_maximum()).transpose()?)
    }

    /// How the disk is read and written, where there is one.
    pub fn disk_mode(&self) -> Option<DiskMode> {
        self.engine.memory.first_disk().map(DiskTier::mode)
    }

    /// Declares a piece's buffers and fills those that are there from the start.
    fn declare(&mut self, piece: &Program) -> Result<(), CpuError> {
        let engine = Arc::clone(&self.engine);
        let mut buffers = engine
            .buffers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if piece.first_buffer() != buffers.end() {
            return Err(CpuError::Program(format!(
                "its first buffer is {}, and {} were declared",
                piece.first_buffer().0,
                buffers.end().0,
            )));
        }
        let machine = self.engine.plan.machine().resources.len();
        let known = |task: &plimsoll_core::program::Task| (task.resource.0 as usize) < machine;
        if !piece.tasks().iter().all(known) {
            return Err(CpuError::Program("a task has no resource".to_owned()));
        }
        let is_first = buffers.end() == BufferId(0);
        buffers.declare(piece.buffers());
        if is_first {
            let mut loader = load::Loader {
                memory: &self.engine.memory,
                placement: &self.engine.placement,
                dtype: self.engine.plan.dtype,
                compression: self.engine.plan.policy.compression,
                source: self.source,
                progress: &mut *self.progress,
                interrupt: &self.interrupt,
                card: self.device.as_ref().map(|device| &*device.card),
            };
            loader.load(&buffers, piece.buffers())?;
        }
        self.place_prompts(&buffers, piece)
    }

    #[allow(unsafe_code)]
    fn place_prompts(&mut self, buffers: &Buffers, piece: &Program) -> Result<(), CpuError> {
        let ids = (piece.first_buffer().0..).map(BufferId);
        let all = piece.buffers().iter().zip(ids);
        for (_, id) in all.filter(|(buffer, _)| engine::is_prompt(buffer)) {
            // Once they are in place nobody asks for them here.
            let prompts = self
                .prompts
                .as_mut()
                .and_then(|prompts| prompts.remove(&id));
            let prompts = prompts.ok_or(CpuError::NoPrompts)?;
            let write = Arg {
                buffer: id,
                access: Access::Write,
            };
            // SAFETY: the buffer was declared just now, so no task has seen it.
            let operands = unsafe { Operands::new(&self.engine.memory, buffers, &[write]) };
            let into = operands
                .and_then(|operands| operands.write(0))
                .map_err(load::task_error)?;
            for (into, id) in into.as_chunks_mut().0.iter_mut().zip(&prompts) {
                *into = id.to_le_bytes();
            }
        }
        Ok(())
    }
}

/// The sizes of a machine's arenas, of which this machine has as much memory.
fn sizes_here(
    plan: &Plan,
    machine: &Machine,
    options: &CpuOptions,
) -> Result<Vec<Bytes>, CpuError> {
    let sizes = tier_sizes(plan, machine, options.whole_tiers)?;
    let in_all = |tier: Tier| {
        let arenas = machine.arenas.iter().zip(&sizes);
        let of_tier = arenas.filter(|(arena, _)| arena.tier == tier);
        of_tier.map(|(_, size)| *size).sum::<Bytes>()
    };
    let emulated = match options.card {
        Some(_) => Bytes::ZERO,
        None => in_all(Tier::Device),
    };
    check_memory(emulated, in_all(Tier::Host))?;
    Ok(sizes)
}

/// Rows of a plan's products: a token of each of a GPU batch's sequences, or all of its prompts.
fn rows(rounds: &[schedule::Round], workload: &Workload) -> Vec<usize> {
    let batches = rounds.iter().flat_map(|round| &round.batches);
    let both = batches.flat_map(|batch| [1, workload.prompt_len].map(|tokens| batch * tokens));
    let rows: BTreeSet<u32> = both.collect();
    rows.into_iter().map(|m| m as usize).collect()
}

/// Bytes of a machine's arenas, of which none is larger than planned.
fn tier_sizes(plan: &Plan, machine: &Machine, whole: bool) -> Result<Vec<Bytes>, CpuError> {
    let mut sizes = arena_footprints(plan)?;
    for (arena, size) in machine.arenas.iter().zip(&mut sizes) {
        let (tier, needed, capacity) = (arena.tier, *size, arena.capacity);
        if whole {
            *size = capacity;
        }
        if needed > capacity {
            return Err(CpuError::TooSmall {
                tier,
                needed,
                capacity,
            });
        }
    }
    Ok(sizes)
}

impl Executor for CpuExecutor<'_> {
    fn submit(&mut self, piece: Arc<Program>) -> Result<(), ExecutionError> {
        self.threads.scheduler().check()?;
        let declared = self.declare(&piece);
        declared.map_err(|error| match error {
            CpuError::Interrupted => ExecutionError::Interrupted,
            other => ExecutionError::Executor(Box::new(other)),
        })?;
        self.threads.submit(&piece);
        Ok(())
    }

    fn wait(&mut self, until: Until) -> Result<Seconds, ExecutionError> {
        let device = self.device.as_ref();
        let start_clock = || device.map_or(Ok(()), |device| device.start_clock());
        self.threads.wait(until, start_clock)
    }

    fn forget(&mut self, piece: &Program) {
        self.threads.forget(piece);
        let mut buffers = self
            .engine
            .buffers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for index in 0..piece.tasks().len() {
            buffers.forget(piece.gives_at(index));
        }
    }

    fn trace(&self) -> &Trace {
        self.threads.trace()
    }
}

impl Drop for CpuExecutor<'_> {
    fn drop(&mut self) {
        self.threads.join();
        // Before the host's memory goes, which the card has locked.
        if let Some(device) = &self.device {
            device.card.close();
        }
    }
}
