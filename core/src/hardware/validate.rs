//! What the numbers of a profile must satisfy, whoever made it.

use std::collections::BTreeSet;

use super::curve::Curve;
use super::error::{Fault, ProfileError};
use super::profile::{CopyLink, DEVICE_THREADS_MAX, DeviceKind, HardwareProfile};
use super::provenance::Quantity;
use crate::did_you_mean;
use crate::program::{ResourceKind, Stage};
use crate::units::{Bytes, BytesPerSecond, Seconds};

/// What a single number must be.
#[derive(Clone, Copy)]
enum Range {
    Positive,
    NotNegative,
    Fraction,
}

/// One number or curve with the key it is written under.
struct Entry<'a> {
    key: String,
    source: &'a str,
    spread: Option<f64>,
    value: Option<(f64, Range)>,
}

impl HardwareProfile {
    /// Checks every number's range and source; the error's origin is the profile's name.
    pub fn validate(&self) -> Result<(), ProfileError> {
        self.faults().map_err(|fault| fault.within(&self.name))
    }

    pub(super) fn faults(&self) -> Result<(), Fault> {
        if self.name.is_empty() {
            return Err(Fault::new("name", "is empty", "give the machine a name"));
        }
        for entry in self.entries() {
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

    fn check(&self, entry: &Entry<'_>) -> Result<(), Fault> {
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
        if self.sources.contains_key(entry.source) {
            return Ok(());
        }
        let known = self.sources.keys().map(String::as_str);
        let remedy = did_you_mean(entry.source, known).unwrap_or_else(|| {
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

    fn entries(&self) -> Vec<Entry<'_>> {
        let mut all = self.memory_entries();
        all.extend(self.compute_entries());
        for (index, contention) in self.contention.iter().enumerate() {
            let rate = &contention.rate;
            let key = format!("contention[{index}].rate");
            all.push(entry(key, rate, rate.value, Range::Fraction));
            all.extend(contention.while_reading.as_ref().map(|rate| {
                let key = format!("contention[{index}].while_reading");
                entry(key, rate, rate.value, Range::Fraction)
            }));
        }
        all.extend(self.residuals.as_ref().map(|residuals| Entry {
            key: "residuals".to_owned(),
            source: &residuals.source,
            spread: None,
            value: None,
        }));
        all
    }

    /// Tiers and the links between them.
    fn memory_entries(&self) -> Vec<Entry<'_>> {
        let (tiers, links) = (&self.tiers, &self.links);
        let mut all = vec![
            capacity("device_capacity_bytes", &tiers.device_capacity_bytes),
            capacity("host_capacity_bytes", &tiers.host_capacity_bytes),
            zero_or_more("disk_capacity_bytes", &tiers.disk_capacity_bytes),
            zero_or_more("device_reserved_bytes", &tiers.device_reserved_bytes),
            zero_or_more("host_reserved_bytes", &tiers.host_reserved_bytes),
            bandwidth("device_bandwidth_bytes_per_s", &tiers.device_bandwidth),
            bandwidth("host_bandwidth_bytes_per_s", &tiers.host_bandwidth),
        ];
        let lockable = tiers.page_lockable_bytes.as_ref();
        all.extend(lockable.map(|q| zero_or_more("page_lockable_bytes", q)));
        let shared = tiers.host_shared.as_ref();
        all.extend(shared.map(|q| bandwidth("host_shared_bytes_per_s", q)));
        for (name, link) in [("h2d", &links.h2d), ("d2h", &links.d2h)] {
            all.extend(copies(name, link));
        }
        for (name, link) in [
            ("disk_read", &links.disk_read),
            ("disk_write", &links.disk_write),
        ] {
            all.push(time(format!("links.{name}.latency_s"), &link.latency));
            all.push(curve(format!("links.{name}.bytes_per_s"), &link.rate));
            let key = format!("links.{name}.nominal_bytes_per_s");
            let nominal = link.nominal.as_ref();
            all.extend(nominal.map(|q| entry(key, q, q.value.0, Range::Positive)));
        }
        if let Some(cluster) = &self.cluster {
            let counts = [
                ("hosts", &cluster.hosts),
                ("gpus_per_host", &cluster.gpus_per_host),
            ];
            all.extend(counts.map(|(key, q)| {
                let key = format!("cluster.{key}");
                entry(key, q, f64::from(q.value), Range::Positive)
            }));
        }
        let page_lock = links.page_lock.as_ref();
        all.extend(page_lock.map(|c| curve("links.page_lock_bytes_per_s", c)));
        let staged = links.staged_ahead.as_ref();
        all.extend(staged.map(|q| {
            entry(
                "links.staged_ahead_bytes",
                q,
                q.value.as_f64(),
                Range::NotNegative,
            )
        }));
        let disk = links.disk_read_pace.as_ref();
        all.extend(disk.map(|q| pace("links.pace_disk_read_s".to_owned(), q)));
        for (index, peer) in links.peers.iter().enumerate() {
            let path = format!("links.peers[{index}]");
            all.push(time(format!("{path}.latency_s"), &peer.latency));
            all.push(curve(format!("{path}.bytes_per_s"), &peer.rate));
        }
        all
    }

    /// What tasks take whatever their size.
    fn fixed_times(&self) -> Vec<Entry<'_>> {
        let compute = &self.compute;
        let known = [
            ("launch_s", Some(&compute.launch)),
            ("part_launch_s", compute.part_launch.as_ref()),
            ("embed_s", compute.embed.as_ref()),
            ("sequence_s", compute.sequence.as_ref()),
            ("sequence_layer_s", compute.sequence_layer.as_ref()),
            ("handoff_s", compute.handoff.as_ref()),
            ("stream_handoff_s", compute.stream_handoff.as_ref()),
            ("barrier_s", Some(&compute.barrier)),
            ("cpu_launch_s", Some(&compute.cpu_launch)),
        ];
        let entries = known.into_iter();
        let entries = entries.filter_map(|(key, q)| Some(time(format!("compute.{key}"), q?)));
        entries.collect()
    }

    fn compute_entries(&self) -> Vec<Entry<'_>> {
        let compute = &self.compute;
        let mut all = self.fixed_times();
        for (key, count) in [
            ("compute.device_threads", &compute.device_threads),
            ("compute.joined_rows", &compute.joined_rows),
        ] {
            let counted = |q| entry(key, q, f64::from(q.value), Range::Positive);
            all.extend(count.as_ref().map(counted));
        }
        let share = compute.cpu_copy_share.as_ref();
        all.extend(share.map(|q| entry("compute.cpu_copy_share", q, q.value, Range::Fraction)));
        for (key, q) in compute.pace.iter().flat_map(|pace| {
            [
                ("few_tokens", &pace.few_tokens),
                ("many_tokens", &pace.many_tokens),
                ("copy", &pace.copy),
            ]
        }) {
            all.push(pace(format!("compute.pace_{key}_s"), q));
        }
        for (key, curves) in [("gemm", &compute.gemm), ("cpu_gemm", &compute.cpu_gemm)] {
            for (index, gemm) in curves.iter().enumerate() {
                let key = format!("compute.{key}[{index}].flops_per_s");
                all.push(curve(key, &gemm.rate));
            }
        }
        for (index, product) in compute.products.iter().enumerate() {
            let key = |curve| format!("compute.products[{index}].{curve}");
            all.extend(product.curves().map(|(name, c)| curve(key(name), c)));
        }
        for (index, beside) in compute.beside_products.iter().enumerate() {
            let key = format!("compute.beside_products[{index}].elements_per_s");
            all.push(curve(key, &beside.rate));
        }
        for (index, read) in compute.weight_read.iter().enumerate() {
            let key = format!("compute.weight_read[{index}].bytes_per_s");
            all.push(curve(key, &read.rate));
        }
        for (key, c) in [
            (
                "attention_prefill_flops_per_s",
                Some(&compute.attention_prefill),
            ),
            (
                "attention_decode_bytes_per_s",
                Some(&compute.attention_decode),
            ),
            (
                "attention_decode_shared",
                compute.attention_decode_shared.as_ref(),
            ),
            (
                "cpu_attention_shared",
                compute.cpu_attention_shared.as_ref(),
            ),
            ("unpack_elements_per_s", compute.unpack.as_ref()),
            ("pack_elements_per_s", compute.pack.as_ref()),
            ("cpu_attention_bytes_per_s", Some(&compute.cpu_attention)),
            (
                "cpu_attention_prefill_flops_per_s",
                compute.cpu_attention_prefill.as_ref(),
            ),
        ] {
            all.extend(c.map(|c| curve(format!("compute.{key}"), c)));
        }
        all
    }
}

fn entry<T>(key: impl Into<String>, q: &Quantity<T>, value: f64, range: Range) -> Entry<'_> {
    Entry {
        key: key.into(),
        source: &q.source,
        spread: q.spread,
        value: Some((value, range)),
    }
}

fn capacity<'a>(key: &str, q: &'a Quantity<Bytes>) -> Entry<'a> {
    entry(format!("tiers.{key}"), q, q.value.as_f64(), Range::Positive)
}

fn zero_or_more<'a>(key: &str, q: &'a Quantity<Bytes>) -> Entry<'a> {
    entry(
        format!("tiers.{key}"),
        q,
        q.value.as_f64(),
        Range::NotNegative,
    )
}

fn bandwidth<'a>(key: &str, q: &'a Quantity<BytesPerSecond>) -> Entry<'a> {
    entry(format!("tiers.{key}"), q, q.value.0, Range::Positive)
}

fn time(key: impl Into<String>, q: &Quantity<Seconds>) -> Entry<'_> {
    entry(key, q, q.value.0, Range::NotNegative)
}

/// What others are divided by.
fn pace(key: String, q: &Quantity<Seconds>) -> Entry<'_> {
    entry(key, q, q.value.0, Range::Positive)
}

/// A path between host and device memory.
fn copies<'a>(name: &str, link: &'a CopyLink) -> Vec<Entry<'a>> {
    let key = |of: &str| format!("links.{name}.{of}");
    let mut all = vec![
        time(key("latency_s"), &link.latency),
        curve(key("page_locked_bytes_per_s"), &link.page_locked),
    ];
    for (of, rate) in [
        ("pageable_bytes_per_s", &link.pageable),
        ("relayed_bytes_per_s", &link.relayed),
    ] {
        all.extend(rate.as_ref().map(|rate| curve(key(of), rate)));
    }
    if let Some(known) = &link.pace {
        all.push(pace(key("pace_page_locked_s"), &known.page_locked));
        all.push(pace(key("pace_pageable_s"), &known.pageable));
    }
    all
}

/// A curve's points hold by construction.
fn curve(key: impl Into<String>, curve: &Curve) -> Entry<'_> {
    Entry {
        key: key.into(),
        source: &curve.source,
        spread: curve.spread,
        value: None,
    }
}
