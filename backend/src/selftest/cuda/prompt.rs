//! Attention of a prompt: whole and packed caches in pages, windows, padding, groups of queries, tiles that are not full.

use plimsoll_core::Dtype;

use crate::cuda::launches::{HeldAs, PromptAttention};
use crate::cuda::{CudaError, Launch};

use super::attention::{Shape, cache, kept_as, shape};
use super::bench::Bench;
use super::{TYPES, Wrong};
use crate::selftest::reference::{Expected, decode, encode, weighed};

/// Of each, and which of its positions are asked for: the last so many.
const SHAPES: [(Shape, usize); 19] = [
    // One query, and up to a tile of queries and one more.
    (shape([1, 1, 1, 64], [1, 0, 1], false), 1),
    (shape([1, 1, 1, 128], [15, 0, 1], false), 15),
    (shape([1, 2, 1, 16], [16, 0, 1], false), 16),
    (shape([2, 1, 1, 128], [17, 0, 1], false), 17),
    (shape([1, 1, 1, 64], [63, 0, 1], false), 63),
    (shape([1, 1, 2, 64], [65, 0, 1], false), 65),
    (shape([1, 2, 1, 64], [130, 0, 1], false), 130),
    (shape([1, 1, 1, 128], [130, 50, 1], false), 130),
    (shape([2, 1, 1, 80], [110, 33, 1], true), 100),
    (shape([2, 2, 1, 64], [37, 0, 1], false), 37),
    (shape([1, 2, 3, 128], [20, 9, 1], false), 20),
    (shape([3, 1, 2, 80], [35, 0, 1], true), 35),
    (shape([1, 1, 1, 64], [90, 0, 1], false), 5),
    (shape([2, 1, 1, 8], [50, 17, 1], true), 33),
    (shape([1, 1, 1, 104], [40, 1, 1], false), 40),
    // Heads that are not for tensor cores.
    (shape([1, 1, 1, 256], [18, 0, 1], false), 5),
    (shape([3, 2, 1, 136], [37, 0, 1], true), 30),
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

/// What may be off on tensor cores, where weights are rounded to the stored type before values are multiplied by them, and so are
/// keys and values that were packed.
pub(super) fn of_rounded_weights(
    launch: &Launch,
    dtype: Dtype,
    expected: Vec<Expected>,
) -> Vec<Expected> {
    if !launch.kernel.starts_with("attend_tiles") {
        return expected;
    }
    // Half a unit in the last place of each, where sums of f32 are allowed sixteen of theirs.
    let each = match dtype {
        Dtype::Bf16 => 1024.0 / 16.0,
        _ => 128.0 / 16.0,
    };
    let roundings = if launch.kernel.ends_with("packed") {
        3.0
    } else {
        1.0
    };
    let loosened = expected.into_iter().map(|expected| Expected {
        size: expected.size * (1.0 + roundings * each),
        ..expected
    });
    loosened.collect()
}

fn case(
    bench: &mut Bench<'_>,
    (dtype, held): (Dtype, HeldAs),
    (shape, query_len): (&Shape, usize),
    kernel: impl Fn(&PromptAttention) -> Result<Launch, CudaError>,
) -> Result<(), Wrong> {
    bench.next_case();
    let case = format!("{} {held:?} {query_len} of {shape:?}", dtype.name());
    let cache = cache(bench, (dtype, held), shape)?;
    let heads = shape.kv_heads * shape.group;
    let count = shape.sequences * query_len * heads * shape.head_dim;
    let bytes = encode(dtype, &bench.numbers(count, 1.0));
    let query = decode(dtype, &bytes);
    let queries = bench.numbers_out(dtype, count)?;
    bench.device.write(queries.address, &bytes)?;
    let first = |sequence: usize| if shape.padded { 20 * sequence } else { 0 };
    let firsts: Vec<u32> = (0..shape.sequences).map(|s| first(s) as u32).collect();
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    let attention = PromptAttention {
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
        // All heads at a time, or some.
        cache_bytes: [1 << 20, 1 << 10][bench.checks.cases % 2],
    };
    let launch = kernel(&attention)?;
    bench.launch(&launch)?;
    let of = (query.as_slice(), f64::from(scale));
    let expected = expected((shape, query_len), &cache, &firsts, of);
    let expected = of_rounded_weights(&launch, dtype, expected);
    bench.check(&case, (dtype, queries), &expected)
}

pub fn attend(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for (dtype, held) in TYPES.into_iter().flat_map(kept_as) {
        for (shape, query_len) in &SHAPES {
            case(
                bench,
                (dtype, held),
                (shape, *query_len),
                PromptAttention::launch,
            )?;
        }
    }
    // What stands in where tensor cores do not know a type.
    let plain = SHAPES.iter().filter(|(shape, _)| {
        shape.head_dim <= 64 && shape.head_dim.is_multiple_of(8) && shape.context < 100
    });
    for (shape, query_len) in plain {
        let of = (Dtype::Bf16, HeldAs::Whole);
        case(bench, of, (shape, *query_len), PromptAttention::plain)?;
    }
    Ok(())
}
