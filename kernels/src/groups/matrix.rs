//! A weight matrix `[rows, columns]` in bands of 64 rows: groups run along the rows of a column.

use std::ops::Range;

use half::f16;

use super::{BYTES, ELEMENTS, Quantiser, Span, kept};
use crate::error::expect;
use crate::row::Row;
use crate::simd::{InstructionSet, Kernel, LANES, Lanes, Stored, dispatch_to};
use crate::storage::halves;
use crate::{Elements, KernelError};

/// Rows of a packed matrix, to read.
#[derive(Debug, Clone, Copy)]
pub struct PackedMatrix<'a> {
    /// All bands, as halves, so that scales and minima can be seen as f16.
    bands: &'a [f16],
    columns: usize,
    first_row: usize,
    rows: usize,
}

/// Some columns of a row of a packed matrix.
#[derive(Debug, Clone, Copy)]
pub struct PackedRow<'a> {
    scales: &'a [f16],
    minima: &'a [f16],
    codes: &'a [u8],
    shift: u32,
}

/// Halves of the band of a matrix.
fn band_halves(columns: usize) -> usize {
    columns * BYTES / 2
}

impl<'a> PackedMatrix<'a> {
    /// Sees the bytes of a packed matrix.
    ///
    /// # Errors
    /// [`KernelError::Cast`] and [`KernelError::Shape`] where address or length do not fit.
    pub fn new(bytes: &'a [u8], rows: usize, columns: usize) -> Result<Self, KernelError> {
        let bands = halves(bytes)?;
        let needed = rows.div_ceil(ELEMENTS) * band_halves(columns);
        expect("the halves of a packed matrix", needed, bands.len())?;
        Ok(PackedMatrix {
            bands,
            columns,
            first_row: 0,
            rows,
        })
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.rows * self.columns
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// Where there are not as many.
    pub fn rows(&self, range: Range<usize>) -> PackedMatrix<'a> {
        assert!(range.end <= self.rows, "{range:?} of {} rows", self.rows);
        PackedMatrix {
            first_row: self.first_row + range.start,
            rows: range.len(),
            ..*self
        }
    }

    /// Some columns of a row.
    #[inline(always)]
    pub fn row(&self, row: usize, columns: Range<usize>) -> PackedRow<'a> {
        let (row, halves) = (self.first_row + row, band_halves(self.columns));
        let start = row / ELEMENTS * halves;
        let band = &self.bands[start..start + halves];
        let (scales, band) = band.split_at(self.columns);
        let (minima, codes) = band.split_at(self.columns);
        let line = row % ELEMENTS / 2 * self.columns;
        let codes: &[u8] = bytemuck::cast_slice(codes);
        PackedRow {
            scales: &scales[columns.clone()],
            minima: &minima[columns.clone()],
            codes: &codes[line + columns.start..line + columns.end],
            shift: (row % 2 * 4) as u32,
        }
    }
}

impl Row for PackedRow<'_> {
    #[inline(always)]
    fn upto(self, length: usize) -> Self {
        PackedRow {
            scales: &self.scales[..length],
            minima: &self.minima[..length],
            codes: &self.codes[..length],
            shift: self.shift,
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L, step: usize) -> L::V {
        let codes = lanes.load_codes(&self.codes.as_chunks().0[step], self.shift);
        let scales = lanes.load_half(&self.scales.as_chunks().0[step]);
        let minima = lanes.load_half(&self.minima.as_chunks().0[step]);
        lanes.fma(codes, scales, minima)
    }

    #[inline(always)]
    fn some(self, first: usize, steps: usize) -> Self {
        let range = first * LANES..(first + steps) * LANES;
        PackedRow {
            scales: &self.scales[range.clone()],
            minima: &self.minima[range.clone()],
            codes: &self.codes[range],
            shift: self.shift,
        }
    }

    const STEP_BYTES: usize = LANES;

    #[inline(always)]
    fn place(self, step: usize) -> *const u8 {
        self.codes.as_ptr().wrapping_add(step * LANES)
    }

    #[inline(always)]
    fn element(self, index: usize) -> f32 {
        let code = self.codes[index] >> self.shift & 15;
        let (scale, minimum) = (self.scales[index], self.minima[index]);
        f32::from(code).mul_add(scale.to_f32(), minimum.to_f32())
    }
}

/// Packs a matrix of stored elements, row-major, `columns` to a row.
///
/// # Errors
/// [`KernelError::Cast`] and [`KernelError::Shape`] where `into` is not the room of such a matrix.
pub fn pack_matrix(
    elements: Elements<'_>,
    columns: usize,
    into: &mut [u8],
) -> Result<(), KernelError> {
    pack_matrix_with(InstructionSet::best(), elements, columns, into)
}

/// [`pack_matrix`] with a stated instruction set.
pub(super) fn pack_matrix_with(
    set: InstructionSet,
    elements: Elements<'_>,
    columns: usize,
    into: &mut [u8],
) -> Result<(), KernelError> {
    let rows = elements.len() / columns.max(1);
    expect("elements of a matrix", rows * columns, elements.len())?;
    PackedMatrix::new(into, rows, columns)?;
    match elements {
        Elements::F32(elements) => pack_bands(set, elements, columns, into),
        Elements::F16(elements) => pack_bands(set, elements, columns, into),
        Elements::Bf16(elements) => pack_bands(set, elements, columns, into),
    }
    Ok(())
}

fn pack_bands<W: Stored>(set: InstructionSet, elements: &[W], columns: usize, into: &mut [u8]) {
    if columns == 0 {
        return;
    }
    let bands = into.chunks_exact_mut(columns * BYTES);
    for (elements, band) in elements.chunks(ELEMENTS * columns).zip(bands) {
        dispatch_to(
            set,
            PackBand {
                elements,
                columns,
                band,
            },
        );
    }
}

/// Packs at most 64 rows.
struct PackBand<'a, W> {
    elements: &'a [W],
    columns: usize,
    band: &'a mut [u8],
}

impl<W: Stored> Kernel for PackBand<'_, W> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let PackBand {
            elements,
            columns,
            band,
        } = self;
        let (scales, band) = band.split_at_mut(2 * columns);
        let (minima, codes) = band.split_at_mut(2 * columns);
        let mut buffer = [[0.0; LANES]; ELEMENTS];
        for column in (0..columns).step_by(LANES) {
            let width = LANES.min(columns - column);
            let rows = elements.chunks_exact(columns);
            let count = rows.len();
            for (row, into) in rows.zip(&mut buffer) {
                let row = &row[column..column + width];
                match row.first_chunk() {
                    Some(row) => lanes.store(W::load(lanes, row), into),
                    None => lanes.store(row.rest(lanes, width), into),
                }
            }
            let quantisers = quantisers(&buffer[..count]);
            let part = 2 * column..2 * (column + width);
            put_halves(quantisers.map(|q| q.scale), &mut scales[part.clone()]);
            put_halves(quantisers.map(|q| q.minimum), &mut minima[part]);
            for (pair, line) in codes.chunks_exact_mut(columns).enumerate() {
                let both = codes_of(&quantisers, &buffer[..count], 2 * pair);
                line[column..column + width].copy_from_slice(&both[..width]);
            }
        }
    }
}

#[inline(always)]
fn quantisers(rows: &[[f32; LANES]]) -> [Quantiser; LANES] {
    let mut span = Span::EMPTY;
    for row in rows {
        span.add(row);
    }
    let mut quantisers = [Quantiser::new(0.0, 0.0, 0.0); LANES];
    for (i, quantiser) in quantisers.iter_mut().enumerate() {
        *quantiser = Quantiser::new(span.minimum[i], span.maximum[i], span.taint[i]);
    }
    quantisers
}

/// The codes of a row and of the next, side by side; rows that a last band lacks have code 0.
#[inline(always)]
fn codes_of(quantisers: &[Quantiser; LANES], rows: &[[f32; LANES]], row: usize) -> [u8; LANES] {
    let mut codes = [0; LANES];
    for (half, row) in rows.iter().skip(row).take(2).enumerate() {
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= quantisers[i].code(row[i]) << (4 * half);
        }
    }
    codes
}

fn put_halves(values: [f32; LANES], into: &mut [u8]) {
    for (value, into) in values.iter().zip(into.as_chunks_mut().0) {
        *into = kept(*value).to_le_bytes();
    }
}
