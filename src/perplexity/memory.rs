//! What memory a measurement takes, and how many windows go into it together.

use plimsoll_core::Dtype;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;
use thiserror::Error;

use super::{Setting, Windows};
use crate::report::count;

/// Windows that are computed together at most.
const TOGETHER: u64 = 16;

/// What is kept of the first setting's logits at most, unless one window has more.
const KEPT: Bytes = Bytes(1 << 30);

/// This machine's memory is too small.
#[derive(Debug, PartialEq, Eq, Error)]
#[error(
    "{model} in {setting}: {} of {context} tokens need {needed} of this machine's memory, and {available} is \
     free; {remedy}", count(*windows, "window")
)]
pub struct NoRoom {
    model: String,
    setting: String,
    windows: u64,
    context: u64,
    needed: Bytes,
    available: Bytes,
    remedy: &'static str,
}

impl NoRoom {
    /// That of a setting, which needs more than there is.
    pub(super) fn of(
        model: &ModelSpec,
        setting: &Setting,
        workload: &Workload,
        (needed, available): (Bytes, Bytes),
    ) -> NoRoom {
        let smallest = Workload {
            prompt_len: Windows::CONTEXT_MIN / 2,
            gen_len: Windows::CONTEXT_MIN / 2,
            num_prompts: Some(1),
        };
        let shorter = needs(model, setting, smallest).is_ok_and(|bytes| bytes <= available);
        NoRoom {
            model: model.name.clone(),
            setting: setting.words(),
            windows: sequences(workload),
            context: u64::from(workload.prompt_len) + u64::from(workload.gen_len),
            needed,
            available,
            remedy: match setting.dtype {
                _ if shorter => "lower --context",
                Dtype::F32 => "leave f32 out of --dtype, or take a smaller model",
                Dtype::F16 | Dtype::Bf16 => "take a smaller model",
            },
        }
    }
}

/// A setting in one GPU batch, all on the device: placement changes no logit.
pub(super) fn plan(
    model: &ModelSpec,
    setting: &Setting,
    workload: Workload,
) -> anyhow::Result<Plan> {
    const ON_DEVICE: [f64; 6] = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
    let policy = Policy {
        compression: setting.compression,
        sparse_attention: setting.share(),
        ..Policy::from_percent(sequences(&workload) as u32, 1, ON_DEVICE)?
    };
    let plan = Plan::given(model.clone(), setting.dtype, workload, policy);
    Ok(plan.with_room()?)
}

/// How many of all windows are computed together: as many as fit in each of the settings.
///
/// # Errors
/// [`NoRoom`] where it is not even one.
pub(super) fn together(
    model: &ModelSpec,
    settings: &[Setting],
    all: Workload,
    available: Option<Bytes>,
) -> anyhow::Result<usize> {
    let one = Workload {
        num_prompts: Some(1),
        ..all
    };
    let fit = KEPT.0 / logits(model, one).0.max(1);
    let mut windows = fit.min(TOGETHER).min(sequences(&all)).max(1);
    let Some(available) = available else {
        return Ok(windows as usize);
    };
    loop {
        let workload = Workload {
            num_prompts: Some(windows),
            ..all
        };
        match first_without_room(model, settings, workload, available)? {
            None => return Ok(windows as usize),
            Some(refused) if windows == 1 => return Err(refused.into()),
            Some(_) => windows /= 2,
        }
    }
}

fn first_without_room(
    model: &ModelSpec,
    settings: &[Setting],
    workload: Workload,
    available: Bytes,
) -> anyhow::Result<Option<NoRoom>> {
    for setting in settings {
        let needed = needs(model, setting, workload)?;
        if needed > available {
            let refused = NoRoom::of(model, setting, &workload, (needed, available));
            return Ok(Some(refused));
        }
    }
    Ok(None)
}

/// What a setting takes: its tiers, and beside them the logits.
fn needs(model: &ModelSpec, setting: &Setting, workload: Workload) -> anyhow::Result<Bytes> {
    let tiers = plan(model, setting, workload)?.capacity_bytes;
    Ok(tiers.device + tiers.host + logits(model, workload))
}

/// The logits that are kept, with those of a step that are just computed.
fn logits(model: &ModelSpec, workload: Workload) -> Bytes {
    let step = sequences(&workload) * u64::from(model.vocab_size) * Dtype::F32.size_bytes();
    Bytes(u64::from(workload.gen_len) * step)
}

/// The sequences of a workload, which says them.
fn sequences(workload: &Workload) -> u64 {
    workload.num_prompts.unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::model::registry;

    const GB: u64 = 1_000_000_000;

    fn of(model: &str, dtype: Dtype, context: u32, available: Bytes) -> anyhow::Result<usize> {
        let model = registry::find(model).expect("registered");
        let all = Workload {
            prompt_len: context / 2,
            gen_len: context - context / 2,
            num_prompts: Some(40),
        };
        together(&model, &[Setting::plain(dtype)], all, Some(available))
    }

    #[test]
    fn as_many_windows_as_the_logits_have_room_for() {
        for (model, context, windows) in [
            ("opt-125m", 512, 16),
            // Of 131 MB each.
            ("llama-3-8b", 512, 8),
            // Of 2.1 GB.
            ("llama-3-8b", 8192, 1),
        ] {
            let found = of(model, Dtype::F16, context, Bytes(1000 * GB)).unwrap();
            assert_eq!(found, windows, "{model} {context}");
        }
        // 250 MB of weights, and 35 MB a window beside its logits.
        let found = of("opt-125m", Dtype::F16, 512, Bytes(GB)).unwrap();
        assert!((1..16).contains(&found), "{found}");
    }

    #[test]
    fn what_helps_depends_on_what_is_too_large() {
        for (dtype, context, available, words) in [
            // Weights of 16 GB, twice that in f32.
            (Dtype::F16, 8192, 18 * GB, "lower --context"),
            (Dtype::F32, 512, 18 * GB, "leave f32 out of --dtype"),
            (Dtype::F16, 512, 8 * GB, "; take a smaller model"),
        ] {
            let refused = of("llama-3-8b", dtype, context, Bytes(available));
            let said = refused.unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
            assert!(
                said.contains("18.0 GB is free") || said.contains("8.00 GB is free"),
                "{said}"
            );
        }
    }
}
