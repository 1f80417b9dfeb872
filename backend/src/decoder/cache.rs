//! Rows of one layer's cache: `[position][K|V][row][head]`, in one buffer or in pages of positions.

use std::ops::Range;

use super::DecoderError;
use super::error::at_least;
use crate::kernels::attention::{CacheType, KvSegment};

/// Rows of a cache, to read.
#[derive(Debug, Clone)]
pub struct CachePart<'a> {
    /// Which rows of the batch.
    pub rows: Range<usize>,
    /// Bytes from a position to the next.
    pub record_bytes: usize,
    /// The buffers, in the order of positions, from position 0 on.
    pub pages: Vec<&'a [u8]>,
}

/// Rows of a cache, to append to.
#[derive(Debug)]
pub struct NewCachePart<'a> {
    /// Which rows of the batch.
    pub rows: Range<usize>,
    /// Bytes from a position to the next.
    pub record_bytes: usize,
    /// Where in its page the first new token goes, in positions.
    pub first: usize,
    /// The page that they go to.
    pub bytes: &'a mut [u8],
    /// The pages before it, for who attends to them as well.
    pub before: Vec<&'a [u8]>,
}

impl<'a> CachePart<'a> {
    /// The part as the attention kernel sees it, its first row being row 0.
    pub(super) fn segment(&self, first_row: usize, stored: CacheType) -> KvSegment<'_> {
        KvSegment {
            row_start: self.rows.start - first_row,
            row_end: self.rows.end - first_row,
            record_bytes: self.record_bytes,
            pages: &self.pages,
            stored,
        }
    }

    /// The same rows as if their first position were `first`.
    pub(super) fn starting_at(&self, mut first: usize, head_bytes: usize) -> CachePart<'a> {
        let record = 2 * self.rows.len() * head_bytes;
        let mut pages = Vec::with_capacity(self.pages.len());
        for page in &self.pages {
            let held = self.held(page, record);
            let skipped = first.min(held);
            first -= skipped;
            if skipped < held {
                pages.push(&page[skipped * self.record_bytes..]);
            }
        }
        CachePart {
            rows: self.rows.clone(),
            record_bytes: self.record_bytes,
            pages,
        }
    }

    /// Positions that a page has, with records of so many bytes without padding.
    fn held(&self, page: &[u8], record: usize) -> usize {
        // The last record need not be padded.
        (page.len() + self.record_bytes).saturating_sub(record) / self.record_bytes.max(1)
    }

    /// One row's value at a position, as stored; `row` counts from the part's first.
    pub(super) fn value(
        &self,
        position: usize,
        row: usize,
        head_bytes: usize,
    ) -> Result<&'a [u8], DecoderError> {
        let record = 2 * self.rows.len() * head_bytes;
        let mut first = 0;
        for page in &self.pages {
            let held = self.held(page, record);
            if position < first + held {
                let record = (position - first) * self.record_bytes;
                let start = record + (self.rows.len() + row) * head_bytes;
                return Ok(&page[start..start + head_bytes]);
            }
            first += held;
        }
        Err(DecoderError::Operand {
            what: "positions of the cache",
            expected: position + 1,
            found: first,
        })
    }

    /// Copies one row's keys and values of some positions: `[position][K|V][head]`.
    pub(super) fn gather(
        &self,
        row: usize,
        positions: usize,
        (head_dim, stored): (usize, CacheType),
        into: &mut [u8],
    ) -> Result<(), DecoderError> {
        let head_bytes = stored.head_bytes(head_dim);
        let values = self.rows.len() * head_bytes;
        let key = (row - self.rows.start) * head_bytes;
        let segment = self.segment(self.rows.start, stored);
        let mut held = 0;
        for (filled, page) in segment.filled(head_dim, positions) {
            held = filled.end;
            let into = &mut into[filled.start * 2 * head_bytes..filled.end * 2 * head_bytes];
            for (index, into) in into.chunks_exact_mut(2 * head_bytes).enumerate() {
                let at = index * self.record_bytes + key;
                let (k, v) = into.split_at_mut(head_bytes);
                k.copy_from_slice(&page[at..at + head_bytes]);
                v.copy_from_slice(&page[at + values..at + values + head_bytes]);
            }
        }
        at_least("positions of the cache", positions, held)
    }
}

impl NewCachePart<'_> {
    /// That the buffer has room for so many new tokens a sequence.
    pub(super) fn check(&self, tokens: usize, head_bytes: usize) -> Result<(), DecoderError> {
        let last = self.first + tokens.max(1) - 1;
        let needed = last * self.record_bytes + 2 * self.rows.len() * head_bytes;
        at_least("room in the cache, in bytes", needed, self.bytes.len())
    }

    /// Room for some of the new tokens each: ranges that follow on each other.
    pub(super) fn cut(&mut self, tokens: &[Range<usize>]) -> Vec<NewCachePart<'_>> {
        let start = tokens.first().map_or(0, |range| range.start);
        let skipped = ((self.first + start) * self.record_bytes).min(self.bytes.len());
        let mut left = &mut self.bytes[skipped..];
        let pieces = tokens.iter().map(|range| {
            // The last record need not be padded.
            let bytes = (range.len() * self.record_bytes).min(left.len());
            NewCachePart {
                rows: self.rows.clone(),
                record_bytes: self.record_bytes,
                first: 0,
                bytes: left.split_off_mut(..bytes).unwrap_or_default(),
                before: Vec::new(),
            }
        });
        pieces.collect()
    }

    /// Writes the new key and value heads of a sequence's token, as far as they belong here. `keys`
    /// and `values` hold the rows from `first_row` on.
    pub(super) fn put(
        &mut self,
        (first_row, token): (usize, usize),
        (keys, values): (&[f32], &[f32]),
        (head_dim, stored): (usize, CacheType),
    ) -> Result<(), DecoderError> {
        let last_row = first_row + keys.len() / head_dim;
        let from = first_row.max(self.rows.start);
        let to = last_row.min(self.rows.end);
        if from >= to {
            return Ok(());
        }
        let bytes = stored.head_bytes(head_dim);
        let inner = (from - first_row) * head_dim..(to - first_row) * head_dim;
        let key = (self.first + token) * self.record_bytes + (from - self.rows.start) * bytes;
        let value = key + self.rows.len() * bytes;
        for (at, heads) in [(key, keys), (value, values)] {
            let into = &mut self.bytes[at..at + (to - from) * bytes];
            stored.write(&heads[inner.clone()], head_dim, into)?;
        }
        Ok(())
    }

    /// Writes one new token of all rows, already in the stored type: `[row][head_dim]` each, from the
    /// batch's row `first_row` on.
    pub(super) fn put_stored(
        &mut self,
        first_row: usize,
        (keys, values): (&[u8], &[u8]),
        head_bytes: usize,
    ) {
        let inner =
            (self.rows.start - first_row) * head_bytes..(self.rows.end - first_row) * head_bytes;
        let length = inner.len();
        let key = self.first * self.record_bytes;
        self.bytes[key..key + length].copy_from_slice(&keys[inner.clone()]);
        self.bytes[key + length..key + 2 * length].copy_from_slice(&values[inner]);
    }

    /// The same rows, to read.
    pub(super) fn as_part(&self) -> CachePart<'_> {
        CachePart {
            rows: self.rows.clone(),
            record_bytes: self.record_bytes,
            pages: self.before.iter().copied().chain([&*self.bytes]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;
    use plimsoll_core::compression::Compression;
    use plimsoll_core::model::registry;

    use super::*;
    use crate::decoder::activations::Activations;
    use crate::decoder::stages::NewTile;
    use crate::decoder::{Batch, Decoder, Padding};

    const SEQUENCES: usize = 3;
    const NEW: usize = 150;
    const FIRST: usize = 5;
    /// Behind each record but the last.
    const PAD: usize = 24;

    /// Two parts of a cache after so many threads have appended tiles of all sequences, one after another.
    fn appended(threads: usize, tile: usize) -> [Vec<u8>; 2] {
        let model = registry::find("opt-125m").expect("registered");
        let (heads, width) = (model.num_key_value_heads as usize, model.head_dim as usize);
        let decoder = Decoder::new(&model, Dtype::F16, Compression::default(), threads);
        let decoder = decoder.expect("it is executed");
        let batch = Batch {
            sequences: SEQUENCES,
            query_len: NEW,
            position: FIRST,
            padding: Padding(&[0; SEQUENCES]),
        };
        let rows = SEQUENCES * heads;
        let cut = heads + 5;
        let bytes = |rows: &Range<usize>| 2 * rows.len() * width * 2;
        let mut stored = [0..cut, cut..rows].map(|rows| {
            let all = (FIRST + NEW) * (bytes(&rows) + PAD) - PAD;
            (rows, vec![0xA5_u8; all])
        });
        let tokens = SEQUENCES * NEW;
        let tiles = (0..tokens)
            .step_by(tile)
            .map(|start| start..tokens.min(start + tile));
        let made_up = |tile: &Range<usize>, which: usize| {
            let mut all = Activations::of(tile.len() * heads * width);
            for (i, x) in all.iter_mut().enumerate() {
                *x = ((tile.start * heads * width + i + which) % 1013) as f32;
            }
            all
        };
        let tiles: Vec<NewTile> = tiles
            .map(|tile| (tile.clone(), [made_up(&tile, 0), made_up(&tile, 7)]))
            .collect();
        for some in tiles.chunks(2) {
            let mut parts: Vec<_> = stored
                .iter_mut()
                .map(|(rows, all)| NewCachePart {
                    rows: rows.clone(),
                    record_bytes: bytes(rows) + PAD,
                    first: FIRST,
                    bytes: all,
                    before: Vec::new(),
                })
                .collect();
            decoder.append(batch, some, &mut parts).expect("it fits");
        }
        stored.map(|(_, all)| all)
    }

    #[test]
    fn threads_change_no_byte_of_what_is_appended() {
        // Tiles that end within a sequence, with one, and beyond it.
        for tile in [40, NEW, 2 * NEW] {
            let alone = appended(1, tile);
            for threads in [2, 3] {
                assert_eq!(alone, appended(threads, tile), "{threads}, {tile}");
            }
        }
    }
}
