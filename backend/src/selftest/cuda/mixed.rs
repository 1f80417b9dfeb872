//! Sequences at different places over blocks of their own: attention of next tokens and of prompts, and fresh keys and values.

use plimsoll_core::Dtype;

use crate::cuda::launches::{Attention, HeldAs, MixedAppend, OwnBlocks, PromptAttention};

use super::bench::{Bench, Output};
use super::prompt::of_rounded_weights;
use super::{TYPES, Wrong};
use crate::selftest::reference::{Expected, decode, encode, weighed};

/// Tokens that a sequence's cache has, and new ones behind them.
type Place = (usize, usize);

/// Sequences of a model: key/value heads, query heads of each, elements a head; positions of a block and of the window.
#[derive(Debug, Clone, Copy)]
struct Shape {
    places: &'static [Place],
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    block_tokens: usize,
    window: usize,
    splits: usize,
}

const fn shape(
    places: &'static [Place],
    [kv_heads, group, head_dim]: [usize; 3],
    [block_tokens, window, splits]: [usize; 3],
) -> Shape {
    Shape {
        places,
        kv_heads,
        group,
        head_dim,
        block_tokens,
        window,
        splits,
    }
}

const STEPS: [Shape; 9] = [
    shape(&[(0, 1)], [1, 1, 64], [16, 0, 1]),
    shape(&[(130, 1), (3, 1), (31, 1)], [2, 1, 64], [16, 0, 3]),
    shape(&[(69, 1), (15, 1)], [2, 4, 128], [16, 20, 2]),
    shape(&[(5, 1), (56, 1)], [1, 5, 80], [1, 0, 2]),
    shape(&[(44, 1), (16, 1)], [2, 1, 12], [7, 0, 2]),
    shape(&[(18, 1), (1, 1)], [1, 2, 256], [64, 0, 4]),
    shape(&[(200, 1), (63, 1), (64, 1)], [1, 8, 64], [16, 0, 4]),
    shape(&[(40, 1), (9, 1)], [2, 1, 40], [16, 0, 2]),
    shape(&[(70, 1), (9, 1)], [1, 3, 77], [16, 30, 3]),
];

const PROMPTS: [Shape; 9] = [
    shape(&[(0, 2)], [1, 1, 64], [16, 0, 1]),
    shape(&[(0, 37), (0, 4), (0, 16)], [2, 1, 64], [16, 0, 1]),
    shape(&[(3, 20), (17, 2)], [2, 3, 128], [16, 9, 1]),
    shape(&[(0, 5), (0, 33)], [1, 2, 80], [1, 0, 1]),
    shape(&[(8, 30), (0, 2)], [2, 1, 12], [7, 17, 1]),
    shape(&[(0, 130), (40, 65), (0, 1)], [1, 1, 64], [16, 0, 1]),
    shape(&[(0, 15), (0, 100), (31, 17)], [1, 2, 128], [5, 33, 1]),
    shape(&[(63, 63), (0, 16)], [2, 1, 16], [64, 0, 1]),
    shape(&[(5, 20), (0, 37)], [2, 1, 136], [16, 0, 1]),
];

impl Shape {
    fn record_elements(&self) -> usize {
        2 * self.kv_heads * self.head_dim
    }

    /// Each new token: its sequence and its position there.
    fn tokens(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let sequences = self.places.iter().enumerate();
        sequences.flat_map(|(s, (cached, new))| (*cached..cached + new).map(move |at| (s, at)))
    }
}

/// Blocks of all sequences on the device, no two of one after another, and their tables.
struct Cache {
    own: OwnBlocks,
    /// All blocks, with one between any two of which nobody knows.
    memory: Output,
    /// By sequence, each position's record as it is stored.
    records: Vec<Vec<Vec<f64>>>,
    /// Where each sequence's blocks lie in the memory, in bytes.
    places: Vec<Vec<usize>>,
}

impl Cache {
    fn new(bench: &mut Bench<'_>, dtype: Dtype, shape: &Shape) -> Result<Cache, Wrong> {
        let contexts: Vec<usize> = shape
            .places
            .iter()
            .map(|(cached, new)| cached + new)
            .collect();
        let counts = contexts
            .iter()
            .map(|context| context.div_ceil(shape.block_tokens));
        let counts: Vec<usize> = counts.collect();
        let record = shape.record_elements() * 2;
        let block = shape.block_tokens * record;
        let all: usize = counts.iter().sum();
        let memory = bench.output(2 * all * block)?;
        // From the last place to the first.
        let mut left = all;
        let mut places = Vec::new();
        for count in &counts {
            left -= count;
            places.push(
                (left..left + count)
                    .rev()
                    .map(|at| 2 * at * block)
                    .collect(),
            );
        }
        let mut cache = Cache {
            own: Cache::tables(bench, shape, (memory.address, &places), &contexts)?,
            memory,
            records: Vec::new(),
            places,
        };
        for (sequence, context) in contexts.iter().enumerate() {
            let mut records = Vec::new();
            for position in 0..*context {
                let numbers = bench.numbers(shape.record_elements(), 2.0);
                let bytes = encode(dtype, &numbers);
                let at = cache.offset(shape, sequence, position);
                bench.device.write(memory.address + at as u64, &bytes)?;
                records.push(decode(dtype, &bytes));
            }
            cache.records.push(records);
        }
        Ok(cache)
    }

    fn tables(
        bench: &mut Bench<'_>,
        shape: &Shape,
        (memory, places): (u64, &[Vec<usize>]),
        contexts: &[usize],
    ) -> Result<OwnBlocks, Wrong> {
        let running = |counts: &mut dyn Iterator<Item = usize>| {
            let mut sums = vec![0_u32];
            counts.for_each(|count| sums.push(sums[sums.len() - 1] + count as u32));
            sums
        };
        let starts = running(&mut places.iter().map(Vec::len));
        let tokens = running(&mut shape.places.iter().map(|(_, new)| *new));
        let blocks: Vec<u64> = places
            .concat()
            .iter()
            .map(|at| memory + *at as u64)
            .collect();
        let contexts: Vec<u32> = contexts.iter().map(|context| *context as u32).collect();
        Ok(OwnBlocks {
            blocks: bench.addresses(&blocks)?,
            starts: bench.words(&starts)?,
            contexts: bench.words(&contexts)?,
            tokens: bench.words(&tokens)?,
            block_tokens: shape.block_tokens,
        })
    }

    /// Where a position's record is in the memory, in bytes.
    fn offset(&self, shape: &Shape, sequence: usize, position: usize) -> usize {
        let block = self.places[sequence][position / shape.block_tokens];
        block + position % shape.block_tokens * shape.record_elements() * 2
    }

    /// What each query of the new tokens should become.
    fn expected(&self, shape: &Shape, queries: &[f64], scale: f64) -> Vec<Expected> {
        let width = shape.head_dim;
        let heads = shape.kv_heads * shape.group;
        let mut all = Vec::new();
        for ((sequence, position), token) in shape.tokens().zip(queries.chunks(heads * width)) {
            let begin = match shape.window {
                0 => 0,
                window => (position + 1).saturating_sub(window),
            };
            let seen = &self.records[sequence][begin..=position];
            for (head, query) in token.chunks(width).enumerate() {
                let key = head / shape.group * width;
                let value = key + shape.kv_heads * width;
                let score = |record: &Vec<f64>| {
                    let products = record[key..].iter().zip(query).map(|(k, q)| k * q);
                    products.sum::<f64>() * scale
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                all.extend(weighed(&scores, width, |p, i| seen[p][value + i]));
            }
        }
        all
    }
}

/// Queries on the device, and what they should become.
struct Case {
    name: String,
    dtype: Dtype,
    cache: Cache,
    queries: Output,
    expected: Vec<Expected>,
    scale: f32,
}

fn case(bench: &mut Bench<'_>, dtype: Dtype, shape: &Shape) -> Result<Case, Wrong> {
    bench.next_case();
    let cache = Cache::new(bench, dtype, shape)?;
    let count = shape.tokens().count() * shape.kv_heads * shape.group * shape.head_dim;
    let bytes = encode(dtype, &bench.numbers(count, 1.0));
    let queries = bench.numbers_out(dtype, count)?;
    bench.device.write(queries.address, &bytes)?;
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    Ok(Case {
        name: format!("{} {shape:?}", dtype.name()),
        dtype,
        expected: cache.expected(shape, &decode(dtype, &bytes), f64::from(scale)),
        cache,
        queries,
        scale,
    })
}

fn attention(bench: &mut Bench<'_>, of: &Case, shape: &Shape) -> Result<Attention, Wrong> {
    let rows = shape.places.len() * shape.kv_heads;
    let parts = rows * shape.group * shape.splits;
    let longest = shape.places.iter().map(|(cached, new)| cached + new);
    let longest = longest.max().unwrap_or(0);
    Ok(Attention {
        dtype: of.dtype,
        held: HeldAs::Whole,
        queries: of.queries.address,
        pages: 0,
        page_ends: 0,
        firsts: 0,
        numerators: bench.output(4 * parts * shape.head_dim)?.address,
        denominators: bench.output(4 * parts)?.address,
        maxima: bench.output(4 * parts)?.address,
        arrived: bench.words(&vec![0; rows * shape.group])?,
        overflow: 0,
        range: 0,
        recomputed: 0,
        y: of.queries.address,
        page_count: 0,
        row_start: 0,
        rows,
        kv_heads: shape.kv_heads,
        group: shape.group,
        head_dim: shape.head_dim,
        context_len: longest,
        window: shape.window,
        record_bytes: shape.record_elements() * 2,
        splits: shape.splits,
        part: longest.div_ceil(shape.splits),
        scale: of.scale,
    })
}

/// Attention of a next token each.
pub fn steps(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        for shape in &STEPS {
            let case = case(bench, dtype, shape)?;
            let attention = attention(bench, &case, shape)?;
            bench.launch(&attention.mixed(&case.cache.own)?)?;
            bench.check(&case.name, (dtype, case.queries), &case.expected)?;
        }
    }
    Ok(())
}

/// Attention of prompts.
pub fn prompts(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        for shape in &PROMPTS {
            let case = case(bench, dtype, shape)?;
            let longest = shape.places.iter().map(|(_, new)| *new).max();
            let attention = PromptAttention {
                dtype,
                held: HeldAs::Whole,
                queries: case.queries.address,
                pages: 0,
                page_ends: 0,
                firsts: 0,
                page_count: 0,
                row_start: 0,
                rows: shape.places.len() * shape.kv_heads,
                kv_heads: shape.kv_heads,
                group: shape.group,
                head_dim: shape.head_dim,
                query_len: longest.unwrap_or(0),
                start: 0,
                window: shape.window,
                record_bytes: shape.record_elements() * 2,
                scale: case.scale,
                cache_bytes: 1 << 12,
            };
            let launch = attention.mixed(&case.cache.own)?;
            bench.launch(&launch)?;
            let expected = of_rounded_weights(&launch, dtype, case.expected);
            bench.check(&case.name, (dtype, case.queries), &expected)?;
        }
    }
    Ok(())
}

/// Fresh keys and values, and that nothing else of the blocks is written.
pub fn append(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        for shape in STEPS.iter().chain(&PROMPTS) {
            bench.next_case();
            let name = format!("{} {shape:?}", dtype.name());
            let cache = Cache::new(bench, dtype, shape)?;
            let mut expected = bench.read(&name, cache.memory)?;
            let half = shape.kv_heads * shape.head_dim;
            let count = shape.tokens().count();
            let fresh = [0, 1].map(|_| encode(dtype, &bench.numbers(count * half, 1.0)));
            for (token, (sequence, position)) in shape.tokens().enumerate() {
                let at = cache.offset(shape, sequence, position);
                for (which, bytes) in fresh.iter().enumerate() {
                    let into = &mut expected[at + which * 2 * half..][..2 * half];
                    into.copy_from_slice(&bytes[2 * half * token..][..2 * half]);
                }
            }
            let (whose, at): (Vec<u32>, Vec<u32>) =
                shape.tokens().map(|(s, at)| (s as u32, at as u32)).unzip();
            let append = MixedAppend {
                dtype,
                keys: bench.raw(&fresh[0])?,
                values: bench.raw(&fresh[1])?,
                own: cache.own,
                sequences: bench.words(&whose)?,
                positions: bench.words(&at)?,
                count,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                record_bytes: shape.record_elements() * 2,
            };
            bench.launch(&append.launch()?)?;
            let found = bench.read(&name, cache.memory)?;
            if let Some(at) = found.iter().zip(&expected).position(|(a, b)| a != b) {
                let what = format!("byte {at} of the blocks is not as it should be");
                return Err(Wrong::Bytes { case: name, what });
            }
        }
    }
    Ok(())
}
