//! What a product is made of, and what of it a tile needs.

#![allow(
    clippy::needless_range_loop,
    reason = "constant bounds over several arrays keep a tile in registers"
)]

use std::ops::Range;

use crate::matrix::Rows;
use crate::simd::{LANES, Lanes};
use crate::tile::{DOT_PIECE, Line, lines, pack, room};

use super::LinearShape;
use super::tiles::for_each_tile;

/// Operands, packed.
#[derive(Default)]
pub(super) struct Packed {
    /// A block of rows of the input.
    pub(super) input: Vec<Line>,
    /// Some rows of the weight, widened.
    pub(super) weight: Vec<Line>,
    /// Sums of many rows, column by column.
    pub(super) sums: Vec<Line>,
}

/// What a product reads and writes.
pub(super) struct Operands<'a, 'y, W> {
    pub(super) shape: LinearShape,
    pub(super) x: &'a [f32],
    pub(super) w: W,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) y: &'a mut [&'y mut [f32]],
}

impl<'a, 'y> Operands<'a, 'y, ()> {
    pub(super) fn with<W>(self, w: W) -> Operands<'a, 'y, W> {
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
pub(super) struct Block {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) first_column: usize,
    /// From one column of a tile to the next.
    pub(super) apart: usize,
    pub(super) k_start: usize,
    pub(super) k_end: usize,
}

impl Block {
    pub(super) fn length(&self) -> usize {
        self.k_end - self.k_start
    }

    pub(super) fn steps(&self) -> usize {
        self.length().div_ceil(LANES)
    }

    /// The block so many columns on.
    #[inline(always)]
    pub(super) fn right(self, columns: usize) -> Block {
        Block {
            first_column: self.first_column + columns,
            ..self
        }
    }

    /// Where the tile of `M` rows from a row on lies in the packed input.
    #[inline(always)]
    pub(super) fn packed_tile<L: Lanes, const M: usize>(&self, row: usize) -> Range<usize> {
        let each = lines::<L>(self.length());
        // Pieces before this one are whole.
        let start = self.rows * lines::<L>(self.k_start) + row * each;
        start..start + M * each
    }
}

impl<'a, W: Rows> Operands<'a, '_, W> {
    /// Packs rows of the input: piece by piece, tile by tile.
    #[inline(always)]
    pub(super) fn pack_input<L: Lanes>(
        &self,
        lanes: L,
        range: Range<usize>,
        packed: &mut Vec<Line>,
    ) {
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

    #[inline(always)]
    pub(super) fn block(&self, rows: &Range<usize>, first_column: usize, k_start: usize) -> Block {
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
    pub(super) fn pack_weight<'p, L: Lanes, const N: usize>(
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
    pub(super) fn input<const M: usize>(&self, block: Block, row: usize) -> [&[f32]; M] {
        let mut x: [&[f32]; M] = [&[]; M];
        for i in 0..M {
            let start = (block.first_row + row + i) * self.shape.k + block.k_start;
            x[i] = &self.x[start..start + block.length()];
        }
        x
    }

    /// The piece of `N` rows of weight that a block is of; the last row again for those that there are not.
    #[inline(always)]
    pub(super) fn weight<const N: usize>(&self, block: Block) -> [W::Row; N] {
        let piece = block.k_start..block.k_end;
        let first = block.first_column.min(self.shape.n - 1);
        let mut w = [self.w.piece(first, piece.clone()); N];
        for n in 1..N {
            let row = (block.first_column + n * block.apart).min(self.shape.n - 1);
            w[n] = self.w.piece(row, piece.clone());
        }
        w
    }

    #[inline(always)]
    pub(super) fn add<const M: usize, const N: usize>(
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
    pub(super) fn add_row(&mut self, block: Block, row: usize, sums: &[f32]) {
        let y = &mut self.y[block.first_row + row][block.first_column..];
        for (n, sum) in sums.iter().enumerate() {
            if let Some(y) = y.get_mut(n * block.apart) {
                let before = if block.k_start == 0 { 0.0 } else { *y };
                *y = before + sum;
            }
        }
    }
}

pub(super) fn add_bias(bias: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
}
