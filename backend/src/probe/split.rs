//! What split linear layers ask of the CPU: its products, and what it loses beside copies.

use std::collections::BTreeMap;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::lower::LowerError;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::program::{Gemm, Gemms, Op, ResourceKind};
use plimsoll_core::split::SplitLinears;
use plimsoll_core::workload::Workload;

use super::compute::{self, Shape};
use super::contention::ROUNDS;
use super::samples::Timed;
use super::stats::median;
use super::{Measured, ProbeError, ProbeOptions, run_plan};

/// Sequences and prompt lengths whose products the CPU computes.
const BATCHES: [(u32, u32); 3] = [(1, 16), (4, 24), (12, 12)];

/// Models whose products the CPU computes. Beside a GPU, the last is larger than what the CPU's caches hold of any model that is
/// split there: those of servers hold all of the others.
fn shapes(options: &ProbeOptions) -> Vec<Shape> {
    let beside_gpu = options
        .cpu
        .card
        .as_ref()
        .map(|_| compute::SHAPES_OF_GPUS[2]);
    compute::SHAPES.into_iter().chain(beside_gpu).collect()
}

/// The share of the device where engines are beside each other.
const HALF: f64 = 0.5;

/// A split plan with all but linear layers on the device, and room for that.
pub(super) fn plan(
    (model, dtype): (ModelSpec, Dtype),
    workload: Workload,
    sequences: u32,
    (split, compression): (SplitLinears, Compression),
) -> Result<Plan, LowerError> {
    let policy = Policy {
        barrier: false,
        page_locked: PageLocked {
            weights: false,
            ..PageLocked::ALL
        },
        compression,
        split: Some(split),
        ..Policy::from_percent(sequences, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0])?
    };
    Plan::given(model, dtype, workload, policy).with_room()
}

fn of_shape(
    (shape, dtype): (Shape, Dtype),
    (sequences, prompt_len): (u32, u32),
    gen_len: u32,
    share: f64,
) -> Result<Plan, LowerError> {
    let workload = Workload {
        prompt_len,
        gen_len,
        num_prompts: None,
    };
    let split = SplitLinears {
        prefill_share: share,
        ..SplitLinears::even(share)
    };
    // Two layers at least, so that rows come ahead.
    let model = compute::model(Shape {
        num_hidden_layers: shape.num_hidden_layers.max(2),
        ..shape
    });
    let whole = Compression::default();
    plan((model, dtype), workload, sequences, (split, whole))
}

/// Products of the CPU alone, which has all rows; then half of them beside copies and the device.
pub(super) fn measure(options: &ProbeOptions, measured: &mut Measured) -> Result<(), ProbeError> {
    let gen_len = if options.quick { 5 } else { 15 };
    for dtype in &options.dtypes {
        let mut runs = Vec::new();
        // It is the CPU that is asked, whatever the device.
        for shape in shapes(options) {
            for batch in BATCHES {
                let of = |share| of_shape((shape, *dtype), batch, gen_len, share);
                let plan = of(0.0)?;
                let (_, tasks) = measured.run(|weights| run_plan(options, &plan, weights))?;
                let on_cpu = |task: &Timed| task.kind == ResourceKind::Cpu;
                let alone: Vec<Timed> = tasks.into_iter().filter(on_cpu).collect();
                let plan = of(HALF)?;
                let (_, beside) = measured.run(|weights| run_plan(options, &plan, weights))?;
                runs.push((alone, beside));
            }
        }
        let known = Known::of(runs.iter().flat_map(|(alone, _)| alone));
        for (alone, beside) in runs {
            let halves: Vec<Timed> = alone.iter().filter_map(|it| known.halved(it)).collect();
            // Once for each batch, so it belongs to every round.
            for round in 0..ROUNDS {
                measured.losses.add(round, (&beside, &halves), None);
            }
            let alone = alone.into_iter().map(|task| (*dtype, task));
            measured.cpu_products.extend(alone);
        }
    }
    Ok(())
}

/// Seconds of whole products by themselves, by rows of input and by weights: what half a product takes alone, which never ran alone.
#[derive(Debug, Default)]
struct Known(BTreeMap<u32, BTreeMap<u64, Vec<f64>>>);

/// Rows of input, and weights.
fn size(task: &Timed) -> Option<(u32, u64)> {
    let Op::Linear { m, gemms, .. } = task.op else {
        return None;
    };
    let weights = gemms.iter().map(|it| u64::from(it.n) * u64::from(it.k));
    Some((m, weights.sum()))
}

impl Known {
    fn of<'t>(tasks: impl Iterator<Item = &'t Timed>) -> Known {
        let mut known = Known::default();
        for task in tasks {
            if let Some((m, weights)) = size(task) {
                let times = known.0.entry(m).or_default().entry(weights);
                times.or_default().push(task.seconds());
            }
        }
        known
    }

    /// Seconds of half a product's weights over those of all: on a line between the sizes that were measured, of which the two
    /// smallest tell what every product takes however small it is. Where there is one size only, a half.
    fn share_of_half(&self, m: u32, weights: u64) -> f64 {
        let Some(sizes) = self.0.get(&m) else {
            return HALF;
        };
        let times = sizes.iter();
        let times: Vec<(f64, f64)> = times.map(|(w, all)| (*w as f64, median(all))).collect();
        let half = weights as f64 * HALF;
        let above = times.iter().position(|(size, _)| *size >= half);
        let from = above.unwrap_or(0).saturating_sub(1);
        let [(below, low), (above, high), ..] = times[from..] else {
            return HALF;
        };
        let slope = (high - low) / (above - below);
        let whole = sizes.get(&weights).map_or(f64::NAN, |all| median(all));
        let share = (low + slope * (half - below)) / whole;
        // No half takes less than that, nor more than the whole.
        share.clamp(HALF, 1.0)
    }

    /// Half of a product's rows, in the time that this takes alone.
    fn halved(&self, task: &Timed) -> Option<Timed> {
        let (m, weights) = size(task)?;
        let half = |gemm: Gemm| Gemm {
            n: gemm.n / 2,
            ..gemm
        };
        let mut op = task.op;
        if let Op::Linear { gemms, .. } = &mut op {
            let halves: Vec<Gemm> = gemms.iter().map(half).collect();
            *gemms = Gemms::new(&halves);
        }
        Some(Timed {
            op,
            pace: task.pace / self.share_of_half(m, weights),
            ..*task
        })
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::program::Stage;

    use super::*;

    fn product(m: u32, n: u32, seconds: f64) -> Timed {
        let weights = [Gemm { n, k: 10 }];
        Timed::linear(
            (ResourceKind::Cpu, Stage::Mlp),
            (m, &weights),
            (seconds, 1.0),
        )
    }

    #[test]
    fn half_a_product_has_all_of_what_every_product_takes() {
        // Twenty and a tenth for each output, with one row; in proportion to outputs with two.
        let tasks = [
            product(1, 100, 30.0),
            product(1, 400, 60.0),
            product(1, 800, 100.0),
            product(2, 100, 30.0),
            product(2, 400, 120.0),
            product(3, 100, 30.0),
        ];
        let known = Known::of(tasks.iter());
        let halves = tasks.map(|task| known.halved(&task).expect("a product").seconds());
        assert_eq!(halves, [25.0, 40.0, 60.0, 15.0, 60.0, 15.0]);
    }
}
