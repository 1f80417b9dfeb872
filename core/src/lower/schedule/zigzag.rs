//! The zig-zag block schedule: a round is a block of GPU batches that share each layer's weights
//! (FlexGen figure 3b and Algorithm 1), or several such blocks that follow each other as micro-batches
//! (section 4.4).

use super::{Round, batches};
use crate::policy::Policy;

pub(super) fn rounds(policy: &Policy, prompts: u64) -> Vec<Round> {
    let all: Vec<u32> = batches(policy, prompts).collect();
    all.chunks(policy.batches_in_block() as usize)
        .map(|block| Round {
            batches: block.to_vec(),
        })
        .collect()
}
