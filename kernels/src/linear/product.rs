//! Which way a product takes, a block of rows of input at a time.

use std::cell::RefCell;

use crate::matrix::Rows;
use crate::simd::{Kernel, Lanes, dispatch_to};

use super::operands::{Operands, Packed};
use super::tiles::for_each_tile;
use super::{How, LinearShape, ROW_BLOCK, Way, Ways};

/// Elements of a row of input that the first cache keeps while rows of weight pass through it; where it does not,
/// more of these share each of its reads.
const SHORT: usize = 2048;

/// Writes a product with its bias to its output.
pub(super) fn multiply<W: Rows>(how: How, operands: Operands<'_, '_, W>) {
    let mut packed = PACKED.take();
    let product = Product {
        ways: how.ways,
        operands,
        packed: &mut packed,
    };
    dispatch_to(how.set, product);
    PACKED.set(packed);
}

thread_local! {
    /// Grows to the largest that this thread has met.
    static PACKED: RefCell<Packed> = const {
        RefCell::new(Packed { input: Vec::new(), weight: Vec::new(), sums: Vec::new() })
    };
}

/// Writes `x * w^T` to `y`.
struct Product<'a, 'y, W> {
    ways: Ways,
    operands: Operands<'a, 'y, W>,
    packed: &'a mut Packed,
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
