//! Iterations one by one, for those who want to see what changes over time.

use serde::Serialize;

/// An iteration. Times are in seconds on the executor's clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IterationRow {
    /// Whose, of the batches in flight in a pipeline, from 0 on; elsewhere there is one.
    pub batch: u32,
    /// From 1 on, of the batch's own.
    pub iteration: u64,
    /// When it began.
    pub began_s: f64,
    /// When it ended.
    pub ended_s: f64,
    /// Sequences that got a token.
    pub sequences: u32,
    /// Tokens of prompts that it computed, those computed again among them.
    pub prompt_tokens: u32,
    /// Requests that had come and waited.
    pub waiting: usize,
    /// Tokens in the cache.
    pub cached_tokens: u64,
    /// Tokens that the cache had room for.
    pub capacity_tokens: u64,
    /// Pie: layers off the GPU, buffers counted.
    pub layers_off: u16,
    /// Pie: the cache over the GPU's part of it, buffers counted.
    pub expansion: f64,
    /// Pie: time in which a layer waited for its cache.
    pub stalled_s: f64,
    /// How often requests had had to leave so far.
    pub preemptions: u64,
}
