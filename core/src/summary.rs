//! What a run amounts to: the figures that a prediction and a measurement share.

use serde::{Deserialize, Serialize};

use crate::Dtype;
use crate::control::Run;
use crate::extrapolation::Extrapolation;
use crate::interval::Interval;
use crate::machine::{Machine, Resource, ResourceKind};
use crate::overdraw::Overdraw;
use crate::tally::Tally;
use crate::term::Term;
use crate::tier::PerTier;
use crate::timing::{Timing, heads, prefill_end};
use crate::units::{Bytes, Seconds};

/// Times, rates, memory and the bottleneck of a run, predicted or measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Generated tokens over the whole time, prefill included (FlexGen section 6).
    pub throughput_tok_s: f64,
    /// From the start to the last token of the last sequence.
    pub latency_s: Seconds,
    /// Until each round's first tokens, summed over rounds. Where prefill and decode share passes ([`Summary::shares_passes`]) that
    /// is less than what prompts take: most are prefilled beside others' decoding.
    pub prefill_s: Seconds,
    /// The rest; none where each sequence has one token, which prefill chooses.
    pub decode_s: Option<Seconds>,
    /// Tokens after the first of each sequence, over the rest (FlexGen section 6.1); none where there are
    /// none, or where prefill and decode share passes.
    #[serde(default)]
    pub decode_throughput_tok_s: Option<f64>,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// The most that was alive at once: of several GPUs and hosts, on the fullest.
    pub peak_bytes: PerTier<Bytes>,
    /// Share of the time that each resource was busy: of several GPUs and hosts, their mean.
    pub busy_fraction: BusyFraction,
    /// The resource that was busy longest.
    pub bottleneck: ResourceKind,
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
    /// Of a prediction: that it draws more from the host's memory than the profile says that this gives; none where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_overdraw: Option<Overdraw>,
    /// Of a prediction: terms of the cost model that were switched off for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Term>,
    /// Of a prediction: the type whose rates of matrix products stand for those of the plan's, which the
    /// profile does not have; none where it has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates_of: Option<Dtype>,
}

/// What one stage of a pipeline did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageSummary {
    /// Share of prefill, until the last stage has the first round's last first token, in which it had no
    /// pass under way: the pipeline's bubbles as it fills and drains (FlexGen section 6.1).
    pub prefill_bubble: f64,
    /// The same of the time after it; none where nothing is decoded.
    pub decode_bubble: Option<f64>,
    /// The same of all the time.
    #[serde(default)]
    pub bubble: f64,
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
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pin: f64,
}

fn is_zero(share: &f64) -> bool {
    *share == 0.0
}

impl BusyFraction {
    /// With each kind of resource, in the order in which they are told.
    pub fn by_kind(&self) -> [(ResourceKind, f64); 8] {
        [
            (ResourceKind::Gpu, self.gpu),
            (ResourceKind::H2d, self.h2d),
            (ResourceKind::D2h, self.d2h),
            (ResourceKind::DiskRead, self.disk_read),
            (ResourceKind::DiskWrite, self.disk_write),
            (ResourceKind::Cpu, self.cpu),
            (ResourceKind::PeerLink, self.peer_link),
            (ResourceKind::Pin, self.pin),
        ]
    }

    /// The share of one kind; 0 of barriers, which take no engine.
    pub fn of(&self, kind: ResourceKind) -> f64 {
        let found = self.by_kind().into_iter().find(|(of, _)| *of == kind);
        found.map_or(0.0, |(_, share)| share)
    }

    /// The resource that was busy longest.
    pub(crate) fn longest(&self) -> ResourceKind {
        let longer = |best: (ResourceKind, f64), next: (ResourceKind, f64)| {
            if next.1 > best.1 { next } else { best }
        };
        let all = self.by_kind().into_iter();
        all.fold((ResourceKind::Gpu, 0.0), longer).0
    }

    /// The mean of each kind's resources among those that count.
    pub(crate) fn mean(
        machine: &Machine,
        busy: &[f64],
        counts: impl Fn(&Resource) -> bool,
    ) -> BusyFraction {
        let mut mean = BusyFraction::default();
        for kind in ResourceKind::ALL {
            let resources = machine.resources.iter().zip(busy);
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
            pin: share(|busy| busy.pin),
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
            ResourceKind::Pin => Some(&mut self.pin),
            ResourceKind::Sync => None,
        }
    }
}

impl Summary {
    /// Whether some prompts are prefilled while others decode, so that neither has a time of its own.
    pub fn shares_passes(&self) -> bool {
        self.decode_s.is_some() && self.decode_throughput_tok_s.is_none()
    }

    /// Sums up a run of a static plan, all of it.
    pub fn of(run: &Run) -> Summary {
        Summary::timed(run, Timing::of(run))
    }

    /// Sums up a run as if its second round came `more` times again. None where there is no second.
    pub fn of_repeated(run: &Run, more: u64) -> Option<Summary> {
        let second = Timing::of_round(run, 1)?;
        let of_second = Summary::timed(run, second);
        let first = Summary::of(run);
        let prefill_end = prefill_end(&heads(run));
        Some(Summary {
            stages: first.stages_followed_by(&of_second, more as f64, prefill_end),
            ..first.followed_by(&of_second, more as f64)
        })
    }

    /// What stages do in this and then in something else so many times, in the same memory.
    fn stages_followed_by(
        &self,
        next: &Summary,
        times: f64,
        prefill_end: Seconds,
    ) -> Vec<StageSummary> {
        let (first_s, next_s) = (self.latency_s.0, times * next.latency_s.0);
        let decode_s = (self.latency_s - prefill_end).0;
        let mean = |a: (f64, f64), b: (f64, f64)| {
            (a.0 * a.1 + b.0 * b.1) / (a.1 + b.1).max(f64::MIN_POSITIVE)
        };
        let both = self.stages.iter().zip(&next.stages);
        both.map(|(stage, then)| StageSummary {
            decode_bubble: stage
                .decode_bubble
                .map(|bubble| mean((bubble, decode_s), (then.bubble, next_s))),
            bubble: mean((stage.bubble, first_s), (then.bubble, next_s)),
            busy_fraction: BusyFraction::of_parts(
                (&stage.busy_fraction, first_s),
                (&then.busy_fraction, next_s),
            ),
            ..*stage
        })
        .collect()
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
            decode_s: self.decode_s_with(next, times),
            decode_throughput_tok_s: self.decode_rate_with(next, times),
            generated_tokens: generated as u64,
            peak_bytes: self.peak_bytes,
            busy_fraction: busy,
            bottleneck: busy.longest(),
            stages: self.stages.clone(),
            interval: None,
            extrapolates: Vec::new(),
            host_overdraw: None,
            without: Vec::new(),
            rates_of: None,
        }
    }

    fn decode_s_with(&self, next: &Summary, times: f64) -> Option<Seconds> {
        Some(self.decode_s? + next.decode_s? * times)
    }

    fn decode_rate_with(&self, next: &Summary, times: f64) -> Option<f64> {
        let tokens =
            |summary: &Summary| Some(summary.decode_throughput_tok_s? * summary.decode_s?.0);
        let decode_s = self.decode_s_with(next, times)?;
        let tokens = tokens(self)? + tokens(next)? * times;
        Some(tokens / decode_s.0.max(f64::MIN_POSITIVE))
    }

    /// Sums up the part of a run that was timed; the peak is that of all until its end.
    pub fn timed(run: &Run, timing: Timing) -> Summary {
        let mut tally = Tally::new(&run.machine);
        for piece in &run.pieces {
            tally.see(piece, &run.trace, (timing.from, timing.to()));
        }
        tally.summary(timing)
    }
}
