//! What a task's time consists of: seconds, and the number of the profile that rates them.

use plimsoll_core::extrapolation::SizeUnit;
use plimsoll_core::hardware::{Curve, Quantity};
use plimsoll_core::units::{BytesPerSecond, Seconds};

/// A part of a task's time that one number of the profile decides.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// The number's key in the profile, without its unit (`links.h2d.page_locked`).
    pub number: &'static str,
    /// How long.
    pub seconds: Seconds,
    /// How much repeats of the number's measurement differed.
    pub spread: Option<f64>,
    /// Where the number is a curve: where it was asked.
    pub asked: Option<Asked>,
    /// Where curves were measured at sizes of weights: which size was asked among them.
    pub weights: Option<Asked>,
}

/// A size that a curve was asked for, and those that it knows.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// What was asked.
    pub size: f64,
    /// The smallest size that is known.
    pub first: f64,
    /// The largest.
    pub last: f64,
    /// What sizes count.
    pub unit: SizeUnit,
}

impl Asked {
    pub(super) fn of(curve: &Curve, size: f64, unit: SizeUnit) -> Asked {
        let points = curve.points();
        let (first, last) = (points[0].0, points[points.len() - 1].0);
        Asked {
            size,
            first,
            last,
            unit,
        }
    }

    /// Whether the size is none that the curve knows.
    pub fn is_outside(&self) -> bool {
        self.size < self.first || self.size > self.last
    }
}

impl Part {
    /// So many times the same.
    pub(super) fn times(self, count: f64) -> Part {
        Part {
            seconds: Seconds(self.seconds.0 * count),
            ..self
        }
    }

    /// A fixed time.
    pub(super) fn fixed(number: &'static str, time: &Quantity<Seconds>) -> Part {
        Part {
            number,
            seconds: time.value,
            spread: time.spread,
            asked: None,
            weights: None,
        }
    }

    /// Bytes at a rate that is one for all sizes.
    pub(super) fn streamed(
        number: &'static str,
        bytes: f64,
        rate: &Quantity<BytesPerSecond>,
    ) -> Part {
        Part {
            number,
            seconds: Seconds(bytes / rate.value.0),
            spread: rate.spread,
            asked: None,
            weights: None,
        }
    }

    /// So much of what a curve rates, at its rate for a size.
    pub(super) fn rated(
        number: &'static str,
        amount: f64,
        (curve, size, unit): (&Curve, f64, SizeUnit),
    ) -> Part {
        Part {
            number,
            seconds: Seconds(amount / curve.at(size)),
            spread: curve.spread,
            asked: Some(Asked::of(curve, size, unit)),
            weights: None,
        }
    }
}
