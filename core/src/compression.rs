//! Group-wise 4-bit quantisation (FlexGen section 5): which tensors, and what they take.
//!
//! 64 elements share a scale and a minimum, both f16. Groups of a weight matrix run along its output
//! dimension, groups of the cache along the elements of a head; a last group that is not full takes
//! the room of a full one. Vectors (biases, norms) are never compressed.

use serde::{Deserialize, Serialize};

use crate::Dtype;
use crate::model::TensorSpec;
use crate::units::Bytes;

/// Elements that share a scale and a minimum.
pub const GROUP_ELEMENTS: u64 = 64;

/// Packed elements, then scale and minimum.
const GROUP_BYTES: u64 = GROUP_ELEMENTS / 2 + 4;

/// What is kept in 4 bits an element, wherever it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compression {
    /// Weight matrices.
    pub weights: bool,
    /// Keys and values.
    pub cache: bool,
}

impl Compression {
    /// Every combination, none first.
    pub const ALL: [Compression; 4] = [
        Compression::of(false, false),
        Compression::of(false, true),
        Compression::of(true, false),
        Compression::of(true, true),
    ];

    /// What may be chosen where this is allowed: all that compress no more, none first.
    pub fn choices(self) -> Vec<Compression> {
        let mut choices = Compression::ALL.to_vec();
        choices.retain(|c| self.weights >= c.weights && self.cache >= c.cache);
        choices
    }

    /// Of weights, of the cache.
    pub const fn of(weights: bool, cache: bool) -> Compression {
        Compression { weights, cache }
    }

    /// Bytes of a stored tensor.
    pub fn tensor_bytes(self, tensor: &TensorSpec, dtype: Dtype) -> Bytes {
        if self.weights && !tensor.is_vector() {
            Bytes(tensor.rows.div_ceil(GROUP_ELEMENTS) * tensor.cols * GROUP_BYTES)
        } else {
            Bytes(tensor.elements() * dtype.size_bytes())
        }
    }

    /// Bytes of one head's keys, or values, at one position.
    pub fn cache_head_bytes(self, head_dim: u32, dtype: Dtype) -> Bytes {
        let elements = u64::from(head_dim);
        if self.cache {
            Bytes(elements.div_ceil(GROUP_ELEMENTS) * GROUP_BYTES)
        } else {
            Bytes(elements * dtype.size_bytes())
        }
    }
}
