//! Units as newtypes, so that bytes never add to seconds.
//!
//! A unit stands last in every key and name (`latency_s`, `capacity_bytes`).

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use serde::{Deserialize, Serialize};

/// A count of bytes.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A span of time in seconds; also the clock of an executor since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

/// A count of floating-point operations (a multiply-add is two).
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Flops(pub f64);

/// A rate of moving bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BytesPerSecond(pub f64);

/// A rate of computing.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FlopsPerSecond(pub f64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// As a real number, for rates.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// Rounded up to a multiple of `alignment_bytes`.
    pub fn align_up(self, alignment_bytes: u64) -> Bytes {
        Bytes(self.0.next_multiple_of(alignment_bytes))
    }

    /// The difference, or nothing where `other` is larger.
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Seconds {
    /// No time.
    pub const ZERO: Seconds = Seconds(0.0);

    /// The longer of two spans.
    pub fn max(self, other: Seconds) -> Seconds {
        Seconds(self.0.max(other.0))
    }
}

macro_rules! linear {
    ($unit:ident, $scalar:ty) => {
        impl Add for $unit {
            type Output = $unit;
            fn add(self, other: $unit) -> $unit {
                $unit(self.0 + other.0)
            }
        }
        impl Sub for $unit {
            type Output = $unit;
            fn sub(self, other: $unit) -> $unit {
                $unit(self.0 - other.0)
            }
        }
        impl AddAssign for $unit {
            fn add_assign(&mut self, other: $unit) {
                self.0 += other.0;
            }
        }
        impl Mul<$scalar> for $unit {
            type Output = $unit;
            fn mul(self, factor: $scalar) -> $unit {
                $unit(self.0 * factor)
            }
        }
        impl Sum for $unit {
            fn sum<I: Iterator<Item = $unit>>(iter: I) -> $unit {
                iter.fold($unit::default(), |a, b| a + b)
            }
        }
    };
}

linear!(Bytes, u64);
linear!(Seconds, f64);
linear!(Flops, f64);

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds(self.0 as f64 / rate.0)
    }
}

impl Div<FlopsPerSecond> for Flops {
    type Output = Seconds;
    fn div(self, rate: FlopsPerSecond) -> Seconds {
        Seconds(self.0 / rate.0)
    }
}

/// Three digits in the decimal unit that fits, as data sheets count.
fn scaled(value: f64, unit: &str) -> String {
    let mut value = value;
    let mut prefixes = ["", "k", "M", "G", "T", "P"].iter();
    let mut prefix = prefixes.next();
    while value.abs() >= 999.5 && prefixes.len() > 0 {
        value /= 1000.0;
        prefix = prefixes.next();
    }
    let prefix = prefix.unwrap_or(&"");
    let digits = match value.abs() {
        a if a == 0.0 || a >= 99.95 => 0,
        a if a >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {prefix}{unit}")
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // There is no part of a byte.
            few @ 0..1000 => f.pad(&format!("{few} B")),
            many => f.pad(&scaled(many as f64, "B")),
        }
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&scaled(self.0, "B/s"))
    }
}

impl fmt::Display for FlopsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&scaled(self.0, "FLOP/s"))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0;
        let text = match s.abs() {
            0.0 => "0 s".to_owned(),
            a if a < 1e-6 => format!("{:.0} ns", s * 1e9),
            a if a < 1e-3 => format!("{:.1} us", s * 1e6),
            a if a < 1.0 => format!("{:.2} ms", s * 1e3),
            a if a < 100.0 => format!("{s:.2} s"),
            _ => format!("{s:.0} s"),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_prints_with_a_readable_prefix() {
        assert_eq!(Bytes(16_000_000_000).to_string(), "16.0 GB");
        assert_eq!(Bytes(16 << 30).to_string(), "17.2 GB");
        assert_eq!(Bytes(999_600).to_string(), "1.00 MB");
        assert_eq!(Bytes(999).to_string(), "999 B");
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(BytesPerSecond(12.89e9).to_string(), "12.9 GB/s");
        assert_eq!(Seconds(0.00031).to_string(), "310.0 us");
    }

    #[test]
    fn dividing_by_a_rate_gives_time() {
        assert_eq!(Bytes(2_000) / BytesPerSecond(1_000.0), Seconds(2.0));
        assert_eq!(Flops(6.0) / FlopsPerSecond(3.0), Seconds(2.0));
    }
}
