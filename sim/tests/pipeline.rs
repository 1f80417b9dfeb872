//! Pipelines in modelled time: what is known of them on paper (FlexGen section 4.4).

mod common;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::{Curve, HardwareProfile, embedded};
use plimsoll_core::lower::footprint;
use plimsoll_core::machine::ResourceKind;
use plimsoll_core::model::{ModelSpec, registry};
use plimsoll_core::pipeline::{Comm, Pipeline};
use plimsoll_core::policy::Policy;
use plimsoll_core::sparse::DENSE;
use plimsoll_core::summary::Summary;
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Seconds;
use plimsoll_core::workload::Workload;
use plimsoll_sim::closed_form::ClosedForms;
use plimsoll_sim::predict;

use common::plan;

const WORKLOAD: Workload = Workload {
    prompt_len: 512,
    gen_len: 9,
    num_prompts: None,
};

const ON_DEVICE: [f64; 6] = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
const ON_HOST: [f64; 6] = [0.0, 100.0, 0.0, 100.0, 0.0, 100.0];
const MIXED: [f64; 6] = [0.0, 100.0, 100.0, 0.0, 0.0, 100.0];

/// Four machines whose link is as good as none.
fn near() -> HardwareProfile {
    let mut profile = embedded::profile("t4x4").expect("embedded");
    profile.contention.clear();
    let link = &mut profile.links.peers[0];
    link.latency.value = Seconds::ZERO;
    link.rate = Curve::new(vec![(1.0, 1e15)], link.rate.source.clone(), None).expect("a rate");
    profile
}

/// A model of equal layers: its ends are small.
fn model() -> ModelSpec {
    ModelSpec {
        vocab_size: 64,
        num_hidden_layers: 24,
        ..registry::find("opt-6.7b").expect("registered")
    }
}

fn pipeline(stages: u32, micro_batches: u32) -> Pipeline {
    Pipeline {
        stages,
        micro_batches,
        ..Pipeline::default()
    }
}

fn policy(percent: [f64; 6], pipeline: Pipeline) -> Policy {
    Policy {
        pipeline,
        barrier: false,
        ..Policy::from_percent(8, 1, percent).expect("a policy")
    }
}

fn summary(policy: Policy, profile: &HardwareProfile) -> Summary {
    predict(&plan(model(), WORKLOAD, policy), profile).expect("fits")
}

fn decode_s(summary: &Summary) -> f64 {
    summary.decode_s.expect("several tokens").0
}

fn near_to(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 0.03
}

#[test]
fn prefill_is_m_plus_s_minus_1_passes_and_a_token_the_larger_of_both() {
    let profile = near();
    for percent in [ON_DEVICE, ON_HOST] {
        for (stages, micro_batches) in [(2, 2), (4, 4), (4, 2), (3, 6)] {
            if percent == ON_HOST && micro_batches < stages {
                // A stage that waits loads the next weights meanwhile.
                continue;
            }
            let alone = summary(policy(percent, pipeline(1, micro_batches)), &profile);
            let found = summary(policy(percent, pipeline(stages, micro_batches)), &profile);
            let (s, m) = (f64::from(stages), f64::from(micro_batches));
            let prefill = alone.prefill_s.0 * (m + s - 1.0) / (m * s);
            let decode = decode_s(&alone) * m.max(s) / (m * s);
            let case = format!("{percent:?} {stages} stages, {micro_batches} micro-batches");
            assert!(near_to(found.prefill_s.0, prefill), "{case}: {found:?}");
            assert!(near_to(decode_s(&found), decode), "{case}: {found:?}");
        }
    }
}

#[test]
fn bubbles_are_those_of_filling_and_draining() {
    let found = summary(policy(ON_DEVICE, pipeline(4, 4)), &near());
    assert_eq!(found.stages.len(), 4);
    // Three passes of seven; the stages before the last decode a little in theirs.
    let expected = 3.0 / 7.0;
    for stage in &found.stages {
        let within = expected - 0.08..expected + 0.01;
        assert!(within.contains(&stage.prefill_bubble), "{stage:?}");
    }
    let last = &found.stages[3];
    assert!((last.prefill_bubble - expected).abs() < 0.01, "{last:?}");
    assert!(last.decode_bubble.expect("it decodes") < 0.01, "{last:?}");
    let alone = summary(policy(ON_DEVICE, pipeline(1, 4)), &near());
    assert!(alone.stages.is_empty());
}

#[test]
fn decoding_throughput_leaves_prefill_out() {
    let found = summary(policy(ON_DEVICE, pipeline(4, 4)), &near());
    let sequences = 8.0 * 4.0;
    let later = sequences * f64::from(WORKLOAD.gen_len - 1);
    let rate = found.decode_throughput_tok_s.expect("it decodes");
    assert!((rate - later / decode_s(&found)).abs() < 1e-9 * rate);
    assert!(rate > found.throughput_tok_s);
}

#[test]
fn a_slow_link_binds() {
    let mut profile = near();
    let link = &mut profile.links.peers[0];
    link.rate = Curve::new(vec![(1.0, 1e6)], link.rate.source.clone(), None).expect("a rate");
    let slow = summary(policy(ON_DEVICE, pipeline(4, 4)), &profile);
    assert_eq!(slow.bottleneck, ResourceKind::PeerLink);
    let fast = summary(policy(ON_DEVICE, pipeline(4, 4)), &near());
    assert!(slow.latency_s.0 > 2.0 * fast.latency_s.0);
}

#[test]
fn the_way_by_the_hosts_is_the_longer_one() {
    let profile = embedded::profile("t4x4").expect("embedded");
    let with = |comm| {
        let pipeline = Pipeline {
            comm,
            ..pipeline(4, 4)
        };
        summary(policy(ON_DEVICE, pipeline), &profile)
    };
    let (direct, by_hosts) = (with(Comm::Device), with(Comm::Host));
    assert!(by_hosts.latency_s > direct.latency_s);
    // Two copies more, and they are no secret.
    assert!(by_hosts.busy_fraction.d2h > direct.busy_fraction.d2h);
}

#[test]
fn stages_of_one_host_share_its_cpu() {
    let profile = near();
    let on_cpu = |stages_per_host| {
        let pipeline = Pipeline {
            stages_per_host,
            ..pipeline(4, 4)
        };
        let policy = Policy {
            cpu_attention: true,
            ..policy(ON_HOST, pipeline)
        };
        let long = Workload {
            prompt_len: 1536,
            ..WORKLOAD
        };
        predict(&plan(model(), long, policy), &profile).expect("fits")
    };
    let (own, shared) = (on_cpu(1), on_cpu(4));
    assert!(shared.decode_s > own.decode_s);
    assert!(shared.busy_fraction.cpu > own.busy_fraction.cpu);
    // Four stages' caches and weights are in one memory.
    assert!(shared.peak_bytes.host.0 > 3 * own.peak_bytes.host.0);
}

/// Also where the ends of a model are large, stages share a host, and layers do not divide evenly.
#[test]
fn the_closed_form_s_memory_is_that_of_the_fullest_stage() {
    let llama = registry::find("llama-3-8b").expect("registered");
    let approximations = (&[Compression::default()][..], DENSE);
    for (stages, stages_per_host) in [(1, 1), (2, 1), (4, 1), (4, 2), (4, 4)] {
        let pipeline = Pipeline {
            stages_per_host,
            ..pipeline(stages, 4)
        };
        let forms = ClosedForms::new(
            &near(),
            (&llama, &pipeline),
            Dtype::F16,
            WORKLOAD,
            approximations,
        );
        let forms = forms.expect("a workload");
        for (percent, off) in [(ON_DEVICE, 1e-3), (ON_HOST, 1e-3), (MIXED, 0.1)] {
            let policy = policy(percent, pipeline);
            let form = forms.form(&policy);
            let needed = footprint(&plan(llama.clone(), WORKLOAD, policy));
            let needed = needed.expect("a policy");
            for tier in Tier::ALL {
                let (form, real) = (form.memory()[tier].at(&policy), needed[tier].as_f64());
                assert!(
                    (form - real).abs() < off * real + 4e6,
                    "{percent:?} over {stages}, {stages_per_host} a host, {tier}: {form} {real}"
                );
            }
        }
    }
}

#[test]
fn the_closed_form_of_a_stage_is_that_of_the_pipeline() {
    let profile = near();
    for percent in [ON_DEVICE, ON_HOST] {
        for (stages, micro_batches) in [(4, 4), (2, 4)] {
            let pipeline = pipeline(stages, micro_batches);
            let policy = policy(percent, pipeline);
            let approximations = (&[policy.compression][..], policy.sparse_attention);
            let subject = (&model(), &pipeline);
            let forms = ClosedForms::new(&profile, subject, Dtype::F16, WORKLOAD, approximations);
            let form = forms.expect("a workload").form(&policy);
            let (expected, found) = (form.evaluate(&policy), summary(policy, &profile));
            let ratio = expected.latency_s.0 / found.latency_s.0;
            assert!((0.9..1.1).contains(&ratio), "{percent:?} {stages}: {ratio}");
            let needed = footprint(&plan(model(), WORKLOAD, policy));
            let needed = needed.expect("a policy");
            for tier in Tier::ALL {
                let (form, real) = (form.memory()[tier].at(&policy), needed[tier].as_f64());
                assert!(
                    (form - real).abs() < 1e-3 * real + 1e6,
                    "{tier}: {form} {real}"
                );
            }
        }
    }
}
