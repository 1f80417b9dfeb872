//! The executor of iterations: the CPU executor's scheduler and workers over a paged cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_core::compression::Kept;
use plimsoll_core::executor::{ExecutionError, Executor, Until};
use plimsoll_core::machine::Machine;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::program::Program;
use plimsoll_core::serve::Limits;
use plimsoll_core::trace::Trace;
use plimsoll_core::traffic::Background;
use plimsoll_core::units::{Bytes, Seconds};

use super::cache::PagedCache;
use super::engine::Engine;
use super::resident::Resident;
use super::tables::CacheSize;
use super::texts::Texts;
use super::traffic;
use crate::cpu::scheduler::Scheduler;
use crate::cpu::threads::{Doers, Threads};
use crate::cpu::worker::Cores;
use crate::cpu::{CpuError, CpuOptions};
use crate::cuda::executor::serving::{self, OnCard};
use crate::decoder::Decoder;
use crate::weights::WeightSource;

/// What is served, and how much memory there is for it.
#[derive(Debug, Clone)]
pub struct Served {
    /// The model, whose weights all lie on the device.
    pub model: ModelSpec,
    /// What weights, cache and activations are stored as: weights may be in 4 bits.
    pub kept: Kept,
    /// The device's part of the KV cache.
    pub kv: Bytes,
    /// Layers whose cache is there at first; the others' are on the host, of the same size.
    pub device_layers: u16,
    /// Tokens a block.
    pub block_tokens: u32,
    /// What the host has room for of caches that had to leave.
    pub host: Bytes,
    /// What an iteration computes at most. A GPU has room for as much; an emulated device takes what it needs.
    pub most: Limits,
    /// What others carry over the links meanwhile. Moves have the rest of a link's stated rate; a link without one has none to
    /// share, and carries both as fast as memory goes.
    pub traffic: Background,
}

/// What a driver may round up by, in all, where [`Served::beside`], the cache and weights are taken on a GPU.
pub const ROUNDED: Bytes = Bytes(64 << 20);

impl Served {
    /// What lies on a GPU beside the checkpoint's weights and the cache: activations, tables, logits, and a head that is the embedding
    /// once more. An emulated device has them elsewhere.
    ///
    /// # Errors
    /// A model that cannot be computed.
    pub fn beside(&self, options: &CpuOptions) -> Result<Bytes, CpuError> {
        let Some(card) = &options.card else {
            return Ok(Bytes::ZERO);
        };
        let decoder = self.decoder(options)?;
        let size = cache_size(self, decoder.token_bytes());
        let stored = Resident::bytes(&self.model, self.kept);
        let twice = stored.saturating_sub(self.kept.weights(&self.model));
        Ok(twice + serving::beside(&**card, self, &size, &decoder))
    }

    fn decoder(&self, options: &CpuOptions) -> Result<Decoder, CpuError> {
        let Kept { dtype, compression } = self.kept;
        Ok(Decoder::new(
            &self.model,
            dtype,
            compression,
            options.device_threads,
        )?)
    }
}

/// What computes.
enum Device {
    Emulated(Arc<Engine>),
    Card(Arc<OnCard>),
}

/// Executes the iterations of a serving system on this machine: real prompts, real caches, real moves. The device is emulated by
/// the CPU, or a GPU ([`CpuOptions::card`]).
///
/// Pieces come with a [roster](plimsoll_core::roster::Roster).
pub struct ServingExecutor {
    device: Device,
    texts: Arc<Texts>,
    threads: Threads,
    /// Bytes of traffic.
    carried: Arc<AtomicU64>,
}

impl ServingExecutor {
    /// Reads the weights, takes the cache's memory and starts the threads of the machine's resources. `prompts` are
    /// the requests', in the order of their numbers.
    ///
    /// # Errors
    /// A model that cannot be computed; weights, memory or threads that cannot be had; what the GPU says, and
    /// [`CpuError::NotOnGpus`] for what is not served on GPUs yet.
    pub fn new(
        machine: &Machine,
        served: &Served,
        prompts: Vec<Vec<u32>>,
        source: &dyn WeightSource,
        options: &CpuOptions,
    ) -> Result<ServingExecutor, CpuError> {
        let built = ServingExecutor::build(machine, served, prompts, source, options);
        if let (Err(_), Some(card)) = (&built, &options.card) {
            card.close();
        }
        built
    }

    fn build(
        machine: &Machine,
        served: &Served,
        prompts: Vec<Vec<u32>>,
        source: &dyn WeightSource,
        options: &CpuOptions,
    ) -> Result<ServingExecutor, CpuError> {
        let decoder = served.decoder(options)?.with_dispatch(&options.dispatch);
        let size = cache_size(served, decoder.token_bytes());
        let texts = Arc::new(Texts::new(prompts));
        let threads = Threads::new(machine, options);
        let with = (decoder, Arc::clone(&texts));
        let device = match &options.card {
            None => {
                let clock = Arc::clone(threads.scheduler());
                let engine = emulated(served, size, (with, clock), (source, options))?;
                Device::Emulated(Arc::new(engine))
            }
            Some(card) => {
                serving::open(&**card, machine, served, options)?;
                let on_card = OnCard::new(card, served, size, with, (source, options))?;
                Device::Card(Arc::new(on_card))
            }
        };
        let mut executor = ServingExecutor {
            threads,
            carried: Arc::default(),
            device,
            texts,
        };
        executor.start(machine, &served.traffic, options)?;
        Ok(executor)
    }

    /// Starts all threads.
    fn start(
        &mut self,
        machine: &Machine,
        traffic: &Background,
        options: &CpuOptions,
    ) -> Result<(), CpuError> {
        let cores = &Cores::of(options);
        let doers = match &self.device {
            Device::Emulated(engine) => Doers {
                host: Arc::clone(engine) as _,
                streams: None,
                cores,
            },
            Device::Card(on_card) => Doers {
                host: Arc::clone(on_card) as _,
                streams: Some(Arc::clone(on_card) as _),
                cores,
            },
        };
        self.threads.start(machine, &doers)?;
        let scheduler = Arc::clone(self.threads.scheduler());
        for it in &traffic.0 {
            let carried = (&self.carried, cores);
            traffic::start(it, &scheduler, carried, self.threads.handles())?;
        }
        Ok(())
    }

    /// What of the traffic was really carried so far.
    pub fn carried(&self) -> Bytes {
        Bytes(self.carried.load(Ordering::Relaxed))
    }

    /// How many tokens came out so far.
    pub fn tokens(&self) -> u64 {
        self.texts.count()
    }

    /// What came out for each request so far.
    pub fn generated(&self) -> Vec<Vec<u32>> {
        self.texts.generated()
    }
}

/// How large the cache is.
fn cache_size(served: &Served, token_bytes: usize) -> CacheSize {
    let block_tokens = served.block_tokens as usize;
    let layer = served.kv.0 as usize / usize::from(served.device_layers.max(1));
    CacheSize {
        layers: served.model.num_hidden_layers as usize,
        device_layers: served.device_layers.into(),
        blocks: layer / (block_tokens * token_bytes),
        block_tokens,
        token_bytes,
        device: served.kv,
        host: served.host,
    }
}

/// What computes on the CPU.
fn emulated(
    served: &Served,
    size: CacheSize,
    ((decoder, texts), clock): ((Decoder, Arc<Texts>), Arc<Scheduler>),
    (source, options): (&dyn WeightSource, &CpuOptions),
) -> Result<Engine, CpuError> {
    let Served { model, kept, .. } = served;
    let device = Resident::bytes(model, *kept) + size.bytes();
    // The host's part is taken as caches leave, up to its bound.
    crate::tiers::check_memory(device, Bytes::ZERO)?;
    Ok(Engine {
        weights: Resident::load(model, *kept, source)?,
        cache: PagedCache::new(size)?,
        model: model.clone(),
        decoder,
        throttles: options.throttles,
        traffic: served.traffic.clone(),
        clock,
        texts,
        flow: std::sync::Mutex::default(),
    })
}

impl Executor for ServingExecutor {
    fn submit(&mut self, piece: Arc<Program>) -> Result<(), ExecutionError> {
        self.threads.scheduler().check()?;
        if let Some(roster) = piece.roster() {
            // The iteration before has ended: the controller waited for it.
            roster.left.iter().for_each(|request| match &self.device {
                Device::Emulated(engine) => engine.cache.release(*request),
                Device::Card(on_card) => on_card.release(*request),
            });
        }
        self.threads.submit(&piece);
        Ok(())
    }

    fn wait(&mut self, until: Until) -> Result<Seconds, ExecutionError> {
        let device = &self.device;
        self.threads.wait(until, || match device {
            Device::Emulated(_) => Ok(()),
            Device::Card(on_card) => on_card.start_clock(),
        })
    }

    fn forget(&mut self, piece: &Program) {
        self.threads.forget(piece);
    }

    fn trace(&self) -> &Trace {
        self.threads.trace()
    }
}

impl Drop for ServingExecutor {
    fn drop(&mut self) {
        self.threads.join();
        // Before the host's memory goes, which the card has locked.
        if let Device::Card(on_card) = &self.device {
            on_card.close();
        }
    }
}
