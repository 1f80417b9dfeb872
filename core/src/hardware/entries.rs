//! Every number and curve of a profile, under the key that it is written as.

use ::toml::{Table, Value};

use super::reader::number;

/// What a single number must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    Positive,
    NotNegative,
    Fraction,
}

/// What names a source.
#[derive(Debug)]
pub(super) struct Entry {
    /// Where it is, as in `contention[2].rate`.
    pub key: String,
    pub source: String,
    pub spread: Option<f64>,
    /// None of a curve, whose points hold by construction.
    pub value: Option<(f64, Range)>,
}

/// All of a profile's text.
pub(super) fn entries(profile: &Table) -> Vec<Entry> {
    let mut found = Vec::new();
    for (key, value) in profile {
        collect(key.clone(), value, &mut found);
    }
    found
}

fn collect(key: String, value: &Value, found: &mut Vec<Entry>) {
    let of = |value: &Value| number(value).unwrap_or(f64::NAN);
    match value {
        Value::Table(table) => match table.get("source").and_then(Value::as_str) {
            Some(source) => found.push(Entry {
                value: table.get("value").map(|it| (of(it), range(&key))),
                source: source.to_owned(),
                spread: table.get("spread").map(of),
                key,
            }),
            None => {
                for (name, value) in table {
                    collect(format!("{key}.{name}"), value, found);
                }
            }
        },
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(format!("{key}[{index}]"), item, found);
            }
        }
        _ => {}
    }
}

/// What the number of a key must be.
fn range(key: &str) -> Range {
    let name = key.rsplit('.').next().unwrap_or(key);
    let is_time = name.ends_with("_s") && !name.ends_with("_per_s");
    match name {
        "rate" | "while_reading" | "cpu_copy_share" => Range::Fraction,
        // There may be none.
        "disk_capacity_bytes"
        | "device_reserved_bytes"
        | "host_reserved_bytes"
        | "page_lockable_bytes"
        | "staged_ahead_bytes" => Range::NotNegative,
        // Fixed times, but not those that others are divided by.
        _ if is_time && !name.starts_with("pace_") => Range::NotNegative,
        _ => Range::Positive,
    }
}
