//! What a validation says: tables that grow with it, pictures at its end, and the printed text.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use plimsoll_core::hardware::HardwareProfile;
use serde::Serialize;

use crate::files::{write_atomically, write_text};
use crate::report::{
    Align, Point, Scatter, Table, count, extrapolation_text, picture_svg, rates_note,
    signed_percent, three_digits, to_csv, write_picture_png,
};
use crate::trace_file::{Process, write_file, write_side_by_side};
use crate::validate::{
    APART_MOST, CaseRow, Coverage, Errors, Score, Setting, Trial, Validation, score,
};

/// All there is, or all there is so far.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    pub setting: &'a Setting,
    pub coverage: Coverage,
    /// None before a run has ended.
    pub score: Option<Score>,
    /// What is to be known of the predictions: other types' rates, and what lies beyond the profile.
    pub notes: Vec<String>,
    pub cases: Vec<CaseRow>,
}

impl<'a> Report<'a> {
    pub fn of(
        validation: &Validation<'_>,
        setting: &'a Setting,
        profile: &HardwareProfile,
    ) -> Report<'a> {
        let cases = validation.rows();
        Report {
            setting,
            coverage: validation.coverage(),
            notes: notes(validation.trials(), profile),
            score: (!cases.is_empty()).then(|| score(&cases)),
            cases,
        }
    }
}

/// Once for each type whose rates are another's, and for each case that asks curves outside their points.
fn notes(trials: &[Trial<'_>], profile: &HardwareProfile) -> Vec<String> {
    let mut rates: Vec<String> = trials
        .iter()
        .filter_map(|trial| rates_note(profile, trial.plan.dtype))
        .map(|said| format!("rates: {said}"))
        .collect();
    rates.sort();
    rates.dedup();
    let beyond = trials.iter().filter_map(|trial| {
        let said = extrapolation_text(&trial.prediction)?;
        let case = &trial.case.name;
        Some(format!(
            "{case}: predicted beyond what the profile measured: {said}"
        ))
    });
    rates.into_iter().chain(beyond).collect()
}

/// Notes that are printed for people.
const NOTES_SHOWN: usize = 4;

fn notes_text(notes: &[String]) -> String {
    let shown = notes.iter().take(NOTES_SHOWN);
    let mut text: String = shown.map(|note| format!("{note}\n")).collect();
    if let Some(more @ 1..) = notes.len().checked_sub(NOTES_SHOWN) {
        let _ = writeln!(text, "and {} (cases.json)", count(more as u64, "more note"));
    }
    text
}

/// Whether a folder has tables of an earlier run.
pub(super) fn has_tables(dir: &Path) -> bool {
    ["cases.csv", "cases.json"]
        .iter()
        .any(|name| dir.join(name).exists())
}

/// Writes `cases.csv` and `cases.json`.
pub(super) fn write_tables(dir: &Path, report: &Report<'_>) -> io::Result<()> {
    let rows: Vec<CaseRow> = report.cases.iter().map(CaseRow::in_cells).collect();
    let csv = to_csv(&rows).map_err(io::Error::other)?;
    let csv = write_atomically(&dir.join("cases.csv"), |out| out.write_all(&csv));
    let json = serde_json::to_string_pretty(report)? + "\n";
    csv.and(write_text(&dir.join("cases.json"), &json))
}

/// Draws all cases, and writes the trace of the one that is furthest off: the one to look at. Where all traces are asked for, they
/// are in a folder beside it. One that fails does not keep the others from their place.
pub(super) fn write_pictures(
    dir: &Path,
    report: &Report<'_>,
    trials: &[Trial<'_>],
    all_traces: bool,
) -> io::Result<()> {
    let points: Vec<Point> = report.cases.iter().map(point).collect();
    let title = format!(
        "Predicted against measured latency, {} ({})",
        report.setting.hardware, report.setting.device
    );
    let scatter = Scatter {
        title: &title,
        points: &points,
    };
    let svg = picture_svg(&scatter).and_then(|svg| write_text(&dir.join("scatter.svg"), &svg));
    let png = write_picture_png(&dir.join("scatter.png"), &scatter);
    let traces = match all_traces {
        true => write_all_traces(&dir.join("traces"), trials),
        false => Ok(()),
    };
    svg.and(png).and(write_furthest(dir, trials)).and(traces)
}

fn write_all_traces(dir: &Path, trials: &[Trial<'_>]) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let written = (1..)
        .zip(trials)
        .map(|(number, trial)| write_trace(&dir.join(trace_name(number, &trial.case.name)), trial));
    written.fold(Ok(()), Result::and)
}

/// A case's file: its number among all, and what a file's name can have of its own name.
fn trace_name(number: usize, case: &str) -> String {
    let words = case.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    format!("{number:02}-{}.json", words.join("-"))
}

fn write_furthest(dir: &Path, trials: &[Trial<'_>]) -> io::Result<()> {
    let error = |trial: &&Trial<'_>| trial.row().map_or(-1.0, |row| row.error.abs());
    let furthest = trials.iter().max_by(|a, b| error(a).total_cmp(&error(b)));
    furthest.map_or(Ok(()), |trial| write_trace(&dir.join("trace.json"), trial))
}

/// A case's trace, predicted and measured; none of one that has not run.
fn write_trace(file: &Path, trial: &Trial<'_>) -> io::Result<()> {
    let Some((predicted, measured)) = trial.pair() else {
        return Ok(());
    };
    let process = |name, run| Process { name, run };
    let measured = process("measured", measured);
    write_file(file, |out| {
        write_side_by_side(out, process("predicted", predicted), measured)
    })
}

fn point(row: &CaseRow) -> Point {
    Point {
        case: row.case.clone(),
        group: row.group.clone(),
        predicted_s: row.predicted_s,
        measured_s: row.measured_s,
    }
}

/// The table, then all of it in a few lines.
pub(super) fn text(report: &Report<'_>, score: &Score, dir: &Path) -> String {
    let (setting, coverage) = (report.setting, &report.coverage);
    let mut text = table(&report.cases).to_string();
    let article = if setting.device.starts_with('e') {
        "an"
    } else {
        "a"
    };
    let _ = writeln!(
        text,
        "\n{coverage} on {article} {}, disk {}",
        setting.device, setting.disk
    );
    if coverage.interrupted {
        text.push_str("interrupted: what had ended is here\n");
    }
    for failure in &coverage.failures {
        let _ = writeln!(text, "failed: {failure}");
    }
    text.push_str(&errors_text("error of latency", &score.errors));
    text.push_str(
        "busiest: the resource that was busy longest, and the measured time over that in which it was; 1.00x where all else is \
         hidden behind it\n\
         by pass: the same over each pass's own busiest resource, since prefill may be bound by another one than decode\n",
    );
    text.push_str(&unsteady(score).map_or(String::new(), |said| format!("{said}\n")));
    let _ = match report.cases.iter().any(|row| row.paces().is_some()) {
        true => writeln!(
            text,
            "pace: how much longer reference work took around the run than when this machine was profiled; \
             predictions are at that pace (at the profile's own: median {:.1}%, p95 {:.1}%)",
            100.0 * score.median_abs_error_as_profiled,
            100.0 * score.p95_abs_error_as_profiled,
        ),
        false => writeln!(
            text,
            "pace: not known, since the profile has none (compute.pace_few_tokens_s, links.h2d.pace_page_locked_s, links.pace_disk_read_s), or it could not be timed; predictions are at its own"
        ),
    };
    text.push_str(&notes_text(&report.notes));
    let _ = writeln!(
        text,
        "files in {}: profile.toml, cases.csv, cases.json, scatter.svg, scatter.png, \
         trace.json (the case furthest off, two tracks, predicted and measured; open it in ui.perfetto.dev)",
        dir.display(),
    );
    text
}

/// Errors of latencies in a line.
pub(super) fn errors_text(what: &str, errors: &Errors) -> String {
    let spearman = errors.spearman.map(|rank| format!("; Spearman {rank:.3}"));
    format!(
        "{what}: median {:.1}%, p95 {:.1}%, max {:.1}% (signed median {}; above 0 is predicted too slow){}\n",
        100.0 * errors.median_abs_error,
        100.0 * errors.p95_abs_error,
        100.0 * errors.max_abs_error,
        signed_percent(errors.median_latency_error),
        spearman.unwrap_or_default(),
    )
}

/// That the machine had something else to do, where repeats say so.
pub(super) fn unsteady(score: &Score) -> Option<String> {
    (score.unsteady_cases > 0).then(|| {
        format!(
            "repeats of {} of {} cases are more than {:.0}% apart, as on no machine that had nothing else to do: their errors \
             may not be the prediction's",
            score.unsteady_cases,
            score.errors.cases,
            100.0 * APART_MOST,
        )
    })
}

fn table(rows: &[CaseRow]) -> Table {
    let mut table = Table::new(&[
        ("case", Align::Left),
        ("predicted s", Align::Right),
        ("measured s", Align::Right),
        ("error", Align::Right),
        ("explained by", Align::Left),
        ("busiest", Align::Left),
        ("by pass", Align::Right),
        ("pace", Align::Left),
        ("repeats", Align::Right),
    ]);
    for row in rows {
        let range = row
            .repeat_range
            .map(|range| format!(" \u{b1}{:.0}%", 50.0 * range));
        table.row([
            row.case.clone(),
            three_digits(row.predicted_s),
            three_digits(row.measured_s),
            signed_percent(row.error),
            format!("{} {:+.3} s", row.explained_by, row.explained_s),
            format!(
                "{} {:.2}x",
                row.measured_bottleneck, row.measured_over_busiest
            ),
            format!("{:.2}x", row.measured_over_busiest_by_pass),
            row.paces().unwrap_or_else(|| "-".to_owned()),
            format!("{}{}", row.repeats(), range.unwrap_or_default()),
        ]);
    }
    table
}
