//! How fast a machine happens to be going.
//!
//! A shared machine changes its speed for seconds at a time (a neighbour on the same core, a clock that
//! goes down). Reference work, timed when the profile is measured and again around a run, tells such a
//! moment from a wrong model.

use std::fmt;

use serde::Serialize;

use super::curve::Curve;
use super::profile::{CopyLink, HardwareProfile};
use super::provenance::Quantity;
use crate::program::{Op, ResourceKind};
use crate::units::{BytesPerSecond, Seconds};

/// How long reference work took when the profile was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pace {
    /// Matrix products of few tokens on the device: bound by reading weights.
    #[serde(rename = "pace_few_tokens_s")]
    pub few_tokens: Quantity<Seconds>,
    /// Matrix products of many tokens on the device: bound by arithmetic.
    #[serde(rename = "pace_many_tokens_s")]
    pub many_tokens: Quantity<Seconds>,
    /// Copies through host memory.
    #[serde(rename = "pace_copy_s")]
    pub copy: Quantity<Seconds>,
}

/// How long copies of reference over a GPU's link took when the profile was measured, in one direction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkPace {
    /// From or to page-locked memory.
    #[serde(rename = "pace_page_locked_s")]
    pub page_locked: Quantity<Seconds>,
    /// From or to pageable memory, through which a driver goes with the processor's help.
    #[serde(rename = "pace_pageable_s")]
    pub pageable: Quantity<Seconds>,
}

/// How much longer copies over a GPU's link take now than then, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LinkSlowness {
    /// From or to page-locked memory.
    pub page_locked: f64,
    /// From or to pageable memory.
    pub pageable: f64,
}

impl LinkSlowness {
    /// The profile's own pace.
    pub const NONE: LinkSlowness = LinkSlowness {
        page_locked: 1.0,
        pageable: 1.0,
    };

    fn of(&self, op: &Op) -> f64 {
        match op.pageable_bytes() {
            Some(_) => self.pageable,
            None => self.page_locked,
        }
    }
}

/// How much longer the reference work takes now than then; 1 is the profile's own pace.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slowness {
    /// Matrix products of few tokens.
    pub few_tokens: f64,
    /// Matrix products of many tokens.
    pub many_tokens: f64,
    /// Copies through host memory.
    pub copy: f64,
    /// Copies to a GPU, beyond what those through host memory say.
    pub h2d: LinkSlowness,
    /// Copies from a GPU, likewise.
    pub d2h: LinkSlowness,
    /// Reads of the disk.
    pub disk_read: f64,
}

/// Up to so many tokens a product is bound by its weights, and from so many on by arithmetic.
const TOKENS: (f64, f64) = (4.0, 96.0);

impl Slowness {
    /// The profile's own pace.
    pub const NONE: Slowness = Slowness {
        few_tokens: 1.0,
        many_tokens: 1.0,
        copy: 1.0,
        h2d: LinkSlowness::NONE,
        d2h: LinkSlowness::NONE,
        disk_read: 1.0,
    };

    /// For matrix products of `m` tokens, between the two references in logarithms.
    pub fn of_tokens(&self, m: f64) -> f64 {
        let share = ((m / TOKENS.0).ln() / (TOKENS.1 / TOKENS.0).ln()).clamp(0.0, 1.0);
        self.few_tokens.powf(1.0 - share) * self.many_tokens.powf(share)
    }

    /// How much longer a task takes. Of writes to a disk nobody knows.
    pub fn of(&self, on: ResourceKind, op: &Op) -> f64 {
        match (on, op) {
            (ResourceKind::DiskRead, _) => self.disk_read,
            (ResourceKind::DiskWrite | ResourceKind::Sync, _) => 1.0,
            (ResourceKind::H2d, _) => self.copy * self.h2d.of(op),
            (ResourceKind::D2h, _) => self.copy * self.d2h.of(op),
            (ResourceKind::Cpu, Op::Attention { .. } | Op::Gather { .. })
            | (_, Op::Move { .. } | Op::MoveParts { .. }) => self.copy,
            (_, Op::Linear { m, .. }) => self.of_tokens(f64::from(*m)),
            (_, Op::Attention { query_len, .. }) if *query_len > 1 => self.many_tokens,
            _ => self.few_tokens,
        }
    }
}

impl fmt::Display for Slowness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Slowness {
            few_tokens,
            many_tokens,
            copy,
            h2d,
            d2h,
            disk_read,
        } = self;
        write!(
            f,
            "reference work took {few_tokens:.2} (products of few tokens), {many_tokens:.2} (of many) and {copy:.2} (copies) \
             times as long as when this machine was profiled"
        )?;
        for (link, slowness) in [("to the GPU", h2d), ("from the GPU", d2h)] {
            if *slowness != LinkSlowness::NONE {
                let LinkSlowness {
                    page_locked,
                    pageable,
                } = slowness;
                write!(
                    f,
                    ", copies {link} {page_locked:.2} (page-locked) and {pageable:.2} (pageable) times as long"
                )?;
            }
        }
        if *disk_read != 1.0 {
            write!(
                f,
                ", and {disk_read:.2} times as long to read from the disk"
            )?;
        }
        Ok(())
    }
}

impl HardwareProfile {
    /// The machine going slower by so much; the same terms as [`Slowness::of`].
    pub fn at_pace(&self, slowness: &Slowness) -> HardwareProfile {
        let mut changed = self.clone();
        let by = |curve: &mut Curve, factor: f64| *curve = curve.slower(|_| factor);
        let copies = |link: &mut CopyLink, own: &LinkSlowness| {
            by(&mut link.page_locked, slowness.copy * own.page_locked);
            link.pageable_mut()
                .for_each(|curve| by(curve, slowness.copy * own.pageable));
        };
        copies(&mut changed.links.h2d, &slowness.h2d);
        copies(&mut changed.links.d2h, &slowness.d2h);
        if let Some(pin) = &mut changed.links.page_lock {
            by(pin, slowness.copy);
        }
        for peer in &mut changed.links.peers {
            by(&mut peer.rate, slowness.copy);
        }
        by(&mut changed.links.disk_read.rate, slowness.disk_read);
        let compute = &mut changed.compute;
        for gemm in compute.gemm.iter_mut().chain(&mut compute.cpu_gemm) {
            gemm.rate = gemm.rate.slower(|m| slowness.of_tokens(m));
        }
        for curve in compute.products.iter_mut().flat_map(|p| p.curves_mut()) {
            *curve = curve.slower(|m| slowness.of_tokens(m));
        }
        for beside in &mut compute.beside_products {
            beside.rate = beside.rate.slower(|m| slowness.of_tokens(m));
        }
        by(&mut compute.attention_decode, slowness.few_tokens);
        by(&mut compute.attention_prefill, slowness.many_tokens);
        for rate in compute.unpack.iter_mut().chain(&mut compute.pack) {
            by(rate, slowness.few_tokens);
        }
        for read in &mut compute.weight_read {
            by(&mut read.rate, slowness.few_tokens);
        }
        by(&mut compute.cpu_attention, slowness.copy);
        let tiers = &mut changed.tiers;
        let slow = |rate: &mut Quantity<BytesPerSecond>, factor: f64| rate.value.0 /= factor;
        slow(&mut tiers.device_bandwidth, slowness.few_tokens);
        slow(&mut tiers.host_bandwidth, slowness.copy);
        if let Some(shared) = &mut tiers.host_shared {
            slow(shared, slowness.copy);
        }
        changed
    }
}
