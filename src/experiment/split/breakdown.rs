//! Who is busy for how much of a split linear layer's time: HeteGen's Table 2.

use plimsoll_core::split::{Breakdown, Module};
use plimsoll_sim::simulate;
use serde::Serialize;

use super::{Percentage, Scene, published};
use crate::experiment::study::{Study, percent};
use crate::planner::PlanError;
use crate::report::Align::{Left, Right};
use crate::report::signed_percent;

/// What is asked.
#[derive(Debug)]
pub struct Breakdowns {
    /// Where, and of what.
    pub scene: Scene,
    /// Which linear layer.
    pub module: Module,
    /// `cpu`, `link`, `pin` and `device`, of the layer's time.
    pub published: Vec<Percentage>,
}

/// An engine with a CPU of some speed.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct BreakdownRow {
    /// The CPU's speed, assumed.
    cpu_gb_s: f64,
    /// The device's share of the layer, by the law.
    alpha: f64,
    /// The engine.
    engine: &'static str,
    /// The share of the layer's time in which it is busy, predicted.
    predicted: f64,
    /// As published.
    published: Option<f64>,
    /// Predicted less published.
    error: Option<f64>,
}

impl Breakdowns {
    /// A row for each speed and engine.
    ///
    /// # Errors
    /// A model that cannot be split, or a machine that is too small.
    pub fn study(&self) -> anyhow::Result<Study> {
        study(&self.rows()?)
    }

    fn rows(&self) -> Result<Vec<BreakdownRow>, PlanError> {
        let mut rows = Vec::new();
        for cpu_gb_s in self.scene.cpu_gb_s.iter().copied() {
            let machine = self.scene.with_cpu(cpu_gb_s);
            let plan = self.scene.split(&machine);
            let run = simulate(&plan, &machine)?;
            let split = plan.policy.split.map(|split| split.share[self.module]);
            let Some((found, alpha)) = Breakdown::of(&run, self.module).zip(split) else {
                continue;
            };
            for (engine, predicted) in [
                ("cpu", found.cpu),
                ("link", found.link),
                ("pin", found.pin),
                ("device", found.device),
            ] {
                let published = published(&self.published, engine);
                rows.push(BreakdownRow {
                    cpu_gb_s,
                    alpha,
                    engine,
                    predicted,
                    published,
                    error: published.map(|published| predicted - published),
                });
            }
        }
        Ok(rows)
    }
}

/// The rows as a table.
fn study(rows: &[BreakdownRow]) -> anyhow::Result<Study> {
    let lead = "Shares of the time from when a layer's input is there until its outputs are joined; medians over layers and \
                tokens. Errors are in points.";
    let columns = [
        ("assumed CPU", Right),
        ("alpha", Right),
        ("engine", Left),
        ("predicted", Right),
        ("published", Right),
        ("error", Right),
    ];
    Study::of(rows, lead.to_owned(), columns, |row| {
        [
            format!("{} GB/s", row.cpu_gb_s),
            format!("{:.3}", row.alpha),
            row.engine.to_owned(),
            percent(row.predicted),
            row.published.map_or(String::new(), percent),
            row.error.map_or(String::new(), signed_percent),
        ]
    })
}
