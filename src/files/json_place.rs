//! What serde_json says of a wrong file, turned into key, problem and remedy.

use serde_json::error::Category;

use super::serde_words;

/// A complaint about a JSON text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Complaint {
    /// The line and the dotted key.
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

/// Explains why `text` did not parse.
pub(super) fn explain(text: &str, error: &serde_json::Error) -> Complaint {
    let message = error.to_string();
    let problem = match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    };
    let (problem, remedy) = serde_words::explain(&problem);
    let otherwise = match error.classify() {
        Category::Eof => "the file is cut short; write it again",
        Category::Data => "correct the value",
        Category::Io | Category::Syntax => "mend the JSON there",
    };
    let remedy = remedy.unwrap_or_else(|| otherwise.to_owned());
    let line = error.line();
    // What is missing is a key of an object, not of the last value in it.
    let lacks = problem.starts_with("missing field");
    let path = path_at(text, line, error.column(), lacks);
    let key = match path.is_empty() || error.is_eof() {
        true => format!("line {line}"),
        false => format!("line {line}: {path}"),
    };
    Complaint {
        key,
        problem,
        remedy,
    }
}

/// The dotted path of the value or key at a place of a JSON text, as far as it can be told; of an
/// object, or of the last value in it. Columns count bytes, so a place may lie inside of a letter.
fn path_at(text: &str, line: usize, column: usize, of_object: bool) -> String {
    let before = text.split_inclusive('\n').take(line.saturating_sub(1));
    let start: usize = before.map(str::len).sum();
    let text = text.as_bytes();
    let end = (start + column).min(text.len());
    let mut levels: Vec<Level> = Vec::new();
    let mut bytes = text[..end].iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' => levels.push(Level::Object(String::new())),
            b'[' => levels.push(Level::Array(0)),
            // The end of a value is still its place.
            b'}' | b']' if bytes.len() > 0 => drop(levels.pop()),
            b',' => {
                if let Some(Level::Array(index)) = levels.last_mut() {
                    *index += 1;
                }
            }
            b'"' => {
                let word = string(&mut bytes);
                let rest = text[end - bytes.len()..].trim_ascii_start();
                if let (true, Some(Level::Object(key))) =
                    (rest.starts_with(b":"), levels.last_mut())
                {
                    *key = word;
                }
            }
            _ => {}
        }
    }
    if let (true, Some(Level::Object(key))) = (of_object, levels.last_mut()) {
        key.clear();
    }
    let mut path = String::new();
    for level in levels {
        match level {
            Level::Object(key) if key.is_empty() => {}
            Level::Object(key) if path.is_empty() => path = key,
            Level::Object(key) => path = format!("{path}.{key}"),
            Level::Array(index) => path = format!("{path}[{index}]"),
        }
    }
    path
}

enum Level {
    Object(String),
    Array(usize),
}

/// The rest of a string whose opening quote was read.
fn string(bytes: &mut impl Iterator<Item = u8>) -> String {
    let mut word = Vec::new();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => break,
            b'\\' => word.extend(bytes.next()),
            _ => word.push(byte),
        }
    }
    String::from_utf8_lossy(&word).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Outer {
        policy: Inner,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Inner {
        gpu_batch_size: u32,
        shares: Vec<f64>,
    }

    fn complaint(text: &str) -> Complaint {
        explain(text, &serde_json::from_str::<Outer>(text).unwrap_err())
    }

    #[test]
    fn an_unknown_key_comes_with_the_nearest_known() {
        let said = complaint("{\n \"policy\": {\n  \"gpu_batch_sise\": 4}}");
        assert_eq!(said.key, "line 3: policy.gpu_batch_sise");
        assert_eq!(said.problem, "unknown key `gpu_batch_sise`");
        assert_eq!(said.remedy, "did you mean `gpu_batch_size`?");
    }

    #[test]
    fn a_wrong_value_is_named_by_its_path() {
        let said = complaint("{\"policy\": {\"gpu_batch_size\": 4, \"shares\": [1.0, \"x\"]}}");
        assert_eq!(said.key, "line 1: policy.shares[1]");
        let said = complaint("{\"policy\": {\"gpu_batch_size\": -4}}");
        assert_eq!(said.key, "line 1: policy.gpu_batch_size");
    }

    #[test]
    fn lines_may_end_as_on_windows() {
        let said = complaint("{\r\n\r\n \"policy\": {\r\n  \"gpu_batch_size\": -4}}");
        assert_eq!(said.key, "line 4: policy.gpu_batch_size");
    }

    const FOREIGN: &str = "{\"größe\": \"ключ\\\"\", \n \"policy\": {\r\n \
                           \"gpu_batch_size\": 4, \"データ\": [1, \"é\", {\"🚢\": null}]}}";

    #[test]
    fn every_place_of_a_foreign_text_has_a_path() {
        for line in 0..=FOREIGN.lines().count() + 1 {
            for column in 0..=FOREIGN.len() + 1 {
                path_at(FOREIGN, line, column, false);
            }
        }
        let end = FOREIGN.lines().last().unwrap().find('🚢').unwrap();
        assert_eq!(path_at(FOREIGN, 3, end, false), "policy.データ[2]");
    }

    #[test]
    fn no_damage_to_a_foreign_text_goes_unexplained() {
        let places = FOREIGN.char_indices().map(|(at, _)| at);
        for at in places.chain([FOREIGN.len()]) {
            let (before, after) = FOREIGN.split_at(at);
            for damage in ["", "é", "\"", "\\", "{", "]", ":", "\n", "`", "\u{1}"] {
                for text in [
                    format!("{before}{damage}"),
                    format!("{before}{damage}{after}"),
                ] {
                    let said = complaint(&text);
                    assert!(said.key.starts_with("line "), "{text}: {said:?}");
                    assert!(!said.remedy.is_empty(), "{text}: {said:?}");
                }
            }
        }
    }

    #[test]
    fn a_file_cut_short_says_so() {
        let said = complaint("{\"policy\": {\"gpu_bat");
        assert!(said.remedy.contains("cut short"), "{said:?}");
        let said = complaint("{\"policy\": {}}");
        assert_eq!(said.remedy, "add `gpu_batch_size`");
    }
}
