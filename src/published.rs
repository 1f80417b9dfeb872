//! What others published of systems: a throughput or a latency for each block size, without the policy.

use std::path::Path;

use plimsoll_core::model::ModelSpec;
use plimsoll_core::workload::Workload;
use serde::Deserialize;

use crate::baseline::System;
use crate::files::{CsvText, InputError, find_model, read_text};

/// One published run of a system.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// Whose.
    pub system: System,
    /// What ran.
    pub model: ModelSpec,
    /// Prompts in, tokens out; endless.
    pub workload: Workload,
    /// Sequences in a block.
    pub effective_batch: u32,
    /// Generated tokens a second, as printed.
    pub throughput_tok_s: Option<Printed>,
    /// The time of a block, as printed.
    pub latency_s: Option<Printed>,
}

/// A number as somebody printed it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Printed {
    /// The number.
    pub value: f64,
    /// Half a unit of its last digit: the true one is as near.
    pub rounding: f64,
}

impl Printed {
    /// A number above 0 as printed (`0.01` is between 0.005 and 0.015), or none.
    pub fn parse(text: &str) -> Option<Printed> {
        let value: f64 = text.parse().ok()?;
        let decimals = text.split_once('.').map_or(0, |(_, digits)| digits.len());
        let rounding = 0.5 * 10_f64.powi(-(decimals as i32));
        (value > 0.0 && value.is_finite()).then_some(Printed { value, rounding })
    }

    /// The part of a prediction's error that rounding cannot explain, signed, of the number.
    pub fn beyond_rounding(self, predicted: f64) -> f64 {
        let off = predicted - self.value;
        let beyond = (off.abs() - self.rounding).max(0.0);
        beyond.copysign(off) / self.value
    }
}

/// A line as written.
#[derive(Debug, Deserialize)]
struct Line {
    system: String,
    model: String,
    prompt_len: u32,
    gen_len: u32,
    effective_batch: u32,
    throughput_tok_s: String,
    latency_s: String,
}

/// Reads published runs. Columns: `system, model, prompt_len, gen_len, effective_batch,
/// throughput_tok_s, latency_s` (one of the last two may be empty); others are notes.
///
/// # Errors
/// What is wrong, with its line.
pub fn read_published(path: &Path) -> Result<Vec<Published>, InputError> {
    let text = read_text(path)?;
    let remedy = "write the columns system, model, prompt_len, gen_len, effective_batch, \
                  throughput_tok_s, latency_s";
    let file = CsvText::new(path, &text, remedy);
    let mut found = Vec::new();
    for row in file.rows_of::<Line>()? {
        let (place, line) = row?;
        found.push(line.published(path, place)?);
    }
    if found.is_empty() {
        let remedy = "write a line a run under the header";
        return Err(file.header()?.nothing_below("no runs", remedy));
    }
    Ok(found)
}

impl Line {
    fn published(self, path: &Path, line: u64) -> Result<Published, InputError> {
        let wrong = |column: &str, problem: String, remedy: &str| {
            InputError::bad_file(path, format!("line {line}, {column}"), problem, remedy)
        };
        let system = System::named(&self.system)
            .map_err(|problem| wrong("system", problem, "correct the line"))?;
        let model = find_model(&self.model).map_err(|error| {
            let remedy = "give a name of `plimsoll models list`";
            wrong("model", error.to_string(), remedy)
        })?;
        let number = |column: &str, text: &str| match text {
            "" => Ok(None),
            text => Printed::parse(text).map(Some).ok_or_else(|| {
                let problem = format!("`{text}` is no number above 0");
                wrong(column, problem, "give one, or nothing")
            }),
        };
        let published = Published {
            system,
            model: model.spec,
            workload: Workload {
                prompt_len: self.prompt_len,
                gen_len: self.gen_len,
                num_prompts: None,
            },
            effective_batch: self.effective_batch,
            throughput_tok_s: number("throughput_tok_s", &self.throughput_tok_s)?,
            latency_s: number("latency_s", &self.latency_s)?,
        };
        if published.throughput_tok_s.or(published.latency_s).is_none() || self.effective_batch == 0
        {
            let problem = "says neither throughput nor latency, or has no sequences".to_owned();
            return Err(wrong("throughput_tok_s", problem, "give numbers above 0"));
        }
        Ok(published)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_explains_what_it_can() {
        let printed = Printed::parse("0.01").unwrap();
        assert_eq!(printed.beyond_rounding(0.0149), 0.0);
        assert_eq!(printed.beyond_rounding(0.0051), 0.0);
        assert!((printed.beyond_rounding(0.02) - 0.5).abs() < 1e-9);
        assert!((printed.beyond_rounding(0.004) + 0.1).abs() < 1e-9);
        assert_eq!(Printed::parse("612").unwrap().rounding, 0.5);
        assert_eq!(Printed::parse("-"), None);
        assert_eq!(Printed::parse("0"), None);
    }
}
