//! Lengths of prompts: a number a line, or a column of a CSV file.

use std::path::Path;

use super::{InputError, line_of, read_text};
use crate::padding::Lengths;

/// What such a column is called: here, and in traces of serving systems.
const COLUMNS: [&str; 4] = [
    "prompt_len",
    "num_prefill_tokens",
    "ContextTokens",
    "input_length",
];

/// Reads lengths of prompts, in tokens: the column `prompt_len` (or `num_prefill_tokens`,
/// `ContextTokens`, `input_length`), or, without a header, one number a line.
///
/// # Errors
/// What is wrong, with its line.
pub fn read_lengths(path: &Path) -> Result<Lengths, InputError> {
    let text = read_text(path)?;
    let mut lines = text.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    // A number that is no length is wrong as one.
    let bare = |line: &str| line.trim_matches('"').parse::<f64>().is_ok();
    let has_header = !first.is_some_and(bare);
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .has_headers(has_header)
        .from_reader(text.as_bytes());
    let broken = |place: String, problem: String| {
        let remedy = "give a whole number of tokens, at least 1, in each line";
        InputError::bad_file(path, place, problem, remedy)
    };
    if text.trim().is_empty() {
        return Err(broken("line 1".into(), "the file is empty".into()));
    }
    let mut column = 0;
    if has_header {
        let headers = reader
            .headers()
            .map_err(|e| broken("line 1".into(), e.to_string()))?;
        let known = headers
            .iter()
            .enumerate()
            .filter(|(_, name)| COLUMNS.contains(name));
        let wrong =
            |problem, remedy: String| Err(InputError::bad_file(path, "line 1", problem, remedy));
        column = match known.map(|(at, _)| at).collect::<Vec<_>>()[..] {
            [one] => one,
            [] => {
                let remedy = format!("name it one of {}", COLUMNS.join(", "));
                return wrong("no column holds lengths of prompts", remedy);
            }
            _ => return wrong("several columns hold lengths of prompts", "keep one".into()),
        };
    }
    let mut lengths = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|e| {
            let line = line_of(&text, e.position());
            broken(format!("line {line}"), e.to_string())
        })?;
        let line = line_of(&text, record.position());
        let value = record.get(column).unwrap_or_default();
        let length = value.parse::<u32>().ok().filter(|length| *length > 0);
        let problem = || broken(format!("line {line}"), format!("`{value}` is no length"));
        lengths.push(length.ok_or_else(problem)?);
    }
    Lengths::new(lengths).ok_or_else(|| broken("line 1".into(), "there are no prompts".into()))
}
