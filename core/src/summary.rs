//! What a run amounts to: the figures that a prediction and a measurement share.

use serde::{Deserialize, Serialize};

use crate::control::Run;
use crate::program::{Buffer, Cell, Op, ResourceKind, Stage, TaskId};
use crate::tier::PerTier;
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
    /// Sums up a run of a static plan.
    pub fn of(run: &Run) -> Summary {
        let latency = run.trace.makespan();
        let mut busy = BusyFraction::default();
        let mut rounds: Vec<RoundTimes> = Vec::new();
        let mut tokens = 0;
        for (id, op, resource, cell) in run.tasks() {
            let Some(span) = run.trace.span(id) else { continue };
            if let Some(share) = busy.slot(run.machine.resources[resource].kind) {
                *share += span.duration().0 / latency.0.max(f64::MIN_POSITIVE);
            }
            if let Op::Linear { stage: Stage::Head, m, .. } = op {
                tokens += u64::from(*m);
                let round = cell.round as usize;
                rounds.resize(rounds.len().max(round + 1), RoundTimes::default());
                rounds[round].see(cell, span.end);
            }
        }
        let (bottleneck, _) = busy.named().into_iter().fold(("gpu", 0.0), |best, next| {
            if next.1 > best.1 { next } else { best }
        });
        let prefill = prefill_time(&rounds);
        Summary {
            throughput_tok_s: tokens as f64 / latency.0.max(f64::MIN_POSITIVE),
            latency_s: latency,
            prefill_s: prefill,
            decode_s: latency - prefill,
            generated_tokens: tokens,
            peak_bytes: peak_bytes(run),
            busy_fraction: busy,
            bottleneck: bottleneck.to_owned(),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct RoundTimes {
    prefill_end: Seconds,
    end: Seconds,
}

impl RoundTimes {
    fn see(&mut self, cell: Cell, end: Seconds) {
        self.end = self.end.max(end);
        if cell.pass == 0 {
            self.prefill_end = self.prefill_end.max(end);
        }
    }
}

fn prefill_time(rounds: &[RoundTimes]) -> Seconds {
    let mut begun = Seconds::ZERO;
    let mut total = Seconds::ZERO;
    for round in rounds {
        total += round.prefill_end - begun;
        begun = round.end;
    }
    total
}

/// The most bytes of buffers alive at once in each tier, by when tasks really ran.
pub fn peak_bytes(run: &Run) -> PerTier<Bytes> {
    let buffers: Vec<Buffer> = run.pieces.iter().flat_map(|p| p.buffers()).copied().collect();
    let tier_of = |buffer: &Buffer| run.machine.arenas[buffer.arena.0 as usize].tier;
    let mut now = PerTier::<i128>::default();
    for buffer in buffers.iter().filter(|b| b.resident) {
        now[tier_of(buffer)] += i128::from(buffer.bytes.0);
    }
    let mut changes: Vec<(f64, bool, u32)> = Vec::new();
    for piece in &run.pieces {
        for index in 0..piece.tasks().len() {
            let task = TaskId(piece.first_task().0 + index as u32);
            let Some(span) = run.trace.span(task) else { continue };
            let takes = piece.takes_at(index).iter().map(|b| (span.start.0, true, b.0));
            let gives = piece.gives_at(index).iter().map(|b| (span.end.0, false, b.0));
            changes.extend(takes.chain(gives));
        }
    }
    // What is given back at an instant makes room for what is taken then.
    changes.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    let mut peak = now;
    for (_, taken, id) in changes {
        let buffer = &buffers[id as usize];
        let tier = tier_of(buffer);
        let bytes = i128::from(buffer.bytes.0);
        now[tier] += if taken { bytes } else { -bytes };
        peak[tier] = peak[tier].max(now[tier]);
    }
    peak.map(|bytes| Bytes(u64::try_from(bytes).unwrap_or(0)))
}
