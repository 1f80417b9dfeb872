//! The one function from a task to seconds.
//!
//! Every effect is a named term over the profile's curves: copies and disk by size, matrix products
//! by a roofline of arithmetic and device memory, attention by the cache that it reads, and a fixed
//! cost for each task. Who shares what with whom is not here: tasks alone are costed, the engine
//! slows those that run beside each other.

mod gemm;

use plimsoll_core::Dtype;
use plimsoll_core::compression::{GROUP_BYTES, GROUP_ELEMENTS};
use plimsoll_core::hardware::{CopyLink, HardwareProfile};
use plimsoll_core::program::{Op, ResourceKind};
use plimsoll_core::units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};

use gemm::GemmRates;

/// Seconds of a task that runs alone.
#[derive(Debug, Clone)]
pub struct CostModel {
    profile: HardwareProfile,
    gemm: GemmRates,
    element_bytes: u64,
}

impl CostModel {
    /// The costs of a machine for tensors of one type.
    pub fn new(profile: &HardwareProfile, dtype: Dtype) -> CostModel {
        CostModel {
            gemm: GemmRates::new(&profile.compute, dtype),
            profile: profile.clone(),
            element_bytes: dtype.size_bytes(),
        }
    }

    /// The machine.
    pub fn profile(&self) -> &HardwareProfile {
        &self.profile
    }

    /// How long a task takes on a resource with nothing beside it.
    pub fn seconds(&self, on: ResourceKind, op: &Op) -> Seconds {
        let alone = self.as_stored(on, op);
        match op.packed_elements() {
            0 => alone,
            elements => alone + self.unpack(elements),
        }
    }

    /// Unpacking and packing of 4-bit groups, once for every GPU batch (FlexGen section 5).
    fn unpack(&self, elements: u64) -> Seconds {
        let elements = elements as f64;
        match &self.profile.compute.unpack {
            Some(rate) => Seconds(elements / rate.at(elements)),
            // Its part of a group is read, an element is written.
            None => {
                let packed = GROUP_BYTES as f64 / GROUP_ELEMENTS as f64;
                let bytes = elements * (packed + self.element_bytes as f64);
                Seconds(bytes / self.profile.tiers.device_bandwidth.value.0)
            }
        }
    }

    fn as_stored(&self, on: ResourceKind, op: &Op) -> Seconds {
        let compute = &self.profile.compute;
        match *op {
            Op::Move {
                bytes, page_locked, ..
            } => self.transfer(on, bytes, page_locked),
            // A part has the heads of many rows, so that a copy engine takes all like one copy.
            Op::MoveParts {
                parts,
                part,
                page_locked,
                ..
            } => self.transfer(on, part * u64::from(parts), page_locked),
            Op::Gather { rows, picks, head } => {
                let bytes = head * (u64::from(rows) * u64::from(picks));
                // Heads of the cache, read where they lie: what the CPU's attention does.
                let rate = BytesPerSecond(compute.cpu_attention.at(bytes.as_f64()));
                compute.cpu_launch.value + bytes / rate
            }
            Op::Embed {
                tokens,
                hidden_size,
                ..
            } => {
                let bytes = u64::from(tokens) * u64::from(hidden_size) * self.element_bytes;
                // Read from the table, written to the activations.
                compute.launch.value + Bytes(2 * bytes) / self.profile.tiers.device_bandwidth.value
            }
            Op::Linear {
                m,
                ref gemms,
                reused,
                ..
            } => {
                let products = gemms.iter().map(|g| self.gemm(m, g.n, g.k, reused));
                compute.launch.value + products.sum()
            }
            Op::Attention { .. } => self.attention(on, op),
            Op::Barrier => compute.barrier.value,
        }
    }

    fn transfer(&self, on: ResourceKind, bytes: Bytes, page_locked: bool) -> Seconds {
        let links = &self.profile.links;
        let copy = |link: &CopyLink| {
            let curve = match &link.pageable {
                Some(pageable) if !page_locked => pageable,
                _ => &link.page_locked,
            };
            link.latency.value + bytes / BytesPerSecond(curve.at(bytes.as_f64()))
        };
        match on {
            ResourceKind::H2d => copy(&links.h2d),
            ResourceKind::D2h => copy(&links.d2h),
            ResourceKind::DiskRead | ResourceKind::DiskWrite => {
                let link = match on {
                    ResourceKind::DiskRead => &links.disk_read,
                    _ => &links.disk_write,
                };
                link.latency.value + bytes / BytesPerSecond(link.rate.at(bytes.as_f64()))
            }
            ResourceKind::PeerLink => match links.peers.first() {
                Some(peer) => {
                    peer.latency.value + bytes / BytesPerSecond(peer.rate.at(bytes.as_f64()))
                }
                None => copy(&links.d2h) + copy(&links.h2d),
            },
            ResourceKind::Pin => {
                let host = self.profile.tiers.host_bandwidth.value.0 / 2.0;
                let rate = links
                    .page_lock
                    .as_ref()
                    .map_or(host, |c| c.at(bytes.as_f64()));
                bytes / BytesPerSecond(rate)
            }
            // No lowering moves bytes on these; a move there would be of the tier's own memory.
            ResourceKind::Gpu => bytes / self.profile.tiers.device_bandwidth.value,
            ResourceKind::Cpu | ResourceKind::Sync => {
                bytes / self.profile.tiers.host_bandwidth.value
            }
        }
    }

    /// Roofline of `[m, k] x [n, k]^T`: arithmetic at the rate for `m`, or the traffic of weights and
    /// activations. A rate that was measured at a shape has its traffic in it.
    fn gemm(&self, m: u32, n: u32, k: u32, reused: bool) -> Seconds {
        let (mf, nf, kf) = (f64::from(m), f64::from(n), f64::from(k));
        let arithmetic =
            Flops(2.0 * mf * nf * kf) / FlopsPerSecond(self.gemm.rate(m, n, k, reused));
        if self.gemm.measured_by_shape() {
            return arithmetic;
        }
        let elements = nf * kf + mf * (nf + kf);
        let bandwidth = self.profile.tiers.device_bandwidth.value.0;
        arithmetic.max(Seconds(elements * self.element_bytes as f64 / bandwidth))
    }

    fn attention(&self, on: ResourceKind, op: &Op) -> Seconds {
        let (
            Op::Attention {
                query_len,
                context_len,
                ..
            },
            Some(cache),
            Some(flops),
        ) = (op, op.cache_bytes(), op.attention_flops())
        else {
            return Seconds::ZERO;
        };
        let compute = &self.profile.compute;
        let on_cpu = on == ResourceKind::Cpu;
        let (launch, decode) = if on_cpu {
            (compute.cpu_launch.value, &compute.cpu_attention)
        } else {
            (compute.launch.value, &compute.attention_decode)
        };
        if *query_len == 1 {
            return launch + cache / BytesPerSecond(decode.at(cache.as_f64()));
        }
        let prefill = match &compute.cpu_attention_prefill {
            Some(cpu) if on_cpu => cpu,
            _ => &compute.attention_prefill,
        };
        launch + flops / FlopsPerSecond(prefill.at(f64::from(*context_len)))
    }
}
