//! A trace in a few numbers.

use plimsoll_core::serve::{Distribution, Request};
use serde::Serialize;

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
}

impl Description {
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
        }
    }
}
