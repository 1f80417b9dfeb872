//! `plimsoll man`

use std::io;

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
    // All but the list of subcommands, which would name a page for each.
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    sections(&command, "PLIMSOLL", &mut page)?;
    man.render_extra_section(&mut page)?;
    man.render_version_section(&mut page)?;
    print(&String::from_utf8(page)?)
}

/// What is below a command; one that has subcommands itself is but the way to them.
fn sections(command: &clap::Command, path: &str, page: &mut Vec<u8>) -> io::Result<()> {
    for below in command.get_subcommands() {
        let name = below.get_name();
        if name == "help" {
            continue;
        }
        let path = format!("{path} {}", name.to_uppercase());
        if below.has_subcommands() {
            sections(below, &path, page)?;
            continue;
        }
        page.extend_from_slice(format!(".SH \"{path}\"\n").as_bytes());
        let man = clap_mangen::Man::new(below.clone());
        man.render_description_section(page)?;
        man.render_synopsis_section(page)?;
        man.render_options_section(page)?;
    }
    Ok(())
}
