//! HeteGen's tables and figure: what is asked of split linear layers, and the answers.
//!
//! The paper does not say how fast its CPU is, so most are asked for several speeds.

mod batches;
mod breakdown;
mod gain;
mod parts;

use std::path::Path;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::units::BytesPerSecond;
use plimsoll_core::workload::Workload;
use serde::Deserialize;

use crate::files::{CsvText, InputError, read_text};
use crate::planner::split::{Prompts, blank, by_law};
use crate::report::three_digits;

pub use batches::Batches;
pub use breakdown::Breakdowns;
pub use gain::Gain;
pub use parts::{Parts, WITHOUT, Without};

/// A machine, a model and one prompt.
#[derive(Debug)]
pub struct Scene {
    /// The machine.
    pub machine: HardwareProfile,
    /// What runs.
    pub model: ModelSpec,
    /// One prompt.
    pub workload: Workload,
    /// What the CPU reads a second, in GB of f16 weights, while it multiplies for one token.
    pub cpu_gb_s: Vec<f64>,
}

impl Scene {
    /// The machine with a CPU of some speed.
    fn with_cpu(&self, gb_s: f64) -> HardwareProfile {
        self.machine.with_cpu_products(BytesPerSecond(gb_s * 1e9))
    }

    /// The law's split on a machine: all but linear layers on the device, no linear layer there whole.
    fn split(&self, machine: &HardwareProfile) -> Plan {
        let model = self.model.clone();
        let plan = Plan::given(model, Dtype::F16, self.workload, blank()).on(machine);
        by_law(plan, Prompts::Streamed, machine)
    }
}

/// A percentage that was published, by what it is of.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Percentage {
    /// Of what.
    pub name: String,
    /// From 0 to 100, as printed.
    pub percent: f64,
}

/// Reads percentages (CSV).
pub(super) fn read_percentages(path: &Path) -> Result<Vec<Percentage>, InputError> {
    let text = read_text(path)?;
    let file = CsvText::new(path, &text, "write the columns name and percent");
    let rows = file.rows_of()?;
    rows.map(|row| row.map(|(_, row)| row)).collect()
}

/// A rate; none where nothing runs.
fn rate_in_words(tok_s: Option<f64>) -> String {
    tok_s.map_or("out of memory".to_owned(), three_digits)
}

fn times(gain: f64) -> String {
    format!("{gain:.2}x")
}

/// What was published of a name, from 0 to 1.
fn published(all: &[Percentage], name: &str) -> Option<f64> {
    let found = all.iter().find(|it| it.name == name);
    found.map(|it| it.percent / 100.0)
}
