//! Transfers at a stated rate: when so many bytes are due, and waiting for it.

use std::time::{Duration, Instant};

use plimsoll_core::program::ResourceKind;
use plimsoll_core::traffic::Background;
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};

use super::TierError;

/// Sleeps may end this late even with sharp timers; the rest is waited for awake, once a transfer.
const AWAKE: Duration = Duration::from_micros(60);

/// The longest sleep: so soon whoever waits sees that the run is over.
const NAP: Duration = Duration::from_millis(20);

/// A transfer that goes at a stated rate.
#[derive(Clone, Copy)]
pub struct Pace<'a> {
    start: Instant,
    rate: BytesPerSecond,
    /// What others carry over the link, which it is, and when this begins by their clock.
    beside: Option<(&'a Background, ResourceKind, Seconds)>,
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> Pace<'a> {
    /// A transfer that begins now. Waiting for it ends with an error as soon as `is_over` says that nobody
    /// wants it any more: a slow link would hold up the end of a run for as long as it pleases.
    pub fn begin(rate: BytesPerSecond, is_over: &'a dyn Fn() -> bool) -> Pace<'a> {
        Pace {
            start: Instant::now(),
            rate,
            beside: None,
            is_over,
        }
    }

    /// The same as if it had begun at another time: what a link was late with by then it catches up.
    pub fn since(self, start: Instant) -> Pace<'a> {
        Pace { start, ..self }
    }

    /// The same beside traffic of others, which leaves it what it does not take of the rate; `now` is by the traffic's clock.
    pub fn beside(self, traffic: &'a Background, kind: ResourceKind, now: Seconds) -> Pace<'a> {
        Pace {
            beside: Some((traffic, kind, now)),
            ..self
        }
    }

    /// When so much has gone over the link; none where no clock reaches so far.
    pub fn due(&self, bytes: Bytes) -> Option<Instant> {
        let seconds = match self.beside {
            None => (bytes / self.rate).0,
            Some((traffic, kind, start)) => {
                (traffic.arrival(kind, (start, bytes), self.rate) - start).0
            }
        };
        self.start
            .checked_add(Duration::try_from_secs_f64(seconds).ok()?)
    }

    /// Sleeps until nearly the time at which so much has gone over the link.
    ///
    /// # Errors
    /// [`TierError::Stopped`].
    pub fn keep(&self, bytes: Bytes) -> Result<(), TierError> {
        let due = self.due(bytes);
        loop {
            if (self.is_over)() {
                return Err(TierError::Stopped);
            }
            let left = due.map_or(NAP, |due| due.saturating_duration_since(Instant::now()));
            if left <= AWAKE {
                return Ok(());
            }
            std::thread::sleep((left - AWAKE).min(NAP));
        }
    }

    /// Waits to the microsecond for the time at which so much has gone over the link.
    ///
    /// # Errors
    /// [`TierError::Stopped`].
    pub fn end(&self, bytes: Bytes) -> Result<(), TierError> {
        self.keep(bytes)?;
        while self.due(bytes).is_some_and(|due| Instant::now() < due) {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// Has this thread's sleeps end on time: the system may otherwise add 50 microseconds to each.
#[allow(unsafe_code)]
pub fn sharpen_timers() {
    // SAFETY: sets a number of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_without_an_end_waits_until_all_is_over() {
        for rate in [1e-9, 1e-300, 0.0] {
            let begun = Instant::now();
            let is_over = || begun.elapsed() > Duration::from_millis(30);
            let pace = Pace::begin(BytesPerSecond(rate), &is_over);
            let stopped = pace.end(Bytes(1 << 20));
            assert!(matches!(stopped, Err(TierError::Stopped)), "{stopped:?}");
            assert!(begun.elapsed() > Duration::from_millis(30));
        }
    }

    #[test]
    fn beside_traffic_it_has_the_rest() {
        let traffic = Background(vec!["0.01..0.05:0.0005".parse().expect("right")]);
        let pace = Pace::begin(BytesPerSecond(1e6), &|| false);
        let beside = |kind| pace.beside(&traffic, kind, Seconds(0.02));
        let due = |kind| beside(kind).due(Bytes(30_000)).expect("soon") - pace.start;
        let near = |it: Duration, ms: f64| (it.as_secs_f64() * 1e3 - ms).abs() < 1e-3;
        // Half of the rate for 30 ms, then all of it.
        assert!(near(due(ResourceKind::H2d), 45.0));
        assert!(near(due(ResourceKind::DiskRead), 30.0));
    }

    #[test]
    fn what_began_late_is_due_as_if_it_had_not() {
        let pace = Pace::begin(BytesPerSecond(1e6), &|| false);
        let earlier = pace.start - Duration::from_millis(20);
        let due = pace.since(earlier).due(Bytes(30_000)).expect("soon");
        assert_eq!(due, earlier + Duration::from_millis(30));
    }

    #[test]
    fn an_end_is_not_early() {
        let pace = Pace::begin(BytesPerSecond(1e6), &|| false);
        pace.end(Bytes(30_000)).expect("nobody stops it");
        assert!(pace.start.elapsed() >= Duration::from_millis(30));
    }
}
