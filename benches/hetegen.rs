//! Split linear layers executed on this machine's CPU executor, beside what is predicted. Run with
//! `cargo bench --bench hetegen -- sweep 2 4`, `-- parts 2 4 my.toml` or `-- whole 2 4 my.toml`: what, how many GB/s the link to
//! the device carries at most, how many of weights the CPU multiplies with at most (`all`: as many as it can), and this machine's
//! profile (`plimsoll profile --dtype f16 -o my.toml`). The device is emulated on a core that is as fast as the CPU's, so only a
//! CPU that is held back stands to it as one stands to a GPU.
//!
//! - `sweep`: the alpha benchmark's shares, and all shares around them, in three shapes; who is busy at the benchmark's.
//! - `parts`: each part of HeteGen taken out.
//! - `whole`: the best split plan and the best plan that splits nothing, from the prompt to the last token.
//!
//! Repeats are interleaved and medians count, since shared machines change their pace. Weights are synthetic, in f16.

use plimsoll::alpha::{Range, benchmark, within};
use plimsoll::experiment::{WITHOUT, Without};
use plimsoll::files::{find_model, find_profile, random_prompts};
use plimsoll::planner::split::{Prompts, Scheduler, blank, by_law, scheduled};
use plimsoll::planner::{Allowed, Answer, Objective, Request, Strategy, search};
use plimsoll::stats::quantile;
use plimsoll::validate::Limits;
use plimsoll_backend::cpu::{CpuExecutor, CpuOptions, Throttles};
use plimsoll_backend::dispatch::Dispatch;
use plimsoll_backend::probe::{
    Moment, PaceMeter, PartOptions, PartTimes, ProbeError, measure_parts,
};
use plimsoll_backend::weights::{Remembered, Synthetic};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::control::{Run, drive};
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{Lowering, footprint};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::split::{Breakdown, Module, PerModule, SplitLinears};
use plimsoll_core::units::{Bytes, BytesPerSecond};
use plimsoll_core::workload::Workload;
use plimsoll_sim::simulate;

const DTYPE: Dtype = Dtype::F16;

/// Three shapes: a square MLP of two widths, and grouped queries with a gate.
const SHAPES: [&str; 3] = ["opt-1.3b", "opt-6.7b", "llama-3-8b"];

/// Shares that are tried to each side of the benchmark's.
const AROUND: Range = Range {
    around: 0.12,
    step: 0.02,
};

/// Of those that the benchmark itself measures.
const BENCHMARK: Range = Range {
    around: 0.1,
    step: 0.02,
};

/// Rounds over all shares, and over all that is compared.
const SWEEPS: usize = 3;
const ROUNDS: usize = 5;

/// Where things run, and what is kept between runs.
struct Bench {
    options: CpuOptions,
    meter: PaceMeter,
    weights: Remembered<Synthetic>,
}

impl Bench {
    /// Choosing implementations of products by a profile's table, where there is one.
    fn new(limits: &Limits, profile: Option<&HardwareProfile>) -> anyhow::Result<Bench> {
        let dispatch = Dispatch::default();
        let options = CpuOptions {
            throttles: limits.throttles,
            pin_cores: true,
            dispatch: match profile {
                Some(profile) => dispatch.with_profile(profile),
                None => dispatch,
            },
            ..CpuOptions::new(std::env::temp_dir())
        };
        Ok(Bench {
            meter: PaceMeter::new(&options)?,
            options,
            weights: Remembered::new(Synthetic { seed: 1 }),
        })
    }

    fn run(&mut self, plan: &Plan) -> anyhow::Result<(Run, Moment)> {
        let (options, weights) = (&self.options, &self.weights);
        let paced = self.meter.steadily(|| -> anyhow::Result<Run> {
            let mut lowering = Lowering::new(plan)?;
            let mut executor = CpuExecutor::new(plan, lowering.placement(), weights, options)?;
            let Plan {
                model, workload, ..
            } = plan;
            let prompts = random_prompts(1, 1, workload.prompt_len, model.vocab_size);
            let prompts: Vec<Vec<u32>> = prompts.into_iter().map(|p| p.prompt_token_ids).collect();
            executor.set_prompts(lowering.texts(), &prompts)?;
            Ok(drive(&mut lowering, &mut executor)?)
        })?;
        Ok((paced.result, paced.moment))
    }
}

/// Some layers of a model, with a vocabulary that does not matter.
fn layers(name: &str, count: u32) -> anyhow::Result<ModelSpec> {
    let model = find_model(name)?.spec;
    Ok(ModelSpec {
        num_hidden_layers: count,
        vocab_size: 512,
        ..model
    })
}

const fn one_prompt(gen_len: u32) -> Workload {
    Workload {
        prompt_len: 4,
        gen_len,
        num_prompts: Some(1),
    }
}

/// When each pass ended.
fn ends(run: &Run) -> Vec<f64> {
    let end = |piece: &std::sync::Arc<plimsoll_core::program::Program>| {
        let tasks = piece.first_task().0..piece.end_task().0;
        let spans = tasks.filter_map(|id| run.trace.span(plimsoll_core::program::TaskId(id)));
        spans.map(|span| span.end.0).fold(0.0, f64::max)
    };
    run.pieces.iter().map(end).collect()
}

/// Seconds of each token after the second: rows of the second were asked for beside the prompt.
fn tokens_s(run: &Run) -> Vec<f64> {
    let ends = ends(run);
    ends.windows(2)
        .skip(1)
        .map(|pair| pair[1] - pair[0])
        .collect()
}

/// Shares by the alpha benchmark.
fn benchmarked(bench: &Bench, model: &ModelSpec) -> anyhow::Result<PerModule<f64>> {
    let options = PartOptions {
        cpu: bench.options.clone(),
        model: model.clone(),
        dtype: DTYPE,
        compression: Compression::default(),
        sequences: 1,
        tokens: 8,
    };
    let at = |times: &PartTimes| {
        let at = plimsoll::alpha::At {
            share: times.share,
            cpu_s: times.cpu,
            pin_s: times.pin,
            transfer_s: times.transfer,
        };
        (times.module, at)
    };
    let source = Remembered::new(Synthetic { seed: 0 });
    let measured = benchmark(BENCHMARK, |shares| -> Result<Vec<_>, ProbeError> {
        Ok(measure_parts(&options, *shares, &source)?
            .modules
            .iter()
            .map(at)
            .collect())
    })?;
    let share = |module: Module| {
        let found = measured.iter().find(|it| it.module == module.name());
        found.map_or(0.0, |it| {
            it.balance.as_ref().map_or(it.first_share, |b| b.share)
        })
    };
    Ok(PerModule::from_fn(share))
}

/// A plan of two layers with some shares and all else on the device.
fn split_plan(model: &ModelSpec, share: PerModule<f64>, gen_len: u32) -> anyhow::Result<Plan> {
    let policy = Policy {
        split: Some(SplitLinears {
            share,
            ..SplitLinears::even(0.0)
        }),
        ..blank()
    };
    let plan = Plan::given(model.clone(), DTYPE, one_prompt(gen_len), policy);
    Ok(plan.with_room()?)
}

/// Modules by the share of the device, weighted by size.
fn mean_share(model: &ModelSpec, share: &PerModule<f64>) -> f64 {
    let tensors = model.tensors(1);
    let weights = || {
        tensors
            .iter()
            .filter_map(|t| Some((Module::of(t.role)?, t.elements() as f64)))
    };
    let all: f64 = weights().map(|(_, elements)| elements).sum();
    weights()
        .map(|(module, elements)| share[module] * elements)
        .sum::<f64>()
        / all
}

fn sweep(limits: &Limits) -> anyhow::Result<()> {
    println!("model,offset,alpha,token_ms,of_best");
    let mut summary = String::new();
    for name in SHAPES {
        let mut bench = Bench::new(limits, None)?;
        let model = layers(name, 2)?;
        let shares = benchmarked(&bench, &model)?;
        let offsets = AROUND.offsets();
        let at = |offset: f64| PerModule::from_fn(|module| within(shares[module] + offset));
        let mut times = vec![Vec::new(); offsets.len()];
        let mut breakdowns = Vec::new();
        for _ in 0..SWEEPS {
            for (offset, times) in offsets.iter().zip(&mut times) {
                let (run, _) = bench.run(&split_plan(&model, at(*offset), 10)?)?;
                times.extend(tokens_s(&run));
                if offset.abs() < 1e-9 {
                    breakdowns.push(run);
                }
            }
        }
        let medians: Vec<f64> = times.iter().map(|times| quantile(times, 0.5)).collect();
        let best = medians.iter().copied().fold(f64::MAX, f64::min);
        let mut found = (0.0, 0.0);
        for (offset, token_s) in offsets.iter().zip(&medians) {
            let alpha = mean_share(&model, &at(*offset));
            println!(
                "{name},{offset:.2},{alpha:.3},{:.3},{:.3}",
                token_s * 1e3,
                token_s / best
            );
            if *token_s == best {
                found.0 = *offset;
            }
            if offset.abs() < 1e-9 {
                found.1 = token_s / best;
            }
        }
        let (offset, loss) = found;
        summary += &format!(
            "{name}: benchmark's alpha {:.3}; best {offset:+.2} from there; at the benchmark's {:.1}% slower than the best\n",
            mean_share(&model, &at(0.0)),
            100.0 * (loss - 1.0)
        );
        summary += &busy(&breakdowns);
    }
    eprint!("{summary}");
    Ok(())
}

/// Who is busy for how much of each step's time; medians over runs.
fn busy(runs: &[Run]) -> String {
    let mut text = String::new();
    for module in [Module::Q, Module::O, Module::Up, Module::Down] {
        let found: Vec<Breakdown> = runs
            .iter()
            .filter_map(|run| Breakdown::of(run, module))
            .collect();
        let middle = |of: fn(&Breakdown) -> f64| {
            100.0 * quantile(&found.iter().map(of).collect::<Vec<_>>(), 0.5)
        };
        text += &format!(
            "  {:<5} {:>7.2} ms: CPU {:.1}%, link {:.1}%, pin {:.1}%, device {:.1}%\n",
            module.name(),
            10.0 * middle(|b| b.seconds.0),
            middle(|b| b.cpu),
            middle(|b| b.link),
            middle(|b| b.pin),
            middle(|b| b.device)
        );
    }
    text
}

/// A plan whose runs are compared, with what they gave.
struct Case {
    name: String,
    plan: Plan,
    seconds: Vec<f64>,
    moments: Vec<Moment>,
}

impl Case {
    fn new(name: impl Into<String>, plan: Plan) -> Case {
        Case {
            name: name.into(),
            plan,
            seconds: Vec::new(),
            moments: Vec::new(),
        }
    }

    fn measured(&self) -> f64 {
        quantile(&self.seconds, 0.5)
    }

    /// At the pace that the machine had meanwhile, with its link held.
    fn predicted(
        &self,
        (profile, limits): (&HardwareProfile, &Limits),
        of: fn(&Run) -> Vec<f64>,
    ) -> anyhow::Result<f64> {
        let slowness = Moment::middle(&self.moments).slowness(profile);
        let paced = slowness.map_or_else(|| profile.clone(), |slowness| profile.at_pace(&slowness));
        let run = simulate(&self.plan, &limits.hold(&paced))?;
        Ok(quantile(&of(&run), 0.5))
    }
}

/// Runs all in turn, some rounds, and prints each beside its prediction and the first.
fn compare(
    mut cases: Vec<Case>,
    (profile, limits): (&HardwareProfile, &Limits),
    of: fn(&Run) -> Vec<f64>,
) -> anyhow::Result<()> {
    let mut bench = Bench::new(limits, Some(profile))?;
    for _ in 0..ROUNDS {
        for case in &mut cases {
            let (run, moment) = bench.run(&case.plan)?;
            case.seconds.extend(of(&run));
            case.moments.push(moment);
        }
    }
    println!(
        "case,predicted_s,measured_s,error,predicted_performance,measured_performance,performance_error"
    );
    let mut first = None;
    for case in &cases {
        let (predicted, measured) = (case.predicted((profile, limits), of)?, case.measured());
        let (p, m) = *first.get_or_insert((predicted, measured));
        let (p, m) = (p / predicted, m / measured);
        println!(
            "{},{predicted:.5},{measured:.5},{:+.3},{p:.3},{m:.3},{:+.3}",
            case.name,
            predicted / measured - 1.0,
            p / m - 1.0
        );
    }
    Ok(())
}

/// The machine with so much device memory, for a plan.
fn held(profile: &HardwareProfile, limits: &Limits, device: Bytes) -> HardwareProfile {
    let capped = limits.hold(profile);
    capped.with_capacities(Some(device), None, None)
}

fn parts(profile: &HardwareProfile, limits: &Limits) -> anyhow::Result<()> {
    let model = layers("opt-1.3b", 8)?;
    let bench = Bench::new(limits, Some(profile))?;
    let share = benchmarked(&bench, &model)?;
    let open = split_plan(&model, share, 10)?;
    // Room for half of what is split.
    let weights: u64 = (1..=8)
        .flat_map(|block| model.tensors(block))
        .map(|t| t.elements() * 2)
        .sum();
    let machine = held(
        profile,
        limits,
        Bytes(footprint(&open)?.device.0 + weights / 2),
    );
    let plan = Plan::given(model, DTYPE, one_prompt(10), open.policy).on(&machine);
    let whole = scheduled(
        by_law(plan, Prompts::Streamed, &machine),
        &machine,
        Scheduler::Greedy,
    )?;
    let Some(mut whole) = whole else {
        anyhow::bail!("the split does not fit its own room");
    };
    if let Some(split) = &mut whole.policy.split {
        split.share = share;
    }
    let mut cases = vec![Case::new("all", whole.clone())];
    for (part, _, without) in WITHOUT {
        // Pageable memory is as fast as any here, so that Figure 5a takes nothing out.
        if without != Without::Pinning {
            let mut plan = whole.clone();
            plan.policy.split = plan.policy.split.map(|all| without.of(all, &machine));
            cases.push(Case::new(part, plan));
        }
    }
    compare(cases, (profile, limits), tokens_s)
}

/// All tokens, from the prompt on.
fn whole_s(run: &Run) -> Vec<f64> {
    vec![run.trace.makespan().0]
}

fn whole(profile: &HardwareProfile, limits: &Limits) -> anyhow::Result<()> {
    let model = layers("opt-1.3b", 8)?;
    let weights: u64 = (1..=8)
        .flat_map(|block| model.tensors(block))
        .map(|t| t.elements() * 2)
        .sum();
    let machine = held(profile, limits, Bytes(weights * 2 / 5));
    let mut cases = Vec::new();
    for (name, strategy) in [("unsplit", Strategy::FlexGen), ("split", Strategy::HeteGen)] {
        let request = Request {
            workload: one_prompt(24),
            objective: Objective::Throughput,
            max_latency_s: None,
            allowed: Allowed {
                strategy,
                ..Allowed::default()
            },
        };
        let Answer::Plan(found) = search(&machine, &model, DTYPE, &request)? else {
            anyhow::bail!("no {name} plan fits");
        };
        eprintln!(
            "{name}: {}",
            plimsoll::report::plan::policy_in_short(&found.plan)
        );
        cases.push(Case::new(name, found.plan));
    }
    compare(cases, (profile, limits), whole_s)
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let [what, link, cpu, profile @ ..] = arguments.as_slice() else {
        println!(
            "say what: sweep 2 4, parts 2 4 my.toml, whole 2 4 my.toml (GB/s of the link and of the CPU, or all; this machine's profile)"
        );
        return Ok(());
    };
    let rate = |text: &str| -> anyhow::Result<BytesPerSecond> {
        Ok(BytesPerSecond(text.parse::<f64>()? * 1e9))
    };
    let limits = Limits {
        throttles: Throttles {
            h2d: Some(rate(link)?),
            cpu: (cpu != "all").then(|| rate(cpu)).transpose()?,
            ..Throttles::default()
        },
        ..Limits::default()
    };
    let profile = || match profile.first() {
        Some(path) => Ok(find_profile(path)?),
        None => anyhow::bail!("give this machine's profile"),
    };
    match what.as_str() {
        "sweep" => sweep(&limits),
        "parts" => parts(&profile()?, &limits),
        "whole" => whole(&profile()?, &limits),
        other => anyhow::bail!("`{other}` is none of sweep, parts, whole"),
    }
}
