//! Normalisation of rows: LayerNorm and RMSNorm.

use super::error::expect;
use super::{Elements, KernelError};

/// Partial sums of a row, added from first to last.
const PARTS: usize = 8;

/// What a norm needs beside its input.
#[derive(Debug, Clone, Copy)]
pub struct NormWeight<'a> {
    /// `[width]`: the factor of each column.
    pub weight: Elements<'a>,
    /// `[width]`: what is added to each column, where the model has it.
    pub bias: Option<Elements<'a>>,
    /// Added to the variance (or the mean square) under the root.
    pub epsilon: f32,
}

fn sum_of(row: &[f32], term: impl Fn(f64) -> f64) -> f64 {
    let mut parts = [0.0; PARTS];
    for chunk in row.chunks(PARTS) {
        for (part, value) in parts.iter_mut().zip(chunk) {
            *part += term(f64::from(*value));
        }
    }
    parts.iter().sum()
}

/// Gives for each row a centre and a factor, then writes `(x - centre) * factor * weight + bias`.
fn normalise(
    x: &[f32],
    norm: NormWeight<'_>,
    y: &mut [f32],
    centre_and_factor: impl Fn(&[f32]) -> (f64, f64),
) -> Result<(), KernelError> {
    let width = norm.weight.len();
    expect("the output of a norm", x.len(), y.len())?;
    if width == 0 || !x.len().is_multiple_of(width) {
        return expect(
            "the input of a norm",
            x.len().next_multiple_of(width.max(1)),
            x.len(),
        );
    }
    if let Some(bias) = norm.bias {
        expect("the bias of a norm", width, bias.len())?;
    }
    let weight = norm.weight.to_vec();
    let bias = norm
        .bias
        .map_or_else(|| vec![0.0; width], |bias| bias.to_vec());
    for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
        let (centre, factor) = centre_and_factor(x);
        for column in 0..width {
            let normal = ((f64::from(x[column]) - centre) * factor) as f32;
            y[column] = normal * weight[column] + bias[column];
        }
    }
    Ok(())
}

/// LayerNorm of each row of `x` [rows, width] to `y` of the same shape; means and variances in f64.
///
/// # Errors
/// [`KernelError::Shape`] where lengths do not fit the width of the weight.
pub fn layer_norm(x: &[f32], norm: NormWeight<'_>, y: &mut [f32]) -> Result<(), KernelError> {
    normalise(x, norm, y, |row| {
        let width = row.len() as f64;
        let mean = sum_of(row, |value| value) / width;
        let variance = sum_of(row, |value| (value - mean) * (value - mean)) / width;
        (mean, 1.0 / (variance + f64::from(norm.epsilon)).sqrt())
    })
}

/// RMSNorm of each row of `x` [rows, width] to `y` of the same shape; mean squares in f64.
///
/// # Errors
/// [`KernelError::Shape`] where lengths do not fit the width of the weight.
pub fn rms_norm(x: &[f32], norm: NormWeight<'_>, y: &mut [f32]) -> Result<(), KernelError> {
    normalise(x, norm, y, |row| {
        let mean_square = sum_of(row, |value| value * value) / row.len() as f64;
        (0.0, 1.0 / (mean_square + f64::from(norm.epsilon)).sqrt())
    })
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn a_layer_norm_has_the_stated_mean_and_spread() {
        let weight = [2.0_f32; 4];
        let bias = [f16::ONE; 4];
        let norm = NormWeight {
            weight: Elements::F32(&weight),
            bias: Some(Elements::F16(&bias)),
            epsilon: 0.0,
        };
        let mut y = [0.0; 8];
        layer_norm(&[1.0, 3.0, 1.0, 3.0, -5.0, 5.0, 5.0, -5.0], norm, &mut y).unwrap();
        assert_eq!(y, [-1.0, 3.0, -1.0, 3.0, -1.0, 3.0, 3.0, -1.0]);
    }

    #[test]
    fn a_root_mean_square_norm_keeps_the_sign_and_the_mean() {
        let weight = [1.0_f32, 10.0];
        let norm = NormWeight {
            weight: Elements::F32(&weight),
            bias: None,
            epsilon: 0.0,
        };
        let mut y = [0.0; 2];
        rms_norm(&[7.0, 1.0], norm, &mut y).unwrap();
        assert_eq!(y, [1.4, 2.0]);
    }

    #[test]
    fn a_constant_row_is_zero_thanks_to_epsilon() {
        let weight = [1.0_f32; 3];
        let norm = NormWeight {
            weight: Elements::F32(&weight),
            bias: None,
            epsilon: 1e-5,
        };
        let mut y = [9.0; 3];
        layer_norm(&[4.0; 3], norm, &mut y).unwrap();
        assert_eq!(y, [0.0; 3]);
    }

    #[test]
    fn a_row_that_is_cut_short_is_refused() {
        let weight = [1.0_f32; 3];
        let norm = NormWeight {
            weight: Elements::F32(&weight),
            bias: None,
            epsilon: 1e-5,
        };
        let error = layer_norm(&[4.0; 4], norm, &mut [0.0; 4]).unwrap_err();
        assert_eq!(
            error,
            KernelError::Shape {
                what: "the input of a norm",
                expected: 6,
                found: 4
            }
        );
    }
}
