//! The plan file: the plan's own keys, and a note of the search that a reader may skip.

use std::path::Path;

use plimsoll_core::Dtype;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::{PLAN_SCHEMA_VERSION, Plan, Provenance};
use plimsoll_core::policy::Policy;
use plimsoll_core::summary::Summary;
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;
use serde::{Deserialize, Serialize};

use super::json_place::explain;
use super::{InputError, input_name, read_input};
use crate::compare::Comparison;
use crate::planner::split::GreedysLoss;

/// What is written: a plan and how it was found.
#[derive(Debug, Serialize)]
pub struct PlanFile<'a> {
    /// The plan's own keys.
    #[serde(flatten)]
    pub plan: &'a Plan,
    /// How it was found; readers skip it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchNote<'a>>,
}

/// What the search says besides its plan.
#[derive(Debug, Serialize)]
pub struct SearchNote<'a> {
    /// Policies that were compared.
    pub considered: usize,
    /// What would help.
    pub advice: &'a [String],
    /// What else is to be said of the plan and the machine's numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The best plan of another kind.
    pub runner_up: Option<&'a Plan>,
    /// What the greedy choice of modules for the device loses, of a plan that splits linear layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greedys_loss: Option<GreedysLoss>,
    /// Why it is better than a plan that it was to be compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<&'a Comparison>,
    /// Why the plan that it was to be compared with does not run here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_refused: Option<&'a str>,
}

/// What is read. Apart from [`Plan`], so that the note may be there and nothing else may.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    schema_version: u32,
    model: ModelSpec,
    dtype: Dtype,
    workload: Workload,
    policy: Policy,
    capacity_bytes: PerTier<Bytes>,
    #[serde(default)]
    prediction: Option<Summary>,
    provenance: Provenance,
    #[serde(default, rename = "search")]
    _search: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Version {
    #[serde(default)]
    schema_version: Option<u64>,
}

/// The plan as text, indented, with a line end.
pub fn plan_json(file: &PlanFile<'_>) -> String {
    let text = serde_json::to_string_pretty(file);
    text.expect("a plan holds texts and finite numbers") + "\n"
}

/// Reads a plan, of `-` from standard input, and checks everything that can be checked without a machine.
///
/// # Errors
/// What is wrong, with its line and key.
pub fn read_plan(path: &Path) -> Result<Plan, InputError> {
    let text = read_input(path)?;
    let path = input_name(path);
    let wrong = |error: serde_json::Error| {
        let said = explain(&text, &error);
        InputError::bad_file(path, said.key, said.problem, said.remedy)
    };
    let version: Version = serde_json::from_str(&text).map_err(wrong)?;
    if version.schema_version.is_none() {
        let problem = "is no plan: it has no `schema_version`";
        let remedy = "give what `plimsoll plan -o FILE` wrote";
        return Err(InputError::bad_whole_file(path, problem, remedy));
    }
    if let Some(found) = version.schema_version
        && found != u64::from(PLAN_SCHEMA_VERSION)
    {
        let problem = format!("is {found}, this version reads {PLAN_SCHEMA_VERSION}");
        let remedy = "make the plan again with `plimsoll plan`";
        return Err(InputError::bad_file(
            path,
            "schema_version",
            problem,
            remedy,
        ));
    }
    let wire: Wire = serde_json::from_str(&text).map_err(wrong)?;
    check(path, &wire)?;
    Ok(Plan {
        schema_version: wire.schema_version,
        model: wire.model,
        dtype: wire.dtype,
        workload: wire.workload,
        policy: wire.policy,
        capacity_bytes: wire.capacity_bytes,
        prediction: wire.prediction,
        provenance: wire.provenance,
    })
}

fn check(path: &Path, wire: &Wire) -> Result<(), InputError> {
    let remedy = "correct it, or make the plan again with `plimsoll plan`";
    let wrong = |key: &str, problem: &str| InputError::bad_file(path, key, problem, remedy);
    wire.model
        .validate()
        .map_err(|error| wrong("model", &error.to_string()))?;
    wire.policy
        .validate()
        .map_err(|error| wrong("policy", &error.to_string()))?;
    let workload = &wire.workload;
    for (key, count) in [
        ("workload.prompt_len", u64::from(workload.prompt_len)),
        ("workload.gen_len", u64::from(workload.gen_len)),
        ("workload.num_prompts", workload.num_prompts.unwrap_or(1)),
    ] {
        if count == 0 {
            return Err(wrong(key, "is 0, but must be at least 1"));
        }
    }
    for tier in [Tier::Device, Tier::Host] {
        if wire.capacity_bytes[tier] == Bytes::ZERO {
            return Err(wrong(&format!("capacity_bytes.{tier}"), "is 0"));
        }
    }
    Ok(())
}
