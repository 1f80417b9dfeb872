//! The program: each subcommand is a way through the house.

use std::process::ExitCode;

use plimsoll::cli::{self, Cli, Command};

fn main() -> ExitCode {
    plimsoll_backend::tiers::report_files_too_large();
    cli::finish(Cli::read(std::env::args_os()).and_then(|cli| obey(&cli.command)))
}

fn obey(command: &Command) -> anyhow::Result<()> {
    match command {
        // Profile, model and workload -> the best plan that fits.
        Command::Plan(args) => cli::plan::run(args),
        // Plan -> program -> modelled time.
        Command::Simulate(args) => cli::simulate::run(args),
        // Plan -> the same program -> real time.
        Command::Run(args) => cli::run::run(args),
        // Text -> the same program, its own tokens forced -> how well it is predicted.
        Command::Perplexity(args) => cli::perplexity::run(args),
        // This machine -> what it has, and whether it computes right.
        Command::Doctor(args) => cli::doctor::run(args),
        // This machine -> profile.
        Command::Profile(args) => cli::profile::run(args),
        // This machine and a model -> where CPU and link end together.
        Command::Alpha(args) => cli::alpha::run(args),
        // This machine and a model -> what the parts of decoding are worth.
        Command::Bench(args) => cli::bench::run(args),
        // Both, side by side.
        Command::Validate(args) => cli::validate::run(args),
        // Measured runs -> how far off predictions are.
        Command::Score(args) => cli::score::run(args),
        // Block sizes -> what each system makes of them.
        Command::Pareto(args) => cli::pareto::run(args),
        // A paper's definitions -> its tables and figures, predicted.
        Command::Experiment(args) => cli::experiment::run(args),
        // Measured runs -> a profile whose predictions agree with them.
        Command::Calibrate(args) => cli::calibrate::run(args),
        // Requests over time -> the same engine, iteration by iteration.
        Command::Replay(args) => cli::replay::run(args),
        // Distributions -> a trace of requests.
        Command::Workload(action) => cli::workload::run(action),
        // The nouns that go in.
        Command::Hw(action) => cli::hw::run(action),
        Command::Models(action) => cli::models::run(action),
        // The command line about itself.
        Command::Completions(args) => cli::completions::run(args),
        Command::Man => cli::man::run(),
    }
}
