//! Standard output and error. A reader that leaves early is not an error.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use super::exit::Failure;

/// Prints a text.
///
/// # Errors
/// Where nobody reads any more (the process then ends quietly with 0), or nothing can be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let done = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match done {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::nobody_reads().into()),
        Err(error) => Err(anyhow::anyhow!(
            "standard output cannot be written: {error}"
        )),
        Ok(()) => Ok(()),
    }
}

/// Prints a value as indented JSON.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// A line on standard error; where even that is closed, nothing is left to be said.
pub(super) fn complain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
