//! The same tokens and logits as the reference implementation of Hugging Face computes.

mod common;

use common::{execute, fixture, plan, tiny_opt};
use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::weights::Safetensors;
use plimsoll_core::Dtype;
use plimsoll_core::model::Family;
use plimsoll_core::policy::Policy;
use plimsoll_core::workload::Workload;
use safetensors::SafeTensors;
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Vec<u32>>,
    tokens: Vec<Vec<u32>>,
}

fn conforms(name: &str, dtype: Dtype, policy: Policy, tolerance: f32) {
    let folder = fixture(name);
    let text = std::fs::read_to_string(folder.join("reference.json")).expect("the fixture");
    let reference: Reference = serde_json::from_str(&text).expect("tokens");
    let bytes = std::fs::read(folder.join("reference.safetensors")).expect("the fixture");
    let file = SafeTensors::deserialize(&bytes).expect("logits");
    let logits = file.tensor("logits").expect("logits");
    let &[count, steps, vocab] = logits.shape() else {
        panic!("three dimensions")
    };
    let expected: Vec<f32> = logits
        .data()
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    let workload = Workload {
        prompt_len: reference.prompts[0].len() as u32,
        gen_len: steps as u32,
        num_prompts: Some(count as u64),
    };
    let source = Safetensors::open(&folder, Family::Opt).expect("a checkpoint");
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        capture_logits: true,
        ..CpuOptions::new(dir.path())
    };
    let plan = plan(&tiny_opt(), dtype, policy, workload);
    let outcome = execute(&plan, &source, &reference.prompts, &options);
    assert_eq!(outcome.tokens, reference.tokens);
    let mut worst = 0.0_f32;
    for head in &outcome.logits {
        let block = policy.block_size() as usize * head.cell.round as usize;
        let first = block + head.cell.batch as usize * policy.gpu_batch_size as usize;
        for (sequence, row) in head.logits.chunks_exact(vocab).enumerate() {
            let at = ((first + sequence) * steps + head.cell.pass as usize) * vocab;
            for (found, expected) in row.iter().zip(&expected[at..at + vocab]) {
                worst = worst.max((found - expected).abs());
            }
        }
    }
    eprintln!(
        "{name} as {}: largest difference of a logit {worst:.2e}",
        dtype.name()
    );
    assert_eq!(
        outcome.logits.iter().map(|l| l.logits.len()).sum::<usize>(),
        expected.len()
    );
    assert!(worst <= tolerance, "{worst} > {tolerance}");
}

fn policies() -> [Policy; 3] {
    let percent = [
        [100.0, 0.0, 100.0, 0.0, 100.0, 0.0],
        [0.0, 50.0, 30.0, 30.0, 30.0, 30.0],
        [0.0, 100.0, 0.0, 100.0, 0.0, 100.0],
    ];
    let [device, mixed, host] = percent.map(|p| Policy::from_percent(2, 2, p).expect("a policy"));
    let host = Policy {
        cpu_attention: true,
        barrier: false,
        ..host
    };
    [device, mixed, host]
}

/// The largest difference allowed where everything is stored in f32.
const TOLERANCE_F32: f32 = 1e-4;
/// And where activations and cache are stored in f16: the reference keeps them in f32.
const TOLERANCE_F16: f32 = 2e-2;

#[test]
fn f32_logits_are_the_reference() {
    for policy in policies() {
        conforms("tiny-opt", Dtype::F32, policy, TOLERANCE_F32);
    }
}

#[test]
fn f16_weights_computed_in_f32_are_the_reference() {
    for policy in policies() {
        conforms("tiny-opt-f16", Dtype::F32, policy, TOLERANCE_F32);
    }
}

#[test]
fn f16_logits_are_near_the_reference() {
    for policy in policies() {
        conforms("tiny-opt-f16", Dtype::F16, policy, TOLERANCE_F16);
    }
}
