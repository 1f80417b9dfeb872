//! What the numbers of a profile must satisfy, whoever made it.

use std::collections::BTreeSet;

use super::entries::{Entry, Range, entries};
use super::error::{Fault, ProfileError};
use super::profile::{DEVICE_THREADS_MAX, DeviceKind, HardwareProfile};
use crate::did_you_mean;
use crate::program::{ResourceKind, Stage};

impl HardwareProfile {
    /// Checks every number's range and source; the error's origin is the profile's name.
    pub fn validate(&self) -> Result<(), ProfileError> {
        self.faults().map_err(|fault| fault.within(&self.name))
    }

    pub(super) fn faults(&self) -> Result<(), Fault> {
        if self.name.is_empty() {
            return Err(Fault::new("name", "is empty", "give the machine a name"));
        }
        for entry in entries(&self.to_table()) {
            self.check(&entry)?;
        }
        self.check_reserved()?;
        self.check_cluster()?;
        self.check_device_threads()?;
        self.check_gemm()?;
        self.check_products()?;
        self.check_beside_products()?;
        self.check_weight_reads()?;
        self.check_contention()?;
        self.check_host_memory()?;
        self.check_residuals()
    }

    /// Every product must have a rate: curves of reused or packed weights serve no others, the others serve all.
    fn check_gemm(&self) -> Result<(), Fault> {
        let gemm = &self.compute.gemm;
        for (key, curves) in [("gemm", gemm), ("cpu_gemm", &self.compute.cpu_gemm)] {
            let mut known = BTreeSet::new();
            for (index, curve) in curves.iter().enumerate() {
                let stage = curve.stage.map(Stage::name);
                let kind = (curve.dtype.name(), curve.reused, curve.packed);
                if !known.insert((kind, curve.n, curve.k, stage)) {
                    let key = format!("compute.{key}[{index}]");
                    let problem = format!("has {} of the same weights for the second time", kind.0);
                    return Err(Fault::new(key, problem, "keep one"));
                }
                if !matches!((curve.n, curve.k), (None, None) | (Some(1..), Some(1..))) {
                    let key = format!("compute.{key}[{index}]");
                    let remedy = "write both above 0, or neither for weights of any size";
                    return Err(Fault::new(key, "has a shape without n or k", remedy));
                }
                if let Some(stage) = curve.stage
                    && (curve.n.is_none() || stage.rated_as() != Some(stage))
                {
                    let key = format!("compute.{key}[{index}].stage");
                    let problem = "is not that of a layer's weights of some size";
                    let remedy = "write project or finish beside n and k, or leave it out for any part of a layer";
                    return Err(Fault::new(key, problem, remedy));
                }
            }
        }
        if gemm.iter().any(|curve| !curve.reused && !curve.packed) {
            return Ok(());
        }
        let problem = match gemm.is_empty() {
            true => "is empty",
            false => "has curves of reused or packed weights only",
        };
        let remedy = "write at least one [[compute.gemm]] without `reused` and `packed`";
        Err(Fault::new("compute.gemm", problem, remedy))
    }

    /// Products must be of a shape, each once, and their rows whole numbers.
    fn check_products(&self) -> Result<(), Fault> {
        let mut known = BTreeSet::new();
        for (index, product) in self.compute.products.iter().enumerate() {
            let key = format!("compute.products[{index}]");
            let (n, k) = (product.n, product.k);
            if n == 0 || k == 0 {
                return Err(Fault::new(key, "has no n or no k", "write both above 0"));
            }
            if !known.insert((product.dtype.name(), n, k, product.packed, product.biased)) {
                let problem = format!("has weights of {n} x {k} for the second time");
                return Err(Fault::new(key, problem, "keep one"));
            }
            for (curve, points) in product.curves() {
                let rows = points.points().iter().map(|(rows, _)| *rows);
                let most = f64::from(u32::MAX);
                if let Some(rows) = rows
                    .into_iter()
                    .find(|rows| rows.fract() != 0.0 || *rows > most)
                {
                    let problem = format!("has a point at {rows} rows");
                    let remedy = "write whole numbers of rows";
                    return Err(Fault::new(format!("{key}.{curve}"), problem, remedy));
                }
            }
        }
        Ok(())
    }

    /// A part of a layer of some width has one curve of a type, and products that it is beside.
    fn check_beside_products(&self) -> Result<(), Fault> {
        let mut known = BTreeSet::new();
        for (index, beside) in self.compute.beside_products.iter().enumerate() {
            let key = format!("compute.beside_products[{index}]");
            let (dtype, stage, width) = (beside.dtype, beside.stage, beside.width);
            if width == 0 {
                return Err(Fault::new(key, "has no width", "write it above 0"));
            }
            if !known.insert((dtype, stage.name(), beside.biased, width)) {
                let problem = format!("has {} of width {width} for the second time", stage.name());
                return Err(Fault::new(key, problem, "keep one"));
            }
            let mut products = self.compute.products.iter();
            if !products.any(|product| product.dtype == dtype && !product.packed) {
                let problem = format!("is beside products of {} that are not there", dtype.name());
                let remedy = "write their [[compute.products]], or leave it out";
                return Err(Fault::new(key, problem, remedy));
            }
        }
        Ok(())
    }

    /// A type has one curve.
    fn check_weight_reads(&self) -> Result<(), Fault> {
        let mut known = BTreeSet::new();
        for (index, read) in self.compute.weight_read.iter().enumerate() {
            if !known.insert(read.dtype) {
                let key = format!("compute.weight_read[{index}]");
                let problem = format!("has {} for the second time", read.dtype.name());
                return Err(Fault::new(key, problem, "keep one"));
            }
        }
        Ok(())
    }

    fn check(&self, entry: &Entry) -> Result<(), Fault> {
        if let Some((value, range)) = entry.value {
            let (holds, remedy) = match range {
                Range::Positive => (value > 0.0, "write a number above 0, finite"),
                Range::NotNegative => (value >= 0.0, "write 0 or more, finite"),
                Range::Fraction => (
                    value > 0.0 && value <= 1.0,
                    "write a fraction above 0, at most 1",
                ),
            };
            if !holds || !value.is_finite() {
                let key = format!("{}.value", entry.key);
                return Err(Fault::new(key, format!("is {value}"), remedy));
            }
        }
        if let Some(spread) = entry.spread
            && !(spread >= 0.0 && spread.is_finite())
        {
            let key = format!("{}.spread", entry.key);
            let remedy = "write (p75 - p25) / median, 0 or more";
            return Err(Fault::new(key, format!("is {spread}"), remedy));
        }
        if self.sources.contains_key(&entry.source) {
            return Ok(());
        }
        let known = self.sources.keys().map(String::as_str);
        let remedy = did_you_mean(&entry.source, known).unwrap_or_else(|| {
            format!(
                "declare [sources.{}] with kind, from and date",
                entry.source
            )
        });
        Err(Fault::new(
            format!("{}.source", entry.key),
            format!("source `{}` is not declared", entry.source),
            remedy,
        ))
    }

    fn check_reserved(&self) -> Result<(), Fault> {
        let tiers = &self.tiers;
        for (tier, capacity, reserved) in [
            (
                "device",
                &tiers.device_capacity_bytes,
                &tiers.device_reserved_bytes,
            ),
            (
                "host",
                &tiers.host_capacity_bytes,
                &tiers.host_reserved_bytes,
            ),
        ] {
            let (capacity, reserved) = (capacity.value, reserved.value);
            if reserved >= capacity {
                let key = |what| format!("tiers.{tier}_{what}_bytes");
                let problem = format!("leaves nothing, {reserved} of {capacity} are reserved");
                let remedy = format!("write a {} above {}", key("capacity"), key("reserved"));
                return Err(Fault::new(key("reserved"), problem, remedy).or_key(key("capacity")));
            }
        }
        Ok(())
    }

    /// GPUs must have a link, and links must be of GPUs.
    fn check_cluster(&self) -> Result<(), Fault> {
        let (gpus, peers) = (self.num_gpus(), &self.links.peers);
        if gpus > 1 && peers.is_empty() {
            let problem = format!("is empty, and there are {gpus} GPUs");
            let remedy = "write a [[links.peers]] with from, to, latency_s and bytes_per_s";
            return Err(Fault::new("links.peers", problem, remedy));
        }
        for (index, peer) in peers.iter().enumerate() {
            let (from, to) = (peer.from, peer.to);
            if self.cluster.is_some() && (from == to || from.max(to) >= gpus) {
                let problem = format!("goes from {from} to {to}");
                let remedy = format!("name two of the {gpus} GPUs, from 0 on");
                return Err(Fault::new(format!("links.peers[{index}]"), problem, remedy));
            }
        }
        Ok(())
    }

    /// Only an emulated device has threads, and no more than a machine can start.
    fn check_device_threads(&self) -> Result<(), Fault> {
        let Some(threads) = &self.compute.device_threads else {
            return Ok(());
        };
        let key = "compute.device_threads";
        let (threads, most) = (threads.value, DEVICE_THREADS_MAX);
        if self.kind == DeviceKind::Gpu {
            let problem = "is of an emulated device, and kind is gpu";
            return Err(Fault::new(key, problem, "leave it out").or_key("kind"));
        }
        match threads > most {
            true => Err(Fault::new(
                key,
                format!("is {threads}"),
                format!("write {most} at most"),
            )),
            false => Ok(()),
        }
    }

    fn check_contention(&self) -> Result<(), Fault> {
        let mut pairs = BTreeSet::new();
        for (index, contention) in self.contention.iter().enumerate() {
            let key = format!("contention[{index}]");
            let (victim, beside) = (contention.victim, contention.beside);
            if victim == beside {
                let problem = format!("`{}` runs one task at a time", victim.name());
                return Err(Fault::new(key, problem, "name two engines"));
            }
            if !pairs.insert((victim, beside)) {
                let problem = format!(
                    "`{}` beside `{}` stands there twice",
                    victim.name(),
                    beside.name()
                );
                return Err(Fault::new(key, problem, "keep one"));
            }
            let is_of_gpu = [victim, beside].contains(&ResourceKind::Gpu);
            if contention.while_reading.is_some() && !is_of_gpu {
                let problem = format!(
                    "is of `{}` beside `{}`, and about the GPU's reading of weights",
                    victim.name(),
                    beside.name()
                );
                let key = format!("{key}.while_reading");
                return Err(Fault::new(key, problem, "leave it out"));
            }
            if contention.while_reading.is_some() && self.compute.weight_read.is_empty() {
                let problem = "says nothing where nobody knows how fast weights are read";
                let key = format!("{key}.while_reading");
                let remedy = "add [[compute.weight_read]], or leave it out";
                return Err(Fault::new(key, problem, remedy));
            }
        }
        Ok(())
    }

    /// Nobody reads host memory faster than all together.
    fn check_host_memory(&self) -> Result<(), Fault> {
        let alone = self.tiers.host_bandwidth.value;
        let shared = self.tiers.host_shared.as_ref().map(|rate| rate.value);
        match shared.filter(|shared| shared.0 < alone.0) {
            Some(shared) => Err(Fault::new(
                "tiers.host_shared_bytes_per_s",
                format!("the CPU alone reads {alone}, and all together {shared}"),
                "write no more for host_bandwidth_bytes_per_s than for host_shared_bytes_per_s",
            )
            .or_key("tiers.host_bandwidth_bytes_per_s")),
            None => Ok(()),
        }
    }

    fn check_residuals(&self) -> Result<(), Fault> {
        let Some(residuals) = &self.residuals else {
            return Ok(());
        };
        let (low, middle) = (residuals.p05_log_error, residuals.median_log_error);
        let high = residuals.p95_log_error;
        if !(low <= middle && middle <= high && (high - low).is_finite()) {
            let problem = format!("are {low}, {middle} and {high}");
            let remedy = "write finite numbers, p05 not above the median, and that not above p95";
            return Err(Fault::new("residuals", problem, remedy));
        }
        if residuals.runs < 2 {
            let problem = format!("is {}", residuals.runs);
            let remedy = "write how many runs were compared, 2 or more";
            return Err(Fault::new("residuals.runs", problem, remedy));
        }
        Ok(())
    }
}
