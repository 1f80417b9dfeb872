//! Prompts of different lengths in one batch give the tokens that each gives alone.

mod common;

use common::{execute, plan, prompts, tiny_opt};
use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::weights::Synthetic;
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::workload::Workload;
use proptest::prelude::*;

const SOURCE: Synthetic = Synthetic { seed: 7 };

/// Prompts of these lengths, all different.
fn of_lengths(lengths: &[u32]) -> Vec<Vec<u32>> {
    let longest = lengths.iter().max().expect("a length");
    let mut prompts = prompts(lengths.len() as u32, *longest, tiny_opt().vocab_size);
    for (prompt, length) in prompts.iter_mut().zip(lengths) {
        prompt.truncate(*length as usize);
    }
    prompts
}

/// The tokens of each prompt, run by itself on the device.
fn alone(
    model: &ModelSpec,
    dtype: Dtype,
    policy: &Policy,
    prompts: &[Vec<u32>],
    gen_len: u32,
) -> Vec<Vec<u32>> {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let simple = Policy::from_percent(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]).expect("one");
    let simple = Policy {
        compression: policy.compression,
        sparse_attention: policy.sparse_attention,
        ..simple
    };
    let one = |prompt: &Vec<u32>| {
        let workload = Workload {
            prompt_len: prompt.len() as u32,
            gen_len,
            num_prompts: Some(1),
        };
        let plan = plan(model, dtype, simple, workload);
        execute(&plan, &SOURCE, std::slice::from_ref(prompt), &options)
            .tokens
            .remove(0)
    };
    prompts.iter().map(one).collect()
}

fn assert_as_alone(model: &ModelSpec, dtype: Dtype, policies: &[Policy], lengths: &[u32]) {
    const GEN_LEN: u32 = 5;
    let prompts = of_lengths(lengths);
    let expected = alone(model, dtype, &policies[0], &prompts, GEN_LEN);
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    for policy in policies {
        let workload = Workload {
            prompt_len: 13,
            gen_len: GEN_LEN,
            num_prompts: Some(prompts.len() as u64),
        };
        let plan = plan(model, dtype, *policy, workload);
        let found = execute(&plan, &SOURCE, &prompts, &options).tokens;
        assert_eq!(found, expected, "{policy:?}");
    }
}

const LENGTHS: [u32; 8] = [12, 1, 7, 7, 12, 2, 11, 3];
const MIXED: [f64; 6] = [30.0, 40.0, 25.0, 40.0, 40.0, 30.0];

/// Policies that attend on the device, in pages, from the host and the disk.
fn policies(compression: Compression, sparse_attention: f64) -> Vec<Policy> {
    let mut policies = Vec::new();
    for (gbs, batches, percent, schedule) in [
        (3, 3, MIXED, Schedule::ZigZag),
        (8, 1, MIXED, Schedule::Row),
        (1, 6, MIXED, Schedule::Diagonal),
        (2, 2, [0.0; 6], Schedule::ZigZag),
        (
            3,
            2,
            [100.0, 0.0, 100.0, 0.0, 100.0, 0.0],
            Schedule::Diagonal,
        ),
    ] {
        for cpu_attention in [false, true] {
            let policy = Policy {
                schedule,
                barrier: false,
                cpu_attention,
                compression,
                sparse_attention,
                ..Policy::from_percent(gbs, batches, percent).expect("a policy")
            };
            policies.extend(policy.validate().is_ok().then_some(policy));
        }
    }
    policies
}

#[test]
fn shorter_prompts_beside_longer_ones_are_as_alone() {
    let dense = policies(Compression::default(), 1.0);
    for dtype in [Dtype::F32, Dtype::F16] {
        assert_as_alone(&tiny_opt(), dtype, &dense, &LENGTHS);
    }
}

#[test]
fn so_they_are_with_a_compressed_cache_and_weights() {
    let packed = policies(Compression::of(true, true), 1.0);
    assert_as_alone(&tiny_opt(), Dtype::F16, &packed, &LENGTHS);
}

#[test]
fn so_they_are_with_sparse_attention_where_each_picks_of_its_own_past() {
    let grouped = ModelSpec {
        num_key_value_heads: 2,
        ..tiny_opt()
    };
    for (model, share, cache) in [(tiny_opt(), 0.4, false), (grouped, 0.2, true)] {
        let sparse = policies(Compression::of(false, cache), share);
        assert_as_alone(&model, Dtype::F32, &sparse, &LENGTHS);
    }
}

#[test]
fn what_stands_before_a_text_is_told_by_its_length_alone() {
    // Were padding seen, a prompt of the padding's own token would look longer than it is.
    let prompts = [vec![0_u32; 2], vec![0; 9]];
    let policy = Policy::from_percent(2, 1, MIXED).expect("a policy");
    let [short, long] = [&prompts[..1], &prompts[1..]]
        .map(|one| alone(&tiny_opt(), Dtype::F32, &policy, one, 4).remove(0));
    assert_ne!(short, long);
    let dir = tempfile::tempdir().expect("a directory");
    let workload = Workload {
        prompt_len: 9,
        gen_len: 4,
        num_prompts: Some(2),
    };
    let plan = plan(&tiny_opt(), Dtype::F32, policy, workload);
    let found = execute(&plan, &SOURCE, &prompts, &CpuOptions::new(dir.path())).tokens;
    assert_eq!(found, [short, long]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(24)
    })]

    #[test]
    fn any_lengths_in_any_placement_are_as_alone(
        lengths in prop::collection::vec(1u32..14, 1..10),
        (gbs, batches) in (1u32..5, 1u32..4),
        [w, c, h] in prop::array::uniform3((0.0..60.0f64, 0.0..40.0f64)),
        [barrier, cpu_attention] in prop::array::uniform2(any::<bool>()),
        schedule in 0..3usize,
        compression in prop::sample::select(Compression::ALL.to_vec()),
        sparse_attention in prop::sample::select(vec![1.0, 0.5, 0.1]),
    ) {
        let policy = Policy {
            schedule: [Schedule::Row, Schedule::ZigZag, Schedule::Diagonal][schedule],
            barrier,
            cpu_attention: cpu_attention && !compression.cache,
            compression,
            sparse_attention,
            ..Policy::from_percent(gbs, batches, [w.0, w.1, c.0, c.1, h.0, h.1]).expect("a policy")
        };
        assert_as_alone(&tiny_opt(), Dtype::F16, &[policy], &lengths);
    }
}
