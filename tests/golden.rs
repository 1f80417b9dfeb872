//! Golden programs: every executor interprets them and keeps the same rules.

use std::fmt::Write as _;

use plimsoll_backend::cpu::{CpuExecutor, CpuOptions};
use plimsoll_backend::weights::Synthetic;
use plimsoll_core::Dtype;
use plimsoll_core::control::{Run, drive};
use plimsoll_core::hardware::{HardwareProfile, ProfileError};
use plimsoll_core::lower::{Lowering, footprint};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::program::TaskId;
use plimsoll_core::sparse::DENSE;
use plimsoll_core::summary::Summary;
use plimsoll_core::tier::Tier;
use plimsoll_core::workload::Workload;
use plimsoll_sim::simulate;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Programs {
    program: Vec<Golden>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    name: String,
    gpu_batch_size: u32,
    num_gpu_batches: u32,
    percent: [f64; 6],
    #[serde(default)]
    schedule: Option<Schedule>,
    #[serde(default)]
    barrier: bool,
    #[serde(default)]
    cpu_attention: bool,
    #[serde(default = "yes")]
    overlap: bool,
    #[serde(default)]
    num_prompts: Option<u64>,
    #[serde(default = "dense")]
    sparse_attention: f64,
    #[serde(default)]
    pipeline: Pipeline,
}

fn dense() -> f64 {
    DENSE
}

fn yes() -> bool {
    true
}

fn machine() -> HardwareProfile {
    let no_parent = |name: &str| Err(ProfileError::no_such_profile(name, []));
    HardwareProfile::parse(
        include_str!("golden/machine.toml"),
        "machine.toml",
        &no_parent,
    )
    .expect("a profile")
}

fn plan(policy: Policy, num_prompts: Option<u64>) -> Plan {
    let config = r#"{"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "ffn_dim": 256, "vocab_size": 128,
        "max_position_embeddings": 64, "word_embed_proj_dim": 64}"#;
    Plan::given(
        ModelSpec::from_hf_config("golden", config).expect("a model"),
        Dtype::F32,
        Workload {
            prompt_len: 6,
            gen_len: 3,
            num_prompts,
        },
        policy,
    )
    .on(&machine())
}

fn goldens() -> Vec<(String, Plan)> {
    let programs: Programs = toml::from_str(include_str!("golden/programs.toml")).expect("goldens");
    let plans = programs.program.into_iter().map(|golden| {
        let policy = Policy::from_percent(
            golden.gpu_batch_size,
            golden.num_gpu_batches,
            golden.percent,
        )
        .expect("a policy");
        let policy = Policy {
            schedule: golden.schedule.unwrap_or(Schedule::ZigZag),
            barrier: golden.barrier,
            cpu_attention: golden.cpu_attention,
            overlap: golden.overlap,
            sparse_attention: golden.sparse_attention,
            pipeline: golden.pipeline,
            ..policy
        };
        (golden.name, plan(policy, golden.num_prompts))
    });
    plans.collect()
}

/// Runs a plan on the CPU executor; returns what ran and the tokens.
fn execute(plan: &Plan) -> (Run, Vec<Vec<u32>>) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut lowering = Lowering::new(plan).expect("fits");
    let source = Synthetic { seed: 5 };
    let options = CpuOptions::new(dir.path());
    let mut executor =
        CpuExecutor::new(plan, lowering.placement(), &source, &options).expect("an executor");
    let count: u32 = lowering.rounds().iter().flat_map(|r| &r.batches).sum();
    let prompts: Vec<Vec<u32>> = (0..count)
        .map(|s| {
            (0..plan.workload.prompt_len)
                .map(|t| (s * 31 + t * 17 + 4) % 128)
                .collect()
        })
        .collect();
    let texts = lowering.texts().clone();
    executor.set_prompts(&texts, &prompts).expect("prompts");
    let run = drive(&mut lowering, &mut executor).expect("runs");
    (run, executor.generated(&texts))
}

/// The rules that every executor keeps.
fn assert_kept(run: &Run, name: &str) {
    let mut free = vec![0.0_f64; run.machine.resources.len()];
    for piece in &run.pieces {
        for (index, task) in piece.tasks().iter().enumerate() {
            let id = TaskId(piece.first_task().0 + index as u32);
            let span = run
                .trace
                .span(id)
                .unwrap_or_else(|| panic!("{name}: task {} ran", id.0));
            assert!(
                span.start.0 <= span.end.0,
                "{name}: task {} ends before it starts",
                id.0
            );
            let resource = task.resource.0 as usize;
            assert!(
                span.start.0 >= free[resource],
                "{name}: task {} overtakes",
                id.0
            );
            free[resource] = span.end.0;
            for dep in piece.deps_at(index) {
                let dep = run.trace.span(*dep).expect("ran");
                assert!(
                    span.start.0 >= dep.end.0,
                    "{name}: task {} does not wait",
                    id.0
                );
            }
        }
    }
    let peak = Summary::of(run).peak_bytes;
    for tier in Tier::ALL {
        let arena = run
            .machine
            .arenas
            .iter()
            .find(|a| a.tier == tier)
            .expect("a tier");
        assert!(
            peak[tier] <= arena.capacity,
            "{name}: {tier} holds more than it has"
        );
    }
}

/// What a program asks of each resource: tasks and bytes.
fn demand(run: &Run) -> String {
    let mut text = String::new();
    for (number, resource) in run.machine.resources.iter().enumerate() {
        let mine = || run.tasks().filter(|(_, _, on, _)| *on == number);
        let bytes: u64 = mine()
            .filter_map(|(_, op, ..)| op.moved_bytes())
            .map(|bytes| bytes.0)
            .sum();
        let tasks = mine().count();
        if tasks > 0 {
            let _ = write!(text, " {} {tasks}", resource.kind.name());
            if bytes > 0 {
                let _ = write!(text, " ({bytes} B)");
            }
        }
    }
    text
}

#[test]
fn the_simulator_gives_the_recorded_times() {
    let mut lines = String::new();
    for (name, plan) in goldens() {
        let run = simulate(&plan, &machine()).expect("simulates");
        assert_kept(&run, &name);
        let summary = Summary::of(&run);
        let _ = writeln!(
            lines,
            "{name}:{}\n  {:.3} us, prefill {:.3} us, bottleneck {}, peak {} / {} / {} B",
            demand(&run),
            summary.latency_s.0 * 1e6,
            summary.prefill_s.0 * 1e6,
            summary.bottleneck,
            summary.peak_bytes.device.0,
            summary.peak_bytes.host.0,
            summary.peak_bytes.disk.0,
        );
    }
    insta::assert_snapshot!("golden_times", lines);
}

#[test]
fn the_cpu_executor_keeps_the_same_rules_on_the_same_programs() {
    for (name, plan) in goldens() {
        let (executed, tokens) = execute(&plan);
        assert_kept(&executed, &name);
        let simulated = simulate(&plan, &machine()).expect("simulates");
        assert_eq!(
            demand(&executed),
            demand(&simulated),
            "{name}: another program"
        );
        assert!(tokens.iter().all(|t| t.len() == 3), "{name}: {tokens:?}");
    }
}

#[test]
fn two_simulations_are_the_same() {
    for (name, plan) in goldens() {
        let spans = || -> Vec<_> {
            let run = simulate(&plan, &machine()).expect("simulates");
            run.trace.spans().collect()
        };
        assert_eq!(spans(), spans(), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_makespan_is_below_the_busiest_resource(
        gbs in 1u32..4,
        batches in 1u32..7,
        shares in prop::array::uniform3((0.0..=100.0f64, 0.0..=1.0f64)),
        switches in (0..3usize, any::<bool>(), any::<bool>(), any::<bool>()),
        sparse_attention in prop::sample::select(vec![DENSE, 0.2]),
    ) {
        let [w, c, h] = shares.map(|(device, rest)| (device, (100.0 - device) * rest));
        let percent = [w.0, w.1, c.0, c.1, h.0, h.1];
        let policy = Policy {
            schedule: [Schedule::Row, Schedule::ZigZag, Schedule::Diagonal][switches.0],
            overlap: switches.1,
            barrier: switches.2,
            cpu_attention: switches.3,
            sparse_attention,
            ..Policy::from_percent(gbs, batches, percent).expect("a policy")
        };
        let mut plan = plan(policy, None);
        plan.capacity_bytes = footprint(&plan).expect("a policy");
        let run = simulate(&plan, &machine()).expect("fits its footprint");
        assert_kept(&run, "random");
        let summary = Summary::of(&run);
        for (resource, share) in summary.busy_fraction.by_kind() {
            prop_assert!(share <= 1.0 + 1e-9, "{resource} is busy {share} of the time");
        }
    }
}
