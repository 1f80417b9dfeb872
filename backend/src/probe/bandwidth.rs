//! How fast all cores together read host memory.

use std::hint::black_box;
use std::time::Instant;

/// Larger than the caches of most machines.
const WORDS: usize = (512 << 20) / size_of::<u64>();

/// Bytes/s of repeated reads of the same memory, each core a part of it.
pub fn host_read_rates(repeats: usize) -> Vec<f64> {
    let memory = vec![1_u64; WORDS];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let parts: Vec<&[u64]> = memory.chunks(WORDS.div_ceil(cores)).collect();
    let read = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in &parts {
                scope.spawn(|| black_box(part.iter().fold(0_u64, |sum, word| sum ^ word)));
            }
        });
        size_of_val(&memory[..]) as f64 / start.elapsed().as_secs_f64()
    };
    (0..repeats).map(|_| read()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_takes_some_time() {
        let rates = host_read_rates(2);
        assert_eq!(rates.len(), 2);
        // Between a disk's rate and what no memory reaches.
        assert!(rates.iter().all(|r| (1e8..1e14).contains(r)), "{rates:?}");
    }
}
