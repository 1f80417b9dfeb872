//! What an experiment's TOML files say.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::against_flexgen::AgainstFlexGen;
use super::at_once_file::{WrittenInTime, WrittenPredictors};
use super::dataflow::Dataflow;
use super::dataflow_file::WrittenDataflow;
use super::gains::Gains;
use super::iteration::Iterations;
use super::offline::Offline;
use super::pipelined::Pipelined;
use super::predictors::Predictors;
use super::schedules::Schedules;
use super::serving_file::{
    WrittenAgainst, WrittenGains, WrittenIterations, WrittenOffline, WrittenPipelined,
    WrittenSizes, WrittenStalls,
};
use super::sizes::Sizes;
use super::slo::InTime;
use super::split::{Batches, Breakdowns, Gain, Parts, Percentage, Scene};
use super::split_file::{
    WrittenBatches, WrittenBreakdown, WrittenGain, WrittenMemory, WrittenParts,
};
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
    /// Throughput against device memory.
    Memory {
        /// Where, and of what.
        scene: Box<Scene>,
        /// Who.
        systems: Vec<System>,
        /// The device memory with which each was published to run, in percent of all of it: `least` and `most` of a system.
        published: Vec<Percentage>,
    },
    /// Who is busy while a split linear layer is computed.
    Breakdown(Box<Breakdowns>),
    /// What each part of HeteGen is worth.
    Parts(Box<Parts>),
    /// HeteGen over FlexGen.
    Gain(Box<Gain>),
    /// Where splitting stops paying.
    Batches(Box<Batches>),
    /// The runs of the validation tables without one term of the cost model after another.
    Ablation,
    /// Pie's throughput over vLLM's.
    Gains(Box<Gains>),
    /// Pie beside vLLM by the size of the cache.
    Sizes(Box<Sizes>),
    /// Pie beside FlexGen.
    AgainstFlexGen(Box<AgainstFlexGen>),
    /// What Pie's queue of swaps can hide.
    Stalls {
        /// Layers of models.
        layers: Vec<u16>,
        /// Times of a swap, in computations of a layer.
        swaps: Vec<f64>,
    },
    /// S3's Tables 2 and 3.
    Offline(Box<Offline>),
    /// S3's Table 4 and Figure 5.
    Pipelined(Box<Pipelined>),
    /// Where an iteration's time goes.
    Iterations(Box<Iterations>),
    /// S3's Table 5 and Figure 6.
    Predictors(Box<Predictors>),
    /// S3's Figure 4d.
    InTime(Box<InTime>),
    /// What FlashDecoding++'s techniques are worth.
    Dataflow(Box<Dataflow>),
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
    /// Validation: all of a model is on the GPU, which leaves no policy to choose, under engines of many kinds.
    WholeModels,
    /// Validation: given policies that offload, on machines to none of whose runs a constant was fitted.
    Offloaded,
    /// Validation: policies that nobody published, made by a system's rules.
    MadePolicies,
    /// Nothing: what was timed holds more than what is predicted.
    Showing,
}

impl Use {
    /// In the order in which they are reported.
    pub const ALL: [Use; 8] = [
        Use::Fitting,
        Use::PrintedPolicies,
        Use::ReleasedPolicies,
        Use::Applications,
        Use::WholeModels,
        Use::Offloaded,
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
            Use::WholeModels => "validation, models whole on a GPU",
            Use::Offloaded => "validation, models offloaded on machines that nothing was fitted to",
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
    #[serde(rename = "kv-sizes")]
    Sizes(WrittenSizes),
    #[serde(rename = "against-flexgen")]
    AgainstFlexGen(WrittenAgainst),
    Stalls(WrittenStalls),
    Offline(WrittenOffline),
    Pipelined(WrittenPipelined),
    Iterations(WrittenIterations),
    Predictors(WrittenPredictors),
    #[serde(rename = "in-time")]
    InTime(WrittenInTime),
    Dataflow(WrittenDataflow),
    #[serde(rename = "device-memory")]
    Memory(WrittenMemory),
    #[serde(rename = "split-breakdown")]
    Breakdown(WrittenBreakdown),
    #[serde(rename = "split-parts")]
    Parts(WrittenParts),
    #[serde(rename = "split-gain")]
    Gain(WrittenGain),
    #[serde(rename = "split-batches")]
    Batches(WrittenBatches),
}

impl Written {
    fn title(&self) -> &String {
        match self {
            Written::Runs(Compared { title, .. })
            | Written::Systems(Compared { title, .. })
            | Written::Pareto(Drawn { title, .. })
            | Written::Schedules(Placed { title, .. })
            | Written::Ablation(Named { title })
            | Written::Gains(WrittenGains { title, .. })
            | Written::Sizes(WrittenSizes { title, .. })
            | Written::AgainstFlexGen(WrittenAgainst { title, .. })
            | Written::Stalls(WrittenStalls { title, .. })
            | Written::Offline(WrittenOffline { title, .. })
            | Written::Pipelined(WrittenPipelined { title, .. })
            | Written::Iterations(WrittenIterations { title, .. })
            | Written::Predictors(WrittenPredictors { title, .. })
            | Written::InTime(WrittenInTime { title, .. })
            | Written::Dataflow(WrittenDataflow { title, .. })
            | Written::Memory(WrittenMemory { title, .. })
            | Written::Breakdown(WrittenBreakdown { title, .. })
            | Written::Parts(WrittenParts { title, .. })
            | Written::Gain(WrittenGain { title, .. })
            | Written::Batches(WrittenBatches { title, .. }) => title,
        }
    }

    /// With all that it names, in the file at `path`.
    fn found(self, path: &Path) -> Result<Kind, InputError> {
        Ok(match self {
            Written::Runs(it) => it.runs(path)?,
            Written::Systems(it) => it.systems(path)?,
            Written::Pareto(it) => it.found(path)?,
            Written::Schedules(it) => Kind::Schedules(Box::new(it.found(path)?)),
            Written::Ablation(_) => Kind::Ablation,
            Written::Gains(it) => Kind::Gains(Box::new(it.found(path)?)),
            Written::Sizes(it) => Kind::Sizes(Box::new(it.found(path)?)),
            Written::AgainstFlexGen(it) => Kind::AgainstFlexGen(Box::new(it.found(path)?)),
            Written::Stalls(it) => Kind::Stalls {
                layers: it.layers,
                swaps: it.swaps,
            },
            Written::Offline(it) => Kind::Offline(Box::new(it.found(path)?)),
            Written::Pipelined(it) => Kind::Pipelined(Box::new(it.found(path)?)),
            Written::Iterations(it) => Kind::Iterations(Box::new(it.found(path)?)),
            Written::Predictors(it) => Kind::Predictors(Box::new(it.found(path)?)),
            Written::InTime(it) => Kind::InTime(Box::new(it.found(path)?)),
            Written::Dataflow(it) => Kind::Dataflow(Box::new(it.found(path)?)),
            Written::Memory(it) => it.found(path)?,
            Written::Breakdown(it) => Kind::Breakdown(Box::new(it.found(path)?)),
            Written::Parts(it) => Kind::Parts(Box::new(it.found(path)?)),
            Written::Gain(it) => Kind::Gain(Box::new(it.found(path)?)),
            Written::Batches(it) => Kind::Batches(Box::new(it.found(path)?)),
        })
    }
}

/// A file that a definition names: beside it.
pub(super) fn beside(path: &Path, file: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(file)
}

/// Systems by their names.
pub(super) fn systems(path: &Path, names: &[String]) -> Result<Vec<System>, InputError> {
    let systems = names.iter().map(|name| System::named(name));
    let systems = systems.collect::<Result<Vec<_>, String>>();
    systems.map_err(|said| InputError::bad_file(path, "systems", said, "correct the file"))
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

impl Compared {
    /// Runs with their policies.
    fn runs(&self, path: &Path) -> Result<Kind, InputError> {
        let file = beside(path, &self.file);
        let runs = read_runs(&file)?;
        find_profile(&self.hw).map_err(faulty(path, "hw"))?;
        let machines = Machines::find(&self.hw, &runs, &file)?;
        runs.iter()
            .try_for_each(|run| run.check_gpus(machines.of(run), &file))?;
        Ok(Kind::Runs {
            runs,
            machines: Box::new(machines),
            used_for: self.used_for,
        })
    }

    /// Runs of systems whose rules make the policies.
    fn systems(&self, path: &Path) -> Result<Kind, InputError> {
        Ok(Kind::Systems {
            runs: read_published(&beside(path, &self.file))?,
            machine: Box::new(find_profile(&self.hw).map_err(faulty(path, "hw"))?),
            used_for: self.used_for,
        })
    }
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

impl Drawn {
    /// With all that it names, in the file at `path`.
    fn found(&self, path: &Path) -> Result<Kind, InputError> {
        let model = find_model(&self.model).map_err(faulty(path, "model"))?.spec;
        let workload = Workload {
            prompt_len: self.prompt_len,
            gen_len: self.gen_len,
            num_prompts: None,
        };
        let mut published = match &self.published {
            Some(file) => read_published(&beside(path, file))?,
            None => Vec::new(),
        };
        published.retain(|p| p.model.name == model.name && p.workload == workload);
        Ok(Kind::Pareto {
            machine: Box::new(find_profile(&self.hw).map_err(faulty(path, "hw"))?),
            model: Box::new(model),
            workload,
            systems: systems(path, &self.systems)?,
            published,
        })
    }
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
            // As the planner's own plans of whole layers are.
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
pub(super) fn default_prompt_len() -> u32 {
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
    if folder.is_file() {
        let remedy = "give the folder that it is in";
        return Err(InputError::bad_whole_file(folder, "is a file", remedy));
    }
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

/// What all files of tables have.
#[derive(Deserialize)]
struct Kinded {
    kind: Option<String>,
}

/// A name that nothing has is this file's fault, not the command line's.
pub(super) fn faulty<E: Display>(path: &Path, key: &'static str) -> impl Fn(E) -> InputError {
    move |error| InputError::bad_file(path, key, error.to_string(), "correct the file")
}

fn read(path: &Path) -> Result<Definition, InputError> {
    let text = read_text(path)?;
    let text = TomlText { path, text: &text };
    if text.parse::<Kinded>()?.kind.is_none() {
        let problem = "is no table: it has no `kind`";
        let remedy = "give it one, as those in experiments/flexgen have; a grid is for `plimsoll validate --grid`";
        return Err(InputError::bad_whole_file(path, problem, remedy));
    }
    let written: Written = text.parse()?;
    Ok(Definition {
        name: stem(path),
        title: written.title().clone(),
        kind: written.found(path)?,
    })
}
