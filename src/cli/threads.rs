//! `--device-threads`: threads that the emulated device computes with.

use std::thread::available_parallelism;

use plimsoll_core::hardware::{DEVICE_THREADS_MAX, DeviceKind, HardwareProfile};

use super::backend::Backend;
use super::output::complain;

/// How many there are.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct DeviceThreads {
    /// Threads that the emulated device computes with, or beside a GPU the CPU with attention and its rows of split linear
    /// layers [default: as many as the profile was measured with; where none says, all cores but a quarter (1 to 4), which is
    /// left to the CPU's own work and to copies, or to who gives a GPU its work]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(DEVICE_THREADS_MAX)))]
    device_threads: Option<u32>,
}

impl DeviceThreads {
    /// As many as are asked for, else those that something states, else this machine's own.
    pub fn of(self, backend: Backend, stated: Option<u32>) -> u32 {
        match (backend, self.device_threads) {
            (_, Some(asked)) => asked,
            (Backend::Cpu, None) => stated.unwrap_or_else(own),
            (Backend::Cuda, None) => own(),
        }
    }

    /// The same beside a profile, if there is one; what is measured with another number than that is said to be.
    pub fn beside(self, backend: Backend, profile: Option<&HardwareProfile>) -> u32 {
        let threads = self.of(backend, profile.and_then(stated));
        let why = profile.filter(|profile| profile.kind == backend.kind());
        if let Some(why) = why.and_then(|profile| differ(threads, profile)) {
            complain(&format!(
                "warning: {why}; nothing that it predicts is of this"
            ));
        }
        threads
    }

    /// Whether they were asked for.
    pub fn asked(self) -> bool {
        self.device_threads.is_some()
    }
}

/// Those that a profile states: of a GPU's machine none.
pub(super) fn stated(profile: &HardwareProfile) -> Option<u32> {
    (profile.kind == DeviceKind::Emulated).then(|| profile.device_threads())
}

/// Why what a profile of an emulated device predicts is not of so many threads, where it is not.
pub(super) fn differ(threads: u32, profile: &HardwareProfile) -> Option<String> {
    let measured = stated(profile).filter(|measured| *measured != threads)?;
    Some(other_than(&profile.name, (measured, threads)))
}

/// That a profile is of another number of threads than are had.
pub(super) fn other_than(profile: &str, (measured, had): (u32, u32)) -> String {
    let plural = if measured == 1 { "" } else { "s" };
    format!(
        "{profile} was measured with {measured} device thread{plural}, not with {had}; `plimsoll profile \
         --device-threads {had}` measures with as many"
    )
}

/// What suits this machine.
fn own() -> u32 {
    let cores = available_parallelism().map_or(1, usize::from);
    suited(u32::try_from(cores).unwrap_or(u32::MAX))
}

/// All of so many cores but those that the CPU's own work, both ways of the link and the disk are left.
fn suited(cores: u32) -> u32 {
    let left = (cores / 4).clamp(1, 4);
    (cores.saturating_sub(left)).clamp(1, DEVICE_THREADS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_comes_before_what_is_stated() {
        let asked = |device_threads| DeviceThreads { device_threads };
        let of = |asked: DeviceThreads, stated| asked.of(Backend::Cpu, stated);
        assert_eq!(of(asked(Some(3)), Some(2)), 3);
        assert_eq!(of(asked(None), Some(2)), 2);
        assert_eq!(of(asked(None), None), own());
        assert_eq!(asked(None).of(Backend::Cuda, Some(2)), own());
        assert_eq!(asked(Some(2)).of(Backend::Cuda, None), 2);
    }

    #[test]
    fn a_quarter_of_the_cores_but_one_to_four_is_left() {
        let suited = [1, 2, 3, 4, 8, 16, 64].map(suited);
        assert_eq!(suited, [1, 1, 2, 3, 6, 12, 60]);
    }
}
