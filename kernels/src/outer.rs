//! A register tile of sums in which outputs lie side by side: for each lane of the dot products by itself, rows of input
//! times rows of weight. Many rows of input read far less than as a tile of dot products, and the bits are the same,
//! since the lanes are added up as [`Lanes::sum`] adds them.

#![allow(
    clippy::needless_range_loop,
    reason = "constant bounds over several arrays keep a tile in registers"
)]

use super::row::Row;
use super::simd::{EIGHT, LANES, Lanes};
use super::tile::{Line, padded};

/// Lanes as the tree of their sum has them: neighbours are added, then pairs of them, then the rest.
const TREE: [usize; LANES] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// Lanes that are added up at once: their weights stay in the first cache while all rows of input meet them.
pub const AT_ONCE: usize = 4;

/// Parts of the lanes that are added up one after another.
pub const QUARTERS: usize = LANES / AT_ONCE;

/// From one lane's first step to the next lane's: no multiple of what the first cache takes for one place, and with
/// room for [`EIGHT`] at the last step.
#[inline(always)]
pub fn stride(steps: usize) -> usize {
    steps + 3
}

/// Steps of a tile that are written out.
const UNROLLED: usize = 4;

/// Packs `length` elements of so many rows, `M` rows side by side: lane by lane of [`TREE`], tile by tile, step by
/// step. What rows and vectors leave is padded with repeats and zeros.
#[inline(always)]
pub fn pack_input<L: Lanes, R: Row, const M: usize>(
    lanes: L,
    rows: usize,
    row: impl Fn(usize) -> R,
    length: usize,
    into: &mut [[f32; M]],
) {
    let (tiles, steps) = (rows.div_ceil(M), length.div_ceil(LANES));
    let into = into.as_flattened_mut();
    for tile in 0..tiles {
        let mut eight = [row(0); EIGHT];
        for i in 0..M {
            eight[i] = row((tile * M + i).min(rows - 1));
        }
        for step in 0..steps {
            let columns = transposed(lanes, eight, step, length);
            for place in 0..LANES {
                let at = place * stride(tiles * steps) + tile * steps + step;
                // What is written beyond the M rows, the next step, tile or nobody overwrites.
                let into = &mut into[at * M..].as_chunks_mut().0[0];
                lanes.store_eight(columns[TREE[place]], into);
            }
        }
    }
}

/// Packs `length` elements of `N` times [`LANES`] rows of weight, side by side: lane by lane of [`TREE`], step by step.
#[inline(always)]
pub fn pack_weight<L: Lanes, R: Row, const N: usize>(
    lanes: L,
    row: impl Fn(usize) -> R,
    length: usize,
    into: &mut [[Line; N]],
) {
    let steps = length.div_ceil(LANES);
    for n in 0..N {
        let mut rows = [row(n * LANES); LANES];
        for i in 0..LANES {
            rows[i] = row(n * LANES + i).upto(length);
        }
        for step in 0..steps {
            let mut vectors = [lanes.zero(); LANES];
            for i in 0..LANES {
                vectors[i] = padded(lanes, rows[i], step, length);
            }
            let columns = lanes.transpose_square(vectors);
            for place in 0..LANES {
                let line = &mut into[place * stride(steps) + step][n].0;
                lanes.store(columns[TREE[place]], line);
            }
        }
    }
}

#[inline(always)]
fn transposed<L: Lanes, R: Row>(
    lanes: L,
    rows: [R; EIGHT],
    step: usize,
    length: usize,
) -> [L::Eight; LANES] {
    let mut vectors = [lanes.zero(); EIGHT];
    for i in 0..EIGHT {
        vectors[i] = padded(lanes, rows[i].upto(length), step, length);
    }
    lanes.transpose(vectors)
}

/// What a quarter of the lanes adds to the sums of tile `tile` of [`pack_input`]: `sums[m][n]` of row `m` and sixteen
/// rows of weight. `meanwhile` is called at each lane.
#[inline(always)]
pub fn quarter_of_sums<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    x: (&[[f32; M]], usize, usize),
    w: (&[[Line; N]], usize),
    quarter: usize,
    mut meanwhile: impl FnMut(),
) -> [[L::V; N]; M] {
    let first = two_lanes(lanes, x, w, quarter * AT_ONCE, &mut meanwhile);
    let second = two_lanes(lanes, x, w, quarter * AT_ONCE + 2, &mut meanwhile);
    added(lanes, &first, second)
}

#[inline(always)]
fn two_lanes<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    x: (&[[f32; M]], usize, usize),
    w: (&[[Line; N]], usize),
    place: usize,
    meanwhile: &mut impl FnMut(),
) -> [[L::V; N]; M] {
    meanwhile();
    let first = sums_of_lane(lanes, x, w, place);
    meanwhile();
    added(lanes, &first, sums_of_lane(lanes, x, w, place + 1))
}

/// `a + b`, element by element.
#[inline(always)]
pub fn added<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    a: &[[L::V; N]; M],
    mut b: [[L::V; N]; M],
) -> [[L::V; N]; M] {
    for m in 0..M {
        for n in 0..N {
            b[m][n] = lanes.add(a[m][n], b[m][n]);
        }
    }
    b
}

#[inline(always)]
fn sums_of_lane<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    (x, tile, tiles): (&[[f32; M]], usize, usize),
    (w, steps): (&[[Line; N]], usize),
    place: usize,
) -> [[L::V; N]; M] {
    let x = &x[place * stride(tiles * steps) + tile * steps..][..steps];
    let w = &w[place * stride(steps)..][..steps];
    let mut sums = [[lanes.zero(); N]; M];
    let (x, x_rest) = x.as_chunks::<UNROLLED>();
    let (w, w_rest) = w.as_chunks::<UNROLLED>();
    for (x, w) in x.iter().zip(w) {
        for step in 0..UNROLLED {
            add_step(lanes, &x[step], &w[step], &mut sums);
        }
    }
    for (x, w) in x_rest.iter().zip(w_rest) {
        add_step(lanes, x, w, &mut sums);
    }
    sums
}

#[inline(always)]
fn add_step<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    x: &[f32; M],
    w: &[Line; N],
    sums: &mut [[L::V; N]; M],
) {
    let mut right = [lanes.zero(); N];
    for n in 0..N {
        right[n] = lanes.load(&w[n].0);
    }
    for m in 0..M {
        let left = lanes.splat(x[m]);
        for n in 0..N {
            sums[m][n] = lanes.fma(left, right[n], sums[m][n]);
        }
    }
}
