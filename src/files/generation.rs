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

/// Keys of Hugging Face's `generate` that change tokens, with the value that changes nothing.
const NOT_APPLIED: [(&str, f64); 9] = [
    ("repetition_penalty", 1.0),
    ("encoder_repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("penalty_alpha", 0.0),
    ("min_p", 0.0),
    ("typical_p", 1.0),
    ("min_new_tokens", 0.0),
    ("min_length", 0.0),
];

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
        let applies = |(key, neutral): &(&str, f64)| {
            let value = self.keys.get(*key);
            value.is_some_and(|value| !value.is_null() && value.as_f64() != Some(*neutral))
        };
        let do_sample = self.get("do_sample", "true or false", Value::as_bool)?;
        let no_less_than_0 = |value: &Value| value.as_f64().filter(|number| *number >= 0.0);
        let temperature = self.get("temperature", "a number, 0 or above", no_less_than_0)?;
        // At 0 the likeliest token is taken, whatever else is said.
        let greedy = temperature == Some(0.0);
        Ok(GenerationConfig {
            eos_token_ids: self.get("eos_token_id", "a token id, or a list of them", eos)?,
            do_sample: do_sample.unwrap_or(false) && !greedy,
            temperature: temperature.filter(|_| !greedy),
            // 0 is all.
            top_k: self.get("top_k", "a count", one)?.filter(|k| *k > 0),
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
