//! What the processor could do at most: multiply-adds without memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use crate::kernels::simd::{Kernel, LANES, Lanes, dispatch};
use crate::pin;

/// Multiply-adds in each chain.
const STEPS: usize = 1 << 20;

/// How often chains are multiplied: some milliseconds each, so that the first ones of a core that slept count for little.
const ROUNDS: usize = 5;

/// Chains of multiply-adds that do not wait for each other.
struct Chains<'a> {
    last: &'a mut [f32; LANES],
    /// How many there were.
    count: &'a mut usize,
}

impl Kernel for Chains<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        // More than their latency needs, and no more than there are registers for: with AVX2 a chain takes two of 16.
        match L::TILE_M * L::TILE_N {
            24.. => self.multiply::<L, 24>(lanes),
            _ => self.multiply::<L, 6>(lanes),
        }
    }
}

impl Chains<'_> {
    #[inline(always)]
    fn multiply<L: Lanes, const N: usize>(self, lanes: L) {
        let (a, b) = (
            lanes.splat(black_box(0.999_999)),
            lanes.splat(black_box(1e-6)),
        );
        let mut chains = [lanes.splat(1.0); N];
        for _ in 0..STEPS {
            for chain in &mut chains {
                *chain = lanes.fma(*chain, a, b);
            }
        }
        let sum = chains
            .into_iter()
            .fold(lanes.zero(), |sum, chain| lanes.fma(chain, a, sum));
        lanes.store(sum, self.last);
        *self.count = N;
    }
}

/// Floating-point operations a second (a multiply-add is two) in f32, of as many threads together, each on a core of its
/// own, as the system counts cores; of more threads than cores it is that of all cores.
pub fn fma_flops_per_s(threads: usize) -> f64 {
    let cores = pin::allowed_cores();
    let threads = match cores.len() {
        0 => threads,
        cores => threads.min(cores),
    };
    let all_ready = Barrier::new(threads);
    let work = |index: usize| {
        if let Some(core) = cores.get(index..=index) {
            pin::pin_to(core);
        }
        all_ready.wait();
        let start = Instant::now();
        let mut chains = 0;
        for _ in 0..ROUNDS {
            let (mut last, mut count) = ([0.0; LANES], 0);
            dispatch(Chains {
                last: &mut last,
                count: &mut count,
            });
            black_box(last);
            chains += count;
        }
        (2 * LANES * chains * STEPS) as f64 / start.elapsed().as_secs_f64()
    };
    // Threads of their own, since who calls is to keep its cores.
    std::thread::scope(|scope| {
        let work = &work;
        let each: Vec<_> = (0..threads)
            .map(|index| scope.spawn(move || work(index)))
            .collect();
        let rates = each.into_iter().map(|thread| thread.join());
        rates.map(|rate| rate.expect("it only computes")).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_multiplies_more_than_a_pocket_calculator() {
        let rate = fma_flops_per_s(2);
        assert!((1e8..1e16).contains(&rate), "{rate}");
    }
}
