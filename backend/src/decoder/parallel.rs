//! Linear layers on several threads.
//!
//! Each thread computes some outputs of every row. An output depends on its own operands alone, so
//! the result is the same on any number of threads.

use std::thread;

use super::DecoderError;
use crate::kernels::KernelError;
use crate::kernels::linear::{LinearShape, LinearWeight, linear};

/// Less work than this is not worth a thread: starting one takes tens of microseconds.
const FLOPS_MIN: u64 = 4_000_000;

/// [`linear`] on at most `threads` threads.
pub(super) fn linear_on(
    threads: usize,
    shape: LinearShape,
    x: &[f32],
    weight: LinearWeight<'_>,
    y: &mut [f32],
) -> Result<(), DecoderError> {
    let worth = usize::try_from(shape.flops() / FLOPS_MIN).unwrap_or(usize::MAX);
    let threads = threads.min(worth).min(shape.n);
    if threads < 2 || weight.weight.len() != shape.n * shape.k {
        return Ok(linear(shape, x, weight, y)?);
    }
    let columns = shape.n.div_ceil(threads);
    let part = |start: usize| -> Result<Vec<f32>, KernelError> {
        let end = shape.n.min(start + columns);
        let shape = LinearShape {
            n: end - start,
            ..shape
        };
        let weight = LinearWeight {
            weight: weight.weight.rows(start..end, shape.k),
            bias: weight.bias.map(|bias| bias.slice(start..end)),
        };
        let mut y = vec![0.0; shape.m * shape.n];
        linear(shape, x, weight, &mut y).map(|()| y)
    };
    let part = &part;
    let starts: Vec<usize> = (0..shape.n).step_by(columns).collect();
    let parts: Vec<_> = thread::scope(|scope| {
        let others: Vec<_> = starts[1..]
            .iter()
            .map(|start| scope.spawn(move || part(*start)))
            .collect();
        let own = part(0);
        let others = others.into_iter().map(|other| match other.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        std::iter::once(own).chain(others).collect()
    });
    for (start, part) in starts.into_iter().zip(parts) {
        let part = part?;
        let width = part.len() / shape.m;
        for (from, into) in part.chunks_exact(width).zip(y.chunks_exact_mut(shape.n)) {
            into[start..start + width].copy_from_slice(from);
        }
    }
    Ok(())
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
            linear_on(threads, shape, &x, weight, &mut y).expect("it fits");
            y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(3));
    }
}
