//! Where splitting linear layers stops paying as sequences are computed together, and what it is worth to attend beside a
//! cache on the host besides, which HeteGen does not do.

use plimsoll_core::policy::Policy;
use plimsoll_core::workload::Workload;
use serde::Serialize;

use super::{Scene, rate_in_words, times};
use crate::baseline::{Baseline, System};
use crate::experiment::study::Study;
use crate::parallel::on_all_processors;
use crate::planner::{Outcome, PlanError};
use crate::report::Align::Right;

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
struct BatchesRow {
    /// The CPU's speed, assumed.
    cpu_gb_s: f64,
    /// Sequences in all.
    sequences: u32,
    /// Tokens a second of the best split with the cache on the device, as HeteGen has it; none where it does not fit.
    cache_on_device_tok_s: Option<f64>,
    /// With the cache on the host and moved.
    cache_moved_tok_s: Option<f64>,
    /// With the cache on the host and attended to there.
    cpu_attention_tok_s: Option<f64>,
    /// Of the best plan that splits nothing.
    whole_tok_s: Option<f64>,
    /// The best split's over that.
    gain: Option<f64>,
}

impl Batches {
    /// A row for each speed and number of sequences.
    ///
    /// # Errors
    /// A model that cannot be split; an error of ours.
    pub fn study(&self) -> anyhow::Result<Study> {
        study(&self.rows()?)
    }

    fn rows(&self) -> Result<Vec<BatchesRow>, PlanError> {
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

/// The rows as a table.
fn study(rows: &[BatchesRow]) -> anyhow::Result<Study> {
    let lead = "Tokens a second. Modules fill what the cache leaves of the device.";
    let columns = [
        ("assumed CPU", Right),
        ("sequences", Right),
        ("split, cache on the device", Right),
        ("split, cache moved", Right),
        ("split, attention on the CPU", Right),
        ("nothing split", Right),
        ("best split over that", Right),
    ];
    Study::of(rows, lead.to_owned(), columns, |row| {
        [
            format!("{} GB/s", row.cpu_gb_s),
            row.sequences.to_string(),
            rate_in_words(row.cache_on_device_tok_s),
            rate_in_words(row.cache_moved_tok_s),
            rate_in_words(row.cpu_attention_tok_s),
            rate_in_words(row.whole_tok_s),
            row.gain.map_or(String::new(), times),
        ]
    })
}
