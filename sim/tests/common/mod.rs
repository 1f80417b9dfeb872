//! What several tests need.

use plimsoll_core::Dtype;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::workload::Workload;

/// A plan on a machine that is just large enough for it.
pub fn plan(model: ModelSpec, workload: Workload, policy: Policy) -> Plan {
    let plan = Plan::given(model, Dtype::F16, workload, policy);
    plan.with_room().expect("a policy")
}
