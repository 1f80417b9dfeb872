//! Medians and spreads of repeated measurements.

/// The middle of the values; not a number where there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Interquartile range over the median: how much repeats differ.
pub(crate) fn spread(values: &[f64]) -> f64 {
    (quantile(values, 0.75) - quantile(values, 0.25)) / median(values).max(f64::MIN_POSITIVE)
}

/// Values that never fall by more than a `share`: where they do, the median of those that are out of order stands for each of
/// them (isotonic regression by pooling adjacent violators, with that much patience). Of two it is the larger, so that one that is
/// too low moves no other; of the last two nobody can tell which is wrong.
pub(crate) fn without_falls(values: &[f64], share: f64) -> Vec<f64> {
    let middle = |pool: &[f64]| {
        let mut sorted = pool.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let mut pools: Vec<Vec<f64>> = Vec::new();
    for value in values {
        let mut pool = vec![*value];
        let falls =
            |before: &mut Vec<f64>, pool: &[f64]| middle(before) * (1.0 - share) > middle(pool);
        while let Some(before) = pools.pop_if(|before| falls(before, &pool)) {
            pool = [before, pool].concat();
        }
        pools.push(pool);
    }
    let of_pool = |pool: &Vec<f64>| match pool.len() {
        1 => pool.clone(),
        length => vec![middle(pool); length],
    };
    pools.iter().flat_map(of_pool).collect()
}

/// Straight between ranks. Reports' quantiles lie further apart where there are few values (`stats` of the root package): the spreads
/// of recorded profiles are by this one, recorded errors by that one, so neither stands for the other.
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
    fn one_wild_value_is_pooled() {
        let pooled = |values: &[f64]| without_falls(values, 0.25);
        // Falls that may be real stay.
        let rises = [1.0, 1.1, 1.0, 1.2, 5.0];
        assert_eq!(pooled(&rises), rises);
        assert_eq!(pooled(&[1.0, 0.4, 1.1, 1.2]), [1.0, 1.0, 1.1, 1.2]);
        assert_eq!(pooled(&[1.0, 3.0, 1.1, 1.2]), [1.0, 1.2, 1.2, 1.2]);
        assert_eq!(pooled(&[1.0, 4.0, 0.1, 6.0]), [1.0, 4.0, 4.0, 6.0]);
        assert_eq!(pooled(&[1.0, 2.0, 0.1]), [1.0, 2.0, 2.0]);
        assert!(pooled(&[]).is_empty());
    }
}
