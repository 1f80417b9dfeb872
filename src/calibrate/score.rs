//! How far predictions are from measured runs.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::interval::Range;
use plimsoll_core::lower::footprint;
use plimsoll_core::machine::ResourceKind;
use plimsoll_core::plan::Plan;
use plimsoll_core::summary::Summary;
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;
use plimsoll_sim::{SimulateError, predict};
use serde::Serialize;

use super::{Measured, Metric, RecordedRun};
use crate::parallel::on_all_processors;
use crate::stats::{ErrorStats, spearman};

/// One run, predicted and measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunRow {
    /// Its line in the file.
    pub line: u64,
    /// Its name.
    pub name: String,
    /// The machine that was simulated.
    pub hardware: String,
    /// Which number was measured, or that it did not fit.
    pub metric: Metric,
    /// That number as simulated.
    pub predicted: f64,
    /// That number as measured.
    pub measured: Option<f64>,
    /// Predicted over measured rate, less one: above zero, the prediction is too fast.
    pub error: Option<f64>,
    /// The lower end of the metric's 90% interval; none where the machine is unprofiled.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
    /// Generated tokens a second as simulated.
    pub predicted_tok_s: f64,
    /// Those after the first of each sequence over the time of decode, as simulated.
    pub predicted_decode_tok_s: Option<f64>,
    /// Of the time, the prompts.
    pub predicted_prefill_s: f64,
    /// Of it, the tokens after the first; none where there are none.
    pub predicted_decode_s: Option<f64>,
    /// The busiest resource as simulated.
    pub bottleneck: ResourceKind,
    /// The tier that the plan asks more of than it has; the simulation went on as if it had it.
    pub exceeds: Option<Tier>,
    /// By how many bytes.
    pub exceeds_bytes: u64,
}

/// All runs in a few numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunScore {
    /// Runs with a measured number.
    pub runs: usize,
    /// Median of the errors' sizes.
    pub median_abs_error: f64,
    /// 90th percentile of the errors' sizes.
    pub p90_abs_error: f64,
    /// The largest error's size.
    pub max_abs_error: f64,
    /// Median of the errors with their sign, as rates: above zero, the prediction is too fast.
    pub median_rate_error: f64,
    /// Rank correlation of predicted and measured throughput (Spearman); none where all rank alike.
    pub spearman: Option<f64>,
    /// Runs with a measured number and an interval.
    pub with_interval: usize,
    /// Of them, those whose number lies within it; nine of ten are expected to.
    pub within_interval: usize,
    /// Runs with a measured number that need more memory than the machine has, and are predicted as if it had that.
    pub beyond_memory: usize,
    /// Runs that did not fit, as the prediction says too.
    pub out_of_memory_agreed: usize,
    /// Runs that did not fit although the prediction says that they do.
    pub out_of_memory_missed: usize,
}

/// Simulates every run on its machine, on all processors.
///
/// # Errors
/// A run that means nothing for its model.
pub fn score_runs(
    runs: &[RecordedRun],
    machine: &(dyn Fn(&RecordedRun) -> HardwareProfile + Sync),
) -> Result<(Vec<RunRow>, RunScore), SimulateError> {
    let rows = on_all_processors(runs.iter().collect(), &|run: &RecordedRun| {
        row(run, &machine(run))
    });
    let rows = rows.into_iter().collect::<Result<Vec<RunRow>, _>>()?;
    let score = score(runs, &rows);
    Ok((rows, score))
}

/// The plan on tiers that hold it, and what it needed more than the machine has.
pub(super) fn made_to_fit(mut plan: Plan) -> Result<(Plan, PerTier<Bytes>), SimulateError> {
    let needed = footprint(&plan)?;
    let more = PerTier::from_fn(|t| needed[t].saturating_sub(plan.capacity_bytes[t]));
    plan.capacity_bytes = PerTier::from_fn(|t| plan.capacity_bytes[t].max(needed[t]));
    Ok((plan, more))
}

fn row(run: &RecordedRun, profile: &HardwareProfile) -> Result<RunRow, SimulateError> {
    let (plan, more) = made_to_fit(run.plan(profile))?;
    let summary: Summary = predict(&plan, profile)?;
    let exceeds = Tier::ALL.into_iter().max_by_key(|t| more[*t].0);
    let exceeds = exceeds.filter(|t| more[*t] > Bytes::ZERO);
    let (metric, predicted, measured) = match run.measured {
        Some(Measured::Latency(seconds)) => (Metric::Latency, summary.latency_s.0, Some(seconds.0)),
        Some(Measured::ThroughputTokS(rate)) => {
            (Metric::Throughput, summary.throughput_tok_s, Some(rate))
        }
        Some(Measured::OutOfMemory) => (Metric::OutOfMemory, summary.throughput_tok_s, None),
        None => (Metric::Throughput, summary.throughput_tok_s, None),
    };
    let range = summary
        .interval
        .and_then(|it| metric.of_whole_run(it.latency_s, it.throughput_tok_s));
    Ok(RunRow {
        line: run.line,
        name: run.name.clone(),
        hardware: profile.name.clone(),
        metric,
        predicted,
        measured,
        error: measured.map(|measured| rate_error(metric, predicted, measured)),
        low: range.map(|range| range.low),
        high: range.map(|range| range.high),
        predicted_tok_s: summary.throughput_tok_s,
        predicted_decode_tok_s: summary.decode_throughput_tok_s,
        predicted_prefill_s: summary.prefill_s.0,
        predicted_decode_s: summary.decode_s.map(|s| s.0),
        bottleneck: summary.bottleneck,
        exceeds,
        exceeds_bytes: exceeds.map_or(0, |tier| more[tier].0),
    })
}

/// Predicted over measured rate, less one: a latency is one over a rate.
pub fn rate_error(metric: Metric, predicted: f64, measured: f64) -> f64 {
    match metric.is_lower_better() {
        true => measured / predicted - 1.0,
        false => predicted / measured - 1.0,
    }
}

impl RunRow {
    /// Whether the measured number lies in the interval; none where either is not there.
    pub fn within_interval(&self) -> Option<bool> {
        within(self.measured, self.low, self.high)
    }
}

/// Whether a number lies between two ends; none where one of the three is not there.
pub fn within(measured: Option<f64>, low: Option<f64>, high: Option<f64>) -> Option<bool> {
    let range = Range {
        low: low?,
        high: high?,
    };
    Some(range.holds(measured?))
}

fn score(runs: &[RecordedRun], rows: &[RunRow]) -> RunScore {
    let errors: Vec<f64> = rows.iter().filter_map(|row| row.error).collect();
    let stats = ErrorStats::of(&errors);
    // Latencies are ranked as the rates that they are.
    let rates = rows.iter().filter_map(|row| {
        let error = row.error?;
        let measured = match row.metric.is_lower_better() {
            true => row.predicted_tok_s / (1.0 + error),
            false => row.measured?,
        };
        Some((row.predicted_tok_s, measured))
    });
    let (predicted, measured): (Vec<f64>, Vec<f64>) = rates.unzip();
    let did_not_fit = |exceeds: bool| {
        let all = runs.iter().zip(rows);
        let such = all.filter(|(run, row)| {
            run.measured == Some(Measured::OutOfMemory) && row.exceeds.is_some() == exceeds
        });
        such.count()
    };
    let within: Vec<bool> = rows.iter().filter_map(RunRow::within_interval).collect();
    RunScore {
        runs: errors.len(),
        median_abs_error: stats.median,
        p90_abs_error: stats.p90,
        max_abs_error: stats.max,
        median_rate_error: stats.signed_median,
        spearman: spearman(predicted, measured),
        with_interval: within.len(),
        within_interval: within.iter().filter(|within| **within).count(),
        beyond_memory: rows
            .iter()
            .filter(|row| row.error.is_some() && row.exceeds.is_some())
            .count(),
        out_of_memory_agreed: did_not_fit(true),
        out_of_memory_missed: did_not_fit(false),
    }
}
