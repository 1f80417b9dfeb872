//! Who slows whom: engines that run side by side share what they need.
//!
//! Beside another engine a victim keeps a fraction of its rate. That is the same as a **delay**, seconds
//! lost for each second of its own work, and the delays of several engines add up, as they do where
//! engines share something fairly: three that each need all of it run at a third.

use serde::Serialize;

use super::provenance::Quantity;
use crate::program::ResourceKind;

/// One engine slows another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Contention {
    /// The engine that slows down.
    pub victim: ResourceKind,
    /// The engine beside it.
    pub beside: ResourceKind,
    /// The fraction of its rate that the victim keeps while this engine, and no other, is active beside
    /// it, in (0, 1]. Beside several, their delays ([`delay_of`]) add up, and [`rate_of`] the sum is
    /// what it keeps.
    pub rate: Quantity<f64>,
    /// The same where one of the two is the GPU and does nothing but read weights that no cache holds, as with few rows; none where
    /// that makes no difference. A task that reads for a part of its time has delays between those of both rates.
    pub while_reading: Option<Quantity<f64>>,
}

impl Contention {
    /// How much longer than [`delay_of`] `rate` the delay is where the GPU reads weights all the while; below zero: shorter.
    pub fn delay_of_reading(&self) -> f64 {
        let reading = self.while_reading.as_ref().unwrap_or(&self.rate);
        delay_of(reading.value) - delay_of(self.rate.value)
    }
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
}
