//! HeteGen over FlexGen at equal device memory, by the CPU's speed.

use plimsoll_core::units::Bytes;
use serde::Serialize;

use super::{Scene, rate_in_words, times};
use crate::baseline::System;
use crate::experiment::study::Study;
use crate::memory::points;
use crate::pareto::Setting;
use crate::planner::PlanError;
use crate::report::Align::Right;

/// What is asked.
#[derive(Debug)]
pub struct Gain {
    /// Where, and of what.
    pub scene: Scene,
    /// Device memory, in GB.
    pub device_gb: Vec<f64>,
}

/// Both systems with a CPU of some speed and so much device memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct GainRow {
    /// The CPU's speed, assumed.
    cpu_gb_s: f64,
    /// Device memory that both may have.
    device_gb: f64,
    /// HeteGen's tokens a second; none where it does not fit.
    hetegen_tok_s: Option<f64>,
    /// FlexGen's, under its rules.
    flexgen_tok_s: Option<f64>,
    /// HeteGen's over FlexGen's.
    gain: Option<f64>,
}

impl Gain {
    /// A row for each speed and size, sizes ascending: a plan for less memory serves with more as well.
    ///
    /// # Errors
    /// A model that cannot be split; an error of ours.
    pub fn study(&self) -> anyhow::Result<Study> {
        study(&self.rows()?)
    }

    fn rows(&self) -> Result<Vec<GainRow>, PlanError> {
        let mut device_gb = self.device_gb.clone();
        device_gb.sort_by(f64::total_cmp);
        let sizes: Vec<Bytes> = device_gb
            .iter()
            .map(|gb| Bytes((gb * 1e9) as u64))
            .collect();
        let mut rows = Vec::new();
        for cpu_gb_s in self.scene.cpu_gb_s.iter().copied() {
            let machine = self.scene.with_cpu(cpu_gb_s);
            let setting = Setting {
                profile: &machine,
                model: &self.scene.model,
                workload: self.scene.workload,
            };
            let points = points(
                setting,
                &[System::HeteGen, System::FlexGen],
                &sizes,
                &|_, _| (),
            )?;
            let (hetegen, flexgen) = points.split_at(sizes.len());
            let pairs = device_gb.iter().zip(hetegen.iter().zip(flexgen));
            rows.extend(pairs.map(|(device_gb, (hetegen, flexgen))| {
                let (split, whole) = (hetegen.throughput_tok_s, flexgen.throughput_tok_s);
                GainRow {
                    cpu_gb_s,
                    device_gb: *device_gb,
                    hetegen_tok_s: split,
                    flexgen_tok_s: whole,
                    gain: split.zip(whole).map(|(split, whole)| split / whole),
                }
            }));
        }
        Ok(rows)
    }
}

/// The rows as a table.
fn study(rows: &[GainRow]) -> anyhow::Result<Study> {
    let columns = [
        ("assumed CPU", Right),
        ("device memory", Right),
        ("hetegen tok/s", Right),
        ("flexgen tok/s", Right),
        ("gain", Right),
    ];
    Study::of(rows, String::new(), columns, |row| {
        [
            format!("{} GB/s", row.cpu_gb_s),
            format!("{} GB", row.device_gb),
            rate_in_words(row.hetegen_tok_s),
            rate_in_words(row.flexgen_tok_s),
            row.gain.map_or(String::new(), times),
        ]
    })
}
