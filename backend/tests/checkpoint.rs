//! Checkpoints as they are published: shards, tied heads, stored types, and what may be wrong with them.

mod common;

use std::fs;
use std::path::Path;

use common::{checkpoint, execute, fixture, model, plan, prompts};
use half::{bf16, f16};
use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::weights::{Safetensors, Synthetic, WeightError, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::model::{Family, ModelSpec, TensorRole, TensorSpec};
use plimsoll_core::policy::Policy;
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// The bytes of a tensor as a source gives them.
fn load(
    source: &dyn WeightSource,
    tensor: &TensorSpec,
    dtype: Dtype,
) -> Result<Vec<u8>, WeightError> {
    let bytes = (tensor.elements() * dtype.size_bytes()) as usize;
    // As words, so that elements of any type are aligned.
    let mut words = vec![0_u32; bytes.div_ceil(4)];
    let into = &mut bytemuck::cast_slice_mut(&mut words)[..bytes];
    source.load(tensor, dtype, into)?;
    Ok(into.to_vec())
}

/// Writes tensors of these names to a file.
fn write(file: &Path, tensors: &[(&str, &TensorSpec, safetensors::Dtype, &[u8])]) {
    let views = tensors.iter().map(|(name, tensor, dtype, bytes)| {
        let shape = match tensor.is_vector() {
            true => vec![tensor.cols as usize],
            false => vec![tensor.rows as usize, tensor.cols as usize],
        };
        (
            *name,
            TensorView::new(*dtype, shape, bytes).expect("a tensor"),
        )
    });
    fs::write(file, safetensors::serialize(views, None).expect("a file")).expect("written");
}

/// A copy of the fixture in two shards.
fn sharded() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for entry in fs::read_dir(fixture("tiny-llama-3")).expect("the fixture") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        fs::copy(&path, dir.path().join(name)).expect("copied");
    }
    dir
}

const SECOND: &str = "model-00002-of-00002.safetensors";

fn error_of(dir: &Path) -> String {
    let opened = Safetensors::open(dir, &model("tiny-llama-3"));
    opened.expect_err("something is wrong").to_string()
}

#[test]
fn every_tensor_is_there_under_its_published_name() {
    for name in [
        "tiny-opt",
        "tiny-opt-projected",
        "tiny-llama",
        "tiny-llama-3",
        "tiny-mistral",
        "tiny-qwen2",
        "tiny-qwen3",
    ] {
        let (model, source) = (model(name), checkpoint(name));
        for block in 0..model.num_blocks() {
            for tensor in model.tensors(block) {
                let bytes = load(&source, &tensor, Dtype::F32).expect("there");
                assert!(bytes.iter().any(|b| *b != 0), "{name}: {}", tensor.name);
            }
        }
    }
}

#[test]
fn a_layer_after_the_last_is_no_part_of_the_model() {
    for name in ["tiny-opt", "tiny-llama"] {
        let whole = model(name);
        let fewer = ModelSpec {
            num_hidden_layers: whole.num_hidden_layers - 1,
            ..whole
        };
        let refused = checkpoint(name).check(&fewer);
        let refused = refused.expect_err("a layer is left over");
        assert!(matches!(refused, WeightError::Deeper { .. }), "{refused}");
        let said = refused.to_string();
        let layer = format!("layers.{}.", fewer.num_hidden_layers);
        assert!(
            said.contains(&layer) && said.contains("config.json"),
            "{said}"
        );
    }
}

/// Tokens without it would be wrong, and nothing would say so.
#[test]
fn a_tensor_of_a_layer_that_the_model_does_not_have_is_named() {
    let as_llama = ModelSpec {
        family: Family::Llama,
        attention_bias: false,
        ..model("tiny-qwen2")
    };
    let refused = checkpoint("tiny-qwen2").check(&as_llama);
    let refused = refused.expect_err("it has biases").to_string();
    for word in [
        "layers.0.self_attn.k_proj.bias",
        "no place in the llama",
        "config.json",
    ] {
        assert!(refused.contains(word), "{refused}");
    }
}

#[test]
fn tensors_that_no_token_depends_on_are_left_alone() {
    let source = fixture("tiny-llama").join("model.safetensors");
    let bytes = fs::read(source).expect("the fixture");
    let whole = SafeTensors::deserialize(&bytes).expect("a checkpoint");
    let with = |name: &str| {
        let dir = tempfile::tempdir().expect("a directory");
        let one = [0_u8; 4];
        let more = TensorView::new(safetensors::Dtype::F32, vec![1], &one).expect("a number");
        let all = whole.tensors().into_iter().chain([(name.to_owned(), more)]);
        let file = safetensors::serialize(all, None).expect("a file");
        fs::write(dir.path().join("model.safetensors"), file).expect("written");
        let model = model("tiny-llama");
        Safetensors::open(dir.path(), &model).and_then(|opened| opened.check(&model))
    };
    for spare in ["rotary_emb.inv_freq", "k_proj.output_scale", "k_scale"] {
        let name = format!("model.layers.1.self_attn.{spare}");
        with(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // With the usual prefix or without it.
    for prefix in ["model.", ""] {
        let name = format!("{prefix}layers.1.self_attn.q_norm.weight");
        let refused = with(&name).expect_err("no part of a Llama").to_string();
        assert!(refused.contains(&name), "{refused}");
    }
}

#[test]
fn a_shard_that_is_not_there_is_named() {
    let dir = sharded();
    fs::remove_file(dir.path().join(SECOND)).expect("removed");
    let error = error_of(dir.path());
    assert!(
        error.contains(&format!("{SECOND}: No such file")),
        "{error}"
    );
    assert!(error.contains("fetch the checkpoint completely"), "{error}");
}

#[test]
fn a_shard_that_is_damaged_is_named() {
    let dir = sharded();
    let path = dir.path().join(SECOND);
    let bytes = fs::read(&path).expect("there");
    fs::write(&path, &bytes[..bytes.len() / 2]).expect("cut");
    let error = error_of(dir.path());
    assert!(
        error.contains(&format!("{SECOND}: not a whole safetensors file")),
        "{error}"
    );
    fs::write(&path, b"version https://git-lfs.github.com/spec/v1\n").expect("a pointer");
    let error = error_of(dir.path());
    assert!(error.contains("its header claims"), "{error}");
}

#[test]
fn a_shard_without_what_the_index_says_is_named() {
    let dir = sharded();
    let first = dir.path().join("model-00001-of-00002.safetensors");
    fs::copy(first, dir.path().join(SECOND)).expect("copied");
    let error = error_of(dir.path());
    assert!(
        error.contains(&format!("{SECOND}: no tensor `model.")),
        "{error}"
    );
    assert!(
        error.contains("model.safetensors.index.json says"),
        "{error}"
    );
}

#[test]
fn an_index_that_is_none_is_refused() {
    let dir = sharded();
    let index = dir.path().join("model.safetensors.index.json");
    for (text, expected) in [
        ("{", "not the index of a sharded checkpoint"),
        ("{}", "it has no `weight_map`"),
        (r#"{"weight_map": {"a": 3}}"#, "it has no `weight_map`"),
        (
            r#"{"weight_map": {"a": "../model.safetensors"}}"#,
            "to files of this folder",
        ),
    ] {
        fs::write(&index, text).expect("written");
        let error = error_of(dir.path());
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_tied_embedding_may_have_the_heads_name_and_an_untied_one_may_not() {
    let tied = model("tiny-llama-3");
    let last = tied.num_blocks() - 1;
    let [embedding, head] =
        [(0, TensorRole::TokenEmbedding), (last, TensorRole::LmHead)].map(|(block, role)| {
            let mut tensors = tied.tensors(block).into_iter();
            tensors.find(|t| t.role == role).expect("every model")
        });
    let bytes = load(&checkpoint("tiny-llama-3"), &embedding, Dtype::F32).expect("there");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("model.safetensors");
    let f32 = safetensors::Dtype::F32;
    for name in [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "embed_tokens.weight",
    ] {
        write(&file, &[(name, &embedding, f32, &bytes)]);
        let source = Safetensors::open(dir.path(), &tied).expect("a checkpoint");
        for tensor in [&embedding, &head] {
            assert_eq!(load(&source, tensor, Dtype::F32).expect("tied"), bytes);
        }
    }
    let untied = ModelSpec {
        tie_word_embeddings: false,
        ..tied
    };
    write(&file, &[("lm_head.weight", &embedding, f32, &bytes)]);
    let source = Safetensors::open(dir.path(), &untied).expect("a checkpoint");
    let error = load(&source, &embedding, Dtype::F32)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no tensor `model.embed_tokens.weight`"),
        "{error}"
    );
}

/// Bytes of elements in a type, each rounded from f32.
fn stored(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let bytes = |x: &f32| match dtype {
        Dtype::F32 => x.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

const fn in_file(dtype: Dtype) -> safetensors::Dtype {
    match dtype {
        Dtype::F32 => safetensors::Dtype::F32,
        Dtype::F16 => safetensors::Dtype::F16,
        Dtype::Bf16 => safetensors::Dtype::BF16,
    }
}

#[test]
fn any_stored_type_is_read_as_any_other() {
    let tensor = TensorSpec {
        role: TensorRole::UpWeight,
        name: "w".into(),
        // More than is converted at a time.
        rows: 3,
        cols: 30_000,
    };
    let values: Vec<f32> = (0..tensor.elements())
        .map(|i| (i as f32 * 0.37).sin() * 3.0)
        .collect();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("model.safetensors");
    for from in Dtype::ALL {
        let bytes = stored(&values, from);
        write(&file, &[("w", &tensor, in_file(from), &bytes)]);
        let source = Safetensors::open(dir.path(), &model("tiny-llama")).expect("a checkpoint");
        let exact: Vec<f32> = match from {
            Dtype::F32 => values.clone(),
            Dtype::F16 => values.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
            Dtype::Bf16 => values.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
        };
        for to in Dtype::ALL {
            let found = load(&source, &tensor, to).expect("there");
            assert!(found == stored(&exact, to), "{from:?} as {to:?}");
        }
    }
}

#[test]
fn what_a_type_cannot_hold_is_refused() {
    let tensor = TensorSpec {
        role: TensorRole::UpBias,
        name: "b".into(),
        rows: 1,
        cols: 3,
    };
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("model.safetensors");
    for (from, value, refused) in [
        (Dtype::Bf16, 1e30, vec![Dtype::F16]),
        (Dtype::F32, f32::MAX, vec![Dtype::F16, Dtype::Bf16]),
        (Dtype::Bf16, f32::NAN, Dtype::ALL.to_vec()),
        (Dtype::F16, f32::INFINITY, Dtype::ALL.to_vec()),
    ] {
        let bytes = stored(&[1.0, value, 2.0], from);
        write(&file, &[("b", &tensor, in_file(from), &bytes)]);
        let source = Safetensors::open(dir.path(), &model("tiny-llama")).expect("a checkpoint");
        for to in Dtype::ALL {
            let found = load(&source, &tensor, to).map_err(|error| error.to_string());
            assert_eq!(
                found.is_err(),
                refused.contains(&to),
                "{from:?} {value} as {to:?}"
            );
            if let Err(error) = found {
                let expected = format!(
                    "tensor `b` holds an element that is not finite as {}",
                    to.name()
                );
                assert!(error.contains(&expected), "{error}");
            }
        }
    }
}

/// Of a model of many layers whose weights live on disk, the tiers in memory hold a part only.
#[test]
fn a_model_that_is_larger_than_memory_loads_and_runs() {
    let model = ModelSpec {
        num_hidden_layers: 24,
        ..model("tiny-llama-3")
    };
    let dir = tempfile::tempdir().expect("a directory");
    let shard = |block: u32| format!("model-{block}.safetensors");
    let synthetic = Synthetic { seed: 11 };
    let mut map = serde_json::Map::new();
    for block in 0..model.num_blocks() {
        let tensors = model.tensors(block);
        let tensors: Vec<&TensorSpec> = tensors.iter().filter(|t| !model.is_tied_head(t)).collect();
        let bytes: Vec<Vec<u8>> = tensors
            .iter()
            .map(|tensor| load(&synthetic, tensor, Dtype::Bf16).expect("made"))
            .collect();
        let names: Vec<String> = tensors.iter().map(|t| t.name.to_string()).collect();
        let named: Vec<_> = names
            .iter()
            .zip(tensors.iter().zip(&bytes))
            .map(|(name, (t, bytes))| {
                let name = name.as_str();
                (name, *t, safetensors::Dtype::BF16, bytes.as_slice())
            })
            .collect();
        write(&dir.path().join(shard(block)), &named);
        map.extend(names.into_iter().map(|name| (name, shard(block).into())));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    let file = dir.path().join("model.safetensors.index.json");
    fs::write(file, index.to_string()).expect("written");

    let source = Safetensors::open(dir.path(), &model).expect("a checkpoint");
    let workload = Workload {
        prompt_len: 6,
        gen_len: 4,
        num_prompts: Some(2),
    };
    let options = CpuOptions {
        whole_tiers: true,
        ..CpuOptions::new(dir.path())
    };
    let tokens = |percent, source: &dyn WeightSource| {
        let policy = Policy::from_percent(2, 1, percent).expect("a policy");
        let plan = plan(&model, Dtype::Bf16, policy, workload);
        let prompts = prompts(2, workload.prompt_len, model.vocab_size);
        let tokens = execute(&plan, source, &prompts, &options).tokens;
        (tokens, plan.capacity_bytes)
    };
    let (on_disk, capacity) = tokens([0.0; 6], &source);
    let (on_device, _) = tokens([100.0, 0.0, 100.0, 0.0, 100.0, 0.0], &synthetic);
    assert_eq!(on_disk, on_device);
    let memory = Bytes(capacity.device.0 + capacity.host.0);
    let weights = model.weight_bytes(Dtype::Bf16);
    assert!(2 * memory.0 < weights.0, "{memory} of {weights}");
}
