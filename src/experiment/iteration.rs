//! Where an iteration's time goes over the batch: what all sequences share, and what each adds (S3, section 3).

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::program::{Op, ResourceKind};
use plimsoll_core::serve::{Load, Shape};
use plimsoll_sim::CostModel;

use super::serving::{ServingRow, ServingTable};
use crate::report::percent;

/// Iterations of sequences past their prompts, in which each gets a token.
#[derive(Debug)]
pub struct Iterations {
    /// The machine.
    pub machine: HardwareProfile,
    /// What is served, in f16.
    pub models: Vec<ModelSpec>,
    /// Sequences in an iteration.
    pub batches: Vec<u32>,
    /// Tokens that each sequence reads from its cache.
    pub context: u32,
}

/// Seconds of an iteration by what they are spent on.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Split {
    /// Linear layers: products of all sequences together, which read the weights once.
    linear: f64,
    /// Attention, which reads each sequence's own keys and values.
    attention: f64,
    /// What else goes by sequences.
    sequences: f64,
    /// Launches, and activations through the device's memory.
    rest: f64,
}

impl Split {
    fn of(cost: &CostModel, op: &Op) -> Split {
        let mut split = Split::default();
        cost.parts(ResourceKind::Gpu, op, &mut |part| {
            let sum = match part.number {
                "compute.attention_decode" | "compute.attention_prefill" => &mut split.attention,
                "compute.sequence" | "compute.sequence_layer" => &mut split.sequences,
                number if number.contains("launch") => &mut split.rest,
                _ => &mut split.linear,
            };
            *sum += part.seconds.0;
        });
        split
    }

    fn total(&self) -> f64 {
        self.linear + self.attention + self.sequences + self.rest
    }
}

impl Iterations {
    /// Five rows for each model and batch.
    pub fn table(&self) -> ServingTable {
        let cost = CostModel::new(&self.machine, Dtype::F16);
        let each = self
            .models
            .iter()
            .flat_map(|model| self.batches.iter().map(move |batch| (model, *batch)));
        let rows = each.flat_map(|(model, batch)| self.rows(&cost, model, batch));
        rows.collect::<Vec<_>>().into()
    }

    fn rows(&self, cost: &CostModel, model: &ModelSpec, batch: u32) -> Vec<ServingRow> {
        let shape = Shape::of(model, Dtype::F16);
        let load = Load {
            sequences: batch,
            tokens: batch,
            context_tokens: u64::from(batch) * u64::from(self.context),
            ..Load::default()
        };
        let split = Split::of(cost, &shape.span(&load, 0, shape.layers));
        let case = format!("{}, {batch} sequences", model.name);
        let row = |metric, seconds: f64| {
            let share = percent(seconds / split.total());
            ServingRow::new(&case, metric, seconds * 1e3, None).noted(share)
        };
        vec![
            row("iteration, ms", split.total()),
            row("linear layers, ms", split.linear),
            row("attention, ms", split.attention),
            row("else by sequences, ms", split.sequences),
            row("launches, ms", split.rest),
        ]
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::files::{find_model, find_profile};

    #[test]
    fn what_all_share_hardly_grows_and_what_each_adds_grows_with_them() {
        let machine = find_profile("a100-s3").unwrap();
        let model = find_model("gpt-j-6b").unwrap().spec;
        let cost = CostModel::new(&machine, Dtype::F16);
        let shape = Shape::of(&model, Dtype::F16);
        let of = |batch: u32| {
            let load = Load {
                sequences: batch,
                tokens: batch,
                context_tokens: u64::from(batch) * 100,
                ..Load::default()
            };
            let op = shape.span(&load, 0, shape.layers);
            let split = Split::of(&cost, &op);
            let whole = cost.seconds(ResourceKind::Gpu, &op).0;
            assert!((split.total() / whole - 1.0).abs() < 1e-12);
            split
        };
        let (one, many) = (of(1), of(32));
        assert!(many.linear < 1.2 * one.linear, "{one:?}, {many:?}");
        assert!((many.attention / one.attention - 32.0).abs() < 1e-6);
        assert!((many.sequences / one.sequences - 32.0).abs() < 1e-6);
        assert!(
            one.linear > 10.0 * (one.attention + one.sequences),
            "{one:?}"
        );
    }
}
