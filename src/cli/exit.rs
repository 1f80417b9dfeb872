//! Exit codes, and which failure has which.

use std::io;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use plimsoll_backend::cpu::CpuError;
use plimsoll_backend::cuda::CudaError;
use plimsoll_backend::decoder::DecoderError;
use plimsoll_backend::probe::ProbeError;
use plimsoll_backend::tiers::TierError;
use plimsoll_backend::weights::WeightError;
use plimsoll_core::control::DriveError;
use plimsoll_core::executor::ExecutionError;
use plimsoll_core::lower::LowerError;
use plimsoll_sim::SimulateError;
use thiserror::Error;

use super::interrupt::code_of;
use super::{Cli, output};
use crate::files::{InputError, Unwritten};
use crate::perplexity::NoRoom;
use crate::serve::execute::ExecuteError;

/// What the process says to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Anything that has no code of its own.
    Other = 1,
    /// The command line is wrong, or names a file that could not be written, or a model or a profile
    /// that nothing has.
    Usage = 2,
    /// No plan fits, or the given one does not.
    Infeasible = 3,
    /// A file is missing, unreadable or wrong.
    BadInput = 4,
    /// The machine lacks what the run needs.
    BackendUnavailable = 5,
    /// Predictions and measurements are further apart than allowed.
    OutOfTolerance = 6,
    /// Ctrl-C; of another signal the process says that one.
    Interrupted = 130,
}

/// The end of `--help`.
pub(super) const HELP: &str = "\
Exit codes:
  0    done
  1    anything that has no code of its own
  2    usage: a wrong flag or value, a file that could not be written, or an unknown name
  3    infeasible: no plan fits, or the given one does not; says which tier binds
  4    bad input: a file is missing, unreadable or wrong
  5    backend unavailable: the machine lacks what the run needs
  6    validation out of tolerance
  130  interrupted (143 by SIGTERM, 129 by SIGHUP)";

/// A failure with a code.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Failure {
    /// The code.
    pub exit: Exit,
    /// One line; nothing is printed where it is empty.
    pub message: String,
}

impl Failure {
    /// A failure with a code and a line.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure {
            exit,
            message: message.into(),
        }
    }

    /// An error with its own code, and in its line what else is to be said.
    pub(super) fn noted(error: &anyhow::Error, note: &str) -> Failure {
        if has_no_reader(error) {
            return Failure::nobody_reads();
        }
        Failure::new(exit_of(error), format!("{}; {note}", in_all(error)))
    }

    /// Nobody reads what is printed: the end, but no failure.
    pub(super) fn nobody_reads() -> Failure {
        Failure::new(Exit::Ok, "")
    }
}

/// Prints what went wrong, if anything, as one line, and gives the process's exit code.
pub fn finish(outcome: anyhow::Result<()>) -> ExitCode {
    let unread = |error| match has_no_reader(&error) {
        true => Failure::nobody_reads().into(),
        false => error,
    };
    let outcome = outcome.map_err(unread);
    let exit = match &outcome {
        Ok(()) => Exit::Ok,
        Err(error) => exit_of(error),
    };
    if let Err(error) = outcome {
        let line = in_all(&error);
        if !line.is_empty() {
            output::complain(&format!("error: {line}"));
        }
    }
    ExitCode::from(code_of(exit))
}

/// Whether all that failed is that whoever read a file which is our own output has left.
fn has_no_reader(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let inner = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        let unwritten = inner.and_then(|inner| inner.downcast_ref::<Unwritten>());
        unwritten.is_some_and(Unwritten::has_no_reader)
    })
}

/// An error and what caused it, in one line; many of our errors state their cause themselves.
fn in_all(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.contains(&cause) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&cause);
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn exit_of(error: &anyhow::Error) -> Exit {
    error.chain().find_map(exit_of_cause).unwrap_or(Exit::Other)
}

fn exit_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some(failure.exit);
    }
    if let Some(input) = cause.downcast_ref::<InputError>() {
        return Some(match input {
            InputError::UnknownName(_) => Exit::Usage,
            InputError::BadFile(_) => Exit::BadInput,
        });
    }
    if cause.is::<NoRoom>() || cause.is::<CudaError>() {
        return Some(Exit::BackendUnavailable);
    }
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        let unwritten = error.get_ref().is_some_and(|inner| inner.is::<Unwritten>());
        return unwritten.then_some(Exit::Usage);
    }
    if let Some(SimulateError::Lower(error)) = cause.downcast_ref() {
        return Some(exit_of_lowering(error));
    }
    if let Some(error) = cause.downcast_ref() {
        return Some(exit_of_lowering(error));
    }
    if let Some(error) = cause.downcast_ref() {
        return exit_of_backend(error);
    }
    if cause.is::<WeightError>() {
        return Some(Exit::BadInput);
    }
    if let Some(DriveError::Execution(error)) = cause.downcast_ref() {
        return exit_of_execution(error);
    }
    // A transparent error hides what it holds from the chain.
    match cause.downcast_ref() {
        Some(ExecuteError::Cpu(error)) => return exit_of_backend(error),
        Some(ExecuteError::Drive(DriveError::Execution(error))) => {
            return exit_of_execution(error);
        }
        _ => {}
    }
    match cause.downcast_ref() {
        Some(ProbeError::Cpu(error)) => return exit_of_backend(error),
        Some(ProbeError::Execution(error) | ProbeError::Drive(DriveError::Execution(error))) => {
            return exit_of_execution(error);
        }
        _ => {}
    }
    cause.downcast_ref().and_then(exit_of_execution)
}

/// What has no program was asked for wrongly, unless there is only too little room.
fn exit_of_lowering(error: &LowerError) -> Exit {
    match error {
        LowerError::DoesNotFit { .. } => Exit::Infeasible,
        _ => Exit::Usage,
    }
}

fn exit_of_execution(error: &ExecutionError) -> Option<Exit> {
    match error {
        ExecutionError::Interrupted => Some(Exit::Interrupted),
        ExecutionError::Executor(inner) => inner.downcast_ref().and_then(exit_of_backend),
        ExecutionError::Task { source, .. } => match source.downcast_ref() {
            // Weights that give no numbers.
            Some(DecoderError::NotANumber { .. }) => Some(Exit::BadInput),
            // A disk that fills up while it runs.
            _ => source.is::<TierError>().then_some(Exit::BackendUnavailable),
        },
    }
}

fn exit_of_backend(error: &CpuError) -> Option<Exit> {
    match error {
        CpuError::Tier(_) | CpuError::Decoder(_) | CpuError::Cuda(_) => {
            Some(Exit::BackendUnavailable)
        }
        CpuError::Interrupted => Some(Exit::Interrupted),
        CpuError::Weights(_) | CpuError::Prompts { .. } => Some(Exit::BadInput),
        CpuError::TooSmall { .. } | CpuError::Lower(LowerError::DoesNotFit { .. }) => {
            Some(Exit::Infeasible)
        }
        _ => None,
    }
}

/// What clap says, in one line. Help and version go to standard output and are no failure.
pub(super) fn usage(error: &clap::Error) -> anyhow::Error {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match output::print(&text) {
            Ok(()) => Failure::new(Exit::Ok, "").into(),
            Err(error) => error,
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::complain(text.trim_end());
            Failure::new(Exit::Usage, "").into()
        }
        _ => {
            let line = in_one_line(&text);
            let line = match said_by_plan(error) {
                Some(remedy) => line.replace(SEE_HELP, &remedy),
                None => line,
            };
            Failure::new(Exit::Usage, line).into()
        }
    }
}

const SEE_HELP: &str = "see --help";

/// What to do about flags beside --plan: all that it does not go with are of what a plan says.
fn said_by_plan(error: &clap::Error) -> Option<String> {
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(one)) => vec![one.as_str()],
        Some(ContextValue::Strings(many)) => many.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let flags = [ContextKind::InvalidArg, ContextKind::PriorArg].map(named);
    let flags = flags
        .iter()
        .flatten()
        .filter_map(|flag| flag.split(' ').next());
    let (plan, others): (Vec<_>, Vec<_>) = flags.partition(|flag| *flag == "--plan");
    let conflict = error.kind() == ErrorKind::ArgumentConflict && !plan.is_empty();
    let planner_has = others.iter().all(|flag| is_flag_of_plan(flag));
    let others = others.join(" and ");
    let else_do = match planner_has {
        true => format!("plan again with {others}"),
        false => "leave --plan out".to_owned(),
    };
    conflict.then(|| format!("the plan says it; leave {others} out, or {else_do}"))
}

/// Whether `plan` has a flag.
fn is_flag_of_plan(flag: &str) -> bool {
    let all = Cli::command();
    let mut flags = all.find_subcommand("plan").into_iter();
    flags.any(|plan| {
        let mut names = plan.get_arguments().filter_map(|flag| flag.get_long());
        names.any(|name| flag.strip_prefix("--") == Some(name))
    })
}

fn in_one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let kept = lines.filter(|line| !line.is_empty() && !line.starts_with("Usage:"));
    let mut said = String::new();
    for line in kept {
        let line = line
            .trim_start_matches("error: ")
            .trim_start_matches("tip: ");
        let separator = match said.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) if line.starts_with("--") || line.starts_with('<') => ", ",
            Some(_) => "; ",
        };
        said.push_str(separator);
        said.push_str(line);
    }
    said.replace("For more information, try '--help'.", SEE_HELP)
}

#[cfg(test)]
mod tests {
    use plimsoll_core::units::Bytes;

    use super::*;

    #[test]
    fn what_clap_says_fits_a_line() {
        let text = "error: the following required arguments were not provided:\n  --hw <HW>\n  \
                    --model <MODEL>\n\nUsage: plimsoll plan --hw <HW>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            in_one_line(text),
            "the following required arguments were not provided: --hw <HW>, --model <MODEL>; see --help"
        );
    }

    #[test]
    fn a_code_is_found_under_its_context() {
        let error = anyhow::Error::from(InputError::BadFile("x".into())).context("while planning");
        assert_eq!(exit_of(&error), Exit::BadInput);
        let error = anyhow::Error::from(DriveError::Execution(ExecutionError::Interrupted));
        assert_eq!(exit_of(&error), Exit::Interrupted);
        let error = anyhow::Error::from(ExecuteError::Cpu(CpuError::Tier(
            TierError::TooMuchMemory {
                needed: Bytes(2),
                available: Bytes(1),
            },
        )));
        assert_eq!(exit_of(&error), Exit::BackendUnavailable);
        assert_eq!(exit_of(&anyhow::anyhow!("x")), Exit::Other);
    }
}
