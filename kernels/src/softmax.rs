//! Softmax of a row of scores, in place.

use super::exp::exp;
use super::simd::{LANES, Lanes};

/// Replaces the scores s of a row by exp(scale * (s - max)) / sum. The sum runs over sixteen lanes,
/// so the result depends on the scores of this row alone. `scale` is positive.
#[inline(always)]
pub fn softmax<L: Lanes>(lanes: L, scores: &mut [f32], scale: f32) {
    let (whole, rest) = scores.as_chunks_mut::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    for chunk in whole.iter() {
        for lane in 0..LANES {
            largest[lane] = if chunk[lane] > largest[lane] {
                chunk[lane]
            } else {
                largest[lane]
            };
        }
    }
    for (lane, score) in rest.iter().enumerate() {
        largest[lane] = if *score > largest[lane] {
            *score
        } else {
            largest[lane]
        };
    }
    let mut max = f32::NEG_INFINITY;
    for lane in largest {
        max = if lane > max { lane } else { max };
    }
    let mut sums = [0.0_f32; LANES];
    for chunk in whole.iter_mut() {
        for lane in 0..LANES {
            chunk[lane] = exp((chunk[lane] - max) * scale);
            sums[lane] += chunk[lane];
        }
    }
    for (lane, score) in rest.iter_mut().enumerate() {
        *score = exp((*score - max) * scale);
        sums[lane] += *score;
    }
    let factor = 1.0 / lanes.sum(lanes.load(&sums));
    for score in scores {
        *score *= factor;
    }
}
