//! Reading measurements out of a run's trace.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_core::control::Run;
#[cfg(test)]
use plimsoll_core::program::{Gemm, Gemms, Stage};
use plimsoll_core::program::{Op, Program, ResourceKind, TaskId};
use plimsoll_core::trace::Span;
#[cfg(test)]
use plimsoll_core::units::Seconds;

/// A task with when it ran.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timed {
    pub kind: ResourceKind,
    pub op: Op,
    pub span: Span,
    /// How much longer it took than it would have at the base's pace.
    pub pace: f64,
}

impl Timed {
    /// How long it would have taken at the base's pace.
    pub(super) fn seconds(&self) -> f64 {
        self.span.duration().0 / self.pace
    }
}

#[cfg(test)]
impl Timed {
    /// A part of a layer with fresh whole weights, for tests.
    pub(super) fn linear(
        (kind, stage): (ResourceKind, Stage),
        (m, gemms): (u32, &[Gemm]),
        (seconds, pace): (f64, f64),
    ) -> Timed {
        Timed {
            kind,
            op: Op::Linear {
                stage,
                m,
                gemms: Gemms::new(gemms),
                position: 0,
                reused: false,
                compressed: false,
                packed_elements: 0,
            },
            span: Span {
                start: Seconds::ZERO,
                end: Seconds(seconds),
            },
            pace,
        }
    }
}

/// All tasks of a run that ended, in program order.
pub(super) fn timed(run: &Run) -> Vec<Timed> {
    let tasks = run.tasks().filter_map(|(id, op, resource, _)| {
        Some(Timed {
            kind: run.machine.resources[resource].kind,
            op: *op,
            span: run.trace.span(id)?,
            pace: 1.0,
        })
    });
    tasks.collect()
}

/// Durations by the number that `key` gives a task; tasks without one are left out.
pub(super) fn durations(
    tasks: &[Timed],
    key: impl Fn(&Timed) -> Option<u64>,
) -> BTreeMap<u64, Vec<f64>> {
    let mut by_key = BTreeMap::<u64, Vec<f64>>::new();
    for task in tasks {
        if let Some(key) = key(task) {
            by_key.entry(key).or_default().push(task.seconds());
        }
    }
    by_key
}

/// When all of these had ended.
fn ready(run: &Run, deps: &[TaskId]) -> f64 {
    let spans = deps.iter().filter_map(|dep| run.trace.span(*dep));
    spans.map(|span| span.end.0).fold(0.0, f64::max)
}

/// Times from when a barrier's last resource had come until the barrier had ended.
pub(super) fn barriers(run: &Run) -> Vec<f64> {
    let of_piece = |piece: &Arc<Program>| -> Vec<f64> {
        let tasks = (piece.first_task().0..).zip(piece.tasks()).enumerate();
        let barriers = tasks.filter(|(_, (_, task))| *piece.op_of(task) == Op::Barrier);
        let spans = barriers.filter_map(|(index, (id, _))| {
            let span = run.trace.span(TaskId(id))?;
            Some(span.end.0 - ready(run, piece.deps_at(index)))
        });
        spans.collect()
    };
    run.pieces.iter().flat_map(of_piece).collect()
}

/// Times between the end of a task and the start of the next on the same engine, where the next was
/// ready before.
pub(super) fn gaps_on_one_engine(run: &Run, kind: ResourceKind) -> Vec<f64> {
    let mut gaps = Vec::new();
    let mut previous: Option<Span> = None;
    for piece in &run.pieces {
        for (index, task) in piece.tasks().iter().enumerate() {
            if run.machine.resources[task.resource.0 as usize].kind != kind {
                continue;
            }
            let id = TaskId(piece.first_task().0 + index as u32);
            let Some(span) = run.trace.span(id) else {
                continue;
            };
            let ready = ready(run, piece.deps_at(index));
            if let Some(previous) = previous
                && ready <= previous.end.0
            {
                gaps.push((span.start - previous.end).0);
            }
            previous = Some(span);
        }
    }
    gaps
}

/// A thread that ended its own task just before has not gone to sleep.
const AWAKE_S: f64 = 200e-6;

/// Times between the end of what a task waited for on another engine and its start, where its own engine stood idle by then: of
/// engines both of which are streams where the device is a GPU, from those to the host's, from the host's to those, and of others.
#[derive(Debug, Default)]
pub(super) struct Handoffs {
    /// Whether streams are a GPU's.
    pub on_card: bool,
    pub between_streams: Vec<f64>,
    pub from_streams: Vec<f64>,
    pub to_streams: Vec<f64>,
    pub others: Vec<f64>,
}

impl Handoffs {
    /// Adds those of a run.
    pub(super) fn add(&mut self, run: &Run) {
        let mut free = [0.0_f64; plimsoll_core::program::Machine::MAX_RESOURCES];
        let kinds: Vec<ResourceKind> = run.machine.resources.iter().map(|r| r.kind).collect();
        let on: Vec<ResourceKind> = run.tasks().map(|(_, _, on, _)| kinds[on]).collect();
        for piece in &run.pieces {
            for (index, task) in piece.tasks().iter().enumerate() {
                let id = TaskId(piece.first_task().0 + index as u32);
                let Some(span) = run.trace.span(id) else {
                    continue;
                };
                let deps = piece.deps_at(index).iter();
                let ends = deps.filter_map(|dep| Some((run.trace.span(*dep)?.end.0, *dep)));
                let last = ends.max_by(|a, b| a.0.total_cmp(&b.0));
                let resource = task.resource.0 as usize;
                let free = std::mem::replace(&mut free[resource], span.end.0);
                // A barrier has a cost of its own.
                if let Some((ready, dep)) = last
                    && kinds[resource] != ResourceKind::Sync
                {
                    let both = [on[dep.0 as usize], kinds[resource]].map(ResourceKind::is_stream);
                    let of = match both {
                        [true, true] => &mut self.between_streams,
                        [true, false] => &mut self.from_streams,
                        [false, true] => &mut self.to_streams,
                        [false, false] => &mut self.others,
                    };
                    // A GPU's streams never sleep.
                    let sleeps = !(self.on_card && both == [true; 2]);
                    let awake = if sleeps { AWAKE_S } else { 0.0 };
                    if ready > free + awake {
                        of.push(span.start.0 - ready);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::program::{Cell, Machine, NewTask};
    use plimsoll_core::tier::PerTier;
    use plimsoll_core::trace::Trace;
    use plimsoll_core::units::Bytes;

    use super::*;

    /// A run of tasks that begin and end so, each behind others.
    fn run_of(tasks: &[(ResourceKind, &[TaskId], (f64, f64))]) -> Run {
        let machine = Machine::single_gpu(PerTier::from_fn(|_| Bytes(0)));
        let mut program = Program::new();
        let mut trace = Trace::default();
        for &(kind, deps, (start, end)) in tasks {
            let op = program.op(Op::Barrier);
            let task = program.push(NewTask {
                op,
                resource: machine.resource(kind, 0).expect("a resource"),
                cell: Cell::default(),
                deps,
                args: &[],
                takes: &[],
                gives: &[],
            });
            let (start, end) = (Seconds(start), Seconds(end));
            trace.extend_to(program.end_task());
            trace.record(task, Span { start, end });
        }
        Run {
            machine,
            pieces: vec![Arc::new(program)],
            trace,
        }
    }

    #[test]
    fn a_barrier_is_timed_from_the_last_that_came() {
        let run = run_of(&[
            (ResourceKind::H2d, &[][..], (0.0, 2.0)),
            (ResourceKind::D2h, &[], (0.0, 3.0)),
            (ResourceKind::Sync, &[TaskId(0), TaskId(1)], (3.25, 3.5)),
        ]);
        assert_eq!(barriers(&run).last(), Some(&0.5));
    }

    #[test]
    fn hand_offs_between_streams_are_apart_from_those_of_the_host() {
        use ResourceKind::{Cpu, D2h, Gpu, H2d, Sync};
        let mut found = Handoffs::default();
        found.add(&run_of(&[
            (Gpu, &[][..], (0.0, 1.0)),
            (D2h, &[TaskId(0)], (1.125, 2.0)),
            (Cpu, &[TaskId(1)], (2.5, 3.0)),
            (H2d, &[TaskId(2)], (3.25, 4.0)),
            // Of several that it waited for the last counts; a barrier does not.
            (Gpu, &[TaskId(1), TaskId(3)], (4.0625, 5.0)),
            (Sync, &[TaskId(4)], (5.5, 5.5)),
        ]));
        assert_eq!(found.between_streams, [0.125, 0.0625]);
        assert_eq!(found.from_streams, [0.5]);
        assert_eq!(found.to_streams, [0.25]);
        assert!(found.others.is_empty());
        // Whoever has just ended a task has not gone to sleep yet, and tells nothing, but of a GPU's streams.
        let just_free = run_of(&[
            (Gpu, &[], (0.0, 1.0)),
            (H2d, &[], (0.0, 0.9999)),
            (H2d, &[TaskId(0)], (1.125, 2.0)),
        ]);
        for (on_card, told) in [(false, 0), (true, 1)] {
            let mut found = Handoffs {
                on_card,
                ..Handoffs::default()
            };
            found.add(&just_free);
            assert_eq!(found.between_streams.len(), told);
        }
    }
}
