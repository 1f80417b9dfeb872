//! Many rows of input, packed side by side, and a few rows of weight at a time.

#![allow(
    clippy::needless_range_loop,
    reason = "constant bounds over several arrays keep a tile in registers"
)]

use std::ops::Range;

use crate::many::{self, Waiting, lines_of_vector};
use crate::matrix::Rows;
use crate::row::Row;
use crate::simd::{LANES, Lanes};
use crate::tile::{DOT_PIECE, Line, room};

use super::LinearShape;
use super::ahead::{CACHE_LINE, NextRows};
use super::operands::{Block, Operands, Packed, add_bias};

/// Columns whose sums are turned to rows at once: a multiple of [`LANES`] and of the rows of weight of any tile.
const GROUP: usize = 48;

impl<'a, W: Rows> Operands<'a, '_, W> {
    /// A few rows of weight at a time meet all rows of the input, which are packed side by side.
    #[inline(always)]
    pub(super) fn many_rows<L: Lanes, const V: usize, const N: usize>(
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
}
