//! Which block of the cache is whose, and where it lies in each layer: what does not depend on where the memory is.
//!
//! A request's table of blocks is the same for all layers; where a block lies in a layer's memory is the layer's, since layers
//! may be on the host, and of different sizes while the cache grows or shrinks (Pie, section 4.1).

use std::collections::HashMap;

use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;

use super::error::ServingError;

/// How large a cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheSize {
    /// Layers of the model.
    pub layers: usize,
    /// Those of them whose cache is on the device at first.
    pub device_layers: usize,
    /// Blocks in each layer.
    pub blocks: usize,
    /// Tokens a block.
    pub block_tokens: usize,
    /// Bytes of a token's keys and values in a layer.
    pub token_bytes: usize,
    /// What the device has room for.
    pub device: Bytes,
    /// What the host has room for.
    pub host: Bytes,
}

impl CacheSize {
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_tokens * self.token_bytes
    }

    /// What the device's part takes.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes((self.device_layers * self.blocks * self.block_bytes()) as u64)
    }

    /// Where a layer's cache is at first.
    pub(crate) fn tier(&self, layer: usize) -> Tier {
        match layer < self.device_layers {
            true => Tier::Device,
            false => Tier::Host,
        }
    }

    /// Blocks that so many tokens take.
    pub(crate) fn blocks_of(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens)
    }
}

/// Where a layer's blocks lie in its memory.
#[derive(Debug)]
struct Places {
    tier: Tier,
    blocks: usize,
    /// How often they were packed.
    packed: u32,
    /// By block, [`NOWHERE`] for those that nobody has.
    of: Vec<u32>,
    free: Vec<u32>,
}

/// Of a block that nobody has.
const NOWHERE: u32 = u32::MAX;

impl Places {
    fn new(tier: Tier, blocks: usize) -> Places {
        Places {
            tier,
            blocks,
            packed: 0,
            of: Vec::new(),
            free: (0..blocks as u32).rev().collect(),
        }
    }

    /// The same blocks side by side from the first place on, with room for so many; and who goes from where to where.
    fn packed(&mut self, blocks: usize) -> Vec<(u32, u32)> {
        let old = std::mem::replace(self, Places::new(self.tier, blocks));
        self.packed = old.packed + 1;
        let held = (0..).zip(old.of).filter(|(_, from)| *from != NOWHERE);
        let moves = held.filter_map(|(block, from)| Some((from, self.give(block)?)));
        moves.collect()
    }

    /// Gives a block a place, if there is one.
    fn give(&mut self, block: u32) -> Option<u32> {
        let place = self.free.pop()?;
        let index = block as usize;
        self.of.resize(self.of.len().max(index + 1), NOWHERE);
        self.of[index] = place;
        Some(place)
    }

    /// Takes a block's place back.
    fn take(&mut self, block: u32) {
        if let Some(place) = self.of.get_mut(block as usize).filter(|it| **it != NOWHERE) {
            self.free.push(std::mem::replace(place, NOWHERE));
        }
    }

    fn place(&self, block: u32) -> Option<usize> {
        let place = self.of.get(block as usize).filter(|it| **it != NOWHERE);
        place.map(|place| *place as usize)
    }
}

/// Which block is whose, and where.
#[derive(Debug)]
pub(crate) struct Tables {
    size: CacheSize,
    /// By request, its blocks in the order of positions.
    blocks: HashMap<u32, Vec<u32>>,
    /// Numbers of blocks that nobody has, and the first that nobody ever had.
    free_numbers: Vec<u32>,
    next_number: u32,
    /// By layer.
    places: Vec<Places>,
    taken: PerTier<u64>,
}

impl Tables {
    /// Of an empty cache.
    pub(crate) fn new(size: CacheSize) -> Tables {
        let on_host = size.layers - size.device_layers;
        let places = (0..size.layers).map(|layer| Places::new(size.tier(layer), size.blocks));
        Tables {
            blocks: HashMap::new(),
            free_numbers: Vec::new(),
            next_number: 0,
            places: places.collect(),
            taken: PerTier {
                device: size.bytes().0,
                host: (on_host * size.blocks * size.block_bytes()) as u64,
                disk: 0,
            },
            size,
        }
    }

    /// Blocks that every layer has room for.
    pub(crate) fn free_blocks(&self) -> usize {
        let free = self.places.iter().map(|places| places.free.len());
        free.min().unwrap_or(0)
    }

    /// Gives a request the blocks that so many tokens need, beside those that it has.
    ///
    /// # Errors
    /// [`ServingError::CacheFull`].
    pub(crate) fn grow(&mut self, request: u32, tokens: usize) -> Result<(), ServingError> {
        let needed = self.size.blocks_of(tokens);
        let own = self.blocks.entry(request).or_default().len();
        let more = needed.saturating_sub(own);
        let free = self.free_blocks();
        if more > free {
            return Err(ServingError::CacheFull {
                request,
                needed: more,
                free,
            });
        }
        for _ in 0..more {
            let block = self.free_numbers.pop().unwrap_or_else(|| {
                self.next_number += 1;
                self.next_number - 1
            });
            for places in &mut self.places {
                // There are as many: it was asked above.
                places.give(block);
            }
            self.blocks.entry(request).or_default().push(block);
        }
        Ok(())
    }

    /// Takes a request's blocks back.
    pub(crate) fn free(&mut self, request: u32) {
        for block in self.blocks.remove(&request).unwrap_or_default() {
            for places in &mut self.places {
                places.take(block);
            }
            self.free_numbers.push(block);
        }
    }

    /// Where a request's blocks lie in a layer's memory, in the order of positions.
    pub(crate) fn places(&self, layer: usize, request: u32) -> impl Iterator<Item = usize> + '_ {
        let own = self.blocks.get(&request).into_iter().flatten();
        let of = &self.places[layer];
        own.filter_map(|block| of.place(*block))
    }

    /// How many blocks a request has.
    pub(crate) fn count(&self, request: u32) -> usize {
        self.blocks.get(&request).map_or(0, Vec::len)
    }

    /// Whether blocks certainly lie in the same places in two layers.
    pub(crate) fn are_alike(&self, one: usize, other: usize) -> bool {
        // Packed ones lie as it came.
        self.places[one].packed == 0 && self.places[other].packed == 0
    }

    /// Notes that a layer's memory is in a tier and holds so many blocks from now on. Who goes from which place to which:
    /// none where all stay in theirs.
    pub(crate) fn relocate(
        &mut self,
        layer: usize,
        tier: Tier,
        blocks: usize,
    ) -> Option<Vec<(u32, u32)>> {
        let places = &mut self.places[layer];
        let moves = (places.blocks != blocks).then(|| places.packed(blocks));
        places.tier = tier;
        moves
    }

    /// Takes so much of a tier.
    ///
    /// # Errors
    /// [`ServingError::TierFull`].
    pub(crate) fn take(&mut self, tier: Tier, bytes: u64) -> Result<(), ServingError> {
        let limit = match tier {
            Tier::Device => self.size.device.0,
            _ => self.size.host.0,
        };
        let room = limit.saturating_sub(self.taken[tier]);
        if bytes > room {
            return Err(ServingError::TierFull {
                tier,
                needed: Bytes(bytes),
                room: Bytes(room),
            });
        }
        self.taken[tier] += bytes;
        Ok(())
    }

    /// Gives so much of a tier back.
    pub(crate) fn give(&mut self, tier: Tier, bytes: u64) {
        self.taken[tier] -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where each request's blocks lie in a layer.
    fn places(tables: &Tables, layer: usize, requests: &[u32]) -> Vec<usize> {
        let of = |request: &u32| tables.places(layer, *request).collect::<Vec<_>>();
        requests.iter().flat_map(of).collect()
    }

    #[test]
    fn numbers_of_blocks_are_used_again_and_no_two_share_a_place() {
        let mut tables = Tables::new(CacheSize {
            layers: 2,
            device_layers: 2,
            blocks: 6,
            block_tokens: 4,
            token_bytes: 1,
            device: Bytes(48),
            host: Bytes(48),
        });
        for round in 0..5 {
            tables.grow(1, 8).expect("room");
            tables.grow(2, 13).expect("room");
            assert!(tables.grow(3, 1).is_err(), "all are taken");
            tables.free(1);
            if round == 2 {
                // Packed, so that one layer's places are not the other's.
                tables.relocate(1, Tier::Host, 5);
            }
            tables.grow(3, 4).expect("room");
            for layer in [0, 1] {
                let mut all = places(&tables, layer, &[2, 3]);
                assert_eq!(all.len(), 5);
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), 5, "layer {layer} in round {round}");
            }
            assert_eq!((tables.count(1), tables.count(2)), (0, 4));
            tables.free(2);
            tables.free(3);
            if round == 2 {
                tables.relocate(1, Tier::Device, 6);
            }
        }
        assert!(tables.next_number <= 6, "{}", tables.next_number);
    }
}
