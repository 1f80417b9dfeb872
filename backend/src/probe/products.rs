//! Times the three implementations of a product that the CPU's kernels have, as an executor's device computes them: on its
//! cores, by its threads, with weights that come from memory. (Those of a GPU: `cuda/executor/timing.rs`.)

use std::hint::black_box;
use std::time::Instant;

use plimsoll_core::hardware::{Implementation, ProductCurves, Slowness};
use plimsoll_core::program::ResourceKind;
use plimsoll_core::units::Bytes;

use super::ProbeError;
use crate::cpu::{Cores, CpuError, CpuOptions};
use crate::decoder::Team;
use crate::dispatch::{Tried, Weights, curves};
use crate::kernels::groups::PackedMatrix;
use crate::kernels::linear::{How, LinearWeight, PANEL_ROWS_MIN, Ways};
use crate::kernels::{Elements, KernelError, Matrix};
use crate::pin;
use crate::tiers::Region;

/// Rows that are timed: up to what one pass over the weights serves.
const ROWS: [usize; 14] = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 24, 48, 64, 128];

/// Dot products of more rows than these read all over and over.
const GEMV_ROWS_MAX: usize = 16;

/// Weights that are cycled through are so large together that no cache holds what comes next.
const CYCLED_BYTES: usize = 96 << 20;

/// Copies of weights, one after another, in large pages as those of an executor are.
struct Cycled {
    copies: Region,
    /// Bytes of a copy.
    each: usize,
    weights: Weights,
    next: usize,
}

impl Cycled {
    fn new(weights: Weights) -> Result<Cycled, CpuError> {
        let bytes = weights.bytes();
        let mut copies = Region::new("host", Bytes((CYCLED_BYTES.div_ceil(bytes) * bytes) as u64))?;
        // A small number in every type, and codes and their ends as well.
        let halves: &mut [u16] = bytemuck::cast_slice_mut(copies.bytes_mut());
        halves.fill(0x3c01);
        Ok(Cycled {
            copies,
            each: bytes,
            weights,
            next: 0,
        })
    }

    /// The copy that was used longest ago.
    fn matrix(&mut self) -> Result<Matrix<'_>, KernelError> {
        let all = self.copies.bytes();
        self.next = (self.next + 1) % (all.len() / self.each);
        let own = &all[self.next * self.each..][..self.each];
        let Weights { dtype, n, k, .. } = self.weights;
        Ok(match (self.weights.packed, dtype) {
            (true, _) => Matrix::Packed(PackedMatrix::new(own, n, k)?),
            (false, _) => Elements::from_bytes(own, dtype)?.into(),
        })
    }
}

/// The ways by which an implementation alone computes.
fn only(implementation: Implementation) -> Ways {
    let (tile_from, panels_from) = match implementation {
        Implementation::Gemv => (usize::MAX, usize::MAX),
        Implementation::Flat => (1, usize::MAX),
        Implementation::Conventional => (1, 1),
    };
    Ways {
        tile_from,
        panels_from,
    }
}

/// Whether an implementation is timed for so many rows.
pub(crate) fn computes(implementation: Implementation, rows: usize) -> bool {
    match implementation {
        Implementation::Gemv => rows <= GEMV_ROWS_MAX,
        Implementation::Flat => true,
        Implementation::Conventional => rows >= PANEL_ROWS_MIN,
    }
}

/// Which implementations are timed for so many rows.
pub(crate) type Computes<'a> = dyn Fn(Implementation, usize) -> bool + Sync + 'a;

/// Seconds of each implementation by rows. Implementations take turns, so that what disturbs one disturbs all.
fn tried(
    weights: Weights,
    (rows, computes): (&[usize], &Computes<'_>),
    repeats: usize,
    options: &CpuOptions,
) -> Result<Vec<Tried>, ProbeError> {
    let Weights { dtype, n, k, .. } = weights;
    let team = Team::new(options.device_threads, dtype);
    let mut cycled = Cycled::new(weights)?;
    let most = rows.iter().copied().max().unwrap_or(0);
    let (x, mut y) = (vec![0.01; most * k], vec![0.0; most * n]);
    let mut all = Vec::new();
    for m in rows.iter().copied() {
        let timed = Implementation::ALL.into_iter();
        let timed = timed.filter(|implementation| computes(*implementation, m));
        let mut of_rows: Vec<Tried> = timed
            .map(|implementation| Tried {
                implementation,
                m,
                seconds: Vec::new(),
            })
            .collect();
        for repeat in 0..=repeats {
            options.check_goes_on()?;
            for tried in &mut of_rows {
                let how = How::best(only(tried.implementation));
                let weight = cycled.matrix()?;
                let weight = LinearWeight { weight, bias: None };
                let out = &mut y[..m * n];
                let start = Instant::now();
                let computed = team.linears_by([how], (m, &x[..m * k]), [weight], [out]);
                let took = start.elapsed().as_secs_f64();
                computed.map_err(CpuError::from)?;
                black_box(&mut y);
                // The first of all pays for memory that was never touched.
                if repeat > 0 {
                    tried.seconds.push(took);
                }
            }
        }
        all.extend(of_rows);
    }
    Ok(all)
}

/// The same on the cores that an executor's device has, for the rows of a lookup table.
pub(crate) fn on_device(
    weights: Weights,
    repeats: usize,
    options: &CpuOptions,
) -> Result<Vec<Tried>, ProbeError> {
    of_rows(weights, (&ROWS, &computes), repeats, options)
}

/// The same for any rows, and the implementations of each that are asked for.
pub(crate) fn of_rows(
    weights: Weights,
    rows: (&[usize], &Computes<'_>),
    repeats: usize,
    options: &CpuOptions,
) -> Result<Vec<Tried>, ProbeError> {
    let cores = Cores::of(options).of_resource(ResourceKind::Gpu);
    pin::on_cores(&cores, || tried(weights, rows, repeats, options))
}

/// Curves of what was tried, as if the machine had gone at the pace of its profile.
pub(crate) fn at_pace(
    weights: Weights,
    tried: Vec<Tried>,
    slowness: &Slowness,
) -> Option<ProductCurves> {
    let at_pace = |tried: Tried| {
        let by = slowness.of_tokens(tried.m as f64);
        let seconds = tried.seconds.iter().map(|seconds| seconds / by).collect();
        Tried { seconds, ..tried }
    };
    let tried: Vec<Tried> = tried.into_iter().map(at_pace).collect();
    curves(weights, &tried)
}

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;

    use super::*;
    use crate::kernels::linear::Way;

    #[test]
    fn each_implementation_is_timed_alone_and_where_it_computes() {
        for rows in ROWS {
            for (implementation, way) in
                Implementation::ALL
                    .into_iter()
                    .zip([Way::Dots, Way::Tile, Way::Panels])
            {
                if computes(implementation, rows) {
                    assert_eq!(only(implementation).of(rows), way, "{rows}");
                }
            }
        }
    }

    #[test]
    fn whole_and_packed_weights_have_curves_of_all_implementations() {
        let options = CpuOptions {
            device_threads: 2,
            pin_cores: true,
            ..CpuOptions::new(".")
        };
        for (dtype, packed) in [
            (Dtype::F32, false),
            (Dtype::F16, false),
            (Dtype::Bf16, false),
            (Dtype::F16, true),
        ] {
            let weights = Weights {
                dtype,
                n: 96,
                k: 80,
                packed,
                biased: false,
            };
            let tried = on_device(weights, 1, &options).expect("operands fit");
            let curves = at_pace(weights, tried, &Slowness::NONE).expect("curves");
            let rows = |curve: &plimsoll_core::hardware::Curve| {
                let points = curve.points();
                [points[0].0, points[points.len() - 1].0]
            };
            assert_eq!(rows(&curves.gemv), [1.0, 16.0]);
            assert_eq!(curves.flat.as_ref().map(rows), Some([1.0, 128.0]));
            assert_eq!(rows(&curves.conventional), [PANEL_ROWS_MIN as f64, 128.0]);
            assert_eq!((curves.dtype, curves.packed), (dtype, packed));
        }
    }
}
