//! The models known by name: trimmed `config.json` files of the checkpoints that are published under them (of base models, where names leave that open),
//! as parts of the program.

use super::{ModelError, ModelSpec};
use crate::did_you_mean;

macro_rules! entries {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../models/", $name, ".json")))),*]
    };
}

const ENTRIES: &[(&str, &str)] = entries![
    "opt-125m",
    "opt-350m",
    "opt-1.3b",
    "opt-2.7b",
    "opt-6.7b",
    "opt-13b",
    "opt-30b",
    "opt-66b",
    "opt-175b",
    "llama-7b",
    "llama-13b",
    "llama-33b",
    "llama-65b",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3-70b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "llama-3.3-70b",
    "mistral-7b",
    "qwen2.5-0.5b",
    "qwen2.5-1.5b",
    "qwen2.5-3b",
    "qwen2.5-7b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen2.5-72b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "gpt-j-6b",
    "gpt-neox-20b",
    "gpt-3-175b",
    "chatglm2-6b",
    "bloom-176b",
];

/// The names of all known models, family by family, small to large.
pub fn names() -> impl ExactSizeIterator<Item = &'static str> {
    ENTRIES.iter().map(|(name, _)| *name)
}

/// What names of mixtures of experts have in them, which are else like those of dense models.
const EXPERTS: [&str; 7] = [
    "mixtral",
    "moe",
    "-a3b",
    "-a22b",
    "deepseek-v",
    "gpt-oss",
    "dbrx",
];

/// The model of that name, in upper or lower case. An unknown name is an error with the nearest
/// known one, if any is close.
pub fn find(name: &str) -> Result<ModelSpec, ModelError> {
    let wanted = name.to_ascii_lowercase();
    match ENTRIES.iter().find(|(known, _)| *known == wanted) {
        Some((known, config)) => ModelSpec::from_hf_config(known, config),
        None => Err(ModelError::UnknownModel {
            name: name.to_owned(),
            known: match did_you_mean(&wanted, names()) {
                _ if EXPERTS.iter().any(|part| wanted.contains(part)) => {
                    "mixtures of experts are not implemented; choose a dense model (`plimsoll models list`)".to_owned()
                }
                Some(near) => near + " (`plimsoll models list` has all names)",
                None => format!("give one of: {}", names().collect::<Vec<_>>().join(", ")),
            },
        }),
    }
}
