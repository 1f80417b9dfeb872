//! Windows on the CPU executor, with their own tokens forced and each step's logits handed out.

use std::sync::Arc;

use plimsoll_backend::cpu::{CapturedLogits, CpuExecutor, CpuOptions};
use plimsoll_core::control::drive;
use plimsoll_core::executor::{ExecutionError, Executor, Until};
use plimsoll_core::lower::Lowering;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::Program;
use plimsoll_core::trace::Trace;
use plimsoll_core::units::Seconds;

use super::{Setting, Subject, Windows};
use crate::given;

/// Takes the number of a step of decode, from 0 on, and its logits, `[window][vocabulary]`.
type Look<'a> = dyn FnMut(usize, Vec<f32>) + 'a;

/// Executes windows in one GPU batch, all on the device: placement changes no logit.
pub(super) fn each_step(
    subject: &Subject<'_>,
    setting: &Setting,
    windows: &Windows,
    look: &mut Look<'_>,
) -> anyhow::Result<()> {
    const ON_DEVICE: [f64; 6] = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
    let policy = Policy {
        compression: setting.compression,
        sparse_attention: setting.share(),
        ..Policy::from_percent(windows.len() as u32, 1, ON_DEVICE)?
    };
    let model = subject.model.clone();
    let plan = given::plan_with_room(model, setting.dtype, windows.workload(), policy)?;
    let options = CpuOptions {
        given: Some(windows.answers().into()),
        capture_logits: true,
        ..subject.cpu.clone()
    };
    let mut lowering = Lowering::new(&plan)?;
    let (placement, texts) = (lowering.placement().clone(), lowering.texts().clone());
    let mut executor = CpuExecutor::new(&plan, &placement, subject.source, &options)?;
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
                (self.look)(step, logits);
            }
        }
        Ok(now)
    }

    fn trace(&self) -> &Trace {
        self.executor.trace()
    }
}
