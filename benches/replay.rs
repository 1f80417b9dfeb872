//! How fast a trace is served in modelled time: 100,000 requests, vLLM's blocks, a 13B model, one core.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll::serve::gpus::Gpus;
use plimsoll::serve::replay::{Manager, Server};
use plimsoll::serve::workload::{Arrivals, Generator};
use plimsoll_core::Dtype;
use plimsoll_core::hardware::embedded;
use plimsoll_core::model::registry;
use plimsoll_core::serve::{Limits, Preemption};
use plimsoll_core::traffic::Background;

const REQUESTS: usize = 100_000;

fn hundred_thousand(c: &mut Criterion) {
    let profile = embedded::profile("a100-80").expect("embedded");
    let model = registry::find("llama-13b").expect("registered");
    let server = Server {
        gpus: Gpus::One,
        kv_bytes: Gpus::One
            .kv_left(&profile, &model, Dtype::F16)
            .expect("it fits"),
        profile,
        model,
        dtype: Dtype::F16,
        manager: Manager::Vllm {
            preemption: Preemption::Recompute,
        },
        limits: Limits {
            sequences: 256,
            tokens: 2048,
        },
        clients: None,
        slo_s: 0.1875,
        traffic: Background::default(),
        logged: false,
    };
    let mut group = c.benchmark_group("llama-13b on a100-80, requests");
    group.sample_size(10);
    group.throughput(Throughput::Elements(REQUESTS as u64));
    // Below and above what the machine can serve: 20 requests a second of Alpaca, 5 and 20 of ShareGPT's means.
    for (name, rate, prompt, output) in [
        ("alpaca, 20/s", 20.0, "alpaca-prompt", "alpaca-output"),
        (
            "sharegpt, 5/s",
            5.0,
            "exponential:161.31",
            "exponential:337.99",
        ),
        (
            "sharegpt, 20/s",
            20.0,
            "exponential:161.31",
            "exponential:337.99",
        ),
    ] {
        let requests = Generator {
            arrivals: Arrivals::Poisson { rate },
            prompt: prompt.parse().expect("known"),
            output: output.parse().expect("known"),
            total_max: Some(2048),
            requests: REQUESTS,
            seed: 0,
        }
        .requests();
        group.bench_function(name, |b| {
            b.iter(|| black_box(server.replay(&requests).expect("served")));
        });
    }
    group.finish();
}

criterion_group!(benches, hundred_thousand);
criterion_main!(benches);
