//! Where an iteration's time goes over the batch: what all sequences share, and what each adds (S3, section 3).

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::program::{Gemm, Op, ResourceKind, Span};
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
    /// What was published of the arithmetic that is used, where that was.
    pub utilization: Option<Utilization>,
}

/// How much of a processor's arithmetic is used (S3, Figure 2).
#[derive(Debug, Clone, Copy)]
pub struct Utilization {
    /// All of it: operations a second, two a multiply-add.
    pub peak: f64,
    /// The share that was published for the smallest batch, and for the largest.
    pub published: [f64; 2],
}

/// Operations of linear layers and attention, two a multiply-add.
fn flops(span: &Span) -> f64 {
    let product =
        |tokens: u32, gemm: Gemm| 2.0 * f64::from(tokens) * f64::from(gemm.n) * f64::from(gemm.k);
    let layer: f64 = span
        .gemms
        .iter()
        .map(|gemm| product(span.tokens, gemm))
        .sum();
    let attention = 4.0 * span.context_tokens as f64 * f64::from(span.q_size);
    let head = span.head.map_or(0.0, |head| product(span.sequences, head));
    f64::from(span.layers) * (layer + attention) + head
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
    /// Five rows for each model and batch, and one more where it is asked how much of the arithmetic is used.
    pub fn table(&self) -> ServingTable {
        let cost = |model| CostModel::of_layers(&self.machine, model, Dtype::F16);
        let each = self
            .models
            .iter()
            .flat_map(|model| self.batches.iter().map(move |batch| (model, *batch)));
        let rows = each.flat_map(|(model, batch)| self.rows(&cost(model), model, batch));
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
        let op = shape.span(&load, 0, shape.layers);
        let split = Split::of(cost, &op);
        let case = format!("{}, {batch} sequences", model.name);
        let row = |metric, seconds: f64| {
            let share = percent(seconds / split.total());
            ServingRow::new(&case, metric, seconds * 1e3, None).noted(share)
        };
        let mut rows = vec![
            row("iteration, ms", split.total()),
            row("linear layers, ms", split.linear),
            row("attention, ms", split.attention),
            row("else by sequences, ms", split.sequences),
            row("launches, ms", split.rest),
        ];
        if let (Some(of), Op::Span(span)) = (&self.utilization, &op) {
            let used = flops(span) / split.total() / of.peak;
            let published = self.published(of, batch);
            rows.push(ServingRow::new(
                &case,
                "share of the arithmetic",
                used,
                published,
            ));
        }
        rows
    }

    /// What was published for a batch.
    fn published(&self, of: &Utilization, batch: u32) -> Option<f64> {
        let ends = [self.batches.iter().min(), self.batches.iter().max()];
        let mut known = ends.into_iter().zip(of.published);
        let (_, published) = known.find(|(end, _)| *end == Some(&batch))?;
        Some(published)
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
        let cost = CostModel::of_layers(&machine, &model, Dtype::F16);
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
