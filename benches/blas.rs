//! A prompt's products in f32 on two threads beside those of a BLAS library of the machine's (MKL, OpenBLAS). Run with
//! `cargo bench --bench blas -- PATH` of a library that has `cblas_sgemm`. How many threads it has, and that they sleep when
//! they have nothing to do, is said by its own environment variables (experiments/cpu-speed/README.md). Its integers are of 32
//! bits (LP64), as libraries have them that are not asked for others.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use libloading::{Library, Symbol};
use plimsoll::stats::quantile;
use plimsoll_backend::kernels::linear::{How, LinearShape, LinearWeight, Ways, linear_into};
use plimsoll_backend::kernels::{Elements, Matrix};
use plimsoll_backend::probe::fma_flops_per_s;

const THREADS: usize = 2;
const REPEATS: usize = 15;
/// Longer than a library's threads look for more before they sleep.
const PAUSE: Duration = Duration::from_millis(20);
/// Elements of all weights of a shape together: no cache holds them, as none holds a model's.
const ELEMENTS: usize = 100 << 20;
/// Tokens of one and of eight prompts, and the weights of the two models that `cargo bench --bench speed` runs.
const SHAPES: [(usize, usize, usize); 6] = [
    (128, 768, 768),
    (128, 4096, 768),
    (128, 768, 2048),
    (1024, 768, 768),
    (1024, 4096, 768),
    (1024, 768, 2048),
];
const ROW_MAJOR: c_int = 101;
const AS_IT_IS: c_int = 111;
const TRANSPOSED: c_int = 112;

/// `y = alpha x w^T + beta y`, as every CBLAS has it.
type Sgemm = unsafe extern "C" fn(
    order: c_int,
    transpose_x: c_int,
    transpose_w: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: f32,
    x: *const f32,
    row_of_x: c_int,
    w: *const f32,
    row_of_w: c_int,
    beta: f32,
    y: *mut f32,
    row_of_y: c_int,
);

struct Blas(Library);

impl Blas {
    fn open(path: &Path) -> anyhow::Result<Blas> {
        // SAFETY: whoever names a library here wants its initialisers to run.
        let library = unsafe { Library::new(path) };
        let blas = Blas(library.with_context(|| format!("cannot load {}", path.display()))?);
        blas.sgemm()?;
        Ok(blas)
    }

    fn sgemm(&self) -> anyhow::Result<Symbol<'_, Sgemm>> {
        // SAFETY: the name has had this signature since CBLAS began, with integers of 32 bits unless a library is asked for others.
        let sgemm = unsafe { self.0.get(b"cblas_sgemm\0") };
        sgemm.context("the library has no cblas_sgemm")
    }

    fn multiply(
        &self,
        LinearShape { m, n, k }: LinearShape,
        x: &[f32],
        w: &[f32],
        y: &mut [f32],
    ) -> anyhow::Result<()> {
        assert_eq!((x.len(), w.len(), y.len()), (m * k, n * k, m * n));
        let [m, n, k] = [m, n, k].map(|size| c_int::try_from(size).expect("small"));
        let sgemm = self.sgemm()?;
        // SAFETY: x is [m, k], w is [n, k] and y is [m, n], all row-major and just that long.
        unsafe {
            sgemm(
                ROW_MAJOR,
                AS_IT_IS,
                TRANSPOSED,
                m,
                n,
                k,
                1.0,
                x.as_ptr(),
                k,
                w.as_ptr(),
                k,
                0.0,
                y.as_mut_ptr(),
                n,
            );
        }
        Ok(())
    }
}

/// Ours with all weights of a shape, one after another: each thread some rows, as a decoder's threads have them, and they meet
/// after each product.
fn multiply_all(shape: LinearShape, x: &[f32], weights: &[f32], y: &mut [f32]) {
    assert!(
        shape.m.is_multiple_of(THREADS),
        "each thread has as many rows"
    );
    let rows = shape.m / THREADS;
    let done = &AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (x, y) in x.chunks(rows * shape.k).zip(y.chunks_mut(rows * shape.n)) {
            scope.spawn(move || {
                for (index, w) in weights.chunks_exact(shape.n * shape.k).enumerate() {
                    multiply_rows(shape, x, w, y);
                    done.fetch_add(1, Ordering::AcqRel);
                    while done.load(Ordering::Acquire) < (index + 1) * THREADS {
                        std::hint::spin_loop();
                    }
                }
            });
        }
    });
}

fn multiply_rows(shape: LinearShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    let m = x.len() / shape.k;
    let weight = LinearWeight {
        weight: Matrix::Whole(Elements::F32(w)),
        bias: None,
    };
    let mut rows: Vec<_> = y.chunks_exact_mut(shape.n).collect();
    let how = How::best(Ways::BUILT_IN);
    linear_into(how, LinearShape { m, ..shape }, x, weight, &mut rows).expect("it fits");
}

fn values(count: usize) -> Vec<f32> {
    let value = |i: usize| (i.wrapping_mul(2_654_435_761) % 1013) as f32 / 506.5 - 1.0;
    (0..count).map(value).collect()
}

/// "70 (61 to 85)".
fn shown(shares: &[f64]) -> String {
    let at = |share| 100.0 * quantile(shares, share);
    format!("{:.0} ({:.0} to {:.0})", at(0.5), at(0.0), at(1.0))
}

fn main() -> anyhow::Result<()> {
    let path = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let Some(path) = path else {
        println!("no library was named: cargo bench --bench blas -- /path/to/libmkl_rt.so");
        return Ok(());
    };
    let blas = Blas::open(Path::new(&path))?;
    let weights = values(ELEMENTS);
    println!("| tokens | n | k | ours, % of FMA peak | library's, % of FMA peak | ours over it |");
    println!("|--:|--:|--:|--:|--:|--:|");
    for (m, n, k) in SHAPES {
        let shape = LinearShape { m, n, k };
        let (x, mut y, mut theirs) = (values(m * k), vec![0.0; m * n], vec![0.0; m * n]);
        let flops = shape.flops() as f64 * weights.chunks_exact(n * k).len() as f64;
        let (mut of_ours, mut of_theirs) = (Vec::new(), Vec::new());
        let mut run = |ours: bool| -> anyhow::Result<f64> {
            // Threads of the other one have gone to sleep.
            std::thread::sleep(PAUSE);
            let start = Instant::now();
            if ours {
                multiply_all(shape, &x, &weights, &mut y);
            } else {
                for w in weights.chunks_exact(n * k) {
                    blas.multiply(shape, &x, w, &mut theirs)?;
                }
            }
            Ok(start.elapsed().as_secs_f64())
        };
        // The first of each is to warm up.
        for repeat in 0..=REPEATS {
            let before = fma_flops_per_s(THREADS);
            let first_is_ours = repeat % 2 == 0;
            let mut seconds = [run(first_is_ours)?, run(!first_is_ours)?];
            if !first_is_ours {
                seconds.reverse();
            }
            std::thread::sleep(PAUSE);
            let peak = (before + fma_flops_per_s(THREADS)) / 2.0;
            if repeat > 0 {
                of_ours.push(flops / seconds[0] / peak);
                of_theirs.push(flops / seconds[1] / peak);
            }
        }
        let alike = y.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-2);
        anyhow::ensure!(alike, "the library's product is another one");
        let over: Vec<f64> = of_ours.iter().zip(&of_theirs).map(|(a, b)| a / b).collect();
        println!(
            "| {m} | {n} | {k} | {} | {} | {:.2} |",
            shown(&of_ours),
            shown(&of_theirs),
            quantile(&over, 0.5)
        );
    }
    Ok(())
}
