//! `plimsoll score`: predictions beside measured runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use plimsoll_core::term::Term;

use super::Format;
use super::options::term;
use super::output::{Outputs, print, print_json};
use crate::calibrate::{Machines, Metric, RecordedRun, RunRow, RunScore, read_runs, score_runs};
use crate::files::{InputError, write_atomically};
use crate::report::{Align, Table, count, rates_note, signed_percent, three_digits, to_csv};

/// Runs and the machine that they ran on.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine: a path, a name in hw-profiles/, or an embedded profile
    #[arg(long, value_name = "PROFILE")]
    hw: String,
    /// Measured runs (CSV): model, prompt_len, gen_len, gpu_batch_size, num_gpu_batches, and percentages
    /// wg, wc, cg, cc, hg, hc; if wanted dtype (f16), compress_weight, compress_cache, sparse_attention,
    /// overlap, barrier and stored_scores (on, as FlexGen has them, where they do not say off),
    /// cpu_compute, schedule, stages, micro_batches, comm, num_prompts, hw, name; and throughput_tok_s
    /// (generated tokens over the whole time; it counts where both are given) or latency_s (the whole time)
    #[arg(long, value_name = "FILE")]
    runs: PathBuf,
    /// Switch off a term of the cost model; may be given several times
    #[arg(long, value_name = "TERM", value_parser = term())]
    without: Vec<Term>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write a line a run (CSV)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// That there is something to hold predictions against.
fn check_measured(path: &Path, runs: &[RecordedRun]) -> Result<(), InputError> {
    if runs.iter().any(|run| run.measured.is_some()) {
        return Ok(());
    }
    let remedy = "write what was measured into a column throughput_tok_s or latency_s";
    Err(InputError::bad_file(
        path,
        "line 1",
        "no run has a measured number",
        remedy,
    ))
}

#[derive(Serialize)]
struct Report<'a> {
    without: &'a [Term],
    /// That rates are those of another type, machine by machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rates: &'a Vec<String>,
    score: &'a RunScore,
    runs: &'a [RunRow],
}

/// Simulates all runs and prints.
///
/// # Errors
/// Input that is wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    Outputs::of([("--output", args.output.as_deref())])
        .apart_from([("--runs", Some(&*args.runs))])
        .sparing(Some(&args.hw), [])
        .check()?;
    let mut runs = read_runs(&args.runs)?;
    let machines = Machines::find(&args.hw, &runs, &args.runs)?.without(&args.without)?;
    for run in &mut runs {
        args.without
            .iter()
            .for_each(|term| term.off_in(&mut run.policy));
    }
    check_measured(&args.runs, &runs)?;
    runs.iter()
        .try_for_each(|run| run.check_gpus(machines.of(run), &args.runs))?;
    let (rows, score) = score_runs(&runs, &|run| machines.of(run).clone())?;
    let rates = rates(&runs, &machines);
    // A file that cannot be written does not cost the answer.
    let printed = match args.format {
        Format::Json => print_json(&Report {
            without: &args.without,
            rates: &rates,
            score: &score,
            runs: &rows,
        }),
        Format::Text => {
            let rates: String = rates
                .iter()
                .map(|said| format!("rates: {said}\n"))
                .collect();
            print(&(without_text(&args.without) + &text(&rows, &score) + &rates))
        }
    };
    if let Some(path) = &args.output {
        let csv = to_csv(&rows)?;
        write_atomically(path, |out| std::io::Write::write_all(out, &csv))?;
    }
    printed
}

/// What is to be said of the machines' rates of the runs' type, once each.
fn rates(runs: &[RecordedRun], machines: &Machines) -> Vec<String> {
    let said = |run: &RecordedRun| rates_note(machines.of(run), run.dtype);
    let mut all: Vec<String> = runs.iter().filter_map(said).collect();
    all.sort();
    all.dedup();
    all
}

/// What was switched off, a line each; nothing where nothing was.
pub(super) fn without_text(terms: &[Term]) -> String {
    let line = |term: &Term| format!("without {}: {}\n", term.name(), term.when_off());
    terms.iter().map(line).collect()
}

fn text(rows: &[RunRow], score: &RunScore) -> String {
    let mut table = Table::new(&[
        ("run", Align::Left),
        ("machine", Align::Left),
        ("predicted", Align::Right),
        ("90%", Align::Right),
        ("measured", Align::Right),
        ("error", Align::Right),
        ("bottleneck", Align::Left),
    ]);
    for row in rows {
        let unit = row.metric.unit();
        let exceeds = row.exceeds.map_or(String::new(), |tier| {
            let by = plimsoll_core::units::Bytes(row.exceeds_bytes).to_string();
            format!(" ({by} more {tier} than there is)")
        });
        let with_unit = |number| format!("{} {unit}", three_digits(number));
        let measured = match row.metric == Metric::OutOfMemory {
            true => "OOM".to_owned(),
            false => row.measured.map_or(String::new(), with_unit),
        };
        table.row([
            row.name.clone(),
            row.hardware.clone(),
            with_unit(row.predicted),
            row.low.zip(row.high).map_or(String::new(), |(low, high)| {
                format!("{} to {}", three_digits(low), three_digits(high))
            }),
            measured,
            row.error.map_or(String::new(), signed_percent),
            format!("{}{exceeds}", row.bottleneck),
        ]);
    }
    let mut text = table.to_string();
    text.push('\n');
    if score.runs == 0 {
        text.push_str("no run has a measured number that is predicted\n");
        return text + &out_of_memory(score);
    }
    let _ = writeln!(
        text,
        "{}: |error| median {:.1}%, p90 {:.1}%, max {:.1}% (signed median {}){}",
        count(score.runs as u64, "run"),
        100.0 * score.median_abs_error,
        100.0 * score.p90_abs_error,
        100.0 * score.max_abs_error,
        signed_percent(score.median_rate_error),
        score
            .spearman
            .map_or(String::new(), |rho| format!("; Spearman {rho:.3}")),
    );
    let _ = match score.with_interval {
        0 => writeln!(text, "within the 90% interval: there is none"),
        all => writeln!(
            text,
            "within the 90% interval: {} of {all}",
            score.within_interval
        ),
    };
    text.push_str("error: of the rate, predicted over measured (above 0: predicted too fast)\n");
    if score.beyond_memory > 0 {
        let _ = writeln!(
            text,
            "{} counted that need more memory than the machine has, predicted as if it had that",
            count(score.beyond_memory as u64, "run")
        );
    }
    text + &out_of_memory(score)
}

/// Of how many runs that did not fit that was predicted; nothing where all fitted.
fn out_of_memory(score: &RunScore) -> String {
    match score.out_of_memory_agreed + score.out_of_memory_missed {
        0 => String::new(),
        all => format!(
            "out of memory: predicted of {} of {all} that were\n",
            score.out_of_memory_agreed
        ),
    }
}
