//! `plimsoll doctor`: what this machine has, what is missing, and whether its kernels compute what they should.

use std::path::PathBuf;

use plimsoll_backend::cuda::{CudaError, Gpu, check_available};
use plimsoll_backend::machine::{Finding, inspect};
use plimsoll_backend::selftest::{self, Outcome, Wrong};
use serde::Serialize;

use super::backend::Backend;
use super::output::{print, print_json};
use super::{Exit, Failure, Format};
use crate::files::kernel_cache;
use crate::report::{Align, Table};

/// What the kernels' tests need of a GPU's memory, in bytes.
const ARENA_BYTES: usize = 64 << 20;

/// Say what this machine has, what is missing and how to get it, and test every kernel
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What must work; without it, what is missing for a GPU is said and is no failure
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    /// Where a disk tier's file would go
    #[arg(long, default_value = ".", value_name = "DIR")]
    disk_dir: PathBuf,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// A finding, as it is printed.
#[derive(Serialize)]
struct FindingRow {
    name: &'static str,
    state: &'static str,
    found: String,
    remedy: Option<String>,
}

impl FindingRow {
    fn of(finding: Finding) -> FindingRow {
        FindingRow {
            name: finding.name,
            state: finding.state.name(),
            found: finding.found,
            remedy: finding.remedy,
        }
    }
}

/// A kernel's test, as it is printed.
#[derive(Serialize)]
struct KernelRow {
    backend: &'static str,
    kernel: &'static str,
    cases: usize,
    /// The largest error as a share of what is allowed; none where that is no number.
    worst_error: Option<f64>,
    passed: bool,
    /// Whether it computed anything that could be right or wrong.
    ran: bool,
    wrong: Option<String>,
}

impl KernelRow {
    fn of(backend: &'static str, outcome: Outcome) -> KernelRow {
        KernelRow {
            backend,
            kernel: outcome.name,
            cases: outcome.cases,
            worst_error: outcome.worst.is_finite().then_some(outcome.worst),
            passed: outcome.wrong.is_none(),
            ran: !matches!(outcome.wrong, Some(Wrong::Cuda(_))),
            wrong: outcome.wrong.map(|wrong| wrong.to_string()),
        }
    }
}

#[derive(Serialize)]
struct Report {
    machine: Vec<FindingRow>,
    kernels: Vec<KernelRow>,
    /// Why no CUDA kernel was tested.
    cuda_not_tested: Option<String>,
}

fn test_cuda() -> Result<Vec<Outcome>, CudaError> {
    check_available()?;
    let mut gpu = Gpu::open(0, ARENA_BYTES, kernel_cache())?;
    Ok(selftest::cuda(&mut gpu))
}

/// Looks, tests and prints.
///
/// # Errors
/// A kernel that is wrong; what `--backend` needs and is missing.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let machine = inspect(&args.disk_dir);
    let cpu = selftest::cpu().into_iter().map(|o| KernelRow::of("cpu", o));
    let mut kernels: Vec<KernelRow> = cpu.collect();
    let tested = match args.backend {
        Some(Backend::Cpu) => None,
        _ => Some(test_cuda()),
    };
    let missing = match tested {
        Some(Ok(outcomes)) => {
            kernels.extend(outcomes.into_iter().map(|o| KernelRow::of("cuda", o)));
            None
        }
        Some(Err(error)) => Some(error),
        None => None,
    };
    let report = Report {
        machine: machine.into_iter().map(FindingRow::of).collect(),
        kernels,
        cuda_not_tested: missing.as_ref().map(ToString::to_string),
    };
    match args.format {
        Format::Json => print_json(&report)?,
        Format::Text => print(&text(&report))?,
    }
    judge(&report, missing.filter(|_| args.backend.is_some()))
}

fn text(report: &Report) -> String {
    let mut machine = Table::new(&[("", Align::Left), ("", Align::Left), ("", Align::Left)]);
    for row in &report.machine {
        machine.row([row.name, row.state, &row.found]);
    }
    let mut text = machine.to_string();
    for row in &report.machine {
        if let Some(remedy) = &row.remedy {
            text += &format!("\n{}: {remedy}", row.name);
        }
    }
    let mut kernels = Table::new(&[
        ("kernel", Align::Left),
        ("on", Align::Left),
        ("operands", Align::Right),
        ("worst error / allowed", Align::Right),
        ("", Align::Left),
    ]);
    for row in &report.kernels {
        let worst = row
            .worst_error
            .map_or("-".to_owned(), |worst| format!("{worst:.2}"));
        let state = row.wrong.clone().unwrap_or_else(|| "good".to_owned());
        let cases = row.cases.to_string();
        kernels.row([row.kernel, row.backend, &cases, &worst, &state]);
    }
    text += &format!("\n\n{kernels}");
    if let Some(why) = &report.cuda_not_tested {
        text += &format!("\nno CUDA kernel was tested: {why}\n");
    }
    text
}

fn judge(report: &Report, missing: Option<CudaError>) -> anyhow::Result<()> {
    let named = |ran: bool| {
        let rows = report.kernels.iter();
        let rows = rows.filter(|row| !row.passed && row.ran == ran);
        let names: Vec<String> = rows
            .map(|row| format!("{} ({})", row.kernel, row.backend))
            .collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let line = match (named(true), named(false)) {
        (Some(wrong), _) => format!(
            "kernels compute what they should not: {wrong}; do not trust this machine, and report it"
        ),
        (None, Some(unknown)) => format!(
            "kernels could not be run: {unknown}; the table says why, and nothing is known of what they compute"
        ),
        (None, None) => return missing.map_or(Ok(()), |error| Err(error.into())),
    };
    Err(Failure::new(Exit::Other, line).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(passed: bool) -> Report {
        Report {
            machine: Vec::new(),
            kernels: vec![KernelRow {
                backend: "cpu",
                kernel: "argmax",
                cases: 2,
                worst_error: Some(0.5),
                passed,
                ran: true,
                wrong: (!passed).then(|| "2 for 3".to_owned()),
            }],
            cuda_not_tested: None,
        }
    }

    #[test]
    fn a_wrong_kernel_is_a_failure_and_a_missing_gpu_only_where_it_is_asked_for() {
        assert!(judge(&report(true), None).is_ok());
        let error = judge(&report(false), None).unwrap_err().to_string();
        assert!(error.contains("argmax (cpu)"), "{error}");
        let missing = CudaError::NoGpu { index: 0, count: 0 };
        assert!(judge(&report(true), Some(missing)).is_err());
        assert!(text(&report(false)).contains("2 for 3"));
        let mut unknown = report(false);
        unknown.kernels[0].ran = false;
        let error = judge(&unknown, None).unwrap_err().to_string();
        assert!(error.contains("not be run: argmax (cpu)"), "{error}");
    }
}
