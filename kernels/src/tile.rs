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

/// An operand of a tile: `M` rows, as they lie or packed.
pub trait Operand<const M: usize>: Copy {
    /// What has part `P` of each vector.
    fn with_part<L: Lanes, const P: usize>(self) -> Self;
    /// Some steps.
    fn some<L: Lanes>(self, first: usize, steps: usize) -> Self;
    /// Part `P` of sixteen elements of a row.
    fn part<L: Lanes, const P: usize>(self, lanes: L, row: usize, step: usize) -> L::Part;
    /// The same of what whole vectors leave of the first `length` elements, and zeros.
    fn rest<L: Lanes, const P: usize>(self, lanes: L, row: usize, length: usize) -> L::Part;
}

impl<R: Row, const M: usize> Operand<M> for [R; M] {
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
impl<const M: usize> Operand<M> for &[[Line; M]] {
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
        sums = all_parts(lanes, x, w, length, meanwhile);
    }
    add_lanes(lanes, &sums)
}

/// [`dots`] where `x` was packed, and perhaps `w`, with the same bits.
#[inline(always)]
pub fn packed_dots<L: Lanes, W: Operand<N>, const M: usize, const N: usize>(
    lanes: L,
    x: &[[Line; M]],
    w: W,
    length: usize,
    meanwhile: impl FnMut(usize),
) -> [[f32; N]; M] {
    add_lanes(lanes, &all_parts(lanes, x, w, length, meanwhile))
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
fn all_parts<L: Lanes, X: Operand<M>, W: Operand<N>, const M: usize, const N: usize>(
    lanes: L,
    x: X,
    w: W,
    length: usize,
    mut meanwhile: impl FnMut(usize),
) -> [[L::V; N]; M] {
    let mut sums = [[lanes.zero(); N]; M];
    let first = part_of_sums::<L, X, W, M, N, 0>(lanes, x, w, length, &mut meanwhile);
    put_part::<L, M, N, 0>(lanes, &mut sums, &first);
    if L::PARTS == 2 {
        let second = part_of_sums::<L, X, W, M, N, 1>(lanes, x, w, length, &mut meanwhile);
        put_part::<L, M, N, 1>(lanes, &mut sums, &second);
    }
    sums
}

#[inline(always)]
fn put_part<L: Lanes, const M: usize, const N: usize, const P: usize>(
    lanes: L,
    sums: &mut [[L::V; N]; M],
    parts: &[[L::Part; N]; M],
) {
    for m in 0..M {
        for n in 0..N {
            sums[m][n] = lanes.with_part::<P>(sums[m][n], parts[m][n]);
        }
    }
}

/// Part `P` of each sum.
#[inline(always)]
fn part_of_sums<
    L: Lanes,
    X: Operand<M>,
    W: Operand<N>,
    const M: usize,
    const N: usize,
    const P: usize,
>(
    lanes: L,
    x: X,
    w: W,
    length: usize,
    mut meanwhile: impl FnMut(usize),
) -> [[L::Part; N]; M] {
    let (x, w) = (x.with_part::<L, P>(), w.with_part::<L, P>());
    let mut parts = [[lanes.part::<P>(lanes.zero()); N]; M];
    let (steps, mut step) = (length / LANES, 0);
    while L::WRITTEN_OUT && step + AT_ONCE <= steps {
        meanwhile(P * steps + step);
        let (x, w) = (x.some::<L>(step, AT_ONCE), w.some::<L>(step, AT_ONCE));
        for step in 0..AT_ONCE {
            add_step::<L, X, W, M, N, P>(lanes, x, w, step, &mut parts);
        }
        step += AT_ONCE;
    }
    while step < steps {
        add_step::<L, X, W, M, N, P>(lanes, x, w, step, &mut parts);
        step += 1;
    }
    if !length.is_multiple_of(LANES) {
        for m in 0..M {
            let left = x.rest::<L, P>(lanes, m, length);
            for n in 0..N {
                let right = w.rest::<L, P>(lanes, n, length);
                parts[m][n] = lanes.fma_part(left, right, parts[m][n]);
            }
        }
    }
    parts
}

#[inline(always)]
fn add_step<
    L: Lanes,
    X: Operand<M>,
    W: Operand<N>,
    const M: usize,
    const N: usize,
    const P: usize,
>(
    lanes: L,
    x: X,
    w: W,
    step: usize,
    parts: &mut [[L::Part; N]; M],
) {
    let mut right = [lanes.part::<P>(lanes.zero()); N];
    for n in 0..N {
        right[n] = w.part::<L, P>(lanes, n, step);
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

/// The first so many of a buffer that grows.
pub fn room<T: Copy>(buffer: &mut Vec<T>, count: usize, zero: T) -> &mut [T] {
    buffer.resize(buffer.len().max(count), zero);
    &mut buffer[..count]
}

/// How many lines of [`pack`] a row of so many elements takes.
pub fn lines<L: Lanes>(length: usize) -> usize {
    length.div_ceil(LANES).next_multiple_of(L::PARTS)
}

/// Packs the first `length` elements of `N` rows for [`packed_dots`]: the rows side by side, step by step, all
/// first parts of vectors before all second ones, so that memory is read from end to end. What whole vectors
/// leave is padded with zeros.
#[inline(always)]
pub fn pack<L: Lanes, R: Row, const N: usize>(
    lanes: L,
    rows: [R; N],
    length: usize,
    into: &mut [[Line; N]],
) {
    let half = into.len() / L::PARTS;
    for r in 0..N {
        let row = rows[r].upto(length);
        for line in 0..half {
            if L::PARTS == 1 {
                lanes.store(padded(lanes, row, line, length), &mut into[line][r].0);
            } else {
                let a = padded(lanes, row, 2 * line, length);
                let b = padded(lanes, row, 2 * line + 1, length);
                let first = lanes.with_part::<1>(a, lanes.part::<0>(b));
                let second = lanes.with_part::<0>(b, lanes.part::<1>(a));
                lanes.store(first, &mut into[line][r].0);
                lanes.store(second, &mut into[half + line][r].0);
            }
        }
    }
}

/// Sixteen elements of a row of so many, with zeros for those that it lacks.
#[inline(always)]
pub fn padded<L: Lanes, R: Row>(lanes: L, row: R, step: usize, length: usize) -> L::V {
    if step < length / LANES {
        row.vector(lanes, step)
    } else if step * LANES < length {
        row.rest(lanes, length)
    } else {
        lanes.zero()
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
