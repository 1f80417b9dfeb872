//! Prompts: a JSON object a line, `{"id": ..., "prompt_token_ids": [...]}`, or seeded random ones.

use std::path::Path;

use plimsoll_core::model::ModelSpec;
use serde::{Deserialize, Serialize};

use super::json_place::explain;
use super::{InputError, read_text};

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// What the output calls it: any text or number.
    pub id: serde_json::Value,
    /// Its tokens.
    pub prompt_token_ids: Vec<u32>,
}

/// Reads prompts for a model. All have the same length: the plan says which.
///
/// # Errors
/// What is wrong, with its line and key.
pub fn read_prompts(
    path: &Path,
    model: &ModelSpec,
    prompt_len: u32,
) -> Result<Vec<Prompt>, InputError> {
    let text = read_text(path)?;
    let mut prompts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let place = format!("line {}", index + 1);
        let prompt: Prompt = serde_json::from_str(line).map_err(|error| {
            let said = explain(line, &error);
            let key = said.key.replacen("line 1", &place, 1);
            InputError::bad_file(path, key, said.problem, said.remedy)
        })?;
        check(path, &place, &prompt, model, prompt_len)?;
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        let remedy = r#"write lines like {"id": 1, "prompt_token_ids": [2, 100]}"#;
        return Err(InputError::bad_file(path, "line 1", "no prompts", remedy));
    }
    Ok(prompts)
}

fn check(
    path: &Path,
    place: &str,
    prompt: &Prompt,
    model: &ModelSpec,
    prompt_len: u32,
) -> Result<(), InputError> {
    let key = format!("{place}: prompt_token_ids");
    let found = prompt.prompt_token_ids.len();
    if found != prompt_len as usize {
        let problem = format!("has {found} tokens, the plan is for {prompt_len}");
        let remedy = format!("give {prompt_len}, or plan with --prompt-len {found}");
        return Err(InputError::bad_file(path, key, problem, remedy));
    }
    let vocabulary = model.vocab_size;
    match prompt.prompt_token_ids.iter().find(|id| **id >= vocabulary) {
        Some(id) => {
            let problem = format!("token {id} is outside of {}'s vocabulary", model.name);
            let remedy = format!("give ids below {vocabulary}");
            Err(InputError::bad_file(path, key, problem, remedy))
        }
        None => Ok(()),
    }
}

/// Prompts of random tokens, the same for the same seed.
pub fn random_prompts(seed: u64, count: u64, prompt_len: u32, vocab_size: u32) -> Vec<Prompt> {
    let mut state = seed;
    (0..count)
        .map(|id| Prompt {
            id: id.into(),
            prompt_token_ids: (0..prompt_len)
                .map(|_| (split_mix(&mut state) % u64::from(vocab_size)) as u32)
                .collect(),
        })
        .collect()
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_prompts() {
        let a = random_prompts(7, 3, 5, 100);
        assert_eq!(a, random_prompts(7, 3, 5, 100));
        assert_ne!(a, random_prompts(8, 3, 5, 100));
        assert!(
            a.iter()
                .flat_map(|p| &p.prompt_token_ids)
                .all(|id| *id < 100)
        );
    }
}
