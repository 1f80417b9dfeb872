//! A model's layers as operations over a mixed batch.

use crate::compression::Kept;
use crate::model::ModelSpec;
use crate::program::{Gemm, Gemms, Op, Span};
use crate::units::Bytes;

/// What a batch asks of a model, in sums over its sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences, each of which gets a token.
    pub sequences: u32,
    /// Tokens computed.
    pub tokens: u32,
    /// Of them, tokens of prompts, or computed again.
    pub prompt_tokens: u32,
    /// Pairs of such a token and one that it sees, itself among them.
    pub prompt_pairs: u64,
    /// Tokens whose keys and values sequences read that are past their prompt.
    pub context_tokens: u64,
}

/// What a model's operations have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Decoder layers.
    pub layers: u16,
    gemms: Gemms,
    compressed: bool,
    head: Gemm,
    hidden_size: u32,
    q_size: u32,
    kv_size: u32,
    element_bytes: u32,
    max_positions: u32,
}

impl Shape {
    /// Of a model with its cache in one type, and its weights in that or in 4 bits. Attention looks at all tokens, also where the model's
    /// window slides; the projections between embeddings and layers of another width (opt-350m), a hundredth of its work, are left out.
    pub fn of(model: &ModelSpec, kept: impl Into<Kept>) -> Shape {
        let Kept { dtype, compression } = kept.into();
        let (hidden, inner) = (model.hidden_size, model.intermediate_size);
        let (q_size, kv_size) = (model.q_size() as u32, model.kv_size() as u32);
        let gemm = |n, k| Gemm { n, k };
        let wide = if model.gated_mlp { 2 * inner } else { inner };
        Shape {
            layers: model.num_hidden_layers as u16,
            gemms: Gemms::new(&[
                gemm(q_size + 2 * kv_size, hidden),
                gemm(hidden, q_size),
                gemm(wide, hidden),
                gemm(hidden, inner),
            ]),
            compressed: compression.weights,
            head: gemm(model.vocab_size, model.embedding_size),
            hidden_size: hidden,
            q_size,
            kv_size,
            element_bytes: dtype.size_bytes() as u32,
            max_positions: model.max_position_embeddings,
        }
    }

    /// Tokens that a request may have, prompt and answer together.
    pub fn max_positions(&self) -> u32 {
        self.max_positions
    }

    /// Keys and values of a token in a layer.
    pub fn layer_bytes_per_token(&self) -> Bytes {
        Bytes(2 * u64::from(self.kv_size) * u64::from(self.element_bytes))
    }

    /// Keys and values of a token in all layers.
    pub fn bytes_per_token(&self) -> Bytes {
        self.layer_bytes_per_token() * u64::from(self.layers)
    }

    /// What one stage hands over to the next: the activations of all tokens.
    pub(super) fn hidden_bytes(&self, load: &Load) -> Bytes {
        let elements = u64::from(load.tokens) * u64::from(self.hidden_size);
        Bytes(elements * u64::from(self.element_bytes))
    }

    /// What the last stage hands over to the first: each sequence's next token, by its number.
    pub(super) fn chosen_bytes(&self, load: &Load) -> Bytes {
        Bytes(u64::from(load.sequences) * size_of::<u32>() as u64)
    }

    /// The operation of some layers in a row over a batch, from the `first` on, with the embedding in front of the
    /// model's first and the head behind its last.
    pub fn span(&self, load: &Load, first: u16, layers: u16) -> Op {
        Op::Span(Span {
            layers,
            gemms: self.gemms,
            compressed: self.compressed,
            embeds: first == 0,
            head: (first + layers == self.layers).then_some(self.head),
            sequences: load.sequences,
            tokens: load.tokens,
            prompt_tokens: load.prompt_tokens,
            prompt_pairs: load.prompt_pairs,
            context_tokens: load.context_tokens,
            q_size: self.q_size,
            kv_size: self.kv_size,
            element_bytes: self.element_bytes,
        })
    }
}
