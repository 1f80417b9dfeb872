//! Rows of weight that pass one after another, and meet all rows of the input.

use std::ops::Range;

use crate::matrix::Rows;
use crate::row::Row;
use crate::simd::{LANES, Lanes};
use crate::tile::{AT_ONCE, DOT_PIECE, Line, Operand, dots, packed_dots};

use super::ahead::Ahead;
use super::operands::{Block, Operands, Packed, add_bias};
use super::tiles::for_each_tile;
use super::{LinearShape, Way};

/// Rows of a tile that reads input and weight as they lie.
const ALONE: usize = 2;

impl<W: Rows> Operands<'_, '_, W> {
    /// Each few rows of weight are read from end to end before the next, for all rows of the input.
    #[inline(always)]
    pub(super) fn few_rows<L: Lanes, const N: usize>(
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
}
