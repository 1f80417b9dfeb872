//! Whole checkpoints on the CUDA executor: its own threads, streams, events and kernels, on a card that computes on the CPU.
#![allow(unsafe_code)]

mod common;
mod cuda {
    pub mod card;
    pub mod emulator;
    pub mod runs;
}

use std::sync::Arc;

use common::{execute, model, plan, prompts};
use cuda::card::{Call, FakeCard, Fault, Order};
use cuda::runs::{
    beside_launches, early, off_by, on_card, on_card_for_its_maximum, on_card_with, said, subject,
    ties, uneven, unordered, workload,
};
use plimsoll_backend::cpu::{CpuExecutor, CpuOptions};
use plimsoll_backend::dispatch::{Dispatch, Known, Weights};
use plimsoll_backend::probe::{PageableCopies, ProbeOptions};
use plimsoll_backend::weights::{Synthetic, WeightError, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Implementation, Inflections};
use plimsoll_core::lower::{Lowering, page_locked_bytes};
use plimsoll_core::model::{ModelSpec, TensorRole, TensorSpec};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy, Schedule};
use plimsoll_core::program::ResourceKind;

const DEVICE: [f64; 6] = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
const HOST: [f64; 6] = [0.0, 100.0, 0.0, 100.0, 0.0, 100.0];
const DISK: [f64; 6] = [0.0; 6];
const MIXED: [f64; 6] = [30.0, 40.0, 25.0, 40.0, 40.0, 30.0];

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

/// Weights whose queries are a multiple of another's.
struct Louder(Box<dyn WeightSource>, f32);

impl WeightSource for Louder {
    fn load(&self, tensor: &TensorSpec, dtype: Dtype, into: &mut [u8]) -> Result<(), WeightError> {
        self.0.load(tensor, dtype, into)?;
        if matches!(tensor.role, TensorRole::QWeight | TensorRole::QBias) {
            for bytes in into.as_chunks_mut().0 {
                let louder = half::f16::from_ne_bytes(*bytes).to_f32() * self.1;
                *bytes = half::f16::from_f32(louder).to_ne_bytes();
            }
        }
        Ok(())
    }
}

/// FlashDecoding++ section 3: the maximum is found in the first step and shared by the others; queries that leave its range are
/// computed again. Where scores are too wide apart for any, all is synchronised. Tokens are the CPU executor's whichever it is.
#[test]
fn attention_has_a_unified_maximum_where_scores_allow_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (model, source) = subject("tiny-llama");
    let own = policy((2, 2), DEVICE, "free");
    let plan = plan(&model, Dtype::F16, own, workload(6, 4, 4));
    let prompts = uneven(4, 6, &model);
    let options = CpuOptions::new(dir.path());
    // The first of four tokens is the prompt's, the second's scores are measured.
    let queries = 4 * model.num_attention_heads * model.num_hidden_layers * 2;
    let on = |card: &Arc<FakeCard>, source: &dyn WeightSource| {
        let on = (card, Dispatch::default());
        let found = on_card_for_its_maximum(&plan, source, &prompts, on, &options);
        let (found, maximum) = found.unwrap_or_else(|error| panic!("{}", said(&error)));
        let expected = execute(&plan, source, &prompts, &options);
        assert_eq!(found.tokens, expected.tokens, "{maximum:?}");
        maximum
    };
    // A card at a time, since they share an emulator.
    let Some(card) = FakeCard::new(Order::Random(5)) else {
        return;
    };
    let near = on(&card, &*source);
    let range = near.range.expect("scores are near each other");
    assert!(range.phi.abs() < 16.0, "{range:?}");
    assert_eq!(near.recomputed, 0);
    let wide = on(&card, &Louder(subject("tiny-llama").1, 2000.0));
    assert_eq!((wide.range, wide.recomputed), (None, 0));
    drop(card);
    let card = FakeCard::with(Order::Random(6), Fault::Narrows).expect("there was one before");
    let narrow = on(&card, &*source);
    let some = queries / 4..=queries;
    assert!(some.contains(&narrow.recomputed), "{narrow:?} of {queries}");
}

type Case = (&'static str, Dtype, (u32, u32), [f64; 6], &'static str);

/// Checkpoints, types, GPU batches, places and changes.
const CASES: [Case; 21] = [
    // Every checkpoint there is; those of Llama have heads of 12.
    ("tiny-opt", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-opt-f16", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-opt-projected", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-llama", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-llama-f16", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-llama-bf16", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-llama-3", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-mistral", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-qwen2", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-qwen3", Dtype::F16, (4, 1), DEVICE, ""),
    ("tiny-llama", Dtype::F16, (2, 2), MIXED, "cpu free"),
    ("tiny-opt", Dtype::F16, (2, 2), HOST, "free"),
    ("tiny-opt", Dtype::F16, (2, 2), DISK, "cpu free"),
    ("tiny-opt", Dtype::F16, (3, 2), MIXED, "cpu free"),
    ("tiny-opt", Dtype::F16, (1, 3), MIXED, "diagonal free"),
    ("tiny-opt", Dtype::F16, (2, 2), MIXED, "weights"),
    ("tiny-opt-projected", Dtype::F16, (2, 2), MIXED, "row free"),
    (
        "tiny-llama-3",
        Dtype::F16,
        (2, 2),
        MIXED,
        "cpu whole serial",
    ),
    ("tiny-mistral", Dtype::F16, (2, 2), MIXED, "free"),
    ("tiny-qwen2", Dtype::F16, (2, 2), MIXED, "cpu free"),
    ("tiny-qwen3", Dtype::F16, (2, 2), MIXED, "free"),
];

#[test]
fn tokens_are_those_of_the_cpu_executor() {
    let Some(card) = FakeCard::new(Order::Random(1)) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let mut same = (0, 0);
    let mut near = Vec::new();
    for case in CASES {
        let (name, dtype, batches, percent, changes) = case;
        let (model, source) = subject(name);
        let gen_len = if changes.is_empty() { 16 } else { 4 };
        let workload = workload(9, gen_len, 4);
        let plan = plan(&model, dtype, policy(batches, percent, changes), workload);
        let prompts = uneven(4, 9, &model);
        let mut options = CpuOptions::new(dir.path());
        let expected = execute(&plan, &*source, &prompts, &options);
        let found = on_card(&plan, &*source, &prompts, (&card, Dispatch::default()));
        let found = found.unwrap_or_else(|error| panic!("{case:?}: {error}"));
        if found.tokens != expected.tokens {
            options.capture_logits = true;
            let expected = execute(&plan, &*source, &prompts, &options);
            near.push((case, ties(&found.tokens, &expected, (batches.0, dtype))));
        }
        assert_eq!(
            unordered(&found.run, &card),
            Vec::<String>::new(),
            "{case:?}"
        );
        assert_eq!(early(&found.run), Vec::<String>::new(), "{case:?}");
        same.0 += 1;
        same.1 += found.tokens.concat().len();
    }
    println!(
        "the same {} tokens in {} runs, but for {near:?}",
        same.1, same.0
    );
    // Of 68 sequences, each of at most 16 tokens.
    assert!(near.len() <= 4, "{near:?}");
}

/// A plan in which all streams have work, and the CPU and the disk.
fn busy() -> (Plan, Box<dyn WeightSource>, Vec<Vec<u32>>) {
    let (model, source) = subject("tiny-opt");
    let policy = policy((1, 3), MIXED, "cpu free");
    let plan = plan(&model, Dtype::F16, policy, workload(5, 3, 3));
    let prompts = uneven(3, 5, &model);
    (plan, source, prompts)
}

#[test]
fn no_order_of_streams_changes_a_token() {
    let (plan, source, prompts) = busy();
    let dir = tempfile::tempdir().expect("a directory");
    let expected = execute(&plan, &*source, &prompts, &CpuOptions::new(dir.path()));
    let machine = plan.machine();
    let of = |kind| machine.resource(kind, 0).expect("there").0;
    use ResourceKind::{D2h, Gpu, H2d};
    let held_back = [Gpu, H2d, D2h].map(|kind| Order::Last(usize::from(of(kind))));
    for order in [Order::Random(7), Order::Random(8)]
        .into_iter()
        .chain(held_back)
    {
        let Some(card) = FakeCard::new(order) else {
            return;
        };
        let found = on_card(&plan, &*source, &prompts, (&card, Dispatch::default()));
        let found = found.unwrap_or_else(|error| panic!("{order:?}: {error}"));
        assert_eq!(found.tokens, expected.tokens, "{order:?}");
        assert_eq!(unordered(&found.run, &card), Vec::<String>::new());
    }
}

#[test]
fn streams_that_forget_to_wait_are_found() {
    let (plan, source, prompts) = busy();
    let h2d = plan.machine().resource(ResourceKind::H2d, 0);
    let order = Order::Last(usize::from(h2d.expect("a link").0));
    let Some(card) = FakeCard::with(order, Fault::ForgetsWaits) else {
        return;
    };
    // What was not there yet is a NaN, so that it may not come to an end at all.
    match on_card(&plan, &*source, &prompts, (&card, Dispatch::default())) {
        Ok(found) => assert_ne!(unordered(&found.run, &card), Vec::<String>::new()),
        Err(error) => assert!(said(&error).contains("not all numbers"), "{}", said(&error)),
    }
}

/// A model, its type and what is in 4 bits; which implementation computes how many rows, and how near logits are.
type Near = (&'static str, Dtype, &'static str, Inflections, f32);

fn near() -> [Near; 7] {
    let points = |m1, m2| Inflections { m1, m2 };
    // Rounded sooner than on the CPU, a key may fall to another 4-bit code.
    [
        ("tiny-opt", Dtype::F16, "", points(Some(1), Some(3)), 0.004),
        ("tiny-opt", Dtype::Bf16, "", points(Some(1), None), 0.04),
        (
            "tiny-opt",
            Dtype::F16,
            "weights cache",
            points(Some(2), Some(65)),
            0.08,
        ),
        ("tiny-llama-3", Dtype::F16, "", points(None, None), 0.004),
        (
            "tiny-llama-3",
            Dtype::F16,
            "weights",
            points(Some(1), None),
            0.004,
        ),
        (
            "tiny-mistral",
            Dtype::Bf16,
            "",
            points(Some(1), Some(1)),
            0.04,
        ),
        (
            "tiny-mistral",
            Dtype::F16,
            "cache",
            points(Some(1), None),
            0.08,
        ),
    ]
}

/// Whichever kernel computes a product, and whoever chooses, tokens are the same; logits are near the CPU's.
#[test]
fn logits_are_near_those_of_the_cpu_executor_whatever_computes_them() {
    let Some(card) = FakeCard::new(Order::Random(2)) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    for (name, dtype, changes, points, within) in near() {
        let (model, source) = subject(name);
        let own = policy((2, 1), MIXED, changes);
        let plan = plan(&model, dtype, own, workload(7, 3, 2));
        let prompts = uneven(2, 7, &model);
        let mut options = CpuOptions::new(dir.path());
        let chosen = execute(&plan, &*source, &prompts, &options).tokens;
        options.given = Some(chosen.clone().into());
        options.capture_logits = true;
        let expected = execute(&plan, &*source, &prompts, &options);
        let shapes = model.tensors(1).into_iter().chain(model.tensors(0));
        let weights = |tensor: TensorSpec| Weights {
            dtype,
            n: tensor.rows as usize,
            k: tensor.cols as usize,
            packed: false,
            biased: false,
        };
        let dispatch = Dispatch::of(shapes.map(|tensor| (weights(tensor), points)));
        let found = on_card_with(&plan, &*source, &prompts, (&card, dispatch), &options);
        let found = found.unwrap_or_else(|error| panic!("{name}: {}", said(&error)));
        assert_eq!(found.tokens, chosen, "{name}");
        let worst = off_by(&found, &expected);
        // Codes that fall otherwise tell less than there being codes at all.
        if changes.contains("cache") {
            let whole = Plan {
                policy: policy((2, 1), MIXED, changes.trim_end_matches("cache")),
                ..plan.clone()
            };
            let whole = execute(&whole, &*source, &prompts, &options);
            let packed = off_by(&expected, &whole);
            assert!(worst < packed, "{name}: {worst} of {packed}");
        }
        println!("{name}, {dtype:?} {changes}: logits off by {worst} of the largest");
        assert!(worst < within, "{name}, {dtype:?}: {worst}");
    }
    // Weights in 4 bits stay so for a step's rows, and are unpacked for a prompt's.
    let calls = card.calls();
    for kernel in ["gemv_packed_f16_m2", "unpack_matrix_f16"] {
        let is_it = |call: &Call| matches!(call, Call::Launch(launch) if launch.kernel == kernel);
        assert!(calls.iter().any(|(call, _)| is_it(call)), "{kernel}");
    }
}

/// How often a kernel is launched where a small model that has a gate answers a prompt of four tokens; none where there is no emulator.
fn launches_of(kernel: &str, changes: &str, gen_len: u32, dispatch: Dispatch) -> Option<usize> {
    let card = FakeCard::new(Order::Random(5))?;
    let dir = tempfile::tempdir().expect("a directory");
    let (model, source) = subject("tiny-mistral");
    let own = policy((1, 1), DEVICE, changes);
    let plan = plan(&model, Dtype::F16, own, workload(4, gen_len, 1));
    let (prompts, options) = (uneven(1, 4, &model), CpuOptions::new(dir.path()));
    on_card_with(&plan, &*source, &prompts, (&card, dispatch), &options).expect("it runs");
    let is_it = |call: &Call| matches!(call, Call::Launch(launch) if launch.kernel == kernel);
    Some(card.calls().iter().filter(|(call, _)| is_it(call)).count())
}

/// Queries, keys and values are one launch where rows are few, and so are a gate and what it gates.
#[test]
fn products_that_share_their_input_are_one_launch() {
    let layers = subject("tiny-mistral").0.num_hidden_layers as usize;
    for (changes, kernel) in [("", "gemv_f16_m1"), ("weights", "gemv_packed_f16_m1")] {
        let Some(found) = launches_of(kernel, changes, 4, Dispatch::default()) else {
            return;
        };
        // Those, the output's and the MLP's second, in each of three steps; and four heads.
        assert_eq!(found, 3 * 4 * layers + 4);
    }
}

/// Where the vendor's library suits one of all their columns, which has no launch for several, the flat product computes them.
#[test]
fn the_vendors_library_computes_no_products_that_share_their_input() {
    let model = subject("tiny-mistral").0;
    let from_two = Inflections {
        m1: Some(2),
        m2: Some(2),
    };
    for (changes, joined) in [("", 2), ("weights", 0)] {
        let shapes = Weights::of_model_on_card_and_joined(&model, Dtype::F16);
        let shapes = Weights::whole_then_in_groups(shapes).into_iter();
        let dispatch = Dispatch::of(shapes.map(|weights| (weights, from_two)));
        let Some(found) = launches_of("thin_f16_e1", changes, 2, dispatch) else {
            return;
        };
        assert_eq!(found, joined * model.num_hidden_layers as usize);
    }
}

/// What a card that has a plan's products measured first has measured.
fn measured_on(card: Arc<FakeCard>) -> Vec<Known> {
    let (model, source) = subject("tiny-mistral");
    let own = policy((2, 1), DEVICE, "weights");
    let plan = plan(&model, Dtype::F16, own, workload(4, 2, 2));
    let lowering = Lowering::new(&plan).expect("it fits");
    let dir = tempfile::tempdir().expect("a directory");
    let dispatch = Dispatch::measuring();
    let options = CpuOptions {
        card: Some(card),
        dispatch: dispatch.clone(),
        ..CpuOptions::new(dir.path())
    };
    CpuExecutor::new(&plan, lowering.placement(), &*source, &options).expect("an executor");
    dispatch.known()
}

/// What is timed may take more than others leave.
#[test]
fn a_card_without_room_to_measure_some_products_goes_on_without() {
    let all = measured_on(FakeCard::idle()).len();
    let some = measured_on(FakeCard::idle_with(Fault::HasNoRoom(3))).len();
    assert_eq!(some, all - 3);
}

/// Each shape of the model has its curve over rows, and its products are computed by what was measured.
#[test]
fn products_are_measured_before_the_clock_starts() {
    // What is computed does not matter here, and would take minutes.
    let known = measured_on(FakeCard::idle());
    // K and V; down; queries; the output; a gate; Q, K and V together; the head, and gate and up together. First whole, since in 4 bits
    // a choice among these is one of two ways.
    let expected = [
        [32, 48],
        [48, 64],
        [48, 80],
        [64, 48],
        [80, 48],
        [128, 48],
        [160, 48],
    ];
    assert_eq!(known.len(), 2 * expected.len());
    for (of, packed) in known.chunks(expected.len()).zip([false, true]) {
        let mut shapes: Vec<[usize; 2]> = of.iter().map(|m| [m.weights.n, m.weights.k]).collect();
        shapes.sort_unstable();
        assert_eq!(shapes, expected);
        assert!(of.iter().all(|measured| measured.weights.packed == packed));
    }
    for measured in known {
        let curves = measured.curves.expect("the whole curves");
        assert_eq!(measured.points, curves.inflections());
        for implementation in Implementation::ALL {
            let is_there = !(curves.packed && implementation == Implementation::Flat);
            let curve = curves.of(implementation);
            assert_eq!(curve.is_some(), is_there);
            let Some(curve) = curve else { continue };
            let rows: Vec<f64> = curve.points().iter().map(|point| point.0).collect();
            assert_eq!((rows[0], rows.len()), (1.0, 14));
        }
    }
}

/// Once the first kernel has been given, nothing is allocated, given back, page-locked or written by the host; and those who
/// issue wait for no event but the end of copies down to pageable memory, unless the host chooses tokens.
#[test]
fn decoding_allocates_nothing_and_waits_for_nothing() {
    let (plan, source, prompts) = busy();
    let Some(card) = FakeCard::new(Order::Random(9)) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let greedy = CpuOptions::new(dir.path());
    let given = vec![vec![5; plan.workload.gen_len as usize]; prompts.len()];
    let chosen_by_host = CpuOptions {
        given: Some(given.into()),
        ..greedy.clone()
    };
    let mut begun = 0;
    for (options, waits) in [(greedy, false), (chosen_by_host, true)] {
        let on = (&card, Dispatch::default());
        let found = on_card_with(&plan, &*source, &prompts, on, &options);
        let found = found.unwrap_or_else(|error| panic!("{}", said(&error)));
        let pageable = found.run.tasks().filter(|(_, op, resource, _)| {
            let kind = found.run.machine.resources[*resource].kind;
            kind == ResourceKind::D2h && op.pageable_bytes().is_some()
        });
        let pageable = pageable.count();
        assert!(pageable > 0);
        let calls = card.calls().split_off(begun);
        begun += calls.len();
        let (others, waited) = beside_launches(&calls);
        assert!(others.is_empty(), "{others:?}");
        assert_eq!(waited > pageable, waits, "{waited} of {}", calls.len());
        assert!(waited >= pageable, "{waited} for {pageable}");
    }
}

/// Weights of which one is no number.
struct Spoilt(Synthetic);

impl WeightSource for Spoilt {
    fn load(&self, tensor: &TensorSpec, dtype: Dtype, into: &mut [u8]) -> Result<(), WeightError> {
        self.0.load(tensor, dtype, into)?;
        if tensor.role == TensorRole::FinalNormWeight {
            into[..2].copy_from_slice(&half::f16::NAN.to_ne_bytes());
        }
        Ok(())
    }
}

#[test]
fn what_is_no_number_is_an_error_and_never_a_token() {
    let Some(card) = FakeCard::new(Order::Random(3)) else {
        return;
    };
    let model = model("tiny-opt");
    let plan = plan(
        &model,
        Dtype::F16,
        policy((2, 1), DEVICE, ""),
        workload(4, 3, 2),
    );
    let prompts = prompts(2, 4, model.vocab_size);
    let source = Spoilt(Synthetic { seed: 7 });
    let error = on_card(&plan, &source, &prompts, (&card, Dispatch::default()));
    let Err(error) = error else {
        panic!("tokens of no numbers")
    };
    let said = said(&error);
    assert!(said.contains("the logits of sequence 0"), "{said}");
    assert!(said.contains("run in bf16 or f32"), "{said}");
}

/// What a plan has pageable stays so, and all else on the host is page-locked: no copy but of the former comes from or goes to memory
/// that is not.
#[test]
fn homes_are_page_locked_as_the_plan_says() {
    let Some(card) = FakeCard::new(Order::Random(16)) else {
        return;
    };
    let (model, source) = subject("tiny-llama");
    let prompts = uneven(4, 6, &model);
    let run = |weights, cache, activations| {
        let page_locked = PageLocked {
            weights,
            cache,
            activations,
        };
        let own = Policy {
            page_locked,
            ..policy((2, 2), [30.0, 40.0, 25.0, 40.0, 0.0, 100.0], "free")
        };
        let plan = plan(&model, Dtype::F16, own, workload(6, 4, 4));
        let found = on_card(&plan, &*source, &prompts, (&card, Dispatch::default()));
        let tokens = found.unwrap_or_else(|error| panic!("{error}")).tokens;
        let copied = [ResourceKind::H2d, ResourceKind::D2h].map(|kind| {
            let stream = plan.machine().resource(kind, 0).expect("a link");
            card.page_locked(usize::from(stream.0)).1
        });
        let h2d = plan
            .machine()
            .resource(ResourceKind::H2d, 0)
            .expect("a link");
        let locked = card.page_locked(usize::from(h2d.0)).0;
        let said = page_locked_bytes(&plan).expect("a plan").0 as usize;
        assert_eq!(locked, said, "{page_locked:?}");
        (tokens, locked, copied)
    };
    let (tokens, all, copied) = run(true, true, true);
    assert_eq!(copied, [0, 0]);
    // Weights come only; the cache and activations come and go.
    let mut less = Vec::new();
    for (weights, cache, activations) in [
        (false, true, true),
        (true, false, true),
        (true, true, false),
    ] {
        let (found, locked, [up, down]) = run(weights, cache, activations);
        assert_eq!(found, tokens);
        assert!(
            up > 0 && (down > 0) == weights,
            "{weights} {cache} {up} {down}"
        );
        less.push(all - locked);
    }
    let (found, locked, _) = run(false, false, false);
    assert_eq!(found, tokens);
    assert_eq!(all - locked, less.iter().sum::<usize>());
}

/// The probe's copies are what it says: from or to memory that is not page-locked, but for those between which others are staged.
#[test]
fn pageable_copies_are_measured_as_such() {
    let Some(card) = FakeCard::new(Order::Random(17)) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let options = ProbeOptions {
        cpu: CpuOptions {
            card: Some(Arc::clone(&card) as _),
            ..CpuOptions::new(dir.path())
        },
        quick: true,
        dtypes: vec![Dtype::F16],
        models: Vec::new(),
        name: "a test".to_owned(),
        date: "2026-11-25".to_owned(),
    };
    let copies = PageableCopies::new(&options).expect("memory");
    let run = copies.run(&options).expect("a card");
    for kind in [ResourceKind::H2d, ResourceKind::D2h] {
        let stream = run.machine.resource(kind, 0).expect("a link");
        let on_it = |task: &plimsoll_core::program::Task| task.resource == stream;
        let tasks = run.pieces[0].tasks().iter();
        let op = |task: &plimsoll_core::program::Task| run.pieces[0].op_of(task).pageable_bytes();
        let copies = tasks
            .filter(|task| on_it(task) && op(task).is_some())
            .count();
        assert!(copies > 30, "{copies}");
        assert_eq!(card.page_locked(usize::from(stream.0)).1, copies);
    }
}

/// What a plan is refused with before anything runs.
fn refused(model: &ModelSpec, dtype: Dtype, policy: Policy) -> String {
    let Some(card) = FakeCard::new(Order::Random(4)) else {
        return String::new();
    };
    let plan = plan(model, dtype, policy, workload(4, 2, 2));
    let lowering = Lowering::new(&plan).expect("it fits");
    let source = Synthetic { seed: 7 };
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        card: Some(card),
        ..CpuOptions::new(dir.path())
    };
    let refused = CpuExecutor::new(&plan, lowering.placement(), &source, &options);
    refused.err().expect("refused").to_string()
}

#[test]
fn what_gpus_do_not_execute_is_refused_by_name() {
    if FakeCard::new(Order::Random(4)).is_none() {
        return;
    }
    let opt = model("tiny-opt");
    let device = || policy((2, 1), DEVICE, "");
    let expect = |found: String, expected: &str| {
        assert!(found.starts_with(expected), "{found}");
        assert!(
            found.contains("--") || found.contains("plan in one"),
            "{found}"
        );
    };
    let wide = "CUDA kernels compute f16 and bf16, not f32: plan in one of these";
    expect(refused(&opt, Dtype::F32, device()), wide);
    let sparse = Policy {
        sparse_attention: 0.2,
        ..device()
    };
    expect(
        refused(&opt, Dtype::F16, sparse),
        "sparse attention is not executed on GPUs yet",
    );
    let wide = ModelSpec {
        head_dim: 264,
        ..opt
    };
    let wide = refused(&wide, Dtype::F16, device());
    assert!(wide.starts_with("the size of a head is 264"), "{wide}");
}
