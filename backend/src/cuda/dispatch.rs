//! Which way a product with weights is computed (FlashDecoding++ section 5): by a table of two inflection points for each
//! shape of weights, found in measured times.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_core::Dtype;

use super::CudaError;

/// Three ways to compute the same product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Implementation {
    /// On CUDA cores, a warp a column (the paper's A).
    Gemv,
    /// On tensor cores, rows padded to 8 (B).
    Flat,
    /// The vendor's library (C).
    Vendor,
}

/// Seconds of each implementation for `m` rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Rows.
    pub m: usize,
    /// Of [`Implementation::Gemv`].
    pub gemv: f64,
    /// Of [`Implementation::Flat`].
    pub flat: f64,
    /// Of [`Implementation::Vendor`].
    pub vendor: f64,
}

/// Where one implementation gives way to the next, for weights of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inflections {
    /// The fewest rows for which the flat product is better than GEMV; none: never.
    pub m1: Option<usize>,
    /// The fewest rows, `m1` or more, for which the vendor's is better than the flat one; none: never.
    pub m2: Option<usize>,
}

impl Inflections {
    /// For a shape that nobody measured: the paper's example (section 5, Figure 9), where the flat product has
    /// from two rows on to as many as a conventional tile pads to.
    pub const UNMEASURED: Inflections = Inflections {
        m1: Some(2),
        m2: Some(65),
    };

    /// The decision flow of Figure 9(b) over times by increasing rows. Rows between two measured ones belong to the
    /// lower.
    pub fn find(timings: &[Timing]) -> Inflections {
        let mut rest = timings.iter();
        let m1 = rest.clone().find(|time| time.flat < time.gemv);
        let from = m1.map_or(usize::MAX, |time| time.m);
        let m2 = rest.find(|time| time.m >= from && time.vendor < time.flat);
        Inflections {
            m1: m1.map(|time| time.m),
            m2: m2.map(|time| time.m),
        }
    }

    /// What computes `m` rows: A below M1, B below M2, C from there.
    pub fn choose(&self, m: usize) -> Implementation {
        let reached = |point: Option<usize>| point.is_some_and(|point| m >= point);
        match (reached(self.m1), reached(self.m2)) {
            (false, _) => Implementation::Gemv,
            (true, false) => Implementation::Flat,
            (true, true) => Implementation::Vendor,
        }
    }
}

/// Weights that products are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Weights {
    /// Of their elements.
    pub dtype: Dtype,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
}

/// What was measured for weights of one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Which.
    pub weights: Weights,
    /// The whole curve, by increasing rows.
    pub timings: Vec<Timing>,
    /// What it comes to.
    pub points: Inflections,
}

/// Which implementation computes which product. Clones share what is known.
#[derive(Debug, Clone, Default)]
pub struct Dispatch {
    known: Arc<Mutex<Vec<Measured>>>,
    measures: bool,
}

impl Dispatch {
    /// One that measures what it does not know, before a plan's clock starts.
    pub fn measuring() -> Dispatch {
        Dispatch {
            measures: true,
            ..Dispatch::default()
        }
    }

    /// Of points that are given.
    pub fn of(points: impl IntoIterator<Item = (Weights, Inflections)>) -> Dispatch {
        let measured = points.into_iter().map(|(weights, points)| Measured {
            weights,
            timings: Vec::new(),
            points,
        });
        Dispatch {
            known: Arc::new(Mutex::new(measured.collect())),
            measures: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Measured>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known.
    pub fn known(&self) -> Vec<Measured> {
        self.lock().clone()
    }

    /// Measures weights that are not known, where that is its way; `time` gives the times of an implementation for
    /// some rows.
    ///
    /// # Errors
    /// What `time` says.
    pub fn learn(
        &self,
        weights: impl IntoIterator<Item = Weights>,
        mut time: impl FnMut(Weights) -> Result<Vec<Timing>, CudaError>,
    ) -> Result<(), CudaError> {
        for weights in weights {
            let is_known = self.lock().iter().any(|known| known.weights == weights);
            if is_known || !self.measures {
                continue;
            }
            let timings = time(weights)?;
            let points = Inflections::find(&timings);
            self.lock().push(Measured {
                weights,
                timings,
                points,
            });
        }
        Ok(())
    }

    /// What computes a product of so many rows.
    pub fn choose(&self, m: usize, weights: Weights) -> Implementation {
        let known = self.lock();
        let known = known.iter().find(|known| known.weights == weights);
        let points = known.map_or(Inflections::UNMEASURED, |known| known.points);
        match points.choose(m) {
            Implementation::Flat if check_depth(Implementation::Flat, weights.k).is_err() => {
                Implementation::Gemv
            }
            chosen => chosen,
        }
    }
}

/// Whether an implementation computes a product of this depth at all.
///
/// # Errors
/// [`CudaError::Shape`].
pub fn check_depth(implementation: Implementation, k: usize) -> Result<(), CudaError> {
    match implementation {
        Implementation::Flat if !k.is_multiple_of(8) => Err(CudaError::Shape {
            what: "the depth of a flat product",
            found: k,
            takes: "multiples of 8",
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(m: usize, gemv: f64, flat: f64, vendor: f64) -> Timing {
        Timing {
            m,
            gemv,
            flat,
            vendor,
        }
    }

    /// A line through the paper's two points (section 5: the tensor cores have 82.15% of the CUDA cores' pace at
    /// M = 1, the CUDA cores 49.75% of theirs at M = 4) crosses at M = 1.45.
    #[test]
    fn the_papers_two_points_put_m1_at_2() {
        let gemv = [1.0, 1.482_268, 1.964_537, 2.446_805];
        let times = (1..)
            .zip(gemv)
            .map(|(m, gemv)| timing(m, gemv, 1.217_285, 9.0));
        let found = Inflections::find(&times.collect::<Vec<_>>());
        assert_eq!(found.m1, Some(2));
        assert_eq!(found.m2, None);
        let chosen = [1, 2, 3, 4].map(|m| found.choose(m));
        use Implementation::{Flat, Gemv};
        assert_eq!(chosen, [Gemv, Flat, Flat, Flat]);
    }

    #[test]
    fn each_point_is_where_the_next_is_first_better() {
        let found = Inflections::find(&[
            timing(1, 1.0, 2.0, 0.5),
            timing(2, 2.0, 2.0, 3.0),
            timing(4, 4.0, 2.1, 3.0),
            timing(8, 8.0, 2.2, 3.0),
            timing(16, 16.0, 4.0, 3.0),
        ]);
        assert_eq!((found.m1, found.m2), (Some(4), Some(16)));
        assert_eq!(found.choose(3), Implementation::Gemv);
        assert_eq!(found.choose(15), Implementation::Flat);
        assert_eq!(found.choose(64), Implementation::Vendor);
        let none = Inflections::find(&[]);
        assert_eq!(none.choose(1000), Implementation::Gemv);
    }

    #[test]
    fn a_shape_has_its_own_points_and_depths_that_are_not_eights_no_flat_product() {
        let own = Inflections {
            m1: Some(4),
            m2: None,
        };
        let weights = |n, k| Weights {
            dtype: Dtype::F16,
            n,
            k,
        };
        let dispatch = Dispatch::of([(weights(96, 64), own)]);
        use Implementation::{Flat, Gemv, Vendor};
        let chosen = |m, n, k| dispatch.choose(m, weights(n, k));
        assert_eq!([chosen(3, 96, 64), chosen(900, 96, 64)], [Gemv, Flat]);
        assert_eq!([chosen(3, 64, 96), chosen(900, 64, 96)], [Flat, Vendor]);
        assert_eq!([chosen(3, 64, 100), chosen(900, 64, 100)], [Gemv, Vendor]);
    }

    #[test]
    fn what_is_not_known_is_measured_once_and_clones_know_it() {
        let weights = Weights {
            dtype: Dtype::Bf16,
            n: 32,
            k: 64,
        };
        let (dispatch, mut asked) = (Dispatch::measuring(), 0);
        for _ in 0..2 {
            let clone = dispatch.clone();
            let learnt = clone.learn([weights], |_| {
                asked += 1;
                Ok(vec![timing(1, 2.0, 1.0, 3.0), timing(8, 9.0, 4.0, 3.0)])
            });
            assert_eq!(learnt, Ok(()));
        }
        assert_eq!(asked, 1);
        let chosen = [1, 7, 8].map(|m| dispatch.choose(m, weights));
        use Implementation::{Flat, Vendor};
        assert_eq!(chosen, [Flat, Flat, Vendor]);
        let given = Dispatch::default().learn([weights], |_| panic!("it measures nothing"));
        assert_eq!(given, Ok(()));
    }

    #[test]
    fn a_flat_product_needs_whole_eights() {
        assert!(check_depth(Implementation::Flat, 4096).is_ok());
        let error = check_depth(Implementation::Flat, 100).unwrap_err();
        let expected = "the depth of a flat product is 100, and CUDA kernels take multiples of 8";
        assert_eq!(error.to_string(), expected);
        assert!(check_depth(Implementation::Gemv, 100).is_ok());
    }
}
