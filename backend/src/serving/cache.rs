//! The paged KV cache of a serving system: blocks of a few tokens in each layer, and what was moved to the host.
//!
//! A request's table of blocks is the same for all layers; where a block lies in a layer's memory is the layer's, since layers
//! may be on the host, and of different sizes while the cache grows or shrinks (Pie, section 4.1).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;

use super::error::ServingError;
use crate::tiers::{Pace, Region, TierError, copy};

/// How large a cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSize {
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
    fn block_bytes(&self) -> usize {
        self.block_tokens * self.token_bytes
    }

    /// What the device's part takes.
    pub fn bytes(&self) -> Bytes {
        Bytes((self.device_layers * self.blocks * self.block_bytes()) as u64)
    }

    /// Blocks that so many tokens take.
    fn blocks_of(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens)
    }
}

/// Where a layer's blocks lie in its memory.
#[derive(Debug)]
struct Places {
    tier: Tier,
    blocks: usize,
    of: HashMap<u32, u32>,
    free: Vec<u32>,
}

impl Places {
    fn new(tier: Tier, blocks: usize) -> Places {
        Places {
            tier,
            blocks,
            of: HashMap::new(),
            free: (0..blocks as u32).rev().collect(),
        }
    }

    /// The same blocks side by side from the first place on, with room for so many; and who goes from where to where.
    fn packed(&mut self, blocks: usize) -> Vec<(u32, u32)> {
        let old = std::mem::replace(self, Places::new(self.tier, blocks));
        let moves = old.of.into_iter().filter_map(|(block, from)| {
            let to = self.free.pop()?;
            self.of.insert(block, to);
            Some((from, to))
        });
        moves.collect()
    }
}

/// Which block is whose, and where.
#[derive(Debug)]
struct Tables {
    /// By request, its blocks in the order of positions.
    blocks: HashMap<u32, Vec<u32>>,
    next_block: u32,
    places: Vec<Places>,
    /// By request, what lies on the host: tokens, then all layers' keys and values.
    away: HashMap<u32, (usize, Vec<u8>)>,
    taken: PerTier<u64>,
    /// Memory of layers that were moved, for the next of the same size.
    spare: Vec<(Tier, Region)>,
}

/// The cache.
#[derive(Debug)]
pub struct PagedCache {
    size: CacheSize,
    /// By layer, all its blocks.
    memory: Vec<Mutex<Region>>,
    tables: Mutex<Tables>,
}

impl PagedCache {
    /// An empty cache. All of its memory is taken at once.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn new(size: CacheSize) -> Result<PagedCache, TierError> {
        let bytes = Bytes((size.blocks * size.block_bytes()) as u64);
        let tier = |layer| match layer < size.device_layers {
            true => Tier::Device,
            false => Tier::Host,
        };
        let memory = |layer| Region::new(tier(layer).name(), bytes).map(Mutex::new);
        let on_host = (size.layers - size.device_layers) as u64;
        Ok(PagedCache {
            memory: (0..size.layers).map(memory).collect::<Result<_, _>>()?,
            tables: Mutex::new(Tables {
                blocks: HashMap::new(),
                next_block: 0,
                places: (0..size.layers)
                    .map(|layer| Places::new(tier(layer), size.blocks))
                    .collect(),
                away: HashMap::new(),
                taken: PerTier {
                    device: size.bytes().0,
                    host: on_host * bytes.0,
                    disk: 0,
                },
                spare: Vec::new(),
            }),
            size,
        })
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn layer(&self, layer: usize) -> MutexGuard<'_, Region> {
        let memory = self.memory[layer].lock();
        memory.unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks that nobody has.
    #[cfg(test)]
    pub fn free_blocks(&self) -> usize {
        self.tables().free_blocks()
    }

    /// Gives a request the blocks that so many tokens need, beside those that it has.
    ///
    /// # Errors
    /// [`ServingError::CacheFull`].
    pub fn grow(&self, request: u32, tokens: usize) -> Result<(), ServingError> {
        let needed = self.size.blocks_of(tokens);
        let tables = &mut *self.tables();
        let own = tables.blocks.entry(request).or_default().len();
        let more = needed.saturating_sub(own);
        let free = tables.free_blocks();
        if more > free {
            return Err(ServingError::CacheFull {
                request,
                needed: more,
                free,
            });
        }
        for _ in 0..more {
            let block = tables.next_block;
            tables.next_block += 1;
            for places in &mut tables.places {
                // There are as many: it was asked above.
                let place = places.free.pop();
                places.of.extend(place.map(|place| (block, place)));
            }
            tables.blocks.entry(request).or_default().push(block);
        }
        Ok(())
    }

    /// Takes back what a request has, on the device and on the host.
    pub fn release(&self, request: u32) {
        let tables = &mut *self.tables();
        tables.free(request);
        if let Some((_, bytes)) = tables.away.remove(&request) {
            tables.taken.host -= bytes.len() as u64;
        }
    }

    /// Lets `compute` have the blocks of some requests in a layer, in the order of positions.
    pub fn with_layer<T>(
        &self,
        layer: usize,
        requests: impl Iterator<Item = u32>,
        compute: impl FnOnce(&mut [Vec<&mut [u8]>]) -> T,
    ) -> T {
        let tables = self.tables();
        let mut region = self.layer(layer);
        let blocks = region.bytes_mut().chunks_exact_mut(self.size.block_bytes());
        let mut blocks: Vec<Option<&mut [u8]>> = blocks.map(Some).collect();
        let places = &tables.places[layer].of;
        let mut pages: Vec<Vec<&mut [u8]>> = requests
            .map(|request| {
                let own = tables.blocks.get(&request).into_iter().flatten();
                // A block is one request's, so each is there once.
                let own = own.filter_map(|block| blocks[*places.get(block)? as usize].take());
                own.collect()
            })
            .collect();
        drop(tables);
        compute(&mut pages)
    }

    /// Moves a request's keys and values of its first `tokens` tokens to the host, and frees its blocks.
    ///
    /// # Errors
    /// [`ServingError::HostFull`]; the pace's.
    pub fn move_out(
        &self,
        request: u32,
        tokens: usize,
        pace: Option<&Pace<'_>>,
    ) -> Result<(), ServingError> {
        let bytes = tokens * self.size.token_bytes * self.size.layers;
        self.take(Tier::Host, bytes as u64)?;
        let mut away = vec![0; bytes];
        self.each_part(request, tokens, pace, |part, place| {
            away[place].copy_from_slice(part);
        })?;
        let tables = &mut *self.tables();
        tables.away.insert(request, (tokens, away));
        tables.free(request);
        Ok(())
    }

    /// Moves what [`PagedCache::move_out`] took back to blocks of the device.
    ///
    /// # Errors
    /// [`ServingError::CacheFull`], [`ServingError::NotAway`]; the pace's.
    pub fn move_in(&self, request: u32, pace: Option<&Pace<'_>>) -> Result<(), ServingError> {
        let away = self.tables().away.remove(&request);
        let (tokens, away) = away.ok_or(ServingError::NotAway { request })?;
        self.grow(request, tokens)?;
        self.each_part(request, tokens, pace, |part, place| {
            part.copy_from_slice(&away[place]);
        })?;
        self.tables().taken.host -= away.len() as u64;
        Ok(())
    }

    /// Moves a layer's cache of all requests to another tier, where it has so many bytes from now on. Nobody computes
    /// the layer meanwhile.
    ///
    /// # Errors
    /// A tier that is full; the pace's.
    pub fn move_layer(
        &self,
        layer: usize,
        (to, bytes): (Tier, Bytes),
        pace: Option<&Pace<'_>>,
    ) -> Result<(), ServingError> {
        let blocks = bytes.0 as usize / self.size.block_bytes();
        let length = blocks * self.size.block_bytes();
        self.take(to, length as u64)?;
        let (moves, spare) = {
            let tables = &mut *self.tables();
            let places = &mut tables.places[layer];
            let moves = (places.blocks != blocks).then(|| places.packed(blocks));
            places.tier = to;
            let fits =
                |(tier, region): &(Tier, Region)| *tier == to && region.bytes().len() == length;
            let found = tables.spare.iter().position(fits);
            (moves, found.map(|index| tables.spare.swap_remove(index).1))
        };
        let mut target = match spare {
            Some(region) => region,
            None => Region::new(to.name(), Bytes(length as u64))?,
        };
        let mut memory = self.layer(layer);
        match moves {
            None => copy(memory.bytes(), target.bytes_mut(), pace)?,
            Some(moves) => {
                for (from, to) in moves {
                    let block = &memory.bytes()[self.place(from)];
                    target.bytes_mut()[self.place(to)].copy_from_slice(block);
                }
            }
        }
        let left = std::mem::replace(&mut *memory, target);
        drop(memory);
        let tables = &mut *self.tables();
        let from = match to {
            Tier::Device => Tier::Host,
            _ => Tier::Device,
        };
        tables.taken[from] -= left.bytes().len() as u64;
        // Memory of another size than all others is of no use any more.
        tables
            .spare
            .retain(|(_, region)| region.bytes().len() == length);
        tables.spare.push((from, left));
        Ok(())
    }

    fn place(&self, place: u32) -> Range<usize> {
        let bytes = self.size.block_bytes();
        place as usize * bytes..(place as usize + 1) * bytes
    }

    /// Takes so much of a tier.
    fn take(&self, tier: Tier, bytes: u64) -> Result<(), ServingError> {
        let limit = match tier {
            Tier::Device => self.size.device.0,
            _ => self.size.host.0,
        };
        let mut tables = self.tables();
        let room = limit.saturating_sub(tables.taken[tier]);
        if bytes > room {
            return Err(ServingError::TierFull {
                tier,
                needed: Bytes(bytes),
                room: Bytes(room),
            });
        }
        tables.taken[tier] += bytes;
        Ok(())
    }

    /// Calls `copy` with the filled part of each of a request's blocks, layer by layer, and its place among all, at the
    /// link's pace.
    fn each_part(
        &self,
        request: u32,
        tokens: usize,
        pace: Option<&Pace<'_>>,
        mut copy: impl FnMut(&mut [u8], Range<usize>),
    ) -> Result<(), ServingError> {
        let mut done = 0;
        for layer in 0..self.size.layers {
            let mut left = tokens * self.size.token_bytes;
            self.with_layer(layer, [request].into_iter(), |pages| {
                for page in &mut pages[0] {
                    let filled = left.min(page.len());
                    copy(&mut page[..filled], done..done + filled);
                    done += filled;
                    left -= filled;
                }
            });
            if let Some(pace) = pace {
                pace.keep(Bytes(done as u64))?;
            }
        }
        Ok(())
    }
}

impl Tables {
    /// Blocks that every layer has room for.
    fn free_blocks(&self) -> usize {
        let free = self.places.iter().map(|places| places.free.len());
        free.min().unwrap_or(0)
    }

    fn free(&mut self, request: u32) {
        for block in self.blocks.remove(&request).unwrap_or_default() {
            for places in &mut self.places {
                places.free.extend(places.of.remove(&block));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: CacheSize = CacheSize {
        layers: 2,
        device_layers: 2,
        blocks: 4,
        block_tokens: 3,
        token_bytes: 8,
        device: Bytes(192),
        host: Bytes(160),
    };

    /// Writes, or checks, a value in each token of a request.
    fn each_token(cache: &PagedCache, request: u32, mut see: impl FnMut(usize, usize, &mut u8)) {
        for layer in 0..SIZE.layers {
            cache.with_layer(layer, [request].into_iter(), |pages| {
                let tokens = pages[0]
                    .iter_mut()
                    .flat_map(|page| page.chunks_exact_mut(8));
                tokens
                    .enumerate()
                    .for_each(|(at, token)| see(layer, at, &mut token[0]));
            });
        }
    }

    fn value(layer: usize, at: usize) -> u8 {
        (10 * layer + at + 1) as u8
    }

    fn assert_whole(cache: &PagedCache, request: u32, tokens: usize) {
        let mut seen = 0;
        each_token(cache, request, |layer, at, byte| {
            if at < tokens {
                assert_eq!(*byte, value(layer, at));
                seen += 1;
            }
        });
        assert_eq!(seen, SIZE.layers * tokens);
    }

    #[test]
    fn moved_bytes_come_back() {
        let cache = PagedCache::new(SIZE).unwrap();
        cache.grow(7, 5).unwrap();
        each_token(&cache, 7, |layer, at, byte| *byte = value(layer, at));
        cache.move_out(7, 5, None).unwrap();
        cache.grow(8, 1).unwrap();
        each_token(&cache, 8, |_, _, byte| *byte = 99);
        cache.move_in(7, None).unwrap();
        assert_whole(&cache, 7, 5);
        cache.release(7);
        cache.release(8);
        assert_eq!(cache.free_blocks(), SIZE.blocks);
    }

    #[test]
    fn layers_that_move_and_change_their_size_keep_what_they_hold() {
        let size = CacheSize {
            host: Bytes(1000),
            ..SIZE
        };
        let cache = PagedCache::new(size).unwrap();
        cache.grow(1, 3).unwrap();
        cache.grow(7, 5).unwrap();
        each_token(&cache, 7, |layer, at, byte| *byte = value(layer, at));
        cache.release(1);
        let [small, large] = [3 * 24, 5 * 24].map(Bytes);
        for bytes in [Bytes(96), small, large] {
            for tier in [Tier::Host, Tier::Device] {
                cache
                    .move_layer(1, (tier, bytes), None)
                    .unwrap_or_else(|error| {
                        // Two layers of 4 and 5 blocks are more than the device has.
                        assert_eq!((tier, bytes), (Tier::Device, large), "{error}");
                    });
                assert_whole(&cache, 7, 5);
            }
        }
        // Room is what the smallest layer has.
        assert_eq!(cache.free_blocks(), 2);
    }

    #[test]
    fn a_layer_comes_only_when_another_has_left_it_room() {
        let size = CacheSize {
            device_layers: 1,
            device: Bytes(96),
            host: Bytes(1000),
            ..SIZE
        };
        let cache = PagedCache::new(size).unwrap();
        cache.grow(7, 5).unwrap();
        each_token(&cache, 7, |layer, at, byte| *byte = value(layer, at));
        let smaller = (Tier::Device, Bytes(48));
        let said = cache.move_layer(1, smaller, None).unwrap_err().to_string();
        assert!(said.contains("device, which has room for 0 B"), "{said}");
        cache.move_layer(0, (Tier::Host, Bytes(48)), None).unwrap();
        cache.move_layer(1, smaller, None).unwrap();
        cache.move_layer(0, smaller, None).unwrap();
        assert_whole(&cache, 7, 5);
        assert_eq!(cache.free_blocks(), 0);
    }

    #[test]
    fn more_than_there_is_is_refused_by_name() {
        let cache = PagedCache::new(SIZE).unwrap();
        cache.grow(1, 12).unwrap();
        let said = cache.grow(2, 1).unwrap_err().to_string();
        assert!(said.contains("request 2"), "{said}");
        let said = cache.move_out(1, 12, None).unwrap_err().to_string();
        assert!(said.contains("host"), "{said}");
        cache.move_out(1, 9, None).unwrap();
        cache.grow(2, 10).unwrap();
        let said = cache.move_in(1, None).unwrap_err().to_string();
        assert!(said.contains("request 1 needs 3 blocks"), "{said}");
    }
}
