//! Why a case has no result.

use plimsoll_backend::cpu::CpuError;
use plimsoll_core::control::DriveError;
use plimsoll_core::executor::ExecutionError;
use plimsoll_core::lower::LowerError;
use plimsoll_sim::SimulateError;
use thiserror::Error;

use crate::planner::{Infeasible, PlanError};

/// A case that has no result, and why.
#[derive(Debug, Error)]
#[error("case `{case}`: {why}")]
pub struct CaseError {
    /// Its name.
    pub case: String,
    /// What stopped it.
    #[source]
    pub why: Why,
}

/// What stops a case.
#[derive(Debug, Error)]
pub enum Why {
    /// The planner finds nothing that fits the case's machine.
    #[error("{0}")]
    Infeasible(Box<Infeasible>),
    /// The planner stopped.
    #[error("{0}")]
    Plan(#[from] PlanError),
    /// The plan has no prediction: it does not fit the case's machine.
    #[error("{0}")]
    Simulate(#[from] SimulateError),
    /// The plan has no program.
    #[error("{0}")]
    Lower(#[from] LowerError),
    /// The executor could not be made.
    #[error("{0}")]
    Cpu(#[from] CpuError),
    /// The run stopped.
    #[error("{0}")]
    Drive(#[from] DriveError),
}

impl Why {
    /// The user asked for it.
    pub(super) fn interrupted() -> Why {
        Why::Drive(ExecutionError::Interrupted.into())
    }

    /// Whether the user asked for it.
    pub(super) fn is_interruption(&self) -> bool {
        matches!(
            self,
            Why::Cpu(CpuError::Interrupted)
                | Why::Drive(DriveError::Execution(ExecutionError::Interrupted))
        )
    }

    /// The error about a case.
    pub(super) fn of(self, case: &str) -> CaseError {
        CaseError {
            case: case.to_owned(),
            why: self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_is_one_wherever_it_comes() {
        assert!(Why::interrupted().is_interruption());
        assert!(Why::from(CpuError::Interrupted).is_interruption());
        assert!(!Why::from(CpuError::NoPrompts).is_interruption());
    }
}
