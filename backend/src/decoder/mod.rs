//! A decoder's stages over operands that lie in pieces: which stage does what with which tensor.
//!
//! The stages are driven by the model's spec (kind and place of norms, positions, biases, activation,
//! gate, window), not by its family. Everything is stored in one type, matrices and cache perhaps packed
//! in 4 bits, and computed in f32.
//!
//! # Private memory
//!
//! Tokens are computed in tiles of [`TILE`] rows, so what a stage needs beside its operands does not
//! grow with the batch. On one thread, in elements of f32, with a tile T of tokens and C positions:
//!
//! | stage | elements |
//! |---|---|
//! | [`Decoder::project`] | `T * (2 * hidden_size + q_size + 2 * kv_size + rotary_dim)` |
//! | [`Decoder::output`] | `T * (3 * hidden_size + q_size)` |
//! | [`Decoder::mlp`] | `T * (3 * hidden_size + 2 * intermediate_size)` |
//! | [`Decoder::head`] | `T * (2 * hidden_size + vocab_size)` |
//! | [`Decoder::attend_prompt`] | `16 * query_len * group * head_dim + 2 * C * head_dim + 32 * C`, and one row of the cache as stored |
//! | [`Decoder::attend_step`] | `2 * rows * group * head_dim`, and scores of at most 128 Ki or of one row; sparse, also what one row picks |
//! | [`Decoder::score_step`] | `rows * group * head_dim`, scores as above, and what the rows pick |
//! | [`Decoder::weigh_step`] | `rows * group * head_dim`, and what the rows pick |
//!
//! Where there are tokens enough for a tile each, each further thread has as much as the first, and keys and values of all tiles
//! wait until they are stored. Where threads share a tile, each further one packs its own input, `T * k` or a piece of it, and has
//! its part of the result twice. In attention each has as much as the first; one that has whole sequences needs two rows, not 16.

mod activations;
mod attend;
mod block;
mod cache;
mod error;
mod mixed;
mod padding;
mod parallel;
mod parts;
mod sparse;
mod split;
mod stages;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::model::{Activation, ModelSpec, Positions, QkvLayout};

pub use block::BlockTensors;
pub use cache::{CachePart, NewCachePart};
pub use error::DecoderError;
pub(crate) use error::wider;
pub use mixed::{Mixed, PagesMut, Place};
pub use padding::{Padding, Sight};
pub use parts::{Joined, Parted, Product};
pub use split::{Split, SplitMut};
pub use stages::{Batch, Choice, HeadOutput};

pub(crate) use parallel::Team;

use crate::dispatch::Dispatch;
use crate::kernels::activation::Activation as ActivationKernel;
use crate::kernels::attention::CacheType;
use crate::kernels::rotary::Rotary;

/// Rows of tokens that are computed together: what one pass over a weight serves.
pub const TILE: usize = crate::kernels::linear::ROW_BLOCK;

/// A model's stages.
#[derive(Debug, Clone)]
pub struct Decoder {
    model: ModelSpec,
    dtype: Dtype,
    /// How queries and keys are turned, where positions are told so.
    rotary: Option<Rotary>,
    /// What the cache is stored as.
    stored: CacheType,
    team: Team,
}

impl Decoder {
    /// Copies bytes with all threads; both are equally many.
    ///
    /// # Errors
    /// [`DecoderError::Threads`].
    pub fn copy(&self, from: &[u8], into: &mut [u8]) -> Result<(), DecoderError> {
        self.team.copy(from, into)
    }

    /// The stages of a model whose weights, cache and activations are stored as `dtype`, the cache
    /// perhaps packed, on as many threads. How weights are stored is said with them.
    ///
    /// # Errors
    /// [`DecoderError::Unsupported`] for a model with parts that no stage computes yet.
    pub fn new(
        model: &ModelSpec,
        dtype: Dtype,
        compression: Compression,
        threads: usize,
    ) -> Result<Decoder, DecoderError> {
        let missing = missing_parts(model);
        if !missing.is_empty() {
            return Err(DecoderError::Unsupported {
                model: model.name.clone(),
                family: model.family,
                missing: missing.join(", "),
            });
        }
        Ok(Decoder {
            model: model.clone(),
            dtype,
            rotary: match model.positions {
                Positions::Rotary {
                    rotary_dim,
                    theta,
                    pairs,
                    scaling,
                } => Some(Rotary::new(rotary_dim as usize, theta, pairs, scaling)),
                Positions::Learned { .. } | Positions::Alibi => None,
            },
            stored: match compression.cache {
                true => CacheType::Packed,
                false => CacheType::Whole(dtype),
            },
            team: Team::new(threads, dtype),
        })
    }

    /// The same, its products computed as a table says. No bit depends on it.
    #[must_use]
    pub fn with_dispatch(mut self, dispatch: &Dispatch) -> Decoder {
        self.team.dispatch = dispatch.clone();
        self
    }

    /// Query heads that share a key/value head.
    fn group(&self) -> usize {
        (self.model.num_attention_heads / self.model.num_key_value_heads) as usize
    }

    fn hidden_size(&self) -> usize {
        self.model.hidden_size as usize
    }

    fn head_dim(&self) -> usize {
        self.model.head_dim as usize
    }

    /// Bytes of a head's keys, or values, at one position of the cache.
    fn head_bytes(&self) -> usize {
        self.stored.head_bytes(self.head_dim())
    }

    /// Width of all queries of a token.
    fn q_size(&self) -> usize {
        self.group() * self.kv_heads() * self.head_dim()
    }

    fn kv_heads(&self) -> usize {
        self.model.num_key_value_heads as usize
    }

    /// How queries and keys are turned, where positions are told so.
    pub(crate) fn rotary(&self) -> Option<&Rotary> {
        self.rotary.as_ref()
    }

    /// What the MLP applies.
    pub(crate) fn activation(&self) -> ActivationKernel {
        match self.model.activation {
            Activation::Relu => ActivationKernel::Relu,
            Activation::Gelu => ActivationKernel::GeluErf,
            Activation::GeluTanh => ActivationKernel::GeluTanh,
            Activation::Silu => ActivationKernel::Silu,
        }
    }
}

/// What a model needs and no stage computes ([`plimsoll_core::model::Family::EXECUTED`] need nothing of it).
fn missing_parts(model: &ModelSpec) -> Vec<&'static str> {
    let parts = [
        (
            model.positions == Positions::Alibi,
            "linear position penalties (ALiBi)",
        ),
        (
            model.gated_mlp && model.fused_gate_up,
            "a fused gate and up matrix",
        ),
        (
            model.qkv_layout != QkvLayout::Separate,
            "fused query, key and value matrices",
        ),
        (model.parallel_residual, "a parallel residual"),
        (!model.mlp_norm, "an MLP without a norm of its own"),
        (model.embedding_norm, "a norm of the embedding"),
    ];
    let missing = parts.into_iter().filter(|(needed, _)| *needed);
    missing.map(|(_, part)| part).collect()
}

#[cfg(test)]
mod tests {
    use plimsoll_core::model::{Family, registry};

    use super::*;

    #[test]
    fn the_families_that_are_executed_are_those_that_are_said_to_be() {
        let mut found = [0, 0];
        for name in registry::names() {
            let model = registry::find(name).expect("registered");
            let is_executed = Family::EXECUTED.contains(&model.family);
            assert_eq!(missing_parts(&model).is_empty(), is_executed, "{name}");
            found[usize::from(is_executed)] += 1;
        }
        // Some of either.
        assert!(found.iter().all(|models| *models > 0), "{found:?}");
    }
}
