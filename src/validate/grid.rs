//! The grid of validation cases, as data: models, placements, schedules, batches and machines.

use std::path::Path;

use plimsoll_core::Dtype;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::policy::{Granularity, Policy, Schedule};
use plimsoll_core::units::{Bytes, BytesPerSecond};
use plimsoll_core::workload::Workload;
use serde::Deserialize;

use crate::files::{InputError, find_model};

/// The grid that `validate` runs unless another is given.
pub const BUILT_IN: &str = include_str!("grid.toml");

/// A grid as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GridFile {
    #[serde(default = "default_dtype")]
    dtype: Dtype,
    #[serde(default = "default_repeats")]
    repeats: u32,
    model: Vec<ModelEntry>,
    placement: Vec<PlacementEntry>,
    #[serde(default)]
    schedule: Vec<ScheduleEntry>,
    batch: Vec<BatchEntry>,
    #[serde(default)]
    machine: Vec<MachineEntry>,
    #[serde(default)]
    case: Vec<CaseEntry>,
}

fn default_dtype() -> Dtype {
    Dtype::F32
}

fn default_repeats() -> u32 {
    3
}

/// A registry name or path, or the shape of an OPT decoder.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelEntry {
    name: String,
    model: Option<String>,
    num_hidden_layers: Option<u32>,
    hidden_size: Option<u32>,
    num_attention_heads: Option<u32>,
    ffn_dim: Option<u32>,
    vocab_size: Option<u32>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlacementEntry {
    name: String,
    /// FlexGen's six percentages; without them the planner chooses.
    percent: Option<[f64; 6]>,
    #[serde(default)]
    cpu_attention: bool,
    #[serde(default)]
    granularity: Option<Granularity>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleEntry {
    name: String,
    schedule: Schedule,
    #[serde(default = "yes")]
    overlap: bool,
    #[serde(default)]
    barrier: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchEntry {
    name: String,
    gpu_batch_size: u32,
    num_gpu_batches: u32,
    prompt_len: u32,
    gen_len: u32,
    #[serde(default)]
    num_prompts: Option<u64>,
    /// Runs on this machine only.
    #[serde(default)]
    machine: Option<String>,
}

/// Capacities and throttles of an emulated machine; what is not said is the profile's.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineEntry {
    /// Its name in reports.
    pub name: String,
    /// Device memory.
    pub device_capacity_bytes: Option<Bytes>,
    /// Host memory.
    pub host_capacity_bytes: Option<Bytes>,
    /// Disk.
    pub disk_capacity_bytes: Option<Bytes>,
    /// Throttle of copies to the device.
    pub h2d_bytes_per_s: Option<BytesPerSecond>,
    /// Throttle of copies from the device.
    pub d2h_bytes_per_s: Option<BytesPerSecond>,
    /// Throttle of disk reads.
    pub disk_read_bytes_per_s: Option<BytesPerSecond>,
    /// Throttle of disk writes.
    pub disk_write_bytes_per_s: Option<BytesPerSecond>,
}

/// One case by the names of its parts; a part that is not named is the first of its kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseEntry {
    model: Option<String>,
    placement: Option<String>,
    schedule: Option<String>,
    batch: Option<String>,
    machine: Option<String>,
}

/// One case of a grid.
#[derive(Debug, Clone)]
pub struct Case {
    /// The names of its parts.
    pub name: String,
    /// The model.
    pub model: ModelSpec,
    /// The type of all tensors.
    pub dtype: Dtype,
    /// What is asked.
    pub workload: Workload,
    /// The policy, or `None` where the planner chooses.
    pub policy: Option<Policy>,
    /// The machine.
    pub machine: MachineEntry,
    /// The placement's name, for grouping.
    pub group: String,
}

/// All cases of a grid.
#[derive(Debug, Clone)]
pub struct Grid {
    /// In the file's order.
    pub cases: Vec<Case>,
    /// How often each is run.
    pub repeats: u32,
}

impl Grid {
    /// Reads a grid and multiplies it out: the cases that it lists, or all combinations.
    ///
    /// # Errors
    /// What is wrong with the file, by key.
    pub fn parse(text: &str, path: &Path) -> Result<Grid, InputError> {
        let bad =
            |problem: String, remedy: &str| InputError::bad_file(path, "grid", problem, remedy);
        let mut file: GridFile = toml::from_str(text)
            .map_err(|e| bad(e.message().replace('\n', " "), "see src/validate/grid.toml"))?;
        if file.schedule.is_empty() {
            file.schedule.push(ScheduleEntry {
                name: "zigzag".into(),
                schedule: Schedule::ZigZag,
                overlap: true,
                barrier: false,
            });
        }
        if file.machine.is_empty() {
            file.machine.push(MachineEntry {
                name: "as profiled".into(),
                ..MachineEntry::default()
            });
        }
        if file.repeats == 0 {
            return Err(bad("`repeats` is 0".into(), "give at least 1"));
        }
        file.check(path)?;
        let chosen = if file.case.is_empty() {
            all(&file)
        } else {
            file.case.clone()
        };
        let cases = chosen
            .iter()
            .map(|case| file.resolve(case, path))
            .collect::<Result<_, _>>()?;
        Ok(Grid {
            cases,
            repeats: file.repeats,
        })
    }
}

/// Every combination of a file's parts.
fn all(file: &GridFile) -> Vec<CaseEntry> {
    let mut cases = Vec::new();
    for model in &file.model {
        for placement in &file.placement {
            for schedule in &file.schedule {
                for batch in &file.batch {
                    let machines = file.machine.iter();
                    let allowed = |m: &&MachineEntry| {
                        batch.machine.as_ref().is_none_or(|only| *only == m.name)
                    };
                    for machine in machines.filter(allowed) {
                        cases.push(CaseEntry {
                            model: Some(model.name.clone()),
                            placement: Some(placement.name.clone()),
                            schedule: Some(schedule.name.clone()),
                            batch: Some(batch.name.clone()),
                            machine: Some(machine.name.clone()),
                        });
                    }
                }
            }
        }
    }
    cases
}

impl GridFile {
    /// Numbers that must be positive, and names that must be known.
    fn check(&self, path: &Path) -> Result<(), InputError> {
        for machine in &self.machine {
            let bytes = |b: Option<Bytes>| b.map(Bytes::as_f64);
            let rate = |r: Option<BytesPerSecond>| r.map(|r| r.0);
            for (key, value) in [
                (
                    "device_capacity_bytes",
                    bytes(machine.device_capacity_bytes),
                ),
                ("host_capacity_bytes", bytes(machine.host_capacity_bytes)),
                ("disk_capacity_bytes", bytes(machine.disk_capacity_bytes)),
                ("h2d_bytes_per_s", rate(machine.h2d_bytes_per_s)),
                ("d2h_bytes_per_s", rate(machine.d2h_bytes_per_s)),
                ("disk_read_bytes_per_s", rate(machine.disk_read_bytes_per_s)),
                (
                    "disk_write_bytes_per_s",
                    rate(machine.disk_write_bytes_per_s),
                ),
            ] {
                // Below a kilobyte a second nothing would ever end.
                let least = if key.ends_with("per_s") { 1e3 } else { 1.0 };
                if value.is_some_and(|v| !(v.is_finite() && v >= least)) {
                    let key = format!("machine `{}`: {key}", machine.name);
                    let problem = format!("is {}", value.unwrap_or_default());
                    let remedy = format!("give at least {least}");
                    return Err(InputError::bad_file(path, key, problem, remedy));
                }
            }
        }
        for batch in &self.batch {
            if batch.machine.is_some() {
                find(
                    "machine",
                    &self.machine,
                    batch.machine.as_deref(),
                    |m| &m.name,
                    path,
                )?;
            }
        }
        let kinds = [
            ("model", self.model.len()),
            ("placement", self.placement.len()),
            ("batch", self.batch.len()),
        ];
        match kinds.iter().find(|(_, count)| *count == 0) {
            None => Ok(()),
            Some((kind, _)) => Err(InputError::bad_file(
                path,
                kind,
                "is empty",
                format!("write a [[{kind}]]"),
            )),
        }
    }

    fn resolve(&self, case: &CaseEntry, path: &Path) -> Result<Case, InputError> {
        let model = find(
            "model",
            &self.model,
            case.model.as_deref(),
            |m| &m.name,
            path,
        )?;
        let placement = find(
            "placement",
            &self.placement,
            case.placement.as_deref(),
            |p| &p.name,
            path,
        )?;
        let schedule = find(
            "schedule",
            &self.schedule,
            case.schedule.as_deref(),
            |s| &s.name,
            path,
        )?;
        let batch = find(
            "batch",
            &self.batch,
            case.batch.as_deref(),
            |b| &b.name,
            path,
        )?;
        let machine = find(
            "machine",
            &self.machine,
            case.machine.as_deref(),
            |m| &m.name,
            path,
        )?;
        let parts = [
            &model.name,
            &placement.name,
            &schedule.name,
            &batch.name,
            &machine.name,
        ];
        let policy = match placement.percent {
            None => None,
            Some(percent) => Some(policy(placement, percent, schedule, batch, path)?),
        };
        Ok(Case {
            name: parts.map(String::as_str).join(" / "),
            model: model.spec(path)?,
            dtype: self.dtype,
            workload: Workload {
                prompt_len: batch.prompt_len,
                gen_len: batch.gen_len,
                num_prompts: batch.num_prompts,
            },
            policy,
            machine: machine.clone(),
            group: placement.name.clone(),
        })
    }
}

fn policy(
    placement: &PlacementEntry,
    percent: [f64; 6],
    schedule: &ScheduleEntry,
    batch: &BatchEntry,
    path: &Path,
) -> Result<Policy, InputError> {
    let base = Policy::from_percent(batch.gpu_batch_size, batch.num_gpu_batches, percent).map_err(
        |e| {
            InputError::bad_file(
                path,
                format!("placement `{}`", placement.name),
                e.to_string(),
                "mend it",
            )
        },
    )?;
    Ok(Policy {
        granularity: placement.granularity.unwrap_or(base.granularity),
        cpu_attention: placement.cpu_attention,
        schedule: schedule.schedule,
        overlap: schedule.overlap,
        barrier: schedule.barrier,
        ..base
    })
}

fn find<'a, T>(
    kind: &str,
    entries: &'a [T],
    wanted: Option<&str>,
    name: impl Fn(&T) -> &String,
    path: &Path,
) -> Result<&'a T, InputError> {
    let found = match wanted {
        None => entries.first(),
        Some(wanted) => entries.iter().find(|e| name(e) == wanted),
    };
    found.ok_or_else(|| {
        let known: Vec<&str> = entries.iter().map(|e| name(e).as_str()).collect();
        let problem = format!("there is no {kind} `{}`", wanted.unwrap_or("(any)"));
        InputError::bad_file(
            path,
            "case",
            problem,
            format!("name one of: {}", known.join(", ")),
        )
    })
}

impl ModelEntry {
    fn spec(&self, path: &Path) -> Result<ModelSpec, InputError> {
        let key = format!("model `{}`", self.name);
        let bad = |problem: String, remedy: &str| InputError::bad_file(path, &key, problem, remedy);
        if let Some(model) = &self.model {
            return Ok(find_model(model)?.spec);
        }
        let need = |name: &str, value: Option<u32>| {
            value.ok_or_else(|| bad(format!("`{name}` is missing"), "state it, or a `model`"))
        };
        let hidden = need("hidden_size", self.hidden_size)?;
        let config = serde_json::json!({
            "model_type": "opt",
            "hidden_size": hidden,
            "num_hidden_layers": need("num_hidden_layers", self.num_hidden_layers)?,
            "num_attention_heads": need("num_attention_heads", self.num_attention_heads)?,
            "ffn_dim": self.ffn_dim.unwrap_or(4 * hidden),
            "vocab_size": need("vocab_size", self.vocab_size)?,
            "max_position_embeddings": 2048,
            "word_embed_proj_dim": hidden,
        });
        ModelSpec::from_hf_config(&self.name, &config.to_string())
            .map_err(|e| bad(e.to_string(), "mend the shape"))
    }
}
