//! What split linear layers ask of the CPU: its products, and what it loses beside copies.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::lower::LowerError;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::program::{Gemm, Gemms, Op, ResourceKind};
use plimsoll_core::split::SplitLinears;
use plimsoll_core::workload::Workload;

use super::compute::{self, Shape, with_room};
use super::contention::ROUNDS;
use super::samples::Timed;
use super::{Measured, ProbeError, ProbeOptions, run_plan};

/// Sequences and prompt lengths whose products the CPU computes.
const BATCHES: [(u32, u32); 3] = [(1, 16), (4, 24), (12, 12)];

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
    with_room((model, dtype), workload, policy)
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
        // It is the CPU that is asked, whatever the device.
        for shape in compute::SHAPES {
            for batch in BATCHES {
                let of = |share| of_shape((shape, *dtype), batch, gen_len, share);
                let plan = of(0.0)?;
                let (_, tasks) = measured.run(|weights| run_plan(options, &plan, weights))?;
                let on_cpu = |task: &Timed| task.kind == ResourceKind::Cpu;
                let alone: Vec<Timed> = tasks.into_iter().filter(on_cpu).collect();
                let plan = of(HALF)?;
                let (_, beside) = measured.run(|weights| run_plan(options, &plan, weights))?;
                let halves: Vec<Timed> = alone.iter().filter_map(halved).collect();
                // Once for each batch, so it belongs to every round.
                for round in 0..ROUNDS {
                    measured.losses.add(round, &beside, &halves);
                }
                let alone = alone.into_iter().map(|task| (*dtype, task));
                measured.cpu_products.extend(alone);
            }
        }
    }
    Ok(())
}

/// Half of a product's rows, in half of its time.
fn halved(task: &Timed) -> Option<Timed> {
    let Op::Linear { gemms, .. } = task.op else {
        return None;
    };
    let half = |gemm: Gemm| Gemm {
        n: gemm.n / 2,
        ..gemm
    };
    let halves: Vec<Gemm> = gemms.iter().map(half).collect();
    let mut op = task.op;
    if let Op::Linear { gemms, .. } = &mut op {
        *gemms = Gemms::new(&halves);
    }
    Some(Timed {
        op,
        pace: 2.0 * task.pace,
        ..*task
    })
}
