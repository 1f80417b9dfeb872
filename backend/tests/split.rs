//! Linear layers that the CPU and the device compute together (HeteGen): the tokens and logits of a model are, bit
//! for bit, those of the unsplit one.

mod common;

use common::{Outcome, checkpoint, execute, model, plan, prompts, splits, uneven_bands};
use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::weights::{Safetensors, Synthetic};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::model::{ModelSpec, NormPosition};
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{Op, ResourceKind, Stage};
use plimsoll_core::split::SplitLinears;
use plimsoll_core::units::BytesPerSecond;
use plimsoll_core::workload::Workload;

const WORKLOAD: Workload = Workload {
    prompt_len: 9,
    gen_len: 5,
    num_prompts: Some(3),
};

const DEVICE: [f64; 6] = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
const MIXED: [f64; 6] = [100.0, 0.0, 40.0, 60.0, 50.0, 50.0];

fn unsplit(sequences: u32, percent: [f64; 6]) -> Policy {
    Policy {
        barrier: false,
        ..Policy::from_percent(sequences, 1, percent).expect("a policy")
    }
}

/// Runs every split of a model and compares it with the unsplit run.
fn splits_change_nothing(
    (model, source): (&ModelSpec, &dyn plimsoll_backend::weights::WeightSource),
    dtype: Dtype,
    compression: Compression,
) {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        capture_logits: true,
        ..CpuOptions::new(dir.path())
    };
    let prompts = prompts(3, WORKLOAD.prompt_len, model.vocab_size);
    let run = |policy| -> Outcome {
        let policy = Policy {
            compression,
            ..policy
        };
        execute(
            &plan(model, dtype, policy, WORKLOAD),
            source,
            &prompts,
            &options,
        )
    };
    for sequences in [1, 3] {
        let expected = run(unsplit(sequences, DEVICE));
        for (index, split) in splits(model.num_hidden_layers).into_iter().enumerate() {
            let percent = if index % 2 == 0 { DEVICE } else { MIXED };
            let policy = Policy {
                split: Some(split),
                cpu_attention: index % 3 == 1,
                ..unsplit(sequences, percent)
            };
            let found = run(policy);
            assert_eq!(found.tokens, expected.tokens, "{split:?}");
            assert_eq!(found.logits, expected.logits, "{split:?}");
        }
    }
}

fn fixture_is_the_same(name: &str, dtype: Dtype, compression: Compression) {
    let source: Safetensors = checkpoint(name);
    splits_change_nothing((&model(name), &source), dtype, compression);
}

const WHOLE: Compression = Compression::of(false, false);
const PACKED: Compression = Compression::of(true, false);

#[test]
fn opt_in_f32_and_f16() {
    fixture_is_the_same("tiny-opt", Dtype::F32, WHOLE);
    fixture_is_the_same("tiny-opt-f16", Dtype::F16, WHOLE);
}

#[test]
fn opt_that_projects_its_embeddings() {
    fixture_is_the_same("tiny-opt-projected", Dtype::F32, WHOLE);
}

#[test]
fn grouped_queries_and_a_gate() {
    let llama = model("tiny-llama-3");
    assert!(llama.num_key_value_heads < llama.num_attention_heads && llama.gated_mlp);
    fixture_is_the_same("tiny-llama", Dtype::F32, WHOLE);
    fixture_is_the_same("tiny-llama-3", Dtype::F32, WHOLE);
    fixture_is_the_same("tiny-llama-bf16", Dtype::Bf16, WHOLE);
    fixture_is_the_same("tiny-mistral", Dtype::F32, WHOLE);
    fixture_is_the_same("tiny-qwen2", Dtype::F32, WHOLE);
    fixture_is_the_same("tiny-qwen3", Dtype::F32, WHOLE);
}

#[test]
fn weights_in_4_bits_in_whole_bands() {
    fixture_is_the_same("tiny-opt", Dtype::F32, PACKED);
    fixture_is_the_same("tiny-llama-3", Dtype::F16, PACKED);
    splits_change_nothing(
        (&uneven_bands(), &Synthetic { seed: 3 }),
        Dtype::F32,
        PACKED,
    );
}

#[test]
fn norms_behind_the_residual() {
    let after = ModelSpec {
        norm_position: NormPosition::After,
        ..model("tiny-opt")
    };
    splits_change_nothing((&after, &Synthetic { seed: 4 }), Dtype::F32, WHOLE);
}

#[test]
fn a_cpu_that_is_held_back_computes_band_by_band_what_it_computes_at_once() {
    // A band is a MiB of weights: the widest of these has four and a rest.
    let model = ModelSpec {
        hidden_size: 512,
        num_attention_heads: 8,
        num_key_value_heads: 8,
        embedding_size: 512,
        intermediate_size: 2200,
        ..model("tiny-opt")
    };
    let dir = tempfile::tempdir().expect("a directory");
    let prompts = prompts(3, WORKLOAD.prompt_len, model.vocab_size);
    for (sequences, compression) in [(1, WHOLE), (3, WHOLE), (3, PACKED)] {
        let policy = Policy {
            split: Some(SplitLinears {
                prefill_share: 0.0,
                ..SplitLinears::even(0.0)
            }),
            compression,
            ..unsplit(sequences, DEVICE)
        };
        let plan = plan(&model, Dtype::F32, policy, WORKLOAD);
        let run = |cpu| {
            let mut options = CpuOptions::new(dir.path());
            options.capture_logits = true;
            options.throttles.cpu = cpu;
            execute(&plan, &Synthetic { seed: 2 }, &prompts, &options)
        };
        let (held, free) = (run(Some(BytesPerSecond(2e9))), run(None));
        assert_eq!(held.tokens, free.tokens, "{sequences}");
        assert_eq!(held.logits, free.logits, "{sequences}");
    }
}

#[test]
fn the_cpu_the_link_and_the_device_each_do_their_part() {
    let model = model("tiny-opt");
    let dir = tempfile::tempdir().expect("a directory");
    let policy = Policy {
        split: Some(SplitLinears::even(0.5)),
        ..unsplit(1, DEVICE)
    };
    let plan = plan(&model, Dtype::F32, policy, WORKLOAD);
    let prompts = prompts(3, WORKLOAD.prompt_len, model.vocab_size);
    let source = Synthetic { seed: 1 };
    let outcome = execute(&plan, &source, &prompts, &CpuOptions::new(dir.path()));
    let mut seen = std::collections::BTreeMap::new();
    for piece in &outcome.run.pieces {
        for task in piece.tasks() {
            let kind = outcome.run.machine.resources[task.resource.0 as usize].kind;
            let counts = match piece.op_of(task) {
                Op::Linear { stage, .. } => *stage == Stage::Part,
                Op::Move { .. } => kind == ResourceKind::Pin,
                _ => false,
            };
            *seen.entry(kind).or_insert(0) += u32::from(counts);
        }
    }
    let modules = 6 * model.num_hidden_layers;
    let (prefills, steps) = (3, 3 * (WORKLOAD.gen_len - 1));
    assert_eq!(seen[&ResourceKind::Cpu], steps * modules);
    // Rows come in parts, and the device computes with each.
    assert!(seen[&ResourceKind::Pin] >= (prefills + steps) * modules);
    assert_eq!(seen[&ResourceKind::Gpu], seen[&ResourceKind::Pin]);
}
