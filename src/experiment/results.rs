//! Definitions made into tables.

use std::collections::HashSet;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::policy::Policy;
use serde::Serialize;

use super::ablation::ablation;
use super::definition::{Definition, Kind, Use};
use super::serving::{ServingTable, stalls};
use super::study::Study;
use crate::baseline::Baseline;
use crate::calibrate::{
    Machines, Measured, Metric, RecordedRun, RunRow, rate_error, score_runs, within,
};
use crate::flexgen;
use crate::memory::{self, MemoryPoint};
use crate::parallel::on_all_processors;
use crate::pareto::{Point, Setting, points};
use crate::planner::{Outcome as Planned, PlanError};
use crate::published::{Printed, Published};
use crate::stats::ErrorStats;

/// One published run beside its prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What ran.
    pub run: String,
    /// The machine that was simulated.
    pub hardware: String,
    /// Which number, or that it did not fit.
    pub metric: Metric,
    /// As simulated; none where the prediction is that it does not fit.
    pub predicted: Option<f64>,
    /// The lower end of the prediction's 90% interval; none where the machine is unprofiled.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
    /// As published; none where it did not fit.
    pub published: Option<f64>,
    /// Predicted over published rate, less one: above zero, the prediction is too fast.
    pub error: Option<f64>,
    /// The part of the error that the published number's digits cannot explain.
    pub error_beyond_rounding: Option<f64>,
    /// The machine's constants were fitted to this very run, so it validates nothing.
    pub fitted: bool,
    /// Whether prediction and publication agree that it does not fit; none where it was published to.
    pub out_of_memory_agreed: Option<bool>,
    /// The busiest resource as simulated, or the policy that the system's rules made.
    pub note: String,
}

/// A table's rows and what they are good for.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTable {
    /// What it is good for.
    pub used_for: Use,
    /// A row a run.
    pub rows: Vec<Row>,
}

/// What a definition comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Predictions beside what was published.
    Runs(RunTable),
    /// The points of a picture.
    Frontier(Vec<Point>),
    /// Numbers of our own.
    Study(Study),
    /// Serving systems' numbers.
    Serving(ServingTable),
    /// Throughput against device memory.
    Memory(Vec<MemoryPoint>),
}

/// Errors of some rows in a few numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Score {
    /// Rows with an error.
    pub runs: usize,
    /// Median of the errors' sizes.
    pub median_abs_error: f64,
    /// 90th percentile of the errors' sizes.
    pub p90_abs_error: f64,
    /// Median of the sizes of what the published digits cannot explain.
    pub median_beyond_rounding: f64,
    /// Their 90th percentile.
    pub p90_beyond_rounding: f64,
    /// Median of the errors with their sign, as rates: above zero, the prediction is too fast.
    pub median_rate_error: f64,
    /// Rows with an interval.
    pub with_interval: usize,
    /// Of them, those whose published number lies within it.
    pub within_interval: usize,
}

/// The errors of rows; none where no row has one.
pub fn score_of<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<Score> {
    let rows: Vec<&Row> = rows.filter(|row| row.error.is_some()).collect();
    let errors: Vec<f64> = rows.iter().filter_map(|row| row.error).collect();
    let intervals = rows.iter().map(|r| within(r.published, r.low, r.high));
    let within: Vec<bool> = intervals.flatten().collect();
    let stats = ErrorStats::of(&errors);
    let beyond = rows.iter().filter_map(|row| row.error_beyond_rounding);
    let beyond = ErrorStats::of(&beyond.collect::<Vec<f64>>());
    (!errors.is_empty()).then(|| Score {
        runs: errors.len(),
        median_abs_error: stats.median,
        p90_abs_error: stats.p90,
        median_beyond_rounding: beyond.median,
        p90_beyond_rounding: beyond.p90,
        median_rate_error: stats.signed_median,
        with_interval: within.len(),
        within_interval: within.iter().filter(|within| **within).count(),
    })
}

impl Row {
    /// What runs that tables print twice have in common.
    pub fn key(&self) -> (String, String) {
        (self.run.clone(), self.hardware.clone())
    }
}

impl RunTable {
    /// The rows that the table is scored by: a run that was fitted elsewhere validates nothing here.
    pub fn counted(&self) -> impl Iterator<Item = &Row> {
        let fitted = self.used_for == Use::Fitting;
        self.rows.iter().filter(move |row| row.fitted == fitted)
    }
}

/// Simulates all that is defined; `watch` hears what comes next.
///
/// # Errors
/// A run that means nothing for its model; an error of ours.
pub fn make(
    definitions: &[Definition],
    watch: &dyn Fn(usize, &Definition),
) -> anyhow::Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for (done, definition) in definitions.iter().enumerate() {
        watch(done, definition);
        outcomes.push(outcome(definition, definitions)?);
    }
    mark_fitted(&mut outcomes);
    Ok(outcomes)
}

/// What comes out of one of all.
fn outcome(definition: &Definition, definitions: &[Definition]) -> anyhow::Result<Outcome> {
    Ok(match &definition.kind {
        Kind::Runs {
            runs,
            machines,
            used_for,
        } => Outcome::Runs(RunTable {
            used_for: *used_for,
            rows: run_rows(runs, machines)?,
        }),
        Kind::Systems {
            runs,
            machine,
            used_for,
        } => {
            let row = |run: &Published| system_row(run, machine);
            let rows = on_all_processors(runs.iter().collect(), &row);
            Outcome::Runs(RunTable {
                used_for: *used_for,
                rows: rows.into_iter().collect::<Result<Vec<Row>, _>>()?,
            })
        }
        Kind::Pareto {
            machine,
            model,
            workload,
            systems,
            ..
        } => {
            let setting = Setting {
                profile: machine,
                model,
                workload: *workload,
            };
            Outcome::Frontier(points(setting, systems, None, &|_, _| ())?)
        }
        Kind::Schedules(schedules) => Outcome::Study(schedules.study()?),
        Kind::Ablation => Outcome::Study(ablation(definitions)?),
        Kind::Gains(gains) => Outcome::Serving(gains.table()?),
        Kind::Sizes(sizes) => Outcome::Serving(sizes.table()?),
        Kind::AgainstFlexGen(against) => Outcome::Serving(against.table()?),
        Kind::Stalls { layers, swaps } => Outcome::Serving(stalls(layers, swaps)),
        Kind::Iterations(iterations) => Outcome::Serving(iterations.table()),
        Kind::Offline(offline) => Outcome::Serving(offline.table()?),
        Kind::Pipelined(pipelined) => Outcome::Serving(pipelined.table()?),
        Kind::Predictors(predictors) => Outcome::Serving(predictors.table()?),
        Kind::InTime(in_time) => Outcome::Serving(in_time.table()?),
        Kind::Dataflow(dataflow) => Outcome::Serving(dataflow.table()),
        Kind::Memory { scene, systems, .. } => {
            let setting = Setting {
                profile: &scene.machine,
                model: &scene.model,
                workload: scene.workload,
            };
            let points = memory::points(setting, systems, &memory::sizes(setting), &|_, _| ());
            Outcome::Memory(points?)
        }
        Kind::Breakdown(asked) => Outcome::Study(asked.study()?),
        Kind::Parts(asked) => Outcome::Study(asked.study()?),
        Kind::Gain(asked) => Outcome::Study(asked.study()?),
        Kind::Batches(asked) => Outcome::Study(asked.study()?),
    })
}

/// Tables repeat runs of each other.
fn mark_fitted(outcomes: &mut [Outcome]) {
    let mut fitted = HashSet::new();
    for outcome in outcomes.iter() {
        if let Outcome::Runs(table) = outcome
            && table.used_for == Use::Fitting
        {
            fitted.extend(table.rows.iter().map(Row::key));
        }
    }
    for outcome in outcomes {
        if let Outcome::Runs(table) = outcome {
            for row in &mut table.rows {
                row.fitted = fitted.contains(&row.key());
            }
        }
    }
}

fn run_rows(runs: &[RecordedRun], machines: &Machines) -> anyhow::Result<Vec<Row>> {
    let (rows, _) = score_runs(runs, &|run| machines.of(run).clone())?;
    let rows = runs.iter().zip(rows);
    Ok(rows
        .flat_map(|(run, row)| {
            let decode = decode_row(run, &row);
            std::iter::once(run_row(run, row)).chain(decode)
        })
        .collect())
}

fn run_row(run: &RecordedRun, row: RunRow) -> Row {
    let did_not_fit = run.measured == Some(Measured::OutOfMemory);
    Row {
        run: row.name,
        hardware: row.hardware,
        metric: row.metric,
        predicted: (!did_not_fit).then_some(row.predicted),
        low: row.low.filter(|_| !did_not_fit),
        high: row.high.filter(|_| !did_not_fit),
        published: row.measured,
        error: row.error,
        error_beyond_rounding: run.printed.map(|p| too_fast(row.metric, p, row.predicted)),
        fitted: false,
        out_of_memory_agreed: did_not_fit.then_some(row.exceeds.is_some()),
        note: match row.exceeds {
            Some(tier) => format!("{tier} too small"),
            None => row.bottleneck.to_string(),
        },
    }
}

/// The decoding throughput of a run beside what was published of it; an interval is of the whole time.
fn decode_row(run: &RecordedRun, row: &RunRow) -> Option<Row> {
    let metric = Metric::DecodeThroughput;
    let (printed, predicted) = (run.printed_decode?, row.predicted_decode_tok_s?);
    Some(Row {
        run: row.name.clone(),
        hardware: row.hardware.clone(),
        metric,
        predicted: Some(predicted),
        low: None,
        high: None,
        published: Some(printed.value),
        error: Some(rate_error(metric, predicted, printed.value)),
        error_beyond_rounding: Some(too_fast(metric, printed, predicted)),
        fitted: false,
        out_of_memory_agreed: None,
        note: "decode alone".to_owned(),
    })
}

fn system_row(run: &Published, machine: &HardwareProfile) -> Result<Row, PlanError> {
    let baseline = Baseline::new(run.system, machine, &run.model, run.workload)?;
    let planned = baseline.block(run.effective_batch)?;
    let place = match &planned {
        Planned::Fits(block) => Some((block.latency_s.0, block.throughput_tok_s)),
        Planned::DoesNotFit(_) => None,
    };
    let (metric, printed) = most_digits(run);
    let predicted = place.and_then(|(latency, rate)| metric.of_whole_run(latency, rate));
    let interval = match &planned {
        Planned::Fits(block) => block.interval(),
        Planned::DoesNotFit(_) => None,
    };
    let range = interval.and_then(|it| metric.of_whole_run(it.latency_s, it.throughput_tok_s));
    let error = |of: &dyn Fn(f64) -> f64| predicted.map(of);
    Ok(Row {
        run: format!(
            "{} {} {}/{} x{}",
            run.system.name(),
            run.model.name,
            run.workload.prompt_len,
            run.workload.gen_len,
            run.effective_batch
        ),
        hardware: machine.name.clone(),
        metric,
        predicted,
        low: range.map(|range| range.low),
        high: range.map(|range| range.high),
        published: Some(printed.value),
        error: error(&|predicted| rate_error(metric, predicted, printed.value)),
        error_beyond_rounding: error(&|predicted| too_fast(metric, printed, predicted)),
        fitted: false,
        out_of_memory_agreed: predicted.is_none().then_some(false),
        note: match &planned {
            Planned::Fits(block) => tuple_with_cpu(&block.plan.policy),
            Planned::DoesNotFit(excess) => format!("{} too small", excess.bound),
        },
    })
}

/// What rounding cannot explain, above zero where the prediction is too fast.
fn too_fast(metric: Metric, printed: Printed, predicted: f64) -> f64 {
    let beyond = printed.beyond_rounding(predicted);
    if metric.is_lower_better() {
        // Errors are of rates: a latency's is relative to the prediction.
        -beyond * printed.value / predicted
    } else {
        beyond
    }
}

/// FlexGen's tuple, and whether the CPU attends.
fn tuple_with_cpu(policy: &Policy) -> String {
    let cpu = match policy.attends_on_cpu() {
        true => " cpu",
        false => "",
    };
    format!("{}{cpu}", flexgen::tuple(policy))
}

/// Of throughput and latency, the one that rounding says less about.
fn most_digits(run: &Published) -> (Metric, Printed) {
    let numbers = [
        (Metric::Throughput, run.throughput_tok_s),
        (Metric::Latency, run.latency_s),
    ];
    let numbers = numbers
        .into_iter()
        .filter_map(|(metric, n)| Some((metric, n?)));
    let rough = |printed: &Printed| printed.rounding / printed.value;
    let best = numbers.min_by(|(_, a), (_, b)| rough(a).total_cmp(&rough(b)));
    best.expect("the reader refuses a run without both")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rounding_cannot_explain_is_part_of_the_error() {
        for (metric, printed, predicted) in [
            (Metric::Latency, "8276", 6088.0),
            (Metric::Latency, "186", 227.0),
            (Metric::Throughput, "0.04", 0.0524),
            (Metric::Throughput, "1.57", 1.3),
        ] {
            let printed = Printed::parse(printed).unwrap();
            let error = rate_error(metric, predicted, printed.value);
            let beyond = too_fast(metric, printed, predicted);
            assert!(beyond.signum() == error.signum(), "{metric:?} {printed:?}");
            assert!(
                beyond.abs() < error.abs(),
                "{metric:?}: {beyond} of {error}"
            );
        }
        let exact = Printed {
            value: 8276.0,
            rounding: 0.0,
        };
        let error = rate_error(Metric::Latency, 6088.0, 8276.0);
        assert!((too_fast(Metric::Latency, exact, 6088.0) - error).abs() < 1e-12);
    }
}
