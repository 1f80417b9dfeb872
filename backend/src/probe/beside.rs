//! What parts of layers do beside their products: their own time, less that of their products alone.

use std::collections::BTreeMap;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{BesideProducts, ProductCurves};
use plimsoll_core::program::{Gemm, Op, ResourceKind, Stage};

use super::assemble::{Rates, curve};
use super::samples::Timed;
use super::stats::median;

/// A part of a layer that ran.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerPart {
    dtype: Dtype,
    biased: bool,
    stage: Stage,
    task: Timed,
}

impl LayerPart {
    /// A task of a model whose products have biases, or not, on a card with a cache of so many bytes; none where it is no whole part
    /// of a layer on the device, or its weights may lie in the cache, from which products alone do not have them.
    pub fn new(
        (dtype, biased): (Dtype, bool),
        cache_bytes: usize,
        task: &Timed,
    ) -> Option<LayerPart> {
        let Op::Linear {
            stage,
            reused,
            ref gemms,
            ..
        } = task.op
        else {
            return None;
        };
        let of_device = task.kind == ResourceKind::Gpu && Stage::RATED.contains(&stage);
        let elements = gemms.iter().map(|it| u64::from(it.n) * u64::from(it.k));
        let weights = elements.sum::<u64>() * dtype.size_bytes();
        // The first part of a run is slower than others, so no layer should be known by that alone.
        let from_memory = !reused || weights > CACHES * cache_bytes as u64;
        (of_device && from_memory).then_some(LayerPart {
            dtype,
            biased,
            stage,
            task: *task,
        })
    }
}

/// Weights of so many times a cache's bytes do not lie in it.
const CACHES: u64 = 2;

/// What a curve is for.
type Key = (Dtype, Stage, bool, u32);

/// By what it is for and rows: seconds beside products, and of these.
type Found = BTreeMap<Key, BTreeMap<u32, Vec<[f64; 2]>>>;

/// Curves over rows, where products of up to so many that share their input are computed as one. Parts with a product that was not
/// measured alone are left out, and those that in the middle took no longer than their products, which were faster in them than
/// alone.
pub(super) fn curves(
    parts: &[LayerPart],
    (products, joined_rows): (&[ProductCurves], u32),
) -> Vec<BesideProducts> {
    let mut by_key = Found::new();
    for part in parts {
        let Op::Linear { m, gemms, .. } = part.task.op else {
            continue;
        };
        let shared = match m <= joined_rows {
            true => gemms.sharing(part.stage),
            false => 0..0,
        };
        let alone_s = |gemm, joined| {
            let of = (part.dtype, part.biased);
            alone_s(products, of, (m, gemm, joined))
        };
        let all = gemms.iter().enumerate();
        let alone = all.filter(|(index, _)| !shared.contains(index));
        let alone = alone.map(|(_, gemm)| alone_s(gemm, false));
        let joined = gemms.together(&shared).map(|gemm| alone_s(gemm, true));
        let all: Option<f64> = alone.chain(joined).sum();
        let (Some(all), Some(first)) = (all, gemms.iter().next()) else {
            continue;
        };
        let times = by_key.entry((part.dtype, part.stage, part.biased, first.k));
        let of_rows = times.or_default().entry(m).or_default();
        of_rows.push([part.task.seconds() - all, all]);
    }
    let of = |(key, times): (&Key, _)| {
        let (dtype, stage, biased, width) = *key;
        let rates = rates(width, times, |rows| least_of_more(&by_key, *key, rows));
        (!rates.is_empty()).then(|| BesideProducts {
            dtype,
            stage,
            biased,
            width,
            rate: curve(&rates),
        })
    };
    by_key.iter().filter_map(of).collect()
}

/// Elements a second by rows, from seconds that in single cases may be none or less, and that in the middle are `most` at most.
fn rates(width: u32, times: &BTreeMap<u32, Vec<[f64; 2]>>, most: impl Fn(u32) -> f64) -> Rates {
    let of_rows = |(m, times): (&u32, &Vec<[f64; 2]>)| {
        let [middle, _] = middle(times);
        let elements = f64::from(*m) * f64::from(width);
        let faster = (middle / most(*m)).max(1.0);
        let rate = |[s, _]: &[f64; 2]| faster * elements / s.max(middle / LEAST_OF_MIDDLE);
        let rates = times.iter().map(rate).collect();
        (middle > 0.0).then_some((u64::from(*m), rates))
    };
    times.iter().filter_map(of_rows).collect()
}

fn middle(times: &[[f64; 2]]) -> [f64; 2] {
    [0, 1].map(|of| median(&times.iter().map(|it| it[of]).collect::<Vec<_>>()))
}

/// The least that as many rows or more took in a layer as wide or wider: neither takes less. What took more was held up by the host,
/// which had not given the next kernel yet. (The least of noisy times is rather too little than too much.) What is little beside its
/// products says nothing, since it is a difference.
fn least_of_more(found: &Found, (dtype, stage, biased, width): Key, rows: u32) -> f64 {
    let alike = found.iter().filter(|((of, its, has, wide), _)| {
        (*of, *its, *has) == (dtype, stage, biased) && *wide >= width
    });
    let times = alike.flat_map(|(_, times)| times.range(rows..));
    let certain = times.filter_map(|(_, times)| {
        let [beside, products] = middle(times);
        (beside > CERTAIN * products).then_some(beside)
    });
    certain.fold(f64::INFINITY, f64::min)
}

/// A difference of this part of what it is taken from is certain.
const CERTAIN: f64 = 0.25;

/// Single times count as one part in so many of the middle one at least.
const LEAST_OF_MIDDLE: f64 = 16.0;

/// Seconds of a product with whole weights by itself, or of several that are computed as one, by what an executor chooses.
fn alone_s(
    products: &[ProductCurves],
    (dtype, biased): (Dtype, bool),
    (m, gemm, joined): (u32, Gemm, bool),
) -> Option<f64> {
    let of_shape = products.iter().filter(|known| {
        (known.dtype, known.packed, known.n, known.k) == (dtype, false, gemm.n, gemm.k)
    });
    let known = of_shape.min_by_key(|known| known.biased != biased);
    let rows = f64::from(m);
    let flops = 2.0 * rows * f64::from(gemm.n) * f64::from(gemm.k);
    let known = known?;
    let points = known.inflections();
    let curve = match joined {
        true => known.joined_on_gpu(&points, m)?,
        false => known.on_gpu(&points, m),
    };
    Some(flops / curve.at(rows))
}

#[cfg(test)]
mod tests {
    use plimsoll_core::hardware::Curve;

    use super::*;

    /// A product of weights of a shape that takes so long, however many rows it has.
    fn measured(n: u32, k: u32, seconds: f64) -> ProductCurves {
        let rate = |m: f64| (m, 2.0 * m * f64::from(n) * f64::from(k) / seconds);
        let of = |points| Curve::new(points, "a test", None).expect("points");
        ProductCurves {
            dtype: Dtype::F16,
            n,
            k,
            packed: false,
            biased: false,
            gemv: of(vec![rate(1.0), rate(64.0)]),
            flat: None,
            conventional: of(vec![(1.0, 1.0)]),
        }
    }

    fn part(stage: Stage, m: u32, gemms: &[Gemm], seconds: f64) -> Option<LayerPart> {
        let task = Timed::linear((ResourceKind::Gpu, stage), (m, gemms), (seconds, 1.0));
        LayerPart::new((Dtype::F16, true), 1 << 20, &task)
    }

    #[test]
    fn weights_that_were_used_before_count_where_no_cache_holds_them() {
        let gemms = [Gemm { n: 64, k: 64 }; 3];
        let mut task = Timed::linear(
            (ResourceKind::Gpu, Stage::Project),
            (4, &gemms),
            (1e-6, 1.0),
        );
        let counts =
            |task: &Timed, cache| LayerPart::new((Dtype::F16, true), cache, task).is_some();
        assert!(counts(&task, 1 << 20));
        if let Op::Linear { reused, .. } = &mut task.op {
            *reused = true;
        }
        let bytes = 3 * 64 * 64 * 2;
        assert_eq!(
            [bytes / 2, bytes / 2 - 1].map(|cache| counts(&task, cache)),
            [false, true]
        );
    }

    #[test]
    fn it_is_what_a_part_takes_longer_than_its_products() {
        let square = Gemm { n: 64, k: 64 };
        let wide = Gemm { n: 256, k: 64 };
        let strange = Gemm { n: 8, k: 64 };
        let narrow = Gemm { n: 32, k: 32 };
        let products = [
            measured(64, 64, 3e-6),
            measured(256, 64, 10e-6),
            measured(32, 32, 2e-6),
        ];
        let parts = [
            part(Stage::Project, 4, &[square; 3], 17e-6),
            part(Stage::Project, 4, &[square; 3], 13e-6),
            part(Stage::Project, 4, &[square; 3], 14e-6),
            part(Stage::Finish, 4, &[square, wide], 29e-6),
            part(Stage::Finish, 8, &[square, wide], 12e-6),
            part(Stage::Finish, 8, &[square, strange], 99e-6),
            part(Stage::Head, 4, &[square], 99e-6),
            // Held up, by what a wider layer takes, and little beside its products.
            part(Stage::Project, 2, &[narrow; 3], 26e-6),
            part(Stage::Project, 8, &[square; 3], 10e-6),
        ];
        let parts: Vec<LayerPart> = parts.into_iter().flatten().collect();
        let curves = curves(&parts, (&products, 0));
        let found = curves.iter().map(|it| {
            let rows = it.rate.points().iter();
            let us = rows.map(|(m, rate)| (*m, (1e6 * m * f64::from(it.width) / rate).round()));
            (it.stage, it.width, us.collect::<Vec<_>>())
        });
        let expected = [
            (Stage::Project, 32, vec![(2.0, 5.0)]),
            (Stage::Project, 64, vec![(4.0, 5.0), (8.0, 1.0)]),
            (Stage::Finish, 64, vec![(4.0, 16.0)]),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn products_that_were_computed_as_one_are_one_that_was_measured() {
        let square = Gemm { n: 64, k: 64 };
        let products = [measured(64, 64, 3e-6), measured(192, 64, 7e-6)];
        let times = [(4, 12e-6), (32, 15e-6)];
        let parts = times.map(|(m, seconds)| part(Stage::Project, m, &[square; 3], seconds));
        let parts: Vec<LayerPart> = parts.into_iter().flatten().collect();
        let curves = curves(&parts, (&products, 16));
        let points = curves[0].rate.points().iter();
        let us: Vec<f64> = points
            .map(|(m, rate)| (1e6 * m * 64.0 / rate).round())
            .collect();
        assert_eq!(us, [5.0, 6.0]);
    }
}
