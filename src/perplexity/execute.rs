//! Windows on the CPU executor, with their own tokens forced and each step's logits handed out.

use std::sync::Arc;

use plimsoll_backend::cpu::{CapturedLogits, CpuError, CpuExecutor, CpuOptions};
use plimsoll_backend::kernels::KernelError;
use plimsoll_backend::tiers::TierError;
use plimsoll_core::control::drive;
use plimsoll_core::executor::{ExecutionError, Executor, Until};
use plimsoll_core::lower::Lowering;
use plimsoll_core::program::Program;
use plimsoll_core::trace::Trace;
use plimsoll_core::units::Seconds;

use super::memory::{NoRoom, plan};
use super::{Setting, Subject, Windows};

/// Takes the number of a step of decode, from 0 on, and its logits, `[window][vocabulary]`.
type Look<'a> = dyn FnMut(usize, Vec<f32>) -> Result<(), KernelError> + 'a;

/// Executes windows in one GPU batch.
pub(super) fn each_step(
    subject: &Subject<'_>,
    setting: &Setting,
    windows: &Windows,
    look: &mut Look<'_>,
) -> anyhow::Result<()> {
    let plan = plan(subject.model, setting, windows.workload())?;
    let options = CpuOptions {
        given: Some(windows.answers().into()),
        capture_logits: true,
        ..subject.cpu.clone()
    };
    let mut lowering = Lowering::new(&plan)?;
    let (placement, texts) = (lowering.placement().clone(), lowering.texts().clone());
    let executor = CpuExecutor::new(&plan, &placement, subject.source, &options);
    let mut executor = executor.map_err(|error| match error {
        // It has become less since it was asked for all windows.
        CpuError::Tier(TierError::TooMuchMemory { needed, available }) => NoRoom::of(
            subject.model,
            setting,
            &windows.workload(),
            (needed, available),
        )
        .into(),
        error => anyhow::Error::from(error),
    })?;
    executor.set_prompts(&texts, &windows.prompts())?;
    let mut watched = Watched { executor, look };
    drive(&mut lowering, &mut watched)?;
    Ok(())
}

/// An executor whose logits are taken after each pass, so that they do not pile up.
struct Watched<'a, 's> {
    executor: CpuExecutor<'s>,
    look: &'a mut Look<'a>,
}

impl Executor for Watched<'_, '_> {
    fn submit(&mut self, piece: Arc<Program>) -> Result<(), ExecutionError> {
        self.executor.submit(piece)
    }

    fn wait(&mut self, until: Until) -> Result<Seconds, ExecutionError> {
        let now = self.executor.wait(until)?;
        for CapturedLogits { cell, logits } in self.executor.take_logits() {
            // Those of prefill have seen neither a packed cache nor a pick.
            if let Some(step) = usize::from(cell.pass).checked_sub(1) {
                let seen = (self.look)(step, logits);
                seen.map_err(|error| ExecutionError::Executor(Box::new(error)))?;
            }
        }
        Ok(now)
    }

    fn forget(&mut self, piece: &Program) {
        self.executor.forget(piece);
    }

    fn trace(&self) -> &Trace {
        self.executor.trace()
    }
}
