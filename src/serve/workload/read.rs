//! Traces of requests as the field writes them: CSV recognised by its header, or a JSON object a line.

use std::path::Path;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use plimsoll_core::serve::Request;
use plimsoll_core::serve::predict::Features;
use plimsoll_core::units::Seconds;
use serde_json::Value;

use crate::files::{CsvText, InputError, input_name, read_input};

/// What the three columns are called: arrival, tokens of the prompt, tokens of the answer.
const NAMES: [[&str; 3]; 5] = [
    // BurstGPT's, which has others beside them.
    ["Timestamp", "Request tokens", "Response tokens"],
    ["arrived_at", "num_prefill_tokens", "num_decode_tokens"],
    ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
    ["timestamp", "input_length", "output_length"],
    ["arrival_s", "prompt_len", "output_len"],
];

/// What Mooncake's rows have beside them: its times are in milliseconds.
const MOONCAKE: &str = "hash_ids";

/// What a number as a time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Thousandths of them.
    Milliseconds,
}

/// Millennia: what is later was counted in something smaller.
pub(super) const LATEST_S: f64 = 1e11;

const REMEDY: &str =
    "give a time not before the one above, and whole numbers of tokens, at least 1";

const PROMPT_REMEDY: &str = "give a text or a list of token ids, or leave `prompt` out";

/// Requests, and what is known of their prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceRead {
    /// In the order of their coming.
    pub requests: Vec<Request>,
    /// Of those that say their `prompt`.
    pub features: Features,
}

/// A request as written, in a line.
struct Row {
    line: usize,
    arrival: f64,
    prompt_len: u32,
    output_len: u32,
    prompt: Option<Box<[u32]>>,
}

/// Reads a trace: requests in the order in which they come. Times are numbers, or dates with times, which count
/// from the first. Numbers are seconds, or where the first row has Mooncake's `hash_ids` milliseconds, unless `unit` says
/// otherwise. `-` is standard input. JSON lines may have the `prompt` itself, a text or a list of token ids.
///
/// # Errors
/// What is wrong, with its line: no requests, unknown columns, times that are negative or run back, lengths of 0.
pub fn read_trace(path: &Path, unit: Option<TimeUnit>) -> Result<TraceRead, InputError> {
    let text = read_input(path)?;
    let path = input_name(path);
    let first = text.lines().find(|line| !line.trim().is_empty());
    let rows = match first.is_some_and(|line| line.trim_start().starts_with('{')) {
        true => json_rows(path, &text, unit)?,
        false => csv_rows(path, &text, unit)?,
    };
    if rows.is_empty() {
        let remedy =
            "give a trace with a request a line, or make one with `plimsoll workload generate`";
        return Err(InputError::bad_file(
            path,
            "line 1",
            "there are no requests",
            remedy,
        ));
    }
    let mut before = 0.0;
    for row in &rows {
        let at = format!("line {}", row.line);
        if row.arrival < before {
            let problem = format!(
                "a request at {} s comes after one at {before} s",
                row.arrival
            );
            return Err(InputError::bad_file(
                path,
                at,
                problem,
                "sort requests by arrival",
            ));
        }
        before = row.arrival;
    }
    let requests = rows.iter().map(|row| Request {
        arrival: Seconds(row.arrival),
        prompt_len: row.prompt_len,
        output_len: row.output_len,
    });
    Ok(TraceRead {
        requests: requests.collect(),
        features: Features::new(rows.into_iter().map(|row| row.prompt).collect()),
    })
}

fn csv_rows(path: &Path, text: &str, unit: Option<TimeUnit>) -> Result<Vec<Row>, InputError> {
    let file = CsvText::new(path, text, REMEDY).flexible();
    let header = file.header()?;
    if header.names().next().is_none() {
        return Ok(Vec::new());
    }
    header.check_once(|name| NAMES.iter().flatten().any(|known| *known == name))?;
    let place = |name: &str| header.place(name);
    let columns = NAMES
        .iter()
        .find_map(|names| Some([place(names[0])?, place(names[1])?, place(names[2])?]));
    let Some(columns) = columns else {
        let known: Vec<String> = NAMES.iter().map(|names| names.join(",")).collect();
        let remedy = header.or_commas(&format!("name columns as one of: {}", known.join("; ")));
        return Err(header.wrong("its columns are not those of a known trace", remedy));
    };
    let mut clock = Clock::of(unit.unwrap_or(match place(MOONCAKE) {
        Some(_) => TimeUnit::Milliseconds,
        None => TimeUnit::Seconds,
    }));
    let names: Vec<&str> = header.names().collect();
    let mut rows = Vec::new();
    for row in file.rows() {
        let (line, record) = row?;
        let field = |column: usize| record.get(column).unwrap_or_default();
        let row = clock.seconds(field(columns[0])).and_then(|arrival| {
            let lengths = [columns[1], columns[2]].map(|at| (names[at], field(at)));
            Row::new(line as usize, arrival, lengths)
        });
        rows.push(row.map_err(|problem| file.wrong(line, problem))?);
    }
    Ok(rows)
}

fn json_rows(path: &Path, text: &str, unit: Option<TimeUnit>) -> Result<Vec<Row>, InputError> {
    let mut clock = None;
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |problem: String, remedy: &str| {
            InputError::bad_file(path, format!("line {}", index + 1), problem, remedy)
        };
        let object: Value = serde_json::from_str(line)
            .map_err(|e| wrong(not_json(&e), "give one JSON object a line"))?;
        let clock = clock.get_or_insert_with(|| {
            Clock::of(unit.unwrap_or(match object.get(MOONCAKE) {
                Some(_) => TimeUnit::Milliseconds,
                None => TimeUnit::Seconds,
            }))
        });
        let row = json_row(index + 1, &object, clock).map_err(|p| wrong(p, REMEDY))?;
        let prompt = object.get("prompt").map(prompt_features).transpose();
        let prompt = prompt.map_err(|problem| wrong(problem, PROMPT_REMEDY))?;
        rows.push(Row { prompt, ..row });
    }
    Ok(rows)
}

/// What is wrong with a line, without the number that it has by itself.
fn not_json(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let what = said.split(" at line ").next().unwrap_or(&said);
    format!("is no JSON object: {what} at column {}", error.column())
}

fn json_row(line: usize, object: &Value, clock: &mut Clock) -> Result<Row, String> {
    let names = NAMES
        .iter()
        .find(|names| names.iter().all(|name| object.get(name).is_some()));
    let names = names.ok_or_else(|| {
        let lacking = |names: &[&'static str; 3]| {
            let lacking = names.iter().filter(|name| object.get(name).is_none());
            lacking.copied().collect::<Vec<_>>()
        };
        let nearest = NAMES.iter().map(lacking).min_by_key(Vec::len);
        match nearest.filter(|lacking| lacking.len() < 3) {
            Some(lacking) => format!("lacks {}", lacking.join(" and ")),
            None => {
                let known: Vec<String> = NAMES.iter().map(|names| names.join(", ")).collect();
                format!("has none of the known sets of keys: {}", known.join("; "))
            }
        }
    })?;
    let word = |name: &str| match &object[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let [arrival, prompt, output] = names.map(word);
    let lengths = [(names[1], &*prompt), (names[2], &*output)];
    Row::new(line, clock.seconds(&arrival)?, lengths)
}

fn prompt_features(prompt: &Value) -> Result<Box<[u32]>, String> {
    let ids = |ids: &Vec<Value>| {
        let ids = ids.iter().map(|id| id.as_u64()?.try_into().ok());
        ids.collect::<Option<Vec<u32>>>()
    };
    match prompt {
        Value::String(text) => Some(Features::of_text(text)),
        Value::Array(list) => ids(list).map(|ids| Features::of_tokens(&ids)),
        _ => None,
    }
    .ok_or_else(|| "its `prompt` is neither a text nor a list of token ids".to_owned())
}

impl Row {
    /// Of lengths by the names that they have.
    fn new(line: usize, arrival: f64, lengths: [(&str, &str); 2]) -> Result<Row, String> {
        let length = |(name, text): (&str, &str)| {
            let number = text.parse::<u32>().ok().or_else(|| {
                // Tables that went through floating point write 12.0.
                let number = text.parse::<f64>().ok()?;
                (number.fract() == 0.0 && (0.0..2e9).contains(&number)).then_some(number as u32)
            });
            number
                .filter(|length| (1..=u32::MAX / 4).contains(length))
                .ok_or_else(|| match number {
                    Some(0) => format!(
                        "{name} is 0 (a request that failed: BurstGPT has files without these)"
                    ),
                    _ if text.is_empty() => format!("{name} is missing"),
                    _ => format!("{name} is `{text}`, which is no length"),
                })
        };
        Ok(Row {
            line,
            arrival,
            prompt_len: length(lengths[0])?,
            output_len: length(lengths[1])?,
            prompt: None,
        })
    }
}

/// Times as written; dates count from the first.
struct Clock {
    unit: TimeUnit,
    /// Whether times are numbers.
    is_number: Option<bool>,
    first: Option<DateTime>,
    has_offset: Option<bool>,
}

impl Clock {
    fn of(unit: TimeUnit) -> Clock {
        Clock {
            unit,
            is_number: None,
            first: None,
            has_offset: None,
        }
    }

    fn seconds(&mut self, text: &str) -> Result<f64, String> {
        let number = text.parse::<f64>();
        if *self.is_number.get_or_insert(number.is_ok()) != number.is_ok() {
            return Err(format!("`{text}`: some times are numbers and others dates"));
        }
        if let Ok(number) = number {
            let seconds = match self.unit {
                TimeUnit::Seconds => number,
                TimeUnit::Milliseconds => number / 1e3,
            };
            return match (0.0..=LATEST_S).contains(&seconds) {
                true => Ok(seconds),
                false if seconds > LATEST_S && seconds.is_finite() => Err(format!(
                    "`{text}` is no time in {}; if it is in milliseconds, --time-unit ms says so",
                    match self.unit {
                        TimeUnit::Seconds => "seconds",
                        TimeUnit::Milliseconds => "milliseconds",
                    }
                )),
                false => Err(format!("`{text}` is no time")),
            };
        }
        // With an offset, or Z, it is a moment; without one all are of the same place, wherever that is.
        let moment = text
            .parse::<Timestamp>()
            .map(|it| TimeZone::UTC.to_datetime(it));
        let has_offset = moment.is_ok();
        let date = moment.or_else(|_| text.parse::<DateTime>());
        let date = date.map_err(|_| format!("`{text}` is no time"))?;
        if *self.has_offset.get_or_insert(has_offset) != has_offset {
            return Err(format!(
                "`{text}`: some times have an offset from UTC and others none"
            ));
        }
        let first = *self.first.get_or_insert(date);
        let since = date.duration_since(first).as_secs_f64();
        match since >= 0.0 {
            true => Ok(since),
            false => Err(format!("{text} is before the first request, at {first}")),
        }
    }
}
