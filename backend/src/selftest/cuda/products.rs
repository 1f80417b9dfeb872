//! Products with weights.

use plimsoll_core::Dtype;

use crate::cuda::launches::{self, Product};
use crate::cuda::raw;
use crate::cuda::tile::{COLUMNS, Cut};
use crate::cuda::{CudaError, Launch};
use crate::kernels::groups::{PackedMatrix, pack_matrix};
use crate::kernels::{Matrix, storage};

use super::bench::{Bench, Output};
use super::{TYPES, Wrong};
use crate::selftest::reference::Expected;

struct Operands {
    product: Product,
    y: Output,
    result: Dtype,
    expected: Vec<Expected>,
}

/// Weights in 4-bit groups on the device, columns being of different sizes, and as they are.
fn packed(bench: &mut Bench<'_>, [n, k]: [usize; 2]) -> Result<(u64, Vec<f64>), CudaError> {
    let mut numbers = bench.numbers(n * k, 1.0);
    for row in numbers.chunks_mut(k) {
        (row.iter_mut().zip(1_u16..)).for_each(|(x, at)| *x *= f32::from(at % 7 + 1) / 4.0);
    }
    let mut halves = vec![0_u16; n.div_ceil(64) * k * 18];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut halves);
    pack_matrix(storage::Elements::F32(&numbers), k, bytes).expect("whole bands");
    let matrix = Matrix::Packed(PackedMatrix::new(bytes, n, k).expect("whole bands"));
    for (index, row) in numbers.chunks_mut(k).enumerate() {
        matrix.load_row(index, row);
    }
    let address = bench.raw(bytes)?;
    Ok((address, numbers.into_iter().map(f64::from).collect()))
}

fn operands(
    bench: &mut Bench<'_>,
    of: (Dtype, bool),
    shape: [usize; 3],
    ends: (bool, bool),
) -> Result<Operands, CudaError> {
    bench.next_case();
    let rows = bench.operand(of.0, shape[0] * shape[2], 1.0)?;
    with_rows(bench, of, (rows.0, &rows.1), shape, ends)
}

/// The same of rows that are there.
fn with_rows(
    bench: &mut Bench<'_>,
    (dtype, is_packed): (Dtype, bool),
    (x, left): (u64, &[f64]),
    [m, n, k]: [usize; 3],
    (biased, wide): (bool, bool),
) -> Result<Operands, CudaError> {
    let (weights, right) = match is_packed {
        true => packed(bench, [n, k])?,
        false => bench.operand(dtype, n * k, 1.0)?,
    };
    let (bias, added) = bench.operand(dtype, n, 1.0)?;
    let result = if wide { Dtype::F32 } else { dtype };
    let y = bench.numbers_out(result, m * n)?;
    let mut expected = Vec::new();
    for row in left.chunks(k) {
        for (column, weights) in right.chunks(k).enumerate() {
            let terms = row.iter().zip(weights).map(|(a, b)| a * b);
            let bias = if biased { added[column] } else { 0.0 };
            expected.push(Expected::sum(terms.chain([bias])));
        }
    }
    let product = Product {
        dtype,
        x,
        weights,
        bias: if biased { bias } else { 0 },
        y: y.address,
        shape: [m, n, k],
        wide,
        packed: is_packed,
        fresh: false,
    };
    Ok(Operands {
        product,
        y,
        result,
        expected,
    })
}

fn each(
    bench: &mut Bench<'_>,
    dtype: Dtype,
    shapes: &[[usize; 3]],
    of: impl Fn(&Product) -> Result<Launch, CudaError>,
) -> Result<(), Wrong> {
    each_with(bench, (dtype, false), shapes, of)
}

fn each_with(
    bench: &mut Bench<'_>,
    (dtype, is_packed): (Dtype, bool),
    shapes: &[[usize; 3]],
    of: impl Fn(&Product) -> Result<Launch, CudaError>,
) -> Result<(), Wrong> {
    for (index, shape) in shapes.iter().enumerate() {
        let ends = (index % 2 == 0, index % 3 == 2);
        let operands = operands(bench, (dtype, is_packed), *shape, ends)?;
        let launch = of(&operands.product)?;
        bench.launch(&launch)?;
        let case = format!("{} [m, n, k] {shape:?}", launch.kernel);
        bench.check(&case, (operands.result, operands.y), &operands.expected)?;
    }
    Ok(())
}

/// Columns of products that share x: blocks that the last column fills and does not.
const TOGETHER: [&[usize]; 3] = [&[5, 7], &[70, 64, 3], &[3, 17, 66]];

/// Products of so many rows and such a depth that share x, in one launch.
fn together(
    bench: &mut Bench<'_>,
    of: (Dtype, bool),
    rows_and_depths: &[[usize; 2]],
    joined: impl Fn(&[Product]) -> Result<Launch, CudaError>,
) -> Result<(), Wrong> {
    for [m, k] in rows_and_depths {
        for columns in TOGETHER {
            bench.next_case();
            let (x, left) = bench.operand(of.0, m * k, 1.0)?;
            let one = |n: &usize| {
                let ends = (n.is_multiple_of(2), columns.len() == 2);
                with_rows(bench, of, (x, &left), [*m, *n, *k], ends)
            };
            let all = columns.iter().map(one).collect::<Result<Vec<_>, _>>()?;
            let products: Vec<Product> = all.iter().map(|it| it.product).collect();
            let launch = joined(&products)?;
            bench.launch(&launch)?;
            for it in &all {
                let case = format!(
                    "{} of several [m, n, k] {:?}",
                    launch.kernel, it.product.shape
                );
                bench.check(&case, (it.result, it.y), &it.expected)?;
            }
        }
    }
    Ok(())
}

/// Rows that fill what shares a reading and do not, columns that end within a block, depths of which some warps have nothing, a
/// part of what is under way at once, and more than that; depths that are not eights.
const GEMV: [[usize; 3]; 14] = [
    [1, 5, 64],
    [1, 3, 4096],
    [1, 2, 5000],
    [1, 3, 101],
    [2, 9, 100],
    [2, 4, 2056],
    [2, 3, 8200],
    [3, 6, 1288],
    [4, 7, 4104],
    [5, 8, 520],
    [7, 4, 2056],
    [8, 3, 7],
    [8, 10, 3080],
    [19, 11, 264],
];

pub fn gemv(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        each(bench, dtype, &GEMV, launches::gemv)?;
        together(
            bench,
            (dtype, false),
            &[[1, 520], [2, 101], [3, 264], [8, 2056]],
            launches::gemv_joined,
        )?;
    }
    each(bench, Dtype::Bf16, &GEMV, launches::gemv_plain)
}

/// Rows that fill what shares a reading and do not, bands that are full and are not, depths of which some lanes and warps have
/// nothing, all have some, and all have more.
const PACKED: [[usize; 3]; 10] = [
    [1, 5, 16],
    [1, 64, 2048],
    [1, 70, 4112],
    [1, 130, 528],
    [2, 33, 2064],
    [3, 64, 48],
    [4, 100, 2560],
    [5, 17, 1024],
    [8, 66, 2080],
    [19, 10, 272],
];

pub fn gemv_packed(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        each_with(bench, (dtype, true), &PACKED, launches::gemv)?;
        together(
            bench,
            (dtype, true),
            &[[1, 528], [2, 2064], [7, 48]],
            launches::gemv_joined,
        )?;
    }
    Ok(())
}

/// Rows that fill an eight and do not, columns and depths that end within a tile, fewer tiles than buffers and more.
const FLAT: [[usize; 3]; 6] = [
    [1, 40, 64],
    [8, 128, 72],
    [5, 33, 648],
    [16, 130, 8],
    [21, 64, 136],
    [40, 100, 328],
];

pub fn flat(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        for columns in COLUMNS {
            each(bench, dtype, &FLAT, |product| {
                launches::flat(product, Cut::Tiles(columns))
            })?;
        }
    }
    each(bench, Dtype::Bf16, &FLAT, launches::flat_plain)
}

/// Each number of rows of an eight and some of two, columns and depths that end within a warp's part, depths that are less
/// than what all warps have under way, as much and more.
const THIN: [[usize; 3]; 14] = [
    [1, 48, 1024],
    [2, 33, 8],
    [3, 17, 2056],
    [4, 16, 1096],
    [5, 1, 72],
    [6, 20, 520],
    [7, 31, 1000],
    [8, 40, 3080],
    [4, 20, 8200],
    [8, 35, 10248],
    [9, 7, 1536],
    [13, 50, 648],
    [16, 19, 2120],
    [21, 18, 264],
];

pub fn thin(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for dtype in TYPES {
        each(bench, dtype, &THIN, |product| {
            launches::flat(product, Cut::Thin)
        })?;
        together(
            bench,
            (dtype, false),
            &[[1, 72], [8, 2056], [13, 648]],
            launches::thin_joined,
        )?;
    }
    each(bench, Dtype::Bf16, &THIN, launches::thin_plain)
}

pub fn vendor(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for (dtype, shape) in TYPES
        .into_iter()
        .flat_map(|d| [[1, 5, 64], [33, 70, 264]].map(|s| (d, s)))
    {
        for wide in [false, true] {
            let operands = operands(bench, (dtype, false), shape, (false, wide))?;
            let [x, weights, y] = [
                operands.product.x,
                operands.product.weights,
                operands.y.address,
            ];
            let tested = bench.device.multiply(&raw::Product {
                addresses: [x, weights, y],
                shape,
                dtype,
                wide,
            })?;
            if !tested {
                bench.checks.cases = 0;
                return Ok(());
            }
            let case = format!("{} [m, n, k] {shape:?}", dtype.name());
            bench.check(&case, (operands.result, operands.y), &operands.expected)?;
        }
    }
    Ok(())
}
