//! Standard output and error. A reader that leaves early is not an error.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

use plimsoll_core::units::Bytes;
use serde::Serialize;

use super::exit::{Exit, Failure};
use crate::files::{check_writable, files_of_model, is_file, same_file};

/// Prints a text. That nobody reads any more is no failure, and keeps nothing else from being done or said.
///
/// # Errors
/// Where nothing can be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let done = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match done {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(anyhow::anyhow!(
            "standard output cannot be written: {error}"
        )),
        _ => Ok(()),
    }
}

/// Prints a value as indented JSON.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Refuses a file that could not be written when the work is done, before it begins.
///
/// # Errors
/// The flag, the file and what to do.
pub(super) fn check_output(flag: &str, file: Option<&Path>) -> Result<(), Failure> {
    let Some((file, error)) = file.and_then(|file| Some((file, check_writable(file).err()?)))
    else {
        return Ok(());
    };
    let why = match error.kind() {
        ErrorKind::NotFound if !has_folder(file) => {
            "its folder is not there; make it, or give another file"
        }
        ErrorKind::NotADirectory => "its folder is a file; give another file",
        ErrorKind::IsADirectory => "is a folder; give a file in it",
        ErrorKind::PermissionDenied => "is not permitted; permit it, or give another file",
        _ => &format!("{error}; give another file"),
    };
    let line = format!("{flag} {}: cannot be written: {why}", file.display());
    Err(Failure::new(Exit::Usage, line))
}

fn has_folder(file: &Path) -> bool {
    let folder = file.parent().filter(|folder| *folder != Path::new(""));
    folder.is_none_or(Path::is_dir)
}

/// Refuses two files of which the second would take the first one's place, and each that could not be
/// written, before the work begins.
///
/// # Errors
/// The flags, the file and what to do.
pub(super) fn check_outputs(output: Option<&Path>, trace: Option<&Path>) -> Result<(), Failure> {
    check_output("--output", output)?;
    check_output("--trace", trace)?;
    match (output, trace) {
        (Some(output), Some(trace)) if same_file(output, trace) => {
            let file = trace.display();
            let line = format!("--output and --trace are the same file, {file}; give each its own");
            Err(Failure::new(Exit::Usage, line))
        }
        _ => Ok(()),
    }
}

/// Refuses an output that is one of the inputs: it would take its place.
///
/// # Errors
/// The flags, the file and what to do.
pub(super) fn check_apart(
    outputs: &[(&str, Option<&Path>)],
    inputs: &[(&str, Option<&Path>)],
) -> Result<(), Failure> {
    for (output, into) in outputs {
        for (input, from) in inputs {
            if let (Some(into), Some(from)) = (into, from)
                && same_file(into, from)
            {
                let file = into.display();
                let line = format!(
                    "{output} and {input} are the same file, {file}; write to another file"
                );
                return Err(Failure::new(Exit::Usage, line));
            }
        }
    }
    Ok(())
}

/// Refuses an output that is the profile or a file of the model, where they are given as paths.
///
/// # Errors
/// As [`check_apart`].
pub(super) fn check_spared(
    outputs: &[(&str, Option<&Path>)],
    hw: Option<&str>,
    model: Option<&str>,
) -> Result<(), Failure> {
    let hw = hw.map(Path::new).filter(|hw| hw.is_file());
    check_apart(outputs, &[("--hw", hw)])?;
    for file in model.map(files_of_model).unwrap_or_default() {
        check_apart(outputs, &[("a file of --model", Some(&file))])?;
    }
    Ok(())
}

/// `written    trace.json, 443 MB`; nothing of what is no file.
pub(super) fn written_to(file: &Path) -> String {
    let there = std::fs::metadata(file).ok().filter(|_| is_file(file));
    there.map_or(String::new(), |there| {
        format!("written    {}, {}\n", file.display(), Bytes(there.len()))
    })
}

/// A line on standard error; where even that is closed, nothing is left to be said.
pub(super) fn complain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
