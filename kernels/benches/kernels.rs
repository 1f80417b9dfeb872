//! Rates of the kernels that bound an emulated accelerator. Run with
//! `cargo bench -p plimsoll-kernels --bench kernels`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use plimsoll_formats::Dtype;
use plimsoll_kernels::attention::{
    AttentionScratch, AttentionSpec, CacheType, KvSegment, attend, record_bytes,
};
use plimsoll_kernels::groups::{self, PackedMatrix};
use plimsoll_kernels::linear::{LinearShape, LinearWeight, linear};
use plimsoll_kernels::{Elements, Matrix};

/// Weights that are cycled through, so that few rows read memory and not a cache.
const LAYERS: usize = 24;

fn noise(count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 2_654_435_761) % 1013) as f32 / 506.5 - 1.0)
        .collect()
}

fn to_half(values: &[f32]) -> Vec<f16> {
    let mut halves = vec![f16::ZERO; values.len()];
    halves.convert_from_f32_slice(values);
    halves
}

fn to_brain(values: &[f32]) -> Vec<bf16> {
    let mut halves = vec![bf16::ZERO; values.len()];
    halves.convert_from_f32_slice(values);
    halves
}

fn settle(group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>) {
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(800));
}

/// A matrix in groups of 4-bit codes.
fn packed(elements: &[f32], columns: usize) -> Vec<f16> {
    let bands = (elements.len() / columns).div_ceil(groups::ELEMENTS);
    let mut halves = vec![f16::ZERO; bands * columns * groups::BYTES / 2];
    let into = bytemuck::cast_slice_mut(&mut halves);
    groups::pack_matrix(Elements::F32(elements), columns, into).unwrap();
    halves
}

/// Few rows in bytes of weight a second, many rows in floating-point operations ("elements") a second.
fn linears(c: &mut Criterion) {
    let (n, k) = (2048, 2048);
    let w32 = noise(LAYERS * n * k);
    let (w16, wb16) = (to_half(&w32), to_brain(&w32));
    let w4 = packed(&w32, k);
    let w4 = PackedMatrix::new(bytemuck::cast_slice(&w4), LAYERS * n, k).unwrap();
    let mut group = c.benchmark_group("linear_2048x2048");
    settle(&mut group);
    for m in [1, 4, 8, 16, 64, 512] {
        let shape = LinearShape { m, n, k };
        let x = noise(m * k);
        let mut y = vec![0.0; m * n];
        for (name, all) in [
            ("f32", Matrix::Whole(Elements::F32(&w32))),
            ("f16", Matrix::Whole(Elements::F16(&w16))),
            ("bf16", Matrix::Whole(Elements::Bf16(&wb16))),
            ("4bit", Matrix::Packed(w4)),
        ] {
            group.throughput(if m < 16 {
                Throughput::Bytes(match all {
                    Matrix::Whole(all) => (n * k) as u64 * all.dtype().size_bytes(),
                    Matrix::Packed(_) => (n / groups::ELEMENTS * k * groups::BYTES) as u64,
                })
            } else {
                Throughput::Elements(shape.flops())
            });
            let mut layer = 0;
            group.bench_function(BenchmarkId::new(name, format!("m{m}")), |b| {
                b.iter(|| {
                    layer = (layer + 1) % LAYERS;
                    let weight = all.rows(layer * n..(layer + 1) * n, k);
                    let weight = LinearWeight { weight, bias: None };
                    linear(shape, black_box(&x), weight, &mut y).unwrap();
                });
            });
        }
    }
    group.finish();
}

/// Elements packed a second, when weights are loaded.
fn packing(c: &mut Criterion) {
    let elements = noise(2048 * 2048);
    let mut group = c.benchmark_group("packing");
    settle(&mut group);
    group.throughput(Throughput::Elements(elements.len() as u64));
    group.bench_function("f32/2048x2048", |b| {
        b.iter(|| packed(black_box(&elements), 2048));
    });
    group.finish();
}

/// Bytes of cache a second.
fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention_decode");
    settle(&mut group);
    for (batch, heads, kv_heads, context_len) in
        [(1, 32, 32, 2048), (16, 32, 32, 1024), (16, 32, 8, 2048)]
    {
        let spec = AttentionSpec {
            heads,
            kv_heads,
            head_dim: 64,
            query_len: 1,
            context_len,
            scale: 0.125,
            window: None,
            picks: None,
        };
        let rows = batch * kv_heads;
        for (name, stored) in [
            ("f32", CacheType::Whole(Dtype::F32)),
            ("f16", CacheType::Whole(Dtype::F16)),
            ("bf16", CacheType::Whole(Dtype::Bf16)),
            ("4bit", CacheType::Packed),
        ] {
            let record_bytes = record_bytes(rows, spec.head_dim, stored);
            let mut words = vec![0_u64; (record_bytes * context_len).div_ceil(8)];
            let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..record_bytes * context_len];
            let elements = noise(2 * rows * spec.head_dim);
            for record in bytes.chunks_exact_mut(record_bytes) {
                stored.write(&elements, spec.head_dim, record).unwrap();
            }
            let segment = KvSegment {
                row_start: 0,
                row_end: rows,
                record_bytes,
                pages: &[bytes],
                stored,
            };
            let q = noise(batch * heads * spec.head_dim);
            let (mut out, mut scratch) = (vec![0.0; q.len()], AttentionScratch::default());
            group.throughput(Throughput::Bytes(bytes.len() as u64));
            let case = format!("b{batch}_h{heads}_kv{kv_heads}_c{context_len}");
            group.bench_function(BenchmarkId::new(name, case), |b| {
                b.iter(|| {
                    attend(
                        black_box(&q),
                        &segment,
                        &spec,
                        0..rows,
                        &mut scratch,
                        &mut out,
                    )
                    .unwrap();
                });
            });
        }
    }
    group.finish();
}

/// Floating-point operations ("elements") a second, of which causality leaves half.
fn prefill(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention_prefill");
    settle(&mut group);
    let spec = AttentionSpec {
        heads: 32,
        kv_heads: 32,
        head_dim: 64,
        query_len: 512,
        context_len: 512,
        scale: 0.125,
        window: None,
        picks: None,
    };
    let record_bytes = record_bytes(32, 64, CacheType::Whole(Dtype::F16));
    let half = to_half(&noise(record_bytes / 2 * 512));
    let bytes = bytemuck::cast_slice(&half);
    let segment = KvSegment {
        row_start: 0,
        row_end: 32,
        record_bytes,
        pages: &[bytes],
        stored: CacheType::Whole(Dtype::F16),
    };
    let q = noise(512 * 2048);
    let (mut out, mut scratch) = (vec![0.0; q.len()], AttentionScratch::default());
    group.throughput(Throughput::Elements(2 * 512 * 512 * 2048));
    group.bench_function("f16/b1_h32_c512", |b| {
        b.iter(|| {
            attend(
                black_box(&q),
                &segment,
                &spec,
                0..32,
                &mut scratch,
                &mut out,
            )
            .unwrap()
        });
    });
    group.finish();
}

criterion_group!(benches, linears, packing, decode, prefill);
criterion_main!(benches);
