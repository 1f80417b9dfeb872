//! A register tile of dot products: a few rows against a few rows, each element read once.

#![allow(
    clippy::needless_range_loop,
    reason = "constant bounds over several arrays keep a tile in registers"
)]

use super::row::Row;
use super::simd::{LANES, Lanes};

/// Elements of a dot product that are summed in the lanes before the lanes are added up.
pub const DOT_PIECE: usize = 1024;

/// The dot products of `M` rows with `N` rows over the first `length` elements of each, at most
/// [`DOT_PIECE`]. `sums[m][n]` belongs to `x[m]` and `w[n]`; its value depends on these two alone.
/// `meanwhile` is called at each step.
#[inline(always)]
pub fn dots<L: Lanes, R: Row, const M: usize, const N: usize>(
    lanes: L,
    mut x: [&[f32]; M],
    mut w: [R; N],
    length: usize,
    mut meanwhile: impl FnMut(usize),
) -> [[f32; N]; M] {
    for m in 0..M {
        x[m] = x[m].upto(length);
    }
    for n in 0..N {
        w[n] = w[n].upto(length);
    }
    let mut sums = [[lanes.zero(); N]; M];
    for step in 0..length / LANES {
        meanwhile(step);
        let mut right = [lanes.zero(); N];
        for n in 0..N {
            right[n] = w[n].vector(lanes, step);
        }
        for m in 0..M {
            let left = x[m].vector(lanes, step);
            for n in 0..N {
                sums[m][n] = lanes.fma(left, right[n], sums[m][n]);
            }
        }
    }
    if !length.is_multiple_of(LANES) {
        let mut right = [lanes.zero(); N];
        for n in 0..N {
            right[n] = w[n].rest(lanes, length);
        }
        for m in 0..M {
            let left = x[m].rest(lanes, length);
            for n in 0..N {
                sums[m][n] = lanes.fma(left, right[n], sums[m][n]);
            }
        }
    }
    add_lanes(lanes, &sums)
}

/// Sixteen f32 on one cache line.
#[repr(align(64))]
#[derive(Debug, Clone, Copy)]
pub struct Line(pub [f32; LANES]);

impl Line {
    /// All zero.
    pub const ZERO: Line = Line([0.0; LANES]);
}

/// Packs the first `length` elements of `R` rows for [`packed_dots`]: step by step, the rows' vectors
/// side by side, the last step padded with zeros.
#[inline(always)]
pub fn pack<L: Lanes, T: Row, const R: usize>(
    lanes: L,
    mut rows: [T; R],
    length: usize,
    into: &mut [[Line; R]],
) {
    for r in 0..R {
        rows[r] = rows[r].upto(length);
    }
    for (step, into) in into[..length / LANES].iter_mut().enumerate() {
        for r in 0..R {
            lanes.store(rows[r].vector(lanes, step), &mut into[r].0);
        }
    }
    if !length.is_multiple_of(LANES) {
        for r in 0..R {
            let rest = rows[r].rest(lanes, length);
            lanes.store(rest, &mut into[length / LANES][r].0);
        }
    }
}

/// [`dots`] of packed rows, with the same bits.
#[inline(always)]
pub fn packed_dots<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    x: &[[Line; M]],
    w: &[[Line; N]],
    mut meanwhile: impl FnMut(usize),
) -> [[f32; N]; M] {
    let mut sums = [[lanes.zero(); N]; M];
    for (step, (x, w)) in x.iter().zip(w).enumerate() {
        meanwhile(step);
        let mut right = [lanes.zero(); N];
        for n in 0..N {
            right[n] = lanes.load(&w[n].0);
        }
        for m in 0..M {
            let left = lanes.load(&x[m].0);
            for n in 0..N {
                sums[m][n] = lanes.fma(left, right[n], sums[m][n]);
            }
        }
    }
    add_lanes(lanes, &sums)
}

/// The sum of the lanes of each vector, four at a time.
#[inline(always)]
fn add_lanes<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    vectors: &[[L::V; N]; M],
) -> [[f32; N]; M] {
    let mut sums = [[0.0; N]; M];
    let mut flat = 0;
    while flat < M * N {
        let mut four = [lanes.zero(); 4];
        let count = (M * N - flat).min(4);
        for i in 0..count {
            four[i] = vectors[(flat + i) / N][(flat + i) % N];
        }
        let added = lanes.sum_four(four);
        for i in 0..count {
            sums[(flat + i) / N][(flat + i) % N] = added[i];
        }
        flat += 4;
    }
    sums
}
