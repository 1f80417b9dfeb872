//! What is asked for of the rows of weight that come next, where processors do not ask by themselves.

use std::ops::Range;

use crate::matrix::Rows;
use crate::row::Row;
use crate::simd::Lanes;

/// Bytes that memory gives at once.
pub(super) const CACHE_LINE: usize = 64;

/// What a tile asks for of the rows of weight that come next, so that memory is busy for as long as the sums
/// take: bytes in a row, since the loop over a tile has no registers left for more.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub(super) from: *const u8,
    pub(super) bytes_a_step: usize,
    /// For how many steps at once.
    pub(super) steps: usize,
}

impl Ahead {
    /// What is asked for beside some steps at once.
    #[inline(always)]
    pub(super) fn ask<L: Lanes>(self, lanes: L, step: usize) {
        let from = self.from.wrapping_add(step * self.bytes_a_step);
        for line in 0..(self.bytes_a_step * self.steps).div_ceil(CACHE_LINE) {
            lanes.prefetch(from.wrapping_add(line * CACHE_LINE));
        }
    }
}

/// Rows of weight that are asked for some lines at a time, no more than the processor waits for at once.
pub(super) struct NextRows<W> {
    pub(super) w: W,
    /// Those that were not begun, and their columns.
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    /// Of a row.
    pub(super) lines: usize,
    /// What is left of a row that was.
    pub(super) from: *const u8,
    pub(super) left: usize,
    /// Lines at a time.
    pub(super) share: usize,
}

impl<W: Rows> NextRows<W> {
    #[inline(always)]
    pub(super) fn ask<L: Lanes>(&mut self, lanes: L) {
        for _ in 0..self.share {
            if self.left == 0 {
                let Some(row) = self.rows.next() else {
                    return;
                };
                self.from = self.w.piece(row, self.columns.clone()).place(0);
                self.left = self.lines;
            }
            lanes.prefetch(self.from);
            self.from = self.from.wrapping_add(CACHE_LINE);
            self.left -= 1;
        }
    }
}
