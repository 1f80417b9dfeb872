//! `plimsoll plan --against`: why the plan is better than another.

use std::fmt::Write as _;
use std::path::Path;

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::LowerError;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;

use super::exit::{Exit, Failure};
use crate::compare::Comparison;
use crate::files::{input_name, read_plan};
use crate::planner::{Allowed, Request};
use crate::report::{signed_percent, three_digits};

/// The plan of a file that a plan for a model is compared with: read before the search, which takes longer.
///
/// # Errors
/// A file that is no plan, or one for another model.
pub(super) fn plan_for(file: &Path, model: &ModelSpec) -> anyhow::Result<Plan> {
    let other = read_plan(file)?;
    let file = input_name(file);
    if other.model != *model {
        let (theirs, ours) = (&other.model.name, &model.name);
        let line = format!(
            "--against {}: is a plan for {theirs}, not for {ours}; give one for the same model",
            file.display()
        );
        return Err(Failure::new(Exit::Usage, line).into());
    }
    Ok(other)
}

/// A line for the other plan, and one for each step, of what was asked for on a machine.
pub(super) fn text(
    file: &Path,
    comparison: &Result<Comparison, LowerError>,
    (profile, request): (&HardwareProfile, &Request),
) -> String {
    let file = input_name(file).display();
    let comparison = match comparison {
        Ok(comparison) => comparison,
        Err(refused) => return format!("against    {file}: {refused}\n"),
    };
    let rate = three_digits(comparison.from_tok_s);
    if comparison.steps.is_empty() {
        return format!(
            "against    {file}: {rate} tok/s on this machine; its policy is this plan's\n"
        );
    }
    let mut text = format!("against    {file}: {rate} tok/s; from there to this plan\n");
    for step in &comparison.steps {
        let gain = signed_percent(step.gain - 1.0);
        let rate = three_digits(step.throughput_tok_s);
        let changed = step.changed.join(", ");
        let _ = writeln!(text, "           {gain:>7} to {rate} tok/s: {changed}");
    }
    let gain: f64 = comparison.steps.iter().map(|step| step.gain).product();
    if gain < 1.0 {
        let worse = signed_percent(1.0 / gain - 1.0);
        let verdict = match forbidden(comparison, profile, request) {
            Some(why) => format!("faster by {worse}, but {why}"),
            None => format!("better here by {worse}; keep it"),
        };
        let _ = writeln!(text, "           the other plan is {verdict}");
    }
    text
}

/// Why the other plan is none that could have been chosen.
fn forbidden(
    comparison: &Comparison,
    profile: &HardwareProfile,
    request: &Request,
) -> Option<String> {
    let lockable = profile.tiers.page_lockable_bytes.as_ref();
    let locked = comparison.from_page_locked_bytes;
    let locks = lockable.filter(|most| locked > most.value).map(|most| {
        let most = most.value;
        format!(
            "page-locks {locked}, of which {} allows {most}",
            profile.name
        )
    });
    let latency_s = comparison.from_latency_s;
    let late = request.max_latency_s.filter(|limit| latency_s > *limit);
    let late = late.map(|limit| format!("takes {latency_s}, longer than {limit}"));
    locks
        .or(late)
        .or_else(|| not_allowed(&comparison.from, &request.allowed))
}

/// What a policy does that no flag allows, or another than a flag asks for.
fn not_allowed(policy: &Policy, allowed: &Allowed) -> Option<String> {
    let packs = policy.compression;
    let (weights, cache) = (allowed.compression.weights, allowed.compression.cache);
    let does = [
        (
            packs.weights && !weights,
            "weights in 4 bits, without --compress-weight",
        ),
        (
            packs.cache && !cache,
            "a cache in 4 bits, without --compress-cache",
        ),
        (
            policy.sparse_attention != allowed.sparse_attention,
            "another --sparse-attention",
        ),
        (
            allowed.schedule.is_some_and(|it| it != policy.schedule),
            "another --schedule",
        ),
        (
            allowed
                .cpu_attention
                .is_some_and(|it| it != policy.cpu_attention),
            "another --cpu-compute",
        ),
        (
            policy.overlap && !allowed.overlap,
            "overlap, and --no-overlap was asked for",
        ),
    ];
    let found = does.into_iter().find(|(does, _)| *does);
    found.map(|(_, what)| format!("has {what}"))
}
