//! Rates of matrix products by shape and number of tokens.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Compute, Curve};

/// The curves of one type over M, by the size of the weight matrix.
#[derive(Debug, Clone)]
pub(super) struct GemmRates {
    /// Elements of the weight matrix (none: for all sizes) with the curve, ascending.
    curves: Vec<(Option<f64>, Curve)>,
}

impl GemmRates {
    pub(super) fn new(compute: &Compute, dtype: Dtype) -> GemmRates {
        let exact: Vec<_> = compute.gemm.iter().filter(|c| c.dtype == dtype).collect();
        // A profile that does not know the type is asked for what it knows.
        let known = if exact.is_empty() { compute.gemm.iter().collect() } else { exact };
        let mut curves: Vec<(Option<f64>, Curve)> = known
            .into_iter()
            .map(|c| {
                let elements = c.n.zip(c.k).map(|(n, k)| f64::from(n) * f64::from(k));
                (elements, c.rate.clone())
            })
            .collect();
        if curves.iter().any(|(elements, _)| elements.is_some()) {
            curves.retain(|(elements, _)| elements.is_some());
        }
        curves.sort_by(|a, b| a.0.unwrap_or(0.0).total_cmp(&b.0.unwrap_or(0.0)));
        GemmRates { curves }
    }

    /// Whether rates were measured at stated shapes.
    pub(super) fn measured_by_shape(&self) -> bool {
        self.curves.first().is_some_and(|(elements, _)| elements.is_some())
    }

    /// FLOP/s at `m` tokens, between the nearest measured sizes of weights, in logarithms.
    pub(super) fn rate(&self, m: u32, n: u32, k: u32) -> f64 {
        let m = f64::from(m);
        let elements = f64::from(n) * f64::from(k);
        let above = self.curves.iter().position(|(at, _)| at.unwrap_or(0.0) >= elements);
        let last = self.curves.len().saturating_sub(1);
        let (low, high) = match above {
            Some(0) => (0, 0),
            Some(index) => (index - 1, index),
            None => (last, last),
        };
        let Some((low, high)) = self.curves.get(low).zip(self.curves.get(high)) else {
            return f64::NAN;
        };
        let rate_low = low.1.at(m).ln();
        let (Some(from), Some(to)) = (low.0, high.0) else {
            return rate_low.exp();
        };
        if to <= from {
            return rate_low.exp();
        }
        let share = (elements / from).ln() / (to / from).ln();
        (rate_low + share * (high.1.at(m).ln() - rate_low)).exp()
    }
}
