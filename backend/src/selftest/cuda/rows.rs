//! A block a row.

use plimsoll_core::Dtype;

use crate::cuda::launches::{self, Argmax, Embed, Norm, Rotary};
use crate::cuda::{CudaError, Launch};
use crate::kernels::Matrix;
use crate::kernels::groups::{PackedMatrix, pack_matrix};
use crate::kernels::storage::Elements;

use super::bench::Bench;
use super::{TYPES, Wrong};
use crate::selftest::reference::{Expected, decode, encode, normalised};

/// A table on the device, whole or packed, and the numbers that it holds.
fn table(
    bench: &mut Bench<'_>,
    (dtype, packed): (Dtype, bool),
    [rows, width]: [usize; 2],
) -> Result<(u64, Vec<f64>), CudaError> {
    if !packed {
        return bench.operand(dtype, rows * width, 1.0);
    }
    let numbers = bench.numbers(rows * width, 1.0);
    let mut words = vec![0_u16; rows.div_ceil(64) * width * 18];
    let bytes = bytemuck::cast_slice_mut(&mut words);
    pack_matrix(Elements::F32(&numbers), width, bytes).expect("whole bands");
    let matrix = PackedMatrix::new(bytes, rows, width).expect("whole bands");
    let mut values = Vec::new();
    let mut row = vec![0.0; width];
    for index in 0..rows {
        Matrix::Packed(matrix).load_row(index, &mut row);
        values.extend(row.iter().map(|x| f64::from(*x)));
    }
    Ok((bench.raw(bytes)?, values))
}

pub fn embed(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    let shapes = [([1, 64], false), ([5, 300], true), ([3, 7], true)];
    for (dtype, packed) in TYPES.into_iter().flat_map(|t| [(t, false), (t, true)]) {
        for (shape, learns) in shapes {
            embed_case(bench, (dtype, packed), shape, learns)?;
        }
    }
    Ok(())
}

fn embed_case(
    bench: &mut Bench<'_>,
    (dtype, packed): (Dtype, bool),
    [count, width]: [usize; 2],
    learns: bool,
) -> Result<(), Wrong> {
    bench.next_case();
    let case = format!(
        "{} {count} tokens of {width}, packed: {packed}",
        dtype.name()
    );
    let (rows, places, offset) = (75, 20, 2);
    let tokens: Vec<u32> = (0..count).map(|_| bench.integer(rows) as u32).collect();
    let positions: Vec<u32> = (0..count)
        .map(|_| bench.integer(places - 2) as u32)
        .collect();
    let (address, values) = table(bench, (dtype, packed), [rows, width])?;
    let (learned, added) = table(bench, (dtype, packed), [places, width])?;
    let y = bench.numbers_out(dtype, count * width)?;
    let mut of = Embed {
        dtype,
        packed,
        tokens: bench.words(&tokens)?,
        positions: bench.words(&positions)?,
        table: address,
        learned: if learns { learned } else { 0 },
        y: y.address,
        count,
        width,
        rows,
        places,
        offset,
    };
    bench.launch(&launches::embed(&of)?)?;
    let expected = (0..count * width).map(|i| {
        let value = values[tokens[i / width] as usize * width + i % width];
        let place = (positions[i / width] as usize + offset) * width + i % width;
        Expected::sum([value, if learns { added[place] } else { 0.0 }])
    });
    bench.check(&case, (dtype, y), &expected.collect::<Vec<_>>())?;
    of.tokens = bench.words(&vec![rows as u32; count])?;
    bench.launch(&launches::embed(&of)?)?;
    let bytes = bench.read(&case, y)?;
    match decode(dtype, &bytes).iter().position(|x| !x.is_nan()) {
        None => Ok(()),
        Some(at) => {
            let what = format!("element {at} of a token outside the table is a number");
            Err(Wrong::Bytes { case, what })
        }
    }
}

fn norm(
    bench: &mut Bench<'_>,
    of: fn(&Norm) -> Result<Launch, CudaError>,
    centred: bool,
) -> Result<(), Wrong> {
    for dtype in TYPES {
        for ([rows, width], biased) in [
            ([1, 64], true),
            ([3, 1000], true),
            ([2, 4096], false),
            ([4, 5], true),
        ] {
            bench.next_case();
            let case = format!("{} [{rows}, {width}]", dtype.name());
            let (x, values) = bench.operand(dtype, rows * width, 3.0)?;
            let (weight, factors) = bench.operand(dtype, width, 2.0)?;
            let (bias, added) = bench.operand(dtype, width, 1.0)?;
            let y = bench.numbers_out(dtype, rows * width)?;
            let epsilon = 1e-5_f32;
            bench.launch(&of(&Norm {
                dtype,
                x,
                weight,
                bias: if biased { bias } else { 0 },
                y: y.address,
                rows,
                width,
                epsilon,
            })?)?;
            let none = vec![0.0; width];
            let added = if biased { &added } else { &none };
            let row = |row| normalised(row, centred, f64::from(epsilon), &factors, added);
            let expected: Vec<_> = values.chunks(width).flat_map(row).collect();
            bench.check(&case, (dtype, y), &expected)?;
        }
    }
    Ok(())
}

pub fn layer_norm(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    norm(bench, launches::layer_norm, true)
}

pub fn rms_norm(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    norm(bench, launches::rms_norm, false)
}

pub fn rotary(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    // Tokens, heads, elements a head, pairs that are turned.
    let shapes = [
        [1, 1, 64, 32],
        [3, 5, 80, 16],
        [2, 4, 128, 64],
        [2, 3, 20, 10],
    ];
    for dtype in TYPES {
        for ([count, heads, head_dim, pairs], adjacent) in
            shapes.into_iter().flat_map(|s| [(s, false), (s, true)])
        {
            bench.next_case();
            let case = format!(
                "{} {count} tokens, {heads} heads of {head_dim}",
                dtype.name()
            );
            let places = 9;
            let positions: Vec<u32> = (0..count).map(|_| bench.integer(places) as u32).collect();
            let angles = bench.numbers(places * pairs, 3.0);
            let of_angles = |f: fn(f32) -> f32| angles.iter().map(|x| f(*x)).collect::<Vec<_>>();
            let (cosines, cosine) = bench.stored(Dtype::F32, &of_angles(f32::cos))?;
            let (sines, sine) = bench.stored(Dtype::F32, &of_angles(f32::sin))?;
            let y = bench.numbers_out(dtype, count * heads * head_dim)?;
            let bytes = encode(dtype, &bench.numbers(count * heads * head_dim, 2.0));
            bench.device.write(y.address, &bytes)?;
            let of = Rotary {
                dtype,
                elements: y.address,
                positions: bench.words(&positions)?,
                cosines,
                sines,
                count,
                heads,
                head_dim,
                pairs,
                adjacent,
            };
            bench.launch(&launches::rotary(&of)?)?;
            let x = decode(dtype, &bytes);
            let expected = (0..x.len()).map(|i| {
                let (head, at) = (i / head_dim * head_dim, i % head_dim);
                if at >= 2 * pairs {
                    return Expected::plain(x[i]);
                }
                let (pair, second) = match adjacent {
                    true => (at / 2, at % 2 == 1),
                    false => (at % pairs, at >= pairs),
                };
                let step = if adjacent { 1 } else { pairs };
                let first = head + if adjacent { 2 * pair } else { pair };
                let angle = positions[i / (heads * head_dim)] as usize * pairs + pair;
                let (c, s) = (cosine[angle], sine[angle]);
                let (a, b) = (x[first], x[first + step]);
                match second {
                    false => Expected::sum([a * c, -b * s]),
                    true => Expected::sum([b * c, a * s]),
                }
            });
            bench.check(&case, (dtype, y), &expected.collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

pub fn argmax(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for [rows, vocabulary] in [[1, 1], [3, 100], [2, 1000], [4, 257]] {
        bench.next_case();
        let case = format!("[{rows}, {vocabulary}]");
        // Coarse numbers, so that some are equal; the last row has a NaN.
        let numbers = bench.numbers(rows * vocabulary, 20.0);
        let mut logits: Vec<f32> = numbers.iter().map(|x| x.round()).collect();
        let spoilt = rows > 1;
        if spoilt {
            let at = bench.integer(vocabulary);
            logits[(rows - 1) * vocabulary + at] = f32::NAN;
        }
        let first_of_largest = |row: &[f32]| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter().position(|x| *x == largest).unwrap_or(0) as u32
        };
        let mut expected: Vec<u32> = logits.chunks(vocabulary).map(first_of_largest).collect();
        let tokens = bench.output(rows * 4)?;
        let not_a_number = bench.output(rows * 4)?;
        let (address, _) = bench.stored(Dtype::F32, &logits)?;
        bench.launch(&launches::argmax(&Argmax {
            logits: address,
            tokens: tokens.address,
            not_a_number: not_a_number.address,
            rows,
            vocabulary,
        }))?;
        let chosen = bench.read_words(&case, tokens)?;
        let flags = bench.read_words(&case, not_a_number)?;
        let whole = if spoilt { rows - 1 } else { rows };
        let flagged: Vec<u32> = (0..rows).map(|row| u32::from(row >= whole)).collect();
        expected[whole..].fill(launches::NO_TOKEN);
        if chosen != expected || flags != flagged {
            let what = format!(
                "{chosen:?} were chosen and {flags:?} flagged, and should be {expected:?}, {flagged:?}"
            );
            return Err(Wrong::Bytes { case, what });
        }
    }
    Ok(())
}
