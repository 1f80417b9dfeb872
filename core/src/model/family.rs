//! The architectures that are understood.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An architecture: it decides the names of tensors and the order of operations in a layer.
/// Serialized as the `model_type` of Hugging Face.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Family {
    /// OPT.
    #[serde(rename = "opt")]
    Opt,
    /// Llama 1, 2 and 3.
    #[serde(rename = "llama")]
    Llama,
    /// Mistral.
    #[serde(rename = "mistral")]
    Mistral,
    /// Qwen2 and Qwen2.5.
    #[serde(rename = "qwen2")]
    Qwen2,
    /// Qwen3, except its mixture-of-experts models.
    #[serde(rename = "qwen3")]
    Qwen3,
    /// GPT-J.
    #[serde(rename = "gptj")]
    GptJ,
    /// GPT-NeoX.
    #[serde(rename = "gpt_neox")]
    GptNeoX,
    /// GPT-3. No checkpoint is public; keys and tensor names are those of GPT-2.
    #[serde(rename = "gpt3")]
    Gpt3,
    /// ChatGLM2 and ChatGLM3.
    #[serde(rename = "chatglm")]
    ChatGlm2,
    /// BLOOM.
    #[serde(rename = "bloom")]
    Bloom,
}

impl Family {
    /// Every family.
    pub const ALL: [Family; 10] = [
        Family::Opt,
        Family::Llama,
        Family::Mistral,
        Family::Qwen2,
        Family::Qwen3,
        Family::GptJ,
        Family::GptNeoX,
        Family::Gpt3,
        Family::ChatGlm2,
        Family::Bloom,
    ];

    /// Those that executors compute; the others are planned and simulated only.
    pub const EXECUTED: [Family; 5] = [
        Family::Opt,
        Family::Llama,
        Family::Mistral,
        Family::Qwen2,
        Family::Qwen3,
    ];

    /// The `model_type` in `config.json`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Family::Opt => "opt",
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::GptJ => "gptj",
            Family::GptNeoX => "gpt_neox",
            Family::Gpt3 => "gpt3",
            Family::ChatGlm2 => "chatglm",
            Family::Bloom => "bloom",
        }
    }

    /// The family with this `model_type`, if it is understood.
    pub fn from_model_type(model_type: &str) -> Option<Family> {
        Family::ALL
            .into_iter()
            .find(|family| family.model_type() == model_type)
    }

    /// The prefix that some published checkpoints leave off every tensor name but the head's
    /// (`decoder.layers.0...` for `model.decoder.layers.0...`): a loader tries both.
    pub const fn optional_prefix(self) -> &'static str {
        match self {
            Family::Opt | Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 => {
                "model."
            }
            Family::GptNeoX => "gpt_neox.",
            Family::GptJ | Family::Gpt3 | Family::ChatGlm2 | Family::Bloom => "transformer.",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.model_type())
    }
}
