//! The shape of a model.

use serde::{Deserialize, Serialize};

use plimsoll_formats::{RotaryPairs, RotaryScaling};

use super::Family;
use crate::Dtype;
use crate::units::Bytes;

/// A model's shape: everything that decides its tensors, its arithmetic and its memory.
/// Counts are in elements (rows, heads, layers), never bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// The name in the registry, or the one that the caller gave.
    pub name: String,
    /// The architecture.
    pub family: Family,
    /// Decoder layers.
    pub num_hidden_layers: u32,
    /// Width of the residual stream, in elements.
    pub hidden_size: u32,
    /// Query heads.
    pub num_attention_heads: u32,
    /// Key and value heads; fewer than query heads under grouped-query attention.
    pub num_key_value_heads: u32,
    /// Width of one head, in elements.
    pub head_dim: u32,
    /// Width inside the MLP, in elements (of each half, where it is gated).
    pub intermediate_size: u32,
    /// Rows of the embedding matrix and of the head, padding rows included.
    pub vocab_size: u32,
    /// The longest context, in tokens.
    pub max_position_embeddings: u32,
    /// Width of the token embedding, in elements: `hidden_size`, but for opt-350m, which projects.
    pub embedding_size: u32,
    /// Whether the head is the token embedding once more.
    pub tie_word_embeddings: bool,
    /// The kind of normalisation.
    pub norm: Norm,
    /// Whether a layer normalises before its two halves, or after.
    pub norm_position: NormPosition,
    /// What is added to the variance under the root.
    pub norm_eps: f64,
    /// Whether the embedding is normalised before the first layer (BLOOM).
    pub embedding_norm: bool,
    /// Whether the MLP has a norm of its own; without it, it reads what attention reads (GPT-J).
    pub mlp_norm: bool,
    /// Whether a norm stands between the last layer and the head (all but opt-350m).
    pub final_norm: bool,
    /// The non-linearity of the MLP.
    pub activation: Activation,
    /// Whether the MLP is `down(act(gate(x)) * up(x))` rather than `down(act(up(x)))`.
    pub gated_mlp: bool,
    /// Whether gate and up are one stored matrix, gate rows first (ChatGLM2).
    pub fused_gate_up: bool,
    /// How a token knows where it stands.
    pub positions: Positions,
    /// Whether attention and MLP read the same residual and are added together.
    pub parallel_residual: bool,
    /// How the query, key and value matrices are stored.
    pub qkv_layout: QkvLayout,
    /// Whether query, key and value have biases.
    pub attention_bias: bool,
    /// Whether each head of queries and keys is normalised by its root mean square, before positions turn it (Qwen3).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub qk_norm: bool,
    /// Whether the attention's output projection has a bias.
    pub attention_output_bias: bool,
    /// Whether the MLP's matrices have biases.
    pub mlp_bias: bool,
    /// Whether the head has a bias.
    pub lm_head_bias: bool,
    /// How many tokens back attention looks, where that is bounded.
    pub sliding_window: Option<u32>,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text; empty where none is stated.
    pub eos_token_ids: Vec<u32>,
}

/// The kind of normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// Mean and variance, with weight and bias.
    LayerNorm,
    /// Root mean square, with weight only.
    RmsNorm,
}

/// Where a layer normalises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPosition {
    /// What attention and MLP read: `x + f(norm(x))`.
    Before,
    /// What they leave: `norm(x + f(x))`.
    After,
}

/// The non-linearity of the MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// Exact GELU, by the error function.
    Gelu,
    /// GELU by the tanh approximation (`gelu_new`, `gelu_fast`).
    GeluTanh,
    /// `x * sigmoid(x)`.
    Silu,
}

/// How a token knows where it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Positions {
    /// A learned row a position, added to the embedding.
    Learned {
        /// Rows in front of position 0's (2 for OPT): position `p` reads row `p + offset`, and the
        /// matrix has `max_position_embeddings + offset` rows.
        offset: u32,
    },
    /// Rotation of queries and keys.
    Rotary {
        /// How many of a head's elements are rotated, from its first.
        rotary_dim: u32,
        /// The base of the frequencies.
        theta: f64,
        /// Which elements are rotated together.
        pairs: RotaryPairs,
        /// How the frequencies are stretched for long contexts, if they are.
        scaling: Option<RotaryScaling>,
    },
    /// A penalty on attention scores that grows with distance.
    Alibi,
}

/// How the query, key and value matrices are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkvLayout {
    /// Three tensors.
    Separate,
    /// One tensor: all query rows, then all key rows, then all value rows (GPT-3, ChatGLM2).
    FusedBlocks,
    /// One tensor, head by head: a head's query rows, key rows, value rows (GPT-NeoX, BLOOM).
    FusedPerHead,
}

impl ModelSpec {
    /// Whether products of its layers have biases, by [`Stage::RATED`](crate::program::Stage::RATED).
    pub fn biased_parts(&self) -> [bool; 2] {
        [
            self.attention_bias,
            self.attention_output_bias || self.mlp_bias,
        ]
    }

    /// Input embedding, decoder layers, and the final norm with the head: layers + 2.
    pub fn num_blocks(&self) -> u32 {
        self.num_hidden_layers + 2
    }

    /// Width of all queries of one token, in elements.
    pub fn q_size(&self) -> u64 {
        u64::from(self.num_attention_heads) * u64::from(self.head_dim)
    }

    /// Width of all keys (or of all values) of one token in one layer, in elements.
    pub fn kv_size(&self) -> u64 {
        u64::from(self.num_key_value_heads) * u64::from(self.head_dim)
    }

    /// Tokens before one at `position` that it sees: all, unless a window slides.
    pub fn past_seen(&self, position: u32) -> u32 {
        let window = self.sliding_window.unwrap_or(u32::MAX);
        position.min(window.saturating_sub(1))
    }

    /// Bytes of the distinct weights stored plainly in `dtype`.
    pub fn weight_bytes(&self, dtype: Dtype) -> Bytes {
        Bytes(self.parameters().saturating_mul(dtype.size_bytes()))
    }

    /// Bytes that one token of one sequence occupies in the cache: keys and values, all layers.
    pub fn kv_bytes_per_token(&self, dtype: Dtype) -> Bytes {
        let elements = 2 * u64::from(self.num_hidden_layers) * self.kv_size();
        Bytes(elements * dtype.size_bytes())
    }
}
