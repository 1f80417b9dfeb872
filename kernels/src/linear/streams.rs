//! A few rows of input, or one, to which the weight streams as it lies.

use std::ops::Range;

use super::operands::{Block, Operands, add_bias};
use crate::matrix::Rows;
use crate::simd::Lanes;
use crate::tile::{DOT_PIECE, Line, dots, lines, pack, packed_dots, room};

impl<W: Rows> Operands<'_, '_, W> {
    /// All `M` rows of input meet each row of weight at once. What is read from end to end, processors ask for by
    /// themselves: each row of a tile is of a stream of its own.
    #[inline(always)]
    pub(super) fn streams<L: Lanes, const M: usize, const N: usize>(
        &mut self,
        lanes: L,
        rows: Range<usize>,
        packed: &mut Vec<Line>,
    ) {
        if M > 1 {
            self.pack_tile::<L, M>(lanes, &rows, packed);
        }
        let n = self.shape.n;
        let length = n / N;
        for column in 0..length {
            self.stream_tile::<L, M, N>(lanes, &rows, (column, length), packed);
        }
        for column in length * N..n {
            self.stream_tile::<L, M, 1>(lanes, &rows, (column, 1), packed);
        }
        if let Some(bias) = self.bias {
            self.y[rows].iter_mut().for_each(|y| add_bias(bias, y));
        }
    }

    /// Packs `M` rows of the input as one tile, piece by piece.
    #[inline(always)]
    fn pack_tile<L: Lanes, const M: usize>(
        &self,
        lanes: L,
        rows: &Range<usize>,
        packed: &mut Vec<Line>,
    ) {
        let packed = room(packed, M * lines::<L>(self.shape.k), Line::ZERO);
        for k_start in (0..self.shape.k).step_by(DOT_PIECE) {
            let block = self.block(rows, 0, k_start);
            let into = packed[block.packed_tile::<L, M>(0)].as_chunks_mut().0;
            pack(lanes, self.input::<M>(block, 0), block.length(), into);
        }
    }

    #[inline(always)]
    fn stream_tile<L: Lanes, const M: usize, const N: usize>(
        &mut self,
        lanes: L,
        rows: &Range<usize>,
        (first_column, apart): (usize, usize),
        packed: &[Line],
    ) {
        for k_start in (0..self.shape.k).step_by(DOT_PIECE) {
            let block = Block {
                apart,
                ..self.block(rows, first_column, k_start)
            };
            let (w, length) = (self.weight::<N>(block), block.length());
            let sums = match M {
                1 => dots(lanes, self.input::<M>(block, 0), w, length, |_| ()),
                _ => {
                    let x = packed[block.packed_tile::<L, M>(0)].as_chunks::<M>().0;
                    packed_dots(lanes, x, w, length, |_| ())
                }
            };
            self.add(block, 0, &sums);
        }
    }
}
