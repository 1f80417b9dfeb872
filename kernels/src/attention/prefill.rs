//! Many queries a sequence: bound by arithmetic, so a row's keys and values are gathered and widened
//! (or unpacked) once, and a block of queries goes over them in register tiles.

use std::ops::Range;

use super::stored::Unit;
use super::weighted::{Span, add_weighted};
use super::{Attention, AttentionScratch, AttentionSpec, Cache, Strided};
use crate::row::widen;
use crate::simd::Lanes;
use crate::softmax::softmax;
use crate::tile::dots;

/// Queries whose scores are held at once.
const QUERIES: usize = 32;
/// Positions of values that stay in the first cache while the queries of a block pass.
const POSITIONS: usize = 64;
/// Queries in a register tile.
const TILE: usize = 4;

#[inline(always)]
pub fn run<L: Lanes, U: Unit>(lanes: L, attention: Attention<'_>, cache: Cache<'_, U>) {
    let Attention {
        spec,
        rows,
        q,
        out,
        scratch,
        ..
    } = attention;
    let panel = spec.context_len * spec.head_dim;
    scratch
        .scores
        .resize(scratch.scores.len().max(QUERIES * spec.context_len), 0.0);
    scratch.keys.resize(scratch.keys.len().max(panel), 0.0);
    scratch.values.resize(scratch.values.len().max(panel), 0.0);
    for row in rows {
        for page in cache.pages {
            let part = page.start * spec.head_dim..page.end * spec.head_dim;
            gather(
                lanes,
                cache.keys(page, row),
                &mut scratch.keys[part.clone()],
            );
            gather(lanes, cache.values(page, row), &mut scratch.values[part]);
        }
        let queries = spec.query_len * spec.group();
        for start in (0..queries).step_by(QUERIES) {
            let block = Block {
                spec,
                row,
                queries: start..queries.min(start + QUERIES),
                q,
            };
            block.run(lanes, scratch, out);
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

    #[inline(always)]
    fn run<L: Lanes>(&self, lanes: L, scratch: &mut AttentionScratch, out: &mut [f32]) {
        let spec = self.spec;
        let panel = spec.context_len * spec.head_dim;
        let strided = |units| Strided {
            units,
            first: 0,
            start: 0,
            stride: spec.head_dim,
            width: spec.head_dim,
        };
        let keys = strided(&scratch.keys[..panel]);
        let values = strided(&scratch.values[..panel]);
        let scores = &mut scratch.scores[..self.queries.len() * spec.context_len];
        self.score(lanes, keys, scores);
        let all = self.all_seen();
        for (query, scores) in self
            .queries
            .clone()
            .zip(scores.chunks_mut(spec.context_len))
        {
            let seen = self.seen(query);
            softmax(lanes, &mut scores[seen.clone()], spec.scale);
            scores[all.start..seen.start].fill(0.0);
            scores[seen.end..all.end].fill(0.0);
            let place = self.place(query);
            out[place..place + spec.head_dim].fill(0.0);
        }
        self.weigh(lanes, values, scores, out);
    }

    #[inline(always)]
    fn score<L: Lanes>(&self, lanes: L, keys: Strided<'_, f32>, scores: &mut [f32]) {
        let all = self.all_seen();
        let (mut position, furthest) = (all.start, all.end);
        while L::TILE_N >= 4 && position + 4 <= furthest {
            let tile = [
                keys.at(position),
                keys.at(position + 1),
                keys.at(position + 2),
                keys.at(position + 3),
            ];
            self.score_tile(lanes, tile, position, scores);
            position += 4;
        }
        while position + 2 <= furthest {
            let tile = [keys.at(position), keys.at(position + 1)];
            self.score_tile(lanes, tile, position, scores);
            position += 2;
        }
        if position < furthest {
            self.score_tile(lanes, [keys.at(position)], position, scores);
        }
    }

    /// Scores of `N` positions for the queries of the block that see the first of them, or later ones.
    #[inline(always)]
    fn score_tile<L: Lanes, const N: usize>(
        &self,
        lanes: L,
        keys: [&[f32]; N],
        position: usize,
        scores: &mut [f32],
    ) {
        let (width, context) = (self.spec.head_dim, self.spec.context_len);
        let query_of = |query| &self.q[self.place(query)..self.place(query) + width];
        let Range {
            start: mut query,
            mut end,
        } = self.queries;
        while query < end && self.seen(query).end <= position {
            query += 1;
        }
        while query < end && position + N <= self.seen(end - 1).start {
            end -= 1;
        }
        while L::TILE_M >= TILE && query + TILE <= end {
            let tile = [
                query_of(query),
                query_of(query + 1),
                query_of(query + 2),
                query_of(query + 3),
            ];
            let sums = dots::<L, &[f32], TILE, N>(lanes, tile, keys, width, |_| ());
            for (i, sums) in sums.iter().enumerate() {
                let at = (query - self.queries.start + i) * context + position;
                scores[at..at + N].copy_from_slice(sums);
            }
            query += TILE;
        }
        while query < end {
            let sums = dots::<L, &[f32], 1, N>(lanes, [query_of(query)], keys, width, |_| ());
            let at = (query - self.queries.start) * context + position;
            scores[at..at + N].copy_from_slice(&sums[0]);
            query += 1;
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
        let context = self.spec.context_len;
        let weights_of = |query: usize| {
            let at = (query - self.queries.start) * context;
            &weights[at..at + context]
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
