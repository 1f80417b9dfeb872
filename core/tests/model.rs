//! Models: their published counts and names to the unit, and what a wrong `config.json` says.

use std::collections::BTreeMap;

use plimsoll_core::Dtype;
use plimsoll_core::model::{
    Activation, Family, ModelError, ModelSpec, Norm, NormPosition, Positions, QkvLayout,
    RotaryPairs, RotaryScaling, TensorRole, TensorSpec, registry,
};
use plimsoll_core::units::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

const COUNTS: &str = include_str!("data/parameter_counts.csv");

fn find(name: &str) -> ModelSpec {
    registry::find(name).unwrap()
}

#[test]
fn every_model_of_the_registry_has_its_published_number_of_parameters() {
    let mut rows = 0;
    for line in COUNTS.lines().skip(1) {
        let [name, parameters, _source] = line.splitn(3, ',').collect::<Vec<_>>()[..] else {
            panic!("a row has three fields: {line}");
        };
        assert_eq!(
            find(name).parameters(),
            parameters.parse::<u64>().unwrap(),
            "{name}"
        );
        rows += 1;
    }
    assert_eq!(rows, registry::names().len(), "a row for every model");
}

macro_rules! checkpoints {
    ($($name:literal),* $(,)?) => {
        [$((
            $name,
            include_str!(concat!("data/checkpoints/", $name, "/config.json")),
            include_str!(concat!("data/checkpoints/", $name, "/tensors.csv")),
        )),*]
    };
}

/// Every tensor of the checkpoint once.
fn checkpoint_tensors(spec: &ModelSpec) -> impl Iterator<Item = TensorSpec> {
    let all = (0..spec.num_blocks()).flat_map(|block| spec.tensors(block));
    all.filter(|tensor| !spec.is_tied_head(tensor))
}

#[test]
fn tensor_names_and_shapes_are_those_that_transformers_saves() {
    for (name, config, tensors) in checkpoints![
        "opt",
        "opt-projected",
        "opt-no-bias",
        "llama",
        "llama-grouped",
        "mistral",
        "qwen2",
        "qwen3",
        "gptj",
        "gpt_neox",
        "bloom",
    ] {
        let spec = ModelSpec::from_hf_config(name, config).unwrap();
        let ours: BTreeMap<String, (u64, u64)> = checkpoint_tensors(&spec)
            .map(|tensor| (tensor.name.to_string(), (tensor.rows, tensor.cols)))
            .collect();
        let theirs: BTreeMap<String, (u64, u64)> = tensors
            .lines()
            .skip(1)
            .map(|line| {
                let fields: Vec<&str> = line.split(',').collect();
                let shape = (fields[1].parse().unwrap(), fields[2].parse().unwrap());
                (fields[0].to_owned(), shape)
            })
            .collect();
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn every_spec_survives_json() {
    assert!(registry::names().len() > 0);
    for name in registry::names() {
        let spec = find(name);
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ModelSpec>(&text).unwrap(), spec);
    }
}

#[test]
fn a_tied_head_is_the_embedding_once_more() {
    let spec = find("opt-125m");
    let last = spec.tensors(spec.num_blocks() - 1);
    let head = last.last().unwrap();
    assert_eq!(head.role, TensorRole::LmHead);
    assert_eq!(head.name.to_string(), "model.decoder.embed_tokens.weight");
    assert!(spec.is_tied_head(head));
    assert!(spec.tensors(spec.num_blocks()).is_empty());

    let spec = find("llama-7b");
    let last = spec.tensors(spec.num_blocks() - 1);
    assert_eq!(last.last().unwrap().name.to_string(), "lm_head.weight");
}

#[test]
fn the_cache_of_a_token_has_its_known_size() {
    // FlexGen's own example: OPT-175B keeps 4.5 MiB a token in f16.
    let kv = |name| find(name).kv_bytes_per_token(Dtype::F16);
    assert_eq!(kv("opt-175b"), Bytes(2 * 96 * 12288 * 2));
    assert_eq!(kv("llama-2-70b"), Bytes(320 << 10));
    assert_eq!(kv("llama-3-8b"), Bytes(128 << 10));
    assert_eq!(kv("chatglm2-6b"), Bytes(2 * 28 * 2 * 128 * 2));
    let spec = find("llama-2-70b");
    assert_eq!((spec.q_size(), spec.kv_size()), (8192, 1024));
    assert_eq!(spec.weight_bytes(Dtype::F32), Bytes(4 * 68_976_648_192));
}

#[test]
fn families_keep_their_peculiarities() {
    let spec = find("opt-350m");
    assert_eq!(spec.norm_position, NormPosition::After);
    assert_eq!((spec.embedding_size, spec.hidden_size), (512, 1024));
    assert!(!spec.final_norm);

    let spec = find("gpt-j-6b");
    assert!(spec.parallel_residual && !spec.mlp_norm && spec.lm_head_bias);
    let rotary = |rotary_dim, pairs, theta| Positions::Rotary {
        rotary_dim,
        theta,
        pairs,
        scaling: None,
    };
    assert_eq!(spec.positions, rotary(64, RotaryPairs::Adjacent, 1e4));
    assert_eq!(spec.intermediate_size, 16384);

    let spec = find("gpt-neox-20b");
    assert_eq!(spec.positions, rotary(24, RotaryPairs::Halves, 1e4));
    assert_eq!(spec.qkv_layout, QkvLayout::FusedPerHead);
    assert_eq!(spec.activation, Activation::GeluTanh);

    let spec = find("mistral-7b");
    assert_eq!(spec.sliding_window, Some(4096));
    assert_eq!(spec.norm, Norm::RmsNorm);

    let spec = find("qwen2.5-72b");
    assert_eq!((spec.num_key_value_heads, spec.head_dim), (8, 128));
    assert_eq!(spec.biased_parts(), [true, false]);
    assert!(!spec.tie_word_embeddings && find("qwen2.5-3b").tie_word_embeddings);

    // Heads that are wider together than the layer, each normalised.
    let spec = find("qwen3-32b");
    assert_eq!((spec.q_size(), spec.hidden_size), (8192, 5120));
    assert!(spec.qk_norm && !spec.attention_bias && !find("qwen2.5-32b").qk_norm);

    let spec = find("llama-3.1-405b");
    assert_eq!((spec.num_hidden_layers, spec.head_dim), (126, 128));
    assert_ne!(spec.positions, find("llama-3-70b").positions);

    let spec = find("Llama-3-8B");
    assert_eq!(spec.positions, rotary(128, RotaryPairs::Halves, 5e5));
    assert_eq!(spec.eos_token_ids, [128_001]);

    assert_eq!(find("bloom-176b").positions, Positions::Alibi);
    assert!(find("chatglm2-6b").fused_gate_up);
}

fn llama() -> Value {
    json!({
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32,
        "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 96,
        "max_position_embeddings": 64,
    })
}

/// The llama above with some keys changed; null takes one away.
fn llama_with(changes: Value) -> Result<ModelSpec, ModelError> {
    let mut config = llama();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelSpec::from_hf_config("mine", &config.to_string())
}

#[test]
fn absent_keys_have_the_defaults_of_the_family() {
    let spec = llama_with(json!({})).unwrap();
    assert_eq!((spec.num_key_value_heads, spec.head_dim), (4, 8));
    assert!(!spec.tie_word_embeddings && !spec.attention_bias && !spec.mlp_bias);
    assert_eq!(spec.norm_eps, 1e-6);
    assert!(spec.eos_token_ids.is_empty());

    let spec = llama_with(json!({"model_type": "mistral", "num_attention_heads": 16})).unwrap();
    assert_eq!(spec.num_key_value_heads, 8);
    assert_eq!(spec.sliding_window, Some(4096));
    let nulls =
        json!({"model_type": "mistral", "sliding_window": null, "num_key_value_heads": null});
    let spec = llama_with(nulls).unwrap();
    assert_eq!((spec.num_key_value_heads, spec.sliding_window), (4, None));

    let qwen2 = json!({"model_type": "qwen2", "hidden_size": 128, "num_attention_heads": 32, "sliding_window": 16});
    let spec = llama_with(qwen2).unwrap();
    assert_eq!((spec.num_key_value_heads, spec.sliding_window), (32, None));
    assert!(spec.attention_bias && !spec.attention_output_bias && !spec.mlp_bias);
    let qwen3 = json!({"model_type": "qwen3", "num_key_value_heads": null});
    let spec = llama_with(qwen3).unwrap();
    assert_eq!((spec.head_dim, spec.attention_bias), (128, false));
    // Two layers, of which none slides by what is taken where nothing is said.
    let stated =
        json!({"model_type": "qwen2", "num_key_value_heads": 4, "use_sliding_window": true});
    assert_eq!(llama_with(stated).unwrap().sliding_window, None);
    for (key, slides) in [
        (
            "use_sliding_window",
            json!({"use_sliding_window": true, "max_window_layers": 1}),
        ),
        (
            "layer_types",
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
        ),
    ] {
        let mut config = slides;
        config["model_type"] = json!("qwen2");
        config["num_key_value_heads"] = json!(4);
        let error = llama_with(config).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn both_ways_to_write_rotary_scaling_mean_the_same() {
    let old = json!({
        "rope_theta": 5e5, "eos_token_id": [7, 8],
        "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    });
    let new = json!({
        "eos_token_id": [7, 8],
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16},
    });
    // Saved again, a file may have both names of the kind, of which the later one counts.
    let mut both = old.clone();
    both["rope_scaling"]["type"] = json!("yarn");
    both["rope_scaling"]["rope_type"] = json!("llama3");
    let spec = llama_with(old).unwrap();
    assert_eq!(spec, llama_with(new).unwrap());
    assert_eq!(spec, llama_with(both).unwrap());
    assert_eq!(spec.eos_token_ids, [7, 8]);
    let Positions::Rotary { theta, scaling, .. } = spec.positions else {
        panic!("rotary");
    };
    assert_eq!(theta, 5e5);
    let expected = RotaryScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 16,
    };
    assert_eq!(scaling, Some(expected));
}

/// The message, which must name each of these.
fn message(result: Result<ModelSpec, ModelError>, names: &[&str]) -> ModelError {
    let error = result.unwrap_err();
    let text = error.to_string();
    for name in names {
        assert!(text.contains(name), "`{text}` names `{name}`");
    }
    error
}

#[test]
fn a_stretch_of_positions_that_cannot_be_is_refused() {
    let wrong = |changes, names: &[&str]| message(llama_with(changes), names);
    wrong(
        json!({"rope_scaling": {"type": "linear", "factor": 0.0}}),
        &["`rope_scaling.factor` is 0", "above 0"],
    );
    wrong(
        json!({"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}),
        &[
            "`rope_scaling.high_freq_factor` is 4",
            "low_freq_factor = 4",
        ],
    );
}

/// What would be other weights, or other positions, than those that are read.
#[test]
fn what_means_something_else_is_refused() {
    let wrong = |changes, names: &[&str]| message(llama_with(changes), names);
    wrong(
        json!({"quantization_config": {"quant_method": "awq", "bits": 4}}),
        &["`quantization_config`", "awq", "f16"],
    );
    wrong(
        json!({"rope_scaling": {"type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
        &["`rope_scaling`", "rope_parameters", "keep the one"],
    );
}

#[test]
fn a_number_that_is_too_large_is_said_to_be() {
    message(
        llama_with(json!({"vocab_size": 1_000_000_000_000_u64})),
        &[
            "`vocab_size`",
            "expected one from 0 to 4294967295; correct it",
        ],
    );
}

#[test]
fn a_wrong_key_is_named_with_its_remedy() {
    let wrong = |changes, names: &[&str]| message(llama_with(changes), names);
    let error = wrong(
        json!({"hidden_size": null}),
        &["mine", "`hidden_size`", "add it"],
    );
    assert!(matches!(error, ModelError::MissingKey { .. }));
    let error = wrong(
        json!({"vocab_size": "big"}),
        &["`vocab_size`", "\"big\"", "expected a whole number;"],
    );
    assert!(matches!(error, ModelError::IllTypedKey { .. }));
    wrong(json!({"vocab_size": -1}), &["`vocab_size`", "-1"]);
    wrong(
        json!({"eos_token_id": "end"}),
        &["`eos_token_id`", "expected a whole number, or a list"],
    );
    wrong(
        json!({"num_hidden_layers": 0}),
        &["`num_hidden_layers`", "at least 1", "correct"],
    );
    wrong(
        json!({"num_hidden_layers": 4_000_000_000u32}),
        &["`num_hidden_layers`"],
    );
    wrong(
        json!({"num_attention_heads": 7}),
        &["`num_attention_heads`", "hidden_size = 32"],
    );
    wrong(
        json!({"num_key_value_heads": 3}),
        &["`num_key_value_heads`", "= 4"],
    );
    wrong(json!({"head_dim": 7}), &["`rotary_dim`", "even"]);
    wrong(
        json!({"rms_norm_eps": 0.0}),
        &["`norm_eps`", "between 0 and 1"],
    );
    wrong(json!({"rope_theta": -1.0}), &["`rope_theta`", "above 0"]);
    wrong(
        json!({"rope_scaling": {"type": "linear"}}),
        &["`rope_scaling`", "`factor`"],
    );
    wrong(
        json!({"vocab_size": u32::MAX, "hidden_size": 1u32 << 31}),
        &["`parameters`", "no model has more"],
    );
    let error = wrong(
        json!({"hidden_act": "mish"}),
        &["`hidden_act`", "mish", "silu"],
    );
    assert!(matches!(error, ModelError::Unsupported { .. }));
    wrong(
        json!({"rope_scaling": {"type": "yarn"}}),
        &["`rope_scaling.rope_type`", "yarn", "llama3"],
    );
    wrong(
        json!({"model_type": "bert"}),
        &["`model_type`", "bert", "qwen3, which are executed"],
    );
    wrong(
        json!({"model_type": null}),
        &["`model_type`", "absent", "opt"],
    );
}

#[test]
fn arithmetic_that_is_not_implemented_is_refused() {
    let config = json!({
        "model_type": "bloom", "hidden_size": 32, "n_head": 4, "n_layer": 2, "vocab_size": 96,
        "apply_residual_connection_post_layernorm": true,
    });
    let result = ModelSpec::from_hf_config("b", &config.to_string());
    message(
        result,
        &["apply_residual_connection_post_layernorm", "false"],
    );
}

#[test]
fn text_that_is_no_json_object_is_refused() {
    let error = message(ModelSpec::from_hf_config("m", "[1]"), &["m", "config.json"]);
    assert!(matches!(error, ModelError::InvalidJson { .. }));
}

#[test]
fn an_unknown_name_gets_the_nearest_known_one() {
    message(
        registry::find("opt-6.7"),
        &["opt-6.7", "mean `opt-6.7b`", "models list"],
    );
    // Like none of them: these are all there are.
    message(
        registry::find("a-model-of-mine"),
        &["llama-7b", "qwen3-32b"],
    );
    // However like a dense model's.
    message(registry::find("mixtral-8x7b"), &["mixtures of experts"]);
    message(registry::find("LLAMA2-70b"), &["mean `llama-2-70b`"]);
    assert_eq!(find("OPT-30B").name, "opt-30b");
}

#[test]
fn a_family_is_found_by_its_model_type() {
    for family in Family::ALL {
        assert_eq!(Family::from_model_type(family.model_type()), Some(family));
        assert_eq!(serde_json::to_value(family).unwrap(), family.model_type());
    }
}

#[test]
fn a_spec_that_its_family_has_no_tensors_for_is_refused() {
    let mut spec = find("llama-7b");
    spec.embedding_size = 512;
    message(
        spec.validate().map(|()| spec),
        &["`family`", "input projection"],
    );
    let mut spec = find("gpt-neox-20b");
    spec.qkv_layout = QkvLayout::Separate;
    message(
        spec.validate().map(|()| spec),
        &["`family`", "query weight"],
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parameters_are_the_tensors_of_all_blocks_with_a_tied_head_counted_once(
        name in prop::sample::select(registry::names().collect::<Vec<_>>()),
        layers in 1u32..5, heads in 1u32..5, half_head in 1u32..9, inner in 1u32..40,
        vocab in 1u32..50, tied: bool, biased: bool, embedding in prop::option::of(1u32..20),
    ) {
        let mut spec = find(name);
        spec.num_hidden_layers = layers;
        spec.num_attention_heads = 2 * heads;
        spec.num_key_value_heads = heads;
        spec.head_dim = 2 * half_head;
        spec.hidden_size = 4 * heads * half_head;
        spec.embedding_size = match spec.family {
            Family::Opt => embedding.unwrap_or(spec.hidden_size),
            _ => spec.hidden_size,
        };
        spec.intermediate_size = inner;
        spec.vocab_size = vocab;
        spec.tie_word_embeddings = tied;
        spec.mlp_bias = biased;
        let listed: u64 = (0..spec.num_blocks())
            .flat_map(|block| spec.tensors(block))
            .map(|tensor| tensor.elements())
            .sum();
        let tied_elements = if tied {
            u64::from(vocab) * u64::from(spec.embedding_size)
        } else {
            0
        };
        prop_assert_eq!(listed - tied_elements, spec.parameters());
        let mut names: Vec<String> =
            checkpoint_tensors(&spec).map(|tensor| tensor.name.to_string()).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), count, "no name stands twice");
    }
}
