//! `plimsoll man`

use clap::CommandFactory;

use super::{Cli, print};

/// Prints the manual page: the program's own, then one section for each subcommand.
///
/// # Errors
/// Where it cannot be printed.
pub fn run() -> anyhow::Result<()> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for subcommand in command.get_subcommands() {
        let name = subcommand.get_name();
        if name == "help" {
            continue;
        }
        let title = format!(".SH \"PLIMSOLL {}\"\n", name.to_uppercase());
        page.extend_from_slice(title.as_bytes());
        let man = clap_mangen::Man::new(subcommand.clone());
        man.render_description_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    print(&String::from_utf8(page)?)
}
