//! Whole checkpoints on the CUDA executor: its own threads, streams, events and kernels, on a card that computes on the CPU.
#![allow(unsafe_code)]

mod common;
mod cuda {
    pub mod card;
    pub mod emulator;
}

use std::collections::HashMap;
use std::sync::Arc;

use common::{Outcome, checkpoint, execute, model, plan, prompts};
use cuda::card::{FakeCard, Order};
use plimsoll_backend::cpu::{CpuExecutor, CpuOptions};
use plimsoll_backend::cuda::Card;
use plimsoll_backend::cuda::dispatch::{Dispatch, Inflections};
use plimsoll_backend::weights::WeightSource;
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::control::{DriveError, Run, drive};
use plimsoll_core::lower::Lowering;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::program::ResourceKind;
use plimsoll_core::workload::Workload;

const DEVICE: [f64; 6] = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
const HOST: [f64; 6] = [0.0, 100.0, 0.0, 100.0, 0.0, 100.0];
const DISK: [f64; 6] = [0.0; 6];
const MIXED: [f64; 6] = [30.0, 40.0, 25.0, 40.0, 40.0, 30.0];

fn workload(prompt_len: u32, gen_len: u32, count: u64) -> Workload {
    Workload {
        prompt_len,
        gen_len,
        num_prompts: Some(count),
    }
}

fn policy((gbs, batches): (u32, u32), percent: [f64; 6], changes: &str) -> Policy {
    let mut policy = Policy::from_percent(gbs, batches, percent).expect("a policy");
    for change in changes.split_whitespace() {
        match change {
            "free" => policy.barrier = false,
            "serial" => policy.overlap = false,
            "row" => policy.schedule = Schedule::Row,
            "diagonal" => policy.schedule = Schedule::Diagonal,
            "cpu" => policy.cpu_attention = true,
            "whole" => policy.half_layers = false,
            "weights" => policy.compression.weights = true,
            "cache" => policy.compression.cache = true,
            other => panic!("no such change: {other}"),
        }
    }
    policy
}

/// Executes a plan on a card, with prompts that may be shorter than the plan's.
fn on_card(
    plan: &Plan,
    source: &dyn WeightSource,
    prompts: &[Vec<u32>],
    (card, dispatch): (&Arc<FakeCard>, Dispatch),
) -> Result<Outcome, DriveError> {
    let dir = tempfile::tempdir().expect("a directory");
    on_card_with(
        plan,
        source,
        prompts,
        (card, dispatch),
        &CpuOptions::new(dir.path()),
    )
}

fn on_card_with(
    plan: &Plan,
    source: &dyn WeightSource,
    prompts: &[Vec<u32>],
    (card, dispatch): (&Arc<FakeCard>, Dispatch),
    options: &CpuOptions,
) -> Result<Outcome, DriveError> {
    let mut lowering = Lowering::new(plan).expect("it fits");
    let placement = lowering.placement().clone();
    let texts = lowering.texts().clone();
    let card: Arc<dyn Card> = Arc::clone(card) as _;
    let mut executor =
        CpuExecutor::on_card(plan, &placement, source, options, (card, dispatch)).expect("a card");
    executor.set_prompts(&texts, prompts).expect("prompts");
    let run = drive(&mut lowering, &mut executor)?;
    Ok(Outcome {
        tokens: executor.generated(&texts),
        logits: executor.take_logits(),
        run,
    })
}

/// What a run promises: each task that waits for another on the device does so by the order of streams and events.
fn unordered(run: &Run, card: &FakeCard) -> Vec<String> {
    let stamps = card.stamps();
    let mut places = HashMap::new();
    let mut counts = vec![0; stamps.len()];
    for (id, _, resource, _) in run.tasks() {
        places.insert(id, (resource, counts[resource]));
        counts[resource] += 1;
    }
    let stamp = |id| {
        let (resource, index): (usize, usize) = places[&id];
        stamps[resource].get(index).map(|stamp| (resource, stamp))
    };
    let mut wrong = Vec::new();
    for piece in &run.pieces {
        let first = piece.first_task().0;
        for index in 0..piece.tasks().len() {
            let id = plimsoll_core::program::TaskId(first + index as u32);
            let Some((_, own)) = stamp(id) else { continue };
            for dep in piece.deps_at(index) {
                if let Some((stream, earlier)) = stamp(*dep)
                    && own.begin[stream] < earlier.end
                {
                    wrong.push(format!("{id:?} may begin before {dep:?} ends"));
                }
            }
        }
    }
    wrong
}

/// That all streams had work, so that the order of something was looked at.
fn streams_used(run: &Run, kinds: &[ResourceKind]) {
    for kind in kinds {
        let used = run
            .tasks()
            .any(|(_, _, resource, _)| run.machine.resources[resource].kind == *kind);
        assert!(used, "{kind:?} had nothing to do");
    }
}

type Case = (&'static str, Dtype, (u32, u32), [f64; 6], &'static str);

/// Checkpoints, types, GPU batches, places and changes.
const CASES: [Case; 12] = [
    ("tiny-opt", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-opt", Dtype::F16, (2, 2), HOST, "free"),
    ("tiny-opt", Dtype::F16, (2, 2), DISK, "cpu free"),
    ("tiny-opt", Dtype::F16, (3, 2), MIXED, "cpu free"),
    ("tiny-opt", Dtype::F16, (1, 3), MIXED, "diagonal free"),
    ("tiny-opt", Dtype::F16, (2, 2), MIXED, "weights cache"),
    ("tiny-opt-projected", Dtype::F16, (2, 2), MIXED, "row free"),
    ("tiny-llama-3", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-llama-3", Dtype::F16, (2, 2), MIXED, "cpu whole"),
    ("tiny-llama-3", Dtype::Bf16, (2, 2), HOST, "serial"),
    ("tiny-mistral", Dtype::F16, (2, 2), MIXED, "free"),
    ("tiny-mistral", Dtype::F16, (4, 1), HOST, "cache free"),
];

/// Prompts of different lengths, the longest as planned.
fn uneven(count: u32, longest: u32, model: &ModelSpec) -> Vec<Vec<u32>> {
    let mut all = prompts(count, longest, model.vocab_size);
    for (index, prompt) in all.iter_mut().enumerate() {
        prompt.drain(..index % 3 * 2);
    }
    all
}

#[test]
fn tokens_are_those_of_the_cpu_executor() {
    let Some(card) = FakeCard::new(Order::Random(1)) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let mut same = (0, 0);
    for case in CASES {
        let (name, dtype, batches, percent, changes) = case;
        let (model, source) = (model(name), checkpoint(name));
        let gen_len = if changes.is_empty() { 16 } else { 5 };
        let workload = workload(9, gen_len, 4);
        let plan = plan(&model, dtype, policy(batches, percent, changes), workload);
        let prompts = uneven(4, 9, &model);
        let expected = execute(&plan, &source, &prompts, &CpuOptions::new(dir.path()));
        let found = on_card(&plan, &source, &prompts, (&card, Dispatch::default()));
        let found = found.unwrap_or_else(|error| panic!("{case:?}: {error}"));
        assert_eq!(found.tokens, expected.tokens, "{case:?}");
        assert_eq!(
            unordered(&found.run, &card),
            Vec::<String>::new(),
            "{case:?}"
        );
        same.0 += 1;
        same.1 += found.tokens.concat().len();
    }
    println!("the same {} tokens in {} runs", same.1, same.0);
}
