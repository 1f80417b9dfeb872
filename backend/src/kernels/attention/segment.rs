//! A contiguous range of rows of a cache in one buffer.
//!
//! Layout: [position][key, then value][row][head_dim], a fixed number of bytes from a position to the
//! next, so that a position is one contiguous record to append, copy, or write to disk.

use std::ops::Range;

use plimsoll_core::Dtype;

use super::AttentionSpec;
use crate::kernels::error::expect;
use crate::kernels::{ElementsMut, KernelError};

/// Rows `row_start..row_end` of a cache, to read.
#[derive(Debug, Clone, Copy)]
pub struct KvSegment<'a> {
    /// The first row.
    pub row_start: usize,
    /// Past the last row.
    pub row_end: usize,
    /// Bytes from a position to the next: at least [`record_bytes`], and whole elements.
    pub record_bytes: usize,
    /// The buffer; the first position's record starts at its first byte.
    pub bytes: &'a [u8],
    /// What keys and values are stored as.
    pub dtype: Dtype,
}

/// Rows `row_start..row_end` of a cache, to append to.
#[derive(Debug)]
pub struct KvSegmentMut<'a> {
    /// The first row.
    pub row_start: usize,
    /// Past the last row.
    pub row_end: usize,
    /// Bytes from a position to the next: at least [`record_bytes`], and whole elements.
    pub record_bytes: usize,
    /// The buffer; the first position's record starts at its first byte.
    pub bytes: &'a mut [u8],
    /// What keys and values are stored as.
    pub dtype: Dtype,
}

/// Bytes that key and value of one position take for so many rows, without padding.
pub fn record_bytes(rows: usize, head_dim: usize, dtype: Dtype) -> usize {
    2 * rows * head_dim * dtype.size_bytes() as usize
}

impl KvSegment<'_> {
    /// An error unless the buffer holds `spec.context_len` positions of these rows.
    pub(super) fn check(&self, spec: &AttentionSpec) -> Result<(), KernelError> {
        expect(
            "the end of a segment",
            self.row_end.max(self.row_start),
            self.row_end,
        )?;
        let record = record_bytes(self.row_end - self.row_start, spec.head_dim, self.dtype);
        let size = self.dtype.size_bytes() as usize;
        let least = record.max(self.record_bytes).next_multiple_of(size);
        expect(
            "the record of a position, in bytes",
            least,
            self.record_bytes,
        )?;
        let needed = spec.context_len.saturating_sub(1) * self.record_bytes + record;
        expect(
            "the buffer of a segment, in bytes",
            needed.max(self.bytes.len()),
            self.bytes.len(),
        )
    }
}

/// Writes the fresh keys and values of the segment's rows at positions `spec.start()..spec.context_len`.
///
/// `k` and `v` are [batch * query_len, kv_heads * head_dim], f32, row-major, sequence by sequence;
/// values are rounded to the type of storage.
///
/// # Errors
/// [`KernelError::Shape`] and [`KernelError::Cast`] where operands do not fit `spec`.
pub fn append(
    segment: &mut KvSegmentMut<'_>,
    spec: &AttentionSpec,
    k: &[f32],
    v: &[f32],
) -> Result<(), KernelError> {
    spec.check()?;
    let rows = segment.row_start..segment.row_end;
    let (row_start, row_end) = (rows.start, rows.end);
    let (record_bytes, dtype) = (segment.record_bytes, segment.dtype);
    KvSegment {
        row_start,
        row_end,
        record_bytes,
        bytes: &*segment.bytes,
        dtype,
    }
    .check(spec)?;
    let per_sequence = spec.query_len * spec.kv_heads * spec.head_dim;
    expect(
        "fresh keys",
        k.len().next_multiple_of(per_sequence),
        k.len(),
    )?;
    expect("fresh values", k.len(), v.len())?;
    let batch_rows = k.len() / per_sequence * spec.kv_heads;
    expect("rows of fresh keys", batch_rows.max(rows.end), batch_rows)?;
    let stride = record_bytes / dtype.size_bytes() as usize;
    let mut elements = ElementsMut::from_bytes(segment.bytes, dtype)?;
    for t in 0..spec.query_len {
        let record = (spec.start() + t) * stride;
        put(&mut elements, record, &rows, spec, (k, t));
        put(
            &mut elements,
            record + rows.len() * spec.head_dim,
            &rows,
            spec,
            (v, t),
        );
    }
    Ok(())
}

/// Writes query `t`'s part of `fresh` for `rows`: a sequence's heads are contiguous on both sides.
fn put(
    elements: &mut ElementsMut<'_>,
    at: usize,
    rows: &Range<usize>,
    spec: &AttentionSpec,
    (fresh, t): (&[f32], usize),
) {
    let mut row = rows.start;
    while row < rows.end {
        let (sequence, head) = (row / spec.kv_heads, row % spec.kv_heads);
        let heads = (spec.kv_heads - head).min(rows.end - row);
        let token = sequence * spec.query_len + t;
        let from = (token * spec.kv_heads + head) * spec.head_dim;
        let to = at + (row - rows.start) * spec.head_dim;
        let length = heads * spec.head_dim;
        elements.store(to..to + length, &fresh[from..from + length]);
        row += heads;
    }
}
