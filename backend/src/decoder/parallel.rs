//! Work on several threads.
//!
//! Each thread computes some outputs of every row of a linear layer, or all of a layer for a tile of tokens; some rows of the
//! cache, or whole sequences; and it stores new keys and values of some positions. An output depends on its own operands alone,
//! so the result is the same on any number of threads.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use plimsoll_core::Dtype;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::DecoderError;
use super::activations::Activations;
use crate::dispatch::{Dispatch, Weights};
use crate::kernels::Matrix;
use crate::kernels::linear::{How, LinearShape, LinearWeight, Ways, linear_into, linear_with};
use crate::pin;

/// Less work than this is not worth another thread: waking one takes microseconds.
const FLOPS_MIN: u64 = 500_000;

/// Fewer bytes than this are not worth another thread to copy.
const COPY_MIN: usize = 256 << 10;

/// How long a thread that has done its part looks for more.
const IDLE: Duration = Duration::from_micros(200);

/// How often a thread looks while another's work that is done becomes known.
const ENDING: usize = 64;

/// The threads of a decoder: the one that calls, and others that wait for it.
#[derive(Debug, Clone)]
pub(crate) struct Team {
    threads: usize,
    /// What weights are stored as, unless they are packed.
    dtype: Dtype,
    /// Which way suits which product.
    pub dispatch: Dispatch,
    /// Started by the first work, so that they have the cores of the thread that calls, which is always the same.
    others: Arc<OnceLock<ThreadPool>>,
    /// Which of them look for work, and do not sleep.
    awake: Arc<[AtomicBool]>,
}

impl Team {
    /// So many threads, the caller counted.
    pub fn new(threads: usize, dtype: Dtype) -> Team {
        let threads = threads.max(1);
        Team {
            threads,
            dtype,
            dispatch: Dispatch::default(),
            others: Arc::default(),
            awake: (1..threads).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// The thread that calls, by itself.
    pub fn alone(&self) -> Team {
        Team {
            dispatch: self.dispatch.clone(),
            ..Team::new(1, self.dtype)
        }
    }

    /// How many there are.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// How products with a weight are computed: by the table's nearest shape, which its own is where that was measured.
    fn how(&self, weight: &LinearWeight<'_>, n: usize, k: usize) -> How {
        How::best(self.dispatch.ways(Weights {
            dtype: self.dtype,
            n,
            k,
            packed: matches!(weight.weight, Matrix::Packed(_)),
            biased: false,
        }))
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
        let cores = pin::allowed_cores();
        // Where there are just as many, each has its own: the system would have two of them on one for milliseconds.
        let own_cores = cores.len() == self.threads;
        let others = cores.get(1..).unwrap_or_default().to_vec();
        let pool = ThreadPoolBuilder::new()
            .num_threads(self.threads - 1)
            .thread_name(|index| format!("helper {}", index + 1))
            .start_handler(move |index| {
                if own_cores {
                    pin::pin_to(&others[index..=index]);
                }
            })
            .build()
            .map_err(|error| DecoderError::Threads(error.to_string()))?;
        if own_cores {
            pin::pin_to(&cores[..1]);
        }
        Ok(self.others.get_or_init(|| pool))
    }

    /// The other threads, awake.
    fn awake(&self) -> Result<&ThreadPool, DecoderError> {
        let pool = self.others()?;
        if self.awake.iter().any(|awake| !awake.load(Relaxed)) {
            let awake = Arc::clone(&self.awake);
            pool.spawn_broadcast(move |thread| {
                let awake = &awake[thread.index()];
                if !awake.swap(true, Relaxed) {
                    stay_awake();
                    awake.store(false, Relaxed);
                }
            });
        }
        Ok(pool)
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
        let parts = self.parts(count, flops);
        self.each(parts.map(|range| (range, ())), |range, ()| work(range))
    }

    /// The pieces of each thread.
    pub fn parts(&self, count: usize, flops: u64) -> impl Iterator<Item = Range<usize>> {
        let each = count.div_ceil(self.worth(flops)).max(1);
        let starts = (0..count).step_by(each);
        starts.map(move |start| start..count.min(start + each))
    }

    /// Does each part on a thread of its own, with what it is given.
    pub fn each<G: Send, T: Send>(
        &self,
        parts: impl Iterator<Item = (Range<usize>, G)>,
        work: impl Fn(Range<usize>, G) -> Result<T, DecoderError> + Sync,
    ) -> Result<Vec<(Range<usize>, T)>, DecoderError> {
        let mut shares: Vec<_> = parts
            .map(|(range, given)| (range, Some(given), None))
            .collect();
        let work = |(range, given, done): &mut (Range<usize>, Option<G>, Option<_>)| {
            *done = given.take().map(|given| work(range.clone(), given));
        };
        if let Some((own, others)) = shares.split_first_mut() {
            match others {
                [] => work(own),
                others => {
                    let (work, at_work) = (&work, &AtomicUsize::new(others.len()));
                    self.awake()?.in_place_scope(|scope| {
                        for share in others {
                            scope.spawn(move |_| {
                                work(share);
                                at_work.fetch_sub(1, Relaxed);
                            });
                        }
                        work(own);
                        look_until_done(at_work);
                    });
                }
            }
        }
        let done = shares.into_iter();
        let done = done.filter_map(|(range, _, result)| Some((range, result?)));
        done.map(|(range, result)| Ok((range, result?))).collect()
    }

    /// Copies bytes, each thread some.
    ///
    /// # Errors
    /// [`DecoderError::Threads`].
    pub fn copy(&self, from: &[u8], into: &mut [u8]) -> Result<(), DecoderError> {
        let each = into.len().div_ceil(self.threads).max(COPY_MIN);
        let parts = into.chunks_mut(each).zip(from.chunks(each));
        let parts = parts.map(|(into, from)| (0..from.len(), (into, from)));
        let copied = self.each(parts, |_, (into, from)| {
            into.copy_from_slice(from);
            Ok(())
        });
        copied.map(|_| ())
    }

    /// [`Team::linears`] of one layer.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn linear(
        &self,
        m: usize,
        x: &[f32],
        weight: LinearWeight<'_>,
    ) -> Result<Activations, DecoderError> {
        let [y] = self.linears(m, x, [weight])?;
        Ok(y)
    }

    /// The outputs of linear layers that have one input, `m` rows: each thread some outputs of every row,
    /// counted through all layers, so that threads meet once.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn linears<const N: usize>(
        &self,
        m: usize,
        x: &[f32],
        weights: [LinearWeight<'_>; N],
    ) -> Result<[Activations; N], DecoderError> {
        let k = x.len() / m.max(1);
        let widths = widths_of(&weights, k);
        let mut y = widths.map(|n| Activations::of(m * n));
        let mut hows = [How::best(Ways::BUILT_IN); N];
        for layer in 0..N {
            hows[layer] = self.how(&weights[layer], widths[layer], k);
        }
        let outputs = y.each_mut().map(|y| &mut **y);
        self.linears_by(hows, (m, x), weights, outputs)?;
        Ok(y)
    }

    /// The same, computed in stated ways, into `y`.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn linears_by<const N: usize>(
        &self,
        hows: [How; N],
        (m, x): (usize, &[f32]),
        weights: [LinearWeight<'_>; N],
        mut y: [&mut [f32]; N],
    ) -> Result<(), DecoderError> {
        let k = x.len() / m.max(1);
        let widths = widths_of(&weights, k);
        let shape = LinearShape {
            m,
            n: widths.iter().sum(),
            k,
        };
        let odd = (0..N)
            .any(|at| weights[at].weight.len() != widths[at] * k || y[at].len() != m * widths[at]);
        if odd || self.worth(shape.flops()) < 2 {
            for layer in 0..N {
                let shape = LinearShape {
                    n: widths[layer],
                    ..shape
                };
                linear_with(hows[layer], shape, x, weights[layer], y[layer])?;
            }
            return Ok(());
        }
        let mut firsts = [0; N];
        for layer in 1..N {
            firsts[layer] = firsts[layer - 1] + widths[layer - 1];
        }
        // What of a range of all outputs belongs to a layer.
        let of_layer = |layer: usize, range: &Range<usize>| {
            let clamp = |at: usize| at.saturating_sub(firsts[layer]).min(widths[layer]);
            clamp(range.start)..clamp(range.end)
        };
        // What no thread has been given yet of the rows of each output.
        let mut left = [const { Vec::new() }; N];
        for ((left, y), n) in left.iter_mut().zip(&mut y).zip(widths) {
            *left = y.chunks_exact_mut(n.max(1)).collect();
        }
        let parts = self.parts(shape.n, shape.flops()).map(|range| {
            let mut rows = [const { Vec::new() }; N];
            for (layer, (rows, left)) in rows.iter_mut().zip(&mut left).enumerate() {
                let own = of_layer(layer, &range).len();
                *rows = left.iter_mut().map(|left| take_first(left, own)).collect();
            }
            (range, rows)
        });
        self.each(parts, |range, mut rows| {
            for (layer, rows) in rows.iter_mut().enumerate() {
                let own = of_layer(layer, &range);
                let shape = LinearShape {
                    n: own.len(),
                    ..shape
                };
                let weight = LinearWeight {
                    weight: weights[layer].weight.rows(own.clone(), k),
                    bias: weights[layer].bias.map(|bias| bias.slice(own)),
                };
                linear_into(hows[layer], shape, x, weight, rows)?;
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Outputs of layers whose inputs have `k` elements.
fn widths_of<const N: usize>(weights: &[LinearWeight<'_>; N], k: usize) -> [usize; N] {
    weights.map(|weight| weight.weight.len() / k.max(1))
}

/// The first elements of a slice, which has only the others then.
fn take_first<'a>(slice: &mut &'a mut [f32], count: usize) -> &'a mut [f32] {
    let (first, rest) = std::mem::take(slice).split_at_mut(count);
    *slice = rest;
    first
}

/// Keeps the thread that calls from sleeping until the others have ended, for as long as [`IDLE`]: being woken takes as long as a small product.
fn look_until_done(at_work: &AtomicUsize) {
    if at_work.load(Relaxed) == 0 {
        return;
    }
    let start = Instant::now();
    while at_work.load(Relaxed) > 0 {
        if start.elapsed() > IDLE {
            return;
        }
        std::hint::spin_loop();
    }
    // What they do after their work for the scope to end.
    for _ in 0..ENDING {
        std::hint::spin_loop();
    }
}

/// Keeps a thread of a pool from sleeping until it has found nothing to do for [`IDLE`]: the threads of a
/// decoder meet many times a layer, and waking one takes as long as a small product.
fn stay_awake() {
    let mut last = Instant::now();
    while last.elapsed() < IDLE {
        match rayon::yield_now() {
            Some(rayon::Yield::Executed) => last = Instant::now(),
            _ => std::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::hardware::Inflections;

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
        let narrow = LinearWeight {
            weight: Elements::F32(&w[..70 * shape.k]).into(),
            bias: None,
        };
        let run = |threads| {
            let team = Team::new(threads, Dtype::F32);
            let y = team
                .linears(shape.m, &x, [weight, narrow])
                .expect("it fits");
            y.map(|y| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>())
        };
        let [wide, few] = run(1);
        assert_eq!([wide.len(), few.len()], [shape.m * shape.n, shape.m * 70]);
        assert_eq!([wide, few], run(3));
    }

    #[test]
    fn a_table_says_how_a_product_is_computed() {
        let points = Inflections {
            m1: Some(2),
            m2: None,
        };
        let own = Weights {
            dtype: Dtype::F32,
            n: 64,
            k: 64,
            packed: false,
            biased: false,
        };
        let team = Team {
            dispatch: Dispatch::of([(own, points)]),
            ..Team::new(1, Dtype::F32)
        };
        let weight = LinearWeight {
            weight: Elements::F32(&[]).into(),
            bias: None,
        };
        let ways = team.how(&weight, 96, 64).ways;
        assert_eq!((ways.tile_from, ways.panels_from), (2, usize::MAX));
        let other = Team {
            dtype: Dtype::F16,
            ..team
        };
        assert_eq!(other.how(&weight, 64, 64).ways, Ways::BUILT_IN);
    }
}
