//! Rotary positions: which elements turn together, and how far.

use serde::{Deserialize, Serialize};

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryPairs {
    /// Element `i` with element `i + rotary_dim / 2` (Llama, Mistral, Qwen2, Qwen3, GPT-NeoX).
    Halves,
    /// Element `2i` with element `2i + 1` (GPT-J, ChatGLM2).
    Adjacent,
}

/// How rotary frequencies are stretched for long contexts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RotaryScaling {
    /// Every position is divided by the factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided, high ones kept, those between interpolated.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above the original context over this are divided.
        low_freq_factor: f64,
        /// Wavelengths below the original context over this are kept.
        high_freq_factor: f64,
        /// The context that the model was first trained for, in tokens.
        original_max_position_embeddings: u32,
    },
}
