//! The executor of iterations: the CPU executor's scheduler and workers over a paged cache.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::executor::{ExecutionError, Executor, Until};
use plimsoll_core::machine::Machine;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::program::Program;
use plimsoll_core::trace::Trace;
use plimsoll_core::traffic::Background;
use plimsoll_core::units::{Bytes, Seconds};

use super::cache::{CacheSize, PagedCache};
use super::engine::{Engine, Text};
use super::resident::Resident;
use super::traffic;
use crate::cpu::scheduler::Scheduler;
use crate::cpu::worker::{self, Work};
use crate::cpu::{CpuError, CpuOptions};
use crate::decoder::Decoder;
use crate::weights::WeightSource;

/// What is served, and how much memory there is for it.
#[derive(Debug, Clone)]
pub struct Served {
    /// The model, whose weights all lie on the device.
    pub model: ModelSpec,
    /// What weights, cache and activations are stored as.
    pub dtype: Dtype,
    /// The device's part of the KV cache.
    pub kv: Bytes,
    /// Layers whose cache is there at first; the others' are on the host, of the same size.
    pub device_layers: u16,
    /// Tokens a block.
    pub block_tokens: u32,
    /// What the host has room for of caches that had to leave.
    pub host: Bytes,
    /// What others carry over the links meanwhile. Moves have the rest of a link's stated rate; a link without one has none to
    /// share, and carries both as fast as memory goes.
    pub traffic: Background,
}

/// Executes the iterations of a serving system on this machine's CPU: real prompts, real caches, real moves.
///
/// Pieces come with a [roster](plimsoll_core::roster::Roster).
pub struct ServingExecutor {
    engine: Arc<Engine>,
    scheduler: Arc<Scheduler>,
    workers: Vec<JoinHandle<()>>,
    /// Bytes of traffic.
    carried: Arc<AtomicU64>,
    trace: Trace,
}

impl ServingExecutor {
    /// Reads the weights, takes the cache's memory and starts a thread for each resource of the machine. `prompts` are
    /// the requests', in the order of their numbers.
    ///
    /// # Errors
    /// A model that cannot be computed; weights, memory or threads that cannot be had.
    pub fn new(
        machine: &Machine,
        served: &Served,
        prompts: Vec<Vec<u32>>,
        source: &dyn WeightSource,
        options: &CpuOptions,
    ) -> Result<ServingExecutor, CpuError> {
        let Served { model, dtype, .. } = served;
        let none = Compression::default();
        let decoder = Decoder::new(model, *dtype, none, options.device_threads)?;
        let (block_tokens, token_bytes) = (served.block_tokens as usize, decoder.token_bytes());
        let layer = served.kv.0 as usize / usize::from(served.device_layers.max(1));
        let size = CacheSize {
            layers: model.num_hidden_layers as usize,
            device_layers: served.device_layers.into(),
            blocks: layer / (block_tokens * token_bytes),
            block_tokens,
            token_bytes,
            device: served.kv,
            host: served.host,
        };
        let device = Resident::bytes(model, *dtype) + size.bytes();
        // The host's part is taken as caches leave, up to its bound.
        crate::tiers::check_memory(device, Bytes::ZERO)?;
        let texts = prompts.into_iter().map(|tokens| Text {
            prompt_len: tokens.len(),
            tokens,
        });
        let interrupt = Arc::clone(&options.interrupt);
        let scheduler = Arc::new(Scheduler::new(machine, interrupt, 0));
        let engine = Arc::new(Engine {
            weights: Resident::load(model, *dtype, source)?,
            cache: PagedCache::new(size)?,
            model: model.clone(),
            decoder,
            throttles: options.throttles,
            traffic: served.traffic.clone(),
            clock: Arc::clone(&scheduler),
            texts: std::sync::RwLock::new(texts.collect()),
            flow: std::sync::Mutex::default(),
        });
        let work: Arc<dyn Work> = Arc::clone(&engine) as Arc<dyn Work>;
        let mut executor = ServingExecutor {
            workers: Vec::new(),
            carried: Arc::default(),
            trace: Trace::default(),
            engine,
            scheduler,
        };
        let with = (&work, &executor.scheduler);
        let cores = worker::Cores::of(options);
        worker::start(machine, with, (&cores, 0), &mut executor.workers)?;
        for it in &served.traffic.0 {
            let carried = (&executor.carried, &cores);
            traffic::start(it, &executor.scheduler, carried, &mut executor.workers)?;
        }
        Ok(executor)
    }

    /// What of the traffic was really carried so far.
    pub fn carried(&self) -> Bytes {
        Bytes(self.carried.load(Ordering::Relaxed))
    }

    /// What came out for each request so far.
    pub fn generated(&self) -> Vec<Vec<u32>> {
        let texts = self.engine.texts.read();
        let texts = texts.unwrap_or_else(PoisonError::into_inner);
        texts
            .iter()
            .map(|text| text.tokens[text.prompt_len..].to_vec())
            .collect()
    }
}

impl Executor for ServingExecutor {
    fn submit(&mut self, piece: Arc<Program>) -> Result<(), ExecutionError> {
        self.scheduler.check()?;
        if let Some(roster) = piece.roster() {
            // The iteration before has ended: the controller waited for it.
            roster
                .left
                .iter()
                .for_each(|request| self.engine.cache.release(*request));
        }
        self.trace.extend_to(piece.end_task());
        self.scheduler.submit(&piece);
        Ok(())
    }

    fn wait(&mut self, until: Until) -> Result<Seconds, ExecutionError> {
        self.scheduler.wait(until, &mut self.trace)
    }

    fn forget(&mut self, piece: &Program) {
        self.scheduler.forget(piece, &mut self.trace);
    }

    fn trace(&self) -> &Trace {
        &self.trace
    }
}

impl Drop for ServingExecutor {
    fn drop(&mut self) {
        self.scheduler.close();
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics; one of its own has been printed.
            let _ = worker.join();
        }
    }
}
