//! Groups of 4-bit codes that share a scale and a minimum (FlexGen section 5); where they lie is said
//! in `plimsoll_core::compression`.
//!
//! `code = round((x - minimum) / (maximum - minimum) * 15)`, to even where it is half way, and
//! `x = fma(code, scale, minimum)` with `scale = (maximum - minimum) / 15`. Scale and minimum are kept
//! as f16, at most its largest number; a group with an element that is not finite is all NaN.
//!
//! Packing is written once over arrays of lanes and compiled for each instruction set; unpacking is
//! a way to read a row. [`Group`] is the plain form that both are held to.

mod head;
mod matrix;

use half::f16;
use plimsoll_formats::{GROUP_BYTES, GROUP_ELEMENTS};

use super::simd::LANES;

pub use head::{PackedHead, head_bytes, pack_heads};
pub use matrix::{PackedMatrix, PackedRow, pack_matrix};

/// Elements of a group.
pub const ELEMENTS: usize = GROUP_ELEMENTS as usize;
/// Bytes of a group.
pub const BYTES: usize = GROUP_BYTES as usize;
/// The largest code.
const CODE_MAX: f32 = 15.0;

/// One group, element by element: the reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// One of 16 steps for each element.
    pub codes: Vec<u8>,
    /// From a step to the next.
    pub scale: f16,
    /// Where code 0 is.
    pub minimum: f16,
}

impl Group {
    /// Quantises at most 64 elements.
    pub fn quantise(elements: &[f32]) -> Group {
        let minimum = elements.iter().copied().fold(f32::INFINITY, f32::min);
        let maximum = elements.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !elements.iter().all(|x| x.is_finite()) || elements.is_empty() {
            return Group {
                codes: vec![0; elements.len()],
                scale: f16::ZERO,
                minimum: f16::NAN,
            };
        }
        let range = maximum - minimum;
        let code = |x: &f32| {
            let step = (x - minimum) / range * CODE_MAX;
            // Not a number where all are the same, which is code 0.
            step.round_ties_even() as u8
        };
        Group {
            codes: elements.iter().map(code).collect(),
            scale: kept(range / CODE_MAX),
            minimum: kept(minimum + 0.0),
        }
    }

    /// The elements again.
    pub fn elements(&self) -> Vec<f32> {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        let codes = self.codes.iter();
        codes
            .map(|code| f32::from(*code).mul_add(scale, minimum))
            .collect()
    }
}

/// As f16, at most its largest number.
fn kept(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

/// What sixteen lanes of elements span.
#[derive(Clone, Copy)]
struct Span {
    minimum: [f32; LANES],
    maximum: [f32; LANES],
    /// Zero while all elements are finite, then NaN.
    taint: [f32; LANES],
}

impl Span {
    const EMPTY: Span = Span {
        minimum: [f32::INFINITY; LANES],
        maximum: [f32::NEG_INFINITY; LANES],
        taint: [0.0; LANES],
    };

    #[inline(always)]
    fn add(&mut self, elements: &[f32; LANES]) {
        for (lane, x) in elements.iter().enumerate() {
            let (low, high) = (self.minimum[lane], self.maximum[lane]);
            self.minimum[lane] = if *x < low { *x } else { low };
            self.maximum[lane] = if *x > high { *x } else { high };
            self.taint[lane] += x * 0.0;
        }
    }
}

/// How the elements of a group are brought to codes.
#[derive(Clone, Copy)]
struct Quantiser {
    minimum: f32,
    /// Not zero.
    range: f32,
    scale: f32,
}

impl Quantiser {
    #[inline(always)]
    fn new(minimum: f32, maximum: f32, taint: f32) -> Quantiser {
        let range = maximum - minimum;
        let finite = taint == 0.0;
        Quantiser {
            // Zero is added so that it has one sign.
            minimum: minimum + taint,
            range: if range > 0.0 { range } else { 1.0 },
            scale: if finite { range / CODE_MAX } else { 0.0 },
        }
    }

    #[inline(always)]
    fn code(self, x: f32) -> u8 {
        // Behind 2^23 an f32 has no fraction: adding it rounds, and the integer is its last bits.
        const ROUND: f32 = (1_u32 << 23) as f32;
        let step = (x - self.minimum) / self.range * CODE_MAX;
        (step + ROUND).to_bits() as u8 & 15
    }
}

#[cfg(test)]
mod tests;
