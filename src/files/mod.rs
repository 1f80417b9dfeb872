//! What is read from files and written to them: profiles, models, plans, prompts, answers.
//!
//! Every refusal is one line: file, key, problem, remedy. What is written is whole or not there; of answers,
//! each row is.

mod csv_text;
mod digest;
mod error;
mod generation;
mod hardware;
mod json_place;
mod kernel_cache;
mod lengths;
mod model;
mod plan;
mod prompts;
mod rows;
mod serde_words;
mod tokenizer;
mod toml_place;
mod unfinished;
mod write;

pub use csv_text::{CsvText, Header};
pub use digest::digest_of_checkpoint;
pub use error::InputError;
pub use generation::GenerationConfig;
pub use hardware::{Listed, file_of_profile, find_profile, list_profiles};
pub use kernel_cache::kernel_cache;
pub use lengths::read_lengths;
pub use model::{FoundModel, files_of_model, find_model, first_difference};
pub use plan::{PlanFile, SearchNote, plan_json, read_plan};
pub use prompts::{
    Prompt, Room, one_prompt, random_prompts, random_tokens, read_prompts, split_mix,
};
pub use rows::{Reserved, Rows};
pub use tokenizer::Tokenizer;
pub use toml_place::TomlText;
pub use write::{
    Unwritten, check_writable, is_file, is_standard_output, same_file, write_atomically, write_text,
};

use std::io::{Read, stdin};
use std::path::Path;

/// What some editors write before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The text of a file, without a byte order mark.
///
/// # Errors
/// A file that is not there, cannot be read, or is no UTF-8 text.
pub fn read_text(path: &Path) -> Result<String, InputError> {
    let bytes = std::fs::read(path).map_err(|error| InputError::unreadable(path, &error))?;
    utf8(path, bytes)
}

/// Whether a path stands for standard input, as it does for standard output.
pub fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// What messages call an input.
pub fn input_name(path: &Path) -> &Path {
    match is_standard_input(path) {
        true => Path::new("standard input"),
        false => path,
    }
}

/// [`read_text`], of `-` that of standard input until its end.
///
/// # Errors
/// As [`read_text`].
pub fn read_input(path: &Path) -> Result<String, InputError> {
    if !is_standard_input(path) {
        return read_text(path);
    }
    let (name, mut bytes) = (input_name(path), Vec::new());
    let read = stdin().lock().read_to_end(&mut bytes);
    read.map_err(|error| InputError::unreadable(name, &error))?;
    utf8(name, bytes)
}

fn utf8(path: &Path, mut bytes: Vec<u8>) -> Result<String, InputError> {
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        InputError::bad_file(
            path,
            format!("byte {at}"),
            "is not UTF-8 text",
            "give a text file",
        )
    })
}
