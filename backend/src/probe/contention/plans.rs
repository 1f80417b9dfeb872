//! What runs beside each other, to see who slows whom.

use plimsoll_core::Dtype;
use plimsoll_core::lower::{LowerError, footprint};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::Bytes;

use crate::probe::compute::{self, Kind};

/// What runs beside each other.
struct Placement {
    sequences: u32,
    batches: u32,
    gen_len: u32,
    percent: [f64; 6],
    cpu_attention: bool,
    /// Of layers so wide that caches do not hold them, where that matters.
    wide: bool,
}

/// Of one GPU batch weights come in one piece, with overlap and without; only beside others does the GPU compute while the CPU does. A
/// sequence's products take all that memory gives, as copies do, where plans wait for copies; those of many sequences hardly any.
const PLACEMENTS: [Placement; 5] = [
    Placement {
        sequences: 16,
        batches: 1,
        gen_len: 6,
        percent: [0.0, 100.0, 0.0, 100.0, 0.0, 100.0],
        cpu_attention: false,
        wide: false,
    },
    Placement {
        sequences: 1,
        batches: 1,
        gen_len: 96,
        percent: [0.0, 100.0, 100.0, 0.0, 100.0, 0.0],
        cpu_attention: false,
        wide: true,
    },
    Placement {
        sequences: 16,
        batches: 1,
        gen_len: 6,
        percent: [0.0, 0.0, 100.0, 0.0, 100.0, 0.0],
        cpu_attention: false,
        wide: false,
    },
    Placement {
        sequences: 1,
        batches: 1,
        gen_len: 16,
        percent: [0.0, 0.0, 100.0, 0.0, 100.0, 0.0],
        cpu_attention: false,
        wide: true,
    },
    Placement {
        sequences: 4,
        batches: 4,
        gen_len: 6,
        percent: [100.0, 0.0, 0.0, 60.0, 100.0, 0.0],
        cpu_attention: true,
        wide: false,
    },
];

/// Each placement with overlap, and the same without: the same tasks in another order.
pub(in crate::probe) fn plans(
    dtype: Dtype,
    shape: compute::Shape,
    wide: Option<compute::Shape>,
) -> Result<Vec<[Plan; 2]>, LowerError> {
    let with = |(it, shape): (&Placement, compute::Shape)| {
        let batch = (it.sequences, 48);
        let mut plan = compute::plan(shape, batch, it.gen_len, dtype, Kind::OnDevice)?;
        let policy = Policy::from_percent(it.sequences, it.batches, it.percent)?;
        plan.policy = Policy {
            cpu_attention: it.cpu_attention,
            barrier: false,
            ..policy.in_whole_layers()
        };
        let mut serial = plan.clone();
        serial.policy.overlap = false;
        for plan in [&mut plan, &mut serial] {
            plan.capacity_bytes = PerTier::from_fn(|_| Bytes(u64::MAX / 4));
            plan.capacity_bytes = footprint(plan)?;
        }
        Ok([plan, serial])
    };
    let shaped = |it: &'static Placement| Some((it, if it.wide { wide? } else { shape }));
    PLACEMENTS.iter().filter_map(shaped).map(with).collect()
}
