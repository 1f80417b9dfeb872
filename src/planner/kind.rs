//! What tells plans apart that are not merely the same one with other numbers.

use plimsoll_core::policy::{PageLocked, Policy, Schedule};

use crate::flexgen;

/// The order of computation and its steps, where attention runs, over how many GPUs, whether linear layers are split: plans that differ
/// in one of these are of different kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The order of computation.
    pub schedule: Schedule,
    /// Whether attention and MLP are steps of their own.
    pub half_layers: bool,
    /// Whether the CPU attends to cache that is not on the device.
    pub cpu_attention: bool,
    /// GPUs that the model is spread over.
    pub stages: u32,
    /// Whether the CPU and the device compute linear layers together.
    pub split: bool,
}

impl Kind {
    /// That of a policy.
    pub fn of(policy: &Policy) -> Kind {
        Kind {
            schedule: policy.schedule,
            half_layers: policy.halves_layers(),
            cpu_attention: policy.cpu_attention,
            stages: policy.pipeline.stages,
            split: policy.split.is_some(),
        }
    }
}

/// Plans on which simulations of a part, and the closed form, err alike: of a kind, of blocks with or without more GPU batches
/// than are usual, with the same page-locked, and with all of the cache on the device or not.
pub(super) type Alike = (Kind, bool, PageLocked, bool);

/// What a policy's plan errs alike with.
pub(super) fn alike(policy: &Policy) -> Alike {
    (
        Kind::of(policy),
        has_usual_batches(policy),
        policy.page_locked,
        policy.cache.device >= 1.0,
    )
}

/// Whether a block has no more GPU batches than FlexGen tries.
pub(super) fn has_usual_batches(policy: &Policy) -> bool {
    policy.num_gpu_batches <= flexgen::BATCHES_MAX
}

/// The first of each kind in front, in their order, then the others; and how many kinds there are.
pub(super) fn first_of_each<T>(items: Vec<T>, policy: impl Fn(&T) -> &Policy) -> (Vec<T>, usize) {
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    let mut seen = Vec::new();
    for item in items {
        let kind = Kind::of(policy(&item));
        if seen.contains(&kind) {
            rest.push(item);
        } else {
            seen.push(kind);
            first.push(item);
        }
    }
    first.append(&mut rest);
    (first, seen.len())
}
