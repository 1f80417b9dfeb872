//! A register tile of dot products: a few rows against a few rows, each element read once.

#![allow(
    clippy::needless_range_loop,
    reason = "constant bounds over several arrays keep a tile in registers"
)]

use super::row::Row;
use super::simd::{LANES, Lanes};

/// Elements of a dot product that are summed in the lanes before the lanes are added up.
pub const DOT_PIECE: usize = 1024;

/// Steps of a tile of several rows that are written out: the loop itself takes some of the time.
pub const AT_ONCE: usize = 4;

/// The left operand of a tile: `M` rows, as they lie or packed.
trait Left<const M: usize>: Copy {
    /// What has part `P` of each vector.
    fn with_part<L: Lanes, const P: usize>(self) -> Self;
    /// Some steps.
    fn some<L: Lanes>(self, first: usize, steps: usize) -> Self;
    /// Part `P` of sixteen elements of a row.
    fn part<L: Lanes, const P: usize>(self, lanes: L, row: usize, step: usize) -> L::Part;
    /// The same of what whole vectors leave of the first `length` elements, and zeros.
    fn rest<L: Lanes, const P: usize>(self, lanes: L, row: usize, length: usize) -> L::Part;
}

impl<R: Row, const M: usize> Left<M> for [R; M] {
    #[inline(always)]
    fn with_part<L: Lanes, const P: usize>(self) -> Self {
        self
    }

    #[inline(always)]
    fn some<L: Lanes>(mut self, first: usize, steps: usize) -> Self {
        for m in 0..M {
            self[m] = self[m].some(first, steps);
        }
        self
    }

    #[inline(always)]
    fn part<L: Lanes, const P: usize>(self, lanes: L, row: usize, step: usize) -> L::Part {
        lanes.part::<P>(self[row].vector(lanes, step))
    }

    #[inline(always)]
    fn rest<L: Lanes, const P: usize>(self, lanes: L, row: usize, length: usize) -> L::Part {
        lanes.part::<P>(self[row].rest(lanes, length))
    }
}

/// Rows that [`pack`] packed.
impl<const M: usize> Left<M> for &[[Line; M]] {
    #[inline(always)]
    fn with_part<L: Lanes, const P: usize>(self) -> Self {
        &self[P * (self.len() / L::PARTS)..]
    }

    #[inline(always)]
    fn some<L: Lanes>(self, first: usize, steps: usize) -> Self {
        &self[first / L::PARTS..(first + steps) / L::PARTS]
    }

    #[inline(always)]
    fn part<L: Lanes, const P: usize>(self, lanes: L, row: usize, step: usize) -> L::Part {
        let line = lanes.load(&self[step / L::PARTS][row].0);
        match step % L::PARTS {
            0 => lanes.part::<0>(line),
            _ => lanes.part::<1>(line),
        }
    }

    #[inline(always)]
    fn rest<L: Lanes, const P: usize>(self, lanes: L, row: usize, length: usize) -> L::Part {
        self.part::<L, P>(lanes, row, length / LANES)
    }
}

/// The dot products of `M` rows with `N` rows over the first `length` elements of each, at most
/// [`DOT_PIECE`]. `sums[m][n]` belongs to `x[m]` and `w[n]`; its value depends on these two alone.
/// `meanwhile` is called at each step, or every [`AT_ONCE`], with how many there were.
#[inline(always)]
pub fn dots<L: Lanes, R: Row, const M: usize, const N: usize>(
    lanes: L,
    mut x: [&[f32]; M],
    mut w: [R; N],
    length: usize,
    meanwhile: impl FnMut(usize),
) -> [[f32; N]; M] {
    for m in 0..M {
        x[m] = x[m].upto(length);
    }
    for n in 0..N {
        w[n] = w[n].upto(length);
    }
    let mut sums = [[lanes.zero(); N]; M];
    if M <= 2 {
        add_vectors(lanes, x, w, length, &mut sums, meanwhile);
    } else {
        add_all_parts(lanes, x, w, length, &mut sums, meanwhile);
    }
    add_lanes(lanes, &sums)
}

/// [`dots`] where `x` was packed, with the same bits.
#[inline(always)]
pub fn packed_dots<L: Lanes, R: Row, const M: usize, const N: usize>(
    lanes: L,
    x: &[[Line; M]],
    mut w: [R; N],
    length: usize,
    meanwhile: impl FnMut(usize),
) -> [[f32; N]; M] {
    for n in 0..N {
        w[n] = w[n].upto(length);
    }
    let mut sums = [[lanes.zero(); N]; M];
    add_all_parts(lanes, x, w, length, &mut sums, meanwhile);
    add_lanes(lanes, &sums)
}

/// Whole vectors, so that each element is read once.
#[inline(always)]
fn add_vectors<L: Lanes, R: Row, const M: usize, const N: usize>(
    lanes: L,
    x: [&[f32]; M],
    w: [R; N],
    length: usize,
    sums: &mut [[L::V; N]; M],
    mut meanwhile: impl FnMut(usize),
) {
    for step in 0..length / LANES {
        meanwhile(step);
        for m in 0..M {
            let left = x[m].vector(lanes, step);
            for n in 0..N {
                sums[m][n] = lanes.fma(left, w[n].vector(lanes, step), sums[m][n]);
            }
        }
    }
    if !length.is_multiple_of(LANES) {
        for m in 0..M {
            let left = x[m].rest(lanes, length);
            for n in 0..N {
                sums[m][n] = lanes.fma(left, w[n].rest(lanes, length), sums[m][n]);
            }
        }
    }
}

/// The registers of a vector one after another: twice as many sums fit in the registers that there are, and
/// each sum needs fewer loads.
#[inline(always)]
fn add_all_parts<L: Lanes, X: Left<M>, R: Row, const M: usize, const N: usize>(
    lanes: L,
    x: X,
    w: [R; N],
    length: usize,
    sums: &mut [[L::V; N]; M],
    mut meanwhile: impl FnMut(usize),
) {
    add_parts::<L, X, R, M, N, 0>(lanes, x, w, length, sums, &mut meanwhile);
    if L::PARTS == 2 {
        add_parts::<L, X, R, M, N, 1>(lanes, x, w, length, sums, &mut meanwhile);
    }
}

/// Part `P` of each vector.
#[inline(always)]
fn add_parts<L: Lanes, X: Left<M>, R: Row, const M: usize, const N: usize, const P: usize>(
    lanes: L,
    x: X,
    w: [R; N],
    length: usize,
    sums: &mut [[L::V; N]; M],
    mut meanwhile: impl FnMut(usize),
) {
    let x = x.with_part::<L, P>();
    let mut parts = [[lanes.part::<P>(lanes.zero()); N]; M];
    let (steps, mut step) = (length / LANES, 0);
    while L::WRITTEN_OUT && step + AT_ONCE <= steps {
        meanwhile(P * steps + step);
        let (x, w) = (x.some::<L>(step, AT_ONCE), w.map(|w| w.some(step, AT_ONCE)));
        for step in 0..AT_ONCE {
            add_step::<L, X, R, M, N, P>(lanes, x, w, step, &mut parts);
        }
        step += AT_ONCE;
    }
    while step < steps {
        add_step::<L, X, R, M, N, P>(lanes, x, w, step, &mut parts);
        step += 1;
    }
    if !length.is_multiple_of(LANES) {
        for m in 0..M {
            let left = x.rest::<L, P>(lanes, m, length);
            for n in 0..N {
                let right = lanes.part::<P>(w[n].rest(lanes, length));
                parts[m][n] = lanes.fma_part(left, right, parts[m][n]);
            }
        }
    }
    for m in 0..M {
        for n in 0..N {
            sums[m][n] = lanes.with_part::<P>(sums[m][n], parts[m][n]);
        }
    }
}

#[inline(always)]
fn add_step<L: Lanes, X: Left<M>, R: Row, const M: usize, const N: usize, const P: usize>(
    lanes: L,
    x: X,
    w: [R; N],
    step: usize,
    parts: &mut [[L::Part; N]; M],
) {
    let mut right = [lanes.part::<P>(lanes.zero()); N];
    for n in 0..N {
        right[n] = lanes.part::<P>(w[n].vector(lanes, step));
    }
    for m in 0..M {
        let left = x.part::<L, P>(lanes, m, step);
        for n in 0..N {
            parts[m][n] = lanes.fma_part(left, right[n], parts[m][n]);
        }
    }
}

/// Sixteen f32 on one cache line.
#[repr(align(64))]
#[derive(Debug, Clone, Copy)]
pub struct Line(pub [f32; LANES]);

impl Line {
    /// All zero.
    pub const ZERO: Line = Line([0.0; LANES]);
}

/// How many lines of [`pack`] a row of so many elements takes.
pub fn lines<L: Lanes>(length: usize) -> usize {
    length.div_ceil(LANES).next_multiple_of(L::PARTS)
}

/// Packs the first `length` elements of `R` rows for [`packed_dots`]: the rows side by side, step by step, all
/// first parts of vectors before all second ones, so that memory is read from end to end. What whole vectors
/// leave is padded with zeros.
#[inline(always)]
pub fn pack<L: Lanes, const R: usize>(
    lanes: L,
    rows: [&[f32]; R],
    length: usize,
    into: &mut [[Line; R]],
) {
    let (half, whole) = (into.len() / L::PARTS, length / LANES);
    for r in 0..R {
        let row = rows[r].upto(length);
        let vector = |step: usize| match step {
            step if step < whole => row.vector(lanes, step),
            step if step * LANES < length => row.rest(lanes, length),
            _ => lanes.zero(),
        };
        for line in 0..half {
            if L::PARTS == 1 {
                lanes.store(vector(line), &mut into[line][r].0);
            } else {
                let (a, b) = (vector(2 * line), vector(2 * line + 1));
                let first = lanes.with_part::<1>(a, lanes.part::<0>(b));
                let second = lanes.with_part::<0>(b, lanes.part::<1>(a));
                lanes.store(first, &mut into[line][r].0);
                lanes.store(second, &mut into[half + line][r].0);
            }
        }
    }
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
