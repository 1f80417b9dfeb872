//! What several tests need.

use plimsoll_core::Dtype;
use plimsoll_core::lower::footprint;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::{ChosenBy, PLAN_SCHEMA_VERSION, Plan, Provenance};
use plimsoll_core::policy::Policy;
use plimsoll_core::tier::PerTier;
use plimsoll_core::workload::Workload;

/// A plan on a machine that is just large enough for it.
pub fn plan(model: ModelSpec, workload: Workload, policy: Policy) -> Plan {
    let mut plan = Plan {
        schema_version: PLAN_SCHEMA_VERSION,
        model,
        dtype: Dtype::F16,
        workload,
        policy,
        capacity_bytes: PerTier::default(),
        prediction: None,
        provenance: Provenance {
            hardware: "t4".into(),
            device_threads: None,
            chosen_by: ChosenBy::Given,
            plimsoll_version: "0".into(),
        },
    };
    plan.capacity_bytes = footprint(&plan).expect("a policy");
    plan
}
