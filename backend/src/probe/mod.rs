//! Measures this machine through the CPU executor and writes down what it finds as a hardware profile.
//!
//! Every number comes from tasks like those of a plan, run by the same workers over the same memory:
//! moves of many sizes, small models run whole with nothing beside them, and the same with overlap.
//! The models (`compute::SHAPES`) are not those that validation uses.

mod alike;
mod alpha;
mod assemble;
mod bandwidth;
mod beside;
mod compute;
mod contention;
mod disk_pace;
mod link_pace;
mod moves;
mod pace;
mod pageable;
mod peak;
pub(crate) mod products;
mod samples;
mod split;
mod stats;
mod unpack;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::control::{Controller, DriveError, Run, drive};
use plimsoll_core::executor::{ExecutionError, Executor, Until};
use plimsoll_core::hardware::{Contention, HardwareProfile, ProductCurves, WeightRead};
use plimsoll_core::lower::{LowerError, Lowering, footprint};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{Machine, Program, ResourceKind};
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::Bytes;
use plimsoll_core::verify::{Verifier, VerifyError};
use thiserror::Error;

use crate::cpu::{CpuError, CpuExecutor, CpuOptions};
use crate::cuda::Card;
use crate::cuda::executor::{learn_on, learn_with_prompts_on};
use crate::dispatch::{Dispatch, Weights};
use crate::kernels::KernelError;
use crate::tiers::free_bytes;
use crate::weights::{Remembered, Synthetic, WeightSource};
use alike::AlikeLayers;
pub use alpha::{PartOptions, PartTimes, Parts, measure_parts};
pub(crate) use assemble::MEASURED;
pub use bandwidth::host_read_rates;
pub(crate) use bandwidth::read_rate;
use compute::Kind;
use contention::{Losses, ROUNDS_OF_MOVES};
pub use link_pace::{BothWays, LinkTimes};
use moves::{BESIDE, MOVERS, Moves, REPEATS_ALONE, SIZES, bytes_beside, regions};
pub use pace::{Moment, PaceMeter, Paced};
pub use pageable::PageableCopies;
use pageable::staged;
pub use peak::fma_flops_per_s;
use samples::{Timed, timed};
pub(crate) use stats::{median, spread};

/// Why a machine could not be measured.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The executor could not be made.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// A probe's plan does not lower, which is an error of ours.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A probe did not run to its end.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A probe did not run to its end.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    /// A probe's program is not valid, which is an error of ours.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A product's operands do not fit, which is an error of ours.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// What to measure and how long.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// How the executor runs; throttles are ignored, since a profile is of the machine without them.
    pub cpu: CpuOptions,
    /// Fewer sizes and repeats.
    pub quick: bool,
    /// Types to measure matrix products and attention for.
    pub dtypes: Vec<Dtype>,
    /// Models for whose matrices each implementation of a product is measured, beside those of the probe itself.
    pub models: Vec<ModelSpec>,
    /// The name of the profile.
    pub name: String,
    /// Today, for the provenance.
    pub date: String,
}

impl ProbeOptions {
    /// Calibration models, smallest first. A GPU needs larger ones to be at work.
    fn shapes(&self) -> &'static [compute::Shape] {
        match self.cpu.card {
            None => &compute::SHAPES,
            Some(_) => &compute::SHAPES_OF_GPUS,
        }
    }

    /// Sequences and prompt lengths that are run on each model.
    fn batches(&self) -> [(u32, u32); 9] {
        match self.cpu.card {
            None => compute::BATCHES,
            Some(_) => compute::BATCHES_OF_GPUS,
        }
    }
}

/// Everything measured, before it is made into a profile. Times are as if the machine had always gone at
/// the pace of `base`.
#[derive(Debug)]
struct Measured {
    meter: PaceMeter,
    /// Calibration models differ in their tensors' shapes, so one memory serves all.
    weights: Remembered<Synthetic>,
    base: Moment,
    moments: Vec<Moment>,
    moves: Vec<Timed>,
    /// Copies from and to memory that is not page-locked, where there is a GPU to which that matters.
    pageable: Vec<Timed>,
    /// Memory of the host for these: little is in the processor's caches.
    pageable_bytes: Bytes,
    /// Bytes of such copies to the device that were staged when their turn came.
    staged: Vec<f64>,
    compute: Vec<(Dtype, Timed)>,
    /// Parts of a GPU's layers, also of models whose tasks are not in `compute`.
    layer_parts: Vec<beside::LayerPart>,
    /// Products by themselves, of those shapes that were asked for: a GPU's executors learn others on the way, for fewer rows.
    products: Vec<ProductCurves>,
    /// Some of the tasks of `compute` again, with weights in 4 bits.
    packed_weights: Vec<(Dtype, Timed)>,
    /// And with the cache in 4 bits.
    packed_caches: Vec<(Dtype, Timed)>,
    /// Of models whose key heads have one query head, and several.
    shared: Vec<(Dtype, Timed)>,
    /// Products of one row, with the bytes of all weights.
    weight_reads: Vec<(Dtype, Bytes, Timed)>,
    /// The CPU's products, nothing beside them.
    cpu_products: Vec<(Dtype, Timed)>,
    gaps: Vec<f64>,
    handoffs: samples::Handoffs,
    barriers: Vec<f64>,
    host_reads: Vec<f64>,
    disk_free: Bytes,
    losses: Losses,
}

impl Measured {
    fn new(options: &CpuOptions, disk_free: Bytes) -> Result<Measured, CpuError> {
        let mut meter = PaceMeter::new(options)?;
        // The paces of disk and links at first, and around all that is moved.
        meter.watch_disk(Some(Bytes::ZERO));
        meter.watch_links(true);
        let moments: Vec<Moment> = (0..5).map(|_| meter.now()).collect();
        meter.watch_disk(None);
        meter.watch_links(false);
        Ok(Measured {
            base: Moment::middle(&moments),
            meter,
            weights: Remembered::new(Synthetic { seed: 0 }),
            moments: Vec::new(),
            moves: Vec::new(),
            pageable: Vec::new(),
            pageable_bytes: Bytes::ZERO,
            staged: Vec::new(),
            compute: Vec::new(),
            layer_parts: Vec::new(),
            products: Vec::new(),
            packed_weights: Vec::new(),
            packed_caches: Vec::new(),
            shared: Vec::new(),
            weight_reads: Vec::new(),
            cpu_products: Vec::new(),
            gaps: Vec::new(),
            handoffs: samples::Handoffs {
                on_card: options.card.is_some(),
                ..samples::Handoffs::default()
            },
            barriers: Vec::new(),
            host_reads: Vec::new(),
            disk_free,
            losses: Losses::new(options.card.is_some()),
        })
    }

    /// The pace in the middle of all that was measured.
    fn usual(&self) -> Moment {
        match self.moments.as_slice() {
            [] => self.base,
            moments => Moment::middle(moments),
        }
    }

    /// Takes the parts of layers among tasks.
    fn layers(&mut self, of: (Dtype, bool), card: &dyn Card, tasks: &[Timed]) {
        let part = |task| beside::LayerPart::new(of, card.cache_bytes(), task);
        self.layer_parts.extend(tasks.iter().filter_map(part));
    }

    /// Runs something at a steady pace, if there is one, and gives its tasks' times at the base's pace.
    fn run(
        &mut self,
        mut work: impl FnMut(&dyn WeightSource) -> Result<Run, ProbeError>,
    ) -> Result<(Run, Vec<Timed>), ProbeError> {
        let weights = &self.weights;
        let paced = self.meter.steadily(|| work(weights))?;
        self.moments.push(paced.moment);
        let slowness = paced.moment.relative_to(&self.base);
        let mut tasks = timed(&paced.result);
        for task in &mut tasks {
            task.pace = slowness.of(task.kind, &task.op);
        }
        Ok((paced.result, tasks))
    }
}

/// Measures. `progress` hears what is being measured, and how much of the whole is done. Executors of the probes compute their
/// products as was measured first.
///
/// # Errors
/// Memory or disk that cannot be had; a probe that fails.
pub fn measure(
    options: &ProbeOptions,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<HardwareProfile, ProbeError> {
    let disk_free = free_bytes(&options.cpu.disk_dir).map_err(CpuError::from)?;
    let mut measured = Measured::new(&options.cpu, disk_free)?;
    let options = &ProbeOptions {
        cpu: CpuOptions {
            dispatch: Dispatch::measuring(),
            ..options.cpu.clone()
        },
        ..options.clone()
    };
    // First of all, since a GPU's executors would else learn the shapes that they meet, without the rows of prompts.
    progress("implementations of products", 0.0);
    measure_products(options, &mut measured, progress)?;
    let known = options.cpu.dispatch.known().into_iter();
    measured.products = known.filter_map(|known| known.curves).collect();
    progress("copies and disk", 0.08);
    measure_host_reads(options, &mut measured)?;
    options.cpu.check_goes_on()?;
    measured.meter.watch_disk(Some(
        Moves::room(&MOVERS, regions(disk_free), PerTier::default()).disk,
    ));
    measured.meter.watch_links(true);
    measure_moves(options, &mut measured)?;
    measured.meter.watch_disk(None);
    measure_pageable(options, &mut measured)?;
    measured.meter.watch_links(false);
    let all = options.shapes().len() * options.dtypes.len();
    let mut done = 0;
    for dtype in &options.dtypes {
        for shape in options.shapes() {
            let share = 0.12 + 0.32 * done as f64 / all as f64;
            progress(
                &format!("{} model of width {}", dtype.name(), shape.hidden_size),
                share,
            );
            measure_compute(options, *shape, *dtype, &mut measured)?;
            done += 1;
        }
    }
    if let Some(card) = &options.cpu.card {
        progress("models without biases", 0.44);
        for dtype in &options.dtypes {
            measure_unbiased((options, &**card), *dtype, &mut measured)?;
        }
    }
    progress("weights and cache in 4 bits", 0.48);
    measure_unpack(options, &mut measured)?;
    // The models above are larger than a GPU's caches.
    if options.cpu.card.is_none() {
        progress("models that no cache holds", 0.62);
        for dtype in &options.dtypes {
            measure_weight_reads(options, *dtype, &mut measured)?;
        }
    }
    progress("attention on the CPU", 0.68);
    for dtype in &options.dtypes {
        measure_cpu_attention(options, *dtype, &mut measured)?;
        measure_shared(options, *dtype, &mut measured)?;
    }
    progress("engines beside each other", 0.74);
    measure_barriers(options, &mut measured)?;
    measure_contention(options, &mut measured)?;
    progress("linear layers on the CPU", 0.88);
    split::measure(options, &mut measured)?;
    progress("done", 1.0);
    Ok(assemble::profile(options, &measured))
}

/// Who slows whom, by a run of tasks beside each other and a run of the same tasks one by one; with how fast weights are read of which
/// there are so many bytes, if no cache holds them.
pub fn contention(
    overlapped: &Run,
    serial: &Run,
    weights: Option<(WeightRead, f64)>,
) -> Vec<Contention> {
    let mut losses = Losses::new(false);
    let weights = weights.map(|(read, all)| contention::Weights { read, all });
    let tasks = (&*timed(overlapped), &*timed(serial));
    losses.add(0, tasks, weights.as_ref());
    losses.contention(MEASURED)
}

fn cpu_options(options: &ProbeOptions) -> CpuOptions {
    CpuOptions {
        throttles: crate::cpu::Throttles::default(),
        capture_logits: false,
        ..options.cpu.clone()
    }
}

fn measure_host_reads(options: &ProbeOptions, measured: &mut Measured) -> Result<(), CpuError> {
    let repeats = if options.quick { 5 } else { 15 };
    let rates = host_read_rates(repeats)?;
    let slowness = measured.meter.now().relative_to(&measured.base).copy;
    measured.host_reads = rates.into_iter().map(|rate| rate * slowness).collect();
    Ok(())
}

fn measure_moves(options: &ProbeOptions, measured: &mut Measured) -> Result<(), ProbeError> {
    let (repeats, turns) = if options.quick { (5, 1) } else { (7, 2) };
    let mut plan = compute::plan(
        options.shapes()[0],
        (1, 4),
        1,
        options.dtypes[0],
        Kind::OnDevice,
    )?;
    let behind = footprint(&plan)?;
    let sizes = regions(measured.disk_free);
    plan.capacity_bytes = Moves::room(&MOVERS, sizes, behind);
    let machine = Machine::single_gpu(plan.capacity_bytes);
    let mut moves = Moves::new(Program::new(), &machine, sizes).with((&MOVERS, true), behind);
    moves.prepare();
    let rounds: Vec<_> = (0..ROUNDS_OF_MOVES)
        .map(|_| {
            let begin = moves.program.tasks().len();
            moves.one_by_one(SIZES, repeats, turns);
            moves.one_by_one(&[BESIDE], REPEATS_ALONE, 1);
            let alone = moves.program.tasks().len();
            for pair in pairs(options) {
                moves.together(pair, BESIDE, pair.map(|mover| bytes_beside(MOVERS[mover])));
            }
            (begin..alone, alone..moves.program.tasks().len())
        })
        .collect();
    let program = moves.program;
    let (run, tasks) = measured.run(|_| run_program(options, &plan, &machine, program.clone()))?;
    for (round, (alone, together)) in rounds.into_iter().enumerate() {
        let (alone, together) = (&tasks[alone], &tasks[together]);
        measured.losses.add_moves(round, together, alone);
        measured.moves.extend_from_slice(alone);
    }
    measured
        .gaps
        .extend(samples::gaps_on_one_engine(&run, MOVERS[0]));
    measured.handoffs.add(&run);
    Ok(())
}

/// On a GPU, what is not page-locked.
fn measure_pageable(options: &ProbeOptions, measured: &mut Measured) -> Result<(), ProbeError> {
    if options.cpu.card.is_none() {
        return Ok(());
    }
    let copies = PageableCopies::new(options)?;
    let (_, tasks) = measured.run(|_| copies.run(options))?;
    for (round, [alone, together]) in copies.rounds.iter().enumerate() {
        let [alone, together] = [alone, together].map(|part| &tasks[part.clone()]);
        measured.losses.add_moves(round, together, alone);
    }
    measured.staged = staged(&tasks[copies.staged]);
    measured.pageable_bytes = copies.of_host;
    measured.pageable = tasks[copies.one_by_one].to_vec();
    Ok(())
}

/// The engines that move beside each other. What a plan has a GPU copy from its caches goes to pageable memory, and slows copies of
/// weights otherwise than what is page-locked does: of these two [`PageableCopies`] tells.
fn pairs(options: &ProbeOptions) -> Vec<[usize; 2]> {
    let all =
        (0..MOVERS.len()).flat_map(|first| (first + 1..MOVERS.len()).map(move |it| [first, it]));
    let on_card = options.cpu.card.is_some();
    let links = [ResourceKind::H2d, ResourceKind::D2h];
    all.filter(|pair| !on_card || pair.map(|mover| MOVERS[mover]) != links)
        .collect()
}

fn run_program(
    options: &ProbeOptions,
    plan: &Plan,
    machine: &Machine,
    program: Program,
) -> Result<Run, ProbeError> {
    let lowering = Lowering::new(plan)?;
    let source = Synthetic { seed: 0 };
    let cpu = CpuOptions {
        whole_tiers: true,
        ..cpu_options(options)
    };
    let mut executor = CpuExecutor::new(plan, lowering.placement(), &source, &cpu)?;
    Verifier::new(machine).check(&program)?;
    let piece = std::sync::Arc::new(program);
    executor.submit(std::sync::Arc::clone(&piece))?;
    executor.wait(Until::Idle)?;
    Ok(Run {
        machine: machine.clone(),
        pieces: vec![piece],
        trace: executor.trace().clone(),
    })
}

fn run_plan(
    options: &ProbeOptions,
    plan: &Plan,
    weights: &dyn WeightSource,
) -> Result<Run, ProbeError> {
    let mut lowering = Lowering::new(plan)?;
    let cpu = cpu_options(options);
    let mut executor = CpuExecutor::new(plan, lowering.placement(), weights, &cpu)?;
    let prompts = prompts(
        plan,
        lowering.rounds().iter().flat_map(|r| &r.batches).sum(),
    );
    executor.set_prompts(lowering.texts(), &prompts)?;
    Ok(drive(&mut lowering as &mut dyn Controller, &mut executor)?)
}

/// Any words do: time does not depend on them.
fn prompts(plan: &Plan, count: u32) -> Vec<Vec<u32>> {
    let word =
        |sequence: u32, at: u32| (sequence * 7919 + at * 104_729 + 3) % plan.model.vocab_size;
    let prompt = |s: u32| (0..plan.workload.prompt_len).map(|t| word(s, t)).collect();
    (0..count).map(prompt).collect()
}

/// The lookup table: of a calibration model's matrices, which tell those of all models where nothing better is known, and of the
/// models that were asked for. On a GPU those of all calibration models, whose curves tell products from what is beside them, and
/// each executor measures its own model's as well.
fn measure_products(
    options: &ProbeOptions,
    measured: &mut Measured,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<(), ProbeError> {
    let mut shapes = Vec::new();
    let of_model = match options.cpu.card {
        Some(_) => Weights::of_model_on_card,
        None => Weights::of_model,
    };
    for dtype in &options.dtypes {
        let models = options.models.iter();
        shapes.extend(models.flat_map(|model| of_model(model, *dtype)));
    }
    let calibration: Vec<ModelSpec> = match options.cpu.card.is_some() {
        true => {
            let all = options.shapes().iter().chain(&compute::UNBIASED_OF_GPUS);
            all.map(|shape| compute::model(*shape)).collect()
        }
        false => vec![compute::model(options.shapes()[1])],
    };
    for dtype in &options.dtypes {
        let models = calibration.iter();
        shapes.extend(models.flat_map(|model| of_model(model, *dtype)));
    }
    if let Some(narrowest) = options.dtypes.iter().min_by_key(|d| d.size_bytes()) {
        let of_type = shapes.iter().filter(|w| w.dtype == *narrowest);
        let packed: Vec<Weights> = of_type.map(|whole| whole.in_groups()).collect();
        shapes.extend(packed);
    }
    let repeats = if options.quick { 3 } else { 7 };
    let all = shapes.len() as f64;
    for (done, weights) in shapes.into_iter().enumerate() {
        progress("implementations of products", 0.08 * done as f64 / all);
        options.cpu.check_goes_on()?;
        let dispatch = &options.cpu.dispatch;
        if let Some(card) = &options.cpu.card {
            learn_with_prompts_on(&**card, dispatch, vec![weights]).map_err(CpuError::from)?;
            continue;
        }
        dispatch.learn([weights], |weights| {
            let time = || products::on_device(weights, repeats, &options.cpu);
            let paced = measured.meter.steadily(time)?;
            let slowness = paced.moment.relative_to(&measured.base);
            Ok::<_, ProbeError>(products::at_pace(weights, paced.result, &slowness))
        })?;
    }
    match &options.cpu.card {
        Some(card) => measure_joined(&**card, options, &calibration),
        None => Ok(()),
    }
}

/// Of a GPU those that share their input as well, which it computes at once where rows are few.
fn measure_joined(
    card: &dyn Card,
    options: &ProbeOptions,
    calibration: &[ModelSpec],
) -> Result<(), ProbeError> {
    let narrowest = options.dtypes.iter().min_by_key(|d| d.size_bytes());
    for dtype in &options.dtypes {
        for model in options.models.iter().chain(calibration) {
            options.cpu.check_goes_on()?;
            let mut shapes = Weights::of_model_on_card_and_joined(model, *dtype);
            if Some(dtype) == narrowest {
                shapes = Weights::whole_then_in_groups(shapes);
            }
            learn_on(card, &options.cpu.dispatch, shapes).map_err(CpuError::from)?;
        }
    }
    Ok(())
}

fn measure_compute(
    options: &ProbeOptions,
    shape: compute::Shape,
    dtype: Dtype,
    measured: &mut Measured,
) -> Result<(), ProbeError> {
    let gen_len = if options.quick { 5 } else { 15 };
    for batch in options.batches() {
        let plan = compute::plan(shape, batch, gen_len, dtype, Kind::OnDevice)?;
        let (run, tasks) = measured.run(|weights| run_plan(options, &plan, weights))?;
        if let Some(card) = &options.cpu.card {
            measured.layers((dtype, shape.biased), &**card, &tasks);
        }
        measured
            .compute
            .extend(tasks.into_iter().map(|t| (dtype, t)));
        measured
            .gaps
            .extend(samples::gaps_on_one_engine(&run, ResourceKind::Gpu));
    }
    Ok(())
}

/// Layers whose products have no biases, for what they do beside them.
fn measure_unbiased(
    (options, card): (&ProbeOptions, &dyn Card),
    dtype: Dtype,
    measured: &mut Measured,
) -> Result<(), ProbeError> {
    for shape in compute::UNBIASED_OF_GPUS {
        for batch in options.batches() {
            let plan = compute::plan(shape, batch, 5, dtype, Kind::OnDevice)?;
            let (_, tasks) = measured.run(|weights| run_plan(options, &plan, weights))?;
            measured.layers((dtype, shape.biased), card, &tasks);
        }
    }
    Ok(())
}

/// Tokens of one sequence of models that are larger and larger than those of the curves.
fn measure_weight_reads(
    options: &ProbeOptions,
    dtype: Dtype,
    measured: &mut Measured,
) -> Result<(), ProbeError> {
    for bytes in compute::LARGE_MODELS {
        let gen_len = compute::tokens_of_read(bytes, options.quick, options.dtypes.len());
        let shape = compute::of_bytes(bytes, dtype);
        let plan = compute::plan(shape, (1, 4), gen_len, dtype, Kind::OnDevice)?;
        let lowering = Lowering::new(&plan)?;
        let all = lowering.placement().bytes().device;
        let (_, tasks) = measured.run(|source| {
            let source = AlikeLayers::of(&plan.model, source);
            run_plan(options, &plan, &source)
        })?;
        let read = tasks.into_iter().filter(compute::is_read_of_weights);
        let read = read.map(|task| (dtype, all, task));
        measured.weight_reads.extend(read);
    }
    Ok(())
}

/// Products with weights in 4-bit groups, and what groups in the cache cost beside the narrowest type:
/// what they save of memory is least there.
fn measure_unpack(options: &ProbeOptions, measured: &mut Measured) -> Result<(), ProbeError> {
    let Some(dtype) = options.dtypes.iter().min_by_key(|d| d.size_bytes()) else {
        return Ok(());
    };
    let batches = options.batches();
    let mut run = |shape, batch: usize, compression| {
        let kind = Kind::Compressed(compression);
        let plan = compute::plan(shape, batches[batch], 5, *dtype, kind)?;
        let (_, tasks) = measured.run(|weights| run_plan(options, &plan, weights))?;
        let tasks = tasks.into_iter().map(|t| (*dtype, t));
        match compression.weights {
            true => measured.packed_weights.extend(tasks),
            false => measured.packed_caches.extend(tasks),
        }
        Ok::<_, ProbeError>(())
    };
    for &shape in options.shapes() {
        for batch in compute::PACKED_WEIGHTS {
            run(shape, batch, Compression::of(true, false))?;
        }
        for batch in compute::PACKED_CACHES {
            run(shape, batch, Compression::of(false, true))?;
        }
    }
    Ok(())
}

/// CPU attention over caches of many sizes, on one model: it does not know the model's width.
fn measure_cpu_attention(
    options: &ProbeOptions,
    dtype: Dtype,
    measured: &mut Measured,
) -> Result<(), ProbeError> {
    for batch in options.batches() {
        let plan = compute::plan(options.shapes()[1], batch, 5, dtype, Kind::CpuAttention)?;
        let (run, tasks) = measured.run(|weights| run_plan(options, &plan, weights))?;
        measured.handoffs.add(&run);
        let on_cpu = tasks.into_iter().filter(|t| t.kind == ResourceKind::Cpu);
        measured.compute.extend(on_cpu.map(|t| (dtype, t)));
    }
    Ok(())
}

/// Attention where a key head has one query head, and where it has several, over caches of the same size, on the device and on the CPU.
fn measure_shared(
    options: &ProbeOptions,
    dtype: Dtype,
    measured: &mut Measured,
) -> Result<(), ProbeError> {
    for kind in [Kind::OnDevice, Kind::CpuAttention] {
        for group in compute::SHARED {
            let on_card = options.cpu.card.is_some();
            let plan = compute::shared_plan(group, on_card, dtype, kind)?;
            let (_, tasks) = measured.run(|weights| run_plan(options, &plan, weights))?;
            measured
                .shared
                .extend(tasks.into_iter().map(|t| (dtype, t)));
        }
    }
    Ok(())
}

/// A plan that synchronises after every GPU batch while copies run.
fn measure_barriers(options: &ProbeOptions, measured: &mut Measured) -> Result<(), ProbeError> {
    let dtype = options.dtypes[0];
    let mut plan = compute::plan(options.shapes()[0], (1, 16), 5, dtype, Kind::OnDevice)?;
    let percent = [0.0, 100.0, 0.0, 100.0, 0.0, 100.0];
    plan.policy = Policy {
        barrier: true,
        ..Policy::from_percent(1, 3, percent).map_err(LowerError::from)?
    };
    plan.capacity_bytes = PerTier::from_fn(|_| Bytes(u64::MAX / 4));
    plan.capacity_bytes = footprint(&plan)?;
    let (run, _) = measured.run(|weights| run_plan(options, &plan, weights))?;
    measured.barriers = samples::barriers(&run);
    Ok(())
}

/// Bytes of a plan's weights, wherever they live.
fn all_weights(plan: &Plan) -> Result<f64, LowerError> {
    let PerTier { device, host, disk } = Lowering::new(plan)?.placement().bytes();
    Ok((device + host + disk).as_f64())
}

fn measure_contention(options: &ProbeOptions, measured: &mut Measured) -> Result<(), ProbeError> {
    // A GPU's memory is not the one that copies go through.
    let wide = options.cpu.card.is_none().then_some(compute::SHAPES[2]);
    let dtype = options.dtypes[0];
    let plans = contention::plans(dtype, options.shapes()[1], wide)?;
    let read = assemble::weight_reads(&measured.weight_reads);
    let read = read.into_iter().find(|read| read.dtype == dtype);
    for round in 0..contention::ROUNDS {
        for [overlapped, serial] in &plans {
            let all = all_weights(overlapped)?;
            let weights = read.clone().map(|read| contention::Weights { read, all });
            let (_, alone) = measured.run(|weights| run_plan(options, serial, weights))?;
            let (_, beside) = measured.run(|weights| run_plan(options, overlapped, weights))?;
            let tasks = (beside.as_slice(), alone.as_slice());
            measured.losses.add(round, tasks, weights.as_ref());
        }
    }
    Ok(())
}
