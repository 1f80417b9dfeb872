//! The paged KV cache on a card, and what went to page-locked memory of the host.
//!
//! Memory is cut into blocks, and a layer has some of these, which need not lie side by side: so layers that move and change
//! their size leave no gaps that nobody can use. What a move does to tables is done when it is given to its stream; memory
//! that it reads is free when it has ended.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_core::program::TaskId;
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;

use super::before_tasks;
use super::copies::{Part, joined};
use super::pool::{HostPool, Pool};
use crate::cpu::CpuError;
use crate::cpu::error::TaskError;
use crate::cuda::{Card, CopyRows};
use crate::serving::ServingError;
use crate::serving::tables::{CacheSize, Tables};

/// What is page-locked before requests come, for caches that have to leave the card: the card's part of the cache, but at most this,
/// and one part in so many of the host's.
const HOST_MOST: usize = 1 << 30;
const HOST_SHARE: usize = 8;

/// The cache.
#[derive(Debug)]
pub(super) struct CardCache {
    size: CacheSize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tables: Tables,
    /// By layer, where the blocks of its memory are.
    layers: Vec<Vec<u64>>,
    device: Pool,
    host: HostPool,
    /// By request, what lies on the host: tokens, and a block of memory for each of its blocks and each layer of this.
    away: HashMap<u32, (usize, Vec<u64>)>,
    /// What moves that have not ended read: where, and a tier's blocks.
    read: HashMap<TaskId, (Tier, Vec<u64>)>,
}

impl CardCache {
    /// An empty one, in memory of the card from an address on.
    ///
    /// # Errors
    /// Memory of the host that cannot be had.
    pub(super) fn new(card: &dyn Card, size: CacheSize, base: u64) -> Result<Self, CpuError> {
        let unit = size.block_bytes();
        let (mut device, mut host) = (Pool::new(unit), HostPool::new(unit, size.host));
        device.give(device.blocks(base, size.device.0 as usize / unit));
        let layers = (0..size.layers).map(|layer| match size.tier(layer) {
            Tier::Device => Ok(device.take(size.blocks)),
            _ => host.take(card, size.blocks),
        });
        let layers: Result<Vec<_>, TaskError> = layers.collect();
        let first = (size.host.0 as usize / HOST_SHARE).min(size.bytes().0 as usize);
        if layers.is_ok() {
            // Where as much cannot be had, less may do once a cache has to leave.
            let _ = host.prepare(card, first.min(HOST_MOST));
        }
        // Before the memory goes whose pages were locked.
        let layers = layers.map_err(|error| {
            card.close();
            before_tasks(error)
        })?;
        Ok(CardCache {
            state: Mutex::new(State {
                tables: Tables::new(size),
                layers,
                device,
                host,
                away: HashMap::new(),
                read: HashMap::new(),
            }),
            size,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes from a token's keys and values to the next one's.
    pub(super) fn record_bytes(&self) -> usize {
        self.size.token_bytes
    }

    /// Tokens a block.
    pub(super) fn block_tokens(&self) -> usize {
        self.size.block_tokens
    }

    /// Gives a request the blocks that so many tokens need, beside those that it has.
    pub(super) fn grow(&self, request: u32, tokens: usize) -> Result<(), ServingError> {
        self.state().tables.grow(request, tokens)
    }

    /// Takes back what a request has, on the card and on the host. Nothing moves of it.
    pub(super) fn release(&self, request: u32) {
        let state = &mut *self.state();
        state.tables.free(request);
        if let Some((_, blocks)) = state.away.remove(&request) {
            let bytes = blocks.len() * self.size.block_bytes();
            state.tables.give(Tier::Host, bytes as u64);
            state.host.give(blocks);
        }
    }

    /// Where the blocks of requests are in a layer, one request after another.
    pub(super) fn blocks(&self, layers: std::ops::Range<usize>, requests: &[u32]) -> Vec<u64> {
        let state = self.state();
        let mut all = Vec::new();
        let mut places: Vec<usize> = Vec::new();
        for layer in layers.clone() {
            // Layers that have never got another size have their blocks in the same places.
            if layer == layers.start || !state.tables.are_alike(layer - 1, layer) {
                let of = |request: &u32| state.tables.places(layer, *request);
                places.clear();
                places.extend(requests.iter().flat_map(of));
            }
            let memory = &state.layers[layer];
            all.extend(places.iter().map(|place| memory[*place]));
        }
        all
    }

    /// How many blocks each of some requests has.
    pub(super) fn counts(&self, requests: &[u32]) -> Vec<usize> {
        let state = self.state();
        let count = |request: &u32| state.tables.count(*request);
        requests.iter().map(count).collect()
    }

    /// What brings a request's keys and values of its first `tokens` tokens to the host. Its blocks are free for whoever comes
    /// behind that.
    pub(super) fn move_out(
        &self,
        card: &dyn Card,
        (request, tokens): (u32, usize),
    ) -> Result<Vec<CopyRows>, TaskError> {
        let state = &mut *self.state();
        let count = self.size.blocks_of(tokens) * self.size.layers;
        let bytes = count * self.size.block_bytes();
        state.tables.take(Tier::Host, bytes as u64)?;
        let away = state.host.take(card, count)?;
        let parts = self.parts(state, request, tokens);
        let parts = parts.zip(&away).map(|((from, bytes), to)| Part {
            to: *to,
            from,
            bytes,
        });
        let copies = joined(parts, |address| state.host.region_of(address));
        state.away.insert(request, (tokens, away));
        state.tables.free(request);
        Ok(copies)
    }

    /// What brings back what [`CardCache::move_out`] took away.
    pub(super) fn move_in(&self, task: TaskId, request: u32) -> Result<Vec<CopyRows>, TaskError> {
        let state = &mut *self.state();
        let away = state.away.remove(&request);
        let (tokens, away) = away.ok_or(ServingError::NotAway { request })?;
        state.tables.grow(request, tokens)?;
        let parts = self.parts(state, request, tokens);
        let parts = parts.zip(&away).map(|((to, bytes), from)| Part {
            to,
            from: *from,
            bytes,
        });
        let copies = joined(parts, |address| state.host.region_of(address));
        state.read.insert(task, (Tier::Host, away));
        Ok(copies)
    }

    /// Where the filled part of each of a request's blocks is in each layer, and its bytes.
    fn parts(
        &self,
        state: &State,
        request: u32,
        tokens: usize,
    ) -> impl Iterator<Item = (u64, usize)> {
        let size = self.size;
        let places = (0..size.layers).map(|layer| {
            let places = state.tables.places(layer, request);
            let memory = &state.layers[layer];
            places.map(|place| memory[place]).collect()
        });
        let places: Vec<Vec<u64>> = places.collect();
        // A block in all layers, then the next: layers lie equally far apart.
        (0..size.blocks_of(tokens)).flat_map(move |block| {
            let filled = size.block_tokens.min(tokens - block * size.block_tokens);
            let of_block: Vec<u64> = places.iter().map(|layer| layer[block]).collect();
            let bytes = filled * size.token_bytes;
            of_block.into_iter().map(move |address| (address, bytes))
        })
    }

    /// What brings a layer's cache of all requests to another tier, where it has so many bytes from now on. Nobody computes the
    /// layer meanwhile.
    pub(super) fn move_layer(
        &self,
        card: &dyn Card,
        task: TaskId,
        (layer, to, bytes): (usize, Tier, Bytes),
    ) -> Result<Vec<CopyRows>, TaskError> {
        let unit = self.size.block_bytes();
        let count = bytes.0 as usize / unit;
        let state = &mut *self.state();
        state.tables.take(to, (count * unit) as u64)?;
        let (from, target) = match to {
            Tier::Device => (Tier::Host, state.device.take(count)),
            _ => (Tier::Device, state.host.take(card, count)?),
        };
        let part = |[from, to]: [u64; 2]| Part {
            to,
            from,
            bytes: unit,
        };
        let memory = &state.layers[layer];
        let parts: Vec<Part> = match state.tables.relocate(layer, to, count) {
            None => {
                let both = memory.iter().zip(&target);
                both.map(|(from, to)| part([*from, *to])).collect()
            }
            Some(mut moves) => {
                moves.sort_unstable();
                let places = moves.into_iter();
                let both = places.map(|(from, to)| [memory[from as usize], target[to as usize]]);
                both.map(part).collect()
            }
        };
        let copies = joined(parts, |address| state.host.region_of(address));
        let left = std::mem::replace(&mut state.layers[layer], target);
        state.read.insert(task, (from, left));
        Ok(copies)
    }

    /// A move has ended: what it read is free.
    pub(super) fn moved(&self, task: TaskId) {
        let state = &mut *self.state();
        let Some((tier, blocks)) = state.read.remove(&task) else {
            return;
        };
        let bytes = blocks.len() * self.size.block_bytes();
        state.tables.give(tier, bytes as u64);
        match tier {
            Tier::Device => state.device.give(blocks),
            _ => state.host.give(blocks),
        }
    }
}
