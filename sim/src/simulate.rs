//! From a plan to its prediction.

use plimsoll_core::control::{Controller, DriveError, Run, drive, drive_unverified};
use plimsoll_core::executor::Executor;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::interval::Interval;
use plimsoll_core::lower::{LowerError, Lowering, check_kept};
use plimsoll_core::plan::Plan;
use plimsoll_core::summary::Summary;
use plimsoll_core::timing::Timing;
use thiserror::Error;

use crate::cost::CostModel;
use crate::engine::Simulator;
use crate::reliance::Reliance;
use crate::repeat::predict_repeated;
use crate::stream::predict_streamed;

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
    run(Lowering::new(plan)?, profile, drive)
}

/// What a plan's run in modelled time amounts to, and how sure that is. Of many rounds only a few are
/// simulated where they are alike ([`rounds_are_alike`](crate::rounds_are_alike)), and no piece is kept longer than it takes. Its program is not verified: that takes longer than
/// all else, and whoever executes it does so.
///
/// # Errors
/// As [`simulate`].
pub fn predict(plan: &Plan, profile: &HardwareProfile) -> Result<Summary, SimulateError> {
    if let Some((summary, few)) = predict_repeated(plan, profile)? {
        // Rounds are alike, so a few rest on what all do.
        return Ok(with_certainty(
            summary,
            (plan, profile),
            &few,
            Timing::of(&few),
        ));
    }
    match predict_streamed(plan, profile)? {
        Some(summary) => Ok(summary),
        None => Ok(prediction(plan, profile, &run_unverified(plan, profile)?)),
    }
}

/// The prediction that a plan's simulated run on this machine is: its figures, the interval around them,
/// and where the profile was asked what nobody measured.
pub fn prediction(plan: &Plan, profile: &HardwareProfile, run: &Run) -> Summary {
    let timing = Timing::of_plan(plan, run);
    let summary = Summary::timed(run, timing);
    with_certainty(summary, (plan, profile), run, timing)
}

/// Figures with how sure they are, by the numbers that the timed part of a run rests on.
fn with_certainty(
    summary: Summary,
    (plan, profile): (&Plan, &HardwareProfile),
    run: &Run,
    timing: Timing,
) -> Summary {
    let cost = CostModel::of_plan(profile, plan);
    let reliance = Reliance::of(run, timing, &cost);
    resting_on(summary, (plan, &cost), &reliance)
}

/// Figures with how sure they are, by the numbers that they rest on. Of a split plan on a machine whose CPU's products are a
/// data sheet's, or nobody's, they are what there is at most, and no interval is around that.
pub(crate) fn resting_on(
    summary: Summary,
    (plan, cost): (&Plan, &CostModel),
    reliance: &Reliance,
) -> Summary {
    let at_most = plan.policy.split.is_some() && !cost.profile().knows_cpu_products();
    let interval = || {
        Interval::of(
            (summary.throughput_tok_s, summary.latency_s),
            cost.profile().residuals.as_ref(),
            reliance.log_sigma(),
        )
    };
    Summary {
        interval: (!at_most).then(interval).flatten(),
        extrapolates: reliance.extrapolations(),
        host_overdraw: reliance.host_overdraw(cost.profile()),
        rates_of: cost.stand_in(),
        ..summary
    }
}

/// The part of [`predict`] that plans are ranked by.
///
/// # Errors
/// As [`simulate`].
pub fn time(plan: &Plan, profile: &HardwareProfile) -> Result<Timing, SimulateError> {
    let run = run(
        Lowering::new(plan)?.as_far_as_timed(),
        profile,
        drive_unverified,
    )?;
    Ok(Timing::of_plan(plan, &run))
}

pub(crate) fn run_unverified(plan: &Plan, profile: &HardwareProfile) -> Result<Run, SimulateError> {
    run(Lowering::new(plan)?, profile, drive_unverified)
}

/// How a controller's decisions get to an executor.
type Drive = fn(&mut dyn Controller, &mut dyn Executor) -> Result<Run, DriveError>;

/// Keeps all of it.
fn run(
    mut lowering: Lowering,
    profile: &HardwareProfile,
    drive: Drive,
) -> Result<Run, SimulateError> {
    check_kept(lowering.plan())?;
    let cost = CostModel::of_plan(profile, lowering.plan());
    let mut simulator = Simulator::new(lowering.machine(), cost);
    Ok(drive(&mut lowering, &mut simulator)?)
}
