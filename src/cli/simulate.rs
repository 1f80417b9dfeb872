//! `plimsoll simulate`: a plan, or a policy in FlexGen's terms, in modelled time.

use std::io;
use std::path::{Path, PathBuf};

use clap::builder::RangedU64ValueParser;
use plimsoll_core::compression::Compression;
use plimsoll_core::control::Run;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, check_fits};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Granularity, Policy};
use plimsoll_core::sparse::DENSE;
use plimsoll_core::summary::Summary;
use plimsoll_core::term::Term;
use plimsoll_core::tier::Tier;
use serde_json::json;

use super::exit::{Exit, Failure};
use super::input::{check_gpus, check_plan};
use super::options::{
    DtypeArgs, Format, GranularityName, PageLockName, PipelineArgs, ScheduleName, Switch,
    WorkloadArgs, page_lock, share_of_values, term,
};
use super::output::{Outputs, print, print_json, written_to};
use super::plan::packed_products;
use super::score::without_text;
use super::what_if::WhatIf;
use crate::files::{
    InputError, PlanFile, find_model, find_profile, input_name, plan_json, read_plan, write_text,
};
use crate::report::plan::{intervals_machine, locks_much, plan_text, whole_tensors};
use crate::trace_file::{Process, write_file, write_run};

/// A plan, or what makes one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine: a path, a name in hw-profiles/, or an embedded profile [default: the plan's]
    #[arg(long, value_name = "PROFILE", required_unless_present = "plan")]
    hw: Option<String>,
    #[command(flatten)]
    what_if: WhatIf,
    /// A plan to simulate, instead of a policy (- is standard input)
    #[arg(long, value_name = "FILE", conflicts_with_all = POLICY_FLAGS)]
    plan: Option<PathBuf>,
    /// The model: a name, a config.json of Hugging Face, or a folder that holds one
    #[arg(long, required_unless_present = "plan")]
    model: Option<String>,
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Sequences computed together on the GPU
    #[arg(long, value_name = "N", required_unless_present = "plan",
          value_parser = RangedU64ValueParser::<u32>::new().range(1..=65_535))]
    gpu_batch_size: Option<u32>,
    /// GPU batches in a block, or in each of its micro-batches
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = RangedU64ValueParser::<u32>::new().range(1..=65_535))]
    num_gpu_batches: u32,
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Percentages on GPU and CPU of weights, cache and activations; the rest is on disk
    #[arg(long, num_args = 6, allow_negative_numbers = true, required_unless_present = "plan",
          value_names = ["W_GPU", "W_CPU", "C_GPU", "C_CPU", "A_GPU", "A_CPU"])]
    percent: Option<Vec<f64>>,
    /// Move nothing while anything computes
    #[arg(long)]
    no_overlap: bool,
    /// Compute decode attention over cache that is not on the device on the CPU
    #[arg(long, value_enum, default_value_t = Switch::Off)]
    cpu_compute: Switch,
    /// The order of computation
    #[arg(long, value_enum, default_value_t = ScheduleName::Zigzag)]
    schedule: ScheduleName,
    /// Synchronise all resources after every GPU batch, as FlexGen's Algorithm 1 does
    #[arg(long, value_enum, default_value_t = Switch::On)]
    barrier: Switch,
    /// How percentages of weights become whole tensors
    #[arg(long, value_enum, default_value_t = GranularityName::Layer)]
    granularity: GranularityName,
    /// Whether a prompt's attention scores lie on the device all at once where steps meet (with the barrier or --no-overlap), as in
    /// FlexGen's released code
    #[arg(long, value_enum, default_value_t = Switch::On)]
    stored_scores: Switch,
    /// What on the host is page-locked: flexgen (as its code does), all, none, or some of weights, cache and activations with +
    /// between [default: flexgen; of a plan what it says]
    #[arg(long, value_name = "WHAT", value_parser = page_lock)]
    page_lock: Option<PageLockName>,
    /// Keep weights in 4 bits an element, in groups of 64
    #[arg(long)]
    compress_weight: bool,
    /// Keep the KV cache in 4 bits an element, in groups of 64
    #[arg(long)]
    compress_cache: bool,
    /// Read only this share of the values in decode, those with the largest weights (Top-K sparse attention)
    #[arg(long, value_name = "SHARE", default_value_t = DENSE, value_parser = share_of_values,
          allow_negative_numbers = true)]
    sparse_attention: f64,
    #[command(flatten)]
    dtype: DtypeArgs,
    /// Switch off a term of the cost model; may be given several times. What comes out predicts no run, so
    /// it is not written as a plan
    #[arg(long, value_name = "TERM", value_parser = term(), conflicts_with = "output")]
    without: Vec<Term>,
    /// Write a Chrome/Perfetto trace, a track a resource; in gzip where the name ends in .gz
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How to print the result; JSON is the plan with its prediction
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write the plan with its prediction, for `run --plan` and `simulate --plan`
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const POLICY_FLAGS: [&str; 21] = [
    "model",
    "prompt_len",
    "gen_len",
    "num_prompts",
    "gpu_batch_size",
    "num_gpu_batches",
    "stages",
    "micro_batches",
    "last_stage_layers",
    "comm",
    "percent",
    "no_overlap",
    "cpu_compute",
    "schedule",
    "barrier",
    "stored_scores",
    "granularity",
    "compress_weight",
    "compress_cache",
    "sparse_attention",
    "dtype",
];

/// Simulates and prints.
///
/// # Errors
/// Input that is wrong, or a plan that does not fit.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (output, trace) = (args.output.as_deref(), args.trace.as_deref());
    Outputs::of([("--output", output), ("--trace", trace)])
        .sparing(args.hw.as_deref(), args.model.as_deref())
        .check()?;
    // A plan with its new prediction may take the plan's place.
    Outputs::of([("--trace", trace)])
        .apart_from([("--plan", args.plan.as_deref())])
        .check()?;
    let (mut plan, profile) = match &args.plan {
        Some(_) => from_file(args)?,
        None => from_flags(args)?,
    };
    let profile = profile.without(&args.without).map_err(InputError::from)?;
    args.without
        .iter()
        .for_each(|term| term.off_in(&mut plan.policy));
    if let Err(error) = check_fits(&plan) {
        if args.format == Format::Json {
            // Whether it can be printed or not, the exit code says it.
            let _ = print_lack(&error);
        }
        return Err(does_not_fit(error, args, (&plan, &profile)));
    }
    // A picture of all tasks needs them all; what they come to does not.
    let run = match &args.trace {
        Some(_) => Some(plimsoll_sim::simulate(&plan, &profile)?),
        None => None,
    };
    let prediction = match &run {
        Some(run) => plimsoll_sim::prediction(&plan, &profile, run),
        None => plimsoll_sim::predict(&plan, &profile)?,
    };
    plan.prediction = Some(Summary {
        without: args.without.clone(),
        ..prediction
    });
    // A file that cannot be written costs neither the answer nor the other file.
    let trace = run.map_or(Ok(()), |run| write_trace(args, &plan, &run));
    let json = plan_json(&PlanFile {
        plan: &plan,
        search: None,
    });
    let output = match &args.output {
        Some(path) => write_text(path, &json),
        None => Ok(()),
    };
    let written = [(&args.output, &output), (&args.trace, &trace)];
    let written = written.map(|(file, done)| file.as_deref().filter(|_| done.is_ok()));
    let written: String = written.into_iter().flatten().map(written_to).collect();
    let printed = match args.format {
        Format::Text => {
            let machine = args.what_if.note(&profile)
                + &intervals_machine(&plan, &profile)
                + &locks_much(&plan, &profile)
                + &packed_products(&plan, &profile);
            print(&(without_text(&args.without) + &plan_text(&plan) + &machine + &written))
        }
        Format::Json => print(&json),
    };
    output.and(trace)?;
    printed
}

/// What does not fit, for programs: of what `plan` says, what a given policy has.
fn print_lack(error: &LowerError) -> anyhow::Result<()> {
    match error {
        LowerError::DoesNotFit {
            tier,
            stages,
            needed,
            capacity,
        } => print_json(&json!({ "infeasible": {
            "why": error.to_string(),
            "tier": tier,
            // Of several, which have that memory.
            "stages": stages,
            "capacity_bytes": capacity,
            "needed_bytes": needed,
            "missing_bytes": needed.saturating_sub(*capacity),
        }})),
        _ => Ok(()),
    }
}

/// What does not fit, with what may help.
fn does_not_fit(
    error: LowerError,
    args: &Args,
    (plan, profile): (&Plan, &HardwareProfile),
) -> anyhow::Error {
    let LowerError::DoesNotFit { tier, .. } = error else {
        return error.into();
    };
    let fits_with = |policy: Policy| {
        let plan = Plan {
            policy,
            ..plan.clone()
        };
        check_fits(&plan).is_ok()
    };
    let smallest = Policy {
        gpu_batch_size: 1,
        num_gpu_batches: 1,
        ..plan.policy
    };
    let packed = Policy {
        compression: Compression::of(true, plan.policy.compression.cache),
        ..plan.policy
    };
    let smaller = fits_with(smallest).then_some("lower --gpu-batch-size or --num-gpu-batches");
    let packed = (packed != plan.policy && fits_with(packed))
        .then_some("keep weights in 4 bits (--compress-weight), which changes answers a little");
    let below = (tier != Tier::Disk).then_some("move more to the tiers below (--percent)");
    let helps: Vec<&str> = [smaller, packed, below].into_iter().flatten().collect();
    let less = match (&args.plan, &helps[..]) {
        (Some(_), _) => {
            format!("plan again for this machine, or state what it would have (--{tier}-gb)")
        }
        (None, []) => "take a larger disk".to_owned(),
        (None, helps) => helps.join(", or "),
    };
    let whole = whole_tensors(plan).map_or(String::new(), |(real, asked)| {
        format!("; whole tensors put {real} of the weights on device/host/disk, for {asked}")
    });
    let coarse = args.plan.is_none() && plan.policy.granularity == Granularity::Layer;
    let finer = match coarse.then(|| check_spread(plan)) {
        Some(Ok(())) => {
            ", or give --granularity spread, as plans have it: percents are then of the model and not of each layer"
        }
        Some(Err(LowerError::DoesNotFit { tier: then, .. })) if then != tier => {
            ", or give --granularity spread, which comes closer to these percents, and a little less"
        }
        _ => "",
    };
    let gpus = profile.num_gpus().min(plan.model.num_hidden_layers);
    let spread = match gpus > 1 && args.plan.is_none() && args.pipeline.is_one_stage() {
        true => format!(
            ", or spread the model over {gpus} GPUs of {} (--stages {gpus})",
            profile.name
        ),
        false => String::new(),
    };
    Failure::new(
        Exit::Infeasible,
        format!("{error}{whole}; {less}{finer}{spread}"),
    )
    .into()
}

/// [`check_fits`] where rounding errors are carried from tensor to tensor.
fn check_spread(plan: &Plan) -> Result<(), LowerError> {
    let policy = Policy {
        granularity: Granularity::Spread,
        ..plan.policy
    };
    let plan = Plan {
        policy,
        ..plan.clone()
    };
    check_fits(&plan)
}

fn write_trace(args: &Args, plan: &Plan, run: &Run) -> io::Result<()> {
    let Some(path) = &args.trace else {
        return Ok(());
    };
    let name = format!(
        "{} on {}, predicted",
        plan.model.name, plan.provenance.hardware
    );
    write_file(path, |out| write_run(out, Process { name: &name, run }))
}

fn from_file(args: &Args) -> anyhow::Result<(Plan, HardwareProfile)> {
    let path = args.plan.as_deref().expect("the caller has asked");
    let mut plan = read_plan(path)?;
    let path = input_name(path);
    check_plan(&plan, Some(&path.display().to_string()))?;
    let profile = match &args.hw {
        Some(hw) => find_profile(hw)?,
        None => find_profile(&plan.provenance.hardware)
            .map_err(|error| not_shipped(error, path, &plan.provenance.hardware))?,
    };
    let profile = args.what_if.of(profile);
    if args.hw.is_some() || args.what_if.is_stated() {
        // The same plan on the machine that was named, with as many threads as that was measured with.
        plan = plan.on(&profile);
    }
    if let Some(page_lock) = args.page_lock {
        let policy = &plan.policy;
        plan.policy.page_locked = page_lock.resolve(&profile, &plan.model, plan.dtype, policy);
    }
    check_gpus(
        &plan.policy.pipeline,
        &profile,
        Some(&path.display().to_string()),
    )?;
    Ok((plan, profile))
}

/// Of a plan, the name of its profile is known and not the file.
fn not_shipped(error: InputError, plan: &Path, hardware: &str) -> InputError {
    match error {
        InputError::UnknownName(_) => InputError::UnknownName(format!(
            "{}: the plan was made for `{hardware}`, which is no profile that ships or lies in hw-profiles; give --hw \
             with the file of the profile that it was planned for",
            plan.display()
        )),
        of_a_file => of_a_file,
    }
}

fn from_flags(args: &Args) -> anyhow::Result<(Plan, HardwareProfile)> {
    let given = "clap has asked for it";
    let profile = args
        .what_if
        .of(find_profile(args.hw.as_deref().expect(given))?);
    let model = find_model(args.model.as_deref().expect(given))?;
    let dtype = args.dtype.of(&model)?;
    let model = model.spec;
    let policy = policy(args, &profile)?;
    let workload = args.workload.into();
    check_gpus(&policy.pipeline, &profile, None)?;
    let mut plan = Plan::given(model, dtype, workload, policy).on(&profile);
    // What is page-locked is asked of a policy that the model can have.
    check_plan(&plan, None)?;
    let page_lock = args.page_lock.unwrap_or(PageLockName::Flexgen);
    plan.policy.page_locked = page_lock.resolve(&profile, &plan.model, dtype, &plan.policy);
    check_plan(&plan, None)?;
    Ok((plan, profile))
}

/// Whether shares are of one and not of a hundred: percents as small leave nearly all of everything to the disk.
fn are_fractions(percent: &[f64; 6]) -> bool {
    percent.iter().all(|share| *share <= 1.0) && percent.iter().sum::<f64>() > 1.0
}

fn policy(args: &Args, profile: &HardwareProfile) -> anyhow::Result<Policy> {
    let given = "clap has asked for it";
    let percent = args.percent.as_deref().expect(given);
    let percent: [f64; 6] = percent.try_into().expect("clap has counted six");
    if are_fractions(&percent) {
        let line =
            "--percent: all values are at most 1, as fractions are; write percents, 20 for a fifth";
        return Err(Failure::new(Exit::Usage, line).into());
    }
    let batch = args.gpu_batch_size.expect(given);
    let policy = Policy::from_percent(batch, args.num_gpu_batches, percent)
        .map_err(|error| Failure::new(Exit::Usage, format!("--percent: {error}")))?;
    let policy = Policy {
        granularity: args.granularity.into(),
        schedule: args.schedule.into(),
        overlap: !args.no_overlap,
        barrier: args.barrier.is_on(),
        stored_scores: args.stored_scores.is_on(),
        cpu_attention: args.cpu_compute.is_on(),
        compression: Compression::of(args.compress_weight, args.compress_cache),
        sparse_attention: args.sparse_attention,
        pipeline: args.pipeline.on(profile),
        ..policy
    };
    policy
        .validate()
        .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    Ok(policy)
}
