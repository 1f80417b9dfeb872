//! Hardware profiles: those that ship, inheritance, messages, curves, what-if.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{
    CopyLink, Curve, CurveError, DeviceKind, GemmCurve, HardwareProfile, Inflections, LinkPace,
    LinkSlowness, Links, PeerLink, ProductCurves, ProfileError, Quantity, Residuals, Slowness,
    SourceKind, WeightRead, embedded,
};
use plimsoll_core::program::ResourceKind;
use plimsoll_core::term::Term;
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};
use proptest::prelude::*;

const MINIMAL: &str = r#"
name = "mini"
kind = "emulated"
[sources.lab]
kind = "measured"
from = "a test"
date = "2026-11"
[tiers]
device_capacity_bytes = { value = 1000, source = "lab" }
host_capacity_bytes = { value = 2e3, source = "lab", spread = 0.01 }
disk_capacity_bytes = { value = 3000, source = "lab" }
device_reserved_bytes = { value = 0, source = "lab" }
host_reserved_bytes = { value = 0, source = "lab" }
device_bandwidth_bytes_per_s = { value = 1e9, source = "lab" }
host_bandwidth_bytes_per_s = { value = 1e9, source = "lab" }
[links.h2d]
latency_s = { value = 1e-6, source = "lab" }
page_locked_bytes_per_s = { points = [[4096, 1e9], [1048576, 10e9]], source = "lab" }
[links.d2h]
latency_s = { value = 1e-6, source = "lab" }
page_locked_bytes_per_s = { points = [[4096, 1e9]], source = "lab" }
[links.disk_read]
latency_s = { value = 0, source = "lab" }
bytes_per_s = { points = [[4096, 1e9]], source = "lab" }
[links.disk_write]
latency_s = { value = 0, source = "lab" }
bytes_per_s = { points = [[4096, 1e9]], source = "lab" }
[compute]
launch_s = { value = 1e-6, source = "lab" }
barrier_s = { value = 1e-6, source = "lab" }
attention_prefill_flops_per_s = { points = [[512, 1e12]], source = "lab" }
attention_decode_bytes_per_s = { points = [[4096, 1e9]], source = "lab" }
cpu_launch_s = { value = 1e-6, source = "lab" }
cpu_attention_bytes_per_s = { points = [[4096, 1e9]], source = "lab" }
[[compute.gemm]]
dtype = "f32"
flops_per_s = { points = [[1, 1e11]], source = "lab" }
[[contention]]
victim = "h2d"
beside = "d2h"
rate = { value = 0.6, source = "lab" }
[[contention]]
victim = "d2h"
beside = "h2d"
rate = { value = 0.8, source = "lab" }
"#;

fn parents(name: &str) -> Result<String, ProfileError> {
    match name {
        "mini" => Ok(MINIMAL.to_owned()),
        "ping" => Ok("extends = \"pong\"\n".to_owned()),
        "pong" => Ok("extends = \"ping\"\n".to_owned()),
        "bare" => Ok("[sources]\n".to_owned()),
        "spoilt" => Ok(MINIMAL.replace("barrier_s", "barier_s")),
        _ => Err(ProfileError::no_such_profile(name, ["mini", "spoilt"])),
    }
}

fn parse(text: &str) -> Result<HardwareProfile, ProfileError> {
    HardwareProfile::parse(text, "x.toml", &parents)
}

fn mini() -> HardwareProfile {
    parse(MINIMAL).unwrap()
}

/// `MINIMAL` with one replacement fails at `key`, and the message holds `words`.
#[track_caller]
fn refuses(from: &str, to: &str, key: &str, words: &[&str]) {
    assert!(MINIMAL.contains(from), "{from} is not in the text");
    refuses_text(&MINIMAL.replacen(from, to, 1), "x.toml", key, words);
}

#[track_caller]
fn refuses_text(text: &str, origin: &str, key: &str, words: &[&str]) {
    let error = parse(text).expect_err("the text should be refused");
    assert_eq!(
        (error.origin.as_str(), error.key.as_str()),
        (origin, key),
        "{error}"
    );
    assert!(!error.remedy.is_empty());
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    assert!(line.starts_with(&format!("{origin}: {key}: ")), "{line}");
    for word in words {
        assert!(line.contains(word), "`{word}` is not in: {line}");
    }
}

#[test]
fn every_profile_that_ships_is_valid_and_reads_back() {
    let names: Vec<&str> = embedded::names().collect();
    assert!(names.is_sorted());
    for name in names {
        let profile = embedded::profile(name).unwrap();
        assert_eq!(profile.name, name);
        assert!(!profile.description.is_empty(), "{name}");
        profile.validate().unwrap();
        let text = profile.to_toml();
        assert_eq!(parse(&text).unwrap(), profile, "{name}");
        assert!(profile.tiers.device_bandwidth.value.0 > profile.tiers.host_bandwidth.value.0);
    }
}

#[test]
fn the_t4_is_flexgens_machine() {
    let t4 = embedded::profile("t4").unwrap();
    assert_eq!(t4.kind, DeviceKind::Gpu);
    assert_eq!(t4.tiers.device_capacity_bytes.value, Bytes(16_000_000_000));
    assert_eq!(t4.tiers.host_capacity_bytes.value, Bytes(208 << 30));
    let disk = &t4.links.disk_read.rate;
    assert!(disk.at(1e8) > 1.6e9, "read as FlexGen reads it, not as dd");
    assert_eq!(t4.sources[&disk.source].kind, SourceKind::Fitted);
    // 0.3 ms a layer and GPU batch, in four tasks.
    assert_eq!(t4.compute.launch.value, Seconds(0.075e-3));
    let launch = &t4.sources[&t4.compute.launch.source];
    assert_eq!(launch.kind, SourceKind::Fitted);
    let direct = embedded::profile("t4-direct").unwrap();
    assert_eq!(direct.links.disk_read.rate.at(1e8), 1.6e9);
    assert_eq!(direct.links.disk_write, t4.links.disk_write);
    assert_eq!(direct.tiers, t4.tiers);
}

#[test]
fn unknown_embedded_names_suggest_the_nearest() {
    let error = embedded::profile("rtx309").unwrap_err();
    assert!(error.to_string().contains("did you mean `rtx3090`?"));
    assert!(embedded::text("nothing").is_none());
}

#[test]
fn round_trip_keeps_what_is_left_where_heads_share() {
    let mut profile = embedded::profile("t4").unwrap();
    let source = profile.compute.launch.source.clone();
    let left = |eight: f64| Curve::new(vec![(1.0, 1.0), (8.0, eight)], source.clone(), None).ok();
    profile.compute.attention_decode_shared = left(0.6);
    profile.compute.cpu_attention_shared = left(0.5);
    let read = parse(&profile.to_toml()).unwrap();
    assert_eq!(read, profile);
}

#[test]
fn round_trip_keeps_every_optional_part() {
    let mut profile = mini();
    let odd = vec![(1.0, 1e9 * (0.1 + 0.2))];
    profile.links.page_lock = Some(Curve::new(odd, "lab", Some(0.3)).unwrap());
    profile.links.h2d.pageable = Some(profile.links.d2h.page_locked.clone());
    profile.links.h2d.relayed = profile.links.h2d.pageable.clone();
    profile.links.peers = vec![PeerLink {
        from: 0,
        to: 1,
        latency: Quantity::new(Seconds(1e-6), "lab").with_spread(0.02),
        rate: profile.links.d2h.page_locked.clone(),
    }];
    profile.compute.joined_rows = Some(Quantity::new(16, "lab"));
    profile.cluster = Some(plimsoll_core::hardware::Cluster {
        hosts: Quantity::new(2, "lab"),
        gpus_per_host: Quantity::new(3, "lab"),
    });
    profile.compute.handoff = Some(Quantity::new(Seconds(0.0), "lab"));
    profile.compute.stream_handoff = Some(Quantity::new(Seconds(2e-6), "lab"));
    profile.compute.cpu_copy_share = Some(Quantity::new(0.25, "lab"));
    profile.compute.device_threads = Some(Quantity::new(12, "lab"));
    profile.compute.cpu_attention_prefill = Some(profile.compute.attention_prefill.clone());
    profile.compute.cpu_gemm = profile.compute.gemm.clone();
    profile.compute.part_launch = Some(profile.compute.launch.clone());
    profile.compute.embed = Some(Quantity::new(Seconds(2e-5), "lab").with_spread(0.1));
    profile.links.staged_ahead = Some(Quantity::new(Bytes(2_000_000), "lab"));
    profile.compute.pack = Some(profile.compute.attention_prefill.clone());
    profile.links.h2d.pace = Some(LinkPace {
        page_locked: Quantity::new(Seconds(3e-4), "lab").with_spread(0.1),
        pageable: Quantity::new(Seconds(2e-3), "lab"),
    });
    profile.links.disk_read_pace = Some(Quantity::new(Seconds(0.03), "lab").with_spread(0.1));
    let rate = |points: &[(f64, f64)]| Curve::new(points.to_vec(), "lab", Some(0.1)).unwrap();
    profile.compute.products = vec![ProductCurves {
        dtype: Dtype::Bf16,
        n: 96,
        k: 64,
        packed: true,
        biased: false,
        gemv: rate(&[(1.0, 5e9)]),
        flat: None,
        conventional: rate(&[(6.0, 9e9), (128.0, 1e10)]),
    }];
    // The same with a bias is another.
    let mut biased = profile.compute.products[0].clone();
    biased.biased = true;
    profile.compute.products.push(biased);
    let read = |dtype, points: &[(f64, f64)]| WeightRead {
        dtype,
        rate: rate(points),
    };
    profile.compute.weight_read = vec![
        read(Dtype::F16, &[(2e8, 20e9), (8e8, 13e9)]),
        read(Dtype::F32, &[(2e8, 25e9)]),
    ];
    profile.compute.gemm[0].n = Some(4096);
    profile.compute.gemm[0].k = Some(1024);
    profile.compute.gemm[0].stage = Some(plimsoll_core::program::Stage::Finish);
    profile.links.disk_read.nominal = Some(Quantity::new(BytesPerSecond(2e9), "lab"));
    profile.residuals = Some(Residuals {
        median_log_error: 0.01,
        p05_log_error: -0.2,
        p95_log_error: 0.1,
        runs: 7,
        source: "lab".to_owned(),
        of: Some("another".to_owned()),
    });
    profile.validate().unwrap();
    assert_eq!(parse(&profile.to_toml()).unwrap(), profile);
}

#[test]
fn what_a_host_shares_is_no_less_than_its_cpu_reads() {
    let mut profile = mini();
    profile.tiers.host_shared = Some(Quantity::new(BytesPerSecond(2e9), "lab"));
    profile.validate().unwrap();
    assert_eq!(parse(&profile.to_toml()).unwrap(), profile);
    profile.tiers.host_bandwidth.value = BytesPerSecond(3e9);
    let line = profile.validate().unwrap_err().to_string();
    assert!(line.contains("the CPU alone reads 3.00 GB/s"), "{line}");
}

#[test]
fn a_data_sheet_does_not_know_how_fast_a_cpu_multiplies() {
    let known = |name: &str| embedded::profile(name).unwrap().knows_cpu_products();
    assert!(known("a10"));
    for name in ["t4", "rtx4090", "gh200"] {
        let profile = embedded::profile(name).unwrap();
        assert!(!profile.compute.cpu_gemm.is_empty(), "{name}");
        assert!(!profile.knows_cpu_products(), "{name}");
    }
    assert!(!mini().knows_cpu_products());
}

#[test]
fn a_device_has_one_thread_unless_its_profile_says_more() {
    assert_eq!(mini().device_threads(), 1);
    let launch = "launch_s = { value = 1e-6";
    let with = |count: &str| {
        let threads = format!("device_threads = {{ value = {count}, source = \"lab\" }}");
        format!("{threads}\n{launch}")
    };
    let twelve = MINIMAL.replacen(launch, &with("12"), 1);
    assert_eq!(parse(&twelve).unwrap().device_threads(), 12);
    let key = "compute.device_threads";
    refuses(launch, &with("0"), key, &["1 or more"]);
    refuses(launch, &with("1.5"), key, &["whole number"]);
    refuses(launch, &with("5000"), key, &["write 1024 at most"]);
    let of_gpu = twelve.replacen("\"emulated\"", "\"gpu\"", 1);
    refuses_text(&of_gpu, "x.toml", key, &["kind is gpu", "leave it out"]);
}

#[test]
fn a_child_states_only_differences() {
    let child = parse(
        "name = \"child\"\nextends = \"mini\"\n[tiers]\n\
         host_capacity_bytes = { value = 9000, source = \"lab\" }\n\
         [links.h2d]\npage_locked_bytes_per_s = { points = [[1, 7e9]], source = \"lab\" }\n",
    )
    .unwrap();
    let mut expected = mini();
    expected.name = "child".to_owned();
    // A number is replaced whole: the parent's spread does not describe the child's value.
    expected.tiers.host_capacity_bytes = Quantity::new(Bytes(9000), "lab");
    expected.links.h2d.page_locked = Curve::new(vec![(1.0, 7e9)], "lab", None).unwrap();
    assert_eq!(child, expected);
    assert_eq!(mini().tiers.host_capacity_bytes.spread, Some(0.01));
}

#[test]
fn errors_of_runs_on_a_parent_say_whose_they_are() {
    let of = |profile: &HardwareProfile| profile.residuals.as_ref().expect("some").of.clone();
    let parent = embedded::profile("t4").expect("embedded");
    assert_eq!(of(&parent), None);
    let child = "name = \"child\"\nextends = \"t4\"\n";
    let child = HardwareProfile::parse(child, "child.toml", &embedded::parent).expect("a profile");
    assert_eq!(of(&child).as_deref(), Some("t4"));
    let own = child.to_toml().replace("of = \"t4\"\n", "");
    assert_eq!(of(&parse(&own).expect("a profile")), None);
}

/// What a larger host allows says nothing of a smaller one, whether a child has it or somebody asks what if.
#[test]
fn a_smaller_host_does_not_inherit_what_may_be_page_locked() {
    let parent = embedded::profile("t4").expect("embedded");
    let lockable = |profile: &HardwareProfile| profile.tiers.page_lockable_bytes.is_some();
    for (gb, known) in [(223, true), (65, true), (64, false), (32, false)] {
        let text = format!(
            "name = \"child\"\nextends = \"t4\"\n[sources.mine]\nkind = \"datasheet\"\nfrom = \"its box\"\ndate = \"2026\"\n\
             [tiers]\nhost_capacity_bytes = {{ value = {gb}e9, source = \"mine\" }}\n"
        );
        let child = HardwareProfile::parse(&text, "child.toml", &embedded::parent);
        assert_eq!(lockable(&child.expect("a profile")), known, "{gb} GB");
        let asked = parent.with_capacities(None, Some(Bytes(gb * 1_000_000_000)), None);
        assert_eq!(lockable(&asked), known, "{gb} GB");
    }
    let own = parent
        .to_toml()
        .replace("value = 64000000000", "value = 300000000000");
    assert!(lockable(&parse(&own).expect("a profile")));
}

#[test]
fn a_child_replaces_arrays_and_brings_sources() {
    let child = parse(
        "name = \"child\"\nextends = \"mini\"\ncontention = []\n\
         [sources.mine]\nkind = \"fitted\"\nfrom = \"x\"\ndate = \"2026\"\n\
         [[compute.gemm]]\ndtype = \"f16\"\n\
         flops_per_s = { points = [[1, 2e12]], source = \"mine\" }\n",
    )
    .unwrap();
    assert!(child.contention.is_empty());
    assert_eq!(child.compute.gemm.len(), 1);
    assert_eq!(child.compute.gemm[0].dtype, Dtype::F16);
    assert_eq!(child.sources.len(), 2);
}

#[test]
fn of_two_numbers_that_do_not_go_together_the_childs_is_to_be_mended() {
    let faster = "name = \"mine\"\nextends = \"a10\"\n\
        [sources.lab]\nkind = \"fitted\"\nfrom = \"x\"\ndate = \"2026\"\n\
        [tiers]\nhost_bandwidth_bytes_per_s = { value = 215e9, source = \"lab\" }\n";
    let line = HardwareProfile::parse(faster, "mine.toml", &embedded::parent).unwrap_err();
    let line = line.to_string();
    assert!(
        line.starts_with("mine.toml: tiers.host_bandwidth_bytes_per_s: "),
        "{line}"
    );
}

#[test]
fn inheritance_faults_name_the_file_to_mend() {
    let child = "name = \"child\"\nextends = \"mini\"\n";
    refuses_text("extends = \"mini\"", "x.toml", "name", &["missing"]);
    refuses_text("extends = 3", "x.toml", "extends", &["one profile"]);
    refuses(
        "kind = \"emulated\"\n[sources",
        "[sources",
        "kind",
        &["gpu, emulated"],
    );
    let table = format!("{child}[compute.gemm.f16]\nflops_per_s = 3\n");
    let words = ["[[compute.gemm]]", "dtype", "flops_per_s"];
    refuses_text(&table, "x.toml", "compute.gemm", &words);
    refuses_text(
        "name = \"a\"\nextends = \"minni\"",
        "x.toml",
        "extends",
        &["no profile `minni`", "did you mean `mini`?"],
    );
    refuses_text(
        "name = \"a\"\nextends = \"ping\"",
        "pong.toml",
        "extends",
        &["ping -> pong", "extend nothing"],
    );
    refuses_text(
        "name = \"a\"\nextends = \"a\"",
        "x.toml",
        "extends",
        &["no profile `a`"],
    );
    refuses_text(
        "name = \"a\"\nextends = \"spoilt\"",
        "spoilt.toml",
        "compute.barier_s",
        &["did you mean `barrier_s`?"],
    );
    refuses_text(
        &format!("{child}[sources.lab]\nkind = \"fitted\"\nfrom = \"y\"\ndate = \"2026\"\n"),
        "x.toml",
        "sources.lab",
        &["mini.toml", "another name"],
    );
    refuses_text(
        &format!("{child}[tiers]\nhost_capacity_bytes = {{ value = -1, source = \"lab\" }}\n"),
        "x.toml",
        "tiers.host_capacity_bytes",
        &["-1 is below 0"],
    );
    refuses_text(
        "name = \"a\"\nextends = \"bare\"",
        "x.toml",
        "kind",
        &["missing"],
    );
    refuses_text(
        &format!("{child}[tiers]\nhost_capacity_bytes = {{ value = 5 }}\n"),
        "x.toml",
        "tiers.host_capacity_bytes.source",
        &["missing"],
    );
}

#[test]
fn unknown_keys_suggest_the_nearest() {
    refuses(
        "kind = \"emulated\"",
        "kid = \"emulated\"",
        "kid",
        &["did you mean `kind`?"],
    );
    refuses(
        "[links.h2d]",
        "[links.h2d_]",
        "links.h2d_",
        &["did you mean `h2d`?"],
    );
    refuses(
        "host_reserved_bytes = { value",
        "host_reserved_bytes = { valeu",
        "tiers.host_reserved_bytes.valeu",
        &["did you mean `value`?"],
    );
    refuses(
        "dtype = ",
        "type = ",
        "compute.gemm[0].type",
        &["did you mean `dtype`?"],
    );
    refuses(
        "victim = \"d2h\"",
        "zzz = \"d2h\"",
        "contention[1].zzz",
        &["the keys here are: victim, beside, rate"],
    );
}

#[test]
fn wrong_types_and_words_say_what_to_write() {
    refuses(
        "launch_s = { value = 1e-6, source = \"lab\" }",
        "launch_s = 3",
        "compute.launch_s",
        &["wrong type, integer", "{ value = ..., source"],
    );
    refuses(
        "value = 1000",
        "value = \"1000\"",
        "tiers.device_capacity_bytes.value",
        &["wrong type, string", "write a number"],
    );
    refuses(
        "[[4096, 1e9], [1048576, 10e9]]",
        "[[4096, 1e9], [3]]",
        "links.h2d.page_locked_bytes_per_s.points",
        &["[[size, rate], ...]"],
    );
    refuses(
        "dtype = \"f32\"",
        "dtype = \"f8\"",
        "compute.gemm[0].dtype",
        &["`f8`", "f32, f16, bf16"],
    );
    refuses(
        "dtype = \"f32\"",
        "dtype = \"f32\"\nn = 64\nk = 64\nstage = \"head\"",
        "compute.gemm[0].stage",
        &["`head`", "project, finish"],
    );
    refuses(
        "dtype = \"f32\"",
        "dtype = \"f32\"\nstage = \"project\"",
        "compute.gemm[0].stage",
        &["size", "beside n and k, or leave it out"],
    );
    refuses(
        "beside = \"d2h\"",
        "beside = \"dma\"",
        "contention[0].beside",
        &["`dma`", "disk_read"],
    );
    refuses(
        "kind = \"measured\"",
        "kind = \"assumed\"",
        "sources.lab.kind",
        &["measured, datasheet, fitted, published"],
    );
    refuses("[tiers]", "[tiers", "line 8", &["is not TOML"]);
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (bad, said) in [("0", "is 0"), ("-1", "-1"), ("inf", "inf"), ("nan", "NaN")] {
        let to = format!("device_bandwidth_bytes_per_s = {{ value = {bad}");
        refuses(
            "device_bandwidth_bytes_per_s = { value = 1e9",
            &to,
            "tiers.device_bandwidth_bytes_per_s.value",
            &[said, "above 0"],
        );
    }
    refuses(
        "value = 1000",
        "value = 0",
        "tiers.device_capacity_bytes.value",
        &["is 0", "above 0"],
    );
    for (bad, remedy) in [
        ("inf", "less than 9.2e18"),
        ("1e30", "less than 9.2e18"),
        ("nan", "whole number"),
        ("1000.5", "whole number"),
        ("24", "24 GB is 24e9"),
        ("-4", "how many bytes there are"),
    ] {
        refuses(
            "value = 1000",
            &format!("value = {bad}"),
            "tiers.device_capacity_bytes",
            &[remedy],
        );
    }
    refuses(
        "launch_s = { value = 1e-6",
        "launch_s = { value = -1e-6",
        "compute.launch_s.value",
        &["0 or more"],
    );
    refuses(
        "launch_s = { value = 1e-6",
        "launch_s = { value = 10",
        "compute.launch_s",
        &["is 10 s", "10 us is 10e-6"],
    );
    let in_giga = ["is 7 a second at most", "7 GB/s is 7e9"];
    refuses(
        "device_bandwidth_bytes_per_s = { value = 1e9",
        "device_bandwidth_bytes_per_s = { value = 7",
        "tiers.device_bandwidth_bytes_per_s",
        &in_giga,
    );
    refuses(
        "[[4096, 1e9], [1048576, 10e9]]",
        "[[4096, 2], [1048576, 7]]",
        "links.h2d.page_locked_bytes_per_s",
        &in_giga,
    );
    refuses(
        "spread = 0.01",
        "spread = -0.01",
        "tiers.host_capacity_bytes.spread",
        &["median"],
    );
    refuses(
        "host_reserved_bytes = { value = 0",
        "host_reserved_bytes = { value = 2000",
        "tiers.host_reserved_bytes",
        &["leaves nothing", "tiers.host_capacity_bytes"],
    );
}

#[test]
fn curves_must_ascend_and_be_positive() {
    let key = "links.h2d.page_locked_bytes_per_s.points";
    let good = "[[4096, 1e9], [1048576, 10e9]]";
    refuses(good, "[[9, 1], [9, 2]]", key, &["not ascending", "rising"]);
    refuses(good, "[[9, 1], [8, 2]]", key, &["size 8 at point 1"]);
    refuses(good, "[]", key, &["no points"]);
    refuses(good, "[[9, 0]]", key, &["[9, 0]", "positive"]);
    refuses(good, "[[9, inf]]", key, &["positive and finite"]);
    refuses(good, "[[-9, 1]]", key, &["positive and finite"]);
    assert_eq!(Curve::new(vec![], "lab", None), Err(CurveError::Empty));
}

#[test]
fn contention_and_sources_are_checked() {
    for bad in ["0.0", "1.2", "-0.5", "nan"] {
        refuses(
            "value = 0.8",
            &format!("value = {bad}"),
            "contention[1].rate.value",
            &["at most 1"],
        );
    }
    refuses(
        "beside = \"d2h\"",
        "beside = \"h2d\"",
        "contention[0]",
        &["name two engines"],
    );
    refuses(
        "victim = \"d2h\"\nbeside = \"h2d\"",
        "victim = \"h2d\"\nbeside = \"d2h\"",
        "contention[1]",
        &["twice", "keep one"],
    );
    refuses(
        "rate = { value = 0.8, source = \"lab\" }",
        "rate = { value = 0.8, source = \"lab\" }\nwhile_reading = { value = 0.5, source = \"lab\" }",
        "contention[1].while_reading",
        &["the GPU's reading of weights", "leave it out"],
    );
    refuses(
        "launch_s = { value = 1e-6, source = \"lab\"",
        "launch_s = { value = 1e-6, source = \"laab\"",
        "compute.launch_s.source",
        &["`laab` is not declared", "did you mean `lab`?"],
    );
    refuses(
        "[[1, 1e11]], source = \"lab\"",
        "[[1, 1e11]], source = \"moon\"",
        "compute.gemm[0].flops_per_s.source",
        &["declare [sources.moon]"],
    );
}

/// `MINIMAL` with residuals.
fn with_residuals(text: &str) -> String {
    format!("{MINIMAL}[residuals]\n{text}\n")
}

const RESIDUALS: &str = "median_log_error = 0.0\np05_log_error = -0.2\np95_log_error = 0.1\n\
                         runs = 7\nsource = \"lab\"";

#[test]
fn residuals_are_inherited_whole() {
    let parent = |name: &str| match name {
        "fitted" => Ok(with_residuals(RESIDUALS)),
        _ => parents(name),
    };
    let child = |own: &str| {
        let text = format!("name = \"child\"\nextends = \"fitted\"\n{own}");
        HardwareProfile::parse(&text, "x.toml", &parent)
    };
    let inherited = child("").unwrap().residuals.expect("the parent has some");
    assert_eq!((inherited.p05_log_error, inherited.runs), (-0.2, 7));
    let own = "[residuals]\nmedian_log_error = 0\nruns = 3\nsource = \"lab\"\n";
    let error = child(own).expect_err("quantiles of other runs are no part of these");
    assert_eq!(error.key, "residuals.p05_log_error");
}

#[test]
fn residuals_are_quantiles_of_runs() {
    for (from, to, key, word) in [
        (
            "p05_log_error = -0.2",
            "p05_log_error = 0.05",
            "residuals",
            "not above the median",
        ),
        (
            "p95_log_error = 0.1",
            "p95_log_error = inf",
            "residuals",
            "finite",
        ),
        ("runs = 7", "runs = 1", "residuals.runs", "2 or more"),
        ("runs = 7", "runs = 7.5", "residuals.runs", "whole number"),
        (
            "source = \"lab\"",
            "source = \"lap\"",
            "residuals.source",
            "did you mean `lab`?",
        ),
        ("runs", "rums", "residuals.rums", "did you mean `runs`?"),
    ] {
        let text = with_residuals(&RESIDUALS.replacen(from, to, 1));
        refuses_text(&text, "x.toml", key, &[word]);
    }
}

#[test]
fn every_matrix_product_has_a_rate() {
    let curve = "dtype = \"f32\"";
    refuses(
        curve,
        &format!("{curve}\nreused = true"),
        "compute.gemm",
        &[
            "reused or packed weights only",
            "without `reused` and `packed`",
        ],
    );
    for shape in ["n = 0\nk = 8", "n = 8"] {
        refuses(
            curve,
            &format!("{curve}\n{shape}"),
            "compute.gemm[0]",
            &["n or k", "or neither"],
        );
    }
}

/// FlashDecoding++ section 5: each [N, K] has its own M1 and M2.
const PRODUCTS: &str = r#"
[[compute.products]]
dtype = "f16"
n = 12288
k = 4096
m1 = 2
m2 = 64
gemv_flops_per_s = { points = [[1, 5e9], [2, 5e9], [64, 5e9]], source = "lab" }
flat_flops_per_s = { points = [[1, 4e9], [2, 8e9], [64, 100e9]], source = "lab" }
conventional_flops_per_s = { points = [[1, 1e9], [2, 2e9], [64, 200e9]], source = "lab", spread = 0.1 }
"#;

#[test]
fn a_lookup_table_is_read_with_its_curves() {
    let profile = parse(&format!("{MINIMAL}{PRODUCTS}")).unwrap();
    let product = &profile.compute.products[0];
    assert_eq!((product.n, product.k, product.packed), (12288, 4096, false));
    let points = Inflections {
        m1: Some(2),
        m2: Some(64),
    };
    assert_eq!(product.inflections(), points);
    let text = profile.to_toml();
    assert!(
        text.contains("m1 = 2") && text.contains("m2 = 64"),
        "{text}"
    );
    assert_eq!(parse(&text).unwrap(), profile);
    // Who leaves the points out means what the curves say.
    let without = PRODUCTS.replace("m1 = 2\nm2 = 64\n", "");
    assert_eq!(parse(&format!("{MINIMAL}{without}")).unwrap(), profile);
}

#[test]
fn a_lookup_table_that_is_wrong_is_refused() {
    let table = "compute.products[0]";
    for (from, to, key, word) in [
        ("m1 = 2", "m1 = 4", ".m1", "which is at 2"),
        ("m2 = 64", "m2 = 65", ".m2", "which is at 64"),
        ("m1 = 2", "m3 = 2", ".m3", "did you mean"),
        ("n = 12288", "n = 0", "", "no n or no k"),
        ("n = 12288\n", "", ".n", "is missing"),
        ("[64, 5e9]", "[64.5, 5e9]", ".gemv_flops_per_s", "64.5 rows"),
        (
            "source = \"lab\" }",
            "source = \"lap\" }",
            ".gemv_flops_per_s.source",
            "did you mean `lab`?",
        ),
    ] {
        let text = format!("{MINIMAL}{}", PRODUCTS.replacen(from, to, 1));
        refuses_text(&text, "x.toml", &format!("{table}{key}"), &[word]);
    }
    let gemm = "[[compute.gemm]]\ndtype = \"f32\"\nflops_per_s = { points = [[1, 1e11]], source = \"lab\" }\n";
    let twice = MINIMAL.replacen(gemm, &gemm.repeat(2), 1);
    refuses_text(&twice, "x.toml", "compute.gemm[1]", &["f32", "second time"]);
    let twice = format!("{MINIMAL}{PRODUCTS}{PRODUCTS}");
    refuses_text(&twice, "x.toml", "compute.products[1]", &["second time"]);
}

/// A curve of how fast weights are read for each of two types.
const WEIGHT_READS: &str = r#"
[[compute.weight_read]]
dtype = "f16"
bytes_per_s = { points = [[1e8, 12e9], [8e8, 9e9]], source = "lab", spread = 0.1 }
[[compute.weight_read]]
dtype = "f32"
bytes_per_s = { points = [[1e8, 15e9]], source = "lab" }
"#;

/// What profiles said that knew no types.
const READ_OF_ANY_TYPE: &str =
    "weight_read_bytes_per_s = { points = [[1e8, 7e9]], source = \"lab\" }";

#[test]
fn weights_are_read_at_a_rate_for_each_type() {
    let profile = parse(&format!("{MINIMAL}{WEIGHT_READS}")).unwrap();
    let rate = |profile: &HardwareProfile, dtype| {
        let read = profile.compute.weight_read_of(dtype)?;
        Some(read.rate.at(1e8))
    };
    let rates = |profile: &HardwareProfile| Dtype::ALL.map(|dtype| rate(profile, dtype));
    // Nobody measured bf16, which is widened as f16 is.
    assert_eq!(rates(&profile), [Some(15e9), Some(12e9), Some(12e9)]);
    assert_eq!(parse(&profile.to_toml()).unwrap(), profile);
    let slower = profile.at_pace(&Slowness {
        few_tokens: 2.0,
        many_tokens: 5.0,
        copy: 7.0,
        h2d: LinkSlowness {
            page_locked: 2.0,
            pageable: 3.0,
        },
        d2h: LinkSlowness::NONE,
        disk_read: 3.0,
    });
    assert_eq!(rates(&slower), [Some(7.5e9), Some(6e9), Some(6e9)]);
    let disk = [&slower, &profile].map(|it| it.links.disk_read.rate.at(1e6));
    assert!((3.0 * disk[0] / disk[1] - 1.0).abs() < 1e-12, "{disk:?}");
    let copies = |link: fn(&Links) -> &CopyLink| {
        let rates = [&profile, &slower].map(|it| link(&it.links).page_locked.at(1e6));
        (rates[0] / rates[1]).round()
    };
    assert_eq!((copies(|l| &l.h2d), copies(|l| &l.d2h)), (14.0, 7.0));
    let one = parse(&(MINIMAL.to_owned() + &WEIGHT_READS.replacen("f32", "bf16", 1))).unwrap();
    assert_eq!(rates(&one)[0], None);
}

#[test]
fn a_rate_of_reading_that_is_wrong_is_refused() {
    let key = "compute.weight_read";
    for (from, to, at, word) in [
        ("\"f32\"", "\"f16\"", "[1]", "has f16 for the second time"),
        ("\"f32\"", "\"f64\"", "[1].dtype", "f32, f16, bf16"),
        ("dtype = \"f32\"\n", "", "[1].dtype", "is missing"),
        ("bytes_per_s", "rate", "[0].rate", "dtype, bytes_per_s"),
        ("\"lab\" }", "\"lap\" }", "[1].bytes_per_s.source", "`lab`?"),
    ] {
        let text = format!("{MINIMAL}{}", WEIGHT_READS.replacen(from, to, 1));
        refuses_text(&text, "x.toml", &format!("{key}{at}"), &[word]);
    }
}

#[test]
fn a_rate_of_reading_without_a_type_is_that_of_all() {
    let launch = "cpu_launch_s = ";
    let text = MINIMAL.replacen(launch, &format!("{READ_OF_ANY_TYPE}\n{launch}"), 1);
    let profile = parse(&text).unwrap();
    for dtype in Dtype::ALL {
        let read = profile.compute.weight_read_of(dtype).expect("a curve");
        assert_eq!(read.rate.points(), [(1e8, 7e9)], "{dtype:?}");
    }
    assert_eq!(parse(&profile.to_toml()).unwrap(), profile);
    let key = "compute.weight_read_bytes_per_s";
    let both = format!("{text}{WEIGHT_READS}");
    refuses_text(&both, "x.toml", key, &["for each type", "profile again"]);
    // What a child measured replaces what its parent knew, whichever way each is written.
    let ways = [
        (text.as_str(), WEIGHT_READS.to_owned(), 15e9),
        (
            &(MINIMAL.to_owned() + WEIGHT_READS),
            format!("[compute]\n{READ_OF_ANY_TYPE}\n"),
            7e9,
        ),
    ];
    for (parent, more, rate) in ways {
        let child = format!("name = \"child\"\nextends = \"parent\"\n{more}");
        let of_parent = |_: &str| Ok(parent.to_owned());
        let profile = HardwareProfile::parse(&child, "x.toml", &of_parent).unwrap();
        let read = profile.compute.weight_read_of(Dtype::F32).expect("a curve");
        assert_eq!(read.rate.at(1e8), rate);
    }
}

#[test]
fn validate_names_the_profile_where_there_is_no_file() {
    let mut profile = mini();
    profile.compute.gemm.clear();
    let error = profile.validate().unwrap_err();
    assert_eq!(
        error.to_string(),
        "mini: compute.gemm: is empty; write at least one [[compute.gemm]] without `reused` and `packed`"
    );
}

#[test]
fn capacities_are_replaced_and_said() {
    let less = mini().with_capacities(Some(Bytes(1024)), None, Some(Bytes(5)));
    assert_eq!(less.tiers.device_capacity_bytes.value, Bytes(1024));
    assert_eq!(less.tiers.host_capacity_bytes.value, Bytes(2000));
    assert_eq!(less.tiers.disk_capacity_bytes.value, Bytes(5));
    assert!(less.description.contains("device 1.02 kB"));
    assert_eq!(mini().with_capacities(None, None, None), mini());
}

#[test]
fn contention_scales_with_the_duty_of_a_capped_link() {
    // h2d peaks at 10 GB/s, so the duty is 1/2.
    let capped = mini().with_link_cap(Some(BytesPerSecond(5e9)), None);
    assert_eq!(capped.links.h2d.page_locked.at(1e9), 5e9);
    assert_eq!(capped.links.h2d.page_locked.at(4096.0), 1e9);
    assert_eq!(capped.links.d2h, mini().links.d2h);
    assert_eq!(
        capped.contention_factor(ResourceKind::H2d, ResourceKind::D2h),
        1.0
    );
    let beside = capped.contention_factor(ResourceKind::D2h, ResourceKind::H2d);
    assert!((beside - 0.9).abs() < 1e-12, "{beside}");
    assert_eq!(
        capped.contention_factor(ResourceKind::Gpu, ResourceKind::Cpu),
        1.0
    );
    // So does what is kept while the GPU reads weights, which a file says again.
    let mut reading = mini();
    let pair = &mut reading.contention[0];
    (pair.victim, pair.beside) = (ResourceKind::Gpu, ResourceKind::H2d);
    pair.while_reading = Some(Quantity::new(0.5, "lab"));
    let rate = reading.links.h2d.page_locked.clone();
    let dtype = Dtype::F16;
    reading.compute.weight_read = vec![WeightRead { dtype, rate }];
    let written = HardwareProfile::parse(&reading.to_toml(), "written.toml", &parents);
    assert_eq!(written.expect("a profile"), reading);
    let capped = reading.with_link_cap(Some(BytesPerSecond(5e9)), None);
    let kept = capped.contention[0].while_reading.as_ref();
    assert_eq!(kept.map(|rate| rate.value), Some(0.75));
    // A cap above the link changes no rate.
    let loose = mini().with_link_cap(Some(BytesPerSecond(1e12)), None);
    assert_eq!(loose.links, mini().links);
    assert_eq!(loose.contention, mini().contention);
    let disk = mini().with_disk_cap(Some(BytesPerSecond(5e8)), None);
    assert_eq!(disk.links.disk_read.rate.at(1.0), 5e8);
    assert_eq!(disk.links.disk_write, mini().links.disk_write);
    disk.validate().unwrap();
    assert_eq!(parse(&disk.to_toml()).unwrap(), disk);
}

#[test]
fn a_capped_cpu_reads_weights_as_they_are_stored() {
    let mut profile = mini();
    profile.compute.cpu_gemm = profile.compute.gemm.clone();
    assert_eq!(profile.with_cpu_cap(None), profile);
    // A product of one token takes two operations a weight, which is 4 bytes in f32, or 0.5625 in groups of codes.
    let capped = profile.with_cpu_cap(Some(BytesPerSecond(9e9)));
    let rate = |packed| {
        let mut known = capped.compute.cpu_gemm.iter();
        known.find(|c| c.packed == packed).map(|c| c.rate.at(1.0))
    };
    assert_eq!((rate(false), rate(true)), (Some(4.5e9), Some(32e9)));
    assert_eq!(parse(&capped.to_toml()).unwrap(), capped);
}

#[test]
fn a_pace_is_known_whole_or_not_at_all() {
    let keys = ["pace_few_tokens_s", "pace_many_tokens_s", "pace_copy_s"];
    let line = |key| format!("{key} = {{ value = 1e-3, source = \"lab\" }}\n");
    let with = |lines: &str| MINIMAL.replacen("cpu_launch_s", &format!("{lines}cpu_launch_s"), 1);
    let whole = parse(&with(&keys.map(line).concat())).unwrap();
    assert!(whole.compute.pace.is_some());
    for (left_out, key) in keys.into_iter().enumerate() {
        let mut lines = keys.map(line);
        lines[left_out].clear();
        let text = with(&lines.concat());
        refuses_text(&text, "x.toml", &format!("compute.{key}"), &["is missing"]);
    }
}

fn curves() -> impl Strategy<Value = Curve> {
    let step = (1.01f64..50.0, 1e-3f64..1e15);
    (1.0f64..1e6, prop::collection::vec(step, 1..8)).prop_map(|(start, steps)| {
        let mut size = start;
        let mut points = Vec::new();
        for (factor, rate) in steps {
            points.push((size, rate));
            size *= factor;
        }
        Curve::new(points, "lab", None).unwrap()
    })
}

proptest! {
    #[test]
    fn a_curve_passes_its_points_and_is_constant_outside(curve in curves()) {
        for &(size, rate) in curve.points() {
            prop_assert_eq!(curve.at(size), rate);
        }
        let (first, last) = (curve.points()[0], curve.points()[curve.points().len() - 1]);
        prop_assert_eq!(curve.at(first.0 / 3.0), first.1);
        prop_assert_eq!(curve.at(0.0), first.1);
        prop_assert_eq!(curve.at(last.0 * 3.0), last.1);
    }

    #[test]
    fn a_curve_is_monotone_between_points(curve in curves(), a in 0.0f64..1.0, b in 0.0f64..1.0) {
        let (a, b) = (a.min(b), a.max(b));
        for pair in curve.points().windows(2) {
            let [(size_0, rate_0), (size_1, rate_1)] = [pair[0], pair[1]];
            let at = |share: f64| curve.at(size_0 * (size_1 / size_0).powf(share));
            let (at_a, at_b) = (at(a), at(b));
            let slack = 1e-9 * rate_0.max(rate_1);
            prop_assert!(at_a >= rate_0.min(rate_1) && at_a <= rate_0.max(rate_1));
            if rate_0 <= rate_1 {
                prop_assert!(at_a <= at_b + slack);
            } else {
                prop_assert!(at_a + slack >= at_b);
            }
        }
    }

    #[test]
    fn a_curve_is_straight_in_logs(curve in curves()) {
        for pair in curve.points().windows(2) {
            let middle = curve.at((pair[0].0 * pair[1].0).sqrt());
            let expected = (pair[0].1 * pair[1].1).sqrt();
            prop_assert!((middle / expected - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn a_capped_curve_is_the_lesser_of_the_two(
        curve in curves(), cap in 1e-3f64..1e15, size in 1e-1f64..1e20,
    ) {
        let capped = curve.capped(cap);
        let expected = curve.at(size).min(cap);
        prop_assert!((capped.at(size) / expected - 1.0).abs() < 1e-6);
        prop_assert!(capped.peak() <= cap);
    }
}

/// Appended to `MINIMAL`: so many GPUs, and a link between the two.
fn clustered(hosts: &str, from: u32, to: u32) -> String {
    format!(
        "{MINIMAL}\n[cluster]\nhosts = {{ value = {hosts}, source = \"lab\" }}\n\
         gpus_per_host = {{ value = 2, source = \"lab\" }}\n\
         [[links.peers]]\nfrom = {from}\nto = {to}\nlatency_s = {{ value = 1e-5, source = \"lab\" }}\n\
         bytes_per_s = {{ points = [[1, 1e9]], source = \"lab\" }}\n"
    )
}

#[test]
fn a_cluster_has_gpus_and_links_between_them() {
    assert_eq!((mini().num_gpus(), mini().gpus_per_host()), (1, 1));
    let profile = parse(&clustered("3", 0, 1)).unwrap();
    assert_eq!((profile.num_gpus(), profile.gpus_per_host()), (6, 2));
    // Those that are not listed are as the first.
    assert_eq!(profile.links.peer_from(4), profile.links.peer_from(0));
    let text = clustered("0", 0, 1);
    refuses_text(&text, "x.toml", "cluster.hosts", &["0 is no count"]);
    let text = clustered("1.5", 0, 1);
    refuses_text(&text, "x.toml", "cluster.hosts", &["1.5 is no count"]);
    let text = clustered("1", 0, 2);
    let said = ["from 0 to 2", "two of the 2 GPUs"];
    refuses_text(&text, "x.toml", "links.peers[0]", &said);
    let text = clustered("2", 0, 1);
    let unlinked = &text[..text.find("[[links.peers]]").unwrap()];
    refuses_text(unlinked, "x.toml", "links.peers", &["there are 4 GPUs"]);
}

#[test]
fn without_unpacking_packed_weights_have_no_curves_of_their_own() {
    let mut profile = embedded::profile("t4").expect("embedded");
    let whole = profile.compute.gemm.clone();
    let packed = GemmCurve {
        packed: true,
        ..whole[0].clone()
    };
    profile.compute.gemm.push(packed);
    let without = profile
        .without(&[Term::Unpacking])
        .expect("it has the term");
    assert_eq!(without.compute.gemm, whole);
}
