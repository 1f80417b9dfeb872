//! How good predictions were.

use serde::Serialize;

use super::Predictor;
use crate::serve::Request;

/// A predictor's guesses beside those that always say the bucket that has been the commonest so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Score {
    /// Answers that have ended.
    pub answers: u64,
    /// Share whose bucket was said.
    pub accuracy: f64,
    /// Buckets between what was said and what came, on average over all answers.
    pub distance: f64,
    /// The same of the commonest bucket.
    pub commonest_accuracy: f64,
    /// Likewise.
    pub commonest_distance: f64,
}

/// Sums of a [`Score`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    answers: u64,
    right: [u64; 2],
    off: [u64; 2],
}

impl Tally {
    /// An answer has come out in a bucket; the predictor had said the first, and the commonest was the second.
    pub(super) fn count(&mut self, bucket: u32, said: [u32; 2]) {
        self.answers += 1;
        for (index, said) in said.into_iter().enumerate() {
            self.right[index] += u64::from(said == bucket);
            self.off[index] += u64::from(said.abs_diff(bucket));
        }
    }

    /// Over all that were counted; none where none were.
    pub fn score(&self) -> Option<Score> {
        let share = |sum: u64| sum as f64 / self.answers as f64;
        (self.answers > 0).then(|| Score {
            answers: self.answers,
            accuracy: share(self.right[0]),
            distance: share(self.off[0]),
            commonest_accuracy: share(self.right[1]),
            commonest_distance: share(self.off[1]),
        })
    }
}

/// A predictor's score where each answer is known before the next request comes; none where it counts nothing.
pub fn prequential(predictor: &mut dyn Predictor, requests: &[Request]) -> Option<Score> {
    for (id, request) in requests.iter().enumerate() {
        predictor.room(id as u32, request);
        predictor.learn(id as u32, request);
    }
    predictor.tally().and_then(Tally::score)
}
