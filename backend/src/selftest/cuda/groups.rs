//! 4-bit groups and the cache: the bytes of the host's own kernels.

use plimsoll_core::Dtype;

use crate::cuda::launches::{self, Append, HeldAs};
use crate::kernels::attention::{
    AttentionSpec, CacheType, KvSegmentMut, append as append_on_host, record_bytes,
};
use crate::kernels::groups::{PackedMatrix, pack_matrix};
use crate::kernels::{Matrix, storage};

use super::bench::Bench;
use super::{TYPES, Wrong};
use crate::selftest::reference::{Expected, decode, encode};

fn differ(case: &str, found: &[u8], expected: &[u8]) -> Result<(), Wrong> {
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    match at {
        None => Ok(()),
        Some(at) => Err(Wrong::Bytes {
            case: case.to_owned(),
            what: format!("byte {at} is {}, and should be {}", found[at], expected[at]),
        }),
    }
}

fn host(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let numbers = decode(dtype, bytes);
    numbers.into_iter().map(|x| x as f32).collect()
}

/// A matrix of weights, with a column of equal elements and one of large ones.
fn weights(bench: &mut Bench<'_>, dtype: Dtype, [rows, columns]: [usize; 2]) -> Vec<u8> {
    let mut numbers = bench.numbers(rows * columns, 1.0);
    for row in numbers.chunks_mut(columns) {
        row[0] = 0.25;
        row[columns - 1] *= 30_000.0;
    }
    encode(dtype, &numbers)
}

pub fn matrices(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        for [rows, columns] in [[64, 32], [100, 50], [1, 3], [192, 300]] {
            bench.next_case();
            let case = format!("{} [{rows}, {columns}]", dtype.name());
            let elements = weights(bench, dtype, [rows, columns]);
            let x = bench.raw(&elements)?;
            let room = rows.div_ceil(64) * columns * 36;
            let packed = bench.output(room)?;
            let unpacked = bench.numbers_out(dtype, rows * columns)?;
            for (pack, elements) in [(true, x), (false, unpacked.address)] {
                let addresses = [elements, packed.address];
                let launch = launches::matrix_groups((dtype, pack), addresses, [rows, columns])?;
                bench.launch(&launch)?;
            }
            let mut expected = vec![0_u16; room / 2];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut expected);
            let numbers = host(dtype, &elements);
            pack_matrix(storage::Elements::F32(&numbers), columns, bytes).expect("whole bands");
            let found = bench.read(&case, packed)?;
            differ(&case, &found, bytes)?;
            let matrix = PackedMatrix::new(bytes, rows, columns).expect("whole bands");
            let mut row = vec![0.0; columns];
            let mut values = Vec::new();
            for index in 0..rows {
                Matrix::Packed(matrix).load_row(index, &mut row);
                values.extend(row.iter().map(|x| Expected::plain(f64::from(*x))));
            }
            bench.check(&case, (dtype, unpacked), &values)?;
        }
    }
    Ok(())
}

/// Sequences, key/value heads, elements a head, fresh positions, those before.
const APPENDS: [[usize; 5]; 4] = [
    [1, 1, 64, 1, 0],
    [2, 3, 80, 4, 5],
    [3, 2, 128, 1, 3],
    [2, 2, 20, 3, 2],
];

pub fn append(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        for held in [HeldAs::Whole, HeldAs::Packed] {
            for [sequences, kv_heads, head_dim, query_len, start] in APPENDS {
                let spec = AttentionSpec {
                    heads: kv_heads,
                    kv_heads,
                    head_dim,
                    query_len,
                    context_len: start + query_len,
                    window: None,
                    scale: 1.0,
                    picks: None,
                };
                append_case(bench, (dtype, held), sequences, &spec)?;
            }
        }
    }
    Ok(())
}

fn append_case(
    bench: &mut Bench<'_>,
    (dtype, held): (Dtype, HeldAs),
    sequences: usize,
    spec: &AttentionSpec,
) -> Result<(), Wrong> {
    bench.next_case();
    let case = format!("{} {held:?} {sequences} sequences, {spec:?}", dtype.name());
    let stored = match held {
        HeldAs::Whole => CacheType::Whole(dtype),
        HeldAs::Packed => CacheType::Packed,
    };
    // All rows but the first lie here, where there are several.
    let rows = sequences * spec.kv_heads;
    let row_start = usize::from(rows > 1);
    let record = record_bytes(rows - row_start, spec.head_dim, stored) + 16;
    let count = sequences * spec.query_len * spec.kv_heads * spec.head_dim;
    let keys = encode(dtype, &bench.numbers(count, 3.0));
    let values = encode(dtype, &bench.numbers(count, 0.5));
    let page = bench.output(spec.context_len * record)?;
    let launch = Append {
        dtype,
        held,
        keys: bench.raw(&keys)?,
        values: bench.raw(&values)?,
        page: page.address,
        row_start,
        rows: rows - row_start,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        query_len: spec.query_len,
        start: spec.start(),
        record_bytes: record,
    }
    .launch()?;
    bench.launch(&launch)?;
    let mut expected = vec![0xffff_u16; spec.context_len * record / 2];
    let mut segment = KvSegmentMut {
        row_start,
        row_end: rows,
        record_bytes: record,
        bytes: bytemuck::cast_slice_mut(&mut expected),
        stored,
    };
    let (keys, values) = (host(dtype, &keys), host(dtype, &values));
    append_on_host(&mut segment, spec, &keys, &values).expect("shapes that fit");
    let expected: &[u8] = bytemuck::cast_slice(&expected);
    let found = bench.read(&case, page)?;
    differ(&case, &found, expected)
}
