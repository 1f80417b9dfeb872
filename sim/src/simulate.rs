//! From a plan to its prediction.

use plimsoll_core::control::{Controller, DriveError, Run, drive, drive_unverified};
use plimsoll_core::executor::Executor;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::{LowerError, Lowering};
use plimsoll_core::plan::Plan;
use plimsoll_core::summary::Summary;
use plimsoll_core::timing::Timing;
use thiserror::Error;

use crate::cost::CostModel;
use crate::engine::Simulator;
use crate::repeat::predict_repeated;

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
    run(plan, profile, drive)
}

/// What a plan's run in modelled time amounts to. Of many rounds only a few are simulated.
///
/// # Errors
/// As [`simulate`].
pub fn predict(plan: &Plan, profile: &HardwareProfile) -> Result<Summary, SimulateError> {
    if let Some(summary) = predict_repeated(plan, profile)? {
        return Ok(summary);
    }
    Ok(Summary::of_plan(plan, &simulate(plan, profile)?))
}

/// The part of [`predict`] that plans are ranked by, in half the time: its program is not verified.
///
/// # Errors
/// As [`simulate`].
pub fn time(plan: &Plan, profile: &HardwareProfile) -> Result<Timing, SimulateError> {
    Ok(Timing::of_plan(
        plan,
        &run(plan, profile, drive_unverified)?,
    ))
}

/// How a controller's decisions get to an executor.
type Drive = fn(&mut dyn Controller, &mut dyn Executor) -> Result<Run, DriveError>;

fn run(plan: &Plan, profile: &HardwareProfile, drive: Drive) -> Result<Run, SimulateError> {
    let mut lowering = Lowering::new(plan)?;
    let cost = CostModel::new(profile, plan.dtype);
    let mut simulator = Simulator::new(lowering.machine(), cost);
    Ok(drive(&mut lowering, &mut simulator)?)
}
