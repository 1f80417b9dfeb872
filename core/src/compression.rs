//! Group-wise 4-bit quantisation (FlexGen section 5): which tensors, and what they take.
//!
//! 64 elements share a scale and a minimum, both f16. Groups of a weight matrix run along its output
//! dimension, groups of the cache along the elements of a head; a last group that is not full takes
//! the room of a full one. Vectors (biases, norms) are never compressed.
//!
//! How it lies in memory, so that sixteen neighbours are unpacked together:
//!
//! - A matrix is **bands** of 64 rows. A band holds the scales of its columns, their minima, then 32
//!   lines of a byte a column: line `i` has rows `2 i` (low half of the byte) and `2 i + 1` (high).
//! - A head's keys, or values, at one position are groups of 64 elements. A group holds 32 bytes, of
//!   which byte `i` has elements `i` (low) and `i + 32` (high), then its scale, then its minimum.

use serde::{Deserialize, Serialize};

use crate::Dtype;
use crate::model::{ModelSpec, TensorSpec};
use crate::units::Bytes;

pub use plimsoll_formats::{GROUP_BYTES, GROUP_ELEMENTS};

/// What is kept in 4 bits an element, wherever it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compression {
    /// Weight matrices.
    pub weights: bool,
    /// Keys and values.
    pub cache: bool,
}

/// How a model's tensors are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The type of those that are whole.
    pub dtype: Dtype,
    /// Which are in 4 bits.
    pub compression: Compression,
}

impl From<Dtype> for Kept {
    /// All are whole.
    fn from(dtype: Dtype) -> Kept {
        Kept {
            dtype,
            compression: Compression::default(),
        }
    }
}

impl Kept {
    /// Bytes of a stored tensor.
    pub fn bytes(self, tensor: &TensorSpec) -> Bytes {
        self.compression.tensor_bytes(tensor, self.dtype)
    }

    /// Bytes of a model's distinct weights: a tied head counts once.
    pub fn weights(self, model: &ModelSpec) -> Bytes {
        let tensors = (0..model.num_blocks()).flat_map(|block| model.tensors(block));
        let distinct = tensors.filter(|tensor| !model.is_tied_head(tensor));
        distinct.map(|tensor| self.bytes(&tensor)).sum()
    }

    /// The type, and what is in 4 bits, in words.
    pub fn words(self) -> String {
        match self.compression.words() {
            None => self.dtype.name().to_owned(),
            Some(packed) => format!("{} ({packed} in 4 bits)", self.dtype.name()),
        }
    }
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

    /// What is kept in 4 bits, in words; none: nothing is.
    pub fn words(self) -> Option<&'static str> {
        match (self.weights, self.cache) {
            (false, false) => None,
            (true, false) => Some("weights"),
            (false, true) => Some("cache"),
            (true, true) => Some("weights and cache"),
        }
    }

    /// Whether a tensor is kept in 4 bits an element.
    pub fn packs(self, tensor: &TensorSpec) -> bool {
        self.weights && !tensor.is_vector()
    }

    /// Bytes of a stored tensor.
    pub fn tensor_bytes(self, tensor: &TensorSpec, dtype: Dtype) -> Bytes {
        if self.packs(tensor) {
            Bytes(tensor.rows.div_ceil(GROUP_ELEMENTS) * tensor.cols * GROUP_BYTES)
        } else {
            Bytes(tensor.elements() * dtype.size_bytes())
        }
    }

    /// Rows of a stored matrix that cannot be parted: groups run along the outputs.
    pub fn rows_together(self, matrix: &TensorSpec) -> u64 {
        if self.packs(matrix) {
            GROUP_ELEMENTS
        } else {
            1
        }
    }

    /// Bytes of so many rows of a stored matrix, whole groups of them where it is packed.
    pub fn rows_bytes(self, matrix: &TensorSpec, rows: u64, dtype: Dtype) -> Bytes {
        if self.packs(matrix) {
            Bytes(rows.div_ceil(GROUP_ELEMENTS) * matrix.cols * GROUP_BYTES)
        } else {
            Bytes(rows * matrix.cols * dtype.size_bytes())
        }
    }

    /// Elements of the largest matrix of a model that is unpacked before a product: each is by itself.
    pub fn unpacked_elements(self, model: &ModelSpec) -> u64 {
        let blocks = [0, 1, model.num_blocks() - 1];
        let tensors = blocks.into_iter().flat_map(|block| model.tensors(block));
        let packed = tensors.filter(|tensor| tensor.is_multiplied() && self.packs(tensor));
        packed.map(|tensor| tensor.elements()).max().unwrap_or(0)
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
