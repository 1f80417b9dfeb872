//! Flags that several subcommands share.

use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::{Comm, Pipeline};
use plimsoll_core::policy::{Granularity, PageLocked, Policy, Schedule};
use plimsoll_core::sparse::DENSE;
use plimsoll_core::term::Term;
use plimsoll_core::workload::Workload;

use crate::files::{FoundModel, InputError};
use crate::flexgen;
use crate::serve::workload::TimeUnit;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// How a table is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TableFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For spreadsheets.
    Csv,
}

/// A switch that must be stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self == Switch::On
    }
}

/// Element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DtypeName {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// IEEE 754 binary32.
    F32,
}

impl From<DtypeName> for Dtype {
    fn from(name: DtypeName) -> Dtype {
        match name {
            DtypeName::F16 => Dtype::F16,
            DtypeName::Bf16 => Dtype::Bf16,
            DtypeName::F32 => Dtype::F32,
        }
    }
}

/// What a trace's times count, where they are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TimeUnitName {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
}

impl From<TimeUnitName> for TimeUnit {
    fn from(name: TimeUnitName) -> TimeUnit {
        match name {
            TimeUnitName::S => TimeUnit::Seconds,
            TimeUnitName::Ms => TimeUnit::Milliseconds,
        }
    }
}

/// Schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ScheduleName {
    /// One GPU batch to its last token, then the next.
    Row,
    /// All GPU batches of a block share each layer's weights.
    Zigzag,
    /// The same, each at another token: as one leaves, the next is prefilled beside the others.
    Diagonal,
}

impl From<ScheduleName> for Schedule {
    fn from(name: ScheduleName) -> Schedule {
        match name {
            ScheduleName::Row => Schedule::Row,
            ScheduleName::Zigzag => Schedule::ZigZag,
            ScheduleName::Diagonal => Schedule::Diagonal,
        }
    }
}

/// How fractions become whole tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum GranularityName {
    /// In each layer by itself, as FlexGen does.
    Layer,
    /// Over the whole model, so that the split is close to what was asked.
    Spread,
}

impl From<GranularityName> for Granularity {
    fn from(name: GranularityName) -> Granularity {
        match name {
            GranularityName::Layer => Granularity::Layer,
            GranularityName::Spread => Granularity::Spread,
        }
    }
}

/// Which homes on the host are page-locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageLockName {
    /// As FlexGen's released code does: weights as far as the machine lets them, activations, not the cache.
    Flexgen,
    /// These.
    Stated(PageLocked),
}

/// Reads "flexgen", or what [`PageLocked::name`] writes.
pub(super) fn page_lock(text: &str) -> Result<PageLockName, String> {
    match text {
        "flexgen" => Ok(PageLockName::Flexgen),
        _ => PageLocked::named(text)
            .map(PageLockName::Stated)
            .ok_or_else(|| {
                "give flexgen, all, none, or some of weights, cache and activations with + between"
                    .to_owned()
            }),
    }
}

impl PageLockName {
    /// The buffers that are page-locked under a policy.
    pub fn resolve(
        self,
        profile: &HardwareProfile,
        model: &ModelSpec,
        dtype: Dtype,
        policy: &Policy,
    ) -> PageLocked {
        match self {
            PageLockName::Stated(stated) => stated,
            PageLockName::Flexgen => flexgen::page_locked(profile, model, dtype, policy),
        }
    }
}

/// The ways between two stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CommName {
    /// From device to device.
    Device,
    /// By way of both hosts.
    Host,
}

/// A model on several GPUs.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct PipelineArgs {
    /// Stages that the model's layers are spread over, one a GPU
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = RangedU64ValueParser::<u32>::new().range(1..=65_535))]
    stages: u32,
    /// Micro-batches in a block, each of --num-gpu-batches GPU batches [default: as many as stages]
    #[arg(long, value_name = "N", requires = "stages",
          value_parser = RangedU64ValueParser::<u32>::new().range(1..=65_535))]
    micro_batches: Option<u32>,
    /// Layers of the last stage, which has the head besides [default: as even as can be]
    #[arg(long, value_name = "N", requires = "stages",
          value_parser = RangedU64ValueParser::<u32>::new().range(1..=65_535))]
    last_stage_layers: Option<u32>,
    /// The way of activations on the device, and of tokens, to the next stage
    #[arg(long, value_enum, default_value_t = CommName::Device, requires = "stages")]
    comm: CommName,
}

impl PipelineArgs {
    /// Whether the model is on one GPU.
    pub fn is_one_stage(self) -> bool {
        self.stages == 1
    }

    /// The pipeline on a machine, whose hosts have GPUs in common as they do.
    pub fn on(self, profile: &HardwareProfile) -> Pipeline {
        Pipeline {
            stages: self.stages,
            micro_batches: self.micro_batches.unwrap_or(self.stages),
            stages_per_host: profile.gpus_per_host().min(self.stages),
            comm: match self.comm {
                CommName::Device => Comm::Device,
                CommName::Host => Comm::Host,
            },
            last_stage_layers: self.last_stage_layers,
        }
    }
}

/// The type that all is computed in.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct DtypeArgs {
    /// The type of weights, cache and activations [default: what the model's config.json says (dtype, or
    /// torch_dtype), else f16]
    #[arg(long, value_enum)]
    dtype: Option<DtypeName>,
}

impl DtypeArgs {
    /// The type for a model.
    ///
    /// # Errors
    /// None is given, and the model's is none that is computed with.
    pub fn of(self, model: &FoundModel) -> Result<Dtype, InputError> {
        model.dtype(self.dtype.map(Dtype::from))
    }
}

/// A workload of prompts without end.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct PromptArgs {
    /// Tokens in each prompt
    #[arg(long, default_value_t = 512, value_name = "TOKENS", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    prompt_len: u32,
    /// Tokens generated for each prompt
    #[arg(long, default_value_t = 32, value_name = "TOKENS", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub gen_len: u32,
}

impl From<PromptArgs> for Workload {
    fn from(args: PromptArgs) -> Workload {
        Workload {
            prompt_len: args.prompt_len,
            gen_len: args.gen_len,
            num_prompts: None,
        }
    }
}

/// The workload.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct WorkloadArgs {
    #[command(flatten)]
    pub each: PromptArgs,
    /// Prompts in all [default: no end of them. Figures are then of one block; of a diagonal schedule, of a block's
    /// worth in the steady state]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub num_prompts: Option<u64>,
}

impl From<WorkloadArgs> for Workload {
    fn from(args: WorkloadArgs) -> Workload {
        Workload {
            num_prompts: args.num_prompts,
            ..args.each.into()
        }
    }
}

/// Terms of the cost model, by name.
pub(super) fn term() -> impl TypedValueParser<Value = Term> {
    let values = Term::ALL.map(|term| PossibleValue::new(term.name()).help(term.when_off()));
    PossibleValuesParser::new(values)
        .map(|name| Term::named(&name).expect("clap takes their names only"))
}

/// A share of the values, as [`Policy`] takes it.
pub(super) fn share_of_values(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= DENSE => Ok(share),
        _ => Err("give a share above 0 and at most 1, such as 0.1 for a tenth".to_owned()),
    }
}

/// A number above 0, finite.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("give a number above 0".to_owned()),
    }
}
