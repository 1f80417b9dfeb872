//! One query a sequence: bound by reading the cache, so each byte is read once and nearly in order.
//!
//! A block of rows whose scores fit the second cache goes over all keys, then over all values, several
//! positions at a time: as many streams as there are positions, each read from end to end.

use std::ops::Range;

use super::stored::Unit;
use super::weighted::{Span, add_weighted};
use super::{Attention, AttentionScratch, AttentionSpec, Cache, Page, Strided};
use crate::row::Row;
use crate::simd::Lanes;
use crate::softmax::softmax;
use crate::tile::dots;

/// Scores of a block of rows, in elements.
const SCORES: usize = 128 << 10;
/// Positions read side by side.
const POSITIONS: usize = 8;

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
    let row_scores = spec.group() * spec.context_len;
    for block in blocks(spec, rows) {
        let scores = weights(lanes, spec, (block.clone(), q), cache, scratch);
        let width = spec.group() * spec.head_dim;
        out[block.start * width..block.end * width].fill(0.0);
        for page in cache.pages {
            for span in spans(page, spec.seen(0)) {
                for (row, scores) in block.clone().zip(scores.chunks_exact(row_scores)) {
                    let out = &mut out[row * width..(row + 1) * width];
                    weigh_group(lanes, spec, scores, cache.values(page, row), span, out);
                }
            }
        }
    }
}

/// The positions of a page that are seen, some at a time.
#[inline(always)]
fn spans<U>(page: &Page<'_, U>, seen: Range<usize>) -> impl Iterator<Item = Span> {
    let (start, end) = (page.start.max(seen.start), page.end.min(seen.end));
    (start..end).step_by(POSITIONS).map(move |from| Span {
        from,
        to: end.min(from + POSITIONS),
    })
}

/// Rows whose scores are held together.
pub fn blocks(spec: &AttentionSpec, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let block_rows = (SCORES / (spec.group() * spec.context_len)).clamp(1, rows.len());
    let end = rows.end;
    rows.step_by(block_rows)
        .map(move |start| start..end.min(start + block_rows))
}

/// The weights of the positions that are seen, for a block of rows: [row, group, context_len], of which
/// the others mean nothing.
#[inline(always)]
pub fn weights<'s, L: Lanes, U: Unit>(
    lanes: L,
    spec: &AttentionSpec,
    (block, q): (Range<usize>, &[f32]),
    cache: Cache<'_, U>,
    scratch: &'s mut AttentionScratch,
) -> &'s [f32] {
    let row_scores = spec.group() * spec.context_len;
    let needed = block.len() * row_scores;
    scratch.scores.resize(scratch.scores.len().max(needed), 0.0);
    let scores = &mut scratch.scores[..needed];
    for page in cache.pages {
        for span in spans(page, spec.seen(0)) {
            for (row, scores) in block.clone().zip(scores.chunks_exact_mut(row_scores)) {
                let keys = cache.keys(page, row);
                score_group(lanes, spec, queries(spec, q, row), keys, span, scores);
            }
        }
    }
    for scores in scores.chunks_exact_mut(spec.context_len) {
        softmax(lanes, &mut scores[spec.seen(0)], spec.scale);
    }
    scores
}

/// The queries of a row's group, [group, head_dim]: contiguous, since there is one a sequence.
#[inline(always)]
fn queries<'a>(spec: &AttentionSpec, q: &'a [f32], row: usize) -> &'a [f32] {
    let width = spec.group() * spec.head_dim;
    &q[row * width..(row + 1) * width]
}

/// Scores of the positions of `span` for every query of a group, to `scores` [group, context_len].
#[inline(always)]
fn score_group<L: Lanes, U: Unit>(
    lanes: L,
    spec: &AttentionSpec,
    queries: &[f32],
    keys: Strided<'_, U>,
    span: Span,
    scores: &mut [f32],
) {
    let mut position = span.from;
    while position + 4 <= span.to {
        let tile = [
            keys.at(position),
            keys.at(position + 1),
            keys.at(position + 2),
            keys.at(position + 3),
        ];
        score_tile(lanes, spec, queries, tile, position, scores);
        position += 4;
    }
    while position < span.to {
        score_tile(lanes, spec, queries, [keys.at(position)], position, scores);
        position += 1;
    }
}

#[inline(always)]
fn score_tile<L: Lanes, R: Row, const N: usize>(
    lanes: L,
    spec: &AttentionSpec,
    queries: &[f32],
    keys: [R; N],
    position: usize,
    scores: &mut [f32],
) {
    let (width, context) = (spec.head_dim, spec.context_len);
    let mut g = 0;
    while L::TILE_N >= 4 && g + 4 <= spec.group() {
        let query = |i: usize| &queries[(g + i) * width..(g + i + 1) * width];
        let tile = [query(0), query(1), query(2), query(3)];
        let sums = dots::<L, R, 4, N>(lanes, tile, keys, width, |_| ());
        for (i, sums) in sums.iter().enumerate() {
            let at = (g + i) * context + position;
            scores[at..at + N].copy_from_slice(sums);
        }
        g += 4;
    }
    while g < spec.group() {
        let query = &queries[g * width..(g + 1) * width];
        let sums = dots::<L, R, 1, N>(lanes, [query], keys, width, |_| ());
        let at = g * context + position;
        scores[at..at + N].copy_from_slice(&sums[0]);
        g += 1;
    }
}

/// Adds the weighted values of the positions of `span` to `out` [group, head_dim].
#[inline(always)]
fn weigh_group<L: Lanes, U: Unit>(
    lanes: L,
    spec: &AttentionSpec,
    weights: &[f32],
    values: Strided<'_, U>,
    span: Span,
    out: &mut [f32],
) {
    let (width, context) = (spec.head_dim, spec.context_len);
    let mut g = 0;
    while L::TILE_N >= 4 && g + 4 <= spec.group() {
        let of = |i: usize| &weights[(g + i) * context..(g + i + 1) * context];
        let tile = [of(0), of(1), of(2), of(3)];
        let places = [g * width, (g + 1) * width, (g + 2) * width, (g + 3) * width];
        add_weighted(lanes, tile, values, span, places, out);
        g += 4;
    }
    while g < spec.group() {
        let weights = &weights[g * context..(g + 1) * context];
        add_weighted(lanes, [weights], values, span, [g * width], out);
        g += 1;
    }
}
