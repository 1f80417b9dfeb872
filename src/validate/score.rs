//! How far predictions are from measurements.

use std::sync::Arc;

use plimsoll_core::control::Run;
use plimsoll_core::hardware::Slowness;
use plimsoll_core::program::{Program, ResourceKind};
use plimsoll_core::summary::Summary;
use serde::Serialize;

use super::{TimedRun, Trial};
use crate::stats::{ErrorStats, quantile, spearman};

/// One case in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaseRow {
    /// The names of its parts.
    pub case: String,
    /// Its placement.
    pub group: String,
    /// What tells its plan from others: a digest of model, type, workload and policy.
    pub plan: String,
    /// Latency as simulated, at the median of the paces that the machine had around the repeats.
    pub predicted_s: f64,
    /// Latency as simulated, at the pace that the machine had when it was profiled.
    pub predicted_as_profiled_s: f64,
    /// Latency as executed, the median of the repeats; all else that was measured is of the run in the middle.
    pub measured_s: f64,
    /// Predicted over measured, less one.
    pub error: f64,
    /// The same for the prediction at the profile's own pace.
    pub error_as_profiled: f64,
    /// How much slower the processor was than when it was profiled (matrix products of few tokens), where the profile says.
    pub pace: Option<f64>,
    /// The same of copies from page-locked memory to a GPU.
    pub pace_h2d: Option<f64>,
    /// The same from pageable memory.
    pub pace_h2d_pageable: Option<f64>,
    /// The same from a GPU to page-locked memory.
    pub pace_d2h: Option<f64>,
    /// The same to pageable memory.
    pub pace_d2h_pageable: Option<f64>,
    /// The same of reads of the disk, where the plan has any.
    pub pace_disk_read: Option<f64>,
    /// Runs done again because the machine changed its pace during them.
    pub restarts: u32,
    /// The resource whose busy time differs most.
    pub explained_by: ResourceKind,
    /// How much that resource was busier than predicted, in seconds (negative: less busy).
    pub explained_s: f64,
    /// The resource that was busiest as simulated.
    pub predicted_bottleneck: ResourceKind,
    /// The resource that was busiest as executed.
    pub measured_bottleneck: ResourceKind,
    /// Latency as executed over the time that this one was busy meanwhile: 1 where all else is hidden behind it.
    pub measured_over_busiest: f64,
    /// The same over the time of each pass's own busiest resource, summed: prefill may be bound by another one than decode.
    /// Below 1 where passes overlap.
    pub measured_over_busiest_by_pass: f64,
    /// Latency of each repeat, in the order they were run.
    pub repeats_s: Repeats,
    /// Largest over smallest latency of the repeats, less one; none of a single one.
    pub repeat_range: Option<f64>,
    /// Throughput as simulated.
    pub predicted_tok_s: f64,
    /// Throughput as executed.
    pub measured_tok_s: f64,
}

/// Errors of latency in a few numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Errors {
    /// How many cases.
    pub cases: usize,
    /// Median of the errors' sizes.
    pub median_abs_error: f64,
    /// 95th percentile of the errors' sizes.
    pub p95_abs_error: f64,
    /// The largest error's size.
    pub max_abs_error: f64,
    /// Median of the errors with their sign: above zero, the simulator is too slow.
    pub median_latency_error: f64,
    /// Rank correlation of predicted and measured latency (Spearman); none where all rank alike, as a
    /// single case does.
    pub spearman: Option<f64>,
}

impl Errors {
    /// Of predicted and measured latencies; there must be one at least.
    pub fn of(cases: impl Iterator<Item = (f64, f64)>) -> Errors {
        let (predicted, measured): (Vec<f64>, Vec<f64>) = cases.unzip();
        let both = predicted.iter().zip(&measured);
        let signed: Vec<f64> = both.map(|(p, m)| p / m - 1.0).collect();
        let stats = ErrorStats::of(&signed);
        Errors {
            cases: signed.len(),
            median_abs_error: stats.median,
            p95_abs_error: stats.p95,
            max_abs_error: stats.max,
            median_latency_error: stats.signed_median,
            spearman: spearman(predicted, measured),
        }
    }
}

/// All cases in a few numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// At the pace that the machine had.
    #[serde(flatten)]
    pub errors: Errors,
    /// Median of the errors' sizes at the profile's own pace.
    pub median_abs_error_as_profiled: f64,
    /// 95th percentile of the same.
    pub p95_abs_error_as_profiled: f64,
    /// Cases whose repeats are further apart than [`APART_MOST`].
    pub unsteady_cases: usize,
}

/// Latencies: a list, or one cell of a format that has no lists.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Repeats {
    /// In seconds.
    List(Vec<f64>),
    /// The same with spaces between.
    Cell(String),
}

/// Largest over smallest latency of repeats, less one, beyond what machines with nothing else to do had: in the 140 cases that
/// are recorded in experiments/cpu-validation at most 0.48.
pub const APART_MOST: f64 = 0.5;

impl CaseRow {
    /// The numbers of a case whose `middle` run is compared with what was `predicted` for it.
    pub(super) fn of(
        trial: &Trial<'_>,
        predicted: &Run,
        middle: &TimedRun,
        slowness: Option<&Slowness>,
    ) -> CaseRow {
        let summary = Summary::of(predicted);
        let measured = Summary::of(&middle.run);
        let predicted_s = summary.latency_s.0;
        let latencies_s: Vec<f64> = trial.runs.iter().map(TimedRun::latency_s).collect();
        let measured_s = quantile(&latencies_s, 0.5);
        // What nobody timed is as it was.
        let known = |part: fn(&Slowness) -> f64| slowness.map(part).filter(|pace| *pace != 1.0);
        let (explained_by, explained_s) = explain(predicted, &middle.run);
        CaseRow {
            case: trial.case.name.clone(),
            group: trial.case.group.clone(),
            plan: trial.plan_digest(),
            predicted_s,
            predicted_as_profiled_s: trial.as_profiled_s,
            measured_s,
            error: predicted_s / measured_s - 1.0,
            error_as_profiled: trial.as_profiled_s / measured_s - 1.0,
            pace: known(|it| it.few_tokens),
            pace_h2d: known(|it| it.h2d.page_locked),
            pace_h2d_pageable: known(|it| it.h2d.pageable),
            pace_d2h: known(|it| it.d2h.page_locked),
            pace_d2h_pageable: known(|it| it.d2h.pageable),
            pace_disk_read: known(|it| it.disk_read),
            restarts: trial.runs.iter().map(|run| u32::from(run.restarted)).sum(),
            explained_by,
            explained_s,
            predicted_bottleneck: summary.bottleneck,
            measured_over_busiest: over_busiest(&measured),
            measured_over_busiest_by_pass: measured.latency_s.0 / busiest_by_pass_s(&middle.run),
            measured_bottleneck: measured.bottleneck,
            repeat_range: range(&latencies_s),
            repeats_s: Repeats::List(latencies_s),
            predicted_tok_s: summary.throughput_tok_s,
            measured_tok_s: summary.generated_tokens as f64 / measured_s,
        }
    }

    /// How the machine went, in words; none where nobody knows.
    pub fn paces(&self) -> Option<String> {
        let named = [
            ("", self.pace),
            ("h2d ", self.pace_h2d),
            ("h2d pageable ", self.pace_h2d_pageable),
            ("d2h ", self.pace_d2h),
            ("d2h pageable ", self.pace_d2h_pageable),
            ("disk ", self.pace_disk_read),
        ];
        let said = named
            .iter()
            .filter_map(|(what, pace)| Some(format!("{what}{:.2}x", (*pace)?)));
        let said: Vec<String> = said.collect();
        (!said.is_empty()).then(|| said.join(", "))
    }

    /// The row with every value in one cell.
    pub fn in_cells(&self) -> CaseRow {
        let repeats_s = match &self.repeats_s {
            Repeats::List(seconds) => {
                let texts: Vec<String> = seconds.iter().map(|s| format!("{s:.6}")).collect();
                Repeats::Cell(texts.join(" "))
            }
            cell => cell.clone(),
        };
        CaseRow {
            repeats_s,
            ..self.clone()
        }
    }

    /// How many repeats there are.
    pub fn repeats(&self) -> usize {
        match &self.repeats_s {
            Repeats::List(seconds) => seconds.len(),
            Repeats::Cell(text) => text.split(' ').count(),
        }
    }
}

/// The time of a run over that in which its busiest resource was busy.
fn over_busiest(run: &Summary) -> f64 {
    let shares = run.busy_fraction.by_kind().map(|(_, share)| share);
    1.0 / shares.into_iter().fold(f64::MIN_POSITIVE, f64::max)
}

/// How long the busiest resource of each pass was busy with it, summed over passes.
fn busiest_by_pass_s(run: &Run) -> f64 {
    let of_pass = |pass: &Arc<Program>| {
        let mut busy_s = vec![0.0; run.machine.resources.len()];
        for (id, task) in pass.numbered_tasks() {
            let lane = usize::from(task.resource.0);
            busy_s[lane] += run.trace.span(id).map_or(0.0, |span| span.duration().0);
        }
        let resources = run.machine.resources.iter().zip(busy_s);
        let engines = resources.filter(|(resource, _)| resource.kind != ResourceKind::Sync);
        engines.map(|(_, busy_s)| busy_s).fold(0.0, f64::max)
    };
    let all: f64 = run.pieces.iter().map(of_pass).sum();
    all.max(f64::MIN_POSITIVE)
}

/// The largest over the smallest of several, less one.
fn range(latencies_s: &[f64]) -> Option<f64> {
    let low = latencies_s.iter().copied().fold(f64::INFINITY, f64::min);
    let high = latencies_s.iter().copied().fold(0.0, f64::max);
    (latencies_s.len() > 1).then(|| high / low - 1.0)
}

/// The resource whose busy time differs most between two runs, and by how much.
fn explain(predicted: &Run, measured: &Run) -> (ResourceKind, f64) {
    let kinds = predicted.machine.resources.iter().map(|r| r.kind);
    let busy = kinds.map(|kind| (kind, busy_s(measured, kind) - busy_s(predicted, kind)));
    busy.fold((ResourceKind::Gpu, 0.0_f64), |most, next| {
        if next.1.abs() > most.1.abs() {
            next
        } else {
            most
        }
    })
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

/// Of how many cases the repeats say that something else had the machine.
fn unsteady(ranges: impl Iterator<Item = Option<f64>>) -> usize {
    ranges.flatten().filter(|range| *range > APART_MOST).count()
}

/// Scores rows; there must be one at least.
pub fn score(rows: &[CaseRow]) -> Score {
    let as_profiled: Vec<f64> = rows.iter().map(|r| r.error_as_profiled).collect();
    let as_profiled = ErrorStats::of(&as_profiled);
    Score {
        errors: Errors::of(rows.iter().map(|r| (r.predicted_s, r.measured_s))),
        median_abs_error_as_profiled: as_profiled.median,
        p95_abs_error_as_profiled: as_profiled.p95,
        unsteady_cases: unsteady(rows.iter().map(|r| r.repeat_range)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_far_apart_are_counted() {
        let ranges = [&[2.0][..], &[2.0, 2.2], &[2.0, 3.2]].map(range);
        assert_eq!(unsteady(ranges.into_iter()), 1);
    }

    #[test]
    fn a_single_repeat_has_no_range() {
        assert_eq!(range(&[2.0]), None);
        assert_eq!(range(&[2.0, 3.0]), Some(0.5));
    }
}
