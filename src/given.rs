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

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A given policy on a machine, without a prediction.
pub fn plan(
    profile: &HardwareProfile,
    model: ModelSpec,
    dtype: Dtype,
    workload: Workload,
    policy: Policy,
) -> Plan {
    let provenance = Provenance::of(profile, ChosenBy::Given, VERSION);
    on(
        (provenance, profile.usable()),
        (model, dtype),
        workload,
        policy,
    )
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
    let provenance = Provenance {
        hardware: "this-machine".to_owned(),
        device_threads: None,
        chosen_by: ChosenBy::Given,
        plimsoll_version: VERSION.to_owned(),
    };
    let mut plan = on(
        (provenance, PerTier::default()),
        (model, dtype),
        workload,
        policy,
    );
    plan.capacity_bytes = footprint(&plan)?;
    Ok(plan)
}

fn on(
    (provenance, capacity_bytes): (Provenance, PerTier<Bytes>),
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
        provenance,
    }
}
