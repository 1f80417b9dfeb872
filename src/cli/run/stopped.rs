//! What is kept of a run that did not come to its end.

use std::path::Path;
use std::sync::Arc;

use plimsoll_backend::cpu::{CpuError, CpuExecutor};
use plimsoll_core::control::{Controller, Decision, Run};
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::lower::{LowerError, Lowering, Texts};
use plimsoll_core::plan::Plan;
use plimsoll_core::units::Seconds;

use super::super::Failure;
use super::Args;
use super::answers::Answers;
use super::prepare::Prepared;
use super::report::write_trace;
use crate::files::is_file;

/// Writes what there is to the files that were asked for, and says what became of it. A file for which
/// there is nothing stays as it is.
pub(super) fn keep(
    args: &Args,
    answers: &mut Answers<'_>,
    texts: &Texts,
    executor: &mut CpuExecutor<'_>,
) -> String {
    let tokens = executor.generated(texts);
    let count = executor.num_generated();
    let mut said = keep_tokens(args.output.as_deref(), answers, (&tokens, count));
    if let Some(path) = &args.trace {
        said += "; ";
        said += &keep_trace(path, answers.prepared, executor);
    }
    said
}

/// What stopped it before there was anything to keep: files stay as they are.
pub(super) fn before(args: &Args, error: CpuError) -> anyhow::Error {
    let file = args.output.as_deref().or(args.trace.as_deref());
    match (&error, file) {
        (CpuError::Interrupted, Some(file)) => {
            let kept = format!(
                "no token was generated, so {} is left as it was",
                file.display()
            );
            Failure::noted(&error.into(), &kept).into()
        }
        _ => error.into(),
    }
}

/// `tokens` are those of prompts that have no row yet, and of all prompts there are `count`.
fn keep_tokens(
    path: Option<&Path>,
    answers: &mut Answers<'_>,
    (tokens, count): (&[Vec<u32>], usize),
) -> String {
    let Some(path) = path else {
        return match count {
            0 => "no token was generated".to_owned(),
            _ => format!("{count} tokens were generated; -o FILE keeps them"),
        };
    };
    let file = path.display();
    if count == 0 {
        return format!("no token was generated, so {file} is left as it was");
    }
    // Where rows could not be written before, that is said by whoever asks for the failure.
    let tried = answers.has_failed();
    answers.take_rest(|prompt| tokens[prompt].clone());
    let kept = match (answers.tokens(), is_file(path)) {
        (0, _) => format!("none of {count} tokens could be kept in {file}"),
        (kept, true) => format!(
            "{kept} tokens are kept in {file}; --resume goes on, and makes unfinished answers again"
        ),
        (kept, false) => format!("{kept} tokens were written to {file}"),
    };
    match answers.failure_after(tried) {
        Some(error) => format!("{kept}; the others are lost: {error}"),
        None => kept,
    }
}

fn keep_trace(path: &Path, prepared: &Prepared, executor: &mut CpuExecutor<'_>) -> String {
    let file = path.display();
    let run = match executed(&prepared.plan, executor) {
        Ok(run) => run,
        Err(error) => return format!("its trace is lost: {error}"),
    };
    if run.trace.spans().next().is_none() {
        return format!("no task had ended, so {file} is left as it was");
    }
    match write_trace(path, prepared, &run) {
        Ok(()) => format!("its trace so far is in {file}"),
        Err(error) => format!("its trace is lost: {error}"),
    }
}

/// The run as far as it went. Its pieces are lowered once more, since those that were handed over are gone.
fn executed(plan: &Plan, executor: &mut CpuExecutor<'_>) -> Result<Run, LowerError> {
    // Tasks that ran on for a moment have ended by now: this brings their spans, and the old error.
    let _ = executor.wait(Until::Idle);
    let mut lowering = Lowering::new(plan)?;
    let trace = executor.trace().clone();
    let mut pieces = Vec::new();
    while let Decision::Submit(piece) = lowering.decide(Seconds::ZERO, &trace) {
        pieces.push(Arc::new(*piece));
    }
    Ok(Run {
        machine: lowering.machine().clone(),
        pieces,
        trace,
    })
}
