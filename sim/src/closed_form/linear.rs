//! Linear functions of the nine shares.

use std::ops::{Add, AddAssign, Mul};

use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::tier::{PerTier, Tier};

/// A constant and a slope for each share: seconds or bytes, as its owner says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Linear {
    /// Whatever the shares are.
    pub constant: f64,
    /// For all weights in a tier.
    pub weights: PerTier<f64>,
    /// For all of the KV cache in a tier.
    pub cache: PerTier<f64>,
    /// For all activations in a tier.
    pub activations: PerTier<f64>,
}

impl Linear {
    /// The value for a policy's shares.
    pub fn at(&self, policy: &Policy) -> f64 {
        let dot = |slopes: &PerTier<f64>, shares: &PerTier<f64>| -> f64 {
            Tier::ALL.into_iter().map(|t| slopes[t] * shares[t]).sum()
        };
        self.constant
            + dot(&self.weights, &policy.weights)
            + dot(&self.cache, &policy.cache)
            + dot(&self.activations, &policy.activations)
    }

    /// The least value over all shares, which pure placements attain.
    pub fn lowest(&self) -> f64 {
        self.extreme(f64::min)
    }

    /// The largest value over all shares.
    pub fn highest(&self) -> f64 {
        self.extreme(f64::max)
    }

    fn extreme(&self, pick: impl Fn(f64, f64) -> f64) -> f64 {
        let of = |slopes: &PerTier<f64>| pick(pick(slopes.device, slopes.host), slopes.disk);
        self.constant + of(&self.weights) + of(&self.cache) + of(&self.activations)
    }

    /// The part that the weights make.
    pub(super) fn weights_part(&self) -> Linear {
        Linear {
            weights: self.weights,
            ..Linear::default()
        }
    }

    /// The part that weights on the host make.
    pub(super) fn host_weights(&self) -> Linear {
        let mut part = Linear::default();
        part.weights.host = self.weights.host;
        part
    }

    /// The part that the cache and activations on the host make.
    pub(super) fn host_but_weights(&self) -> Linear {
        let mut part = Linear::default();
        part.cache.host = self.cache.host;
        part.activations.host = self.activations.host;
        part
    }

    /// Of the host's memory, all but those of its homes that are not page-locked.
    pub(super) fn less_pageable(mut self, homes: &Linear, locked: PageLocked) -> Linear {
        let pageable = |locked: bool, homes: f64| if locked { 0.0 } else { homes };
        self.weights.host -= pageable(locked.weights, homes.weights.host);
        self.cache.host -= pageable(locked.cache, homes.cache.host);
        self.activations.host -= pageable(locked.activations, homes.activations.host);
        self
    }

    /// The part that the disk's shares make.
    pub(super) fn disk_part(&self) -> Linear {
        let only = |slopes: PerTier<f64>| PerTier {
            device: 0.0,
            host: 0.0,
            disk: slopes.disk,
        };
        Linear {
            constant: 0.0,
            weights: only(self.weights),
            cache: only(self.cache),
            activations: only(self.activations),
        }
    }

    fn zip(self, other: Linear, f: impl Fn(f64, f64) -> f64) -> Linear {
        let tiers = |a: PerTier<f64>, b: PerTier<f64>| PerTier::from_fn(|t| f(a[t], b[t]));
        Linear {
            constant: f(self.constant, other.constant),
            weights: tiers(self.weights, other.weights),
            cache: tiers(self.cache, other.cache),
            activations: tiers(self.activations, other.activations),
        }
    }
}

impl Add for Linear {
    type Output = Linear;
    fn add(self, other: Linear) -> Linear {
        self.zip(other, |a, b| a + b)
    }
}

impl AddAssign for Linear {
    fn add_assign(&mut self, other: Linear) {
        *self = *self + other;
    }
}

impl Mul<f64> for Linear {
    type Output = Linear;
    fn mul(self, factor: f64) -> Linear {
        self.zip(Linear::default(), |a, _| a * factor)
    }
}
