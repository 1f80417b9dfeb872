//! `plimsoll calibrate`: a profile's constants fitted to measured runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{HardwareProfile, Residuals, Source, SourceKind};
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::options::positive;
use super::output::{Outputs, print, print_json};
use super::profile::today;
use super::{Format, Progress};
use crate::calibrate::{
    CONSTANTS, Constant, Fit, FitOptions, FittedConstant, RecordedRun, SAYS_NOTHING, fit,
    read_runs, sizes, source_of_fit,
};
use crate::files::{find_profile, write_text};
use crate::report::{Align, Table, count, signed_percent, three_digits};
use crate::residuals;

/// A machine and runs on it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The profile to start from, and to stay near: a path, a name in hw-profiles/, or an embedded one
    #[arg(long, value_name = "PROFILE")]
    hw: String,
    /// Measured runs (CSV), as for `score`. Runs whose hw column names another machine are left out;
    /// where some name this one, only those count. Rates of products are fitted for f16
    #[arg(long, value_name = "FILE", required = true)]
    runs: Vec<PathBuf>,
    /// Write the fitted profile
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Fit only these constants [default: all that the profile states]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    constants: Vec<String>,
    /// How far a constant is likely to be off, as a fraction
    #[arg(long, value_name = "SPREAD", default_value_t = 0.3, value_parser = positive,
          allow_negative_numbers = true)]
    prior: f64,
    /// How far a run is likely to be off, as a fraction
    #[arg(long, value_name = "SPREAD", default_value_t = 0.05, value_parser = positive,
          allow_negative_numbers = true)]
    noise: f64,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Fits, prints and writes.
///
/// # Errors
/// Input that is wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let output = args.output.as_deref();
    Outputs::of([("--output", output)])
        .apart_from(args.runs.iter().map(|path| ("--runs", Some(&**path))))
        .sparing(Some(&args.hw), [])
        .check()?;
    let base = find_profile(&args.hw)?;
    let mut runs = Vec::new();
    for path in &args.runs {
        let read = read_runs(path)?.into_iter();
        runs.extend(read.map(|run| (path, run)));
    }
    runs.retain(|(_, run)| run.has_number());
    keep_those_of(&base.name, &mut runs);
    runs.iter()
        .try_for_each(|(path, run)| run.check_gpus(&base, path))?;
    let mut runs: Vec<RecordedRun> = runs.into_iter().map(|(_, run)| run).collect();
    let repeats = drop_repeated(&mut runs);
    if runs.is_empty() {
        let line = "--runs: no run with a measured number is on this machine; give some";
        return Err(Failure::new(Exit::BadInput, line.to_owned()).into());
    }
    let options = FitOptions {
        constants: constants(args, &base)?,
        prior: args.prior,
        noise: args.noise,
    };
    let bar = Progress::new("fitting", 1);
    let mut found = fit(&base, &runs, &options, &|done, all| {
        bar.set_of(done as u64, all as u64);
    })?;
    drop(bar);
    let from = format!(
        "`plimsoll calibrate` of {} on {}",
        count(runs.len() as u64, "run"),
        base.name
    );
    say_what_moved(&mut found, &from);
    let log_errors = by_configuration(&runs, &found.left_out);
    let left_out = Source {
        kind: SourceKind::Fitted,
        from: format!("errors of {from}, each configuration left out of the fit"),
        date: today(),
    };
    let kept = residuals::put_into(&mut found.profile, &log_errors, ("left-out", left_out));
    if !kept && !found.constants.iter().all(FittedConstant::stays) {
        // Those that the profile had are of other constants.
        found.profile.residuals = None;
    }
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let report = Report::of(&base, &found, (&names, repeats), kept);
    let printed = match args.format {
        Format::Json => print_json(&report),
        Format::Text => print(&report.text()),
    };
    if let Some(path) = &args.output {
        found.profile.name = stem(path);
        write_text(path, &found.profile.to_toml())?;
    }
    printed
}

/// Says in the fitted profile which constants come from the runs; the others keep the sources that they had.
fn say_what_moved(found: &mut Fit, from: &str) {
    let source = Source {
        kind: SourceKind::Fitted,
        from: from.to_owned(),
        date: today(),
    };
    let name = source_of_fit(&found.profile);
    let mut moved = Vec::new();
    for fitted in found.constants.iter().filter(|c| !c.stays()) {
        fitted.constant.mark(&mut found.profile, &name, &source);
        moved.push(fitted.constant.label(&found.profile));
    }
    found.profile.description = match moved.as_slice() {
        [] => format!("{from}, which say nothing of any constant: all are as there"),
        moved => format!(
            "{from}: fitted are {}; all else is as there",
            moved.join(", ")
        ),
    };
}

/// A run that two tables print is one run. How many were such repeats.
fn drop_repeated(runs: &mut Vec<RecordedRun>) -> usize {
    let all = runs.len();
    let mut kept: Vec<RecordedRun> = Vec::new();
    for run in runs.drain(..) {
        if !kept.iter().any(|other| other.is_same_run(&run)) {
            kept.push(run);
        }
    }
    *runs = kept;
    all - runs.len()
}

/// Logarithms of the errors, one a configuration: runs of the same one are off alike, and are no more witnesses than one.
fn by_configuration(runs: &[RecordedRun], errors: &[f64]) -> Vec<f64> {
    let first = |run: &RecordedRun| runs.iter().position(|other| other.is_alike(run));
    let mut sums: BTreeMap<Option<usize>, (f64, f64)> = BTreeMap::new();
    for (run, error) in runs.iter().zip(errors) {
        let (sum, count) = sums.entry(first(run)).or_default();
        *sum += error.ln_1p();
        *count += 1.0;
    }
    sums.into_values().map(|(sum, count)| sum / count).collect()
}

/// Leaves out runs on other machines. Where some name this one, only those are surely on it.
fn keep_those_of(machine: &str, runs: &mut Vec<(&PathBuf, RecordedRun)>) {
    let this = |(_, run): &(&PathBuf, RecordedRun)| run.hardware.as_deref() == Some(machine);
    if runs.iter().any(this) {
        runs.retain(this);
    } else {
        runs.retain(|(_, run)| run.hardware.is_none());
    }
}

fn stem(path: &std::path::Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

fn constants(args: &Args, base: &HardwareProfile) -> anyhow::Result<Vec<Constant>> {
    let all = || CONSTANTS.into_iter().filter(|c| c.stands_in(base));
    if args.constants.is_empty() {
        return Ok(all().collect());
    }
    let named = args.constants.iter().map(|name| {
        // By its key, or as it is printed, with its type.
        let known = all().find(|c| c.name() == name || c.label(base) == *name);
        known.ok_or_else(|| {
            let names: Vec<&str> = all().map(Constant::name).collect();
            let line = format!(
                "--constants {name}: {} states no such constant; give some of: {}",
                base.name,
                names.join(", ")
            );
            Failure::new(Exit::Usage, line)
        })
    });
    let mut once = Vec::new();
    for constant in named {
        let constant = constant?;
        // A constant that is named twice moves no further than by what the runs ask.
        if !once.contains(&constant) {
            once.push(constant);
        }
    }
    Ok(once)
}

#[derive(Serialize)]
struct Report {
    constants: Vec<ConstantRow>,
    runs: Vec<RunRow>,
    /// Runs that are left out because another is the same with the same result.
    repeats: usize,
    median_abs_error_before: f64,
    p90_abs_error_before: f64,
    median_abs_error: f64,
    p90_abs_error: f64,
    median_abs_error_left_out: f64,
    p90_abs_error_left_out: f64,
    /// Of the logarithms of the errors of runs left out: median, 5th and 95th percentile; none where
    /// the runs are few.
    residuals: Option<[f64; 3]>,
}

#[derive(Serialize)]
struct ConstantRow {
    constant: &'static str,
    /// The type whose curves it is, where there are some for each: that of the runs.
    dtype: Option<&'static str>,
    #[serde(skip)]
    label: String,
    before: f64,
    after: f64,
    factor: f64,
    spread_left: f64,
    determined: bool,
    /// Left as the profile has it.
    #[serde(skip)]
    stays: bool,
}

#[derive(Serialize)]
struct RunRow {
    run: String,
    error_before: f64,
    error: f64,
    error_left_out: f64,
}

fn quantiles(residuals: &Residuals) -> [f64; 3] {
    [
        residuals.median_log_error,
        residuals.p05_log_error,
        residuals.p95_log_error,
    ]
}

impl Report {
    fn of(
        base: &HardwareProfile,
        found: &Fit,
        (names, repeats): (&[&str], usize),
        kept: bool,
    ) -> Report {
        let constants = found.constants.iter().map(|c| {
            let value = |profile| c.constant.value(profile).unwrap_or(f64::NAN);
            let (before, after) = (value(base), value(&found.profile));
            ConstantRow {
                constant: c.constant.name(),
                dtype: c.constant.dtype(base).map(Dtype::name),
                label: c.constant.label(base),
                stays: c.stays(),
                before,
                after,
                // Of what two engines leave each other, the fit's own is on what is lost.
                factor: after / before,
                spread_left: c.spread_left,
                determined: c.spread_left < 0.5,
            }
        });
        let runs = names.iter().enumerate().map(|(i, name)| RunRow {
            run: (*name).to_owned(),
            error_before: found.before[i],
            error: found.after[i],
            error_left_out: found.left_out[i],
        });
        let (before, after, left) = (
            sizes(&found.before),
            sizes(&found.after),
            sizes(&found.left_out),
        );
        Report {
            constants: constants.collect(),
            runs: runs.collect(),
            repeats,
            median_abs_error_before: before.0,
            p90_abs_error_before: before.1,
            median_abs_error: after.0,
            p90_abs_error: after.1,
            median_abs_error_left_out: left.0,
            p90_abs_error_left_out: left.1,
            residuals: found
                .profile
                .residuals
                .as_ref()
                .filter(|_| kept)
                .map(quantiles),
        }
    }

    fn constants_table(&self) -> Table {
        let mut constants = Table::new(&[
            ("constant", Align::Left),
            ("before", Align::Right),
            ("after", Align::Right),
            ("factor", Align::Right),
            ("what the runs say", Align::Left),
        ]);
        for row in &self.constants {
            let said = if row.determined {
                "determined"
            } else if row.spread_left < SAYS_NOTHING {
                "partly; held by the profile"
            } else if row.stays {
                "nothing; as in the profile"
            } else {
                "hardly anything, and yet moved it: look at the runs' errors"
            };
            constants.row([
                row.label.clone(),
                format!("{:.3e}", row.before),
                format!("{:.3e}", row.after),
                three_digits(row.factor),
                format!("{said} (spread left {:.0}%)", 100.0 * row.spread_left),
            ]);
        }
        constants
    }

    fn runs_table(&self) -> Table {
        let mut runs = Table::new(&[
            ("run", Align::Left),
            ("before", Align::Right),
            ("after", Align::Right),
            ("left out", Align::Right),
        ]);
        for row in &self.runs {
            runs.row([
                row.run.clone(),
                signed_percent(row.error_before),
                signed_percent(row.error),
                signed_percent(row.error_left_out),
            ]);
        }
        runs
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n{}", self.constants_table(), self.runs_table());
        if self.repeats > 0 {
            let all = count((self.runs.len() + self.repeats) as u64, "run");
            let _ = writeln!(
                text,
                "\n{} of {all} repeat others of the same result, and count once with them",
                self.repeats
            );
        }
        let percent = |x: f64| 100.0 * x;
        let _ = writeln!(
            text,
            "\n|error| median {:.1}% (p90 {:.1}%), before {:.1}% ({:.1}%), of runs left out {:.1}% ({:.1}%)",
            percent(self.median_abs_error),
            percent(self.p90_abs_error),
            percent(self.median_abs_error_before),
            percent(self.p90_abs_error_before),
            percent(self.median_abs_error_left_out),
            percent(self.p90_abs_error_left_out),
        );
        let said = match self.residuals {
            Some(errors) => {
                let [median, low, high] = errors.map(|log: f64| signed_percent(log.exp_m1()));
                format!(
                    "kept in the profile: of configurations left out, nine of ten are predicted {low} to {high} too fast \
                     (median {median}); intervals are wider, since they are few"
                )
            }
            None => format!(
                "runs of fewer than {} configurations do not say how far off predictions are: {}",
                Residuals::RUNS_MIN,
                match self.constants.iter().all(|row| row.stays) {
                    true => "the profile keeps what it had",
                    false => "a profile whose constants moved has no interval from runs",
                }
            ),
        };
        let _ = writeln!(text, "{said}");
        text
    }
}
