//! How fast the device's memory is: what products are held against.

use plimsoll_core::program::ResourceKind;
use plimsoll_core::units::Bytes;

use super::BenchOptions;
use crate::cpu::{Cores, CpuError, CpuOptions};
use crate::cuda::executor::{Taken, Way, copies, in_turns, with_stream};
use crate::cuda::{Card, CopyRows, CudaError, Repeats};
use crate::pin;
use crate::probe::{ProbeError, median, read_rate};
use crate::tiers::Region;

/// Bytes that cores read: more than the caches of most machines hold.
const READ_BYTES: Bytes = Bytes(256 << 20);

/// Bytes/s.
pub(super) fn bytes_per_s(options: &BenchOptions) -> Result<f64, ProbeError> {
    match &options.cpu.card {
        Some(card) => {
            let copied = with_stream(&**card, || of_card(&**card, options.repeats));
            Ok(copied.map_err(CpuError::from)?)
        }
        None => Ok(of_cores(options.cpu_repeats, &options.cpu)?),
    }
}

/// Copies from one half of some memory to the other, far larger than the cache.
fn of_card(card: &dyn Card, repeats: Repeats) -> Result<f64, CudaError> {
    let bytes = copies(card, 1);
    let mut taken = Taken::new(card);
    let [from, to] = [taken.room(bytes)?, taken.room(bytes)?];
    let copy: Way<'_> = Box::new(|| card.copy(0, &CopyRows::of(to, from, bytes)));
    let seconds = in_turns(card, repeats, &[copy])?;
    // Each byte is read and written. A clock may not have moved.
    Ok(2.0 * bytes as f64 / median(&seconds[0]).max(1e-9))
}

/// Reads by the threads that emulate a device, on their cores, in large pages, as weights lie.
fn of_cores(repeats: usize, options: &CpuOptions) -> Result<f64, CpuError> {
    let mut memory = Region::new("device", READ_BYTES)?;
    memory.bytes_mut().fill(1);
    let memory: &[u64] = bytemuck::cast_slice(memory.bytes());
    let read = || read_rate(memory, options.device_threads);
    let cores = Cores::of(options).of_resource(ResourceKind::Gpu);
    let rates: Vec<f64> = pin::on_cores(&cores, || (0..=repeats).map(|_| read()).collect());
    Ok(median(&rates[1..]))
}
