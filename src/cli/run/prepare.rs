//! What a run needs before it starts: plan, weights, prompts.

use std::path::Path;
use std::sync::atomic::Ordering;

use plimsoll_backend::cpu::{CpuError, CpuOptions, Draws, Throttles};
use plimsoll_backend::decoder::Decoder;
use plimsoll_backend::probe::ProbeOptions;
use plimsoll_backend::weights::{Safetensors, Synthetic, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::control::Run;
use plimsoll_core::hardware::{DeviceKind, HardwareProfile, Slowness};
use plimsoll_core::lower::schedule::rounds;
use plimsoll_core::lower::{LowerError, check_fits};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::summary::Summary;
use plimsoll_core::timing::Part;
use plimsoll_core::workload::Workload;

use super::super::backend::Backend;
use super::super::exit::{Exit, Failure};
use super::super::input::{check_gpus, check_plan};
use super::super::output::complain;
use super::super::plan::{found, searched};
use super::super::profile::{measure_with_progress, today};
use super::super::threads::{other_than, stated};
use super::Args;
use super::choice::Choice;
use super::record::{Inputs, Kept, Record};
use crate::files::{
    FoundModel, GenerationConfig, InputError, Prompt, Room, Tokenizer, digest_of_checkpoint,
    find_model, find_profile, first_difference, input_name, one_prompt, random_prompts, read_plan,
    read_prompts,
};
use crate::planner::{Request, Strategy, Subject};
use crate::report::count;
use crate::validate::Limits;

/// Everything that a run starts from.
pub(super) struct Prepared {
    pub plan: Plan,
    pub source: Box<dyn WeightSource>,
    /// What the weights are, in words.
    pub weights: String,
    /// Those without an answer yet.
    pub prompts: Vec<Prompt>,
    pub tokenizer: Option<Tokenizer>,
    pub choice: Choice,
    /// What runs it.
    pub backend: Backend,
    /// Threads of the emulated device.
    pub device_threads: u32,
    /// What an earlier run left.
    pub kept: Kept,
    /// What makes the rows.
    pub record: Record,
    /// The machine's, where it is given or was measured, with what is slowed down.
    pub profile: Option<HardwareProfile>,
    /// The same without that.
    unheld: Option<HardwareProfile>,
    /// The run in modelled time, where the machine's profile is known and a trace is asked for.
    pub predicted: Option<Run>,
    /// Why there is no prediction although one could have been made.
    pub left_out: Option<String>,
}

impl Prepared {
    pub fn new(args: &Args, cpu: &CpuOptions) -> anyhow::Result<Prepared> {
        let model = args.model.as_deref().map(find_model).transpose()?;
        let given = |path| given_plan(args, path, model.as_ref());
        let given = args.plan.as_deref().map(given).transpose()?;
        let kept = match (&args.output, args.resume) {
            (Some(path), true) => Kept::read(path)?,
            _ => Kept::default(),
        };
        let known = given.is_some() || kept.record.is_some();
        let folder = model.as_ref().and_then(|model| model.folder.as_deref());
        let tokenizer = folder.map(Tokenizer::find).transpose()?.flatten();
        let spec = model.as_ref().map(|model| &model.spec);
        let spec = spec.or(given.as_ref().map(|plan| &plan.model));
        let spec = spec.expect("clap has asked for one of them").clone();
        let dtype = match (&given, &model) {
            (None, Some(model)) => args.dtype.of(model)?,
            (given, _) => given.as_ref().expect("clap has asked for one").dtype,
        };
        let prompts = read(args, &spec, tokenizer.as_ref(), given.as_ref())?;
        args.choice.idle().into_iter().for_each(complain);
        let choice = args
            .choice
            .resolve(args.seed, &generation(folder, &spec)?, &spec);
        // Before a machine is measured, which takes minutes.
        let (source, weights, identity) = weights(args.seed, &spec, model.as_ref())?;
        let unheld = profile(args, known, (&spec, dtype), cpu)?;
        let profile = unheld.as_ref().map(|profile| limits(args).hold(profile));
        let mut plan = match (given, &kept.record) {
            (Some(plan), _) => plan,
            (None, Some(record)) => went_on(args, &record.plan, (&spec, dtype))?,
            (None, None) => {
                let profile = profile.as_ref();
                planned(args, profile, (&spec, dtype), prompts.as_deref())?
            }
        };
        if let (Some(prompts), Some(_), None) = (&prompts, &kept.record, &args.plan) {
            as_many_as_then(args, prompts.len() as u64, &plan)?;
        }
        let prompts = for_plan(args, prompts, &mut plan)?;
        let stated = predicted_with(profile.as_ref(), &plan);
        let device_threads = args.threads.of(args.backend, stated);
        let inputs = Inputs {
            weights: &identity,
            choice: &choice,
            tokenizer: tokenizer.as_ref(),
            prompts: &prompts,
            on_gpu: matches!(args.backend, Backend::Cuda),
        };
        let record = Record::new(&plan, &inputs);
        let mut prepared = Prepared {
            plan,
            source,
            weights,
            prompts,
            tokenizer,
            choice,
            backend: args.backend,
            device_threads,
            kept,
            record,
            profile,
            unheld,
            predicted: None,
            left_out: None,
        };
        prepared.leave_out_kept(args)?;
        prepared.predict(args)?;
        Ok(prepared)
    }

    /// Predicts what is left to run, if anything is.
    fn predict(&mut self, args: &Args) -> anyhow::Result<()> {
        if self.prompts.is_empty() {
            return Ok(());
        }
        let (plan, profile) = (&mut self.plan, self.profile.as_ref());
        let predicted = predict((args, self.device_threads), profile, plan)?;
        (self.predicted, self.left_out) = predicted;
        Ok(())
    }

    /// The prediction at the pace that the machine had, where there is one and that is known. A link is held to what was asked for, however
    /// fast the machine goes.
    pub fn at_pace(&self, args: &Args, pace: Option<&Slowness>) -> anyhow::Result<Option<Summary>> {
        let (Some(pace), Some(machine), Some(_)) = (pace, &self.unheld, &self.plan.prediction)
        else {
            return Ok(None);
        };
        let machine = limits(args).hold(&machine.at_pace(pace));
        Ok(Some(plimsoll_sim::predict(&self.plan, &machine)?))
    }

    /// Takes those prompts out that have their rows.
    fn leave_out_kept(&mut self, args: &Args) -> Result<(), InputError> {
        let Some(path) = args.output.as_deref().filter(|_| self.kept.rows() > 0) else {
            return Ok(());
        };
        self.kept.check(path, &self.record, &self.prompts)?;
        self.prompts.drain(..self.kept.rows());
        self.plan.workload.num_prompts = Some(self.prompts.len() as u64);
        self.plan.prediction = None;
        Ok(())
    }

    pub fn prompt_ids(&self) -> Vec<Vec<u32>> {
        let prompts = self.prompts.iter();
        prompts
            .map(|prompt| prompt.prompt_token_ids.clone())
            .collect()
    }

    /// How the executor draws tokens, if it does.
    pub fn draws(&self) -> Option<Draws> {
        let sampling = self.choice.sampling?;
        Some(Draws {
            sampling,
            first_prompt: self.kept.rows() as u64,
        })
    }
}

/// The machine's profile: that which is given, or measured where nothing else says how to run.
fn profile(
    args: &Args,
    known: bool,
    (model, dtype): (&ModelSpec, Dtype),
    cpu: &CpuOptions,
) -> anyhow::Result<Option<HardwareProfile>> {
    let profile = match args.hw.as_deref() {
        Some(wanted) => find_profile(wanted)?,
        None if known => return Ok(None),
        None => {
            // A model that cannot be run is not worth the minutes.
            let decoder = Decoder::new(model, dtype, Compression::default(), 1);
            decoder.map_err(CpuError::from)?;
            complain(
                "measuring this machine, since neither --plan nor --hw is given; `plimsoll profile -o \
                 my.toml` does it once, for --hw my.toml",
            );
            let options = ProbeOptions {
                cpu: cpu.clone(),
                quick: true,
                dtypes: args.backend.computed([dtype])?,
                models: Vec::new(),
                name: "this-machine".to_owned(),
                date: today(),
            };
            let measured = measure_with_progress(&options);
            measured.map_err(|error| match cpu.interrupt.load(Ordering::Relaxed) {
                true => Failure::new(Exit::Interrupted, "interrupted; nothing was run").into(),
                false => error,
            })?
        }
    };
    Ok(Some(args.what_if.of(profile)))
}

/// What is slowed down.
fn limits(args: &Args) -> Limits {
    Limits {
        throttles: args.throttles(),
        ..Limits::default()
    }
}

/// The prompts of the file or the command line, if there are any.
fn read(
    args: &Args,
    model: &ModelSpec,
    tokenizer: Option<&Tokenizer>,
    plan: Option<&Plan>,
) -> anyhow::Result<Option<Vec<Prompt>>> {
    let room = match plan {
        Some(plan) => Room::Plan(plan.workload.prompt_len),
        None => Room::Model {
            gen_len: gen_len(args, model)?,
        },
    };
    if let Some(text) = &args.prompt {
        let prompt = one_prompt(text, model, tokenizer, room);
        let wrong = |why| Failure::new(Exit::Usage, format!("--prompt: {why}"));
        return Ok(Some(vec![prompt.map_err(wrong)?]));
    }
    let path = args.prompts.as_deref();
    let prompts = path.map(|path| read_prompts(path, model, tokenizer, room));
    Ok(prompts.transpose()?)
}

/// Tokens to generate, which leave room for a prompt of one token at least.
fn gen_len(args: &Args, model: &ModelSpec) -> Result<u32, Failure> {
    let (asked, sees) = (args.workload.each.gen_len, model.max_position_embeddings);
    if asked < sees {
        return Ok(asked);
    }
    let line = format!(
        "--gen-len {asked}: {} sees {sees} tokens, prompt and answer together \
         (max_position_embeddings); give less than {sees}",
        model.name
    );
    Err(Failure::new(Exit::Usage, line))
}

/// What the checkpoint says of the choice of tokens; what is not applied of it is said.
fn generation(folder: Option<&Path>, model: &ModelSpec) -> Result<GenerationConfig, InputError> {
    let config = folder.map(GenerationConfig::find).transpose()?;
    let config = config.unwrap_or_default();
    if !config.not_applied.is_empty() {
        let keys = config.not_applied.join(", ");
        complain(&format!("generation_config.json: not applied: {keys}"));
    }
    let vocabulary = model.vocab_size;
    let mut ends = config.eos_token_ids.iter().flatten();
    if let Some(id) = ends.find(|id| **id >= vocabulary) {
        let name = &model.name;
        complain(&format!(
            "generation_config.json: eos_token_id: token {id} is outside of {name}'s vocabulary, so that no answer ends \
             with it; give ids below {vocabulary}"
        ));
    }
    Ok(config)
}

/// The run in modelled time, where a profile for it is given and a trace is asked for, and why there is no prediction where one
/// could have been made. A prediction of something else is taken out of the plan.
fn predict(
    (args, threads): (&Args, u32),
    profile: Option<&HardwareProfile>,
    plan: &mut Plan,
) -> anyhow::Result<(Option<Run>, Option<String>)> {
    if let Some(why) = incomparable((args, threads), profile, plan) {
        let one = plan.prediction.take().is_some() || profile.is_some();
        return Ok((None, one.then_some(why)));
    }
    let Some(profile) = profile else {
        return Ok((None, None));
    };
    check_gpus(
        &plan.policy.pipeline,
        profile,
        args.plan.as_deref().map(input_name).and_then(Path::to_str),
    )?;
    if args.trace.is_none() {
        plan.prediction = Some(plimsoll_sim::predict(plan, profile)?);
        return Ok((None, None));
    }
    let run = plimsoll_sim::simulate(plan, profile)?;
    plan.prediction = Some(plimsoll_sim::prediction(plan, profile, &run));
    Ok((Some(run), None))
}

/// The machine that a plan's prediction is of: that of the profile, else the plan's own, of which it has the name only. One that
/// is not known here is taken to be this one.
fn machine_of(profile: Option<&HardwareProfile>, plan: &Plan) -> Option<HardwareProfile> {
    let own = || find_profile(&plan.provenance.hardware).ok();
    profile.cloned().or_else(own)
}

/// Threads of the emulated device that a plan's prediction is of; none where it is of a GPU.
fn predicted_with(profile: Option<&HardwareProfile>, plan: &Plan) -> Option<u32> {
    match (profile, plan.provenance.device_threads) {
        (None, Some(threads)) => Some(threads),
        _ => machine_of(profile, plan).map_or(Some(1), |machine| stated(&machine)),
    }
}

/// Why a prediction would be of something else than this run.
fn incomparable(
    (args, threads): (&Args, u32),
    profile: Option<&HardwareProfile>,
    plan: &Plan,
) -> Option<String> {
    let machine = machine_of(profile, plan);
    if let Some(machine) = machine.filter(|machine| machine.kind != args.backend.kind()) {
        let (its, own) = match machine.kind {
            DeviceKind::Gpu => ("a machine with a GPU", "this machine's CPU"),
            DeviceKind::Emulated => ("a machine with an emulated device", "this machine's GPU"),
        };
        return Some(format!(
            "{} is {its}, this run was on {own}; give what `plimsoll profile` wrote here as --hw",
            machine.name
        ));
    }
    let measured = predicted_with(profile, plan).filter(|measured| *measured != threads);
    if let (Some(measured), Backend::Cpu) = (measured, args.backend) {
        let name = profile.map_or(&plan.provenance.hardware, |profile| &profile.name);
        return Some(other_than(name, (measured, threads)));
    }
    let unknown = profile.is_none() && args.throttles() != Throttles::default();
    unknown.then(|| "the plan's own knows nothing of slower links; give --hw as well".to_owned())
}

fn given_plan(args: &Args, path: &Path, model: Option<&FoundModel>) -> anyhow::Result<Plan> {
    let plan = read_plan(path)?;
    check_plan(&plan, Some(&input_name(path).display().to_string()))?;
    if let Some(model) = model {
        same_model(args, &plan, model)?;
    }
    Ok(plan)
}

/// The plan of the run that is gone on with, which the flags must not contradict.
fn went_on(args: &Args, plan: &Plan, (model, dtype): (&ModelSpec, Dtype)) -> anyhow::Result<Plan> {
    let asked = args.wish.request(args.workload);
    let packed = plan.policy.compression;
    // Without a file, prompts are made up, and as many and as long as the plan's.
    let made_up = args.asked().is_none();
    let (now, then) = (asked.workload, plan.workload);
    let differs = [
        ("--prompt-len", made_up && now.prompt_len != then.prompt_len),
        (
            "--num-prompts",
            made_up && now.num_prompts.is_some() && now.num_prompts != then.num_prompts,
        ),
        ("--model", first_difference(&plan.model, model).is_some()),
        ("--gen-len", now.gen_len != then.gen_len),
        ("--dtype", plan.dtype != dtype),
        (
            "--sparse-attention",
            asked.allowed.sparse_attention != plan.policy.sparse_attention,
        ),
        (
            "--compress-weight",
            packed.weights && !asked.allowed.compression.weights,
        ),
        (
            "--compress-cache",
            packed.cache && !asked.allowed.compression.cache,
        ),
    ];
    if let Some((flag, _)) = differs.iter().find(|(_, differs)| *differs) {
        let rows = args.output.as_deref().unwrap_or(Path::new("--output"));
        let problem = "is not what the rows were made with";
        let remedy = "give it as then, or run again without --resume";
        return Err(InputError::bad_file(rows, flag, problem, remedy).into());
    }
    check_plan(plan, None)?;
    let flags = not_followed(&asked, plan);
    if !flags.is_empty() {
        complain(&format!(
            "note: goes on with the plan of the run that was stopped, which is not as {} would have it; to plan \
             anew, run without --resume",
            flags.join(", ")
        ));
    }
    Ok(plan.clone())
}

/// Flags that a plan is not as they would have it, and that decide no row.
fn not_followed(asked: &Request, plan: &Plan) -> Vec<&'static str> {
    let (allowed, policy) = (&asked.allowed, &plan.policy);
    let latency = plan.prediction.as_ref().map(|it| it.latency_s);
    let too_late = asked.max_latency_s.zip(latency);
    let flags = [
        (
            "--schedule",
            allowed.schedule.is_some_and(|it| it != policy.schedule),
        ),
        ("--no-overlap", policy.overlap && !allowed.overlap),
        (
            "--cpu-compute",
            allowed
                .cpu_attention
                .is_some_and(|it| it != policy.cpu_attention),
        ),
        (
            "--strategy hetegen",
            allowed.strategy == Strategy::HeteGen && policy.split.is_none(),
        ),
        (
            "--max-latency-s",
            too_late.is_some_and(|(most, predicted)| predicted > most),
        ),
    ];
    let flags = flags.into_iter().filter(|(_, differs)| *differs);
    flags.map(|(flag, _)| flag).collect()
}

/// That a run which is gone on with has as many prompts as it had.
fn as_many_as_then(args: &Args, found: u64, plan: &Plan) -> Result<(), InputError> {
    match (args.asked(), plan.workload.num_prompts) {
        (Some(path), Some(then)) if then != found => {
            let given = count(found, "prompt");
            let problem = format!("{given}, the rows were made of {then}");
            let remedy = "give the same file as then, or run again without --resume";
            Err(InputError::bad_file(path, "all lines", problem, remedy))
        }
        _ => Ok(()),
    }
}

/// The best plan for the machine and these prompts.
fn planned(
    args: &Args,
    profile: Option<&HardwareProfile>,
    (model, dtype): (&ModelSpec, Dtype),
    prompts: Option<&[Prompt]>,
) -> anyhow::Result<Plan> {
    let asked = args.wish.request(args.workload);
    let workload = match prompts {
        Some(prompts) => {
            let lengths = prompts.iter().map(|prompt| prompt.prompt_token_ids.len());
            Workload {
                prompt_len: lengths.max().unwrap_or(0) as u32,
                num_prompts: Some(prompts.len() as u64),
                ..asked.workload
            }
        }
        None => asked.workload,
    };
    let request = Request { workload, ..asked };
    let profile = profile.expect("it is given or measured where a plan is made");
    let subject = Subject {
        profile,
        model,
        dtype,
    };
    let answer = searched(subject, &request)?;
    match found(answer, subject, &request) {
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

/// The prompts, which are made up where none are given. A plan takes as many as there are, in blocks as large as planned.
fn for_plan(
    args: &Args,
    prompts: Option<Vec<Prompt>>,
    plan: &mut Plan,
) -> anyhow::Result<Vec<Prompt>> {
    let workload = plan.workload;
    let batches = rounds(&plan.policy, &workload);
    let sequences = batches.iter().flat_map(|round| &round.batches);
    let planned: u64 = sequences.map(|n| u64::from(*n)).sum();
    let (Some(path), Some(prompts)) = (args.asked(), prompts) else {
        let (length, vocabulary) = (workload.prompt_len, plan.model.vocab_size);
        return Ok(random_prompts(args.seed, planned, length, vocabulary));
    };
    let found = prompts.len() as u64;
    let is_for_so_many = found == planned && Part::of(plan) == Part::Whole;
    if found != planned && workload.num_prompts.is_some() {
        complain(&format!(
            "{}: {}, the plan is for {planned}; one with --num-prompts {found} may be faster",
            path.display(),
            count(found, "prompt")
        ));
    }
    if workload.num_prompts != Some(found) {
        // What was expected of a full block, of a steady state or of others says nothing about a run of this many.
        plan.workload.num_prompts = Some(found);
        plan.prediction.take_if(|_| !is_for_so_many);
        has_room(plan, found)?;
    }
    Ok(prompts)
}

/// That a plan for another number of prompts has room for so many: their texts, and their answers, are on the host.
fn has_room(plan: &Plan, prompts: u64) -> anyhow::Result<()> {
    let remedy = format!("plan with --num-prompts {prompts}");
    check_fits(plan).map_err(|why| match why {
        LowerError::DoesNotFit { .. } => Failure::noted(&why.into(), &remedy).into(),
        other => other.into(),
    })
}

/// Where weights come from, what they are in words, and what tells them from others.
fn weights(
    seed: u64,
    spec: &ModelSpec,
    model: Option<&FoundModel>,
) -> anyhow::Result<(Box<dyn WeightSource>, String, String)> {
    match model.map(FoundModel::checkpoint).transpose()?.flatten() {
        Some(folder) => {
            let checkpoint = Safetensors::open(folder, spec)?;
            checkpoint.check(spec)?;
            let words = format!("the checkpoint {}", folder.display());
            let identity = digest_of_checkpoint(folder);
            let identity = identity.map_err(|error| InputError::unreadable(folder, &error))?;
            Ok((Box::new(checkpoint), words, identity))
        }
        None => {
            let words = format!("synthetic, seed {seed}");
            Ok((Box::new(Synthetic { seed }), words.clone(), words))
        }
    }
}
