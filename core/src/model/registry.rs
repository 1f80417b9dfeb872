//! The models known by name: trimmed `config.json` files of the checkpoints that are published under them (of base models, where names leave that open),
//! as parts of the program.

use super::{ModelError, ModelSpec};
use crate::{did_you_mean, is_slip_of};

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

/// What is behind the names of models that were trained further, and have the shape of those that they come from.
const TUNED: [&str; 5] = ["-hf", "-instruct", "-chat", "-base", "-it"];

/// The known name of the model whose shape another has that was made of it, as `Llama-2-70b-chat-hf`.
pub fn of_that_shape(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let mut shape = &*name;
    while let Some(less) = TUNED.iter().find_map(|tuned| shape.strip_suffix(tuned)) {
        shape = less;
    }
    names().find(|known| *known == shape)
}

/// Whether a name, in small letters, is that of a mixture of experts.
pub(super) fn is_mixture(name: &str) -> bool {
    EXPERTS.iter().any(|part| name.contains(part))
}

/// What to do about a name that nothing has, if more is known than that.
pub fn instead_of(name: &str) -> Option<String> {
    let wanted = name.to_ascii_lowercase();
    if is_mixture(&wanted) {
        return Some("mixtures of experts are not implemented; choose a dense model (`plimsoll models list`)".to_owned());
    }
    meant(&wanted).map(|near| near + " (`plimsoll models list` has all names)")
}

/// What a name that nothing has was probably meant to be: the same shape; of its family, one as large, else any; else one
/// that is but for a slip.
fn meant(wanted: &str) -> Option<String> {
    if let Some(name) = of_that_shape(wanted) {
        return did_you_mean(name, [name]);
    }
    let family =
        |name: &str| -> String { name.chars().take_while(char::is_ascii_alphabetic).collect() };
    let size = |name: &str| name.rsplit('-').next().map(str::to_owned);
    let kin = || names().filter(|name| family(name) == family(wanted));
    let as_large = || kin().filter(|name| size(name) == size(wanted));
    let slips = names().filter(|name| is_slip_of(wanted, name));
    let nearest = did_you_mean(wanted, as_large()).or_else(|| did_you_mean(wanted, kin()));
    nearest.or_else(|| did_you_mean(wanted, slips))
}

/// The model of that name, in upper or lower case. An unknown name is an error with the nearest
/// known one, if any is close.
pub fn find(name: &str) -> Result<ModelSpec, ModelError> {
    let wanted = name.to_ascii_lowercase();
    match ENTRIES.iter().find(|(known, _)| *known == wanted) {
        Some((known, config)) => ModelSpec::from_hf_config(known, config),
        None => Err(ModelError::UnknownModel {
            name: name.to_owned(),
            known: instead_of(&wanted).unwrap_or_else(|| {
                format!("give one of: {}", names().collect::<Vec<_>>().join(", "))
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_taken_for_one_of_its_family_and_size() {
        for (wrong, meant) in [
            ("llama-70b", "llama-2-70b"),
            ("qwen-72b", "qwen2.5-72b"),
            ("Llama-3-70B-Instruct", "llama-3-70b"),
            ("opt-175", "opt-175b"),
        ] {
            let said = find(wrong).expect_err(wrong).to_string();
            assert!(said.contains(&format!("did you mean `{meant}`")), "{said}");
        }
        let said = find("gemma-2-27b").expect_err("unknown").to_string();
        assert!(!said.contains("did you mean"), "{said}");
        assert_eq!(of_that_shape("Llama-2-70b-chat-hf"), Some("llama-2-70b"));
    }
}
