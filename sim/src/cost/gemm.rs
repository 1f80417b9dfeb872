//! Rates of matrix products by shape and number of tokens.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Compute, Curve};

/// Curves over M by the elements of the weight matrix (none: for all sizes), ascending.
type BySize = Vec<(Option<f64>, Curve)>;

/// The curves of one type over M, by the size of the weight matrix.
#[derive(Debug, Clone)]
pub(super) struct GemmRates {
    fresh: BySize,
    /// For weights that the task before used; the same as the others where a profile has none.
    reused: BySize,
}

impl GemmRates {
    pub(super) fn new(compute: &Compute, dtype: Dtype) -> GemmRates {
        let fresh = by_size(compute, dtype, false);
        let reused = by_size(compute, dtype, true);
        if fresh.is_empty() && dtype == Dtype::F32 {
            // A profile that does not know the type is asked for what it knows.
            return GemmRates::new(compute, Dtype::F16);
        }
        let fresh = if fresh.is_empty() {
            by_size(compute, Dtype::F32, false)
        } else {
            fresh
        };
        GemmRates {
            reused: if reused.is_empty() {
                fresh.clone()
            } else {
                reused
            },
            fresh,
        }
    }

    /// Whether rates were measured at stated shapes.
    pub(super) fn measured_by_shape(&self) -> bool {
        self.fresh
            .first()
            .is_some_and(|(elements, _)| elements.is_some())
    }

    /// FLOP/s at `m` tokens, between the nearest measured sizes of weights, in logarithms.
    pub(super) fn rate(&self, m: u32, n: u32, k: u32, reused: bool) -> f64 {
        let curves = if reused { &self.reused } else { &self.fresh };
        let m = f64::from(m);
        let elements = f64::from(n) * f64::from(k);
        let above = curves
            .iter()
            .position(|(at, _)| at.unwrap_or(0.0) >= elements);
        let last = curves.len().saturating_sub(1);
        let (low, high) = match above {
            Some(0) => (0, 0),
            Some(index) => (index - 1, index),
            None => (last, last),
        };
        let Some((low, high)) = curves.get(low).zip(curves.get(high)) else {
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

fn by_size(compute: &Compute, dtype: Dtype, reused: bool) -> BySize {
    let known = compute
        .gemm
        .iter()
        .filter(|c| c.dtype == dtype && c.reused == reused);
    let mut curves: BySize = known
        .map(|c| {
            let elements = c.n.zip(c.k).map(|(n, k)| f64::from(n) * f64::from(k));
            (elements, c.rate.clone())
        })
        .collect();
    if curves.iter().any(|(elements, _)| elements.is_some()) {
        curves.retain(|(elements, _)| elements.is_some());
    }
    curves.sort_by(|a, b| a.0.unwrap_or(0.0).total_cmp(&b.0.unwrap_or(0.0)));
    curves
}
