//! Products with weights, by the implementation that suits their shape, and what stands around them.

use plimsoll_core::hardware::{Implementation, Inflections};
use plimsoll_core::model::{Norm as NormKind, TensorRole};

use super::ground::Ground;
use super::issue::{Piece, Work};
use super::multiply::multiply;
use crate::cpu::error::TaskError;
use crate::cuda::Launch;
use crate::cuda::launches::{
    self, Elements, JOINED_ROWS, Norm, Product, bias_activation, layer_norm, matrix_groups,
    rms_norm,
};
use crate::dispatch::{Dispatch, Weights};

/// For a shape that nobody measured: the paper's example (section 5, Figure 9), where the flat product has from two rows on to
/// as many as a conventional tile pads to.
const UNMEASURED: Inflections = Inflections {
    m1: Some(2),
    m2: Some(65),
};

/// The same of weights in 4 bits.
const UNMEASURED_PACKED: Inflections = Inflections {
    m1: Some(9),
    m2: Some(9),
};

/// What computes products that share their input, and have the columns of one matrix together; none where each is computed by itself.
pub(crate) fn choose_joined(
    dispatch: &Dispatch,
    m: usize,
    weights: Weights,
) -> Option<Implementation> {
    if m > JOINED_ROWS {
        return None;
    }
    points(dispatch, weights).joined_on_gpu(m as u32, weights.on_gpu())
}

/// What computes a product of so many rows. With weights in 4 bits that is GEMV, which reads them as they are, or the conventional
/// way, which is to unpack them and to do what suits whole ones; there is no flat product of such.
pub(crate) fn choose(dispatch: &Dispatch, m: usize, weights: Weights) -> Implementation {
    let m = u32::try_from(m).unwrap_or(u32::MAX);
    points(dispatch, weights).on_gpu(m, weights.on_gpu())
}

/// The table's, or those of the same weights with a bias or without, or else what stands for both.
fn points(dispatch: &Dispatch, weights: Weights) -> Inflections {
    let other = Weights {
        biased: !weights.biased,
        ..weights
    };
    let known = dispatch.points(weights).or_else(|| dispatch.points(other));
    known.unwrap_or(match weights.packed {
        true => UNMEASURED_PACKED,
        false => UNMEASURED,
    })
}

/// Rows of a product, and where they and the result are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub x: u64,
    pub y: u64,
    pub m: usize,
    /// The result is f32.
    pub wide: bool,
}

impl<G: Ground> Work<'_, G> {
    /// `y = x times a matrix`, and a bias where the model has one.
    pub(super) fn linear(
        &self,
        rows: Rows,
        weight: TensorRole,
        bias: Option<TensorRole>,
    ) -> Result<(), TaskError> {
        self.whole(self.product(rows, weight, bias)?)
    }

    /// The same of several matrices with the same rows, whose results go to places of their own: in one launch where one kernel
    /// computes them all.
    pub(super) fn linears(
        &self,
        (x, m): (u64, usize),
        each: &[(u64, TensorRole, TensorRole)],
    ) -> Result<(), TaskError> {
        let of = |&(y, weight, bias): &(u64, TensorRole, TensorRole)| {
            let wide = false;
            self.product(Rows { x, y, m, wide }, weight, Some(bias))
        };
        let products = each.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        match self.joined(&products)? {
            Some(launch) => self.launch(&launch),
            None => products.into_iter().try_for_each(|it| self.whole(it)),
        }
    }

    /// The launch that computes products of the same rows, if one does.
    fn joined(&self, products: &[Product]) -> Result<Option<Launch>, TaskError> {
        let [first, _, ..] = products else {
            return Ok(None);
        };
        let [m, _, k] = first.shape;
        if products.iter().any(|it| it.packed != first.packed) {
            return Ok(None);
        }
        let weights = Weights {
            dtype: first.dtype,
            n: products.iter().map(|it| it.shape[1]).sum(),
            k,
            packed: first.packed,
            biased: products.iter().any(|it| it.bias != 0),
        };
        Ok(match choose_joined(&self.device.dispatch, m, weights) {
            Some(Implementation::Flat) => Some(launches::thin_joined(products)?),
            Some(_) => Some(launches::gemv_joined(products)?),
            None => None,
        })
    }

    /// A product with a matrix, and a bias where the model has one.
    fn product(
        &self,
        rows: Rows,
        weight: TensorRole,
        bias: Option<TensorRole>,
    ) -> Result<Product, TaskError> {
        let tensor = self.need(weight)?;
        Ok(Product {
            dtype: self.turn.dtype(),
            x: rows.x,
            weights: tensor.address,
            bias: bias.map_or(Ok(0), |role| self.vector(role))?,
            y: rows.y,
            shape: [rows.m, tensor.spec.rows as usize, tensor.spec.cols as usize],
            wide: rows.wide,
            packed: tensor.packed,
            fresh: false,
        })
    }

    /// Computes a product with all rows of a matrix, which is unpacked first where that is better.
    fn whole(&self, product: Product) -> Result<(), TaskError> {
        let [_, n, k] = product.shape;
        let stays = self.stays_packed(product.shape, product.bias != 0);
        let product = match product.packed && !stays {
            true => self.unpacked(product, self.matrix_room(n * k)?)?,
            false => product,
        };
        self.multiply(&product, n)
    }

    /// Whether a product with weights in 4 bits reads them as they are: by a layer's m, n and k, since whole layers are what was
    /// measured.
    pub(super) fn stays_packed(&self, [m, n, k]: [usize; 3], biased: bool) -> bool {
        let weights = Weights {
            dtype: self.turn.dtype(),
            n,
            k,
            packed: true,
            biased,
        };
        choose(&self.device.dispatch, m, weights) == Implementation::Gemv
    }

    /// Unpacks a product's weights, a matrix or whole bands of its rows, to some room; gives the product with these.
    pub(super) fn unpacked(&self, product: Product, room: u64) -> Result<Product, TaskError> {
        let [_, n, k] = product.shape;
        let places = [room, product.weights];
        self.launch(&matrix_groups((product.dtype, false), places, [n, k])?)?;
        Ok(Product {
            weights: room,
            packed: false,
            fresh: true,
            ..product
        })
    }

    /// Multiplies with all rows of a layer's weights, or with some: `layer_rows` is how many the layer has, since whole layers are
    /// what was measured. Weights in 4 bits are those that stay so.
    pub(super) fn multiply(&self, product: &Product, layer_rows: usize) -> Result<(), TaskError> {
        if product.packed {
            return self.launch(&launches::gemv(product)?);
        }
        let [m, _, k] = product.shape;
        let weights = Weights {
            dtype: product.dtype,
            n: layer_rows,
            k,
            packed: false,
            biased: product.bias != 0,
        };
        let by = match choose(&self.device.dispatch, m, weights) {
            // A bias of wide results has no kernel of its own.
            Implementation::Conventional if product.bias != 0 && product.wide => {
                Implementation::Flat
            }
            chosen => chosen,
        };
        Ok(multiply((&*self.device.card, self.stream), by, product)?)
    }

    /// Adds a bias (0: none) to rows and applies an activation, in place.
    pub(super) fn activate(
        &self,
        (x, bias): (u64, u64),
        [rows, width]: [usize; 2],
        activation: Option<crate::kernels::activation::Activation>,
    ) -> Result<(), TaskError> {
        let elements = self.elements(x, bias, [rows, width]);
        self.launch(&bias_activation(&elements, activation)?)
    }

    /// Operands of what is done element by element.
    pub(super) fn elements(&self, x: u64, other: u64, [rows, width]: [usize; 2]) -> Elements {
        Elements {
            dtype: self.turn.dtype(),
            x,
            other,
            count: rows * width,
            width,
        }
    }

    /// Normalises rows of activations.
    pub(super) fn normalise(
        &self,
        (x, y): (u64, u64),
        rows: usize,
        [weight, bias]: [TensorRole; 2],
    ) -> Result<(), TaskError> {
        let model = self.turn.model();
        let norm = Norm {
            dtype: self.turn.dtype(),
            x,
            weight: self.need(weight)?.address,
            bias: self.vector(bias)?,
            y,
            rows,
            width: model.hidden_size as usize,
            epsilon: model.norm_eps as f32,
        };
        self.launch(&match model.norm {
            NormKind::LayerNorm => layer_norm(&norm)?,
            NormKind::RmsNorm => rms_norm(&norm)?,
        })
    }

    /// Normalises each head of some tokens' queries or keys by its root mean square, in place.
    pub(super) fn normalise_heads(
        &self,
        heads: u64,
        tokens: usize,
        weight: TensorRole,
    ) -> Result<(), TaskError> {
        let model = self.turn.model();
        let of_token = match weight {
            TensorRole::QNormWeight => model.num_attention_heads,
            _ => model.num_key_value_heads,
        };
        let norm = Norm {
            dtype: self.turn.dtype(),
            x: heads,
            weight: self.need(weight)?.address,
            bias: 0,
            y: heads,
            rows: tokens * of_token as usize,
            width: model.head_dim as usize,
            epsilon: model.norm_eps as f32,
        };
        self.launch(&rms_norm(&norm)?)
    }

    /// Pieces of the activations, one after another at `to`: normalised, or as they are.
    pub(super) fn gathered(
        &self,
        pieces: &[Piece],
        to: u64,
        norm: Option<[TensorRole; 2]>,
    ) -> Result<(), TaskError> {
        for piece in pieces {
            let into = to + self.row_bytes() * piece.first as u64;
            match norm {
                Some(roles) => self.normalise((piece.address, into), piece.tokens, roles)?,
                None => self.copy(into, piece.address, piece.tokens * self.width())?,
            }
        }
        Ok(())
    }

    /// Adds rows to the pieces of the activations, and normalises these where the model does so after.
    pub(super) fn add(
        &self,
        pieces: &[Piece],
        rows: u64,
        norm: Option<[TensorRole; 2]>,
    ) -> Result<(), TaskError> {
        for piece in pieces {
            let from = rows + self.row_bytes() * piece.first as u64;
            let shape = [piece.tokens, self.width()];
            let elements = self.elements(piece.address, from, shape);
            self.launch(&launches::residual(&elements)?)?;
            if let Some(roles) = norm {
                self.normalise((piece.address, piece.address), piece.tokens, roles)?;
            }
        }
        Ok(())
    }

    /// Elements of a token's activations.
    pub(super) fn width(&self) -> usize {
        self.turn.model().hidden_size as usize
    }

    fn row_bytes(&self) -> u64 {
        (self.width() * self.element()) as u64
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;

    use super::*;

    #[test]
    fn a_shape_has_its_own_points_and_depths_that_are_not_eights_no_flat_product() {
        use Implementation::{Conventional, Flat, Gemv};
        let own = Inflections {
            m1: Some(4),
            m2: None,
        };
        let weights = |n, k| Weights {
            dtype: Dtype::F16,
            n,
            k,
            packed: false,
            biased: false,
        };
        let dispatch = Dispatch::of([(weights(96, 64), own)]);
        let chosen = |n, k| [3, 900].map(|m| choose(&dispatch, m, weights(n, k)));
        // Nobody timed its flat product for so many.
        assert_eq!(chosen(96, 64), [Gemv, Conventional]);
        assert_eq!(choose(&dispatch, 128, weights(96, 64)), Flat);
        // A bias of its own is another time; that of the other kind stands for it.
        let biased = Weights {
            biased: true,
            ..weights(96, 64)
        };
        let both = Dispatch::of([
            (weights(96, 64), own),
            (
                biased,
                Inflections {
                    m1: Some(2),
                    m2: Some(2),
                },
            ),
        ]);
        let of = |dispatch| [weights(96, 64), biased].map(|it| choose(dispatch, 5, it));
        assert_eq!(of(&dispatch), [Flat, Flat]);
        assert_eq!(of(&both), [Flat, Conventional]);
        assert_eq!(chosen(64, 96), [Flat, Conventional]);
        assert_eq!(chosen(64, 100), [Gemv, Conventional]);
        let packed = |k| Weights {
            packed: true,
            ..weights(96, k)
        };
        let unmeasured = |k| [8, 9].map(|m| choose(&dispatch, m, packed(k)));
        assert_eq!(unmeasured(48), [Gemv, Conventional]);
        assert_eq!(unmeasured(72), [Conventional; 2]);
        // A table that ends before unpacking is better says nothing of prompts.
        let never = Inflections { m1: None, m2: None };
        let dispatch = Dispatch::of([(packed(64), never)]);
        let measured = [128, 129].map(|m| choose(&dispatch, m, packed(64)));
        assert_eq!(measured, [Gemv, Conventional]);
    }
}
