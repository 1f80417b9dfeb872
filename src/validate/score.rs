//! How far predictions are from measurements.

use plimsoll_core::control::Run;
use plimsoll_core::program::ResourceKind;
use plimsoll_core::summary::Summary;
use serde::Serialize;
use statrs::statistics::{Data, OrderStatistics, RankTieBreaker};

use super::Outcome;

/// One case in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaseRow {
    /// The names of its parts.
    pub case: String,
    /// Its placement.
    pub group: String,
    /// Latency as simulated, at the pace that the machine had around the measured run.
    pub predicted_s: f64,
    /// Latency as simulated, at the pace that the machine had when it was profiled.
    pub predicted_as_profiled_s: f64,
    /// Latency as executed, the median of the repeats.
    pub measured_s: f64,
    /// Predicted over measured, less one.
    pub error: f64,
    /// The same for the prediction at the profile's own pace.
    pub error_as_profiled: f64,
    /// How much slower the machine was than when it was profiled (matrix products of few tokens).
    pub pace: f64,
    /// Runs done again because the machine changed its pace during them.
    pub restarts: u32,
    /// The resource whose busy time differs most.
    pub explained_by: &'static str,
    /// How much that resource was busier than predicted, in seconds (negative: less busy).
    pub explained_s: f64,
    /// The resource that was busiest as simulated.
    pub predicted_bottleneck: String,
    /// The resource that was busiest as executed.
    pub measured_bottleneck: String,
    /// Latency of each repeat, in the order they were run.
    #[serde(serialize_with = "spaced")]
    pub repeats_s: Vec<f64>,
    /// Largest over smallest latency of the repeats, less one.
    pub repeat_range: f64,
    /// Throughput as simulated.
    pub predicted_tok_s: f64,
    /// Throughput as executed.
    pub measured_tok_s: f64,
}

/// All cases in three numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// How many cases.
    pub cases: usize,
    /// Median of the errors' sizes.
    pub median_abs_error: f64,
    /// 95th percentile of the errors' sizes.
    pub p95_abs_error: f64,
    /// The largest error's size.
    pub max_abs_error: f64,
    /// Median of the errors' sizes at the profile's own pace.
    pub median_abs_error_as_profiled: f64,
    /// 95th percentile of the same.
    pub p95_abs_error_as_profiled: f64,
    /// Median of the errors with their sign: above zero, the simulator is too slow.
    pub median_error: f64,
    /// Rank correlation of predicted and measured latency (Spearman).
    pub spearman: f64,
}

/// One cell of a table holds all repeats.
fn spaced<S: serde::Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
    let texts: Vec<String> = values.iter().map(|v| format!("{v:.6}")).collect();
    to.serialize_str(&texts.join(" "))
}

impl CaseRow {
    /// The numbers of an outcome.
    pub fn of(outcome: &Outcome) -> CaseRow {
        let predicted = Summary::of(&outcome.predicted);
        let measured = Summary::of(&outcome.measured);
        let mut latencies = Data::new(outcome.latencies_s.clone());
        let measured_s = measured.latency_s.0;
        let (low, high) = (latencies.percentile(0), latencies.percentile(100));
        let (explained_by, explained_s) = explain(&outcome.predicted, &outcome.measured);
        CaseRow {
            case: outcome.name.clone(),
            group: outcome.group.clone(),
            predicted_s: predicted.latency_s.0,
            predicted_as_profiled_s: outcome.predicted_as_profiled_s,
            measured_s,
            error: predicted.latency_s.0 / measured_s - 1.0,
            error_as_profiled: outcome.predicted_as_profiled_s / measured_s - 1.0,
            pace: outcome.slowness.few_tokens,
            restarts: outcome.restarts,
            explained_by,
            explained_s,
            predicted_bottleneck: predicted.bottleneck,
            measured_bottleneck: measured.bottleneck,
            repeats_s: outcome.latencies_s.clone(),
            repeat_range: high / low - 1.0,
            predicted_tok_s: predicted.throughput_tok_s,
            measured_tok_s: predicted.generated_tokens as f64 / measured_s,
        }
    }
}

/// The resource whose busy time differs most between two runs, and by how much.
fn explain(predicted: &Run, measured: &Run) -> (&'static str, f64) {
    let kinds = predicted.machine.resources.iter().map(|r| r.kind);
    let busy = kinds.map(|kind| (kind, busy_s(measured, kind) - busy_s(predicted, kind)));
    let most = busy.fold((ResourceKind::Gpu, 0.0_f64), |most, next| {
        if next.1.abs() > most.1.abs() {
            next
        } else {
            most
        }
    });
    (most.0.name(), most.1)
}

fn busy_s(run: &Run, kind: ResourceKind) -> f64 {
    let tasks = run
        .tasks()
        .filter(|(_, _, on, _)| run.machine.resources[*on].kind == kind);
    tasks
        .filter_map(|(id, ..)| run.trace.span(id))
        .map(|span| span.duration().0)
        .sum()
}

/// Scores all cases.
pub fn score(rows: &[CaseRow]) -> Score {
    let mut sizes = Data::new(rows.iter().map(|r| r.error.abs()).collect::<Vec<f64>>());
    let mut signed = Data::new(rows.iter().map(|r| r.error).collect::<Vec<f64>>());
    let mut as_profiled = Data::new(
        rows.iter()
            .map(|r| r.error_as_profiled.abs())
            .collect::<Vec<f64>>(),
    );
    let predicted: Vec<f64> = rows.iter().map(|r| r.predicted_s).collect();
    let measured: Vec<f64> = rows.iter().map(|r| r.measured_s).collect();
    Score {
        cases: rows.len(),
        median_abs_error: sizes.median(),
        p95_abs_error: sizes.percentile(95),
        max_abs_error: sizes.percentile(100),
        median_abs_error_as_profiled: as_profiled.median(),
        p95_abs_error_as_profiled: as_profiled.percentile(95),
        median_error: signed.median(),
        spearman: spearman(predicted, measured),
    }
}

/// Correlation of ranks; ties share their mean rank.
pub fn spearman(a: Vec<f64>, b: Vec<f64>) -> f64 {
    let ranks = |values: Vec<f64>| Data::new(values).ranks(RankTieBreaker::Average);
    let (a, b) = (ranks(a), ranks(b));
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (mean_a, mean_b) = (mean(&a), mean(&b));
    let pairs = || a.iter().zip(&b).map(|(x, y)| (x - mean_a, y - mean_b));
    let covariance: f64 = pairs().map(|(x, y)| x * y).sum();
    let spread: f64 =
        pairs().map(|(x, _)| x * x).sum::<f64>() * pairs().map(|(_, y)| y * y).sum::<f64>();
    covariance / spread.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_correlate_whatever_the_scale() {
        let a = vec![1.0, 2.0, 3.0, 4.0];
        assert!((spearman(a.clone(), vec![1.0, 10.0, 1e3, 1e9]) - 1.0).abs() < 1e-12);
        assert!((spearman(a.clone(), vec![4.0, 3.0, 2.0, 1.0]) + 1.0).abs() < 1e-12);
        assert!((spearman(a, vec![1.0, 2.0, 4.0, 3.0]) - 0.8).abs() < 1e-12);
    }
}
