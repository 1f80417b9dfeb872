//! The same machine with less: what-if questions and throttled emulation.
//!
//! What is stated here keeps the source of the number it bounds; the description says so.

use super::curve::Curve;
use super::profile::{CopyLink, GemmCurve, HardwareProfile};
use crate::compression::{GROUP_BYTES, GROUP_ELEMENTS};
use crate::program::ResourceKind;
use crate::units::{Bytes, BytesPerSecond};

impl HardwareProfile {
    /// The machine with other capacities in bytes, reserved bytes unchanged; `None` keeps one.
    pub fn with_capacities(
        &self,
        device: Option<Bytes>,
        host: Option<Bytes>,
        disk: Option<Bytes>,
    ) -> HardwareProfile {
        let mut changed = self.clone();
        let tiers = &mut changed.tiers;
        let mut said = Vec::new();
        for (name, slot, stated) in [
            ("device", &mut tiers.device_capacity_bytes, device),
            ("host", &mut tiers.host_capacity_bytes, host),
            ("disk", &mut tiers.disk_capacity_bytes, disk),
        ] {
            if let Some(bytes) = stated {
                slot.value = bytes;
                said.push(format!("{name} {bytes}"));
            }
        }
        // What a larger host allows says nothing of a smaller one.
        let is_smaller = host.is_some_and(|host| host < self.tiers.host_capacity_bytes.value);
        let lockable = &mut tiers.page_lockable_bytes;
        *lockable = lockable
            .take()
            .filter(|most| !is_smaller || host.is_none_or(|host| most.value < host));
        changed.say(&said);
        changed
    }

    /// The machine with its copies throttled to so many bytes/s; `None` leaves one as it is.
    ///
    /// Contention scales with the duty of the throttled link, cap over uncapped peak: it slows
    /// its neighbours for that share of the time, and it suffers only where what they leave it is
    /// less than its cap.
    pub fn with_link_cap(
        &self,
        h2d: Option<BytesPerSecond>,
        d2h: Option<BytesPerSecond>,
    ) -> HardwareProfile {
        let mut changed = self.clone();
        let mut said = Vec::new();
        for (engine, cap) in [(ResourceKind::H2d, h2d), (ResourceKind::D2h, d2h)] {
            let Some(cap) = cap else { continue };
            let link = match engine {
                ResourceKind::H2d => &mut changed.links.h2d,
                _ => &mut changed.links.d2h,
            };
            let peak = link.page_locked.peak();
            cap_copies(link, cap);
            changed.scale_contention(engine, cap.0 / peak);
            said.push(format!("{} at most {cap}", engine.name()));
        }
        changed.say(&said);
        changed
    }

    /// The machine with its disk throttled to so many bytes/s; `None` leaves one as it is.
    /// Contention scales as in [`HardwareProfile::with_link_cap`].
    pub fn with_disk_cap(
        &self,
        read: Option<BytesPerSecond>,
        write: Option<BytesPerSecond>,
    ) -> HardwareProfile {
        let mut changed = self.clone();
        let mut said = Vec::new();
        for (engine, cap) in [
            (ResourceKind::DiskRead, read),
            (ResourceKind::DiskWrite, write),
        ] {
            let Some(cap) = cap else { continue };
            let link = match engine {
                ResourceKind::DiskRead => &mut changed.links.disk_read,
                _ => &mut changed.links.disk_write,
            };
            let peak = link.rate.peak();
            link.rate = link.rate.capped(cap.0);
            changed.scale_contention(engine, cap.0 / peak);
            said.push(format!("{} at most {cap}", engine.name()));
        }
        changed.say(&said);
        changed
    }

    /// The machine whose CPU is throttled to so many bytes/s of weights, as they are stored, where it multiplies, for however many
    /// tokens; `None` leaves it as it is. Contention scales as in [`HardwareProfile::with_link_cap`].
    pub fn with_cpu_cap(&self, cap: Option<BytesPerSecond>) -> HardwareProfile {
        let mut changed = self.clone();
        let Some(cap) = cap else { return changed };
        let mut fastest = 0.0_f64;
        let curves = &mut changed.compute.cpu_gemm;
        // What serves weights in 4 bits is held by their bytes.
        curves.extend(packed_alike(curves));
        for curve in curves {
            let of_one = 2.0 * cap.0 / bytes_of_weight(curve);
            fastest = fastest.max(curve.rate.at(1.0) / of_one);
            curve.rate = curve
                .rate
                .slower(|m| (curve.rate.at(m) / (m * of_one)).max(1.0));
        }
        if fastest > 0.0 {
            changed.scale_contention(ResourceKind::Cpu, 1.0 / fastest);
        }
        changed.say(&[format!("the CPU's products at most {cap} of weights")]);
        changed
    }

    /// The machine whose CPU reads so many bytes/s of weights where it multiplies for one token. What it reaches for many
    /// tokens stays, and is reached by fewer of them; a profile that says nothing of its products stays as it is.
    pub fn with_cpu_products(&self, rate: BytesPerSecond) -> HardwareProfile {
        let mut changed = self.clone();
        for curve in &mut changed.compute.cpu_gemm {
            let one = 2.0 * rate.0 / curve.dtype.size_bytes() as f64;
            let peak = curve.rate.peak().max(one);
            let mut points = vec![(1.0, one)];
            if peak > one {
                points.push((peak / one, peak));
            }
            if let Ok(rate) = Curve::new(points, curve.rate.source.clone(), None) {
                curve.rate = rate;
            }
        }
        changed.say(&[format!("a CPU that multiplies at {rate}")]);
        changed
    }

    fn scale_contention(&mut self, engine: ResourceKind, duty: f64) {
        let duty = duty.min(1.0);
        for contention in &mut self.contention {
            let (victim, beside) = (contention.victim, contention.beside);
            let rates = [
                Some(&mut contention.rate),
                contention.while_reading.as_mut(),
            ];
            for rate in rates.into_iter().flatten() {
                let rate = &mut rate.value;
                if beside == engine {
                    *rate = 1.0 - duty * (1.0 - *rate);
                } else if victim == engine {
                    *rate = (*rate / duty).min(1.0);
                }
            }
        }
    }

    fn say(&mut self, said: &[String]) {
        if !said.is_empty() {
            let said = said.join(", ");
            self.description = format!("{} [as stated: {said}]", self.description);
        }
    }
}

/// For weights in 4 bits, where no curve is: those that serve them, by themselves.
fn packed_alike(curves: &[GemmCurve]) -> Vec<GemmCurve> {
    let is_known = |dtype| curves.iter().any(|c| c.packed && c.dtype == dtype);
    let serving = curves.iter().filter(|c| !is_known(c.dtype)).cloned();
    let packed = serving.map(|curve| GemmCurve {
        packed: true,
        ..curve
    });
    packed.collect()
}

/// What a curve's product reads of one weight.
fn bytes_of_weight(curve: &GemmCurve) -> f64 {
    match curve.packed {
        true => GROUP_BYTES as f64 / GROUP_ELEMENTS as f64,
        false => curve.dtype.size_bytes() as f64,
    }
}

fn cap_copies(link: &mut CopyLink, cap: BytesPerSecond) {
    link.page_locked = link.page_locked.capped(cap.0);
    link.pageable_mut()
        .for_each(|curve| *curve = curve.capped(cap.0));
}
