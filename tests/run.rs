//! `plimsoll run`: what it prints and writes, what it refuses, and what a run leaves that is stopped.

mod common;

use std::thread::sleep;
use std::time::Duration;

use common::{POLICY, Place, SMALL, SlowRun, small_machine, tiny_opt, tiny_plan};
use serde_json::Value;

#[test]
fn a_run_gives_tokens_and_the_measured_figures() {
    let place = Place::new();
    tiny_plan(&place);
    let run = format!(
        "run --plan plan.json --model {} --format json -o out.jsonl --trace t.json",
        tiny_opt()
    );
    let result = place.json(&run);
    assert_eq!(result["device"], "emulated");
    for key in ["throughput_tok_s", "latency_s", "prefill_s", "decode_s"] {
        assert!(result["measured"][key].as_f64().unwrap() > 0.0, "{key}");
        assert!(result["prediction"][key].as_f64().unwrap() > 0.0, "{key}");
    }
    let outputs = result["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 4);
    assert!(
        outputs
            .iter()
            .all(|o| o["generated_token_ids"].as_array().unwrap().len() == 3)
    );
    let lines = std::fs::read_to_string(place.path("out.jsonl")).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(&lines, outputs);
    assert_eq!(place.json(&run)["outputs"], result["outputs"]);
    let trace = std::fs::read_to_string(place.path("t.json")).unwrap();
    assert!(serde_json::from_str::<Value>(&trace).is_ok());
    let paced = ["few_tokens", "many_tokens", "copy"]
        .map(|work| format!("pace_{work}_s = {{ value = 1e-3, source = \"stated\" }}\n"));
    let small = place.read("small.toml");
    place.write(
        "small.toml",
        &format!("{small}\n[compute]\n{}", paced.concat()),
    );
    let text = place.text(&format!(
        "run --plan plan.json --model {} --hw small.toml",
        tiny_opt()
    ));
    assert!(text.contains("emulated"), "{text}");
    assert!(text.contains("pace: around the run, "), "{text}");
    assert!(text.contains("predicted  at this pace  measured"), "{text}");
    for work in ["few tokens", "many", "copies"] {
        assert!(text.contains(work), "no {work} in\n{text}");
    }
    let json = place.json(&format!(
        "run --plan plan.json --model {} --hw small.toml --format json",
        tiny_opt()
    ));
    for work in ["few_tokens", "many_tokens", "copy"] {
        assert!(json["pace"][work].as_f64().is_some_and(|it| it > 0.0));
    }
    // At the stated pace, which no machine has, products would take another time.
    let latency = |key: &str| json[key]["latency_s"].as_f64().expect("a prediction");
    assert_ne!(latency("prediction_at_pace"), latency("prediction"));
}

#[test]
fn with_more_threads_than_were_profiled_nothing_is_predicted() {
    let place = Place::new();
    tiny_plan(&place);
    let run = format!(
        "run --plan plan.json --hw small.toml --model {}",
        tiny_opt()
    );
    let one = place.json(&format!("{run} --format json"));
    assert!(one["prediction"].is_object() && one["prediction_left_out"].is_null());
    let two = place.json(&format!("{run} --format json --device-threads 2"));
    assert!(two["prediction"].is_null());
    let why = two["prediction_left_out"].as_str().unwrap();
    assert!(why.contains("measured with 1 device thread"), "{why}");
    assert_eq!(one["outputs"], two["outputs"]);
    let text = place.text(&format!("{run} --device-threads 2"));
    assert!(text.contains(&format!("no prediction: {why}")), "{text}");
}

#[test]
fn a_run_has_as_many_threads_as_its_profile_was_measured_with() {
    let place = Place::new();
    tiny_plan(&place);
    let small = place.read("small.toml").replace("\"small\"", "\"two\"");
    let two = "[compute]\ndevice_threads = { value = 2, source = \"stated\" }\n";
    place.write("two.toml", &format!("{small}{two}"));
    let model = tiny_opt();
    let policy = format!("--model {model} --dtype f32 {POLICY}");
    place.text(&format!("simulate --hw two.toml {policy} -o two.json"));
    let plan: Value = serde_json::from_str(&place.read("two.json")).unwrap();
    assert_eq!(plan["provenance"]["device_threads"], 2);
    let one = place.json(&format!(
        "run --plan plan.json --model {model} --format json"
    ));
    // By the profile that is given, and by the plan's own.
    for what in ["--plan plan.json --hw two.toml", "--plan two.json"] {
        let run = format!("run {what} --model {model} --format json");
        let found = place.json(&run);
        assert!(found["prediction"].is_object(), "{found}");
        assert_eq!(found["outputs"], one["outputs"]);
        let other = place.json(&format!("{run} --device-threads 1"));
        let why = other["prediction_left_out"].as_str().unwrap();
        assert!(
            why.contains("two was measured with 2 device threads, not with 1"),
            "{why}"
        );
        assert!(why.contains("profile --device-threads 1"), "{why}");
        assert_eq!(other["outputs"], one["outputs"]);
    }
}

#[test]
fn what_was_predicted_of_something_else_is_not_compared() {
    let place = Place::new();
    tiny_plan(&place);
    let left_out = |flags: &str, word: &str| {
        let line = format!("run {flags} --format json");
        let result = place.json(&line);
        assert!(result["prediction"].is_null(), "{line}");
        let why = result["prediction_left_out"].as_str().unwrap();
        assert!(why.contains(word), "{line}: {why}");
    };
    left_out("--plan plan.json --hw t4", "with a GPU");
    left_out("--plan plan.json --h2d-gb-s 1", "--hw");
    let capped = "run --plan plan.json --h2d-gb-s 1 --hw small.toml --format json";
    assert!(place.json(capped)["prediction"].is_object());
    let policy = format!("--hw t4 --model {} --dtype f32 {POLICY}", tiny_opt());
    place.text(&format!("simulate {policy} -o t4.json"));
    left_out("--plan t4.json", "with a GPU");
}

#[test]
fn a_run_takes_prompts_and_refuses_wrong_ones() {
    let place = Place::new();
    tiny_plan(&place);
    let prompt = |id: u32, tokens: u32| {
        let tokens: Vec<u32> = (0..tokens).map(|t| 5 + id + t).collect();
        format!("{{\"id\": \"p{id}\", \"prompt_token_ids\": {tokens:?}}}\n")
    };
    let run = "run --plan plan.json --prompts prompts.jsonl --format json";
    place.write(
        "prompts.jsonl",
        &(prompt(0, 16) + &prompt(1, 16) + &prompt(2, 16)),
    );
    let result = place.json(run);
    assert_eq!(result["outputs"].as_array().unwrap().len(), 3);
    assert_eq!(result["outputs"][2]["id"], "p2");
    place.write("prompts.jsonl", &(prompt(0, 16) + &prompt(1, 17)));
    place.refused(
        run,
        4,
        &[
            "prompts.jsonl",
            "line 2",
            "17 tokens",
            "--prompt-len of the longest, 17",
        ],
    );
    place.write("prompts.jsonl", &(prompt(0, 16) + &prompt(600, 16)));
    place.refused(
        run,
        4,
        &["prompts.jsonl", "line 2", "token 605", "below 512"],
    );
    place.write("prompts.jsonl", "{\"id\": 1, \"prompt_token_idz\": []}\n");
    place.refused(
        run,
        4,
        &["prompts.jsonl", "line 1", "did you mean `prompt_token_ids`"],
    );
    place.write("prompts.jsonl", "");
    place.refused(run, 4, &["prompts.jsonl", "no prompts"]);
}

#[test]
fn a_plan_for_some_prompts_runs_more_or_fewer() {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    let model = tiny_opt();
    place.text(&format!(
        "simulate --hw small.toml --model {model} --dtype f32 --num-prompts 4 {POLICY} -o plan.json"
    ));
    let line = |id: u32| {
        format!(
            "{{\"id\": {id}, \"prompt_token_ids\": {:?}}}\n",
            [id + 5; 16]
        )
    };
    let prompts: Vec<String> = (0..7).map(line).collect();
    let run = format!("run --plan plan.json --model {model} --prompts p.jsonl --format json");
    let answers = |of: &[String]| {
        place.write("p.jsonl", &of.concat());
        let output = place.run(&run);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("the plan is for 4"), of.len() != 4, "{said}");
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        // What was predicted of four says nothing of others.
        assert_eq!(result["prediction"].is_null(), of.len() != 4);
        result["outputs"].as_array().unwrap().clone()
    };
    let four = answers(&prompts[..4]);
    assert_eq!(answers(&prompts[..2]), four[..2]);
    let seven = answers(&prompts);
    assert_eq!((seven.len(), &seven[..4]), (7, &four[..]));
    let flag = place.refused(&format!("{run} --device-gb 1"), 2, &["--device-gb"]);
    assert!(flag.contains("--plan"), "{flag}");
}

#[test]
fn a_plan_for_another_model_is_refused_by_key() {
    let place = Place::new();
    tiny_plan(&place);
    place.refused(
        "run --plan plan.json --model opt-125m",
        4,
        &["--model opt-125m", "hidden_size"],
    );
    let broken = place.path("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::copy(
        format!("{}/config.json", tiny_opt()),
        broken.join("config.json"),
    )
    .unwrap();
    let weights = std::fs::read(format!("{}/model.safetensors", tiny_opt())).unwrap();
    std::fs::write(
        broken.join("model.safetensors"),
        &weights[..weights.len() / 2],
    )
    .unwrap();
    place.refused(
        "run --plan plan.json --model broken -o out.jsonl",
        4,
        &["model.safetensors"],
    );
    assert!(!place.path("out.jsonl").exists());
}

/// Checks what a run left that stopped on its way, and what it said.
fn assert_kept(place: &Place, said: &str) {
    let words = "tokens are kept in out.jsonl; --resume goes on";
    assert!(said.contains(words), "{said}");
    let lines = std::fs::read_to_string(place.path("out.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 4);
    for line in lines.lines() {
        let answer: Value = serde_json::from_str(line).unwrap();
        let tokens = answer["generated_token_ids"].as_array().unwrap().len();
        assert!(answer["finish_reason"].is_null(), "{line}");
        assert!((1..60).contains(&tokens), "{line}");
    }
}

#[test]
fn an_interrupted_run_keeps_what_it_had() {
    let place = Place::new();
    let run = SlowRun::start(&place, "--h2d-gb-s 0.005 -o out.jsonl --trace t.json");
    sleep(Duration::from_secs(2));
    for task in std::fs::read_dir(run.proc("task")).unwrap() {
        let read = |name| std::fs::read_to_string(task.as_ref().unwrap().path().join(name));
        if read("comm").unwrap().trim() == "gpu" {
            let status = read("status").unwrap();
            let cores = status.lines().find(|l| l.starts_with("Cpus_allowed_list:"));
            assert!(
                !cores.unwrap().contains(['-', ',']),
                "not pinned: {cores:?}"
            );
        }
    }
    run.tell("kill", &["-INT"]);
    let said = run.ended(130);
    assert!(said.contains("interrupted"), "{said}");
    assert_kept(&place, &said);
    assert!(said.contains("its trace so far is in t.json"), "{said}");
    let trace = std::fs::read_to_string(place.path("t.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["ph"] == "X"));
}

#[test]
fn a_run_without_a_token_leaves_earlier_files_alone() {
    let place = Place::new();
    place.write("out.jsonl", "earlier");
    // What is started to outlive its terminal stays so, and so does what these tests start.
    let signals = [("-INT", 130), ("-TERM", 143), ("-HUP", 129)];
    for (signal, code) in &signals[..if outlives_its_terminal() { 2 } else { 3 }] {
        let run = SlowRun::start(&place, "--h2d-gb-s 0.00001 -o out.jsonl --trace t.json");
        run.tell("kill", &[signal]);
        let said = run.ended(*code);
        assert!(said.contains("out.jsonl is left as it was"), "{said}");
        let kept = std::fs::read_to_string(place.path("out.jsonl")).unwrap();
        assert_eq!(kept, "earlier");
    }
}

fn outlives_its_terminal() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    let does = ignored & 1 == 1;
    if does {
        eprintln!("SKIPPED: the end of a terminal, which these tests are started to ignore");
    }
    does
}

#[test]
fn a_run_under_nohup_outlives_its_terminal() {
    let place = Place::new();
    let first = SlowRun::start(&place, "--h2d-gb-s 0.00001 -o out.jsonl");
    first.tell("kill", &["-TERM"]);
    first.ended(143);
    let line = "run --plan plan.json --h2d-gb-s 0.00001 -o out.jsonl";
    let run = SlowRun::ignoring(&place, "XFSZ HUP", line);
    run.tell("kill", &["-HUP"]);
    sleep(Duration::from_millis(300));
    run.tell("kill", &["-TERM"]);
    // The first signal that is heard.
    run.ended(143);
}

/// Does `harm` to a run on its way, which then says `words` and keeps its tokens.
fn assert_harm_is_survived(percent: &str, harm: impl Fn(&SlowRun), words: &str) {
    let place = Place::new();
    let run = SlowRun::placed(&place, percent, "--h2d-gb-s 0.005 -o out.jsonl");
    sleep(Duration::from_secs(2));
    harm(&run);
    let said = run.ended(5);
    assert!(said.starts_with("error: task "), "{said}");
    assert!(said.contains(words), "{said}");
    assert_kept(&place, &said);
    // Links that are as fast as they go change no token.
    place.text("run --plan plan.json -o out.jsonl --resume");
    place.text("run --plan plan.json -o whole.jsonl");
    assert_eq!(place.read("out.jsonl"), place.read("whole.jsonl"));
}

#[test]
fn a_disk_that_takes_no_more_costs_no_tokens() {
    let full = |run: &SlowRun| run.tell("prlimit", &["--fsize=4096", "--pid"]);
    assert_harm_is_survived("20 40 0 50 0 100", full, "write at byte");
}

#[test]
fn a_disk_that_is_cut_short_costs_no_tokens() {
    let cut = |run: &SlowRun| drop(std::fs::File::create(run.disk_file()).unwrap());
    // Nothing is written, which would make the file as long again.
    assert_harm_is_survived("20 40 0 100 0 100", cut, "truncated");
}

#[test]
fn a_model_that_cannot_be_computed_here_says_so() {
    let place = Place::new();
    let plan = format!("simulate --hw t4 --model gpt-j-6b {POLICY} -o plan.json");
    place.text(&plan);
    place.refused("run --plan plan.json", 5, &["gpt-j-6b"]);
    // Nor is the machine measured for it, or for more tokens than the model sees.
    let long = format!("run --model {} --gen-len 128", tiny_opt());
    place.refused(
        &long,
        2,
        &["--gen-len 128: tiny-opt sees 128", "less than 128"],
    );
    place.refused("run --model gpt-j-6b", 5, &["gpt-j-6b"]);
}

#[test]
fn a_plan_for_more_memory_than_there_is_says_what_to_do() {
    let place = Place::new();
    let large = SMALL.replace("60e6", "60e9").replace("400e6", "1e15");
    place.write("large.toml", &small_machine(&large));
    place.text(
        "simulate --hw large.toml --model opt-30b --prompt-len 16 --gen-len 2 \
         --gpu-batch-size 1 --num-gpu-batches 1 --percent 0 100 0 100 0 100 -o plan.json",
    );
    let plan = std::fs::read_to_string(place.path("plan.json")).unwrap();
    // Tens of terabytes of weights, on a machine with a small device.
    let wide = plan.replace("\"num_hidden_layers\": 48", "\"num_hidden_layers\": 60000");
    assert_ne!(plan, wide);
    place.write("plan.json", &wide);
    let words = ["of this machine's memory", "free", "plimsoll profile -o"];
    place.refused("run --plan plan.json", 5, &words);
}

#[test]
fn a_compressed_plan_is_run_as_it_was_planned() {
    let place = Place::new();
    tiny_plan(&place);
    let run = format!("run --plan plan.json --model {} --format json", tiny_opt());
    let whole = place.json(&run);
    let simulate = format!(
        "simulate --hw small.toml --model {} --dtype f32 {POLICY} -o plan.json",
        tiny_opt()
    );
    for flags in ["--compress-weight", "--compress-cache --compress-weight"] {
        place.text(&format!("{simulate} {flags}"));
        let result = place.json(&run);
        let outputs = result["outputs"].as_array().unwrap();
        assert_eq!(outputs.len(), 4, "{flags}");
        assert!(
            outputs
                .iter()
                .all(|o| o["generated_token_ids"].as_array().unwrap().len() == 3)
        );
        let peak = |result: &Value| result["prediction"]["peak_bytes"]["host"].as_u64().unwrap();
        assert!(peak(&result) < peak(&whole), "{flags}");
        assert_eq!(place.json(&run)["outputs"], result["outputs"], "{flags}");
    }
}
