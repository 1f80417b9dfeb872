//! From flags to nouns.

use plimsoll_core::lower::{LowerError, footprint};
use plimsoll_core::plan::Plan;

use super::exit::{Exit, Failure};

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
