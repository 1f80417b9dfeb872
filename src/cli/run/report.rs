//! What a run leaves: tokens, a trace, and its figures beside the prediction's.

use std::io;
use std::path::Path;

use plimsoll_core::control::Run;
use plimsoll_core::hardware::Slowness;
use plimsoll_core::summary::Summary;
use serde::Serialize;
use serde_json::json;

use super::super::Format;
use super::super::backend::Backend;
use super::super::output::{complain, print};
use super::Args;
use super::answers::Answer;
use super::prepare::Prepared;
use crate::report::plan::{duration, policy_in_short};
use crate::report::run::comparison;
use crate::report::{count, extrapolation_text, held_text, rates_text};
use crate::trace_file::{Process, write_file, write_run, write_side_by_side};

/// A run that came to its end.
pub(super) struct Done {
    pub measured: Summary,
    /// How much longer reference work took around the run than when the machine was profiled, where that is known.
    pub pace: Option<Slowness>,
    /// All of it, where a trace was asked for.
    pub run: Option<Run>,
    /// Of the first prompts, as many as are [`shown`].
    pub tokens: Vec<Vec<u32>>,
    /// How the disk was read and written, where there was one.
    pub disk: Option<&'static str>,
}

/// What `--format json` prints.
#[derive(Serialize)]
struct Report<'a> {
    device: &'static str,
    disk: Option<&'static str>,
    model: &'a str,
    weights: &'a str,
    dtype: plimsoll_core::Dtype,
    workload: plimsoll_core::workload::Workload,
    policy: plimsoll_core::policy::Policy,
    prediction: Option<&'a Summary>,
    /// Why there is no prediction, where one could have been made.
    prediction_left_out: Option<&'a str>,
    /// At the pace that the machine had, where that is known.
    prediction_at_pace: Option<&'a Summary>,
    measured: &'a Summary,
    pace: Option<Slowness>,
    outputs: Vec<Answer<'a>>,
}

/// Why there is no prediction, where nothing was asked for one.
const NOT_PREDICTED: &str =
    "the plan has none of these prompts; give --hw with what `plimsoll profile` wrote here";

/// A run that is predicted to take longer says so before it begins (seconds).
const SAID_BEFORE: f64 = 10.0;

/// Answers that are printed for people.
const SHOWN: usize = 4;

/// How many answers are printed at most.
pub(super) fn shown(format: Format) -> usize {
    match format {
        Format::Json => usize::MAX,
        Format::Text => SHOWN,
    }
}

/// Says of a long run what it is and how long it is predicted to take, while it can still be thought better of.
pub(super) fn announce(prepared: &Prepared) {
    let plan = &prepared.plan;
    let predicted = plan.prediction.as_ref().map(|it| it.latency_s);
    if let Some(latency) = predicted.filter(|it| it.0 > SAID_BEFORE) {
        let (prompts, policy) = (prepared.prompts.len(), policy_in_short(plan));
        let (prompts, takes) = (count(prompts as u64, "prompt"), duration(latency));
        complain(&format!("{prompts}, predicted to take {takes}: {policy}"));
    }
}

/// `lost` is why answers could not be written.
pub(super) fn write_and_print(
    args: &Args,
    prepared: &Prepared,
    done: &Done,
    lost: Option<io::Error>,
) -> anyhow::Result<()> {
    // One that fails does not keep the others from their place.
    let trace = match (&args.trace, &done.run) {
        (Some(path), Some(run)) => write_trace(path, prepared, run),
        _ => Ok(()),
    };
    let output = args.output.as_deref().filter(|_| lost.is_none());
    let printed = print_result(args, prepared, done, output);
    lost.map_or(Ok(()), Err).and(trace)?;
    printed
}

/// Of a run that finds all its answers there.
pub(super) fn print_nothing_left(args: &Args, rows: usize) -> anyhow::Result<()> {
    let text = match args.format {
        Format::Json => in_json(&json!({ "answers_kept": rows, "outputs": [] }))?,
        Format::Text => format!("all {rows} answers are there already\n"),
    };
    print_beside_rows(args, &text)
}

fn in_json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Prints what is said of a run: on standard error where standard output has the rows, which a program reads.
fn print_beside_rows(args: &Args, text: &str) -> anyhow::Result<()> {
    match args.rows_are_printed() {
        true => {
            complain(text.trim_end());
            Ok(())
        }
        false => print(text),
    }
}

/// `output` is the file that has all answers, where one has.
fn print_result(
    args: &Args,
    prepared: &Prepared,
    done: &Done,
    output: Option<&Path>,
) -> anyhow::Result<()> {
    let plan = &prepared.plan;
    let at_pace = prepared.at_pace(args, done.pace.as_ref())?;
    match args.format {
        Format::Json => {
            let report = Report {
                device: args.backend.word(),
                disk: done.disk,
                model: &plan.model.name,
                weights: &prepared.weights,
                dtype: plan.dtype,
                workload: plan.workload,
                policy: plan.policy,
                prediction: plan.prediction.as_ref(),
                prediction_left_out: prepared.left_out.as_deref(),
                prediction_at_pace: at_pace.as_ref(),
                measured: &done.measured,
                pace: done.pace,
                outputs: outputs(prepared, &done.tokens)?,
            };
            print_beside_rows(args, &in_json(&report)?)
        }
        Format::Text => {
            let answers = outputs(prepared, &done.tokens)?;
            let figures = figures(prepared, done, at_pace.as_ref());
            if args.answers_alone() {
                // Whoever asks one question wants one answer, to read or to pass on.
                complain(figures.trim_end());
                let answers: String = answers.iter().map(|a| said(a) + "\n").collect();
                return print(&answers);
            }
            if args.rows_are_printed() {
                return print_beside_rows(args, &figures);
            }
            let all = where_all_are(output, prepared.prompts.len());
            let answers: String = answers.iter().map(in_a_line).collect();
            print(&(figures + &answers + &all))
        }
    }
}

fn outputs<'a>(prepared: &'a Prepared, tokens: &[Vec<u32>]) -> io::Result<Vec<Answer<'a>>> {
    let pairs = prepared.prompts.iter().zip(tokens);
    pairs
        .map(|(prompt, ids)| prepared.answer(prompt, ids.clone()))
        .collect()
}

/// Writes a run, below its prediction where there is one.
pub(super) fn write_trace(path: &Path, prepared: &Prepared, run: &Run) -> io::Result<()> {
    let process = |name, run| Process { name, run };
    let measured = match prepared.backend {
        Backend::Cpu => "measured, emulated device",
        Backend::Cuda => "measured, GPU",
    };
    let measured = process(measured, run);
    write_file(path, |out| match &prepared.predicted {
        Some(run) => write_side_by_side(out, process("predicted", run), measured),
        None => write_run(out, measured),
    })
}

/// What was run, and how fast.
fn figures(prepared: &Prepared, done: &Done, at_pace: Option<&Summary>) -> String {
    let (plan, measured) = (&prepared.plan, &done.measured);
    let disk = done
        .disk
        .map_or(String::new(), |mode| format!(", disk by {mode}"));
    let device = match plan.policy.pipeline.stages {
        1 => match prepared.backend {
            Backend::Cpu => "an emulated device".to_owned(),
            Backend::Cuda => "a GPU".to_owned(),
        },
        stages => format!("{stages} emulated devices, a stage each"),
    };
    let mut text = format!(
        "{} in {}, planned for {}, run on {device}{disk}; weights: {}\nplan: {}\n\n{}\n",
        plan.model.name,
        plan.dtype.name(),
        plan.provenance.hardware,
        prepared.weights,
        policy_in_short(plan),
        comparison((plan.prediction.as_ref(), at_pace), measured)
    );
    let predicted = plan.prediction.as_ref();
    if let Some(interval) = predicted.and_then(|summary| summary.interval) {
        text.push_str(&held_text(&interval, measured.latency_s));
    }
    if let Some(pace) = done.pace {
        text.push_str(&format!("pace: around the run, {pace}\n"));
    }
    if let Some(said) = predicted.and_then(extrapolation_text) {
        text.push_str(&format!(
            "predicted beyond what the profile measured: {said}\n"
        ));
    }
    if let Some(said) = rates_text(plan) {
        text.push_str(&format!("rates: {said}\n"));
    }
    if predicted.is_none() {
        let why = prepared.left_out.as_deref().unwrap_or(NOT_PREDICTED);
        text.push_str(&format!("no prediction: {why}\n"));
    }
    text
}

/// An answer's text, or its tokens where there is no tokenizer.
fn said(answer: &Answer<'_>) -> String {
    let tokens = answer.generated_token_ids.iter().map(u32::to_string);
    let tokens = || tokens.collect::<Vec<_>>().join(" ");
    answer.text.clone().unwrap_or_else(tokens)
}

/// An answer behind its id.
fn in_a_line(answer: &Answer<'_>) -> String {
    let said = match &answer.text {
        Some(text) => quoted(text),
        None => said(answer),
    };
    format!("{}: {said}\n", answer.id)
}

/// A text in a line: as JSON writes it, which all may read.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Where the answers are that are not shown.
fn where_all_are(output: Option<&Path>, answers: usize) -> String {
    match (output, answers.checked_sub(SHOWN)) {
        (Some(file), _) => format!("all are in {}\n", file.display()),
        (None, Some(more)) if more > 0 => format!("and {more} more; -o FILE writes all\n"),
        (None, _) => String::new(),
    }
}
