//! Element by element.

use crate::cuda::launches::{self, Elements};
use crate::kernels::activation::Activation;

use super::bench::Bench;
use super::{TYPES, Wrong};
use crate::selftest::reference::{Expected, activated, decode, encode};

const ACTIVATIONS: [Option<Activation>; 5] = [
    None,
    Some(Activation::Relu),
    Some(Activation::GeluTanh),
    Some(Activation::GeluErf),
    Some(Activation::Silu),
];

/// Rows and columns.
const SHAPES: [[usize; 2]; 4] = [[1, 1], [3, 77], [5, 256], [37, 1032]];

pub fn bias_activation(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        for [rows, width] in SHAPES {
            for (activation, biased) in ACTIVATIONS
                .into_iter()
                .flat_map(|a| [(a, true), (a, false)])
            {
                bench.next_case();
                let case = format!("{} [{rows}, {width}], {activation:?}", dtype.name());
                let count = rows * width;
                let numbers = bench.numbers(count, 4.0);
                let y = bench.numbers_out(dtype, count)?;
                let bytes = encode(dtype, &numbers);
                bench.device.write(y.address, &bytes)?;
                let x = decode(dtype, &bytes);
                let (other, bias) = bench.operand(dtype, width, 2.0)?;
                let elements = Elements {
                    dtype,
                    x: y.address,
                    other: if biased { other } else { 0 },
                    count,
                    width,
                };
                bench.launch(&launches::bias_activation(&elements, activation)?)?;
                let expected = x.iter().enumerate().map(|(i, x)| {
                    let added = if biased { bias[i % width] } else { 0.0 };
                    Expected {
                        value: activated(activation, x + added),
                        size: x.abs() + added.abs(),
                    }
                });
                bench.check(&case, (dtype, y), &expected.collect::<Vec<_>>())?;
            }
        }
    }
    Ok(())
}

/// Two operands of one length, of which the first takes the result.
fn both(
    bench: &mut Bench<'_>,
    of: impl Fn(&Elements) -> Result<crate::cuda::Launch, crate::cuda::CudaError>,
    expected: impl Fn(f64, f64) -> Expected,
) -> Result<(), Wrong> {
    for dtype in TYPES {
        for [rows, width] in SHAPES {
            bench.next_case();
            let case = format!("{} [{rows}, {width}]", dtype.name());
            let count = rows * width;
            let numbers = bench.numbers(count, 4.0);
            let y = bench.numbers_out(dtype, count)?;
            let bytes = encode(dtype, &numbers);
            bench.device.write(y.address, &bytes)?;
            let x = decode(dtype, &bytes);
            let (other, added) = bench.operand(dtype, count, 2.0)?;
            bench.launch(&of(&Elements {
                dtype,
                x: y.address,
                other,
                count,
                width,
            })?)?;
            let expected = x.iter().zip(&added).map(|(x, y)| expected(*x, *y));
            bench.check(&case, (dtype, y), &expected.collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

pub fn gate(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for activation in ACTIVATIONS.into_iter().flatten() {
        let of = |elements: &Elements| launches::activate_gate(elements, activation);
        both(bench, of, |gate, up| Expected {
            value: activated(Some(activation), gate) * up,
            size: (gate * up).abs(),
        })?;
    }
    Ok(())
}

pub fn residual(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    both(bench, launches::residual, |x, y| Expected::sum([x, y]))
}
