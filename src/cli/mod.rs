//! The command line: one file a subcommand; what they share is in the small files beside them.

mod against;
pub mod alpha;
mod backend;
pub mod bench;
pub mod calibrate;
pub mod completions;
pub mod doctor;
mod exit;
pub mod experiment;
pub mod hw;
mod input;
mod interrupt;
mod lengths;
pub mod man;
pub mod models;
mod options;
mod output;
mod pace;
pub mod pareto;
pub mod perplexity;
mod picture;
pub mod plan;
pub mod profile;
mod progress;
pub mod replay;
pub mod run;
pub mod score;
pub mod simulate;
mod threads;
pub mod validate;
mod what_if;
pub mod workload;

use std::ffi::OsString;

use clap::{Parser, Subcommand};

pub use exit::{Exit, Failure, finish};
pub use interrupt::stop_on_interrupt;
pub use options::{Format, Switch};
pub use output::print;
pub use progress::Progress;

/// Plans, simulates and really runs a language model that does not fit on its GPU, and shows its own
/// error.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, max_term_width = 100, after_help = exit::HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find the best way to run a model on a machine
    Plan(plan::Args),
    /// Predict how a plan, or a policy in FlexGen's terms, would run
    Simulate(simulate::Args),
    /// Execute a plan on real memory tiers of this machine
    Run(run::Args),
    /// Measure what compression and sparse attention do to a model's predictions of a text
    Perplexity(perplexity::Args),
    /// Say what this machine has, what is missing and how to get it, and test every kernel
    Doctor(doctor::Args),
    /// Measure this machine and write its hardware profile
    Profile(profile::Args),
    /// Measure at which share of linear layers' outputs this machine's CPU ends with its link (HeteGen's alpha
    /// benchmark)
    Alpha(alpha::Args),
    /// Measure what products, attention and a decode over the link are worth on this machine's device
    Bench(bench::Args),
    /// Simulate and execute a grid of plans on this machine, and compare
    Validate(validate::Args),
    /// Predict measured runs and show how far off the predictions are
    Score(score::Args),
    /// Draw what latency each throughput costs, for FlexGen's, DeepSpeed's and other rules
    Pareto(pareto::Args),
    /// Predict a paper's tables and figures again, beside what was published
    Experiment(experiment::Args),
    /// Fit the constants of a profile to measured runs
    Calibrate(calibrate::Args),
    /// Serve a trace of requests in modelled time
    Replay(replay::Args),
    /// Make up a trace of requests, or say what one is like
    #[command(subcommand)]
    Workload(workload::Action),
    /// List or show hardware profiles
    #[command(subcommand)]
    Hw(hw::Action),
    /// List or show known models
    #[command(subcommand)]
    Models(models::Action),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print the manual page (roff)
    Man,
}

impl Cli {
    /// Reads the arguments. Asking for help or for the version is a failure that exits with 0.
    ///
    /// # Errors
    /// Arguments that are not a command, in one line.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> anyhow::Result<Cli> {
        Cli::try_parse_from(args).map_err(|error| exit::usage(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }
}
