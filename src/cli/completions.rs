//! `plimsoll completions SHELL`

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, print};

/// Which shell.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell that will read the script
    shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// Where it cannot be printed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plimsoll", &mut script);
    print(&String::from_utf8(script)?)
}
