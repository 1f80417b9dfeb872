//! The bench of a GPU on a card that computes on the CPU: its launches are right, whatever they are timed for.
#![allow(unsafe_code)]

mod common;
mod cuda {
    pub mod card;
    pub mod emulator;
}

use std::collections::BTreeSet;
use std::sync::Arc;

use common::model;
use cuda::card::{Call, FakeCard, Fault, Order};
use plimsoll_backend::bench::{Bench, BenchOptions, Repeats, measure};
use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::cuda::Card;
use plimsoll_backend::dispatch::{Dispatch, Weights};
use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Implementation, Inflections, WeightsOnGpu};
use plimsoll_core::model::ModelSpec;

const ROWS: [usize; 3] = [1, 3, 9];

/// Heads in groups, and a layer more than is let through. Its head has other columns than products that are joined.
fn subject() -> ModelSpec {
    ModelSpec {
        vocab_size: 176,
        ..model("tiny-llama-3")
    }
}

/// The dispatch takes each implementation for one of the rows.
fn bench(card: &Arc<FakeCard>, dtype: Dtype, contexts: &[usize]) -> Bench {
    bench_of(card, (dtype, false), contexts)
}

fn bench_of(card: &Arc<FakeCard>, (dtype, packed): (Dtype, bool), contexts: &[usize]) -> Bench {
    let dir = tempfile::tempdir().expect("a directory");
    let points = Inflections {
        m1: Some(2),
        m2: Some(5),
    };
    let model = subject();
    let whole = Weights::of_model_on_card_and_joined(&model, dtype).into_iter();
    let shapes = whole.flat_map(|weights| [weights, weights.in_groups()]);
    let cpu = CpuOptions {
        card: Some(Arc::clone(card) as _),
        dispatch: Dispatch::of(shapes.map(|weights| (weights, points))),
        ..CpuOptions::new(dir.path())
    };
    let options = BenchOptions {
        packed,
        rows: ROWS.to_vec(),
        contexts: contexts.to_vec(),
        sequences: vec![1, 3],
        repeats: Repeats {
            in_a_row: 2,
            turns: 1,
        },
        tokens: 6,
        ..BenchOptions::new(cpu, model, dtype)
    };
    measure(&options, &mut |_| {}).expect("it runs")
}

#[test]
fn all_implementations_are_timed_with_weights_from_memory() {
    let Some(card) = FakeCard::new(Order::Random(11)) else {
        return;
    };
    let bench = bench(&card, Dtype::F16, &[20, 100]);
    let model = subject();
    let shapes = Weights::of_model_on_card_and_joined(&model, Dtype::F16);
    assert_eq!(bench.products.len(), shapes.len() * ROWS.len());
    use Implementation::{Conventional, Flat, Gemv};
    for (product, (shape, rows)) in bench
        .products
        .iter()
        .zip(shapes.iter().flat_map(|s| ROWS.map(|rows| (s, rows))))
    {
        assert_eq!((product.weights, product.rows), (*shape, rows));
        let took: Vec<Implementation> = product.seconds.iter().map(|s| s.0).collect();
        assert_eq!(took, Implementation::ALL);
        assert!(product.seconds.iter().all(|s| s.1 > 0.0), "{product:?}");
        let dispatched = [Gemv, Flat, Conventional][ROWS.iter().position(|r| *r == rows).unwrap()];
        // The conventional way has no launch for several.
        let dispatched = if product.joined {
            let (k, packed) = (shape.k as u32, false);
            let points = Inflections {
                m1: Some(2),
                m2: Some(65),
            };
            let weights = WeightsOnGpu { k, packed };
            points.joined_on_gpu(rows as u32, weights).unwrap()
        } else {
            dispatched
        };
        assert_eq!(product.dispatched, dispatched);
        // Rounded to f16 after sums in another order.
        assert!(product.apart.unwrap() < 0.004, "{product:?}");
    }
    let calls = card.calls();
    for shape in shapes {
        let matrix = shape.n * shape.k * shape.dtype.size_bytes() as usize;
        // x; weights, bias, y, n and blocks of one matrix, and of two that are not there; m and k, and what y is.
        let weights = calls.iter().filter_map(|(call, _)| match call {
            Call::Launch(launch) if launch.kernel == "gemv_f16_m1" => {
                let words = launch.arguments.words();
                let [n, m_and_k] = [words[4] & 0xffff_ffff, words[13]];
                let is_it = n == shape.n as u64 && m_and_k == 1 | (shape.k as u64) << 32;
                is_it.then_some(words[1])
            }
            _ => None,
        });
        let all: BTreeSet<u64> = weights.collect();
        let copies = (4 * card.cache_bytes()).div_ceil(matrix);
        // Each way is given four copies in a row, and the others those that follow: with as few as six the same four each time.
        assert!(all.len() >= copies.min(4), "{shape:?}: {all:?} of {copies}");
    }
}

/// In 4 bits there are two ways: weights as they are, and unpacked.
#[test]
fn packed_weights_are_timed_as_they_are_and_unpacked() {
    let Some(card) = FakeCard::new(Order::Random(15)) else {
        return;
    };
    let bench = bench_of(&card, (Dtype::F16, true), &[]);
    use Implementation::{Conventional, Gemv};
    let joined = bench.products.iter().filter(|product| product.joined);
    assert!(joined.clone().count() > 0);
    // Of more rows each is unpacked by itself.
    assert!({ joined }.all(|product| product.rows == 1));
    for product in &bench.products {
        let took: Vec<Implementation> = product.seconds.iter().map(|s| s.0).collect();
        assert_eq!(took, [Gemv, Conventional]);
        let dispatched = if product.rows == 1 {
            Gemv
        } else {
            Conventional
        };
        assert_eq!(product.dispatched, dispatched);
        // Unpacked weights are rounded to f16, and so are results.
        assert!(product.apart.unwrap() < 0.004, "{product:?}");
        let Weights { n, k, packed, .. } = product.weights;
        assert!(packed);
        let weights = n.div_ceil(64) * k * 36;
        assert_eq!(product.bytes, (weights + 2 * product.rows * (n + k)) as u64);
    }
    // A token brings them over the link as they are.
    let model = subject();
    let tensors = (0..model.num_blocks()).flat_map(|block| model.tensors(block));
    let whole: u64 = tensors.map(|tensor| 2 * tensor.elements()).sum();
    assert!(bench.link.bytes_per_token < 0.6 * whole as f64);
}

#[test]
fn all_ways_of_attention_give_the_same() {
    let Some(card) = FakeCard::new(Order::Random(12)) else {
        return;
    };
    let near = bench(&card, Dtype::Bf16, &[20, 100, 1 << 20]).attention;
    let measured: Vec<_> = near
        .iter()
        .map(|step| (step.context, step.sequences))
        .collect();
    // A model does not see so far.
    assert_eq!(measured, [(20, 1), (20, 3), (100, 1), (100, 3)]);
    for step in &near {
        assert_eq!(step.recomputed, 0, "{step:?}");
        assert!(step.apart < 0.02, "{step:?}");
        let took = [step.in_two_s, step.synchronised_s, step.unified_s];
        assert!(took.iter().all(|s| *s > 0.0), "{step:?}");
        // More sequences are enough blocks for the card's multiprocessors.
        let is_split = step.context > 64 && step.sequences == 1;
        assert_eq!(step.splits > 1, is_split, "{step:?}");
    }
    drop(card);
    let card = FakeCard::with(Order::Random(13), Fault::Narrows).expect("there was one before");
    let wide = bench(&card, Dtype::Bf16, &[100]).attention;
    assert!(wide.iter().all(|step| step.recomputed > 0), "{wide:?}");
    assert!(wide.iter().all(|step| step.apart < 0.02), "{wide:?}");
}

#[test]
fn a_token_brings_all_weights_over_the_link() {
    let Some(card) = FakeCard::new(Order::Random(14)) else {
        return;
    };
    let model = subject();
    let link = bench(&card, Dtype::F16, &[]).link;
    assert_eq!(link.layers, model.num_hidden_layers);
    let blocks = (0..model.num_blocks()).flat_map(|block| model.tensors(block));
    let all: u64 = blocks.map(|tensor| 2 * tensor.elements()).sum();
    let share = link.bytes_per_token / all as f64;
    assert!((0.8..1.2).contains(&share), "{share}");
    assert!(link.over_busiest() >= 1.0 - 1e-6, "{link:?}");
    assert!(
        link.share_of_link() > 0.0 && link.link_bytes_per_s > 0.0,
        "{link:?}"
    );
}
