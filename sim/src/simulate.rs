//! From a plan to its prediction.

use plimsoll_core::control::{DriveError, Run, drive};
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, Lowering};
use plimsoll_core::plan::Plan;
use plimsoll_core::summary::Summary;
use thiserror::Error;

use crate::cost::CostModel;
use crate::engine::Simulator;

/// Why a plan has no prediction.
#[derive(Debug, Error)]
pub enum SimulateError {
    /// It has no program: it means nothing, or it does not fit.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// Its program is not valid, which is an error of ours.
    #[error(transparent)]
    Drive(#[from] DriveError),
}

/// Runs a plan in modelled time.
///
/// # Errors
/// A plan that means nothing or does not fit.
pub fn simulate(plan: &Plan, profile: &HardwareProfile) -> Result<Run, SimulateError> {
    let mut lowering = Lowering::new(plan)?;
    let machine = plimsoll_core::control::Controller::machine(&lowering).clone();
    let mut simulator = Simulator::new(&machine, CostModel::new(profile, plan.dtype));
    Ok(drive(&mut lowering, &mut simulator)?)
}

/// What a plan's run in modelled time amounts to.
///
/// # Errors
/// As [`simulate`].
pub fn predict(plan: &Plan, profile: &HardwareProfile) -> Result<Summary, SimulateError> {
    Ok(Summary::of_plan(plan, &simulate(plan, profile)?))
}
