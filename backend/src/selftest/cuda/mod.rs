//! CUDA's kernels, on a device that runs them.

mod attention;
mod bench;
mod elements;
mod groups;
mod mixed;
mod parts;
mod products;
mod prompt;
mod rows;
mod tables;

use plimsoll_core::Dtype;

use super::{Outcome, Wrong};
use crate::cuda::KernelDevice;
use bench::Bench;

/// The types that kernels compute.
const TYPES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

type Test = fn(&mut Bench<'_>) -> Result<(), Wrong>;

const TESTS: [(&str, Test); 31] = [
    ("embedding", rows::embed),
    ("layer norm", rows::layer_norm),
    ("RMSNorm", rows::rms_norm),
    ("rotary positions", rows::rotary),
    ("argmax", rows::argmax),
    ("bias and activation", elements::bias_activation),
    ("gated activation", elements::gate),
    ("residual", elements::residual),
    ("parts of outputs, put", parts::put),
    ("parts of outputs, added", parts::add),
    ("parts of outputs, activated", parts::activate),
    ("parts of outputs, gated", parts::gate),
    ("operands as f32", parts::widths),
    ("4-bit weights", groups::matrices),
    ("cache append", groups::append),
    ("attention, synchronised", attention::synchronised),
    ("attention, in two launches", attention::in_two),
    ("attention, unified maximum", attention::unified),
    ("scores, counted", attention::scores),
    ("unified maximum, chosen", attention::range),
    ("attention of a prompt", prompt::attend),
    ("attention over blocks", mixed::steps),
    ("attention of prompts over blocks", mixed::prompts),
    ("blocks appended to", mixed::append),
    ("tables of pages", tables::pages),
    ("positions of tokens", tables::places),
    ("GEMV", products::gemv),
    ("GEMV with 4-bit weights", products::gemv_packed),
    ("flat product", products::flat),
    ("flat product of few rows", products::thin),
    ("vendor product", products::vendor),
];

/// Tests all kernels. One that is wrong does not keep the others from being tested.
pub fn cuda(device: &mut dyn KernelDevice) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (name, test) in TESTS {
        let mut bench = Bench::new(device);
        let wrong = test(&mut bench).err();
        outcomes.push(Outcome {
            name,
            cases: bench.checks.cases,
            worst: bench.checks.worst,
            wrong,
        });
    }
    outcomes
}
