//! Where cases are run: the executor's options, the meter of the machine's pace, and what is kept
//! between runs.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use plimsoll_backend::cpu::{CpuExecutor, CpuOptions};
use plimsoll_backend::probe::{Moment, PaceMeter};
use plimsoll_backend::weights::{Remembered, Synthetic};
use plimsoll_core::control::{Run, drive};
use plimsoll_core::hardware::{HardwareProfile, Slowness};
use plimsoll_core::lower::Lowering;
use plimsoll_core::plan::Plan;

use super::{Case, Why};
use crate::files::random_prompts;

/// How often a run is done again because the machine changed its pace during it.
const RESTARTS_MAX: u32 = 1;

pub(super) struct Bench<'a> {
    profile: &'a HardwareProfile,
    options: &'a CpuOptions,
    meter: PaceMeter,
    /// By model: making them up takes longer than most runs.
    weights: HashMap<String, Remembered<Synthetic>>,
}

/// A run, and how the machine went meanwhile.
#[derive(Debug)]
pub struct TimedRun {
    /// What ran when, in real time.
    pub run: Run,
    /// How much slower the machine was than when it was profiled, where the profile says.
    pub slowness: Option<Slowness>,
    /// Runs before this one that do not count, because the machine changed its pace during them.
    pub restarts: u32,
}

impl TimedRun {
    /// How long it took, in seconds.
    pub fn latency_s(&self) -> f64 {
        self.run.trace.makespan().0
    }
}

impl<'a> Bench<'a> {
    pub fn new(profile: &'a HardwareProfile, options: &'a CpuOptions) -> Bench<'a> {
        Bench {
            profile,
            options,
            meter: PaceMeter::new(options.pin_cores),
            weights: HashMap::new(),
        }
    }

    /// Executes a case once, timing the machine's pace before and after.
    pub fn run(&mut self, case: &Case, plan: &Plan) -> Result<TimedRun, Why> {
        let mut restarts = 0;
        loop {
            if self.options.interrupt.load(Ordering::Relaxed) {
                return Err(Why::interrupted());
            }
            let before = self.meter.now();
            let run = self.execute(case, plan)?;
            let after = self.meter.now();
            if Moment::is_steady(before, after) || restarts == RESTARTS_MAX {
                let pace = self.profile.compute.pace.as_ref();
                let slowness = pace.map(|_| Moment::between(before, after).slowness(self.profile));
                return Ok(TimedRun {
                    run,
                    slowness,
                    restarts,
                });
            }
            restarts += 1;
        }
    }

    fn execute(&mut self, case: &Case, plan: &Plan) -> Result<Run, Why> {
        let mut lowering = Lowering::new(plan)?;
        let options = CpuOptions {
            throttles: case.limits.throttles,
            ..self.options.clone()
        };
        let weights = self.weights.entry(plan.model.name.clone());
        let weights = weights.or_insert_with(|| Remembered::new(Synthetic { seed: 1 }));
        let mut executor = CpuExecutor::new(plan, lowering.placement(), weights, &options)?;
        let rounds = lowering.rounds().iter().flat_map(|r| &r.batches);
        let count = rounds.map(|b| u64::from(*b)).sum();
        let prompts = random_prompts(1, count, plan.workload.prompt_len, plan.model.vocab_size);
        let prompts: Vec<Vec<u32>> = prompts.into_iter().map(|p| p.prompt_token_ids).collect();
        executor.set_prompts(lowering.texts(), &prompts)?;
        Ok(drive(&mut lowering, &mut executor)?)
    }
}
