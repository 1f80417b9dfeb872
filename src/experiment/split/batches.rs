//! Where splitting linear layers stops paying as sequences are computed together, and what it is worth to attend beside a
//! cache on the host besides, which HeteGen does not do.

use std::fmt::Write as _;

use plimsoll_core::policy::Policy;
use plimsoll_core::workload::Workload;
use serde::Serialize;

use super::Scene;
use crate::baseline::{Baseline, System};
use crate::parallel::on_all_processors;
use crate::planner::{Outcome, PlanError};
use crate::report::three_digits;

/// What is asked.
#[derive(Debug)]
pub struct Batches {
    /// Where, and of what.
    pub scene: Scene,
    /// Sequences that are computed together.
    pub sequences: Vec<u32>,
}

/// So many sequences, with a CPU of some speed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchesRow {
    /// The CPU's speed, assumed.
    pub cpu_gb_s: f64,
    /// Sequences in all.
    pub sequences: u32,
    /// Tokens a second of the best split with the cache on the device, as HeteGen has it; none where it does not fit.
    pub cache_on_device_tok_s: Option<f64>,
    /// With the cache on the host and moved.
    pub cache_moved_tok_s: Option<f64>,
    /// With the cache on the host and attended to there.
    pub cpu_attention_tok_s: Option<f64>,
    /// Of the best plan that splits nothing.
    pub whole_tok_s: Option<f64>,
    /// The best split's over that.
    pub gain: Option<f64>,
}

impl Batches {
    /// A row for each speed and number of sequences.
    ///
    /// # Errors
    /// A model that cannot be split; an error of ours.
    pub fn rows(&self) -> Result<Vec<BatchesRow>, PlanError> {
        let speeds = self.scene.cpu_gb_s.iter();
        let all = speeds.flat_map(|cpu| self.sequences.iter().map(|count| (*cpu, *count)));
        let rows = on_all_processors(all.collect(), &|(cpu, count)| self.row(cpu, count));
        rows.into_iter().collect()
    }

    fn row(&self, cpu_gb_s: f64, sequences: u32) -> Result<BatchesRow, PlanError> {
        let machine = self.scene.with_cpu(cpu_gb_s);
        let workload = Workload {
            num_prompts: Some(u64::from(sequences)),
            ..self.scene.workload
        };
        let ours = Baseline::new(System::Plimsoll, &machine, &self.scene.model, workload)?;
        let rate = |outcome: Outcome| match outcome {
            Outcome::Fits(block) => Some(block.throughput_tok_s),
            Outcome::DoesNotFit(_) => None,
        };
        let split = |wanted: fn(&Policy) -> bool| ours.split(sequences, wanted).map(rate);
        let row = BatchesRow {
            cpu_gb_s,
            sequences,
            cache_on_device_tok_s: split(|policy| policy.cache.device == 1.0)?,
            cache_moved_tok_s: split(|p| p.cache.host == 1.0 && !p.cpu_attention)?,
            cpu_attention_tok_s: split(|p| p.cache.host == 1.0 && p.cpu_attention)?,
            whole_tok_s: rate(ours.block(sequences)?),
            gain: None,
        };
        let splits = [
            row.cache_on_device_tok_s,
            row.cache_moved_tok_s,
            row.cpu_attention_tok_s,
        ];
        let best = splits.into_iter().flatten().reduce(f64::max);
        let gain = best
            .zip(row.whole_tok_s)
            .map(|(split, whole)| split / whole);
        Ok(BatchesRow { gain, ..row })
    }
}

/// As Markdown.
pub(in crate::experiment) fn text(rows: &[BatchesRow]) -> String {
    let mut text = String::from(
        "Tokens a second. Modules fill what the cache leaves of the device.\n\n\
         | assumed CPU | sequences | split, cache on the device | split, cache moved | split, attention on the CPU | nothing split | \
         best split over that |\n|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let number = |rate: Option<f64>| rate.map_or("out of memory".to_owned(), three_digits);
        let _ = writeln!(
            text,
            "| {} GB/s | {} | {} | {} | {} | {} | {} |",
            row.cpu_gb_s,
            row.sequences,
            number(row.cache_on_device_tok_s),
            number(row.cache_moved_tok_s),
            number(row.cpu_attention_tok_s),
            number(row.whole_tok_s),
            row.gain.map_or(String::new(), |gain| format!("{gain:.2}x"))
        );
    }
    text
}
