//! Many queries a sequence: bound by arithmetic, so a row's keys and values are gathered and widened
//! (or unpacked) once, and a block of queries goes over them in register tiles: for the scores, tiles in which
//! keys lie side by side.

#![allow(
    clippy::needless_range_loop,
    reason = "constant bounds over several arrays keep a tile in registers"
)]

use std::ops::Range;

use super::stored::Unit;
use super::weighted::{Span, add_weighted};
use super::{Attention, AttentionScratch, AttentionSpec, Cache, Strided};
use crate::many::{self, Waiting, lines_of_vector};
use crate::row::widen;
use crate::simd::{LANES, Lanes};
use crate::softmax::softmax;
use crate::tile::{Line, room};

/// Queries whose scores are held at once.
/// Tiles of all widths fill them.
const QUERIES: usize = 36;
/// Positions of values that stay in the first cache while the queries of a block pass.
const POSITIONS: usize = 64;
/// Queries in a register tile of weighted sums.
const TILE: usize = 4;

#[inline(always)]
pub fn run<L: Lanes, U: Unit>(lanes: L, attention: Attention<'_>, cache: Cache<'_, U>) {
    match L::TILE_OF_MANY {
        (4, 6) => rows_of::<L, U, 2, 6>(lanes, attention, cache),
        (1, 6) => rows_of::<L, U, 1, 6>(lanes, attention, cache),
        (1, 2) => rows_of::<L, U, 1, 2>(lanes, attention, cache),
        tile => unreachable!("no tile of {tile:?} is compiled"),
    }
}

/// Row by row; scores in tiles of `V` vectors of keys, fewer than a product has since a query sees no key behind it,
/// and `N` queries.
#[inline(always)]
fn rows_of<L: Lanes, U: Unit, const V: usize, const N: usize>(
    lanes: L,
    attention: Attention<'_>,
    cache: Cache<'_, U>,
) {
    let Attention {
        spec,
        rows,
        q,
        out,
        scratch,
        ..
    } = attention;
    let (context, width) = (spec.context_len, spec.head_dim);
    let vectors = context.div_ceil(LANES);
    const {
        assert!(
            V <= 2,
            "of more vectors, all that are left would need a tile"
        )
    };
    let steps = width.div_ceil(LANES);
    room(&mut scratch.scores, QUERIES * vectors * LANES, 0.0);
    room(&mut scratch.keys, context * width, 0.0);
    room(&mut scratch.values, context * width, 0.0);
    room(
        &mut scratch.panels,
        vectors * lines_of_vector(steps),
        Line::ZERO,
    );
    room(&mut scratch.queries, N * steps, Line::ZERO);
    for row in rows {
        for page in cache.pages {
            let part = page.start * width..page.end * width;
            let (keys, values) = (cache.keys(page, row), cache.values(page, row));
            gather(lanes, keys, &mut scratch.keys[part.clone()]);
            gather(lanes, values, &mut scratch.values[part]);
        }
        let keys = &scratch.keys;
        let key = |position: usize| &keys[position * width..(position + 1) * width];
        many::pack_input::<L, V>(lanes, context, key, width, &mut scratch.panels);
        let queries = spec.query_len * spec.group();
        for start in (0..queries).step_by(QUERIES) {
            let block = Block {
                spec,
                row,
                queries: start..queries.min(start + QUERIES),
                q,
            };
            block.run::<L, V, N>(lanes, scratch, out);
        }
    }
}

#[inline(always)]
fn gather<L: Lanes, U: Unit>(lanes: L, from: Strided<'_, U>, into: &mut [f32]) {
    for (index, into) in into.chunks_exact_mut(from.width).enumerate() {
        widen(lanes, from.at(from.first + index), into);
    }
}

/// Queries of one row: number i is query i / group, head i % group of the group.
struct Block<'a> {
    spec: &'a AttentionSpec,
    row: usize,
    queries: Range<usize>,
    q: &'a [f32],
}

impl Block<'_> {
    /// Where a query, and its result, starts.
    #[inline(always)]
    fn place(&self, query: usize) -> usize {
        let spec = self.spec;
        let (sequence, kv_head) = (self.row / spec.kv_heads, self.row % spec.kv_heads);
        let token = sequence * spec.query_len + query / spec.group();
        let head = kv_head * spec.group() + query % spec.group();
        (token * spec.heads + head) * spec.head_dim
    }

    /// Positions that a query sees.
    #[inline(always)]
    fn seen(&self, query: usize) -> Range<usize> {
        self.spec.seen(query / self.spec.group())
    }

    /// Positions that any query of the block sees.
    #[inline(always)]
    fn all_seen(&self) -> Range<usize> {
        self.seen(self.queries.start).start..self.seen(self.queries.end - 1).end
    }

    /// From one query's scores to the next's.
    #[inline(always)]
    fn stride(&self) -> usize {
        self.spec.context_len.next_multiple_of(LANES)
    }

    #[inline(always)]
    fn run<L: Lanes, const V: usize, const N: usize>(
        &self,
        lanes: L,
        scratch: &mut AttentionScratch,
        out: &mut [f32],
    ) {
        let spec = self.spec;
        let values = Strided {
            units: &scratch.values[..spec.context_len * spec.head_dim],
            first: 0,
            start: 0,
            stride: spec.head_dim,
            width: spec.head_dim,
        };
        let scores = &mut scratch.scores[..self.queries.len() * self.stride()];
        // Another model may have left more.
        let packed = &mut scratch.queries[..N * spec.head_dim.div_ceil(LANES)];
        self.score::<L, V, N>(lanes, &scratch.panels, packed, scores);
        let all = self.all_seen();
        for (query, scores) in self.queries.clone().zip(scores.chunks_mut(self.stride())) {
            let seen = self.seen(query);
            softmax(lanes, &mut scores[seen.clone()], spec.scale);
            scores[all.start..seen.start].fill(0.0);
            scores[seen.end..all.end].fill(0.0);
            let place = self.place(query);
            out[place..place + spec.head_dim].fill(0.0);
        }
        self.weigh(lanes, values, scores, out);
    }

    /// Scores of all positions that some of the queries see, and of those beside them in a tile.
    #[inline(always)]
    fn score<L: Lanes, const V: usize, const N: usize>(
        &self,
        lanes: L,
        panels: &[Line],
        packed: &mut [Line],
        scores: &mut [f32],
    ) {
        let all = self.all_seen();
        let vectors = self.stride() / LANES;
        let each = lines_of_vector(self.spec.head_dim.div_ceil(LANES));
        let packed = packed.as_chunks_mut::<N>().0;
        let (mut wide, mut narrow) = (many::waiting(lanes), many::waiting(lanes));
        for first in (all.start / LANES / V * V..all.end.div_ceil(LANES)).step_by(V) {
            let keys = &panels[first * each..];
            for query in self.queries.clone().step_by(N) {
                let last = (query + N).min(self.queries.end) - 1;
                let seen = self.seen(query).start..self.seen(last).end;
                if seen.end <= first * LANES || seen.start >= (first + V) * LANES {
                    continue;
                }
                let into = (&mut *scores, first, query..last + 1);
                match vectors - first {
                    1 if V > 1 => {
                        self.score_tile::<L, 1, N>(lanes, keys, (packed, &mut narrow), into);
                    }
                    _ => self.score_tile::<L, V, N>(lanes, keys, (packed, &mut wide), into),
                }
            }
        }
    }

    /// Scores of some queries, at most `N`, for the keys of `V` vectors.
    #[inline(always)]
    fn score_tile<L: Lanes, const V: usize, const N: usize>(
        &self,
        lanes: L,
        keys: &[Line],
        (packed, waiting): (&mut [[Line; N]], &mut Waiting<L, V, N>),
        (scores, first, queries): (&mut [f32], usize, Range<usize>),
    ) {
        let width = self.spec.head_dim;
        let mut rows: [&[f32]; N] = [&[]; N];
        for n in 0..N {
            let place = self.place((queries.start + n).min(queries.end - 1));
            rows[n] = &self.q[place..place + width];
        }
        let sums = if let Some(rows) = many::as_they_lie(&rows) {
            many::sums(lanes, keys, rows, waiting, || ())
        } else {
            many::pack_weight(lanes, rows, width, packed);
            many::sums(lanes, keys, &*packed, waiting, || ())
        };
        for n in 0..queries.len() {
            let at = (queries.start - self.queries.start + n) * self.stride() + first * LANES;
            let into = scores[at..at + V * LANES].as_chunks_mut().0;
            for v in 0..V {
                lanes.store(sums[n][v], &mut into[v]);
            }
        }
    }

    #[inline(always)]
    fn weigh<L: Lanes>(
        &self,
        lanes: L,
        values: Strided<'_, f32>,
        weights: &[f32],
        out: &mut [f32],
    ) {
        let weights_of = |query: usize| {
            let at = (query - self.queries.start) * self.stride();
            &weights[at..at + self.spec.context_len]
        };
        for from in self.all_seen().step_by(POSITIONS) {
            // Those of the positions from here that some of the queries see.
            let span = |first: usize, last: usize| {
                let from_seen = self.seen(first).start.max(from);
                let to = self.seen(last).end.min(from + POSITIONS);
                Span {
                    from: from_seen,
                    to: to.max(from_seen),
                }
            };
            let mut query = self.queries.start;
            while L::TILE_M >= TILE && query + TILE <= self.queries.end {
                let last = query + TILE - 1;
                let tile = [query, query + 1, query + 2, last];
                let (weights, places) = (tile.map(weights_of), tile.map(|query| self.place(query)));
                add_weighted(lanes, weights, values, span(query, last), places, out);
                query += TILE;
            }
            while query < self.queries.end {
                let (weights, place) = (weights_of(query), self.place(query));
                add_weighted(lanes, [weights], values, span(query, query), [place], out);
                query += 1;
            }
        }
    }
}
