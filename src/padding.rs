//! Prompts of different lengths in batches: all padded to the longest, as FlexGen does (section 6.3), or
//! each to the longest of its bucket.

use std::collections::HashMap;

use plimsoll_core::units::Seconds;
use plimsoll_core::workload::Workload;
use serde::Serialize;

use crate::planner::{Answer, PlanError, Planned, Request, Subject, search_watched};

/// The lengths of prompts, in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lengths {
    /// Each length with how many prompts have it, shortest first.
    counts: Vec<(u32, u64)>,
}

/// Prompts that are padded to one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// The shortest prompt, in tokens.
    pub shortest: u32,
    /// The longest, to which all are padded.
    pub prompt_len: u32,
    /// How many prompts there are.
    pub prompts: u64,
    /// Their own tokens, the real ones; what is missing to `prompts` times `prompt_len` is padding, in front of
    /// the shorter prompts.
    pub prompt_tokens: u64,
}

impl Lengths {
    /// None where there are no prompts, or one is empty.
    pub fn new(mut lengths: Vec<u32>) -> Option<Lengths> {
        lengths.sort_unstable();
        if lengths.first().is_none_or(|shortest| *shortest == 0) {
            return None;
        }
        let runs = lengths.chunk_by(|a, b| a == b);
        let counts = runs.map(|run| (run[0], run.len() as u64)).collect();
        Some(Lengths { counts })
    }

    /// How many different lengths there are: more buckets than that mean nothing.
    pub fn distinct(&self) -> usize {
        self.counts.len()
    }

    /// The split into so many buckets, shortest first, with the fewest tokens after padding.
    pub fn buckets(&self, count: usize) -> Vec<Bucket> {
        let distinct = self.distinct();
        let count = count.clamp(1, distinct);
        let mut prompts_before = vec![0];
        for (_, prompts) in &self.counts {
            prompts_before.push(prompts_before[prompts_before.len() - 1] + prompts);
        }
        let padded = |from: usize, to: usize| {
            (prompts_before[to] - prompts_before[from]) * u64::from(self.counts[to - 1].0)
        };
        // fewest[to]: tokens of the first `to` lengths in as many buckets as rounds so far.
        let mut fewest: Vec<u64> = (0..=distinct)
            .map(|to| if to == 0 { 0 } else { padded(0, to) })
            .collect();
        let mut starts = Vec::new();
        for _ in 1..count {
            let best: Vec<(u64, usize)> = (0..=distinct)
                .map(|to| {
                    let splits = (0..to).map(|from| (fewest[from] + padded(from, to), from));
                    splits.min().unwrap_or((0, 0))
                })
                .collect();
            fewest = best.iter().map(|(tokens, _)| *tokens).collect();
            starts.push(best);
        }
        let mut ends = vec![distinct];
        for best in starts.iter().rev() {
            ends.push(best[ends[ends.len() - 1]].1);
        }
        ends.push(0);
        ends.reverse();
        ends.dedup();
        ends.windows(2).map(|w| self.bucket(w[0], w[1])).collect()
    }

    fn bucket(&self, from: usize, to: usize) -> Bucket {
        let counts = &self.counts[from..to];
        Bucket {
            shortest: counts[0].0,
            prompt_len: counts[counts.len() - 1].0,
            prompts: counts.iter().map(|(_, prompts)| prompts).sum(),
            prompt_tokens: counts.iter().map(|(len, n)| u64::from(*len) * n).sum(),
        }
    }
}

/// A plan for each bucket; they run one after another.
#[derive(Debug)]
pub struct Batches {
    /// Shortest prompts first.
    pub buckets: Vec<(Bucket, Box<Planned>)>,
    /// Tokens generated for each prompt.
    pub gen_len: u32,
}

/// All buckets in figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Totals {
    /// Prompts.
    pub prompts: u64,
    /// Until the last prompt is answered.
    pub latency_s: Seconds,
    /// Generated tokens a second.
    pub throughput_tok_s: f64,
    /// Tokens of prompts and answers a second, padding counted (FlexGen, Table 25).
    pub padded_tok_s: f64,
    /// Tokens of prompts and answers a second, padding left out.
    pub actual_tok_s: f64,
    /// The second over the first: the share of tokens, prompts' and answers', that are real and no padding.
    pub efficiency: f64,
}

impl Batches {
    /// Of all buckets together.
    pub fn totals(&self) -> Totals {
        let sum =
            |of: &dyn Fn(&Bucket) -> u64| self.buckets.iter().map(|(b, _)| of(b)).sum::<u64>();
        let prompts = sum(&|b| b.prompts);
        let generated = prompts * u64::from(self.gen_len);
        let padded = sum(&|b| b.prompts * u64::from(b.prompt_len)) + generated;
        let actual = sum(&|b| b.prompt_tokens) + generated;
        let latencies = self.buckets.iter().map(|(_, planned)| latency_s(planned).0);
        let latency_s = latencies.sum::<f64>();
        Totals {
            prompts,
            latency_s: Seconds(latency_s),
            throughput_tok_s: generated as f64 / latency_s,
            padded_tok_s: padded as f64 / latency_s,
            actual_tok_s: actual as f64 / latency_s,
            efficiency: actual as f64 / padded as f64,
        }
    }
}

fn latency_s(planned: &Planned) -> Seconds {
    let prediction = planned.plan.prediction.as_ref();
    prediction.map_or(Seconds(f64::INFINITY), |prediction| prediction.latency_s)
}

/// Plans prompts in one bucket, then in one more as long as that answers them sooner, up to
/// `buckets_max`; `watch` sees each search. The inner error is the answer for a bucket that has no plan.
///
/// # Errors
/// As [`search_watched`].
pub fn plan_lengths(
    subject: Subject<'_>,
    request: &Request,
    (lengths, buckets_max): (&Lengths, usize),
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Result<Batches, Answer>, PlanError> {
    let mut best: Option<Batches> = None;
    // Of one number of buckets more, some are as before.
    let mut known: HashMap<(u32, u64), Box<Planned>> = HashMap::new();
    'counts: for count in 1..=buckets_max.clamp(1, lengths.distinct()) {
        let mut buckets = Vec::new();
        for bucket in lengths.buckets(count) {
            let key = (bucket.prompt_len, bucket.prompts);
            if let Some(planned) = known.get(&key) {
                buckets.push((bucket, planned.clone()));
                continue;
            }
            let workload = Workload {
                prompt_len: bucket.prompt_len,
                num_prompts: Some(bucket.prompts),
                ..request.workload
            };
            let request = Request {
                workload,
                ..*request
            };
            match search_watched(subject, &request, watch)? {
                Answer::Plan(planned) => {
                    known.insert(key, planned.clone());
                    buckets.push((bucket, planned));
                }
                // What fits in fewer buckets is an answer.
                _ if best.is_some() => break 'counts,
                refused => return Ok(Err(refused)),
            }
        }
        let tried = Batches {
            buckets,
            gen_len: request.workload.gen_len,
        };
        let soonest = best.as_ref().map(|best| best.totals().latency_s.0);
        if soonest.is_some_and(|soonest| tried.totals().latency_s.0 >= soonest) {
            break;
        }
        best = Some(tried);
    }
    best.map(Ok)
        .ok_or_else(|| PlanError::Solver("no bucket was planned".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(buckets: &[Bucket]) -> u64 {
        let tokens = buckets.iter().map(|b| b.prompts * u64::from(b.prompt_len));
        tokens.sum()
    }

    #[test]
    fn buckets_hold_every_prompt_once_and_pad_least() {
        let lengths = Lengths::new(vec![5, 1, 9, 9, 2, 5, 1]).unwrap();
        for count in 1..=6 {
            let buckets = lengths.buckets(count);
            assert_eq!(buckets.len(), count.min(4));
            assert_eq!(buckets.iter().map(|b| b.prompts).sum::<u64>(), 7);
            assert_eq!(buckets.iter().map(|b| b.prompt_tokens).sum::<u64>(), 32);
        }
        assert_eq!(padded(&lengths.buckets(1)), 63);
        // {1, 1, 2} {5, 5, 9, 9} pads to 42; {1, 1, 2, 5, 5} {9, 9} to 43.
        assert_eq!(padded(&lengths.buckets(2)), 42);
        assert_eq!(padded(&lengths.buckets(3)), 34);
        assert_eq!(padded(&lengths.buckets(4)), 32);
    }

    #[test]
    fn no_prompts_and_empty_prompts_are_refused() {
        assert_eq!(Lengths::new(Vec::new()), None);
        assert_eq!(Lengths::new(vec![3, 0]), None);
    }
}
