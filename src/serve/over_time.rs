//! A run of requests iteration by iteration: rows of a table, and lines of a picture.

use plimsoll_core::serve::IterationRow;
use plimsoll_core::traffic::Background;
use serde::Serialize;

use crate::report::{Line, Panel};

/// Points of a line at most, but for steps.
const POINTS: usize = 200;

/// An iteration, and of which run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunRow<'a> {
    run: &'a str,
    batch: u32,
    iteration: u64,
    began_s: f64,
    ended_s: f64,
    sequences: u32,
    prompt_tokens: u32,
    waiting: usize,
    cached_tokens: u64,
    capacity_tokens: u64,
    layers_off: u16,
    expansion: f64,
    stalled_s: f64,
    preemptions: u64,
}

/// The iterations of a run that is called so.
pub fn rows<'a>(run: &'a str, all: &[IterationRow]) -> Vec<RunRow<'a>> {
    let row = |it: &IterationRow| RunRow {
        run,
        batch: it.batch,
        iteration: it.iteration,
        began_s: it.began_s,
        ended_s: it.ended_s,
        sequences: it.sequences,
        prompt_tokens: it.prompt_tokens,
        waiting: it.waiting,
        cached_tokens: it.cached_tokens,
        capacity_tokens: it.capacity_tokens,
        layers_off: it.layers_off,
        expansion: it.expansion,
        stalled_s: it.stalled_s,
        preemptions: it.preemptions,
    };
    all.iter().map(row).collect()
}

/// Panels of some runs: expansion, sequences, and how long computation waits.
pub fn panels(runs: &[(&str, &[IterationRow])]) -> Vec<Panel> {
    type Points = fn(&[IterationRow]) -> Vec<(f64, f64)>;
    let all: [(&'static str, Points); 3] = [
        ("expansion", expansion),
        ("sequences", |it| means(it, |row| f64::from(row.sequences))),
        ("waiting, % of time", |it| {
            means(it, |row| {
                100.0 * row.stalled_s / (row.ended_s - row.began_s)
            })
        }),
    ];
    let panel = |(y, points): (&'static str, Points)| Panel {
        y,
        lines: runs
            .iter()
            .map(|(name, iterations)| Line {
                name: (*name).to_owned(),
                points: points(iterations),
            })
            .collect(),
    };
    all.into_iter().map(panel).collect()
}

/// When there is traffic: from, to, in seconds.
pub fn shaded(traffic: &Background) -> Vec<(f64, f64)> {
    let all = traffic.0.iter();
    all.map(|it| (it.from.0, it.to.0)).collect()
}

/// Expansion over time, in steps.
fn expansion(all: &[IterationRow]) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for it in all {
        match points.last().copied() {
            Some((_, value)) if value == it.expansion => {}
            Some((_, value)) => points.extend([(it.began_s, value), (it.began_s, it.expansion)]),
            None => points.push((it.began_s, it.expansion)),
        }
    }
    points.extend(all.last().map(|it| (it.ended_s, it.expansion)));
    points
}

/// Means over time of some iterations in a row each.
fn means(all: &[IterationRow], value: fn(&IterationRow) -> f64) -> Vec<(f64, f64)> {
    let some = all.chunks(all.len().div_ceil(POINTS).max(1));
    let mean = |some: &[IterationRow]| {
        let took = |it: &IterationRow| it.ended_s - it.began_s;
        let sum: f64 = some.iter().map(|it| value(it) * took(it)).sum();
        let all: f64 = some.iter().map(took).sum();
        (some[0].began_s, sum / all.max(f64::MIN_POSITIVE))
    };
    some.map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iteration(began_s: f64, ended_s: f64, expansion: f64, stalled_s: f64) -> IterationRow {
        IterationRow {
            batch: 0,
            iteration: 1,
            began_s,
            ended_s,
            sequences: 4,
            prompt_tokens: 0,
            waiting: 0,
            cached_tokens: 0,
            capacity_tokens: 0,
            layers_off: 0,
            expansion,
            stalled_s,
            preemptions: 0,
        }
    }

    #[test]
    fn expansion_is_drawn_in_steps_and_waiting_as_a_share() {
        let all = [
            iteration(0.0, 1.0, 1.0, 0.0),
            iteration(1.0, 2.0, 1.0, 0.25),
            iteration(2.0, 4.0, 1.5, 1.0),
        ];
        let panels = panels(&[("measured", &all)]);
        let points = |panel: usize| panels[panel].lines[0].points.clone();
        assert_eq!(points(0), [(0.0, 1.0), (2.0, 1.0), (2.0, 1.5), (4.0, 1.5)]);
        assert_eq!(points(1), [(0.0, 4.0), (1.0, 4.0), (2.0, 4.0)]);
        assert_eq!(points(2), [(0.0, 0.0), (1.0, 25.0), (2.0, 50.0)]);
    }
}
