//! What tasks move through a host's memory, which all that run there share.

use plimsoll_core::program::{Op, Resource, ResourceKind};

use super::CostModel;
use super::gemm::Product;

impl CostModel {
    /// Bytes that a task moves through its host's memory, at the least: what stays in caches is not counted, and neither is what a
    /// driver puts into buffers of its own. Of kernels of a GPU none.
    pub fn host_traffic(&self, on: impl Into<Resource>, op: &Op) -> f64 {
        let moved = op.moved_bytes().map_or(0.0, |bytes| bytes.as_f64());
        match on.into().kind {
            ResourceKind::H2d
            | ResourceKind::D2h
            | ResourceKind::DiskRead
            | ResourceKind::DiskWrite => moved,
            // Read and written.
            ResourceKind::Pin => 2.0 * moved,
            ResourceKind::Cpu => 2.0 * moved + self.cpu_reads(op),
            ResourceKind::Gpu | ResourceKind::Sync | ResourceKind::PeerLink => 0.0,
        }
    }

    /// For which share of its time a task of a GPU reads weights that no cache holds, where a profile says how fast that is: others that
    /// use the same memory disturb it then, and it them. Copies beside it leave nothing of them in caches for the next batch.
    pub(crate) fn reading_share(&self, on: Resource, op: &Op, seconds: f64) -> f64 {
        let (elements, packed) = match (on.kind, op) {
            (
                ResourceKind::Gpu,
                Op::Linear {
                    gemms, compressed, ..
                },
            ) => (gemms.iter().map(|gemm| gemm.weights()).sum(), *compressed),
            (ResourceKind::Gpu, Op::Span(span)) => (span.weights(), span.compressed),
            _ => return 0.0,
        };
        let (Some(read), Some(all)) = (&self.weight_read, self.weights) else {
            return 0.0;
        };
        let bytes = elements as f64 * self.stored(packed);
        read.share((bytes, all), seconds)
    }

    /// Of the CPU's computing.
    fn cpu_reads(&self, op: &Op) -> f64 {
        match *op {
            Op::Linear {
                stage,
                m,
                gemms,
                reused,
                compressed: packed,
                ..
            } => {
                let bytes = gemms.iter().map(|gemm| {
                    self.product_traffic(Product {
                        stage: Some(stage),
                        m,
                        n: gemm.n,
                        k: gemm.k,
                        reused,
                        packed,
                    })
                });
                bytes.sum()
            }
            Op::Gather { rows, picks, head } => {
                (head * (u64::from(rows) * u64::from(picks))).as_f64()
            }
            Op::Attention { .. } => op.cache_bytes().map_or(0.0, |bytes| bytes.as_f64()),
            _ => 0.0,
        }
    }

    /// A product's weights, as stored, and its inputs and outputs, which of split layers are f32.
    pub(super) fn product_traffic(&self, product: Product) -> f64 {
        let Product { m, n, k, .. } = product;
        let (m, n, k) = (f64::from(m), f64::from(n), f64::from(k));
        n * k * self.stored_bytes(product) + m * (n + k) * size_of::<f32>() as f64
    }
}
