//! `config.json` of Hugging Face -> `ModelSpec`, with the defaults of each family's own class.

use serde::Deserialize;

use super::keys::Keys;
use super::rope::Rope;
use super::{
    Activation, Family, ModelError, ModelSpec, Norm, NormPosition, Positions, QkvLayout,
    RotaryPairs,
};

impl ModelSpec {
    /// Reads a `config.json`. Unknown keys are ignored; a missing, ill-typed or inconsistent one is
    /// an error that names it. `name` is kept in the spec and used in messages.
    pub fn from_hf_config(name: &str, json_text: &str) -> Result<ModelSpec, ModelError> {
        let keys = Keys::parse(name, json_text)?;
        let spec = match keys.family {
            Family::Opt => opt(&keys),
            Family::Llama => llama(&keys),
            Family::Mistral => mistral(&keys),
            Family::Qwen2 => qwen2(&keys),
            Family::Qwen3 => qwen3(&keys),
            Family::GptJ => gpt_j(&keys),
            Family::GptNeoX => gpt_neox(&keys),
            Family::Gpt3 => gpt_3(&keys),
            Family::ChatGlm2 => chatglm2(&keys),
            Family::Bloom => bloom(&keys),
        }?;
        spec.validate()?;
        Ok(spec)
    }
}

/// What a family calls the numbers that every model has; the first name is the usual one.
struct ShapeKeys {
    layers: &'static [&'static str],
    hidden: &'static [&'static str],
    heads: &'static [&'static str],
    /// Empty where a head's width always follows from the other two.
    head_dim: &'static [&'static str],
    /// What a head has where that key is absent; none: the hidden size over the heads.
    head_dim_default: Option<u32>,
    inner: &'static [&'static str],
    /// Whether the MLP is four times as wide as the layer where nothing is stated.
    inner_by_default: bool,
    vocab: &'static [&'static str],
    positions: &'static [&'static str],
    /// The context in tokens where none is stated.
    positions_default: Option<u32>,
}

const USUAL: ShapeKeys = ShapeKeys {
    layers: &["num_hidden_layers"],
    hidden: &["hidden_size"],
    heads: &["num_attention_heads"],
    head_dim: &[],
    head_dim_default: None,
    inner: &["intermediate_size"],
    inner_by_default: false,
    vocab: &["vocab_size"],
    positions: &["max_position_embeddings"],
    positions_default: None,
};

const GPT_2_LIKE: ShapeKeys = ShapeKeys {
    layers: &["n_layer"],
    hidden: &["n_embd"],
    heads: &["n_head"],
    head_dim: &[],
    head_dim_default: None,
    inner: &["n_inner"],
    inner_by_default: true,
    vocab: &["vocab_size"],
    positions: &["n_positions"],
    positions_default: None,
};

/// `eos_token_id` is a number, or a list of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number, or a list of them")]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

/// A spec of the shape that the keys state, with what most families share.
fn shape(keys: &Keys<'_>, names: &ShapeKeys) -> Result<ModelSpec, ModelError> {
    let hidden_size = keys.count(names.hidden)?;
    let num_attention_heads = keys.count(names.heads)?;
    let head_dim = keys.optional_count(names.head_dim)?;
    let head_dim = head_dim.or(names.head_dim_default);
    if !hidden_size.is_multiple_of(num_attention_heads) && head_dim.is_none() {
        return Err(keys.invalid(
            names.heads[0],
            &num_attention_heads.to_string(),
            format!("it must divide {} = {hidden_size}", names.hidden[0]),
            "correct one of the two in config.json",
        ));
    }
    let intermediate_size = match keys.optional_count(names.inner)? {
        None if names.inner_by_default => hidden_size.saturating_mul(4),
        _ => keys.count(names.inner)?,
    };
    let max_position_embeddings = match (
        keys.optional_count(names.positions)?,
        names.positions_default,
    ) {
        (None, Some(default)) => default,
        _ => keys.count(names.positions)?,
    };
    Ok(ModelSpec {
        name: keys.model.to_owned(),
        family: keys.family,
        num_hidden_layers: keys.count(names.layers)?,
        hidden_size,
        num_attention_heads,
        num_key_value_heads: num_attention_heads,
        head_dim: head_dim.unwrap_or(hidden_size / num_attention_heads),
        intermediate_size,
        vocab_size: keys.count(names.vocab)?,
        max_position_embeddings,
        embedding_size: hidden_size,
        tie_word_embeddings: keys.or("tie_word_embeddings", false)?,
        norm: Norm::LayerNorm,
        norm_position: NormPosition::Before,
        norm_eps: 1e-5,
        embedding_norm: false,
        mlp_norm: true,
        final_norm: true,
        activation: Activation::GeluTanh,
        gated_mlp: false,
        fused_gate_up: false,
        positions: Positions::Alibi,
        parallel_residual: false,
        qkv_layout: QkvLayout::Separate,
        attention_bias: false,
        qk_norm: false,
        attention_output_bias: false,
        mlp_bias: false,
        lm_head_bias: false,
        sliding_window: None,
        bos_token_id: keys.optional(&["bos_token_id"])?,
        eos_token_ids: match keys.optional(&["eos_token_id"])? {
            None => Vec::new(),
            Some(OneOrMany::One(id)) => vec![id],
            Some(OneOrMany::Many(ids)) => ids,
        },
    })
}

fn activation(keys: &Keys<'_>, key: &'static str, default: &str) -> Result<Activation, ModelError> {
    let name = keys.or(key, default.to_owned())?;
    match name.as_str() {
        "relu" => Ok(Activation::Relu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        "silu" | "swish" => Ok(Activation::Silu),
        other => {
            let supported = "relu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, silu, swish";
            Err(keys.unsupported(key, other, supported.to_owned()))
        }
    }
}

fn opt(keys: &Keys<'_>) -> Result<ModelSpec, ModelError> {
    keys.refuse("layer_norm_elementwise_affine", true, false)?;
    let names = ShapeKeys {
        inner: &["ffn_dim"],
        ..USUAL
    };
    let base = shape(keys, &names)?;
    let bias = keys.or("enable_bias", true)?;
    let before = keys.or("do_layer_norm_before", true)?;
    Ok(ModelSpec {
        embedding_size: keys
            .optional_count(&["word_embed_proj_dim"])?
            .unwrap_or(base.hidden_size),
        tie_word_embeddings: keys.or("tie_word_embeddings", true)?,
        norm_position: if before {
            NormPosition::Before
        } else {
            NormPosition::After
        },
        final_norm: before && !keys.or("_remove_final_layer_norm", false)?,
        activation: activation(keys, "activation_function", "relu")?,
        positions: Positions::Learned { offset: 2 },
        attention_bias: bias,
        attention_output_bias: bias,
        mlp_bias: bias,
        ..base
    })
}

fn llama(keys: &Keys<'_>) -> Result<ModelSpec, ModelError> {
    llama_like(keys, None)
}

/// Llama, with heads of so many elements where the key is absent.
fn llama_like(keys: &Keys<'_>, head_dim_default: Option<u32>) -> Result<ModelSpec, ModelError> {
    let names = ShapeKeys {
        head_dim: &["head_dim"],
        head_dim_default,
        ..USUAL
    };
    let base = shape(keys, &names)?;
    let bias = keys.or("attention_bias", false)?;
    Ok(ModelSpec {
        num_key_value_heads: keys
            .optional_count(&["num_key_value_heads"])?
            .unwrap_or(base.num_attention_heads),
        norm: Norm::RmsNorm,
        norm_eps: keys.or("rms_norm_eps", 1e-6)?,
        activation: activation(keys, "hidden_act", "silu")?,
        gated_mlp: true,
        positions: Rope::read(keys)?.halves(base.head_dim, &["rope_theta"], &[], 1.0)?,
        attention_bias: bias,
        attention_output_bias: bias,
        mlp_bias: keys.or("mlp_bias", false)?,
        ..base
    })
}

/// Llama, but for a window of 4096 tokens and 8 key-value heads where the keys are absent (a null
/// means no window, and a key-value head a head), and no biases.
fn mistral(keys: &Keys<'_>) -> Result<ModelSpec, ModelError> {
    let base = llama(keys)?;
    Ok(ModelSpec {
        num_key_value_heads: match keys.has("num_key_value_heads") {
            true => base.num_key_value_heads,
            false => 8,
        },
        sliding_window: match keys.has("sliding_window") {
            true => keys.optional_count(&["sliding_window"])?,
            false => Some(4096),
        },
        attention_bias: false,
        attention_output_bias: false,
        mlp_bias: false,
        ..base
    })
}

/// [`qwen`], and biases of queries, keys and values alone.
fn qwen2(keys: &Keys<'_>) -> Result<ModelSpec, ModelError> {
    Ok(ModelSpec {
        attention_bias: true,
        attention_output_bias: false,
        ..qwen(keys, None)?
    })
}

/// [`qwen`], and heads of 128 elements where the key is absent, each normalised.
fn qwen3(keys: &Keys<'_>) -> Result<ModelSpec, ModelError> {
    Ok(ModelSpec {
        qk_norm: true,
        ..qwen(keys, Some(128))?
    })
}

/// Llama, but for 32 key-value heads where the key is absent, and no biases in the MLP. A window that is stated slides only where it
/// is used, and then in layers from `max_window_layers` on: not in all alike, so that is refused.
fn qwen(keys: &Keys<'_>, head_dim_default: Option<u32>) -> Result<ModelSpec, ModelError> {
    let base = llama_like(keys, head_dim_default)?;
    let whole_layers = keys.or("max_window_layers", 28)?;
    if whole_layers < base.num_hidden_layers {
        keys.refuse("use_sliding_window", false, true)?;
    }
    let kinds: Vec<String> = keys.or("layer_types", Vec::new())?;
    if let Some(kind) = kinds.iter().find(|kind| *kind != "full_attention") {
        return Err(keys.unsupported("layer_types", kind, "full_attention".to_owned()));
    }
    Ok(ModelSpec {
        num_key_value_heads: match keys.has("num_key_value_heads") {
            true => base.num_key_value_heads,
            false => 32,
        },
        mlp_bias: false,
        ..base
    })
}

fn gpt_j(keys: &Keys<'_>) -> Result<ModelSpec, ModelError> {
    let base = shape(keys, &GPT_2_LIKE)?;
    // A null rotates the whole head.
    let rotary_dim = match keys.optional_count(&["rotary_dim"])? {
        Some(dim) => dim,
        None if keys.has("rotary_dim") => base.head_dim,
        None => 64,
    };
    Ok(ModelSpec {
        norm_eps: keys.or("layer_norm_epsilon", 1e-5)?,
        mlp_norm: false,
        activation: activation(keys, "activation_function", "gelu_new")?,
        positions: Positions::Rotary {
            rotary_dim,
            theta: 10_000.0,
            pairs: RotaryPairs::Adjacent,
            scaling: None,
        },
        parallel_residual: true,
        mlp_bias: true,
        lm_head_bias: true,
        ..base
    })
}

fn gpt_neox(keys: &Keys<'_>) -> Result<ModelSpec, ModelError> {
    let base = shape(keys, &USUAL)?;
    let bias = keys.or("attention_bias", true)?;
    let theta_keys = ["rotary_emb_base", "rope_theta"];
    let fraction_keys = ["rotary_pct", "partial_rotary_factor"];
    Ok(ModelSpec {
        norm_eps: keys.or("layer_norm_eps", 1e-5)?,
        activation: activation(keys, "hidden_act", "gelu")?,
        positions: Rope::read(keys)?.halves(base.head_dim, &theta_keys, &fraction_keys, 0.25)?,
        parallel_residual: keys.or("use_parallel_residual", true)?,
        qkv_layout: QkvLayout::FusedPerHead,
        attention_bias: bias,
        attention_output_bias: bias,
        mlp_bias: true,
        ..base
    })
}

/// Our own keys, after GPT-2's. Attention is taken as dense in every layer; the paper's alternates
/// with a banded one of unstated width.
fn gpt_3(keys: &Keys<'_>) -> Result<ModelSpec, ModelError> {
    let base = shape(keys, &GPT_2_LIKE)?;
    Ok(ModelSpec {
        tie_word_embeddings: keys.or("tie_word_embeddings", true)?,
        norm_eps: keys.or("layer_norm_epsilon", 1e-5)?,
        activation: activation(keys, "activation_function", "gelu_new")?,
        positions: Positions::Learned { offset: 0 },
        qkv_layout: QkvLayout::FusedBlocks,
        attention_bias: true,
        attention_output_bias: true,
        mlp_bias: true,
        ..base
    })
}

fn chatglm2(keys: &Keys<'_>) -> Result<ModelSpec, ModelError> {
    keys.refuse("apply_residual_connection_post_layernorm", false, true)?;
    let names = ShapeKeys {
        layers: &["num_layers"],
        head_dim: &["kv_channels"],
        inner: &["ffn_hidden_size"],
        vocab: &["padded_vocab_size", "vocab_size"],
        positions: &["seq_length"],
        ..USUAL
    };
    let base = shape(keys, &names)?;
    let bias = keys.or("add_bias_linear", false)?;
    let grouped = keys.or("multi_query_attention", false)?;
    Ok(ModelSpec {
        num_key_value_heads: match grouped {
            true => keys.count(&["multi_query_group_num"])?,
            false => base.num_attention_heads,
        },
        norm: match keys.or("rmsnorm", true)? {
            true => Norm::RmsNorm,
            false => Norm::LayerNorm,
        },
        norm_eps: keys.or("layernorm_epsilon", 1e-5)?,
        final_norm: keys.or("post_layer_norm", true)?,
        activation: Activation::Silu,
        gated_mlp: true,
        fused_gate_up: true,
        positions: Positions::Rotary {
            rotary_dim: base.head_dim / 2,
            theta: 10_000.0 * keys.or("rope_ratio", 1.0)?,
            pairs: RotaryPairs::Adjacent,
            scaling: None,
        },
        qkv_layout: QkvLayout::FusedBlocks,
        attention_bias: bias || keys.or("add_qkv_bias", false)?,
        attention_output_bias: bias,
        mlp_bias: bias,
        ..base
    })
}

/// ALiBi bounds no context; where `seq_length` is absent it is what BLOOM was trained with.
fn bloom(keys: &Keys<'_>) -> Result<ModelSpec, ModelError> {
    keys.refuse("apply_residual_connection_post_layernorm", false, true)?;
    let names = ShapeKeys {
        layers: &["n_layer", "num_hidden_layers"],
        hidden: &["hidden_size", "n_embed"],
        heads: &["n_head", "num_attention_heads"],
        inner: &[],
        positions: &["seq_length"],
        positions_default: Some(2048),
        ..GPT_2_LIKE
    };
    let base = shape(keys, &names)?;
    Ok(ModelSpec {
        tie_word_embeddings: keys.or("tie_word_embeddings", true)?,
        norm_eps: keys.or("layer_norm_epsilon", 1e-5)?,
        embedding_norm: true,
        activation: Activation::GeluTanh,
        positions: Positions::Alibi,
        qkv_layout: QkvLayout::FusedPerHead,
        attention_bias: true,
        attention_output_bias: true,
        mlp_bias: true,
        ..base
    })
}
