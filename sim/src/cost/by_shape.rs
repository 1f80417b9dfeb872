//! Parts of layers as the sum of their products, each by its shape, and of what they do beside them.
//!
//! A product's time grows with its weights; what a part of a layer does beside its products (norms, activations, the first
//! moments of its kernels) does not. Rates of whole parts have both in them, and say too much of a model whose weights are
//! fewer beside the same, as on a GPU, where products of few rows take microseconds.

use std::ops::Range;

use plimsoll_core::Dtype;
use plimsoll_core::extrapolation::SizeUnit;
use plimsoll_core::hardware::{Compute, Curve, Inflections, ProductCurves};
use plimsoll_core::program::{Gemm, Gemms, Stage};
use plimsoll_core::units::Seconds;

use super::gemm::stand_ins;
use super::part::{Asked, Part};
use super::{PRODUCTS, of_type};

/// What a profile knows of products of one type by their shape, and of parts of layers beside theirs.
#[derive(Debug, Clone)]
pub(super) struct ByShape {
    /// Of whole weights: without biases, and with them.
    products: [Products; 2],
    /// Whether those of a part of a layer have biases, by [`Stage::RATED`].
    biased: [bool; 2],
    /// Of weights in 4-bit groups, likewise; empty where a profile has none.
    packed: [Products; 2],
    /// For up to so many rows products that share their input are one.
    joined_rows: u32,
    /// By part of a layer, and in each by width, ascending.
    beside: Vec<(Stage, Vec<(f64, Curve)>)>,
}

/// Products that were measured, by elements, ascending.
#[derive(Debug, Clone)]
struct Products {
    all: Vec<Product>,
    /// The most rows that all of them were measured for.
    rows: f64,
    /// Those that were measured for the most rows of all.
    of_most_rows: Vec<Product>,
}

impl Products {
    fn new<'c>(known: impl Iterator<Item = &'c ProductCurves>) -> Products {
        let product = |curves: &ProductCurves| Product {
            points: curves.inflections(),
            shape: Shape::new(curves.n, curves.k),
            curves: curves.clone(),
        };
        let mut all: Vec<Product> = known.map(product).collect();
        all.sort_by(|a, b| a.shape.elements().total_cmp(&b.shape.elements()));
        let rows = |product: &Product| product.curves.conventional.points().last().map(|p| p.0);
        let each = || all.iter().filter_map(rows);
        let most = each().fold(0.0, f64::max);
        Products {
            rows: each().fold(f64::INFINITY, f64::min),
            of_most_rows: all
                .iter()
                .filter(|it| rows(it) == Some(most))
                .cloned()
                .collect(),
            all,
        }
    }

    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Those that tell of so many rows: one that was not measured for as many does not, where others were.
    fn of_rows(&self, m: u32) -> &[Product] {
        match f64::from(m) > self.rows {
            true => &self.of_most_rows,
            false => &self.all,
        }
    }
}

/// A product that was measured.
#[derive(Debug, Clone)]
struct Product {
    curves: ProductCurves,
    points: Inflections,
    shape: Shape,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    n: f64,
    k: f64,
    ln_n: f64,
    ln_k: f64,
}

impl Shape {
    fn new(n: u32, k: u32) -> Shape {
        let [n, k] = [n, k].map(f64::from);
        Shape {
            n,
            k,
            ln_n: n.ln(),
            ln_k: k.ln(),
        }
    }

    fn elements(&self) -> f64 {
        self.n * self.k
    }

    /// How far another one is, in logarithms.
    fn distance(&self, other: &Shape) -> f64 {
        (self.ln_n - other.ln_n).abs() + (self.ln_k - other.ln_k).abs()
    }
}

impl Product {
    /// Its time for so many rows, by the implementation that an executor chooses for one product, or for several that it computes as one.
    fn seconds(&self, m: u32, joined: bool) -> f64 {
        let rows = f64::from(m);
        2.0 * rows * self.shape.elements() / self.curve(m, joined).at(rows)
    }

    fn curve(&self, m: u32, joined: bool) -> &Curve {
        let Product { curves, points, .. } = self;
        match joined {
            true => curves.joined_on_gpu(points, m).unwrap_or(&curves.gemv),
            false => curves.on_gpu(points, m),
        }
    }
}

impl ByShape {
    /// What is known of a type, and of layers whose products have biases or not, by [`Stage::RATED`]; none where products and what is beside them were not told apart.
    pub(super) fn new(compute: &Compute, dtype: Dtype, biased: [bool; 2]) -> Option<ByShape> {
        let all = || compute.products.iter();
        let is_known = |of: &Dtype| all().any(|known| known.dtype == *of && !known.packed);
        // As rates by size stand for those of a type that is as wide.
        let as_wide = stand_ins(dtype).into_iter();
        let mut as_wide = as_wide.filter(|other| other.size_bytes() == dtype.size_bytes());
        let dtype = as_wide.find(is_known)?;
        let products = of_either(
            |known| known.dtype == dtype && !known.packed,
            &compute.products,
        );
        // Codes are the same beside every type, and so is most of the time.
        let packed = of_either(|known| known.packed, &compute.products);
        let of_stage = |(stage, biased): (Stage, bool)| {
            let of = |biased: bool| -> Vec<(f64, Curve)> {
                let known = compute.beside_products.iter();
                let known =
                    known.filter(|it| (it.dtype, it.stage, it.biased) == (dtype, stage, biased));
                let curves = known.map(|it| (f64::from(it.width), it.rate.clone()));
                curves.collect()
            };
            let own = of(biased);
            let mut curves = if own.is_empty() { of(!biased) } else { own };
            curves.sort_by(|a, b| a.0.total_cmp(&b.0));
            (stage, curves)
        };
        let stages = Stage::RATED.into_iter().zip(biased).map(of_stage);
        let beside: Vec<_> = stages.filter(|(_, curves)| !curves.is_empty()).collect();
        let known = !products[0].is_empty() && !beside.is_empty();
        known.then_some(ByShape {
            products,
            biased,
            packed,
            joined_rows: compute.joined_rows.as_ref().map_or(0, |rows| rows.value),
            beside,
        })
    }

    /// Whether what parts of a layer do beside their products is known.
    pub(super) fn knows(&self, stages: &[Stage]) -> bool {
        let knows = |stage| self.beside.iter().any(|(known, _)| known == stage);
        stages.iter().all(knows)
    }

    /// Whether products with weights in 4 bits are known; those of whole ones stand for them where they are not.
    pub(super) fn knows_packed(&self) -> bool {
        !self.packed[0].is_empty()
    }

    /// Which of a part of a layer's products of so many rows may be computed as one.
    pub(super) fn shared(&self, stage: Stage, m: u32, gemms: &Gemms) -> Range<usize> {
        match m <= self.joined_rows {
            true => gemms.sharing(stage),
            false => 0..0,
        }
    }

    /// What parts of a layer so wide take together for so many rows, with so large a share of what is beside their products, and weights
    /// that are in 4 bits or whole; of their products some may be computed as one.
    pub(super) fn parts(
        &self,
        (stages, m, share): (&[Stage], u32, f64),
        (width, packed): (u32, bool),
        (gemms, shared): (&Gemms, Range<usize>),
        each: &mut impl FnMut(Part),
    ) {
        let all = match packed && self.knows_packed() {
            true => &self.packed,
            false => &self.products,
        };
        let known = |index| all[usize::from(self.is_biased(stages, index))].of_rows(m);
        let joined = gemms.together(&shared);
        let joined = joined.filter(|it| joins(known(shared.start), (m, *it)));
        for (index, gemm) in gemms.iter().enumerate() {
            match joined {
                Some(one) if index == shared.start => product(known(index), (m, one, true), each),
                Some(_) if shared.contains(&index) => {}
                _ => product(known(index), (m, gemm, false), each),
            }
        }
        let beside = stages
            .iter()
            .flat_map(|stage| self.beside(*stage, (m, width)));
        beside.flatten().for_each(|part| each(part.times(share)));
    }

    /// Whether a product of some parts of a layer has a bias. Several parts are a served layer's, whose first product gives queries, keys
    /// and values together.
    fn is_biased(&self, stages: &[Stage], index: usize) -> bool {
        let stage = match stages {
            [only] => only,
            all => &all[usize::from(index > 0)],
        };
        let mut rated = Stage::RATED.iter().zip(self.biased);
        rated.any(|(rated, biased)| biased && rated == stage)
    }

    /// What a part of a layer of some width does beside its products of so many rows; rates of other widths are between those
    /// that were measured, in logarithms. Narrower than all of them, it is no less than for one row of the narrowest.
    fn beside(&self, stage: Stage, (m, width): (u32, u32)) -> [Option<Part>; 2] {
        let Some((_, curves)) = self.beside.iter().find(|(known, _)| *known == stage) else {
            return [None, None];
        };
        let (rows, width) = (f64::from(m), f64::from(width));
        let after = curves.partition_point(|(known, _)| *known < width);
        let high = &curves[after.min(curves.len() - 1)];
        let low = &curves[after.saturating_sub(1)];
        let part = |curve: &Curve, seconds: f64| Part {
            number: "compute.beside_products",
            seconds: Seconds(seconds),
            spread: curve.spread,
            asked: Some(Asked::of(curve, rows, SizeUnit::Tokens)),
            weights: None,
        };
        if high.0 <= low.0 {
            let least = if width < low.0 {
                low.0 / low.1.at(1.0)
            } else {
                0.0
            };
            let seconds = rows * width / low.1.at(rows);
            return [Some(part(&low.1, seconds.max(least))), None];
        }
        let share = (width / low.0).ln() / (high.0 / low.0).ln();
        let [rate_low, rate_high] = [low, high].map(|(_, curve)| curve.at(rows).ln());
        let seconds = rows * width / (rate_low + share * (rate_high - rate_low)).exp();
        let [by_low, by_high] = [1.0 - share, share].map(|share| share * seconds);
        [Some(part(&low.1, by_low)), Some(part(&high.1, by_high))]
    }
}

/// A product `[m, k] x [n, k]^T` by those that were measured (by elements, ascending): as it was itself, or on a line between the
/// nearest shapes that have no more elements and no fewer. Beyond all of them the nearest one's rate is taken; of a smaller one no
/// less than that one's time for one row, of which little is its weights'.
fn product(all: &[Product], (m, gemm, joined): (u32, Gemm, bool), each: &mut impl FnMut(Part)) {
    let shape = Shape::new(gemm.n, gemm.k);
    let above = all.partition_point(|known| known.shape.elements() < shape.elements());
    let up_to = all.partition_point(|known| known.shape.elements() <= shape.elements());
    let low = nearest(&all[..up_to], &shape);
    let high = nearest(&all[above..], &shape);
    let mut add = |known: &Product, share: f64, least: f64| {
        let seconds = (share * known.seconds(m, joined)).max(least);
        each(part(
            all,
            (known, known.curve(m, joined)),
            (m, &shape),
            seconds,
        ));
    };
    match (low, high) {
        (Some(low), Some(high)) if high.shape.elements() > low.shape.elements() => {
            let [from, to] = [low, high].map(|known| known.shape.elements());
            let share = (shape.elements() - from) / (to - from);
            add(low, 1.0 - share, 0.0);
            add(high, share, 0.0);
        }
        (Some(known), _) | (None, Some(known)) => {
            let times = shape.elements() / known.shape.elements();
            let least = if times < 1.0 {
                known.seconds(1, joined)
            } else {
                0.0
            };
            add(known, times, least);
        }
        (None, None) => {}
    }
}

/// Whether products are computed as one that is so large: what computes the nearest that was measured says so.
fn joins(all: &[Product], (m, gemm): (u32, Gemm)) -> bool {
    let nearest = nearest(all, &Shape::new(gemm.n, gemm.k));
    nearest.is_some_and(|known| known.curves.joined_on_gpu(&known.points, m).is_some())
}

/// A time by a curve of one of all that were measured.
fn part(
    all: &[Product],
    (known, curve): (&Product, &Curve),
    (m, shape): (u32, &Shape),
    seconds: f64,
) -> Part {
    let of = |at: usize| all[at].shape.elements();
    Part {
        number: of_type(PRODUCTS, known.curves.dtype),
        seconds: Seconds(seconds),
        spread: curve.spread,
        asked: Some(Asked::of(curve, f64::from(m), SizeUnit::Tokens)),
        weights: Some(Asked {
            size: shape.elements(),
            first: of(0),
            last: of(all.len() - 1),
            unit: SizeUnit::Elements,
        }),
    }
}

/// Products without biases, and with them; where there are none of a kind, all of them stand for it.
fn of_either(of: impl Fn(&ProductCurves) -> bool, all: &[ProductCurves]) -> [Products; 2] {
    let of = || all.iter().filter(|known| of(known));
    [false, true].map(|biased| {
        let own = Products::new(of().filter(|known| known.biased == biased));
        match own.is_empty() {
            true => Products::new(of()),
            false => own,
        }
    })
}

fn nearest<'p>(products: &'p [Product], shape: &Shape) -> Option<&'p Product> {
    let distance = |known: &&Product| known.shape.distance(shape);
    let all = products.iter();
    all.min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

#[cfg(test)]
mod tests {
    use plimsoll_core::hardware::{BesideProducts, Quantity};

    use super::*;

    fn curve(points: &[(f64, f64)]) -> Curve {
        Curve::new(points.to_vec(), "a test", None).expect("points")
    }

    /// A product of weights of a shape that takes so long, however many rows it has.
    fn measured(n: u32, k: u32, seconds: f64) -> ProductCurves {
        let rate = |m: f64| (m, 2.0 * m * f64::from(n) * f64::from(k) / seconds);
        ProductCurves {
            dtype: Dtype::F16,
            n,
            k,
            packed: false,
            biased: false,
            gemv: curve(&[rate(1.0), rate(100.0)]),
            flat: None,
            conventional: curve(&[(1.0, 1.0)]),
        }
    }

    /// What takes so long beside products of some width, however many rows they have.
    fn beside(stage: Stage, width: u32, seconds: f64) -> BesideProducts {
        let rate = |m: f64| (m, m * f64::from(width) / seconds);
        BesideProducts {
            dtype: Dtype::F16,
            stage,
            biased: true,
            width,
            rate: curve(&[rate(1.0), rate(100.0)]),
        }
    }

    fn known(products: Vec<ProductCurves>, beside: Vec<BesideProducts>) -> Option<ByShape> {
        let profile = plimsoll_core::hardware::embedded::profile("t4").expect("embedded");
        let compute = Compute {
            products,
            beside_products: beside,
            ..profile.compute
        };
        ByShape::new(&compute, Dtype::F16, [true; 2])
    }

    fn seconds(known: &ByShape, m: u32, [n, k]: [u32; 2]) -> f64 {
        let mut all = 0.0;
        product(
            known.products[1].of_rows(m),
            (m, Gemm { n, k }, false),
            &mut |part| all += part.seconds.0,
        );
        all
    }

    fn beside_us(known: &ByShape, stage: Stage, of: (u32, u32)) -> f64 {
        let parts = known.beside(stage, of).into_iter().flatten();
        1e6 * parts.map(|part| part.seconds.0).sum::<f64>()
    }

    #[test]
    fn a_shape_is_its_own_time_or_lies_on_a_line_between_the_nearest() {
        let shapes = vec![
            measured(100, 100, 2e-6),
            measured(300, 100, 5e-6),
            measured(100, 300, 7e-6),
            measured(300, 300, 16e-6),
        ];
        let known = known(shapes, vec![beside(Stage::Project, 100, 1e-6)]).expect("known");
        let near = |shape, us: f64| {
            let found = 1e6 * seconds(&known, 3, shape);
            assert!((found - us).abs() < 1e-9 * us, "{shape:?}: {found}");
        };
        near([100, 300], 7.0);
        // Between 30 and 90 thousand elements, and of those of 30 thousand the one that is as high.
        near([300, 200], 10.5);
        near([200, 300], 11.5);
        // Beyond all of them.
        near([600, 300], 32.0);
        // Of a smaller one little is its weights'.
        near([50, 100], 2.0);
    }

    #[test]
    fn a_shape_that_was_not_measured_for_so_many_rows_does_not_tell_of_them() {
        let few = measured(200, 100, 3e-6);
        let many = |n: u32, seconds: f64| {
            let rate = |m: f64| (m, 2.0 * m * f64::from(n) * 100.0 / seconds);
            ProductCurves {
                conventional: curve(&[rate(1.0), rate(1000.0)]),
                gemv: curve(&[(1.0, 1.0)]),
                ..measured(n, 100, seconds)
            }
        };
        let all = vec![many(100, 20e-6), few, many(400, 50e-6)];
        let known = known(all, vec![beside(Stage::Project, 100, 1e-6)]).expect("known");
        let us = |m| (1e6 * seconds(&known, m, [200, 100])).round();
        assert_eq!([us(1), us(1000)], [3.0, 30.0]);
    }

    /// The vendor's library is the fastest from 16 rows on, but has no launch for several products. In 4 bits it unpacks each.
    #[test]
    fn products_that_share_their_input_are_one_where_rows_are_few() {
        let profile = plimsoll_core::hardware::embedded::profile("t4").expect("embedded");
        let of = |packed: bool, n: u32, seconds: f64| {
            let curve = |times: [(f64, f64); 3]| {
                let rate = |(m, times): (f64, f64)| {
                    (m, 2.0 * m * f64::from(n) * 112.0 / (times * seconds))
                };
                curve(&times.map(rate))
            };
            ProductCurves {
                packed,
                gemv: curve([(1.0, 1.0), (15.0, 1.0), (16.0, 4.0)]),
                flat: (!packed).then(|| curve([(1.0, 2.0), (15.0, 2.0), (16.0, 2.0)])),
                conventional: curve([(1.0, 9.0), (15.0, 9.0), (16.0, 1.0)]),
                ..measured(n, 112, seconds)
            }
        };
        let shapes = [(100, 2e-6), (300, 5e-6)];
        let products = [false, true].map(|packed| shapes.map(|(n, s)| of(packed, n, s)));
        let compute = Compute {
            products: products.concat(),
            beside_products: vec![beside(Stage::Project, 100, 1e-6)],
            joined_rows: Some(Quantity::new(16, "a test")),
            ..profile.compute
        };
        let known = ByShape::new(&compute, Dtype::F16, [true; 2]).expect("known");
        let gemms = Gemms::new(&[Gemm { n: 100, k: 112 }; 3]);
        let us = |m: u32, packed: bool| {
            let mut all = 0.0;
            let shared = known.shared(Stage::Project, m, &gemms);
            let of = (&[Stage::Project][..], m, 1.0);
            known.parts(of, (100, packed), (&gemms, shared), &mut |part| {
                all += 1e6 * part.seconds.0;
            });
            all.round()
        };
        let of_rows = |packed| [1, 15, 16].map(|m| us(m, packed));
        assert_eq!(of_rows(false), [6.0, 6.0, 11.0]);
        assert_eq!(of_rows(true), [6.0, 6.0, 7.0]);
        // Of more rows each is by itself.
        assert_eq!(us(17, false), 1.0 + (3.0 * 2.0 * 17.0_f64 / 16.0).round());
    }

    #[test]
    fn what_is_beside_products_does_not_know_their_weights() {
        let rates = [(100, 1e-6), (400, 4e-6)].map(|(width, s)| beside(Stage::Finish, width, s));
        let known = known(vec![measured(100, 100, 2e-6)], rates.to_vec()).expect("known");
        let us = |m, width| beside_us(&known, Stage::Finish, (m, width));
        let all = [
            us(1, 100),
            us(50, 100),
            us(1, 200),
            us(1, 400),
            us(1, 800),
            us(7, 50),
        ];
        let expected = [1.0, 1.0, 2.0, 4.0, 8.0, 1.0];
        let off = all.iter().zip(expected).map(|(a, b)| (a - b).abs());
        assert!(off.fold(0.0, f64::max) < 1e-9, "{all:?}");
        assert!(known.knows(&[Stage::Finish]) && !known.knows(&Stage::RATED));
        assert!(
            known
                .beside(Stage::Project, (1, 100))
                .iter()
                .all(Option::is_none)
        );
    }

    #[test]
    fn layers_without_biases_have_their_own_rates_where_there_are_such() {
        let unbiased = BesideProducts {
            biased: false,
            ..beside(Stage::Project, 100, 1e-6)
        };
        let all = [
            unbiased,
            beside(Stage::Project, 100, 3e-6),
            beside(Stage::Finish, 100, 5e-6),
        ];
        let profile = plimsoll_core::hardware::embedded::profile("t4").expect("embedded");
        let compute = Compute {
            products: vec![measured(100, 100, 2e-6)],
            beside_products: all.to_vec(),
            ..profile.compute
        };
        let us = |biased, stage| {
            let known = ByShape::new(&compute, Dtype::F16, biased).expect("known");
            beside_us(&known, stage, (1, 100)).round()
        };
        let found = [[false; 2], [true; 2], [true, false]]
            .map(|biased| Stage::RATED.map(|stage| us(biased, stage)));
        assert_eq!(found, [[1.0, 5.0], [3.0, 5.0], [3.0, 5.0]]);
    }

    /// A model may have biases in one part of its layers, whose products come first where both parts are asked for.
    #[test]
    fn products_with_biases_are_others() {
        let whole = [(false, 2e-6), (true, 5e-6)].map(|(biased, seconds)| ProductCurves {
            biased,
            ..measured(100, 112, seconds)
        });
        let packed = whole.clone().map(|whole| ProductCurves {
            packed: true,
            ..whole
        });
        let profile = plimsoll_core::hardware::embedded::profile("t4").expect("embedded");
        let stages = Stage::RATED.map(|stage| beside(stage, 100, 1e-6));
        let compute = Compute {
            products: whole.into_iter().chain(packed).collect(),
            beside_products: stages.to_vec(),
            ..profile.compute
        };
        let us = |biased, stages: &[Stage], packed| {
            // bf16 has those of f16.
            let known = ByShape::new(&compute, Dtype::Bf16, biased).expect("known");
            let gemms = Gemms::new(&[Gemm { n: 100, k: 112 }; 4]);
            let mut all = 0.0;
            known.parts(
                (stages, 1, 0.0),
                (100, packed),
                (&gemms, 0..0),
                &mut |part| all += 1e6 * part.seconds.0,
            );
            all.round()
        };
        for packed in [false, true] {
            assert_eq!(us([false; 2], &Stage::RATED, packed), 8.0);
            assert_eq!(us([true; 2], &Stage::RATED, packed), 20.0);
            assert_eq!(us([true, false], &Stage::RATED, packed), 11.0);
            assert_eq!(us([true, false], &Stage::RATED[..1], packed), 20.0);
            assert_eq!(us([true, false], &Stage::RATED[1..], packed), 8.0);
        }
    }

    #[test]
    fn without_both_nothing_is_known() {
        assert!(known(vec![measured(100, 100, 1e-6)], Vec::new()).is_none());
        assert!(known(Vec::new(), vec![beside(Stage::Finish, 100, 1e-6)]).is_none());
    }
}
