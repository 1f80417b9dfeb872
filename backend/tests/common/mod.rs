//! What the tests of the executor share: plans of tiny models, and running them.
#![allow(dead_code)] // each test file uses a part

use std::path::{Path, PathBuf};

use plimsoll_backend::cpu::{CapturedLogits, CpuExecutor, CpuOptions};
use plimsoll_backend::weights::{Safetensors, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::control::{Run, drive};
use plimsoll_core::lower::Lowering;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::split::{Module, PerModule, Route, SplitLinears};
use plimsoll_core::workload::Workload;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// A model whose matrices have bands of 4-bit groups that a split falls between, and a last one that is not full.
pub fn uneven_bands() -> ModelSpec {
    ModelSpec {
        hidden_size: 160,
        intermediate_size: 416,
        num_attention_heads: 5,
        num_key_value_heads: 5,
        head_dim: 32,
        embedding_size: 160,
        ..model("tiny-opt")
    }
}

/// The model of a fixture.
pub fn model(name: &str) -> ModelSpec {
    let path = fixture(name).join("config.json");
    let text = std::fs::read_to_string(path).expect("the fixture");
    ModelSpec::from_hf_config(name, &text).expect("a model")
}

pub fn tiny_opt() -> ModelSpec {
    model("tiny-opt")
}

/// The checkpoint of a fixture.
pub fn checkpoint(name: &str) -> Safetensors {
    Safetensors::open(&fixture(name), &model(name)).expect("a checkpoint")
}

/// A plan whose tiers are as large as it needs.
pub fn plan(model: &ModelSpec, dtype: Dtype, policy: Policy, workload: Workload) -> Plan {
    let plan = Plan::given(model.clone(), dtype, workload, policy);
    plan.with_room().expect("a policy")
}

/// What a run gave.
pub struct Outcome {
    pub tokens: Vec<Vec<u32>>,
    pub logits: Vec<CapturedLogits>,
    pub run: Run,
}

pub fn execute(
    plan: &Plan,
    source: &dyn WeightSource,
    prompts: &[Vec<u32>],
    options: &CpuOptions,
) -> Outcome {
    let mut lowering = Lowering::new(plan).expect("it fits");
    let placement = lowering.placement().clone();
    let texts = lowering.texts().clone();
    let mut executor = CpuExecutor::new(plan, &placement, source, options).expect("an executor");
    executor.set_prompts(&texts, prompts).expect("prompts");
    let run = drive(&mut lowering, &mut executor).unwrap_or_else(|error| {
        panic!(
            "{error}: {:?}\n{:#?}",
            std::error::Error::source(&error),
            plan.policy
        )
    });
    Outcome {
        tokens: executor.generated(&texts),
        logits: executor.take_logits(),
        run,
    }
}

/// Prompts that differ.
pub fn prompts(count: u32, length: u32, vocab: u32) -> Vec<Vec<u32>> {
    let id = |i: u32| i.wrapping_mul(2_654_435_761) % (vocab - 4) + 4;
    (0..count)
        .map(|p| (0..length).map(|t| id(1 + p * 1000 + t)).collect())
        .collect()
}

/// Splits that differ in all that a split may say.
pub fn splits(layers: u32) -> Vec<SplitLinears> {
    let even = SplitLinears::even;
    let uneven = SplitLinears {
        share: PerModule::from_fn(|module| [0.0, 0.3, 1.0, 0.5, 0.9, 0.1, 0.7][module as usize]),
        prefill_share: 0.4,
        hands_on: false,
        ..even(0.5)
    };
    let mut partly_on_device = even(0.35);
    partly_on_device.layers_on_device[Module::Up] = layers;
    partly_on_device.layers_on_device[Module::Down] = 1;
    partly_on_device.layers_on_device[Module::K] = 1;
    vec![
        even(0.3),
        uneven,
        partly_on_device,
        SplitLinears {
            route: Route::Direct,
            ..even(0.6)
        },
        SplitLinears {
            route: Route::Blocking,
            prefill_share: 0.0,
            ..even(0.2)
        },
        even(0.0),
        even(1.0),
    ]
}
