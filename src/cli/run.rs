//! `plimsoll run`: a plan on real memory tiers of this machine.

mod prepare;
mod report;
mod stopped;

use std::path::PathBuf;

use plimsoll_backend::cpu::{CpuExecutor, CpuOptions, Throttles};
use plimsoll_backend::weights::WeightSource;
use plimsoll_core::control::{Controller, Decision, DriveError, drive};
use plimsoll_core::executor::ExecutionError;
use plimsoll_core::lower::Lowering;
use plimsoll_core::program::Machine;
use plimsoll_core::trace::Trace;
use plimsoll_core::units::{BytesPerSecond, Seconds};

use super::Progress;
use super::exit::{Exit, Failure};
use super::options::{DtypeName, Format, WorkloadArgs, positive};
use super::output::check_outputs;
use super::profile::{DEVICE_THREADS, cpu_options};
use prepare::Prepared;
use report::Done;

/// A plan, or what makes one, and how to run it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plan to run; without it, one is made for --hw and --model
    #[arg(long, value_name = "FILE", conflicts_with_all = PLANNING_FLAGS)]
    plan: Option<PathBuf>,
    /// The machine to plan for, or to predict for beside --plan; only for a profile that was measured
    /// with `plimsoll profile` is the prediction one of this run
    #[arg(long, value_name = "PROFILE", required_unless_present = "plan")]
    hw: Option<String>,
    /// The model: a folder with a Hugging Face checkpoint, else a name or a config.json and
    /// synthetic weights [default: the plan's, synthetic]
    #[arg(long, required_unless_present = "plan")]
    model: Option<String>,
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    wish: super::plan::Wish,
    /// The type of weights, cache and activations
    #[arg(long, value_enum, default_value_t = DtypeName::F16)]
    dtype: DtypeName,
    /// Prompts, a line each: {"id": 1, "prompt_token_ids": [2, 100]} [default: random]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// For random prompts and synthetic weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where the disk tier's file goes
    #[arg(long, value_name = "DIR", default_value = ".")]
    disk_dir: PathBuf,
    /// The most that copies to the device carry, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive, allow_negative_numbers = true)]
    h2d_gb_s: Option<f64>,
    /// The most that copies from the device carry, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive, allow_negative_numbers = true)]
    d2h_gb_s: Option<f64>,
    /// The most that is read from the disk, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive, allow_negative_numbers = true)]
    disk_read_gb_s: Option<f64>,
    /// The most that is written to the disk, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive, allow_negative_numbers = true)]
    disk_write_gb_s: Option<f64>,
    /// Threads of the emulated device's matrix products; profiles are measured with 1, so with more
    /// nothing is predicted
    #[arg(long, value_name = "N", default_value_t = DEVICE_THREADS,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    device_threads: usize,
    /// Write a Chrome/Perfetto trace; with --hw, two tracks, predicted and measured
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write each prompt's tokens, a line each: {"id": 1, "token_ids": [5, 7]}
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const PLANNING_FLAGS: [&str; 9] = [
    "compress_weight",
    "compress_cache",
    "sparse_attention",
    "prompt_len",
    "gen_len",
    "num_prompts",
    "objective",
    "max_latency_s",
    "dtype",
];

impl Args {
    fn throttles(&self) -> Throttles {
        let rate = |gb_s: f64| BytesPerSecond(gb_s * 1e9);
        Throttles {
            h2d: self.h2d_gb_s.map(rate),
            d2h: self.d2h_gb_s.map(rate),
            disk_read: self.disk_read_gb_s.map(rate),
            disk_write: self.disk_write_gb_s.map(rate),
        }
    }
}

/// Runs and prints.
///
/// # Errors
/// Input that is wrong, a machine that lacks what the plan needs, or an interruption.
pub fn run(args: &Args) -> anyhow::Result<()> {
    check_outputs(args.output.as_deref(), args.trace.as_deref())?;
    let prepared = Prepared::new(args)?;
    let options = CpuOptions {
        throttles: args.throttles(),
        device_threads: args.device_threads,
        ..cpu_options(&args.disk_dir)?
    };
    let done = execute(args, &prepared, &options)?;
    report::write_and_print(args, &prepared, &done)
}

fn execute(args: &Args, prepared: &Prepared, options: &CpuOptions) -> anyhow::Result<Done> {
    let plan = &prepared.plan;
    let mut lowering = Lowering::new(plan)?;
    let (placement, texts) = (lowering.placement().clone(), lowering.texts().clone());
    let source: &dyn WeightSource = &*prepared.source;
    let passes = lowering.num_pieces();
    let progress = Progress::new("passes", passes);
    let mut executor = CpuExecutor::new(plan, &placement, source, options)?;
    executor.on_progress(|done, all| progress.say(&format!("weights, {done} of {all}")));
    executor.set_prompts(&texts, &prepared.prompt_ids())?;
    let mut watched = Watched {
        lowering: &mut lowering,
        progress: &progress,
        waits: 0,
    };
    match drive(&mut watched, &mut executor) {
        Ok(run) => Ok(Done {
            run,
            tokens: executor.generated(&texts),
            disk: executor.disk_mode().map(|mode| mode.describe()),
        }),
        Err(DriveError::Execution(ExecutionError::Interrupted)) => {
            let kept = stopped::keep(args, prepared, &texts, &mut executor);
            let line = format!("interrupted; {kept}");
            Err(Failure::new(Exit::Interrupted, line).into())
        }
        Err(DriveError::Execution(failed @ ExecutionError::Task { .. })) => {
            let kept = stopped::keep(args, prepared, &texts, &mut executor);
            Err(Failure::noted(&failed.into(), &kept).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// The plan's own decisions, with a look at how far they are.
struct Watched<'a> {
    lowering: &'a mut Lowering,
    progress: &'a Progress,
    waits: u64,
}

impl Controller for Watched<'_> {
    fn machine(&self) -> &Machine {
        self.lowering.machine()
    }

    fn decide(&mut self, now: Seconds, trace: &Trace) -> Decision {
        let decision = self.lowering.decide(now, trace);
        if let Decision::Wait(_) = decision {
            if self.waits == 0 {
                self.progress.say("passes");
            }
            self.progress.set(self.waits);
            self.waits += 1;
        }
        decision
    }
}
