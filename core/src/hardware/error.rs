//! What is wrong with a profile, where, and what to do.

use crate::did_you_mean;

/// One thing wrong with a profile; displays as one line: file, key, problem, remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {key}: {problem}; {remedy}")]
pub struct ProfileError {
    /// The file that holds the key, or the name of the profile where there is no file.
    pub origin: String,
    /// The key, dotted, array elements numbered from 0 (`compute.gemm[0].dtype`).
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// What would be right.
    pub remedy: String,
}

impl ProfileError {
    /// For the caller's loader of parents: there is no profile `name`. `parse` adds the file.
    pub fn no_such_profile<'a>(
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> ProfileError {
        let known: Vec<&str> = known.into_iter().collect();
        let remedy = did_you_mean(name, known.iter().copied())
            .unwrap_or_else(|| format!("the profiles are: {}", known.join(", ")));
        ProfileError {
            origin: String::new(),
            key: "extends".to_owned(),
            problem: format!("there is no profile `{name}`"),
            remedy,
        }
    }

    /// Where the file is known to `parse` only.
    pub(super) fn or_origin(mut self, origin: &str) -> ProfileError {
        if self.origin.is_empty() {
            self.origin = origin.to_owned();
        }
        self
    }
}

/// What is wrong with one key, before the file it stands in is known.
pub(super) struct Fault {
    pub key: String,
    /// Another key that it takes for this to be wrong, to be mended where it is the one that was changed.
    pub or_key: Option<String>,
    pub problem: String,
    pub remedy: String,
}

impl Fault {
    pub fn new(
        key: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Fault {
        Fault {
            key: key.into(),
            or_key: None,
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    pub fn or_key(mut self, key: impl Into<String>) -> Fault {
        self.or_key = Some(key.into());
        self
    }

    pub fn within(self, origin: &str) -> ProfileError {
        ProfileError {
            origin: origin.to_owned(),
            key: self.key,
            problem: self.problem,
            remedy: self.remedy,
        }
    }
}
