//! Prediction beside measurement: the same program, simulated and executed, case by case.

mod grid;
mod score;

use std::collections::HashMap;
use std::path::Path;

use plimsoll_backend::cpu::{CpuError, CpuExecutor, CpuOptions};
use plimsoll_backend::probe::{Moment, PaceMeter};
use plimsoll_backend::weights::{Remembered, Synthetic};
use plimsoll_core::control::{DriveError, Run, drive};
use plimsoll_core::hardware::{HardwareProfile, Slowness};
use plimsoll_core::lower::{LowerError, Lowering};
use plimsoll_core::plan::Plan;
use plimsoll_core::summary::Summary;
use plimsoll_sim::simulate;
use serde::Serialize;
use thiserror::Error;

use crate::files::random_prompts;
use crate::planner;
pub use grid::{BUILT_IN, Case, Grid, Limits};
pub use score::{CaseRow, Score, score};

/// Why a validation has no result.
#[derive(Debug, Error)]
pub enum ValidateError {
    /// The case's plan does not fit its machine.
    #[error("case `{case}`: {source}")]
    Lower {
        /// Which.
        case: String,
        /// Why.
        source: LowerError,
    },
    /// The simulator stopped.
    #[error("case `{case}`: {source}")]
    Simulate {
        /// Which.
        case: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The planner stopped, or found nothing that fits.
    #[error("case `{case}`: {what}")]
    Plan {
        /// Which.
        case: String,
        /// Why.
        what: String,
    },
    /// The executor could not be made.
    #[error("case `{case}`: {source}")]
    Cpu {
        /// Which.
        case: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The run stopped.
    #[error("case `{case}`: {source}")]
    Drive {
        /// Which.
        case: String,
        /// Why.
        source: DriveError,
    },
}

/// A case with its prediction and its measurements.
#[derive(Debug)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// Its placement.
    pub group: String,
    /// What was run.
    pub plan: Plan,
    /// Latency in modelled time at the pace at which the profile was measured, in seconds.
    pub predicted_as_profiled_s: f64,
    /// In modelled time, at the pace that the machine had around the measured run.
    pub predicted: Run,
    /// That pace.
    pub slowness: Slowness,
    /// Runs that were done again because the machine changed its pace during them.
    pub restarts: u32,
    /// In real time: the repeat of median latency.
    pub measured: Run,
    /// Latency of every repeat, in seconds, in the order they were run.
    pub latencies_s: Vec<f64>,
}

/// What a validation says of itself besides its cases.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// The hardware profile.
    pub hardware: String,
    /// "emulated device".
    pub device: &'static str,
    /// How the disk was read and written.
    pub disk: String,
    /// Runs of each case.
    pub repeats: u32,
}

struct Prepared<'a> {
    case: &'a Case,
    plan: Plan,
    predicted: Run,
    runs: Vec<(Run, Slowness)>,
    restarts: u32,
}

/// How often a run is done again because the machine changed its pace during it.
const RESTARTS_MAX: u32 = 1;

/// Predicts and runs every case. Repeats are interleaved: all cases once, then all again. `progress`
/// hears how many of how many runs are done.
///
/// # Errors
/// The first case that cannot be planned or run.
pub fn validate(
    grid: &Grid,
    profile: &HardwareProfile,
    options: &CpuOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Outcome>, ValidateError> {
    let mut prepared = Vec::new();
    for case in &grid.cases {
        prepared.push(prepare(case, profile)?);
    }
    let mut bench = Bench {
        options,
        meter: PaceMeter::new(options.pin_cores),
        weights: HashMap::new(),
    };
    let total = prepared.len() as u64 * u64::from(grid.repeats);
    let mut done = 0;
    for _ in 0..grid.repeats {
        for case in &mut prepared {
            progress(done, total);
            case.run(profile, &mut bench)?;
            done += 1;
        }
    }
    progress(total, total);
    prepared
        .into_iter()
        .map(|case| case.finish(profile))
        .collect()
}

impl Prepared<'_> {
    /// Executes the case once, timing the machine's pace before and after.
    fn run(
        &mut self,
        profile: &HardwareProfile,
        bench: &mut Bench<'_>,
    ) -> Result<(), ValidateError> {
        let mut restarts = 0;
        loop {
            let before = bench.meter.now();
            let run = bench.execute(self.case, &self.plan)?;
            let after = bench.meter.now();
            if Moment::is_steady(before, after) || restarts == RESTARTS_MAX {
                let slowness = Moment::between(before, after).slowness(profile);
                self.runs.push((run, slowness));
                return Ok(());
            }
            restarts += 1;
            self.restarts += 1;
        }
    }

    /// Takes the repeat of median latency, and predicts it at its pace.
    fn finish(mut self, profile: &HardwareProfile) -> Result<Outcome, ValidateError> {
        let latency = |run: &Run| run.trace.makespan().0;
        let latencies_s = self.runs.iter().map(|(run, _)| latency(run)).collect();
        self.runs
            .sort_by(|a, b| latency(&a.0).total_cmp(&latency(&b.0)));
        let middle = (self.runs.len() - 1) / 2;
        let (measured, slowness) = self.runs.swap_remove(middle);
        let machine = machine_of(self.case, profile, &slowness);
        Ok(Outcome {
            name: self.case.name.clone(),
            group: self.case.group.clone(),
            predicted_as_profiled_s: latency(&self.predicted),
            predicted: predict(self.case, &self.plan, &machine)?,
            plan: self.plan,
            measured,
            slowness,
            restarts: self.restarts,
            latencies_s,
        })
    }
}

fn predict(case: &Case, plan: &Plan, machine: &HardwareProfile) -> Result<Run, ValidateError> {
    simulate(plan, machine).map_err(|source| ValidateError::Simulate {
        case: case.name.clone(),
        source: Box::new(source),
    })
}

/// The machine of a case at a pace, as the simulator knows it.
fn machine_of(case: &Case, profile: &HardwareProfile, slowness: &Slowness) -> HardwareProfile {
    case.limits.hold(&profile.at_pace(slowness))
}

fn prepare<'a>(case: &'a Case, profile: &HardwareProfile) -> Result<Prepared<'a>, ValidateError> {
    let machine = machine_of(case, profile, &Slowness::NONE);
    let plan = match case.policy {
        Some(policy) => case.plan(policy, &machine.name, machine.usable()),
        None => planned(case, &machine)?,
    };
    let predicted = predict(case, &plan, &machine)?;
    let plan = Plan {
        prediction: Some(Summary::of(&predicted)),
        ..plan
    };
    Ok(Prepared {
        case,
        plan,
        predicted,
        runs: Vec::new(),
        restarts: 0,
    })
}

fn planned(case: &Case, machine: &HardwareProfile) -> Result<Plan, ValidateError> {
    let no_plan = |what: String| ValidateError::Plan {
        case: case.name.clone(),
        what,
    };
    let request = planner::Request {
        workload: case.workload,
        objective: planner::Objective::Throughput,
        max_latency_s: None,
    };
    match planner::search(machine, &case.model, case.dtype, &request) {
        Ok(planner::Answer::Plan(planned) | planner::Answer::TooSlow(planned)) => Ok(planned.plan),
        Ok(planner::Answer::Infeasible(why)) => Err(no_plan(why.to_string())),
        Err(error) => Err(no_plan(error.to_string())),
    }
}

/// What runs cases: the executor's options, and what is kept between runs.
struct Bench<'a> {
    options: &'a CpuOptions,
    meter: PaceMeter,
    /// By model: making them up takes longer than most runs.
    weights: HashMap<String, Remembered<Synthetic>>,
}

impl Bench<'_> {
    fn execute(&mut self, case: &Case, plan: &Plan) -> Result<Run, ValidateError> {
        let name = || case.name.clone();
        let mut lowering = Lowering::new(plan).map_err(|source| ValidateError::Lower {
            case: name(),
            source,
        })?;
        let options = CpuOptions {
            throttles: case.limits.throttles,
            ..self.options.clone()
        };
        let cpu = |source: CpuError| ValidateError::Cpu {
            case: name(),
            source: Box::new(source),
        };
        let weights = self.weights.entry(plan.model.name.clone());
        let weights = weights.or_insert_with(|| Remembered::new(Synthetic { seed: 1 }));
        let mut executor =
            CpuExecutor::new(plan, lowering.placement(), weights, &options).map_err(cpu)?;
        let count = lowering
            .rounds()
            .iter()
            .flat_map(|r| &r.batches)
            .map(|b| u64::from(*b))
            .sum();
        let prompts = random_prompts(1, count, plan.workload.prompt_len, plan.model.vocab_size);
        let prompts: Vec<Vec<u32>> = prompts.into_iter().map(|p| p.prompt_token_ids).collect();
        executor
            .set_prompts(lowering.texts(), &prompts)
            .map_err(cpu)?;
        drive(&mut lowering, &mut executor).map_err(|source| ValidateError::Drive {
            case: name(),
            source,
        })
    }
}

/// How the disk tier would be read and written in a directory, in words.
pub fn disk_mode(dir: &Path) -> String {
    use plimsoll_backend::tiers::DiskTier;
    match DiskTier::create(dir, plimsoll_core::units::Bytes(4096)) {
        Ok(disk) => disk.mode().describe().to_owned(),
        Err(error) => error.to_string(),
    }
}
