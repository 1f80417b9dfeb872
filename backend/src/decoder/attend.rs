//! Attention over a cache that lies in several buffers.

use super::cache::{CachePart, NewCachePart};
use super::error::at_least;
use super::stages::Batch;
use super::{Decoder, DecoderError, Sight, SplitMut};
use crate::kernels::attention::{AttentionScratch, AttentionSpec, CacheType, KvSegment, attend};

/// Rows of a batch for which there is no cache buffer.
fn no_rows(expected: usize, found: usize) -> DecoderError {
    DecoderError::Operand {
        what: "rows of the cache",
        expected,
        found,
    }
}

impl Decoder {
    /// The attention of rows that are all the same to the kernel: each its own sequence with one
    /// key/value head, since a row's arithmetic does not know of the others.
    pub(super) fn row_spec(&self, query_len: usize, context_len: usize) -> AttentionSpec {
        AttentionSpec {
            heads: self.group(),
            kv_heads: 1,
            head_dim: self.head_dim(),
            query_len,
            context_len,
            scale: 1.0 / (self.head_dim() as f32).sqrt(),
            window: self.model.sliding_window.map(|window| window as usize),
            picks: None,
        }
    }

    /// A decode step's attention: `queries` is `[row][group * head_dim]` of the parts' rows, in order,
    /// and is replaced by the result.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn attend_step(
        &self,
        queries: &mut SplitMut<'_>,
        parts: &[CachePart<'_>],
        sight: Sight<'_>,
        scratch: &mut AttentionScratch,
    ) -> Result<(), DecoderError> {
        let first_row = parts.first().map_or(0, |part| part.rows.start);
        let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
        let elements = rows * self.group() * self.head_dim();
        at_least("the queries of a step", elements, queries.len())?;
        let mut q = vec![0.0; elements];
        let mut out = vec![0.0; elements];
        queries.load(0..elements, &mut q);
        for part in parts {
            for (run, padding) in sight.padding.runs(part.rows.clone(), self.kv_heads()) {
                let (context_len, picks) = sight.after(padding, &self.model);
                let spec = AttentionSpec {
                    picks,
                    ..self.row_spec(1, context_len)
                };
                let part = part.starting_at(padding, self.head_bytes());
                let segment = part.segment(first_row, self.stored);
                let rows = run.start - first_row..run.end - first_row;
                attend(&q, &segment, &spec, rows, scratch, &mut out)?;
            }
        }
        queries.store(0..elements, &out);
        Ok(())
    }

    /// A prompt's attention: `queries` is `[sequence][token][heads * head_dim]` of the whole batch, and
    /// is replaced by the result; those of padding are left. Rows are gathered and attended to one by one.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn attend_prompt(
        &self,
        batch: Batch<'_>,
        queries: &mut SplitMut<'_>,
        parts: &[CachePart<'_>],
        scratch: &mut AttentionScratch,
    ) -> Result<(), DecoderError> {
        let (group, head_dim, kv_heads) = (self.group(), self.head_dim(), self.kv_heads());
        let width = group * head_dim;
        let token = kv_heads * width;
        let (tokens, context_len) = (batch.query_len, batch.position + batch.query_len);
        let rows = batch.sequences * kv_heads;
        at_least(
            "the queries of a prompt",
            batch.sequences * tokens * token,
            queries.len(),
        )?;
        let found: usize = parts.iter().map(|part| part.rows.len()).sum();
        if found != rows {
            return Err(no_rows(rows, found));
        }
        let head_bytes = self.head_bytes();
        // As words, so that elements of any stored type are aligned.
        let mut gathered = vec![0_u64; (context_len * 2 * head_bytes).div_ceil(8)];
        let mut q = vec![0.0; tokens * width];
        let mut out = vec![0.0; tokens * width];
        for part in parts {
            for row in part.rows.clone() {
                let padding = batch.padding.of(row / kv_heads);
                let spec = self.row_spec(tokens - padding, context_len - padding);
                let bytes = spec.context_len * 2 * head_bytes;
                let gathered = &mut bytemuck::cast_slice_mut(&mut gathered)[..bytes];
                let own = part.starting_at(padding, head_bytes);
                own.gather(row, spec.context_len, (head_dim, self.stored), gathered)?;
                let first = row / kv_heads * tokens * token + row % kv_heads * width;
                let place = |t: usize| first + t * token..first + t * token + width;
                let (q, out) = (&mut q[padding * width..], &mut out[padding * width..]);
                for (t, q) in (padding..).zip(q.chunks_exact_mut(width)) {
                    queries.load(place(t), q);
                }
                let page = [&*gathered];
                let segment = one_row(&page, head_bytes, self.stored);
                attend(q, &segment, &spec, 0..1, scratch, out)?;
                for (t, out) in (padding..).zip(out.chunks_exact(width)) {
                    queries.store(place(t), out);
                }
            }
        }
        Ok(())
    }

    /// A decode step's attention where the cache is: appends the new keys and values that lie behind
    /// the queries in `mid` (`[row][group * head_dim]`, then `[K|V][row][head_dim]`) to the parts, then
    /// attends; the result takes the queries' place.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn append_and_attend(
        &self,
        mid: &mut [u8],
        parts: &mut [NewCachePart<'_>],
        sight: Sight<'_>,
        scratch: &mut AttentionScratch,
    ) -> Result<(), DecoderError> {
        let head_bytes = self.head_dim() * self.dtype.size_bytes() as usize;
        let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
        let first_row = parts.first().map_or(0, |part| part.rows.start);
        let query_bytes = rows * self.group() * head_bytes;
        let new_bytes = rows * head_bytes;
        at_least(
            "queries, keys and values, in bytes",
            query_bytes + 2 * new_bytes,
            mid.len(),
        )?;
        let (queries, new) = mid.split_at_mut(query_bytes);
        let (keys, values) = new[..2 * new_bytes].split_at(new_bytes);
        for part in parts.iter_mut() {
            part.check(1, head_bytes)?;
            part.put_stored(first_row, (keys, values), head_bytes);
        }
        let parts: Vec<CachePart<'_>> = parts.iter().map(NewCachePart::as_part).collect();
        let mut split = SplitMut::default();
        split.push(queries, rows * self.group() * self.head_dim(), self.dtype)?;
        self.attend_step(&mut split, &parts, sight, scratch)
    }
}

/// A gathered row as the kernel sees it.
fn one_row<'a>(pages: &'a [&'a [u8]], head_bytes: usize, stored: CacheType) -> KvSegment<'a> {
    KvSegment {
        row_start: 0,
        row_end: 1,
        record_bytes: 2 * head_bytes,
        pages,
        stored,
    }
}
