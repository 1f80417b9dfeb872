//! One product, by one of three implementations.

use plimsoll_core::hardware::Implementation;

use crate::cuda::launches::{self, Elements, Product, bias_activation};
use crate::cuda::{Card, CudaError, raw, tile};

/// Gives a stream a product by an implementation that computes such weights.
pub(super) fn multiply(
    (card, stream): (&dyn Card, usize),
    by: Implementation,
    product: &Product,
) -> Result<(), CudaError> {
    match by {
        Implementation::Gemv => card.launch(stream, &launches::gemv(product)?),
        Implementation::Flat => {
            let cut = tile::cut(product.shape, card.multiprocessors());
            card.launch(stream, &launches::flat(product, cut)?)
        }
        Implementation::Conventional => conventional((card, stream), product),
    }
}

/// Gives a stream the vendor's product, and a pass of its own that adds the bias.
fn conventional((card, stream): (&dyn Card, usize), product: &Product) -> Result<(), CudaError> {
    let [m, n, _] = product.shape;
    card.multiply(
        stream,
        &raw::Product {
            addresses: [product.x, product.weights, product.y],
            shape: product.shape,
            dtype: product.dtype,
            wide: product.wide,
        },
    )?;
    if product.bias == 0 {
        return Ok(());
    }
    let elements = Elements {
        dtype: product.dtype,
        x: product.y,
        other: product.bias,
        count: m * n,
        width: n,
    };
    card.launch(stream, &bias_activation(&elements, None)?)
}
