//! Tokens do not depend on where tensors live, nor on the schedule.

mod common;

use common::{Outcome, checkpoint, execute, model, plan, prompts, tiny_opt};
use plimsoll_backend::cpu::{CapturedLogits, CpuOptions, Draws};
use plimsoll_backend::dispatch::{Dispatch, Weights};
use plimsoll_backend::kernels::draw::Sampling;
use plimsoll_backend::weights::{Synthetic, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::Inflections;
use plimsoll_core::model::{ModelSpec, NormPosition};
use plimsoll_core::pipeline::{Comm, Pipeline};
use plimsoll_core::policy::{Granularity, Policy, Schedule};
use plimsoll_core::workload::Workload;
use proptest::prelude::*;

const WORKLOAD: Workload = Workload {
    prompt_len: 11,
    gen_len: 6,
    num_prompts: Some(8),
};

fn policy(gbs: u32, batches: u32, percent: [f64; 6]) -> Policy {
    Policy::from_percent(gbs, batches, percent).expect("a policy")
}

const DEVICE: [f64; 6] = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
const HOST: [f64; 6] = [0.0, 100.0, 0.0, 100.0, 0.0, 100.0];
const DISK: [f64; 6] = [0.0; 6];
const MIXED: [f64; 6] = [30.0, 40.0, 25.0, 40.0, 40.0, 30.0];
const CACHE_ON_DISK: [f64; 6] = [100.0, 0.0, 0.0, 0.0, 100.0, 0.0];
const ACTIVATIONS_ON_DISK: [f64; 6] = [100.0, 0.0, 100.0, 0.0, 0.0, 0.0];

/// Changes to the policy of FlexGen's Algorithm 1, in words.
fn changed(mut policy: Policy, changes: &str) -> Policy {
    for change in changes.split_whitespace() {
        match change {
            "free" => policy.barrier = false,
            "serial" => policy.overlap = false,
            "row" => policy.schedule = Schedule::Row,
            "diagonal" => policy.schedule = Schedule::Diagonal,
            "spread" => policy.granularity = Granularity::Spread,
            "cpu" => policy.cpu_attention = true,
            "whole" => policy.half_layers = false,
            "in-place" => policy.cache_workspace = false,
            other => panic!("no such change: {other}"),
        }
    }
    policy
}

/// For eight prompts, so that with three sequences a GPU batch the last is not full.
const PLACEMENTS: [((u32, u32), [f64; 6], &str); 36] = [
    ((3, 3), DEVICE, ""),
    ((3, 3), HOST, ""),
    ((3, 3), DISK, ""),
    ((3, 3), MIXED, ""),
    ((3, 3), MIXED, "whole"),
    ((3, 3), MIXED, "cpu in-place"),
    ((3, 3), MIXED, "spread"),
    ((3, 3), MIXED, "free"),
    ((3, 3), MIXED, "serial"),
    ((3, 3), MIXED, "row"),
    ((3, 3), MIXED, "row free"),
    ((2, 2), DISK, "row serial"),
    ((2, 4), MIXED, "row cpu free"),
    ((3, 1), MIXED, ""),
    ((3, 1), MIXED, "free"),
    ((3, 2), MIXED, "free"),
    ((3, 3), HOST, "cpu"),
    ((3, 3), HOST, "cpu free"),
    ((3, 3), DISK, "cpu free"),
    ((3, 3), MIXED, "cpu"),
    ((3, 3), MIXED, "cpu free"),
    ((3, 3), MIXED, "cpu serial"),
    ((3, 3), CACHE_ON_DISK, "free"),
    ((3, 3), ACTIVATIONS_ON_DISK, "free"),
    ((8, 1), MIXED, "free"),
    ((1, 8), HOST, "free"),
    ((1, 3), DEVICE, "diagonal free"),
    ((1, 3), MIXED, "diagonal free"),
    ((1, 4), HOST, "diagonal cpu free"),
    ((3, 2), DISK, "diagonal"),
    ((3, 2), MIXED, "diagonal serial"),
    // A page of the cache a token, in every tier.
    ((1, 6), DEVICE, "diagonal"),
    ((1, 6), MIXED, "diagonal cpu free"),
    ((1, 6), HOST, "diagonal serial"),
    ((1, 6), DISK, "diagonal free"),
    ((1, 6), DISK, "diagonal cpu"),
];

/// Weights of no model.
const SYNTHETIC: Synthetic = Synthetic { seed: 7 };

/// What changes tokens: nothing.
const EXACT: (Compression, f64) = (
    Compression {
        weights: false,
        cache: false,
    },
    1.0,
);

fn same_everywhere(model: &ModelSpec, dtype: Dtype) {
    approximated_is_the_same_everywhere((model, &SYNTHETIC), dtype, EXACT);
}

fn compressed_is_the_same_everywhere(model: &ModelSpec, dtype: Dtype, compression: Compression) {
    approximated_is_the_same_everywhere((model, &SYNTHETIC), dtype, (compression, 1.0));
}

/// Placements that must be compared, and those where the cache is packed: the CPU does not attend to one, so
/// those where it would are left out.
const COMPARED_MIN: (u32, u32) = (24, 12);

/// Returns the tokens, which are the same in all placements.
fn approximated_is_the_same_everywhere(
    (model, source): (&ModelSpec, &dyn WeightSource),
    dtype: Dtype,
    (compression, sparse_attention): (Compression, f64),
) -> Vec<Vec<u32>> {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let prompts = prompts(8, WORKLOAD.prompt_len, model.vocab_size);
    let mut first: Option<Vec<Vec<u32>>> = None;
    let mut compared = 0;
    for placement in PLACEMENTS {
        let ((gbs, batches), percent, changes) = placement;
        let policy = Policy {
            compression,
            sparse_attention,
            ..changed(policy(gbs, batches, percent), changes)
        };
        if policy.validate().is_err() && compression.cache && policy.cpu_attention {
            continue;
        }
        let plan = plan(model, dtype, policy, WORKLOAD);
        let tokens = execute(&plan, source, &prompts, &options).tokens;
        assert!(
            tokens.iter().all(|t| t.len() == WORKLOAD.gen_len as usize),
            "{placement:?}"
        );
        let first = first.get_or_insert_with(|| tokens.clone());
        assert_eq!(*first, tokens, "{placement:?}");
        compared += 1;
    }
    let what = format!(
        "{}, {dtype:?}, {compression:?}, {sparse_attention}",
        model.name
    );
    println!("the same tokens in {compared} placements: {what}");
    let (all, packed) = COMPARED_MIN;
    assert!(
        compared >= if compression.cache { packed } else { all },
        "{what}"
    );
    let first = first.expect("placements");
    let mut distinct: Vec<u32> = first.concat();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 12, "tokens hardly vary: {first:?}");
    first
}

#[test]
fn f32_tokens_are_the_same_everywhere() {
    same_everywhere(&tiny_opt(), Dtype::F32);
}

#[test]
fn f16_tokens_are_the_same_everywhere() {
    same_everywhere(&tiny_opt(), Dtype::F16);
}

#[test]
fn tokens_of_compressed_weights_are_the_same_everywhere() {
    let compression = Compression::of(true, false);
    compressed_is_the_same_everywhere(&tiny_opt(), Dtype::F32, compression);
}

#[test]
fn tokens_of_a_compressed_cache_are_the_same_everywhere() {
    let compression = Compression::of(false, true);
    compressed_is_the_same_everywhere(&tiny_opt(), Dtype::F32, compression);
}

#[test]
fn tokens_of_all_compressed_are_the_same_everywhere() {
    let compression = Compression::of(true, true);
    // Heads of one group and a half, grouped queries, matrices between the activations and both ends.
    let odd = ModelSpec {
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 96,
        embedding_size: 32,
        ..tiny_opt()
    };
    compressed_is_the_same_everywhere(&tiny_opt(), Dtype::F16, compression);
    compressed_is_the_same_everywhere(&odd, Dtype::F16, compression);
}

#[test]
fn a_projected_model_that_normalises_after_is_the_same_everywhere() {
    let model = ModelSpec {
        embedding_size: 32,
        norm_position: NormPosition::After,
        final_norm: false,
        ..tiny_opt()
    };
    same_everywhere(&model, Dtype::F16);
}

#[test]
fn grouped_heads_are_the_same_everywhere() {
    let model = ModelSpec {
        num_key_value_heads: 2,
        ..tiny_opt()
    };
    same_everywhere(&model, Dtype::F16);
}

/// The fixture's own weights, in f32, bf16, in 4 bits and with all that approximates.
fn fixture_is_the_same_everywhere(name: &str) {
    let (model, source) = (model(name), checkpoint(name));
    let packed = (Compression::of(true, true), 1.0);
    let all = (Compression::of(true, true), 0.4);
    for (dtype, approximations) in [
        (Dtype::F32, EXACT),
        (Dtype::F32, packed),
        (Dtype::Bf16, EXACT),
        (Dtype::F16, all),
        (Dtype::Bf16, all),
    ] {
        approximated_is_the_same_everywhere((&model, &source), dtype, approximations);
    }
}

#[test]
fn an_opt_is_the_same_everywhere() {
    fixture_is_the_same_everywhere("tiny-opt");
}

#[test]
fn a_projected_opt_is_the_same_everywhere() {
    fixture_is_the_same_everywhere("tiny-opt-projected");
}

#[test]
fn a_llama_is_the_same_everywhere() {
    fixture_is_the_same_everywhere("tiny-llama");
}

#[test]
fn a_llama_3_is_the_same_everywhere() {
    fixture_is_the_same_everywhere("tiny-llama-3");
}

#[test]
fn a_mistral_is_the_same_everywhere() {
    fixture_is_the_same_everywhere("tiny-mistral");
}

#[test]
fn a_qwen2_is_the_same_everywhere() {
    fixture_is_the_same_everywhere("tiny-qwen2");
}

#[test]
fn a_qwen3_is_the_same_everywhere() {
    fixture_is_the_same_everywhere("tiny-qwen3");
}

/// Long after its window, a Mistral sees other tokens than one without.
#[test]
fn a_window_that_slides_tells() {
    let windowed = model("tiny-mistral");
    let open = ModelSpec {
        sliding_window: None,
        ..windowed.clone()
    };
    let source = checkpoint("tiny-mistral");
    let [windowed, open] = [windowed, open]
        .map(|model| approximated_is_the_same_everywhere((&model, &source), Dtype::F32, EXACT));
    assert_ne!(windowed, open);
}

#[test]
fn tokens_of_sparse_attention_are_the_same_everywhere() {
    let grouped = ModelSpec {
        num_key_value_heads: 2,
        ..tiny_opt()
    };
    let dense = |model: &ModelSpec, dtype| {
        approximated_is_the_same_everywhere((model, &SYNTHETIC), dtype, EXACT)
    };
    for (model, dtype, cache) in [
        (tiny_opt(), Dtype::F32, false),
        (tiny_opt(), Dtype::F16, true),
        (grouped, Dtype::F16, false),
    ] {
        let approximations = (Compression::of(false, cache), 0.2);
        let sparse =
            approximated_is_the_same_everywhere((&model, &SYNTHETIC), dtype, approximations);
        assert_ne!(sparse, dense(&model, dtype), "a fifth of the values tells");
    }
}

#[test]
fn several_threads_and_paced_links_change_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let model = tiny_opt();
    let prompts = prompts(8, WORKLOAD.prompt_len, model.vocab_size);
    for (compression, sparse_attention) in [
        (Compression::default(), 1.0),
        (Compression::of(true, true), 1.0),
        (Compression::default(), 0.3),
    ] {
        let policy = Policy {
            compression,
            sparse_attention,
            ..changed(policy(3, 3, MIXED), "free")
        };
        let plan = plan(&model, Dtype::F32, policy, WORKLOAD);
        let mut options = CpuOptions::new(dir.path());
        let plain = execute(&plan, &SYNTHETIC, &prompts, &options).tokens;
        options.device_threads = 3;
        options.pin_cores = true;
        options.throttles.h2d = Some(plimsoll_core::units::BytesPerSecond(1e9));
        options.throttles.d2h = Some(plimsoll_core::units::BytesPerSecond(1e9));
        options.throttles.disk_read = Some(plimsoll_core::units::BytesPerSecond(1e9));
        options.throttles.disk_write = Some(plimsoll_core::units::BytesPerSecond(1e9));
        let other = execute(&plan, &SYNTHETIC, &prompts, &options).tokens;
        assert_eq!(plain, other);
    }
}

/// Every bit of every head's logits.
fn logit_bits(found: &Outcome) -> Vec<Vec<u32>> {
    let bits = |cell: &CapturedLogits| -> Vec<u32> {
        cell.logits.iter().map(|logit| logit.to_bits()).collect()
    };
    found.logits.iter().map(bits).collect()
}

/// Long prompts are computed in tiles of tokens, of which each thread has one by itself where there are tokens enough.
#[test]
fn tiles_that_threads_have_by_themselves_change_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let model = tiny_opt();
    let prompts = prompts(8, 60, model.vocab_size);
    let workload = Workload {
        prompt_len: 60,
        ..WORKLOAD
    };
    for dtype in [Dtype::F32, Dtype::F16] {
        // 480 tokens at once, their activations in several places: four, six and five tiles.
        let plan = plan(&model, dtype, policy(8, 1, MIXED), workload);
        let logits = |device_threads| {
            let options = CpuOptions {
                capture_logits: true,
                device_threads,
                ..CpuOptions::new(dir.path())
            };
            logit_bits(&execute(&plan, &SYNTHETIC, &prompts, &options))
        };
        let alone = logits(1);
        for threads in [2, 3, 5] {
            assert_eq!(logits(threads), alone, "{threads} threads in {dtype:?}");
        }
    }
}

/// FlashDecoding++ section 5 on the CPU: whichever implementation a table names, every bit is that of the built-in choice.
#[test]
fn no_table_of_implementations_changes_a_bit() {
    let dir = tempfile::tempdir().expect("a directory");
    let model = tiny_opt();
    let prompts = prompts(8, WORKLOAD.prompt_len, model.vocab_size);
    for (dtype, packed) in [(Dtype::F32, false), (Dtype::F16, false), (Dtype::F16, true)] {
        let own = Policy {
            compression: Compression::of(packed, false),
            ..policy(4, 2, DEVICE)
        };
        let plan = plan(&model, dtype, own, WORKLOAD);
        let logits = |dispatch: Dispatch| {
            let options = CpuOptions {
                capture_logits: true,
                dispatch,
                ..CpuOptions::new(dir.path())
            };
            logit_bits(&execute(&plan, &SYNTHETIC, &prompts, &options))
        };
        let built_in = logits(Dispatch::default());
        for (m1, m2) in [
            (None, None),
            (Some(1), None),
            (Some(1), Some(1)),
            (Some(2), Some(7)),
        ] {
            let shapes = Weights::of_model(&model, dtype).into_iter();
            let points = shapes.map(|shape| (Weights { packed, ..shape }, Inflections { m1, m2 }));
            assert_eq!(
                logits(Dispatch::of(points)),
                built_in,
                "{dtype:?} {m1:?} {m2:?}"
            );
        }
    }
}

#[test]
fn drawn_tokens_are_the_same_everywhere_and_of_their_prompt() {
    let dir = tempfile::tempdir().expect("a directory");
    let model = tiny_opt();
    let prompts = prompts(8, WORKLOAD.prompt_len, model.vocab_size);
    let drawn = |count: u32, policy: Policy| {
        let first = 8 - count;
        let sampling = Sampling {
            temperature: 0.9,
            top_k: Some(50),
            top_p: 0.95,
            seed: 11,
        };
        let options = CpuOptions {
            draws: Some(Draws {
                sampling,
                first_prompt: u64::from(first),
            }),
            ..CpuOptions::new(dir.path())
        };
        let workload = Workload {
            num_prompts: Some(u64::from(count)),
            ..WORKLOAD
        };
        let plan = plan(&model, Dtype::F32, policy, workload);
        execute(
            &plan,
            &Synthetic { seed: 7 },
            &prompts[first as usize..],
            &options,
        )
        .tokens
    };
    let all = drawn(8, policy(8, 1, DEVICE));
    for (gbs, batches, percent, changes) in [
        (3, 3, MIXED, "free"),
        (1, 4, HOST, "diagonal cpu free"),
        (3, 2, DISK, "row"),
    ] {
        let policy = changed(policy(gbs, batches, percent), changes);
        assert_eq!(drawn(8, policy), all, "{changes}");
        assert_eq!(drawn(5, policy), all[3..], "{changes}");
    }
    let plan = plan(&model, Dtype::F32, policy(8, 1, DEVICE), WORKLOAD);
    let greedy = execute(
        &plan,
        &Synthetic { seed: 7 },
        &prompts,
        &CpuOptions::new(dir.path()),
    );
    assert_ne!(greedy.tokens, all);
}

/// Stages, micro-batches and stages a host; GPU batches; changes of a policy.
type PipelineCase = ((u32, u32, u32), Comm, (u32, u32), [f64; 6], &'static str);

/// With the way between stages and where tensors live.
const PIPELINES: [PipelineCase; 12] = [
    ((2, 2, 1), Comm::Device, (1, 2), DEVICE, ""),
    ((2, 2, 1), Comm::Host, (1, 2), DEVICE, "free"),
    ((2, 1, 1), Comm::Host, (4, 1), HOST, "free"),
    ((2, 2, 2), Comm::Device, (2, 1), HOST, "cpu free"),
    ((3, 3, 1), Comm::Host, (1, 1), MIXED, "free"),
    ((3, 3, 1), Comm::Device, (1, 2), MIXED, "cpu free"),
    ((3, 2, 3), Comm::Host, (1, 2), MIXED, "cpu"),
    ((3, 4, 2), Comm::Device, (1, 1), DISK, "free"),
    ((3, 3, 3), Comm::Host, (2, 1), DISK, "serial spread"),
    ((2, 3, 1), Comm::Host, (1, 3), ACTIVATIONS_ON_DISK, ""),
    ((1, 3, 1), Comm::Host, (1, 1), MIXED, "free"),
    ((4, 5, 2), Comm::Host, (1, 1), HOST, "cpu"),
];

#[test]
fn tokens_of_a_pipeline_are_those_of_one_stage() {
    let model = ModelSpec {
        num_hidden_layers: 4,
        ..tiny_opt()
    };
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let prompts = prompts(8, WORKLOAD.prompt_len, model.vocab_size);
    let source = Synthetic { seed: 7 };
    for (compression, sparse_attention) in [
        (Compression::default(), 1.0),
        (Compression::of(true, false), 1.0),
        (Compression::default(), 0.3),
    ] {
        let tokens = |policy: Policy| {
            let policy = Policy {
                compression,
                sparse_attention,
                ..policy
            };
            let plan = plan(&model, Dtype::F16, policy, WORKLOAD);
            execute(&plan, &source, &prompts, &options).tokens
        };
        let expected = tokens(policy(8, 1, DEVICE));
        for case in PIPELINES {
            let ((stages, micro_batches, stages_per_host), comm, batches, percent, changes) = case;
            let pipeline = Pipeline {
                stages,
                micro_batches,
                stages_per_host,
                comm,
                last_stage_layers: (stages == 2).then_some(1),
            };
            let policy = Policy {
                pipeline,
                ..changed(policy(batches.0, batches.1, percent), changes)
            };
            assert_eq!(tokens(policy), expected, "{case:?}");
        }
    }
}

fn shares() -> impl Strategy<Value = (f64, f64)> {
    prop_oneof![
        Just((100.0, 0.0)),
        Just((0.0, 100.0)),
        Just((0.0, 0.0)),
        (0.0..100.0f64, 0.0..1.0f64).prop_map(|(d, h)| (d, (100.0 - d) * h)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(60)
    })]

    #[test]
    fn any_placement_gives_the_tokens_of_one_sequence_alone(
        (gbs, batches) in (1u32..5, 1u32..5),
        (w, c, h) in (shares(), shares(), shares()),
        switches in prop::array::uniform4(any::<bool>()),
        schedule in 0..3usize,
        compression in prop::sample::select(Compression::ALL.to_vec()),
        sparse_attention in prop::sample::select(vec![1.0, 0.5, 0.1]),
        (name, dtype) in prop::sample::select(vec![
            ("tiny-opt", Dtype::F16),
            ("tiny-llama-3", Dtype::F32),
            ("tiny-mistral", Dtype::Bf16),
        ]),
        (prompt_len, gen_len, count) in (1u32..14, 1u32..5, 1u32..12),
    ) {
        let [overlap, barrier, cpu_attention, spread] = switches;
        let policy = Policy {
            schedule: [Schedule::Row, Schedule::ZigZag, Schedule::Diagonal][schedule],
            granularity: if spread { Granularity::Spread } else { Granularity::Layer },
            overlap,
            barrier,
            cpu_attention: cpu_attention && !compression.cache,
            compression,
            sparse_attention,
            ..policy(gbs, batches, [w.0, w.1, c.0, c.1, h.0, h.1])
        };
        let workload = Workload { prompt_len, gen_len, num_prompts: Some(u64::from(count)) };
        let model = model(name);
        let dir = tempfile::tempdir().expect("a directory");
        let options = CpuOptions::new(dir.path());
        let prompts = prompts(count, prompt_len, model.vocab_size);
        let source = checkpoint(name);
        let simple = Policy::from_percent(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]).expect("one");
        let simple = Policy { compression, sparse_attention, ..simple };
        let alone = plan(&model, dtype, simple, workload);
        let given = plan(&model, dtype, policy, workload);
        let expected = execute(&alone, &source, &prompts, &options).tokens;
        let found = execute(&given, &source, &prompts, &options).tokens;
        prop_assert_eq!(expected, found);
    }
}
