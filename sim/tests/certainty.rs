//! How sure predictions are, and where they say that they extrapolate.

mod common;

use plimsoll_core::extrapolation::SizeUnit;
use plimsoll_core::hardware::{Curve, HardwareProfile, Residuals, SourceKind, embedded};
use plimsoll_core::lower::footprint;
use plimsoll_core::model::registry;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::summary::Summary;
use plimsoll_core::units::BytesPerSecond;
use plimsoll_core::workload::Workload;
use plimsoll_sim::predict;

const SPREAD: f64 = 0.1;

/// A plan whose weights are all read from the host, for every pass.
fn plan() -> Plan {
    let model = registry::find("opt-1.3b").expect("registered");
    let workload = Workload {
        prompt_len: 32,
        gen_len: 4,
        num_prompts: None,
    };
    let policy = Policy::from_percent(4, 1, [0.0, 100.0, 100.0, 0.0, 100.0, 0.0]);
    common::plan(model, workload, policy.expect("a policy"))
}

/// A machine that nobody measured and nobody compared.
fn unprofiled() -> HardwareProfile {
    let mut profile = embedded::profile("t4").expect("embedded");
    profile.residuals = None;
    profile
}

/// The same with copies from the host measured between two sizes, and repeated.
fn with_copies_measured(from: f64, to: f64) -> HardwareProfile {
    let mut profile = unprofiled();
    let points = vec![(from, 10e9), (to, 10e9)];
    let curve = Curve::new(points, "cost-model", Some(SPREAD)).expect("a curve");
    profile.links.h2d.page_locked = curve;
    profile
}

fn predicted(profile: &HardwareProfile) -> Summary {
    predict(&plan(), profile).expect("fits its footprint")
}

#[test]
fn a_machine_of_data_sheets_has_no_interval() {
    assert_eq!(predicted(&unprofiled()).interval, None);
}

#[test]
fn repeats_spread_by_the_share_of_the_time_that_they_rate() {
    let summary = predicted(&with_copies_measured(1.0, 1e9));
    let interval = summary.interval.expect("most of the time is measured");
    assert!(interval.from_spread && !interval.from_residuals);
    // All but the fixed time of copies is by the curve.
    let sigma = summary.busy_fraction.h2d * SPREAD / 1.349;
    let expected = (1.645 * sigma).exp();
    let width = interval.latency_s.high / summary.latency_s.0;
    assert!((width - expected).abs() < 1e-3, "{width}, not {expected}");
    let tokens = interval.throughput_tok_s.low * interval.latency_s.high;
    assert!((tokens - summary.generated_tokens as f64).abs() < 1e-6);
}

#[test]
fn residuals_make_an_interval_of_their_own() {
    let mut profile = unprofiled();
    profile.residuals = Some(Residuals {
        median_log_error: 0.0,
        p05_log_error: -0.1,
        p95_log_error: 0.2,
        runs: 1000,
        source: "cost-model".to_owned(),
        of: None,
    });
    let summary = predicted(&profile);
    let rates = summary
        .interval
        .expect("runs were compared")
        .throughput_tok_s;
    assert!((rates.low / summary.throughput_tok_s - (-0.2_f64).exp()).abs() < 1e-3);
    assert!((rates.high / summary.throughput_tok_s - 0.1_f64.exp()).abs() < 1e-3);
    profile.links.h2d.page_locked.spread = Some(SPREAD);
    let both = predicted(&profile).interval.expect("both are known");
    assert!(both.from_residuals && both.from_spread);
    assert!(both.throughput_tok_s.low < rates.low && both.throughput_tok_s.high > rates.high);
}

#[test]
fn sizes_outside_a_curve_are_named_with_their_share_of_the_time() {
    let outside = |profile: &HardwareProfile| {
        let summary = predicted(profile);
        let found = summary.extrapolates.iter();
        let mut found = found
            .filter(|e| e.curve == "links.h2d.page_locked")
            .cloned();
        (summary.busy_fraction.h2d, found.next())
    };
    assert_eq!(outside(&with_copies_measured(1.0, 1e12)).1, None);
    let (busy, found) = outside(&with_copies_measured(1.0, 2.0));
    let found = found.expect("weights are larger");
    assert_eq!(found.unit, SizeUnit::Bytes);
    assert_eq!((found.known.low, found.known.high), (1.0, 2.0));
    assert!(found.asked.low > 2.0 && found.asked.high > 1e6, "{found:?}");
    assert!(!found.is_constant());
    assert!((found.busy_fraction / busy - 1.0).abs() < 1e-2, "{found:?}");
    let (_, constant) = outside(&unprofiled());
    assert!(constant.expect("one rate for all sizes").is_constant());
}

#[test]
fn many_rounds_are_as_sure_as_few() {
    let profile = with_copies_measured(1.0, 2.0);
    let rounds = |rounds: u64| {
        let mut plan = plan();
        plan.workload.num_prompts = Some(4 * rounds);
        plan.capacity_bytes = footprint(&plan).expect("a policy");
        let summary = predict(&plan, &profile).expect("fits its footprint");
        let interval = summary.interval.expect("most of the time is measured");
        let found = summary.extrapolates.iter();
        let mut found = found.filter(|e| e.curve == "links.h2d.page_locked");
        let busy_fraction = found.next().expect("weights are larger").busy_fraction;
        (interval.latency_s.high / summary.latency_s.0, busy_fraction)
    };
    let (few, many) = (rounds(2), rounds(50));
    assert!((few.0 / many.0 - 1.0).abs() < 1e-2, "{few:?} {many:?}");
    assert!((few.1 / many.1 - 1.0).abs() < 2e-2, "{few:?} {many:?}");
}

#[test]
fn weights_of_a_size_that_was_not_measured_are_named() {
    let mut profile = unprofiled();
    for gemm in &mut profile.compute.gemm {
        (gemm.n, gemm.k) = (Some(64), Some(64));
    }
    let summary = predicted(&profile);
    let mut found = summary.extrapolates.iter();
    let found = found.find(|e| e.curve == "compute.gemm.f16.weights");
    let found = found.expect("the model's weights are larger");
    assert_eq!((found.known.low, found.known.high), (4096.0, 4096.0));
    assert_eq!(found.unit, SizeUnit::Elements);
}

/// A link that is stated to be faster than the memory it reads from: nobody copies so fast, unless that was measured there.
#[test]
fn what_a_hosts_memory_does_not_give_is_said() {
    let drawing = |link: f64, shared: bool| {
        let mut profile = unprofiled();
        profile.links.h2d.page_locked =
            Curve::new(vec![(1.0, link)], "cost-model", None).expect("a curve");
        let gives = &mut profile.tiers.host_bandwidth;
        gives.value = BytesPerSecond(10e9);
        let gives = gives.clone();
        profile.tiers.host_shared = shared.then_some(gives);
        profile
    };
    assert_eq!(predicted(&drawing(9e9, false)).host_overdraw, None);
    for (shared, number) in [(false, "tiers.host_bandwidth"), (true, "tiers.host_shared")] {
        let profile = drawing(20e9, shared);
        let summary = predicted(&profile);
        let found = summary.host_overdraw.expect("twice as fast");
        assert_eq!(
            (found.number.as_str(), found.gives_bytes_per_s.0),
            (number, 10e9)
        );
        // The link is not busy all the time, and small copies have a fixed time.
        let busy = 2.0 * summary.busy_fraction.h2d;
        let times = found.times();
        assert!(0.8 * busy < times && times <= busy, "{times}, busy {busy}");
        let mut measured = profile;
        for source in measured.sources.values_mut() {
            source.kind = SourceKind::Measured;
        }
        assert_eq!(predicted(&measured).host_overdraw, None);
    }
}
