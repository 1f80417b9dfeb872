//! `plimsoll plan`: the best way to run a model on a machine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::ValueEnum;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::LowerError;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Schedule;
use plimsoll_core::sparse::DENSE;
use plimsoll_core::units::Seconds;
use serde_json::json;

use super::against;
use super::exit::{Exit, Failure};
use super::input::check_gpus;
use super::lengths::{self, LengthArgs};
use super::options::{
    DtypeArgs, Format, ScheduleName, Switch, WorkloadArgs, positive, share_of_values,
};
use super::output::{Outputs, complain, print, print_json, written_to};
use super::progress::Progress;
use super::what_if::WhatIf;
use crate::compare::{Comparison, compare};
use crate::files::{
    PlanFile, SearchNote, find_model, find_profile, plan_json, read_lengths, write_text,
};
use crate::padding::plan_lengths;
use crate::planner::split::{GreedysLoss, loss_of};
use crate::planner::{
    Allowed, Answer, Flag, Infeasible, Objective, PlanError, Planned, Request, Strategy, Subject,
    Unasked, is_too_long_for_advice, search_watched, unasked,
};
use crate::report::bottleneck::bottleneck_text;
use crate::report::plan::{duration, intervals_machine, locks_much, plan_text, search_text};
use crate::report::{packed_note, three_digits};

/// What to plan.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine: a path, a name in hw-profiles/ of the current directory, or an embedded profile
    #[arg(long, value_name = "PROFILE")]
    hw: String,
    #[command(flatten)]
    what_if: WhatIf,
    /// The model: a name, a config.json of Hugging Face, or a folder that holds one
    #[arg(long)]
    model: String,
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    lengths: LengthArgs,
    #[command(flatten)]
    wish: Wish,
    /// Say why the plan is better than that of another plan file, decision by decision
    #[arg(long, value_name = "FILE", conflicts_with = "prompt_lens")]
    against: Option<PathBuf>,
    #[command(flatten)]
    dtype: DtypeArgs,
    /// How to print the answer; JSON is the plan file
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write the plan, for `run --plan` and `simulate --plan`
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What makes a plan good.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Wish {
    /// What makes a plan better
    #[arg(long, value_enum, default_value_t = ObjectiveName::Throughput)]
    objective: ObjectiveName,
    /// Allow weights in 4 bits an element: they are kept so only where that is better (simulate and
    /// perplexity apply it)
    #[arg(long)]
    compress_weight: bool,
    /// Allow a KV cache in 4 bits an element: it is kept so only where that is better (simulate and
    /// perplexity apply it)
    #[arg(long)]
    compress_cache: bool,
    /// Read only this share of the values in decode, those with the largest weights (Top-K sparse
    /// attention). It changes what comes out, which the planner does not judge
    #[arg(long, value_name = "SHARE", default_value_t = DENSE, value_parser = share_of_values,
          allow_negative_numbers = true)]
    sparse_attention: f64,
    /// Compute decode attention over cache that is not on the device on the CPU, or never [default: what
    /// is better]
    #[arg(long, value_enum)]
    cpu_compute: Option<Switch>,
    /// The order of computation [default: zig-zag or diagonal, the better one]
    #[arg(long, value_enum)]
    schedule: Option<ScheduleName>,
    /// Move nothing while anything computes
    #[arg(long)]
    no_overlap: bool,
    /// Whose plans to look for: FlexGen's, whose linear layers are whole; HeteGen's, which the CPU and the device
    /// compute together; or the better of both by simulation
    #[arg(long, value_enum, default_value_t = StrategyName::Flexgen)]
    strategy: StrategyName,
    /// The longest that the whole workload may take, in seconds; where prompts are endless, the longest that a prompt
    /// may be in the machine: a block's time, in the steady state of a diagonal schedule
    #[arg(long, value_name = "S", value_parser = positive, allow_negative_numbers = true)]
    max_latency_s: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ObjectiveName {
    /// Generated tokens a second
    Throughput,
    /// The time until all prompts are answered; of one prompt, where --num-prompts does not say how many
    Latency,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StrategyName {
    /// The better of both
    Auto,
    /// Whole linear layers on the device
    Flexgen,
    /// Linear layers split between the CPU and the device
    Hetegen,
}

impl From<StrategyName> for Strategy {
    fn from(name: StrategyName) -> Strategy {
        match name {
            StrategyName::Auto => Strategy::Auto,
            StrategyName::Flexgen => Strategy::FlexGen,
            StrategyName::Hetegen => Strategy::HeteGen,
        }
    }
}

impl Wish {
    /// What the planner takes for granted where nothing is said.
    fn assumed(self, workload: WorkloadArgs) -> Option<&'static str> {
        let one = self.objective == ObjectiveName::Latency && workload.num_prompts.is_none();
        one.then_some(
            "1 prompt, as --objective latency means where --num-prompts does not say more",
        )
    }

    /// The planner's request.
    pub fn request(self, workload: WorkloadArgs) -> Request {
        Request {
            workload: workload.into(),
            objective: match self.objective {
                ObjectiveName::Throughput => Objective::Throughput,
                ObjectiveName::Latency => Objective::Latency,
            },
            max_latency_s: self.max_latency_s.map(Seconds),
            allowed: Allowed {
                compression: Compression::of(self.compress_weight, self.compress_cache),
                sparse_attention: self.sparse_attention,
                cpu_attention: self.cpu_compute.map(Switch::is_on),
                schedule: self.schedule.map(Schedule::from),
                overlap: !self.no_overlap,
                strategy: self.strategy.into(),
            },
        }
    }
}

/// Plans and prints.
///
/// # Errors
/// Input that is wrong, or that no plan fits.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let output = args.output.as_deref();
    Outputs::of([("--output", output)])
        .apart_from([
            ("--prompt-lens", args.lengths.prompt_lens.as_deref()),
            ("--against", args.against.as_deref()),
        ])
        .sparing(Some(&args.hw), [&*args.model])
        .check()?;
    let profile = args.what_if.of(find_profile(&args.hw)?);
    let model = find_model(&args.model)?;
    let dtype = args.dtype.of(&model)?;
    let subject = Subject {
        profile: &profile,
        model: &model.spec,
        dtype,
    };
    let request = args.wish.request(args.workload);
    let other = args.against.as_deref();
    let other = other.map(|file| against::plan_for(file, &model.spec));
    let other = other.transpose()?;
    if let (Some(file), Some(other)) = (&args.against, &other) {
        check_gpus(
            &other.policy.pipeline,
            &profile,
            Some(&file.display().to_string()),
        )?;
    }
    if let Some(file) = &args.lengths.prompt_lens {
        let buckets_max = args.lengths.padding.buckets_max();
        let lengths = read_lengths(file)?;
        let bar = Progress::new("searching", 1);
        let mut watch = |done, steps| bar.set_of(done, steps);
        let planned = plan_lengths(subject, &request, (&lengths, buckets_max), &mut watch);
        drop(bar);
        return match planned.map_err(refused)? {
            Ok(batches) => {
                let plans = batches.buckets.iter().map(|(_, planned)| &planned.plan);
                let notes = notes(args, plans, &profile);
                lengths::report(&batches, &notes, args.format, args.output.as_deref())
            }
            Err(answer) => found(answer, subject, &request)
                .map_or_else(|refusal| args.refuse(&refusal), |_| Ok(())),
        };
    }
    let answer = searched(subject, &request)?;
    match found(answer, subject, &request) {
        Ok(planned) => {
            let compared = other.map(|it| compare(&it.policy, &planned.plan, &profile));
            // What would help is no reason to fail.
            let unasked = unasked(subject, &request, &planned).unwrap_or_else(|error| {
                complain(&format!("what would help is not known: {error:#}"));
                Vec::new()
            });
            let found = (&*planned, &unasked[..]);
            report((args, &profile), found, compared.transpose()?.as_ref())
        }
        Err(refusal) => args.refuse(&refusal),
    }
}

impl Args {
    fn refuse(&self, refusal: &Refusal) -> anyhow::Result<()> {
        if self.format == Format::Json {
            print_json(&refusal.json)?;
        }
        Err(Failure::new(Exit::Infeasible, refusal.line.clone()).into())
    }
}

/// The planner's answer, with its progress where a person looks.
pub(super) fn searched(subject: Subject<'_>, request: &Request) -> anyhow::Result<Answer> {
    let bar = Progress::new("searching", 1);
    let mut watch = |done, steps| bar.set_of(done, steps);
    search_watched(subject, request, &mut watch).map_err(refused)
}

/// Flags that make no request are wrong usage.
pub(super) fn refused(error: PlanError) -> anyhow::Error {
    match error {
        PlanError::Request(error) => Failure::new(Exit::Usage, error.to_string()).into(),
        other => other.into(),
    }
}

/// That there is no plan, for people and for programs.
pub(super) struct Refusal {
    pub line: String,
    json: serde_json::Value,
}

/// The plan that a request has on a machine, or why there is none.
pub(super) fn found(
    answer: Answer,
    subject: Subject<'_>,
    request: &Request,
) -> Result<Box<Planned>, Refusal> {
    match answer {
        Answer::Plan(planned) => Ok(planned),
        Answer::Infeasible(infeasible) => Err(does_not_fit(&infeasible)),
        Answer::TooSlow(planned) => {
            let request = Request {
                workload: planned.plan.workload,
                ..*request
            };
            // What would help is no reason to fail.
            let flags = unasked(subject, &request, &planned).unwrap_or_default();
            Err(too_slow((&planned, &flags), subject.profile))
        }
    }
}

fn does_not_fit(infeasible: &Infeasible) -> Refusal {
    let line = infeasible.to_string();
    let json = json!({ "infeasible": {
        "why": line,
        "tier": infeasible.bound.tier(),
        "bound": infeasible.bound,
        "capacity_bytes": infeasible.capacity,
        "whole_bytes": infeasible.whole_and_reserved[0],
        "reserved_bytes": infeasible.whole_and_reserved[1],
        "needed_bytes": infeasible.needed,
        "missing_bytes": infeasible.lacks(),
        "nearest": infeasible.nearest,
        "also_missing_bytes": infeasible.also.iter().map(|(bound, bytes)| (bound.to_string(), bytes.0)).collect::<BTreeMap<_, _>>(),
        "nearest_needs_bytes": infeasible.nearest_needs,
        "fits_in_4_bits": infeasible.fits_in_4_bits,
    }});
    Refusal { line, json }
}

fn too_slow((planned, flags): (&Planned, &[Unasked]), profile: &HardwareProfile) -> Refusal {
    let prediction = planned.plan.prediction.as_ref();
    let latency = prediction.map(|summary| summary.latency_s);
    let bottleneck = prediction.map_or(String::new(), bottleneck_text);
    let tries = flags.iter().map(|Unasked { flag, gain }| {
        let (about, or_more) = bounds(*flag, profile);
        let flag = in_flags(*flag);
        format!("; {flag} would be {about} {gain:.1}x as fast{or_more}")
    });
    let tries: String = tries.collect();
    let line = format!(
        "no plan is fast enough: the fastest that was found takes {}: {}; \
         allow a longer --max-latency-s, or ask for less{tries}",
        latency.map_or("too long".to_owned(), in_words),
        bottleneck
    );
    let json = json!({ "infeasible": {
        "why": line,
        "fastest_latency_s": latency,
        "bottleneck": bottleneck,
        "nearest": planned.plan,
    }});
    Refusal { line, json }
}

/// A time in seconds that the flag takes, no less than it is; and as people say it where that is another unit.
fn in_words(time: Seconds) -> String {
    let (digits, steps) = if time.0 < 10.0 { (2, 100.0) } else { (1, 10.0) };
    let seconds = format!("{:.digits$} s", (time.0 * steps).ceil() / steps);
    let said = duration(time);
    match said.ends_with(" s") {
        true => seconds,
        false => format!("{said} ({seconds})"),
    }
}

/// `compared` is with `args.against`, whose policy may not fit.
fn report(
    (args, profile): (&Args, &HardwareProfile),
    (planned, unasked): (&Planned, &[Unasked]),
    compared: Option<&Result<Comparison, LowerError>>,
) -> anyhow::Result<()> {
    let advice = advice((planned, unasked), (profile, args.wish.objective));
    let greedys_loss = greedys_loss(planned, profile)?;
    let refused = compared.and_then(|it| it.as_ref().err().map(ToString::to_string));
    let assumed = args.wish.assumed(args.workload);
    let assumed = assumed.map_or(String::new(), |what| format!("planned    for {what}\n"));
    let machine = [
        strategies(args, planned),
        modules(&planned.plan, greedys_loss),
        notes(args, [&planned.plan], profile),
    ];
    let machine = machine.concat();
    let json = plan_json(&PlanFile {
        plan: &planned.plan,
        search: Some(SearchNote {
            considered: planned.considered,
            advice: &advice,
            notes: (assumed.lines().chain(machine.lines()))
                .map(in_one_space)
                .collect(),
            runner_up: planned.runner_up.as_ref(),
            greedys_loss,
            against: compared.and_then(|it| it.as_ref().ok()),
            against_refused: refused.as_deref(),
        }),
    });
    // A file that cannot be written does not cost the answer.
    let written = match &args.output {
        Some(path) => write_text(path, &json),
        None => Ok(()),
    };
    let printed = match args.format {
        Format::Json => print(&json),
        Format::Text => {
            let runner_up = planned.runner_up.as_ref();
            let plans = (&planned.plan, runner_up);
            let search = search_text(plans, planned.considered, &advice);
            let compared = args.against.as_deref().zip(compared);
            let asked = (profile, &args.wish.request(args.workload));
            let compared = compared.map(|(file, it)| against::text(file, it, asked));
            let search = search + &compared.unwrap_or_default();
            let file = args.output.as_deref().filter(|_| written.is_ok());
            let file = file.map_or(String::new(), written_to);
            print(&format!(
                "{}\n{assumed}{search}{machine}{file}",
                plan_text(&planned.plan)
            ))
        }
    };
    written?;
    printed
}

/// A line without the room between its columns.
fn in_one_space(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is to be said of plans on a machine, each once.
fn notes<'a>(
    args: &Args,
    plans: impl IntoIterator<Item = &'a Plan>,
    profile: &HardwareProfile,
) -> String {
    let mut notes = vec![args.what_if.note(profile)];
    for plan in plans {
        notes.extend([
            intervals_machine(plan, profile),
            locks_much(plan, profile),
            cpu_products(plan, profile),
            packed_products(plan, profile),
        ]);
    }
    notes.push(one_of(args, profile));
    let mut said: Vec<String> = Vec::new();
    for note in notes {
        if !said.contains(&note) {
            said.push(note);
        }
    }
    said.concat()
}

/// By how much the better of two strategies is better, or why there is one only.
fn strategies(args: &Args, planned: &Planned) -> String {
    if let Some(why) = &planned.not_split {
        return format!("strategy   flexgen; hetegen has no plan: {why}\n");
    }
    let rate = |plan: &Plan| plan.prediction.as_ref().map(|p| p.throughput_tok_s);
    // Where there is no plan of the other strategy, the next best is of the same.
    let is_split = |plan: &Plan| plan.policy.split.is_some();
    let other = planned.runner_up.as_ref();
    let other = other.filter(|other| is_split(other) != is_split(&planned.plan));
    let rates = rate(&planned.plan).zip(other.and_then(rate));
    let Some((best, other)) = rates.filter(|_| args.wish.strategy == StrategyName::Auto) else {
        return String::new();
    };
    let names = match is_split(&planned.plan) {
        true => ("hetegen", "flexgen"),
        false => ("flexgen", "hetegen"),
    };
    let gain = best / other;
    format!(
        "strategy   {}: {gain:.2}x the throughput of {}'s best plan\n",
        names.0, names.1
    )
}

/// What the greedy choice of modules loses in the plan, or in the next best where that is what splits linear layers.
fn greedys_loss(
    planned: &Planned,
    profile: &HardwareProfile,
) -> Result<Option<GreedysLoss>, PlanError> {
    let mut plans = [Some(&planned.plan), planned.runner_up.as_ref()]
        .into_iter()
        .flatten();
    let split = plans.find(|plan| plan.policy.split.is_some());
    split.map_or(Ok(None), |plan| loss_of(plan, profile))
}

/// How linear layers were chosen for the device, and what that loses.
fn modules(winner: &Plan, loss: Option<GreedysLoss>) -> String {
    let whose = match winner.policy.split {
        Some(_) => "",
        None => "of the next best, ",
    };
    let greedy = winner.prediction.as_ref().map(|it| it.throughput_tok_s);
    loss.map_or(String::new(), |loss| {
        let exact = loss.exact_throughput_tok_s;
        // Both choices are made of modules' times one by one, which is not how a schedule runs them.
        let slower = whose.is_empty() && greedy.is_some_and(|greedy| greedy > exact);
        let as_run = if slower { ", slower all the same" } else { "" };
        format!(
            "modules    {whose}for the device chosen greedily (HeteGen's scheduler): {:.2}% less time saved a token than by the \
             exact choice, which makes {} tok/s{as_run}\n",
            100.0 * loss.share_of_saving,
            three_digits(exact)
        )
    })
}

/// Says that nobody knows how fast the CPU multiplies.
fn cpu_products(plan: &Plan, profile: &HardwareProfile) -> String {
    let said = at_most(plan.policy.split.is_some(), profile);
    said.map_or(String::new(), |said| format!("note       {said}\n"))
}

/// Says that nobody knows how fast the device multiplies with weights in 4 bits.
pub(super) fn packed_products(plan: &Plan, profile: &HardwareProfile) -> String {
    let said = packed_note(profile, plan.kept());
    said.map_or(String::new(), |said| format!("note       {said}\n"))
}

/// That what is predicted of plans, some of them split, is a bound by data sheets, and why; none where it is not.
pub(super) fn at_most(any_split: bool, profile: &HardwareProfile) -> Option<String> {
    (any_split && !profile.knows_cpu_products()).then(|| {
        format!(
            "nobody measured how fast the CPU of {} multiplies (compute.cpu_gemm): {}, which it hardly reaches: take the throughput for a bound; on the machine itself \
             `plimsoll profile` (with a GPU: `--backend cuda`) measures it",
            profile.name,
            cpu_bound(profile)
        )
    })
}

/// What stands in for the speed of a CPU that nobody measured.
fn cpu_bound(profile: &HardwareProfile) -> &'static str {
    match profile.compute.cpu_gemm.is_empty() {
        true => "host memory alone bounds it",
        false => "host memory and the peak of its arithmetic bound it",
    }
}

/// Says that a schedule leaves GPUs of the machine idle.
fn one_of(args: &Args, profile: &HardwareProfile) -> String {
    let zigzag = args.wish.schedule.map(Schedule::from) == Some(Schedule::ZigZag);
    match (args.wish.schedule.is_none() || zigzag, profile.num_gpus()) {
        (false, gpus @ 2..) => format!(
            "note       one of {gpus} GPUs is used: only zig-zag plans are spread over several\n"
        ),
        _ => String::new(),
    }
}

/// What would help: of the machine, then by flags.
fn advice(
    (planned, unasked): (&Planned, &[Unasked]),
    (profile, objective): (&HardwareProfile, ObjectiveName),
) -> Vec<String> {
    // Of stated prompts, so many times the throughput is as much less time.
    let would_be = |gain: f64, (about, or_more): (&str, &str)| match objective {
        ObjectiveName::Throughput => {
            format!("would give {about} {gain:.1}x the throughput{or_more}")
        }
        ObjectiveName::Latency => format!("would make it {about} {gain:.1}x as fast{or_more}"),
    };
    let helps = planned.advice.as_ref().map(|advice| {
        // How fast a CPU multiplies that nobody measured is a bound, of which the plan now has nothing.
        let is_bound = advice.is_split && planned.plan.policy.split.is_none();
        let bounds = match is_bound && !profile.knows_cpu_products() {
            true => AT_MOST,
            false => AT_LEAST,
        };
        format!("{} {}", advice.change, would_be(advice.gain, bounds))
    });
    let none = match is_too_long_for_advice(&planned.plan) {
        true => "no change of the machine was tried: the plan takes long to simulate",
        false => "no single change that was tried helps",
    };
    let helps = helps.unwrap_or_else(|| none.to_owned());
    let prediction = planned.plan.prediction.as_ref();
    let bottleneck = prediction.map_or(String::new(), bottleneck_text);
    let flags = unasked.iter().map(|Unasked { flag, gain }| {
        let bounds = bounds(*flag, profile);
        let but = match flag {
            Flag::CompressWeight | Flag::CompressCache => "; answers change a little",
            Flag::SplitLayers if bounds == AT_MOST => &format!(
                "; nobody measured how fast the CPU multiplies: {}",
                cpu_bound(profile)
            ),
            Flag::SplitLayers => "",
        };
        let gain = would_be(*gain, bounds);
        format!("{} {gain}{but}", in_flags(*flag))
    });
    let machine = format!("{bottleneck}; {helps}");
    std::iter::once(machine).chain(flags).collect()
}

/// What stands before and behind a gain that a search of a few shapes finds, or of which nobody measured what it takes.
const AT_LEAST: (&str, &str) = ("about", " or more");
const AT_MOST: (&str, &str) = ("up to", "");

/// What stands before and behind a flag's gain: where nobody measured the CPU's products it is the most that there can be.
fn bounds(flag: Flag, profile: &HardwareProfile) -> (&'static str, &'static str) {
    match flag {
        Flag::SplitLayers if !profile.knows_cpu_products() => AT_MOST,
        _ => AT_LEAST,
    }
}

/// A flag as it is written, with what it means.
fn in_flags(flag: Flag) -> &'static str {
    match flag {
        Flag::CompressWeight => "--compress-weight (4 bits)",
        Flag::CompressCache => "--compress-cache (4 bits)",
        Flag::SplitLayers => "--strategy auto (the CPU computes part of each layer)",
    }
}
