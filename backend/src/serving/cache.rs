//! The paged KV cache of a serving system where the device is emulated: blocks of a few tokens in each layer, and what was
//! moved to the host.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;

use super::error::ServingError;
use super::tables::{CacheSize, Tables};
use crate::tiers::{Pace, Region, TierError, copy};

/// What changes.
#[derive(Debug)]
struct State {
    tables: Tables,
    /// By request, what lies on the host: tokens, then all layers' keys and values.
    away: HashMap<u32, (usize, Vec<u8>)>,
    /// Memory of layers that were moved, for the next of the same size.
    spare: Vec<(Tier, Region)>,
}

/// The cache.
#[derive(Debug)]
pub struct PagedCache {
    size: CacheSize,
    /// By layer, all its blocks.
    memory: Vec<Mutex<Region>>,
    state: Mutex<State>,
}

/// The blocks at some places of a memory, each of which is there once. Takes time by these, not by all that the memory has.
fn cut<'m>(
    memory: &'m mut [u8],
    block_bytes: usize,
    places: &[Vec<usize>],
) -> Vec<Vec<&'m mut [u8]>> {
    let owners = places.iter().enumerate();
    let mut ascending: Vec<(usize, usize, usize)> = owners
        .flat_map(|(owner, places)| {
            let places = places.iter().enumerate();
            places.map(move |(nth, place)| (*place, owner, nth))
        })
        .collect();
    ascending.sort_unstable();
    let of_owner = |places: &Vec<usize>| places.iter().map(|_| <&mut [u8]>::default()).collect();
    let mut pages: Vec<Vec<&mut [u8]>> = places.iter().map(of_owner).collect();
    let (mut rest, mut at) = (memory, 0);
    for (place, owner, nth) in ascending {
        let (_, behind) = rest.split_at_mut((place - at) * block_bytes);
        let (block, behind) = behind.split_at_mut(block_bytes);
        pages[owner][nth] = block;
        (rest, at) = (behind, place + 1);
    }
    pages
}

impl PagedCache {
    /// An empty cache. All of its memory is taken at once.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn new(size: CacheSize) -> Result<PagedCache, TierError> {
        let bytes = Bytes((size.blocks * size.block_bytes()) as u64);
        let memory = |layer| Region::new(size.tier(layer).name(), bytes).map(Mutex::new);
        Ok(PagedCache {
            memory: (0..size.layers).map(memory).collect::<Result<_, _>>()?,
            state: Mutex::new(State {
                tables: Tables::new(size),
                away: HashMap::new(),
                spare: Vec::new(),
            }),
            size,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn layer(&self, layer: usize) -> MutexGuard<'_, Region> {
        let memory = self.memory[layer].lock();
        memory.unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks that nobody has.
    #[cfg(test)]
    pub fn free_blocks(&self) -> usize {
        self.state().tables.free_blocks()
    }

    /// Gives a request the blocks that so many tokens need, beside those that it has.
    ///
    /// # Errors
    /// [`ServingError::CacheFull`].
    pub fn grow(&self, request: u32, tokens: usize) -> Result<(), ServingError> {
        self.state().tables.grow(request, tokens)
    }

    /// Takes back what a request has, on the device and on the host.
    pub fn release(&self, request: u32) {
        let state = &mut *self.state();
        state.tables.free(request);
        if let Some((_, bytes)) = state.away.remove(&request) {
            state.tables.give(Tier::Host, bytes.len() as u64);
        }
    }

    /// Lets `compute` have the blocks of some requests in a layer, in the order of positions.
    pub fn with_layer<T>(
        &self,
        layer: usize,
        requests: impl Iterator<Item = u32>,
        compute: impl FnOnce(&mut [Vec<&mut [u8]>]) -> T,
    ) -> T {
        let state = self.state();
        let mut region = self.layer(layer);
        let places = requests.map(|request| state.tables.places(layer, request).collect());
        let places: Vec<Vec<usize>> = places.collect();
        drop(state);
        let mut pages = cut(region.bytes_mut(), self.size.block_bytes(), &places);
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
        self.state().tables.take(Tier::Host, bytes as u64)?;
        let mut away = vec![0; bytes];
        self.each_part(request, tokens, pace, |part, place| {
            away[place].copy_from_slice(part);
        })?;
        let state = &mut *self.state();
        state.away.insert(request, (tokens, away));
        state.tables.free(request);
        Ok(())
    }

    /// Moves what [`PagedCache::move_out`] took back to blocks of the device.
    ///
    /// # Errors
    /// [`ServingError::CacheFull`], [`ServingError::NotAway`]; the pace's.
    pub fn move_in(&self, request: u32, pace: Option<&Pace<'_>>) -> Result<(), ServingError> {
        let away = self.state().away.remove(&request);
        let (tokens, away) = away.ok_or(ServingError::NotAway { request })?;
        self.grow(request, tokens)?;
        self.each_part(request, tokens, pace, |part, place| {
            part.copy_from_slice(&away[place]);
        })?;
        self.state().tables.give(Tier::Host, away.len() as u64);
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
        let (moves, spare) = {
            let state = &mut *self.state();
            state.tables.take(to, length as u64)?;
            let moves = state.tables.relocate(layer, to, blocks);
            let fits =
                |(tier, region): &(Tier, Region)| *tier == to && region.bytes().len() == length;
            let found = state.spare.iter().position(fits);
            (moves, found.map(|index| state.spare.swap_remove(index).1))
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
        let state = &mut *self.state();
        let from = match to {
            Tier::Device => Tier::Host,
            _ => Tier::Device,
        };
        state.tables.give(from, left.bytes().len() as u64);
        // Memory of another size than all others is of no use any more.
        state
            .spare
            .retain(|(_, region)| region.bytes().len() == length);
        state.spare.push((from, left));
        Ok(())
    }

    fn place(&self, place: u32) -> Range<usize> {
        let bytes = self.size.block_bytes();
        place as usize * bytes..(place as usize + 1) * bytes
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
    fn blocks_are_cut_out_wherever_they_lie() {
        let mut memory: Vec<u8> = (0..12).collect();
        let places = [vec![5, 0], vec![], vec![2, 4, 1]];
        let pages = cut(&mut memory, 2, &places);
        let expected: [&[[u8; 2]]; 3] = [&[[10, 11], [0, 1]], &[], &[[4, 5], [8, 9], [2, 3]]];
        assert_eq!(pages, expected);
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
