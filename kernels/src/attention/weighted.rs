//! Weighted sums of vectors: what attention does with the values.

#![allow(
    clippy::needless_range_loop,
    reason = "constant bounds over several arrays keep a tile in registers"
)]

use super::Strided;
use super::stored::Unit;
use crate::row::Row;
use crate::simd::{LANES, Lanes};

/// Positions `from..to` of weights and vectors.
#[derive(Clone, Copy)]
pub struct Span {
    pub from: usize,
    pub to: usize,
}

/// Adds `weights[m][p] * vectors.at(p)` for each position p of `span`, first to last and fused, to the
/// `vectors.width` elements of `out` that start at `places[m]`.
#[inline(always)]
pub fn add_weighted<L: Lanes, U: Unit, const M: usize>(
    lanes: L,
    weights: [&[f32]; M],
    vectors: Strided<'_, U>,
    span: Span,
    places: [usize; M],
    out: &mut [f32],
) {
    let width = vectors.width;
    let mut column = 0;
    if L::TILE_N >= 4 {
        while column + 4 * LANES <= width {
            columns::<L, U, M, 4>(lanes, weights, (vectors, column), span, places, out);
            column += 4 * LANES;
        }
    }
    // As many sums as there are registers for.
    while M * L::PARTS < 8 && column + 2 * LANES <= width {
        columns::<L, U, M, 2>(lanes, weights, (vectors, column), span, places, out);
        column += 2 * LANES;
    }
    while column + LANES <= width {
        columns::<L, U, M, 1>(lanes, weights, (vectors, column), span, places, out);
        column += LANES;
    }
    for column in column..width {
        for m in 0..M {
            let mut sum = out[places[m] + column];
            for position in span.from..span.to {
                let value = vectors.at(position).element(column);
                sum = weights[m][position].mul_add(value, sum);
            }
            out[places[m] + column] = sum;
        }
    }
}

/// [`add_weighted`] for `C * LANES` columns from `column`, with the sums in registers.
#[inline(always)]
fn columns<L: Lanes, U: Unit, const M: usize, const C: usize>(
    lanes: L,
    weights: [&[f32]; M],
    (vectors, column): (Strided<'_, U>, usize),
    span: Span,
    places: [usize; M],
    out: &mut [f32],
) {
    let mut spans: [&[f32]; M] = [&[]; M];
    let mut sums = [[lanes.zero(); C]; M];
    for m in 0..M {
        spans[m] = &weights[m][span.from..span.to];
        let start = places[m] + column;
        let into = out[start..start + C * LANES].as_chunks::<LANES>().0;
        for c in 0..C {
            sums[m][c] = lanes.load(&into[c]);
        }
    }
    for p in 0..span.to - span.from {
        let vector = vectors.at(span.from + p).upto(column + C * LANES);
        let mut values = [lanes.zero(); C];
        for c in 0..C {
            values[c] = vector.vector(lanes, column / LANES + c);
        }
        for m in 0..M {
            let weight = lanes.splat(spans[m][p]);
            for c in 0..C {
                sums[m][c] = lanes.fma(weight, values[c], sums[m][c]);
            }
        }
    }
    for m in 0..M {
        let start = places[m] + column;
        let into = out[start..start + C * LANES].as_chunks_mut::<LANES>().0;
        for c in 0..C {
            lanes.store(sums[m][c], &mut into[c]);
        }
    }
}
