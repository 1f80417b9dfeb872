//! What a run of requests amounts to.

use serde::{Deserialize, Serialize};

use super::distribution::Distribution;
use super::pie::Swapped;
use super::sequence::{Sequence, State};
use crate::units::Seconds;

/// Counts while requests are served.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Iterations so far.
    pub iterations: u64,
    /// Tokens made: sequences of all iterations.
    pub tokens: u64,
    /// Sequences at most in an iteration.
    pub largest_batch: u32,
    /// Tokens of prompts computed, those computed again among them.
    pub prompt_tokens: u64,
    /// Tokens computed again after their request had to leave.
    pub recomputed_tokens: u64,
    /// How often a request had to leave.
    pub preemptions: u64,
    /// Caches of requests that went to the host.
    pub swaps_out: u64,
    /// Caches of requests that came back.
    pub swaps_in: u64,
    /// Bytes that both moved.
    pub swapped_bytes: u64,
    /// Time of all iterations.
    pub busy: Seconds,
    /// The same of the batch that has most of it, during which shares of the cache are averaged: while others have nothing to do, their
    /// parts are empty.
    longest: Seconds,
    /// Tokens in the cache and tokens whose room was given away, as shares of the cache, times time.
    used: f64,
    reserved: f64,
    /// From a sequence's token to its next, with how many sequences had to wait for so long.
    gaps: Vec<(f64, u64)>,
}

impl Ledger {
    /// An iteration of `seconds` with so many sequences, and shares of the cache that were in use and given away.
    pub(super) fn iteration(&mut self, seconds: f64, sequences: u32, (used, reserved): (f64, f64)) {
        self.iterations += 1;
        self.tokens += u64::from(sequences);
        self.largest_batch = self.largest_batch.max(sequences);
        self.busy += Seconds(seconds);
        self.longest = self.busy;
        self.used += used * seconds;
        self.reserved += reserved * seconds;
    }

    /// Of batches that were in flight at the same time: counts of all of them, times and shares of the cache as of each on
    /// average.
    pub(super) fn of_all<'a>(batches: impl ExactSizeIterator<Item = &'a Ledger>) -> Ledger {
        let share = 1.0 / batches.len() as f64;
        batches.fold(Ledger::default(), |sum, it| Ledger {
            iterations: sum.iterations + it.iterations,
            tokens: sum.tokens + it.tokens,
            largest_batch: sum.largest_batch.max(it.largest_batch),
            prompt_tokens: sum.prompt_tokens + it.prompt_tokens,
            recomputed_tokens: sum.recomputed_tokens + it.recomputed_tokens,
            preemptions: sum.preemptions + it.preemptions,
            swaps_out: sum.swaps_out + it.swaps_out,
            swaps_in: sum.swaps_in + it.swaps_in,
            swapped_bytes: sum.swapped_bytes + it.swapped_bytes,
            busy: sum.busy + Seconds(it.busy.0 * share),
            longest: Seconds(sum.longest.0.max(it.longest.0)),
            used: sum.used + it.used * share,
            reserved: sum.reserved + it.reserved * share,
            gaps: [sum.gaps, it.gaps.clone()].concat(),
        })
    }

    /// So many sequences had to wait for their next token for so long.
    pub(super) fn gap(&mut self, seconds: f64, sequences: u32) {
        if sequences > 0 {
            self.gaps.push((seconds, u64::from(sequences)));
        }
    }
}

/// What a run of requests amounts to. A latency is a sequence's own; times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeSummary {
    /// Requests that have their answers.
    pub completed: u64,
    /// Requests that can never have room.
    pub refused: u64,
    /// From the first arrival to the last token.
    pub duration_s: f64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Requests completed a second.
    pub requests_per_s: f64,
    /// Tokens of answers a second (Pie's throughput).
    pub output_tokens_per_s: f64,
    /// From arrival to the first token.
    pub ttft_s: Distribution,
    /// Between a sequence's first token and its last, by tokens; of answers of two tokens and more.
    pub tpot_s: Distribution,
    /// From a token to the next.
    pub itl_s: Distribution,
    /// From arrival to the last token.
    pub e2e_s: Distribution,
    /// Time in which a request was in no iteration, by the tokens of its answer (Pie, section 5.1).
    pub queueing_s_per_token: Distribution,
    /// Time of the iterations that computed it, by the tokens of its answer (Pie, section 5.1).
    pub compute_s_per_token: Distribution,
    /// The seconds a token within which an answer counts as good.
    pub slo_s_per_token: f64,
    /// Requests a second whose whole latency was within it, times their tokens (S3, section 4.1).
    pub goodput_per_s: f64,
    /// Their share of all that were completed.
    pub within_slo: f64,
    /// Tokens whose keys and values the cache has room for, at the end.
    pub kv_capacity_tokens: u64,
    /// Share of the cache that held tokens, over time in iterations.
    pub kv_used: f64,
    /// Share of the cache that was given away, likewise.
    pub kv_reserved: f64,
    /// Iterations.
    pub iterations: u64,
    /// Sequences in an iteration, on average.
    pub average_batch: f64,
    /// Sequences in an iteration, at most.
    pub largest_batch: u32,
    /// How often a request had to leave before its end.
    pub preemptions: u64,
    /// Tokens computed again for that.
    pub recomputed_tokens: u64,
    /// Caches of requests that went to the host, and came back.
    pub swaps: [u64; 2],
    /// Bytes that they moved.
    pub swapped_bytes: u64,
    /// Share of the duration in which an iteration was under way; of several batches in flight, of the one that has most.
    pub busy: f64,
    /// What swapping layers amounts to; none where none are.
    pub layers: Option<LayersSummary>,
}

/// What swapping layers of the cache amounts to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayersSummary {
    /// Layers that went to the host, and came back.
    pub swaps: [u64; 2],
    /// Bytes that they moved.
    pub bytes: u64,
    /// Time in which a layer waited for its cache.
    pub stalled_s: f64,
    /// Expansion, buffers counted, over time.
    pub expansion: f64,
    /// When expansion changed, and to which, from the first on.
    pub expansions: Vec<(f64, f64)>,
}

impl LayersSummary {
    /// From when the first request came to the last token.
    fn of(swapped: &Swapped, begin: Seconds, end: Seconds) -> LayersSummary {
        let changes = &swapped.expansions;
        let ends = changes.iter().skip(1).map(|(at, _)| *at);
        let lasted = changes.iter().zip(ends.chain([end]));
        let total: f64 = lasted
            .map(|((from, value), to)| value * (to.0 - from.0.max(begin.0)).max(0.0))
            .sum();
        LayersSummary {
            swaps: [swapped.layers_out, swapped.layers_back],
            bytes: swapped.bytes,
            stalled_s: swapped.stalled.0,
            expansion: if end.0 > begin.0 {
                total / (end - begin).0
            } else {
                1.0
            },
            expansions: changes.iter().map(|(at, value)| (at.0, *value)).collect(),
        }
    }
}

impl ServeSummary {
    /// Of requests that have all ended, with the cache's tokens.
    pub fn of(
        all: &[Sequence],
        (ledger, swapped): (&Ledger, Option<&Swapped>),
        kv_capacity_tokens: u64,
        slo_s: f64,
    ) -> ServeSummary {
        let done: Vec<&Sequence> = all.iter().filter(|s| s.state == State::Done).collect();
        let refused = all.iter().filter(|s| s.state == State::Refused).count();
        let first = done
            .iter()
            .map(|s| s.request.arrival.0)
            .fold(f64::INFINITY, f64::min);
        let last = done.iter().map(|s| s.last_token.0).fold(0.0, f64::max);
        let duration_s = (last - first).max(0.0);
        let per_s = |count: f64| {
            if duration_s > 0.0 {
                count / duration_s
            } else {
                0.0
            }
        };
        let each = |of: &dyn Fn(&Sequence) -> f64| -> Distribution {
            Distribution::of(done.iter().map(|s| of(s)).collect())
        };
        let len = |s: &Sequence| f64::from(s.request.output_len);
        let good = done
            .iter()
            .filter(|s| s.latency().0 <= slo_s * len(s))
            .count();
        let output_tokens = done.iter().map(|s| u64::from(s.request.output_len)).sum();
        let several = done.iter().filter(|s| s.request.output_len > 1);
        let tpot = several.map(|s| (s.last_token - s.first_token).0 / (len(s) - 1.0));
        let busy = ledger.longest.0.max(f64::MIN_POSITIVE);
        ServeSummary {
            completed: done.len() as u64,
            refused: refused as u64,
            duration_s,
            output_tokens,
            requests_per_s: per_s(done.len() as f64),
            output_tokens_per_s: per_s(output_tokens as f64),
            ttft_s: each(&|s| (s.first_token - s.request.arrival).0),
            tpot_s: Distribution::of(tpot.collect()),
            itl_s: Distribution::weighted(ledger.gaps.clone()),
            e2e_s: each(&|s| s.latency().0),
            queueing_s_per_token: each(&|s| (s.latency() - s.computed).0.max(0.0) / len(s)),
            compute_s_per_token: each(&|s| s.computed.0 / len(s)),
            slo_s_per_token: slo_s,
            goodput_per_s: per_s(good as f64),
            within_slo: good as f64 / done.len().max(1) as f64,
            kv_capacity_tokens,
            kv_used: ledger.used / busy,
            kv_reserved: ledger.reserved / busy,
            iterations: ledger.iterations,
            average_batch: ledger.tokens as f64 / ledger.iterations.max(1) as f64,
            largest_batch: ledger.largest_batch,
            preemptions: ledger.preemptions,
            recomputed_tokens: ledger.recomputed_tokens,
            swaps: [ledger.swaps_out, ledger.swaps_in],
            swapped_bytes: ledger.swapped_bytes,
            busy: per_s(ledger.longest.0).min(1.0),
            layers: swapped
                .map(|swapped| LayersSummary::of(swapped, Seconds(first), Seconds(last))),
        }
    }
}
