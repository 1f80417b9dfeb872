//! What a TOML file of FlashDecoding++'s techniques says, and the table of `bench` that it names.

use std::path::{Path, PathBuf};

use plimsoll_core::hardware::Implementation;
use plimsoll_core::model::ModelSpec;
use serde::Deserialize;

use super::dataflow::{Attention, Dataflow, Measured, PublishedDataflow};
use super::definition::{beside, faulty};
use crate::files::{CsvText, InputError, find_model, read_text};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenDataflow {
    pub title: String,
    model: String,
    /// What `bench -o` wrote (CSV), beside this file.
    bench: PathBuf,
    context: u32,
    sequences: Vec<u32>,
    published: PublishedDataflow,
}

/// A line of that table, as far as it is needed: columns as `bench` writes them.
#[derive(Debug, Deserialize)]
struct Line {
    part: String,
    n: Option<u32>,
    k: Option<u32>,
    rows: Option<u32>,
    context: Option<u32>,
    sequences: Option<u32>,
    way: String,
    seconds: f64,
}

impl WrittenDataflow {
    pub(super) fn found(&self, path: &Path) -> Result<Dataflow, InputError> {
        let model = find_model(&self.model).map_err(faulty(path, "model"))?.spec;
        let bench = beside(path, &self.bench);
        let lines = read(&bench)?;
        let products = shapes(&model).into_iter().map(|((n, k), times)| {
            let seconds = IMPLEMENTATIONS.map(|way| over_rows(&lines, (n, k), way));
            let curves = seconds
                .iter()
                .all(|of| !of.is_empty() && of.windows(2).all(|pair| pair[0].0 < pair[1].0));
            let problem = || {
                let problem = format!("has no times over rows of {n} x {k} for each way");
                let remedy = format!(
                    "measure {}: plimsoll bench --model {0} -o FILE.csv",
                    self.model
                );
                InputError::bad_file(&bench, "product", problem, remedy)
            };
            curves
                .then_some(Measured {
                    n,
                    k,
                    times,
                    seconds,
                })
                .ok_or_else(problem)
        });
        Ok(Dataflow {
            products: products.collect::<Result<_, _>>()?,
            attention: attention(&lines),
            model,
            context: self.context,
            sequences: self.sequences.clone(),
            published: self.published,
        })
    }
}

/// As the table's column `way` has them, by [`Implementation::ALL`].
const IMPLEMENTATIONS: [&str; Implementation::ALL.len()] = ["gemv", "flat", "conventional"];

fn read(path: &Path) -> Result<Vec<Line>, InputError> {
    let text = read_text(path)?;
    let file = CsvText::new(path, &text, "give what `plimsoll bench -o FILE.csv` wrote");
    let row = |row: Result<(u64, Line), InputError>| {
        let (at, line) = row?;
        // Nothing takes less, and rates are numbers.
        let positive = line.seconds.is_finite() && line.seconds > 1e-12;
        match positive {
            true => Ok(line),
            false => Err(file.wrong(at, "seconds are not above 0")),
        }
    };
    file.rows_of()?.map(row).collect()
}

/// Shapes (outputs and inputs) that a token is multiplied with, and how often, in the order of a token.
fn shapes(model: &ModelSpec) -> Vec<((u32, u32), u32)> {
    let mut shapes: Vec<((u32, u32), u32)> = Vec::new();
    for tensor in (0..model.num_blocks()).flat_map(|block| model.tensors(block)) {
        let shape = (tensor.rows as u32, tensor.cols as u32);
        match shapes.iter_mut().find(|(of, _)| *of == shape) {
            _ if !tensor.is_multiplied() => {}
            Some((_, times)) => *times += 1,
            None => shapes.push((shape, 1)),
        }
    }
    shapes
}

fn over_rows(lines: &[Line], (n, k): (u32, u32), way: &str) -> Vec<(u32, f64)> {
    let of_shape = |line: &&Line| {
        line.part == "product" && line.way == way && (line.n, line.k) == (Some(n), Some(k))
    };
    let found = lines.iter().filter(of_shape);
    found
        .filter_map(|line| Some((line.rows.filter(|rows| *rows > 0)?, line.seconds)))
        .collect()
}

/// Of a CPU, which attends in one way, nothing.
fn attention(lines: &[Line]) -> Vec<Attention> {
    let all = || lines.iter().filter(|line| line.part == "attention");
    let found = all().filter(|line| line.way == "two-launches");
    let each = found.map(|line| {
        let seconds = |way: &str| {
            let same = |it: &&Line| {
                it.way == way && (it.context, it.sequences) == (line.context, line.sequences)
            };
            Some(all().find(same)?.seconds)
        };
        Some(Attention {
            context: line.context?,
            sequences: line.sequences?,
            two_launches: line.seconds,
            synchronised: seconds("synchronised")?,
            unified: seconds("unified")?,
        })
    });
    each.flatten().collect()
}
