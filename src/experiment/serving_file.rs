//! What the TOML files of serving systems' tables say.

use std::path::Path;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use serde::Deserialize;

use super::against_flexgen::{AgainstFlexGen, FlexGenCase};
use super::at_once_file::{WrittenAsked, models};
use super::definition::faulty;
use super::gains::{GainCase, Gains, OverRates};
use super::iteration::{Iterations, Utilization};
use super::offline::{Offline, OfflineCase, S3System};
use super::pipelined::{Pipelined, PipelinedCase};
use super::sizes::{Sizes, SizesCase};
use crate::files::{InputError, find_model, find_profile};
use crate::serve::workload::Lengths;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenGains {
    pub title: String,
    hw: String,
    expansions: Vec<f64>,
    published_up_to: Option<f64>,
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
    published_expansion: Option<f64>,
    over_rates: Option<WrittenOverRates>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenOverRates {
    saturated: f64,
    gains: [f64; 2],
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenSizes {
    pub title: String,
    hw: String,
    kv_gb: Vec<f64>,
    requests: usize,
    #[serde(default)]
    seed: u64,
    case: Vec<WrittenSize>,
    #[serde(default)]
    published: Vec<WrittenMost>,
    latency: Option<f64>,
    memory: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSize {
    name: String,
    data: String,
    model: String,
    prompt: String,
    output: String,
    rates: Vec<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMost {
    data: String,
    most: f64,
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
    asked: WrittenAsked,
    case: Vec<WrittenCase>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenPipelined {
    pub title: String,
    hw: String,
    model: String,
    asked: WrittenAsked,
    orca_over_s3: f64,
    s3_batch_over_orca: f64,
    case: Vec<WrittenStages>,
    #[serde(default)]
    published: Vec<WrittenCell>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenStages {
    name: String,
    stages: u32,
    last_stage_layers: Option<u32>,
    memory_layers: Option<u32>,
    time_layers: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCell {
    case: String,
    system: String,
    iterations: f64,
    average_batch: f64,
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

pub(super) fn lengths(path: &Path, prompt: &str, output: &str) -> Result<[Lengths; 2], InputError> {
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
    utilization: Option<WrittenUtilization>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenUtilization {
    peak_tflops: f64,
    least: f64,
    most: f64,
}

impl WrittenIterations {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Iterations, InputError> {
        if self.batches.contains(&0) {
            let remedy = "give at least 1";
            return Err(InputError::bad_file(path, "batches", "0 is none", remedy));
        }
        Ok(Iterations {
            machine: find_profile(&self.hw).map_err(faulty(path, "hw"))?,
            models: models(path, &self.models)?,
            batches: self.batches.clone(),
            context: self.context,
            utilization: self.utilization.as_ref().map(|it| Utilization {
                peak: it.peak_tflops * 1e12,
                published: [it.least, it.most],
            }),
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
                published_expansion: it.published_expansion,
                over_rates: it.over_rates.as_ref().map(|it| OverRates {
                    saturated: it.saturated,
                    gains: it.gains,
                }),
            })
        };
        if let Some(most) = self.published_up_to
            && !self.expansions.contains(&most)
        {
            let problem = format!("{most} is none of the expansions");
            let remedy = "give the largest of them that was published";
            return Err(InputError::bad_file(
                path,
                "published_up_to",
                problem,
                remedy,
            ));
        }
        Ok(Gains {
            machine: find_profile(&self.hw).map_err(faulty(path, "hw"))?,
            cases: self
                .case
                .iter()
                .map(case)
                .collect::<Result<_, InputError>>()?,
            expansions: self.expansions.clone(),
            published_up_to: self.published_up_to,
            requests: self.requests,
            seed: self.seed,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenAgainst {
    pub title: String,
    hw: String,
    flexgen_hw: String,
    model: String,
    kv_gb: Vec<f64>,
    blocks: Vec<u32>,
    latency: f64,
    host_gb: Option<f64>,
    requests: usize,
    #[serde(default)]
    seed: u64,
    case: Vec<WrittenData>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenData {
    name: String,
    prompt: String,
    output: String,
    rates: Vec<f64>,
    published: f64,
}

impl WrittenAgainst {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<AgainstFlexGen, InputError> {
        let machine = |key, name: &str| find_profile(name).map_err(faulty(path, key));
        let case = |it: &WrittenData| {
            Ok(FlexGenCase {
                name: it.name.clone(),
                lengths: lengths(path, &it.prompt, &it.output)?,
                rates: it.rates.clone(),
                published: it.published,
            })
        };
        Ok(AgainstFlexGen {
            machine: machine("hw", &self.hw)?,
            flexgen_machine: machine("flexgen_hw", &self.flexgen_hw)?,
            model: find_model(&self.model).map_err(faulty(path, "model"))?.spec,
            cases: self
                .case
                .iter()
                .map(case)
                .collect::<Result<_, InputError>>()?,
            kv_gb: self.kv_gb.clone(),
            blocks: self.blocks.clone(),
            latency: self.latency,
            host_gb: self.host_gb,
            requests: self.requests,
            seed: self.seed,
        })
    }
}

impl WrittenSizes {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Sizes, InputError> {
        let case = |it: &WrittenSize| {
            Ok(SizesCase {
                name: it.name.clone(),
                data: it.data.clone(),
                model: find_model(&it.model).map_err(faulty(path, "model"))?.spec,
                lengths: lengths(path, &it.prompt, &it.output)?,
                rates: it.rates.clone(),
            })
        };
        let published = self.published.iter();
        Ok(Sizes {
            machine: find_profile(&self.hw).map_err(faulty(path, "hw"))?,
            cases: self
                .case
                .iter()
                .map(case)
                .collect::<Result<_, InputError>>()?,
            kv_gb: self.kv_gb.clone(),
            published: published.map(|it| (it.data.clone(), it.most)).collect(),
            latency: self.latency,
            memory: self.memory,
            requests: self.requests,
            seed: self.seed,
        })
    }
}

impl WrittenOffline {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Offline, InputError> {
        let case = |it: &WrittenCase| {
            Ok(OfflineCase {
                model: find_model(&it.model).map_err(faulty(path, "model"))?.spec,
                system: S3System::named(&it.system).map_err(faulty(path, "case.system"))?,
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
            asked: self.asked.found(path)?,
        })
    }
}

impl WrittenPipelined {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Pipelined, InputError> {
        let model = find_model(&self.model).map_err(faulty(path, "model"))?;
        let cell = |it: &WrittenCell| {
            let system = S3System::named(&it.system).map_err(faulty(path, "published.system"))?;
            Ok((it.case.clone(), system, [it.iterations, it.average_batch]))
        };
        let machine = find_profile(&self.hw).map_err(faulty(path, "hw"))?;
        let cases = self.case.iter().map(|it| PipelinedCase {
            name: it.name.clone(),
            stages: it.stages,
            last_stage_layers: it.last_stage_layers,
            memory_layers: it.memory_layers,
            time_layers: it.time_layers,
        });
        let cases: Vec<PipelinedCase> = cases.collect();
        check_stages(path, &cases, (&machine, &model.spec))?;
        Ok(Pipelined {
            machine,
            model: model.spec,
            cases,
            asked: self.asked.found(path)?,
            published: self
                .published
                .iter()
                .map(cell)
                .collect::<Result<_, InputError>>()?,
            ratios: [self.orca_over_s3, self.s3_batch_over_orca],
        })
    }
}

/// Refuses stages without layers, and more of them than there are GPUs.
fn check_stages(
    path: &Path,
    cases: &[PipelinedCase],
    (machine, model): (&HardwareProfile, &ModelSpec),
) -> Result<(), InputError> {
    let wrong = |problem: String, remedy| InputError::bad_file(path, "case", problem, remedy);
    let (gpus, layers) = (machine.num_gpus(), model.num_hidden_layers);
    if cases.is_empty() {
        return Err(wrong("there is none".to_owned(), "write a [[case]]"));
    }
    for case in cases {
        let problem = if !(2..=gpus).contains(&case.stages) {
            format!(
                "`{}` has {} stages, and {} has {gpus} GPUs",
                case.name, case.stages, machine.name
            )
        } else if !case.pipeline(machine, 1).fills_stages(layers) {
            format!("`{}` has a stage without any of {layers} layers", case.name)
        } else if [case.memory_layers, case.time_layers]
            .into_iter()
            .flatten()
            .any(|it| !(1..layers).contains(&it))
        {
            format!(
                "`{}` counts with as many layers as there are, or none",
                case.name
            )
        } else {
            continue;
        };
        return Err(wrong(problem, "correct the file"));
    }
    Ok(())
}
