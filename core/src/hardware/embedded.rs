//! The profiles that ship, compiled in.

use super::error::ProfileError;
use super::profile::HardwareProfile;

macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../hw-profiles/", $name, ".toml")))),*]
    };
}

const MACHINES: &[(&str, &str)] = profiles![
    "a10",
    "a100-80",
    "a100-80-vllm",
    "a100-s3",
    "a100x12-s3",
    "a6000",
    "a6000-flexgen",
    "gh200",
    "gh200-flexgen",
    "gh200-vllm",
    "gh200-vllm-both-ways",
    "h100",
    "h100-raid",
    "h200",
    "rtx3090",
    "rtx3090-flexgen",
    "rtx4090",
    "t4",
    "t4-direct",
    "t4-page-cache-management",
    "t4-persistent-ssd",
    "t4-uncalibrated",
    "t4-whole-runs",
    "t4x4",
];

/// What machines extend; no machine of its own.
const BASES: &[(&str, &str)] = profiles!["base"];

/// The names of the machines that ship, in alphabetical order.
pub fn names() -> impl Iterator<Item = &'static str> {
    MACHINES.iter().map(|(name, _)| *name)
}

/// The text of a machine that ships, or of a base that one extends.
pub fn text(name: &str) -> Option<&'static str> {
    let mut all = MACHINES.iter().chain(BASES);
    all.find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The parent that `extends` names, for [`HardwareProfile::parse`] where there are no files.
pub fn parent(name: &str) -> Result<String, ProfileError> {
    text(name)
        .map(str::to_owned)
        .ok_or_else(|| ProfileError::no_such_profile(name, names()))
}

/// A machine that ships, read and validated.
pub fn profile(name: &str) -> Result<HardwareProfile, ProfileError> {
    HardwareProfile::parse(&parent(name)?, &format!("{name}.toml"), &parent)
}
