//! A machine with other memory than its profile says.

use clap::Args;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::units::Bytes;
use serde::Serialize;

use super::options::positive;

/// More than anybody has, and less than bytes can be counted to.
const GB_MAX: f64 = 1e9;

fn gigabytes(text: &str) -> Result<f64, String> {
    let stated = positive(text).ok().filter(|gb| *gb <= GB_MAX);
    stated.ok_or_else(|| format!("give a number above 0 and at most {GB_MAX}"))
}

/// No disk is a machine as well.
fn gigabytes_or_none(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(0.0),
        _ => gigabytes(text).map_err(|said| said.replace("above 0", "of 0 (none) or more")),
    }
}

/// Memory of the machine, as stated: all there is, with what others use.
#[derive(Debug, Clone, Copy, PartialEq, Args, Serialize)]
pub(super) struct WhatIf {
    #[command(flatten)]
    #[serde(flatten)]
    memory: MemoryIf,
    /// What if the disk had so much room, in GB of 10^9 bytes (0: there is none)
    #[arg(long, value_name = "GB", value_parser = gigabytes_or_none, allow_negative_numbers = true)]
    disk_gb: Option<f64>,
}

/// The same where there is no disk in it.
#[derive(Debug, Clone, Copy, PartialEq, Args, Serialize)]
pub(super) struct MemoryIf {
    /// What if the device had so much memory, in GB of 10^9 bytes
    #[arg(long, value_name = "GB", value_parser = gigabytes, allow_negative_numbers = true)]
    device_gb: Option<f64>,
    /// What if the host had so much memory, in GB of 10^9 bytes
    #[arg(long, value_name = "GB", value_parser = gigabytes, allow_negative_numbers = true)]
    host_gb: Option<f64>,
}

impl From<MemoryIf> for WhatIf {
    fn from(memory: MemoryIf) -> WhatIf {
        WhatIf {
            memory,
            disk_gb: None,
        }
    }
}

impl WhatIf {
    /// The machine with what is stated.
    pub(super) fn of(self, profile: HardwareProfile) -> HardwareProfile {
        let [device, host, disk] = self.stated().map(|(_, bytes)| bytes);
        match self.is_stated() {
            true => profile.with_capacities(device, host, disk),
            false => profile,
        }
    }

    /// Whether anything is.
    pub(super) fn is_stated(self) -> bool {
        self.stated().iter().any(|(_, bytes)| bytes.is_some())
    }

    /// A line that says what is.
    pub(super) fn note(self, profile: &HardwareProfile) -> String {
        let said = self.stated().into_iter();
        let said = said.filter_map(|(name, bytes)| Some(format!("{} of {name}", bytes?)));
        let said: Vec<String> = said.collect();
        match said.is_empty() {
            true => String::new(),
            false => format!(
                "machine    {} if it had {}\n",
                profile.name,
                said.join(", ")
            ),
        }
    }

    fn stated(self) -> [(&'static str, Option<Bytes>); 3] {
        let bytes = |gb: f64| Bytes((gb * 1e9).round() as u64);
        [
            ("device memory", self.memory.device_gb.map(bytes)),
            ("host memory", self.memory.host_gb.map(bytes)),
            ("disk", self.disk_gb.map(bytes)),
        ]
    }
}
