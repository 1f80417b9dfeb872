//! `--backend`: what runs a plan.

use std::sync::Arc;

use clap::ValueEnum;
use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::cuda::{GpuCard, check_available};
use plimsoll_backend::dispatch::Dispatch;
use plimsoll_core::Dtype;
use plimsoll_core::hardware::{DeviceKind, HardwareProfile};

use super::{Exit, Failure};
use crate::files::{find_profile, kernel_cache};

/// What runs a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Backend {
    /// This machine's processor, which emulates a device.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl Backend {
    /// Refuses a backend that is not here, before anything is measured or run.
    ///
    /// # Errors
    /// What the machine lacks, with exit code 5.
    pub fn check_available(self) -> anyhow::Result<()> {
        match self {
            Backend::Cpu => Ok(()),
            Backend::Cuda => Ok(check_available()?),
        }
    }

    /// Executor options with the device of this backend.
    ///
    /// # Errors
    /// As [`Backend::check_available`].
    pub fn on_device(self, options: CpuOptions) -> anyhow::Result<CpuOptions> {
        if self == Backend::Cpu {
            return Ok(options);
        }
        Ok(CpuOptions {
            card: Some(Arc::new(GpuCard::new(0, kernel_cache())?)),
            dispatch: Dispatch::measuring(),
            ..options
        })
    }

    /// Executor options that choose implementations of products by a profile's table, where it is one of such a device.
    pub fn choosing_by(self, options: CpuOptions, profile: &HardwareProfile) -> CpuOptions {
        match profile.kind == self.kind() {
            true => CpuOptions {
                dispatch: options.dispatch.with_profile(profile),
                ..options
            },
            false => options,
        }
    }

    /// The types among these that it computes.
    ///
    /// # Errors
    /// Where there is none.
    pub fn computed(self, dtypes: impl IntoIterator<Item = Dtype>) -> Result<Vec<Dtype>, Failure> {
        let mut dtypes: Vec<Dtype> = dtypes.into_iter().collect();
        dtypes.retain(|dtype| self == Backend::Cpu || *dtype != Dtype::F32);
        if dtypes.is_empty() {
            let line = "--backend cuda: its kernels compute f16 and bf16; give --dtype f16 or bf16";
            return Err(Failure::new(Exit::Usage, line));
        }
        Ok(dtypes)
    }

    /// A profile by its name, which has to be of such a device as `what` is done on.
    ///
    /// # Errors
    /// One that is not there, or of another device.
    pub fn profile(self, wanted: &str, what: &str) -> anyhow::Result<HardwareProfile> {
        let profile = find_profile(wanted)?;
        if profile.kind == self.kind() {
            return Ok(profile);
        }
        let its = machine_of(profile.kind);
        let own = match self {
            Backend::Cpu => "CPU",
            Backend::Cuda => "GPU",
        };
        let line = format!(
            "--hw {wanted}: is of {its}, and {what} on this machine's {own}; give what `plimsoll \
             profile` wrote here, or leave --hw out to measure now"
        );
        Err(Failure::new(Exit::Usage, line).into())
    }

    /// Which machines' profiles are of runs on it.
    pub fn kind(self) -> DeviceKind {
        match self {
            Backend::Cpu => DeviceKind::Emulated,
            Backend::Cuda => DeviceKind::Gpu,
        }
    }

    /// The device in a word, for machines to read.
    pub fn word(self) -> &'static str {
        match self {
            Backend::Cpu => "emulated",
            Backend::Cuda => "cuda",
        }
    }

    /// The device in words.
    pub fn words(self) -> &'static str {
        match self {
            Backend::Cpu => "emulated device",
            Backend::Cuda => "GPU",
        }
    }
}

/// What a profile of such a device is of.
pub(super) fn machine_of(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Gpu => "a machine with a GPU",
        DeviceKind::Emulated => "a machine with an emulated device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_computes_the_narrow_types_of_those_asked_for() {
        let asked = [Dtype::F32, Dtype::F16];
        assert_eq!(Backend::Cpu.computed(asked).unwrap(), asked);
        assert_eq!(Backend::Cuda.computed(asked).unwrap(), [Dtype::F16]);
        let refused = Backend::Cuda.computed([Dtype::F32]).unwrap_err();
        assert!(refused.to_string().contains("--dtype f16"), "{refused}");
    }
}
