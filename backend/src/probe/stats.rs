//! Medians and spreads of repeated measurements.

/// The middle of the values; not a number where there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Interquartile range over the median: how much repeats differ.
pub(crate) fn spread(values: &[f64]) -> f64 {
    (quantile(values, 0.75) - quantile(values, 0.25)) / median(values).max(f64::MIN_POSITIVE)
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
}
