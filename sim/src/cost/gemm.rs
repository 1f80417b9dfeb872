//! Rates of matrix products by shape and number of tokens.

use plimsoll_core::Dtype;
use plimsoll_core::extrapolation::SizeUnit;
use plimsoll_core::hardware::{Curve, DeviceKind, GemmCurve, Inflections, ProductCurves};
use plimsoll_core::program::Stage;
use plimsoll_core::units::Seconds;

use super::part::{Asked, Part};
use super::{PRODUCTS, of_type};

/// Curves over M by the elements of the weight matrix (none: for all sizes), ascending.
type BySize = Vec<(Option<f64>, Curve)>;

/// The curves of one type over M, by the size of the weight matrix.
#[derive(Debug, Clone)]
pub(super) struct GemmRates {
    /// Their key in the profile.
    number: &'static str,
    /// The type that they are of, where it is another one.
    stand_in: Option<Dtype>,
    whole: Curves,
    /// For weights in 4-bit groups, where a profile has such.
    packed: Option<Curves>,
    /// Of stated shapes, with the implementation that computes them: the product alone.
    products: Vec<(ProductCurves, Inflections)>,
    /// Whether they are a GPU's, whose tables end.
    on_gpu: bool,
}

/// Curves by the size of the weight matrix: of any part of a layer, and of those that have curves of their own.
#[derive(Debug, Clone, Default)]
struct ByStage {
    any: BySize,
    own: Vec<(Stage, BySize)>,
}

impl ByStage {
    fn new(known: &[GemmCurve], kind: (Dtype, bool, bool)) -> ByStage {
        let of_kind = |c: &&GemmCurve| (c.dtype, c.reused, c.packed) == kind;
        let mut own: Vec<(Stage, BySize)> = Vec::new();
        for stage in known.iter().filter(of_kind).filter_map(|c| c.stage) {
            if own.iter().all(|(known, _)| *known != stage) {
                let of_stage = known.iter().filter(|c| c.stage == Some(stage));
                own.push((stage, by_size(of_stage.filter(of_kind))));
            }
        }
        ByStage {
            any: by_size(known.iter().filter(of_kind)),
            own,
        }
    }

    fn of(&self, stage: Option<Stage>) -> &BySize {
        let stage = stage.and_then(Stage::rated_as);
        let own = self.own.iter().find(|(known, _)| Some(*known) == stage);
        own.map_or(&self.any, |(_, own)| own)
    }

    fn is_empty(&self) -> bool {
        self.any.is_empty()
    }
}

#[derive(Debug, Clone, Default)]
struct Curves {
    fresh: ByStage,
    /// For weights that the task before used; the same as the others where a profile has none.
    reused: ByStage,
    /// Whether it has such.
    knows_reused: bool,
}

impl Curves {
    fn new(known: &[GemmCurve], dtype: Dtype, packed: bool) -> Option<Curves> {
        let of = |reused| ByStage::new(known, (dtype, reused, packed));
        let (fresh, reused) = (of(false), of(true));
        (!fresh.is_empty()).then(|| Curves {
            knows_reused: !reused.is_empty(),
            reused: match reused.is_empty() {
                true => fresh.clone(),
                false => reused,
            },
            fresh,
        })
    }
}

/// A product `[m, k] x [n, k]^T`, whether the task before used the same weights, and how they are stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product {
    /// The part of a layer that it is in; none where that is not known.
    pub stage: Option<Stage>,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub reused: bool,
    /// Whether the weights are in 4-bit groups.
    pub packed: bool,
}

impl Product {
    pub(super) fn elements(&self) -> f64 {
        f64::from(self.n) * f64::from(self.k)
    }
}

/// The curves nearest in size, and how far the product is from the first to the second, in logarithms.
struct Neighbours<'a> {
    low: &'a (Option<f64>, Curve),
    high: Option<(&'a (Option<f64>, Curve), f64)>,
}

impl GemmRates {
    /// Rates of a processor's products for tensors of a type; `numbers` are their keys in the profile, by type.
    pub(super) fn new(curves: &[GemmCurve], dtype: Dtype, numbers: [&'static str; 3]) -> GemmRates {
        let known = stand_ins(dtype)
            .into_iter()
            .find(|known| Curves::new(curves, *known, false).is_some());
        let known = known.unwrap_or(dtype);
        let packed = stand_ins(dtype).into_iter();
        GemmRates {
            number: of_type(numbers, known),
            stand_in: (known != dtype).then_some(known),
            whole: Curves::new(curves, known, false).unwrap_or_default(),
            // Codes are the same beside every type, and so is most of the time.
            packed: packed
                .filter_map(|known| Curves::new(curves, known, true))
                .next(),
            products: Vec::new(),
            on_gpu: false,
        }
    }

    /// The type whose rates stand for those of a type that the profile does not know.
    pub(super) fn stand_in(&self) -> Option<Dtype> {
        self.stand_in
    }

    /// The same with what was measured of stated shapes, which is better known than what lies between sizes.
    pub(super) fn with_products(
        mut self,
        (products, kind): (&[ProductCurves], DeviceKind),
        dtype: Dtype,
    ) -> GemmRates {
        self.on_gpu = kind == DeviceKind::Gpu;
        // Codes are the same beside every type.
        let of_type = products.iter();
        let of_type = of_type.filter(|known| known.dtype == dtype || known.packed);
        self.products = of_type
            .map(|known| (known.clone(), known.inflections()))
            .collect();
        self
    }

    /// The time of a product whose shape was measured, by the implementation that an executor chooses for its rows.
    /// Weights that the task before used as well may lie in a cache, of which only curves of reused weights know.
    pub(super) fn measured(&self, product: Product) -> Option<Part> {
        let knows_reused = self.whole.knows_reused;
        if self.products.is_empty() || product.reused && knows_reused {
            return None;
        }
        // Where unpacking is counted apart, the product is that of whole weights.
        let packed = product.packed && self.measured_packed();
        let shape = (product.n, product.k, packed);
        let own = |(known, _): &&(ProductCurves, _)| (known.n, known.k, known.packed) == shape;
        let products = self.products.iter().filter(own);
        let (known, points) = products.min_by_key(|(known, _)| known.biased)?;
        let curve = match self.on_gpu {
            true => known.on_gpu(points, product.m),
            false => known.of(points.choose(product.m))?,
        };
        let m = f64::from(product.m);
        Some(Part {
            number: of_type(PRODUCTS, known.dtype),
            seconds: Seconds(2.0 * m * product.elements() / curve.at(m)),
            spread: curve.spread,
            asked: Some(Asked::of(curve, m, SizeUnit::Tokens)),
            weights: None,
        })
    }

    /// Whether products with packed weights were measured, their unpacking in them.
    pub(super) fn measured_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Whether rates were measured at stated shapes.
    pub(super) fn measured_by_shape(&self) -> bool {
        self.whole
            .fresh
            .any
            .first()
            .is_some_and(|(elements, _)| elements.is_some())
    }

    /// The time of a product's arithmetic, by the nearest measured sizes of weights: one part, or two.
    pub(super) fn parts(&self, product: Product) -> [Option<Part>; 2] {
        let packed = self.packed.as_ref().filter(|_| product.packed);
        let curves = packed.unwrap_or(&self.whole);
        let curves = match product.reused {
            true => &curves.reused,
            false => &curves.fresh,
        };
        let curves = curves.of(product.stage);
        let Some(Neighbours { low, high }) = neighbours(curves, product.elements()) else {
            return [None, None];
        };
        let m = f64::from(product.m);
        let flops = 2.0 * m * product.elements();
        let weights = asked_weights(curves, product.elements());
        let part = |curve: &Curve, seconds: f64| Part {
            number: self.number,
            seconds: Seconds(seconds),
            spread: curve.spread,
            asked: Some(Asked::of(curve, m, SizeUnit::Tokens)),
            weights,
        };
        let rate_low = low.1.at(m).ln();
        let Some((high, share)) = high else {
            return [Some(part(&low.1, flops / rate_low.exp())), None];
        };
        let rate = (rate_low + share * (high.1.at(m).ln() - rate_low)).exp();
        let seconds = flops / rate;
        let by_high = seconds * share;
        [
            Some(part(&low.1, seconds - by_high)),
            Some(part(&high.1, by_high)),
        ]
    }
}

/// A type and those whose rates stand for it where a profile does not know it, best first: the 16-bit
/// types move the same bytes, and a processor that multiplies both does so at one rate. (One that has to
/// emulate bf16 is slower than this; its profile says so with a curve of its own.)
pub(super) const fn stand_ins(dtype: Dtype) -> [Dtype; 3] {
    match dtype {
        Dtype::F32 => [Dtype::F32, Dtype::F16, Dtype::Bf16],
        Dtype::F16 => [Dtype::F16, Dtype::Bf16, Dtype::F32],
        Dtype::Bf16 => [Dtype::Bf16, Dtype::F16, Dtype::F32],
    }
}

fn neighbours(curves: &BySize, elements: f64) -> Option<Neighbours<'_>> {
    let last = curves.len().checked_sub(1)?;
    let above = curves
        .iter()
        .position(|(at, _)| at.unwrap_or(0.0) >= elements);
    let low = &curves[above.map_or(last, |index| index.saturating_sub(1))];
    let high = &curves[above.unwrap_or(last)];
    let high = match (low.0, high.0) {
        (Some(from), Some(to)) if to > from => {
            Some((high, (elements / from).ln() / (to / from).ln()))
        }
        _ => None,
    };
    Some(Neighbours { low, high })
}

/// None where the curves are for all sizes.
fn asked_weights(curves: &BySize, elements: f64) -> Option<Asked> {
    Some(Asked {
        size: elements,
        first: curves.first()?.0?,
        last: curves.last()?.0?,
        unit: SizeUnit::Elements,
    })
}

fn by_size<'a>(known: impl Iterator<Item = &'a GemmCurve>) -> BySize {
    let mut curves: BySize = known
        .map(|c| {
            let elements = c.n.zip(c.k).map(|(n, k)| f64::from(n) * f64::from(k));
            (elements, c.rate.clone())
        })
        .collect();
    if curves.iter().any(|(elements, _)| elements.is_some()) {
        curves.retain(|(elements, _)| elements.is_some());
    }
    curves.sort_by(|a, b| a.0.unwrap_or(0.0).total_cmp(&b.0.unwrap_or(0.0)));
    curves
}
