//! The few statistics that reports need.

use statrs::statistics::{Data, OrderStatistics, RankTieBreaker};

/// A quantile, interpolated (median-unbiased); not a number of no values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    Data::new(values.to_vec()).quantile(share)
}

/// Correlation of ranks; ties share their mean rank.
pub fn spearman(a: Vec<f64>, b: Vec<f64>) -> f64 {
    let ranks = |values: Vec<f64>| Data::new(values).ranks(RankTieBreaker::Average);
    let (a, b) = (ranks(a), ranks(b));
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (mean_a, mean_b) = (mean(&a), mean(&b));
    let pairs = || a.iter().zip(&b).map(|(x, y)| (x - mean_a, y - mean_b));
    let covariance: f64 = pairs().map(|(x, y)| x * y).sum();
    let spread: f64 =
        pairs().map(|(x, _)| x * x).sum::<f64>() * pairs().map(|(_, y)| y * y).sum::<f64>();
    covariance / spread.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_correlate_whatever_the_scale() {
        let a = vec![1.0, 2.0, 3.0, 4.0];
        assert!((spearman(a.clone(), vec![1.0, 10.0, 1e3, 1e9]) - 1.0).abs() < 1e-12);
        assert!((spearman(a.clone(), vec![4.0, 3.0, 2.0, 1.0]) + 1.0).abs() < 1e-12);
        assert!((spearman(a, vec![1.0, 2.0, 4.0, 3.0]) - 0.8).abs() < 1e-12);
    }
}
