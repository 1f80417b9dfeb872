//! Plans of policies that somebody gave.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::{ChosenBy, PLAN_SCHEMA_VERSION, Plan, Provenance};
use plimsoll_core::policy::Policy;
use plimsoll_core::workload::Workload;

/// A given policy on a machine, without a prediction.
pub fn plan(
    profile: &HardwareProfile,
    model: ModelSpec,
    dtype: Dtype,
    workload: Workload,
    policy: Policy,
) -> Plan {
    Plan {
        schema_version: PLAN_SCHEMA_VERSION,
        model,
        dtype,
        workload,
        policy,
        capacity_bytes: profile.usable(),
        prediction: None,
        provenance: Provenance {
            hardware: profile.name.clone(),
            chosen_by: ChosenBy::Given,
            plimsoll_version: env!("CARGO_PKG_VERSION").to_owned(),
        },
    }
}
