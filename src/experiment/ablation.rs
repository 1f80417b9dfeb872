//! What each term of the cost model is worth: validation runs predicted without it.

use std::collections::HashSet;

use plimsoll_core::term::Term;
use serde::Serialize;

use super::definition::{Definition, Kind, Use};
use super::study::{Study, percent};
use crate::calibrate::{Machines, RecordedRun, RunRow, score_runs};
use crate::report::Align::{Left, Right};
use crate::report::signed_percent;
use crate::stats::ErrorStats;

/// Predictions that differ by less than this, as a fraction, are taken to be the same.
const MOVED_MIN: f64 = 0.01;

/// All validation runs without one term.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct AblationRow {
    /// The term that is off; `none` is the whole model.
    without: &'static str,
    /// Runs with a published number and policy that nothing was fitted to.
    runs: usize,
    /// Of them, those whose prediction the term moves.
    moved: usize,
    /// Median of the moved runs' errors' sizes with the term; none where none is moved.
    moved_with: Option<f64>,
    /// The same without it.
    moved_without: Option<f64>,
    /// Median of the errors' sizes.
    median_abs_error: f64,
    /// 90th percentile of the errors' sizes.
    p90_abs_error: f64,
    /// Median of the errors with their sign, as rates: above zero, the prediction is too fast.
    median_rate_error: f64,
    /// How much larger the median of the errors' sizes is than that of the whole model.
    change: f64,
}

/// The validation runs of an experiment under the whole model, then without each term by itself. The
/// constants stay what they are with all terms.
///
/// # Errors
/// A run that means nothing for its model; a term that a machine cannot be without.
pub(super) fn ablation(definitions: &[Definition]) -> anyhow::Result<Study> {
    let tables = validation_runs(definitions);
    let whole = errors(&tables, &[])?;
    let mut rows = vec![row("none", &whole, &whole)];
    for term in Term::ALL {
        rows.push(row(term.name(), &errors(&tables, &[term])?, &whole));
    }
    study(&rows)
}

/// Runs with a number in tables that were not fitted, each once, without those that were fitted
/// elsewhere: those that the summary counts.
fn validation_runs(definitions: &[Definition]) -> Vec<(&Machines, Vec<RecordedRun>)> {
    let key =
        |machines: &Machines, run: &RecordedRun| (run.name.clone(), machines.of(run).name.clone());
    let tables = |wanted: fn(Use) -> bool| {
        definitions.iter().filter_map(move |it| match &it.kind {
            Kind::Runs {
                runs,
                machines,
                used_for,
            } if wanted(*used_for) => Some((&**machines, runs)),
            _ => None,
        })
    };
    let fitted = tables(|used_for| used_for == Use::Fitting);
    let fitted = fitted.flat_map(|(machines, runs)| runs.iter().map(move |r| key(machines, r)));
    let fitted: HashSet<_> = fitted.collect();
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for (machines, runs) in tables(Use::validates_given) {
        let new = |run: &&RecordedRun| {
            let (key, printed) = (key(machines, run), run.printed.map(|p| p.value.to_bits()));
            run.has_number() && !fitted.contains(&key) && seen.insert((key, printed))
        };
        kept.push((machines, runs.iter().filter(new).cloned().collect()));
    }
    kept
}

/// Each run's predicted number and its error.
fn errors(
    tables: &[(&Machines, Vec<RecordedRun>)],
    without: &[Term],
) -> anyhow::Result<Vec<(f64, f64)>> {
    let mut all = Vec::new();
    for (machines, runs) in tables {
        let machines = machines.without(without)?;
        let mut runs = runs.clone();
        for run in &mut runs {
            without.iter().for_each(|term| term.off_in(&mut run.policy));
        }
        let (rows, _) = score_runs(&runs, &|run| machines.of(run).clone())?;
        let numbers = rows
            .iter()
            .map(|row: &RunRow| Some((row.predicted, row.error?)));
        all.extend(numbers.flatten());
    }
    Ok(all)
}

fn row(without: &'static str, these: &[(f64, f64)], whole: &[(f64, f64)]) -> AblationRow {
    let stats = |of: &[(f64, f64)]| {
        ErrorStats::of(&of.iter().map(|(_, error)| *error).collect::<Vec<f64>>())
    };
    let (own, of_whole) = (stats(these), stats(whole));
    let pairs = these.iter().zip(whole);
    let moved = pairs.filter(|(here, there)| (here.0 / there.0 - 1.0).abs() >= MOVED_MIN);
    let (moved_these, moved_whole): (Vec<_>, Vec<_>) = moved.map(|(a, b)| (*a, *b)).unzip();
    let any = !moved_these.is_empty();
    AblationRow {
        without,
        runs: these.len(),
        moved: moved_these.len(),
        moved_with: any.then(|| stats(&moved_whole).median),
        moved_without: any.then(|| stats(&moved_these).median),
        median_abs_error: own.median,
        p90_abs_error: own.p90,
        median_rate_error: own.signed_median,
        change: own.median - of_whole.median,
    }
}

/// The rows as a table.
fn study(rows: &[AblationRow]) -> anyhow::Result<Study> {
    let runs = rows.first().map_or(0, |row| row.runs);
    let lead = format!(
        "The {runs} validation runs whose policy was given, each term off by itself. Constants stay what \
         they are with all terms,\nand there is no interval. *Moved* are runs whose prediction changes by \
         1% or more; their median error is given with\nthe term and without it. The other columns are of \
         all runs."
    );
    let columns = [
        ("without", Left),
        ("what is assumed", Left),
        ("moved", Right),
        ("with it", Right),
        ("without it", Right),
        ("median error", Right),
        ("change", Right),
        ("p90", Right),
        ("signed median", Right),
    ];
    Study::of(rows, lead, columns, |row| {
        let assumed = Term::named(row.without).map_or("the whole model", Term::when_off);
        [
            row.without.to_owned(),
            assumed.to_owned(),
            row.moved.to_string(),
            row.moved_with.map_or(String::new(), percent),
            row.moved_without.map_or(String::new(), percent),
            percent(row.median_abs_error),
            signed_percent(row.change),
            percent(row.p90_abs_error),
            signed_percent(row.median_rate_error),
        ]
    })
}
