//! Standard output and error. A reader that leaves early is not an error.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use plimsoll_core::units::Bytes;
use serde::Serialize;

use super::exit::{Exit, Failure};
use crate::files::{
    check_writable, file_of_profile, files_of_model, is_file, is_standard_input, same_file,
};

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

/// The files that a command writes, each with its flag, and those that it reads.
#[derive(Debug)]
pub(super) struct Outputs<'a> {
    written: Vec<(&'a str, &'a Path)>,
    read: Vec<(&'a str, PathBuf)>,
}

impl<'a> Outputs<'a> {
    /// Those that are asked for.
    pub fn of(files: impl IntoIterator<Item = (&'a str, Option<&'a Path>)>) -> Outputs<'a> {
        let asked = files
            .into_iter()
            .filter_map(|(flag, file)| Some((flag, file?)));
        Outputs {
            written: asked.collect(),
            read: Vec::new(),
        }
    }

    /// None may take the place of an input.
    pub fn apart_from(
        mut self,
        inputs: impl IntoIterator<Item = (&'a str, Option<&'a Path>)>,
    ) -> Outputs<'a> {
        let given = inputs
            .into_iter()
            .filter_map(|(flag, file)| Some((flag, file?)))
            .filter(|(_, file)| !is_standard_input(file));
        self.read
            .extend(given.map(|(flag, file)| (flag, file.to_owned())));
        self
    }

    /// Nor that of a profile or of a model's files, where they are given as paths.
    pub fn sparing(
        mut self,
        hw: Option<&'a str>,
        models: impl IntoIterator<Item = &'a str>,
    ) -> Outputs<'a> {
        let hw = hw.and_then(file_of_profile).map(|file| ("--hw", file));
        let models = models.into_iter().flat_map(files_of_model);
        self.read
            .extend(models.map(|file| ("a file of --model", file)));
        self.read.extend(hw);
        self
    }

    /// Refuses, before the work begins, what could not be written when it is done, and what would take another file's place.
    ///
    /// # Errors
    /// The flags, the file and what to do.
    pub fn check(&self) -> Result<(), Failure> {
        let refused = |line| Err(Failure::new(Exit::Usage, line));
        for (index, (flag, file)) in self.written.iter().enumerate() {
            check_writable(file).or_else(|error| refused(cannot_be_written(flag, file, &error)))?;
            let mut others = self.written[index + 1..].iter();
            if let Some((other, _)) = others.find(|(_, other)| same_file(file, other)) {
                let file = file.display();
                let line = match flag == other {
                    true => format!("{flag} {file}: is given twice; give each its own file"),
                    false => {
                        format!("{flag} and {other} are the same file, {file}; give each its own")
                    }
                };
                return refused(line);
            }
            let mut read = self.read.iter();
            if let Some((input, _)) = read.find(|(_, input)| same_file(file, input)) {
                let file = file.display();
                return refused(format!(
                    "{flag} and {input} are the same file, {file}; write to another file"
                ));
            }
        }
        Ok(())
    }
}

fn cannot_be_written(flag: &str, file: &Path, error: &io::Error) -> String {
    let why = match error.kind() {
        ErrorKind::NotFound if !has_folder(file) => {
            "its folder is not there; make it, or give another file"
        }
        ErrorKind::NotADirectory => "its folder is a file; give another file",
        ErrorKind::IsADirectory => "is a folder; give a file in it",
        ErrorKind::PermissionDenied => "is not permitted; permit it, or give another file",
        _ => &format!("{error}; give another file"),
    };
    format!("{flag} {}: cannot be written: {why}", file.display())
}

fn has_folder(file: &Path) -> bool {
    let folder = file.parent().filter(|folder| *folder != Path::new(""));
    folder.is_none_or(Path::is_dir)
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
