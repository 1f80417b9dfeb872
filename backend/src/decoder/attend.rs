//! Attention over a cache that lies in several buffers.

use std::cell::RefCell;
use std::ops::Range;

use super::activations::Activations;
use super::cache::{CachePart, NewCachePart};
use super::error::at_least;
use super::parallel::Team;
use super::stages::Batch;
use super::{Decoder, DecoderError, Sight, SplitMut};
use crate::kernels::attention::{AttentionScratch, AttentionSpec, CacheType, KvSegment, attend};

/// Rows of a prompt's attention that a thread computes at once.
const PROMPT_ROWS: usize = 8;

thread_local! {
    /// What this thread's attention works in.
    pub(super) static SCRATCH: RefCell<AttentionScratch> = RefCell::default();
}

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
    ) -> Result<(), DecoderError> {
        self.attend_step_on(&self.team, queries, parts, sight)
    }

    fn attend_step_on(
        &self,
        team: &Team,
        queries: &mut SplitMut<'_>,
        parts: &[CachePart<'_>],
        sight: Sight<'_>,
    ) -> Result<(), DecoderError> {
        let first_row = parts.first().map_or(0, |part| part.rows.start);
        let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
        let width = self.group() * self.head_dim();
        at_least("the queries of a step", rows * width, queries.len())?;
        let mut q = Activations::of(rows * width);
        queries.load(0..rows * width, &mut q);
        let flops = 4 * (rows * width * sight.context_len) as u64;
        let attended = team.share((rows, flops), |range| {
            let rows = first_row + range.start..first_row + range.end;
            self.attend_rows(&q, parts, (first_row, rows), sight)
        })?;
        for (range, out) in attended {
            let elements = range.start * width..range.end * width;
            queries.store(elements.clone(), &out[elements]);
        }
        Ok(())
    }

    /// What some rows of the parts attend to; the others' results are zero.
    pub(super) fn attend_rows(
        &self,
        q: &[f32],
        parts: &[CachePart<'_>],
        (first_row, wanted): (usize, Range<usize>),
        sight: Sight<'_>,
    ) -> Result<Vec<f32>, DecoderError> {
        let mut out = vec![0.0; q.len()];
        for part in parts {
            let rows = part.rows.start.max(wanted.start)..part.rows.end.min(wanted.end);
            for (run, padding) in sight.padding.runs(rows, self.kv_heads()) {
                let (context_len, picks) = sight.after(padding, &self.model);
                let spec = AttentionSpec {
                    picks,
                    ..self.row_spec(1, context_len)
                };
                let part = part.starting_at(padding, self.head_bytes());
                let segment = part.segment(first_row, self.stored);
                let rows = run.start - first_row..run.end - first_row;
                SCRATCH.with_borrow_mut(|scratch| {
                    attend(q, &segment, &spec, rows, scratch, &mut out)
                })?;
            }
        }
        Ok(out)
    }

    /// A prompt's attention: `queries` is `[sequence][token][heads * head_dim]` of the whole batch, and
    /// is replaced by the result; those of padding are left.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn attend_prompt(
        &self,
        batch: Batch<'_>,
        queries: &mut SplitMut<'_>,
        parts: &[CachePart<'_>],
    ) -> Result<(), DecoderError> {
        let (width, kv_heads) = (self.group() * self.head_dim(), self.kv_heads());
        let (tokens, context_len) = (batch.query_len, batch.position + batch.query_len);
        let rows = batch.sequences * kv_heads;
        let elements = rows * tokens * width;
        at_least("the queries of a prompt", elements, queries.len())?;
        let found: usize = parts.iter().map(|part| part.rows.len()).sum();
        let last = parts.iter().map(|part| part.rows.end).max();
        if found != rows || last.is_some_and(|last| last > rows) {
            return Err(no_rows(rows, found));
        }
        let all: Vec<_> = parts
            .iter()
            .flat_map(|part| part.rows.clone().map(move |row| (part, row)))
            .collect();
        let flops = |rows: usize| 2 * (rows * tokens * context_len * width) as u64;
        // As many sequences for one thread as for the others; what is left they share.
        let whole = batch.sequences - batch.sequences % self.team.threads();
        let (alone, shared): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, row)| row / kv_heads < whole);
        let ranges = self.team.parts(whole, flops(alone.len())).collect();
        self.attend_sequences(batch, queries, (&alone, ranges))?;
        for some in shared.chunks(self.team.threads() * PROMPT_ROWS) {
            let given = &*queries;
            let attended = self.team.share((some.len(), flops(some.len())), |range| {
                let rows = some[range].iter().map(|(part, row)| {
                    let places = self.places(batch, *row, 0);
                    self.attend_text((part, *row), batch, (given, places))
                });
                rows.collect::<Result<Vec<_>, _>>()
            })?;
            let out = attended.iter().flat_map(|(_, out)| out);
            for ((_, row), out) in some.iter().zip(out) {
                store(queries, self.places(batch, *row, 0), out);
            }
        }
        Ok(())
    }

    /// Each thread has the rows of some sequences by itself.
    fn attend_sequences(
        &self,
        batch: Batch<'_>,
        queries: &mut SplitMut<'_>,
        (rows, ranges): (&[(&CachePart<'_>, usize)], Vec<Range<usize>>),
    ) -> Result<(), DecoderError> {
        let kv_heads = self.kv_heads();
        let sequence = batch.query_len * kv_heads * self.group() * self.head_dim();
        let own = queries.cut(ranges.iter().map(|range| range.len() * sequence));
        self.team
            .each(ranges.iter().cloned().zip(own), |range, mut own| {
                let of_range = |(_, row): &&(_, usize)| range.contains(&(row / kv_heads));
                for (part, row) in rows.iter().filter(of_range) {
                    let places = self.places(batch, *row, range.start);
                    let out = self.attend_text((part, *row), batch, (&own, places.clone()))?;
                    store(&mut own, places, &out);
                }
                Ok(())
            })?;
        Ok(())
    }

    /// Where a row's queries lie, of the tokens of its text, in those of the sequences from one on.
    fn places<'p>(
        &self,
        batch: Batch<'p>,
        row: usize,
        first_sequence: usize,
    ) -> impl ExactSizeIterator<Item = Range<usize>> + Clone + use<'p> {
        let (width, kv_heads) = (self.group() * self.head_dim(), self.kv_heads());
        let sequence = row / kv_heads;
        let first = (sequence - first_sequence) * batch.query_len;
        let own = batch.padding.of(sequence)..batch.query_len;
        own.map(move |t| {
            let start = ((first + t) * kv_heads + row % kv_heads) * width;
            start..start + width
        })
    }

    /// What the queries of one row's text attend to. The row is gathered first, since each of its
    /// keys and values is read for many queries.
    fn attend_text(
        &self,
        (part, row): (&CachePart<'_>, usize),
        batch: Batch<'_>,
        (queries, places): (&SplitMut<'_>, impl ExactSizeIterator<Item = Range<usize>>),
    ) -> Result<Activations, DecoderError> {
        let width = self.group() * self.head_dim();
        let mut q = Activations::of(places.len() * width);
        for (place, q) in places.zip(q.chunks_exact_mut(width)) {
            queries.load(place, q);
        }
        let padding = batch.padding.of(row / self.kv_heads());
        let (tokens, context_len) = (batch.query_len, batch.position + batch.query_len);
        let spec = self.row_spec(tokens - padding, context_len - padding);
        let head_bytes = self.head_bytes();
        let bytes = spec.context_len * 2 * head_bytes;
        // As words, so that elements of any stored type are aligned.
        let mut gathered = vec![0_u64; bytes.div_ceil(8)];
        let gathered = &mut bytemuck::cast_slice_mut(&mut gathered)[..bytes];
        let own = part.starting_at(padding, head_bytes);
        own.gather(
            row,
            spec.context_len,
            (self.head_dim(), self.stored),
            gathered,
        )?;
        let page = [&*gathered];
        let segment = one_row(&page, head_bytes, self.stored);
        let mut out = Activations::of(q.len());
        out.fill(0.0);
        SCRATCH.with_borrow_mut(|scratch| attend(&q, &segment, &spec, 0..1, scratch, &mut out))?;
        Ok(out)
    }

    /// A decode step's attention where the cache is: appends the new keys and values that lie behind
    /// the queries in `mid` (`[row][group * head_dim]`, then `[K|V][row][head_dim]`) to the parts, then
    /// attends; the result takes the queries' place. The thread that calls does all of it where the team's others are the
    /// device's, which computes meanwhile; beside a GPU it has them all.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn append_and_attend(
        &self,
        mid: &mut [u8],
        parts: &mut [NewCachePart<'_>],
        (sight, with_all): (Sight<'_>, bool),
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
        match with_all {
            true => self.attend_step(&mut split, &parts, sight),
            false => self.attend_step_on(&self.team.alone(), &mut split, &parts, sight),
        }
    }
}

/// Puts what a row's queries attend to in their places.
fn store(queries: &mut SplitMut<'_>, places: impl Iterator<Item = Range<usize>>, out: &[f32]) {
    let mut left = out;
    for place in places {
        let (own, others) = left.split_at(place.len());
        queries.store(place, own);
        left = others;
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

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;
    use plimsoll_core::compression::Compression;
    use plimsoll_core::model::registry;

    use super::super::Padding;
    use super::*;

    const SEQUENCES: usize = 8;
    const TOKENS: usize = 96;

    fn value(index: usize) -> f32 {
        ((index * 2_654_435_761) % 1013) as f32 / 506.5 - 1.0
    }

    /// What attention makes of some queries on so many threads, in bits.
    fn attended(threads: usize, query_len: usize) -> Vec<u32> {
        let model = registry::find("opt-125m").expect("registered");
        let heads = model.num_key_value_heads as usize;
        let width = model.head_dim as usize;
        let decoder = Decoder::new(&model, Dtype::F32, Compression::default(), threads);
        let decoder = decoder.expect("it is executed");
        let (rows, padding) = (SEQUENCES * heads, [0, 5, 0, 0, 31, 1, 0, 90]);
        let record = 2 * rows * width;
        let cache: Vec<f32> = (0..TOKENS * record).map(value).collect();
        // Two parts, as if in two tiers.
        let cut = 5 * heads + 3;
        let of = |rows: Range<usize>| -> Vec<f32> {
            let own = rows.start * width..rows.end * width;
            let halves = cache.chunks_exact(record / 2);
            halves.flat_map(|half| half[own.clone()].to_vec()).collect()
        };
        let stored = [0..cut, cut..rows].map(|rows| (of(rows.clone()), rows));
        let parts = stored.each_ref().map(|(elements, rows)| CachePart {
            rows: rows.clone(),
            record_bytes: 2 * rows.len() * width * 4,
            pages: vec![bytemuck::cast_slice(elements)],
        });
        let mut queries: Vec<f32> = (0..rows * query_len * width)
            .map(|i| value(i + 7))
            .collect();
        let elements = queries.len();
        let mut split = SplitMut::default();
        let bytes = bytemuck::cast_slice_mut(&mut queries);
        split.push(bytes, elements, Dtype::F32).expect("it fits");
        let padding = Padding(&padding);
        if query_len == 1 {
            let sight = Sight {
                context_len: TOKENS,
                share: 1.0,
                padding,
            };
            decoder
                .attend_step(&mut split, &parts, sight)
                .expect("it fits");
        } else {
            let batch = Batch {
                sequences: SEQUENCES,
                query_len,
                position: 0,
                padding,
            };
            decoder
                .attend_prompt(batch, &mut split, &parts)
                .expect("it fits");
        }
        queries.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn threads_change_no_bit_of_a_step_nor_of_a_prompt() {
        for query_len in [1, TOKENS] {
            let alone = attended(1, query_len);
            // Some for each, fewer than threads, and some left over.
            for threads in [2, 3, 9] {
                assert_eq!(
                    alone,
                    attended(threads, query_len),
                    "{threads}, {query_len}"
                );
            }
        }
    }
}
