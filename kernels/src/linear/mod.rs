//! A linear layer: each row of the input against each row of the weight.
//!
//! Input and weight (stored [out, in], as Hugging Face does) both run along the summed index, so the
//! work is register tiles of dot products. There are three ways through them ([`Way`]), for one row of input, for a few
//! and for many; which is taken changes no bit. From how many rows on, [`Ways`] says.

mod ahead;
mod few;
mod how;
mod many_rows;
mod operands;
mod product;
#[cfg(test)]
mod reference;
mod streams;
mod tiles;

use super::error::expect;
use super::matrix::WholeRows;
use super::{Elements, KernelError, Matrix};

pub use how::{How, PANEL_ROWS_MIN, Way, Ways};
use operands::Operands;
use product::multiply;
#[cfg(test)]
pub(crate) use reference::{linear_reference, to_brain, to_half};

/// Rows of input for which one pass over the weight is made.
pub const ROW_BLOCK: usize = 128;

/// The shape of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    /// Rows of input and output (tokens).
    pub m: usize,
    /// Outputs a row: rows of the weight.
    pub n: usize,
    /// Inputs a row: columns of the weight.
    pub k: usize,
}

impl LinearShape {
    /// Floating-point operations of the product (a multiply-add is two).
    pub fn flops(&self) -> u64 {
        2 * self.m as u64 * self.n as u64 * self.k as u64
    }
}

/// The weight `[n, k]` and the bias `[n]` of a linear layer.
#[derive(Debug, Clone, Copy)]
pub struct LinearWeight<'a> {
    /// `[n, k]`, row-major.
    pub weight: Matrix<'a>,
    /// `[n]`, where there is one; stored in any type.
    pub bias: Option<Elements<'a>>,
}

/// `y = x * weight^T + bias`: x is [m, k], y is [m, n], both row-major.
///
/// Each element of `y` depends on its row of `x`, its row of the weight and its bias alone (see the
/// [crate]): not on `m`, nor on where anything lies.
///
/// # Errors
/// [`KernelError::Shape`] where an operand's length is not that of `shape`.
pub fn linear(
    shape: LinearShape,
    x: &[f32],
    weight: LinearWeight<'_>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    linear_with(How::best(Ways::BUILT_IN), shape, x, weight, y)
}

/// [`linear`], computed in a stated way.
///
/// # Errors
/// As [`linear`].
pub fn linear_with(
    how: How,
    shape: LinearShape,
    x: &[f32],
    weight: LinearWeight<'_>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    expect("the output of a linear layer", shape.m * shape.n, y.len())?;
    let mut rows: Vec<_> = y.chunks_exact_mut(shape.n.max(1)).collect();
    linear_into(how, shape, x, weight, &mut rows)
}

/// [`linear_with`] where rows of the output need not lie one after another.
///
/// # Errors
/// As [`linear`].
pub fn linear_into(
    how: How,
    shape: LinearShape,
    x: &[f32],
    weight: LinearWeight<'_>,
    y: &mut [&mut [f32]],
) -> Result<(), KernelError> {
    check(shape, x, weight, y)?;
    if shape.n == 0 {
        return Ok(());
    }
    if shape.k == 0 {
        y.iter_mut().for_each(|row| row.fill(0.0));
    }
    let widened;
    let bias = match weight.bias {
        None => None,
        Some(Elements::F32(bias)) => Some(bias),
        Some(narrow) => {
            widened = narrow.to_vec();
            Some(&widened[..])
        }
    };
    let rest = Operands {
        shape,
        x,
        w: (),
        bias,
        y,
    };
    let columns = shape.k;
    match weight.weight {
        Matrix::Whole(Elements::F32(elements)) => {
            multiply(how, rest.with(WholeRows { elements, columns }));
        }
        Matrix::Whole(Elements::F16(elements)) => {
            multiply(how, rest.with(WholeRows { elements, columns }));
        }
        Matrix::Whole(Elements::Bf16(elements)) => {
            multiply(how, rest.with(WholeRows { elements, columns }));
        }
        Matrix::Packed(w) => multiply(how, rest.with(w)),
    }
    Ok(())
}

/// Whether all operands have the lengths that their shape asks for.
fn check(
    shape: LinearShape,
    x: &[f32],
    weight: LinearWeight<'_>,
    y: &[&mut [f32]],
) -> Result<(), KernelError> {
    let LinearShape { m, n, k } = shape;
    expect("the input of a linear layer", m * k, x.len())?;
    expect("the weight of a linear layer", n * k, weight.weight.len())?;
    if n == 0 {
        return Ok(());
    }
    expect("rows of output of a linear layer", m, y.len())?;
    for row in y {
        expect("a row of output of a linear layer", n, row.len())?;
    }
    match weight.bias {
        Some(bias) => expect("the bias of a linear layer", n, bias.len()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
