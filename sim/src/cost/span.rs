//! Layers over a mixed batch of sequences.

use plimsoll_core::extrapolation::SizeUnit;
use plimsoll_core::program::{Span, Stage};

use super::gemm::Product;
use super::{CostModel, Part, left_of};

/// Tasks that a layer on a batch counts for, as [`launch`](plimsoll_core::hardware::Compute::launch) says.
const TASKS_A_LAYER: f64 = 3.0;

impl CostModel {
    /// Each layer's products over all tokens, which read its weights once; attention of sequences past their prompt by
    /// the cache that they read, of prompts by its arithmetic; and what goes by sequences.
    pub(super) fn span(&self, it: &Span, each: &mut impl FnMut(Part)) {
        let layers = f64::from(it.layers);
        let compute = &self.profile.compute;
        let product = |m, n, k| Product {
            stage: None,
            m,
            n,
            k,
            reused: false,
            packed: it.compressed,
        };
        let mut of_layer = |part: Part| each(part.times(layers));
        let by_shape = self.by_shape_of(&Stage::RATED);
        match by_shape.filter(|_| self.sums_up(Stage::Finish, it.compressed)) {
            Some(known) => {
                let width = it.gemms.iter().next().map_or(0, |first| first.k);
                known.parts(
                    (&Stage::RATED, it.tokens, 1.0),
                    (width, it.compressed),
                    (&it.gemms, 0..0),
                    &mut of_layer,
                );
            }
            None => {
                for gemm in it.gemms.iter() {
                    self.gemm(product(it.tokens, gemm.n, gemm.k), &mut of_layer);
                }
            }
        }
        each(self.launch().times(TASKS_A_LAYER * layers));
        if it.context_tokens > 0 {
            let bytes = it.cache_bytes().as_f64();
            let rate = (&compute.attention_decode, bytes, SizeUnit::Bytes);
            let group = f64::from(it.q_size) / f64::from(it.kv_size.max(1));
            each(Part::rated(
                "compute.attention_decode",
                bytes * layers / left_of(&compute.attention_decode_shared, group),
                rate,
            ));
        }
        if it.prompt_tokens > 0 {
            let flops = it.prompt_flops().0 * layers;
            // What a token sees on average is half its prompt.
            let context = 2.0 * it.prompt_pairs as f64 / f64::from(it.prompt_tokens);
            let rate = (&compute.attention_prefill, context, SizeUnit::ContextTokens);
            each(Part::rated("compute.attention_prefill", flops, rate));
        }
        let sequences = f64::from(it.sequences);
        if let Some(time) = &compute.sequence_layer {
            let part = Part::fixed("compute.sequence_layer", time);
            each(part.times(sequences * layers));
        }
        if it.embeds {
            // Read from the table, written to the activations.
            let hidden = it.gemms.iter().next().map_or(0, |gemm| gemm.k);
            let elements = 2.0 * f64::from(it.tokens) * f64::from(hidden);
            each(self.through_device(elements * self.element_bytes as f64));
        }
        if let Some(head) = it.head {
            self.gemm(product(it.sequences, head.n, head.k), each);
            each(self.launch());
            if let Some(time) = &compute.sequence {
                each(Part::fixed("compute.sequence", time).times(sequences));
            }
        }
    }
}
