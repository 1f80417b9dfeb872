//! Plans on a card that computes on the CPU, and what their runs promise.
#![allow(dead_code)] // each test file uses a part

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use plimsoll_backend::cpu::{CapturedLogits, CpuExecutor, CpuOptions};
use plimsoll_backend::cuda::UnifiedMaximum;
use plimsoll_backend::dispatch::Dispatch;
use plimsoll_backend::weights::WeightSource;
use plimsoll_core::Dtype;
use plimsoll_core::control::{DriveError, Run, drive};
use plimsoll_core::lower::Lowering;
use plimsoll_core::machine::ResourceId;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::program::{Program, ResourceKind, TaskId};
use plimsoll_core::workload::Workload;

use super::card::{Call, FakeCard};
use crate::common::{Outcome, checkpoint, model, prompts};

pub fn workload(prompt_len: u32, gen_len: u32, count: u64) -> Workload {
    Workload {
        prompt_len,
        gen_len,
        num_prompts: Some(count),
    }
}

/// Executes a plan on a card, with prompts that may be shorter than the plan's.
pub fn on_card(
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

pub fn on_card_with(
    plan: &Plan,
    source: &dyn WeightSource,
    prompts: &[Vec<u32>],
    on: (&Arc<FakeCard>, Dispatch),
    options: &CpuOptions,
) -> Result<Outcome, DriveError> {
    let found = on_card_for_its_maximum(plan, source, prompts, on, options);
    Ok(found?.0)
}

pub fn on_card_for_its_maximum(
    plan: &Plan,
    source: &dyn WeightSource,
    prompts: &[Vec<u32>],
    (card, dispatch): (&Arc<FakeCard>, Dispatch),
    options: &CpuOptions,
) -> Result<(Outcome, UnifiedMaximum), DriveError> {
    let mut lowering = Lowering::new(plan).expect("it fits");
    let placement = lowering.placement().clone();
    let texts = lowering.texts().clone();
    let options = CpuOptions {
        card: Some(Arc::clone(card) as _),
        dispatch,
        ..options.clone()
    };
    let mut executor = CpuExecutor::new(plan, &placement, source, &options).expect("a card");
    executor.set_prompts(&texts, prompts).expect("prompts");
    let run = drive(&mut lowering, &mut executor)?;
    for kind in [ResourceKind::H2d, ResourceKind::D2h] {
        let streams = (0..plan.machine().num_gpus() as u8)
            .filter_map(|gpu| plan.machine().resource(kind, gpu));
        for stream in streams {
            let copied = card.page_locked(usize::from(stream.0)).1;
            let said = pageable_moves(&run, stream);
            assert_eq!(
                copied, said,
                "copies of {kind:?} from or to what is not page-locked: {:?}",
                plan.policy
            );
        }
    }
    let maximum = executor.unified_maximum().expect("its memory is there");
    let outcome = Outcome {
        tokens: executor.generated(&texts),
        logits: executor.take_logits(),
        run,
    };
    Ok((outcome, maximum.expect("a card")))
}

/// Copies on a link that are costed as from or to memory that is not page-locked.
fn pageable_moves(run: &Run, on: ResourceId) -> usize {
    let pageable = |piece: &Program| {
        let on_it = piece.tasks().iter().filter(|task| task.resource == on);
        let pageable = on_it.filter(|task| piece.op_of(task).pageable_bytes().is_some());
        pageable.count()
    };
    run.pieces.iter().map(|piece| pageable(piece)).sum()
}

/// What a run promises: each task that waits for another on the device, be it by way of tasks of the host, does so by the
/// order of streams and events.
pub fn unordered(run: &Run, card: &FakeCard) -> Vec<String> {
    let stamps = card.stamps();
    let mut wrong = Vec::new();
    // How far each stream has to be before a task ends, as its dependencies say; and by resource its last task and number.
    let mut before: HashMap<TaskId, Vec<u64>> = HashMap::new();
    let mut lasts = vec![(None, 0); stamps.len()];
    for piece in &run.pieces {
        let ids = (piece.first_task().0..).map(TaskId);
        for ((index, task), id) in piece.tasks().iter().enumerate().zip(ids) {
            let resource = task.resource.0 as usize;
            let (last, number) = lasts[resource];
            let mut needed = vec![0; stamps.len()];
            for dep in piece.deps_at(index).iter().copied().chain(last) {
                let needs = needed.iter_mut().zip(&before[&dep]);
                needs.for_each(|(own, other)| *own = (*own).max(*other));
            }
            if let Some(own) = stamps[resource].get(number) {
                let certain = own.begin.iter().zip(&needed);
                if certain.into_iter().any(|(begin, needed)| begin < needed) {
                    wrong.push(format!("{id:?} may begin before what it waits for ends"));
                }
                needed[resource] = own.end;
            }
            before.insert(id, needed);
            lasts[resource] = (Some(id), number + 1);
        }
    }
    wrong
}

/// Tasks that began before one that they wait for had ended, on the device's own clock.
pub fn early(run: &Run) -> Vec<String> {
    let on_device = |resource: usize| {
        use ResourceKind::{D2h, Gpu, H2d, Sync};
        matches!(run.machine.resources[resource].kind, Gpu | H2d | D2h | Sync)
    };
    let resources: HashMap<_, _> = run.tasks().map(|(id, _, r, _)| (id, r)).collect();
    let mut wrong = Vec::new();
    for piece in &run.pieces {
        let ids = (piece.first_task().0..).map(TaskId);
        for (index, id) in (0..piece.tasks().len()).zip(ids) {
            let span = run.trace.span(id).expect("it ended");
            for dep in piece.deps_at(index) {
                let before = run.trace.span(*dep).expect("it ended");
                let both = on_device(resources[&id]) && on_device(resources[dep]);
                // What the clock rounds.
                if both && span.start.0 < before.end.0 - 1e-6 {
                    wrong.push(format!("{id:?} began before {dep:?} ended"));
                }
            }
        }
    }
    wrong
}

/// A checkpoint and its model.
pub fn subject(name: &str) -> (ModelSpec, Box<dyn WeightSource>) {
    (model(name), Box::new(checkpoint(name)))
}

/// Prompts of different lengths, the longest as planned.
pub fn uneven(count: u32, longest: u32, model: &ModelSpec) -> Vec<Vec<u32>> {
    let mut all = prompts(count, longest, model.vocab_size);
    for (index, prompt) in all.iter_mut().enumerate() {
        prompt.drain(..index % 3 * 2);
    }
    all
}

/// Where tokens differ first: the sequence, the token's place, and how far apart the two choices are on the CPU, as a share of its
/// largest logit: less than rounding between stages moves logits by.
pub fn ties(
    found: &[Vec<u32>],
    expected: &Outcome,
    (gbs, dtype): (u32, Dtype),
) -> Vec<(usize, usize, f32)> {
    let least = match dtype {
        Dtype::F16 => 0.001,
        _ => 0.008,
    };
    let mut ties = Vec::new();
    let pairs = found.iter().zip(&expected.tokens).enumerate();
    for (sequence, (found, expected_tokens)) in pairs {
        let mut places = found.iter().zip(expected_tokens);
        let Some(place) = places.position(|(a, b)| a != b) else {
            continue;
        };
        let gbs = gbs as usize;
        let of = |c: &CapturedLogits| (c.cell.round, c.cell.batch);
        // Rounds one after another, in each its batches.
        let cells: BTreeSet<_> = expected.logits.iter().map(of).collect();
        let cell = cells.into_iter().nth(sequence / gbs).expect("its batch");
        let mut of_batch = expected.logits.iter().filter(|c| of(c) == cell);
        let batch = &of_batch.nth(place).expect("its logits").logits;
        let vocabulary = batch.len() / gbs.min(expected.tokens.len() - sequence / gbs * gbs);
        let own = &batch[sequence % gbs * vocabulary..][..vocabulary];
        let largest = own.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
        let [ours, theirs] = [found, expected_tokens].map(|tokens| own[tokens[place] as usize]);
        let apart = (theirs - ours) / largest;
        assert!(
            (0.0..least).contains(&apart),
            "sequence {sequence}, token {place}: {apart}"
        );
        ties.push((sequence, place, apart));
    }
    ties
}

/// How far logits are off, as a share of the largest.
pub fn off_by(found: &Outcome, expected: &Outcome) -> f32 {
    let mut worst = 0.0_f32;
    assert_eq!(found.logits.len(), expected.logits.len());
    for (found, expected) in found.logits.iter().zip(&expected.logits) {
        assert_eq!(found.cell, expected.cell);
        let largest = expected.logits.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
        let pairs = found.logits.iter().zip(&expected.logits);
        worst = pairs.fold(worst, |worst, (a, b)| worst.max((a - b).abs() / largest));
    }
    worst
}

/// An error with what caused it.
pub fn said(error: &DriveError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// From the first kernel to the last: calls that are none, and how often who issues waited. Threads: one gives a stream its tasks,
/// another learns when they ended.
pub fn beside_launches(calls: &[(Call, String)]) -> (Vec<&(Call, String)>, usize) {
    let is_kernel = |(call, _): &(Call, String)| matches!(call, Call::Launch(_));
    let first = calls.iter().position(is_kernel).expect("kernels");
    let last = calls.iter().rposition(is_kernel).expect("kernels");
    let steps = calls[first..=last].iter();
    let by = |end: &str, thread: &str| thread.ends_with(end);
    let others = steps.clone().filter(|(call, thread)| match call {
        Call::Launch(_) => false,
        Call::AwaitEvent => !by("-in", thread) && !by("-out", thread),
        _ => true,
    });
    let waited = |(call, thread): &&(Call, String)| *call == Call::AwaitEvent && by("-in", thread);
    (others.collect(), steps.clone().filter(waited).count())
}
