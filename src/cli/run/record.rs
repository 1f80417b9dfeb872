//! What a run that was killed needs to go on: which rows it left, and what made them.
//!
//! Beside `out.jsonl` lies `out.jsonl.run.json`: the plan, and everything that decides a row. Where tensors
//! live decides none, so a run may go on with another plan, even on another machine.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use plimsoll_backend::digest::digest;
use plimsoll_core::plan::Plan;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::choice::Choice;
use crate::files::{
    InputError, Prompt, Reserved, Rows, Tokenizer, is_file, is_standard_input, read_text,
    write_atomically,
};

/// What made the rows of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// What decides a row, by name.
    made_with: Map<String, Value>,
    /// The plan, so that a run without one goes on without making another.
    pub plan: Plan,
}

/// What decides rows, apart from the plan.
pub(super) struct Inputs<'a> {
    pub weights: &'a str,
    pub choice: &'a Choice,
    pub tokenizer: Option<&'a Tokenizer>,
    pub prompts: &'a [Prompt],
    /// A GPU's likeliest token is another than the CPU's where two are as likely as rounding tells apart.
    pub on_gpu: bool,
}

impl Record {
    /// What the rows of a run are made with.
    pub fn new(plan: &Plan, inputs: &Inputs<'_>) -> Record {
        // Names, and what is stated elsewhere, change no row.
        let mut model = json!(plan.model);
        for key in ["name", "bos_token_id", "eos_token_ids"] {
            model.as_object_mut().map(|keys| keys.remove(key));
        }
        let prompts = inputs.prompts.iter().flat_map(|prompt| {
            let ids = prompt.prompt_token_ids.iter();
            let ids = ids.flat_map(|id| id.to_le_bytes()).collect();
            [prompt.id.to_string().into_bytes(), ids]
        });
        let sampling = inputs.choice.sampling.map(|it| {
            json!({ "temperature": it.temperature, "top_k": it.top_k, "top_p": it.top_p, "seed": it.seed })
        });
        let mut made_with = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "model": digest([model.to_string()]),
            "weights": inputs.weights,
            "dtype": plan.dtype,
            "compression": plan.policy.compression,
            "sparse_attention": plan.policy.sparse_attention,
            "gen_len": plan.workload.gen_len,
            "sampling": sampling,
            "stop_token_ids": inputs.choice.stop,
            "tokenizer": inputs.tokenizer.map(Tokenizer::digest),
            "prompts": digest(prompts),
        });
        if inputs.on_gpu {
            made_with["backend"] = json!("cuda");
        }
        // As it is read again, so that numbers compare.
        let made_with = serde_json::from_str(&made_with.to_string());
        Record {
            made_with: made_with.expect("an object was just written"),
            plan: plan.clone(),
        }
    }

    fn read(path: &Path) -> Result<Record, InputError> {
        let text = read_text(path)?;
        serde_json::from_str(&text).map_err(|error| {
            let remedy = "run again without --resume";
            InputError::bad_whole_file(path, format!("is no record of a run ({error})"), remedy)
        })
    }

    /// The name of what differs, and both values.
    fn difference(&self, other: &Record) -> Option<(String, String, String)> {
        difference(&self.made_with, &other.made_with)
    }
}

/// The first key of which two objects have different values, and these in words; where both are objects, the key in
/// them.
fn difference(
    mine: &Map<String, Value>,
    theirs: &Map<String, Value>,
) -> Option<(String, String, String)> {
    let mut keys = mine
        .keys()
        .chain(theirs.keys().filter(|key| !mine.contains_key(*key)));
    keys.find_map(|key| match (mine.get(key), theirs.get(key)) {
        (Some(Value::Object(mine)), Some(Value::Object(theirs))) => {
            let (inner, mine, theirs) = difference(mine, theirs)?;
            Some((format!("{key}.{inner}"), mine, theirs))
        }
        (mine, theirs) => (mine != theirs).then(|| (key.clone(), in_words(mine), in_words(theirs))),
    })
}

/// A value for people: objects without their quotes.
fn in_words(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::Object(keys)) => {
            let keys = keys
                .iter()
                .map(|(key, value)| format!("{key} {}", in_words(Some(value))));
            keys.collect::<Vec<_>>().join(", ")
        }
        Some(other) => other.to_string(),
    }
}

/// The file beside a file of rows.
pub(super) fn beside(rows: &Path) -> PathBuf {
    let mut name = rows.as_os_str().to_owned();
    name.push(".run.json");
    name.into()
}

/// The rows that an earlier run left, as far as they ended; none where there are none.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// What each row calls its prompt.
    ids: Vec<Value>,
    /// What they take.
    bytes: u64,
    /// What made them; none where there are none.
    pub record: Option<Record>,
}

/// What is looked at of a row.
#[derive(Deserialize)]
struct Row {
    id: Value,
    finish_reason: Option<Value>,
}

impl Kept {
    /// Reads the rows of a file. A last row that is torn, and rows that did not end, do not count.
    ///
    /// # Errors
    /// A file that is none of rows, or lacks the one beside it.
    pub fn read(path: &Path) -> Result<Kept, InputError> {
        let bytes = match fs::metadata(path) {
            _ if is_standard_input(path) => {
                let line = "--resume goes on with a file, and `--output -` is standard output; give a file";
                return Err(InputError::UnknownName(line.to_owned()));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Kept::default()),
            Ok(there) if !there.is_file() => {
                let remedy = "give a file, or run without --resume";
                return Err(InputError::bad_file(path, "--resume", "is no file", remedy));
            }
            _ => fs::read(path).map_err(|error| InputError::unreadable(path, &error))?,
        };
        let mut kept = Kept::default();
        if bytes.is_empty() {
            return Ok(kept);
        }
        let beside = beside(path);
        if !beside.exists() {
            let problem = format!(
                "is not empty, and no {} says what made it",
                beside.display()
            );
            let remedy = "give it as well, or run again without --resume";
            return Err(InputError::bad_file(path, "--resume", problem, remedy));
        }
        let whole = |line: &&[u8]| line.ends_with(b"\n");
        let lines = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .take_while(whole);
        for (index, line) in lines.enumerate() {
            let row: Row = serde_json::from_slice(line).map_err(|error| {
                let problem = format!("is no row of answers ({error})");
                let remedy = "give the file that the run wrote, or run again without --resume";
                InputError::bad_file(path, format!("line {}", index + 1), problem, remedy)
            })?;
            if row.finish_reason.is_none() {
                break;
            }
            kept.ids.push(row.id);
            kept.bytes += line.len() as u64;
        }
        if !kept.ids.is_empty() {
            kept.record = Some(Record::read(&beside)?);
        }
        Ok(kept)
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// That the rows are the first of what this run would write.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&self, path: &Path, now: &Record, prompts: &[Prompt]) -> Result<(), InputError> {
        let Some(then) = &self.record else {
            return Ok(());
        };
        let remedy = "give what they were made with, or run again without --resume";
        if let Some((key, now, then)) = now.difference(then) {
            let problem = match key == "prompts" {
                true => "are not those that the rows were made with".to_owned(),
                false => format!("the rows were made with {then}, this run has {now}"),
            };
            return Err(InputError::bad_file(path, key, problem, remedy));
        }
        let ids = prompts.iter().map(|prompt| &prompt.id);
        let differs = self
            .ids
            .iter()
            .zip(ids)
            .position(|(row, prompt)| row != prompt);
        let extra = (self.ids.len() > prompts.len()).then_some(prompts.len());
        match differs.or(extra) {
            Some(row) => {
                let problem = format!("{} is not the id of that prompt", self.ids[row]);
                let place = format!("line {}", row + 1);
                Err(InputError::bad_file(path, place, problem, remedy))
            }
            None => Ok(()),
        }
    }

    /// Begins to write rows behind those that are kept. Where there are none, what makes the new
    /// ones is put beside it once older rows are gone, and these go once that is on disk.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(&self, record: &Record, reserved: Reserved) -> io::Result<Rows> {
        let path = reserved.path().to_owned();
        if !self.ids.is_empty() || !is_file(&path) {
            return reserved.rows(self.bytes);
        }
        let mut rows = None;
        write_atomically(&beside(&path), |out| {
            serde_json::to_writer(&mut *out, record)?;
            out.write_all(b"\n")?;
            out.flush()?;
            rows = Some(reserved.rows(0));
            Ok(())
        })?;
        rows.expect("it was opened with what is beside it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = concat!(
        "{\"id\": 1, \"finish_reason\": \"stop\"}\n",
        "{\"id\": \"b\", \"finish_reason\": \"length\"}\n",
    );

    fn kept(text: &str) -> Result<Kept, InputError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        fs::write(&path, text).unwrap();
        fs::write(beside(&path), "{}").unwrap();
        Kept::read(&path)
    }

    #[test]
    fn rows_without_what_made_them_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        // What somebody else wrote has no record either, even if its lines look like rows that have not ended.
        for text in [ROWS, "{\"id\": 1, \"prompt\": \"Once\"}\n"] {
            fs::write(&path, text).unwrap();
            let said = Kept::read(&path).unwrap_err().to_string();
            assert!(said.contains("out.jsonl.run.json says what"), "{said}");
        }
        let said = kept(&ROWS.replace("\"id\": \"b\"", ""))
            .unwrap_err()
            .to_string();
        assert!(said.contains("line 2: is no row of answers"), "{said}");
    }

    #[test]
    fn a_difference_is_named_as_deep_as_it_lies() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let drawn = object(json!({"dtype": "f32", "sampling": {"temperature": 0.5, "seed": 1}}));
        let hotter = object(json!({"dtype": "f32", "sampling": {"temperature": 0.7, "seed": 1}}));
        let greedy = object(json!({"dtype": "f32", "sampling": null}));
        let said = |a, b| difference(a, b).unwrap();
        let expected = ["sampling.temperature", "0.5", "0.7"].map(str::to_owned);
        assert_eq!(said(&drawn, &hotter), expected.into());
        let expected = ["sampling", "none", "seed 1, temperature 0.5"].map(str::to_owned);
        assert_eq!(said(&greedy, &drawn), expected.into());
        assert_eq!(difference(&drawn, &drawn), None);
    }

    #[test]
    fn what_is_torn_or_has_not_ended_does_not_count() {
        assert_eq!(kept("").unwrap().rows(), 0);
        assert_eq!(kept(ROWS.lines().next().unwrap()).unwrap().rows(), 0);
        let open = ROWS.replace("\"stop\"", "null");
        assert_eq!(kept(&open).unwrap().rows(), 0);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Kept::read(&folder.path().join("none")).unwrap().rows(), 0);
    }
}
