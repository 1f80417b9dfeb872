//! Where a measurement is expected, with what probability.

use serde::{Deserialize, Serialize};

use crate::hardware::Residuals;
use crate::units::Seconds;

/// From a lowest to a highest value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Range {
    /// Whether a value lies between the ends, or is one.
    pub fn holds(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// The same from one value on: nothing else yet.
    pub fn at(value: f64) -> Range {
        Range {
            low: value,
            high: value,
        }
    }

    /// Widened until it holds a value.
    pub fn with(self, value: f64) -> Range {
        Range {
            low: self.low.min(value),
            high: self.high.max(value),
        }
    }
}

/// Where nine of ten measurements are expected. Where the runs that it comes from were all to one side
/// of their predictions, so is the interval, and the prediction may lie outside.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Generated tokens a second.
    pub throughput_tok_s: Range,
    /// The whole time in seconds.
    pub latency_s: Range,
    /// It holds how far predictions with the profile were from measured runs.
    pub from_residuals: bool,
    /// It holds how much the repeats of the profile's own measurements differed.
    pub from_spread: bool,
}

/// The normal distribution's 95th percentile: between it and the 5th lie nine of ten.
const NORMAL_P95: f64 = 1.644_853_6;

impl Interval {
    /// The interval of a predicted throughput and latency. `log_sigma` is the standard deviation of the
    /// latency's logarithm that the spread of the profile's numbers makes. None where nothing is known:
    /// neither residuals nor spread.
    ///
    /// Both are taken to be independent, so their widths add as squares.
    pub fn of(
        (throughput_tok_s, latency): (f64, Seconds),
        residuals: Option<&Residuals>,
        log_sigma: Option<f64>,
    ) -> Option<Interval> {
        if residuals.is_none() && log_sigma.is_none() {
            return None;
        }
        let noise = NORMAL_P95 * log_sigma.unwrap_or(0.0);
        let (bias, too_slow, too_fast) = residuals.map_or((0.0, 0.0, 0.0), |r| {
            let widened = few_runs(r.runs);
            let median = r.median_log_error;
            let too_slow = widened * (median - r.p05_log_error);
            (median, too_slow, widened * (r.p95_log_error - median))
        });
        // A prediction that is too fast is above what is measured.
        let low = (-bias - too_fast.hypot(noise)).exp();
        let high = (-bias + too_slow.hypot(noise)).exp();
        Some(Interval {
            throughput_tok_s: Range {
                low: throughput_tok_s * low,
                high: throughput_tok_s * high,
            },
            latency_s: Range {
                low: latency.0 / high,
                high: latency.0 / low,
            },
            from_residuals: residuals.is_some(),
            from_spread: log_sigma.is_some(),
        })
    }
}

/// How much wider the next run's interval is than the quantiles of so few: Student's t over the normal's,
/// and the median is itself of so many. Quantiles of t as in Abramowitz and Stegun, 26.7.5.
fn few_runs(runs: u32) -> f64 {
    let z = NORMAL_P95;
    let free = f64::from(runs.max(2)) - 1.0;
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let t = z + first / free + second / (free * free);
    t / z * (1.0 + 1.0 / (free + 1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn residuals(runs: u32) -> Residuals {
        Residuals {
            median_log_error: 0.0,
            p05_log_error: -0.2,
            p95_log_error: 0.1,
            runs,
            source: "runs".to_owned(),
            of: None,
        }
    }

    #[test]
    fn what_was_predicted_too_fast_is_expected_slower() {
        let many = Interval::of((10.0, Seconds(5.0)), Some(&residuals(1_000_000)), None);
        let many = many.expect("residuals are known");
        assert!((many.throughput_tok_s.low / 10.0 - (-0.1_f64).exp()).abs() < 1e-4);
        assert!((many.throughput_tok_s.high / 10.0 - 0.2_f64.exp()).abs() < 1e-4);
        assert!((many.latency_s.high / 5.0 - 0.1_f64.exp()).abs() < 1e-4);
        assert!((many.latency_s.low / 5.0 - (-0.2_f64).exp()).abs() < 1e-4);
        assert!(many.from_residuals && !many.from_spread);
    }

    #[test]
    fn widths_add_as_squares() {
        let sigma = 0.1 / NORMAL_P95;
        let both = Interval::of(
            (1.0, Seconds(1.0)),
            Some(&residuals(1_000_000)),
            Some(sigma),
        );
        let low = both.expect("both are known").throughput_tok_s.low;
        assert!((low.ln() + 0.1 * 2.0_f64.sqrt()).abs() < 1e-4, "{low}");
        assert_eq!(Interval::of((1.0, Seconds(1.0)), None, None), None);
    }

    #[test]
    fn a_bias_shifts_the_interval() {
        let biased = Residuals {
            median_log_error: 0.3,
            p05_log_error: 0.2,
            p95_log_error: 0.4,
            ..residuals(1_000_000)
        };
        let range = Interval::of((1.0, Seconds(1.0)), Some(&biased), None);
        let range = range.expect("residuals are known").throughput_tok_s;
        assert!(
            range.holds((-0.3_f64).exp()) && !range.holds(1.0),
            "{range:?}"
        );
    }

    #[test]
    fn few_runs_say_less() {
        // Student's t with 6 degrees of freedom: 1.943; with 9: 1.833.
        for (runs, t) in [(7, 1.943), (10, 1.833)] {
            let exact = t / NORMAL_P95 * (1.0 + 1.0 / f64::from(runs)).sqrt();
            assert!((few_runs(runs) / exact - 1.0).abs() < 0.01);
        }
        assert!(few_runs(1_000_000) < 1.000_01);
    }
}
