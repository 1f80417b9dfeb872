//! How one GPU batch is split over the tiers.

use std::ops::Range;

use crate::placement::{PAGE_BYTES, split_whole};
use crate::plan::Plan;
use crate::tier::{PerTier, Tier};
use crate::units::Bytes;

/// Which sequences and which rows of the cache of a GPU batch live in which tier, and what they take there.
#[derive(Debug, Clone, Copy)]
pub struct BatchShape {
    /// Sequences.
    pub sequences: u32,
    /// Sequences whose activations live in each tier.
    pub hidden: PerTier<u32>,
    /// Cache rows (sequences times key/value heads) that live in each tier.
    pub rows: PerTier<u32>,
    /// Bytes of one position of one layer's cache in each tier; whole pages on disk.
    pub record: PerTier<Bytes>,
    /// Bytes of a row's keys, or values, at one position.
    pub head: Bytes,
}

impl BatchShape {
    /// Of a plan's batch of so many sequences.
    pub fn of(plan: &Plan, sequences: u32) -> BatchShape {
        let (model, policy) = (&plan.model, &plan.policy);
        let rows = split_whole(sequences * model.num_key_value_heads, &policy.cache);
        let head = policy
            .compression
            .cache_head_bytes(model.head_dim, plan.dtype);
        let record = PerTier::from_fn(|tier| {
            let bytes = head * (u64::from(rows[tier]) * 2);
            match tier {
                Tier::Disk => bytes.align_up(PAGE_BYTES),
                Tier::Device | Tier::Host => bytes,
            }
        });
        BatchShape {
            sequences,
            hidden: split_whole(sequences, &policy.activations),
            rows,
            record,
            head,
        }
    }

    /// The most that any of a plan's batches keeps in each tier: whole rows of a batch that is not full may round
    /// the other way.
    pub(crate) fn most(plan: &Plan, batches: impl Iterator<Item = u32>) -> BatchShape {
        let mut sizes: Vec<u32> = batches.collect();
        sizes.sort_unstable();
        sizes.dedup();
        let shapes = sizes
            .into_iter()
            .map(|sequences| BatchShape::of(plan, sequences));
        shapes
            .reduce(|a, b| BatchShape {
                sequences: a.sequences.max(b.sequences),
                hidden: PerTier::from_fn(|t| a.hidden[t].max(b.hidden[t])),
                rows: PerTier::from_fn(|t| a.rows[t].max(b.rows[t])),
                record: PerTier::from_fn(|t| a.record[t].max(b.record[t])),
                head: a.head,
            })
            .unwrap_or_else(|| BatchShape::of(plan, 0))
    }

    /// The rows of the batch that live in a tier: the device's come first, then the host's.
    pub fn rows_in(&self, tier: Tier) -> Range<u32> {
        let PerTier { device, host, disk } = self.rows;
        match tier {
            Tier::Device => 0..device,
            Tier::Host => device..device + host,
            Tier::Disk => device + host..device + host + disk,
        }
    }

    /// Cache rows that are not on the device.
    pub fn rows_off_device(&self) -> u32 {
        self.rows.host + self.rows.disk
    }

    /// Bytes of one position of the cache that is not on the device, as it lies there.
    pub(crate) fn record_off_device(&self) -> Bytes {
        self.record.host + self.record.disk
    }

    /// The same without the room to whole pages.
    pub fn record_of_rows_off_device(&self) -> Bytes {
        self.head * (u64::from(self.rows_off_device()) * 2)
    }
}
