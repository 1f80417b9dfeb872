//! `plimsoll pareto`: what latency each throughput costs, or what throughput device memory gives, system by system.

mod memory;

use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::obstacle_to_splits;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::policy::Schedule;
use plimsoll_core::workload::Workload;
use serde::Serialize;

use super::Progress;
use super::exit::{Exit, Failure};
use super::options::{Format, PromptArgs};
use super::output::{Outputs, print, print_json};
use super::picture::FileKind;
use super::plan::{at_most, refused};
use super::what_if::WhatIf;
use crate::baseline::{DTYPE, System};
use crate::files::{find_model, find_profile};
use crate::pareto::{Point, Setting, points};
use crate::published::read_published;
use crate::report::{Frontier, POLICY_LEGEND, frontier_table, rates_note};

/// What is compared.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine: a path, a name in hw-profiles/, or an embedded profile
    #[arg(long, value_name = "PROFILE")]
    hw: String,
    #[command(flatten)]
    what_if: WhatIf,
    /// The model: a name, a config.json of Hugging Face, or a folder that holds one
    #[arg(long)]
    model: String,
    /// What throughput is held against
    #[arg(long, value_enum, default_value_t = Against::Latency)]
    x: Against,
    /// plimsoll, plimsoll-4bit, flexgen, flexgen-4bit, deepspeed, accelerate, hetegen [default: all but
    /// hetegen; over device memory plimsoll, hetegen, flexgen, deepspeed, accelerate]
    #[arg(long, value_name = "NAME", value_delimiter = ',', long_help = rules())]
    systems: Option<Vec<String>>,
    #[command(flatten)]
    workload: PromptArgs,
    /// Sequences in a block [default: 1, 2, 4 and so on, until no more fit or are of use]
    #[arg(long, value_name = "N", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    batches: Option<Vec<u32>>,
    /// Published points (CSV) to draw beside the predictions: system, model, prompt_len, gen_len,
    /// effective_batch, throughput_tok_s, latency_s
    #[arg(long, value_name = "FILE")]
    published: Option<PathBuf>,
    /// How to print the table
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Draw the frontiers (.svg, .png) or write a line a point (.csv); may be given more than once
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Against {
    /// The time of a block, over block sizes (FlexGen's figure 1)
    Latency,
    /// What the device has, of one prompt at a time (HeteGen's figure 8)
    DeviceMemory,
}

impl Against {
    fn systems(self) -> &'static str {
        match self {
            Against::Latency => "plimsoll,plimsoll-4bit,flexgen,flexgen-4bit,deepspeed,accelerate",
            Against::DeviceMemory => "plimsoll,hetegen,flexgen,deepspeed,accelerate",
        }
    }
}

/// What each system may decide.
fn rules() -> String {
    let rules = System::ALL.map(|system| format!("\n- {}: {}", system.name(), system.rules()));
    format!(
        "Whose rules to plan by, with commas between [default: {}; over device memory {}]:{}\n\nOver device memory \
         plimsoll may split linear layers as well (plan --strategy auto).",
        Against::Latency.systems(),
        Against::DeviceMemory.systems(),
        rules.concat()
    )
}

#[derive(Serialize)]
struct Report<'a> {
    hardware: &'a str,
    /// Memory that it was asked about with.
    if_it_had: WhatIf,
    /// Of those that the machine has.
    gpus_used: u32,
    gpus: u32,
    model: &'a str,
    /// That rates are those of another type.
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<String>,
    prompt_len: u32,
    gen_len: u32,
    computed_in_s: f64,
    points: &'a [Point],
}

/// Predicts, draws and prints.
///
/// # Errors
/// Input that is wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let outputs = args.output.iter().map(|path| FileKind::of(path));
    let outputs = outputs.collect::<Result<Vec<FileKind>, Failure>>()?;
    Outputs::of(args.output.iter().map(|path| ("--output", Some(&**path))))
        .apart_from([("--published", args.published.as_deref())])
        .sparing(Some(&args.hw), [&*args.model])
        .check()?;
    let profile = args.what_if.of(find_profile(&args.hw)?);
    let found = find_model(&args.model)?;
    let own_dtype = found.dtype(None).unwrap_or(DTYPE);
    let model = found.spec;
    let systems = chosen(args, &model)?;
    let workload = Workload::from(args.workload);
    let setting = Setting {
        profile: &profile,
        model: &model,
        workload,
    };
    if args.x == Against::DeviceMemory {
        return memory::run(args, setting, (&systems, &outputs));
    }
    let mut published = match &args.published {
        Some(path) => read_published(path)?,
        None => Vec::new(),
    };
    published.retain(|p| p.model.name == model.name && p.workload == workload);
    let begun = Instant::now();
    let bar = Progress::new("predicting", 1);
    let watch = |done, all| bar.set_of(done, all);
    let points = points(setting, &systems, args.batches.as_deref(), &watch).map_err(refused)?;
    drop(bar);
    let computed_in_s = begun.elapsed().as_secs_f64();
    let title = title(setting);
    let picture = Frontier {
        title: &title,
        points: &points,
        published: &published,
    };
    // A file that cannot be written does not cost the answer.
    let printed = match args.format {
        Format::Json => print_json(&Report {
            hardware: &profile.name,
            if_it_had: args.what_if,
            gpus_used: 1,
            gpus: profile.num_gpus(),
            model: &model.name,
            rates: rates_note(&profile, DTYPE),
            prompt_len: workload.prompt_len,
            gen_len: workload.gen_len,
            computed_in_s,
            points: &points,
        }),
        Format::Text => {
            let said = args.what_if.note(&profile);
            let text = text((&said, &points), &profile, own_dtype);
            print(&format!("{title}\n{text} in {computed_in_s:.2} s\n"))
        }
    };
    for (path, kind) in args.output.iter().zip(outputs) {
        kind.write(path, &picture, &points)?;
    }
    printed
}

/// All points, and what is to be said of them.
fn text((machine, points): (&str, &[Point]), profile: &HardwareProfile, own: Dtype) -> String {
    format!(
        "{machine}\n{}\n{POLICY_LEGEND}\n\n{}{}{}{}{}{}{} points",
        frontier_table(points),
        stored(own),
        rates(profile),
        one_of(profile),
        steady(points),
        split(points, profile),
        locked(points, profile),
        points.len()
    )
}

/// Says that points are of another type than the model's own.
fn stored(own: Dtype) -> String {
    match own == DTYPE {
        true => String::new(),
        false => format!(
            "All points are in {}, as the published ones are; the model's config.json says {}, which `plimsoll plan` takes.\n",
            DTYPE.name(),
            own.name()
        ),
    }
}

/// Says that rates are those of another type than the points are of.
fn rates(profile: &HardwareProfile) -> String {
    rates_note(profile, DTYPE).map_or(String::new(), |said| format!("Rates: {said}.\n"))
}

/// Says what the figures of one schedule's points are of.
fn steady(points: &[Point]) -> &'static str {
    match points
        .iter()
        .any(|p| p.schedule == Some(Schedule::Diagonal))
    {
        true => {
            "Diagonal points have the throughput of prompts that come without end, and the latency of a block alone.\n"
        }
        false => "",
    }
}

/// Says that nobody knows how fast the CPU multiplies, which split linear layers rest on.
fn split(points: &[Point], profile: &HardwareProfile) -> String {
    let any_split = points.iter().any(|point| point.is_split);
    let said = at_most(any_split, profile);
    said.map_or(String::new(), |said| format!("hetegen: {said}.\n"))
}

/// Says that a system page-locks more than the machine is known to allow, as it does; no plan of ours may.
fn locked(points: &[Point], profile: &HardwareProfile) -> String {
    let Some(most) = &profile.tiers.page_lockable_bytes else {
        return String::new();
    };
    let said = System::ALL.into_iter().filter_map(|system| {
        let own = points.iter().filter(|p| p.system == system.name());
        let locked = own.map(|point| point.page_locked).max()?;
        (locked > most.value).then(|| {
            format!(
                "{} page-locks up to {locked} of host memory; {} is known to allow {}, which plimsoll's plans keep to.\n",
                system.name(),
                profile.name,
                most.value
            )
        })
    });
    said.collect()
}

/// Says that a machine of several GPUs is not used whole.
fn one_of(profile: &HardwareProfile) -> String {
    match profile.num_gpus() {
        1 => String::new(),
        gpus => format!(
            "All points are of one GPU: {} has {gpus}, which `plimsoll plan` and `simulate` can use.\n",
            profile.name
        ),
    }
}

/// What a picture of a setting is called.
pub(super) fn title(setting: Setting<'_>) -> String {
    format!(
        "{} on {}: {} prompt tokens, {} generated",
        setting.model.name,
        setting.profile.name,
        setting.workload.prompt_len,
        setting.workload.gen_len
    )
}

/// Those that are named, else those of the axis that can plan the model.
fn chosen(args: &Args, model: &ModelSpec) -> Result<Vec<System>, Failure> {
    match &args.systems {
        Some(names) => systems(names.iter().map(String::as_str)),
        None => {
            let mut all = systems(args.x.systems().split(','))?;
            all.retain(|system| *system != System::HeteGen || obstacle_to_splits(model).is_none());
            Ok(all)
        }
    }
}

fn systems<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<System>, Failure> {
    let mut systems = Vec::new();
    for name in names {
        let system = System::named(name.trim())
            .map_err(|said| Failure::new(Exit::Usage, format!("--systems: {said}")))?;
        if !systems.contains(&system) {
            systems.push(system);
        }
    }
    Ok(systems)
}
