//! How busy engines are while a split linear layer is computed (HeteGen Table 2).

use serde::Serialize;

use super::Module;
use crate::control::Run;
use crate::program::{Op, ResourceKind, Stage, TaskId};
use crate::trace::Span;
use crate::units::Seconds;

/// Medians over layers and new tokens; shares are of the time from when a layer's input is there until its outputs are joined.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Breakdown {
    /// That time.
    pub seconds: Seconds,
    /// The CPU computes.
    pub cpu: f64,
    /// Something is copied to the device.
    pub link: f64,
    /// Something is copied into page-locked memory.
    pub pin: f64,
    /// The device computes.
    pub device: f64,
}

/// Which task of the device makes a module's input, and which joins its outputs; queries, keys and values have both in common.
fn between(module: Module) -> [Stage; 2] {
    match module {
        Module::Q | Module::K | Module::V => [Stage::Normalise, Stage::JoinProject],
        Module::O => [Stage::Attended, Stage::JoinOutput],
        Module::Gate | Module::Up => [Stage::JoinOutput, Stage::JoinInner],
        Module::Down => [Stage::JoinInner, Stage::JoinMlp],
    }
}

impl Breakdown {
    /// That of a module in a run of a split plan; none where no token came after the first.
    pub fn of(run: &Run, module: Module) -> Option<Breakdown> {
        let windows = windows(run, between(module));
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let seconds = middle(windows.iter().map(|w| w.duration().0).collect())?;
        let busy = |kind| {
            let spans = spans_of(run, kind);
            let shares = windows.iter().map(|w| busy_within(&spans, *w));
            middle(shares.collect())
        };
        Some(Breakdown {
            seconds: Seconds(seconds),
            cpu: busy(ResourceKind::Cpu)?,
            link: busy(ResourceKind::H2d)?,
            pin: busy(ResourceKind::Pin)?,
            device: busy(ResourceKind::Gpu)?,
        })
    }
}

/// From the end of a task of the first stage to the end of the next of the second, after the prompt.
fn windows(run: &Run, [first, last]: [Stage; 2]) -> Vec<Span> {
    let mut begun = None;
    let mut windows = Vec::new();
    for (id, op, _, cell) in run.tasks() {
        let Op::Linear { stage, .. } = op else {
            continue;
        };
        let Some(span) = run.trace.span(id).filter(|_| cell.pass > 0) else {
            continue;
        };
        if *stage == last
            && let Some(start) = begun.take()
        {
            let end = span.end;
            windows.push(Span { start, end });
        }
        if *stage == first {
            begun = Some(span.end);
        }
    }
    windows
}

/// An engine's spans, in their order.
fn spans_of(run: &Run, kind: ResourceKind) -> Vec<Span> {
    let own = |resource: usize| run.machine.resources[resource].kind == kind;
    let tasks = run.tasks().filter(|(_, _, resource, _)| own(*resource));
    tasks
        .filter_map(|(id, ..): (TaskId, _, _, _)| run.trace.span(id))
        .collect()
}

/// The share of a time in which an engine is busy.
fn busy_within(spans: &[Span], window: Span) -> f64 {
    let first = spans.partition_point(|span| span.end <= window.start);
    let inside = spans[first..]
        .iter()
        .take_while(|span| span.start < window.end);
    let busy: f64 = inside
        .map(|span| span.within(window.start, window.end).0)
        .sum();
    busy / window.duration().0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: f64, end: f64) -> Span {
        Span {
            start: Seconds(start),
            end: Seconds(end),
        }
    }

    #[test]
    fn an_engine_is_busy_as_long_as_its_tasks_lie_within() {
        let spans = [span(0.0, 1.0), span(1.5, 2.5), span(3.0, 9.0)];
        let busy = busy_within(&spans, span(0.5, 4.5));
        assert!((busy - (0.5 + 1.0 + 1.5) / 4.0).abs() < 1e-12, "{busy}");
        assert_eq!(busy_within(&spans, span(10.0, 11.0)), 0.0);
        assert_eq!(busy_within(&spans, span(3.0, 4.0)), 1.0);
    }
}
