//! Attention: whole and packed caches in pages, windows, padding, groups of queries, splits.

use plimsoll_core::Dtype;

use crate::cuda::launches::{Attention, HeldAs, Range, SCORE_BINS, choose_range, count_scores};
use crate::kernels::groups::{Group, head_bytes, pack_heads};

use super::bench::{Bench, Output};
use super::{TYPES, Wrong};
use crate::selftest::reference::{Expected, decode, encode, weighed};

#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub sequences: usize,
    pub kv_heads: usize,
    pub group: usize,
    pub head_dim: usize,
    pub context: usize,
    pub window: usize,
    pub splits: usize,
    pub padded: bool,
}

pub(super) const fn shape(
    [sequences, kv_heads, group, head_dim]: [usize; 4],
    [context, window, splits]: [usize; 3],
    padded: bool,
) -> Shape {
    Shape {
        sequences,
        kv_heads,
        group,
        head_dim,
        context,
        window,
        splits,
        padded,
    }
}

const SHAPES: [Shape; 13] = [
    shape([1, 1, 1, 64], [1, 0, 1], false),
    shape([2, 2, 1, 64], [131, 0, 3], false),
    shape([1, 2, 4, 128], [70, 20, 2], false),
    shape([2, 1, 5, 80], [57, 0, 2], true),
    shape([1, 1, 2, 256], [19, 0, 4], false),
    shape([3, 1, 1, 8], [40, 0, 1], true),
    // More parts than there are positions for, the last of them short; more queries a row than a block has.
    shape([1, 2, 8, 128], [150, 0, 9], false),
    shape([2, 1, 9, 64], [200, 120, 3], true),
    shape([1, 3, 1, 128], [129, 0, 2], true),
    // More parts than are put together at a time.
    shape([1, 1, 4, 128], [450, 0, 14], false),
    shape([1, 1, 8, 64], [900, 0, 28], false),
    // Heads that are no multiples of 8.
    shape([2, 2, 1, 12], [45, 0, 2], true),
    shape([1, 1, 3, 77], [70, 30, 3], false),
];

/// A cache on the device, and as the reference reads it: `[position]``[key, value]``[row]``[element]`.
pub(super) struct Cache {
    pub pages: [u64; 2],
    pub end: usize,
    pub record: usize,
    values: Vec<f64>,
}

fn stored((dtype, held): (Dtype, HeldAs), numbers: &[f32], head_dim: usize) -> (Vec<u8>, Vec<f64>) {
    match held {
        HeldAs::Whole => {
            let bytes = encode(dtype, numbers);
            let values = decode(dtype, &bytes);
            (bytes, values)
        }
        HeldAs::Packed => {
            let mut bytes = vec![0; numbers.len() / head_dim * head_bytes(head_dim)];
            pack_heads(numbers, head_dim, &mut bytes).expect("whole heads");
            let groups = numbers.chunks(head_dim).flat_map(|head| head.chunks(64));
            let values = groups.flat_map(|group| Group::quantise(group).elements());
            (bytes, values.map(f64::from).collect())
        }
    }
}

pub(super) fn cache(
    bench: &mut Bench<'_>,
    of: (Dtype, HeldAs),
    shape: &Shape,
) -> Result<Cache, Wrong> {
    let rows = shape.sequences * shape.kv_heads;
    let per_position = 2 * rows * shape.head_dim;
    let end = shape.context.div_ceil(3);
    let mut values = Vec::new();
    let mut halves = [Vec::new(), Vec::new()];
    let mut record = 0;
    for position in 0..shape.context {
        let numbers = bench.numbers(per_position, 2.0);
        let (mut bytes, read) = stored(of, &numbers, shape.head_dim);
        bytes.resize(bytes.len().next_multiple_of(16) + 16, 0xff);
        record = bytes.len();
        values.extend(read);
        halves[usize::from(position >= end)].extend(bytes);
    }
    Ok(Cache {
        pages: [bench.raw(&halves[0])?, bench.raw(&halves[1])?],
        end,
        record,
        values,
    })
}

/// The first position that a query sees.
fn begin(shape: &Shape, first: usize) -> usize {
    match shape.window {
        0 => first,
        window => first.max(shape.context.saturating_sub(window)),
    }
}

impl Cache {
    /// An element of a row's key (0) or value (1) at a position.
    pub(super) fn element(&self, shape: &Shape, [position, which, row, i]: [usize; 4]) -> f64 {
        let rows = shape.sequences * shape.kv_heads;
        self.values[((2 * position + which) * rows + row) * shape.head_dim + i]
    }

    /// The scores of a query from a position on.
    pub(super) fn scores(
        &self,
        shape: &Shape,
        [begin, row]: [usize; 2],
        query: &[f64],
        scale: f64,
    ) -> Vec<f64> {
        let key = |position: usize| {
            let element = move |i| self.element(shape, [position, 0, row, i]);
            (0..shape.head_dim).map(element)
        };
        let score = |position| key(position).zip(query).map(|(k, q)| k * q).sum::<f64>() * scale;
        (begin..shape.context).map(score).collect()
    }
}

struct Operands {
    attention: Attention,
    y: Output,
    /// Counts of blocks, then flags.
    marks: [Output; 2],
    expected: Vec<Expected>,
    scores: Vec<Vec<f64>>,
}

/// The results of all queries, and the scores of each.
fn reference(
    shape: &Shape,
    cache: &Cache,
    firsts: &[u32],
    (queries, scale): (&[f64], f64),
) -> (Vec<Expected>, Vec<Vec<f64>>) {
    let (mut expected, mut all_scores) = (Vec::new(), Vec::new());
    for (index, query) in queries.chunks(shape.head_dim).enumerate() {
        let row = index / shape.group;
        let begin = begin(shape, firsts[row / shape.kv_heads] as usize);
        let scores = cache.scores(shape, [begin, row], query, scale);
        expected.extend(weighed(&scores, shape.head_dim, |p, i| {
            cache.element(shape, [begin + p, 1, row, i])
        }));
        all_scores.push(scores);
    }
    (expected, all_scores)
}

fn operands(
    bench: &mut Bench<'_>,
    (dtype, held): (Dtype, HeldAs),
    shape: &Shape,
) -> Result<Operands, Wrong> {
    let rows = shape.sequences * shape.kv_heads;
    let queries = rows * shape.group;
    let cache = cache(bench, (dtype, held), shape)?;
    let (address, query) = bench.operand(dtype, queries * shape.head_dim, 1.0)?;
    let firsts: Vec<u32> = (0..shape.sequences)
        .map(|sequence| if shape.padded { 3 * sequence as u32 } else { 0 })
        .collect();
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    let (expected, scores) = reference(shape, &cache, &firsts, (&query, f64::from(scale)));
    let y = bench.numbers_out(dtype, queries * shape.head_dim)?;
    let partial = queries * shape.splits * 4;
    let marks = [bench.output(queries * 4)?, bench.output(queries * 4)?];
    for mark in marks {
        bench.device.write(mark.address, &vec![0; queries * 4])?;
    }
    let attention = Attention {
        dtype,
        held,
        queries: address,
        pages: bench.addresses(&cache.pages)?,
        page_ends: bench.words(&[cache.end as u32, u32::MAX])?,
        firsts: if shape.padded {
            bench.words(&firsts)?
        } else {
            0
        },
        numerators: bench.output(partial * shape.head_dim)?.address,
        denominators: bench.output(partial)?.address,
        maxima: bench.output(partial)?.address,
        arrived: marks[0].address,
        overflow: marks[1].address,
        range: 0,
        recomputed: 0,
        y: y.address,
        page_count: 2,
        row_start: 0,
        rows,
        kv_heads: shape.kv_heads,
        group: shape.group,
        head_dim: shape.head_dim,
        context_len: shape.context,
        window: shape.window,
        record_bytes: cache.record,
        splits: shape.splits,
        part: shape.context.div_ceil(shape.splits),
        scale,
    };
    Ok(Operands {
        attention,
        y,
        marks,
        expected,
        scores,
    })
}

/// What caches of a type keep.
pub(super) fn kept_as(dtype: Dtype) -> [(Dtype, HeldAs); 2] {
    [HeldAs::Whole, HeldAs::Packed].map(|held| (dtype, held))
}

fn cases() -> impl Iterator<Item = ((Dtype, HeldAs), Shape)> {
    let of = TYPES.into_iter().flat_map(kept_as);
    of.flat_map(|of| SHAPES.map(|shape| (of, shape)))
}

/// That counts and flags are zero again.
fn check_marks(bench: &mut Bench<'_>, case: &str, marks: [Output; 2]) -> Result<(), Wrong> {
    for (mark, of) in marks.into_iter().zip(["arrived", "flagged"]) {
        let left = bench.read_words(case, mark)?;
        if left.iter().any(|word| *word != 0) {
            let case = case.to_owned();
            let what = format!("{left:?} is left of what {of}");
            return Err(Wrong::Bytes { case, what });
        }
    }
    Ok(())
}

/// Twice, since one leaves what the next finds.
pub fn synchronised(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for ((dtype, held), shape) in cases() {
        bench.next_case();
        let case = format!("{} {held:?} {shape:?}", dtype.name());
        let operands = operands(bench, (dtype, held), &shape)?;
        for _ in 0..2 {
            bench.launch(&operands.attention.launch()?)?;
            bench.check(&case, (dtype, operands.y), &operands.expected)?;
            check_marks(bench, &case, operands.marks)?;
        }
    }
    Ok(())
}

/// As it was done before there was one launch for it.
pub fn in_two(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for ((dtype, held), shape) in cases() {
        bench.next_case();
        let case = format!("{} {held:?} {shape:?}", dtype.name());
        let operands = operands(bench, (dtype, held), &shape)?;
        for launch in operands.attention.in_two()? {
            bench.launch(&launch)?;
        }
        bench.check(&case, (dtype, operands.y), &operands.expected)?;
    }
    Ok(())
}

/// One that all scores are in, and others that some leave, so that their queries are computed again.
const RANGES: [Range; 5] = [
    Range {
        phi: 0.5,
        low: -60.0,
        high: 60.0,
    },
    Range {
        phi: 0.0,
        low: -1.5,
        high: 1.5,
    },
    // Switched off.
    Range {
        phi: 0.0,
        low: 0.0,
        high: 0.0,
    },
    // Far off: e^(score - phi) would be infinite, or nothing.
    Range {
        phi: -300.0,
        low: -80.0,
        high: 80.0,
    },
    Range {
        phi: 300.0,
        low: -80.0,
        high: 80.0,
    },
];

impl Range {
    /// How many queries have a score that leaves it, at least and at most: one on the edge may fall to either side.
    fn left_by(&self, scores: &[Vec<f64>]) -> [u32; 2] {
        if self.low >= self.high {
            // All is synchronised then, and nothing computed twice.
            return [0; 2];
        }
        let leave = |slack: f64| {
            let out = |score: &f64| {
                let off = score - f64::from(self.phi);
                off <= f64::from(self.low) + slack || off >= f64::from(self.high) - slack
            };
            scores.iter().filter(|of| of.iter().any(out)).count() as u32
        };
        [leave(-1e-3), leave(1e-3)]
    }
}

/// Attention in each of the ranges, in which queries are computed again where they leave them.
pub fn unified(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for ((dtype, held), shape) in cases() {
        for range in RANGES {
            bench.next_case();
            let case = format!("{} {held:?} {shape:?} {range:?}", dtype.name());
            let mut operands = operands(bench, (dtype, held), &shape)?;
            operands.attention.range = bench.stored(Dtype::F32, &range.words())?.0;
            let recomputed = bench.output(4)?;
            bench.device.write(recomputed.address, &[0; 4])?;
            operands.attention.recomputed = recomputed.address;
            let [least, most] = range.left_by(&operands.scores);
            for times in 1..=2 {
                bench.launch(&operands.attention.launch()?)?;
                bench.check(&case, (dtype, operands.y), &operands.expected)?;
                check_marks(bench, &case, operands.marks)?;
                let counted = bench.read_words(&case, recomputed)?[0];
                if !(times * least..=times * most).contains(&counted) {
                    let what = format!(
                        "{counted} were computed again, of {least} to {most} in each of {times}"
                    );
                    return Err(Wrong::Bytes { case, what });
                }
            }
        }
    }
    Ok(())
}

/// Counts of scores, and the maximum that they give.
pub fn scores(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for ((dtype, held), shape) in cases() {
        bench.next_case();
        let case = format!("{} {held:?} {shape:?}", dtype.name());
        let operands = operands(bench, (dtype, held), &shape)?;
        let bins = bench.output(4 * SCORE_BINS)?;
        bench.device.write(bins.address, &[0; 4 * SCORE_BINS])?;
        bench.launch(&count_scores(&operands.attention, bins.address)?)?;
        let found = bench.read_words(&case, bins)?;
        let scores: Vec<f64> = operands.scores.concat();
        // How many scores are below a size; some on an edge may fall to either side.
        let below = |size: f64| scores.iter().filter(|score| **score < size).count();
        let mut counted = 0;
        for (bin, count) in found.iter().enumerate() {
            counted += *count as usize;
            let edge = bin as f64 + 1.0 - SCORE_BINS as f64 / 2.0;
            if counted < below(edge - 1e-3) || counted > below(edge + 1e-3) {
                let what = format!("{counted} scores are below {edge}, of {scores:?}");
                return Err(Wrong::Bytes { case, what });
            }
        }
    }
    Ok(())
}

/// Figure 5's models: the range of nearly all of their scores, and what comes of it.
const FIGURE_5: [([f32; 2], Option<f32>); 3] = [
    // Llama-2-7B, ChatGLM2-6B; OPT-6.7B, to which the technique is not applied.
    ([-16.8, 6.5], Some(-5.0)),
    ([-10.5, 13.7], Some(1.5)),
    ([-496.8, 363.5], None),
];

pub fn range(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for ([low, high], expected) in FIGURE_5 {
        bench.next_case();
        let case = format!("scores from {low} to {high}");
        let bin = |score: f32| (score.floor() + SCORE_BINS as f32 / 2.0) as usize;
        let mut counts = vec![0_u32; SCORE_BINS];
        counts[bin(low)..=bin(high)].fill(10_000);
        // A few in a hundred thousand lie far outside, and decide nothing.
        counts[bin(900.0)] = 1;
        counts[bin(-900.0)] = 2;
        let bins = bench.words(&counts)?;
        let range = bench.output(12)?;
        bench.launch(&choose_range(bins, range.address))?;
        let found = bench.read_words(&case, range)?;
        let [phi, low, high] = [found[0], found[1], found[2]].map(f32::from_bits);
        let right = match expected {
            Some(expected) => phi == expected && (low, high) == (-64.0, 64.0),
            None => low >= high,
        };
        if !right {
            let what = format!("phi is {phi}, and scores are kept from {low} to {high} above it");
            return Err(Wrong::Bytes { case, what });
        }
    }
    Ok(())
}
