//! What the processor could do at most: multiply-adds without memory.

use std::hint::black_box;
use std::time::Instant;

use crate::kernels::simd::{Kernel, LANES, Lanes, dispatch};

/// Chains of multiply-adds that do not wait for each other: more than their latency needs.
const CHAINS: usize = 12;
/// Multiply-adds in each chain.
const STEPS: usize = 1 << 20;

struct Chains<'a>(&'a mut [f32; LANES]);

impl Kernel for Chains<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (a, b) = (
            lanes.splat(black_box(0.999_999)),
            lanes.splat(black_box(1e-6)),
        );
        let mut chains = [lanes.splat(1.0); CHAINS];
        for _ in 0..STEPS {
            for chain in &mut chains {
                *chain = lanes.fma(*chain, a, b);
            }
        }
        let sum = chains
            .into_iter()
            .fold(lanes.zero(), |sum, chain| lanes.fma(chain, a, sum));
        lanes.store(sum, self.0);
    }
}

/// Floating-point operations a second (a multiply-add is two) in f32, of as many threads together.
pub fn fma_flops_per_s(threads: usize) -> f64 {
    let work = || {
        let mut sum = [0.0; LANES];
        dispatch(Chains(&mut sum));
        black_box(sum);
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    (2 * LANES * CHAINS * STEPS * threads) as f64 / start.elapsed().as_secs_f64()
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
