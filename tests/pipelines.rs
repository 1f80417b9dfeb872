//! Pipelines on the command line: simulated, run, and refused where they are none.

mod common;

use common::{Place, tiny_opt};
use serde_json::{Value, json};

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
fn stages_of_one_host_have_its_memory_once() {
    let place = Place::new();
    let source = r#"{ value = 4, source = "four-machines" }"#;
    let two = source.replace('4', "2");
    let hardware = format!(
        "name = \"two-hosts\"\nextends = \"t4x4\"\n[cluster]\nhosts = {two}\ngpus_per_host = {two}\n"
    );
    place.write("two-hosts.toml", &hardware);
    let line = format!("simulate --hw two-hosts.toml --model opt-1.3b {PIPELINE} --stages 4");
    let text = place.text(&line);
    let stages = text.lines().skip_while(|line| !line.starts_with("stage"));
    let shared: Vec<bool> = stages
        .skip(1)
        .take(4)
        .map(|line| line.contains("as above"))
        .collect();
    assert_eq!(shared, [false, true, false, true], "{text}");
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
    let uneven = on("t4x4", "--stages 4 --last-stage-layers 40").replace("opt-1.3b", "opt-30b");
    place.refused(&uneven, 3, &["the device tier of stage 3 needs"]);
    let refused = place.run(&(uneven + " --format json"));
    let json: Value = serde_json::from_slice(&refused.stdout).expect("JSON");
    assert_eq!(json["infeasible"]["stages"], json!({"first": 3, "last": 3}));
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
fn a_pipeline_is_a_zigzag_and_its_flags_ask_for_stages() {
    let place = Place::new();
    let asked = "plan --hw t4x4 --model opt-125m --num-prompts 8 --gen-len 4 --prompt-len 16";
    let plan = place.json(&format!("{asked} --schedule row --format json"));
    assert_eq!(plan["policy"]["schedule"], "row");
    let lone = "simulate --hw t4 --model opt-125m --gpu-batch-size 1 --percent 100 0 100 0 100 0";
    place.refused(&format!("{lone} --micro-batches 4"), 2, &["--stages"]);
    place.refused(&format!("{lone} --comm host"), 2, &["--stages"]);
}

/// With fewer prompts than stages each prompt may be a micro-batch, and the last stage, which has the head, may have fewer layers whatever
/// is asked for.
#[test]
fn few_prompts_go_through_the_stages_one_after_another() {
    let place = Place::new();
    let asked = "plan --hw t4x4 --model opt-30b --gen-len 2 --num-prompts";
    let latency = |more: &str| {
        let plan = place.json(&format!("{asked} {more} --format json"));
        plan["prediction"]["latency_s"].as_f64().expect("a time")
    };
    let all = [1, 2, 3, 4].map(|prompts| latency(&format!("{prompts} --objective latency")));
    assert!(all.is_sorted(), "{all:?}");
    assert_eq!(latency("3"), all[2]);
    let limit = 1.001 * all[2];
    assert!(latency(&format!("3 --max-latency-s {limit}")) <= limit);
}

/// No stage has both ends of a model, so that all of it may lie on GPUs of which none would hold its layers and both.
#[test]
fn what_fits_on_the_gpus_lies_there_whatever_the_host_has() {
    let place = Place::new();
    let asked = "plan --hw t4x4 --device-gb 5.2 --model llama-3-8b --num-prompts 1 --gen-len 8";
    let rate = |more: &str| {
        let plan = place.json(&format!("{asked} {more} --format json"));
        assert_eq!(plan["policy"]["weights"]["device"], 1.0, "{more}");
        plan["prediction"]["throughput_tok_s"]
            .as_f64()
            .expect("a rate")
    };
    let little = rate("--host-gb 4.5 --disk-gb 0");
    assert!((rate("") / little - 1.0).abs() < 0.01);
}

/// Bubbles are most of a long prompt's time where little is generated.
#[test]
fn many_prompts_of_short_answers_are_many_micro_batches() {
    let place = Place::new();
    let asked = "--hw t4x4 --model llama-2-13b --num-prompts 300 --gen-len 2 --format json";
    let rate = |line: String| {
        let plan = place.json(&line);
        let policy = &plan["policy"];
        let sizes = [&policy["gpu_batch_size"], &policy["num_gpu_batches"]];
        let each: u64 = sizes.iter().filter_map(|size| size.as_u64()).product();
        let micro_batches = policy["pipeline"]["micro_batches"].as_u64();
        // None has no prompts.
        assert!(each * (micro_batches.expect("some") - 1) < 300, "{policy}");
        plan["prediction"]["throughput_tok_s"]
            .as_f64()
            .expect("a rate")
    };
    let given = "--gpu-batch-size 2 --stages 4 --micro-batches 32 --percent 100 0 100 0 100 0 --barrier off";
    let given = rate(format!("simulate {asked} {given}"));
    assert!(rate(format!("plan {asked}")) > 0.98 * given);
}
