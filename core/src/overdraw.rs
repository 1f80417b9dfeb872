//! A prediction whose tasks draw more from a host's memory than its profile says that it gives.

use serde::{Deserialize, Serialize};

use crate::units::BytesPerSecond;

/// What copies and the CPU draw from a host's memory in the mean over a run, where no machine of that description does it: data
/// sheets and publications that a profile puts together may contradict each other, or say nothing of what is shared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overdraw {
    /// What they draw.
    pub asked_bytes_per_s: BytesPerSecond,
    /// What it gives.
    pub gives_bytes_per_s: BytesPerSecond,
    /// The number of the profile that says so (`tiers.host_bandwidth`).
    pub number: String,
}

impl Overdraw {
    /// How many times as much as there is.
    pub fn times(&self) -> f64 {
        self.asked_bytes_per_s.0 / self.gives_bytes_per_s.0
    }
}
