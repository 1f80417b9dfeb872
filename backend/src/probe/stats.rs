//! Medians and spreads of repeated measurements.

/// The middle of the values; not a number where there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Interquartile range over the median: how much repeats differ.
pub(crate) fn spread(values: &[f64]) -> f64 {
    (quantile(values, 0.75) - quantile(values, 0.25)) / median(values).max(f64::MIN_POSITIVE)
}

/// The nearest values that never fall, by the sum of distances: where values fall, the median of those that are out of order
/// stands for each of them (isotonic regression, by pooling adjacent violators).
pub(crate) fn never_falling(values: &[f64]) -> Vec<f64> {
    let mut pools: Vec<Vec<f64>> = Vec::new();
    for value in values {
        let mut pool = vec![*value];
        while let Some(before) = pools.pop_if(|before| median(before) > median(&pool)) {
            pool = [before, pool].concat();
        }
        pools.push(pool);
    }
    let middles = pools.iter().map(|pool| vec![median(pool); pool.len()]);
    middles.flatten().collect()
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = share * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_one_wild_value() {
        assert_eq!(median(&[1.0, 100.0, 2.0, 3.0, 2.0]), 2.0);
        assert_eq!(spread(&[1.0, 2.0, 3.0]), 0.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn what_falls_is_pooled_until_nothing_does() {
        let rises = [1.0, 2.0, 2.0, 5.0];
        assert_eq!(never_falling(&rises), rises);
        // One wild value moves its neighbours to the middle of them, and no further.
        assert_eq!(
            never_falling(&[1.0, 4.0, 4.5, 0.1, 6.0]),
            [1.0, 4.0, 4.0, 4.0, 6.0]
        );
        assert_eq!(never_falling(&[3.0, 2.0, 1.0]), [2.0; 3]);
        assert!(never_falling(&[]).is_empty());
    }
}
