//! A contiguous range of rows of a cache, in one buffer or in pages.
//!
//! Layout: [position][key, then value][row][head], a fixed number of bytes from a position to the
//! next, so that a position is one contiguous record to append, copy, or write to disk. A page is a
//! buffer that holds the positions after those of the page before.

use std::ops::Range;

use super::{AttentionSpec, CacheType};
use crate::KernelError;
use crate::error::expect;

/// Rows `row_start..row_end` of a cache, to read.
#[derive(Debug, Clone, Copy)]
pub struct KvSegment<'a> {
    /// The first row.
    pub row_start: usize,
    /// Past the last row.
    pub row_end: usize,
    /// Bytes from a position to the next: at least [`record_bytes`], and whole elements.
    pub record_bytes: usize,
    /// The buffers, in the order of positions; the first record of each starts at its first byte.
    pub pages: &'a [&'a [u8]],
    /// What keys and values are stored as.
    pub stored: CacheType,
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
    pub stored: CacheType,
}

/// Bytes that key and value of one position take for so many rows, without padding.
pub fn record_bytes(rows: usize, head_dim: usize, stored: CacheType) -> usize {
    2 * rows * stored.head_bytes(head_dim)
}

impl<'a> KvSegment<'a> {
    /// The pages that hold the first `positions`, each with those that it holds of them.
    pub fn filled(
        &self,
        head_dim: usize,
        positions: usize,
    ) -> impl Iterator<Item = (Range<usize>, &'a [u8])> {
        let record = record_bytes(self.row_end - self.row_start, head_dim, self.stored);
        let record_bytes = self.record_bytes;
        let mut start = 0;
        self.pages.iter().map_while(move |page| {
            // The last record need not be padded.
            let held = (page.len() + record_bytes).saturating_sub(record) / record_bytes.max(1);
            let from = start;
            start = positions.min(start + held);
            (from < positions).then_some((from..start, *page))
        })
    }

    /// An error unless the buffer holds `spec.context_len` positions of these rows.
    pub(super) fn check(&self, spec: &AttentionSpec) -> Result<(), KernelError> {
        expect(
            "the end of a segment",
            self.row_end.max(self.row_start),
            self.row_end,
        )?;
        let record = record_bytes(self.row_end - self.row_start, spec.head_dim, self.stored);
        let unit = self.stored.unit_bytes();
        let least = record.max(self.record_bytes).next_multiple_of(unit);
        expect(
            "the record of a position, in bytes",
            least,
            self.record_bytes,
        )?;
        const NONE: &[u8] = &[];
        let (last, before) = self.pages.split_last().unwrap_or((&NONE, &[]));
        let before = KvSegment {
            pages: before,
            ..*self
        };
        let held = before.filled(spec.head_dim, spec.context_len).last();
        let left = spec.context_len - held.map_or(0, |(positions, _)| positions.end);
        let needed = match left {
            0 => 0,
            left => (left - 1) * self.record_bytes + record,
        };
        expect(
            "the buffer of a segment, in bytes",
            needed.max(last.len()),
            last.len(),
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
    let (record_bytes, stored) = (segment.record_bytes, segment.stored);
    KvSegment {
        row_start,
        row_end,
        record_bytes,
        pages: &[&*segment.bytes],
        stored,
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
    for t in 0..spec.query_len {
        let start = (spec.start() + t) * record_bytes;
        let length = rows.len() * stored.head_bytes(spec.head_dim);
        let record = &mut segment.bytes[start..start + 2 * length];
        let (keys, values) = record.split_at_mut(length);
        put(keys, (stored, &rows), spec, (k, t))?;
        put(values, (stored, &rows), spec, (v, t))?;
    }
    Ok(())
}

/// Writes query `t`'s part of `fresh` for `rows`: a sequence's heads are contiguous on both sides.
fn put(
    into: &mut [u8],
    (stored, rows): (CacheType, &Range<usize>),
    spec: &AttentionSpec,
    (fresh, t): (&[f32], usize),
) -> Result<(), KernelError> {
    let bytes = stored.head_bytes(spec.head_dim);
    let mut row = rows.start;
    while row < rows.end {
        let (sequence, head) = (row / spec.kv_heads, row % spec.kv_heads);
        let heads = (spec.kv_heads - head).min(rows.end - row);
        let token = sequence * spec.query_len + t;
        let from = (token * spec.kv_heads + head) * spec.head_dim;
        let fresh = &fresh[from..from + heads * spec.head_dim];
        let to = (row - rows.start) * bytes;
        stored.write(fresh, spec.head_dim, &mut into[to..to + heads * bytes])?;
        row += heads;
    }
    Ok(())
}
