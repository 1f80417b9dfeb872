//! `--backend`: what runs a plan.

use clap::ValueEnum;
use plimsoll_backend::cuda::check_available;

use super::{Exit, Failure};

/// What runs a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Backend {
    /// This machine's processor, which emulates a device.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl Backend {
    /// Refuses a backend that cannot run plans here, before anything else is done.
    ///
    /// # Errors
    /// What the machine lacks, with exit code 5.
    pub fn check_runs_plans(self) -> anyhow::Result<()> {
        if self == Backend::Cpu {
            return Ok(());
        }
        check_available()?;
        let line = "--backend cuda: this GPU's kernels can be tested (`plimsoll doctor`), and plans are \
                    not executed on GPUs yet; use --backend cpu";
        Err(Failure::new(Exit::BackendUnavailable, line).into())
    }
}
