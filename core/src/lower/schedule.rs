//! The order of passes over the layers; one file a schedule.

mod row;
mod zigzag;

use crate::policy::{Policy, Schedule};
use crate::workload::Workload;

/// GPU batches that are in flight together: a block. Their buffers are the same in every round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Sequences in each GPU batch.
    pub batches: Vec<u32>,
}

/// The rounds that answer the workload's prompts, or one full block where they are endless.
pub fn rounds(policy: &Policy, workload: &Workload) -> Vec<Round> {
    let prompts = workload.num_prompts.unwrap_or(policy.block_size());
    match policy.schedule {
        Schedule::Row => row::rounds(policy, prompts),
        Schedule::ZigZag => zigzag::rounds(policy, prompts),
    }
}

/// The sizes of GPU batches that hold `prompts`, the last one perhaps not full.
fn batches(policy: &Policy, prompts: u64) -> impl Iterator<Item = u32> {
    let size = u64::from(policy.gpu_batch_size);
    (0..prompts.div_ceil(size)).map(move |i| (prompts - i * size).min(size) as u32)
}
