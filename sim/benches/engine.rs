//! How fast the engine is: tasks a second on FlexGen's OPT-175B program (512 + 32 tokens, 32 x 8).

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_core::Dtype;
use plimsoll_core::control::Controller;
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_core::lower::Lowering;
use plimsoll_core::model::registry;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{Machine, Program};
use plimsoll_core::units::Bytes;
use plimsoll_core::verify::Verifier;
use plimsoll_core::workload::Workload;
use plimsoll_sim::{CostModel, Simulator};

fn opt_175b(profile: &HardwareProfile) -> Plan {
    let percent = [0.0, 50.0, 0.0, 0.0, 0.0, 100.0];
    let policy = Policy {
        cpu_attention: true,
        ..Policy::from_percent(32, 8, percent).expect("a policy")
    };
    let mut plan = Plan::given(
        registry::find("opt-175b").expect("registered"),
        Dtype::F16,
        Workload {
            prompt_len: 512,
            gen_len: 32,
            num_prompts: None,
        },
        policy,
    )
    .on(profile);
    plan.capacity_bytes.device = Bytes(1 << 36);
    plan
}

fn lower(plan: &Plan) -> (Machine, Vec<Arc<Program>>) {
    let mut lowering = Lowering::new(plan).expect("fits");
    let machine = lowering.machine().clone();
    let pieces = std::iter::from_fn(|| lowering.next_pass())
        .map(Arc::new)
        .collect();
    (machine, pieces)
}

fn engine(c: &mut Criterion) {
    let profile = embedded::profile("t4").expect("embedded");
    let plan = opt_175b(&profile);
    let (machine, pieces) = lower(&plan);
    let tasks: usize = pieces.iter().map(|p| p.tasks().len()).sum();
    eprintln!("{tasks} tasks");
    let mut group = c.benchmark_group("opt-175b");
    group.throughput(Throughput::Elements(tasks as u64));
    group.sample_size(20);
    group.bench_function("simulate", |b| {
        let cost = CostModel::new(&profile, plan.dtype);
        b.iter_batched_ref(
            || Simulator::new(&machine, cost.clone()),
            |simulator| {
                for piece in &pieces {
                    simulator.submit(Arc::clone(piece)).expect("a piece");
                }
                black_box(simulator.wait(Until::Idle).expect("ends"))
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("lower", |b| b.iter(|| black_box(lower(&plan).1.len())));
    group.bench_function("verify", |b| {
        b.iter(|| {
            let mut verifier = Verifier::new(&machine);
            for piece in &pieces {
                verifier.check(piece).expect("valid");
            }
            verifier.finish().expect("complete");
        });
    });
    group.finish();
}

criterion_group!(benches, engine);
criterion_main!(benches);
