//! A run of requests iteration by iteration: rows of a table, and lines of a picture.

use plimsoll_core::serve::IterationRow;
use plimsoll_core::traffic::Background;
use serde::Serialize;

use crate::report::{Line, Panel};

/// Steps of a line that is of means.
const STEPS: usize = 200;

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

/// Panels of some runs, means over steps of time, 0 between iterations: expansion, sequences under way, and how long computation
/// waits for layers; where no layers are swapped, how full the cache is and how many requests wait.
pub fn panels(runs: &[(&str, &[IterationRow])]) -> Vec<Panel> {
    type Points = fn(&[IterationRow]) -> Vec<(f64, f64)>;
    let sequences: (&'static str, Points) = ("sequences, mean", |it| {
        in_steps(it, |step| step.mean(|row| f64::from(row.sequences)))
    });
    let swaps = |it: &IterationRow| it.layers_off > 0 || it.expansion != 1.0;
    let all: [(&'static str, Points); 3] = match runs.iter().any(|(_, it)| it.iter().any(swaps)) {
        true => [
            ("expansion", expansion),
            sequences,
            ("waiting, % of time", |it| {
                in_steps(it, |step| {
                    100.0 * step.mean_under_way(|row| row.stalled_s / (row.ended_s - row.began_s))
                })
            }),
        ],
        false => [
            sequences,
            ("KV cache, % in use", |it| {
                in_steps(it, |step| {
                    100.0
                        * step.mean_under_way(|row| {
                            row.cached_tokens as f64 / row.capacity_tokens.max(1) as f64
                        })
                })
            }),
            ("requests waiting, mean", |it| {
                in_steps(it, |step| step.mean_under_way(|row| row.waiting as f64))
            }),
        ],
    };
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

/// A step of time, and the iterations that are in it, as far as they are.
struct Step<'a> {
    from: f64,
    to: f64,
    iterations: &'a [IterationRow],
}

impl Step<'_> {
    /// The sum of a value of its iterations, each by its time in the step, and of these times.
    fn sums(&self, value: impl Fn(&IterationRow) -> f64) -> [f64; 2] {
        let within =
            |it: &IterationRow| (it.ended_s.min(self.to) - it.began_s.max(self.from)).max(0.0);
        let took = self.iterations.iter().filter(|it| it.ended_s > it.began_s);
        took.fold([0.0, 0.0], |[sum, time], it| {
            [sum + value(it) * within(it), time + within(it)]
        })
    }

    /// The mean of what batches that follow each other through stages have each, over the step's time, in which none may be under way.
    fn mean(&self, value: impl Fn(&IterationRow) -> f64) -> f64 {
        self.sums(value)[0] / (self.to - self.from)
    }

    /// The mean of what they have together, or of a share of their time, while any is under way; 0 where none is.
    fn mean_under_way(&self, value: impl Fn(&IterationRow) -> f64) -> f64 {
        let [sum, time] = self.sums(value);
        if time > 0.0 { sum / time } else { 0.0 }
    }
}

/// Both ends of each of the steps that a run's time is cut into, with their value.
fn in_steps(all: &[IterationRow], value: impl Fn(&Step<'_>) -> f64) -> Vec<(f64, f64)> {
    let begin = all.first().map_or(0.0, |first| first.began_s);
    let end = all.iter().map(|it| it.ended_s).fold(begin, f64::max);
    if end <= begin {
        return Vec::new();
    }
    let at = |step: usize| begin + (end - begin) * step as f64 / STEPS as f64;
    let mut rest = all;
    let mut points = Vec::with_capacity(2 * STEPS);
    for step in 0..STEPS {
        let (from, to) = (at(step), at(step + 1));
        // They begin in order, and where there are several stages they overlap.
        let over = rest.iter().take_while(|it| it.ended_s <= from).count();
        rest = &rest[over..];
        let begun = rest.partition_point(|it| it.began_s < to);
        let value = value(&Step {
            from,
            to,
            iterations: &rest[..begun],
        });
        points.extend([(from, value), (to, value)]);
    }
    points
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
        let at = |panel: usize, time: f64| {
            let points = points(panel);
            let step = points
                .windows(2)
                .find(|ends| (ends[0].0..ends[1].0).contains(&time));
            step.expect("a step")[0].1
        };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} for {b}");
        for (time, sequences, waiting) in [(0.5, 4.0, 0.0), (1.5, 4.0, 25.0), (3.5, 4.0, 50.0)] {
            near(at(1, time), sequences);
            near(at(2, time), waiting);
        }
    }

    #[test]
    fn between_iterations_nothing_is_under_way() {
        let all = [
            iteration(1.0, 2.0, 1.0, 0.0),
            iteration(4.0, 5.0, 1.0, 0.0),
            iteration(4.0, 5.0, 1.0, 0.0),
        ];
        let panels = panels(&[("predicted", &all)]);
        let points = &panels[0].lines[0].points;
        let of = |from: f64, to: f64| {
            let within = points.iter().filter(|point| (from..to).contains(&point.0));
            let found: Vec<f64> = within.map(|point| point.1).collect();
            assert!(!found.is_empty());
            found
        };
        assert!(of(2.03, 3.97).iter().all(|sequences| *sequences == 0.0));
        assert!(
            of(1.0, 1.97)
                .iter()
                .all(|sequences| (sequences - 4.0).abs() < 1e-9)
        );
        let names = panels.iter().map(|panel| panel.y);
        let without_layers = [
            "sequences, mean",
            "KV cache, % in use",
            "requests waiting, mean",
        ];
        assert!(names.eq(without_layers));
        // Of two batches at once.
        assert!(
            of(4.03, 4.97)
                .iter()
                .all(|sequences| (sequences - 8.0).abs() < 1e-9)
        );
    }
}
