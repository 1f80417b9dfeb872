//! Split linear layers in modelled time (HeteGen): the law's share is the best one, and each part of the scheme
//! is worth something.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Curve, HardwareProfile, embedded};
use plimsoll_core::lower::footprint;
use plimsoll_core::machine::ResourceKind;
use plimsoll_core::model::{ModelSpec, registry};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::program::{Gemm, Gemms, HostPages, Op, Stage};
use plimsoll_core::split::law::{Rates, Times};
use plimsoll_core::split::{Breakdown, Module, PerModule, Route, SplitLinears};
use plimsoll_core::term::Term;
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};
use plimsoll_core::workload::Workload;
use plimsoll_sim::cost::CostModel;
use plimsoll_sim::{predict, simulate};

const LAYERS: u32 = 6;

fn model() -> ModelSpec {
    ModelSpec {
        num_hidden_layers: LAYERS,
        ..registry::find("opt-6.7b").expect("registered")
    }
}

fn plan(split: SplitLinears) -> Plan {
    let policy = Policy {
        barrier: false,
        page_locked: PageLocked {
            weights: false,
            ..PageLocked::ALL
        },
        split: Some(split),
        ..Policy::from_percent(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]).expect("a policy")
    };
    let plan = Plan::given(
        model(),
        Dtype::F16,
        Workload {
            prompt_len: 32,
            gen_len: 6,
            num_prompts: Some(1),
        },
        policy,
    );
    plan.with_room().expect("a policy")
}

/// Nothing but rates: what the law speaks of.
fn rates_alone() -> HardwareProfile {
    let profile = embedded::profile("a10").expect("embedded");
    profile
        .without(&[Term::FixedCosts, Term::Contention])
        .expect("terms")
}

/// Seconds a token after the first.
fn per_token(split: SplitLinears, profile: &HardwareProfile) -> f64 {
    let summary = predict(&plan(split), profile).expect("it runs");
    summary.decode_s.expect("tokens").0 / 5.0
}

/// What the law says of a module on a machine, by the cost function's own times.
fn law(profile: &HardwareProfile) -> Times {
    let cost = CostModel::new(profile, Dtype::F16);
    let (n, k) = (4096_u32, 4096);
    let product = Op::Linear {
        stage: Stage::Part,
        m: 1,
        gemms: Gemms::new(&[Gemm { n, k }]),
        position: 1,
        reused: false,
        compressed: false,
        packed_elements: 0,
    };
    let bytes = Bytes(u64::from(n) * u64::from(k) * 2);
    let moved = Op::Move {
        bytes,
        from: Bytes::ZERO,
        to: Bytes::ZERO,
        host: HostPages::Locked,
    };
    Times {
        cpu: cost.seconds(ResourceKind::Cpu, &product).0,
        device: cost.seconds(ResourceKind::Gpu, &product).0,
        pin: cost.seconds(ResourceKind::Pin, &moved).0,
        transfer: cost.seconds(ResourceKind::H2d, &moved).0,
    }
}

#[test]
fn the_laws_share_is_the_best_of_a_sweep() {
    let profile = rates_alone();
    let share = law(&profile).share();
    let rates = Rates {
        cpu: 65.1,
        device: 600.0,
        link: 23.94,
    };
    assert!((share - rates.share()).abs() < 0.01, "{share}");
    let sweep = (1..50).map(|step| f64::from(step) * 0.02);
    let time = |share: &f64| per_token(SplitLinears::even(*share), &profile);
    let best = sweep.min_by(|a, b| time(a).total_cmp(&time(b)));
    let best = best.expect("shares");
    assert!((best - share).abs() <= 0.04, "best {best}, by law {share}");
    let loss = time(&share) / time(&best);
    assert!(loss < 1.03, "{loss}: best {best}, by law {share}");
}

#[test]
fn the_split_beats_moving_everything_by_what_the_law_says() {
    let profile = rates_alone();
    let share = law(&profile).share();
    let split = per_token(SplitLinears::even(share), &profile);
    let moved = per_token(SplitLinears::even(1.0), &profile);
    let computed = per_token(SplitLinears::even(0.0), &profile);
    assert!(
        (moved / split * share - 1.0).abs() < 0.1,
        "{}",
        moved / split
    );
    assert!(
        (computed / split * (1.0 - share) - 1.0).abs() < 0.1,
        "{}",
        computed / split
    );
}

#[test]
fn the_cpu_and_the_link_are_busy_at_the_laws_share() {
    let profile = embedded::profile("a10").expect("embedded");
    let share = law(&rates_alone()).share();
    let plan = plan(SplitLinears::even(share));
    let run = simulate(&plan, &profile).expect("it verifies and runs");
    for module in [Module::Q, Module::Up, Module::Down] {
        let busy = Breakdown::of(&run, module).expect("tokens came");
        println!("{}: {busy:?}", module.name());
        for share in [busy.cpu, busy.link] {
            assert!(
                (0.9..=1.0 + 1e-9).contains(&share),
                "{}: {busy:?}",
                module.name()
            );
        }
        // Most of it launches: of each part of the rows that come.
        assert!(busy.device < 0.3, "{}: {busy:?}", module.name());
    }
    // Attention's output is alone in its step: nothing is page-locked ahead of it, so that is what it waits for.
    let busy = Breakdown::of(&run, Module::O).expect("tokens came");
    assert!(busy.cpu > 0.9 && busy.pin > 0.9, "{busy:?}");
}

#[test]
fn each_part_of_the_scheme_is_worth_something() {
    let profile = embedded::profile("a10").expect("embedded");
    let share = law(&profile).share();
    let all = SplitLinears::even(share);
    let time = |split| per_token(split, &profile);
    let whole = time(all);
    for (what, split) in [
        (
            "blocks",
            SplitLinears {
                route: Route::Blocking,
                ..all
            },
        ),
        (
            "pageable",
            SplitLinears {
                route: Route::Direct,
                ..all
            },
        ),
        (
            "not handed on",
            SplitLinears {
                hands_on: false,
                ..all
            },
        ),
        (
            "half the share",
            SplitLinears {
                share: PerModule::from_fn(|_| share / 2.0),
                ..all
            },
        ),
        (
            "twice the share",
            SplitLinears {
                share: PerModule::from_fn(|_| share * 2.0),
                ..all
            },
        ),
    ] {
        let slower = time(split) / whole;
        println!("{what}: {slower:.3}");
        assert!(slower > 1.005, "{what}: {slower}");
    }
    let mut scheduled = all;
    scheduled.layers_on_device[Module::Up] = LAYERS;
    assert!(time(scheduled) < 0.8 * whole);
}

#[test]
fn the_cpus_products_are_bound_by_arithmetic_or_by_memory() {
    let mut profile = rates_alone();
    let op = |m, compressed| Op::Linear {
        stage: Stage::Part,
        m,
        gemms: Gemms::new(&[Gemm { n: 4096, k: 4096 }]),
        position: 1,
        reused: false,
        compressed,
        packed_elements: 0,
    };
    let seconds = |profile: &HardwareProfile, op: &Op| {
        let cost = CostModel::new(profile, Dtype::F16);
        cost.seconds(ResourceKind::Cpu, op).0
    };
    let weights = 4096.0 * 4096.0 * 2.0;
    let one = seconds(&profile, &op(1, false));
    assert!((one - weights / 65.1e9).abs() < 1e-3 * one, "{one}");
    // Without a curve host memory bounds it, by what is stored.
    profile.compute.cpu_gemm.clear();
    profile.tiers.host_bandwidth.value = BytesPerSecond(100e9);
    let activations = 2.0 * 4096.0 * 4.0;
    let whole = seconds(&profile, &op(1, false));
    assert!((whole - (weights + activations) / 100e9).abs() < 1e-9);
    let packed = seconds(&profile, &op(1, true));
    let stored = 4096.0 / 64.0 * 4096.0 * 36.0;
    assert!(
        (packed - (stored + activations) / 100e9).abs() < 1e-9,
        "{packed}"
    );
}

#[test]
fn pinning_slower_than_the_link_decides_the_share() {
    let mut profile = rates_alone();
    profile.links.page_lock = Some(Curve::new(vec![(1.0, 10e9)], "slow", None).expect("a curve"));
    profile
        .sources
        .insert("slow".to_owned(), profile.sources["hetegen-pin"].clone());
    let times = law(&profile);
    assert!(times.pin > times.transfer);
    let share = times.share();
    let time = |share: f64| Seconds(per_token(SplitLinears::even(share), &profile));
    let at_transfer = Times { pin: 0.0, ..times }.share();
    assert!(time(share).0 < 0.8 * time(at_transfer).0);
}

/// A machine whose CPU takes all of its host's memory, and page-locking too.
fn short_of_memory() -> HardwareProfile {
    let mut profile = rates_alone();
    let rate = &mut profile.tiers.host_bandwidth;
    rate.value = BytesPerSecond(60e9);
    profile.tiers.host_shared = Some(rate.clone());
    profile.compute.cpu_gemm.clear();
    profile.links.page_lock = None;
    profile.validate().expect("a machine");
    profile
}

/// Bytes through the host's memory, over the time of a run.
fn traffic_per_second(plan: &Plan, profile: &HardwareProfile) -> f64 {
    let run = simulate(plan, profile).expect("it runs");
    let cost = CostModel::of_plan(profile, plan);
    let traffic = run.tasks().map(|(_, op, resource, _)| {
        let on = run.machine.resources[resource];
        cost.host_traffic(on, op)
    });
    traffic.sum::<f64>() / run.trace.makespan().0
}

#[test]
fn what_a_host_shares_is_not_given_twice() {
    let shared = short_of_memory();
    let mut unshared = shared.clone();
    unshared.tiers.host_shared = None;
    let split = SplitLinears::even(0.3);
    let direct = SplitLinears {
        route: Route::Direct,
        ..split
    };
    for split in [split, direct] {
        let mut plan = plan(split);
        plan.policy.page_locked = PageLocked::ALL;
        plan.capacity_bytes = footprint(&plan).expect("a policy");
        let [with, without] = [&shared, &unshared].map(|it| traffic_per_second(&plan, it));
        println!(
            "{:?}: {with:.3e} of 60e9 B/s, {without:.3e} where nothing is shared",
            split.route
        );
        assert!(with <= 60e9 * (1.0 + 1e-9), "{with}");
        assert!(with < without, "{with}");
    }
    let through_buffers = traffic_per_second(&plan(split), &shared);
    assert!(through_buffers > 0.95 * 60e9, "{through_buffers}");
    let off = shared.without(&[Term::Contention]).expect("a term");
    assert_eq!(off.tiers.host_shared, None);
}

#[test]
fn a_host_that_has_enough_slows_nobody() {
    let mut profile = rates_alone();
    let before = predict(&plan(SplitLinears::even(0.3)), &profile).expect("it runs");
    let mut all = profile.tiers.host_bandwidth.clone();
    all.value = BytesPerSecond(1e12);
    profile.tiers.host_shared = Some(all);
    let with = predict(&plan(SplitLinears::even(0.3)), &profile).expect("it runs");
    assert_eq!(with.latency_s, before.latency_s);
}
