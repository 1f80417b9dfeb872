//! Many values in a few.

use serde::{Deserialize, Serialize};

/// Mean, median and tails. A percentile is the smallest value that so many do not exceed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// Nine of ten are not above it.
    pub p90: f64,
    /// 99 of 100 are not above it.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Distribution {
    /// Of values; zeros where there are none.
    pub fn of(values: Vec<f64>) -> Distribution {
        Distribution::weighted(values.into_iter().map(|value| (value, 1)).collect())
    }

    /// Of values that each came so many times; zeros where there are none.
    pub fn weighted(mut values: Vec<(f64, u64)>) -> Distribution {
        values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let count: u64 = values.iter().map(|(_, times)| times).sum();
        let Some((max, _)) = values.last().filter(|_| count > 0) else {
            return Distribution::default();
        };
        let sum: f64 = values
            .iter()
            .map(|(value, times)| value * *times as f64)
            .sum();
        let at = |share: f64| {
            let rank = (share * count as f64).ceil() as u64;
            let mut passed = 0;
            let found = values.iter().find(|(_, times)| {
                passed += times;
                passed >= rank
            });
            found.map_or(*max, |(value, _)| *value)
        };
        Distribution {
            mean: sum / count as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: *max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let all = Distribution::of((1..=100).rev().map(f64::from).collect());
        let Distribution {
            mean,
            p50,
            p90,
            p99,
            max,
        } = all;
        assert_eq!([mean, p50, p90, p99, max], [50.5, 50.0, 90.0, 99.0, 100.0]);
        let twice = Distribution::weighted(vec![(2.0, 1), (1.0, 9)]);
        assert_eq!([twice.mean, twice.p90, twice.p99], [1.1, 1.0, 2.0]);
        assert_eq!(Distribution::of(Vec::new()), Distribution::default());
    }
}
