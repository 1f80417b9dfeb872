//! The grid of validation cases: what is run, after the file has been read and checked.
//!
//! `file` is what a grid file may say, `check` what its numbers and names must be, and `resolve` makes
//! cases of it.

mod check;
mod file;
mod resolve;
#[cfg(test)]
mod tests;

use std::path::Path;

use plimsoll_backend::cpu::Throttles;
use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;

use crate::files::{InputError, TomlText};

/// The grid that `validate` runs unless another is given.
pub const BUILT_IN: &str = include_str!("grid.toml");

/// The one for GPUs.
pub const BUILT_IN_FOR_GPUS: &str = include_str!("grid-gpu.toml");

/// All cases of a grid.
#[derive(Debug, Clone)]
pub struct Grid {
    /// In the file's order; each has a name of its own.
    pub cases: Vec<Case>,
    /// How often each is run.
    pub repeats: u32,
}

/// One case of a grid.
#[derive(Debug, Clone)]
pub struct Case {
    /// The names of its parts.
    pub name: String,
    /// The placement's name, for grouping.
    pub group: String,
    /// The model.
    pub model: ModelSpec,
    /// The type of all tensors.
    pub dtype: Dtype,
    /// What is asked.
    pub workload: Workload,
    /// The policy, or `None` where the planner chooses.
    pub policy: Option<Policy>,
    /// What the machine is held to.
    pub limits: Limits,
}

/// Capacities and throttles of an emulated machine; what is not said is the profile's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Capacity of each tier.
    pub capacity_bytes: PerTier<Option<Bytes>>,
    /// What each link carries at most.
    pub throttles: Throttles,
}

impl Grid {
    /// Reads a grid and multiplies it out: the cases that it lists, or all combinations.
    ///
    /// # Errors
    /// What is wrong with the file, by line and key.
    pub fn parse(text: &str, path: &Path) -> Result<Grid, InputError> {
        let text = TomlText { path, text };
        let file = text.parse::<file::GridFile>()?.with_defaults();
        check::check(&text, &file)?;
        Ok(Grid {
            cases: resolve::cases(&text, &file)?,
            repeats: *file.repeats.get_ref(),
        })
    }
}

impl Case {
    /// The case with a policy, for no machine yet.
    pub fn plan(&self, policy: Policy) -> Plan {
        Plan::given(self.model.clone(), self.dtype, self.workload, policy)
    }
}

impl Limits {
    /// The machine of a profile, held to these limits.
    pub fn hold(&self, profile: &HardwareProfile) -> HardwareProfile {
        let (capacity, throttles) = (&self.capacity_bytes, &self.throttles);
        profile
            .with_capacities(capacity.device, capacity.host, capacity.disk)
            .with_link_cap(throttles.h2d, throttles.d2h)
            .with_disk_cap(throttles.disk_read, throttles.disk_write)
            .with_cpu_cap(throttles.cpu)
    }
}
