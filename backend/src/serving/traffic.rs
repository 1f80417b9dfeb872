//! Background traffic for real: bytes that others copy over the links while requests are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_core::program::ResourceKind;
use plimsoll_core::tier::Tier;
use plimsoll_core::traffic::Traffic;
use plimsoll_core::units::{Bytes, Seconds};

use crate::cpu::CpuError;
use crate::cpu::scheduler::Scheduler;
use crate::cpu::worker::Cores;
use crate::pin;
use crate::tiers::{Pace, Region, TierError, sharpen_timers};

/// It moves so much at a time.
const CHUNK: Bytes = Bytes(64 << 10);

/// Chunks on either side, which it moves in turn: more than a core's own caches hold, so that it is memory that is busy.
const CHUNKS: u64 = 512;

/// So often who waits for its time looks whether all is over.
const NAP: Duration = Duration::from_millis(5);

/// One way of some traffic.
struct Carrier {
    traffic: Traffic,
    scheduler: Arc<Scheduler>,
    from: Region,
    into: Region,
    carried: Arc<AtomicU64>,
    cores: Vec<usize>,
}

/// Starts a thread for each way of some traffic, which runs by the scheduler's clock; `carried` counts its bytes. Memory of
/// its own lies beside the tiers.
///
/// # Errors
/// Memory or threads that cannot be had.
pub(super) fn start(
    traffic: &Traffic,
    scheduler: &Arc<Scheduler>,
    (carried, cores): (&Arc<AtomicU64>, &Cores),
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<(), CpuError> {
    for kind in traffic.ways.kinds() {
        let [from, into] = match kind {
            ResourceKind::H2d => [Tier::Host, Tier::Device],
            _ => [Tier::Device, Tier::Host],
        };
        let carrier = Carrier {
            traffic: *traffic,
            scheduler: Arc::clone(scheduler),
            from: Region::new(from.name(), Bytes(CHUNK.0 * CHUNKS))?,
            into: Region::new(into.name(), Bytes(CHUNK.0 * CHUNKS))?,
            carried: Arc::clone(carried),
            cores: cores.of_resource(kind),
        };
        let thread = std::thread::Builder::new().name("traffic".to_owned());
        let handle = thread.spawn(move || {
            // Nobody wants it any more: that is how it ends.
            let _ = carrier.carry();
        });
        threads.push(handle.map_err(CpuError::Thread)?);
    }
    Ok(())
}

impl Carrier {
    /// Copies at its rate while its time is.
    fn carry(mut self) -> Result<(), TierError> {
        pin::pin_to(&self.cores);
        sharpen_timers();
        let scheduler = Arc::clone(&self.scheduler);
        let is_over = || scheduler.is_over();
        while !(scheduler.is_open() && scheduler.now() >= self.traffic.from) {
            if is_over() {
                return Ok(());
            }
            let left = self.traffic.from - scheduler.now();
            std::thread::sleep(nap_before(left));
        }
        let pace = Pace::begin(self.traffic.rate, &is_over);
        let mut done = Bytes::ZERO;
        let chunk = CHUNK.0 as usize;
        let starts = (0..self.from.bytes().len()).step_by(chunk).cycle();
        for start in starts {
            if scheduler.now() >= self.traffic.to {
                break;
            }
            let place = start..start + chunk;
            self.into.bytes_mut()[place.clone()].copy_from_slice(&self.from.bytes()[place]);
            done += CHUNK;
            self.carried.fetch_add(CHUNK.0, Ordering::Relaxed);
            pace.keep(done)?;
        }
        Ok(())
    }
}

/// At least a little, so that a clock that does not run yet is not asked without end.
fn nap_before(left: Seconds) -> Duration {
    let left = Duration::try_from_secs_f64(left.0).unwrap_or(NAP);
    left.clamp(Duration::from_micros(100), NAP)
}
