//! Serving in modelled time: the sums that the scheduler keeps are those of loops over all requests.

#[path = "common/requests.rs"]
mod requests;

use std::collections::VecDeque;

use plimsoll_core::Dtype;
use plimsoll_core::control::follow;
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_core::machine::Machine;
use plimsoll_core::model::registry;
use plimsoll_core::serve::pie::{Adaptive, Lanes, Pie, Settings, layers_off, slots};
use plimsoll_core::serve::predict::{Buckets, Classifier, Oracle, Wrong};
use plimsoll_core::serve::{
    IterationRow, KvManager, Limits, Orca, Preemption, Request, Reserve, S3, Scheduler,
    ServeSummary, Shape, State, Vllm,
};
use plimsoll_core::traffic::{Background, Traffic, Ways};
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};
use plimsoll_sim::{CostModel, Simulator};
use proptest::prelude::*;
use requests::requests as trace;

const LIMITS: Limits = Limits {
    sequences: 64,
    tokens: 2048,
};

fn serve(manager: Box<dyn KvManager>, requests: &[Request], clients: Option<u32>) -> Scheduler {
    let profile = embedded::profile("gh200").expect("embedded");
    serve_on(&profile, manager, requests, clients)
}

fn serve_on(
    profile: &HardwareProfile,
    manager: Box<dyn KvManager>,
    requests: &[Request],
    clients: Option<u32>,
) -> Scheduler {
    let model = registry::find("opt-13b").expect("registered");
    let machine = Machine::single_gpu(profile.usable());
    let cost = CostModel::new(profile, Dtype::F16);
    let mut simulator = Simulator::new(&machine, cost);
    let shape = Shape::of(&model, Dtype::F16);
    let mut scheduler = Scheduler::new(machine, shape, LIMITS, manager, requests);
    if let Some(clients) = clients {
        scheduler = scheduler.in_closed_loop(clients);
    }
    follow(&mut scheduler, &mut simulator).expect("modelled time does not fail");
    scheduler
}

fn vllm(tokens: u64, preemption: Preemption) -> Box<dyn KvManager> {
    Box::new(Vllm::new(tokens, preemption))
}

fn summary(scheduler: &Scheduler) -> ServeSummary {
    scheduler.summary(0.1875)
}

/// What vLLM's rules come to with requests that are all there from the first, by loops over all of them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Naive {
    iterations: u64,
    tokens: u64,
    preemptions: u64,
    prompt_tokens_again: u64,
}

#[derive(Clone, Copy)]
struct One {
    request: Request,
    made: u32,
    cached: u32,
}

fn naive(requests: &[Request], blocks: u64) -> Naive {
    let blocks_of = |tokens: u32| u64::from(tokens.div_ceil(16));
    let fits = |r: &&Request| blocks_of(r.cached_len()) <= blocks;
    let fresh = |request: &Request| One {
        request: *request,
        made: 0,
        cached: 0,
    };
    let mut waiting: VecDeque<One> = requests.iter().filter(fits).map(fresh).collect();
    let mut running: Vec<One> = Vec::new();
    let mut found = Naive::default();
    while !waiting.is_empty() || !running.is_empty() {
        let taken = |running: &[One], more: u32| -> u64 {
            running.iter().map(|o| blocks_of(o.cached + more)).sum()
        };
        let before = running.len();
        while taken(&running, 1) > blocks {
            let last = running.pop().expect("one alone fits");
            found.preemptions += 1;
            waiting.push_front(last);
        }
        let preempted = running.len() < before;
        for one in &mut running {
            one.cached += 1;
        }
        let mut tokens = running.len() as u32;
        while (!preempted || running.is_empty()) && (running.len() as u32) < LIMITS.sequences {
            let Some(one) = waiting.front() else { break };
            let prompt = one.request.prompt_len + one.made;
            let kept = if running.is_empty() { 0 } else { blocks / 100 };
            let needed = taken(&running, 0) + blocks_of(prompt) + kept;
            if needed > blocks || tokens > 0 && tokens + prompt > LIMITS.tokens {
                break;
            }
            found.prompt_tokens_again += u64::from(one.cached);
            let mut one = waiting.pop_front().expect("it is there");
            one.cached = prompt;
            tokens += prompt;
            running.push(one);
        }
        found.iterations += 1;
        found.tokens += running.len() as u64;
        for one in &mut running {
            one.made += 1;
        }
        running.retain(|one| one.made < one.request.output_len);
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sums_are_those_of_loops(
        lengths in prop::collection::vec((1_u32..400, 1_u32..400), 1..60),
        blocks in 5_u64..200,
    ) {
        let requests = trace(&lengths, 0.0);
        let found = summary(&serve(vllm(blocks * 16, Preemption::Recompute), &requests, None));
        let expected = naive(&requests, blocks);
        let tokens = found.average_batch * found.iterations as f64;
        prop_assert_eq!(
            Naive {
                iterations: found.iterations,
                tokens: tokens.round() as u64,
                preemptions: found.preemptions,
                prompt_tokens_again: found.recomputed_tokens,
            },
            expected
        );
        prop_assert_eq!(found.completed + found.refused, requests.len() as u64);
    }

    #[test]
    fn every_request_has_its_answer_or_is_refused(
        lengths in prop::collection::vec((1_u32..900, 1_u32..900), 1..60),
        tokens in 500_u64..20_000,
        gap in 0.0..0.2,
    ) {
        let requests = trace(&lengths, gap);
        let managers: [Box<dyn KvManager>; 5] = [
            Box::new(S3::new(tokens, Reserve::All, Box::new(Oracle))),
            Box::new(S3::new(tokens, Reserve::Output, Box::new(short_sighted()))),
            Box::new(Orca::new(tokens, 1800)),
            vllm(tokens, Preemption::Recompute),
            vllm(tokens, Preemption::Swap),
        ];
        for (index, manager) in managers.into_iter().enumerate() {
            let served = serve(manager, &requests, None);
            let all = served.running().sequences();
            for (index, of) in all.iter().enumerate() {
                let refused = served.refusals().iter().any(|r| r.request as usize == index);
                prop_assert_eq!(of.state == State::Refused, refused);
                if !refused {
                    prop_assert_eq!(of.state, State::Done);
                    prop_assert_eq!(of.made, of.request.output_len);
                    prop_assert_eq!(of.held, of.request.cached_len());
                    prop_assert!(of.computed.0 > 0.0 && of.computed.0 <= of.latency().0 + 1e-9);
                    prop_assert!(of.first_token.0 > of.request.arrival.0);
                }
            }
            let found = summary(&served);
            // Where prompts are not counted, there may be more than was thought of.
            prop_assert!(found.kv_used <= 1.0 || index == 1);
            prop_assert!(found.kv_reserved <= 1.0);
            prop_assert_eq!(found.swaps[0], found.swaps[1]);
        }
    }
}

#[test]
fn orca_seats_as_many_as_the_longest_leaves_room_for() {
    let requests = trace(&[(100, 50); 30], 0.0);
    let found = summary(&serve(Box::new(Orca::new(10_000, 2048)), &requests, None));
    assert_eq!((found.largest_batch, found.iterations), (4, 8 * 50));
    assert_eq!(found.preemptions, 0);
}

#[test]
fn swapping_computes_nothing_again() {
    let requests = trace(&[(100, 300); 40], 0.0);
    let by = |preemption| summary(&serve(vllm(4000, preemption), &requests, None));
    let (again, swapped) = (by(Preemption::Recompute), by(Preemption::Swap));
    assert!(again.recomputed_tokens > 0 && again.swaps == [0, 0]);
    assert!(swapped.recomputed_tokens == 0 && swapped.swaps[0] > 0 && swapped.swapped_bytes > 0);
}

#[test]
fn what_the_host_has_no_room_for_is_computed_again() {
    let requests = trace(&[(100, 300); 40], 0.0);
    let a_token = Shape::of(&registry::find("opt-13b").expect("registered"), Dtype::F16);
    let a_token = a_token.bytes_per_token();
    let with_room_for = |tokens: u64| {
        let gh200 = embedded::profile("gh200").expect("embedded");
        let host = gh200.tiers.host_reserved_bytes.value + a_token * tokens;
        let gh200 = gh200.with_capacities(None, Some(host), None);
        let manager = vllm(4000, Preemption::Swap);
        summary(&serve_on(&gh200, manager, &requests, None))
    };
    let (none, some, enough) = (
        with_room_for(0),
        with_room_for(1000),
        with_room_for(40 * 400),
    );
    assert!(none.swaps == [0, 0] && none.recomputed_tokens > 0);
    assert!(some.swaps[0] > 0 && some.recomputed_tokens > 0);
    assert!(enough.swaps[0] > some.swaps[0] && enough.recomputed_tokens == 0);
    for found in [none, some, enough] {
        assert_eq!((found.completed, found.output_tokens), (40, 40 * 300));
        assert_eq!(found.swaps[0], found.swaps[1]);
    }
}

#[test]
fn in_a_closed_loop_so_many_are_in_the_system() {
    let requests = trace(&[(20, 30); 50], 1e6);
    let found = summary(&serve(
        vllm(80_000, Preemption::Recompute),
        &requests,
        Some(5),
    ));
    assert_eq!((found.completed, found.largest_batch), (50, 5));
    assert!((found.average_batch - 5.0).abs() < 1e-9);
    assert!(found.duration_s < 100.0);
}

#[test]
fn a_lone_request_waits_for_its_time_and_takes_its_iterations() {
    let mut requests = trace(&[(20, 30); 2], 100.0);
    requests[0].arrival = Seconds(7.0);
    let found = summary(&serve(vllm(80_000, Preemption::Recompute), &requests, None));
    assert_eq!((found.iterations, found.largest_batch), (60, 1));
    assert!(found.queueing_s_per_token.max < 1e-9);
    assert!(found.duration_s > 93.0 && found.duration_s < 94.0);
}

/// Three gigabytes of cache for a model under Pie; a number of expansion, or none where it is found.
fn pie(name: &str, expansion: Option<f64>, requests: &[Request]) -> Scheduler {
    let found = expansion.ok_or(Settings::default());
    pie_beside(name, found, requests, &Background::default())
}

/// The same with settings of adaptive expansion and traffic of others.
fn pie_beside(
    name: &str,
    expansion: Result<f64, Settings>,
    requests: &[Request],
    traffic: &Background,
) -> Scheduler {
    let profile = embedded::profile("gh200-vllm").expect("embedded");
    let model = registry::find(name).expect("registered");
    let machine = Machine::single_gpu(profile.usable());
    let cost = CostModel::new(&profile, Dtype::F16);
    let mut simulator = Simulator::new(&machine, cost).with_traffic(&machine, traffic);
    let shape = Shape::of(&model, Dtype::F16);
    let kv_bytes = Bytes(3_000_000_000);
    let lanes = Lanes::of(&machine);
    let layers = match expansion {
        Ok(expansion) => Pie::fixed(lanes, kv_bytes, &shape, layers_off(shape.layers, expansion)),
        Err(settings) => {
            let adaptive = Adaptive::new(shape.layers, settings);
            Pie::adaptive(lanes, kv_bytes, &shape, adaptive)
        }
    };
    let tokens = kv_bytes.0 / shape.bytes_per_token().0;
    let manager = vllm(tokens, Preemption::Recompute);
    let mut scheduler =
        Scheduler::new(machine, shape, LIMITS, manager, requests).with_layers_swapped(layers);
    scheduler = scheduler.logged();
    follow(&mut scheduler, &mut simulator).expect("modelled time does not fail");
    scheduler
}

#[test]
fn without_expansion_nothing_is_swapped_and_layers_take_what_the_whole_takes() {
    let requests = trace(&[(160, 120); 30], 0.1);
    let by_layers = summary(&pie("opt-13b", Some(1.0), &requests));
    let swaps = by_layers.layers.as_ref().expect("layers").swaps;
    assert_eq!(swaps, [0, 0]);
    let profile = embedded::profile("gh200-vllm").expect("embedded");
    let shape = Shape::of(&registry::find("opt-13b").expect("registered"), Dtype::F16);
    let machine = Machine::single_gpu(profile.usable());
    let mut simulator = Simulator::new(&machine, CostModel::new(&profile, Dtype::F16));
    let manager = vllm(
        3_000_000_000 / shape.bytes_per_token().0,
        Preemption::Recompute,
    );
    let mut whole = Scheduler::new(machine, shape, LIMITS, manager, &requests);
    follow(&mut whole, &mut simulator).expect("modelled time does not fail");
    let whole = summary(&whole);
    assert_eq!(by_layers.iterations, whole.iterations);
    assert!((by_layers.duration_s / whole.duration_s - 1.0).abs() < 1e-9);
}

#[test]
fn a_larger_cache_serves_more_at_the_same_pace_until_computation_waits() {
    let requests = trace(&[(160, 340); 120], 0.0);
    let rate = |expansion| summary(&pie("opt-30b", expansion, &requests));
    let (none, twice) = (rate(Some(1.0)), rate(Some(2.08)));
    assert!(twice.output_tokens_per_s > 1.5 * none.output_tokens_per_s);
    assert_eq!(twice.layers.as_ref().expect("layers").stalled_s, 0.0);
    assert_eq!(
        twice.kv_capacity_tokens,
        3_000_000_000 / u64::from(slots(48, 25)) / 28672 / 16 * 16
    );
    let much = rate(Some(6.0));
    assert!(much.layers.expect("layers").stalled_s > 0.1 * much.duration_s);
}

#[test]
fn adaptive_expansion_begins_at_none_and_comes_near_the_best() {
    let requests = trace(&[(160, 340); 200], 0.0);
    for model in ["opt-30b", "opt-13b"] {
        let fixed = (0..12).map(|i| {
            let expansion = 1.0 + 0.25 * f64::from(i);
            (
                summary(&pie(model, Some(expansion), &requests)).output_tokens_per_s,
                expansion,
            )
        });
        let best = fixed.fold((0.0, 0.0), |a: (f64, f64), b| if b.0 > a.0 { b } else { a });
        let found = summary(&pie(model, None, &requests));
        let layers = found.layers.expect("layers");
        assert_eq!(layers.expansions[0], (0.0, 1.0));
        assert!(
            found.output_tokens_per_s > 0.95 * best.0,
            "{} {best:?}",
            found.output_tokens_per_s
        );
        assert_eq!(found.completed, 200);
    }
}

#[test]
fn nothing_is_swapped_for_requests_that_wait_for_their_turn_and_not_for_room() {
    // Two of these prompts are an iteration; its sequences take half of the cache.
    let found = pie("opt-1.3b", None, &trace(&[(1000, 4); 200], 0.0));
    let waited = |it: &IterationRow| it.waiting > 0;
    assert!(found.iterations().iter().filter(|it| waited(it)).count() > 90);
    assert!(found.iterations().iter().all(|it| it.expansion == 1.0));
    // Two and no third have room, and an iteration takes no third either: then it is not room that is lacking.
    let found = pie("opt-30b", None, &trace(&[(1000, 1); 200], 0.0));
    assert!(found.iterations().iter().all(|it| it.expansion == 1.0));
    // Twenty times as long they take more than all of it.
    let found = pie("opt-1.3b", None, &trace(&[(1000, 80); 200], 0.0));
    assert!(found.iterations().iter().any(|it| it.expansion > 1.0));
}

#[test]
fn adaptive_expansion_shrinks_under_traffic_and_recovers() {
    let requests = trace(&[(160, 340); 600], 0.0);
    let settings = Settings {
        probe_after: 100,
        ..Settings::default()
    };
    let under = |traffic: &Background| pie_beside("opt-30b", Err(settings), &requests, traffic);
    let calm = summary(&under(&Background::default()));
    let [from, to] = [0.3, 0.5].map(|share| Seconds(share * calm.duration_s));
    let profile = embedded::profile("gh200-vllm").expect("embedded");
    let traffic = Traffic {
        from,
        to,
        rate: BytesPerSecond(0.8 * profile.links.h2d.page_locked.peak()),
        ways: Ways::Both,
    };
    let disturbed = under(&Background(vec![traffic]));
    let at = |time: f64| {
        let all = disturbed.iterations().iter();
        let mut then = all.filter(|it| it.began_s <= time);
        then.next_back().expect("it began before").expansion
    };
    let (before, under, after) = (at(from.0), at(to.0), at(calm.duration_s));
    assert!(before > 1.5, "{before}");
    assert!(under < 0.8 * before, "{before} {under}");
    assert!(after > 0.9 * before, "{before} {under} {after}");
    let found = summary(&disturbed);
    assert_eq!((found.completed, found.refused), (600, 0));
    assert!(found.duration_s > calm.duration_s);
    let noted = disturbed.iterations();
    assert_eq!(noted.len() as u64, found.iterations);
    let stalled: f64 = noted.iter().map(|it| it.stalled_s).sum();
    let layers = found.layers.expect("layers");
    assert!((stalled - layers.stalled_s).abs() < 1e-9 * stalled);
}

/// A classifier that is mostly a bucket short.
fn short_sighted() -> Classifier {
    Classifier {
        buckets: Buckets {
            max_len: 1000,
            count: 10,
        },
        accuracy: 0.3,
        wrong: Wrong::Short,
        distance: 1.0,
        seed: 1,
    }
}

#[test]
fn who_outgrows_its_room_goes_to_the_host_and_comes_back_with_twice_as_much() {
    // All are predicted 100 and need 150: each leaves once, and nothing is computed again.
    let requests = trace(&[(20, 150); 40], 0.0);
    let classifier = Classifier {
        accuracy: 0.0,
        ..short_sighted()
    };
    let s3 = S3::new(2000, Reserve::Output, Box::new(classifier));
    let found = summary(&serve(Box::new(s3), &requests, None));
    assert_eq!((found.completed, found.preemptions), (40, 40));
    assert_eq!((found.swaps, found.recomputed_tokens), ([40, 40], 0));
    // 20 have room at first, half as many once they have twice as much.
    assert_eq!(found.largest_batch, 20);
    let oracle = S3::new(2000, Reserve::Output, Box::new(Oracle));
    let best = summary(&serve(Box::new(oracle), &requests, None));
    assert_eq!((best.preemptions, best.largest_batch), (0, 13));
}
