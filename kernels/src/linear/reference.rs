//! The naive form, and stores of half as many bits, for tests.

use half::{bf16, f16};

use super::{LinearShape, LinearWeight};

/// The naive form in f64, for tests of this and other layers.
pub fn linear_reference(shape: LinearShape, x: &[f32], weight: LinearWeight<'_>) -> Vec<f64> {
    let LinearShape { m, n, k } = shape;
    let w = weight.weight.to_vec(k);
    let bias = weight.bias.map_or(vec![0.0; n], |bias| bias.to_vec());
    let mut y = Vec::with_capacity(m * n);
    for i in 0..m {
        for j in 0..n {
            let products = (0..k).map(|l| f64::from(x[i * k + l]) * f64::from(w[j * k + l]));
            y.push(products.sum::<f64>() + f64::from(bias[j]));
        }
    }
    y
}

/// A store of f16 made of f32.
pub fn to_half(values: &[f32]) -> Vec<f16> {
    values.iter().map(|&value| f16::from_f32(value)).collect()
}

/// The same for bf16.
pub fn to_brain(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|&value| bf16::from_f32(value)).collect()
}
