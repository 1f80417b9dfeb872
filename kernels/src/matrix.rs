//! A weight matrix as it is stored: element by element, or packed.

use std::ops::Range;

use super::Elements;
use super::groups::{PackedMatrix, PackedRow};
use super::row::{Row, widen};
use super::simd::{Kernel, Lanes, Stored, dispatch};

/// A matrix, row-major, to read.
#[derive(Debug, Clone, Copy)]
pub enum Matrix<'a> {
    /// Element by element.
    Whole(Elements<'a>),
    /// In groups of 4-bit codes.
    Packed(PackedMatrix<'a>),
}

impl<'a> From<Elements<'a>> for Matrix<'a> {
    fn from(elements: Elements<'a>) -> Matrix<'a> {
        Matrix::Whole(elements)
    }
}

impl<'a> Matrix<'a> {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Matrix::Whole(elements) => elements.len(),
            Matrix::Packed(matrix) => matrix.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some rows of a matrix of so many columns.
    ///
    /// # Panics
    /// Where there are not as many.
    pub fn rows(&self, range: Range<usize>, columns: usize) -> Matrix<'a> {
        match self {
            Matrix::Whole(elements) => {
                Matrix::Whole(elements.slice(range.start * columns..range.end * columns))
            }
            Matrix::Packed(matrix) => Matrix::Packed(matrix.rows(range)),
        }
    }

    /// Writes a row of `into.len()` columns as f32.
    ///
    /// # Panics
    /// Where there is no such row, or it is shorter.
    pub fn load_row(&self, row: usize, into: &mut [f32]) {
        let columns = into.len();
        match self {
            Matrix::Whole(elements) => elements.load(row * columns..(row + 1) * columns, into),
            Matrix::Packed(matrix) => dispatch(Unpack {
                row: matrix.row(row, 0..columns),
                into,
            }),
        }
    }

    /// All elements of a matrix of so many columns, as f32.
    pub fn to_vec(&self, columns: usize) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        for (row, into) in values.chunks_exact_mut(columns.max(1)).enumerate() {
            self.load_row(row, into);
        }
        values
    }
}

struct Unpack<'a> {
    row: PackedRow<'a>,
    into: &'a mut [f32],
}

impl Kernel for Unpack<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        widen(lanes, self.row, self.into);
    }
}

/// A matrix of known storage, in pieces of rows.
pub trait Rows: Copy {
    /// What a piece is.
    type Row: Row;
    /// Whether who reads a row often had better widen it first.
    const NARROW: bool;
    /// Whether rows next to each other lie in the same bytes.
    const SHARED: bool;
    /// Some columns of a row.
    fn piece(self, row: usize, columns: Range<usize>) -> Self::Row;
}

/// Elements as they lie, row-major.
#[derive(Clone, Copy)]
pub struct WholeRows<'a, W> {
    /// All of them.
    pub elements: &'a [W],
    /// Of a row.
    pub columns: usize,
}

impl<'a, W: Stored> Rows for WholeRows<'a, W> {
    type Row = &'a [W];
    const NARROW: bool = W::NARROW;
    const SHARED: bool = false;

    #[inline(always)]
    fn piece(self, row: usize, columns: Range<usize>) -> &'a [W] {
        let start = row * self.columns;
        &self.elements[start + columns.start..start + columns.end]
    }
}

impl<'a> Rows for PackedMatrix<'a> {
    type Row = PackedRow<'a>;
    const NARROW: bool = true;
    const SHARED: bool = true;

    #[inline(always)]
    fn piece(self, row: usize, columns: Range<usize>) -> PackedRow<'a> {
        self.row(row, columns)
    }
}
