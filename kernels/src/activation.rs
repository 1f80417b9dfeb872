//! Activations, element by element, in place.

use super::KernelError;
use super::error::expect;
use super::exp::exp;
use super::simd::{Kernel, LANES, Lanes, dispatch};

/// Which function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// max(x, 0).
    Relu,
    /// x * Phi(x), with Phi by its approximation through tanh (`gelu_new`, `gelu_pytorch_tanh`).
    GeluTanh,
    /// x * Phi(x), with Phi by the error function (`gelu`).
    GeluErf,
    /// x * sigmoid(x).
    Silu,
}

/// Applies the activation to every element.
pub fn activate(activation: Activation, values: &mut [f32]) {
    dispatch(Activate { activation, values });
}

/// `gate = activation(gate) * up`, element by element: the gated MLP, SwiGLU where the activation is
/// SiLU (Shazeer 2020, "GLU Variants Improve Transformer").
///
/// # Errors
/// [`KernelError::Shape`] where the lengths differ.
pub fn activate_gate(
    activation: Activation,
    gate: &mut [f32],
    up: &[f32],
) -> Result<(), KernelError> {
    expect("what a gate is multiplied with", gate.len(), up.len())?;
    activate(activation, gate);
    gate.iter_mut().zip(up).for_each(|(gate, up)| *gate *= up);
    Ok(())
}

struct Activate<'a> {
    activation: Activation,
    values: &'a mut [f32],
}

impl Kernel for Activate<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        match self.activation {
            Activation::Relu => each(self.values, |x| if x < 0.0 { 0.0 } else { x }),
            Activation::GeluTanh => each(self.values, gelu_tanh),
            Activation::GeluErf => self.values.iter_mut().for_each(|x| *x = gelu_erf(*x)),
            Activation::Silu => each(self.values, silu),
        }
    }
}

/// In groups of sixteen, so that `f` vectorises; the last group is padded.
#[inline(always)]
fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
    let (whole, rest) = values.as_chunks_mut::<LANES>();
    for chunk in whole {
        for value in chunk {
            *value = f(*value);
        }
    }
    for value in rest {
        *value = f(*value);
    }
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// x / 2 * (1 + tanh(u)) = x * sigmoid(2 u), which loses nothing to cancellation.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    let cubic = (0.044_715 * x * x).mul_add(x, x);
    x / (1.0 + exp(-2.0 * std::f32::consts::FRAC_2_SQRT_PI / std::f32::consts::SQRT_2 * cubic))
}

/// The upper tail keeps the lower end accurate: Phi(x) = erfc(-x / sqrt 2) / 2.
fn gelu_erf(x: f32) -> f32 {
    0.5 * x * libm::erfcf(-x * std::f32::consts::FRAC_1_SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(activation: Activation, x: f32) -> f32 {
        let mut values = [x; 17];
        activate(activation, &mut values);
        assert!(
            values
                .iter()
                .all(|value| value.to_bits() == values[0].to_bits())
        );
        values[0]
    }

    fn assert_near(found: f32, expected: f32) {
        assert!(
            (found - expected).abs() <= 1e-6 * expected.abs(),
            "{found} for {expected}"
        );
    }

    #[test]
    fn known_values() {
        assert_eq!(of(Activation::Relu, -3.0), 0.0);
        assert_eq!(of(Activation::Relu, 3.0), 3.0);
        assert_near(of(Activation::Silu, 1.0), 0.731_058_6);
        assert_near(of(Activation::Silu, -20.0), -4.122_307e-8);
        assert_near(of(Activation::GeluErf, 1.0), 0.841_344_7);
        assert_near(of(Activation::GeluErf, -3.0), -0.004_049_694);
        assert_near(of(Activation::GeluTanh, 1.0), 0.841_192);
        assert_near(of(Activation::GeluTanh, -1.0), -0.158_808);
    }

    #[test]
    fn far_ends_are_exact() {
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf] {
            assert_eq!(of(activation, 200.0), 200.0);
            assert_eq!(of(activation, -200.0), 0.0);
            assert_eq!(of(activation, 0.0), 0.0);
            assert!(of(activation, f32::NAN).is_nan());
        }
    }

    #[test]
    fn a_gate_multiplies() {
        let mut gate = [1.0, 0.0];
        activate_gate(Activation::Silu, &mut gate, &[2.0, 5.0]).unwrap();
        assert_near(gate[0], 1.462_117_2);
        assert_eq!(gate[1], 0.0);
        let mut gate = [-1.0, 3.0];
        activate_gate(Activation::Relu, &mut gate, &[2.0, 5.0]).unwrap();
        assert_eq!(gate, [0.0, 15.0]);
        let error = activate_gate(Activation::Silu, &mut gate, &[1.0]).unwrap_err();
        let expected = "what a gate is multiplied with: 1 given, 2 needed";
        assert_eq!(error.to_string(), expected);
    }
}
