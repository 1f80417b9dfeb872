//! Prediction beside measurement: the same program, simulated and executed, case by case.

mod again;
mod bench;
mod error;
mod grid;
mod score;
mod trial;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use plimsoll_backend::cpu::{CpuError, CpuOptions};
use plimsoll_backend::decoder::Decoder;
use plimsoll_backend::tiers::DiskTier;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::units::Bytes;
use serde::Serialize;

pub use again::{Again, AgainRow, Earlier, LeftOut, predict_again, read_earlier};
use bench::Bench;
pub use bench::TimedRun;
pub use error::{CaseError, Why};
pub use grid::{BUILT_IN, BUILT_IN_FOR_GPUS, Case, Grid, Limits};
pub use score::{APART_MOST, CaseRow, Errors, Repeats, Score, score};
pub use trial::Trial;

/// A grid on this machine: predicted when it is made, then run.
///
/// Repeats are interleaved: all cases once, then all again, so that what is cut short in a later round
/// still covers every case. Every run that has ended counts, and nothing is thrown away to make counts
/// equal: a case's latency is the median of the repeats that it has, at the median pace; its row lists them, and
/// [`Coverage`] says how much of the grid there is. A case that fails is not run again; its earlier
/// runs and the other cases stay.
pub struct Validation<'a> {
    profile: &'a HardwareProfile,
    bench: Bench<'a>,
    repeats: u32,
    trials: Vec<Trial<'a>>,
    failures: Vec<CaseError>,
    interrupted: bool,
}

/// How much of a grid has results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Cases with at least one run.
    pub cases: usize,
    /// Cases of the grid.
    pub cases_asked: usize,
    /// Runs that have ended.
    pub runs: usize,
    /// Runs of the whole grid.
    pub runs_asked: usize,
    /// Whether the user stopped it.
    pub interrupted: bool,
    /// What stopped cases, a line each.
    pub failures: Vec<String>,
}

/// What a validation says of itself besides its cases.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// The hardware profile.
    pub hardware: String,
    /// "emulated device".
    pub device: &'static str,
    /// How the disk was read and written.
    pub disk: &'static str,
    /// Runs of each case.
    pub repeats: u32,
}

impl<'a> Validation<'a> {
    /// Plans and predicts every case; nothing runs yet.
    ///
    /// # Errors
    /// The first case that has no plan or does not fit; an interruption.
    pub fn new(
        grid: &'a Grid,
        profile: &'a HardwareProfile,
        options: &'a CpuOptions,
    ) -> Result<Validation<'a>, CaseError> {
        let trial = |case: &'a Case| {
            if options.interrupt.load(Ordering::Relaxed) {
                return Err(Why::interrupted().of(&case.name));
            }
            Trial::new(case, profile).map_err(|why| why.of(&case.name))
        };
        Ok(Validation {
            profile,
            trials: grid.cases.iter().map(trial).collect::<Result<_, _>>()?,
            bench: Bench::new(options, profile),
            repeats: grid.repeats,
            failures: Vec::new(),
            interrupted: false,
        })
    }

    /// Runs all cases, or until the user interrupts. `ended` sees what there is after each run, and where one fails or is interrupted.
    ///
    /// # Errors
    /// What `ended` says.
    pub fn run(&mut self, ended: &mut dyn FnMut(&Self) -> io::Result<()>) -> io::Result<()> {
        for _ in 0..self.repeats {
            for index in 0..self.trials.len() {
                if self.trials[index].failed {
                    continue;
                }
                match self.run_once(index) {
                    Ok(()) => ended(self)?,
                    Err(why) if why.is_interruption() => {
                        self.interrupted = true;
                        return self.stopped(ended);
                    }
                    Err(why) => {
                        self.trials[index].failed = true;
                        let case = &self.trials[index].case.name;
                        self.failures.push(why.of(case));
                        self.stopped(ended)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Shows what there is, if anything, with what stopped it or a case.
    fn stopped(&self, ended: &mut dyn FnMut(&Self) -> io::Result<()>) -> io::Result<()> {
        match self.coverage().runs {
            0 => Ok(()),
            _ => ended(self),
        }
    }

    fn run_once(&mut self, index: usize) -> Result<(), Why> {
        let trial = &mut self.trials[index];
        let run = self.bench.run(trial.case, &trial.plan)?;
        trial.take(run, self.profile)
    }

    /// All cases, in the grid's order.
    pub fn trials(&self) -> &[Trial<'a>] {
        &self.trials
    }

    /// A row for each case that has a run.
    pub fn rows(&self) -> Vec<CaseRow> {
        let rows = self.trials.iter().filter_map(Trial::row);
        rows.cloned().collect()
    }

    /// How much there is.
    pub fn coverage(&self) -> Coverage {
        Coverage {
            cases: self.trials.iter().filter(|t| t.row().is_some()).count(),
            cases_asked: self.trials.len(),
            runs: self.trials.iter().map(|t| t.runs.len()).sum(),
            runs_asked: self.trials.len() * self.repeats as usize,
            interrupted: self.interrupted,
            failures: self.failures.iter().map(ToString::to_string).collect(),
        }
    }

    /// What stopped the first case that failed.
    pub fn into_failure(self) -> Option<CaseError> {
        self.failures.into_iter().next()
    }
}

/// "32 cases in 96 runs", or how many of how many.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |f: &mut fmt::Formatter<'_>, is, asked, what| {
            if is != asked {
                write!(f, "{is} of ")?;
            }
            let plural = if asked == 1 { "" } else { "s" };
            write!(f, "{asked} {what}{plural}")
        };
        part(f, self.cases, self.cases_asked, "case")?;
        f.write_str(" in ")?;
        part(f, self.runs, self.runs_asked, "run")
    }
}

/// Refuses a grid with a model that the CPU executor has no kernels for, before anything is measured.
///
/// # Errors
/// The first such case.
pub fn check_executable(grid: &Grid) -> Result<(), CaseError> {
    for case in &grid.cases {
        if let Err(error) = Decoder::new(&case.model, case.dtype, Compression::default(), 1) {
            return Err(Why::Cpu(error.into()).of(&case.name));
        }
    }
    Ok(())
}

/// How the disk tier is read and written in a directory, in words.
///
/// # Errors
/// Where there can be none.
pub fn disk_mode(dir: &Path) -> Result<&'static str, CpuError> {
    Ok(DiskTier::create(dir, Bytes(4096))?.mode().describe())
}
