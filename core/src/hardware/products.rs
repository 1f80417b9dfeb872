//! Three implementations of one product, and where each gives way to the next (FlashDecoding++ section 5).

use std::collections::BTreeMap;
use std::ops::Not;

use serde::{Serialize, Serializer};

use super::curve::Curve;
use crate::Dtype;

/// Three ways to compute the same product. A GPU has a kernel of its own for each, an emulated device one of the CPU's. With weights in
/// 4 bits a GPU's GEMV reads these as they are, the conventional way unpacks them first, and there is no flat product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Implementation {
    /// Dot products, for a row or a few (the paper's A): on a GPU on CUDA cores.
    Gemv,
    /// For few rows (B): on a GPU on tensor cores, rows padded to 8; on a CPU a register tile.
    Flat,
    /// For many rows (C): on a GPU the vendor's library, on a CPU input in panels.
    Conventional,
}

impl Implementation {
    /// All of them, that for the fewest rows first.
    pub const ALL: [Implementation; 3] = [
        Implementation::Gemv,
        Implementation::Flat,
        Implementation::Conventional,
    ];
}

/// Rows beyond which no GPU computes by another way than the conventional one, nor reads weights in 4 bits as they are: for as many
/// the ways are timed.
pub const GPU_ROWS_MOST: u32 = 128;

/// The depth of weights in 4 bits that a GPU reads as they are is a multiple of this.
pub const PACKED_DEPTH: u32 = 16;

/// The depth of weights of a GPU's flat product is a multiple of this.
pub const FLAT_DEPTH: u32 = 8;

/// What a GPU's choice asks of weights besides the table for their shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightsOnGpu {
    /// Inner dimension: input features.
    pub k: u32,
    /// Whether they are in groups of 4-bit codes.
    pub packed: bool,
}

/// Where one implementation gives way to the next, for weights of one shape: a row of the paper's lookup table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inflections {
    /// The fewest rows for which the flat product is better than GEMV; none: never.
    pub m1: Option<u32>,
    /// The fewest rows, `m1` or more, for which the conventional one is better than the flat one; none: never.
    pub m2: Option<u32>,
}

impl Inflections {
    /// What computes `m` rows: A below M1, B below M2, C from there.
    pub fn choose(&self, m: u32) -> Implementation {
        let reached = |point: Option<u32>| point.is_some_and(|point| m >= point);
        match (reached(self.m1), reached(self.m2)) {
            (false, _) => Implementation::Gemv,
            (true, false) => Implementation::Flat,
            (true, true) => Implementation::Conventional,
        }
    }

    /// The same on a GPU, whose tables end: what no table has seen to be slower than the conventional way would else compute prompts.
    /// What does not compute such weights gives way: the flat product to GEMV, and either to the conventional way where weights are in
    /// 4 bits.
    pub fn on_gpu(&self, m: u32, weights: WeightsOnGpu) -> Implementation {
        let chosen = match m > GPU_ROWS_MOST {
            true => Implementation::Conventional,
            false => self.choose(m),
        };
        match chosen.computes(weights) {
            true => chosen,
            false if weights.packed => Implementation::Conventional,
            false => Implementation::Gemv,
        }
    }

    /// What computes products that share their input, and have all these columns together, in one launch: the conventional way, the
    /// vendor's, has no such launch. None where each is computed by itself, as those of weights in 4 bits that are unpacked first.
    pub fn joined_on_gpu(&self, m: u32, weights: WeightsOnGpu) -> Option<Implementation> {
        use Implementation::{Conventional, Flat, Gemv};
        match self.on_gpu(m, weights) {
            Conventional if weights.packed => None,
            Conventional if Flat.computes(weights) => Some(Flat),
            Conventional => Some(Gemv),
            chosen => Some(chosen),
        }
    }
}

impl Implementation {
    /// Whether a GPU computes products with such weights by it.
    pub fn computes(self, WeightsOnGpu { k, packed }: WeightsOnGpu) -> bool {
        match self {
            Implementation::Gemv => !packed || k.is_multiple_of(PACKED_DEPTH),
            Implementation::Flat => !packed && k.is_multiple_of(FLAT_DEPTH),
            Implementation::Conventional => true,
        }
    }
}

/// What was measured for weights of one shape: FLOP/s over rows of each implementation, the product alone, with weights that
/// no cache holds.
#[derive(Debug, Clone, PartialEq)]
pub struct ProductCurves {
    /// The type of both operands.
    pub dtype: Dtype,
    /// Columns of the weight: output features.
    pub n: u32,
    /// Inner dimension: input features.
    pub k: u32,
    /// Whether the weights are in groups of 4-bit codes, their unpacking counted.
    pub packed: bool,
    /// Whether a bias is added, which a GPU's conventional way needs a pass of its own for, counted.
    pub biased: bool,
    /// Of [`Implementation::Gemv`].
    pub gemv: Curve,
    /// Of [`Implementation::Flat`]; none where it does not compute such weights.
    pub flat: Option<Curve>,
    /// Of [`Implementation::Conventional`], from the fewest rows that it computes.
    pub conventional: Curve,
}

/// With the points that follow from the curves, for who reads the file.
impl Serialize for ProductCurves {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            dtype: Dtype,
            n: u32,
            k: u32,
            #[serde(skip_serializing_if = "Not::not")]
            packed: bool,
            #[serde(skip_serializing_if = "Not::not")]
            biased: bool,
            m1: Option<u32>,
            m2: Option<u32>,
            #[serde(flatten)]
            curves: BTreeMap<&'static str, &'a Curve>,
        }
        let Inflections { m1, m2 } = self.inflections();
        let written = Written {
            dtype: self.dtype,
            n: self.n,
            k: self.k,
            packed: self.packed,
            biased: self.biased,
            m1,
            m2,
            curves: self.curves().collect(),
        };
        written.serialize(serializer)
    }
}

impl ProductCurves {
    /// The decision flow of the paper's Figure 9(b) over the curves. Rows between two measured ones belong to the lower.
    /// Where there is no flat product, or it is never better than GEMV, the conventional one takes its place.
    pub fn inflections(&self) -> Inflections {
        let after_gemv = |next: &Curve| first_better(next, &self.gemv, 1);
        let of_flat = self
            .flat
            .as_ref()
            .and_then(|flat| Some((flat, after_gemv(flat)?)));
        let Some((flat, m1)) = of_flat else {
            let m1 = after_gemv(&self.conventional);
            return Inflections { m1, m2: m1 };
        };
        Inflections {
            m1: Some(m1),
            m2: first_better(&self.conventional, flat, m1),
        }
    }

    /// The curve of an implementation.
    pub fn of(&self, implementation: Implementation) -> Option<&Curve> {
        match implementation {
            Implementation::Gemv => Some(&self.gemv),
            Implementation::Flat => self.flat.as_ref(),
            Implementation::Conventional => Some(&self.conventional),
        }
    }

    /// The curve of what computes `m` rows on a GPU; the points are [`ProductCurves::inflections`], which a caller keeps.
    pub fn on_gpu(&self, points: &Inflections, m: u32) -> &Curve {
        let chosen = self.of(points.on_gpu(m, self.weights_on_gpu()));
        chosen.unwrap_or(&self.conventional)
    }

    /// The curve of what computes `m` rows of products together that have its columns; none where each is computed by itself.
    pub fn joined_on_gpu(&self, points: &Inflections, m: u32) -> Option<&Curve> {
        let joined = points.joined_on_gpu(m, self.weights_on_gpu())?;
        Some(self.of(joined).unwrap_or(&self.gemv))
    }

    fn weights_on_gpu(&self) -> WeightsOnGpu {
        WeightsOnGpu {
            k: self.k,
            packed: self.packed,
        }
    }

    /// Its curves, each with its key.
    pub(super) fn curves(&self) -> impl Iterator<Item = (&'static str, &Curve)> {
        let all = Implementation::ALL.into_iter().zip(PRODUCT_CURVES);
        all.filter_map(|(implementation, key)| Some((key, self.of(implementation)?)))
    }

    /// All of its curves, to be changed alike.
    pub fn curves_mut(&mut self) -> impl Iterator<Item = &mut Curve> {
        let others = [&mut self.gemv, &mut self.conventional];
        others.into_iter().chain(&mut self.flat)
    }
}

/// Keys of the curves, in the order of [`Implementation::ALL`].
pub(super) const PRODUCT_CURVES: [&str; 3] = [
    "gemv_flops_per_s",
    "flat_flops_per_s",
    "conventional_flops_per_s",
];

/// The fewest measured rows, `from` or more, for which a curve is above another.
fn first_better(curve: &Curve, than: &Curve, from: u32) -> Option<u32> {
    let mut points = curve.points().iter();
    let better = |(m, rate): &&(f64, f64)| *m >= f64::from(from) && *rate > than.at(*m);
    points.find(better).map(|(m, _)| *m as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Curves of implementations whose times are given by rows.
    fn curves(rows: &[f64], [gemv, flat, conventional]: [&[f64]; 3]) -> ProductCurves {
        let curve = |seconds: &[f64]| {
            let points = rows.iter().zip(seconds).map(|(m, s)| (*m, m / s));
            Curve::new(points.collect(), "a test", None).unwrap()
        };
        ProductCurves {
            dtype: Dtype::F16,
            n: 96,
            k: 64,
            packed: false,
            biased: false,
            gemv: curve(gemv),
            flat: (!flat.is_empty()).then(|| curve(flat)),
            conventional: curve(conventional),
        }
    }

    use Implementation::{Conventional, Flat, Gemv};

    /// A line through the paper's two points (section 5: the tensor cores have 82.15% of the CUDA cores' pace at
    /// M = 1, the CUDA cores 49.75% of theirs at M = 4) crosses at M = 1.45.
    #[test]
    fn the_papers_two_points_put_m1_at_2() {
        let rows = [1.0, 2.0, 3.0, 4.0];
        let gemv = [1.0, 1.482_268, 1.964_537, 2.446_805];
        let found = curves(&rows, [&gemv, &[1.217_285; 4], &[9.0; 4]]);
        let points = found.inflections();
        assert_eq!(
            points,
            Inflections {
                m1: Some(2),
                m2: None
            }
        );
        assert_eq!(
            [1, 2, 3, 4].map(|m| points.choose(m)),
            [Gemv, Flat, Flat, Flat]
        );
        assert_eq!(found.on_gpu(&points, 1), &found.gemv);
        assert_eq!(Some(found.on_gpu(&points, 4)), found.flat.as_ref());
    }

    #[test]
    fn each_point_is_where_the_next_is_first_better() {
        let rows = [1.0, 2.0, 4.0, 8.0, 16.0];
        let gemv = [1.0, 2.0, 4.0, 8.0, 16.0];
        let conventional = [0.5, 3.0, 3.0, 3.0, 3.0];
        let found = curves(&rows, [&gemv, &[2.0, 2.0, 2.1, 2.2, 4.0], &conventional]);
        let points = found.inflections();
        assert_eq!((points.m1, points.m2), (Some(4), Some(16)));
        assert_eq!(
            [3, 15, 64].map(|m| points.choose(m)),
            [Gemv, Flat, Conventional]
        );
        let none = Inflections { m1: None, m2: None };
        assert_eq!(none.choose(1000), Gemv);
        assert_eq!(
            [128, 129].map(|m| none.on_gpu(m, WHOLE)),
            [Gemv, Conventional]
        );
    }

    const WHOLE: WeightsOnGpu = WeightsOnGpu {
        k: 4096,
        packed: false,
    };

    #[test]
    fn what_does_not_compute_such_weights_gives_way() {
        let points = Inflections {
            m1: Some(2),
            m2: Some(65),
        };
        let of = |k, packed| {
            let weights = WeightsOnGpu { k, packed };
            let alone = [1, 2, 65].map(|m| points.on_gpu(m, weights));
            (alone, [1, 2, 65].map(|m| points.joined_on_gpu(m, weights)))
        };
        let (gemv, flat) = (Some(Gemv), Some(Flat));
        assert_eq!(
            of(4096, false),
            ([Gemv, Flat, Conventional], [gemv, flat, flat])
        );
        assert_eq!(of(4100, false), ([Gemv, Gemv, Conventional], [gemv; 3]));
        let unpacked = [Gemv, Conventional, Conventional];
        assert_eq!(of(4096, true), (unpacked, [gemv, None, None]));
        assert_eq!(of(4104, true), ([Conventional; 3], [None; 3]));
    }

    #[test]
    fn where_the_flat_product_is_never_better_the_conventional_one_follows_gemv() {
        let rows = [1.0, 2.0, 4.0, 8.0];
        let gemv = [1.0, 2.0, 4.0, 8.0];
        let points = |conventional| {
            let found = curves(&rows, [&gemv, &[99.0; 4], conventional]);
            let points = found.inflections();
            (points.m1, points.m2)
        };
        assert_eq!(points(&[3.0; 4]), (Some(4), Some(4)));
        assert_eq!(points(&[9.0; 4]), (None, None));
    }

    #[test]
    fn without_a_flat_product_the_conventional_one_follows_gemv() {
        let rows = [1.0, 2.0, 4.0];
        let found = curves(&rows, [&[1.0, 2.0, 4.0], &[], &[3.0; 3]]);
        let points = found.inflections();
        assert_eq!((points.m1, points.m2), (Some(4), Some(4)));
        assert_eq!(found.on_gpu(&points, 2), &found.gemv);
        assert_eq!(found.on_gpu(&points, 9), &found.conventional);
    }
}
