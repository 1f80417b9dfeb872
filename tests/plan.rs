//! `plimsoll plan`: what does not fit, and files that are written and read again.

mod common;

use std::path::Path;

use common::{POLICY, Place, SMALL, small_machine, tiny_plan};
use serde_json::Value;

#[test]
fn what_does_not_fit_is_infeasible_and_names_the_tier() {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    let line = "simulate --hw small.toml --model opt-1.3b --gpu-batch-size 2 --percent";
    place.refused(&format!("{line} 100 0 100 0 100 0"), 3, &["device"]);
    place.refused(&format!("{line} 0 100 0 100 0 100"), 3, &["tier"]);
    let output = place.run(&format!("{line} 100 0 100 0 100 0 --format json"));
    assert_eq!(output.status.code(), Some(3));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |key: &str| said["infeasible"][key].as_u64().unwrap();
    assert_eq!(said["infeasible"]["tier"], "device");
    let why = |said: &Value| said["infeasible"]["why"].as_str().unwrap().to_owned();
    assert!(why(&said).contains("the device tier needs"), "{said}");
    assert_eq!(
        of("missing_bytes"),
        of("needed_bytes") - of("capacity_bytes")
    );
    place.refused(
        "plan --hw small.toml --model opt-175b -o plan.json",
        3,
        &["tier", "nearest"],
    );
    assert!(!place.path("plan.json").exists());
    let output = place.run("plan --hw small.toml --model opt-175b --format json");
    assert_eq!(output.status.code(), Some(3));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(said["infeasible"]["missing_bytes"].as_u64().unwrap() > 0);
    assert!(why(&said).contains("nearest"), "{said}");
    let tiers = SMALL.replace("60e6", "1e9").replace("2e9", "1e9");
    place.write("tight.toml", &small_machine(&tiers));
    let tight = "plan --hw tight.toml --model opt-1.3b --prompt-len 16 --gen-len 4";
    place.refused(tight, 3, &["a plan with --compress-weight fits"]);
    place.text(&format!("{tight} --compress-weight"));
    // With shares of their own: as few on disk as 16-bit weights would have, four-bit ones do not fit either.
    let shared =
        "plan --hw t4 --model opt-30b --num-prompts 1 --device-gb 4 --host-gb 12 --disk-gb 14";
    place.refused(shared, 3, &["a plan with --compress-weight fits"]);
    place.text(&format!("{shared} --compress-weight"));
    // What would help is said of prompts without end as well.
    let slow = "plan --hw t4 --model opt-30b --device-gb 12 --host-gb 80 --disk-gb 0 --gen-len 8 --max-latency-s 0.001";
    let words = [
        "--max-latency-s",
        "fastest",
        "--strategy auto (the CPU computes",
    ];
    place.refused(slow, 3, &words);
}

#[test]
fn a_machine_without_a_disk_has_plans_without_one() {
    let place = Place::new();
    let line = "plan --hw rtx4090 --model llama-2-13b --num-prompts 2 --gen-len 8 --disk-gb";
    let json = place.json(&format!("{line} 0 --format json"));
    for what in ["weights", "cache", "activations"] {
        assert_eq!(json["policy"][what]["disk"].as_f64(), Some(0.0), "{what}");
    }
    assert_eq!(json["capacity_bytes"]["disk"].as_u64(), Some(0));
    place.refused(&format!("{line} -1"), 2, &["--disk-gb", "0 (none) or more"]);
}

#[test]
fn a_plan_is_written_and_read_again() {
    let place = Place::new();
    let text = place.text("plan --hw t4.toml --model opt-6.7b --gen-len 8 -o plan.json");
    for words in [
        "weights",
        "cache",
        "activations",
        "tok/s",
        "bottleneck",
        "reserved",
        "usable",
        "next best",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    let printed = place.json("plan --hw t4.toml --model opt-6.7b --gen-len 8 --format json");
    let written = std::fs::read_to_string(place.path("plan.json")).unwrap();
    assert_eq!(printed, serde_json::from_str::<Value>(&written).unwrap());
    let mut piped = assert_cmd::Command::from_std(common::program());
    piped.args(["simulate", "--plan", "-", "--format", "json"]);
    let simulated = piped.write_stdin(written).output().unwrap();
    let simulated: Value = serde_json::from_slice(&simulated.stdout).expect("JSON");
    assert_eq!(simulated["prediction"], printed["prediction"]);
    // What is not known, or endless, is null and not absent.
    for (part, key) in [
        ("workload", "num_prompts"),
        ("prediction", "decode_throughput_tok_s"),
    ] {
        assert!(printed[part].get(key).is_some(), "{key} in {printed}");
    }
    let again = place.json("simulate --plan plan.json --format json");
    assert_eq!(again["prediction"], printed["prediction"]);
    // As plans were written before predictions said how sure they are.
    let mut older = printed.clone();
    let prediction = older["prediction"].as_object_mut().unwrap();
    for key in ["interval", "extrapolates"] {
        assert!(prediction.remove(key).is_some(), "{key}");
    }
    place.write("older.json", &older.to_string());
    let again = place.json("simulate --plan older.json --format json");
    assert_eq!(again["prediction"], printed["prediction"]);
    let elsewhere = place.json("simulate --plan plan.json --hw a100-80 --format json");
    assert_ne!(elsewhere["prediction"], printed["prediction"]);
    place.refused(
        "simulate --plan plan.json --gen-len 9",
        2,
        &["--gen-len", "--plan"],
    );
}

#[test]
fn a_plan_for_latency_says_for_how_many_prompts() {
    let place = Place::new();
    let line = "plan --hw t4 --model opt-125m --gen-len 4 --objective latency";
    let one = place.text(line);
    assert!(one.contains("generated, 1 prompt\n"), "{one}");
    assert!(
        one.contains("for 1 prompt, as --objective latency"),
        "{one}"
    );
    let two = place.text(&format!("{line} --num-prompts 2"));
    assert!(two.contains("generated, 2 prompts\n"), "{two}");
    assert!(!two.contains("as --objective latency"), "{two}");
    assert!(place.text("plan --help").contains("of one prompt"));
    // What would help is said in time.
    let large = place.text("plan --hw t4 --model opt-30b --gen-len 4 --objective latency");
    assert!(large.contains("x as fast"), "{large}");
    assert!(!large.contains("x the throughput"), "{large}");
}

/// A CPU that would have nothing to attend to is left out of a plan, which takes as long without it.
#[test]
fn a_cache_on_the_device_is_not_attended_to_by_the_cpu() {
    let place = Place::new();
    let plan =
        place.json("plan --hw rtx4090 --model qwen3-8b --num-prompts 16 -o own.json --format json");
    let policy = &plan["policy"];
    assert_eq!(policy["cache"]["device"], 1.0);
    assert_eq!(policy["cpu_attention"], false);
    let again = place.json("simulate --hw rtx4090 --plan own.json --format json");
    let rate = |of: &Value| of["prediction"]["throughput_tok_s"].as_f64();
    assert!(rate(&plan).is_some());
    assert_eq!(rate(&again), rate(&plan));
}

#[test]
fn what_is_said_of_a_plan_is_in_its_json_too() {
    let place = Place::new();
    place.write("mine.toml", "name = \"mine\"\nextends = \"t4\"\n");
    let line = "plan --hw mine.toml --model opt-1.3b --num-prompts 4 --host-gb 50";
    let json = place.json(&format!("{line} --format json"));
    let notes = json["search"]["notes"].as_array().expect("notes");
    let text = place.text(line);
    let text: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for said in [
        "machine mine if it had 50.0 GB of host memory",
        "note the interval is from errors of runs on t4",
    ] {
        let is_it = |line: &str| line.starts_with(said);
        assert!(
            notes.iter().filter_map(|note| note.as_str()).any(is_it),
            "{notes:?}"
        );
        assert!(text.iter().any(|line| is_it(line)), "{text:?}");
    }
}

#[test]
fn other_memory_is_asked_for_without_a_profile() {
    let place = Place::new();
    let plan = "--model opt-6.7b --gen-len 4 --format json";
    let more = "extends = \"t4\"\nname = \"more\"\ndescription = \"more\"\n\
        [sources.asked]\nkind = \"published\"\nfrom = \"a test\"\ndate = \"2026\"\n\
        [tiers]\nhost_capacity_bytes = { value = 48e9, source = \"asked\" }\n\
        device_capacity_bytes = { value = 8e9, source = \"asked\" }\n";
    place.write("more.toml", more);
    let stated = place.json(&format!("plan --hw t4 --host-gb 48 --device-gb 8 {plan}"));
    let written = place.json(&format!("plan --hw more.toml {plan}"));
    assert_eq!(stated["policy"], written["policy"]);
    assert_eq!(stated["capacity_bytes"], written["capacity_bytes"]);
    assert_eq!(stated["prediction"], written["prediction"]);
    assert_ne!(
        stated["policy"],
        place.json(&format!("plan --hw t4 {plan}"))["policy"]
    );
    // A plan goes with the memory that it was made for, or with other.
    place.text("plan --hw t4 --host-gb 48 --device-gb 8 --model opt-6.7b --gen-len 4 -o plan.json");
    let said = place.text("simulate --plan plan.json --device-gb 9");
    assert!(
        said.contains("t4 if it had 9.00 GB of device memory"),
        "{said}"
    );
    place.refused("simulate --plan plan.json --device-gb 4", 3, &["device"]);
    place.refused(
        "plan --hw t4 --model opt-6.7b --host-gb 0",
        2,
        &["--host-gb"],
    );
}

#[test]
fn a_damaged_plan_is_refused_by_key() {
    let place = Place::new();
    tiny_plan(&place);
    let whole = std::fs::read_to_string(place.path("plan.json")).unwrap();
    let damaged = |from: &str, to: &str, words: &[&str]| {
        assert!(whole.contains(from), "{from}");
        place.write("damaged.json", &whole.replacen(from, to, 1));
        let mut all = vec!["damaged.json"];
        all.extend(words);
        place.refused("simulate --plan damaged.json --hw small.toml", 4, &all);
    };
    let sise = ["policy.gpu_batch_sise", "did you mean `gpu_batch_size`"];
    damaged("\"gpu_batch_size\"", "\"gpu_batch_sise\"", &sise);
    damaged(
        "\"schema_version\": 1",
        "\"schema_version\": 9",
        &["schema_version", "9"],
    );
    damaged("\"schema_version\": 1,", "", &["schema_version"]);
    damaged(
        "\"gpu_batch_size\": 2",
        "\"gpu_batch_size\": -2",
        &["policy.gpu_batch_size"],
    );
    damaged(
        "\"gpu_batch_size\": 2",
        "\"gpu_batch_size\": 0",
        &["gpu_batch_size"],
    );
    damaged("\"host\": 0.8", "\"host\": 1.8", &["weights", "180%"]);
    damaged("\"gen_len\": 3", "\"gen_len\": 0", &["workload.gen_len"]);
    damaged(
        "\"schedule\": \"zigzag\"",
        "\"schedule\": \"zig\"",
        &["policy.schedule"],
    );
    place.write("damaged.json", &whole[..whole.len() / 2]);
    let words = ["damaged.json", "line", "cut short"];
    place.refused("simulate --plan damaged.json --hw small.toml", 4, &words);
    place.refused(
        "simulate --plan none.json",
        4,
        &["none.json", "check the path"],
    );
}

#[test]
fn one_token_is_no_decode() {
    let place = Place::new();
    let line = "plan --hw t4x4 --model opt-1.3b --prompt-len 64 --gen-len 1";
    let text = place.text(line);
    assert!(text.contains("all of it prefill"), "{text}");
    assert!(!text.contains("decoding "), "{text}");
    assert!(text.contains("stored, but never read"), "{text}");
    let json = place.json(&format!("{line} --format json"));
    let prediction = &json["prediction"];
    assert!(prediction["decode_s"].is_null(), "{prediction}");
    for stage in prediction["stages"].as_array().into_iter().flatten() {
        assert!(stage["decode_bubble"].is_null(), "{stage}");
    }
}

#[test]
fn a_checkpoint_is_planned_in_its_own_type() {
    let place = Place::new();
    let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/quality/kjv-llama");
    let plan = |flags: &str| {
        place.text(&format!(
            "plan --hw t4 --model {} --prompt-len 16 --gen-len 4 --num-prompts 2 {flags}",
            checkpoint.display()
        ))
    };
    let own = plan("");
    assert!(own.contains("kjv-llama in bf16 on t4"), "{own}");
    let said = "t4 has no rates of matrix products in bf16: predicted with those in f16";
    assert!(own.contains(said), "{own}");
    let asked = plan("--dtype f16");
    assert!(asked.contains("kjv-llama in f16 on t4"), "{asked}");
    assert!(!asked.contains("no rates"), "{asked}");
    let config = std::fs::read_to_string(checkpoint.join("config.json")).unwrap();
    place.write(
        "config.json",
        &config.replace("\"bfloat16\"", "\"float8_e4m3fn\""),
    );
    let line = format!("simulate --hw t4 --model config.json {POLICY}");
    place.refused(&line, 4, &["dtype `float8_e4m3fn`", "give --dtype"]);
    place.text(&format!("{line} --dtype f32"));
    let shown = place.run("models show config.json");
    let said = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(
        shown.status.success() && said.contains("`float8_e4m3fn`"),
        "{said}"
    );
    assert!(!said.contains("--dtype"), "{said}");
}
