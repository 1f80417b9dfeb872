//! A predictor that learns from the user's own trace while it is served.

use rustc_hash::FxHashMap;

use super::{Buckets, Features, Predictor, Tally};
use crate::serve::Request;

/// How many answers a feature has to be seen with before its own counts weigh as much as what all answers say.
const PRIOR: f64 = 4.0;

/// Naive Bayes over a prompt's features, taught by each answer that ends.
/// It learns from one answer at a time, of features that nobody knows beforehand.
///
/// Buckets' shares among a feature's answers are drawn towards those among all, so that what was hardly seen says little.
/// While what it learnt has been right less often than the commonest bucket would have been, it says that one.
#[derive(Debug, Clone)]
pub struct Learner {
    buckets: Buckets,
    features: Features,
    /// Answers of each bucket.
    answers: FxHashMap<u32, u32>,
    /// Those of each feature by bucket.
    seen: FxHashMap<u32, Vec<(u32, u32)>>,
    /// What was said of each request that has not ended.
    said: FxHashMap<u32, Said>,
    /// Ended answers that the features, and the commonest bucket, were right about.
    right: [u64; 2],
    tally: Tally,
}

/// What was said of an answer.
#[derive(Debug, Clone, Copy)]
struct Said {
    /// In the end.
    bucket: u32,
    /// By features.
    learnt: u32,
    commonest: u32,
}

impl Learner {
    /// Knows nothing yet: answers are as long as they may be until the first has ended.
    pub fn new(buckets: Buckets, features: Features) -> Learner {
        Learner {
            buckets,
            features,
            answers: FxHashMap::default(),
            seen: FxHashMap::default(),
            said: FxHashMap::default(),
            right: [0; 2],
            tally: Tally::default(),
        }
    }

    fn say(&self, id: u32, request: &Request) -> Said {
        let most = self.answers.iter().map(|(bucket, n)| (*n, *bucket)).max();
        let commonest = most.map_or(self.buckets.count - 1, |(_, bucket)| bucket);
        let learnt = self.likeliest(id, request).unwrap_or(commonest);
        let [features, always] = self.right;
        Said {
            bucket: if features < always { commonest } else { learnt },
            learnt,
            commonest,
        }
    }

    /// The bucket that the features speak for; none before an answer has ended.
    fn likeliest(&self, id: u32, request: &Request) -> Option<u32> {
        let all: f64 = self.answers.values().map(|n| f64::from(*n)).sum();
        let mut evidence: FxHashMap<u32, f64> = FxHashMap::default();
        for feature in self.features.of(id, request) {
            for (bucket, n) in self.seen.get(&feature).into_iter().flatten() {
                let expected = f64::from(self.answers[bucket]) / all;
                // (n + PRIOR * expected) / expected, over what a bucket has that was never seen with it.
                let ratio = f64::from(*n) / (PRIOR * expected);
                *evidence.entry(*bucket).or_default() += ratio.ln_1p();
            }
        }
        let scored = self.answers.iter().map(|(bucket, n)| {
            let of_features = evidence.get(bucket).copied().unwrap_or(0.0);
            (f64::from(*n).ln() + of_features, *bucket)
        });
        // The longer of two that are as likely: it costs room, and the other would cost an eviction.
        let best = scored.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        best.map(|(_, bucket)| bucket)
    }
}

impl Predictor for Learner {
    fn room(&mut self, id: u32, request: &Request) -> u32 {
        let said = self.say(id, request);
        self.said.insert(id, said);
        self.buckets.room(said.bucket)
    }

    fn learn(&mut self, id: u32, request: &Request) {
        let Some(said) = self.said.remove(&id) else {
            return;
        };
        let bucket = self.buckets.of(request.output_len);
        self.tally.count(bucket, [said.bucket, said.commonest]);
        self.right[0] += u64::from(said.learnt == bucket);
        self.right[1] += u64::from(said.commonest == bucket);
        *self.answers.entry(bucket).or_default() += 1;
        for feature in self.features.of(id, request) {
            let seen = self.seen.entry(feature).or_default();
            match seen.iter_mut().find(|(of, _)| *of == bucket) {
                Some((_, n)) => *n += 1,
                None => seen.push((bucket, 1)),
            }
        }
    }

    fn tally(&self) -> Option<&Tally> {
        Some(&self.tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::predict::{drawn, prequential};
    use crate::units::Seconds;

    const BUCKETS: Buckets = Buckets {
        max_len: 1000,
        count: 10,
    };

    fn request(prompt_len: u32, output_len: u32) -> Request {
        Request {
            arrival: Seconds::ZERO,
            prompt_len,
            output_len,
        }
    }

    /// A number below `most`.
    fn number(seed: u64, id: u32, most: u32) -> u32 {
        (drawn(seed, id) * f64::from(most)) as u32
    }

    /// Prompts of noise, but for a first word that `word` gives.
    fn texts(count: u32, word: impl Fn(u32) -> u32) -> Features {
        let text = |id| {
            let noise: Vec<String> = (0..8)
                .map(|place| format!("w{}", number(place, id, 300)))
                .collect();
            Some(Features::of_text(&format!(
                "ask{} {}",
                word(id),
                noise.join(" ")
            )))
        };
        Features::new((0..count).map(text).collect())
    }

    #[test]
    fn it_learns_what_prompts_say() {
        let kind = |id| number(90, id, 4);
        let requests: Vec<Request> = (0..2000)
            .map(|id| request(20, 100 + 200 * kind(id)))
            .collect();
        let learner = || Learner::new(BUCKETS, texts(2000, kind));
        let score = prequential(&mut learner(), &requests).unwrap();
        assert_eq!(score.answers, 2000);
        assert!(score.accuracy > 0.95, "{score:?}");
        assert!(score.commonest_accuracy < 0.35, "{score:?}");
        assert!(score.distance < 0.1 * score.commonest_distance, "{score:?}");
        assert_eq!(prequential(&mut learner(), &requests), Some(score));
    }

    #[test]
    fn without_texts_it_learns_from_lengths() {
        let kind = |id| number(90, id, 2);
        let requests: Vec<Request> = (0..500)
            .map(|id| request(10 + 300 * kind(id) + number(7, id, 9), 100 + 500 * kind(id)))
            .collect();
        let mut learner = Learner::new(BUCKETS, Features::default());
        let score = prequential(&mut learner, &requests).unwrap();
        assert!(score.accuracy > 0.95 && score.commonest_accuracy < 0.6);
    }

    #[test]
    fn on_noise_it_is_the_commonest_bucket() {
        for seed in 0..8 {
            // Six of ten answers are of one bucket, the rest of any.
            let bucket = |id| match number(90 + seed, id, 10) {
                0..6 => 2,
                _ => number(190 + seed, id, 10),
            };
            let requests: Vec<Request> = (0..3000)
                .map(|id| request(1 + number(5, id, 500), 100 * bucket(id) + 50))
                .collect();
            let mut learner = Learner::new(BUCKETS, texts(3000, |id| number(3, id, 4)));
            let score = prequential(&mut learner, &requests).unwrap();
            let more = score.accuracy - score.commonest_accuracy;
            assert!((-0.01..0.01).contains(&more), "{score:?}");
        }
    }

    #[test]
    fn it_learns_when_an_answer_ends_and_once() {
        let mut learner = Learner::new(BUCKETS, Features::default());
        assert_eq!(learner.room(0, &request(9, 40)), 1000, "nothing is known");
        assert_eq!(learner.room(1, &request(9, 40)), 1000, "still nothing");
        learner.learn(0, &request(9, 40));
        learner.learn(0, &request(9, 40));
        assert_eq!(learner.room(2, &request(9, 40)), 100);
        assert_eq!(learner.tally().and_then(Tally::score).unwrap().answers, 1);
    }
}
