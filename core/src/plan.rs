//! A plan: what will be run, on what, and what is expected of it.

use serde::{Deserialize, Serialize};

use crate::Dtype;
use crate::compression::Kept;
use crate::hardware::HardwareProfile;
use crate::machine::Machine;
use crate::model::ModelSpec;
use crate::policy::Policy;
use crate::summary::Summary;
use crate::tier::PerTier;
use crate::units::Bytes;
use crate::workload::Workload;

/// The version of the plan file that this code writes and reads.
pub const PLAN_SCHEMA_VERSION: u32 = 1;

/// Everything that decides a run, with its prediction. Written as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`PLAN_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The model's shape.
    pub model: ModelSpec,
    /// The type of weights, cache and activations.
    pub dtype: Dtype,
    /// What is asked.
    pub workload: Workload,
    /// What was decided.
    pub policy: Policy,
    /// What tensors may fill in each tier: of a GPU, and of a host.
    pub capacity_bytes: PerTier<Bytes>,
    /// What the simulator expects; none before it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<Summary>,
    /// Where the plan comes from.
    pub provenance: Provenance,
}

impl Plan {
    /// A policy that somebody gave, without a prediction and without a machine: put it [`on`](Plan::on) one, or
    /// let each tier be as large as it needs ([`with_room`](Plan::with_room)).
    pub fn given(model: ModelSpec, dtype: Dtype, workload: Workload, policy: Policy) -> Plan {
        Plan {
            schema_version: PLAN_SCHEMA_VERSION,
            model,
            dtype,
            workload,
            policy,
            capacity_bytes: PerTier::default(),
            prediction: None,
            provenance: Provenance {
                hardware: "this-machine".to_owned(),
                device_threads: None,
                chosen_by: ChosenBy::Given,
                plimsoll_version: env!("CARGO_PKG_VERSION").to_owned(),
            },
        }
    }

    /// The same on the machine of a profile.
    pub fn on(mut self, profile: &HardwareProfile) -> Plan {
        let threads = profile.compute.device_threads.as_ref();
        self.capacity_bytes = profile.usable();
        self.provenance.hardware.clone_from(&profile.name);
        self.provenance.device_threads = threads.map(|threads| threads.value);
        self
    }

    /// How its tensors are kept.
    pub fn kept(&self) -> Kept {
        Kept {
            dtype: self.dtype,
            compression: self.policy.compression,
        }
    }

    /// The machine that its program is written for. A plan of more stages than resources can be numbered
    /// has no program; see [`check_fits`](crate::lower::check_fits).
    pub fn machine(&self) -> Machine {
        let pipeline = &self.policy.pipeline;
        let number = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
        match pipeline.stages {
            1 => Machine::single_gpu(self.capacity_bytes),
            stages => Machine::several_gpus(
                self.capacity_bytes,
                number(stages),
                number(pipeline.stages_per_host),
            ),
        }
    }
}

/// Where a plan comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The hardware profile's name.
    pub hardware: String,
    /// Threads of the emulated device that the profile was measured with; none: one, or no emulated device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_threads: Option<u32>,
    /// Whether the planner chose the policy or a person gave it.
    pub chosen_by: ChosenBy,
    /// The version of Plimsoll.
    pub plimsoll_version: String,
}

/// Who decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChosenBy {
    /// The search.
    Planner,
    /// The caller.
    Given,
}
