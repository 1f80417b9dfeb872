//! The zig-zag and the diagonal block schedule in the same memory (FlexGen appendix A.2.1).

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, footprint};
use plimsoll_core::machine::ResourceKind;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::summary::Summary;
use plimsoll_core::tier::Tier;
use plimsoll_core::workload::Workload;
use plimsoll_sim::predict;
use serde::Serialize;

use super::study::Study;
use crate::parallel::on_all_processors;
use crate::report::Align::{Left, Right};
use crate::report::{signed_percent, three_digits};

/// One placement on one machine, for prompts and answers of several lengths.
#[derive(Debug, Clone)]
pub struct Schedules {
    /// Where.
    pub machine: HardwareProfile,
    /// What runs.
    pub model: ModelSpec,
    /// Which; its schedule and its number of GPU batches are open.
    pub policy: Policy,
    /// Tokens in each prompt, tokens generated for each.
    pub lengths: Vec<(u32, u32)>,
}

/// Both schedules at the largest block that fits, as simulated. Prompts are endless.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct SchedulesRow {
    /// Tokens in each prompt.
    prompt_len: u32,
    /// Tokens generated for each.
    gen_len: u32,
    /// Sequences of the largest zig-zag block that fits.
    zigzag_block: u64,
    /// Sequences of the largest diagonal block that fits.
    diagonal_block: u64,
    /// The one over the other.
    block_ratio: f64,
    /// The ratio in the limit of many tokens, (2s + 2n) / (2s + n).
    formula_ratio: f64,
    /// Generated tokens a second with the zig-zag's block.
    zigzag_tok_s: f64,
    /// With a diagonal of the zig-zag's block: prefill beside decode, and no more memory used.
    same_block_tok_s: f64,
    /// With the diagonal's block.
    diagonal_tok_s: f64,
    /// Diagonal over zig-zag, less one.
    gain: f64,
    /// Bytes of weights that are brought to the device for each generated token, zig-zag.
    zigzag_weight_bytes_per_token: f64,
    /// The same, diagonal.
    diagonal_weight_bytes_per_token: f64,
    /// What is busiest, zig-zag.
    zigzag_bottleneck: ResourceKind,
    /// The same, diagonal.
    diagonal_bottleneck: ResourceKind,
}

impl Schedules {
    /// A row for each pair of lengths.
    ///
    /// # Errors
    /// Lengths that mean nothing for the model, or at which not even one GPU batch fits.
    pub fn study(&self) -> anyhow::Result<Study> {
        let rows = on_all_processors(self.lengths.clone(), &|lengths| self.row(lengths));
        study(
            &rows
                .into_iter()
                .collect::<anyhow::Result<Vec<SchedulesRow>>>()?,
        )
    }

    fn row(&self, (prompt_len, gen_len): (u32, u32)) -> anyhow::Result<SchedulesRow> {
        let workload = Workload {
            prompt_len,
            gen_len,
            num_prompts: None,
        };
        let zigzag = self.largest(Schedule::ZigZag, workload)?;
        let diagonal = self.largest(Schedule::Diagonal, workload)?;
        let block = |plan: &Plan| plan.policy.block_size() as f64;
        let same = Plan {
            policy: Policy {
                schedule: Schedule::Diagonal,
                ..zigzag.policy
            },
            ..zigzag.clone()
        };
        let placed = WeightPlacement::new(&self.model, zigzag.dtype, &self.policy).bytes();
        let streamed = (placed.host + placed.disk).as_f64();
        let (s, n) = (f64::from(prompt_len), f64::from(gen_len));
        let of = |plan: &Plan| -> anyhow::Result<Summary> { Ok(predict(plan, &self.machine)?) };
        let (with_zigzag, with_diagonal) = (of(&zigzag)?, of(&diagonal)?);
        Ok(SchedulesRow {
            prompt_len,
            gen_len,
            zigzag_block: zigzag.policy.block_size(),
            diagonal_block: diagonal.policy.block_size(),
            block_ratio: block(&diagonal) / block(&zigzag),
            formula_ratio: (2.0 * s + 2.0 * n) / (2.0 * s + n),
            zigzag_tok_s: with_zigzag.throughput_tok_s,
            same_block_tok_s: of(&same)?.throughput_tok_s,
            diagonal_tok_s: with_diagonal.throughput_tok_s,
            gain: with_diagonal.throughput_tok_s / with_zigzag.throughput_tok_s - 1.0,
            // A pass reads them once, and gives a token of each sequence.
            zigzag_weight_bytes_per_token: streamed / block(&zigzag),
            diagonal_weight_bytes_per_token: streamed / block(&diagonal),
            zigzag_bottleneck: with_zigzag.bottleneck,
            diagonal_bottleneck: with_diagonal.bottleneck,
        })
    }

    /// The plan of the most GPU batches that fit; of one where none do, which its simulation refuses.
    fn largest(&self, schedule: Schedule, workload: Workload) -> Result<Plan, LowerError> {
        let plan_of = |num_gpu_batches| {
            let policy = Policy {
                schedule,
                num_gpu_batches,
                ..self.policy
            };
            let model = self.model.clone();
            Plan::given(model, Dtype::F16, workload, policy).on(&self.machine)
        };
        let mut largest = plan_of(1);
        for num_gpu_batches in 2.. {
            let plan = plan_of(num_gpu_batches);
            let needed = footprint(&plan)?;
            let fits = |tier| needed[tier] <= plan.capacity_bytes[tier];
            if !Tier::ALL.into_iter().all(fits) {
                break;
            }
            largest = plan;
        }
        Ok(largest)
    }
}

/// The largest blocks that fit and what they reach.
fn study(rows: &[SchedulesRow]) -> anyhow::Result<Study> {
    let columns = [
        ("prompt + tokens", Left),
        ("zig-zag block", Right),
        ("diagonal block", Right),
        ("ratio", Right),
        ("(2s+2n)/(2s+n)", Right),
        ("zig-zag tok/s", Right),
        ("diagonal, same block", Right),
        ("diagonal tok/s", Right),
        ("gain", Right),
        ("weights a token, GB", Right),
        ("busiest", Left),
    ];
    let gigabytes = |bytes: f64| three_digits(bytes / 1e9);
    Study::of(rows, String::new(), columns, |row| {
        let weights = [
            row.zigzag_weight_bytes_per_token,
            row.diagonal_weight_bytes_per_token,
        ];
        let [before, after] = weights.map(gigabytes);
        [
            format!("{} + {}", row.prompt_len, row.gen_len),
            row.zigzag_block.to_string(),
            row.diagonal_block.to_string(),
            format!("{:.2}", row.block_ratio),
            format!("{:.2}", row.formula_ratio),
            three_digits(row.zigzag_tok_s),
            three_digits(row.same_block_tok_s),
            three_digits(row.diagonal_tok_s),
            signed_percent(row.gain),
            format!("{before}, then {after}"),
            match [row.zigzag_bottleneck, row.diagonal_bottleneck] {
                [before, now] if before == now => now.to_string(),
                [before, now] => format!("{before}, then {now}"),
            },
        ]
    })
}
