//! Effects of the cost model, each a named term that can be switched off: what is predicted without one
//! shows what it is worth.
//!
//! The cost model has no switches. A term is off on a machine that does not have the effect.

use serde::{Deserialize, Serialize};

use crate::hardware::{CopyLink, Curve, DiskLink, HardwareProfile, ProfileError, Quantity};
use crate::policy::{Granularity, Policy};
use crate::units::{BytesPerSecond, Seconds};

/// An effect that predictions account for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Term {
    /// Disks go at the rate that runs see, and not at the nominal one.
    DiskRate,
    /// Matrix products of few tokens are bound by reading weights from device memory.
    DeviceMemory,
    /// Tensors are whole in each layer, so a layer's split is not quite what was asked.
    WholeTensors,
    /// Where steps meet, attention and MLP are steps of their own.
    HalfLayers,
    /// The CPU attends to a copy of the cache that is made a step ahead.
    CacheWorkspace,
    /// Weights in pageable memory pass through page-locked memory that is kept.
    WeightRelay,
    /// Copies from and to pageable memory are slower.
    PageableMemory,
    /// 4-bit weights and cache are unpacked.
    Unpacking,
    /// Attention on the CPU takes longer the more cache it reads.
    CpuAttention,
    /// Launches, hand-offs, barriers and latencies of copies and requests.
    FixedCosts,
    /// Engines that run side by side slow each other.
    Contention,
}

/// A rate so high that what goes at it takes no time.
const NO_TIME: f64 = f64::MAX;

impl Term {
    /// All of them.
    pub const ALL: [Term; 11] = [
        Term::DiskRate,
        Term::DeviceMemory,
        Term::WholeTensors,
        Term::HalfLayers,
        Term::CacheWorkspace,
        Term::WeightRelay,
        Term::PageableMemory,
        Term::Unpacking,
        Term::CpuAttention,
        Term::FixedCosts,
        Term::Contention,
    ];

    /// The name that the command line and files use.
    pub const fn name(self) -> &'static str {
        match self {
            Term::DiskRate => "disk-rate",
            Term::DeviceMemory => "device-memory",
            Term::WholeTensors => "whole-tensors",
            Term::HalfLayers => "half-layers",
            Term::CacheWorkspace => "cache-workspace",
            Term::WeightRelay => "weight-relay",
            Term::PageableMemory => "pageable-memory",
            Term::Unpacking => "unpacking",
            Term::CpuAttention => "cpu-attention",
            Term::FixedCosts => "fixed-costs",
            Term::Contention => "contention",
        }
    }

    /// What is assumed where it is off, in a line.
    pub const fn when_off(self) -> &'static str {
        match self {
            Term::DiskRate => "the disk goes at its nominal rate",
            Term::DeviceMemory => "device memory takes no time in matrix products and embedding",
            Term::WholeTensors => {
                "weights are split over the whole model, close to the shares asked"
            }
            Term::HalfLayers => "a layer is one step, its weights one load",
            Term::CacheWorkspace => "the CPU attends to the cache where it lives, all in one",
            Term::WeightRelay => "weights in pageable memory are copied as all else there is",
            Term::PageableMemory => "pageable memory is copied as fast as page-locked memory",
            Term::Unpacking => {
                "4-bit weights and cache are unpacked in no time, and read as whole ones"
            }
            Term::CpuAttention => "attention on the CPU takes its fixed time only",
            Term::FixedCosts => "launches, hand-offs, barriers and latencies take no time",
            Term::Contention => "engines side by side do not slow each other",
        }
    }

    /// The term of that name.
    pub fn named(name: &str) -> Option<Term> {
        Term::ALL.into_iter().find(|term| term.name() == name)
    }

    /// The policy where this term is off. Tensors stay whole, but the split is made over the whole model,
    /// where it comes close to any share.
    pub fn off_in(self, policy: &mut Policy) {
        match self {
            Term::WholeTensors => policy.granularity = Granularity::Spread,
            Term::HalfLayers => policy.half_layers = false,
            Term::CacheWorkspace => policy.cache_workspace = false,
            Term::WeightRelay => policy.relayed_weights = false,
            _ => {}
        }
    }
}

impl HardwareProfile {
    /// The machine without some terms. Residuals are of all terms together, so there are none.
    ///
    /// # Errors
    /// A disk whose nominal rate is not stated.
    pub fn without(&self, terms: &[Term]) -> Result<HardwareProfile, ProfileError> {
        let mut changed = self.clone();
        for term in terms {
            changed.residuals = None;
            changed.switch_off(*term)?;
        }
        Ok(changed)
    }

    fn switch_off(&mut self, term: Term) -> Result<(), ProfileError> {
        let links = &mut self.links;
        match term {
            Term::DiskRate => {
                let nominal = [&mut links.disk_read, &mut links.disk_write].map(at_nominal_rate);
                if nominal == [false, false] {
                    return Err(ProfileError {
                        origin: self.name.clone(),
                        key: "links.disk_read.nominal_bytes_per_s".to_owned(),
                        problem: format!("is missing, and without {} it is needed", term.name()),
                        remedy: "state the rate of the data sheet or of dd".to_owned(),
                    });
                }
            }
            Term::DeviceMemory => {
                self.tiers.device_bandwidth.value = BytesPerSecond(NO_TIME);
                // Where products are measured by shape, what they wait for weights stands by itself.
                self.compute.weight_read.clear();
                for contention in &mut self.contention {
                    contention.while_reading = None;
                }
            }
            // In the policy.
            Term::WholeTensors | Term::HalfLayers | Term::CacheWorkspace | Term::WeightRelay => {}
            Term::PageableMemory => {
                for link in [&mut links.h2d, &mut links.d2h] {
                    (link.pageable, link.relayed) = (None, None);
                }
            }
            Term::Unpacking => {
                let compute = &mut self.compute;
                let known = compute.unpack.as_ref().map(|curve| curve.source.clone());
                let source = known.unwrap_or_else(|| self.tiers.device_bandwidth.source.clone());
                compute.unpack = Some(constant(NO_TIME, &source));
                compute.pack = None;
                // Curves of packed weights have it in them.
                compute.gemm.retain(|curve| !curve.packed);
                compute.cpu_gemm.retain(|curve| !curve.packed);
                compute.products.retain(|product| !product.packed);
            }
            Term::CpuAttention => {
                let compute = &mut self.compute;
                compute.cpu_attention = constant(NO_TIME, &compute.cpu_attention.source);
            }
            Term::FixedCosts => self.fix_nothing(),
            Term::Contention => {
                self.contention.clear();
                self.tiers.host_shared = None;
            }
        }
        Ok(())
    }

    fn fix_nothing(&mut self) {
        let (links, compute) = (&mut self.links, &mut self.compute);
        let copies = |link: &mut CopyLink| link.latency.value = Seconds::ZERO;
        copies(&mut links.h2d);
        copies(&mut links.d2h);
        links.disk_read.latency.value = Seconds::ZERO;
        links.disk_write.latency.value = Seconds::ZERO;
        for peer in &mut links.peers {
            peer.latency.value = Seconds::ZERO;
        }
        compute.launch.value = Seconds::ZERO;
        (compute.part_launch, compute.embed) = (None, None);
        compute.sequence = None;
        compute.sequence_layer = None;
        compute.barrier.value = Seconds::ZERO;
        compute.cpu_launch.value = Seconds::ZERO;
        (compute.handoff, compute.stream_handoff) = (None, None);
    }
}

/// Whether the disk states a nominal rate, at which it then goes.
fn at_nominal_rate(link: &mut DiskLink) -> bool {
    let Some(Quantity { value, source, .. }) = &link.nominal else {
        return false;
    };
    link.rate = constant(value.0, source);
    true
}

/// One rate for all sizes.
fn constant(rate: f64, source: &str) -> Curve {
    let curve = Curve::new(vec![(1.0, rate)], source, None);
    curve.expect("a positive rate at a positive size")
}
