//! How fast the machine went around a run, beside when it was profiled: what a prediction cannot know.

use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::probe::{Moment, PaceMeter};
use plimsoll_core::hardware::{HardwareProfile, Slowness};

/// A run's machine, from before the run on.
pub(super) struct Around<'a> {
    profile: &'a HardwareProfile,
    meter: PaceMeter,
    before: Moment,
}

impl<'a> Around<'a> {
    /// None where the profile does not say how fast the machine was, or there is no memory left for the reference work.
    pub fn begin(profile: Option<&'a HardwareProfile>, options: &CpuOptions) -> Option<Around<'a>> {
        // What is timed is the processor's work, which says nothing of a GPU's pace.
        let profile = profile.filter(|it| it.compute.pace.is_some() && options.card.is_none())?;
        let mut meter = PaceMeter::new(options).ok()?;
        let before = meter.now();
        Some(Around {
            profile,
            meter,
            before,
        })
    }

    /// How much longer reference work took than when the machine was profiled.
    pub fn end(mut self) -> Option<Slowness> {
        let moment = Moment::between(self.before, self.meter.now());
        moment.slowness(self.profile)
    }
}
