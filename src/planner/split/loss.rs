//! What it costs a split plan that its modules for the device are chosen greedily.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::plan::Plan;
use plimsoll_sim::predict;
use serde::Serialize;

use super::super::PlanError;
use super::{Layers, Scheduler, candidates, greedys_loss, scheduled};

/// The greedy choice of modules beside the exact one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GreedysLoss {
    /// Of the time a token that the exact choice saves, the share that the greedy one does not; from 0 to 1.
    pub share_of_saving: f64,
    /// Throughput of the plan with the exact choice. It may be less than the greedy one's: where modules overlap with
    /// other work they save something else than their own time.
    pub exact_throughput_tok_s: f64,
}

/// The loss of a plan, whose shares are kept; none of one that splits nothing.
///
/// # Errors
/// An error of ours in simulating.
pub fn loss_of(plan: &Plan, profile: &HardwareProfile) -> Result<Option<GreedysLoss>, PlanError> {
    let mut open = plan.clone();
    let Some(split) = &mut open.policy.split else {
        return Ok(None);
    };
    split.layers_on_device = Layers::default();
    let (candidates, room) = candidates(&open, profile)?;
    let share_of_saving = greedys_loss(&candidates, room);
    let Some(exact) = scheduled(open, profile, Scheduler::Exact)? else {
        return Ok(None);
    };
    Ok(Some(GreedysLoss {
        share_of_saving,
        exact_throughput_tok_s: predict(&exact, profile)?.throughput_tok_s,
    }))
}
