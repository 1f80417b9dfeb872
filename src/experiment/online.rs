//! Requests that come over time, as Pie's figures have them.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::{Limits, Request, ServeSummary};
use plimsoll_core::traffic::Background;
use plimsoll_core::units::Bytes;

use crate::serve::gpus::Gpus;
use crate::serve::replay::{Manager, Server};
use crate::serve::workload::{Arrivals, GenerateError, Generator, Lengths};

/// A machine and a model with what is asked of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Online<'a> {
    /// The machine.
    pub machine: &'a HardwareProfile,
    /// The model.
    pub model: &'a ModelSpec,
    /// Tokens of prompts and of answers.
    pub lengths: &'a [Lengths; 2],
    /// Requests of a trace.
    pub requests: usize,
    /// Of the trace.
    pub seed: u64,
}

impl Online<'_> {
    /// The trace at a rate, in requests a second.
    ///
    /// # Errors
    /// Lengths that the model has no positions for.
    pub fn requests(&self, rate: f64) -> Result<Vec<Request>, GenerateError> {
        let [prompt, output] = self.lengths.clone();
        Generator {
            arrivals: Arrivals::Poisson { rate },
            prompt,
            output,
            total_max: Some(self.model.max_position_embeddings),
            requests: self.requests,
            seed: self.seed,
        }
        .requests()
    }

    /// Serves it with so many GB (of 10^9 bytes) of device memory for the cache.
    ///
    /// # Errors
    /// An error of ours.
    pub fn serve(&self, manager: Manager, kv_gb: f64, rate: f64) -> anyhow::Result<ServeSummary> {
        let server = Server {
            profile: self.machine.clone(),
            model: self.model.clone(),
            dtype: Dtype::F16,
            compression: Compression::default(),
            gpus: Gpus::One,
            manager,
            kv_bytes: Bytes((kv_gb * 1e9) as u64),
            limits: Limits {
                sequences: 256,
                tokens: self.model.max_position_embeddings.max(2048),
            },
            clients: None,
            slo_s: 0.1875,
            traffic: Background::default(),
            logged: false,
        };
        Ok(server.replay(&self.requests(rate)?)?.summary)
    }
}

/// Pie's latency (section 5.1): queueing and compute by tokens of answers.
pub(super) fn s_per_token(it: &ServeSummary) -> f64 {
    it.queueing_s_per_token.mean + it.compute_s_per_token.mean
}
