//! What the TOML files of serving systems' tables say.

use std::path::Path;

use serde::Deserialize;

use super::definition::faulty;
use super::iteration::Iterations;
use super::serving::{GainCase, Gains, Offline, OfflineCase};
use crate::files::{InputError, find_model, find_profile};
use crate::serve::workload::Lengths;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenGains {
    pub title: String,
    hw: String,
    expansions: Vec<f64>,
    requests: usize,
    #[serde(default)]
    seed: u64,
    case: Vec<WrittenGain>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenGain {
    name: String,
    model: String,
    prompt: String,
    output: String,
    rates: Vec<f64>,
    kv_gb: f64,
    published: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenStalls {
    pub title: String,
    pub layers: Vec<u16>,
    pub swaps: Vec<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenOffline {
    pub title: String,
    hw: String,
    prompt: String,
    output: String,
    requests: usize,
    output_tokens: u64,
    longest: u32,
    max_len: u32,
    buckets: u32,
    accuracy_above_first: f64,
    #[serde(default)]
    seed: u64,
    case: Vec<WrittenCase>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCase {
    model: String,
    system: String,
    iterations: f64,
    average_batch: f64,
    tokens_per_s: f64,
}

fn lengths(path: &Path, prompt: &str, output: &str) -> Result<[Lengths; 2], InputError> {
    Ok([
        prompt.parse().map_err(faulty::<String>(path, "prompt"))?,
        output.parse().map_err(faulty::<String>(path, "output"))?,
    ])
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenIterations {
    pub title: String,
    hw: String,
    models: Vec<String>,
    batches: Vec<u32>,
    context: u32,
}

impl WrittenIterations {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Iterations, InputError> {
        if self.batches.contains(&0) {
            let remedy = "give at least 1";
            return Err(InputError::bad_file(path, "batches", "0 is none", remedy));
        }
        let model = |name: &String| Ok(find_model(name).map_err(faulty(path, "models"))?.spec);
        Ok(Iterations {
            machine: find_profile(&self.hw).map_err(faulty(path, "hw"))?,
            models: self
                .models
                .iter()
                .map(model)
                .collect::<Result<_, InputError>>()?,
            batches: self.batches.clone(),
            context: self.context,
        })
    }
}

impl WrittenGains {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Gains, InputError> {
        let case = |it: &WrittenGain| {
            Ok(GainCase {
                name: it.name.clone(),
                model: find_model(&it.model).map_err(faulty(path, "model"))?.spec,
                lengths: lengths(path, &it.prompt, &it.output)?,
                rates: it.rates.clone(),
                kv_gb: it.kv_gb,
                published: it.published,
            })
        };
        Ok(Gains {
            machine: find_profile(&self.hw).map_err(faulty(path, "hw"))?,
            cases: self
                .case
                .iter()
                .map(case)
                .collect::<Result<_, InputError>>()?,
            expansions: self.expansions.clone(),
            requests: self.requests,
            seed: self.seed,
        })
    }
}

impl WrittenOffline {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Offline, InputError> {
        let case = |it: &WrittenCase| {
            if !["orca", "s3", "oracle"].contains(&it.system.as_str()) {
                let problem = format!("`{}` is none", it.system);
                let remedy = "write orca, s3 or oracle";
                return Err(InputError::bad_file(path, "case.system", problem, remedy));
            }
            Ok(OfflineCase {
                model: find_model(&it.model).map_err(faulty(path, "model"))?.spec,
                system: it.system.clone(),
                iterations: it.iterations,
                average_batch: it.average_batch,
                tokens_per_s: it.tokens_per_s,
            })
        };
        Ok(Offline {
            machine: find_profile(&self.hw).map_err(faulty(path, "hw"))?,
            cases: self
                .case
                .iter()
                .map(case)
                .collect::<Result<_, InputError>>()?,
            answers: (self.requests, self.output_tokens, self.longest),
            lengths: lengths(path, &self.prompt, &self.output)?,
            max_len: self.max_len,
            buckets: self.buckets,
            accuracy: self.accuracy_above_first,
            seed: self.seed,
        })
    }
}
