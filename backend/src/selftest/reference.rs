//! Random operands, and results held against arithmetic in f64.

use half::{bf16, f16};
use plimsoll_core::Dtype;

use super::Wrong;

/// A value as the reference has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// What it is.
    pub value: f64,
    /// The sum of the sizes of the terms that it is the sum of.
    pub size: f64,
}

impl Expected {
    /// One that is no sum.
    pub fn plain(value: f64) -> Expected {
        Expected {
            value,
            size: value.abs(),
        }
    }

    /// The sum of these.
    pub fn sum(terms: impl IntoIterator<Item = f64>) -> Expected {
        let (mut value, mut size) = (0.0, 0.0);
        for term in terms {
            value += term;
            size += f64::abs(term);
        }
        Expected { value, size }
    }
}

/// The operands of a kernel and what came of them.
#[derive(Debug)]
pub struct Checks {
    /// Operands so far.
    pub cases: usize,
    /// The largest error, as a share of what is allowed.
    pub worst: f64,
    state: u64,
}

impl Checks {
    /// None yet; operands are the same each time.
    pub fn new() -> Checks {
        Checks {
            cases: 0,
            worst: 0.0,
            state: 0x706c_696d_736f_6c6c,
        }
    }

    /// The next of a fixed sequence of integers (splitmix64).
    pub fn integer(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % below as u64) as usize
    }

    /// Numbers between -size and size.
    pub fn numbers(&mut self, count: usize, size: f32) -> Vec<f32> {
        let number = |_| (self.integer(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * size;
        (0..count).map(number).collect()
    }

    /// Holds numbers, which were rounded to a type, against the reference.
    ///
    /// # Errors
    /// The first that is not near.
    pub fn near(
        &mut self,
        case: &str,
        dtype: Dtype,
        found: &[f64],
        expected: &[Expected],
    ) -> Result<(), Wrong> {
        assert_eq!(found.len(), expected.len(), "{case}");
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let allowed = allowed(dtype, *expected);
            let share = (found - expected.value).abs() / allowed;
            // A NaN is no share at all.
            if share.is_nan() || share > 1.0 {
                return Err(Wrong::Value {
                    case: case.to_owned(),
                    index,
                    found: *found,
                    expected: expected.value,
                    allowed,
                });
            }
            self.worst = self.worst.max(share);
        }
        Ok(())
    }
}

/// A unit in the last place of the stored type, and some of f32's of the terms.
fn allowed(dtype: Dtype, expected: Expected) -> f64 {
    let (bits, least) = match dtype {
        Dtype::F32 => (22, -126),
        Dtype::F16 => (10, -24),
        Dtype::Bf16 => (7, -126),
    };
    let place = expected.value.abs() * 2.0_f64.powi(-bits);
    place + expected.size * 2.0_f64.powi(-18) + 2.0_f64.powi(least)
}

/// Numbers as they are stored.
pub fn encode(dtype: Dtype, numbers: &[f32]) -> Vec<u8> {
    let bytes = |x: &f32| match dtype {
        Dtype::F32 => x.to_ne_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(*x).to_ne_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f32(*x).to_ne_bytes().to_vec(),
    };
    numbers.iter().flat_map(bytes).collect()
}

/// Stored numbers.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let number = |bytes: &[u8]| match dtype {
        Dtype::F32 => f64::from(bytemuck::pod_read_unaligned::<f32>(bytes)),
        Dtype::F16 => bytemuck::pod_read_unaligned::<f16>(bytes).to_f64(),
        Dtype::Bf16 => bytemuck::pod_read_unaligned::<bf16>(bytes).to_f64(),
    };
    let size = dtype.size_bytes() as usize;
    bytes.chunks_exact(size).map(number).collect()
}

/// An activation in f64.
pub fn activated(activation: Option<crate::kernels::activation::Activation>, x: f64) -> f64 {
    use crate::kernels::activation::Activation;
    use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
    match activation {
        None => x,
        Some(Activation::Relu) => x.max(0.0),
        Some(Activation::GeluTanh) => {
            let u = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + u.tanh())
        }
        Some(Activation::GeluErf) => 0.5 * x * libm::erfc(-x * FRAC_1_SQRT_2),
        Some(Activation::Silu) => x / (1.0 + (-x).exp()),
    }
}

/// The norm of a row: less its mean where it is centred, over the root of its mean square, times the factors, plus what
/// is added.
pub fn normalised(
    row: &[f64],
    centred: bool,
    epsilon: f64,
    factors: &[f64],
    added: &[f64],
) -> Vec<Expected> {
    let count = row.len() as f64;
    let mean = if centred {
        row.iter().sum::<f64>() / count
    } else {
        0.0
    };
    let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    let factor = 1.0 / (variance + epsilon).sqrt();
    let element = |(i, x): (usize, &f64)| {
        let scale = factor * factors[i];
        let sum = Expected::sum([x * scale, -mean * scale, added[i]]);
        // The mean is itself a sum.
        let size = sum.size + 3.0 * scale.abs();
        Expected { size, ..sum }
    };
    row.iter().enumerate().map(element).collect()
}

/// softmax(scores) times the values, element by element (FlashDecoding++ Eq. 1). `value(p, i)` is element i at position p.
pub fn weighed(scores: &[f64], width: usize, value: impl Fn(usize, usize) -> f64) -> Vec<Expected> {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
    let element = |i: usize| {
        let weights = scores.iter().map(|score| (score - largest).exp() / sum);
        let terms = weights.enumerate().map(|(p, weight)| weight * value(p, i));
        let sum = Expected::sum(terms);
        // Scores are sums in f32 as well, and their exponentials carry on their error.
        let size = 16.0 * sum.size;
        Expected { size, ..sum }
    };
    (0..width).map(element).collect()
}
