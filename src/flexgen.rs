//! FlexGen's conventions: what its released code decides besides the numbers of a policy.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::policy::{PageLocked, Policy};

/// The cache is pageable, activations are page-locked, and so are weights as far as the machine lets
/// them: FlexGen's scripts turn that off (`--pin-weight 0`) for OPT-175B.
pub fn page_locked(
    profile: &HardwareProfile,
    model: &ModelSpec,
    dtype: Dtype,
    policy: &Policy,
) -> PageLocked {
    let host = WeightPlacement::new(model, dtype, policy).bytes().host;
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
    format!(
        "{}x{} {}",
        policy.gpu_batch_size,
        policy.num_gpu_batches,
        shares.collect::<Vec<_>>().join(" ")
    )
}
