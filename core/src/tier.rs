//! The memory tiers of FlexGen's hierarchy and what is split over them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A level of memory. The GPU's memory is called the device tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The accelerator's own memory.
    Device,
    /// Main memory.
    Host,
    /// Files on a disk.
    Disk,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

    /// The name as written in plans and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Tier::Device => "device",
            Tier::Host => "host",
            Tier::Disk => "disk",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One value a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PerTier<T> {
    /// On the device.
    pub device: T,
    /// In host memory.
    pub host: T,
    /// On disk.
    pub disk: T,
}

impl<T> PerTier<T> {
    /// One value for each tier, from a function.
    pub fn from_fn(mut value: impl FnMut(Tier) -> T) -> PerTier<T> {
        PerTier {
            device: value(Tier::Device),
            host: value(Tier::Host),
            disk: value(Tier::Disk),
        }
    }

    /// Each value, changed.
    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> PerTier<U> {
        PerTier {
            device: change(self.device),
            host: change(self.host),
            disk: change(self.disk),
        }
    }
}

impl<T> std::ops::Index<Tier> for PerTier<T> {
    type Output = T;
    fn index(&self, tier: Tier) -> &T {
        match tier {
            Tier::Device => &self.device,
            Tier::Host => &self.host,
            Tier::Disk => &self.disk,
        }
    }
}

impl<T> std::ops::IndexMut<Tier> for PerTier<T> {
    fn index_mut(&mut self, tier: Tier) -> &mut T {
        match tier {
            Tier::Device => &mut self.device,
            Tier::Host => &mut self.host,
            Tier::Disk => &mut self.disk,
        }
    }
}
