//! The few statistics that reports need.

use statrs::statistics::{Data, OrderStatistics, RankTieBreaker};

/// A quantile, interpolated (median-unbiased); not a number of no values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    Data::new(values.to_vec()).quantile(share)
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
    fn what_ranks_alike_has_no_correlation() {
        assert_eq!(spearman(vec![1.0], vec![2.0]), None);
        assert_eq!(spearman(vec![1.0, 1.0], vec![1.0, 2.0]), None);
    }
}
