//! Models that are too large to make up weights for each of their layers.

use plimsoll_core::Dtype;
use plimsoll_core::model::{ModelSpec, TensorSpec};

use crate::weights::{WeightError, WeightSource};

/// Gives every layer the weights of the first: time goes by where they lie and not by what they are.
pub(super) struct AlikeLayers<'a> {
    first: Vec<TensorSpec>,
    source: &'a dyn WeightSource,
}

impl<'a> AlikeLayers<'a> {
    /// Those of a model's first layer, as `source` has them.
    pub(super) fn of(model: &ModelSpec, source: &'a dyn WeightSource) -> AlikeLayers<'a> {
        AlikeLayers {
            first: model.tensors(1),
            source,
        }
    }
}

impl WeightSource for AlikeLayers<'_> {
    fn load(&self, tensor: &TensorSpec, dtype: Dtype, into: &mut [u8]) -> Result<(), WeightError> {
        let alike = self.first.iter().find(|first| first.role == tensor.role);
        self.source.load(alike.unwrap_or(tensor), dtype, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Synthetic;
    use plimsoll_core::model::registry;

    #[test]
    fn layers_have_the_weights_of_the_first_and_what_is_no_layer_its_own() {
        let model = registry::find("opt-125m").expect("registered");
        let source = Synthetic { seed: 3 };
        let alike = AlikeLayers::of(&model, &source);
        let load = |source: &dyn WeightSource, tensor: &TensorSpec| {
            let mut bytes = vec![0; tensor.elements() as usize * 2];
            source.load(tensor, Dtype::F16, &mut bytes).expect("loads");
            bytes
        };
        let [first, third] = [1, 3].map(|block| model.tensors(block));
        assert!(!first.is_empty() && first.len() == third.len());
        for (first, third) in first.iter().zip(&third) {
            assert_eq!(load(&alike, third), load(&source, first));
            assert_ne!(load(&alike, third), load(&source, third));
        }
        let ends = [0, model.num_blocks() - 1].map(|block| model.tensors(block));
        assert!(ends.iter().all(|tensors| !tensors.is_empty()));
        for tensor in ends.iter().flatten() {
            assert_eq!(load(&alike, tensor), load(&source, tensor));
        }
    }
}
