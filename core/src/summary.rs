//! What a run amounts to: the figures that a prediction and a measurement share.

use serde::{Deserialize, Serialize};

use crate::control::Run;
use crate::extrapolation::Extrapolation;
use crate::interval::Interval;
use crate::machine::{Arena, Resource, ResourceKind};
use crate::plan::Plan;
use crate::program::{BufferId, TaskId};
use crate::term::Term;
use crate::tier::PerTier;
use crate::timing::{Timing, prefill_end};
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
    /// Tokens after the first of each sequence, over the rest (FlexGen section 6.1); none where there are
    /// none, or where prefill and decode share passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_throughput_tok_s: Option<f64>,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// The most that was alive at once: of several GPUs and hosts, on the fullest.
    pub peak_bytes: PerTier<Bytes>,
    /// Share of the time that each resource was busy: of several GPUs and hosts, their mean.
    pub busy_fraction: BusyFraction,
    /// The resource that was busy longest.
    pub bottleneck: String,
    /// What each of several stages did; empty where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageSummary>,
    /// Of a prediction: where a measurement is expected; none where the profile does not say how far off
    /// it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// Of a prediction: which curves it asked outside their points, the longest busy first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extrapolates: Vec<Extrapolation>,
    /// Of a prediction: terms of the cost model that were switched off for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Term>,
}

/// What one stage of a pipeline did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageSummary {
    /// Share of prefill, until the last stage has the first round's last first token, in which it had no
    /// pass under way: the pipeline's bubbles as it fills and drains (FlexGen section 6.1).
    pub prefill_bubble: f64,
    /// The same of the time after it.
    pub decode_bubble: f64,
    /// Share of the time that its engines were busy. Those of a host that it shares count for the first
    /// stage there.
    pub busy_fraction: BusyFraction,
    /// The most that was alive at once in its memories, likewise.
    pub peak_bytes: PerTier<Bytes>,
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
    #[serde(default, skip_serializing_if = "is_zero")]
    pub peer_link: f64,
}

fn is_zero(share: &f64) -> bool {
    *share == 0.0
}

impl BusyFraction {
    /// With each resource's name.
    pub fn named(&self) -> [(&'static str, f64); 7] {
        [
            ("gpu", self.gpu),
            ("h2d", self.h2d),
            ("d2h", self.d2h),
            ("disk_read", self.disk_read),
            ("disk_write", self.disk_write),
            ("cpu", self.cpu),
            ("peer_link", self.peer_link),
        ]
    }

    /// The resource that was busy longest.
    fn longest(&self) -> &'static str {
        let longer = |best: (&'static str, f64), next: (&'static str, f64)| {
            if next.1 > best.1 { next } else { best }
        };
        self.named().into_iter().fold(("gpu", 0.0), longer).0
    }

    /// Shares of a stretch of time, by resource.
    fn of_resources(run: &Run, from: Seconds, to: Seconds) -> Vec<f64> {
        let all = (to - from).0.max(f64::MIN_POSITIVE);
        let mut busy = vec![0.0; run.machine.resources.len()];
        for (id, _, resource, _) in run.tasks() {
            if let Some(span) = run.trace.span(id) {
                busy[resource] += (span.end.0.min(to.0) - span.start.0.max(from.0)).max(0.0) / all;
            }
        }
        busy
    }

    /// The mean of each kind's resources among those that count.
    fn mean(run: &Run, busy: &[f64], counts: impl Fn(&Resource) -> bool) -> BusyFraction {
        let mut mean = BusyFraction::default();
        for kind in ResourceKind::ALL {
            let resources = run.machine.resources.iter().zip(busy);
            let of_kind = resources.filter(|(r, _)| r.kind == kind && counts(r));
            let shares: Vec<f64> = of_kind.map(|(_, share)| *share).collect();
            if let Some(slot) = mean.slot(kind)
                && !shares.is_empty()
            {
                *slot = shares.iter().sum::<f64>() / shares.len() as f64;
            }
        }
        mean
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
            peer_link: share(|busy| busy.peer_link),
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
            ResourceKind::PeerLink => Some(&mut self.peer_link),
            ResourceKind::Pin | ResourceKind::Sync => None,
        }
    }
}

impl Summary {
    /// Sums up a run of a static plan, all of it.
    pub fn of(run: &Run) -> Summary {
        Summary::timed(run, Timing::of(run))
    }

    /// Sums up a run of a plan: all but the peak is of what [`Timing::of_plan`] measures.
    pub fn of_plan(plan: &Plan, run: &Run) -> Summary {
        Summary::timed(run, Timing::of_plan(plan, run))
    }

    /// Sums up a run as if its second round came `more` times again. None where there is no second.
    pub fn of_repeated(run: &Run, more: u64) -> Option<Summary> {
        let second = Timing::of_round(run, 1)?;
        let of_second = Summary::timed(run, second);
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
            decode_throughput_tok_s: self.decode_rate_with(next, times),
            generated_tokens: generated as u64,
            peak_bytes: self.peak_bytes,
            busy_fraction: busy,
            bottleneck: busy.longest().to_owned(),
            stages: self.stages.clone(),
            interval: None,
            extrapolates: Vec::new(),
            without: Vec::new(),
        }
    }

    fn decode_rate_with(&self, next: &Summary, times: f64) -> Option<f64> {
        let tokens =
            |summary: &Summary| Some(summary.decode_throughput_tok_s? * summary.decode_s.0);
        let decode_s = self.decode_s + next.decode_s * times;
        let tokens = tokens(self)? + tokens(next)? * times;
        Some(tokens / decode_s.0.max(f64::MIN_POSITIVE))
    }

    /// Sums up the part of a run that was timed; the peak is that of all of it.
    pub fn timed(run: &Run, timing: Timing) -> Summary {
        let to = timing.from + timing.latency_s;
        let resources = BusyFraction::of_resources(run, timing.from, to);
        let busy = BusyFraction::mean(run, &resources, |_| true);
        let peaks = peak_bytes_of_arenas(run);
        Summary {
            throughput_tok_s: timing.throughput_tok_s(),
            latency_s: timing.latency_s,
            prefill_s: timing.prefill_s,
            decode_s: timing.decode_s(),
            decode_throughput_tok_s: timing.decode_throughput_tok_s(),
            generated_tokens: timing.generated_tokens,
            peak_bytes: fullest(run, &peaks, |_| true),
            busy_fraction: busy,
            bottleneck: busy.longest().to_owned(),
            stages: stages(run, &resources, &peaks),
            interval: None,
            extrapolates: Vec::new(),
            without: Vec::new(),
        }
    }
}

/// The most bytes of buffers alive at once in each tier, by when tasks really ran: of several GPUs and
/// hosts, on the fullest.
pub fn peak_bytes(run: &Run) -> PerTier<Bytes> {
    fullest(run, &peak_bytes_of_arenas(run), |_| true)
}

/// The most of each tier's arenas among those that count.
fn fullest(run: &Run, peaks: &[Bytes], counts: impl Fn(&Arena) -> bool) -> PerTier<Bytes> {
    let mut most = PerTier::<Bytes>::default();
    for (arena, peak) in run.machine.arenas.iter().zip(peaks) {
        if counts(arena) {
            most[arena.tier] = most[arena.tier].max(*peak);
        }
    }
    most
}

fn peak_bytes_of_arenas(run: &Run) -> Vec<Bytes> {
    let mut now = vec![0_i64; run.machine.arenas.len()];
    let mut sizes: Vec<(usize, i64)> = Vec::new();
    for buffer in run.pieces.iter().flat_map(|p| p.buffers()) {
        let arena = usize::from(buffer.arena.0);
        let bytes = i64::try_from(buffer.bytes.0).unwrap_or(i64::MAX);
        sizes.push((arena, bytes));
        if buffer.resident {
            now[arena] += bytes;
        }
    }
    let mut peak = now.clone();
    for change in changes(run) {
        let (arena, bytes) = sizes[change.buffer.0 as usize];
        if change.taken {
            now[arena] += bytes;
            peak[arena] = peak[arena].max(now[arena]);
        } else {
            now[arena] -= bytes;
        }
    }
    let bytes = peak.into_iter().map(u64::try_from);
    bytes.map(|bytes| Bytes(bytes.unwrap_or(0))).collect()
}

/// What each stage did, where there are several.
fn stages(run: &Run, resources: &[f64], peaks: &[Bytes]) -> Vec<StageSummary> {
    let gpus = run.machine.num_gpus();
    if gpus == 1 {
        return Vec::new();
    }
    let passes = passes_of_stages(run, gpus);
    let (prefill_end, end) = (prefill_end(run).0, run.trace.makespan().0);
    let idle = |gpu: usize, from: f64, to: f64| {
        let passes = passes[gpu].iter();
        let within = passes.map(|(start, end)| (end.min(to) - start.max(from)).max(0.0));
        1.0 - within.sum::<f64>() / (to - from).max(f64::MIN_POSITIVE)
    };
    let stage = |gpu: usize| StageSummary {
        prefill_bubble: idle(gpu, 0.0, prefill_end).clamp(0.0, 1.0),
        decode_bubble: idle(gpu, prefill_end, end).clamp(0.0, 1.0),
        busy_fraction: BusyFraction::mean(run, resources, |r| usize::from(r.gpu) == gpu),
        peak_bytes: fullest(run, peaks, |a| usize::from(a.gpu) == gpu),
    };
    (0..gpus).map(stage).collect()
}

/// When each stage's GPU began and ended its part of each piece, which has a pass of a stage at most.
fn passes_of_stages(run: &Run, gpus: usize) -> Vec<Vec<(f64, f64)>> {
    let mut passes = vec![Vec::new(); gpus];
    for piece in &run.pieces {
        let mut within = vec![None::<(f64, f64)>; gpus];
        for (index, task) in piece.tasks().iter().enumerate() {
            let resource = &run.machine.resources[usize::from(task.resource.0)];
            let id = TaskId(piece.first_task().0 + index as u32);
            let Some(span) = run.trace.span(id) else {
                continue;
            };
            if resource.kind == ResourceKind::Gpu {
                let pass = &mut within[usize::from(resource.gpu)];
                let begun = pass.map_or(span.start.0, |(start, _)| start);
                *pass = Some((begun, span.end.0));
            }
        }
        for (all, pass) in passes.iter_mut().zip(within) {
            all.extend(pass);
        }
    }
    passes
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
