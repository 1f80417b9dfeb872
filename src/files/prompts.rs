//! Prompts: a JSON object a line, `{"id": ..., "prompt": "..."}` or `{"id": ..., "prompt_token_ids":
//! [...]}`; or seeded random ones.

use std::collections::HashMap;
use std::path::Path;

use plimsoll_core::model::ModelSpec;
use serde::Deserialize;
use serde_json::Value;

use super::json_place::{Complaint, explain};
use super::{InputError, Tokenizer, input_name, read_input};

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// What the output calls it: any text or number.
    pub id: Value,
    /// Its tokens.
    pub prompt_token_ids: Vec<u32>,
}

/// A line of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Null where there is none.
    #[serde(default)]
    id: Value,
    prompt: Option<String>,
    prompt_token_ids: Option<Vec<u32>>,
}

/// What bounds the length of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// A plan, to this many tokens.
    Plan(u32),
    /// The model's positions, some of which the answer takes.
    Model {
        /// Tokens that are generated.
        gen_len: u32,
    },
}

impl Room {
    /// The longest prompt that fits, in tokens.
    fn longest(self, model: &ModelSpec) -> u32 {
        match self {
            Room::Plan(longest) => longest,
            Room::Model { gen_len } => model.max_position_embeddings.saturating_sub(gen_len),
        }
    }

    /// Why a prompt of so many tokens does not fit, and what helps.
    fn refusal(self, found: usize, model: &ModelSpec) -> (String, String) {
        match self {
            Room::Plan(longest) => (
                format!("has {found} tokens, the plan is for at most {longest}"),
                format!(
                    "shorten it, or plan with the --prompt-len of the longest, {found} or more"
                ),
            ),
            Room::Model { gen_len } => (
                format!(
                    "has {found} tokens, and {} sees {} with the {gen_len} that are generated",
                    model.name, model.max_position_embeddings
                ),
                match model.max_position_embeddings.checked_sub(found as u32) {
                    Some(most @ 1..) => {
                        format!("shorten it, or give a --gen-len of at most {most}")
                    }
                    _ => format!("shorten it to at most {}", self.longest(model)),
                },
            ),
        }
    }
}

/// Reads prompts for a model, texts among them where there is a tokenizer; `-` is standard input.
///
/// # Errors
/// What is wrong, with its line and key.
pub fn read_prompts(
    path: &Path,
    model: &ModelSpec,
    tokenizer: Option<&Tokenizer>,
    room: Room,
) -> Result<Vec<Prompt>, InputError> {
    let text = read_input(path)?;
    let path = input_name(path);
    let mut prompts = Vec::new();
    let mut ids = Ids::default();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let place = format!("line {}", index + 1);
        let line = read_line(line).map_err(|said| {
            let key = said.key.replacen("line 1", &place, 1);
            InputError::bad_file(path, key, said.problem, said.remedy)
        })?;
        let wrong = |(key, problem, remedy): Wrong| {
            InputError::bad_file(path, format!("{place}{key}"), problem, remedy)
        };
        let id = line.id.clone();
        ids.add(&id, index + 1).map_err(wrong)?;
        let (key, prompt_token_ids) = tokens(line, model, tokenizer).map_err(wrong)?;
        check(key, &prompt_token_ids, model, room).map_err(wrong)?;
        prompts.push(Prompt {
            id,
            prompt_token_ids,
        });
    }
    if prompts.is_empty() {
        let remedy = format!("write lines like {EXAMPLE}");
        return Err(InputError::bad_whole_file(path, "has no prompts", remedy));
    }
    Ok(prompts)
}

const EXAMPLE: &str = r#"{"id": 1, "prompt": "Once upon a time"}"#;

/// A line that is an object of the known keys.
fn read_line(line: &str) -> Result<Line, Complaint> {
    serde_json::from_str(line).map_err(|error| {
        let said = explain(line, &error);
        let is_text = error.is_syntax() && !line.trim_start().starts_with('{');
        if is_text || serde_json::from_str::<Value>(line).is_ok_and(|value| !value.is_object()) {
            return Complaint {
                key: "line 1".to_owned(),
                problem: "is no object".to_owned(),
                remedy: format!("it must be one, such as {EXAMPLE}"),
            };
        }
        let all = "known here: id, prompt, prompt_token_ids";
        match said.problem.starts_with("unknown key") && said.remedy != all {
            true => Complaint {
                remedy: format!("{} {all}", said.remedy),
                ..said
            },
            false => said,
        }
    })
}

/// A single prompt, whose id is 1.
///
/// # Errors
/// What is wrong with it, and the remedy.
pub fn one_prompt(
    text: &str,
    model: &ModelSpec,
    tokenizer: Option<&Tokenizer>,
    room: Room,
) -> Result<Prompt, String> {
    let line = Line {
        id: 1.into(),
        prompt: Some(text.to_owned()),
        prompt_token_ids: None,
    };
    let id = line.id.clone();
    let checked = |(key, ids): (&'static str, Vec<u32>)| {
        check(key, &ids, model, room)?;
        Ok(ids)
    };
    let ids = tokens(line, model, tokenizer).and_then(checked);
    match ids {
        Ok(prompt_token_ids) => Ok(Prompt {
            id,
            prompt_token_ids,
        }),
        Err((_, problem, remedy)) => Err(format!("{problem}; {remedy}")),
    }
}

/// Key, problem and remedy.
type Wrong = (&'static str, String, String);

/// The prompts so far by what they are called, with their lines.
#[derive(Default)]
struct Ids(HashMap<String, usize>);

impl Ids {
    /// An answer is told from the others by its prompt's id alone.
    fn add(&mut self, id: &Value, line: usize) -> Result<(), Wrong> {
        let wrong = |problem: String| {
            let remedy = "give each prompt a text or a number of its own";
            Err((ID, problem, remedy.to_owned()))
        };
        if id.is_null() {
            return wrong("is missing or null".to_owned());
        }
        let is_told = match id {
            Value::String(_) => true,
            // As it was written: of others, JSON keeps no more than a float does.
            Value::Number(number) => number.is_u64() || number.is_i64(),
            _ => false,
        };
        if !is_told {
            return wrong(format!("{id} is no text and no whole number of 64 bits"));
        }
        match self.0.insert(id.to_string(), line) {
            Some(before) => wrong(format!("{id} is the id of line {before} as well")),
            None => Ok(()),
        }
    }
}

const ID: &str = ": id";
const TEXT: &str = ": prompt";
const TOKENS: &str = ": prompt_token_ids";

/// A line's tokens, and the key that they come from.
fn tokens(
    line: Line,
    model: &ModelSpec,
    tokenizer: Option<&Tokenizer>,
) -> Result<(&'static str, Vec<u32>), Wrong> {
    match (line.prompt, line.prompt_token_ids) {
        (None, Some(ids)) => Ok((TOKENS, ids)),
        (Some(text), None) => {
            let Some(tokenizer) = tokenizer else {
                let problem = format!("is a text, and {} has no tokenizer.json", model.name);
                let remedy = "give --model a folder that holds one, or prompt_token_ids in a file of --prompts";
                return Err((TEXT, problem, remedy.to_owned()));
            };
            let ids = tokenizer.encode(&text);
            let remedy = || "correct the text, or the tokenizer.json".to_owned();
            Ok((TEXT, ids.map_err(|why| (TEXT, why, remedy()))?))
        }
        (both, _) => {
            let problem = match both {
                Some(_) => "has both prompt and prompt_token_ids",
                None => "has neither prompt nor prompt_token_ids",
            };
            Err(("", problem.to_owned(), "give one of the two".to_owned()))
        }
    }
}

fn check(key: &'static str, ids: &[u32], model: &ModelSpec, room: Room) -> Result<(), Wrong> {
    if ids.is_empty() {
        let remedy = "give at least one token, such as the one that begins a text";
        return Err((key, "is empty".to_owned(), remedy.to_owned()));
    }
    if ids.len() > room.longest(model) as usize {
        let (problem, remedy) = room.refusal(ids.len(), model);
        return Err((key, problem, remedy));
    }
    let vocabulary = model.vocab_size;
    match ids.iter().find(|id| **id >= vocabulary) {
        Some(id) => {
            let problem = format!("token {id} is outside of {}'s vocabulary", model.name);
            let remedy = match key {
                TEXT => {
                    "give --model the tokenizer.json that belongs to its config.json".to_owned()
                }
                _ => format!("give ids below {vocabulary}"),
            };
            Err((key, problem, remedy))
        }
        None => Ok(()),
    }
}

/// Prompts of random tokens, the same for the same seed.
pub fn random_prompts(seed: u64, count: u64, prompt_len: u32, vocab_size: u32) -> Vec<Prompt> {
    let mut state = seed;
    let token_ids = |_| random_tokens(&mut state, (prompt_len, prompt_len), vocab_size);
    let prompts = (0..count).map(token_ids).zip(0_u64..);
    let prompts = prompts.map(|(prompt_token_ids, id)| Prompt {
        id: id.into(),
        prompt_token_ids,
    });
    prompts.collect()
}

/// The first of so many random tokens, which are drawn all the same: so that another prompt's are the same with other lengths.
pub fn random_tokens(state: &mut u64, (first, of): (u32, u32), vocab_size: u32) -> Vec<u32> {
    let mut draw = || (split_mix(state) % u64::from(vocab_size)) as u32;
    let tokens = (0..first).map(|_| draw()).collect();
    (first..of).for_each(|_| {
        draw();
    });
    tokens
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub fn split_mix(state: &mut u64) -> u64 {
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
    fn shorter_prompts_leave_the_others_as_they_were() {
        let of = |lengths: [u32; 3]| {
            let mut state = 7;
            lengths.map(|length| random_tokens(&mut state, (length, 5), 100))
        };
        let (all, some) = (of([5; 3]), of([2, 5, 0]));
        assert_eq!((&some[0], &some[1]), (&all[0][..2].to_vec(), &all[1]));
        assert!(some[2].is_empty());
    }

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
