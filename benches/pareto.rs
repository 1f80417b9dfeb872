//! How long FlexGen's figure 1 takes: OPT-175B on its T4 machine, each system's frontier.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use plimsoll::baseline::System;
use plimsoll::pareto::{Setting, points};
use plimsoll_core::hardware::embedded;
use plimsoll_core::model::registry;
use plimsoll_core::workload::Workload;

fn figure_1(c: &mut Criterion) {
    let profile = embedded::profile("t4").expect("embedded");
    let model = registry::find("opt-175b").expect("registered");
    let setting = Setting {
        profile: &profile,
        model: &model,
        workload: Workload {
            prompt_len: 512,
            gen_len: 32,
            num_prompts: None,
        },
    };
    let all = [
        System::Plimsoll,
        System::FlexGen,
        System::FlexGen4Bit,
        System::DeepSpeed,
        System::Accelerate,
    ];
    let mut group = c.benchmark_group("figure 1, opt-175b on t4");
    group.sample_size(10);
    group.bench_function("all", |b| {
        b.iter(|| black_box(points(setting, &all, None, &|_, _| ())));
    });
    for system in all {
        group.bench_function(system.name(), |b| {
            b.iter(|| black_box(points(setting, &[system], None, &|_, _| ())));
        });
    }
    group.finish();
}

criterion_group!(benches, figure_1);
criterion_main!(benches);
