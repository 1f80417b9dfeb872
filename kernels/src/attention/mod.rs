//! Causal attention with grouped queries over a cache that is split by rows.
//!
//! A **row** of the cache is one key/value head of one sequence: `row = sequence * kv_heads + kv_head`.
//! Rows are independent, so a cache may lie in several tiers, a contiguous range of rows (a
//! [`KvSegment`]) in each, and every segment is attended to where it lies. A segment's positions may
//! lie in several buffers (pages), one after another.
//!
//! The result of a query depends on its own values and on the keys and values that it sees: not on the
//! split, not on the batch, and prefill and decode give the same bits.

mod decode;
mod prefill;
mod segment;
mod sparse;
mod stored;
mod weighted;

use std::ops::Range;

use plimsoll_formats::Dtype;

pub use segment::{KvSegment, KvSegmentMut, append, record_bytes};
pub use sparse::Picks;
pub use stored::CacheType;

use super::KernelError;
use super::error::expect;
use super::simd::{InstructionSet, Kernel, Lanes, dispatch_to};
use super::storage::{brains, halves, singles};
use super::tile::{DOT_PIECE, Line};
use stored::Unit;

/// The shape of one attention over one layer's cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements a head (at most [`DOT_PIECE`]).
    pub head_dim: usize,
    /// Queries a sequence: 1 in decode.
    pub query_len: usize,
    /// Positions up to the last query's own. Query t sees those up to its own,
    /// `context_len - query_len + t`.
    pub context_len: usize,
    /// How many positions a query sees, counted back from its own; none: all.
    pub window: Option<usize>,
    /// The factor of the scores, usually 1 / sqrt(head_dim). The queries come unscaled.
    pub scale: f32,
    /// Past positions whose values a row reads in decode, beside the query's own; none: all. See
    /// `plimsoll_core::sparse`.
    pub picks: Option<usize>,
}

impl AttentionSpec {
    /// Query heads that share a key/value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The position of the first query: where its key and value are appended.
    pub fn start(&self) -> usize {
        self.context_len - self.query_len
    }

    /// Positions that query `t` sees.
    fn seen(&self, t: usize) -> Range<usize> {
        let end = self.start() + t + 1;
        end.saturating_sub(self.window.unwrap_or(end))..end
    }

    /// Elements of queries (and of the result) a sequence.
    fn query_elements(&self) -> usize {
        self.query_len * self.heads * self.head_dim
    }

    /// Values that a row reads in decode.
    fn value_len(&self) -> usize {
        match self.picks {
            Some(picks) => picks + 1,
            None => self.seen(self.query_len - 1).len(),
        }
    }

    fn check(&self) -> Result<(), KernelError> {
        let positive = self
            .kv_heads
            .min(self.head_dim)
            .min(self.query_len)
            .min(self.heads)
            .min(self.window.unwrap_or(1));
        if positive == 0 {
            return expect("a head count, head size, query length or window", 1, 0);
        }
        expect(
            "query heads",
            self.heads.next_multiple_of(self.kv_heads),
            self.heads,
        )?;
        expect(
            "the size of a head",
            self.head_dim.min(DOT_PIECE),
            self.head_dim,
        )?;
        expect(
            "positions",
            self.context_len.max(self.query_len),
            self.context_len,
        )?;
        expect(
            "picked positions",
            self.value_len().min(self.seen(self.query_len - 1).len()),
            self.value_len(),
        )?;
        let queries = self.picks.map_or(self.query_len, |_| 1);
        expect("queries of sparse attention", queries, self.query_len)
    }
}

/// Memory that attention works in, kept between calls: scores, and in prefill one row of the cache.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    scores: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Those keys, side by side.
    panels: Vec<Line>,
    /// A tile of queries, where they do not fill vectors.
    queries: Vec<Line>,
    picks: Picks,
    order: Vec<(f32, u32)>,
}

/// Attends with the queries of `rows`, which lie in `segment`.
///
/// `q` and `out` are [batch, query_len, heads, head_dim], f32, row-major; only the elements of the
/// heads that belong to `rows` are read and written. Keys and values of all `context_len` positions
/// must have been written, those of the queries themselves included ([`append`]).
///
/// # Errors
/// [`KernelError::Shape`] and [`KernelError::Cast`] where operands do not fit `spec`.
pub fn attend(
    q: &[f32],
    segment: &KvSegment<'_>,
    spec: &AttentionSpec,
    rows: Range<usize>,
    scratch: &mut AttentionScratch,
    out: &mut [f32],
) -> Result<(), KernelError> {
    Attention {
        spec,
        rows,
        q,
        out,
        scratch,
        part: Part::Whole,
    }
    .run(InstructionSet::best(), segment)
}

/// The first half of a sparse [`attend`]: what the rows pick, and the weights.
///
/// # Errors
/// As [`attend`].
pub fn score(
    q: &[f32],
    segment: &KvSegment<'_>,
    spec: &AttentionSpec,
    rows: Range<usize>,
    scratch: &mut AttentionScratch,
    picks: &mut Picks,
) -> Result<(), KernelError> {
    picks.resize(spec, q.len() / (spec.group() * spec.head_dim).max(1));
    Attention {
        spec,
        rows,
        q,
        out: &mut [],
        scratch,
        part: Part::Scores(picks),
    }
    .run(InstructionSet::best(), segment)
}

/// The second half of a sparse [`attend`], where the values that were picked lie in turn at the
/// segment's first positions, and the query's own at its last.
///
/// # Errors
/// As [`attend`].
pub fn weigh(
    picks: &Picks,
    segment: &KvSegment<'_>,
    spec: &AttentionSpec,
    rows: Range<usize>,
    scratch: &mut AttentionScratch,
    out: &mut [f32],
) -> Result<(), KernelError> {
    Attention {
        spec,
        rows,
        q: &[],
        out,
        scratch,
        part: Part::Values(picks),
    }
    .run(InstructionSet::best(), segment)
}

/// Which part of an attention is computed.
enum Part<'a> {
    Whole,
    Scores(&'a mut Picks),
    Values(&'a Picks),
}

/// The operands of an attention, apart from the cache.
struct Attention<'a> {
    spec: &'a AttentionSpec,
    rows: Range<usize>,
    q: &'a [f32],
    out: &'a mut [f32],
    scratch: &'a mut AttentionScratch,
    part: Part<'a>,
}

impl Attention<'_> {
    fn run(self, set: InstructionSet, segment: &KvSegment<'_>) -> Result<(), KernelError> {
        let spec = self.spec;
        spec.check()?;
        segment.check(spec)?;
        let elements = match self.part {
            Part::Whole => {
                expect("the result of an attention", self.q.len(), self.out.len())?;
                self.q.len()
            }
            Part::Scores(_) => self.q.len(),
            Part::Values(picks) => {
                picks.check(spec, self.out.len() / (spec.group() * spec.head_dim))?;
                self.out.len()
            }
        };
        expect(
            "the queries of an attention",
            whole_sequences(spec, elements),
            elements,
        )?;
        let cached = segment.row_start.max(self.rows.start)..segment.row_end.min(self.rows.end);
        expect("rows in the segment", self.rows.len(), cached.len())?;
        let batch_rows = elements / spec.query_elements() * spec.kv_heads;
        expect(
            "rows in the batch",
            self.rows.end.min(batch_rows),
            self.rows.end,
        )?;
        match segment.stored {
            CacheType::Whole(Dtype::F32) => self.over(set, segment, singles),
            CacheType::Whole(Dtype::F16) => self.over(set, segment, halves),
            CacheType::Whole(Dtype::Bf16) => self.over(set, segment, brains),
            CacheType::Packed => self.over(set, segment, Ok),
        }
    }

    /// Attends to a segment whose pages are seen as units by `units_of`.
    fn over<'s, U: Unit>(
        self,
        set: InstructionSet,
        segment: &KvSegment<'s>,
        units_of: impl Fn(&'s [u8]) -> Result<&'s [U], KernelError>,
    ) -> Result<(), KernelError> {
        let spec = self.spec;
        let filled = segment.filled(spec.head_dim, spec.context_len);
        let page = |(positions, bytes): (Range<usize>, &'s [u8])| {
            Ok(Page {
                start: positions.start,
                end: positions.end,
                units: units_of(bytes)?,
            })
        };
        let pages = filled.map(page).collect::<Result<Vec<_>, KernelError>>()?;
        let cache = Cache {
            pages: &pages,
            stride: segment.record_bytes / size_of::<U>(),
            row_start: segment.row_start,
            rows: segment.row_end - segment.row_start,
            head_dim: spec.head_dim,
        };
        dispatch_to(
            set,
            Run {
                attention: self,
                cache,
            },
        );
        Ok(())
    }
}

fn whole_sequences(spec: &AttentionSpec, elements: usize) -> usize {
    elements.next_multiple_of(spec.query_elements())
}

struct Run<'a, U> {
    attention: Attention<'a>,
    cache: Cache<'a, U>,
}

impl<U: Unit> Kernel for Run<'_, U> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        if self.attention.rows.is_empty() {
            return;
        }
        let spec = self.attention.spec;
        if spec.picks.is_some() {
            sparse::run(lanes, self.attention, self.cache);
        } else if spec.query_len == 1 {
            decode::run(lanes, self.attention, self.cache);
        } else {
            prefill::run(lanes, self.attention, self.cache);
        }
    }
}

/// A segment in the units that its vectors are stored in.
#[derive(Clone, Copy)]
struct Cache<'a, U> {
    pages: &'a [Page<'a, U>],
    /// Units from a position to the next.
    stride: usize,
    row_start: usize,
    rows: usize,
    head_dim: usize,
}

/// Positions `start..end` that attention sees, one record after another.
#[derive(Clone, Copy)]
struct Page<'a, U> {
    start: usize,
    end: usize,
    units: &'a [U],
}

impl<'a, U: Unit> Cache<'a, U> {
    /// The keys of a row in a page, position by position.
    #[inline(always)]
    fn keys(&self, page: &Page<'a, U>, row: usize) -> Strided<'a, U> {
        let start = (row - self.row_start) * U::count(self.head_dim);
        Strided {
            units: page.units,
            first: page.start,
            start,
            stride: self.stride,
            width: self.head_dim,
        }
    }

    /// The values of a row at a position, which one of the pages has, as those of position 0.
    #[inline(always)]
    fn value(&self, position: usize, row: usize) -> Strided<'a, U> {
        let page = self.pages.iter().find(|page| position < page.end);
        let values = self.values(page.unwrap_or(&self.pages[0]), row);
        Strided {
            start: values.start + (position - values.first) * values.stride,
            first: 0,
            ..values
        }
    }

    /// The values of a row in a page, position by position.
    #[inline(always)]
    fn values(&self, page: &Page<'a, U>, row: usize) -> Strided<'a, U> {
        let keys = self.keys(page, row);
        Strided {
            start: keys.start + self.rows * U::count(self.head_dim),
            ..keys
        }
    }
}

/// Vectors of `width` elements at a constant distance, from position `first` on.
#[derive(Clone, Copy)]
struct Strided<'a, U> {
    units: &'a [U],
    first: usize,
    start: usize,
    stride: usize,
    width: usize,
}

impl<'a, U: Unit> Strided<'a, U> {
    #[inline(always)]
    fn at(&self, position: usize) -> U::Row<'a> {
        let start = self.start + (position - self.first) * self.stride;
        U::row(&self.units[start..start + U::count(self.width)])
    }
}

#[cfg(test)]
mod tests;
