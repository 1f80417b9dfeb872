//! The text of a profile, both ways. What it may say is here; what it must mean is in `validate`.

use std::collections::BTreeMap;

use ::toml::{Table, Value};

use super::contention::Contention;
use super::curve::Curve;
use super::error::{Fault, ProfileError};
use super::inherit::Layers;
use super::pace::{LinkPace, Pace};
use super::products::{PRODUCT_CURVES, ProductCurves};
use super::profile::{
    BesideProducts, Cluster, Compute, CopyLink, DeviceKind, DiskLink, GemmCurve, HardwareProfile,
    Links, PeerLink, Tiers, WeightRead,
};
use super::provenance::{Quantity, Source, SourceKind};
use super::reader::Reader;
use super::residuals::Residuals;
use crate::Dtype;
use crate::program::{ResourceKind, Stage};
use crate::units::{Bytes, Seconds};

const PROFILE: &[&str] = &[
    "name",
    "description",
    "extends",
    "kind",
    "sources",
    "tiers",
    "links",
    "cluster",
    "compute",
    "contention",
    "residuals",
];
const SOURCE: &[&str] = &["kind", "from", "date"];
const TIERS: &[&str] = &[
    "device_capacity_bytes",
    "host_capacity_bytes",
    "disk_capacity_bytes",
    "device_reserved_bytes",
    "host_reserved_bytes",
    "page_lockable_bytes",
    "device_bandwidth_bytes_per_s",
    "host_bandwidth_bytes_per_s",
    "host_shared_bytes_per_s",
];
const LINKS: &[&str] = &[
    "h2d",
    "d2h",
    "disk_read",
    "disk_write",
    "page_lock_bytes_per_s",
    "staged_ahead_bytes",
    "pace_disk_read_s",
    "peers",
];
const COPY_LINK: &[&str] = &[
    "latency_s",
    "page_locked_bytes_per_s",
    "pageable_bytes_per_s",
    "relayed_bytes_per_s",
    "pace_page_locked_s",
    "pace_pageable_s",
];
const DISK_LINK: &[&str] = &["latency_s", "bytes_per_s", "nominal_bytes_per_s"];
const PEER: &[&str] = &["from", "to", "latency_s", "bytes_per_s"];
const CLUSTER: &[&str] = &["hosts", "gpus_per_host"];
const COMPUTE: &[&str] = &[
    "device_threads",
    "launch_s",
    "part_launch_s",
    "embed_s",
    "sequence_s",
    "sequence_layer_s",
    "handoff_s",
    "stream_handoff_s",
    "barrier_s",
    "pace_few_tokens_s",
    "pace_many_tokens_s",
    "pace_copy_s",
    "gemm",
    "products",
    "joined_rows",
    "beside_products",
    "attention_prefill_flops_per_s",
    "attention_decode_bytes_per_s",
    "attention_decode_shared",
    "unpack_elements_per_s",
    "pack_elements_per_s",
    "weight_read",
    READ_OF_ANY_TYPE,
    "cpu_launch_s",
    "cpu_gemm",
    "cpu_attention_bytes_per_s",
    "cpu_attention_shared",
    "cpu_copy_share",
    "cpu_attention_prefill_flops_per_s",
];
const GEMM: &[&str] = &[
    "dtype",
    "n",
    "k",
    "stage",
    "reused",
    "packed",
    "flops_per_s",
];
const PRODUCTS: &[&str] = &[
    "dtype",
    "n",
    "k",
    "packed",
    "biased",
    "m1",
    "m2",
    PRODUCT_CURVES[0],
    PRODUCT_CURVES[1],
    PRODUCT_CURVES[2],
];
const BESIDE_PRODUCTS: &[&str] = &["dtype", "stage", "biased", "width", "elements_per_s"];
const WEIGHT_READ: &[&str] = &["dtype", "bytes_per_s"];
/// Where profiles that know no types have the one curve of theirs.
const READ_OF_ANY_TYPE: &str = "weight_read_bytes_per_s";
const CONTENTION: &[&str] = &["victim", "beside", "rate", "while_reading"];
const RESIDUALS: &[&str] = &[
    "median_log_error",
    "p05_log_error",
    "p95_log_error",
    "runs",
    "source",
    "of",
];

const KINDS: &[(&str, DeviceKind)] =
    &[("gpu", DeviceKind::Gpu), ("emulated", DeviceKind::Emulated)];

impl HardwareProfile {
    /// Reads and validates a profile. `origin` is the file's name, for messages; `parent` returns
    /// the text of the profile that a text `extends`.
    pub fn parse(
        text: &str,
        origin: &str,
        parent: &dyn Fn(&str) -> Result<String, ProfileError>,
    ) -> Result<HardwareProfile, ProfileError> {
        let layers = Layers::read(text, origin, parent)?;
        let merged = layers.merged();
        let blame = |fault: Fault| layers.blame(fault);
        let profile = read_profile(&merged).map_err(blame)?;
        profile.faults().map_err(blame)?;
        Ok(profile)
    }

    /// The profile as a text that `parse` reads back to the same profile; it extends nothing.
    pub fn to_toml(&self) -> String {
        ::toml::to_string(&self.to_table()).expect("a table of texts, numbers and arrays is TOML")
    }

    pub(super) fn to_table(&self) -> Table {
        let mut table = Table::new();
        table.insert("name".into(), self.name.clone().into());
        table.insert("description".into(), self.description.clone().into());
        let kind = KINDS.iter().find(|(_, kind)| *kind == self.kind);
        let kind = kind.expect("every kind has a name").0;
        table.insert("kind".into(), kind.into());
        let sources = self.sources.iter().map(|(n, s)| (n.clone(), source(s)));
        table.insert("sources".into(), Value::Table(sources.collect()));
        table.insert("tiers".into(), write_tiers(&self.tiers));
        table.insert("links".into(), write_links(&self.links));
        if let Some(cluster) = &self.cluster {
            table.insert("cluster".into(), write_cluster(cluster));
        }
        table.insert("compute".into(), write_compute(&self.compute));
        let contention: Vec<Value> = self.contention.iter().map(write_contention).collect();
        table.insert("contention".into(), Value::Array(contention));
        if let Some(residuals) = &self.residuals {
            table.insert("residuals".into(), write_residuals(residuals));
        }
        table
    }
}

fn read_profile(table: &Table) -> Result<HardwareProfile, Fault> {
    let top = Reader::new(table, "", PROFILE)?;
    let mut sources = BTreeMap::new();
    for (name, reader) in top.named("sources", SOURCE)? {
        sources.insert(name.to_owned(), read_source(&reader)?);
    }
    Ok(HardwareProfile {
        name: top.text("name")?.to_owned(),
        description: top.text_or_empty("description")?.to_owned(),
        kind: top.word("kind", KINDS)?,
        sources,
        tiers: read_tiers(&top.table("tiers", TIERS)?)?,
        links: read_links(&top.table("links", LINKS)?)?,
        cluster: top
            .maybe("cluster", CLUSTER)?
            .map(|reader| read_cluster(&reader))
            .transpose()?,
        compute: read_compute(&top.table("compute", COMPUTE)?)?,
        contention: top
            .tables("contention", CONTENTION)?
            .iter()
            .map(read_contention)
            .collect::<Result<_, _>>()?,
        residuals: top
            .maybe("residuals", RESIDUALS)?
            .map(|reader| read_residuals(&reader))
            .transpose()?,
    })
}

fn read_source(reader: &Reader<'_>) -> Result<Source, Fault> {
    let kinds = [
        SourceKind::Measured,
        SourceKind::Datasheet,
        SourceKind::Fitted,
        SourceKind::Published,
    ]
    .map(|kind| (kind.name(), kind));
    Ok(Source {
        kind: reader.word("kind", &kinds)?,
        from: reader.text("from")?.to_owned(),
        date: reader.text("date")?.to_owned(),
    })
}

fn read_tiers(reader: &Reader<'_>) -> Result<Tiers, Fault> {
    Ok(Tiers {
        device_capacity_bytes: reader.bytes("device_capacity_bytes")?,
        host_capacity_bytes: reader.bytes("host_capacity_bytes")?,
        disk_capacity_bytes: reader.bytes("disk_capacity_bytes")?,
        device_reserved_bytes: reader.bytes("device_reserved_bytes")?,
        host_reserved_bytes: reader.bytes("host_reserved_bytes")?,
        page_lockable_bytes: reader.maybe_bytes("page_lockable_bytes")?,
        device_bandwidth: reader.rate("device_bandwidth_bytes_per_s")?,
        host_bandwidth: reader.rate("host_bandwidth_bytes_per_s")?,
        host_shared: reader.maybe_rate("host_shared_bytes_per_s")?,
    })
}

fn read_links(reader: &Reader<'_>) -> Result<Links, Fault> {
    let copy = |link: Reader<'_>| -> Result<CopyLink, Fault> {
        Ok(CopyLink {
            latency: link.seconds("latency_s")?,
            page_locked: link.curve("page_locked_bytes_per_s")?,
            pageable: link.maybe_curve("pageable_bytes_per_s")?,
            relayed: link.maybe_curve("relayed_bytes_per_s")?,
            pace: read_link_pace(&link)?,
        })
    };
    let disk = |link: Reader<'_>| -> Result<DiskLink, Fault> {
        Ok(DiskLink {
            latency: link.seconds("latency_s")?,
            rate: link.curve("bytes_per_s")?,
            nominal: link.maybe_rate("nominal_bytes_per_s")?,
        })
    };
    Ok(Links {
        h2d: copy(reader.table("h2d", COPY_LINK)?)?,
        d2h: copy(reader.table("d2h", COPY_LINK)?)?,
        disk_read: disk(reader.table("disk_read", DISK_LINK)?)?,
        disk_write: disk(reader.table("disk_write", DISK_LINK)?)?,
        page_lock: reader.maybe_curve("page_lock_bytes_per_s")?,
        staged_ahead: reader.maybe_bytes("staged_ahead_bytes")?,
        disk_read_pace: reader.maybe_seconds("pace_disk_read_s")?,
        peers: reader
            .tables("peers", PEER)?
            .iter()
            .map(read_peer)
            .collect::<Result<_, _>>()?,
    })
}

fn read_link_pace(link: &Reader<'_>) -> Result<Option<LinkPace>, Fault> {
    let keys = ["pace_page_locked_s", "pace_pageable_s"];
    let [page_locked, pageable] = keys.map(|key| link.maybe_seconds(key));
    if page_locked?.is_none() && pageable?.is_none() {
        return Ok(None);
    }
    // One of them alone is missing the other.
    Ok(Some(LinkPace {
        page_locked: link.seconds(keys[0])?,
        pageable: link.seconds(keys[1])?,
    }))
}

fn read_peer(reader: &Reader<'_>) -> Result<PeerLink, Fault> {
    Ok(PeerLink {
        from: reader.need_whole("from")?,
        to: reader.need_whole("to")?,
        latency: reader.seconds("latency_s")?,
        rate: reader.curve("bytes_per_s")?,
    })
}

fn read_cluster(reader: &Reader<'_>) -> Result<Cluster, Fault> {
    Ok(Cluster {
        hosts: reader.count("hosts")?,
        gpus_per_host: reader.count("gpus_per_host")?,
    })
}

fn read_compute(reader: &Reader<'_>) -> Result<Compute, Fault> {
    Ok(Compute {
        device_threads: reader.maybe_count("device_threads")?,
        launch: reader.seconds("launch_s")?,
        part_launch: reader.maybe_seconds("part_launch_s")?,
        embed: reader.maybe_seconds("embed_s")?,
        sequence: reader.maybe_seconds("sequence_s")?,
        sequence_layer: reader.maybe_seconds("sequence_layer_s")?,
        handoff: reader.maybe_seconds("handoff_s")?,
        stream_handoff: reader.maybe_seconds("stream_handoff_s")?,
        barrier: reader.seconds("barrier_s")?,
        pace: read_pace(reader)?,
        gemm: read_gemms(reader, "gemm")?,
        products: reader
            .tables("products", PRODUCTS)?
            .iter()
            .map(read_product)
            .collect::<Result<_, _>>()?,
        joined_rows: reader.maybe_count("joined_rows")?,
        beside_products: reader
            .tables("beside_products", BESIDE_PRODUCTS)?
            .iter()
            .map(read_beside_products)
            .collect::<Result<_, _>>()?,
        attention_prefill: reader.curve("attention_prefill_flops_per_s")?,
        attention_decode: reader.curve("attention_decode_bytes_per_s")?,
        attention_decode_shared: reader.maybe_curve("attention_decode_shared")?,
        unpack: reader.maybe_curve("unpack_elements_per_s")?,
        pack: reader.maybe_curve("pack_elements_per_s")?,
        weight_read: read_weight_reads(reader)?,
        cpu_launch: reader.seconds("cpu_launch_s")?,
        cpu_gemm: read_gemms(reader, "cpu_gemm")?,
        cpu_attention: reader.curve("cpu_attention_bytes_per_s")?,
        cpu_attention_shared: reader.maybe_curve("cpu_attention_shared")?,
        cpu_copy_share: reader.maybe_quantity("cpu_copy_share")?,
        cpu_attention_prefill: reader.maybe_curve("cpu_attention_prefill_flops_per_s")?,
    })
}

/// Three keys that stand together or not at all.
fn read_pace(reader: &Reader<'_>) -> Result<Option<Pace>, Fault> {
    let keys = ["pace_few_tokens_s", "pace_many_tokens_s", "pace_copy_s"];
    let mut stand = false;
    for key in keys {
        stand |= reader.maybe_seconds(key)?.is_some();
    }
    if !stand {
        return Ok(None);
    }
    let [few_tokens, many_tokens, copy] = keys.map(|key| reader.seconds(key));
    Ok(Some(Pace {
        few_tokens: few_tokens?,
        many_tokens: many_tokens?,
        copy: copy?,
    }))
}

fn read_gemms(reader: &Reader<'_>, key: &'static str) -> Result<Vec<GemmCurve>, Fault> {
    reader.tables(key, GEMM)?.iter().map(read_gemm).collect()
}

fn read_gemm(reader: &Reader<'_>) -> Result<GemmCurve, Fault> {
    let stages = Stage::RATED.map(|stage| (stage.name(), stage));
    let dtypes = Dtype::ALL.map(|dtype| (dtype.name(), dtype));
    Ok(GemmCurve {
        dtype: reader.word("dtype", &dtypes)?,
        n: reader.whole("n")?,
        k: reader.whole("k")?,
        stage: reader.word_if_any("stage", &stages)?,
        reused: reader.flag("reused")?,
        packed: reader.flag("packed")?,
        rate: reader.curve("flops_per_s")?,
    })
}

fn read_product(reader: &Reader<'_>) -> Result<ProductCurves, Fault> {
    let dtypes = Dtype::ALL.map(|dtype| (dtype.name(), dtype));
    let [gemv, flat, conventional] = PRODUCT_CURVES;
    let product = ProductCurves {
        dtype: reader.word("dtype", &dtypes)?,
        n: reader.need_whole("n")?,
        k: reader.need_whole("k")?,
        packed: reader.flag("packed")?,
        biased: reader.flag("biased")?,
        gemv: reader.curve(gemv)?,
        flat: reader.maybe_curve(flat)?,
        conventional: reader.curve(conventional)?,
    };
    // Written for who reads the file: they follow from the curves.
    let points = product.inflections();
    for (key, follows) in [("m1", points.m1), ("m2", points.m2)] {
        let stated = reader.whole(key)?;
        if stated.is_some() && stated != follows {
            return Err(reader.not_of_curves(key, follows));
        }
    }
    Ok(product)
}

fn read_beside_products(reader: &Reader<'_>) -> Result<BesideProducts, Fault> {
    let stages = Stage::RATED.map(|stage| (stage.name(), stage));
    let dtypes = Dtype::ALL.map(|dtype| (dtype.name(), dtype));
    Ok(BesideProducts {
        dtype: reader.word("dtype", &dtypes)?,
        stage: reader.word("stage", &stages)?,
        biased: reader.flag("biased")?,
        width: reader.need_whole("width")?,
        rate: reader.curve("elements_per_s")?,
    })
}

/// By type, or as it was before: one for all of them.
fn read_weight_reads(reader: &Reader<'_>) -> Result<Vec<WeightRead>, Fault> {
    let by_type = reader.tables("weight_read", WEIGHT_READ)?;
    let Some(rate) = reader.maybe_curve(READ_OF_ANY_TYPE)? else {
        return by_type.iter().map(read_weight_read).collect();
    };
    if !by_type.is_empty() {
        let key = format!("compute.{READ_OF_ANY_TYPE}");
        let problem = "stands beside [[compute.weight_read]], which has a curve for each type";
        return Err(Fault::new(key, problem, "leave it out, or profile again"));
    }
    let of = |dtype| WeightRead {
        dtype,
        rate: rate.clone(),
    };
    Ok(Dtype::ALL.map(of).into())
}

fn read_weight_read(reader: &Reader<'_>) -> Result<WeightRead, Fault> {
    let dtypes = Dtype::ALL.map(|dtype| (dtype.name(), dtype));
    Ok(WeightRead {
        dtype: reader.word("dtype", &dtypes)?,
        rate: reader.curve("bytes_per_s")?,
    })
}

fn read_contention(reader: &Reader<'_>) -> Result<Contention, Fault> {
    let engines = ResourceKind::CONTENDED.map(|engine| (engine.name(), engine));
    Ok(Contention {
        victim: reader.word("victim", &engines)?,
        beside: reader.word("beside", &engines)?,
        rate: reader.quantity("rate")?,
        while_reading: reader.maybe_quantity("while_reading")?,
    })
}

fn read_residuals(reader: &Reader<'_>) -> Result<Residuals, Fault> {
    Ok(Residuals {
        median_log_error: reader.number("median_log_error")?,
        p05_log_error: reader.number("p05_log_error")?,
        p95_log_error: reader.number("p95_log_error")?,
        runs: reader.need_whole("runs")?,
        source: reader.text("source")?.to_owned(),
        of: Some(reader.text_or_empty("of")?.to_owned()).filter(|of| !of.is_empty()),
    })
}

/// A table of the pairs that have a value.
fn record<const N: usize>(pairs: [(&str, Option<Value>); N]) -> Value {
    let present = pairs
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Value::Table(present.collect())
}

fn source(source: &Source) -> Value {
    record([
        ("kind", Some(source.kind.name().into())),
        ("from", Some(source.from.clone().into())),
        ("date", Some(source.date.clone().into())),
    ])
}

fn quantity<T: Copy>(quantity: &Quantity<T>, value: impl Fn(T) -> Value) -> Option<Value> {
    Some(record([
        ("value", Some(value(quantity.value))),
        ("source", Some(quantity.source.clone().into())),
        ("spread", quantity.spread.map(Value::Float)),
    ]))
}

fn curve(curve: &Curve) -> Option<Value> {
    let point = |&(size, rate): &(f64, f64)| Value::Array(vec![size.into(), rate.into()]);
    let points = curve.points().iter().map(point).collect();
    Some(record([
        ("points", Some(Value::Array(points))),
        ("source", Some(curve.source.clone().into())),
        ("spread", curve.spread.map(Value::Float)),
    ]))
}

fn bytes(q: &Quantity<Bytes>) -> Option<Value> {
    quantity(q, |bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX).into())
}

fn write_tiers(tiers: &Tiers) -> Value {
    let rate = |q| quantity(q, |rate: crate::units::BytesPerSecond| rate.0.into());
    record([
        ("device_capacity_bytes", bytes(&tiers.device_capacity_bytes)),
        ("host_capacity_bytes", bytes(&tiers.host_capacity_bytes)),
        ("disk_capacity_bytes", bytes(&tiers.disk_capacity_bytes)),
        ("device_reserved_bytes", bytes(&tiers.device_reserved_bytes)),
        ("host_reserved_bytes", bytes(&tiers.host_reserved_bytes)),
        (
            "page_lockable_bytes",
            tiers.page_lockable_bytes.as_ref().and_then(bytes),
        ),
        (
            "device_bandwidth_bytes_per_s",
            rate(&tiers.device_bandwidth),
        ),
        ("host_bandwidth_bytes_per_s", rate(&tiers.host_bandwidth)),
        (
            "host_shared_bytes_per_s",
            tiers.host_shared.as_ref().and_then(rate),
        ),
    ])
}

fn seconds(q: &Quantity<Seconds>) -> Option<Value> {
    quantity(q, |time| time.0.into())
}

fn write_links(links: &Links) -> Value {
    let copy = |link: &CopyLink| {
        Some(record([
            ("latency_s", seconds(&link.latency)),
            ("page_locked_bytes_per_s", curve(&link.page_locked)),
            (
                "pageable_bytes_per_s",
                link.pageable.as_ref().and_then(curve),
            ),
            ("relayed_bytes_per_s", link.relayed.as_ref().and_then(curve)),
            (
                "pace_page_locked_s",
                link.pace.as_ref().and_then(|p| seconds(&p.page_locked)),
            ),
            (
                "pace_pageable_s",
                link.pace.as_ref().and_then(|p| seconds(&p.pageable)),
            ),
        ]))
    };
    let disk = |link: &DiskLink| {
        Some(record([
            ("latency_s", seconds(&link.latency)),
            ("bytes_per_s", curve(&link.rate)),
            (
                "nominal_bytes_per_s",
                link.nominal
                    .as_ref()
                    .and_then(|q| quantity(q, |rate| rate.0.into())),
            ),
        ]))
    };
    let peer = |link: &PeerLink| {
        record([
            ("from", Some(i64::from(link.from).into())),
            ("to", Some(i64::from(link.to).into())),
            ("latency_s", seconds(&link.latency)),
            ("bytes_per_s", curve(&link.rate)),
        ])
    };
    let peers = Value::Array(links.peers.iter().map(peer).collect());
    record([
        ("h2d", copy(&links.h2d)),
        ("d2h", copy(&links.d2h)),
        ("disk_read", disk(&links.disk_read)),
        ("disk_write", disk(&links.disk_write)),
        (
            "page_lock_bytes_per_s",
            links.page_lock.as_ref().and_then(curve),
        ),
        (
            "staged_ahead_bytes",
            links.staged_ahead.as_ref().and_then(bytes),
        ),
        (
            "pace_disk_read_s",
            links.disk_read_pace.as_ref().and_then(seconds),
        ),
        ("peers", Some(peers)),
    ])
}

fn count(q: &Quantity<u32>) -> Option<Value> {
    quantity(q, |count| i64::from(count).into())
}

fn write_cluster(cluster: &Cluster) -> Value {
    record([
        ("hosts", count(&cluster.hosts)),
        ("gpus_per_host", count(&cluster.gpus_per_host)),
    ])
}

fn write_product(product: &ProductCurves) -> Value {
    let points = product.inflections();
    let [gemv, flat, conventional] = PRODUCT_CURVES;
    record([
        ("dtype", Some(product.dtype.name().into())),
        ("n", Some(i64::from(product.n).into())),
        ("k", Some(i64::from(product.k).into())),
        ("packed", product.packed.then_some(Value::Boolean(true))),
        ("biased", product.biased.then_some(Value::Boolean(true))),
        ("m1", points.m1.map(|m| i64::from(m).into())),
        ("m2", points.m2.map(|m| i64::from(m).into())),
        (gemv, curve(&product.gemv)),
        (flat, product.flat.as_ref().and_then(curve)),
        (conventional, curve(&product.conventional)),
    ])
}

fn write_gemm(gemm: &GemmCurve) -> Value {
    record([
        ("dtype", Some(gemm.dtype.name().into())),
        ("n", gemm.n.map(|n| i64::from(n).into())),
        ("k", gemm.k.map(|k| i64::from(k).into())),
        ("stage", gemm.stage.map(|stage| stage.name().into())),
        ("reused", gemm.reused.then_some(Value::Boolean(true))),
        ("packed", gemm.packed.then_some(Value::Boolean(true))),
        ("flops_per_s", curve(&gemm.rate)),
    ])
}

fn write_beside_products(beside: &BesideProducts) -> Value {
    record([
        ("dtype", Some(beside.dtype.name().into())),
        ("stage", Some(beside.stage.name().into())),
        ("biased", beside.biased.then_some(Value::Boolean(true))),
        ("width", Some(i64::from(beside.width).into())),
        ("elements_per_s", curve(&beside.rate)),
    ])
}

fn write_weight_read(read: &WeightRead) -> Value {
    record([
        ("dtype", Some(read.dtype.name().into())),
        ("bytes_per_s", curve(&read.rate)),
    ])
}

fn write_compute(compute: &Compute) -> Value {
    let any = |values: Vec<Value>| (!values.is_empty()).then_some(Value::Array(values));
    let products = any(compute.products.iter().map(write_product).collect());
    let beside = compute.beside_products.iter().map(write_beside_products);
    let reads = any(compute.weight_read.iter().map(write_weight_read).collect());
    let gemms = |curves: &[GemmCurve]| Value::Array(curves.iter().map(write_gemm).collect());
    let on_cpu = (!compute.cpu_gemm.is_empty()).then(|| gemms(&compute.cpu_gemm));
    let pace = |part: fn(&Pace) -> &Quantity<Seconds>| {
        compute.pace.as_ref().and_then(|pace| seconds(part(pace)))
    };
    let time = |q: &Option<Quantity<Seconds>>| q.as_ref().and_then(seconds);
    let rate = |c: &Option<Curve>| c.as_ref().and_then(curve);
    record([
        (
            "device_threads",
            compute.device_threads.as_ref().and_then(count),
        ),
        ("launch_s", seconds(&compute.launch)),
        ("part_launch_s", time(&compute.part_launch)),
        ("embed_s", time(&compute.embed)),
        ("sequence_s", time(&compute.sequence)),
        ("sequence_layer_s", time(&compute.sequence_layer)),
        ("handoff_s", time(&compute.handoff)),
        ("stream_handoff_s", time(&compute.stream_handoff)),
        ("barrier_s", seconds(&compute.barrier)),
        ("pace_few_tokens_s", pace(|p| &p.few_tokens)),
        ("pace_many_tokens_s", pace(|p| &p.many_tokens)),
        ("pace_copy_s", pace(|p| &p.copy)),
        ("gemm", Some(gemms(&compute.gemm))),
        ("products", products),
        ("joined_rows", compute.joined_rows.as_ref().and_then(count)),
        ("beside_products", any(beside.collect())),
        (
            "attention_prefill_flops_per_s",
            curve(&compute.attention_prefill),
        ),
        (
            "attention_decode_bytes_per_s",
            curve(&compute.attention_decode),
        ),
        (
            "attention_decode_shared",
            rate(&compute.attention_decode_shared),
        ),
        ("unpack_elements_per_s", rate(&compute.unpack)),
        ("pack_elements_per_s", rate(&compute.pack)),
        ("weight_read", reads),
        ("cpu_launch_s", seconds(&compute.cpu_launch)),
        ("cpu_gemm", on_cpu),
        ("cpu_attention_bytes_per_s", curve(&compute.cpu_attention)),
        ("cpu_attention_shared", rate(&compute.cpu_attention_shared)),
        (
            "cpu_copy_share",
            compute
                .cpu_copy_share
                .as_ref()
                .and_then(|q| quantity(q, Value::Float)),
        ),
        (
            "cpu_attention_prefill_flops_per_s",
            rate(&compute.cpu_attention_prefill),
        ),
    ])
}

fn write_contention(contention: &Contention) -> Value {
    record([
        ("victim", Some(contention.victim.name().into())),
        ("beside", Some(contention.beside.name().into())),
        ("rate", quantity(&contention.rate, Value::Float)),
        (
            "while_reading",
            (contention.while_reading.as_ref()).and_then(|rate| quantity(rate, Value::Float)),
        ),
    ])
}

fn write_residuals(residuals: &Residuals) -> Value {
    record([
        ("median_log_error", Some(residuals.median_log_error.into())),
        ("p05_log_error", Some(residuals.p05_log_error.into())),
        ("p95_log_error", Some(residuals.p95_log_error.into())),
        ("runs", Some(i64::from(residuals.runs).into())),
        ("source", Some(residuals.source.clone().into())),
        ("of", residuals.of.clone().map(Value::from)),
    ])
}
