//! Plans of policies that somebody gave.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, footprint};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::{ChosenBy, PLAN_SCHEMA_VERSION, Plan, Provenance};
use plimsoll_core::policy::Policy;
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;

/// A given policy on a machine, without a prediction.
pub fn plan(
    profile: &HardwareProfile,
    model: ModelSpec,
    dtype: Dtype,
    workload: Workload,
    policy: Policy,
) -> Plan {
    let machine = (&*profile.name, profile.usable());
    on(machine, (model, dtype), workload, policy)
}

/// A given policy where each tier is as large as it needs.
///
/// # Errors
/// A workload or policy that means nothing.
pub fn plan_with_room(
    model: ModelSpec,
    dtype: Dtype,
    workload: Workload,
    policy: Policy,
) -> Result<Plan, LowerError> {
    let machine = ("this-machine", PerTier::default());
    let mut plan = on(machine, (model, dtype), workload, policy);
    plan.capacity_bytes = footprint(&plan)?;
    Ok(plan)
}

fn on(
    (hardware, capacity_bytes): (&str, PerTier<Bytes>),
    (model, dtype): (ModelSpec, Dtype),
    workload: Workload,
    policy: Policy,
) -> Plan {
    Plan {
        schema_version: PLAN_SCHEMA_VERSION,
        model,
        dtype,
        workload,
        policy,
        capacity_bytes,
        prediction: None,
        provenance: Provenance {
            hardware: hardware.to_owned(),
            chosen_by: ChosenBy::Given,
            plimsoll_version: env!("CARGO_PKG_VERSION").to_owned(),
        },
    }
}
