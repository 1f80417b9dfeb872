//! Work on several threads.
//!
//! Each thread computes some outputs of every row of a linear layer, or some rows of the cache. An output
//! depends on its own operands alone, so the result is the same on any number of threads.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::DecoderError;
use crate::kernels::linear::{LinearShape, LinearWeight, linear};

/// Less work than this is not worth another thread: waking one takes microseconds.
const FLOPS_MIN: u64 = 500_000;

/// The threads of a decoder: the one that calls, and others that wait for it.
#[derive(Debug, Clone)]
pub(super) struct Team {
    threads: usize,
    /// Started by the first work, so that they have the cores of the thread that calls.
    others: Arc<OnceLock<ThreadPool>>,
}

impl Team {
    /// So many threads, the caller counted.
    pub fn new(threads: usize) -> Team {
        Team {
            threads: threads.max(1),
            others: Arc::default(),
        }
    }

    /// How many there are.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// How many of the threads are worth their waking for so much work.
    fn worth(&self, flops: u64) -> usize {
        let worth = usize::try_from(flops / FLOPS_MIN).unwrap_or(usize::MAX);
        self.threads.min(worth).max(1)
    }

    fn others(&self) -> Result<&ThreadPool, DecoderError> {
        if let Some(pool) = self.others.get() {
            return Ok(pool);
        }
        let name = |index| format!("gpu {}", index + 1);
        let builder = ThreadPoolBuilder::new().num_threads(self.threads - 1);
        let pool = builder.thread_name(name).build();
        let pool = pool.map_err(|error| DecoderError::Threads(error.to_string()))?;
        Ok(self.others.get_or_init(|| pool))
    }

    /// Does `count` equal pieces of work of so many operations in all, each thread some in a row. Gives
    /// what came of each thread's.
    ///
    /// # Errors
    /// Those of the work; [`DecoderError::Threads`].
    pub fn share<T: Send>(
        &self,
        (count, flops): (usize, u64),
        work: impl Fn(Range<usize>) -> Result<T, DecoderError> + Sync,
    ) -> Result<Vec<(Range<usize>, T)>, DecoderError> {
        let each = count.div_ceil(self.worth(flops)).max(1);
        let mut shares: Vec<_> = (0..count)
            .step_by(each)
            .map(|start| (start..count.min(start + each), None))
            .collect();
        if let Some((own, others)) = shares.split_first_mut() {
            let work = &work;
            let mut do_own = || own.1 = Some(work(own.0.clone()));
            match others {
                [] => do_own(),
                others => self.others()?.in_place_scope(|scope| {
                    for (range, into) in others {
                        scope.spawn(move |_| *into = Some(work(range.clone())));
                    }
                    do_own();
                }),
            }
        }
        let done = shares.into_iter();
        let done = done.filter_map(|(range, result)| Some((range, result?)));
        done.map(|(range, result)| Ok((range, result?))).collect()
    }

    /// [`linear`], each thread some outputs of every row.
    pub fn linear(
        &self,
        shape: LinearShape,
        x: &[f32],
        weight: LinearWeight<'_>,
        y: &mut [f32],
    ) -> Result<(), DecoderError> {
        let flops = shape.flops();
        if self.worth(flops) < 2 || weight.weight.len() != shape.n * shape.k {
            return Ok(linear(shape, x, weight, y)?);
        }
        let parts = self.share((shape.n, flops), |range| {
            let shape = LinearShape {
                n: range.len(),
                ..shape
            };
            let weight = LinearWeight {
                weight: weight.weight.rows(range.clone(), shape.k),
                bias: weight.bias.map(|bias| bias.slice(range)),
            };
            let mut y = vec![0.0; shape.m * shape.n];
            linear(shape, x, weight, &mut y)?;
            Ok(y)
        })?;
        for (range, part) in parts {
            let rows = part.chunks_exact(range.len());
            for (from, into) in rows.zip(y.chunks_exact_mut(shape.n)) {
                into[range.clone()].copy_from_slice(from);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Elements;

    #[test]
    fn threads_change_nothing() {
        let shape = LinearShape {
            m: 5,
            n: 1301,
            k: 1024,
        };
        let value = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0;
        let x: Vec<f32> = (0..shape.m * shape.k).map(value).collect();
        let w: Vec<f32> = (0..shape.n * shape.k).map(value).collect();
        let bias: Vec<f32> = (0..shape.n).map(value).collect();
        let weight = LinearWeight {
            weight: Elements::F32(&w).into(),
            bias: Some(Elements::F32(&bias)),
        };
        let run = |threads| {
            let mut y = vec![f32::NAN; shape.m * shape.n];
            let team = Team::new(threads);
            team.linear(shape, &x, weight, &mut y).expect("it fits");
            y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(3));
    }
}
