//! Three implementations of one product, and where each gives way to the next (FlashDecoding++ section 5).

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
    pub fn choose_on_gpu(&self, m: u32) -> Implementation {
        match m > GPU_ROWS_MOST {
            true => Implementation::Conventional,
            false => self.choose(m),
        }
    }
}

impl Implementation {
    /// What computes products that share their input in one launch where this suits one of all their columns: the conventional way,
    /// the vendor's, has no such launch. None of weights in 4 bits, which it unpacks one by one.
    pub fn of_joined(self, packed: bool) -> Option<Implementation> {
        match (self, packed) {
            (Implementation::Conventional, true) => None,
            (Implementation::Conventional, false) => Some(Implementation::Flat),
            (own, _) => Some(own),
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

    /// The curve of the implementation that computes `m` rows on a GPU.
    pub fn chosen_on_gpu(&self, m: u32) -> &Curve {
        let chosen = self.of(self.inflections().choose_on_gpu(m));
        chosen.unwrap_or(&self.conventional)
    }

    /// The curve of what computes products together where an implementation suits one of all their columns.
    pub fn joined(&self, chosen: Implementation) -> Option<&Curve> {
        let joined = chosen.of_joined(self.packed)?;
        Some(self.of(joined).unwrap_or(&self.gemv))
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
        assert_eq!(found.chosen_on_gpu(1), &found.gemv);
        assert_eq!(Some(found.chosen_on_gpu(4)), found.flat.as_ref());
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
            [128, 129].map(|m| none.choose_on_gpu(m)),
            [Gemv, Conventional]
        );
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
        assert_eq!(found.chosen_on_gpu(2), &found.gemv);
        assert_eq!(found.chosen_on_gpu(9), &found.conventional);
    }
}
