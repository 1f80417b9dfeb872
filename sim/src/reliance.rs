//! Which numbers of the profile a prediction rests on: how sure they make it, and where it asked them
//! what nobody measured.

use std::collections::BTreeMap;

use plimsoll_core::control::Run;
use plimsoll_core::extrapolation::{Extrapolation, SizeUnit};
use plimsoll_core::hardware::{HardwareProfile, SourceKind};
use plimsoll_core::interval::Range;
use plimsoll_core::overdraw::Overdraw;
use plimsoll_core::program::{Machine, Op, Program, Resource, TaskId};
use plimsoll_core::timing::Timing;
use plimsoll_core::trace::Trace;
use plimsoll_core::units::{BytesPerSecond, Seconds};

use crate::cost::{Asked, CostModel, Part};

/// The numbers of a profile with how long a run was busy by each.
///
/// Time that a task lost to others beside it counts for its own numbers.
#[derive(Debug, Default)]
pub(crate) struct Reliance {
    numbers: BTreeMap<&'static str, Weight>,
    /// By curve, and by whether it is its sizes of weights that do not reach so far.
    outside: BTreeMap<(&'static str, bool), Outside>,
    /// Through a host's memory; not counted of several GPUs, which may be on several hosts.
    host_bytes: f64,
    latency_s: f64,
}

/// How much of a run one number decides.
#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    busy_s: f64,
    /// Of it, by measurements that were repeated.
    repeated_s: f64,
    /// The latter times the standard deviation of the number's logarithm.
    uncertain_s: f64,
}

#[derive(Debug)]
struct Outside {
    unit: SizeUnit,
    asked: Range,
    known: Range,
    busy_s: f64,
}

/// Interquartile range of the standard normal distribution.
const NORMAL_IQR: f64 = 1.349;

/// So much more than a host's memory gives is no rounding.
const OVERDRAWN: f64 = 1.02;

/// Where less of the busy time than this is by measurements that were repeated, their spread says too
/// little of the whole.
const REPEATED_MIN: f64 = 0.5;

impl Reliance {
    /// What the timed part of a run rests on.
    pub(crate) fn of(run: &Run, timing: Timing, cost: &CostModel) -> Reliance {
        let mut reliance = Reliance::default();
        for piece in &run.pieces {
            let part = (timing.from, timing.to());
            reliance.see(piece, (&run.machine, &run.trace), part, cost);
        }
        reliance.timed(timing.latency_s)
    }

    /// Counts what a piece was busy with from one time to another.
    pub(crate) fn see(
        &mut self,
        piece: &Program,
        (machine, trace): (&Machine, &Trace),
        part: (Seconds, Seconds),
        cost: &CostModel,
    ) {
        // Stages run side by side and are much alike: what one rests on, all do.
        let gpus = machine.num_gpus() as f64;
        for_each_operation(piece, (machine, trace), part, |on, op, (busy_s, tasks)| {
            let busy_s = busy_s / gpus;
            if machine.num_gpus() == 1 {
                self.host_bytes += tasks * cost.host_traffic(on, op);
            }
            let alone = cost.seconds(on, op).0;
            if alone > 0.0 {
                cost.parts(on, op, &mut |part| {
                    self.add(&part, busy_s * part.seconds.0 / alone);
                });
            }
        });
    }

    /// Once all pieces have been seen: how long that was in all.
    pub(crate) fn timed(self, latency: Seconds) -> Reliance {
        Reliance {
            latency_s: latency.0.max(f64::MIN_POSITIVE),
            ..self
        }
    }

    fn add(&mut self, part: &Part, busy_s: f64) {
        let number = self.numbers.entry(part.number).or_default();
        number.busy_s += busy_s;
        if let Some(spread) = part.spread {
            number.repeated_s += busy_s;
            number.uncertain_s += busy_s * spread / NORMAL_IQR;
        }
        for (asked, of_weights) in [(part.asked, false), (part.weights, true)] {
            if let Some(asked) = asked.filter(Asked::is_outside) {
                self.add_outside((part.number, of_weights), asked, busy_s);
            }
        }
    }

    fn add_outside(&mut self, curve: (&'static str, bool), asked: Asked, busy_s: f64) {
        let outside = self.outside.entry(curve).or_insert(Outside {
            unit: asked.unit,
            asked: Range::at(asked.size),
            known: Range {
                low: asked.first,
                high: asked.last,
            },
            busy_s: 0.0,
        });
        outside.asked = outside.asked.with(asked.size);
        // Of curves that share a key, what all of them know; where that is nothing, what the first knows.
        let low = outside.known.low.max(asked.first);
        let high = outside.known.high.min(asked.last);
        if low <= high {
            outside.known = Range { low, high };
        }
        outside.busy_s += busy_s;
    }

    /// The standard deviation of the latency's logarithm: a number that is off moves the latency by the
    /// share of the time that it decides, and numbers are off independently. None where most of them
    /// come without a spread.
    pub(crate) fn log_sigma(&self) -> Option<f64> {
        let sum = |of: fn(&Weight) -> f64| self.numbers.values().map(of).sum::<f64>();
        let repeated = sum(|number| number.repeated_s);
        let enough = repeated > 0.0 && repeated >= REPEATED_MIN * sum(|number| number.busy_s);
        let squares = self.numbers.values();
        let squares = squares.map(|number| (number.uncertain_s / self.latency_s).powi(2));
        enough.then(|| squares.sum::<f64>().sqrt())
    }

    /// What the run drew from the host's memory in the mean, where that is more than this gives by a number that nobody measured
    /// there: what is measured there is trusted, copies beside reads too.
    pub(crate) fn host_overdraw(&self, profile: &HardwareProfile) -> Option<Overdraw> {
        let tiers = &profile.tiers;
        let (number, gives) = match &tiers.host_shared {
            Some(shared) => ("tiers.host_shared", shared),
            None => ("tiers.host_bandwidth", &tiers.host_bandwidth),
        };
        let asked = self.host_bytes / self.latency_s;
        let source = profile.sources.get(&gives.source);
        let is_measured = source.is_some_and(|source| source.kind == SourceKind::Measured);
        (!is_measured && asked > OVERDRAWN * gives.value.0).then(|| Overdraw {
            asked_bytes_per_s: BytesPerSecond(asked),
            gives_bytes_per_s: gives.value,
            number: number.to_owned(),
        })
    }

    /// The curves that were asked outside their points, the longest busy first.
    pub(crate) fn extrapolations(&self) -> Vec<Extrapolation> {
        let of = |((curve, of_weights), outside): (&(&'static str, bool), &Outside)| {
            let curve = match of_weights {
                true => format!("{curve}.weights"),
                false => (*curve).to_owned(),
            };
            Extrapolation {
                curve,
                unit: outside.unit,
                asked: outside.asked,
                known: outside.known,
                busy_fraction: outside.busy_s / self.latency_s,
            }
        };
        let mut all: Vec<Extrapolation> = self.outside.iter().map(of).collect();
        all.sort_by(|a, b| b.busy_fraction.total_cmp(&a.busy_fraction));
        all
    }
}

/// Every distinct operation of a piece, where it ran, and how long all of its tasks took from one time to
/// another, and how many that are, parts of some of them counted as such.
fn for_each_operation(
    piece: &Program,
    (machine, trace): (&Machine, &Trace),
    (from, to): (Seconds, Seconds),
    mut each: impl FnMut(Resource, &Op, (f64, f64)),
) {
    let lanes = machine.resources.len();
    let mut busy = vec![(0.0, 0.0); piece.ops().len() * lanes];
    for (task, id) in piece.tasks().iter().zip(piece.first_task().0..) {
        if let Some(span) = trace.span(TaskId(id)) {
            let slot = task.op.0 as usize * lanes + task.resource.0 as usize;
            let within = span.within(from, to).0;
            busy[slot].0 += within;
            busy[slot].1 += within / span.duration().0.max(f64::MIN_POSITIVE);
        }
    }
    for (slot, busy) in busy.into_iter().enumerate().filter(|(_, it)| it.0 > 0.0) {
        let on = machine.resources[slot % lanes];
        each(on, &piece.ops()[slot / lanes], busy);
    }
}
