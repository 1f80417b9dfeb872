//! The closed form and the simulator agree where nothing shares anything with anything.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_core::lower::footprint;
use plimsoll_core::model::{ModelSpec, registry};
use plimsoll_core::plan::{ChosenBy, PLAN_SCHEMA_VERSION, Plan, Provenance};
use plimsoll_core::policy::{Granularity, Policy};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::workload::Workload;
use plimsoll_sim::closed_form::ClosedForms;
use plimsoll_sim::predict;

const WORKLOAD: Workload = Workload {
    prompt_len: 512,
    gen_len: 6,
    num_prompts: None,
};

fn quiet_t4() -> HardwareProfile {
    let mut profile = embedded::profile("t4").expect("embedded");
    profile.contention.clear();
    profile
}

fn model(name: &str) -> ModelSpec {
    registry::find(name).expect("registered")
}

fn policy(gbs: u32, batches: u32, percent: [f64; 6], cpu_attention: bool) -> Policy {
    Policy {
        barrier: false,
        granularity: Granularity::Spread,
        cpu_attention,
        ..Policy::from_percent(gbs, batches, percent).expect("a policy")
    }
}

/// A plan on a machine that is large enough for it.
fn plan(model: ModelSpec, workload: Workload, policy: Policy) -> Plan {
    let mut plan = Plan {
        schema_version: PLAN_SCHEMA_VERSION,
        model,
        dtype: Dtype::F16,
        workload,
        policy,
        capacity_bytes: PerTier::default(),
        prediction: None,
        provenance: Provenance {
            hardware: "t4".into(),
            chosen_by: ChosenBy::Given,
            plimsoll_version: "0".into(),
        },
    };
    plan.capacity_bytes = footprint(&plan).expect("a policy");
    plan
}

/// Closed form over simulation, of prefill and of decode.
fn ratios(name: &str, policy: Policy) -> (f64, f64) {
    let profile = quiet_t4();
    let plan = plan(model(name), WORKLOAD, policy);
    let forms = ClosedForms::new(&profile, &plan.model, plan.dtype, WORKLOAD).expect("a workload");
    let expected = forms.form(&policy).evaluate(&policy);
    let simulated = predict(&plan, &profile).expect("fits its footprint");
    eprintln!("{:?}", simulated.busy_fraction);
    (
        expected.prefill_s.0 / simulated.prefill_s.0,
        expected.decode_s.0 / simulated.decode_s.0,
    )
}

#[test]
fn agrees_with_the_simulator_within_a_tenth() {
    let cases = [
        ("opt-30b", policy(8, 4, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0], false)),
        ("opt-30b", policy(8, 4, [0.0, 100.0, 100.0, 0.0, 100.0, 0.0], false)),
        ("opt-30b", policy(32, 1, [0.0, 100.0, 100.0, 0.0, 100.0, 0.0], false)),
        ("opt-30b", policy(8, 4, [0.0, 0.0, 100.0, 0.0, 100.0, 0.0], false)),
        ("opt-30b", policy(32, 8, [0.0, 100.0, 0.0, 100.0, 100.0, 0.0], false)),
        ("opt-30b", policy(32, 8, [0.0, 100.0, 0.0, 100.0, 100.0, 0.0], true)),
        ("opt-30b", policy(48, 3, [20.0, 80.0, 0.0, 100.0, 100.0, 0.0], true)),
        ("opt-30b", policy(16, 4, [0.0, 100.0, 0.0, 0.0, 100.0, 0.0], false)),
        ("opt-30b", policy(16, 4, [0.0, 100.0, 0.0, 0.0, 100.0, 0.0], true)),
        ("opt-30b", policy(16, 8, [0.0, 100.0, 100.0, 0.0, 0.0, 100.0], false)),
        ("opt-30b", policy(16, 8, [100.0, 0.0, 100.0, 0.0, 0.0, 0.0], false)),
        ("opt-30b", policy(4, 1, [100.0, 0.0, 0.0, 100.0, 100.0, 0.0], true)),
        ("opt-30b", policy(4, 2, [100.0, 0.0, 0.0, 100.0, 100.0, 0.0], true)),
        ("opt-30b", policy(4, 1, [0.0, 100.0, 0.0, 100.0, 100.0, 0.0], true)),
        ("opt-30b", policy(4, 1, [100.0, 0.0, 0.0, 100.0, 0.0, 100.0], false)),
        ("opt-175b", policy(32, 8, [0.0, 50.0, 0.0, 0.0, 0.0, 100.0], false)),
        ("opt-175b", policy(32, 8, [0.0, 50.0, 0.0, 100.0, 0.0, 100.0], true)),
        ("opt-175b", policy(8, 4, [0.0, 0.0, 0.0, 100.0, 100.0, 0.0], true)),
        ("opt-175b", policy(4, 8, [0.0, 100.0, 0.0, 100.0, 100.0, 0.0], false)),
        ("opt-175b", policy(16, 8, [10.0, 40.0, 20.0, 80.0, 100.0, 0.0], true)),
    ];
    for (name, policy) in cases {
        let (prefill, decode) = ratios(name, policy);
        eprintln!("{name} {}x{} w{:?} c{:?} h{:?} cpu {} prefill {prefill:.3} decode {decode:.3}", policy.gpu_batch_size, policy.num_gpu_batches,
            policy.weights, policy.cache, policy.activations, policy.cpu_attention);
    }
}

#[test]
fn memory() {
    for (name, policy) in [
        ("opt-30b", policy(48, 3, [20.0, 80.0, 0.0, 100.0, 100.0, 0.0], true)),
        ("opt-175b", policy(32, 8, [0.0, 50.0, 0.0, 0.0, 0.0, 100.0], false)),
        ("opt-30b", policy(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0], false)),
        ("opt-30b", policy(16, 4, [30.0, 30.0, 30.0, 30.0, 30.0, 30.0], true)),
    ] {
        let profile = quiet_t4();
        let t = std::time::Instant::now();
        let forms = ClosedForms::new(&profile, &model(name), Dtype::F16, WORKLOAD).unwrap();
        eprintln!("forms {:?}", t.elapsed());
        let t = std::time::Instant::now();
        let form = forms.form(&policy);
        eprintln!("form {:?}", t.elapsed());
        let t = std::time::Instant::now();
        let plan = plan(model(name), WORKLOAD, policy);
        eprintln!("plan {:?}", t.elapsed());
        for tier in Tier::ALL {
            eprintln!("{name} {tier} {:.4} {}", form.memory()[tier].at(&policy) / plan.capacity_bytes[tier].as_f64(), plan.capacity_bytes[tier]);
        }
    }
}
