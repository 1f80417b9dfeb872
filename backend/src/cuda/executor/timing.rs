//! Times the implementations of a product over rows, on the card that will compute it (FlashDecoding++ section 5).

use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;

use super::issue::{CHOICE, ZERO};
use crate::cuda::dispatch::{Implementation, Timing, Weights, check_depth};
use crate::cuda::launches::{self, Product};
use crate::cuda::{Card, CudaError, raw, tile};

/// Rows that are timed.
const ROWS: [usize; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 96, 128];

/// Products in a row, so that what an event costs is little; the fewest of some such times is taken.
const IN_A_ROW: usize = 8;
const TIMES: usize = 3;

/// The shapes of a plan's products.
pub(super) fn shapes(plan: &Plan) -> Vec<Weights> {
    let model: &ModelSpec = &plan.model;
    let blocks = [1, model.num_blocks() - 1];
    let tensors = blocks.into_iter().flat_map(|block| model.tensors(block));
    let mut shapes: Vec<Weights> = Vec::new();
    for tensor in tensors.filter(|tensor| !tensor.is_vector()) {
        let weights = Weights {
            dtype: plan.dtype,
            n: tensor.rows as usize,
            k: tensor.cols as usize,
        };
        if !shapes.contains(&weights) {
            shapes.push(weights);
        }
    }
    shapes
}

/// Seconds of each implementation by rows. Operands are whatever lies in fresh memory.
pub(super) fn time(card: &dyn Card, weights: Weights) -> Result<Vec<Timing>, CudaError> {
    let Weights { dtype, n, k } = weights;
    let most = ROWS[ROWS.len() - 1];
    let element = dtype.size_bytes() as usize;
    let sizes = [most * k, n * k, most * n].map(|elements| elements * element);
    let memory = card.take(sizes.iter().sum::<usize>() + 3 * crate::cuda::arena::ALIGNMENT)?;
    let aligned = |bytes: usize| bytes.next_multiple_of(crate::cuda::arena::ALIGNMENT) as u64;
    let x = memory;
    let matrix = x + aligned(sizes[0]);
    let y = matrix + aligned(sizes[1]);
    let timings = ROWS.into_iter().map(|m| {
        let product = Product {
            dtype,
            x,
            weights: matrix,
            bias: 0,
            y,
            shape: [m, n, k],
            wide: false,
        };
        let vendor = raw::Product {
            addresses: [x, matrix, y],
            shape: product.shape,
            dtype,
            wide: false,
        };
        let columns = tile::columns(product.shape, card.multiprocessors());
        let gemv = launches::gemv(&product)?;
        let flat = match check_depth(Implementation::Flat, k) {
            Ok(()) => {
                let flat = launches::flat(&product, columns)?;
                seconds(card, || card.launch(0, &flat))?
            }
            Err(_) => f64::INFINITY,
        };
        Ok(Timing {
            m,
            gemv: seconds(card, || card.launch(0, &gemv))?,
            flat,
            vendor: seconds(card, || card.multiply(0, &vendor))?,
        })
    });
    let timings = timings.collect();
    card.give_back(memory);
    timings
}

/// Seconds of one of what is given to stream 0, by the card's clock.
fn seconds(
    card: &dyn Card,
    mut give: impl FnMut() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let mut least = f64::INFINITY;
    for _ in 0..TIMES {
        // One that does not count pays for what only the first has to.
        give()?;
        card.record(0, ZERO)?;
        for _ in 0..IN_A_ROW {
            give()?;
        }
        card.record(0, CHOICE)?;
        card.await_event(CHOICE)?;
        let each = f64::from(card.elapsed_ms(ZERO, CHOICE)?) / 1e3 / IN_A_ROW as f64;
        least = least.min(each);
    }
    Ok(least)
}
