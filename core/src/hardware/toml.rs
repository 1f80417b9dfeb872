//! The text of a profile, both ways. What it may say is here; what it must mean is in `validate`.

use std::collections::BTreeMap;

use ::toml::Table;

use super::contention::Contention;
use super::error::{Fault, ProfileError};
use super::inherit::Layers;
use super::pace::{LinkPace, Pace};
use super::products::{PRODUCT_CURVES, ProductCurves};
use super::profile::{
    BesideProducts, Cluster, Compute, CopyLink, DeviceKind, DiskLink, GemmCurve, HardwareProfile,
    Links, PeerLink, Tiers, WeightRead,
};
use super::provenance::{Source, SourceKind};
use super::reader::Reader;
use super::residuals::Residuals;
use crate::Dtype;
use crate::program::{ResourceKind, Stage};

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
        Table::try_from(self).expect("a profile is a table of texts, numbers and arrays")
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
