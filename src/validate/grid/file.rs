//! What a grid file says, as written. Entries keep their place in the text, for messages.

use plimsoll_core::Dtype;
use plimsoll_core::policy::{Granularity, Schedule};
use plimsoll_core::units::{Bytes, BytesPerSecond};
use serde::Deserialize;
use toml::Spanned;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GridFile {
    #[serde(default = "default_dtype")]
    pub dtype: Dtype,
    #[serde(default = "default_repeats")]
    pub repeats: Spanned<u32>,
    pub model: Vec<Spanned<ModelEntry>>,
    pub placement: Vec<Spanned<PlacementEntry>>,
    #[serde(default)]
    pub schedule: Vec<Spanned<ScheduleEntry>>,
    pub batch: Vec<Spanned<BatchEntry>>,
    #[serde(default)]
    pub machine: Vec<Spanned<MachineEntry>>,
    #[serde(default)]
    pub case: Vec<Spanned<CaseEntry>>,
}

fn default_dtype() -> Dtype {
    Dtype::F32
}

fn default_repeats() -> Spanned<u32> {
    Spanned::new(0..0, 3)
}

/// A part that cases name.
pub(super) trait Part {
    /// The name of its array of tables.
    const KIND: &'static str;

    fn name(&self) -> &str;
}

macro_rules! parts {
    ($($part:ident: $kind:literal),*) => {$(
        impl Part for $part {
            const KIND: &'static str = $kind;

            fn name(&self) -> &str {
                &self.name
            }
        }
    )*};
}

parts!(
    ModelEntry: "model",
    PlacementEntry: "placement",
    ScheduleEntry: "schedule",
    BatchEntry: "batch",
    MachineEntry: "machine"
);

/// A registry name or path, or the shape of a decoder.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelEntry {
    pub name: String,
    pub model: Option<String>,
    /// What its tensors are stored in; the file's type, if none.
    pub dtype: Option<Dtype>,
    pub family: Option<ShapeFamily>,
    pub num_hidden_layers: Option<u32>,
    pub hidden_size: Option<u32>,
    pub num_attention_heads: Option<u32>,
    pub num_key_value_heads: Option<u32>,
    /// What the config.json of OPT calls ffn_dim, which is taken as well.
    #[serde(alias = "ffn_dim")]
    pub intermediate_size: Option<u32>,
    pub vocab_size: Option<u32>,
}

/// The families of which a shape can be stated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ShapeFamily {
    #[default]
    Opt,
    Llama,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlacementEntry {
    pub name: String,
    /// FlexGen's six percentages; without them the planner chooses.
    pub percent: Option<[f64; 6]>,
    #[serde(default)]
    pub cpu_attention: bool,
    pub granularity: Option<Granularity>,
    #[serde(default)]
    pub compress_weight: bool,
    #[serde(default)]
    pub compress_cache: bool,
    /// The share of past tokens whose values are read; all, if none.
    pub sparse_attention: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScheduleEntry {
    pub name: String,
    pub schedule: Schedule,
    #[serde(default = "yes")]
    pub overlap: bool,
    #[serde(default)]
    pub barrier: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchEntry {
    pub name: String,
    /// Of placements that state percentages; elsewhere the planner chooses.
    pub gpu_batch_size: Option<u32>,
    pub num_gpu_batches: Option<u32>,
    pub prompt_len: u32,
    pub gen_len: u32,
    pub num_prompts: Option<u64>,
    /// Runs on this machine only.
    pub machine: Option<String>,
    /// Runs with this model only.
    pub model: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MachineEntry {
    pub name: String,
    pub device_capacity_bytes: Option<Bytes>,
    pub host_capacity_bytes: Option<Bytes>,
    pub disk_capacity_bytes: Option<Bytes>,
    pub h2d_bytes_per_s: Option<BytesPerSecond>,
    pub d2h_bytes_per_s: Option<BytesPerSecond>,
    pub disk_read_bytes_per_s: Option<BytesPerSecond>,
    pub disk_write_bytes_per_s: Option<BytesPerSecond>,
}

/// One case by the names of its parts; a part that is not named is the first of its kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseEntry {
    pub model: Option<String>,
    pub placement: Option<String>,
    pub schedule: Option<String>,
    pub batch: Option<String>,
    pub machine: Option<String>,
}

impl BatchEntry {
    /// The machine that it is for, and the model.
    pub fn only(&self) -> (Option<&str>, Option<&str>) {
        (self.machine.as_deref(), self.model.as_deref())
    }
}

impl GridFile {
    /// One schedule and one machine, where the file has none.
    pub fn with_defaults(mut self) -> GridFile {
        if self.schedule.is_empty() {
            let zigzag = ScheduleEntry {
                name: "zigzag".into(),
                schedule: Schedule::ZigZag,
                overlap: true,
                barrier: false,
            };
            self.schedule.push(Spanned::new(0..0, zigzag));
        }
        if self.machine.is_empty() {
            let as_profiled = MachineEntry {
                name: "as profiled".into(),
                ..MachineEntry::default()
            };
            self.machine.push(Spanned::new(0..0, as_profiled));
        }
        self
    }
}
