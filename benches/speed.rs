//! How fast models run whole on this machine's CPU, beside what the machine could do at most. Run with
//! `cargo bench --bench speed` (`-- "Llama shape | f32 | 8"` for some of it); everything is resident, two threads compute, prompts are of 128 tokens
//! and 32 are generated. Shares are of the rates measured just before and after each run.

use std::ops::Range;
use std::path::Path;

use plimsoll::files;
use plimsoll::files::{find_model, random_prompts};
use plimsoll::stats::quantile;
use plimsoll_backend::cpu::{CpuExecutor, CpuOptions};
use plimsoll_backend::probe::{fma_flops_per_s, host_read_rates};
use plimsoll_backend::weights::{Remembered, Synthetic};
use plimsoll_core::Dtype;
use plimsoll_core::control::drive;
use plimsoll_core::lower::Lowering;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Granularity, PageLocked, Policy};
use plimsoll_core::summary::Summary;
use plimsoll_core::workload::Workload;

const THREADS: usize = 2;
const PROMPT_LEN: u32 = 128;
const GEN_LEN: u32 = 32;
const REPEATS: usize = 5;

/// A model in a type at a batch, and what its runs gave.
struct Case {
    name: &'static str,
    plan: Plan,
    batch: u32,
    /// Made up once.
    weights: Remembered<Synthetic>,
    prefill_tok_s: Vec<f64>,
    decode_tok_s: Vec<f64>,
    of_peak: Vec<f64>,
    of_stream: Vec<f64>,
}

fn plan(model: ModelSpec, dtype: Dtype, batch: u32) -> anyhow::Result<Plan> {
    let on_device = Policy::from_percent(batch, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0])?;
    let policy = Policy {
        barrier: false,
        granularity: Granularity::Spread,
        page_locked: PageLocked::ALL,
        ..on_device
    };
    let workload = Workload {
        prompt_len: PROMPT_LEN,
        gen_len: GEN_LEN,
        num_prompts: None,
    };
    let roomy = files::find_profile("h100")?;
    Ok(Plan::given(model, dtype, workload, policy).on(&roomy))
}

/// Parameters in some of the model's blocks: the embedding, the layers, the head.
fn parameters(model: &ModelSpec, blocks: Range<u32>) -> f64 {
    let tensors = blocks.flat_map(|block| model.tensors(block));
    tensors.map(|tensor| tensor.elements() as f64).sum()
}

impl Case {
    /// "Llama shape | f32 | 8".
    fn title(&self) -> String {
        format!(
            "{} | {} | {}",
            self.name,
            self.plan.dtype.name(),
            self.batch
        )
    }

    fn run(&mut self) -> anyhow::Result<()> {
        let before = (host_read_rates(1)?[0], fma_flops_per_s(THREADS));
        let mut lowering = Lowering::new(&self.plan)?;
        let options = CpuOptions {
            device_threads: THREADS,
            ..CpuOptions::new(std::env::temp_dir())
        };
        let mut executor =
            CpuExecutor::new(&self.plan, lowering.placement(), &self.weights, &options)?;
        let model = &self.plan.model;
        let prompts = random_prompts(1, u64::from(self.batch), PROMPT_LEN, model.vocab_size);
        let prompts: Vec<Vec<u32>> = prompts.into_iter().map(|p| p.prompt_token_ids).collect();
        executor.set_prompts(lowering.texts(), &prompts)?;
        let summary = Summary::of(&drive(&mut lowering, &mut executor)?);
        let after = (host_read_rates(1)?[0], fma_flops_per_s(THREADS));
        let (stream, peak) = ((before.0 + after.0) / 2.0, (before.1 + after.1) / 2.0);
        let batch = f64::from(self.batch);
        let layers = model.num_hidden_layers;
        // A step looks rows of the embedding up and reads all else.
        let read = parameters(model, 1..layers + 2) * self.plan.dtype.size_bytes() as f64;
        let decode_s = summary.decode_s.expect("several tokens").0;
        let steps_s = f64::from(GEN_LEN - 1) / decode_s;
        let flops = 2.0 * parameters(model, 1..layers + 1) * batch * f64::from(PROMPT_LEN);
        self.prefill_tok_s
            .push(batch * f64::from(PROMPT_LEN) / summary.prefill_s.0);
        self.decode_tok_s.push(batch * steps_s);
        self.of_peak.push(flops / summary.prefill_s.0 / peak);
        self.of_stream.push(read * steps_s / stream);
        Ok(())
    }
}

fn cases() -> anyhow::Result<Vec<Case>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let llama = root.join("experiments/cpu-speed/llama-125m.json");
    let llama = find_model(&llama.to_string_lossy())?.spec;
    let opt = find_model("opt-125m")?.spec;
    let mut cases = Vec::new();
    for (name, model) in [("Llama shape", llama), ("OPT-125m", opt)] {
        for (dtype, batch) in [
            (Dtype::F32, 1),
            (Dtype::F32, 8),
            (Dtype::F16, 1),
            (Dtype::F16, 8),
            (Dtype::Bf16, 1),
            (Dtype::Bf16, 8),
        ] {
            cases.push(Case {
                name,
                plan: plan(model.clone(), dtype, batch)?,
                batch,
                weights: Remembered::new(Synthetic { seed: 1 }),
                prefill_tok_s: Vec::new(),
                decode_tok_s: Vec::new(),
                of_peak: Vec::new(),
                of_stream: Vec::new(),
            });
        }
    }
    Ok(cases)
}

fn main() -> anyhow::Result<()> {
    let mut cases = cases()?;
    // As of other benchmarks, an argument says which.
    if let Some(some) = std::env::args().skip(1).find(|arg| !arg.starts_with('-')) {
        cases.retain(|case| case.title().contains(&some));
    }
    // Repeats are interleaved, since shared machines change their pace.
    for _ in 0..REPEATS {
        for case in &mut cases {
            case.run()?;
        }
    }
    println!(
        "| model | type | batch | prefill tok/s | of FMA peak | decode tok/s | of stream read |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|");
    for case in &cases {
        let median = |values: &[f64]| quantile(values, 0.5);
        // With the least and the most: what the neighbours of a shared machine do is in them.
        let shares = |values: &[f64]| {
            let at = |share| 100.0 * quantile(values, share);
            format!("{:.0}% ({:.0} to {:.0})", at(0.5), at(0.0), at(1.0))
        };
        println!(
            "| {} | {:.0} | {} | {:.1} | {} |",
            case.title(),
            median(&case.prefill_tok_s),
            shares(&case.of_peak),
            median(&case.decode_tok_s),
            shares(&case.of_stream),
        );
    }
    Ok(())
}
