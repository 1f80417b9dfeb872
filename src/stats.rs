//! The few statistics that reports need.

use statrs::statistics::{Data, OrderStatistics, RankTieBreaker};

/// A quantile, interpolated (median-unbiased); not a number of no values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    Data::new(values.to_vec()).quantile(share)
}

/// Errors in a few numbers; not numbers where there are none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorStats {
    /// Median of the errors' sizes.
    pub median: f64,
    /// Their 90th percentile.
    pub p90: f64,
    /// Their 95th percentile.
    pub p95: f64,
    /// The largest size.
    pub max: f64,
    /// Median of the errors with their sign.
    pub signed_median: f64,
}

impl ErrorStats {
    /// Of errors with their sign.
    pub fn of(errors: &[f64]) -> ErrorStats {
        let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        ErrorStats {
            median: quantile(&sizes, 0.5),
            p90: quantile(&sizes, 0.9),
            p95: quantile(&sizes, 0.95),
            max: quantile(&sizes, 1.0),
            signed_median: quantile(errors, 0.5),
        }
    }
}

/// Correlation of ranks; ties share their mean rank. None where either has one rank only.
pub fn spearman(a: Vec<f64>, b: Vec<f64>) -> Option<f64> {
    let ranks = |values: Vec<f64>| Data::new(values).ranks(RankTieBreaker::Average);
    let (a, b) = (ranks(a), ranks(b));
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (mean_a, mean_b) = (mean(&a), mean(&b));
    let pairs = || a.iter().zip(&b).map(|(x, y)| (x - mean_a, y - mean_b));
    let covariance: f64 = pairs().map(|(x, y)| x * y).sum();
    let spread: f64 =
        pairs().map(|(x, _)| x * x).sum::<f64>() * pairs().map(|(_, y)| y * y).sum::<f64>();
    (spread > 0.0).then(|| covariance / spread.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_correlate_whatever_the_scale() {
        let a = [1.0, 2.0, 3.0, 4.0];
        for (b, expected) in [
            ([1.0, 10.0, 1e3, 1e9], 1.0),
            ([4.0, 3.0, 2.0, 1.0], -1.0),
            ([1.0, 2.0, 4.0, 3.0], 0.8),
        ] {
            let found = spearman(a.to_vec(), b.to_vec()).unwrap();
            assert!((found - expected).abs() < 1e-12, "{found}");
        }
    }

    #[test]
    fn sizes_of_errors_have_no_sign_and_one_median_has() {
        let found = ErrorStats::of(&[-0.4, -0.1, 0.2]);
        assert_eq!((found.median, found.max), (0.2, 0.4));
        assert_eq!(found.signed_median, -0.1);
        assert!(found.median < found.p90 && found.p90 <= found.p95);
        assert!(ErrorStats::of(&[]).median.is_nan());
    }

    #[test]
    fn what_ranks_alike_has_no_correlation() {
        assert_eq!(spearman(vec![1.0], vec![2.0]), None);
        assert_eq!(spearman(vec![1.0, 1.0], vec![1.0, 2.0]), None);
    }
}
