//! Copies between arenas, at full speed or paced like a slower link.

use std::time::{Duration, Instant};

use plimsoll_core::units::BytesPerSecond;

/// A paced copy moves so much at a time: at 1 GB/s a quarter of a millisecond.
const CHUNK_BYTES: usize = 256 << 10;

/// Sleeps may end this late even with sharp timers; the rest is waited for awake, once a copy.
const AWAKE: Duration = Duration::from_micros(60);

/// Copies `from` to `into`, of the same length. With a `throttle` it ends when that rate
/// says, to the microsecond on an idle processor, and takes its time evenly: chunks are paced against
/// times counted from the start, so a late one is caught up, and between them the processor is free.
///
/// # Panics
/// Where lengths differ.
pub fn copy(from: &[u8], into: &mut [u8], throttle: Option<BytesPerSecond>) {
    let Some(rate) = throttle else {
        into.copy_from_slice(from);
        return;
    };
    assert_eq!(
        from.len(),
        into.len(),
        "a copy has as many bytes on both sides"
    );
    let start = Instant::now();
    let mut done = 0;
    for (from, into) in from.chunks(CHUNK_BYTES).zip(into.chunks_mut(CHUNK_BYTES)) {
        into.copy_from_slice(from);
        done += from.len();
        sleep_until_nearly(start + time_of(done, rate));
    }
    wait_until(start + time_of(done, rate));
}

fn time_of(bytes: usize, rate: BytesPerSecond) -> Duration {
    Duration::try_from_secs_f64(bytes as f64 / rate.0).unwrap_or(Duration::ZERO)
}

/// Sleeps unless the time is so near that a sleep could miss it.
fn sleep_until_nearly(deadline: Instant) {
    if let Some(left) = deadline.checked_duration_since(Instant::now())
        && left > AWAKE
    {
        std::thread::sleep(left - AWAKE);
    }
}

/// Waits for a time to the microsecond: asleep, then awake for the last of it.
pub fn wait_until(deadline: Instant) {
    sleep_until_nearly(deadline);
    while Instant::now() < deadline {
        std::hint::spin_loop();
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
    fn a_paced_copy_copies_and_is_not_early() {
        let from: Vec<u8> = (0..1_000_000_u32).map(|i| i as u8).collect();
        let mut into = vec![0; from.len()];
        let start = Instant::now();
        copy(&from, &mut into, Some(BytesPerSecond(100e6)));
        assert!(start.elapsed() >= Duration::from_millis(10));
        assert_eq!(from, into);
    }
}
