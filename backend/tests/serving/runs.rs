//! Requests that are served with a KV cache of some size: what tests of serving share.
#![allow(dead_code)] // each test file uses a part

use std::sync::Arc;

use plimsoll_backend::cpu::{CpuOptions, Throttles};
use plimsoll_backend::serving::{Served, ServingExecutor};
use plimsoll_backend::weights::WeightSource;
use plimsoll_core::Dtype;
use plimsoll_core::compression::{Compression, Kept};
use plimsoll_core::control::follow;
use plimsoll_core::executor::{ExecutionError, Executor, Until};
use plimsoll_core::machine::Machine;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::program::Program;
use plimsoll_core::serve::pie::{Adaptive, Lanes, Pie, Settings};
use plimsoll_core::serve::{
    BLOCK_TOKENS, KvManager, Limits, Preemption, Request, Scheduler, ServeSummary, Shape, State,
    Vllm,
};
use plimsoll_core::tier::PerTier;
use plimsoll_core::trace::Trace;
use plimsoll_core::traffic::Background;
use plimsoll_core::units::{Bytes, Seconds};

use crate::common::prompts;

pub const LIMITS: Limits = Limits {
    sequences: 16,
    tokens: 512,
};

pub const HOST: Bytes = Bytes(1 << 20);

/// Prompt and answer lengths, and when each comes, in milliseconds.
pub const REQUESTS: [(u32, u32, u32); 7] = [
    (20, 14, 0),
    (5, 20, 0),
    (1, 9, 0),
    (31, 6, 1),
    (12, 18, 2),
    (7, 1, 3),
    (18, 11, 40),
];

pub fn requests() -> Vec<Request> {
    let all = REQUESTS.iter().map(|(prompt_len, output_len, ms)| Request {
        arrival: Seconds(f64::from(*ms) / 1e3),
        prompt_len: *prompt_len,
        output_len: *output_len,
    });
    all.collect()
}

/// A run: who gives room, and in how much memory.
pub struct Setting {
    pub model: ModelSpec,
    pub dtype: Dtype,
    /// What of the weights is in 4 bits.
    pub compression: Compression,
    pub manager: Box<dyn KvManager>,
    pub tokens: u64,
    pub block_tokens: u32,
    pub throttles: Throttles,
    /// Layers of the cache off the device; or found while requests are served.
    pub swapped: Option<Swapping>,
    pub traffic: Background,
    /// What the host has room for.
    pub host: Bytes,
}

pub enum Swapping {
    Fixed(u16),
    Adaptive(Settings),
}

impl Setting {
    pub fn of(model: &ModelSpec, manager: Box<dyn KvManager>, tokens: u64) -> Setting {
        Setting {
            model: model.clone(),
            dtype: Dtype::F32,
            compression: Compression::default(),
            manager,
            tokens,
            block_tokens: BLOCK_TOKENS,
            throttles: Throttles::default(),
            swapped: None,
            traffic: Background::default(),
            host: HOST,
        }
    }
}

/// All that a run needs.
pub struct Setup {
    pub machine: Machine,
    pub served: Served,
    pub texts: Vec<Vec<u32>>,
    pub scheduler: Scheduler,
}

/// The requests' prompts.
pub fn texts(model: &ModelSpec) -> Vec<Vec<u32>> {
    let lengths = REQUESTS.iter().map(|(prompt, ..)| *prompt);
    let longest = lengths.clone().max().expect("some");
    let mut texts = prompts(REQUESTS.len() as u32, longest, model.vocab_size);
    for (text, length) in texts.iter_mut().zip(lengths) {
        text.truncate(length as usize);
    }
    texts
}

pub fn setup(setting: Setting) -> Setup {
    let Setting { model, .. } = setting;
    let kept = Kept {
        dtype: setting.dtype,
        compression: setting.compression,
    };
    // Its host has room for all; what the executor's has is the setting's.
    let machine = Machine::single_gpu(PerTier::from_fn(|_| Bytes(1 << 40)));
    let shape = Shape::of(&model, kept);
    let texts = texts(&model);
    let kv = shape.bytes_per_token() * setting.tokens;
    let lanes = Lanes::of(&machine);
    let pie = setting.swapped.map(|swapped| match swapped {
        Swapping::Fixed(off) => Pie::fixed(lanes, kv, &shape, off),
        Swapping::Adaptive(settings) => {
            Pie::adaptive(lanes, kv, &shape, Adaptive::new(shape.layers, settings))
        }
    });
    let served = Served {
        kv,
        device_layers: pie.as_ref().map_or(shape.layers, Pie::slots),
        block_tokens: setting.block_tokens,
        host: setting.host,
        most: LIMITS,
        traffic: setting.traffic,
        kept,
        model,
    };
    let scheduler = Scheduler::new(machine.clone(), shape, LIMITS, setting.manager, &requests());
    let mut scheduler = scheduler.described();
    if let Some(pie) = pie {
        scheduler = scheduler.with_layers_swapped(pie);
    }
    Setup {
        machine,
        served,
        texts,
        scheduler,
    }
}

/// What came of a run.
pub struct Outcome {
    /// For each request.
    pub generated: Vec<Vec<u32>>,
    pub summary: ServeSummary,
    /// All that was submitted.
    pub pieces: Vec<Arc<Program>>,
}

/// Keeps the pieces that it is given.
struct Recorder<'e> {
    executor: &'e mut ServingExecutor,
    pieces: Vec<Arc<Program>>,
}

impl Executor for Recorder<'_> {
    fn submit(&mut self, piece: Arc<Program>) -> Result<(), ExecutionError> {
        self.pieces.push(Arc::clone(&piece));
        self.executor.submit(piece)
    }

    fn wait(&mut self, until: Until) -> Result<Seconds, ExecutionError> {
        self.executor.wait(until)
    }

    fn forget(&mut self, piece: &Program) {
        self.executor.forget(piece);
    }

    fn trace(&self) -> &Trace {
        self.executor.trace()
    }
}

/// Serves all requests; an error is said with what caused it.
pub fn served_with(
    setting: Setting,
    source: &dyn WeightSource,
    options: &CpuOptions,
) -> Result<Outcome, String> {
    let carries = !setting.traffic.0.is_empty();
    let Setup {
        machine,
        served,
        texts,
        mut scheduler,
    } = setup(setting);
    let executor = ServingExecutor::new(&machine, &served, texts, source, options);
    let mut executor = executor.expect("an executor");
    let mut recorder = Recorder {
        executor: &mut executor,
        pieces: Vec::new(),
    };
    follow(&mut scheduler, &mut recorder).map_err(|error| said(&error))?;
    let pieces = recorder.pieces;
    let done = |id: usize| scheduler.running().sequence(id as u32).state == State::Done;
    assert!((0..REQUESTS.len()).all(done));
    assert_eq!(executor.carried() > Bytes::ZERO, carries);
    Ok(Outcome {
        generated: executor.generated(),
        summary: scheduler.summary(1.0),
        pieces,
    })
}

/// An error with what caused it.
fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

pub fn vllm(tokens: u64, preemption: Preemption) -> Box<dyn KvManager> {
    Box::new(Vllm::new(tokens, preemption))
}

/// What others carry.
pub fn traffic(text: &str) -> Background {
    Background(vec![text.parse().expect("right")])
}

/// As eager as can be: expansion comes and goes within the few iterations that there are.
pub const EAGER: Settings = Settings {
    window: 2,
    stalled_max: 0.5,
    stalled_windows: 1,
    stalled_at_once: 1.0,
    stalled_growing_max: 0.5,
    early_min: 0.0,
    scaling_min: 0.0,
    probe_after: 4,
    trials_max: f64::INFINITY,
};
