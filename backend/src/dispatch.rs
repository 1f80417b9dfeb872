//! Which implementation computes a product with weights (FlashDecoding++ section 5): by a table of two inflection points for
//! each shape of weights, found in measured times. The same on GPUs and on the emulated device, whose kernels differ only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_core::Dtype;
use plimsoll_core::compression::{GROUP_BYTES, GROUP_ELEMENTS};
use plimsoll_core::hardware::{
    Curve, HardwareProfile, Implementation, Inflections, ProductCurves, WeightsOnGpu,
};
use plimsoll_core::lower::StageGemms;
use plimsoll_core::model::{ModelSpec, TensorSpec};
use plimsoll_core::program::Stage;

use crate::kernels::linear::Ways;
use crate::probe::{MEASURED, median, spread};

/// Weights that products are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Weights {
    /// Of their elements.
    pub dtype: Dtype,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Whether they are multiplied as groups of 4-bit codes.
    pub packed: bool,
    /// Whether a bias is added, where that is not the same time: on a GPU, whose vendor's products know none.
    pub biased: bool,
}

impl Weights {
    /// What a GPU's choice asks of them.
    pub fn on_gpu(&self) -> WeightsOnGpu {
        WeightsOnGpu {
            k: self.k as u32,
            packed: self.packed,
        }
    }

    /// Those of a model's matrices, each shape once: of its embedding's projection, its layers and its head. (A paper's model
    /// has four; one that groups its queries, or has a head, more.)
    pub fn of_model(model: &ModelSpec, dtype: Dtype) -> Vec<Weights> {
        Weights::of_matrices(model, dtype, |_, _| false)
    }

    /// The same as a GPU multiplies with them: those with a bias are others than those without.
    pub fn of_model_on_card(model: &ModelSpec, dtype: Dtype) -> Vec<Weights> {
        let has = |block: &[TensorSpec], role| block.iter().any(|tensor| tensor.role == role);
        Weights::of_matrices(model, dtype, |block, tensor| {
            tensor.role.bias().is_some_and(|role| has(block, role))
        })
    }

    /// The same, and behind them those that share their input as one matrix each, which is how a GPU multiplies few rows with them.
    pub fn of_model_on_card_and_joined(model: &ModelSpec, dtype: Dtype) -> Vec<Weights> {
        let mut shapes = Weights::of_model_on_card(model, dtype);
        let gemms = StageGemms::of(model);
        for (stage, gemms, biased) in [
            (Stage::Project, gemms.project, model.attention_bias),
            (Stage::Mlp, gemms.mlp, model.mlp_bias),
        ] {
            let joined = gemms.together(&gemms.sharing(stage)).map(|one| Weights {
                dtype,
                n: one.n as usize,
                k: one.k as usize,
                packed: false,
                biased,
            });
            shapes.extend(joined.filter(|joined| !shapes.contains(joined)));
        }
        shapes
    }

    fn of_matrices(
        model: &ModelSpec,
        dtype: Dtype,
        is_biased: impl Fn(&[TensorSpec], &TensorSpec) -> bool,
    ) -> Vec<Weights> {
        let mut shapes: Vec<Weights> = Vec::new();
        for block in [0, 1, model.num_blocks() - 1].map(|block| model.tensors(block)) {
            for tensor in block.iter().filter(|tensor| tensor.is_multiplied()) {
                let weights = Weights {
                    dtype,
                    n: tensor.rows as usize,
                    k: tensor.cols as usize,
                    packed: false,
                    biased: is_biased(&block, tensor),
                };
                if !shapes.contains(&weights) {
                    shapes.push(weights);
                }
            }
        }
        shapes
    }

    /// The same weights in groups of 4-bit codes.
    #[must_use]
    pub fn in_groups(self) -> Weights {
        Weights {
            packed: true,
            ..self
        }
    }

    /// Whole weights, and behind them the same in groups: how a GPU multiplies those is a choice among ways of these.
    pub fn whole_then_in_groups(mut whole: Vec<Weights>) -> Vec<Weights> {
        whole.extend(whole.clone().into_iter().map(Weights::in_groups));
        whole
    }

    /// Bytes of them.
    pub fn bytes(&self) -> usize {
        match self.packed {
            true => self.n.div_ceil(GROUP_ELEMENTS as usize) * self.k * GROUP_BYTES as usize,
            false => self.n * self.k * self.dtype.size_bytes() as usize,
        }
    }

    /// How far another shape is from this one, in logarithms; none where it is another kind of weights.
    fn distance(&self, other: &Weights) -> Option<f64> {
        let off = |a: usize, b: usize| (a as f64 / b as f64).ln().abs();
        // Codes are the same beside every type.
        let alike = self.packed == other.packed && (self.packed || self.dtype == other.dtype);
        alike.then(|| off(self.n, other.n) + off(self.k, other.k))
    }
}

/// Seconds of an implementation for some rows, each time that it was tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// Which.
    pub implementation: Implementation,
    /// Rows.
    pub m: usize,
    /// Of each time.
    pub seconds: Vec<f64>,
}

/// The curves of what was tried, rows ascending; none where an implementation that every shape has was not.
pub fn curves(weights: Weights, tried: &[Tried]) -> Option<ProductCurves> {
    let curve = |implementation: Implementation| {
        let of = tried.iter().filter(|t| t.implementation == implementation);
        let of: Vec<&Tried> = of.collect();
        let rate = |t: &Tried| {
            let flops = 2.0 * t.m as f64 * weights.n as f64 * weights.k as f64;
            // A clock may not have moved.
            flops / median(&t.seconds).max(1e-9)
        };
        let points = of.iter().map(|t| (t.m as f64, rate(t))).collect();
        let spreads: Vec<f64> = of.iter().map(|t| spread(&t.seconds)).collect();
        let widest = spreads.into_iter().fold(0.0, f64::max);
        Curve::new(points, MEASURED, Some(widest)).ok()
    };
    Some(ProductCurves {
        dtype: weights.dtype,
        n: u32::try_from(weights.n).ok()?,
        k: u32::try_from(weights.k).ok()?,
        packed: weights.packed,
        biased: weights.biased,
        gemv: curve(Implementation::Gemv)?,
        flat: curve(Implementation::Flat),
        conventional: curve(Implementation::Conventional)?,
    })
}

/// What is known of weights of one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Which.
    pub weights: Weights,
    /// The whole curves, where they were measured.
    pub curves: Option<ProductCurves>,
    /// What they come to.
    pub points: Inflections,
}

impl Known {
    /// What curves say.
    fn of(curves: ProductCurves) -> Known {
        Known {
            weights: Weights {
                dtype: curves.dtype,
                n: curves.n as usize,
                k: curves.k as usize,
                packed: curves.packed,
                biased: curves.biased,
            },
            points: curves.inflections(),
            curves: Some(curves),
        }
    }
}

/// The lookup table. Clones share what is known.
#[derive(Debug, Clone, Default)]
pub struct Dispatch {
    known: Arc<Mutex<Vec<Known>>>,
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
        let dispatch = Dispatch::default();
        let known = points.into_iter().map(|(weights, points)| Known {
            weights,
            curves: None,
            points,
        });
        dispatch.lock().extend(known);
        dispatch
    }

    /// The same, with what a profile says of this machine's products.
    #[must_use]
    pub fn with_profile(self, profile: &HardwareProfile) -> Dispatch {
        for curves in &profile.compute.products {
            let known = Known::of(curves.clone());
            let mut all = self.lock();
            all.retain(|other| other.weights != known.weights);
            all.push(known);
        }
        self
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known.
    pub fn known(&self) -> Vec<Known> {
        self.lock().clone()
    }

    /// Measures weights that are not known, where that is its way; `time` gives their curves.
    ///
    /// # Errors
    /// What `time` says.
    pub fn learn<E>(
        &self,
        weights: impl IntoIterator<Item = Weights>,
        mut time: impl FnMut(Weights) -> Result<Option<ProductCurves>, E>,
    ) -> Result<(), E> {
        for weights in weights {
            let is_known = self.lock().iter().any(|known| known.weights == weights);
            if is_known || !self.measures {
                continue;
            }
            if let Some(curves) = time(weights)? {
                self.lock().push(Known::of(curves));
            }
        }
        Ok(())
    }

    /// The points of weights of this very shape.
    pub fn points(&self, weights: Weights) -> Option<Inflections> {
        let known = self.lock();
        let known = known.iter().find(|known| known.weights == weights);
        known.map(|known| known.points)
    }

    /// How the CPU computes rows with weights: by the nearest shape's points, which are its own where that was measured.
    pub fn ways(&self, weights: Weights) -> Ways {
        let from = |point: Option<u32>| point.map_or(usize::MAX, |rows| rows as usize);
        self.nearest(weights).map_or(Ways::BUILT_IN, |points| Ways {
            tile_from: from(points.m1),
            panels_from: from(points.m2),
        })
    }

    /// The points of the nearest shape of such weights.
    pub fn nearest(&self, weights: Weights) -> Option<Inflections> {
        let known = self.lock();
        let known = known.iter();
        let distances = known.filter_map(|known| Some((known.weights.distance(&weights)?, known)));
        let nearest = distances.min_by(|a, b| a.0.total_cmp(&b.0));
        nearest.map(|(_, known)| known.points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Implementation::{Conventional, Flat, Gemv};

    fn weights(n: usize, k: usize) -> Weights {
        Weights {
            dtype: Dtype::Bf16,
            n,
            k,
            packed: false,
            biased: false,
        }
    }

    fn tried(implementation: Implementation, m: usize, seconds: &[f64]) -> Tried {
        Tried {
            implementation,
            m,
            seconds: seconds.to_vec(),
        }
    }

    #[test]
    fn what_is_not_known_is_measured_once_and_clones_know_it() {
        let (dispatch, mut asked) = (Dispatch::measuring(), 0);
        let all = [
            tried(Gemv, 1, &[2.0, 9.0, 2.0]),
            tried(Gemv, 8, &[9.0]),
            tried(Flat, 1, &[1.0]),
            tried(Flat, 8, &[4.0]),
            tried(Conventional, 8, &[3.0]),
        ];
        for _ in 0..2 {
            let clone = dispatch.clone();
            let learnt = clone.learn([weights(32, 64)], |weights| {
                asked += 1;
                Ok::<_, ()>(curves(weights, &all))
            });
            assert_eq!(learnt, Ok(()));
        }
        assert_eq!(asked, 1);
        let points = dispatch.points(weights(32, 64)).expect("it was measured");
        assert_eq!(
            [1, 7, 8].map(|m| points.choose(m)),
            [Flat, Flat, Conventional]
        );
        let known = dispatch.known().pop().and_then(|known| known.curves);
        let curves = known.expect("the whole curve");
        // The median of the times, and how much they differ.
        assert_eq!(curves.gemv.points()[0], (1.0, 2.0 * 32.0 * 64.0 / 2.0));
        assert_eq!(curves.gemv.spread, Some(1.75));
        let given = Dispatch::default();
        let learnt = given.learn([weights(1, 8)], |_| Err("it measures nothing"));
        assert_eq!(learnt, Ok(()));
    }

    /// Figure 9: few shapes for a model. (Queries, keys and values are three matrices here, of 12288 x 4096 together.)
    #[test]
    fn llama_2_7b_has_the_papers_shapes_and_a_head() {
        let model = plimsoll_core::model::registry::find("llama-2-7b").expect("registered");
        let shapes = Weights::of_model(&model, Dtype::F16);
        let shapes: Vec<[usize; 2]> = shapes.iter().map(|w| [w.n, w.k]).collect();
        let expected = [[4096, 4096], [11008, 4096], [4096, 11008], [32000, 4096]];
        assert_eq!(shapes.len(), expected.len(), "{shapes:?}");
        assert!(
            expected.iter().all(|shape| shapes.contains(shape)),
            "{shapes:?}"
        );
    }

    #[test]
    fn on_a_gpu_matrices_with_a_bias_are_others() {
        let of = |name: &str| -> Vec<(usize, usize, bool)> {
            let model = plimsoll_core::model::registry::find(name).expect("registered");
            let shapes = Weights::of_model_on_card(&model, Dtype::F16);
            shapes.iter().map(|w| (w.n, w.k, w.biased)).collect()
        };
        let opt = of("opt-1.3b");
        let layers = [(2048, 2048), (8192, 2048), (2048, 8192)];
        assert!(
            layers.iter().all(|(n, k)| opt.contains(&(*n, *k, true))),
            "{opt:?}"
        );
        assert_eq!(
            opt.iter().filter(|shape| !shape.2).count(),
            1,
            "the head: {opt:?}"
        );
        assert!(of("llama-2-7b").iter().all(|shape| !shape.2));
        // Queries, keys and values alone.
        let qwen = of("qwen2.5-7b");
        assert!(
            qwen.contains(&(3584, 3584, true)) && qwen.contains(&(3584, 3584, false)),
            "{qwen:?}"
        );
    }

    /// Bytes in f16 of the paper's shapes, as computed apart from this.
    #[test]
    fn llama_2_7b_has_the_papers_bytes() {
        let model = plimsoll_core::model::registry::find("llama-2-7b").expect("registered");
        // Queries, keys and values, and the output's; a gate beside the paper's MLP's first.
        for (n, k, bytes) in [
            (4096, 4096, 100_663_296 + 33_554_432),
            (11008, 4096, 2 * 90_177_536),
            (4096, 11008, 90_177_536),
        ] {
            let tensors = model.tensors(1).into_iter();
            let its = tensors.filter(|t| (t.rows, t.cols) == (n, k));
            let found = its.map(|t| t.elements() * Dtype::F16.size_bytes());
            assert_eq!(found.sum::<u64>(), bytes, "{n} x {k}");
        }
    }

    #[test]
    fn a_shape_has_its_own_points_or_those_of_the_nearest() {
        let points = |m1| Inflections {
            m1: Some(m1),
            m2: None,
        };
        let known = [(weights(512, 512), points(2)), (weights(64, 64), points(5))];
        let dispatch = Dispatch::of(known);
        assert_eq!(dispatch.points(weights(64, 64)), Some(points(5)));
        assert_eq!(dispatch.points(weights(96, 64)), None);
        assert_eq!(dispatch.nearest(weights(96, 64)), Some(points(5)));
        assert_eq!(dispatch.nearest(weights(2048, 512)), Some(points(2)));
        let packed = Weights {
            packed: true,
            ..weights(64, 64)
        };
        assert_eq!(dispatch.nearest(packed), None);
        assert_eq!(Dispatch::default().nearest(weights(64, 64)), None);
    }
}
