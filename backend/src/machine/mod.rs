//! What this machine has for running models, what is missing, and how to get it.

mod gpu;
pub mod others;
mod system;

use std::path::Path;

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    Good,
    /// Works, though slower or smaller than it could.
    Weak,
    /// Not there.
    Missing,
}

impl State {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Weak => "weak",
            State::Missing => "missing",
        }
    }
}

/// One thing that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub name: &'static str,
    /// How it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it, where there is something to do.
    pub remedy: Option<String>,
}

impl Finding {
    fn good(name: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            name,
            state: State::Good,
            found: found.into(),
            remedy: None,
        }
    }

    fn other(
        name: &'static str,
        state: State,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            name,
            state,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }
}

/// Looks at the machine; `disk_dir` is where a disk tier's file would go.
pub fn inspect(disk_dir: &Path) -> Vec<Finding> {
    let mut findings = system::findings(disk_dir);
    findings.extend(gpu::findings());
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_that_is_not_good_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let findings = inspect(folder.path());
        for finding in &findings {
            let good = finding.state == State::Good;
            assert_eq!(finding.remedy.is_none(), good, "{finding:?}");
            assert!(!finding.found.is_empty() && !finding.found.contains('\n'));
        }
        let names: Vec<_> = findings.iter().map(|finding| finding.name).collect();
        for name in [
            "host memory",
            "disk tier",
            "NVIDIA driver",
            "NVRTC",
            "cuBLAS",
        ] {
            assert!(names.contains(&name), "{name} of {names:?}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_no_place_for_a_disk_tier() {
        let findings = inspect(Path::new("/no/such/folder"));
        let disk = findings.iter().find(|f| f.name == "disk tier").unwrap();
        assert_eq!(disk.state, State::Missing);
    }
}
