//! Memory in blocks of one size, on the card and of the host.

use std::collections::BTreeSet;

use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;

use crate::cpu::error::TaskError;
use crate::cuda::Card;
use crate::serving::ServingError;
use crate::tiers::Region;

/// The host's memory grows by so much at least.
const GROWS_BY: usize = 64 << 20;

/// Blocks that nobody has.
#[derive(Debug)]
pub(super) struct Pool {
    block_bytes: usize,
    /// By their addresses: the lowest go first, so that those of one taking lie side by side where they can.
    free: BTreeSet<u64>,
}

impl Pool {
    pub(super) fn new(block_bytes: usize) -> Pool {
        Pool {
            block_bytes,
            free: BTreeSet::new(),
        }
    }

    /// Blocks that lie side by side from an address on.
    pub(super) fn blocks(&self, base: u64, count: usize) -> impl Iterator<Item = u64> + use<> {
        let bytes = self.block_bytes as u64;
        (0..count as u64).map(move |block| base + block * bytes)
    }

    /// So many blocks. There are as many: whoever asks has counted them.
    pub(super) fn take(&mut self, count: usize) -> Vec<u64> {
        (0..count).map_while(|_| self.free.pop_first()).collect()
    }

    pub(super) fn give(&mut self, blocks: impl IntoIterator<Item = u64>) {
        self.free.extend(blocks);
    }
}

/// Page-locked memory of the host, which is taken as caches leave the card and kept for the next.
#[derive(Debug)]
pub(super) struct HostPool {
    pool: Pool,
    regions: Vec<Region>,
    /// Blocks that it may have yet.
    left: usize,
}

impl HostPool {
    /// Of at most so much.
    pub(super) fn new(block_bytes: usize, limit: Bytes) -> HostPool {
        HostPool {
            pool: Pool::new(block_bytes),
            regions: Vec::new(),
            left: usize::try_from(limit.0).unwrap_or(usize::MAX) / block_bytes.max(1),
        }
    }

    /// So much from the start, as far as it may have it, so that first moves need not wait for pages to be locked.
    pub(super) fn prepare(&mut self, card: &dyn Card, bytes: usize) -> Result<(), TaskError> {
        let count = (bytes / self.pool.block_bytes.max(1)).min(self.left);
        match count {
            0 => Ok(()),
            some => self.grow(card, some),
        }
    }

    /// So many blocks, of new memory where no other is free.
    pub(super) fn take(&mut self, card: &dyn Card, count: usize) -> Result<Vec<u64>, TaskError> {
        if let Some(more @ 1..) = count.checked_sub(self.pool.free.len()) {
            self.grow(card, more)?;
        }
        Ok(self.pool.take(count))
    }

    pub(super) fn give(&mut self, blocks: impl IntoIterator<Item = u64>) {
        self.pool.give(blocks);
    }

    /// Which region an address is in; none of the card's is in any.
    pub(super) fn region_of(&self, address: u64) -> Option<usize> {
        self.regions.iter().position(|region| {
            let start = region.address();
            (start..start + region.bytes().len() as u64).contains(&address)
        })
    }

    fn grow(&mut self, card: &dyn Card, needed: usize) -> Result<(), TaskError> {
        let bytes = self.pool.block_bytes;
        let count = needed.max(GROWS_BY / bytes).min(self.left);
        if count < needed {
            return Err(TaskError::Serving(ServingError::TierFull {
                tier: Tier::Host,
                needed: Bytes((needed * bytes) as u64),
                room: Bytes((self.left * bytes) as u64),
            }));
        }
        let region = locked(card, count * bytes)?;
        let blocks = self.pool.blocks(region.address(), count);
        self.pool.give(blocks);
        self.regions.push(region);
        self.left -= count;
        Ok(())
    }
}

/// Memory of the host that is page-locked until the card is closed.
pub(super) fn locked(card: &dyn Card, bytes: usize) -> Result<Region, TaskError> {
    let region = Region::new(Tier::Host.name(), Bytes(bytes as u64))?;
    card.lock_pages(region.address(), bytes)?;
    Ok(region)
}
