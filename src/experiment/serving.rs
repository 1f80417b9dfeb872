//! Serving systems' tables: each number beside the published one.

use plimsoll_core::serve::pie::{most_off, most_off_by_rates, with_buffers};
use serde::Serialize;

use crate::report::Line;

/// A number beside the published one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServingRow {
    /// What was served.
    pub case: String,
    /// What the number is.
    pub metric: &'static str,
    /// As simulated.
    pub ours: f64,
    /// As published; none where nobody did.
    pub published: Option<f64>,
    /// Ours over published, less one.
    pub error: Option<f64>,
    /// What belongs to it.
    pub note: String,
}

/// Rows, and what is drawn of them.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingTable {
    /// A row a number.
    pub rows: Vec<ServingRow>,
    /// Each in a file of its own.
    pub pictures: Vec<LinePicture>,
}

/// Lines to be drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct LinePicture {
    /// Behind the table's name, in the file's; empty where the table has one picture.
    pub suffix: String,
    /// Behind the table's title, above the picture.
    pub of: String,
    /// Below the picture.
    pub x: &'static str,
    /// Beside it.
    pub y: &'static str,
    /// What it shows.
    pub lines: Vec<Line>,
}

impl LinePicture {
    /// Throughput of a case, in a file with its name behind the table's; of a table's only picture, which has none.
    pub(super) fn throughput_of(case: &str) -> LinePicture {
        let words = case.to_lowercase();
        let words = words.split(|c: char| !c.is_ascii_alphanumeric());
        let words = words.filter(|word| !word.is_empty());
        LinePicture {
            suffix: words.map(|word| format!("-{word}")).collect(),
            of: match case.is_empty() {
                true => String::new(),
                false => format!(": {case}"),
            },
            x: "",
            y: "throughput (tokens/s)",
            lines: Vec::new(),
        }
    }
}

/// Rows without a picture.
impl From<Vec<ServingRow>> for ServingTable {
    fn from(rows: Vec<ServingRow>) -> ServingTable {
        ServingTable {
            rows,
            pictures: Vec::new(),
        }
    }
}

impl ServingRow {
    pub(super) fn new(
        case: &str,
        metric: &'static str,
        ours: f64,
        published: Option<f64>,
    ) -> ServingRow {
        ServingRow {
            case: case.to_owned(),
            metric,
            ours,
            published,
            error: published.map(|published| ours / published - 1.0),
            note: String::new(),
        }
    }

    pub(super) fn noted(self, note: String) -> ServingRow {
        ServingRow { note, ..self }
    }
}

/// How many layers may be off the GPU so that computation never waits, by the simulated queue and by the paper's condition.
pub fn stalls(layers: &[u16], swaps: &[f64]) -> ServingTable {
    let each = layers
        .iter()
        .flat_map(|n| swaps.iter().map(move |swap| (*n, *swap)));
    let rows = each.map(|(n, swap)| {
        let (found, by_rates) = (most_off(n, swap), most_off_by_rates(n, swap));
        let case = format!("{n} layers, a swap takes {swap} computations");
        let expansion = |off: u16| if off < 3 { 1.0 } else { with_buffers(n, off) };
        let row = ServingRow::new(
            &case,
            "layers off the GPU at most",
            f64::from(found),
            Some(f64::from(by_rates)),
        );
        row.noted(format!(
            "expansion {:.2}; by the condition {:.2}",
            expansion(found),
            expansion(by_rates)
        ))
    });
    rows.collect::<Vec<_>>().into()
}
