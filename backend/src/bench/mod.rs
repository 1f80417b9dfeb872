//! Measures what the parts of decoding are worth on a device: each implementation of a product over rows, and what dispatch makes
//! of them (FlashDecoding++ sections 4 and 5); attention with a unified maximum beside the synchronised one (section 3);
//! and how near a decode whose weights come over the link comes to what the link carries.
//!
//! Nothing here is for predictions: a profile's numbers are the profiler's ([`crate::probe`]).

mod attention;
mod link;
mod memory;
mod products;

use plimsoll_core::Dtype;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::units::Bytes;

use crate::cpu::CpuOptions;
use crate::cuda::executor::check_plan;
use crate::probe::ProbeError;

pub use crate::cuda::Repeats;
pub use attention::AttentionTimes;
pub use link::LinkBound;
pub use products::ProductTimes;

/// Rows of products.
const ROWS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Positions and sequences of attention.
const CONTEXTS: [usize; 3] = [256, 1024, 4096];
const SEQUENCES: [usize; 3] = [1, 8, 32];

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The device, and which implementation its executors take; what that does not know is measured first, if that is its way.
    pub cpu: CpuOptions,
    /// Whose shapes.
    pub model: ModelSpec,
    /// Of weights, cache and activations.
    pub dtype: Dtype,
    /// Whether weights are in 4-bit groups.
    pub packed: bool,
    /// Rows of products, ascending.
    pub rows: Vec<usize>,
    /// Positions that attention sees. More than the model has are left out.
    pub contexts: Vec<usize>,
    /// Sequences that attend together.
    pub sequences: Vec<usize>,
    /// How often a GPU is given each of these.
    pub repeats: Repeats,
    /// How often the CPU computes each product.
    pub cpu_repeats: usize,
    /// Weights that come over the link, at most, where one layer is not more: of deeper models only so many layers run.
    pub weights_most: Bytes,
    /// Tokens that they come for; five at least are.
    pub tokens: u32,
}

impl BenchOptions {
    /// A model's decode, in a time that somebody waits for.
    pub fn new(cpu: CpuOptions, model: ModelSpec, dtype: Dtype) -> BenchOptions {
        let weights_most = match cpu.card {
            Some(_) => Bytes(4 << 30),
            None => Bytes(1 << 30),
        };
        BenchOptions {
            cpu,
            model,
            dtype,
            packed: false,
            rows: ROWS.to_vec(),
            contexts: CONTEXTS.to_vec(),
            sequences: SEQUENCES.to_vec(),
            repeats: Repeats {
                in_a_row: 16,
                turns: 7,
            },
            cpu_repeats: 3,
            weights_most,
            tokens: 12,
        }
    }
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Bench {
    /// The device's memory, bytes/s: copies within a GPU's memory, reads and writes counted; reads by the core that emulates one.
    pub memory_bytes_per_s: f64,
    /// By shape and rows.
    pub products: Vec<ProductTimes>,
    /// By positions and sequences; empty where the device is emulated, since that has one attention only.
    pub attention: Vec<AttentionTimes>,
    /// A decode whose weights come over the link.
    pub link: LinkBound,
}

/// Measures. `progress` hears what is being measured.
///
/// # Errors
/// Memory that cannot be had; what the GPU says; a model that is not executed; an interrupt.
pub fn measure(
    options: &BenchOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<Bench, ProbeError> {
    // Before minutes are spent on a model that GPUs do not execute.
    if options.cpu.card.is_some() {
        check_plan(&link::plan(options)?, &options.cpu)?;
    }
    progress("implementations of products, for dispatch");
    products::learn(options)?;
    progress("device memory");
    let memory_bytes_per_s = memory::bytes_per_s(options)?;
    progress("products");
    let products = products::measure(options)?;
    progress("attention");
    let attention = attention::measure(options)?;
    progress("decode with weights on the host");
    let link = link::measure(options)?;
    Ok(Bench {
        memory_bytes_per_s,
        products,
        attention,
        link,
    })
}
