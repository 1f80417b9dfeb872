//! `plimsoll validate`: simulates and executes the same programs, and shows the error.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use plimsoll_backend::probe::ProbeOptions;
use plimsoll_core::Dtype;
use serde::Serialize;

use super::output::print_json;
use super::profile::{cpu_options, measure_with_progress, today};
use super::{Exit, Failure, Format, Progress, print};
use crate::files::{find_profile, read_text, write_atomically, write_text};
use crate::report::{
    Align, Point, Scatter, Table, scatter_svg, signed_percent, three_digits, to_csv,
    write_scatter_png,
};
use crate::trace_file::{Process, write_side_by_side};
use crate::validate::{
    BUILT_IN, CaseRow, Grid, Outcome, Score, Setting, disk_mode, score, validate,
};

/// Simulate and execute a grid of plans on this machine, and compare
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A grid of cases (TOML) [default: built in]
    #[arg(long, value_name = "FILE")]
    grid: Option<PathBuf>,
    /// A profile of this machine [default: measured now, quickly]
    #[arg(long, value_name = "PROFILE")]
    hw: Option<String>,
    /// Runs of each case [default: as the grid says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,
    /// Where tables, plots and the trace go
    #[arg(short, long, default_value = "plimsoll-validate", value_name = "DIR")]
    output: PathBuf,
    /// Where the disk tier's file goes
    #[arg(long, default_value = ".", value_name = "DIR")]
    disk_dir: PathBuf,
    /// Fail (exit code 6) where the median of the errors' sizes is above so many percent
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT", value_parser = not_negative)]
    median_max: f64,
    /// Fail (exit code 6) where their 95th percentile is above so many percent
    #[arg(long, default_value_t = 25.0, value_name = "PERCENT", value_parser = not_negative)]
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

#[derive(Serialize)]
struct Report<'a> {
    setting: &'a Setting,
    score: &'a Score,
    cases: &'a [CaseRow],
}

/// Runs it.
///
/// # Errors
/// A grid that is wrong; cases that do not fit; errors above the tolerance.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let grid = read_grid(args)?;
    let cpu = cpu_options(&args.disk_dir)?;
    fs::create_dir_all(&args.output)
        .with_context(|| format!("{}: cannot be made", args.output.display()))?;
    let profile = match &args.hw {
        Some(wanted) => find_profile(wanted)?,
        None => {
            let mut dtypes: Vec<Dtype> = grid.cases.iter().map(|c| c.dtype).collect();
            dtypes.dedup();
            let options = ProbeOptions {
                cpu: cpu.clone(),
                quick: true,
                dtypes,
                name: "this-machine".into(),
                date: today(),
            };
            measure_with_progress(&options)?
        }
    };
    // Measured once, it is kept whatever happens to the runs.
    write_text(&args.output.join("profile.toml"), &profile.to_toml())?;
    let bar = Progress::new("running", 1);
    let outcomes = validate(&grid, &profile, &cpu, &mut |done, total| {
        bar.set_of(done, total)
    })?;
    drop(bar);
    let rows: Vec<CaseRow> = outcomes.iter().map(CaseRow::of).collect();
    let score = score(&rows);
    let setting = Setting {
        hardware: profile.name.clone(),
        device: "emulated device",
        disk: disk_mode(&args.disk_dir),
        repeats: grid.repeats,
    };
    let report = Report {
        setting: &setting,
        score: &score,
        cases: &rows,
    };
    write_files(&args.output, &report, &outcomes)?;
    match args.format {
        Format::Json => print_json(&report)?,
        Format::Text => print(&text(&report, &args.output))?,
    }
    judge(args, &score)
}

fn read_grid(args: &Args) -> anyhow::Result<Grid> {
    let mut grid = match &args.grid {
        Some(path) => Grid::parse(&read_text(path)?, path)?,
        None => Grid::parse(BUILT_IN, Path::new("the built-in grid"))?,
    };
    if let Some(repeats) = args.repeats {
        grid.repeats = repeats;
    }
    Ok(grid)
}

fn judge(args: &Args, score: &Score) -> anyhow::Result<()> {
    let (median, p95) = (100.0 * score.median_abs_error, 100.0 * score.p95_abs_error);
    if median <= args.median_max && p95 <= args.p95_max {
        return Ok(());
    }
    let line = format!(
        "out of tolerance: median |error| {median:.1}% (at most {}%), p95 {p95:.1}% (at most {}%); \
         measure again on a quiet machine, or see {}",
        args.median_max,
        args.p95_max,
        args.output.join("cases.csv").display(),
    );
    Err(Failure::new(Exit::OutOfTolerance, line).into())
}

fn write_files(dir: &Path, report: &Report<'_>, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let csv = to_csv(report.cases)?;
    write_atomically(&dir.join("cases.csv"), |out| out.write_all(&csv))?;
    write_text(
        &dir.join("cases.json"),
        &(serde_json::to_string_pretty(report)? + "\n"),
    )?;
    let points: Vec<Point> = report.cases.iter().map(point).collect();
    let title = format!(
        "Predicted against measured latency, {} ({})",
        report.setting.hardware, report.setting.device
    );
    let scatter = Scatter {
        title: &title,
        points: &points,
    };
    write_text(&dir.join("scatter.svg"), &scatter_svg(&scatter)?)?;
    write_scatter_png(&dir.join("scatter.png"), &scatter)?;
    // The case that is furthest off is the one to look at.
    let worst = report
        .cases
        .iter()
        .zip(outcomes)
        .max_by(|a, b| a.0.error.abs().total_cmp(&b.0.error.abs()));
    if let Some((_, outcome)) = worst {
        write_atomically(&dir.join("trace.json"), |out| {
            let predicted = Process {
                name: "predicted",
                run: &outcome.predicted,
            };
            let measured = Process {
                name: "measured (emulated device)",
                run: &outcome.measured,
            };
            write_side_by_side(out, predicted, measured)
        })?;
    }
    Ok(())
}

fn point(row: &CaseRow) -> Point {
    Point {
        case: row.case.clone(),
        group: row.group.clone(),
        predicted_s: row.predicted_s,
        measured_s: row.measured_s,
    }
}

fn text(report: &Report<'_>, dir: &Path) -> String {
    let mut table = Table::new(&[
        ("case", Align::Left),
        ("predicted s", Align::Right),
        ("measured s", Align::Right),
        ("error", Align::Right),
        ("explained by", Align::Left),
        ("pace", Align::Right),
        ("repeats", Align::Right),
    ]);
    for row in report.cases {
        table.row([
            row.case.clone(),
            three_digits(row.predicted_s),
            three_digits(row.measured_s),
            signed_percent(row.error),
            format!("{} {:+.3} s", row.explained_by, row.explained_s),
            format!("{:.2}x", row.pace),
            format!("\u{b1}{:.0}%", 50.0 * row.repeat_range),
        ]);
    }
    let (setting, score) = (report.setting, report.score);
    let mut text = table.to_string();
    let _ = write!(
        text,
        "\n{} cases on an {}, {} repeats each, disk {}\n\
         error of latency: median {:.1}%, p95 {:.1}%, max {:.1}% (signed median {}); \
         Spearman {:.3}\n\
         pace: how much longer reference work took around the run than when this machine was profiled; \
         predictions are at that pace (at the profile's own: median {:.1}%, p95 {:.1}%)\nfiles in {}: profile.toml, cases.csv, cases.json, scatter.svg, scatter.png, \
         trace.json (the case furthest off, predicted above measured; open it in ui.perfetto.dev)\n",
        score.cases,
        setting.device,
        setting.repeats,
        setting.disk,
        100.0 * score.median_abs_error,
        100.0 * score.p95_abs_error,
        100.0 * score.max_abs_error,
        signed_percent(score.median_error),
        score.spearman,
        100.0 * score.median_abs_error_as_profiled,
        100.0 * score.p95_abs_error_as_profiled,
        dir.display(),
    );
    text
}
