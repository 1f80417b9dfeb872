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

    /// A text's tokens, with the special ones that the model expects around it. One that the text begins with already, as those that a chat
    /// template has made do, is not put before it again.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let ids = |special: bool| -> Result<Vec<u32>, String> {
            let encoding = self.inner.encode(text, special);
            let encoding = encoding.map_err(|error| format!("cannot be tokenized: {error}"))?;
            Ok(encoding.get_ids().to_vec())
        };
        let (mut around, plain) = (ids(true)?, ids(false)?);
        if around.len() > plain.len() && around[1..].starts_with(&plain) {
            let twice = plain.first() == around.first();
            around.drain(..usize::from(twice));
        }
        Ok(around)
    }

    /// What tokens add to the text of those before them: between a prompt and its answer there may be a space that neither has alone.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn decode_after(&self, before: &[u32], ids: &[u32]) -> Result<String, String> {
        let (first, all) = (self.decode(before)?, self.decode(&[before, ids].concat())?);
        match all.strip_prefix(&first) {
            Some(added) => Ok(added.to_owned()),
            // A character that is begun there and ends here, say.
            None => self.decode(ids),
        }
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

    /// As Llama 2's: words begin with a mark, and a text's first loses its space when it is written out.
    #[test]
    fn an_answer_keeps_its_space_and_a_text_its_one_first_token() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true}],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
            "pre_tokenizer": null,
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "vocab": {"<s>": 0, "\u2581": 1, "a": 2, "b": 3, "\u2581a": 4, "\u2581b": 5},
                "merges": ["\u2581 a", "\u2581 b"]}}"#;
        std::fs::write(folder.path().join("tokenizer.json"), text).unwrap();
        let tokenizer = Tokenizer::find(folder.path()).unwrap().unwrap();
        assert_eq!(tokenizer.encode("a b").unwrap(), [0, 4, 5]);
        assert_eq!(tokenizer.encode("<s>a").unwrap(), [0, 4]);
        assert_eq!(tokenizer.decode(&[5]).unwrap(), "b");
        assert_eq!(tokenizer.decode_after(&[0, 4], &[5, 3]).unwrap(), " bb");
        assert_eq!(tokenizer.decode_after(&[0], &[5]).unwrap(), "b");
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
