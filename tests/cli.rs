//! The command line, end to end: flags, keys of the JSON, exit codes and one-line errors.

mod common;

use std::process::{Command, Stdio};

use assert_cmd::cargo::CommandCargoExt;
use common::{POLICY, Place, SMALL, SlowRun, small_machine, tiny_opt, tiny_plan};
use serde_json::Value;

/// Four GPUs, and a policy for them.
const PIPELINE: &str = "--prompt-len 32 --gen-len 4 --gpu-batch-size 2 --percent 100 0 100 0 50 50";

#[test]
fn a_pipeline_is_simulated_and_says_what_each_stage_does() {
    let place = Place::new();
    let line = format!(
        "simulate --hw t4x4 --model opt-1.3b {PIPELINE} --stages 4 --comm host -o plan.json"
    );
    let text = place.text(&format!("{line} --trace trace.json"));
    for words in [
        "2 x 1 x 4 micro-batches = 8 sequences",
        "4 stages each with a host of its own, 6 + 6 + 6 + 6 layers, handed over by way of",
        "prefill bubble",
        "layers 18 to 23, head",
        "decoding ",
    ] {
        assert!(text.contains(words), "no `{words}` in\n{text}");
    }
    let plan = place.json("simulate --plan plan.json --format json");
    assert_eq!(plan["policy"]["pipeline"]["stages"], 4);
    assert_eq!(plan["policy"]["pipeline"]["micro_batches"], 4);
    let prediction = &plan["prediction"];
    let number = |key: &str| prediction[key].as_f64().expect("a number");
    assert!(number("decode_throughput_tok_s") > number("throughput_tok_s"));
    let stages = prediction["stages"].as_array().expect("stages");
    assert_eq!(stages.len(), 4);
    for stage in stages {
        let bubble = stage["prefill_bubble"].as_f64().expect("a share");
        assert!((0.05..0.7).contains(&bubble), "{stage}");
    }
    let trace = std::fs::read_to_string(place.path("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let links = |pid: u64| {
        let of = |e: &&Value| e["pid"] == pid && e["cat"] == "peer_link";
        events.iter().filter(of).count()
    };
    // Each of four micro-batches passes on four times, the host's part and the device's; the last stage
    // sends the tokens but the last.
    assert_eq!([links(1), links(2), links(3), links(4)], [32, 32, 32, 12]);
    assert!(
        events
            .iter()
            .any(|e| e["args"]["name"] == "opt-1.3b on t4x4, predicted, GPU 3")
    );
}

#[test]
fn a_pipeline_that_is_none_is_refused() {
    let place = Place::new();
    let on =
        |hw: &str, flags: &str| format!("simulate --hw {hw} --model opt-1.3b {PIPELINE} {flags}");
    place.refused(
        &on("t4x4", "--stages 5"),
        2,
        &["--stages 5", "t4x4 has 4 GPUs"],
    );
    place.refused(&on("t4", "--stages 2"), 2, &["t4 has 1 GPU;", "[cluster]"]);
    place.refused(&on("t4x4", "--stages 4 --schedule row"), 2, &["zig-zag"]);
    let last = on("t4x4", "--stages 4 --last-stage-layers 22");
    place.refused(
        &last,
        2,
        &["4 stages, the last of 22 layers", "24 of opt-1.3b"],
    );
    place.text(&on("t4x4", "--stages 4 -o plan.json"));
    let elsewhere = ["plan.json: policy.pipeline.stages is 4", "t4 has 1 GPU;"];
    place.refused("simulate --plan plan.json --hw t4", 4, &elsewhere);
    let plan = std::fs::read_to_string(place.path("plan.json")).unwrap();
    let together = plan.replace("\"stages_per_host\": 1", "\"stages_per_host\": 2");
    place.write("together.json", &together);
    let crowded = ["stages_per_host is 2", "t4x4 has 4 GPUs, 1 on a host"];
    place.refused("simulate --plan together.json --hw t4x4", 4, &crowded);
}

#[test]
fn a_pipelines_plan_is_run() {
    let place = Place::new();
    let policy = "--prompt-len 8 --gen-len 3 --gpu-batch-size 1 --percent 0 100 0 100 50 50";
    let tokens = |stages: &str| {
        let model = tiny_opt();
        place.text(&format!(
            "simulate --hw t4x4 --model {model} --dtype f32 {policy} {stages} --num-prompts 4 -o plan.json"
        ));
        place.text(&format!(
            "run --plan plan.json --model {model} -o out.jsonl"
        ));
        std::fs::read_to_string(place.path("out.jsonl")).expect("tokens")
    };
    let alone = tokens("--stages 1");
    assert_eq!(alone.lines().count(), 4);
    assert_eq!(tokens("--stages 2 --micro-batches 2"), alone);
}

#[test]
fn simulate_prints_the_keys_that_are_documented() {
    let place = Place::new();
    let result = place.json(
        "simulate --hw t4.toml --model opt-30b --prompt-len 512 --gen-len 4 --gpu-batch-size 48 \
         --num-gpu-batches 3 --percent 20 80 0 100 0 100 --no-overlap --cpu-compute on \
         --format json --trace trace.json",
    );
    let prediction = &result["prediction"];
    for key in ["throughput_tok_s", "latency_s", "prefill_s", "decode_s"] {
        assert!(prediction[key].as_f64().unwrap() > 0.0, "{key}");
    }
    for tier in ["device", "host", "disk"] {
        assert!(prediction["peak_bytes"][tier].is_u64(), "{tier}");
    }
    for resource in ["gpu", "h2d", "d2h", "disk_read", "disk_write", "cpu"] {
        let share = prediction["busy_fraction"][resource].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&share), "{resource}");
    }
    assert!(prediction["bottleneck"].is_string());
    for key in ["throughput_tok_s", "latency_s"] {
        let value = prediction[key].as_f64().unwrap();
        let end = |end: &str| prediction["interval"][key][end].as_f64().unwrap();
        assert!(end("low") < value && value < end("high"), "{key}");
    }
    // The t4's rates are constants, and decode of 48 sequences is not what they were taken from.
    let gemm = prediction["extrapolates"].as_array().unwrap().iter();
    let gemm = gemm
        .clone()
        .find(|e| e["curve"] == "compute.gemm.f16")
        .unwrap();
    assert_eq!(gemm["known"]["low"], gemm["known"]["high"]);
    let share = gemm["busy_fraction"].as_f64().unwrap();
    assert!(share > 0.0 && share <= prediction["busy_fraction"]["gpu"].as_f64().unwrap());
    assert_eq!(result["policy"]["overlap"], false);
    assert_eq!(result["policy"]["cpu_attention"], true);
    let trace = std::fs::read_to_string(place.path("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 1000);
}

#[test]
fn an_unprofiled_machine_has_no_interval() {
    let place = Place::new();
    let line = |hw: &str| format!("simulate --hw {hw} --model opt-1.3b {POLICY}");
    let text = place.text(&line("a10"));
    assert!(text.contains("interval   none, unprofiled"), "{text}");
    assert!(!text.contains("90%: "), "{text}");
    let json = place.json(&(line("a10") + " --format json"));
    assert!(json["prediction"]["interval"].is_null());
    let text = place.text(&line("t4"));
    assert!(text.contains("tok/s (90%: ") && text.contains("errors of measured runs"));
    assert!(text.contains("constants  one rate for all sizes"), "{text}");
}

#[test]
fn a_term_is_switched_off_by_name() {
    let place = Place::new();
    let line = format!("simulate --hw t4 --model opt-1.3b {POLICY} --format json");
    let rate = |result: &Value| result["prediction"]["throughput_tok_s"].as_f64().unwrap();
    let whole = place.json(&line);
    assert!(whole["prediction"]["without"].is_null());
    let free = place.json(&format!(
        "{line} --without fixed-costs --without contention"
    ));
    assert!(rate(&free) > rate(&whole));
    let said = free["prediction"]["without"].as_array().unwrap();
    assert_eq!(said, &["fixed-costs", "contention"]);
    assert!(free["prediction"]["interval"].is_null());
    place.refused(
        &format!("{line} --without friction"),
        2,
        &["--without", "fixed-costs"],
    );
    let no_nominal = line.replace("--hw t4", "--hw a10");
    let key = "links.disk_read.nominal_bytes_per_s";
    place.refused(
        &format!("{no_nominal} --without disk-rate"),
        4,
        &["a10", key],
    );
}

#[test]
fn both_spellings_of_a_profile_are_the_same() {
    let place = Place::new();
    let line = |hw: &str| format!("simulate --hw {hw} --model opt-1.3b {POLICY} --format json");
    assert_eq!(place.json(&line("t4")), place.json(&line("t4.toml")));
    place.text("hw show a10");
    place.refused(&line("t5"), 2, &["--hw t5", "did you mean `t4"]);
    place.refused(&line("t5.toml"), 4, &["t5.toml"]);
    place.refused(
        &line("nowhere/t4.toml"),
        4,
        &["nowhere/t4.toml", "check the path"],
    );
}

#[test]
fn a_profile_of_the_folder_hides_the_embedded_one() {
    let place = Place::new();
    std::fs::create_dir(place.path("hw-profiles")).unwrap();
    place.write("hw-profiles/small.toml", &small_machine(SMALL));
    let list = place.json("hw list --format json");
    let small = list
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == "small")
        .unwrap();
    assert_eq!(small["device_capacity_bytes"], 60_000_000);
    let shown = place.text("hw show small");
    assert!(shown.contains("tiers.device_capacity_bytes"), "{shown}");
    assert!(shown.contains("published"), "{shown}");
    assert!(shown.contains("a test"), "{shown}");
}

#[test]
fn models_are_listed_and_shown() {
    let place = Place::new();
    let list = place.json("models list --format json");
    assert!(list.as_array().unwrap().len() >= 23);
    let model = place.json("models show opt-125m --format json");
    assert_eq!(model["name"], "opt-125m");
    assert_eq!(model["parameters"], 125_239_296);
    assert_eq!(model["num_hidden_layers"], 12);
    assert_eq!(model["hidden_size"], 768);
    assert_eq!(model["weight_bytes"], 250_478_592);
    assert_eq!(model["kv_bytes_per_token"], 36_864);
    let tiny = place.json(&format!("models show {} --format json", tiny_opt()));
    assert_eq!(tiny["name"], "tiny-opt");
    let config = format!("{}/config.json", tiny_opt());
    assert_eq!(
        tiny,
        place.json(&format!("models show {config} --format json"))
    );
    place.refused(
        "models show opt-31b",
        2,
        &["--model", "opt-31b", "did you mean"],
    );
    let said = place.refused("models show zzz", 2, &["--model", "zzz", "opt-30b"]);
    assert!(!said.contains("did you mean"), "{said}");
    place.refused("models show no/config.json", 4, &["no/config.json"]);
}

#[test]
fn a_wrong_profile_is_refused_by_key() {
    let place = Place::new();
    let line = format!("simulate --hw small.toml --model opt-125m {POLICY}");
    let with = |key: &str, value: &str| {
        place.write("small.toml", &small_machine(&SMALL.replace(key, value)));
    };
    with("host_capacity_bytes", "host_capasity_bytes");
    let words = [
        "small.toml",
        "host_capasity_bytes",
        "did you mean `host_capacity_bytes`",
    ];
    place.refused(&line, 4, &words);
    for wrong in ["-5", "nan", "0", "inf"] {
        with("400e6", wrong);
        place.refused(&line, 4, &["small.toml", "tiers.host_capacity_bytes"]);
    }
    place.write("small.toml", "name = \"small\"\nextends = ");
    place.refused(&line, 4, &["small.toml", "line 2"]);
    place.write("small.toml", "name = \"small\"\nextends = \"t44\"\n");
    place.refused(&line, 4, &["extends", "t44", "did you mean"]);
    std::fs::write(place.path("small.toml"), [0xff, 0xfe, 0x00]).unwrap();
    place.refused(&line, 4, &["small.toml", "UTF-8"]);
}

#[test]
fn the_key_that_was_written_is_blamed() {
    let place = Place::new();
    let tiny = "device_capacity_bytes = { value = 1, source = \"stated\" }";
    place.write("small.toml", &small_machine(tiny));
    let words = ["small.toml: tiers.device_capacity_bytes:", "reserved"];
    place.refused("hw show small.toml", 4, &words);
    std::fs::create_dir(place.path("folder")).unwrap();
    place.refused("hw show folder", 4, &["--hw folder: is a folder"]);
    place.refused("hw show ./folder", 4, &["is a folder"]);
}

#[test]
fn sparse_attention_is_asked_for_and_said() {
    let place = Place::new();
    let plan = "plan --hw t4 --model opt-1.3b --prompt-len 64 --gen-len 4";
    let dense = place.json(&format!("{plan} --format json"));
    assert!(
        dense["policy"]["sparse_attention"].is_null(),
        "a default is not written"
    );
    let text = place.text(&format!("{plan} --sparse-attention 0.1 -o plan.json"));
    for word in ["10% of the values", "not judged"] {
        assert!(text.contains(word), "no `{word}` in\n{text}");
    }
    let again = place.json("simulate --plan plan.json --hw t4 --format json");
    assert_eq!(again["policy"]["sparse_attention"], 0.1);
    let line = "simulate --hw t4 --model opt-1.3b --prompt-len 256 --gen-len 4 --gpu-batch-size 16 \
                --percent 100 0 0 100 100 0 --format json";
    let seconds = |flags: &str| {
        let result = place.json(&format!("{line} {flags}"));
        result["prediction"]["decode_s"].as_f64().unwrap()
    };
    assert!(seconds("--sparse-attention 0.1") < 0.75 * seconds(""));
    assert_eq!(seconds("--sparse-attention 1"), seconds(""));
}

#[test]
fn a_profile_may_extend_the_embedded_one_of_its_name() {
    let place = Place::new();
    let own = small_machine(SMALL).replace("\"small\"", "\"t4\"");
    place.write("t4.toml", &own);
    let shown = place.json("hw show t4.toml --format json");
    assert_eq!(shown["tiers"]["device_capacity_bytes"]["value"], 60_000_000);
    place.write("own.toml", "name = \"own\"\nextends = \"own\"\n");
    place.refused("hw show own.toml", 4, &["own.toml", "extends itself"]);
}

#[test]
fn wrong_flags_are_refused_in_a_line() {
    let place = Place::new();
    let line = |percent: &str| {
        format!("simulate --hw t4 --model opt-125m --gpu-batch-size 2 --percent {percent}")
    };
    place.refused(
        &line("120 0 0 100 0 100"),
        2,
        &["--percent", "weights", "120%"],
    );
    place.refused(&line("60 60 0 100 0 100"), 2, &["--percent", "weights"]);
    place.refused(
        &line("-5 80 0 100 0 100"),
        2,
        &["--percent", "weights", "-5%"],
    );
    place.refused(&line("nan 80 0 100 0 100"), 2, &["--percent", "weights"]);
    place.refused(&line("20 80 0 100"), 2, &["--percent"]);
    place.refused(
        "simulate --hw t4 --model opt-125m",
        2,
        &["--percent", "--gpu-batch-size"],
    );
    for share in ["0", "-0.1", "1.5", "nan", "all"] {
        for command in [
            line("0 100 0 100 0 100"),
            "plan --hw t4 --model opt-125m".to_owned(),
        ] {
            let line = format!("{command} --sparse-attention {share}");
            place.refused(&line, 2, &["--sparse-attention", "above 0 and at most 1"]);
        }
    }
    place.refused("simulate --hww t4", 2, &["--hww"]);
    place.refused("simulat", 2, &["simulat", "simulate"]);
    let long = format!("{} --prompt-len 4000", line("100 0 100 0 100 0"));
    place.refused(&long, 2, &["4000", "opt-125m"]);
    let zero = "simulate --hw t4 --model opt-125m --gpu-batch-size 0 --percent 1 1 1 1 1 1";
    place.refused(zero, 2, &["--gpu-batch-size"]);
    for wrong in ["nan", "-5", "0"] {
        let slow = format!("plan --hw t4 --model opt-125m --max-latency-s {wrong}");
        place.refused(&slow, 2, &["--max-latency-s", "above 0"]);
        let link = format!("run --hw t4 --model opt-125m --h2d-gb-s {wrong}");
        place.refused(&link, 2, &["--h2d-gb-s", "above 0"]);
    }
}

#[test]
fn what_does_not_fit_is_infeasible_and_names_the_tier() {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    let line = "simulate --hw small.toml --model opt-1.3b --gpu-batch-size 2 --percent";
    place.refused(&format!("{line} 100 0 100 0 100 0"), 3, &["device"]);
    place.refused(&format!("{line} 0 100 0 100 0 100"), 3, &["tier"]);
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
    let slow = "plan --hw t4 --model opt-30b --max-latency-s 0.001";
    place.refused(slow, 3, &["--max-latency-s", "fastest"]);
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
        "usable",
        "next best",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    let printed = place.json("plan --hw t4.toml --model opt-6.7b --gen-len 8 --format json");
    let written = std::fs::read_to_string(place.path("plan.json")).unwrap();
    assert_eq!(printed, serde_json::from_str::<Value>(&written).unwrap());
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
fn what_cannot_be_written_in_the_end_is_printed_none_the_less() {
    let place = Place::new();
    tiny_plan(&place);
    std::os::unix::fs::symlink("/dev/full", place.path("full")).unwrap();
    let plan = "plan --hw t4 --model opt-125m --num-prompts 4 --gen-len 4";
    for (line, key) in [
        ("run --plan plan.json -o full", "outputs"),
        ("run --plan plan.json --trace full", "outputs"),
        (
            "simulate --hw small.toml --plan plan.json -o full",
            "prediction",
        ),
        (
            "simulate --hw small.toml --plan plan.json --trace full",
            "prediction",
        ),
        (&format!("{plan} -o full"), "prediction"),
    ] {
        let output = place.run(&format!("{line} --format json"));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let words = "error: full: cannot be written: No space left";
        assert!(said.starts_with(words), "{said}");
        assert!(said.contains("make room"), "{said}");
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(!result[key].is_null(), "{line}");
    }
}

#[test]
fn an_interrupted_profile_is_not_said_to_be_kept() {
    let place = Place::new();
    let run = SlowRun::of(&place, "profile --quick -o my.toml");
    run.tell("kill", &["-INT"]);
    let said = run.ended(130);
    assert_eq!(said, "error: interrupted; nothing was written\n");
    assert!(!place.path("my.toml").exists());
}

#[test]
fn what_cannot_be_written_is_refused_before_the_work() {
    let place = Place::new();
    let model = "--hw t4 --model opt-125m";
    let nowhere = ["nowhere/file", "cannot be written", "make it"];
    for (command, flag) in [
        (format!("plan {model}"), "--output"),
        (format!("simulate {model} {POLICY}"), "--output"),
        (format!("simulate {model} {POLICY}"), "--trace"),
        (format!("run {model}"), "--output"),
        (format!("run {model}"), "--trace"),
        ("profile".to_owned(), "--output"),
    ] {
        let line = format!("{command} {flag} nowhere/file");
        let said = place.refused(&line, 2, &nowhere);
        assert!(said.contains(flag), "{said}");
    }
    let folder = format!("plan {model} -o .");
    place.refused(&folder, 2, &["--output .", "a file in it"]);
    assert_eq!(std::fs::read_dir(place.folder.path()).unwrap().count(), 0);
}

#[test]
fn two_outputs_are_two_files() {
    let place = Place::new();
    std::fs::create_dir(place.path("sub")).unwrap();
    let model = "--hw t4 --model opt-125m";
    for command in [format!("simulate {model} {POLICY}"), format!("run {model}")] {
        let line = format!("{command} -o x.json --trace sub/../x.json");
        place.refused(&line, 2, &["--output", "--trace", "x.json", "its own"]);
    }
    assert!(!place.path("x.json").exists());
}

#[test]
fn a_file_may_be_our_own_output() {
    let place = Place::new();
    std::os::unix::fs::symlink("/proc/self/fd/1", place.path("out")).unwrap();
    let line = format!("simulate --hw t4 --model opt-125m {POLICY} -o out");
    let piped = place.text(&line);
    assert!(piped.starts_with('{') && piped.contains("\npredicted\n"));
    let mut command = Command::cargo_bin("plimsoll").unwrap();
    command.current_dir(place.folder.path());
    command.args(line.split_whitespace());
    command.stdout(std::fs::File::create(place.path("all")).unwrap());
    assert!(command.status().unwrap().success());
    let written = std::fs::read_to_string(place.path("all")).unwrap();
    assert_eq!(written, piped);
    assert!(place.path("out").is_symlink());
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for line in [
        "models list --format json",
        "man",
        "completions bash",
        "--help",
    ] {
        let mut command = Command::cargo_bin("plimsoll").unwrap();
        command.args(line.split_whitespace());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(output.stderr.is_empty(), "{line}");
    }
}

#[test]
fn help_completions_and_the_manual_come_from_one_definition() {
    let place = Place::new();
    let help = place.text("--help");
    for words in ["infeasible", "bad input", "130", "simulate", "completions"] {
        assert!(help.contains(words), "{words}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = place.text(&format!("completions {shell}"));
        assert!(script.contains("num-gpu-batches"), "{shell}");
    }
    let manual = place.text("man");
    for words in [
        ".TH",
        "PLIMSOLL SIMULATE",
        "PLIMSOLL HW SHOW",
        "gpu\\-batch\\-size",
        "infeasible",
    ] {
        assert!(manual.contains(words), "{words}");
    }
    assert!(!manual.contains("(1)"), "there is no other page");
    assert!(place.text("--version").starts_with("plimsoll "));
    let output = place.run("");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn pareto_draws_each_system_and_says_what_does_not_fit() {
    let place = Place::new();
    place.write(
        "small.toml",
        &small_machine(&SMALL.replace("60e6", "400e6")),
    );
    let line = "pareto --hw small.toml --model opt-125m --prompt-len 16 --gen-len 3";
    let files = "-o p.svg -o p.png -o p.csv";
    let said = place.text(&format!(
        "{line} {files} --systems flexgen,deepspeed,accelerate --batches 1,2,4096"
    ));
    for words in [
        "deepspeed",
        "OOM",
        "out of memory: device needs",
        "points in",
    ] {
        assert!(said.contains(words), "no `{words}` in\n{said}");
    }
    let csv = std::fs::read_to_string(place.path("p.csv")).unwrap();
    let header = "system,effective_batch,latency_s,throughput_tok_s,low_tok_s,high_tok_s,on_frontier,\
                  gpu_batch_size,num_gpu_batches,wg,wc,cg,cc,hg,hc,cpu_compute,schedule,overlap,barrier,\
                  granularity,page_lock,compress_weight,compress_cache,exceeds,needed_bytes,capacity_bytes";
    assert_eq!(csv.lines().next(), Some(header));
    assert_eq!(csv.lines().count(), 1 + 3 * 3);
    let svg = std::fs::read_to_string(place.path("p.svg")).unwrap();
    assert!(svg.contains("out of memory at 4096 (device)"));
    let png = std::fs::read(place.path("p.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG"));
    let report = place.json(&format!("{line} --systems accelerate --format json"));
    assert_eq!(report["points"][0]["on_frontier"], true);
    assert_eq!(report["points"][0]["wc"], 0.0);
}

#[test]
fn points_of_a_frontier_can_be_simulated_again() {
    let place = Place::new();
    let asked = "--hw t4 --model opt-30b --prompt-len 64 --gen-len 8";
    let points = "--systems plimsoll,flexgen --batches 64 --format json";
    let report = place.json(&format!("pareto {asked} {points}"));
    for point in report["points"].as_array().unwrap() {
        let word = |key: &str| point[key].to_string().replace('"', "");
        let switch = |key: &str| if point[key] == true { "on" } else { "off" };
        let percent = ["wg", "wc", "cg", "cc", "hg", "hc"].map(word).join(" ");
        let (cpu, barrier) = (switch("cpu_compute"), switch("barrier"));
        let mut line =
            format!("simulate {asked} --percent {percent} --cpu-compute {cpu} --barrier {barrier}");
        for (flag, key) in [
            ("--gpu-batch-size", "gpu_batch_size"),
            ("--num-gpu-batches", "num_gpu_batches"),
            ("--schedule", "schedule"),
            ("--granularity", "granularity"),
            ("--page-lock", "page_lock"),
        ] {
            line += &format!(" {flag} {}", word(key));
        }
        assert_eq!(point["overlap"], true);
        assert_eq!(point["compress_weight"], false);
        let again = place.json(&format!("{line} --format json"));
        let again = again["prediction"]["throughput_tok_s"].as_f64().unwrap();
        let there = point["throughput_tok_s"].as_f64().unwrap();
        // A diagonal's block by itself is not quite one among many.
        assert!(
            (again / there - 1.0).abs() < 0.02,
            "{line}: {again}, not {there}"
        );
    }
}

#[test]
fn pareto_refuses_what_it_does_not_know() {
    let place = Place::new();
    let line = "pareto --hw t4 --model opt-125m";
    let words = ["--systems", "flexgenn", "did you mean `flexgen`"];
    place.refused(&format!("{line} --systems flexgenn"), 2, &words);
    place.refused(&format!("{line} --systems zzz"), 2, &["deepspeed"]);
    place.refused(&format!("{line} -o p.gif"), 2, &["p.gif", ".svg"]);
    place.refused(&format!("{line} -o no/p.svg"), 2, &["no/p.svg", "folder"]);
    place.refused(&format!("{line} --batches 0"), 2, &["--batches"]);
    place.refused(&format!("{line} --prompt-len 9000"), 2, &["positions"]);
    place.refused(&format!("{line} --published p.csv"), 4, &["p.csv"]);
}

/// A folder with a table of each kind.
fn tiny_experiment(place: &Place) {
    std::fs::create_dir(place.path("exp")).unwrap();
    place.write(
        "exp/table-1.toml",
        "kind = \"runs\"\ntitle = \"Table 1\"\nfile = \"table-1.csv\"\nhw = \"t4\"\nused_for = \"printed-policies\"\n",
    );
    place.write(
        "exp/table-1.csv",
        "model,prompt_len,gen_len,gpu_batch_size,num_gpu_batches,wg,wc,cg,cc,hg,hc,throughput_tok_s\n\
         opt-125m,16,2,2,1,100,0,100,0,100,0,0.01\n\
         opt-175b,16,2,2,1,100,0,100,0,100,0,OOM\n",
    );
    place.write(
        "exp/table-2.toml",
        "kind = \"systems\"\ntitle = \"Table 2\"\nfile = \"table-2.csv\"\nhw = \"t4\"\nused_for = \"fitting\"\n",
    );
    place.write(
        "exp/table-2.csv",
        "system,model,prompt_len,gen_len,effective_batch,throughput_tok_s,latency_s\n\
         accelerate,opt-125m,16,2,2,100,0.04\n",
    );
    place.write(
        "exp/ablation.toml",
        "kind = \"ablation\"\ntitle = \"Terms\"\n",
    );
    place.write(
        "exp/figure-1.toml",
        "kind = \"pareto\"\ntitle = \"Figure 1\"\nhw = \"t4\"\nmodel = \"opt-125m\"\nprompt_len = 16\n\
         gen_len = 2\nsystems = [\"accelerate\"]\npublished = \"table-2.csv\"\n",
    );
    place.write(
        "exp/diagonal.toml",
        "kind = \"schedules\"\ntitle = \"Blocks\"\nhw = \"t4\"\nmodel = \"opt-125m\"\n\
         gpu_batch_size = 4096\npercent = [100, 0, 100, 0, 100, 0]\nlengths = [[8, 16]]\n",
    );
}

#[test]
fn an_experiment_is_made_again_and_compared() {
    let place = Place::new();
    tiny_experiment(&place);
    place.refused(
        "experiment exp --check",
        4,
        &["ablation.csv", "check the path"],
    );
    let said = place.text("experiment exp");
    let results = std::fs::read_to_string(place.path("exp/results/RESULTS.md")).unwrap();
    assert_eq!(said, results);
    for words in [
        "plimsoll experiment exp",
        "fitting | 1 |",
        "validation, policies printed in the paper | 1 |",
        "of 1 |",
        "| none | the whole model | 0 |",
        "| fixed-costs |",
    ] {
        assert!(said.contains(words), "no `{words}` in\n{said}");
    }
    assert!(
        said.contains("| out of memory |  | out of memory |"),
        "{said}"
    );
    let csv = std::fs::read_to_string(place.path("exp/results/table-1.csv")).unwrap();
    let header = "run,hardware,metric,predicted,low,high,published,error,error_beyond_rounding,fitted,\
                  out_of_memory_agreed,note";
    assert_eq!(csv.lines().next(), Some(header));
    let blocks = std::fs::read_to_string(place.path("exp/results/diagonal.csv")).unwrap();
    let [header, row] = [0, 1].map(|line| blocks.lines().nth(line).unwrap().split(','));
    let column = |name: &str| {
        let at = header.clone().position(|column| column == name).unwrap();
        row.clone().nth(at).unwrap().parse::<f64>().unwrap()
    };
    let more = column("diagonal_block") / column("zigzag_block");
    assert!(
        more > 1.1 && more < 1.1 * column("formula_ratio"),
        "{blocks}"
    );
    assert_eq!(column("block_ratio"), more);
    assert!(said.contains("| 8 + 16 |"), "{said}");
    for file in [
        "ablation.csv",
        "table-2.csv",
        "figure-1.csv",
        "figure-1.svg",
        "figure-1.png",
    ] {
        assert!(
            place.path(&format!("exp/results/{file}")).is_file(),
            "{file}"
        );
    }
    place.text("experiment exp --check");
    place.write("exp/results/table-1.csv", &csv.replace("0.01,", "0.02,"));
    place.refused("experiment exp --check", 6, &["table-1.csv", "line 2"]);
}

#[test]
fn a_wrong_experiment_is_refused_by_file_and_key() {
    let place = Place::new();
    place.refused("experiment nowhere", 4, &["nowhere", "check the path"]);
    std::fs::create_dir(place.path("exp")).unwrap();
    place.refused("experiment exp", 4, &["exp", "*.toml"]);
    let figure = "kind = \"pareto\"\ntitle = \"F\"\nhw = \"t4\"\nmodel = \"opt-125m\"\n";
    place.write(
        "exp/f.toml",
        &format!("{figure}systems = [\"acelerate\"]\n"),
    );
    place.refused(
        "experiment exp",
        4,
        &["f.toml", "did you mean `accelerate`"],
    );
    place.write(
        "exp/f.toml",
        &format!("{figure}system = [\"accelerate\"]\n"),
    );
    place.refused("experiment exp", 4, &["f.toml", "system"]);
    let blocks = "kind = \"schedules\"\ntitle = \"B\"\nhw = \"t4\"\nmodel = \"opt-125m\"\n\
                  gpu_batch_size = 1\npercent = [100, 10, 100, 0, 100, 0]\nlengths = [[8, 8]]\n";
    place.write("exp/f.toml", blocks);
    place.refused("experiment exp", 4, &["f.toml", "percent"]);
    let table = "kind = \"systems\"\ntitle = \"T\"\nfile = \"t.csv\"\nhw = \"t5\"\nused_for = \"fitting\"\n";
    place.write("exp/f.toml", table);
    place.refused("experiment exp", 4, &["t.csv"]);
}

#[test]
fn prompts_beyond_number_are_refused_before_they_are_listed() {
    let place = Place::new();
    let line = "simulate --hw t4 --model opt-125m --prompt-len 8 --gen-len 2 --num-prompts 1000000000000 \
                --gpu-batch-size 1 --percent 100 0 100 0 100 0";
    place.refused(line, 2, &["GPU batches of all prompts", "state less"]);
}

#[test]
fn many_rounds_are_simulated_as_they_are_planned() {
    let place = Place::new();
    let asked = "--hw t4 --model opt-1.3b --num-prompts 200000";
    place.text(&format!("plan {asked} -o plan.json"));
    let planned: Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("plan.json")).unwrap()).unwrap();
    let again = place.json("simulate --hw t4 --plan plan.json --format json");
    assert_eq!(
        planned["prediction"]["latency_s"],
        again["prediction"]["latency_s"]
    );
}

#[test]
fn an_output_does_not_take_an_inputs_place() {
    let place = Place::new();
    place.write("lengths.csv", "12\n30\n");
    let asked =
        "plan --hw t4 --model opt-125m --gen-len 4 --prompt-lens lengths.csv -o lengths.csv";
    place.refused(asked, 2, &["--output", "--prompt-lens", "lengths.csv"]);
    assert_eq!(
        std::fs::read_to_string(place.path("lengths.csv")).unwrap(),
        "12\n30\n"
    );
    place.write("p.jsonl", "{\"id\": 1, \"prompt_token_ids\": [2]}\n");
    for out in ["-o p.jsonl", "--trace p.jsonl"] {
        let asked = format!("run --hw t4 --model opt-125m --gen-len 2 --prompts p.jsonl {out}");
        place.refused(&asked, 2, &["--prompts", "p.jsonl"]);
    }
}

#[test]
fn a_pipeline_is_a_zigzag_and_its_flags_ask_for_stages() {
    let place = Place::new();
    let asked = "plan --hw t4x4 --model opt-125m --num-prompts 8 --gen-len 4 --prompt-len 16";
    let plan = place.json(&format!("{asked} --schedule row --format json"));
    assert_eq!(plan["policy"]["schedule"], "row");
    let lone = "simulate --hw t4 --model opt-125m --gpu-batch-size 1 --percent 100 0 100 0 100 0";
    place.refused(&format!("{lone} --micro-batches 4"), 2, &["--stages"]);
    place.refused(&format!("{lone} --comm host"), 2, &["--stages"]);
}
