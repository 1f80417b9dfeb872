//! Rates that depend on size.

use serde::Serialize;

/// What is wrong with the points of a curve.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// There is nothing to interpolate.
    #[error("has no points")]
    Empty,
    /// A size or a rate that a logarithm does not take.
    #[error("point {index} is [{size}, {rate}]; sizes and rates must be positive and finite")]
    NotPositive {
        /// Position of the point, from 0.
        index: usize,
        /// Its size.
        size: f64,
        /// Its rate.
        rate: f64,
    },
    /// Sizes that stand still or go back.
    #[error("is not ascending: size {size} at point {index} is not above {before}")]
    NotAscending {
        /// Position of the point, from 0.
        index: usize,
        /// Its size.
        size: f64,
        /// The size of the point before it.
        before: f64,
    },
}

/// A rate as a function of size: piecewise linear in log size and log rate, constant outside its
/// points. The units of size and rate are those of the field that holds it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    points: Vec<(f64, f64)>,
    /// A key of [`HardwareProfile::sources`](super::HardwareProfile::sources).
    pub source: String,
    /// Relative spread of repeats, (p75 - p25) / median, the widest of its points.
    pub spread: Option<f64>,
}

impl Curve {
    /// A curve through `points` (size, rate): at least one, sizes ascending, all positive and
    /// finite.
    pub fn new(
        points: Vec<(f64, f64)>,
        source: impl Into<String>,
        spread: Option<f64>,
    ) -> Result<Curve, CurveError> {
        if points.is_empty() {
            return Err(CurveError::Empty);
        }
        for (index, &(size, rate)) in points.iter().enumerate() {
            let positive = |x: f64| x.is_finite() && x > 0.0;
            if !positive(size) || !positive(rate) {
                return Err(CurveError::NotPositive { index, size, rate });
            }
            if index > 0 && size <= points[index - 1].0 {
                return Err(CurveError::NotAscending {
                    index,
                    size,
                    before: points[index - 1].0,
                });
            }
        }
        let source = source.into();
        Ok(Curve {
            points,
            source,
            spread,
        })
    }

    /// The points (size, rate), sizes ascending.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// The rate at `size`.
    pub fn at(&self, size: f64) -> f64 {
        let right = self.points.partition_point(|&(s, _)| s <= size);
        if right == 0 {
            return self.points[0].1;
        }
        let (size_0, rate_0) = self.points[right - 1];
        // A point itself, or beyond the last.
        if size == size_0 || right == self.points.len() {
            return rate_0;
        }
        let (size_1, rate_1) = self.points[right];
        let share = (size / size_0).ln() / (size_1 / size_0).ln();
        let rate = rate_0 * (share * (rate_1 / rate_0).ln()).exp();
        // Rounding must not leave the segment.
        rate.clamp(rate_0.min(rate_1), rate_0.max(rate_1))
    }

    /// The same curve with each rate divided by what `factor` says for its size; factors are positive.
    pub fn slower(&self, factor: impl Fn(f64) -> f64) -> Curve {
        let mut slower = self.clone();
        for (size, rate) in &mut slower.points {
            *rate /= factor(*size);
        }
        slower
    }

    /// The highest rate at any size.
    pub fn peak(&self) -> f64 {
        self.points.iter().fold(0.0, |peak, &(_, r)| peak.max(r))
    }

    /// The curve min(rate, `cap`), exact: a point stands where the curve crosses the cap.
    /// `cap` is positive and finite, in the curve's unit of rate.
    pub fn capped(&self, cap: f64) -> Curve {
        assert!(
            cap.is_finite() && cap > 0.0,
            "a cap must be positive and finite, not {cap}"
        );
        let mut points: Vec<(f64, f64)> = Vec::with_capacity(self.points.len() + 2);
        for (index, &(size, rate)) in self.points.iter().enumerate() {
            if index > 0 {
                let (size_0, rate_0) = self.points[index - 1];
                if (rate_0 < cap && cap < rate) || (rate < cap && cap < rate_0) {
                    let share = (cap / rate_0).ln() / (rate / rate_0).ln();
                    let crossing = size_0 * (share * (size / size_0).ln()).exp();
                    if size_0 < crossing && crossing < size {
                        points.push((crossing, cap));
                    }
                }
            }
            points.push((size, rate.min(cap)));
        }
        Curve {
            points,
            source: self.source.clone(),
            spread: self.spread,
        }
    }
}
