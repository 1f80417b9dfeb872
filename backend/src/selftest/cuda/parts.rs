//! Outputs of split linear layers among all rows, and operands as f32.

use plimsoll_core::Dtype;

use crate::cuda::launches::{Join, Part, to_stored, to_wide};
use crate::kernels::activation::Activation;

use super::bench::{Bench, Output};
use super::{TYPES, Wrong};
use crate::selftest::reference::{Expected, activated, decode, encode};

/// Tokens, all rows, and after how many the part's begin and end. The last has more elements than a block has threads.
const SHAPES: [[usize; 4]; 4] = [
    [1, 1, 0, 1],
    [3, 77, 5, 41],
    [2, 64, 32, 64],
    [4, 200, 0, 130],
];

/// Whole outputs are rounded to the stored type before anything else is done, which is worth another place.
fn rounded(dtype: Dtype, value: f64) -> f64 {
    decode(dtype, &encode(dtype, &[value as f32]))[0]
}

/// Joins a part to numbers of `stored`, which it leaves as they are but for its own; `becomes` says what these are, by what was there
/// and the part's output.
fn joined(
    bench: &mut Bench<'_>,
    (how, stored): (Join, fn(Dtype) -> Dtype),
    becomes: impl Fn(f64, f64) -> f64,
) -> Result<(), Wrong> {
    for dtype in TYPES {
        for ([tokens, width, begin, end], biased) in SHAPES
            .into_iter()
            .flat_map(|shape| [(shape, true), (shape, false)])
        {
            bench.next_case();
            let case = format!(
                "{} [{tokens}, {width}], {begin}..{end}, {how:?}",
                dtype.name()
            );
            let (kept, rows) = (stored(dtype), end - begin);
            let numbers = bench.numbers(tokens * width, 4.0);
            let y = bench.numbers_out(kept, tokens * width)?;
            let bytes = encode(kept, &numbers);
            bench.device.write(y.address, &bytes)?;
            let before = decode(kept, &bytes);
            let (part, sums) = bench.operand(Dtype::F32, tokens * rows, 4.0)?;
            let (bias, added) = bench.operand(dtype, rows, 2.0)?;
            let of = Part {
                dtype,
                part,
                bias: if biased { bias } else { 0 },
                y: y.address + begin as u64 * kept.size_bytes(),
                tokens,
                rows,
                width,
            };
            bench.launch(&of.join(how)?)?;
            let expected = before.iter().enumerate().map(|(i, before)| {
                let (token, row) = (i / width, i % width);
                if !(begin..end).contains(&row) {
                    return Expected::plain(*before);
                }
                let added = if biased { added[row - begin] } else { 0.0 };
                let sum = sums[token * rows + row - begin] + added;
                Expected::plain(becomes(*before, rounded(dtype, sum)))
            });
            check(bench, &case, (dtype, kept, y), expected.collect())?;
        }
    }
    Ok(())
}

/// Holds numbers against the reference with what their type, rounded to before they were stored, allows.
fn check(
    bench: &mut Bench<'_>,
    case: &str,
    (dtype, stored, output): (Dtype, Dtype, Output),
    expected: Vec<Expected>,
) -> Result<(), Wrong> {
    let found = decode(stored, &bench.read(case, output)?);
    bench.checks.near(case, dtype, &found, &expected)
}

pub fn put(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    joined(bench, (Join::Put, |dtype| dtype), |_, output| output)
}

pub fn add(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    joined(bench, (Join::Add, |dtype| dtype), |y, output| y + output)
}

pub fn activate(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for activation in [None, Some(Activation::Relu), Some(Activation::GeluTanh)] {
        let how = (
            Join::Activate(activation),
            (|_| Dtype::F32) as fn(Dtype) -> Dtype,
        );
        joined(bench, how, |_, output| activated(activation, output))?;
    }
    Ok(())
}

pub fn gate(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    let activation = Activation::Silu;
    let how = (
        Join::Gate(activation),
        (|_| Dtype::F32) as fn(Dtype) -> Dtype,
    );
    joined(bench, how, |gate, up| {
        activated(Some(activation), gate) * up
    })
}

pub fn widths(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        for count in [1, 300] {
            bench.next_case();
            let case = format!("{}, {count} numbers", dtype.name());
            let (x, numbers) = bench.operand(dtype, count, 4.0)?;
            let expected: Vec<_> = numbers.iter().map(|x| Expected::plain(*x)).collect();
            let wide = bench.numbers_out(Dtype::F32, count)?;
            bench.launch(&to_wide(dtype, [wide.address, x], count)?)?;
            bench.check(&case, (Dtype::F32, wide), &expected)?;
            let (x, numbers) = bench.operand(Dtype::F32, count, 4.0)?;
            let expected: Vec<_> = numbers.iter().map(|x| Expected::plain(*x)).collect();
            let stored = bench.numbers_out(dtype, count)?;
            bench.launch(&to_stored(dtype, [stored.address, x], count)?)?;
            bench.check(&case, (dtype, stored), &expected)?;
        }
    }
    Ok(())
}
