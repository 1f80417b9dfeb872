//! Batches in flight through the stages of a pipeline, in modelled time.

#[path = "common/requests.rs"]
mod requests;

use plimsoll_core::Dtype;
use plimsoll_core::control::follow;
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_core::machine::Machine;
use plimsoll_core::model::registry;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::serve::predict::{Buckets, Classifier, Wrong};
use plimsoll_core::serve::{
    InFlight, KvManager, Limits, Orca, Preemption, Request, Reserve, S3, Scheduler, Shape, Stages,
    State, Vllm,
};
use plimsoll_sim::{CostModel, Simulator};
use proptest::prelude::*;
use requests::requests as trace;

const LIMITS: Limits = Limits {
    sequences: 64,
    tokens: 2048,
};

const STAGES: u32 = 4;

fn profile() -> HardwareProfile {
    embedded::profile("t4x4").expect("embedded")
}

fn shape() -> Shape {
    Shape::of(&registry::find("opt-6.7b").expect("registered"), Dtype::F16)
}

/// Serves on four GPUs with so many batches in flight, each of which has a manager of its own.
fn served(
    batches: u32,
    manager: &dyn Fn() -> Box<dyn KvManager>,
    requests: &[Request],
) -> InFlight {
    let profile = profile();
    let machine = Machine::several_gpus(profile.usable(), STAGES as u8, 1);
    let layers = Pipeline {
        stages: STAGES,
        ..Pipeline::default()
    }
    .layers(u32::from(shape().layers));
    let batch = |_| {
        let stages = Stages::of(&machine, &layers);
        Scheduler::new(machine.clone(), shape(), LIMITS, manager(), requests)
            .over(stages)
            .logged()
    };
    let mut all = InFlight::new((0..batches).map(batch).collect());
    let mut simulator = Simulator::new(&machine, CostModel::new(&profile, Dtype::F16));
    follow(&mut all, &mut simulator).expect("modelled time does not fail");
    all
}

fn seats(count: u64) -> Box<dyn KvManager> {
    Box::new(Orca::new(count * 512, 512))
}

#[test]
fn one_batch_takes_what_all_layers_take_and_what_is_handed_over() {
    let requests = trace(&[(40, 60); 16], 0.0);
    let alone = served(1, &|| seats(8), &requests).summary(1.0);
    let profile = profile();
    let machine = Machine::single_gpu(profile.usable());
    let mut whole = Scheduler::new(machine.clone(), shape(), LIMITS, seats(8), &requests);
    let mut simulator = Simulator::new(&machine, CostModel::new(&profile, Dtype::F16));
    follow(&mut whole, &mut simulator).expect("modelled time does not fail");
    let whole = whole.summary(1.0);
    assert_eq!(alone.iterations, whole.iterations);
    // Three links between stages, and one back, each with its latency.
    let latency = profile.links.peers[0].latency.value.0;
    let least = alone.iterations as f64 * f64::from(STAGES) * latency;
    let more = alone.duration_s - whole.duration_s;
    assert!(more > least && more < 3.0 * least, "{more} {least}");
}

#[test]
fn as_many_batches_as_stages_keep_all_of_them_busy() {
    let requests = trace(&[(40, 200); 64], 0.0);
    let rate = |batches| {
        let all = served(batches, &|| seats(4), &requests);
        all.summary(1.0).output_tokens_per_s
    };
    let (one, four, eight) = (rate(1), rate(STAGES), rate(2 * STAGES));
    let gain = four / one;
    let all = f64::from(STAGES);
    assert!(gain > 0.8 * all && gain <= all, "{gain}");
    // More than stages only wait for each other.
    assert!(eight < 1.05 * four, "{four} {eight}");
}

#[test]
fn a_shared_cache_serves_what_a_whole_one_does_not() {
    // Weights are read for each batch, so a quarter of the cache in each of four is less than four times as fast.
    let requests = trace(&[(40, 200); 64], 0.0);
    let shared = served(STAGES, &|| seats(4), &requests).summary(1.0);
    let whole = served(1, &|| seats(16), &requests).summary(1.0);
    assert_eq!(shared.kv_capacity_tokens, whole.kv_capacity_tokens);
    assert!(shared.output_tokens_per_s > whole.output_tokens_per_s);
    assert!(shared.output_tokens_per_s < f64::from(STAGES) * whole.output_tokens_per_s);
    assert!((shared.average_batch * 4.0 - whole.average_batch).abs() < 0.5);
}

#[test]
fn a_request_is_refused_by_its_own_number() {
    let mut lengths = [(40, 60); 12];
    lengths[5] = (400, 200);
    let all = served(3, &|| seats(2), &trace(&lengths, 0.1));
    let refused: Vec<u32> = all.refusals().iter().map(|it| it.request).collect();
    assert_eq!(refused, [5]);
    assert_eq!(all.sequences()[5].state, State::Refused);
    assert_eq!(all.summary(1.0).completed, 11);
}

#[test]
fn an_evicted_cache_moves_on_every_gpu_and_comes_back() {
    let classifier = || Classifier {
        buckets: Buckets {
            max_len: 1000,
            count: 10,
        },
        accuracy: 0.0,
        wrong: Wrong::Short,
        distance: 1.0,
        seed: 1,
    };
    let s3 = || -> Box<dyn KvManager> {
        Box::new(S3::new(1000, Reserve::Output, Box::new(classifier())))
    };
    let found = served(2, &s3, &trace(&[(20, 150); 40], 0.0)).summary(1.0);
    assert_eq!((found.completed, found.preemptions), (40, 40));
    assert_eq!(found.swaps, [40, 40]);
    // All layers of it, whichever GPU has them: 120 tokens each, out and back.
    let bytes = 2 * 40 * 119 * shape().bytes_per_token().0;
    assert!(
        found.swapped_bytes.abs_diff(bytes) <= bytes / 50,
        "{}",
        found.swapped_bytes
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_request_has_its_whole_answer(
        lengths in prop::collection::vec((1_u32..200, 1_u32..120), 1..40),
        batches in 1_u32..7,
        gap in 0.0_f64..2.0,
    ) {
        let requests = trace(&lengths, gap);
        let vllm = || -> Box<dyn KvManager> { Box::new(Vllm::new(480, Preemption::Recompute)) };
        let all = served(batches, &vllm, &requests);
        let found = all.summary(1.0);
        prop_assert_eq!((found.completed, found.refused), (lengths.len() as u64, 0));
        let tokens: u64 = lengths.iter().map(|(_, output)| u64::from(*output)).sum();
        let made = found.average_batch * found.iterations as f64;
        prop_assert_eq!(made.round() as u64, tokens);
        for (sequence, request) in all.sequences().iter().zip(&requests) {
            prop_assert_eq!(sequence.request, *request);
            prop_assert!(sequence.first_token.0 > request.arrival.0);
            prop_assert!(sequence.last_token.0 >= sequence.first_token.0);
        }
        // No GPU computes two batches at once: iterations end one after another.
        let ends: Vec<f64> = all.iterations().iter().map(|it| it.ended_s).collect();
        prop_assert_eq!(ends.len() as u64, found.iterations);
        prop_assert!(ends.windows(2).all(|pair| pair[0] < pair[1]));
        // Each says whose it is, and has its number there.
        let mut counts = std::collections::HashMap::new();
        for row in all.iterations() {
            let count = counts.entry(row.batch).or_insert(0);
            *count += 1;
            prop_assert_eq!(row.iteration, *count);
        }
    }
}
