//! What an experiment's TOML files say.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::schedules::Schedules;
use super::serving::{Gains, Offline};
use super::serving_file::{WrittenGains, WrittenOffline, WrittenStalls};
use crate::baseline::System;
use crate::calibrate::{Machines, RecordedRun, read_runs};
use crate::files::{InputError, TomlText, find_model, find_profile, read_text};
use crate::published::{Published, read_published};
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::policy::{Granularity, PageLocked, Policy};
use plimsoll_core::workload::Workload;

/// A table or figure as written; all that it names is found.
#[derive(Debug)]
pub struct Definition {
    /// Its file's name without `.toml`: that of its results.
    pub name: String,
    /// Above its results.
    pub title: String,
    /// What is compared.
    pub kind: Kind,
}

/// What is compared.
#[derive(Debug)]
pub enum Kind {
    /// Runs whose policy was published.
    Runs {
        /// The runs.
        runs: Vec<RecordedRun>,
        /// Where they ran.
        machines: Box<Machines>,
        /// What they are good for.
        used_for: Use,
    },
    /// Runs of which only system and block size were published: the policy is what the system's
    /// rules make.
    Systems {
        /// The runs.
        runs: Vec<Published>,
        /// Where they ran.
        machine: Box<HardwareProfile>,
        /// What they are good for.
        used_for: Use,
    },
    /// Latency against throughput.
    Pareto {
        /// Where.
        machine: Box<HardwareProfile>,
        /// What runs.
        model: Box<ModelSpec>,
        /// Prompts in, tokens out.
        workload: Workload,
        /// Who.
        systems: Vec<System>,
        /// Beside the predictions.
        published: Vec<Published>,
    },
    /// Zig-zag and diagonal blocks in the same memory.
    Schedules(Box<Schedules>),
    /// The runs of the validation tables without one term of the cost model after another.
    Ablation,
    /// Pie's throughput over vLLM's.
    Gains(Box<Gains>),
    /// What Pie's queue of swaps can hide.
    Stalls {
        /// Layers of models.
        layers: Vec<u16>,
        /// Times of a swap, in computations of a layer.
        swaps: Vec<f64>,
    },
    /// S3's Tables 2 and 3.
    Offline(Box<Offline>),
}

/// What a table's errors say something about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// The machine's constants were fitted to it.
    Fitting,
    /// Validation: the publication prints the policies.
    PrintedPolicies,
    /// Validation: the policies are in code that was released beside it, runs are of one block.
    ReleasedPolicies,
    /// Validation: such policies again, and what was timed is a whole application, with what it does
    /// beside the model.
    Applications,
    /// Validation: policies that nobody published, made by a system's rules.
    MadePolicies,
    /// Nothing: what was timed holds more than what is predicted.
    Showing,
}

impl Use {
    /// In the order in which they are reported.
    pub const ALL: [Use; 6] = [
        Use::Fitting,
        Use::PrintedPolicies,
        Use::ReleasedPolicies,
        Use::Applications,
        Use::MadePolicies,
        Use::Showing,
    ];

    /// As results call it.
    pub fn title(self) -> &'static str {
        match self {
            Use::Fitting => "fitting",
            Use::PrintedPolicies => "validation, policies printed in the paper",
            Use::ReleasedPolicies => "validation, policies in the released scripts",
            Use::Applications => "validation, whole applications with such policies",
            Use::MadePolicies => "validation, policies made by rules",
            Use::Showing => "nothing, only shown",
        }
    }

    /// Whether its runs test predictions of a given policy.
    pub fn validates_given(self) -> bool {
        use Use::{Applications, PrintedPolicies, ReleasedPolicies};
        matches!(self, PrintedPolicies | ReleasedPolicies | Applications)
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Written {
    Runs(Compared),
    Systems(Compared),
    Pareto(Drawn),
    Schedules(Placed),
    Ablation(Named),
    Gains(WrittenGains),
    Stalls(WrittenStalls),
    Offline(WrittenOffline),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    title: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Compared {
    title: String,
    file: PathBuf,
    hw: String,
    used_for: Use,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Drawn {
    title: String,
    hw: String,
    model: String,
    systems: Vec<String>,
    #[serde(default = "default_prompt_len")]
    prompt_len: u32,
    #[serde(default = "default_gen_len")]
    gen_len: u32,
    published: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Placed {
    title: String,
    hw: String,
    model: String,
    gpu_batch_size: u32,
    /// Weights, cache and activations, on the device and on the host each.
    percent: [f64; 6],
    #[serde(default)]
    cpu_attention: bool,
    /// Tokens in each prompt, tokens generated for each.
    lengths: Vec<(u32, u32)>,
}

impl Placed {
    /// With all that it names, in the file at `path`.
    fn found(&self, path: &Path) -> Result<Schedules, InputError> {
        let placed = Policy::from_percent(self.gpu_batch_size, 1, self.percent);
        Ok(Schedules {
            machine: find_profile(&self.hw).map_err(faulty(path, "hw"))?,
            model: find_model(&self.model).map_err(faulty(path, "model"))?.spec,
            // As the planner's own plans are.
            policy: Policy {
                barrier: false,
                granularity: Granularity::Spread,
                page_locked: PageLocked::ALL,
                cpu_attention: self.cpu_attention,
                ..placed.map_err(faulty(path, "percent"))?
            },
            lengths: self.lengths.clone(),
        })
    }
}

/// FlexGen's.
fn default_prompt_len() -> u32 {
    512
}

/// FlexGen's.
fn default_gen_len() -> u32 {
    32
}

/// All definitions of a folder, figures first, numbers in their order.
///
/// # Errors
/// A folder that is not there or holds none; what is wrong in one.
pub fn read_folder(folder: &Path) -> Result<Vec<Definition>, InputError> {
    let entries = std::fs::read_dir(folder).map_err(|e| InputError::unreadable(folder, &e))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    if paths.is_empty() {
        let remedy = "give a folder with a TOML file for each table, as experiments/flexgen";
        return Err(InputError::bad_file(
            folder,
            "*.toml",
            "there is none",
            remedy,
        ));
    }
    paths.sort_by_key(|path| in_order(&stem(path)));
    paths.iter().map(|path| read(path)).collect()
}

fn stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// `table-8` is before `table-15`.
fn in_order(name: &str) -> (String, u32, String) {
    let numbered = name.rsplit_once('-');
    let numbered = numbered.and_then(|(word, number)| Some((word, number.parse().ok()?)));
    let (word, number) = numbered.unwrap_or((name, 0));
    (word.to_owned(), number, name.to_owned())
}

/// A name that nothing has is this file's fault, not the command line's.
pub(super) fn faulty<E: Display>(path: &Path, key: &'static str) -> impl Fn(E) -> InputError {
    move |error| InputError::bad_file(path, key, error.to_string(), "correct the file")
}

fn read(path: &Path) -> Result<Definition, InputError> {
    let text = read_text(path)?;
    let written: Written = TomlText { path, text: &text }.parse()?;
    let beside = |file: &Path| path.parent().unwrap_or(Path::new("")).join(file);
    let here = |key| faulty(path, key);
    let (title, kind) = match written {
        Written::Runs(it) => {
            let runs = read_runs(&beside(&it.file))?;
            let machines = Machines::find(&it.hw, &runs).map_err(here("hw"))?;
            let machines = Box::new(machines);
            let kind = Kind::Runs {
                runs,
                machines,
                used_for: it.used_for,
            };
            (it.title, kind)
        }
        Written::Systems(it) => {
            let kind = Kind::Systems {
                runs: read_published(&beside(&it.file))?,
                machine: Box::new(find_profile(&it.hw).map_err(here("hw"))?),
                used_for: it.used_for,
            };
            (it.title, kind)
        }
        Written::Pareto(it) => {
            let model = find_model(&it.model).map_err(here("model"))?.spec;
            let workload = Workload {
                prompt_len: it.prompt_len,
                gen_len: it.gen_len,
                num_prompts: None,
            };
            let systems = it.systems.iter().map(|name| System::named(name));
            let systems = systems
                .collect::<Result<Vec<_>, String>>()
                .map_err(|said| InputError::bad_file(path, "systems", said, "correct the file"))?;
            let mut published = match &it.published {
                Some(file) => read_published(&beside(file))?,
                None => Vec::new(),
            };
            published.retain(|p| p.model.name == model.name && p.workload == workload);
            let kind = Kind::Pareto {
                machine: Box::new(find_profile(&it.hw).map_err(here("hw"))?),
                model: Box::new(model),
                workload,
                systems,
                published,
            };
            (it.title, kind)
        }
        Written::Schedules(it) => {
            let schedules = it.found(path)?;
            (it.title, Kind::Schedules(Box::new(schedules)))
        }
        Written::Ablation(it) => (it.title, Kind::Ablation),
        Written::Gains(it) => (it.title.clone(), Kind::Gains(Box::new(it.found(path)?))),
        Written::Stalls(WrittenStalls {
            title,
            layers,
            swaps,
        }) => (title, Kind::Stalls { layers, swaps }),
        Written::Offline(it) => (it.title.clone(), Kind::Offline(Box::new(it.found(path)?))),
    };
    Ok(Definition {
        name: stem(path),
        title,
        kind,
    })
}
