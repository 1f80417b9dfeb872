//! Attention of a prompt: whole and packed caches in pages, windows, padding, groups of queries, tiles that are not full.

use crate::cuda::launches::PromptAttention;

use super::attention::{Shape, cache, kept_as, shape};
use super::bench::Bench;
use super::{TYPES, Wrong};
use crate::selftest::reference::{Expected, weighed};

/// Of each, and which of its positions are asked for: the last so many.
const SHAPES: [(Shape, usize); 8] = [
    (shape([1, 1, 1, 64], [1, 0, 1], false), 1),
    (shape([2, 2, 1, 64], [37, 0, 1], false), 37),
    (shape([1, 2, 3, 128], [20, 9, 1], false), 20),
    (shape([3, 1, 2, 80], [35, 0, 1], true), 35),
    (shape([1, 1, 1, 256], [18, 0, 1], false), 5),
    (shape([2, 1, 1, 8], [50, 17, 1], true), 33),
    (shape([2, 2, 1, 12], [37, 0, 1], true), 30),
    (shape([1, 1, 2, 77], [20, 9, 1], false), 20),
];

/// A query's place among all, and what it should become; none where it is of padding and stays.
fn expected(
    (shape, query_len): (&Shape, usize),
    cache: &super::attention::Cache,
    firsts: &[u32],
    (queries, scale): (&[f64], f64),
) -> Vec<Expected> {
    let mut all = Vec::new();
    for (index, query) in queries.chunks(shape.head_dim).enumerate() {
        let head = index % (shape.kv_heads * shape.group);
        let token = index / (shape.kv_heads * shape.group);
        let (sequence, position) = (
            token / query_len,
            shape.context - query_len + token % query_len,
        );
        let first = firsts[sequence] as usize;
        if position < first {
            all.extend(query.iter().map(|x| Expected::plain(*x)));
            continue;
        }
        let row = sequence * shape.kv_heads + head / shape.group;
        let begin = match shape.window {
            0 => first,
            window => first.max((position + 1).saturating_sub(window)),
        };
        let mut scores = cache.scores(shape, [begin, row], query, scale);
        scores.truncate(position + 1 - begin);
        all.extend(weighed(&scores, shape.head_dim, |p, i| {
            cache.element(shape, [begin + p, 1, row, i])
        }));
    }
    all
}

pub fn attend(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for (dtype, held) in TYPES.into_iter().flat_map(kept_as) {
        for (shape, query_len) in SHAPES {
            bench.next_case();
            let case = format!("{} {held:?} {query_len} of {shape:?}", dtype.name());
            let cache = cache(bench, (dtype, held), &shape)?;
            let heads = shape.kv_heads * shape.group;
            let count = shape.sequences * query_len * heads * shape.head_dim;
            let numbers = bench.numbers(count, 1.0);
            let bytes = crate::selftest::reference::encode(dtype, &numbers);
            let query = crate::selftest::reference::decode(dtype, &bytes);
            let queries = bench.numbers_out(dtype, count)?;
            bench.device.write(queries.address, &bytes)?;
            let firsts: Vec<u32> = (0..shape.sequences)
                .map(|sequence| {
                    if shape.padded {
                        20 * sequence as u32
                    } else {
                        0
                    }
                })
                .collect();
            let scale = 1.0 / (shape.head_dim as f32).sqrt();
            let launch = PromptAttention {
                dtype,
                held,
                queries: queries.address,
                pages: bench.addresses(&cache.pages)?,
                page_ends: bench.words(&[cache.end as u32, u32::MAX])?,
                firsts: match shape.padded {
                    true => bench.words(&firsts)?,
                    false => 0,
                },
                page_count: 2,
                row_start: 0,
                rows: shape.sequences * shape.kv_heads,
                kv_heads: shape.kv_heads,
                group: shape.group,
                head_dim: shape.head_dim,
                query_len,
                start: shape.context - query_len,
                window: shape.window,
                record_bytes: cache.record,
                scale,
            };
            bench.launch(&launch.launch()?)?;
            let of = (query.as_slice(), f64::from(scale));
            let expected = expected((&shape, query_len), &cache, &firsts, of);
            bench.check(&case, (dtype, queries), &expected)?;
        }
    }
    Ok(())
}
