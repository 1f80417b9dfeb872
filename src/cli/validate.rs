//! `plimsoll validate`: simulates and executes the same programs, and shows the error.

mod again;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::probe::ProbeOptions;
use plimsoll_core::Dtype;
use plimsoll_core::hardware::{DeviceKind, HardwareProfile, Source, SourceKind};
use plimsoll_sim::CostModel;

use super::backend::Backend;
use super::output::{complain, print_json};
use super::profile::{cpu_options, measure_with_progress, today};
use super::threads::{DeviceThreads, differ, stated};
use super::{Exit, Failure, Format, Progress, print};
use crate::files::{read_text, write_text};
use crate::report::count;
use crate::residuals;
use crate::validate::{
    BUILT_IN, BUILT_IN_FOR_GPUS, CaseError, Errors, Grid, Score, Setting, Validation, Why,
    check_executable, disk_mode,
};
use report::Report;

/// Simulate and execute a grid of plans on this machine, and compare
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What runs plans
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// A grid of cases (TOML) [default: built in]
    #[arg(long, value_name = "FILE")]
    grid: Option<PathBuf>,
    /// A profile of this machine (with --measured, of the one that was) [default: measured now, quickly]
    #[arg(long, value_name = "PROFILE")]
    hw: Option<String>,
    /// Run nothing and write nothing: predict the cases of an earlier validation again (its cases.csv), beside what it measured
    #[arg(long, value_name = "FILE", requires = "hw",
          conflicts_with_all = ["repeats", "output", "all_traces", "device_threads", "disk_dir"])]
    measured: Option<PathBuf>,
    /// Runs of each case [default: as the grid says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,
    /// Where tables, plots and the trace go
    #[arg(short, long, default_value = "plimsoll-validate", value_name = "DIR")]
    output: PathBuf,
    /// Keep each case's trace (DIR/traces), not only that of the case furthest off
    #[arg(long)]
    all_traces: bool,
    #[command(flatten)]
    threads: DeviceThreads,
    /// Where the disk tier's file goes
    #[arg(long, default_value = ".", value_name = "DIR")]
    disk_dir: PathBuf,
    /// Fail (exit code 6) where the median of the errors' sizes is above so many percent
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT", value_parser = not_negative,
          allow_negative_numbers = true)]
    median_max: f64,
    /// Fail (exit code 6) where their 95th percentile is above so many percent
    #[arg(long, default_value_t = 25.0, value_name = "PERCENT", value_parser = not_negative,
          allow_negative_numbers = true)]
    p95_max: f64,
    /// How results are printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// A number from 0 on.
fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 0.0 => Ok(number),
        _ => Err("give a number from 0 on".to_owned()),
    }
}

/// Runs it. What can be refused is refused before anything is measured, and what was measured is kept
/// whatever happens later: tables are written anew after each run.
///
/// # Errors
/// A grid that is wrong; cases that do not fit, or fail; an interruption; errors above the tolerance.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let (Some(hw), Some(measured)) = (&args.hw, &args.measured) {
        return again::run(args, hw, measured);
    }
    let mut grid = read_grid(args)?;
    check_executable(&grid)?;
    args.backend.check_available()?;
    let given = args.hw.as_deref();
    let given = given.map(|hw| args.backend.profile(hw, "cases run"));
    let given = given.transpose()?;
    given
        .iter()
        .for_each(|profile| keep_known(&mut grid, profile));
    let threads = threads(args, given.as_ref())?;
    let cpu = args
        .backend
        .on_device(cpu_options(&args.disk_dir, threads)?)?;
    open_output(&args.output)?;
    let disk = disk_mode(&args.disk_dir)?;
    let profile = match given {
        Some(profile) => profile,
        None => measured(args.backend, &grid, &cpu).map_err(|error| before_any_run(&cpu, error))?,
    };
    let cpu = args.backend.choosing_by(cpu, &profile);
    let profile_file = args.output.join("profile.toml");
    // Beside tables of an earlier run its own profile stays until there are new ones; what was measured is kept anyhow.
    let mut is_to_come = report::has_tables(&args.output);
    let first = match is_to_come {
        true => args.output.join("profile.new.toml"),
        false => profile_file.clone(),
    };
    write_text(&first, &profile.to_toml())?;
    let setting = Setting {
        hardware: profile.name.clone(),
        device: args.backend.words(),
        disk,
        repeats: grid.repeats,
    };
    let mut validation = Validation::new(&grid, &profile, &cpu)
        .map_err(|error| before_any_run(&cpu, refused(error)))?;
    let asked = validation.coverage().runs_asked as u64;
    let bar = Progress::new("running", asked);
    let tables = validation.run(&mut |so_far| {
        let report = Report::of(so_far, &setting, &profile);
        bar.set(report.coverage.runs as u64);
        if std::mem::take(&mut is_to_come) {
            fs::rename(&first, &profile_file)?;
        }
        report::write_tables(&args.output, &report)
    });
    drop(bar);
    let report = Report::of(&validation, &setting, &profile);
    let compared = match compared(&profile, &report) {
        Some(compared) => write_text(&profile_file, &compared.to_toml()),
        None => Ok(()),
    };
    if let Some(score) = &report.score {
        let pictures =
            report::write_pictures(&args.output, &report, validation.trials(), args.all_traces);
        let printed = match args.format {
            Format::Json => print_json(&report),
            Format::Text => print(&report::text(&report, score, &args.output)),
        };
        // What was measured is shown, wherever it cannot be written.
        tables.and(pictures).and(compared)?;
        printed?;
    }
    finish(args, validation, report.score.as_ref())
}

/// Leaves out cases of types that a processor's profile has no rates of, where it has those of others: another type's say little
/// of it. A GPU multiplies f16 and bf16 alike.
fn keep_known(grid: &mut Grid, profile: &HardwareProfile) {
    let is_gpu = profile.kind == DeviceKind::Gpu;
    let known = |dtype: Dtype| is_gpu || CostModel::new(profile, dtype).stand_in().is_none();
    let (all, dtypes) = (grid.cases.len(), dtypes(grid));
    if !dtypes.iter().any(|dtype| known(*dtype)) {
        return;
    }
    grid.cases.retain(|case| known(case.dtype));
    let left_out = all - grid.cases.len();
    if left_out > 0 {
        let unknown = dtypes.iter().filter(|dtype| !known(**dtype));
        let names = |dtypes: &mut dyn Iterator<Item = &Dtype>| {
            let names: Vec<&str> = dtypes.map(|dtype| dtype.name()).collect();
            names.join(",")
        };
        complain(&format!(
            "{} left out: {} has no rates of {} products; `plimsoll profile --dtype {}` measures all that are asked for",
            count(left_out as u64, "case"),
            profile.name,
            names(&mut { unknown }),
            names(&mut dtypes.iter()),
        ));
    }
}

/// The types of a grid's cases.
fn dtypes(grid: &Grid) -> Vec<Dtype> {
    let mut dtypes: Vec<Dtype> = grid.cases.iter().map(|case| case.dtype).collect();
    dtypes.sort_by_key(|dtype| dtype.name());
    dtypes.dedup();
    dtypes
}

/// Threads of the emulated device, which have to be those of a profile that is given: it predicts no other.
fn threads(args: &Args, given: Option<&HardwareProfile>) -> Result<u32, Failure> {
    let threads = args.threads.of(args.backend, given.and_then(stated));
    match given.and_then(|profile| differ(threads, profile)) {
        Some(why) => Err(Failure::new(
            Exit::Usage,
            format!("--device-threads {threads}: {why}"),
        )),
        None => Ok(threads),
    }
}

/// The profile with how far off its predictions were, at its own pace as plans are predicted; none where
/// too few cases have run.
fn compared(profile: &HardwareProfile, report: &Report<'_>) -> Option<HardwareProfile> {
    // Errors here are of latencies, those of a profile are of rates.
    let errors = report
        .cases
        .iter()
        .map(|case| -case.error_as_profiled.ln_1p());
    let source = Source {
        kind: SourceKind::Measured,
        from: format!(
            "`plimsoll validate`, {}, predicted at the pace of the profile",
            report.coverage
        ),
        date: today(),
    };
    let mut compared = profile.clone();
    let errors: Vec<f64> = errors.collect();
    residuals::put_into(&mut compared, &errors, ("validated", source)).then_some(compared)
}

fn read_grid(args: &Args) -> anyhow::Result<Grid> {
    let mut grid = match &args.grid {
        Some(path) => Grid::parse(&read_text(path)?, path)?,
        None => {
            let text = match args.backend {
                Backend::Cpu => BUILT_IN,
                Backend::Cuda => BUILT_IN_FOR_GPUS,
            };
            Grid::parse(text, Path::new("the built-in grid"))?
        }
    };
    if let Some(repeats) = args.repeats {
        grid.repeats = repeats;
    }
    Ok(grid)
}

/// Makes the folder of the results and tries it.
fn open_output(dir: &Path) -> Result<(), Failure> {
    let tried = fs::create_dir_all(dir).and_then(|()| tempfile::tempfile_in(dir));
    tried.map(drop).map_err(|error| {
        let dir = dir.display();
        let remedy = "give -o a folder that can be written to";
        let line = format!("--output {dir}: cannot be written to: {error}; {remedy}");
        Failure::new(Exit::Usage, line)
    })
}

fn measured(backend: Backend, grid: &Grid, cpu: &CpuOptions) -> anyhow::Result<HardwareProfile> {
    measure_with_progress(&ProbeOptions {
        cpu: cpu.clone(),
        quick: true,
        dtypes: backend.computed(dtypes(grid))?,
        models: Vec::new(),
        name: "this-machine".into(),
        date: today(),
    })
}

/// An interruption that found nothing to keep.
fn before_any_run(cpu: &CpuOptions, error: anyhow::Error) -> anyhow::Error {
    match cpu.interrupt.load(Ordering::Relaxed) {
        true => Failure::new(Exit::Interrupted, "interrupted before any case was run").into(),
        false => error,
    }
}

/// A case that no plan fits is infeasible, as it is for `plan`.
fn refused(error: CaseError) -> anyhow::Error {
    match error.why {
        Why::Infeasible(_) => Failure::new(Exit::Infeasible, error.to_string()).into(),
        _ => error.into(),
    }
}

/// What the process says in the end: what is missing, and only of a whole grid whether it is good.
fn finish(args: &Args, validation: Validation<'_>, score: Option<&Score>) -> anyhow::Result<()> {
    let coverage = validation.coverage();
    let kept = format!("{coverage} are kept in {}", args.output.display());
    if coverage.interrupted {
        return Err(Failure::new(Exit::Interrupted, format!("interrupted; {kept}")).into());
    }
    if let Some(failure) = validation.into_failure() {
        let not_all = format!("not all cases could be run ({kept})");
        return Err(refused(failure).context(not_all));
    }
    let Some(score) = score else { return Ok(()) };
    judge(args, &score.errors).map_err(|said| {
        let unsteady = report::unsteady(score).map_or(String::new(), |said| format!("{said}; "));
        let line = format!(
            "{said}; {unsteady}measure again on a quiet machine, or see {}",
            args.output.join("cases.csv").display(),
        );
        Failure::new(Exit::OutOfTolerance, line).into()
    })
}

/// Whether errors are as small as is asked for, and what they are where they are not.
fn judge(args: &Args, errors: &Errors) -> Result<(), String> {
    let (median, p95) = (
        100.0 * errors.median_abs_error,
        100.0 * errors.p95_abs_error,
    );
    if median <= args.median_max && p95 <= args.p95_max {
        return Ok(());
    }
    Err(format!(
        "out of tolerance: median |error| {median:.1}% (at most {}%), p95 {p95:.1}% (at most {}%)",
        args.median_max, args.p95_max,
    ))
}
