//! `replay --predictor` and `replay --sweep`, `workload describe`: what they learn, write and refuse.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

fn plimsoll(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::cargo_bin("plimsoll").expect("built");
    let output = command
        .current_dir(folder)
        .args(args)
        .output()
        .expect("runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().expect("an exit code");
    (code, text(&output.stdout), text(&output.stderr))
}

fn replay(folder: &TempDir, more: &[&str]) -> (i32, String, String) {
    let flags = [
        "replay", "--hw", "gh200", "--model", "opt-13b", "--trace", "t.jsonl",
    ];
    plimsoll(folder.path(), &[&flags[..], more].concat())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Every second request asks for a list, whose answer is long; the prompt says so where `prompt` writes it.
fn write_trace(folder: &TempDir, prompt: impl Fn(usize) -> Option<String>) {
    let mut text = String::new();
    for id in 0..300_usize {
        let output = if id.is_multiple_of(2) { 60 } else { 260 };
        let prompt = prompt(id).map_or(String::new(), |it| format!(", \"prompt\": {it}"));
        writeln!(
            text,
            "{{\"timestamp\": {}, \"input_length\": 20, \"output_length\": {output}{prompt}}}",
            id as f64 * 0.5
        )
        .expect("text");
    }
    fs::write(folder.path().join("t.jsonl"), text).expect("written");
}

fn score(of: &Value) -> [f64; 2] {
    ["accuracy", "commonest_accuracy"].map(|key| of["prediction"][key].as_f64().expect("a share"))
}

#[test]
fn lengths_of_answers_are_learnt_from_texts_and_from_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let text = |id: usize| {
        let kind = if id.is_multiple_of(2) { "Name" } else { "List" };
        Some(format!("\"{kind} what number {id} is.\""))
    };
    let tokens = |id: usize| Some(format!("[{}, 7, {}]", id % 2, id + 100));
    let learn = ["--manager", "s3", "--predictor", "learned"];
    let learn = [&learn[..], &["--max-len", "400", "--format", "json"]].concat();
    for prompt in [&text as &dyn Fn(usize) -> Option<String>, &tokens] {
        write_trace(&folder, prompt);
        let described = ["workload", "describe", "t.jsonl", "--format", "json"];
        let (code, out, said) = plimsoll(folder.path(), &described);
        assert_eq!((code, said.as_str()), (0, ""));
        let out = json(&out);
        assert_eq!(out["prompts_with_text"], 300);
        let [learnt, commonest] = score(&out);
        assert!(learnt > 0.95 && commonest < 0.6, "{out}");

        let (code, out, said) = replay(&folder, &learn);
        assert_eq!((code, said.as_str()), (0, ""));
        let found = json(&out);
        assert_eq!(found["prediction"]["answers"], 300);
        let [learnt, commonest] = score(&found);
        assert!(learnt > 0.85 && commonest < 0.6, "{out}");
        assert_eq!(replay(&folder, &learn).1, out, "the same again");
    }
    // Without texts nothing tells them apart, and it says that it has none.
    write_trace(&folder, |_| None);
    let (_, out, _) = plimsoll(folder.path(), &["workload", "describe", "t.jsonl"]);
    assert!(out.contains("texts are not in the trace"), "{out}");
    let [learnt, commonest] = score(&json(&replay(&folder, &learn).1));
    assert!((learnt - commonest).abs() < 0.05, "{learnt}, {commonest}");
    write_trace(&folder, |_| Some("{}".to_owned()));
    let (code, _, said) = replay(&folder, &learn);
    assert_eq!((code, said.lines().count()), (4, 1), "{said}");
    assert!(said.contains("line 1") && said.contains("prompt"), "{said}");
}

#[test]
fn a_predictor_is_told_what_it_needs_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    for flags in [
        &["--predictor", "classifier"][..],
        &["--predictor", "learned", "--accuracy", "0.9"],
        &["--predictor", "oracle", "--accuracy", "0.9"],
        &["--predictor", "oracle", "--distance", "1.03"],
        &["--accuracy", "0.9", "--distance", "0.5"],
        &["--wrong", "short"],
        &["--predictor", "guess"],
    ] {
        let (code, out, said) = replay(&folder, &[&["--manager", "s3"], flags].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{flags:?}: {said}");
    }
    let both = ["--predictor", "classifier", "--accuracy", "0.9"];
    let (code, out, _) = replay(&folder, &[&["--manager", "s3"], &both[..]].concat());
    assert!(code == 0 && out.contains("accuracy 0.9"), "{out}");
}

#[test]
fn a_sweep_has_a_row_and_a_point_for_each_value() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("written");
    let column = |csv: &str, name: &str| -> Vec<f64> {
        let mut reader = csv::Reader::from_reader(csv.as_bytes());
        let place = reader
            .headers()
            .expect("a header")
            .iter()
            .position(|h| h == name);
        let place = place.expect("a column");
        let rows = reader
            .records()
            .map(|row| row.expect("a row")[place].parse());
        rows.map(|number| number.expect("a number")).collect()
    };
    for (what, values, rising) in [
        ("rate", vec![0.5, 2.0, 40.0], "output_tokens_per_s"),
        ("kv-gb", vec![0.5, 1.0, 4.0], "average_batch"),
        ("expansion", vec![1.0, 1.4, 1.8], "output_tokens_per_s"),
    ] {
        let list: Vec<String> = values.iter().map(f64::to_string).collect();
        let sweep = format!("{what}={}", list.join(","));
        let files = ["-o", "s.csv", "-o", "s.svg", "-o", "s.png"];
        let mut flags = vec!["--sweep", sweep.as_str()];
        match what {
            "expansion" => flags.extend(["--manager", "pie", "--kv-gb", "1", "--clients", "200"]),
            "kv-gb" => flags.extend(["--clients", "200"]),
            _ => {}
        }
        let (code, out, said) = replay(&folder, &[&flags[..], &files].concat());
        assert_eq!((code, said.as_str()), (0, ""), "{what}");
        let csv = read("s.csv");
        assert_eq!(column(&csv, &what.replace('-', "_")), values, "{what}");
        assert_eq!(column(&csv, "completed"), [300.0; 3], "{what}");
        let figures = column(&csv, rising);
        assert!(figures.is_sorted_by(|a, b| a < b), "{what}: {figures:?}");
        assert_eq!(
            read("s.svg").matches("<circle").count(),
            values.len() + 1,
            "{what}"
        );
        let png = fs::read(folder.path().join("s.png")).expect("written");
        assert!(png.starts_with(b"\x89PNG"), "{what}");
        assert_eq!(out.lines().count(), 3 + values.len(), "{out}");
    }
}

#[test]
fn a_sweep_that_changes_nothing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    for (flags, remedy) in [
        (&["--sweep", "expansion=1,2"][..], "--manager pie"),
        (
            &["--sweep", "rate=1,2", "--clients", "5"],
            "give a trace with times",
        ),
        (&["--sweep", "kv-gb=1,x"], "numbers with commas"),
        (
            &["--sweep", "kv-gb=-1"],
            "give finite numbers above 0, such as kv-gb=",
        ),
        (
            &["--sweep", "rate=1,0"],
            "give finite numbers above 0, such as rate=",
        ),
        (&["--sweep", "size=1"], "rate, kv-gb or expansion"),
        (
            &["--sweep", "expansion=0.5", "--manager", "pie"],
            "expansions of at least 1",
        ),
        (
            &["--sweep", "rate=1", "--per-request", "r.csv"],
            "--per-request",
        ),
        (
            &["--sweep", "kv-gb=1,2", "--kv-gb", "2"],
            "--kv-gb is what --sweep changes",
        ),
        (
            &[
                "--sweep",
                "expansion=1,2",
                "--expansion",
                "2",
                "--manager",
                "pie",
            ],
            "--expansion is what --sweep changes",
        ),
    ] {
        let (code, out, said) = replay(&folder, flags);
        assert_eq!((code, out.as_str()), (2, ""), "{flags:?}");
        assert!(said.contains(remedy), "{flags:?}: {said}");
    }
    assert!(!folder.path().join("s.csv").exists());
}

#[test]
fn flags_of_another_manager_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    for (manager, flags, whose) in [
        ("vllm", &["--predictor", "oracle"][..], "s3"),
        ("vllm", &["--expansion", "2"], "pie"),
        ("vllm", &["--max-len", "400"], "orca or s3"),
        ("orca", &["--preemption", "swap"], "vllm"),
        ("orca", &["--reserve", "output"], "s3"),
        ("s3", &["--probe-after", "3"], "pie"),
        ("pie", &["--buckets", "3"], "s3"),
    ] {
        let (code, out, said) = replay(&folder, &[&["--manager", manager], flags].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{flags:?}: {said}");
        let wanted = format!("{} is of --manager {whose}, and {manager}", flags[0]);
        assert!(said.contains(&wanted), "{said}");
    }
}

#[test]
fn what_only_real_serving_goes_by_is_refused_without_it() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    for flags in [["--seed", "3"], ["--backend", "cpu"]] {
        let all = [&["--manager", "vllm", "--kv-gb", "9"], &flags[..]].concat();
        let (code, out, said) = replay(&folder, &all);
        assert_eq!((code, out.as_str()), (2, ""), "{said}");
        assert!(said.contains("--execute"), "{said}");
    }
}

#[test]
fn nothing_is_longer_than_the_models_positions() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    for manager in ["orca", "s3"] {
        let flags = |max_len| ["--manager", manager, "--kv-gb", "9", "--max-len", max_len];
        let (code, out, said) = replay(&folder, &flags("2049"));
        assert_eq!((code, out.as_str()), (2, ""), "{said}");
        assert!(
            said.contains("--max-len 2049") && said.contains("2048 positions"),
            "{said}"
        );
        let (code, _, said) = replay(&folder, &flags("2048"));
        assert_eq!(code, 0, "{said}");
    }
}

#[test]
fn what_the_controller_goes_by_is_refused_where_expansions_are_given() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    let probes = ["--manager", "pie", "--probe-after", "9"];
    for given in [["--expansion", "1.4"], ["--sweep", "expansion=1.2,1.4"]] {
        let (code, out, said) = replay(&folder, &[&probes[..], &given].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{said}");
        assert!(
            said.contains("--probe-after is of --expansion auto"),
            "{said}"
        );
    }
}

#[test]
fn device_threads_are_those_of_what_is_executed() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    let (code, out, said) = replay(&folder, &["--device-threads", "2"]);
    assert_eq!((code, out.as_str()), (2, ""), "{said}");
    assert!(said.contains("give that as well"), "{said}");
}

#[test]
fn an_expansion_that_cannot_be_had_is_refused_with_the_largest() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    let pie = ["--manager", "pie"];
    let (code, _, said) = replay(&folder, &[&pie[..], &["--expansion", "22.1"]].concat());
    // 40 layers: 44 / 2.
    assert!(code == 2 && said.contains("it is 22;"), "{said}");
    // Of a sweep, the other values are served.
    let (code, out, said) = replay(
        &folder,
        &[&pie[..], &["--sweep", "expansion=1,22.1"]].concat(),
    );
    assert_eq!((code, out.lines().count()), (0, 5), "{out}");
    assert!(
        said.starts_with("expansion 22.1: no request can be served: with the caches"),
        "{said}"
    );
    // Layers that the host has no room for: 7.1 GB of 5.7.
    let small = "name = \"small\"\nextends = \"gh200\"\n[sources.sheet]\nkind = \"datasheet\"\n\
         from = \"nowhere\"\ndate = \"2026-11-27\"\n[tiers.host_capacity_bytes]\nvalue = 10e9\n\
         source = \"sheet\"\n";
    fs::write(folder.path().join("small.toml"), small).unwrap();
    let on_small = |more: &[&str]| {
        let line = [
            "replay",
            "--hw",
            "small.toml",
            "--model",
            "opt-13b",
            "--trace",
            "t.jsonl",
        ];
        let pie = ["--manager", "pie", "--kv-gb", "5"];
        plimsoll(folder.path(), &[&line[..], &pie, more].concat())
    };
    let (code, out, said) = on_small(&["--expansion", "2.6"]);
    assert_eq!((code, out.as_str()), (3, ""), "{said}");
    assert!(said.contains("of the host's memory, which holds"), "{said}");
    let (_, out, _) = on_small(&["--expansion", "2.6", "--format", "json"]);
    assert!(out.contains("infeasible"), "{out}");
    let (code, out, said) = on_small(&["--sweep", "expansion=1.2,2.6"]);
    assert_eq!((code, out.lines().count()), (0, 5), "{out}");
    assert!(said.starts_with("expansion 2.6: no request"), "{said}");
    let swept = [
        "--manager",
        "pie",
        "--kv-gb",
        "5",
        "--sweep",
        "expansion=22",
    ];
    let (code, out, said) = replay(&folder, &swept);
    assert_eq!(code, 0, "{said}");
    assert!(out.starts_with("opt-13b in f16 on gh200, pie\n"), "{out}");
}

#[test]
fn a_cache_that_the_weights_leave_no_room_for_is_refused_swept_or_not() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    let (code, out, said) = replay(&folder, &["--kv-gb", "300"]);
    assert_eq!((code, out.as_str()), (3, ""), "{said}");
    assert!(said.contains("300: the weights leave"), "{said}");
    let (code, out, _) = replay(&folder, &["--kv-gb", "300", "--format", "json"]);
    let why = json(&out)["infeasible"]["why"].to_string();
    assert!(code == 3 && why.contains("300: the weights leave"), "{out}");
    let swept = ["--sweep", "kv-gb=3,300", "--format", "json"];
    let (code, out, said) = replay(&folder, &swept);
    assert!(
        code == 0 && said.contains("kv-gb 300: no request can be served: the weights leave"),
        "{said}"
    );
    let rows = json(&out)["rows"].clone();
    assert_eq!(rows[0]["refusal"], Value::Null);
    assert_eq!(rows[1]["completed"].as_u64(), Some(0));
    assert_eq!(rows[1]["refused"], rows[0]["completed"]);
}

/// A request of some thousand tokens has no room where shorter ones have.
#[test]
fn a_sweep_says_why_some_were_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    let trace = folder.path().join("t.jsonl");
    let long = "{\"timestamp\": 150, \"input_length\": 1900, \"output_length\": 100}\n";
    let all = fs::read_to_string(&trace).expect("read") + long;
    fs::write(trace, all).expect("written");
    let swept = ["--sweep", "kv-gb=0.5,3"];
    let (code, _, said) = replay(&folder, &swept);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.starts_with("kv-gb 0.5: 1 refused: the first needs"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// 0.82 MB a token: 245 fit into 0.2 GB, and 280 into the half more that the host has.
#[test]
fn a_stated_expansion_serves_what_the_gpus_part_alone_could_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    let served = |expansion: &str| {
        let pie = ["--manager", "pie", "--kv-gb", "0.2", "--format", "json"];
        let (code, out, said) = replay(&folder, &[&pie[..], &["--expansion", expansion]].concat());
        assert_eq!(code, 0, "{said}");
        json(&out)["completed"].as_u64().expect("a number")
    };
    assert_eq!(
        (served("1"), served("1.6"), served("auto")),
        (150, 300, 150)
    );
}

#[test]
fn a_model_in_a_type_without_rates_is_said_to_have_anothers() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    let line = "replay --hw t4 --model opt-1.3b --trace t.jsonl --dtype bf16 --format json";
    let flags: Vec<&str> = line.split_whitespace().collect();
    let (_, out, said) = plimsoll(folder.path(), &flags);
    assert!(
        said.contains("has no rates of matrix products in bf16: predicted with those in f16"),
        "{said}"
    );
    assert_eq!(json(&out)["rates_of"], "f16");
    let (_, out, said) = replay(&folder, &["--format", "json"]);
    assert_eq!((said.as_str(), json(&out).get("rates_of")), ("", None));
}

#[test]
fn where_nothing_is_served_a_sweep_knows_no_times() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |_| None);
    let sweep = ["--sweep", "kv-gb=0.00001,1"];
    let (code, out, _) = replay(&folder, &[&sweep[..], &["--format", "json"]].concat());
    let (said, rows) = (json(&out), json(&out)["rows"].clone());
    let about = ["hardware", "model", "manager", "swept"].map(|key| said[key].clone());
    assert_eq!(about, ["gh200", "opt-13b", "vllm (recompute)", "kv-gb"]);
    assert_eq!((code, rows[0]["completed"].as_u64()), (0, Some(0)));
    assert_eq!(rows[0]["ttft_s_mean"], Value::Null);
    assert!(
        rows[0]["refusal"]
            .as_str()
            .is_some_and(|why| why.contains("needs")),
        "{out}"
    );
    assert_eq!(rows[1]["refusal"], Value::Null);
    assert!(rows[1]["ttft_s_mean"].as_f64().expect("a time") > 0.0);
    let (_, out, said) = replay(&folder, &sweep);
    assert!(out.lines().any(|line| line.contains(" - ")), "{out}");
    assert!(
        said.starts_with("kv-gb 0.00001: no request can be served: the first needs"),
        "{said}"
    );
    // And where that is all, it is an answer as that of one replay.
    let (code, out, said) = replay(&folder, &["--sweep", "kv-gb=0.00001,0.00002"]);
    assert_eq!((code, out.lines().count()), (3, 5), "{out}");
    assert!(
        said.starts_with("error: kv-gb 0.00001: no request can be served: the first needs"),
        "{said}"
    );
}

/// What cannot be drawn is not cut, nor is written what nothing reads.
#[test]
fn traces_that_there_are_not_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let generate = ["workload", "generate", "-o", "t.csv", "--requests", "3"];
    for (flags, words) in [
        (
            &[
                "--arrivals",
                "at-once",
                "--prompt",
                "constant:100",
                "--total-max",
                "50",
            ][..],
            "--total-max: of 1000 draws",
        ),
        (&["--rate", "1e-300"], "give a higher rate"),
    ] {
        let (code, _, said) = plimsoll(folder.path(), &[&generate[..], flags].concat());
        assert!(code == 2 && said.contains(words), "{said}");
        assert!(!folder.path().join("t.csv").exists());
    }
    // As a flag too, as replay has it.
    write_trace(&folder, |_| None);
    let (code, out, said) = plimsoll(
        folder.path(),
        &["workload", "describe", "--trace", "t.jsonl"],
    );
    assert_eq!(code, 0, "{said}");
    assert!(out.starts_with("300 requests"), "{out}");
    for (text, words) in [
        (
            "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n{\"timestamp\": 1",
            "line 2: is no JSON object: EOF while parsing an object at column 15",
        ),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens\ninf,1,1\n",
            "line 2: `inf` is no time; give a time",
        ),
    ] {
        fs::write(folder.path().join("t"), text).expect("written");
        let (_, _, said) = plimsoll(folder.path(), &["workload", "describe", "t"]);
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_wrong_prompt_is_told_what_a_prompt_is() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder, |id| (id == 1).then(|| "5".to_owned()));
    let (code, _, said) = replay(&folder, &[]);
    assert_eq!((code, said.lines().count()), (4, 1), "{said}");
    assert!(
        said.contains("line 2") && said.contains("a list of token ids, or leave"),
        "{said}"
    );
}

#[test]
fn arrivals_with_a_rate_need_one() {
    let folder = tempfile::tempdir().unwrap();
    let generate = ["workload", "generate", "--rate", "1", "-o", "w.json"];
    let (code, out, said) = plimsoll(folder.path(), &generate);
    assert_eq!((code, out.as_str()), (2, ""), "{said}");
    assert!(said.contains(".csv") && said.contains(".jsonl"), "{said}");
    assert!(!folder.path().join("w.json").exists());
    let (code, out, said) = plimsoll(folder.path(), &["workload", "generate"]);
    assert_eq!((code, out.as_str()), (2, ""), "{said}");
    assert!(
        said.contains("--rate") && said.contains("at-once"),
        "{said}"
    );
    let minus = ["workload", "generate", "--rate", "-1"];
    let (code, _, said) = plimsoll(folder.path(), &minus);
    assert!(
        code == 2 && said.contains("-1") && !said.contains("unexpected"),
        "{said}"
    );
}

#[test]
fn times_with_offsets_are_moments_and_flags_that_change_nothing_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let describe = |rows: &str| {
        let text = format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n");
        fs::write(folder.path().join("t.csv"), text).expect("written");
        plimsoll(folder.path(), &["workload", "describe", "t.csv"])
    };
    let (code, said, _) =
        describe("2024-05-10 00:00:00+00:00,10,5\n2024-05-10 02:00:01+02:00,10,5");
    assert_eq!(code, 0);
    assert!(said.starts_with("2 requests over 1.00 s"), "{said}");
    let (code, said, _) = describe("2024-05-10T00:00:00Z,10,5\n2024-05-10T00:00:02Z,10,5");
    assert_eq!(code, 0);
    assert!(said.starts_with("2 requests over 2.00 s"), "{said}");
    let (code, _, said) = describe("2024-05-10 00:00:00,10,5\n2024-05-10 00:00:01Z,10,5");
    assert_eq!(code, 4);
    assert!(said.contains("line 3") && said.contains("offset"), "{said}");
    let (code, _, said) = describe("2024-05-10 00:00:00,10,5\n100,10,5");
    assert_eq!(code, 4);
    assert!(said.contains("line 3") && said.contains("dates"), "{said}");
    let (code, _, said) = describe("2024-05-10 00:00:00,10,0");
    assert_eq!(code, 4);
    assert!(said.contains("GeneratedTokens is 0"), "{said}");
    let flags = ["workload", "generate", "--rate", "5", "--cv", "9"];
    let (code, _, said) = plimsoll(folder.path(), &flags);
    assert_eq!(code, 2);
    assert!(said.contains("--cv"), "{said}");
}
