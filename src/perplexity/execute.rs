//! Windows on the CPU executor, with their own tokens forced and each step's logits handed out.

use plimsoll_backend::cpu::{CapturedLogits, CpuError, CpuExecutor, CpuOptions};
use plimsoll_backend::kernels::KernelError;
use plimsoll_backend::tiers::TierError;
use plimsoll_core::flow::Flow;
use plimsoll_core::lower::Lowering;

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
    let lowering = Lowering::new(&plan)?;
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
    let mut flow = Flow::new(&plan, lowering);
    while let Some(ended) = flow.next(&mut executor)? {
        // So that they do not pile up.
        for CapturedLogits { cell, logits } in executor.take_logits() {
            // Those of prefill have seen neither a packed cache nor a pick.
            if let Some(step) = usize::from(cell.pass).checked_sub(1) {
                look(step, logits)?;
            }
        }
        flow.forget(&ended.piece, &mut executor);
    }
    Ok(())
}
