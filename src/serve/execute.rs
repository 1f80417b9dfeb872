//! A trace of requests served for real, on this machine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_backend::cpu::{CpuError, CpuOptions};
use plimsoll_backend::serving::{Served, ServingExecutor};
use plimsoll_backend::weights::WeightSource;
use plimsoll_core::control::DriveError;
use plimsoll_core::executor::{ExecutionError, Executor, Times, Until};
use plimsoll_core::program::Program;
use plimsoll_core::serve::{Limits, Request, Shape};
use plimsoll_core::trace::Trace;
use plimsoll_core::units::{Bytes, Seconds};

use super::replay::{Replayed, Server};
use crate::files::random_tokens;

/// What came of a trace that was really served.
#[derive(Debug, Clone)]
pub struct Executed {
    /// As of a replay, by this machine's clock.
    pub replayed: Replayed,
    /// What came out for each request.
    pub generated: Vec<Vec<u32>>,
    /// What of the traffic was really carried.
    pub carried: Bytes,
}

/// Why it was not served.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The executor could not be made.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// It stopped.
    #[error(transparent)]
    Drive(#[from] DriveError),
}

/// How often somebody is told how far it is.
const TELL: Duration = Duration::from_millis(250);

/// The executor, and who wants to know how far it is.
struct Watched<'a> {
    executor: ServingExecutor,
    seen: Instant,
    see: &'a mut dyn FnMut(u64),
}

impl Executor for Watched<'_> {
    fn submit(&mut self, piece: Arc<Program>) -> Result<(), ExecutionError> {
        self.executor.submit(piece)
    }

    fn wait(&mut self, until: Until) -> Result<Seconds, ExecutionError> {
        let now = self.executor.wait(until)?;
        if self.seen.elapsed() >= TELL {
            self.seen = Instant::now();
            (self.see)(self.executor.tokens());
        }
        Ok(now)
    }

    fn forget(&mut self, piece: &Program) {
        self.executor.forget(piece);
    }

    fn trace(&self) -> &Trace {
        self.executor.trace()
    }

    fn times(&self) -> Option<Box<dyn Times>> {
        self.executor.times()
    }
}

impl Server {
    /// Serves a trace by the same scheduler as [`Server::replay`], with real arithmetic, a real cache and real moves, in
    /// real time. Prompts are of random tokens; answers are as long as the trace says, whatever the model would end. `see` hears
    /// now and then how many tokens came out so far.
    ///
    /// # Errors
    /// What cannot be had or computed here; an interruption.
    pub fn execute(
        &self,
        requests: &[Request],
        (source, seed): (&dyn WeightSource, u64),
        options: &CpuOptions,
        see: &mut dyn FnMut(u64),
    ) -> Result<Executed, ExecuteError> {
        let served = self.served(requests);
        let positions = self.model.max_position_embeddings;
        // Longer ones are refused, and nobody reads them.
        let lengths = requests.iter().map(|it| it.prompt_len.min(positions));
        let longest = lengths.clone().max().unwrap_or(0);
        let mut state = seed;
        let prompts = lengths
            .map(|length| random_tokens(&mut state, (length, longest), self.model.vocab_size))
            .collect();
        let executor = ServingExecutor::new(&self.machine(), &served, prompts, source, options)?;
        let mut executor = Watched {
            executor,
            seen: Instant::now(),
            see,
        };
        let replayed = self.serve(requests, &mut executor, true)?;
        let executor = executor.executor;
        Ok(Executed {
            replayed,
            carried: executor.carried(),
            generated: executor.generated(),
        })
    }

    /// What a GPU needs beside weights and cache to serve a trace; nothing on an emulated device.
    ///
    /// # Errors
    /// A model that cannot be computed.
    pub fn beside(&self, requests: &[Request], options: &CpuOptions) -> Result<Bytes, CpuError> {
        self.served(requests).beside(options)
    }

    /// What serves a trace for real.
    fn served(&self, requests: &[Request]) -> Served {
        let (machine, shape) = (self.machine(), Shape::of(&self.model, self.kept()));
        let swapped = self.manager.layers(&machine, self.kv_bytes, &shape);
        Served {
            model: self.model.clone(),
            kept: self.kept(),
            kv: self.kv_bytes,
            device_layers: swapped.map_or(shape.layers, |pie| pie.slots()),
            block_tokens: self.manager.block_tokens(),
            host: self.profile.usable().host,
            most: self.most(requests),
            traffic: self.traffic.clone(),
        }
    }

    /// What an iteration computes at most: a request may be computed again as a whole, whatever the limit is.
    pub fn most(&self, requests: &[Request]) -> Limits {
        let whole = requests.iter().map(Request::total_len);
        // Those that no model has positions for are refused.
        let positions = self.model.max_position_embeddings;
        let longest = whole.filter(|length| *length <= positions).max();
        let Limits { sequences, tokens } = self.limits;
        let count = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        let sequences = sequences.min(count).max(1);
        let computed = requests
            .iter()
            .map(|request| u64::from(request.total_len()));
        let all = u32::try_from(computed.sum::<u64>()).unwrap_or(u32::MAX);
        Limits {
            sequences,
            // The longest is computed beside those that get their next token.
            tokens: tokens
                .max(longest.unwrap_or(0).saturating_add(sequences))
                .min(all)
                .max(sequences),
        }
    }
}
