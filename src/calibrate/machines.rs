//! The machines that runs name.

use std::collections::HashMap;
use std::path::Path;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::term::Term;

use super::RecordedRun;
use crate::files::{InputError, find_profile};

/// The profiles that runs name, and the caller's for the others.
#[derive(Debug)]
pub struct Machines {
    default: HardwareProfile,
    named: HashMap<String, HardwareProfile>,
}

impl Machines {
    /// Finds them all; `path` is the file that the runs come from.
    ///
    /// # Errors
    /// A profile that is not there, or is wrong.
    pub fn find(default: &str, runs: &[RecordedRun], path: &Path) -> Result<Machines, InputError> {
        let mut named = HashMap::new();
        for run in runs {
            let Some(name) = run.hardware.as_ref().filter(|it| !named.contains_key(*it)) else {
                continue;
            };
            let found = find_profile(name).map_err(|error| {
                let said = error.to_string();
                let said = said.strip_prefix("--hw ").unwrap_or(&said);
                InputError::said_of_line(path, run.line, "hw", said)
            })?;
            named.insert(name.clone(), found);
        }
        Ok(Machines {
            default: find_profile(default)?,
            named,
        })
    }

    /// The same without some terms of the cost model.
    ///
    /// # Errors
    /// A machine that does not state what it would be without one.
    pub fn without(&self, terms: &[Term]) -> Result<Machines, InputError> {
        let mut named = HashMap::new();
        for (name, profile) in &self.named {
            named.insert(name.clone(), profile.without(terms)?);
        }
        Ok(Machines {
            default: self.default.without(terms)?,
            named,
        })
    }

    /// A run's machine.
    pub fn of(&self, run: &RecordedRun) -> &HardwareProfile {
        let named = run.hardware.as_ref().and_then(|name| self.named.get(name));
        named.unwrap_or(&self.default)
    }
}
