//! How fast all cores together read host memory.

use std::hint::black_box;
use std::time::Instant;

use plimsoll_core::units::Bytes;

use crate::tiers::{Region, TierError};

/// Larger than the caches of most machines.
const READ_BYTES: Bytes = Bytes(512 << 20);

/// Bytes/s of repeated reads of the same memory, in large pages as tiers are, each core a part of it.
///
/// # Errors
/// [`TierError::NoMemory`].
pub fn host_read_rates(repeats: usize) -> Result<Vec<f64>, TierError> {
    let mut memory = Region::new("host", READ_BYTES)?;
    memory.bytes_mut().fill(1);
    let memory: &[u64] = bytemuck::cast_slice(memory.bytes());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok((0..repeats).map(|_| read_rate(memory, cores)).collect())
}

/// Bytes/s at which so many threads read some memory, each a part of it, once.
pub(crate) fn read_rate(memory: &[u64], threads: usize) -> f64 {
    let parts = memory.chunks(memory.len().div_ceil(threads.max(1)));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for part in parts {
            scope.spawn(|| black_box(part.iter().fold(0_u64, |sum, word| sum ^ word)));
        }
    });
    size_of_val(memory) as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_takes_some_time() {
        let rates = host_read_rates(2).expect("memory");
        assert_eq!(rates.len(), 2);
        // Between a disk's rate and what no memory reaches.
        assert!(rates.iter().all(|r| (1e8..1e14).contains(r)), "{rates:?}");
    }
}
