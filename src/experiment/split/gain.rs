//! HeteGen over FlexGen at equal device memory, by the CPU's speed.

use std::fmt::Write as _;

use plimsoll_core::units::Bytes;
use serde::Serialize;

use super::Scene;
use crate::baseline::System;
use crate::memory::points;
use crate::pareto::Setting;
use crate::planner::PlanError;
use crate::report::three_digits;

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
pub struct GainRow {
    /// The CPU's speed, assumed.
    pub cpu_gb_s: f64,
    /// Device memory that both may have.
    pub device_gb: f64,
    /// HeteGen's tokens a second; none where it does not fit.
    pub hetegen_tok_s: Option<f64>,
    /// FlexGen's, under its rules.
    pub flexgen_tok_s: Option<f64>,
    /// HeteGen's over FlexGen's.
    pub gain: Option<f64>,
}

impl Gain {
    /// A row for each speed and size, sizes ascending: a plan for less memory serves with more as well.
    ///
    /// # Errors
    /// A model that cannot be split; an error of ours.
    pub fn rows(&self) -> Result<Vec<GainRow>, PlanError> {
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

/// As Markdown.
pub(in crate::experiment) fn text(rows: &[GainRow]) -> String {
    let mut text = String::from(
        "| assumed CPU | device memory | hetegen tok/s | flexgen tok/s | gain |\n|--:|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let number = |rate: Option<f64>| rate.map_or("out of memory".to_owned(), three_digits);
        let _ = writeln!(
            text,
            "| {} GB/s | {} GB | {} | {} | {} |",
            row.cpu_gb_s,
            row.device_gb,
            number(row.hetegen_tok_s),
            number(row.flexgen_tok_s),
            row.gain.map_or(String::new(), |gain| format!("{gain:.2}x"))
        );
    }
    text
}
