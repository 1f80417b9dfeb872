//! TOML texts: what is wrong with one, with its line, its key and the remedy.

use std::path::Path;

use serde::de::DeserializeOwned;

use super::InputError;
use super::serde_words::explain;

/// A TOML text and the file that it is from.
#[derive(Debug, Clone, Copy)]
pub struct TomlText<'a> {
    /// The file.
    pub path: &'a Path,
    /// What it holds.
    pub text: &'a str,
}

impl TomlText<'_> {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, with its line and key.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, InputError> {
        toml::from_str(self.text).map_err(|error| {
            let at = error.span().map_or(self.text.len(), |span| span.start);
            let (problem, remedy) = explain(&error.message().replace('\n', ", "));
            let remedy = remedy.unwrap_or_else(|| "mend the line".to_owned());
            self.bad(at, self.key_at(at), problem, remedy)
        })
    }

    /// The line, counted from 1, of a byte.
    pub fn line(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        1 + before.iter().filter(|&&byte| byte == b'\n').count()
    }

    /// An error about a key near a byte; the key may be empty.
    pub fn bad(
        &self,
        at: usize,
        key: impl AsRef<str>,
        problem: impl AsRef<str>,
        remedy: impl AsRef<str>,
    ) -> InputError {
        let (problem, remedy) = (problem.as_ref(), remedy.as_ref());
        self.says(at, key, format!("{problem}; {remedy}"))
    }

    /// The same with an error's own words, problem and remedy in one.
    pub fn says(&self, at: usize, key: impl AsRef<str>, said: impl AsRef<str>) -> InputError {
        let (file, line) = (self.path.display(), self.line(at));
        let key = match key.as_ref() {
            "" => String::new(),
            key => format!("{key}: "),
        };
        InputError::BadFile(format!("{file}: line {line}: {key}{}", said.as_ref()))
    }

    /// The key of the line at a byte; empty where the line gives none.
    fn key_at(&self, at: usize) -> &str {
        let line = self.text.lines().nth(self.line(at) - 1).unwrap_or("");
        let key = line.split_once('=').map_or("", |(key, _)| key.trim());
        match key.starts_with(['#', '{', '[']) {
            true => "",
            false => key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Outer {
        batch: Vec<Inner>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Inner {
        prompt_len: u32,
        schedule: Kind,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Row,
        ZigZag,
    }

    fn said(text: &str) -> String {
        let path = Path::new("grid.toml");
        let parsed = TomlText { path, text }.parse::<Outer>();
        parsed.unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_comes_with_its_line_and_a_remedy() {
        for (text, expected) in [
            (
                "[[batch]]\npromt_len = 3\n",
                "grid.toml: line 2: promt_len: unknown key `promt_len`; did you mean `prompt_len`?",
            ),
            (
                "\n[[bach]]\n",
                "grid.toml: line 2: unknown key `bach`; did you mean `batch`?",
            ),
            (
                "[[batch]]\n\nprompt_len = -1\n",
                "grid.toml: line 3: prompt_len: is -1, and not a whole number that is not negative; mend the line",
            ),
            (
                "[[batch]]\nprompt_len = 3\n",
                "grid.toml: line 1: missing field `schedule`; add `schedule`",
            ),
            (
                "[[batch]]\nprompt_len = 3\nschedule = \"zigzack\"\n",
                "grid.toml: line 3: schedule: unknown variant `zigzack`, expected `row` or `zigzag`; \
                 did you mean `zigzag`?",
            ),
        ] {
            assert_eq!(said(text), expected);
        }
        let cut = said("[[batch]]\nprompt_len = 3\nschedule");
        assert!(cut.starts_with("grid.toml: line 3: "), "{cut}");
    }
}
