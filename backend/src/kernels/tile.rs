//! A register tile of dot products: a few rows against a few rows, each element read once.

#![allow(
    clippy::needless_range_loop,
    reason = "constant bounds over several arrays keep a tile in registers"
)]

use super::simd::{LANES, Lanes, Stored};

/// Elements of a dot product that are summed in the lanes before the lanes are added up.
pub const DOT_PIECE: usize = 1024;

/// The whole vectors of the first `length` elements of each row.
#[inline(always)]
fn whole<'a, T: Stored, const R: usize>(
    rows: &[&'a [T]; R],
    length: usize,
) -> [&'a [[T; LANES]]; R] {
    let mut vectors: [&[[T; LANES]]; R] = [&[]; R];
    for r in 0..R {
        vectors[r] = &rows[r].as_chunks::<LANES>().0[..length / LANES];
    }
    vectors
}

/// What the whole vectors leave of the first `length` elements, padded with zeros.
#[inline(always)]
fn rest<T: Stored>(row: &[T], length: usize) -> [T; LANES] {
    let mut padded = [T::ZERO; LANES];
    let tail = &row[length - length % LANES..length];
    padded[..tail.len()].copy_from_slice(tail);
    padded
}

/// The dot products of `M` rows with `N` rows over the first `length` elements of each, at most
/// [`DOT_PIECE`]. `sums[m][n]` belongs to `x[m]` and `w[n]`; its value depends on these two alone.
#[inline(always)]
pub fn dots<L: Lanes, W: Stored, const M: usize, const N: usize>(
    lanes: L,
    x: [&[f32]; M],
    w: [&[W]; N],
    length: usize,
) -> [[f32; N]; M] {
    let (x_whole, w_whole) = (whole(&x, length), whole(&w, length));
    let mut sums = [[lanes.zero(); N]; M];
    for step in 0..length / LANES {
        let mut right = [lanes.zero(); N];
        for n in 0..N {
            right[n] = W::load(lanes, &w_whole[n][step]);
        }
        for m in 0..M {
            let left = lanes.load(&x_whole[m][step]);
            for n in 0..N {
                sums[m][n] = lanes.fma(left, right[n], sums[m][n]);
            }
        }
    }
    if !length.is_multiple_of(LANES) {
        let mut right = [lanes.zero(); N];
        for n in 0..N {
            right[n] = W::load(lanes, &rest(w[n], length));
        }
        for m in 0..M {
            let left = lanes.load(&rest(x[m], length));
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
pub fn pack<L: Lanes, T: Stored, const R: usize>(
    lanes: L,
    rows: [&[T]; R],
    length: usize,
    into: &mut [[Line; R]],
) {
    let vectors = whole(&rows, length);
    for (step, into) in into[..length / LANES].iter_mut().enumerate() {
        for r in 0..R {
            lanes.store(T::load(lanes, &vectors[r][step]), &mut into[r].0);
        }
    }
    if !length.is_multiple_of(LANES) {
        for r in 0..R {
            lanes.store(
                T::load(lanes, &rest(rows[r], length)),
                &mut into[length / LANES][r].0,
            );
        }
    }
}

/// [`dots`] of packed rows, with the same bits.
#[inline(always)]
pub fn packed_dots<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    x: &[[Line; M]],
    w: &[[Line; N]],
) -> [[f32; N]; M] {
    let mut sums = [[lanes.zero(); N]; M];
    for (x, w) in x.iter().zip(w) {
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
