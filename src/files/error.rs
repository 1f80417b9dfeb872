//! Why something that was named cannot be used; split by what the caller does next.

use std::path::Path;

use plimsoll_core::hardware::ProfileError;
use thiserror::Error;

/// Why an input cannot be used. Displays as one line: file, key, problem, remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InputError {
    /// A name on the command line that nothing has: the command is wrong.
    #[error("{0}")]
    UnknownName(String),
    /// A file that is missing, unreadable or wrong: the file is to be mended.
    #[error("{0}")]
    BadFile(String),
}

impl InputError {
    /// A wrong file, in the usual order.
    pub fn bad_file(
        file: &Path,
        key: impl AsRef<str>,
        problem: impl AsRef<str>,
        remedy: impl AsRef<str>,
    ) -> InputError {
        let (key, problem, remedy) = (key.as_ref(), problem.as_ref(), remedy.as_ref());
        let line = format!("{}: {key}: {problem}; {remedy}", file.display());
        InputError::BadFile(one_line(&line))
    }

    /// A line of a file, in somebody else's words, problem and remedy in one; the key may be empty.
    pub fn said_of_line(file: &Path, line: u64, key: &str, said: &str) -> InputError {
        let key = match key {
            "" => String::new(),
            key => format!(", {key}"),
        };
        let file = file.display();
        InputError::BadFile(one_line(&format!("{file}: line {line}{key}: {said}")))
    }

    /// A file that is wrong as a whole.
    pub fn bad_whole_file(
        file: &Path,
        problem: impl AsRef<str>,
        remedy: impl AsRef<str>,
    ) -> InputError {
        let (problem, remedy) = (problem.as_ref(), remedy.as_ref());
        let line = format!("{}: {problem}; {remedy}", file.display());
        InputError::BadFile(one_line(&line))
    }

    /// A file that the system does not hand out.
    pub fn unreadable(file: &Path, error: &std::io::Error) -> InputError {
        let remedy = match error.kind() {
            std::io::ErrorKind::NotFound => "check the path",
            std::io::ErrorKind::PermissionDenied => "allow reading it",
            _ => "give a file that can be read",
        };
        let line = format!("{}: cannot be read: {error}; {remedy}", file.display());
        InputError::BadFile(one_line(&line))
    }
}

impl From<ProfileError> for InputError {
    fn from(error: ProfileError) -> InputError {
        InputError::BadFile(one_line(&error.to_string()))
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
