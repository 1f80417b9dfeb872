//! Sums up a run piece by piece, so that what has ended need not be kept.

use std::collections::VecDeque;

use crate::machine::{Arena, Machine, Resource, ResourceKind};
use crate::program::{BufferId, Program, TaskId};
use crate::summary::{BusyFraction, StageSummary, Summary};
use crate::tier::PerTier;
use crate::timing::{Head, Timing, heads_of, prefill_end};
use crate::trace::{Span, Trace};
use crate::units::{Bytes, Seconds};

/// What the pieces so far amount to. Each is seen once, in order, after all of its tasks have ended.
#[derive(Debug)]
pub struct Tally {
    machine: Machine,
    heads: Vec<Head>,
    /// By resource, within the part that is timed.
    busy_s: Vec<f64>,
    occupied: Occupied,
    /// For each GPU, when it began and ended its part of each piece.
    passes: Vec<Vec<Span>>,
    end: f64,
}

impl Tally {
    /// Of no piece yet.
    pub fn new(machine: &Machine) -> Tally {
        Tally {
            heads: Vec::new(),
            busy_s: vec![0.0; machine.resources.len()],
            occupied: Occupied::new(machine.arenas.len()),
            passes: vec![Vec::new(); machine.num_gpus()],
            end: 0.0,
            machine: machine.clone(),
        }
    }

    /// Counts a piece: busy resources from one time to another, memory until the latter.
    pub fn see(&mut self, piece: &Program, trace: &Trace, (from, to): (Seconds, Seconds)) {
        self.heads.extend(heads_of(piece, trace));
        self.occupied.declare(piece);
        let mut within = vec![None::<Span>; self.passes.len()];
        for (index, task) in piece.tasks().iter().enumerate() {
            let id = TaskId(piece.first_task().0 + index as u32);
            let Some(span) = trace.span(id) else {
                continue;
            };
            let lane = usize::from(task.resource.0);
            self.end = self.end.max(span.end.0);
            self.busy_s[lane] += span.within(from, to).0;
            if span.start < to {
                let taken = piece.takes_at(index);
                self.occupied.change(span.start, true, taken);
            }
            self.occupied.change(span.end, false, piece.gives_at(index));
            let resource = &self.machine.resources[lane];
            if resource.kind == ResourceKind::Gpu {
                let pass = &mut within[usize::from(resource.gpu)];
                let start = pass.map_or(span.start, |pass| pass.start);
                *pass = Some(Span { start, ..span });
            }
        }
        for (all, pass) in self.passes.iter_mut().zip(within) {
            all.extend(pass);
        }
    }

    /// Says that no piece to come takes or gives a buffer before a time.
    pub fn settle(&mut self, before: Seconds) {
        self.occupied.settle(before);
    }

    /// The ends of GPU batches' passes so far.
    pub(crate) fn heads(&self) -> &[Head] {
        &self.heads
    }

    /// When the last task ended.
    pub fn end(&self) -> Seconds {
        Seconds(self.end)
    }

    /// The figures of the part that was timed; the peak is that of all until its end.
    pub fn summary(mut self, timing: Timing) -> Summary {
        self.occupied.settle(Seconds(f64::INFINITY));
        let all = timing.latency_s.0.max(f64::MIN_POSITIVE);
        let shares: Vec<f64> = self.busy_s.iter().map(|busy| busy / all).collect();
        let busy = BusyFraction::mean(&self.machine, &shares, |_| true);
        Summary {
            throughput_tok_s: timing.throughput_tok_s(),
            latency_s: timing.latency_s,
            prefill_s: timing.prefill_s,
            decode_s: timing.decode_s(),
            decode_throughput_tok_s: timing.decode_throughput_tok_s(),
            generated_tokens: timing.generated_tokens,
            peak_bytes: self.fullest(|_| true),
            busy_fraction: busy,
            bottleneck: busy.longest(),
            stages: self.stages(timing, &shares),
            interval: None,
            extrapolates: Vec::new(),
            host_overdraw: None,
            without: Vec::new(),
            rates_of: None,
        }
    }

    /// The most of each tier's arenas among those that count.
    fn fullest(&self, counts: impl Fn(&Arena) -> bool) -> PerTier<Bytes> {
        let mut most = PerTier::<Bytes>::default();
        for (arena, peak) in self.machine.arenas.iter().zip(self.occupied.peaks()) {
            if counts(arena) {
                most[arena.tier] = most[arena.tier].max(peak);
            }
        }
        most
    }

    /// What each stage did, where there are several.
    fn stages(&self, timing: Timing, shares: &[f64]) -> Vec<StageSummary> {
        let gpus = self.machine.num_gpus();
        if gpus == 1 {
            return Vec::new();
        }
        let (prefill_end, end) = (prefill_end(&self.heads), self.end());
        let idle = |gpu: usize, from: Seconds, to: Seconds| {
            let passes = self.passes[gpu].iter();
            let within = passes.map(|pass| pass.within(from, to).0);
            let idle = 1.0 - within.sum::<f64>() / (to - from).0.max(f64::MIN_POSITIVE);
            idle.clamp(0.0, 1.0)
        };
        let decodes = timing.decode_s().is_some();
        let stage = |gpu: usize| StageSummary {
            prefill_bubble: idle(gpu, Seconds::ZERO, prefill_end),
            decode_bubble: decodes.then(|| idle(gpu, prefill_end, end)),
            bubble: idle(gpu, timing.from, timing.to()),
            busy_fraction: BusyFraction::mean(&self.machine, shares, |r: &Resource| {
                usize::from(r.gpu) == gpu
            }),
            peak_bytes: self.fullest(|a| usize::from(a.gpu) == gpu),
        };
        (0..gpus).map(stage).collect()
    }
}

/// What each arena holds, and has held at most.
#[derive(Debug)]
struct Occupied {
    /// Of each buffer from the oldest that is not given back yet on, its arena and its bytes; none where it
    /// is given back, or resident.
    sizes: VecDeque<Option<(u8, i64)>>,
    /// The number of the first of them.
    oldest: u32,
    resident: Vec<i64>,
    now: Vec<i64>,
    most: Vec<i64>,
    /// Not settled yet.
    changes: Vec<Change>,
}

/// A buffer that comes to life or is given back.
#[derive(Debug, Clone, Copy)]
struct Change {
    at: Instant,
    /// Its arena and its bytes.
    size: (u8, i64),
}

/// A time and, behind it, whether something is taken then. What is given back at an instant makes room for what
/// is taken then, so it comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Instant(u64);

impl Instant {
    /// Times are not negative, so their bits are in their order, and the first bit has nothing to say.
    fn new(at: Seconds, taken: bool) -> Instant {
        Instant(at.0.to_bits() << 1 | u64::from(taken))
    }

    fn taken(self) -> bool {
        self.0 & 1 == 1
    }
}

impl Occupied {
    fn new(arenas: usize) -> Occupied {
        Occupied {
            sizes: VecDeque::new(),
            oldest: 0,
            resident: vec![0; arenas],
            now: vec![0; arenas],
            most: vec![0; arenas],
            changes: Vec::new(),
        }
    }

    fn declare(&mut self, piece: &Program) {
        for buffer in piece.buffers() {
            let bytes = i64::try_from(buffer.bytes.0).unwrap_or(i64::MAX);
            if buffer.resident {
                self.resident[usize::from(buffer.arena.0)] += bytes;
            }
            let size = (buffer.arena.0, bytes);
            self.sizes.push_back((!buffer.resident).then_some(size));
        }
    }

    fn change(&mut self, at: Seconds, taken: bool, buffers: &[BufferId]) {
        for buffer in buffers {
            let place = buffer
                .0
                .checked_sub(self.oldest)
                .map(|place| place as usize);
            let Some(slot) = place.and_then(|place| self.sizes.get_mut(place)) else {
                continue;
            };
            let size = if taken { *slot } else { slot.take() };
            let at = Instant::new(at, taken);
            self.changes.extend(size.map(|size| Change { at, size }));
        }
    }

    /// Forgets the oldest buffers that are given back.
    fn forget(&mut self) {
        while let Some(None) = self.sizes.front() {
            self.sizes.pop_front();
            self.oldest += 1;
        }
    }

    /// Applies all changes before a time.
    fn settle(&mut self, before: Seconds) {
        self.forget();
        let before = Instant::new(before, false);
        let mut settled: Vec<Change> = self
            .changes
            .extract_if(.., |change| change.at < before)
            .collect();
        settled.sort_unstable_by_key(|change| change.at);
        for change in settled {
            let (arena, bytes) = (usize::from(change.size.0), change.size.1);
            if change.at.taken() {
                self.now[arena] += bytes;
                self.most[arena] = self.most[arena].max(self.now[arena]);
            } else {
                self.now[arena] -= bytes;
            }
        }
    }

    fn peaks(&self) -> impl Iterator<Item = Bytes> + '_ {
        let all = self.resident.iter().zip(&self.most);
        all.map(|(resident, most)| Bytes(u64::try_from(resident + most).unwrap_or(0)))
    }
}
