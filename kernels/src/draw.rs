//! The random choice of a token: temperature, then top-k, then top-p, as Hugging Face's `generate`
//! applies them.
//!
//! What decides a token is a number for its seed, its prompt and its place in the answer, so it is the same
//! wherever and beside whatever the prompt is run.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::KernelError;
use super::argmax::argmax;

/// How tokens are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; above 0.
    pub temperature: f64,
    /// Only so many of the likeliest tokens are drawn from; none: all.
    pub top_k: Option<u32>,
    /// Only the fewest likeliest tokens are drawn from that together have this probability; 1: all.
    pub top_p: f64,
    /// Another seed gives other tokens.
    pub seed: u64,
}

impl Sampling {
    /// The number in 0..1 that decides a token of a prompt.
    pub fn uniform(&self, prompt: u64, token: u64) -> f64 {
        const WORDS: u128 = 2;
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(prompt);
        random.set_word_pos(WORDS * u128::from(token));
        // As many bits as an f64 has.
        (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The column that `uniform` draws from one row of logits.
    ///
    /// # Errors
    /// As [`argmax`].
    pub fn draw(&self, logits: &[f32], uniform: f64) -> Result<u32, KernelError> {
        let best = argmax(logits, logits.len())?[0];
        let largest = logits[best as usize];
        if !largest.is_finite() {
            return Ok(best);
        }
        let mut candidates: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
        let likelier = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if let Some(k) = self.top_k.map(|k| k as usize)
            && 0 < k
            && k < candidates.len()
        {
            candidates.select_nth_unstable_by(k - 1, likelier);
            candidates.truncate(k);
        }
        if self.top_k.is_some() || self.top_p < 1.0 {
            candidates.sort_unstable_by(likelier);
        }
        let weight =
            |logit: f32| libm::exp((f64::from(logit) - f64::from(largest)) / self.temperature);
        let mut weights: Vec<f64> = candidates.iter().map(|(logit, _)| weight(*logit)).collect();
        let mut sum: f64 = weights.iter().sum();
        if self.top_p < 1.0 {
            let enough = self.top_p * sum;
            let ends = weights.iter().scan(0.0, |before, weight| {
                *before += weight;
                Some(*before)
            });
            let kept = 1 + ends.take_while(|end| *end < enough).count();
            weights.truncate(kept);
            sum = weights.iter().sum();
        }
        Ok(candidates[at(&weights, uniform * sum)].1)
    }
}

/// The first place at which the weights so far exceed `target`; rounding may leave none, then the last.
fn at(weights: &[f64], target: f64) -> usize {
    let mut before = 0.0;
    let exceeds = |weight: &f64| {
        before += weight;
        before > target
    };
    let found = weights.iter().position(exceeds);
    found.unwrap_or(weights.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Sampling = Sampling {
        temperature: 1.0,
        top_k: None,
        top_p: 1.0,
        seed: 5,
    };

    /// Probabilities of 0.1, 0.4, 0.3 and 0.2.
    fn logits() -> Vec<f32> {
        [0.1_f32, 0.4, 0.3, 0.2].map(f32::ln).to_vec()
    }

    /// How often each column is drawn, of 10,000.
    fn shares(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
        const DRAWS: u64 = 10_000;
        let mut counts = vec![0.0; logits.len()];
        for token in 0..DRAWS {
            let uniform = sampling.uniform(3, token);
            counts[sampling.draw(logits, uniform).unwrap() as usize] += 1.0 / DRAWS as f64;
        }
        counts
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 0.02, "{found} for {expected}");
        }
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        assert_near(&shares(&ALL, &logits()), &[0.1, 0.4, 0.3, 0.2]);
        let top_k = Some(2);
        assert_near(
            &shares(&Sampling { top_k, ..ALL }, &logits()),
            &[0.0, 4.0 / 7.0, 3.0 / 7.0, 0.0],
        );
        // The two likeliest have 0.7, which is not enough.
        let top_p = 0.75;
        assert_near(
            &shares(&Sampling { top_p, ..ALL }, &logits()),
            &[0.0, 4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0],
        );
        // p^2, made to add up to one again.
        let temperature = 0.5;
        assert_near(
            &shares(&Sampling { temperature, ..ALL }, &logits()),
            &[1.0, 16.0, 9.0, 4.0].map(|square| square / 30.0),
        );
    }

    #[test]
    fn a_token_is_decided_by_seed_prompt_and_place() {
        let one = ALL.uniform(3, 4);
        assert_eq!(one, ALL.uniform(3, 4));
        let other = Sampling { seed: 6, ..ALL };
        let others = [ALL.uniform(3, 5), ALL.uniform(4, 4), other.uniform(3, 4)];
        assert!(others.iter().all(|other| *other != one), "{others:?}");
        assert!((0.0..1.0).contains(&one));
    }

    #[test]
    fn little_is_left_to_chance_where_one_token_is_far_ahead() {
        let top_p = 1e-9;
        let narrow = Sampling { top_p, ..ALL };
        assert_eq!(narrow.draw(&logits(), 0.999).unwrap(), 1);
        let top_k = Some(1);
        let best = Sampling { top_k, ..ALL };
        assert_eq!(best.draw(&logits(), 0.999).unwrap(), 1);
        assert_eq!(ALL.draw(&[0.0, f32::INFINITY], 0.0).unwrap(), 1);
        assert!(ALL.draw(&[0.0, f32::NAN], 0.5).is_err());
    }
}
