//! The same tokens and logits as the reference implementation of Hugging Face computes.

mod common;

use common::{execute, fixture, plan, tiny_opt};
use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::kernels::groups::{ELEMENTS, Group};
use plimsoll_backend::kernels::{Elements, ElementsMut};
use plimsoll_backend::weights::{Safetensors, WeightError, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::model::{Family, TensorSpec};
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

/// A source whose matrices have gone through 4 bits and back: groups of 64 rows of a column.
struct Quantised<S>(S);

impl<S: WeightSource> WeightSource for Quantised<S> {
    fn load(&self, tensor: &TensorSpec, dtype: Dtype, into: &mut [u8]) -> Result<(), WeightError> {
        self.0.load(tensor, dtype, into)?;
        if tensor.is_vector() {
            return Ok(());
        }
        let (rows, columns) = (tensor.rows as usize, tensor.cols as usize);
        let mut elements = Elements::from_bytes(into, dtype)
            .expect("elements")
            .to_vec();
        for first in (0..rows).step_by(ELEMENTS) {
            let band = first..rows.min(first + ELEMENTS);
            for column in 0..columns {
                let group: Vec<f32> = band
                    .clone()
                    .map(|r| elements[r * columns + column])
                    .collect();
                let unpacked = Group::quantise(&group).elements();
                for (row, x) in band.clone().zip(unpacked) {
                    elements[row * columns + column] = x;
                }
            }
        }
        let mut stored = ElementsMut::from_bytes(into, dtype).expect("elements");
        stored.store(0..rows * columns, &elements);
        Ok(())
    }
}

/// Tokens and logits of the fixture's prompts, in the order of the prompts.
fn generated(name: &str, source: &dyn WeightSource, policy: Policy) -> (Vec<Vec<u32>>, Vec<f32>) {
    let text = std::fs::read_to_string(fixture(name).join("reference.json")).expect("the fixture");
    let reference: Reference = serde_json::from_str(&text).expect("tokens");
    let workload = Workload {
        prompt_len: reference.prompts[0].len() as u32,
        gen_len: reference.tokens[0].len() as u32,
        num_prompts: Some(reference.prompts.len() as u64),
    };
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        capture_logits: true,
        ..CpuOptions::new(dir.path())
    };
    let plan = plan(&tiny_opt(), Dtype::F32, policy, workload);
    let outcome = execute(&plan, source, &reference.prompts, &options);
    let mut logits = outcome.logits;
    logits.sort_by_key(|head| (head.cell.round, head.cell.pass, head.cell.batch));
    let logits = logits.into_iter().flat_map(|head| head.logits).collect();
    (outcome.tokens, logits)
}

fn checkpoint(name: &str) -> Safetensors {
    Safetensors::open(&fixture(name), Family::Opt).expect("a checkpoint")
}

#[test]
fn compressed_weights_give_the_logits_of_weights_that_were_quantised_before() {
    let name = "tiny-opt";
    for policy in policies() {
        let compressed = Policy {
            compression: Compression::of(true, false),
            ..policy
        };
        let (tokens, logits) = generated(name, &checkpoint(name), compressed);
        let (expected_tokens, expected) = generated(name, &Quantised(checkpoint(name)), policy);
        assert_eq!(tokens, expected_tokens);
        assert_eq!(logits, expected);
        // It is not the path without compression by mistake, and not far from it either.
        let (_, whole) = generated(name, &checkpoint(name), policy);
        let difference = difference(&logits, &whole);
        assert!(difference > 0.01 && difference < 0.5, "{difference}");
    }
}

#[test]
fn a_compressed_cache_changes_logits_a_little_and_everywhere_alike() {
    let name = "tiny-opt";
    let compression = Compression::of(false, true);
    let [device, mixed, _] = policies();
    let whole = generated(name, &checkpoint(name), device).1;
    let [on_device, split] = [device, mixed].map(|policy| {
        let policy = Policy {
            compression,
            ..policy
        };
        generated(name, &checkpoint(name), policy)
    });
    assert_eq!(on_device, split);
    let difference = difference(&on_device.1, &whole);
    assert!(difference > 0.01 && difference < 0.5, "{difference}");
}

/// By how much the logits of the first prompt's first token differ, of how much they vary: root mean
/// squares. Later ones follow tokens that may differ.
fn difference(found: &[f32], whole: &[f32]) -> f64 {
    let vocab = tiny_opt().vocab_size as usize;
    let (found, whole) = (&found[..vocab], &whole[..vocab]);
    let square =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>();
    let mean = whole.iter().sum::<f32>() / vocab as f32;
    let error = square(&mut found.iter().zip(whole).map(|(a, b)| a - b));
    (error / square(&mut whole.iter().map(|x| x - mean))).sqrt()
}
