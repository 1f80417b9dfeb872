//! From flags to nouns.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, footprint};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::{ChosenBy, PLAN_SCHEMA_VERSION, Plan, Provenance};
use plimsoll_core::policy::Policy;
use plimsoll_core::workload::Workload;

use super::exit::{Exit, Failure};

/// A policy that the caller gave, as a plan without a prediction.
pub(super) fn given_plan(
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

/// Refuses a plan that means nothing, before anything starts. `source` is the file that it comes
/// from; none for flags.
pub(super) fn check_plan(plan: &Plan, source: Option<&str>) -> anyhow::Result<()> {
    let Err(error) = footprint(plan) else {
        return Ok(());
    };
    let exit = match (&error, source) {
        (LowerError::DoesNotFit { .. }, _) => Exit::Infeasible,
        (_, Some(_)) => Exit::BadInput,
        (_, None) => Exit::Usage,
    };
    let message = match source {
        Some(file) => format!("{file}: {error}"),
        None => error.to_string(),
    };
    Err(Failure::new(exit, message).into())
}
