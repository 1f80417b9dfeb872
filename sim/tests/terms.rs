//! Terms of the cost model, switched off one by one.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Curve, HardwareProfile, embedded};
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{AttentionPart, Gemm, Gemms, HostPages, Op, ResourceKind, Stage};
use plimsoll_core::term::Term;
use plimsoll_core::units::Bytes;
use plimsoll_sim::CostModel;

fn t4() -> HardwareProfile {
    embedded::profile("t4").expect("embedded")
}

fn copy(page_locked: bool) -> Op {
    Op::Move {
        bytes: Bytes(1 << 24),
        from: Bytes(0),
        to: Bytes(0),
        host: HostPages::of(page_locked),
    }
}

fn products(m: u32, compressed: bool) -> Op {
    Op::Linear {
        stage: Stage::Finish,
        m,
        gemms: Gemms::new(&[Gemm { n: 7168, k: 7168 }]),
        position: 0,
        reused: false,
        compressed,
        packed_elements: 0,
    }
}

fn attention() -> Op {
    Op::Attention {
        part: AttentionPart::Whole,
        value_len: 528,
        rows: 512,
        group: 1,
        head_dim: 128,
        query_len: 1,
        context_len: 528,
        seen_len: 528,
        element_bytes: 2,
        compressed: false,
    }
}

/// One task that each term of the cost model bears on.
fn tasks() -> [(Term, ResourceKind, Op); 6] {
    use ResourceKind::{Cpu, DiskRead, Gpu, H2d};
    [
        (Term::DiskRate, DiskRead, copy(true)),
        (Term::DeviceMemory, Gpu, products(4, false)),
        (Term::PageableMemory, H2d, copy(false)),
        (Term::Unpacking, Gpu, products(512, true)),
        (Term::CpuAttention, Cpu, attention()),
        (Term::FixedCosts, Gpu, products(512, false)),
    ]
}

#[test]
fn each_term_bears_on_its_own_tasks_and_no_others() {
    let whole = CostModel::new(&t4(), Dtype::F16);
    for term in Term::ALL {
        let without = t4().without(&[term]).expect("the t4 states all");
        let without = CostModel::new(&without, Dtype::F16);
        for (of, on, op) in tasks() {
            let (before, after) = (whole.seconds(on, &op).0, without.seconds(on, &op).0);
            assert!(after.is_finite() && after >= 0.0);
            match term {
                // The nominal rate is below the effective one.
                Term::DiskRate if of == term => assert!(after > before),
                _ if of == term => assert!(after < before, "{} is still there", term.name()),
                // Everything has a fixed cost.
                Term::FixedCosts => assert!(after < before),
                _ => assert_eq!(after, before, "{} on {op:?}", term.name()),
            }
        }
    }
}

/// The same bytes are computed with by more heads.
#[test]
fn heads_that_share_a_key_head_take_their_rate() {
    let mut profile = t4();
    let source = profile.compute.cpu_attention.source.clone();
    let left = |eight: f64| Curve::new(vec![(1.0, 1.0), (8.0, eight)], source.clone(), None).ok();
    profile.compute.attention_decode_shared = left(0.5);
    profile.compute.cpu_attention_shared = left(0.25);
    profile.validate().expect("numbers");
    let of = |profile: &HardwareProfile, on, wanted: u32| {
        let mut op = attention();
        if let Op::Attention { group, .. } = &mut op {
            *group = wanted;
        }
        let cost = CostModel::new(profile, Dtype::F16);
        let mut rated = 0.0;
        let number = ["compute.attention_decode", "compute.cpu_attention"];
        cost.parts(on, &op, &mut |part| {
            rated += if number.contains(&part.number) {
                part.seconds.0
            } else {
                0.0
            };
        });
        rated
    };
    for (on, eight) in [(ResourceKind::Gpu, 0.5), (ResourceKind::Cpu, 0.25)] {
        let alone = of(&t4(), on, 1);
        let expected = [(1, 1.0), (8, 1.0 / eight), (64, 1.0 / eight)];
        for (group, times) in expected {
            let found = of(&profile, on, group) / alone;
            assert!((found / times - 1.0).abs() < 1e-9, "{group}: {found}");
        }
        let some = of(&profile, on, 4) / alone;
        assert!(some > 1.0 && some < 1.0 / eight, "{some}");
        // Nobody knows.
        assert_eq!(of(&t4(), on, 8), alone);
    }
}

/// Halves of a layer's end take what the whole takes and a launch more; a copy of the cache, and what is left of attention,
/// take what attention takes.
#[test]
fn parts_of_a_task_add_up_to_the_whole() {
    let cost = CostModel::new(&t4(), Dtype::F16);
    let linear = |stage, sizes: &[u32]| {
        let gemms: Vec<Gemm> = sizes.iter().map(|n| Gemm { n: *n, k: 7168 }).collect();
        let op = Op::Linear {
            stage,
            m: 48,
            gemms: Gemms::new(&gemms),
            position: 0,
            reused: false,
            compressed: false,
            packed_elements: 0,
        };
        cost.seconds(ResourceKind::Gpu, &op).0
    };
    let halves = linear(Stage::Output, &[7168]) + linear(Stage::Mlp, &[28672]);
    let whole = linear(Stage::Finish, &[7168, 28672]);
    let launch = t4().compute.launch.value.0;
    assert!(((halves - launch) / whole - 1.0).abs() < 1e-12);
    let copied = match attention() {
        Op::Attention {
            rows,
            group,
            head_dim,
            query_len,
            context_len,
            seen_len,
            value_len,
            element_bytes,
            compressed,
            ..
        } => Op::Attention {
            part: AttentionPart::Copied,
            rows,
            group,
            head_dim,
            query_len,
            context_len,
            seen_len,
            value_len,
            element_bytes,
            compressed,
        },
        other => other,
    };
    let copy = Op::Move {
        bytes: attention().cache_bytes().expect("an attention"),
        from: Bytes(0),
        to: Bytes(0),
        host: HostPages::Pageable,
    };
    let cpu = |op: &Op| cost.seconds(ResourceKind::Cpu, op).0;
    assert!(((cpu(&copied) + cpu(&copy)) / cpu(&attention()) - 1.0).abs() < 1e-12);
}

#[test]
fn terms_of_the_policy_are_off_in_it() {
    let mut policy = Policy::from_percent(1, 1, [100.0, 0.0, 0.0, 100.0, 100.0, 0.0]).expect("one");
    policy.cpu_attention = true;
    assert!(policy.halves_layers() && policy.copies_cache());
    Term::HalfLayers.off_in(&mut policy);
    assert!(!policy.halves_layers() && policy.copies_cache());
    Term::CacheWorkspace.off_in(&mut policy);
    assert!(!policy.copies_cache());
}

#[test]
fn what_is_off_is_gone() {
    let t4 = t4();
    assert!(t4.residuals.is_some() && !t4.contention.is_empty());
    let off = t4.without(&Term::ALL).expect("the t4 states all");
    assert_eq!(off.residuals, None);
    assert!(off.contention.is_empty());
    assert_eq!(t4.without(&[]).expect("nothing is asked"), t4);
}

#[test]
fn a_disk_without_a_nominal_rate_says_so() {
    let a10 = embedded::profile("a10").expect("embedded");
    let error = a10.without(&[Term::DiskRate]).expect_err("none is stated");
    assert_eq!(error.key, "links.disk_read.nominal_bytes_per_s");
}

#[test]
fn parts_are_of_the_numbers_that_a_task_needs() {
    let cost = CostModel::new(&t4(), Dtype::F16);
    for (_, on, op) in tasks() {
        let mut numbers = Vec::new();
        let mut all = 0.0;
        cost.parts(on, &op, &mut |part| {
            numbers.push(part.number);
            all += part.seconds.0;
        });
        assert_eq!(all, cost.seconds(on, &op).0, "{op:?}");
        let wanted: &[&str] = match (on, &op) {
            (ResourceKind::DiskRead, _) => &["links.disk_read.latency", "links.disk_read"],
            (ResourceKind::H2d, _) => &["links.h2d.latency", "links.h2d.pageable"],
            (ResourceKind::Cpu, _) => &["compute.cpu_launch", "compute.cpu_attention"],
            (_, Op::Linear { m: 4, .. }) => &["tiers.device_bandwidth", "compute.launch"],
            (_, Op::Linear { compressed, .. }) if *compressed => {
                &["compute.gemm.f16", "compute.launch", "compute.unpack"]
            }
            _ => &["compute.gemm.f16", "compute.launch"],
        };
        assert_eq!(numbers, wanted, "{op:?}");
    }
}
