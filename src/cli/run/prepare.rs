//! What a run needs before it starts: plan, weights, prompts.

use std::path::Path;

use plimsoll_backend::cpu::Throttles;
use plimsoll_backend::weights::{Safetensors, Synthetic, WeightSource};
use plimsoll_core::control::Run;
use plimsoll_core::hardware::{DeviceKind, HardwareProfile};
use plimsoll_core::lower::schedule::rounds;
use plimsoll_core::plan::Plan;

use super::super::exit::{Exit, Failure};
use super::super::input::{check_gpus, check_plan};
use super::super::plan::{found, refused};
use super::super::profile::DEVICE_THREADS;
use super::Args;
use crate::files::{
    FoundModel, InputError, Prompt, find_model, find_profile, first_difference, random_prompts,
    read_plan, read_prompts,
};
use crate::planner::search;

/// Everything that a run starts from.
pub(super) struct Prepared {
    pub plan: Plan,
    pub source: Box<dyn WeightSource>,
    /// What the weights are, in words.
    pub weights: String,
    pub prompts: Vec<Prompt>,
    /// The run in modelled time, where the machine's profile is given.
    pub predicted: Option<Run>,
    /// Why there is no prediction although one could have been made.
    pub left_out: Option<String>,
}

impl Prepared {
    pub fn new(args: &Args) -> anyhow::Result<Prepared> {
        let profile = args.hw.as_deref().map(find_profile).transpose()?;
        let throttles = args.throttles();
        let throttled = |profile: HardwareProfile| {
            profile
                .with_link_cap(throttles.h2d, throttles.d2h)
                .with_disk_cap(throttles.disk_read, throttles.disk_write)
        };
        let profile = profile.map(throttled);
        let model = args.model.as_deref().map(find_model).transpose()?;
        let mut plan = plan(args, profile.as_ref(), model.as_ref())?;
        let prompts = prompts(args, &mut plan)?;
        let (predicted, left_out) = predict(args, profile.as_ref(), &mut plan)?;
        let (source, weights) = weights(args.seed, &plan, model.as_ref())?;
        Ok(Prepared {
            plan,
            source,
            weights,
            prompts,
            predicted,
            left_out,
        })
    }

    pub fn prompt_ids(&self) -> Vec<Vec<u32>> {
        let prompts = self.prompts.iter();
        prompts
            .map(|prompt| prompt.prompt_token_ids.clone())
            .collect()
    }
}

/// The run in modelled time, where a profile for it is given, and why there is no prediction where one
/// could have been made. A prediction of something else is taken out of the plan.
fn predict(
    args: &Args,
    profile: Option<&HardwareProfile>,
    plan: &mut Plan,
) -> anyhow::Result<(Option<Run>, Option<String>)> {
    if let Some(why) = incomparable(args, profile, plan) {
        let one = plan.prediction.take().is_some() || profile.is_some();
        return Ok((None, one.then_some(why)));
    }
    let Some(profile) = profile else {
        return Ok((None, None));
    };
    check_gpus(plan, profile, args.plan.as_deref().and_then(Path::to_str))?;
    let run = plimsoll_sim::simulate(plan, profile)?;
    plan.prediction = Some(plimsoll_sim::prediction(plan, profile, &run));
    Ok((Some(run), None))
}

/// Why a prediction would be of something else than this run.
fn incomparable(args: &Args, profile: Option<&HardwareProfile>, plan: &Plan) -> Option<String> {
    if args.device_threads != DEVICE_THREADS {
        return Some(format!(
            "profiles are measured with {DEVICE_THREADS} device thread, this run had {}",
            args.device_threads
        ));
    }
    // A plan names its machine only; one that is not known here is taken to be this one.
    let planned = match profile {
        None => find_profile(&plan.provenance.hardware).ok(),
        Some(_) => None,
    };
    let machine = profile.or(planned.as_ref());
    if let Some(machine) = machine.filter(|machine| machine.kind == DeviceKind::Gpu) {
        return Some(format!(
            "{} is a machine with a GPU, this run was on this machine's CPU; give what `plimsoll \
             profile` wrote here as --hw",
            machine.name
        ));
    }
    let unknown = profile.is_none() && args.throttles() != Throttles::default();
    unknown.then(|| "the plan's own knows nothing of slower links; give --hw as well".to_owned())
}

fn plan(
    args: &Args,
    profile: Option<&HardwareProfile>,
    model: Option<&FoundModel>,
) -> anyhow::Result<Plan> {
    if let Some(path) = &args.plan {
        let plan = read_plan(path)?;
        let file = path.display().to_string();
        check_plan(&plan, Some(&file))?;
        if let Some(model) = model {
            same_model(args, &plan, model)?;
        }
        return Ok(plan);
    }
    let given = "clap has asked for it";
    let (profile, model) = (profile.expect(given), &model.expect(given).spec);
    let request = args.wish.request(args.workload);
    let answer = search(profile, model, args.dtype.into(), &request).map_err(refused)?;
    match found(answer) {
        Ok(planned) => Ok(planned.plan),
        Err(refusal) => Err(Failure::new(Exit::Infeasible, refusal.line).into()),
    }
}

fn same_model(args: &Args, plan: &Plan, model: &FoundModel) -> Result<(), InputError> {
    let Some((key, planned, given)) = first_difference(&plan.model, &model.spec) else {
        return Ok(());
    };
    Err(InputError::BadFile(format!(
        "--model {}: {key}: is {given}, the plan is for {} with {planned}; \
         give the model that was planned, or plan again",
        args.model.as_deref().unwrap_or_default(),
        plan.model.name
    )))
}

/// Reads or makes the prompts. A plan without a number of prompts takes as many as there are.
fn prompts(args: &Args, plan: &mut Plan) -> anyhow::Result<Vec<Prompt>> {
    let workload = plan.workload;
    let batches = rounds(&plan.policy, &workload);
    let sequences = batches.iter().flat_map(|round| &round.batches);
    let planned: u64 = sequences.map(|n| u64::from(*n)).sum();
    let Some(path) = &args.prompts else {
        let vocabulary = plan.model.vocab_size;
        return Ok(random_prompts(
            args.seed,
            planned,
            workload.prompt_len,
            vocabulary,
        ));
    };
    let prompts = read_prompts(path, &plan.model, workload.prompt_len)?;
    let found = prompts.len() as u64;
    if found != planned {
        if workload.num_prompts.is_some() {
            let problem = format!("{found} prompts, the plan is for {planned}");
            let remedy = format!("give {planned}, or plan with --num-prompts {found}");
            return Err(InputError::bad_file(path, "all lines", problem, remedy).into());
        }
        plan.workload.num_prompts = Some(found);
        // What was expected of a full block says nothing about this many.
        plan.prediction = None;
    }
    Ok(prompts)
}

fn weights(
    seed: u64,
    plan: &Plan,
    model: Option<&FoundModel>,
) -> anyhow::Result<(Box<dyn WeightSource>, String)> {
    match model.and_then(FoundModel::checkpoint) {
        Some(folder) => {
            let checkpoint = Safetensors::open(folder, plan.model.family)?;
            let words = format!("the checkpoint {}", folder.display());
            Ok((Box::new(checkpoint), words))
        }
        None => {
            let words = format!("synthetic, seed {seed}");
            Ok((Box::new(Synthetic { seed }), words))
        }
    }
}
