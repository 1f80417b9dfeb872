//! From the parts of a grid file to its cases.

use plimsoll_backend::cpu::Throttles;
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::lower::{LowerError, footprint};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::policy::{Policy, PolicyError};
use plimsoll_core::tier::PerTier;
use plimsoll_core::workload::Workload;
use toml::Spanned;

use super::check::{bad, find, says};
use super::file::{
    BatchEntry, CaseEntry, GridFile, MachineEntry, ModelEntry, Part, PlacementEntry, ScheduleEntry,
    ShapeFamily,
};
use super::{Case, Limits};
use crate::files::{InputError, TomlText, find_model};

/// The cases that a file lists, or all combinations of its parts.
pub(super) fn cases(text: &TomlText<'_>, file: &GridFile) -> Result<Vec<Case>, InputError> {
    if file.case.is_empty() {
        let all = combinations(file).into_iter();
        return all.map(|parts| parts.case(text, file.dtype)).collect();
    }
    let mut cases: Vec<Case> = Vec::new();
    for entry in &file.case {
        let case = Parts::named(text, file, entry)?.case(text, file.dtype)?;
        if let Some(twin) = cases.iter().position(|other| other.name == case.name) {
            let line = text.line(file.case[twin].span().start);
            let problem = format!("`{}` is in line {line} already", case.name);
            return Err(text.bad(entry.span().start, "case", problem, "remove one"));
        }
        cases.push(case);
    }
    Ok(cases)
}

/// What a case is made of.
struct Parts<'a> {
    model: &'a Spanned<ModelEntry>,
    placement: &'a Spanned<PlacementEntry>,
    schedule: &'a Spanned<ScheduleEntry>,
    batch: &'a Spanned<BatchEntry>,
    machine: &'a Spanned<MachineEntry>,
}

/// All of them, but each batch on its own machine and with its own model only, where it names one.
fn combinations(file: &GridFile) -> Vec<Parts<'_>> {
    let mut all = Vec::new();
    for model in &file.model {
        for placement in &file.placement {
            for schedule in &file.schedule {
                for batch in file.batch.iter().filter(|b| may_run_with(b, model)) {
                    let machines = file.machine.iter();
                    for machine in machines.filter(|m| may_run_on(batch, m)) {
                        all.push(Parts {
                            model,
                            placement,
                            schedule,
                            batch,
                            machine,
                        });
                    }
                }
            }
        }
    }
    all
}

fn may_run_on(batch: &Spanned<BatchEntry>, machine: &Spanned<MachineEntry>) -> bool {
    let (only, _) = batch.get_ref().only();
    only.is_none_or(|only| only == machine.get_ref().name)
}

fn may_run_with(batch: &Spanned<BatchEntry>, model: &Spanned<ModelEntry>) -> bool {
    let (_, only) = batch.get_ref().only();
    only.is_none_or(|only| only == model.get_ref().name)
}

impl<'a> Parts<'a> {
    fn named(
        text: &TomlText<'_>,
        file: &'a GridFile,
        entry: &Spanned<CaseEntry>,
    ) -> Result<Parts<'a>, InputError> {
        let (at, case) = (entry.span().start, entry.get_ref());
        let batch = find(text, at, &file.batch, case.batch.as_deref())?;
        let (machine_only, model_only) = batch.get_ref().only();
        let machine = case.machine.as_deref().or(machine_only);
        let model = case.model.as_deref().or(model_only);
        let parts = Parts {
            model: find(text, at, &file.model, model)?,
            placement: find(text, at, &file.placement, case.placement.as_deref())?,
            schedule: find(text, at, &file.schedule, case.schedule.as_deref())?,
            batch,
            machine: find(text, at, &file.machine, machine)?,
        };
        let machine = machine_only.filter(|_| !may_run_on(batch, parts.machine));
        let model = model_only.filter(|_| !may_run_with(batch, parts.model));
        for (key, only) in [("machine", machine), ("model", model)] {
            if let Some(only) = only {
                let batch = batch.get_ref().name();
                let problem = format!("batch `{batch}` is for `{only}` only");
                return Err(text.bad(at, key, problem, "name that, or another batch"));
            }
        }
        Ok(parts)
    }

    fn case(&self, text: &TomlText<'_>, dtype: Dtype) -> Result<Case, InputError> {
        let placement = self.placement.get_ref();
        let batch = self.batch.get_ref();
        let names = [
            self.model.get_ref().name(),
            placement.name(),
            self.schedule.get_ref().name(),
            batch.name(),
            self.machine.get_ref().name(),
        ];
        let blocks = placement.percent.map(|_| self.block(text)).transpose()?;
        let policy = placement.percent.zip(blocks);
        let policy = policy.map(|(percent, block)| self.policy(block, percent));
        let case = Case {
            name: names.join(" / "),
            group: placement.name.clone(),
            model: spec(text, self.model)?,
            dtype: self.model.get_ref().dtype.unwrap_or(dtype),
            workload: Workload {
                prompt_len: batch.prompt_len,
                gen_len: batch.gen_len,
                num_prompts: batch.num_prompts,
            },
            policy: policy
                .transpose()
                .map_err(|error| says(text, self.placement, "percent", error))?,
            limits: limits(self.machine.get_ref()),
        };
        match meaning(&case) {
            Ok(()) => Ok(case),
            Err(LowerError::Policy(
                error @ (PolicyError::SparseAttention { .. } | PolicyError::CompressedOnCpu),
            )) => Err(says(text, self.placement, "", error)),
            Err(error) => Err(says(text, self.batch, "", error)),
        }
    }

    /// The batches of a block, which a placement that states percentages needs.
    fn block(&self, text: &TomlText<'_>) -> Result<[u32; 2], InputError> {
        let batch = self.batch.get_ref();
        let needed = |key: &'static str, count: Option<u32>| {
            count.ok_or_else(|| {
                let placement = self.placement.get_ref().name();
                let problem = format!("is missing, and placement `{placement}` states percent");
                let remedy = "say how many, or leave percent out for the planner to choose";
                bad(text, self.batch, key, problem, remedy)
            })
        };
        Ok([
            needed("gpu_batch_size", batch.gpu_batch_size)?,
            needed("num_gpu_batches", batch.num_gpu_batches)?,
        ])
    }

    fn policy(
        &self,
        [gpu_batch_size, num_gpu_batches]: [u32; 2],
        percent: [f64; 6],
    ) -> Result<Policy, PolicyError> {
        let placement = self.placement.get_ref();
        let schedule = self.schedule.get_ref();
        let base = Policy::from_percent(gpu_batch_size, num_gpu_batches, percent)?;
        Ok(Policy {
            granularity: placement.granularity.unwrap_or(base.granularity),
            cpu_attention: placement.cpu_attention,
            schedule: schedule.schedule,
            overlap: schedule.overlap,
            barrier: schedule.barrier,
            compression: Compression::of(placement.compress_weight, placement.compress_cache),
            sparse_attention: placement.sparse_attention.unwrap_or(base.sparse_attention),
            // No executor here does so.
            relayed_weights: false,
            ..base
        })
    }
}

/// Whether the model can do what is asked, on a machine of any size. Where the planner chooses, one
/// sequence stands for its policy.
fn meaning(case: &Case) -> Result<(), LowerError> {
    let policy = match case.policy {
        Some(policy) => policy,
        None => Policy::from_percent(1, 1, [0.0; 6])?,
    };
    footprint(&case.plan(policy)).map(|_| ())
}

fn limits(machine: &MachineEntry) -> Limits {
    Limits {
        capacity_bytes: PerTier {
            device: machine.device_capacity_bytes,
            host: machine.host_capacity_bytes,
            disk: machine.disk_capacity_bytes,
        },
        throttles: Throttles {
            h2d: machine.h2d_bytes_per_s,
            d2h: machine.d2h_bytes_per_s,
            disk_read: machine.disk_read_bytes_per_s,
            disk_write: machine.disk_write_bytes_per_s,
            cpu: None,
        },
    }
}

/// The model that an entry names, or whose shape it is.
fn spec(text: &TomlText<'_>, entry: &Spanned<ModelEntry>) -> Result<ModelSpec, InputError> {
    let model = entry.get_ref();
    let shape = [
        ("hidden_size", model.hidden_size),
        ("num_hidden_layers", model.num_hidden_layers),
        ("num_attention_heads", model.num_attention_heads),
        ("vocab_size", model.vocab_size),
        ("intermediate_size", model.intermediate_size),
        ("num_key_value_heads", model.num_key_value_heads),
        ("family", model.family.map(|_| 0)),
    ];
    if let Some(name) = &model.model {
        if let Some((key, _)) = shape.iter().find(|(_, value)| value.is_some()) {
            let problem = format!("is `{name}`, and {key} states a shape");
            return Err(bad(text, entry, "model", problem, "keep one of them"));
        }
        return match find_model(name) {
            Ok(found) => Ok(found.spec),
            Err(InputError::UnknownName(said)) => {
                let said = said.strip_prefix("--model: ").unwrap_or(&said);
                Err(says(text, entry, "model", said))
            }
            Err(file) => Err(file),
        };
    }
    // The others have defaults.
    for (key, value) in &shape[..4] {
        if value.is_none() {
            let remedy = "state it, or the name of a known `model`";
            return Err(bad(text, entry, key, "is missing", remedy));
        }
    }
    let family = model.family.unwrap_or_default();
    if let (ShapeFamily::Opt, Some(_)) = (family, model.num_key_value_heads) {
        let (problem, remedy) = (
            "OPT has none of its own",
            "leave it out, or set family to \"llama\"",
        );
        return Err(bad(text, entry, "num_key_value_heads", problem, remedy));
    }
    let config = config(family, model);
    ModelSpec::from_hf_config(&model.name, &config.to_string()).map_err(|error| {
        // The entry is named before it.
        let said = error.to_string();
        let twice = format!("model `{}`: ", model.name);
        says(text, entry, "", said.strip_prefix(&twice).unwrap_or(&said))
    })
}

/// The shape as `config.json` would say it.
fn config(family: ShapeFamily, model: &ModelEntry) -> serde_json::Value {
    let ffn = model.intermediate_size;
    let ffn = ffn.or(model.hidden_size.map(|hidden| hidden.saturating_mul(4)));
    match family {
        ShapeFamily::Opt => serde_json::json!({
            "model_type": "opt",
            "hidden_size": model.hidden_size,
            "num_hidden_layers": model.num_hidden_layers,
            "num_attention_heads": model.num_attention_heads,
            "vocab_size": model.vocab_size,
            "ffn_dim": ffn,
            "max_position_embeddings": 2048,
            "word_embed_proj_dim": model.hidden_size,
        }),
        ShapeFamily::Llama => serde_json::json!({
            "model_type": "llama",
            "hidden_size": model.hidden_size,
            "num_hidden_layers": model.num_hidden_layers,
            "num_attention_heads": model.num_attention_heads,
            "num_key_value_heads": model.num_key_value_heads.or(model.num_attention_heads),
            "vocab_size": model.vocab_size,
            "intermediate_size": ffn,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
        }),
    }
}
