//! Lengths of prompts: a number a line, or a column of a CSV file.

use std::path::Path;

use super::{CsvText, Header, InputError, read_text};
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
    let remedy = "give a whole number of tokens, at least 1, in each line";
    let mut file = CsvText::new(path, &text, remedy);
    if text.trim().is_empty() {
        return Err(file.wrong(1, "the file is empty"));
    }
    let column = match has_header {
        true => column(&file.header()?)?,
        false => {
            file = file.without_header();
            0
        }
    };
    let mut lengths = Vec::new();
    for row in file.rows() {
        let (line, record) = row?;
        let value = record.get(column).unwrap_or_default();
        let length = value.parse::<u32>().ok().filter(|length| *length > 0);
        let problem = || file.wrong(line, format!("`{value}` is no length"));
        lengths.push(length.ok_or_else(problem)?);
    }
    Lengths::new(lengths).ok_or_else(|| file.wrong(1, "there are no prompts"))
}

/// The one column that holds lengths.
fn column(header: &Header<'_>) -> Result<usize, InputError> {
    let known = COLUMNS.iter();
    let mut known = known.flat_map(|name| {
        let all = header.names().enumerate();
        all.filter_map(move |(at, known)| (known == *name).then_some(at))
    });
    match (known.next(), known.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => {
            let remedy = header.or_commas(&format!("name it one of {}", COLUMNS.join(", ")));
            Err(header.wrong("no column holds lengths of prompts", remedy))
        }
        (Some(_), Some(_)) => {
            Err(header.wrong("several columns hold lengths of prompts", "keep one"))
        }
    }
}
