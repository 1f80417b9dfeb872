//! The same tokens and logits as the reference implementation of Hugging Face computes.

mod common;

use std::fs;

use common::{checkpoint, execute, fixture, model, plan};
use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::kernels::groups::{ELEMENTS, Group};
use plimsoll_backend::kernels::{Elements, ElementsMut};
use plimsoll_backend::weights::{WeightError, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::model::TensorSpec;
use plimsoll_core::policy::Policy;
use plimsoll_core::workload::Workload;
use safetensors::SafeTensors;
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Vec<u32>>,
    tokens: Vec<Vec<u32>>,
    /// How far off the reference's own logits are where it computes in the stored type as well.
    #[serde(default)]
    largest_difference_in_that_type: Option<f32>,
}

impl Reference {
    fn of(name: &str) -> Reference {
        let text = fs::read_to_string(fixture(name).join("reference.json")).expect("the fixture");
        serde_json::from_str(&text).expect("tokens")
    }

    /// `[prompt][step][vocab_size]`.
    fn logits(name: &str) -> Vec<f32> {
        let bytes = fs::read(fixture(name).join("reference.safetensors")).expect("the fixture");
        let file = SafeTensors::deserialize(&bytes).expect("logits");
        let logits = file.tensor("logits").expect("logits");
        let words = logits.data().as_chunks().0.iter();
        words.map(|b| f32::from_le_bytes(*b)).collect()
    }
}

/// Tokens, and logits `[prompt][step][vocab_size]`, of a fixture's prompts.
fn generated(
    name: &str,
    source: &dyn WeightSource,
    dtype: Dtype,
    policy: Policy,
) -> (Vec<Vec<u32>>, Vec<f32>) {
    let (reference, model) = (Reference::of(name), model(name));
    let (count, steps) = (reference.prompts.len(), reference.tokens[0].len());
    let workload = Workload {
        prompt_len: reference.prompts[0].len() as u32,
        gen_len: steps as u32,
        num_prompts: Some(count as u64),
    };
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        capture_logits: true,
        ..CpuOptions::new(dir.path())
    };
    let plan = plan(&model, dtype, policy, workload);
    let outcome = execute(&plan, source, &reference.prompts, &options);
    let vocab = model.vocab_size as usize;
    let mut logits = vec![f32::NAN; count * steps * vocab];
    for head in &outcome.logits {
        let block = policy.block_size() as usize * head.cell.round as usize;
        let first = block + head.cell.batch as usize * policy.gpu_batch_size as usize;
        for (sequence, row) in head.logits.chunks_exact(vocab).enumerate() {
            let at = ((first + sequence) * steps + head.cell.pass as usize) * vocab;
            logits[at..at + vocab].copy_from_slice(row);
        }
    }
    (outcome.tokens, logits)
}

/// The largest difference of a logit from the reference; tokens are its tokens.
fn worst(name: &str, dtype: Dtype, policy: Policy) -> f32 {
    let (tokens, logits) = generated(name, &checkpoint(name), dtype, policy);
    assert_eq!(tokens, Reference::of(name).tokens, "{name}");
    let expected = Reference::logits(name);
    assert_eq!(logits.len(), expected.len());
    let differences = logits.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    // A logit that was not computed is no number, and no maximum would tell.
    let worst = differences.fold(
        0.0,
        |worst: f32, d| if d > worst || d.is_nan() { d } else { worst },
    );
    eprintln!(
        "{name} as {}: largest difference of a logit {worst:.2e}",
        dtype.name()
    );
    worst
}

/// Weights on the device, everywhere, with the CPU attending, and all on disk.
fn policies() -> [Policy; 4] {
    let percent = [
        [100.0, 0.0, 100.0, 0.0, 100.0, 0.0],
        [0.0, 50.0, 30.0, 30.0, 30.0, 30.0],
        [0.0, 100.0, 0.0, 100.0, 0.0, 100.0],
        [0.0; 6],
    ];
    let mut policies = percent.map(|p| Policy::from_percent(2, 2, p).expect("a policy"));
    policies[2].cpu_attention = true;
    policies[2].barrier = false;
    policies
}

/// A model of each kind that is executed, in f32.
const MODELS: [&str; 7] = [
    "tiny-opt",
    "tiny-opt-projected",
    "tiny-llama",
    "tiny-llama-3",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-qwen3",
];

/// Models whose weights were rounded to a type, and that type.
const ROUNDED: [(&str, Dtype); 3] = [
    ("tiny-opt-f16", Dtype::F16),
    ("tiny-llama-f16", Dtype::F16),
    ("tiny-llama-bf16", Dtype::Bf16),
];

/// The largest difference allowed where everything is stored in f32.
const TOLERANCE_F32: f32 = 1e-4;
/// And where activations and cache are stored in 16 bits, which the reference keeps in f32: for logits
/// of at most 1, and in proportion for larger ones.
const TOLERANCE_16_BITS: f32 = 5e-3;

#[test]
fn f32_logits_are_the_reference() {
    for name in MODELS {
        for policy in policies() {
            let worst = worst(name, Dtype::F32, policy);
            assert!(worst <= TOLERANCE_F32, "{name}: {worst}");
        }
    }
}

#[test]
fn weights_of_16_bits_computed_in_f32_are_the_reference() {
    for (name, _) in ROUNDED {
        for policy in policies() {
            let worst = worst(name, Dtype::F32, policy);
            assert!(worst <= TOLERANCE_F32, "{name}: {worst}");
        }
    }
}

#[test]
fn logits_of_16_bits_are_near_the_reference_and_nearer_than_its_own() {
    for (name, dtype) in ROUNDED {
        let largest = Reference::logits(name).into_iter().fold(1.0, f32::max);
        let own = Reference::of(name).largest_difference_in_that_type;
        for policy in policies() {
            let worst = worst(name, dtype, policy);
            assert!(
                worst <= TOLERANCE_16_BITS * largest,
                "{name}: {worst} of {largest}"
            );
            assert!(
                worst <= own.expect("a difference"),
                "{name}: {worst}, {own:?}"
            );
        }
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

#[test]
fn compressed_weights_give_the_logits_of_weights_that_were_quantised_before() {
    let compression = Compression::of(true, false);
    for (name, policy) in ["tiny-opt", "tiny-llama-3"]
        .into_iter()
        .flat_map(|n| policies().map(|p| (n, p)))
    {
        let compressed = Policy {
            compression,
            ..policy
        };
        let (tokens, logits) = generated(name, &checkpoint(name), Dtype::F32, compressed);
        let (expected_tokens, expected) =
            generated(name, &Quantised(checkpoint(name)), Dtype::F32, policy);
        assert_eq!(tokens, expected_tokens);
        assert_eq!(logits, expected);
        // It is not the path without compression by mistake, and not far from it either.
        let (_, whole) = generated(name, &checkpoint(name), Dtype::F32, policy);
        let difference = difference(name, &logits, &whole);
        assert!(
            difference > 0.01 && difference < 0.5,
            "{name}: {difference}"
        );
    }
}

#[test]
fn a_compressed_cache_changes_logits_a_little_and_everywhere_alike() {
    for name in ["tiny-opt", "tiny-mistral"] {
        let compression = Compression::of(false, true);
        let [device, mixed, ..] = policies();
        let whole = generated(name, &checkpoint(name), Dtype::F32, device).1;
        let [on_device, split] = [device, mixed].map(|policy| {
            let policy = Policy {
                compression,
                ..policy
            };
            generated(name, &checkpoint(name), Dtype::F32, policy)
        });
        assert_eq!(on_device, split);
        let difference = difference(name, &on_device.1, &whole);
        assert!(
            difference > 0.01 && difference < 0.5,
            "{name}: {difference}"
        );
    }
}

/// By how much the logits of the first prompt's first token differ, of how much they vary: root mean
/// squares. Later ones follow tokens that may differ.
fn difference(name: &str, found: &[f32], whole: &[f32]) -> f64 {
    let vocab = model(name).vocab_size as usize;
    let (found, whole) = (&found[..vocab], &whole[..vocab]);
    let square =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>();
    let mean = whole.iter().sum::<f32>() / vocab as f32;
    let error = square(&mut found.iter().zip(whole).map(|(a, b)| a - b));
    (error / square(&mut whole.iter().map(|x| x - mean))).sqrt()
}
