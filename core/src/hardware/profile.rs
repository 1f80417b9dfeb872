//! What a machine can do, as numbers with provenance.

use std::collections::BTreeMap;
use std::ops::Not;

use serde::{Deserialize, Serialize};

use super::contention::Contention;
use super::curve::Curve;
use super::pace::{LinkPace, Pace};
use super::products::ProductCurves;
use super::provenance::{Quantity, Source, SourceKind};
use super::residuals::Residuals;
use crate::Dtype;
use crate::program::{HostPages, ResourceKind, Stage};
use crate::tier::PerTier;
use crate::units::{Bytes, BytesPerSecond, Seconds};

/// A machine: its memory tiers, the links between them, its compute, and who slows whom.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HardwareProfile {
    /// The name that plans and the command line use.
    pub name: String,
    /// One sentence about the machine, and what of it is not this machine's own.
    pub description: String,
    /// Whether the device is real.
    pub kind: DeviceKind,
    /// Where the numbers come from; every number names one of these.
    pub sources: BTreeMap<String, Source>,
    /// The memories.
    pub tiers: Tiers,
    /// The paths between them.
    pub links: Links,
    /// How many GPUs and hosts there are; none: one of each. What else is here is of one GPU and one host.
    pub cluster: Option<Cluster>,
    /// The processors.
    pub compute: Compute,
    /// How engines slow each other; a pair not listed does not.
    pub contention: Vec<Contention>,
    /// How far predictions with these numbers were from measured runs; none where nobody compared.
    pub residuals: Option<Residuals>,
}

/// What stands behind the word device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A GPU with its own memory.
    Gpu,
    /// A part of host memory and host threads that plays the GPU.
    Emulated,
}

/// Hosts that are alike, each with GPUs that are alike.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cluster {
    /// Hosts, each with memory, a disk and a CPU of its own.
    pub hosts: Quantity<u32>,
    /// GPUs of each.
    pub gpus_per_host: Quantity<u32>,
}

/// The three memories and how fast the upper two are read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tiers {
    /// All device memory.
    pub device_capacity_bytes: Quantity<Bytes>,
    /// All host memory.
    pub host_capacity_bytes: Quantity<Bytes>,
    /// Disk that weights, cache and activations may fill.
    pub disk_capacity_bytes: Quantity<Bytes>,
    /// Device memory that no tensor gets: the runtime's context and workspaces.
    pub device_reserved_bytes: Quantity<Bytes>,
    /// Host memory that no tensor gets: the system and the process itself.
    pub host_reserved_bytes: Quantity<Bytes>,
    /// Host memory that can be page-locked; none: all of it. Where it is 0, nothing is but what copies pass through.
    pub page_lockable_bytes: Option<Quantity<Bytes>>,
    /// Reading device memory from a kernel.
    #[serde(rename = "device_bandwidth_bytes_per_s")]
    pub device_bandwidth: Quantity<BytesPerSecond>,
    /// Reading host memory from all CPU threads.
    #[serde(rename = "host_bandwidth_bytes_per_s")]
    pub host_bandwidth: Quantity<BytesPerSecond>,
    /// All that the CPU, copies and the disk move through host memory side by side (an emulated device's own reads are not among
    /// it). None: they slow each other as [`HardwareProfile::contention`] says, and no further.
    #[serde(rename = "host_shared_bytes_per_s")]
    pub host_shared: Option<Quantity<BytesPerSecond>>,
}

impl Tiers {
    /// Device memory that tensors may fill.
    pub fn device_usable(&self) -> Bytes {
        self.device_capacity_bytes
            .value
            .saturating_sub(self.device_reserved_bytes.value)
    }

    /// Host memory that tensors may fill.
    pub fn host_usable(&self) -> Bytes {
        self.host_capacity_bytes
            .value
            .saturating_sub(self.host_reserved_bytes.value)
    }
}

/// The paths between the memories.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Links {
    /// Host to device.
    pub h2d: CopyLink,
    /// Device to host.
    pub d2h: CopyLink,
    /// Disk to host.
    pub disk_read: DiskLink,
    /// Host to disk.
    pub disk_write: DiskLink,
    /// Copies from pageable into page-locked host memory, bytes/s over bytes; none where nobody
    /// measured it, and then host bandwidth bounds it.
    #[serde(rename = "page_lock_bytes_per_s")]
    pub page_lock: Option<Curve>,
    /// Bytes of a copy from pageable memory to a GPU that its driver has put into page-locked memory of its own by the time that the
    /// copy's turn on the link comes, at most; none where nobody measured it, and then nothing.
    #[serde(rename = "staged_ahead_bytes")]
    pub staged_ahead: Option<Quantity<Bytes>>,
    /// How long a reference work of the disk's reader took when the profile was measured ([`Slowness::disk_read`](super::Slowness));
    /// none where nobody timed it.
    #[serde(rename = "pace_disk_read_s")]
    pub disk_read_pace: Option<Quantity<Seconds>>,
    /// Paths between devices, or between their hosts; empty with one device. Those that are not listed are
    /// as the first.
    pub peers: Vec<PeerLink>,
}

impl Links {
    /// The path on which a device sends to the next; none where nobody says, and then a copy down and one
    /// up stand for it.
    pub fn peer_from(&self, device: u8) -> Option<&PeerLink> {
        let mut peers = self.peers.iter();
        let own = peers.find(|peer| peer.from == u32::from(device));
        own.or(self.peers.first())
    }
}

/// A path between host and device memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CopyLink {
    /// Fixed time of one copy, before its bytes.
    #[serde(rename = "latency_s")]
    pub latency: Quantity<Seconds>,
    /// From or to page-locked host memory, bytes/s over the bytes of one copy, latency apart.
    #[serde(rename = "page_locked_bytes_per_s")]
    pub page_locked: Curve,
    /// From or to pageable host memory, likewise; none where nobody measured it.
    #[serde(rename = "pageable_bytes_per_s")]
    pub pageable: Option<Curve>,
    /// From pageable host memory, where software passes it through page-locked memory that it keeps for the next copy; none where
    /// that is the same.
    #[serde(rename = "relayed_bytes_per_s")]
    pub relayed: Option<Curve>,
    /// How long copies of reference took when these were measured ([`LinkSlowness`](super::LinkSlowness)); none without a GPU.
    #[serde(flatten)]
    pub pace: Option<LinkPace>,
}

impl CopyLink {
    /// The rate of copies whose end on the host lies in such memory, and whose rate it is: what was not told apart has another's.
    pub fn rate(&self, host: HostPages) -> (HostPages, &Curve) {
        let pageable = || Some((HostPages::Pageable, self.pageable.as_ref()?));
        let relayed = || Some((HostPages::Relayed, self.relayed.as_ref()?));
        let found = match host {
            HostPages::Locked => None,
            HostPages::Pageable => pageable(),
            HostPages::Relayed => relayed().or_else(pageable),
        };
        found.unwrap_or((HostPages::Locked, &self.page_locked))
    }

    /// Rates from and to pageable memory.
    pub fn pageable_mut(&mut self) -> impl Iterator<Item = &mut Curve> {
        self.pageable.iter_mut().chain(&mut self.relayed)
    }
}

/// A path between disk and host memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiskLink {
    /// Fixed time of one request, before its bytes.
    #[serde(rename = "latency_s")]
    pub latency: Quantity<Seconds>,
    /// Bytes/s over the bytes of one request, latency apart.
    #[serde(rename = "bytes_per_s")]
    pub rate: Curve,
    /// What the vendor or a benchmark of the disk alone says, where that is another rate; nothing is
    /// predicted with it but what the difference is worth.
    #[serde(rename = "nominal_bytes_per_s")]
    pub nominal: Option<Quantity<BytesPerSecond>>,
}

/// A path from one device to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerLink {
    /// The device that sends, from 0.
    pub from: u32,
    /// The device that receives, from 0.
    pub to: u32,
    /// Fixed time of one copy, before its bytes.
    #[serde(rename = "latency_s")]
    pub latency: Quantity<Seconds>,
    /// Bytes/s over the bytes of one copy, latency apart.
    #[serde(rename = "bytes_per_s")]
    pub rate: Curve,
}

/// Threads that an emulated device may have.
pub const DEVICE_THREADS_MAX: u32 = 1024;

/// What the processors do in a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compute {
    /// Threads of the emulated device that all of this was measured with; none: one, and on a GPU, which has no such threads.
    pub device_threads: Option<Quantity<u32>>,
    /// Fixed time of one device task, before its arithmetic; a layer on one batch is three of them.
    #[serde(rename = "launch_s")]
    pub launch: Quantity<Seconds>,
    /// The same of a device task that is one kernel, as those of split linear layers are; none where nobody told it
    /// from the others', and then theirs.
    #[serde(rename = "part_launch_s")]
    pub part_launch: Option<Quantity<Seconds>>,
    /// What an embedding takes beside that and its bytes: on a GPU it is several small kernels; none where nobody told it from
    /// others.
    #[serde(rename = "embed_s")]
    pub embed: Option<Quantity<Seconds>>,
    /// What serving software takes for each sequence of an iteration, beside the model's layers: scheduling it,
    /// choosing its token, handing it out; none where nobody knows.
    #[serde(rename = "sequence_s")]
    pub sequence: Option<Quantity<Seconds>>,
    /// The same in each layer, where attention is computed sequence by sequence; none where nobody knows.
    #[serde(rename = "sequence_layer_s")]
    pub sequence_layer: Option<Quantity<Seconds>>,
    /// From the end of a task until one of another engine that had to wait for it begins; none where
    /// nobody told it from the tasks' own fixed times.
    #[serde(rename = "handoff_s")]
    pub handoff: Option<Quantity<Seconds>>,
    /// The same between streams of a GPU, where the host has no part in it; none where nobody told it from the others, and then
    /// theirs.
    #[serde(rename = "stream_handoff_s")]
    pub stream_handoff: Option<Quantity<Seconds>>,
    /// One synchronisation of all engines: from when the last has come until its end. Those that
    /// waited for it are then handed off to as for any task.
    #[serde(rename = "barrier_s")]
    pub barrier: Quantity<Seconds>,
    /// How long reference work took while this was measured; none for machines measured elsewhere.
    #[serde(flatten)]
    pub pace: Option<Pace>,
    /// Matrix products on the device, by type and shape; the weights' bytes over
    /// [`Tiers::device_bandwidth`] bound them besides.
    pub gemm: Vec<GemmCurve>,
    /// Products of stated shapes on the device, by implementation: what executors choose by, and what their time is
    /// predicted by; empty where nobody measured it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub products: Vec<ProductCurves>,
    /// The most rows for which the device computes products that share their input as one: queries, keys and values, a gate and what
    /// it gates; none: it never does.
    pub joined_rows: Option<Quantity<u32>>,
    /// What the parts of a layer take beside their products. Where a profile has them, a part is the sum of its products, by
    /// [`Compute::products`], and this; empty where nobody told them apart, and then rates of [`Compute::gemm`] have both in them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beside_products: Vec<BesideProducts>,
    /// Attention over a prompt on the device, FLOP/s over context tokens; of the scores that a causal mask leaves, half of all.
    #[serde(rename = "attention_prefill_flops_per_s")]
    pub attention_prefill: Curve,
    /// Attention of one new token on the device, bytes/s over the bytes of K and V read.
    #[serde(rename = "attention_decode_bytes_per_s")]
    pub attention_decode: Curve,
    /// What is left of that rate where several query heads share a key head, over how many: they compute as many times as much of the
    /// same bytes. All of it where nobody knows.
    pub attention_decode_shared: Option<Curve>,
    /// Unpacking 4-bit groups on the device, elements/s over elements; none where nobody knows, and then device memory bounds it.
    #[serde(rename = "unpack_elements_per_s")]
    pub unpack: Option<Curve>,
    /// Packing a cache's new elements into such groups, likewise; none where nobody told it from unpacking, which then stands for it.
    #[serde(rename = "pack_elements_per_s")]
    pub pack: Option<Curve>,
    /// How fast products of few rows read weights, by type; of a type without a curve nobody knows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weight_read: Vec<WeightRead>,
    /// Fixed time of one CPU task.
    #[serde(rename = "cpu_launch_s")]
    pub cpu_launch: Quantity<Seconds>,
    /// Matrix products on the CPU, likewise; [`Tiers::host_bandwidth`] bounds them besides, and alone where
    /// there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_gemm: Vec<GemmCurve>,
    /// Attention of one new token on the CPU, bytes/s over the bytes of K and V read.
    #[serde(rename = "cpu_attention_bytes_per_s")]
    pub cpu_attention: Curve,
    /// What is left of that rate likewise.
    pub cpu_attention_shared: Option<Curve>,
    /// The part of that time that goes into a copy of the cache, where one is made first; none where nobody
    /// knows, and then it takes host memory's time.
    pub cpu_copy_share: Option<Quantity<f64>>,
    /// The same on the CPU; none where nobody knows.
    #[serde(rename = "cpu_attention_prefill_flops_per_s")]
    pub cpu_attention_prefill: Option<Curve>,
}

impl Compute {
    /// What hand-offs take: from any engine to another, and between streams of a GPU. Nothing where nobody knows.
    pub fn handoffs(&self) -> [Seconds; 2] {
        let usual = self.handoff.as_ref().map_or(Seconds::ZERO, |h| h.value);
        let between_streams = self.stream_handoff.as_ref();
        [usual, between_streams.map_or(usual, |h| h.value)]
    }
}

/// Matrix products [M x k] x [k x n] on a processor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GemmCurve {
    /// The type of both operands.
    pub dtype: Dtype,
    /// Columns of the weight; none for any.
    pub n: Option<u32>,
    /// Inner dimension; none for any.
    pub k: Option<u32>,
    /// The part of a layer that it was measured of; none for any. Where a profile has curves of a product's own part, they
    /// alone serve it: equal sizes of another part belong to a layer of another size, of which caches hold more, or less.
    pub stage: Option<Stage>,
    /// Whether it is for weights that the task before used as well, of which a cache may hold some;
    /// where a profile has no such curve, the others serve.
    #[serde(skip_serializing_if = "Not::not")]
    pub reused: bool,
    /// Whether it is for weights in groups of 4-bit codes, their unpacking counted; where a profile has no
    /// such curve, the others serve and `unpack` is added.
    #[serde(skip_serializing_if = "Not::not")]
    pub packed: bool,
    /// FLOP/s over M, the rows (tokens in the batch).
    #[serde(rename = "flops_per_s")]
    pub rate: Curve,
}

/// What a part of a layer does beside its products: norms, activations, residuals, new keys and values into the cache, and what its
/// kernels take to begin. It does not grow with the weights, so that a part whose weights are few has more of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BesideProducts {
    /// The type of the tensors.
    pub dtype: Dtype,
    /// The part of a layer.
    pub stage: Stage,
    /// Whether it was measured of layers whose products have biases, some of which take kernels of their own. Layers of the other
    /// kind have these rates only where a profile has none of theirs.
    #[serde(skip_serializing_if = "Not::not")]
    pub biased: bool,
    /// Elements of a row of its input: the hidden size of the model that it was measured with.
    pub width: u32,
    /// Elements/s of that input over its rows.
    #[serde(rename = "elements_per_s")]
    pub rate: Curve,
}

/// How fast products of few rows read weights: what a last cache keeps of a small model from one token to the next it does not
/// keep of a large one. (Where a CPU plays the device, host and device share that cache, so it counts all weights, wherever they
/// live.) Bounds products besides, from the first point on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WeightRead {
    /// The type that they are computed in: those that are widened on the way are read more slowly than those that are not.
    pub dtype: Dtype,
    /// Bytes/s over the bytes of all weights of a model.
    #[serde(rename = "bytes_per_s")]
    pub rate: Curve,
}

impl WeightRead {
    /// Bytes/s, of a model with so many bytes of weights; none where caches hold them.
    pub fn of_all(&self, all: f64) -> Option<f64> {
        let (first, _) = self.rate.points().first()?;
        (all >= *first).then(|| self.rate.at(all))
    }

    /// For which share of its time a task of so many seconds alone reads so many bytes of weights, of a model with `all`.
    pub fn share(&self, (bytes, all): (f64, f64), seconds: f64) -> f64 {
        match self.of_all(all) {
            Some(rate) if seconds > 0.0 => (bytes / rate / seconds).min(1.0),
            _ => 0.0,
        }
    }
}

impl Compute {
    /// How fast weights of a type are read; none where nobody knows. Types of 16 bits, which are widened alike, stand for
    /// each other.
    pub fn weight_read_of(&self, dtype: Dtype) -> Option<&WeightRead> {
        let of = |dtype| self.weight_read.iter().find(|read| read.dtype == dtype);
        of(dtype).or_else(|| match dtype {
            Dtype::F16 => of(Dtype::Bf16),
            Dtype::Bf16 => of(Dtype::F16),
            Dtype::F32 => None,
        })
    }
}

impl HardwareProfile {
    /// What tensors may fill of each tier.
    pub fn usable(&self) -> PerTier<Bytes> {
        PerTier {
            device: self.tiers.device_usable(),
            host: self.tiers.host_usable(),
            disk: self.tiers.disk_capacity_bytes.value,
        }
    }

    /// Whether it says more of how fast its CPU multiplies than a data sheet does: what that allows nobody reaches.
    pub fn knows_cpu_products(&self) -> bool {
        let is_known = |curve: &GemmCurve| {
            let source = self.sources.get(&curve.rate.source);
            source.is_some_and(|source| source.kind != SourceKind::Datasheet)
        };
        self.compute.cpu_gemm.iter().any(is_known)
    }

    /// How many GPUs there are.
    pub fn num_gpus(&self) -> u32 {
        let count = |cluster: &Cluster| cluster.hosts.value * cluster.gpus_per_host.value;
        self.cluster.as_ref().map_or(1, count)
    }

    /// Threads of the emulated device that this was measured with.
    pub fn device_threads(&self) -> u32 {
        let stated = self.compute.device_threads.as_ref();
        stated.map_or(1, |threads| threads.value)
    }

    /// How many GPUs share a host's memory, disk and CPU.
    pub fn gpus_per_host(&self) -> u32 {
        let cluster = self.cluster.as_ref();
        cluster.map_or(1, |cluster| cluster.gpus_per_host.value)
    }

    /// The fraction of its rate that `victim` keeps beside `beside`, where a GPU among them computes: 1 where none is listed.
    pub fn contention_factor(&self, victim: ResourceKind, beside: ResourceKind) -> f64 {
        self.contention_of(victim, beside)
            .map_or(1.0, |pair| pair.rate.value)
    }

    /// How `beside` slows `victim`, where that is listed.
    pub fn contention_of(&self, victim: ResourceKind, beside: ResourceKind) -> Option<&Contention> {
        let mut all = self.contention.iter();
        all.find(|pair| pair.victim == victim && pair.beside == beside)
    }
}
