//! What a run amounts to: the figures that a prediction and a measurement share.

use serde::{Deserialize, Serialize};

use crate::control::Run;
use crate::plan::Plan;
use crate::program::{BufferId, ResourceKind, TaskId};
use crate::tier::{PerTier, Tier};
use crate::timing::Timing;
use crate::units::{Bytes, Seconds};

/// Times, rates, memory and the bottleneck of a run, predicted or measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Generated tokens over the whole time, prefill included (FlexGen section 6).
    pub throughput_tok_s: f64,
    /// From the start to the last token of the last sequence.
    pub latency_s: Seconds,
    /// Until each round's first tokens, summed over rounds.
    pub prefill_s: Seconds,
    /// The rest.
    pub decode_s: Seconds,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// The most that was alive at once.
    pub peak_bytes: PerTier<Bytes>,
    /// Share of the time that each resource was busy.
    pub busy_fraction: BusyFraction,
    /// The resource that was busy longest.
    pub bottleneck: String,
}

/// Share of the time that each resource was busy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // the resources' names
pub struct BusyFraction {
    pub gpu: f64,
    pub h2d: f64,
    pub d2h: f64,
    pub disk_read: f64,
    pub disk_write: f64,
    pub cpu: f64,
}

impl BusyFraction {
    /// With each resource's name.
    pub fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("gpu", self.gpu),
            ("h2d", self.h2d),
            ("d2h", self.d2h),
            ("disk_read", self.disk_read),
            ("disk_write", self.disk_write),
            ("cpu", self.cpu),
        ]
    }

    /// The resource that was busy longest.
    fn longest(&self) -> &'static str {
        let longer = |best: (&'static str, f64), next: (&'static str, f64)| {
            if next.1 > best.1 { next } else { best }
        };
        self.named().into_iter().fold(("gpu", 0.0), longer).0
    }

    /// Shares of a stretch of time.
    fn within(run: &Run, from: Seconds, to: Seconds) -> BusyFraction {
        let all = (to - from).0.max(f64::MIN_POSITIVE);
        let mut busy = BusyFraction::default();
        for (id, _, resource, _) in run.tasks() {
            if let Some(span) = run.trace.span(id)
                && let Some(share) = busy.slot(run.machine.resources[resource].kind)
            {
                *share += (span.end.0.min(to.0) - span.start.0.max(from.0)).max(0.0) / all;
            }
        }
        busy
    }

    /// Shares of two stretches of so many seconds together.
    fn of_parts(a: (&BusyFraction, f64), b: (&BusyFraction, f64)) -> BusyFraction {
        let all = (a.1 + b.1).max(f64::MIN_POSITIVE);
        let share = |of: fn(&BusyFraction) -> f64| (of(a.0) * a.1 + of(b.0) * b.1) / all;
        BusyFraction {
            gpu: share(|busy| busy.gpu),
            h2d: share(|busy| busy.h2d),
            d2h: share(|busy| busy.d2h),
            disk_read: share(|busy| busy.disk_read),
            disk_write: share(|busy| busy.disk_write),
            cpu: share(|busy| busy.cpu),
        }
    }

    fn slot(&mut self, kind: ResourceKind) -> Option<&mut f64> {
        match kind {
            ResourceKind::Gpu => Some(&mut self.gpu),
            ResourceKind::H2d => Some(&mut self.h2d),
            ResourceKind::D2h => Some(&mut self.d2h),
            ResourceKind::DiskRead => Some(&mut self.disk_read),
            ResourceKind::DiskWrite => Some(&mut self.disk_write),
            ResourceKind::Cpu => Some(&mut self.cpu),
            ResourceKind::Pin | ResourceKind::Sync | ResourceKind::PeerLink => None,
        }
    }
}

impl Summary {
    /// Sums up a run of a static plan, all of it.
    pub fn of(run: &Run) -> Summary {
        Summary::within(run, Timing::of(run))
    }

    /// Sums up a run of a plan: all but the peak is of what [`Timing::of_plan`] measures.
    pub fn of_plan(plan: &Plan, run: &Run) -> Summary {
        Summary::within(run, Timing::of_plan(plan, run))
    }

    /// Sums up a run as if its second round came `more` times again. None where there is no second.
    pub fn of_repeated(run: &Run, more: u64) -> Option<Summary> {
        let second = Timing::of_round(run, 1)?;
        let of_second = Summary::within(run, second);
        Some(Summary::of(run).followed_by(&of_second, more as f64))
    }

    /// This and then something else so many times, in the same memory.
    fn followed_by(&self, next: &Summary, times: f64) -> Summary {
        let generated = self.generated_tokens as f64 + times * next.generated_tokens as f64;
        let latency = self.latency_s + next.latency_s * times;
        let busy = BusyFraction::of_parts(
            (&self.busy_fraction, self.latency_s.0),
            (&next.busy_fraction, times * next.latency_s.0),
        );
        Summary {
            throughput_tok_s: generated / latency.0.max(f64::MIN_POSITIVE),
            latency_s: latency,
            prefill_s: self.prefill_s + next.prefill_s * times,
            decode_s: self.decode_s + next.decode_s * times,
            generated_tokens: generated as u64,
            peak_bytes: self.peak_bytes,
            busy_fraction: busy,
            bottleneck: busy.longest().to_owned(),
        }
    }

    fn within(run: &Run, timing: Timing) -> Summary {
        let busy = BusyFraction::within(run, timing.from, timing.from + timing.latency_s);
        Summary {
            throughput_tok_s: timing.throughput_tok_s(),
            latency_s: timing.latency_s,
            prefill_s: timing.prefill_s,
            decode_s: timing.decode_s(),
            generated_tokens: timing.generated_tokens,
            peak_bytes: peak_bytes(run),
            busy_fraction: busy,
            bottleneck: busy.longest().to_owned(),
        }
    }
}

/// The most bytes of buffers alive at once in each tier, by when tasks really ran.
pub fn peak_bytes(run: &Run) -> PerTier<Bytes> {
    let mut now = PerTier::<i64>::default();
    let mut sizes: Vec<(Tier, i64)> = Vec::new();
    for buffer in run.pieces.iter().flat_map(|p| p.buffers()) {
        let tier = run.machine.arenas[buffer.arena.0 as usize].tier;
        let bytes = i64::try_from(buffer.bytes.0).unwrap_or(i64::MAX);
        sizes.push((tier, bytes));
        if buffer.resident {
            now[tier] += bytes;
        }
    }
    let mut peak = now;
    for change in changes(run) {
        let (tier, bytes) = sizes[change.buffer.0 as usize];
        if change.taken {
            now[tier] += bytes;
            peak[tier] = peak[tier].max(now[tier]);
        } else {
            now[tier] -= bytes;
        }
    }
    peak.map(|bytes| Bytes(u64::try_from(bytes).unwrap_or(0)))
}

/// A buffer that comes to life or is given back.
#[derive(Debug, Clone, Copy)]
struct Change {
    at: Seconds,
    taken: bool,
    buffer: BufferId,
}

/// All changes by time. What is given back at an instant makes room for what is taken then.
fn changes(run: &Run) -> Vec<Change> {
    // A resource starts its tasks in order and ends them in order, so each of these lists is in
    // order as it is filled, and the stable sort only has to merge them.
    let mut lists = vec![(Vec::new(), Vec::new()); run.machine.resources.len()];
    for piece in &run.pieces {
        for (index, task) in piece.tasks().iter().enumerate() {
            let id = TaskId(piece.first_task().0 + index as u32);
            let Some(span) = run.trace.span(id) else {
                continue;
            };
            let (takes, gives) = &mut lists[task.resource.0 as usize];
            let change = |at, taken| {
                move |buffer: &BufferId| Change {
                    at,
                    taken,
                    buffer: *buffer,
                }
            };
            takes.extend(piece.takes_at(index).iter().map(change(span.start, true)));
            gives.extend(piece.gives_at(index).iter().map(change(span.end, false)));
        }
    }
    let lists = lists.into_iter().flat_map(|(takes, gives)| [takes, gives]);
    let mut changes = lists.collect::<Vec<_>>().concat();
    changes.sort_by(|a, b| a.at.0.total_cmp(&b.at.0).then(a.taken.cmp(&b.taken)));
    changes
}
