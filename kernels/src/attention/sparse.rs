//! Decode that reads all keys and a part of the values (FlexGen section 5; `plimsoll_core::sparse`).
//!
//! Both halves in one, or each by itself: the sums are the same, in the order of the positions.

use super::stored::Unit;
use super::weighted::{Span, add_weighted};
use super::{Attention, AttentionSpec, Cache, Part, Strided, decode};
use crate::KernelError;
use crate::error::expect;
use crate::simd::Lanes;

/// What rows pick of their past, and the weights of that and of the newest position.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Picks {
    /// [row, picks], ascending.
    pub positions: Vec<u32>,
    /// [row, group, picks + 1].
    pub weights: Vec<f32>,
}

impl Picks {
    fn lengths(spec: &AttentionSpec, rows: usize) -> (usize, usize) {
        let values = spec.value_len();
        (rows * (values - 1), rows * spec.group() * values)
    }

    /// Has room for so many rows.
    pub fn resize(&mut self, spec: &AttentionSpec, rows: usize) {
        let (positions, weights) = Picks::lengths(spec, rows);
        self.positions.resize(positions, 0);
        self.weights.resize(weights, 0.0);
    }

    pub(super) fn check(&self, spec: &AttentionSpec, rows: usize) -> Result<(), KernelError> {
        let (positions, weights) = Picks::lengths(spec, rows);
        expect("picked positions", positions, self.positions.len())?;
        expect("weights of picked positions", weights, self.weights.len())
    }

    /// A row's weights, to write.
    pub fn weights_mut(&mut self, spec: &AttentionSpec, row: usize) -> &mut [f32] {
        let (_, weights) = Picks::lengths(spec, 1);
        &mut self.weights[row * weights..(row + 1) * weights]
    }

    /// A row's positions and weights.
    pub fn of(&self, spec: &AttentionSpec, row: usize) -> (&[u32], &[f32]) {
        let (positions, weights) = Picks::lengths(spec, 1);
        (
            &self.positions[row * positions..(row + 1) * positions],
            &self.weights[row * weights..(row + 1) * weights],
        )
    }
}

#[inline(always)]
pub fn run<L: Lanes, U: Unit>(lanes: L, attention: Attention<'_>, cache: Cache<'_, U>) {
    let Attention {
        spec,
        rows,
        q,
        out,
        scratch,
        part,
    } = attention;
    let width = spec.group() * spec.head_dim;
    let row_weights = spec.group() * spec.context_len;
    if let Part::Values(picks) = part {
        for row in rows {
            let (positions, weights) = picks.of(spec, row);
            let out = &mut out[row * width..(row + 1) * width];
            let place = |i: usize| if i < positions.len() { i } else { spec.start() };
            weigh(lanes, spec, weights, out, |i| cache.value(place(i), row));
        }
        return;
    }
    let mut order = std::mem::take(&mut scratch.order);
    let mut own = std::mem::take(&mut scratch.picks);
    own.resize(spec, 1);
    let mut asked = match part {
        Part::Scores(picks) => Some(picks),
        _ => None,
    };
    for block in decode::blocks(spec, rows) {
        let weights = decode::weights(lanes, spec, (block.clone(), q), cache, scratch);
        for (row, weights) in block.zip(weights.chunks_exact(row_weights)) {
            if let Some(picks) = &mut asked {
                pick(spec, weights, &mut order, (picks, row));
                continue;
            }
            pick(spec, weights, &mut order, (&mut own, 0));
            let (positions, weights) = own.of(spec, 0);
            let out = &mut out[row * width..(row + 1) * width];
            let place = |i: usize| positions.get(i).map_or(spec.start(), |p| *p as usize);
            weigh(lanes, spec, weights, out, |i| cache.value(place(i), row));
        }
    }
    (scratch.order, scratch.picks) = (order, own);
}

/// Picks, of the past positions that are seen, those with the largest weights, added up over the group,
/// of equal ones the earliest; `weights` is [group, context_len].
fn pick(
    spec: &AttentionSpec,
    weights: &[f32],
    order: &mut Vec<(f32, u32)>,
    (into, row): (&mut Picks, usize),
) {
    let (past, count) = (spec.seen(0).start..spec.start(), spec.value_len() - 1);
    let sum = |position: usize| -> f32 {
        let heads = weights.chunks_exact(spec.context_len);
        heads.map(|weights| weights[position]).sum()
    };
    order.clear();
    order.extend(
        past.clone()
            .map(|position| (sum(position), position as u32)),
    );
    if 0 < count && count < past.len() {
        let larger = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        order.select_nth_unstable_by(count - 1, larger);
    }
    let positions = &mut into.positions[row * count..(row + 1) * count];
    for (into, (_, position)) in positions.iter_mut().zip(order.iter()) {
        *into = *position;
    }
    positions.sort_unstable();
    let row_weights = spec.group() * (count + 1);
    let kept = &mut into.weights[row * row_weights..(row + 1) * row_weights];
    for (kept, weights) in kept
        .chunks_exact_mut(count + 1)
        .zip(weights.chunks_exact(spec.context_len))
    {
        for (kept, position) in kept.iter_mut().zip(positions.iter()) {
            *kept = weights[*position as usize];
        }
        kept[count] = weights[past.end];
    }
}

/// Adds up the picked values, each by its number, and the newest; to `out` [group, head_dim].
#[inline(always)]
fn weigh<'a, L: Lanes, U: Unit>(
    lanes: L,
    spec: &AttentionSpec,
    weights: &[f32],
    out: &mut [f32],
    value: impl Fn(usize) -> Strided<'a, U>,
) {
    const ONE: Span = Span { from: 0, to: 1 };
    let count = spec.value_len();
    out.fill(0.0);
    for i in 0..count {
        let value = value(i);
        for g in 0..spec.group() {
            let weight = &weights[g * count + i..];
            add_weighted(lanes, [weight], value, ONE, [g * spec.head_dim], out);
        }
    }
}
