//! The order of passes over the layers; one file a schedule.

mod diagonal;
mod row;
mod zigzag;

use std::collections::BTreeMap;

use super::pages::Cut;
use crate::policy::{Policy, Schedule};
use crate::workload::Workload;

/// GPU batches that share buffers with those of other rounds at the same place: a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Sequences in each GPU batch.
    pub batches: Vec<u32>,
}

/// One GPU batch in one pass: it is prefilled, or advances by a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Its round.
    pub round: u32,
    /// Its place in the round.
    pub batch: u16,
    /// Its sequences.
    pub sequences: u32,
    /// Which of its tokens comes out, from 0 on.
    pub token: u32,
}

/// Which GPU batches take part in each pass over the layers.
#[derive(Debug, Clone)]
pub struct Passes {
    rounds: Vec<Round>,
    gen_len: u32,
    /// GPU batches that a block has room for.
    places: u64,
    /// Passes from one token of a GPU batch to its next: micro-batches take turns.
    stride: u64,
    /// Passes after which each GPU batch is admitted, in the order of rounds and of batches in them.
    admitted: Vec<u64>,
}

impl Passes {
    /// Those that answer the workload's prompts. Where they are endless: one full block, or for the
    /// diagonal schedule two, so that for the stay of a batch every place is taken.
    pub fn new(policy: &Policy, workload: &Workload) -> Passes {
        let rounds = rounds(policy, workload);
        let gen_len = u64::from(workload.gen_len);
        let together = policy.num_gpu_batches as usize;
        // A block that is not full may have fewer micro-batches.
        let micro_batches = super::most_batches(&rounds).div_ceil(together);
        let stride = micro_batches.max(1) as u64;
        let admitted = match policy.schedule {
            Schedule::Diagonal => diagonal::admitted(&rounds, policy.num_gpu_batches, gen_len),
            Schedule::Row | Schedule::ZigZag => {
                let turn = |(index, round): (usize, &Round)| {
                    let first = index as u64 * gen_len * stride;
                    let batches = 0..round.batches.len();
                    batches.map(move |batch| first + (batch / together) as u64)
                };
                rounds.iter().enumerate().flat_map(turn).collect()
            }
        };
        Passes {
            rounds,
            gen_len: workload.gen_len,
            places: policy.batches_in_block(),
            stride,
            admitted,
        }
    }

    /// The rounds.
    pub fn rounds(&self) -> &[Round] {
        &self.rounds
    }

    /// How many passes there are.
    pub fn count(&self) -> u64 {
        let last = self.admitted.last();
        last.map_or(0, |admitted| admitted + self.last_after() + 1)
    }

    /// GPU batches of each round but the last, which may have fewer.
    fn batches_in_round(&self) -> usize {
        self.rounds.first().map_or(1, |round| round.batches.len())
    }

    /// Passes from the one that admits a GPU batch to its last.
    fn last_after(&self) -> u64 {
        u64::from(self.gen_len.saturating_sub(1)) * self.stride
    }

    /// Micro-batches that take turns; 1 where each pass is of all GPU batches.
    pub fn micro_batches(&self) -> u64 {
        self.stride
    }

    /// The pass in which a GPU batch has a token.
    pub fn pass_of(&self, round: u32, batch: u16, token: u32) -> Option<u64> {
        let before = round as usize * self.batches_in_round();
        let admitted = self.admitted.get(before + usize::from(batch))?;
        Some(admitted + u64::from(token) * self.stride)
    }

    /// The most pages of the cache beside the first that all GPU batches hold in a pass. Admissions repeat
    /// after a stay, so those of two stays have seen everything.
    pub(super) fn most_pages(&self, cut: Cut) -> u64 {
        let gen_len = u64::from(self.gen_len);
        let at_the_end = cut.further_pages(gen_len.saturating_sub(1));
        let mut changes = BTreeMap::<u64, i64>::new();
        for admitted in self.admitted.iter().take(2 * self.places as usize) {
            for page in 1..=at_the_end {
                *changes.entry(admitted + page * cut.further).or_default() += 1;
            }
            *changes.entry(admitted + gen_len).or_default() -= at_the_end as i64;
        }
        let held = changes.values().scan(0, |held, change| {
            *held += change;
            Some(*held)
        });
        held.max().unwrap_or(0) as u64
    }

    /// The turns of a pass, the batches that were admitted first in front; none after the last, nor where
    /// a block that is not full lacks the micro-batch.
    pub fn turns(&self, pass: u64) -> Vec<Turn> {
        let stay = self.last_after();
        let first = self.admitted.partition_point(|at| at + stay < pass);
        let end = self.admitted.partition_point(|at| *at <= pass);
        let present = (first..end).map(|index| (index, pass - self.admitted[index]));
        let active = present.filter(|(_, after)| after.is_multiple_of(self.stride));
        let per_round = self.batches_in_round();
        active
            .map(|(index, after)| {
                let (round, batch) = (index / per_round, index % per_round);
                Turn {
                    round: round as u32,
                    batch: batch as u16,
                    sequences: self.rounds[round].batches[batch],
                    token: (after / self.stride) as u32,
                }
            })
            .collect()
    }
}

/// Prompts that are run: the workload's, or those that stand for endless ones.
pub(super) fn prompts(policy: &Policy, workload: &Workload) -> u64 {
    let blocks = match policy.schedule {
        Schedule::Row | Schedule::ZigZag => 1,
        Schedule::Diagonal => 2,
    };
    workload
        .num_prompts
        .unwrap_or(policy.block_size().saturating_mul(blocks))
}

/// The rounds of GPU batches.
pub fn rounds(policy: &Policy, workload: &Workload) -> Vec<Round> {
    match policy.schedule {
        Schedule::Row => row::rounds(policy, prompts(policy, workload)),
        Schedule::ZigZag => zigzag::rounds(policy, prompts(policy, workload)),
        Schedule::Diagonal => zigzag::rounds(policy, prompts(policy, workload)),
    }
}

/// Prompts of a round that is full.
pub fn prompts_in_round(policy: &Policy) -> u64 {
    match policy.schedule {
        Schedule::Row => u64::from(policy.gpu_batch_size),
        Schedule::ZigZag | Schedule::Diagonal => policy.block_size(),
    }
}

/// The workload without full rounds beyond so many that stay, the last, which may not be full, among them; and how many are left
/// out. None where there are no more.
pub fn shortened(policy: &Policy, workload: &Workload, stay: u64) -> Option<(Workload, u64)> {
    let (all, each) = (prompts(policy, workload), prompts_in_round(policy));
    let rounds = all.div_ceil(each.max(1));
    let missing = rounds.checked_sub(stay).filter(|missing| *missing > 0)?;
    let some = Workload {
        num_prompts: Some(all - missing * each),
        ..*workload
    };
    Some((some, missing))
}

/// Rounds of which a block's layout has seen all: the last may not be full, and pages of the cache are counted over two stays of all
/// its places.
pub(super) fn rounds_to_lay_out(policy: &Policy) -> u64 {
    let places = policy.batches_in_block();
    match policy.schedule {
        Schedule::Row => 2 * places + 2,
        Schedule::ZigZag | Schedule::Diagonal => 4,
    }
}

/// The sizes of GPU batches that hold `prompts`, the last one perhaps not full.
fn batches(policy: &Policy, prompts: u64) -> impl Iterator<Item = u32> {
    let size = u64::from(policy.gpu_batch_size);
    (0..prompts.div_ceil(size)).map(move |i| (prompts - i * size).min(size) as u32)
}
