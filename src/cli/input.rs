//! From flags to nouns.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, footprint};
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;

use super::exit::{Exit, Failure};
use crate::report::count;

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

/// Refuses a pipeline of more stages than a machine has GPUs, or of more on a host, or over more hosts.
/// `source` is the file that it comes from; none for flags.
pub(super) fn check_gpus(
    pipeline: &Pipeline,
    profile: &HardwareProfile,
    source: Option<&str>,
) -> anyhow::Result<()> {
    let (gpus, gpus_per_host) = (profile.num_gpus(), profile.gpus_per_host());
    let on_host = pipeline.stages.min(pipeline.stages_per_host);
    let hosts = pipeline.stages.div_ceil(on_host);
    let gpus_said = count(gpus.into(), "GPU");
    let (key, asked, has) = if pipeline.stages > gpus {
        ("stages", pipeline.stages, gpus_said)
    } else if on_host > gpus_per_host || hosts > gpus / gpus_per_host {
        let has = format!("{gpus_said}, {gpus_per_host} on a host");
        ("stages_per_host", on_host, has)
    } else {
        return Ok(());
    };
    let name = &profile.name;
    let remedy = "give what it has, or the profile of a machine with more ([cluster], as in t4x4)";
    let (exit, what) = match source {
        Some(file) => (Exit::BadInput, format!("{file}: policy.pipeline.{key} is")),
        None => (Exit::Usage, format!("--{key}")),
    };
    let line = format!("{what} {asked}: {name} has {has}; {remedy}");
    Err(Failure::new(exit, line).into())
}
