//! Sums over positions: how likely the text was, and how far predictions are apart.

use plimsoll_backend::kernels::KernelError;
use plimsoll_backend::kernels::argmax::argmax;

use super::{Row, Setting};

/// What has been summed of a setting.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    tokens: u64,
    /// Negative logarithms of the probabilities of the text's tokens.
    lost: f64,
    divergence: f64,
    same: u64,
}

impl Tally {
    /// Adds a step: the first setting's logits and this one's, `[window][vocabulary]`, and the text's next
    /// token of each window.
    ///
    /// # Errors
    /// As [`argmax`].
    pub fn add(&mut self, plain: &[f32], own: &[f32], targets: &[u32]) -> Result<(), KernelError> {
        let vocabulary = plain.len() / targets.len().max(1);
        let likeliest = argmax(plain, vocabulary)?.into_iter();
        let same = likeliest.zip(argmax(own, vocabulary)?);
        self.same += same.filter(|(plain, own)| plain == own).count() as u64;
        let rows = plain
            .chunks_exact(vocabulary)
            .zip(own.chunks_exact(vocabulary));
        for ((plain, own), target) in rows.zip(targets) {
            let (plain_sum, own_sum) = (log_sum_exp(plain), log_sum_exp(own));
            self.tokens += 1;
            self.lost += own_sum - f64::from(own[*target as usize]);
            let terms = plain.iter().zip(own).map(|(plain, own)| {
                let (p, q) = (f64::from(*plain) - plain_sum, f64::from(*own) - own_sum);
                p.exp() * (p - q)
            });
            self.divergence += terms.sum::<f64>();
        }
        Ok(())
    }

    pub fn perplexity(&self) -> f64 {
        (self.lost / self.tokens as f64).exp()
    }

    /// The row of a setting, beside the perplexity of the first.
    pub fn row(&self, setting: &Setting, first: f64) -> Row {
        let perplexity = self.perplexity();
        Row {
            setting: setting.words(),
            perplexity,
            change: perplexity / first - 1.0,
            // Rounding may leave a little less than nothing.
            kl_divergence: (self.divergence / self.tokens as f64).max(0.0),
            same_token: self.same as f64 / self.tokens as f64,
            scored_tokens: self.tokens,
        }
    }
}

/// The logarithm of the sum of exponentials.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let largest = f64::from(largest);
    let sum: f64 = logits
        .iter()
        .map(|logit| (f64::from(*logit) - largest).exp())
        .sum();
    largest + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::Dtype;

    /// Probabilities of 0.5, 0.25, 0.25, shifted as logits may be.
    const HALF: [f32; 3] = [
        4.0,
        4.0 - std::f32::consts::LN_2,
        4.0 - std::f32::consts::LN_2,
    ];
    /// A third each.
    const THIRD: [f32; 3] = [0.0; 3];

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
    }

    #[test]
    fn perplexity_is_the_inverse_of_the_mean_probability() {
        let mut tally = Tally::default();
        let logits = [HALF, HALF].concat();
        tally.add(&logits, &logits, &[0, 1]).unwrap();
        // The geometric mean of 1/2 and 1/4.
        near(tally.perplexity(), 8_f64.sqrt());
        let row = tally.row(&Setting::plain(Dtype::F32), tally.perplexity());
        near(row.change, 0.0);
        near(row.kl_divergence, 0.0);
        near(row.same_token, 1.0);
        assert_eq!(row.scored_tokens, 2);
    }

    #[test]
    fn another_setting_is_compared_with_the_first() {
        let mut tally = Tally::default();
        let other = [THIRD, [0.0, 9.0, 0.0]].concat();
        let plain = [HALF, HALF].concat();
        tally.add(&plain, &other, &[0, 1]).unwrap();
        let row = tally.row(&Setting::plain(Dtype::F16), 2.0);
        near(row.change, row.perplexity / 2.0 - 1.0);
        near(row.same_token, 0.5);
        let sum = (2.0 + 9_f64.exp()).ln();
        let expected = [
            // 1/2 ln(3/2) + 2 * 1/4 ln(3/4)
            0.5 * 1.5_f64.ln() + 0.5 * 0.75_f64.ln(),
            0.5 * (0.5_f64.ln() + sum)
                + 0.25 * (0.25_f64.ln() + sum - 9.0)
                + 0.25 * (0.25_f64.ln() + sum),
        ];
        near(row.kl_divergence, expected.iter().sum::<f64>() / 2.0);
    }
}
