//! Where cases are run: the executor's options, the meter of the machine's pace, and what is kept
//! between runs.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use plimsoll_backend::cpu::{CpuExecutor, CpuOptions};
use plimsoll_backend::probe::{Moment, PaceMeter};
use plimsoll_backend::weights::{Remembered, Synthetic};
use plimsoll_core::control::{Run, drive};
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{Lowering, footprint};
use plimsoll_core::plan::Plan;
use plimsoll_core::units::Bytes;

use super::{Case, Why};
use crate::files::random_prompts;

pub(super) struct Bench<'a> {
    options: &'a CpuOptions,
    /// Whether predictions know how much slower links are than when they were profiled.
    knows_links: bool,
    meter: Option<PaceMeter>,
    weights: Weights,
}

/// By model: making them up takes longer than most runs.
type Weights = HashMap<String, Remembered<Synthetic>>;

/// A run, and how the machine went meanwhile.
#[derive(Debug)]
pub struct TimedRun {
    /// What ran when, in real time.
    pub run: Run,
    /// How the machine went around it.
    pub moment: Moment,
    /// Whether there was a run before that does not count, because the machine changed its pace.
    pub restarted: bool,
}

impl TimedRun {
    /// How long it took, in seconds.
    pub fn latency_s(&self) -> f64 {
        self.run.trace.makespan().0
    }
}

impl<'a> Bench<'a> {
    pub fn new(options: &'a CpuOptions, profile: &HardwareProfile) -> Bench<'a> {
        let links = [&profile.links.h2d, &profile.links.d2h];
        Bench {
            options,
            knows_links: links.iter().any(|link| link.pace.is_some()),
            meter: None,
            weights: HashMap::new(),
        }
    }

    /// Executes a case once, timing the machine's pace before and after.
    pub fn run(&mut self, case: &Case, plan: &Plan) -> Result<TimedRun, Why> {
        let (options, weights) = (self.options, &mut self.weights);
        let meter = match self.meter.take() {
            Some(meter) => meter,
            None => PaceMeter::new(options)?,
        };
        let meter = self.meter.insert(meter);
        let on_disk = footprint(plan).map_or(Bytes::ZERO, |needs| needs.disk);
        meter.watch_disk((on_disk > Bytes::ZERO).then_some(on_disk));
        let shares = [
            plan.policy.weights,
            plan.policy.cache,
            plan.policy.activations,
        ];
        let moves = shares.iter().any(|shares| shares.device < 1.0);
        meter.watch_links(self.knows_links && moves);
        let paced = meter.steadily(|| {
            if options.interrupt.load(Ordering::Relaxed) {
                return Err(Why::interrupted());
            }
            execute(options, weights, case, plan)
        })?;
        Ok(TimedRun {
            run: paced.result,
            moment: paced.moment,
            restarted: paced.restarted,
        })
    }
}

fn execute(
    options: &CpuOptions,
    weights: &mut Weights,
    case: &Case,
    plan: &Plan,
) -> Result<Run, Why> {
    let mut lowering = Lowering::new(plan)?;
    let throttled = CpuOptions {
        throttles: case.limits.throttles,
        ..options.clone()
    };
    let weights = weights.entry(plan.model.name.clone());
    let weights = weights.or_insert_with(|| Remembered::new(Synthetic { seed: 1 }));
    let mut executor = CpuExecutor::new(plan, lowering.placement(), weights, &throttled)?;
    let rounds = lowering.rounds().iter().flat_map(|r| &r.batches);
    let count = rounds.map(|b| u64::from(*b)).sum();
    let prompts = random_prompts(1, count, plan.workload.prompt_len, plan.model.vocab_size);
    let prompts: Vec<Vec<u32>> = prompts.into_iter().map(|p| p.prompt_token_ids).collect();
    executor.set_prompts(lowering.texts(), &prompts)?;
    Ok(drive(&mut lowering, &mut executor)?)
}
