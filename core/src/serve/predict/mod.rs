//! How long answers will be, before they are there (S3, section 3).

mod features;
mod learner;
mod score;

use std::fmt::Debug;

use super::Request;
pub use features::Features;
pub use learner::Learner;
pub use score::{Score, Tally, prequential};

/// Says how much room an answer gets.
pub trait Predictor: Debug {
    /// Tokens of answer to make room for. Only an oracle may look at the answer's length.
    fn room(&mut self, id: u32, request: &Request) -> u32;

    /// An answer is there: what it might have known.
    fn learn(&mut self, id: u32, request: &Request);

    /// How good it has been, where it counts that.
    fn tally(&self) -> Option<&Tally> {
        None
    }
}

/// Knows each length exactly.
#[derive(Debug, Clone, Copy)]
pub struct Oracle;

impl Predictor for Oracle {
    fn room(&mut self, _: u32, request: &Request) -> u32 {
        request.output_len
    }

    fn learn(&mut self, _: u32, _: &Request) {}
}

/// Lengths in buckets of equal width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Buckets {
    /// The longest answer, in tokens.
    pub max_len: u32,
    /// How many.
    pub count: u32,
}

impl Buckets {
    /// The bucket of a length, from 0 on.
    pub fn of(&self, len: u32) -> u32 {
        let bucket = u64::from(len.max(1) - 1) * u64::from(self.count) / u64::from(self.max_len);
        bucket.min(u64::from(self.count) - 1) as u32
    }

    /// The longest answer of a bucket.
    pub fn room(&self, bucket: u32) -> u32 {
        let of = u64::from(bucket + 1) * u64::from(self.max_len);
        of.div_ceil(u64::from(self.count)) as u32
    }
}

/// A classifier that is right as often as it is said, and wrong by some buckets otherwise (Table 5: accuracies; wrong by 1.03
/// buckets on average). Which answers it is wrong about, and how far, is drawn from their numbers.
#[derive(Debug, Clone, Copy)]
pub struct Classifier {
    /// Its classes.
    pub buckets: Buckets,
    /// Share of right answers.
    pub accuracy: f64,
    /// Which way it is wrong.
    pub wrong: Wrong,
    /// Buckets by which it is wrong on average: at least 1. Each mistake is of the whole number below or above.
    pub distance: f64,
    /// Another seed, other mistakes.
    pub seed: u64,
}

/// Which way a classifier is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// Short: then only answers above the first bucket can be wrong, and the accuracy is theirs.
    Short,
    /// Long.
    Long,
    /// Either, by chance.
    Either,
}

impl Predictor for Classifier {
    fn room(&mut self, id: u32, request: &Request) -> u32 {
        let right = self.buckets.of(request.output_len);
        let drawn = drawn(self.seed, id);
        if drawn < self.accuracy {
            return self.buckets.room(right);
        }
        let short = match self.wrong {
            Wrong::Short => true,
            Wrong::Long => false,
            // The rest of the interval, cut in half.
            Wrong::Either => drawn < self.accuracy + (1.0 - self.accuracy) / 2.0,
        };
        let off = self.off_by(id);
        let bucket = match (short, right) {
            (true, 1..) => right.saturating_sub(off),
            (true, 0) if self.wrong == Wrong::Short => right,
            _ => right.saturating_add(off).min(self.buckets.count - 1),
        };
        self.buckets.room(bucket)
    }

    fn learn(&mut self, _: u32, _: &Request) {}
}

impl Classifier {
    /// By how many buckets it is wrong about a request.
    fn off_by(&self, id: u32) -> u32 {
        let further = drawn(!self.seed, id) < self.distance.fract();
        self.distance as u32 + u32::from(further)
    }
}

/// A number from 0 up to 1 for a seed and a request (the finaliser of splitmix64).
fn drawn(seed: u64, id: u32) -> f64 {
    let mut z = (seed << 32 ^ u64::from(id)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Seconds;

    fn request(output_len: u32) -> Request {
        Request {
            arrival: Seconds::ZERO,
            prompt_len: 9,
            output_len,
        }
    }

    #[test]
    fn buckets_are_of_equal_width() {
        let buckets = Buckets {
            max_len: 2048,
            count: 10,
        };
        let of = [1, 204, 205, 410, 1000, 2048, 5000].map(|len| buckets.of(len));
        assert_eq!(of, [0, 0, 0, 1, 4, 9, 9]);
        assert_eq!([buckets.room(0), buckets.room(9)], [205, 2048]);
        for len in 1..=2048 {
            assert!(buckets.room(buckets.of(len)) >= len, "{len}");
        }
    }

    #[test]
    fn a_classifier_is_right_as_often_as_it_is_said() {
        let buckets = Buckets {
            max_len: 2048,
            count: 10,
        };
        for (wrong, sign) in [(Wrong::Short, -1), (Wrong::Long, 1)] {
            let mut classifier = Classifier {
                buckets,
                accuracy: 0.9,
                wrong,
                distance: 1.0,
                seed: 5,
            };
            let rooms = (0..10_000).map(|id| classifier.room(id, &request(900)));
            let off: Vec<i64> = rooms.map(|room| i64::from(buckets.of(room)) - 4).collect();
            let right = off.iter().filter(|off| **off == 0).count();
            assert!((8800..9200).contains(&right), "{right}");
            assert!(off.iter().all(|off| *off == 0 || *off == sign));
        }
        assert_eq!(Oracle.room(0, &request(77)), 77);
    }

    #[test]
    fn a_classifier_is_as_far_off_as_it_is_said() {
        let buckets = Buckets {
            max_len: 2048,
            count: 10,
        };
        for distance in [1.0, 1.03, 2.5] {
            let mut classifier = Classifier {
                buckets,
                accuracy: 0.0,
                wrong: Wrong::Either,
                distance,
                seed: 5,
            };
            let rooms = (0..10_000).map(|id| classifier.room(id, &request(900)));
            let off: Vec<i64> = rooms.map(|room| i64::from(buckets.of(room)) - 4).collect();
            let mean = off.iter().map(|off| off.abs() as f64).sum::<f64>() / 10_000.0;
            assert!((mean - distance).abs() < 0.02, "{mean} {distance}");
            let short = off.iter().filter(|off| **off < 0).count();
            assert!((4800..5200).contains(&short), "{short}");
        }
    }
}
