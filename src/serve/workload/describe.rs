//! A trace in a few numbers.

use plimsoll_core::serve::predict::{Buckets, Learner, Score, prequential};
use plimsoll_core::serve::{Distribution, Request};
use serde::Serialize;

use super::TraceRead;

/// What a trace is like.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Description {
    /// How many requests.
    pub requests: usize,
    /// From the first to the last.
    pub duration_s: f64,
    /// Requests a second; none where all come at once.
    pub rate: Option<f64>,
    /// Deviation over mean of the times between them; none likewise.
    pub interarrival_cv: Option<f64>,
    /// Tokens of prompts.
    pub prompt_len: Distribution,
    /// Tokens of answers.
    pub output_len: Distribution,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens of all answers.
    pub output_tokens: u64,
    /// Tokens of the longest prompt with its answer.
    pub total_max: u32,
    /// Requests whose prompts are in the trace.
    pub prompts_with_text: usize,
    /// How well the bucket of an answer is predicted by one who learns from those before it, each known before the next
    /// request comes; none where it was not asked for.
    pub prediction: Option<Score>,
}

impl Description {
    /// The same with how well answers are predicted, in so many buckets up to the longest.
    pub fn of_trace(trace: &TraceRead, buckets: u32) -> Description {
        let longest = trace.requests.iter().map(|r| r.output_len).max();
        let buckets = Buckets {
            max_len: longest.unwrap_or(1),
            count: buckets,
        };
        let mut learner = Learner::new(buckets, trace.features.clone());
        Description {
            prompts_with_text: trace.features.texts(),
            prediction: prequential(&mut learner, &trace.requests),
            ..Description::of(&trace.requests)
        }
    }

    /// Of requests in the order in which they come.
    pub fn of(requests: &[Request]) -> Description {
        let lengths = |of: fn(&Request) -> u32| -> Vec<f64> {
            requests.iter().map(|r| f64::from(of(r))).collect()
        };
        let total = |of: fn(&Request) -> u32| requests.iter().map(|r| u64::from(of(r))).sum();
        let ends = requests.first().zip(requests.last());
        let duration_s = ends.map_or(0.0, |(first, last)| last.arrival.0 - first.arrival.0);
        let gaps = requests
            .windows(2)
            .map(|two| two[1].arrival.0 - two[0].arrival.0);
        let gaps: Vec<f64> = gaps.collect();
        let mean = duration_s / gaps.len().max(1) as f64;
        let square: f64 = gaps.iter().map(|gap| (gap - mean).powi(2)).sum();
        let spread = duration_s > 0.0;
        Description {
            requests: requests.len(),
            duration_s,
            rate: spread.then(|| 1.0 / mean),
            interarrival_cv: spread.then(|| (square / gaps.len() as f64).sqrt() / mean),
            prompt_len: Distribution::of(lengths(|r| r.prompt_len)),
            output_len: Distribution::of(lengths(|r| r.output_len)),
            prompt_tokens: total(|r| r.prompt_len),
            output_tokens: total(|r| r.output_len),
            total_max: requests.iter().map(Request::total_len).max().unwrap_or(0),
            prompts_with_text: 0,
            prediction: None,
        }
    }
}
