//! FlexGen's conventions: what its released code decides besides the numbers of a policy.

use std::ops::Range;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::units::Bytes;

/// GPU batches a block, at most (section 4.3: "less than 20").
pub const BATCHES_MAX: u32 = 20;

/// On each host, the cache is pageable, activations are page-locked, and so are weights as far as the machine lets
/// them: FlexGen's scripts turn that off (`--pin-weight 0`) for OPT-175B.
pub fn page_locked(
    profile: &HardwareProfile,
    model: &ModelSpec,
    dtype: Dtype,
    policy: &Policy,
) -> PageLocked {
    let placed = WeightPlacement::new(model, dtype, policy);
    let pipeline = &policy.pipeline;
    let stages = pipeline.blocks(model.num_hidden_layers);
    let on_host = |stages: &[Range<u32>]| -> Bytes {
        let blocks = stages.iter().cloned().flatten();
        blocks
            .map(|block| placed.blocks[block as usize].slab.host)
            .sum()
    };
    let host = stages
        .chunks(pipeline.stages_per_host as usize)
        .map(on_host)
        .max();
    let host = host.unwrap_or_default();
    let lockable = profile.tiers.page_lockable_bytes.as_ref();
    PageLocked {
        weights: lockable.is_none_or(|most| host <= most.value),
        ..PageLocked::FLEXGEN
    }
}

/// Batches and the six percentages, as FlexGen's tables print a policy.
pub fn tuple(policy: &Policy) -> String {
    let share = |share: f64| format!("{:.0}", 100.0 * share);
    let shares = [policy.weights, policy.cache, policy.activations];
    let shares = shares.iter().flat_map(|s| [share(s.device), share(s.host)]);
    let pipeline = match policy.pipeline.is_default() {
        true => String::new(),
        false => format!("x{}", policy.pipeline.micro_batches),
    };
    format!(
        "{}x{}{pipeline} {}",
        policy.gpu_batch_size,
        policy.num_gpu_batches,
        shares.collect::<Vec<_>>().join(" ")
    )
}
