//! Row by row: each GPU batch is a round of its own, so weights are read once for every batch and
//! token (FlexGen figure 3a; DeepSpeed ZeRO-Inference and Accelerate do this).

use super::{Round, batches};
use crate::policy::Policy;

pub(super) fn rounds(policy: &Policy, prompts: u64) -> Vec<Round> {
    batches(policy, prompts)
        .map(|sequences| Round {
            batches: vec![sequences],
        })
        .collect()
}
