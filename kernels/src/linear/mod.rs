//! A linear layer: each row of the input against each row of the weight.
//!
//! Input and weight (stored [out, in], as Hugging Face does) both run along the summed index, so the
//! work is register tiles of dot products. There are three ways through them ([`Way`]), for one row of input, for a few
//! and for many; which is taken changes no bit. From how many rows on, [`Ways`] says.

#![allow(
    clippy::needless_range_loop,
    reason = "constant bounds over several arrays keep a tile in registers"
)]

mod ahead;
mod streams;

use std::cell::RefCell;
use std::ops::Range;

use half::{bf16, f16};

use ahead::{Ahead, CACHE_LINE, NextRows};

use super::error::expect;
use super::many::{self, Waiting, lines_of_vector};
use super::matrix::{Rows, WholeRows};
use super::row::Row;
use super::simd::{InstructionSet, Kernel, LANES, Lanes, dispatch_to};
use super::tile::{AT_ONCE, DOT_PIECE, Line, Operand, dots, lines, pack, packed_dots, room};
use super::{Elements, KernelError, Matrix};

/// Rows of input for which one pass over the weight is made.
pub const ROW_BLOCK: usize = 128;
/// Rows of a tile that reads input and weight as they lie.
const ALONE: usize = 2;
/// Fewer rows would leave much of the vectors of [`Way::Panels`] unused.
pub const PANEL_ROWS_MIN: usize = 12;
/// Columns whose sums are turned to rows at once: a multiple of [`LANES`] and of the rows of weight of any tile.
const GROUP: usize = 48;
/// Elements of a row of input that the first cache keeps while rows of weight pass through it; where it does not,
/// more of these share each of its reads.
const SHORT: usize = 2048;

/// A way to compute a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Dot products of input and weight as they lie, a row or two of input at a time; where it is one, the rows of weight of a tile
    /// are streams of their own.
    Dots,
    /// Input is packed, and each weight row is read from end to end before the next; where it is not f32 it is widened
    /// on the way. Where few rows are one tile, narrow weights stream to it as to [`Way::Dots`].
    Tile,
    /// Input is packed in panels, in whose vectors its rows lie side by side, and meets elements of the weight, which is
    /// read as it lies, or some rows at a time widened where it is not f32. For [`PANEL_ROWS_MIN`] rows or more.
    Panels,
}

/// From how many rows of input on (of those that one pass over the weight serves) a way is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ways {
    /// Fewer rows have [`Way::Dots`].
    pub tile_from: usize,
    /// From here on, and from `tile_from`, [`Way::Panels`], where there are rows enough for it.
    pub panels_from: usize,
}

impl Ways {
    /// What suits most processors: of a product that nobody measured.
    pub const BUILT_IN: Ways = Ways {
        tile_from: 3,
        panels_from: 32,
    };

    /// The way of so many rows.
    pub fn of(&self, rows: usize) -> Way {
        match rows {
            _ if rows < self.tile_from => Way::Dots,
            PANEL_ROWS_MIN.. if rows >= self.panels_from => Way::Panels,
            _ => Way::Tile,
        }
    }
}

/// How a linear layer is computed; its result does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// With which instructions (plain where the processor lacks them).
    pub set: InstructionSet,
    /// Which way, by rows.
    pub ways: Ways,
}

impl How {
    /// With the best instructions that there are.
    pub fn best(ways: Ways) -> How {
        let set = InstructionSet::best();
        How { set, ways }
    }
}

/// The shape of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    /// Rows of input and output (tokens).
    pub m: usize,
    /// Outputs a row: rows of the weight.
    pub n: usize,
    /// Inputs a row: columns of the weight.
    pub k: usize,
}

impl LinearShape {
    /// Floating-point operations of the product (a multiply-add is two).
    pub fn flops(&self) -> u64 {
        2 * self.m as u64 * self.n as u64 * self.k as u64
    }
}

/// The weight `[n, k]` and the bias `[n]` of a linear layer.
#[derive(Debug, Clone, Copy)]
pub struct LinearWeight<'a> {
    /// `[n, k]`, row-major.
    pub weight: Matrix<'a>,
    /// `[n]`, where there is one; stored in any type.
    pub bias: Option<Elements<'a>>,
}

/// `y = x * weight^T + bias`: x is [m, k], y is [m, n], both row-major.
///
/// Each element of `y` depends on its row of `x`, its row of the weight and its bias alone (see the
/// [crate]): not on `m`, nor on where anything lies.
///
/// # Errors
/// [`KernelError::Shape`] where an operand's length is not that of `shape`.
pub fn linear(
    shape: LinearShape,
    x: &[f32],
    weight: LinearWeight<'_>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    linear_with(How::best(Ways::BUILT_IN), shape, x, weight, y)
}

/// [`linear`], computed in a stated way.
///
/// # Errors
/// As [`linear`].
pub fn linear_with(
    how: How,
    shape: LinearShape,
    x: &[f32],
    weight: LinearWeight<'_>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    expect("the output of a linear layer", shape.m * shape.n, y.len())?;
    let mut rows: Vec<_> = y.chunks_exact_mut(shape.n.max(1)).collect();
    linear_into(how, shape, x, weight, &mut rows)
}

/// [`linear_with`] where rows of the output need not lie one after another.
///
/// # Errors
/// As [`linear`].
pub fn linear_into(
    how: How,
    shape: LinearShape,
    x: &[f32],
    weight: LinearWeight<'_>,
    y: &mut [&mut [f32]],
) -> Result<(), KernelError> {
    check(shape, x, weight, y)?;
    if shape.n == 0 {
        return Ok(());
    }
    if shape.k == 0 {
        y.iter_mut().for_each(|row| row.fill(0.0));
    }
    let widened;
    let bias = match weight.bias {
        None => None,
        Some(Elements::F32(bias)) => Some(bias),
        Some(narrow) => {
            widened = narrow.to_vec();
            Some(&widened[..])
        }
    };
    let rest = Operands {
        shape,
        x,
        w: (),
        bias,
        y,
    };
    let columns = shape.k;
    let mut packed = PACKED.take();
    let into = &mut packed;
    match weight.weight {
        Matrix::Whole(Elements::F32(elements)) => {
            multiply(how, rest.with(WholeRows { elements, columns }), into);
        }
        Matrix::Whole(Elements::F16(elements)) => {
            multiply(how, rest.with(WholeRows { elements, columns }), into);
        }
        Matrix::Whole(Elements::Bf16(elements)) => {
            multiply(how, rest.with(WholeRows { elements, columns }), into);
        }
        Matrix::Packed(w) => multiply(how, rest.with(w), into),
    }
    PACKED.set(packed);
    Ok(())
}

/// Whether all operands have the lengths that their shape asks for.
fn check(
    shape: LinearShape,
    x: &[f32],
    weight: LinearWeight<'_>,
    y: &[&mut [f32]],
) -> Result<(), KernelError> {
    let LinearShape { m, n, k } = shape;
    expect("the input of a linear layer", m * k, x.len())?;
    expect("the weight of a linear layer", n * k, weight.weight.len())?;
    if n == 0 {
        return Ok(());
    }
    expect("rows of output of a linear layer", m, y.len())?;
    for row in y {
        expect("a row of output of a linear layer", n, row.len())?;
    }
    match weight.bias {
        Some(bias) => expect("the bias of a linear layer", n, bias.len()),
        None => Ok(()),
    }
}

fn multiply<W: Rows>(how: How, operands: Operands<'_, '_, W>, packed: &mut Packed) {
    let ways = how.ways;
    dispatch_to(
        how.set,
        Product {
            ways,
            operands,
            packed,
        },
    );
}

fn add_bias(bias: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
}

thread_local! {
    /// Grows to the largest that this thread has met.
    static PACKED: RefCell<Packed> = const {
        RefCell::new(Packed { input: Vec::new(), weight: Vec::new(), sums: Vec::new() })
    };
}

/// Operands, packed.
#[derive(Default)]
struct Packed {
    /// A block of rows of the input.
    input: Vec<Line>,
    /// Some rows of the weight, widened.
    weight: Vec<Line>,
    /// Sums of many rows, column by column.
    sums: Vec<Line>,
}

/// Writes `x * w^T` to `y`.
struct Product<'a, 'y, W> {
    ways: Ways,
    operands: Operands<'a, 'y, W>,
    packed: &'a mut Packed,
}

struct Operands<'a, 'y, W> {
    shape: LinearShape,
    x: &'a [f32],
    w: W,
    bias: Option<&'a [f32]>,
    y: &'a mut [&'y mut [f32]],
}

impl<'a, 'y> Operands<'a, 'y, ()> {
    fn with<W>(self, w: W) -> Operands<'a, 'y, W> {
        Operands {
            shape: self.shape,
            x: self.x,
            w,
            bias: self.bias,
            y: self.y,
        }
    }
}

/// A block of rows of input against a few rows of weight, over one piece of the summed index.
#[derive(Clone, Copy)]
struct Block {
    first_row: usize,
    rows: usize,
    first_column: usize,
    /// From one column of a tile to the next.
    apart: usize,
    k_start: usize,
    k_end: usize,
}

impl Block {
    fn length(&self) -> usize {
        self.k_end - self.k_start
    }

    fn steps(&self) -> usize {
        self.length().div_ceil(LANES)
    }

    /// The block so many columns on.
    #[inline(always)]
    fn right(self, columns: usize) -> Block {
        Block {
            first_column: self.first_column + columns,
            ..self
        }
    }

    /// Where the tile of `M` rows from a row on lies in the packed input.
    #[inline(always)]
    fn packed_tile<L: Lanes, const M: usize>(&self, row: usize) -> Range<usize> {
        let each = lines::<L>(self.length());
        // Pieces before this one are whole.
        let start = self.rows * lines::<L>(self.k_start) + row * each;
        start..start + M * each
    }
}

impl<W: Rows> Kernel for Product<'_, '_, W> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let LinearShape { m, k, .. } = self.operands.shape;
        let rows = match m {
            1 if k <= SHORT => L::TILE_N_ALONE,
            1 => L::TILE_N.max(L::TILE_N_ALONE),
            _ => L::TILE_N,
        };
        match rows {
            6 => self.blocks::<L, 6>(lanes),
            4 => self.blocks::<L, 4>(lanes),
            3 => self.blocks::<L, 3>(lanes),
            _ => self.blocks::<L, 2>(lanes),
        }
    }
}

/// Calls `$call` with `M` as a constant for each tile of at most `$most` rows, evenly cut. Tiles that are larger
/// than `$most`, a constant, are not compiled.
macro_rules! for_each_tile {
    ($rows:expr, $most:expr, |$row:ident, $m:ident| $call:expr) => {{
        let tiles = $rows.div_ceil($most);
        let mut $row = 0;
        for tile in 0..tiles {
            let rows = $rows / tiles + usize::from(tile < $rows % tiles);
            if $most == 1 || rows == 1 {
                const $m: usize = 1;
                $call
            } else if $most == 2 || rows == 2 {
                const $m: usize = 2;
                $call
            } else if $most == 3 || rows == 3 {
                const $m: usize = 3;
                $call
            } else if $most == 4 || rows == 4 {
                const $m: usize = 4;
                $call
            } else if $most == 5 || rows == 5 {
                const $m: usize = 5;
                $call
            } else if $most == 6 || rows == 6 {
                const $m: usize = 6;
                $call
            } else if $most == 7 || rows == 7 {
                const $m: usize = 7;
                $call
            } else {
                const $m: usize = 8;
                $call
            }
            $row += rows;
        }
    }};
}

impl<W: Rows> Product<'_, '_, W> {
    /// Whether so many rows of input are one tile, to which the weight streams as it lies.
    #[inline(always)]
    fn is_one_tile<L: Lanes>(way: Way, rows: usize) -> bool {
        let is_few = match way {
            Way::Dots => rows == 1,
            Way::Tile => W::NARROW && rows <= L::TALL,
            Way::Panels => false,
        };
        is_few && !W::SHARED
    }

    #[inline(always)]
    fn blocks<L: Lanes, const N: usize>(self, lanes: L) {
        let Product {
            ways,
            mut operands,
            packed,
        } = self;
        let m = operands.shape.m;
        for first_row in (0..m).step_by(ROW_BLOCK) {
            let rows = first_row..m.min(first_row + ROW_BLOCK);
            let way = match operands.shape.k {
                0 => Way::Dots,
                _ => ways.of(rows.len()),
            };
            let x = &mut packed.input;
            if Self::is_one_tile::<L>(way, rows.len()) {
                let count = rows.len();
                for_each_tile!(count, L::TALL, |_row, M| match M {
                    1 => operands.streams::<L, 1, N>(lanes, rows.clone(), x),
                    2..=4 => operands.streams::<L, M, 6>(lanes, rows.clone(), x),
                    _ => operands.streams::<L, M, 3>(lanes, rows.clone(), x),
                });
                continue;
            }
            if way == Way::Tile {
                operands.pack_input(lanes, rows.clone(), x);
            }
            match (way, L::TILE_OF_MANY) {
                (Way::Panels, (4, 6)) => operands.many_rows::<L, 4, 6>(lanes, rows, packed),
                (Way::Panels, (1, 6)) => operands.many_rows::<L, 1, 6>(lanes, rows, packed),
                (Way::Panels, (1, 2)) => operands.many_rows::<L, 1, 2>(lanes, rows, packed),
                (Way::Panels, tile) => unreachable!("no tile of {tile:?} is compiled"),
                _ => operands.few_rows::<L, N>(lanes, rows, (way, packed)),
            }
        }
    }
}

impl<'a, W: Rows> Operands<'a, '_, W> {
    /// Packs rows of the input: piece by piece, tile by tile.
    #[inline(always)]
    fn pack_input<L: Lanes>(&self, lanes: L, range: Range<usize>, packed: &mut Vec<Line>) {
        let (k, rows) = (self.shape.k, range.len());
        let packed = room(packed, rows * lines::<L>(k), Line::ZERO);
        for k_start in (0..k).step_by(DOT_PIECE) {
            let block = self.block(&range, 0, k_start);
            for_each_tile!(rows, L::TILE_M, |row, M| {
                let into = &mut packed[block.packed_tile::<L, M>(row)];
                let rows = self.input::<M>(block, row);
                pack(lanes, rows, block.length(), into.as_chunks_mut().0);
            });
        }
    }

    /// Each few rows of weight are read from end to end before the next, for all rows of the input.
    #[inline(always)]
    fn few_rows<L: Lanes, const N: usize>(
        &mut self,
        lanes: L,
        rows: Range<usize>,
        (way, packed): (Way, &mut Packed),
    ) {
        let n = self.shape.n;
        for first_column in (0..n).step_by(N) {
            if first_column + N <= n {
                self.columns::<L, N>(lanes, rows.clone(), first_column, (way, packed));
            } else {
                for column in first_column..n {
                    self.columns::<L, 1>(lanes, rows.clone(), column, (way, packed));
                }
            }
        }
        if let Some(bias) = self.bias {
            self.y[rows].iter_mut().for_each(|y| add_bias(bias, y));
        }
    }

    #[inline(always)]
    fn columns<L: Lanes, const N: usize>(
        &mut self,
        lanes: L,
        rows: Range<usize>,
        first_column: usize,
        (way, packed): (Way, &mut Packed),
    ) {
        for k_start in (0..self.shape.k).step_by(DOT_PIECE) {
            let block = self.block(&rows, first_column, k_start);
            self.column_tile::<L, N>(lanes, block, (way, packed));
        }
    }

    /// A few rows of weight at a time meet all rows of the input, which are packed side by side.
    #[inline(always)]
    fn many_rows<L: Lanes, const V: usize, const N: usize>(
        &mut self,
        lanes: L,
        rows: Range<usize>,
        packed: &mut Packed,
    ) {
        const { assert!(GROUP.is_multiple_of(LANES) && GROUP.is_multiple_of(N)) };
        let LinearShape { n, k, .. } = self.shape;
        let vectors = rows.len().div_ceil(LANES);
        let mut waiting = many::waiting(lanes);
        for k_start in (0..k).step_by(DOT_PIECE) {
            let block = self.block(&rows, 0, k_start);
            let lines = vectors * lines_of_vector(block.steps());
            let x = room(&mut packed.input, lines, Line::ZERO);
            let row = |row: usize| self.input::<1>(block, row)[0];
            many::pack_input::<L, V>(lanes, rows.len(), row, block.length(), x);
            let sums = room(&mut packed.sums, GROUP * vectors, Line::ZERO);
            for group in (0..n).step_by(GROUP) {
                let columns = GROUP.min(n - group);
                for first_column in (group..group + columns).step_by(N) {
                    let block = block.right(first_column);
                    let sums = &mut sums[(first_column - group) * vectors..];
                    let rows = self.weight::<N>(block);
                    if let Some(w) = many::as_they_lie(&rows) {
                        self.tiles::<L, _, V, N>(lanes, block, (x, w), (sums, &mut waiting));
                        continue;
                    }
                    let w = room(&mut packed.weight, N * block.steps(), Line::ZERO);
                    let w = w.as_chunks_mut::<N>().0;
                    many::pack_weight(lanes, rows, block.length(), w);
                    self.tiles::<L, &[_], V, N>(lanes, block, (x, w), (sums, &mut waiting));
                }
                self.put(lanes, block.right(group), (sums, columns));
            }
        }
    }

    /// All rows of a block against `N` rows of weight, both packed: to `sums`, `[N][vectors of rows]`.
    #[inline(always)]
    fn tiles<L: Lanes, T: many::Weight<N>, const V: usize, const N: usize>(
        &self,
        lanes: L,
        block: Block,
        (x, w): (&[Line], T),
        (sums, waiting): (&mut [Line], &mut Waiting<L, V, N>),
    ) {
        let vectors = block.rows.div_ceil(LANES);
        let mut next = self.next_rows(block, N, LANES * vectors.div_ceil(V));
        for first in (0..vectors).step_by(V) {
            let x = &x[first * lines_of_vector(block.steps())..];
            let into = (&mut *sums, first, vectors);
            match vectors - first {
                1 if V > 1 => {
                    let mut waiting = many::waiting(lanes);
                    self.tile::<L, T, 1, N>(lanes, (x, w), into, (&mut waiting, &mut next));
                }
                2 if V > 2 => {
                    let mut waiting = many::waiting(lanes);
                    self.tile::<L, T, 2, N>(lanes, (x, w), into, (&mut waiting, &mut next));
                }
                3 if V > 3 => {
                    let mut waiting = many::waiting(lanes);
                    self.tile::<L, T, 3, N>(lanes, (x, w), into, (&mut waiting, &mut next));
                }
                _ => self.tile::<L, T, V, N>(lanes, (x, w), into, (waiting, &mut next)),
            }
        }
    }

    #[inline(always)]
    fn tile<L: Lanes, T: many::Weight<N>, const V: usize, const N: usize>(
        &self,
        lanes: L,
        (x, w): (&[Line], T),
        (into, first, vectors): (&mut [Line], usize, usize),
        (waiting, next): (&mut Waiting<L, V, N>, &mut NextRows<W>),
    ) {
        let sums = many::sums(lanes, x, w, waiting, || next.ask(lanes));
        for n in 0..N {
            for v in 0..V {
                lanes.store(sums[n][v], &mut into[n * vectors + first + v].0);
            }
        }
    }

    /// Adds sums, `[column][vectors of rows]`, to so many columns of the output.
    #[inline(always)]
    fn put<L: Lanes>(&mut self, lanes: L, block: Block, (sums, columns): (&[Line], usize)) {
        let vectors = block.rows.div_ceil(LANES);
        for vector in 0..vectors {
            for first in (0..columns).step_by(LANES) {
                let mut square = [&[0.0; LANES]; LANES];
                for i in 0..LANES {
                    square[i] = &sums[(first + i) * vectors + vector].0;
                }
                let square = lanes.transpose_from(square);
                for i in 0..LANES {
                    let row = vector * LANES + i;
                    if row < block.rows {
                        self.put_vector(lanes, block.right(first), row, square[i]);
                    }
                }
            }
        }
    }

    /// Adds sums of a row, of which those beyond the last output are let go, and at the end the bias.
    #[inline(always)]
    fn put_vector<L: Lanes>(&mut self, lanes: L, block: Block, row: usize, sums: L::V) {
        let bias = self.bias_after(block);
        let y = &mut self.y[block.first_row + row][block.first_column..];
        let Some(y) = y.first_chunk_mut::<LANES>() else {
            let mut line = [0.0; LANES];
            lanes.store(sums, &mut line);
            self.add_row(block, row, &line);
            let y = &mut self.y[block.first_row + row][block.first_column..];
            bias.into_iter().for_each(|bias| add_bias(bias, y));
            return;
        };
        let before = match block.k_start {
            0 => lanes.zero(),
            _ => lanes.load(y),
        };
        let mut sums = lanes.add(before, sums);
        if let Some(bias) = bias.and_then(|bias| bias.first_chunk()) {
            sums = lanes.add(sums, lanes.load(bias));
        }
        lanes.store(sums, y);
    }

    /// The bias of a block's columns, where it is of the last piece of the summed index.
    #[inline(always)]
    fn bias_after(&self, block: Block) -> Option<&'a [f32]> {
        let bias = self.bias.filter(|_| block.k_end == self.shape.k)?;
        Some(&bias[block.first_column..])
    }

    /// The rows of weight that come next, as many, asked for in so many shares.
    #[inline(always)]
    fn next_rows(&self, block: Block, rows: usize, shares: usize) -> NextRows<W> {
        let first = block.first_column + rows;
        let lines = (block.steps() * W::Row::STEP_BYTES).div_ceil(CACHE_LINE);
        NextRows {
            w: self.w,
            rows: first..self.shape.n.min(first + rows),
            columns: block.k_start..block.k_end,
            lines,
            from: std::ptr::null(),
            left: 0,
            share: (rows * lines).div_ceil(shares),
        }
    }

    #[inline(always)]
    fn block(&self, rows: &Range<usize>, first_column: usize, k_start: usize) -> Block {
        Block {
            first_row: rows.start,
            rows: rows.len(),
            first_column,
            apart: 1,
            k_start,
            k_end: self.shape.k.min(k_start + DOT_PIECE),
        }
    }

    /// Packs `N` rows of weight, perhaps with repeats of the last one.
    #[inline(always)]
    fn pack_weight<'p, L: Lanes, const N: usize>(
        &self,
        lanes: L,
        block: Block,
        packed: &'p mut Vec<Line>,
    ) -> &'p [[Line; N]] {
        let into = room(packed, N * lines::<L>(block.length()), Line::ZERO);
        let into = into.as_chunks_mut::<N>().0;
        pack(lanes, self.weight::<N>(block), block.length(), into);
        into
    }

    /// The piece of `M` rows of the input from row `row` of the block.
    #[inline(always)]
    fn input<const M: usize>(&self, block: Block, row: usize) -> [&[f32]; M] {
        let mut x: [&[f32]; M] = [&[]; M];
        for i in 0..M {
            let start = (block.first_row + row + i) * self.shape.k + block.k_start;
            x[i] = &self.x[start..start + block.length()];
        }
        x
    }

    #[inline(always)]
    fn column_tile<L: Lanes, const N: usize>(
        &mut self,
        lanes: L,
        block: Block,
        (way, packed): (Way, &mut Packed),
    ) {
        if way == Way::Dots {
            let w = self.weight::<N>(block);
            let ahead = self.weight::<N>(self.after::<N>(block));
            let beyond = self.beyond::<N>(block);
            let asking = |step: usize| match beyond {
                Some(beyond) => beyond.ask(lanes, step),
                None => ahead.iter().for_each(|row| lanes.prefetch(row.place(step))),
            };
            for_each_tile!(block.rows, ALONE, |row, M| {
                let x = self.input::<M>(block, row);
                let sums = dots(lanes, x, w, block.length(), asking);
                self.add(block, row, &sums);
            });
        } else if W::NARROW {
            let w = self.pack_weight::<L, N>(lanes, block, &mut packed.weight);
            self.row_tiles(lanes, block, &packed.input, w);
        } else {
            let w = self.weight::<N>(block);
            self.row_tiles(lanes, block, &packed.input, w);
        }
    }

    /// All rows of a block against `N` rows of weight.
    #[inline(always)]
    fn row_tiles<L: Lanes, T: Operand<N>, const N: usize>(
        &mut self,
        lanes: L,
        block: Block,
        packed: &[Line],
        w: T,
    ) {
        let (mut tile, tiles) = (0, block.rows.div_ceil(L::TILE_M));
        for_each_tile!(block.rows, L::TILE_M, |row, M| {
            let x = packed[block.packed_tile::<L, M>(row)].as_chunks::<M>().0;
            let ahead = self.ahead::<L, N>(block, (tile, tiles));
            let asking = |step| ahead.ask(lanes, step);
            let sums = packed_dots(lanes, x, w, block.length(), asking);
            self.add(block, row, &sums);
            tile += 1;
        });
    }

    /// The piece of `N` rows of weight that a block is of; the last row again for those that there are not.
    #[inline(always)]
    fn weight<const N: usize>(&self, block: Block) -> [W::Row; N] {
        let piece = block.k_start..block.k_end;
        let first = block.first_column.min(self.shape.n - 1);
        let mut w = [self.w.piece(first, piece.clone()); N];
        for n in 1..N {
            let row = (block.first_column + n * block.apart).min(self.shape.n - 1);
            w[n] = self.w.piece(row, piece.clone());
        }
        w
    }

    /// The block whose weight is read after that of a block of few rows; itself at the end.
    #[inline(always)]
    fn after<const N: usize>(&self, block: Block) -> Block {
        let LinearShape { n, k, .. } = self.shape;
        let mut after = block;
        if block.k_end < k {
            after.k_start = block.k_end;
        } else if block.first_column + 2 * N <= n {
            after.first_column += N;
            after.k_start = 0;
        }
        after.k_end = k.min(after.k_start + DOT_PIECE);
        after
    }

    /// What a row or two ask for where rows of weight are short: not where the next ones begin, since these are read
    /// soon, but what lies behind them. Where the last piece of rows is a short one, that does not last for the next rows:
    /// what lies as far into these.
    #[inline(always)]
    fn beyond<const N: usize>(&self, block: Block) -> Option<Ahead> {
        let LinearShape { n, k, .. } = self.shape;
        let (is_short, is_uneven) = (k <= DOT_PIECE, !k.is_multiple_of(DOT_PIECE));
        let row = block.first_column + if is_short { 2 * N } else { N };
        let asks = if is_short { W::NARROW } else { is_uneven };
        (asks && row < n).then(|| Ahead {
            from: self.w.piece(row, 0..k).place(N * (block.k_start / LANES)),
            bytes_a_step: N * W::Row::STEP_BYTES,
            steps: 1,
        })
    }

    /// What a tile of a block of few rows asks for.
    #[inline(always)]
    fn ahead<L: Lanes, const N: usize>(
        &self,
        block: Block,
        (tile, tiles): (usize, usize),
    ) -> Ahead {
        let LinearShape { n, k, .. } = self.shape;
        let before = tile * N * block.steps() / tiles;
        // The next rows lie one after another, and are read to their end.
        let next = block.first_column + N;
        let row = self.w.piece(if next < n { next } else { 0 }, 0..k);
        let from = row.place(N * (block.k_start / LANES) + before);
        Ahead {
            from,
            bytes_a_step: (N * W::Row::STEP_BYTES).div_ceil(tiles * L::PARTS),
            steps: AT_ONCE,
        }
    }

    #[inline(always)]
    fn add<const M: usize, const N: usize>(
        &mut self,
        block: Block,
        row: usize,
        sums: &[[f32; N]; M],
    ) {
        for i in 0..M {
            self.add_row(block, row + i, &sums[i]);
        }
    }

    /// Sums of a row, of which those beyond the last output are let go.
    #[inline(always)]
    fn add_row(&mut self, block: Block, row: usize, sums: &[f32]) {
        let y = &mut self.y[block.first_row + row][block.first_column..];
        for (n, sum) in sums.iter().enumerate() {
            if let Some(y) = y.get_mut(n * block.apart) {
                let before = if block.k_start == 0 { 0.0 } else { *y };
                *y = before + sum;
            }
        }
    }
}

/// The naive form in f64, for tests of this and other layers.
pub fn linear_reference(shape: LinearShape, x: &[f32], weight: LinearWeight<'_>) -> Vec<f64> {
    let LinearShape { m, n, k } = shape;
    let w = weight.weight.to_vec(k);
    let bias = weight.bias.map_or(vec![0.0; n], |bias| bias.to_vec());
    let mut y = Vec::with_capacity(m * n);
    for i in 0..m {
        for j in 0..n {
            let products = (0..k).map(|l| f64::from(x[i * k + l]) * f64::from(w[j * k + l]));
            y.push(products.sum::<f64>() + f64::from(bias[j]));
        }
    }
    y
}

/// A store of f16 made of f32 (test data, small tables).
pub fn to_half(values: &[f32]) -> Vec<f16> {
    values.iter().map(|&value| f16::from_f32(value)).collect()
}

/// The same for bf16.
pub fn to_brain(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|&value| bf16::from_f32(value)).collect()
}

#[cfg(test)]
mod tests;
