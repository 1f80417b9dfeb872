//! What the TOML files of tables about split linear layers say.

use std::path::{Path, PathBuf};

use plimsoll_core::split::Module;
use plimsoll_core::workload::Workload;
use serde::Deserialize;

use super::definition::{Kind, beside, default_prompt_len, faulty, systems};
use super::split::{Batches, Breakdowns, Gain, Parts, Scene, read_percentages};
use crate::files::{InputError, find_model, find_profile};

/// A scene as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenScene {
    hw: String,
    model: String,
    #[serde(default = "default_prompt_len")]
    prompt_len: u32,
    gen_len: u32,
    #[serde(default)]
    cpu_gb_s: Vec<f64>,
}

impl WrittenScene {
    fn found(&self, path: &Path) -> Result<Scene, InputError> {
        let positive = |rate: &f64| rate.is_finite() && *rate > 0.0;
        if !self.cpu_gb_s.iter().all(positive) {
            let problem = "holds a rate that is not above 0";
            return Err(InputError::bad_file(
                path,
                "scene.cpu_gb_s",
                problem,
                "give GB/s",
            ));
        }
        Ok(Scene {
            machine: find_profile(&self.hw).map_err(faulty(path, "scene.hw"))?,
            model: find_model(&self.model)
                .map_err(faulty(path, "scene.model"))?
                .spec,
            workload: Workload {
                prompt_len: self.prompt_len,
                gen_len: self.gen_len,
                num_prompts: Some(1),
            },
            cpu_gb_s: self.cpu_gb_s.clone(),
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenMemory {
    pub title: String,
    scene: WrittenScene,
    systems: Vec<String>,
    file: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenBreakdown {
    pub title: String,
    scene: WrittenScene,
    module: String,
    file: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenParts {
    pub title: String,
    scene: WrittenScene,
    file: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenGain {
    pub title: String,
    scene: WrittenScene,
    device_gb: Vec<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenBatches {
    pub title: String,
    scene: WrittenScene,
    sequences: Vec<u32>,
}

impl WrittenMemory {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Kind, InputError> {
        Ok(Kind::Memory {
            scene: Box::new(self.scene.found(path)?),
            systems: systems(path, &self.systems)?,
            published: match &self.file {
                Some(file) => read_percentages(&beside(path, file))?,
                None => Vec::new(),
            },
        })
    }
}

impl WrittenBreakdown {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Breakdowns, InputError> {
        let module = Module::ALL.into_iter().find(|m| m.name() == self.module);
        let module = module.ok_or_else(|| {
            let names = Module::ALL.map(Module::name).join(", ");
            let problem = format!("`{}` is no linear layer", self.module);
            InputError::bad_file(path, "module", problem, format!("give one of {names}"))
        })?;
        Ok(Breakdowns {
            published: read_percentages(&beside(path, &self.file))?,
            scene: self.scene.found(path)?,
            module,
        })
    }
}

impl WrittenParts {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Parts, InputError> {
        Ok(Parts {
            scene: self.scene.found(path)?,
            published: read_percentages(&beside(path, &self.file))?,
        })
    }
}

impl WrittenGain {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(self, path: &Path) -> Result<Gain, InputError> {
        Ok(Gain {
            scene: self.scene.found(path)?,
            device_gb: self.device_gb,
        })
    }
}

impl WrittenBatches {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(self, path: &Path) -> Result<Batches, InputError> {
        Ok(Batches {
            scene: self.scene.found(path)?,
            sequences: self.sequences,
        })
    }
}
