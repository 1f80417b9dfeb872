//! `generation_config.json`: how a checkpoint's makers mean it to be used.

use std::path::Path;

use serde_json::{Map, Value};

use super::json_place::explain;
use super::{InputError, read_text};

/// What it says of the choice of tokens; what it does not say is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// The tokens that end an answer.
    pub eos_token_ids: Option<Vec<u32>>,
    /// Whether tokens are drawn.
    pub do_sample: bool,
    /// What logits are divided by.
    pub temperature: Option<f64>,
    /// How many of the likeliest tokens are drawn from.
    pub top_k: Option<u32>,
    /// How probable together the tokens are that are drawn from.
    pub top_p: Option<f64>,
    /// Keys that would change tokens and are not applied.
    pub not_applied: Vec<&'static str>,
}

/// Keys of Hugging Face's `generate` that change tokens, with the number that changes nothing; nothing at all does of the others.
const NOT_APPLIED: [(&str, Option<f64>); 20] = [
    ("repetition_penalty", Some(1.0)),
    ("encoder_repetition_penalty", Some(1.0)),
    ("no_repeat_ngram_size", Some(0.0)),
    ("num_beams", Some(1.0)),
    ("penalty_alpha", Some(0.0)),
    ("min_p", Some(0.0)),
    ("typical_p", Some(1.0)),
    ("epsilon_cutoff", Some(0.0)),
    ("eta_cutoff", Some(0.0)),
    ("guidance_scale", Some(1.0)),
    ("min_new_tokens", Some(0.0)),
    ("min_length", Some(0.0)),
    ("exponential_decay_length_penalty", None),
    ("bad_words_ids", None),
    ("suppress_tokens", None),
    ("begin_suppress_tokens", None),
    ("forced_bos_token_id", None),
    ("forced_eos_token_id", None),
    ("sequence_bias", None),
    ("stop_strings", None),
];

/// What `generate` draws from where a checkpoint says that tokens are drawn, and not from how many.
const TOP_K: u32 = 50;

impl GenerationConfig {
    /// That of a model's folder; the default where there is no such file.
    ///
    /// # Errors
    /// A file that is not one, with the key.
    pub fn find(folder: &Path) -> Result<GenerationConfig, InputError> {
        let path = folder.join("generation_config.json");
        if !path.exists() {
            return Ok(GenerationConfig::default());
        }
        let text = read_text(&path)?;
        let keys = serde_json::from_str(&text).map_err(|error| {
            let said = explain(&text, &error);
            InputError::bad_file(&path, said.key, said.problem, said.remedy)
        })?;
        Keys { path: &path, keys }.read()
    }
}

struct Keys<'a> {
    path: &'a Path,
    keys: Map<String, Value>,
}

impl Keys<'_> {
    fn read(&self) -> Result<GenerationConfig, InputError> {
        let one = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let eos = |value: &Value| match value.as_array() {
            Some(many) => many.iter().map(one).collect(),
            None => one(value).map(|id| vec![id]),
        };
        let above_0 = |value: &Value| value.as_f64().filter(|number| *number > 0.0);
        let share = |value: &Value| above_0(value).filter(|share| *share <= 1.0);
        let applies = |(key, neutral): &(&str, Option<f64>)| {
            let is_nothing = |value: &Value| match value {
                Value::Null => true,
                Value::Array(items) => items.is_empty(),
                Value::Object(keys) => keys.is_empty(),
                other => neutral.is_some() && other.as_f64() == *neutral,
            };
            self.keys.get(*key).is_some_and(|value| !is_nothing(value))
        };
        let do_sample = self.get("do_sample", "true or false", Value::as_bool)?;
        let no_less_than_0 = |value: &Value| value.as_f64().filter(|number| *number >= 0.0);
        let temperature = self.get("temperature", "a number, 0 or above", no_less_than_0)?;
        // At 0 the likeliest token is taken, whatever else is said.
        let greedy = temperature == Some(0.0);
        let do_sample = do_sample.unwrap_or(false) && !greedy;
        let top_k = match self.keys.contains_key("top_k") {
            // 0 is all.
            true => self.get("top_k", "a count", one)?.filter(|k| *k > 0),
            false => do_sample.then_some(TOP_K),
        };
        Ok(GenerationConfig {
            eos_token_ids: self.get("eos_token_id", "a token id, or a list of them", eos)?,
            do_sample,
            temperature: temperature.filter(|_| !greedy),
            top_k,
            top_p: self.get("top_p", "a number above 0 and at most 1", share)?,
            not_applied: NOT_APPLIED
                .iter()
                .filter(|it| applies(it))
                .map(|(key, _)| *key)
                .collect(),
        })
    }

    fn get<T>(
        &self,
        key: &str,
        what: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, InputError> {
        let Some(value) = self.keys.get(key).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let wrong = || {
            InputError::bad_file(
                self.path,
                key,
                format!("is {value}"),
                format!("give {what}"),
            )
        };
        read(value).map(Some).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<GenerationConfig, InputError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("generation_config.json"), text).unwrap();
        GenerationConfig::find(folder.path())
    }

    #[test]
    fn what_is_stated_is_read_and_what_is_not_applied_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let none = GenerationConfig::find(folder.path()).unwrap();
        assert_eq!(none, GenerationConfig::default());
        let one = read(r#"{"eos_token_id": 2, "num_beams": 1, "bos_token_id": 1}"#).unwrap();
        assert_eq!(one.eos_token_ids, Some(vec![2]));
        assert_eq!((one.do_sample, one.not_applied.len()), (false, 0));
        let many = read(
            r#"{"eos_token_id": [2, 7], "do_sample": true, "temperature": 0.6, "top_k": 0,
                "top_p": 0.9, "repetition_penalty": 1.1}"#,
        );
        let many = many.unwrap();
        assert_eq!(many.eos_token_ids, Some(vec![2, 7]));
        assert_eq!(
            (many.temperature, many.top_k, many.top_p),
            (Some(0.6), None, Some(0.9))
        );
        assert_eq!(many.not_applied, ["repetition_penalty"]);
        let named = read(
            r#"{"bad_words_ids": [[3]], "suppress_tokens": [], "stop_strings": "\n", "sequence_bias": null,
                "guidance_scale": 1, "forced_eos_token_id": 2}"#,
        );
        let expected = ["bad_words_ids", "forced_eos_token_id", "stop_strings"];
        assert_eq!(named.unwrap().not_applied, expected);
    }

    #[test]
    fn who_draws_and_does_not_say_from_how_many_draws_from_fifty() {
        for (text, top_k) in [
            (r#"{"do_sample": true, "top_p": 0.9}"#, Some(50)),
            (r#"{"do_sample": true, "top_k": null}"#, None),
            (r#"{"do_sample": true, "top_k": 7}"#, Some(7)),
            (r#"{"top_p": 0.9}"#, None),
        ] {
            assert_eq!(read(text).unwrap().top_k, top_k, "{text}");
        }
    }

    /// As Hugging Face writes it where beams or nothing was asked for.
    #[test]
    fn a_temperature_of_0_is_the_likeliest_token() {
        for text in [
            r#"{"temperature": 0, "do_sample": false}"#,
            r#"{"temperature": 0.0, "do_sample": true}"#,
        ] {
            let found = read(text).unwrap();
            assert_eq!((found.do_sample, found.temperature), (false, None));
        }
    }

    #[test]
    fn a_wrong_value_is_refused_by_key() {
        for (text, word) in [
            (r#"{"temperature": -1}"#, "temperature: is -1"),
            (r#"{"top_p": 1.5}"#, "top_p: is 1.5"),
            (r#"{"eos_token_id": "two"}"#, "eos_token_id"),
            (r#"{"do_sample": 1"#, "line 1"),
        ] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }
}
