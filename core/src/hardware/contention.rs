//! Who slows whom: engines that run side by side share what they need.
//!
//! Beside another engine a victim keeps a fraction of its rate. That is the same as a **delay**, seconds
//! lost for each second of its own work, and the delays of several engines add up, as they do where
//! engines share something fairly: three that each need all of it run at a third.

use serde::{Deserialize, Serialize};

use super::provenance::Quantity;
use crate::program::ResourceKind;

/// What runs beside what: one engine runs one task at a time, engines run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// Kernels of the device.
    Gpu,
    /// Copies from host to device.
    H2d,
    /// Copies from device to host.
    D2h,
    /// Reads from disk.
    DiskRead,
    /// Writes to disk.
    DiskWrite,
    /// Compute on the CPU.
    Cpu,
    /// Copies into page-locked memory.
    Pin,
}

impl Engine {
    /// All of them, each at its own number.
    pub const ALL: [Engine; 7] = [
        Engine::Gpu,
        Engine::H2d,
        Engine::D2h,
        Engine::DiskRead,
        Engine::DiskWrite,
        Engine::Cpu,
        Engine::Pin,
    ];

    /// The name as written in a profile.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Gpu => "gpu",
            Engine::H2d => "h2d",
            Engine::D2h => "d2h",
            Engine::DiskRead => "disk_read",
            Engine::DiskWrite => "disk_write",
            Engine::Cpu => "cpu",
            Engine::Pin => "pin",
        }
    }

    /// The engine behind a resource. Barriers have none, and no profile says what a link between devices
    /// disturbs.
    pub const fn of(kind: ResourceKind) -> Option<Engine> {
        match kind {
            ResourceKind::Gpu => Some(Engine::Gpu),
            ResourceKind::H2d => Some(Engine::H2d),
            ResourceKind::D2h => Some(Engine::D2h),
            ResourceKind::DiskRead => Some(Engine::DiskRead),
            ResourceKind::DiskWrite => Some(Engine::DiskWrite),
            ResourceKind::Cpu => Some(Engine::Cpu),
            ResourceKind::Pin => Some(Engine::Pin),
            ResourceKind::Sync | ResourceKind::PeerLink => None,
        }
    }
}

/// One engine slows another.
#[derive(Debug, Clone, PartialEq)]
pub struct Contention {
    /// The engine that slows down.
    pub victim: Engine,
    /// The engine beside it.
    pub beside: Engine,
    /// The fraction of its rate that the victim keeps while this engine, and no other, is active beside
    /// it, in (0, 1]. Beside several, their delays ([`delay_of`]) add up, and [`rate_of`] the sum is
    /// what it keeps.
    pub rate: Quantity<f64>,
}

/// Seconds lost for each second of work by a victim that keeps this fraction of its rate.
pub fn delay_of(rate: f64) -> f64 {
    1.0 / rate - 1.0
}

/// The fraction of its rate that a victim keeps with these delays together.
pub fn rate_of(delay: f64) -> f64 {
    1.0 / (1.0 + delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_that_each_need_all_run_at_a_third() {
        let half = delay_of(0.5);
        assert_eq!(rate_of(half), 0.5);
        assert_eq!(rate_of(half + half), 1.0 / 3.0);
    }

    #[test]
    fn engines_are_numbered_in_order() {
        let numbers = Engine::ALL.map(|engine| engine as usize);
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6]);
    }
}
