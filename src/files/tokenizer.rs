//! A model's `tokenizer.json`: texts to tokens and back, as Hugging Face does it.

use std::path::Path;

use plimsoll_backend::digest::digest;

use super::{InputError, read_text};

/// The tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    digest: String,
}

impl Tokenizer {
    /// The tokenizer of a model's folder; none where it has no `tokenizer.json`.
    ///
    /// # Errors
    /// A file that is not a tokenizer.
    pub fn find(folder: &Path) -> Result<Option<Tokenizer>, InputError> {
        let path = folder.join("tokenizer.json");
        if !path.exists() {
            return Ok(None);
        }
        let text = read_text(&path)?;
        let wrong = |error: tokenizers::Error| {
            let remedy = "fetch the file again; it is what `tokenizers` saves";
            InputError::bad_whole_file(&path, format!("is no tokenizer ({error})"), remedy)
        };
        let mut inner = tokenizers::Tokenizer::from_bytes(&text).map_err(wrong)?;
        // Prompts are neither cut nor filled up here, whatever its last user did.
        inner.with_truncation(None).map_err(wrong)?;
        inner.with_padding(None);
        Ok(Some(Tokenizer {
            inner,
            digest: digest([text]),
        }))
    }

    /// A text's tokens, with the special ones that the model expects around it.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.inner.encode(text, true);
        let encoding = encoding.map_err(|error| format!("cannot be tokenized: {error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn decode(&self, ids: &[u32]) -> Result<String, String> {
        let text = self.inner.decode(ids, true);
        text.map_err(|error| format!("tokens have no text: {error}"))
    }

    /// What tells it from another.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn texts_have_the_tokens_of_hugging_face_and_come_back() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("backend/tests/fixtures/tiny-opt");
        let tokenizer = Tokenizer::find(&folder).unwrap().unwrap();
        let reference = read_text(&folder.join("tokenizer-reference.json")).unwrap();
        let reference: Vec<Value> = serde_json::from_str(&reference).unwrap();
        assert!(reference.len() > 4);
        for case in reference {
            let text = case["text"].as_str().unwrap();
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(serde_json::to_value(&ids).unwrap(), case["ids"], "{text}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        }
    }

    #[test]
    fn what_is_no_tokenizer_is_refused_and_none_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Tokenizer::find(folder.path()).unwrap().is_none());
        std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
        let error = Tokenizer::find(folder.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json: is no tokenizer"), "{error}");
    }
}
