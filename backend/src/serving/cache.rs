//! The paged KV cache of a serving system: blocks of a few tokens on the device, and what was moved to the host.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_core::units::Bytes;

use super::error::ServingError;
use crate::tiers::{Pace, Region, TierError};

/// How large a cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSize {
    /// Layers of the model.
    pub layers: usize,
    /// Blocks on the device, in each layer.
    pub blocks: usize,
    /// Tokens a block.
    pub block_tokens: usize,
    /// Bytes of a token's keys and values in a layer.
    pub token_bytes: usize,
    /// What the host has room for.
    pub host: Bytes,
}

impl CacheSize {
    fn block_bytes(&self) -> usize {
        self.block_tokens * self.token_bytes
    }

    /// What the device's part takes.
    pub fn bytes(&self) -> Bytes {
        Bytes((self.layers * self.blocks * self.block_bytes()) as u64)
    }

    /// Blocks that so many tokens take.
    pub fn blocks_of(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens)
    }
}

/// Which block is whose.
#[derive(Debug, Default)]
struct Tables {
    /// By request, its blocks in the order of positions: the same in each layer.
    blocks: HashMap<u32, Vec<u32>>,
    free: Vec<u32>,
    /// By request, what lies on the host: tokens, then all layers' keys and values.
    away: HashMap<u32, (usize, Vec<u8>)>,
    away_bytes: usize,
}

/// The cache.
#[derive(Debug)]
pub struct PagedCache {
    size: CacheSize,
    /// By layer, all its blocks.
    layers: Vec<Mutex<Region>>,
    tables: Mutex<Tables>,
}

impl PagedCache {
    /// An empty cache. All of its memory on the device is taken at once.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn new(size: CacheSize) -> Result<PagedCache, TierError> {
        let bytes = Bytes((size.blocks * size.block_bytes()) as u64);
        let layer = |_| Region::new("device", bytes).map(Mutex::new);
        Ok(PagedCache {
            layers: (0..size.layers).map(layer).collect::<Result<_, _>>()?,
            tables: Mutex::new(Tables {
                free: (0..size.blocks as u32).rev().collect(),
                ..Tables::default()
            }),
            size,
        })
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn layer(&self, layer: usize) -> MutexGuard<'_, Region> {
        self.layers[layer]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks that nobody has.
    #[cfg(test)]
    pub fn free_blocks(&self) -> usize {
        self.tables().free.len()
    }

    /// Gives a request the blocks that so many tokens need, beside those that it has.
    ///
    /// # Errors
    /// [`ServingError::CacheFull`].
    pub fn grow(&self, request: u32, tokens: usize) -> Result<(), ServingError> {
        let needed = self.size.blocks_of(tokens);
        let tables = &mut *self.tables();
        let own = tables.blocks.entry(request).or_default();
        let more = needed.saturating_sub(own.len());
        if more > tables.free.len() {
            return Err(ServingError::CacheFull {
                request,
                needed: more,
                free: tables.free.len(),
            });
        }
        own.extend(tables.free.drain(tables.free.len() - more..).rev());
        Ok(())
    }

    /// Takes back what a request has, on the device and on the host.
    pub fn release(&self, request: u32) {
        let tables = &mut *self.tables();
        tables
            .free
            .extend(tables.blocks.remove(&request).unwrap_or_default());
        if let Some((_, bytes)) = tables.away.remove(&request) {
            tables.away_bytes -= bytes.len();
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
        let mut pages: Vec<Vec<&mut [u8]>> = requests
            .map(|request| {
                let own = tables.blocks.get(&request).into_iter().flatten();
                // A block is one request's, so each is there once.
                let own = own.filter_map(|block| blocks[*block as usize].take());
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
        {
            let mut tables = self.tables();
            let room = self.size.host.0.saturating_sub(tables.away_bytes as u64);
            if bytes as u64 > room {
                return Err(ServingError::HostFull {
                    request,
                    needed: Bytes(bytes as u64),
                    room: Bytes(room),
                });
            }
            tables.away_bytes += bytes;
        }
        let mut away = vec![0; bytes];
        self.each_part(request, tokens, pace, |part, place| {
            away[place].copy_from_slice(part);
        })?;
        let tables = &mut *self.tables();
        tables.away.insert(request, (tokens, away));
        tables
            .free
            .extend(tables.blocks.remove(&request).unwrap_or_default());
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
        self.tables().away_bytes -= away.len();
        Ok(())
    }

    /// Calls `copy` with the filled part of each of a request's blocks, layer by layer, and its place among all, at the
    /// link's pace.
    fn each_part(
        &self,
        request: u32,
        tokens: usize,
        pace: Option<&Pace<'_>>,
        mut copy: impl FnMut(&mut [u8], std::ops::Range<usize>),
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
        blocks: 4,
        block_tokens: 3,
        token_bytes: 8,
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

    #[test]
    fn moved_bytes_come_back() {
        let cache = PagedCache::new(SIZE).unwrap();
        cache.grow(7, 5).unwrap();
        let value = |layer: usize, at: usize| (10 * layer + at + 1) as u8;
        each_token(&cache, 7, |layer, at, byte| *byte = value(layer, at));
        cache.move_out(7, 5, None).unwrap();
        cache.grow(8, 1).unwrap();
        each_token(&cache, 8, |_, _, byte| *byte = 99);
        cache.move_in(7, None).unwrap();
        each_token(&cache, 7, |layer, at, byte| {
            if at < 5 {
                assert_eq!(*byte, value(layer, at));
            }
        });
        cache.release(7);
        cache.release(8);
        assert_eq!(cache.free_blocks(), SIZE.blocks);
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
