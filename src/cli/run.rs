//! `plimsoll run`: a plan on real memory tiers of this machine.

mod answers;
mod choice;
mod prepare;
mod record;
mod report;
mod stopped;
mod watched;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use plimsoll_backend::cpu::{CpuExecutor, CpuOptions, Throttles};
use plimsoll_backend::weights::WeightSource;
use plimsoll_core::control::{DriveError, Run};
use plimsoll_core::executor::{ExecutionError, Executor};
use plimsoll_core::flow::Flow;
use plimsoll_core::lower::{Lowering, check_kept};
use plimsoll_core::units::BytesPerSecond;

use super::Progress;
use super::backend::Backend;
use super::exit::{Exit, Failure};
use super::options::{DtypeArgs, Format, WorkloadArgs, positive};
use super::output::Outputs;
use super::pace::Around;
use super::profile::cpu_options;
use super::threads::DeviceThreads;
use super::what_if::WhatIf;
use crate::files::{Reserved, input_name, is_file, is_standard_input, is_standard_output};
use answers::Answers;
use choice::ChoiceArgs;
use prepare::Prepared;
use report::Done;
use watched::Watched;

/// A plan, or what makes one, and how to run it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What runs plans
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// The plan to run (- is standard input); without it, one is made for --hw, --model and the prompts
    #[arg(long, value_name = "FILE", conflicts_with_all = PLANNING_FLAGS)]
    plan: Option<PathBuf>,
    /// The machine to plan for, or to predict for beside --plan; only for a profile that was measured
    /// with `plimsoll profile` is the prediction one of this run [default: measured quickly, where a plan
    /// is to be made]
    #[arg(long, value_name = "PROFILE")]
    hw: Option<String>,
    /// The model: a folder with a Hugging Face checkpoint (tokenizer.json and generation_config.json are
    /// used, too), else a name or a config.json and synthetic weights [default: the plan's, synthetic]
    #[arg(long, required_unless_present = "plan")]
    model: Option<String>,
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    what_if: WhatIf,
    #[command(flatten)]
    wish: super::plan::Wish,
    #[command(flatten)]
    dtype: DtypeArgs,
    /// Prompts, a line each: {"id": 1, "prompt": "Once"} or {"id": 1, "prompt_token_ids": [2, 100]}, of any
    /// lengths; the longest is the plan's prompt length where one is made; - reads standard input [default: random]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_len", "num_prompts"])]
    prompts: Option<PathBuf>,
    /// A single prompt, whose id is 1. Without --output its answer alone is printed, and the figures go to standard error
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompts", "prompt_len", "num_prompts"], allow_hyphen_values = true)]
    prompt: Option<String>,
    #[command(flatten)]
    choice: ChoiceArgs,
    /// For drawn tokens, random prompts and synthetic weights
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
    /// The most that the CPU reads of weights while it computes a part of a linear layer, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive, allow_negative_numbers = true)]
    cpu_gb_s: Option<f64>,
    #[command(flatten)]
    threads: DeviceThreads,
    /// Write a Chrome/Perfetto trace; with --hw, two tracks, predicted and measured; in gzip where the name ends
    /// in .gz
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write each prompt's answer as soon as it has ended, a line each: {"id": 1, "prompt_tokens": 4,
    /// "generated_token_ids": [5, 7], "text": "upon a", "finish_reason": "length"}; with - on standard output, and the
    /// figures on standard error
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Go on behind the answers that --output has from a run that was stopped, or killed
    #[arg(long, requires = "output")]
    resume: bool,
}

const PLANNING_FLAGS: [&str; 16] = [
    "device_gb",
    "host_gb",
    "disk_gb",
    "compress_weight",
    "compress_cache",
    "sparse_attention",
    "cpu_compute",
    "schedule",
    "no_overlap",
    "prompt_len",
    "gen_len",
    "num_prompts",
    "objective",
    "max_latency_s",
    "strategy",
    "dtype",
];

impl Args {
    /// Where prompts come from, as messages call it; none where they are made up.
    fn asked(&self) -> Option<&Path> {
        let flag = self.prompt.as_ref().map(|_| Path::new("--prompt"));
        self.prompts.as_deref().map(input_name).or(flag)
    }

    /// Whether the answer is all that standard output gets.
    fn answers_alone(&self) -> bool {
        self.prompt.is_some() && self.output.is_none() && self.format == Format::Text
    }

    /// Whether standard output gets rows, and nothing else then.
    fn rows_are_printed(&self) -> bool {
        self.output.as_deref().is_some_and(is_standard_output)
    }

    fn throttles(&self) -> Throttles {
        let rate = |gb_s: f64| BytesPerSecond(gb_s * 1e9);
        Throttles {
            h2d: self.h2d_gb_s.map(rate),
            d2h: self.d2h_gb_s.map(rate),
            disk_read: self.disk_read_gb_s.map(rate),
            disk_write: self.disk_write_gb_s.map(rate),
            cpu: self.cpu_gb_s.map(rate),
        }
    }
}

/// Runs and prints.
///
/// # Errors
/// Input that is wrong, a machine that lacks what the plan needs, or an interruption.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.backend.check_available()?;
    let reserved = reserved(args)?;
    // Where this machine is measured first, with as many as it then runs with.
    let threads = args.threads.of(args.backend, None);
    let cpu = args
        .backend
        .on_device(cpu_options(&args.disk_dir, threads)?)?;
    let prepared = Prepared::new(args, &cpu)?;
    if prepared.prompts.is_empty() {
        return report::print_nothing_left(args, prepared.kept.rows());
    }
    let cpu = match &prepared.profile {
        Some(profile) => args.backend.choosing_by(cpu, profile),
        None => cpu,
    };
    let options = CpuOptions {
        throttles: args.throttles(),
        device_threads: prepared.device_threads as usize,
        draws: prepared.draws(),
        ..cpu
    };
    let mut answers = Answers::new(&prepared, reserved, report::shown(args.format));
    let done = execute(args, &prepared, &options, &mut answers)?;
    report::write_and_print(args, &prepared, &done, answers.failure())
}

/// The file for rows, which no other run may write to from now on. Refuses outputs that one does, or that would take the place of what
/// this one reads, or leaves beside its rows.
fn reserved(args: &Args) -> anyhow::Result<Option<Reserved>> {
    let (rows, trace) = (args.output.as_deref(), args.trace.as_deref());
    // What is no regular file has none.
    let record = rows.filter(|rows| is_file(rows)).map(record::beside);
    let record = ("the record of --output", record.as_deref());
    let (plan, prompts) = (args.plan.as_deref(), args.prompts.as_deref());
    if [plan, prompts].map(|it| it.is_some_and(is_standard_input)) == [true, true] {
        let line = "--plan and --prompts are both standard input; give one of them as a file";
        return Err(Failure::new(Exit::Usage, line).into());
    }
    Outputs::of([("--output", rows), ("--trace", trace), record])
        .apart_from([("--plan", plan), ("--prompts", prompts)])
        .sparing(args.hw.as_deref(), args.model.as_deref())
        .check()?;
    let reserved = rows.map(|file| {
        Reserved::of(file).map_err(|error| {
            let why = match error.kind() {
                ErrorKind::ResourceBusy => format!(
                    "{}: another run is writing to it; wait for its end, or give another file",
                    file.display()
                ),
                _ => error.to_string(),
            };
            Failure::new(Exit::Usage, format!("--output {why}")).into()
        })
    });
    reserved.transpose()
}

fn execute(
    args: &Args,
    prepared: &Prepared,
    options: &CpuOptions,
    answers: &mut Answers<'_>,
) -> anyhow::Result<Done> {
    let plan = &prepared.plan;
    let lowering = Lowering::new(plan)?;
    if args.trace.is_some() {
        check_kept(plan)?;
    }
    let (placement, texts) = (lowering.placement().clone(), lowering.texts().clone());
    let source: &dyn WeightSource = &*prepared.source;
    let passes = lowering.passes().clone();
    let predicted = prepared.profile.as_ref();
    let around = Around::begin(predicted.filter(|_| plan.prediction.is_some()), options);
    let progress = Progress::new("passes", lowering.num_pieces());
    progress.say("taking memory, then passes");
    let made = CpuExecutor::new(plan, &placement, source, options);
    let mut executor = made.map_err(|error| stopped::before(args, error))?;
    report::announce(prepared);
    executor.on_progress(|done, all| progress.bytes("weights", done, all));
    executor.set_prompts(&texts, &prepared.prompt_ids())?;
    let outlets = executor.outlets(&texts);
    let mut watched = Watched {
        executor: &mut executor,
        keeps: args.trace.is_some(),
        outlets: &outlets,
        answers,
        interrupt: &options.interrupt,
        progress: &progress,
        passes: &passes,
        ended: 0,
        tokens: 0,
    };
    match watched.follow(Flow::new(plan, lowering)) {
        Ok((measured, pieces)) => Ok(Done {
            measured,
            pace: around.and_then(Around::end),
            run: args.trace.is_some().then(|| Run {
                machine: plan.machine(),
                pieces,
                trace: executor.trace().clone(),
            }),
            tokens: answers.take_shown(),
            disk: executor.disk_mode().map(|mode| mode.describe()),
        }),
        Err(DriveError::Execution(ExecutionError::Interrupted)) => {
            let kept = stopped::keep(args, answers, &texts, &mut executor);
            Err(match answers.failure() {
                Some(error) => Failure::noted(&error.into(), &kept).into(),
                None => Failure::new(Exit::Interrupted, format!("interrupted; {kept}")).into(),
            })
        }
        Err(DriveError::Execution(failed @ ExecutionError::Task { .. })) => {
            let kept = stopped::keep(args, answers, &texts, &mut executor);
            Err(Failure::noted(&failed.into(), &kept).into())
        }
        Err(error) => Err(error.into()),
    }
}
