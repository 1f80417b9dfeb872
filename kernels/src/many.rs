//! A register tile of sums in which rows of input lie side by side: for each lane of the dot products by itself, sixteen
//! rows a vector, times elements of the weight: in f32 and whole steps it is read as it lies, else some rows are widened first.
//! The bits are those of a tile of dot products,
//! since the lanes are added up as [`Lanes::sum`] adds them.

#![allow(
    clippy::needless_range_loop,
    reason = "constant bounds over several arrays keep a tile in registers"
)]

use super::row::Row;
use super::simd::{LANES, Lanes};
use super::tile::{Line, padded};

/// Lanes as the tree of their sum has them: neighbours are added, then pairs of them, then the rest.
const TREE: [usize; LANES] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// Heights of that tree.
const HEIGHTS: usize = LANES.ilog2() as usize + 1;

/// Sums of `N` rows of weight with `V` vectors of rows that wait for their neighbours in the tree, one at each height.
pub type Waiting<L, const V: usize, const N: usize> = [[[<L as Lanes>::V; V]; N]; HEIGHTS];

/// Steps of a tile that are written out.
const UNROLLED: usize = 4;

/// Lines that sixteen rows of so many steps take, packed: from one lane to the next it is no multiple of what the first
/// cache takes for one place.
pub fn lines_of_vector(steps: usize) -> usize {
    LANES * stride(steps)
}

/// From one lane's first step to the next lane's.
#[inline(always)]
fn stride(steps: usize) -> usize {
    steps + 3
}

/// Packs `length` elements of so many rows: `V` vectors of sixteen rows in a tile, or what is left in the last one,
/// lane by lane of [`TREE`], step by step. What rows and steps leave is padded with repeats and zeros.
#[inline(always)]
pub fn pack_input<'x, L: Lanes, const V: usize>(
    lanes: L,
    rows: usize,
    row: impl Fn(usize) -> &'x [f32],
    length: usize,
    into: &mut [Line],
) {
    let (vectors, steps) = (rows.div_ceil(LANES), length.div_ceil(LANES));
    for vector in 0..vectors {
        let (first, width) = (vector / V * V, V.min(vectors - vector / V * V));
        let into = &mut into[first * lines_of_vector(steps)..];
        let mut some = [row(0); LANES];
        for i in 0..LANES {
            some[i] = row((vector * LANES + i).min(rows - 1)).upto(length);
        }
        for step in 0..steps {
            let columns = if step < length / LANES {
                let mut square = [&[0.0; LANES]; LANES];
                for i in 0..LANES {
                    square[i] = &some[i].as_chunks().0[step];
                }
                lanes.transpose_from(square)
            } else {
                let mut square = [lanes.zero(); LANES];
                for i in 0..LANES {
                    square[i] = some[i].rest(lanes, length);
                }
                lanes.transpose(square)
            };
            for place in 0..LANES {
                let at = (place * stride(steps) + step) * width + vector - first;
                lanes.store(columns[TREE[place]], &mut into[at].0);
            }
        }
    }
}

/// Writes the first `length` elements of `N` rows of weight as f32, side by side, step by step, and zeros for what the
/// last step lacks.
#[inline(always)]
pub fn pack_weight<L: Lanes, R: Row, const N: usize>(
    lanes: L,
    rows: [R; N],
    length: usize,
    into: &mut [[Line; N]],
) {
    for n in 0..N {
        let row = rows[n].upto(length);
        for (step, into) in into.iter_mut().enumerate() {
            lanes.store(padded(lanes, row, step, length), &mut into[n].0);
        }
    }
}

/// `N` rows of weight in f32, in whole steps.
pub trait Weight<const N: usize>: Copy {
    /// How many there are.
    fn steps(self) -> usize;
    /// An element of a row in all lanes.
    fn splat<L: Lanes>(self, lanes: L, row: usize, step: usize, lane: usize) -> L::V;
    /// Steps from one on.
    fn some(self, first: usize, steps: usize) -> Self;
}

impl<const N: usize> Weight<N> for &[[Line; N]] {
    #[inline(always)]
    fn steps(self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn splat<L: Lanes>(self, lanes: L, row: usize, step: usize, lane: usize) -> L::V {
        lanes.splat(self[step][row].0[lane % LANES])
    }

    #[inline(always)]
    fn some(self, first: usize, steps: usize) -> Self {
        &self[first..first + steps]
    }
}

/// As they lie.
impl<const N: usize> Weight<N> for [&[[f32; LANES]]; N] {
    #[inline(always)]
    fn steps(self) -> usize {
        self[0].len()
    }

    #[inline(always)]
    fn splat<L: Lanes>(self, lanes: L, row: usize, step: usize, lane: usize) -> L::V {
        lanes.splat(self[row][step][lane % LANES])
    }

    #[inline(always)]
    fn some(mut self, first: usize, steps: usize) -> Self {
        for n in 0..N {
            self[n] = &self[n][first..first + steps];
        }
        self
    }
}

/// Rows that are f32 in whole steps.
#[inline(always)]
pub fn as_they_lie<R: Row, const N: usize>(rows: &[R; N]) -> Option<[&[[f32; LANES]]; N]> {
    let mut lie: [&[[f32; LANES]]; N] = [&[]; N];
    for n in 0..N {
        let (steps, rest) = rows[n].singles()?.as_chunks();
        if !rest.is_empty() {
            return None;
        }
        lie[n] = steps;
    }
    Some(lie)
}

/// The dot products of `N` rows of weight with a tile of `V` vectors of rows of input, both packed. `waiting` is room
/// for them; `meanwhile` is called at each lane.
#[inline(always)]
pub fn sums<L: Lanes, W: Weight<N>, const V: usize, const N: usize>(
    lanes: L,
    x: &[Line],
    w: W,
    waiting: &mut Waiting<L, V, N>,
    mut meanwhile: impl FnMut(),
) -> [[L::V; V]; N] {
    let x = x.as_chunks::<V>().0;
    for place in 0..LANES {
        meanwhile();
        let x = &x[place * stride(w.steps())..][..w.steps()];
        let mut sums = sums_of_lane(lanes, x, w, TREE[place]);
        let height = place.trailing_ones() as usize;
        for before in &waiting[..height] {
            sums = added(lanes, before, sums);
        }
        waiting[height] = sums;
    }
    waiting[HEIGHTS - 1]
}

/// Room for sums that wait.
#[inline(always)]
pub fn waiting<L: Lanes, const V: usize, const N: usize>(lanes: L) -> Waiting<L, V, N> {
    [[[lanes.zero(); V]; N]; HEIGHTS]
}

/// `a + b`, element by element.
#[inline(always)]
fn added<L: Lanes, const V: usize, const N: usize>(
    lanes: L,
    a: &[[L::V; V]; N],
    mut b: [[L::V; V]; N],
) -> [[L::V; V]; N] {
    for n in 0..N {
        for v in 0..V {
            b[n][v] = lanes.add(a[n][v], b[n][v]);
        }
    }
    b
}

#[inline(always)]
fn sums_of_lane<L: Lanes, W: Weight<N>, const V: usize, const N: usize>(
    lanes: L,
    x: &[[Line; V]],
    w: W,
    lane: usize,
) -> [[L::V; V]; N] {
    let mut sums = [[lanes.zero(); V]; N];
    let (x, x_rest) = x.as_chunks::<UNROLLED>();
    for (some, x) in x.iter().enumerate() {
        let w = w.some(some * UNROLLED, UNROLLED);
        for step in 0..UNROLLED {
            add_step(lanes, &x[step], (w, step, lane), &mut sums);
        }
    }
    let rest = w.some(x.len() * UNROLLED, x_rest.len());
    for (step, x) in x_rest.iter().enumerate() {
        add_step(lanes, x, (rest, step, lane), &mut sums);
    }
    sums
}

#[inline(always)]
fn add_step<L: Lanes, W: Weight<N>, const V: usize, const N: usize>(
    lanes: L,
    x: &[Line; V],
    (w, step, lane): (W, usize, usize),
    sums: &mut [[L::V; V]; N],
) {
    let mut right = [lanes.zero(); V];
    for v in 0..V {
        right[v] = lanes.load(&x[v].0);
    }
    for n in 0..N {
        let left = w.splat(lanes, n, step, lane);
        for v in 0..V {
            sums[n][v] = lanes.fma(left, right[v], sums[n][v]);
        }
    }
}
