//! How long the policy search of OPT-175B on FlexGen's T4 machine takes (512 + 32 tokens).
//!
//! It is the whole of what `plan` does: shapes, their linear programs, the best made whole and simulated, a look around the winner, and advice.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use plimsoll::planner::{Allowed, Answer, Objective, Request, search};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::embedded;
use plimsoll_core::model::registry;
use plimsoll_core::workload::Workload;

fn opt_175b(c: &mut Criterion) {
    let profile = embedded::profile("t4").expect("embedded");
    let model = registry::find("opt-175b").expect("registered");
    let request = Request {
        workload: Workload {
            prompt_len: 512,
            gen_len: 32,
            num_prompts: None,
        },
        objective: Objective::Throughput,
        max_latency_s: None,
        allowed: Allowed::default(),
    };
    let answer = search(&profile, &model, Dtype::F16, &request).expect("a request");
    if let Answer::Plan(found) = &answer {
        let policy = &found.plan.policy;
        eprintln!(
            "{} shapes; {} x {}: {:?}",
            found.considered, policy.gpu_batch_size, policy.num_gpu_batches, found.plan.prediction
        );
    }
    let mut group = c.benchmark_group("opt-175b on t4");
    group.sample_size(10);
    group.bench_function("search", |b| {
        b.iter(|| black_box(search(&profile, &model, Dtype::F16, &request)));
    });
    let with_compression = Request {
        allowed: Allowed {
            compression: Compression::of(true, true),
            ..Allowed::default()
        },
        ..request
    };
    group.bench_function("search, 4 bits allowed", |b| {
        b.iter(|| black_box(search(&profile, &model, Dtype::F16, &with_compression)));
    });
    group.finish();
}

criterion_group!(benches, opt_175b);
criterion_main!(benches);
