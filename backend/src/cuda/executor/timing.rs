//! Times the implementations of a product over rows, on the card that will compute it (FlashDecoding++ section 5).

use plimsoll_core::hardware::{Implementation, ProductCurves};

use super::issue::{CHOICE, ZERO};
use crate::cuda::launches::{self, Product, check_depth};
use crate::cuda::{Card, CudaError, Launch, raw, tile};
use crate::dispatch::{Dispatch, Tried, Weights, curves};

/// Rows that are timed.
const ROWS: [usize; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 96, 128];

/// Products in a row, so that what an event costs is little; the middle of some such times counts.
const IN_A_ROW: usize = 8;
const TIMES: usize = 3;

/// Measures weights that a table does not know, on a card that no executor has.
pub(crate) fn learn_on(
    card: &dyn Card,
    dispatch: &Dispatch,
    weights: Vec<Weights>,
) -> Result<(), CudaError> {
    if weights.is_empty() {
        return Ok(());
    }
    let learnt = card
        .open(1, CHOICE + 1)
        .and_then(|()| dispatch.learn(weights, |weights| time(card, weights)));
    card.close();
    learnt
}

/// The curves of weights of a shape. Operands are whatever lies in fresh memory.
pub(super) fn time(card: &dyn Card, weights: Weights) -> Result<Option<ProductCurves>, CudaError> {
    let Weights { dtype, n, k, .. } = weights;
    let most = ROWS[ROWS.len() - 1];
    let element = dtype.size_bytes() as usize;
    let sizes = [most * k, n * k, most * n].map(|elements| elements * element);
    let memory = card.take(sizes.iter().sum::<usize>() + 3 * crate::cuda::arena::ALIGNMENT)?;
    let aligned = |bytes: usize| bytes.next_multiple_of(crate::cuda::arena::ALIGNMENT) as u64;
    let matrix = memory + aligned(sizes[0]);
    let product = Product {
        dtype,
        x: memory,
        weights: matrix,
        bias: 0,
        y: matrix + aligned(sizes[1]),
        shape: [0, n, k],
        wide: false,
    };
    let mut tried = Vec::new();
    for m in ROWS {
        let shape = [m, n, k];
        tried.extend(at_rows(card, &Product { shape, ..product })?);
    }
    card.give_back(memory);
    Ok(curves(weights, &tried))
}

/// The times of all implementations of one product.
fn at_rows(card: &dyn Card, product: &Product) -> Result<Vec<Tried>, CudaError> {
    let m = product.shape[0];
    let vendor = raw::Product {
        addresses: [product.x, product.weights, product.y],
        shape: product.shape,
        dtype: product.dtype,
        wide: false,
    };
    let tried = |implementation, seconds| Tried {
        implementation,
        m,
        seconds,
    };
    let launch = |launch: &Launch| seconds(card, || card.launch(0, launch));
    let gemv = launch(&launches::gemv(product)?)?;
    let conventional = seconds(card, || card.multiply(0, &vendor))?;
    let mut all = vec![
        tried(Implementation::Gemv, gemv),
        tried(Implementation::Conventional, conventional),
    ];
    if check_depth(product.shape[2]).is_ok() {
        let columns = tile::columns(product.shape, card.multiprocessors());
        let flat = launch(&launches::flat(product, columns)?)?;
        all.push(tried(Implementation::Flat, flat));
    }
    Ok(all)
}

/// Seconds of one of what is given to stream 0, by the card's clock, each time.
fn seconds(
    card: &dyn Card,
    mut give: impl FnMut() -> Result<(), CudaError>,
) -> Result<Vec<f64>, CudaError> {
    // One that does not count pays for what only the first has to.
    give()?;
    let mut all = Vec::new();
    for _ in 0..TIMES {
        card.record(0, ZERO)?;
        for _ in 0..IN_A_ROW {
            give()?;
        }
        card.record(0, CHOICE)?;
        card.await_event(CHOICE)?;
        all.push(f64::from(card.elapsed_ms(ZERO, CHOICE)?) / 1e3 / IN_A_ROW as f64);
    }
    Ok(all)
}
