//! `workload` and `replay` as a user meets them.

use std::fs;
use std::path::{Path, PathBuf};

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

fn written(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("written");
    path
}

const REPLAY: [&str; 7] = [
    "replay", "--hw", "gh200", "--model", "opt-13b", "--trace", "t.csv",
];

fn replay(folder: &TempDir, more: &[&str]) -> (i32, String, String) {
    plimsoll(folder.path(), &[&REPLAY[..], more].concat())
}

/// The same on a machine whose products have one rate.
fn replay_at_one_rate(folder: &TempDir, more: &[&str]) -> (i32, String, String) {
    let profile = "name = \"one\"\nextends = \"gh200\"\n\
        [sources.a]\nkind = \"datasheet\"\nfrom = \"a test\"\ndate = \"2026\"\n\
        [[compute.gemm]]\ndtype = \"f16\"\nflops_per_s = { points = [[1024, 800e12]], source = \"a\" }\n";
    written(folder, "one.toml", profile);
    let mut line = REPLAY.to_vec();
    line[2] = "./one.toml";
    plimsoll(folder.path(), &[&line[..], more].concat())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn what_is_generated_is_read_and_served() {
    let folder = tempfile::tempdir().unwrap();
    for (name, arrivals) in [("t.csv", "poisson"), ("t.jsonl", "gamma")] {
        let generate = [
            "workload",
            "generate",
            "--arrivals",
            arrivals,
            "--rate",
            "30",
        ];
        let rest = ["--requests", "200", "--seed", "5", "-o", name];
        let (code, _, said) = plimsoll(folder.path(), &[&generate[..], &rest].concat());
        assert_eq!((code, said.as_str()), (0, ""));
        let described = ["workload", "describe", name, "--format", "json"];
        let (code, out, _) = plimsoll(folder.path(), &described);
        assert_eq!((code, json(&out)["requests"].as_u64()), (0, Some(200)));
    }
    for manager in ["orca", "vllm"] {
        let flags = [
            "--manager",
            manager,
            "--per-request",
            "r.csv",
            "--format",
            "json",
        ];
        let (code, out, said) = replay(&folder, &flags);
        assert_eq!((code, said.as_str()), (0, ""));
        assert_eq!(json(&out)["completed"], 200);
        let rows = fs::read_to_string(folder.path().join("r.csv")).unwrap();
        assert_eq!(rows.lines().count(), 201);
        assert_eq!(
            replay(&folder, &flags).1,
            out,
            "the same input, the same answer"
        );
    }
}

#[test]
fn numbers_as_times_are_seconds_but_milliseconds_in_mooncakes_traces() {
    let folder = tempfile::tempdir().unwrap();
    let row = |time: u32, more: &str| {
        format!("{{\"timestamp\": {time}, \"input_length\": 10, \"output_length\": 20{more}}}\n")
    };
    let rows = |more: &str| row(27482, more) + &row(30535, more);
    let hashed = ", \"hash_ids\": [46, 47]";
    for (more, flags, seconds) in [
        (hashed, &[][..], 3.053),
        ("", &[], 3053.0),
        ("", &["--time-unit", "ms"], 3.053),
        (hashed, &["--time-unit", "s"], 3053.0),
    ] {
        written(&folder, "m.jsonl", &rows(more));
        let describe = ["workload", "describe", "m.jsonl", "--format", "json"];
        let (code, out, said) = plimsoll(folder.path(), &[&describe[..], flags].concat());
        assert_eq!(code, 0, "{said}");
        let found = json(&out)["duration_s"].as_f64().expect("a time");
        assert!((found - seconds).abs() < 1e-9, "{more} {flags:?}: {found}");
    }
    written(
        &folder,
        "m.jsonl",
        "{\"timestamp\": 1, \"input_length\": 10}\n",
    );
    let (code, _, said) = plimsoll(folder.path(), &["workload", "describe", "m.jsonl"]);
    assert!(code == 4 && said.contains("lacks output_length"), "{said}");
}

#[test]
fn traces_are_known_by_their_header() {
    let folder = tempfile::tempdir().unwrap();
    let texts = [
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,20\n1.5,30,40\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,10,20\n2023-11-16 18:15:47.6805900,30,40\n",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,,1.5,ChatGPT,10,20,30,API log\n6,,2,GPT-4,30,40,70,API log\n",
        "id,timestamp,input_length,output_length\na,0,10,20\nb,1,30,40\n",
        "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 20}\n\n{\"timestamp\": 1, \"input_length\": 30, \"output_length\": 40, \"hash_ids\": [1]}\n",
    ];
    for text in texts {
        let trace = written(&folder, "t.csv", text);
        let describe = [
            "workload",
            "describe",
            trace.to_str().unwrap(),
            "--format",
            "json",
        ];
        let (code, out, said) = plimsoll(folder.path(), &describe);
        assert_eq!(code, 0, "{text}: {said}");
        let found = json(&out);
        assert_eq!(found["duration_s"], 1.0, "{text}");
        assert_eq!(
            (&found["prompt_tokens"], &found["output_tokens"]),
            (&40.into(), &60.into())
        );
    }
}

#[test]
fn a_trace_may_come_on_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,20\n1,10,x\n";
    let replay = "replay --hw t4 --model opt-1.3b --trace -";
    for line in ["workload describe -", replay] {
        for (input, code) in [(&text[..text.len() - 7], 0), (text, 4)] {
            let mut command = Command::cargo_bin("plimsoll").unwrap();
            command.current_dir(folder.path()).args(line.split(' '));
            let output = command.write_stdin(input).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{line}: {said}");
            assert_eq!(said.contains("standard input: line 3"), code == 4, "{said}");
        }
    }
}

#[test]
fn a_wrong_trace_is_refused_by_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    for (rows, place, remedy) in [
        ("2,10,20\n1,10,20\n", "line 3", "sort requests by arrival"),
        ("-1,10,20\n", "line 2", "give a time"),
        ("nan,10,20\n", "line 2", "give a time"),
        ("0,0,20\n", "line 2", "at least 1"),
        ("0,10,0\n", "line 2", "at least 1"),
        ("0,10\n", "line 2", "at least 1"),
        ("0,10,5.5\n", "line 2", "at least 1"),
        ("", "line 1", "workload generate"),
        // Lines are those of an editor, empty ones and notes counted.
        ("1,2,3\n\n\n3,x,3\n", "line 5", "at least 1"),
        ("1,2,3\r\n\r\n# noon\r\n3,x,3\r\n", "line 5", "at least 1"),
        ("2,2,3\n\n# noon\n1,2,3\n", "line 5", "sort requests"),
    ] {
        written(&folder, "t.csv", &format!("{header}{rows}"));
        let (code, out, said) = replay(&folder, &["--per-request", "r.csv"]);
        assert_eq!((code, out.as_str()), (4, ""), "{rows}");
        assert!(
            said.contains("t.csv") && said.contains(place) && said.contains(remedy),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!folder.path().join("r.csv").exists());
    }
    for text in ["", "a,b,c\n1,2,3\n", "{\"timestamp\": 0}\n", "{broken\n"] {
        written(&folder, "t.csv", text);
        let (code, _, said) = replay(&folder, &[]);
        assert_eq!((code, said.lines().count()), (4, 1), "{said}");
    }
}

#[test]
fn a_request_that_never_fits_is_refused_by_name_and_the_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    written(
        &folder,
        "t.csv",
        &format!("{header}0,10,20\n0,1500,500\n0,3000,9\n1,10,20\n"),
    );
    let (code, out, said) = replay(&folder, &["--kv-gb", "1", "--format", "json"]);
    assert_eq!(code, 0, "{said}");
    let found = json(&out);
    assert_eq!(
        (&found["completed"], &found["refused"]),
        (&2.into(), &2.into())
    );
    assert!(
        said.contains("request 1 is refused") && said.contains("--kv-gb"),
        "{said}"
    );
    assert!(
        said.contains("request 2 is refused") && said.contains("positions"),
        "{said}"
    );
    assert_eq!(found["refused_requests"][0]["request"], 1);
    // Not even one fits.
    let (code, out, said) = replay(&folder, &["--kv-gb", "0.001"]);
    assert_eq!((code, out.as_str()), (3, ""));
    assert!(said.contains("no request can be served"), "{said}");
    let orca = ["--manager", "orca", "--kv-gb", "1"];
    let (code, _, said) = replay(&folder, &orca);
    assert_eq!(code, 3, "{said}");
    let (code, _, said) = replay(&folder, &["--kv-gb", "500"]);
    assert_eq!((code, said.lines().count()), (3, 1), "{said}");
    for wrong in [["--kv-gb", "-3"], ["--kv-gb", "x"], ["--clients", "0"]] {
        assert_eq!(replay(&folder, &wrong).0, 2);
    }
}

#[test]
fn a_replay_says_where_the_profile_knows_one_rate_only() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..40).map(|i| format!("{i},500,20\n")).collect();
    written(
        &folder,
        "t.csv",
        &format!("arrived_at,num_prefill_tokens,num_decode_tokens\n{text}"),
    );
    let (code, out, _) = replay_at_one_rate(&folder, &["--format", "json"]);
    assert_eq!(code, 0);
    let all = json(&out)["extrapolates"].clone();
    let gemm = all.as_array().expect("a list").iter();
    let gemm = gemm.filter(|it| it["curve"] == "compute.gemm.f16");
    let busy: Vec<f64> = gemm.filter_map(|it| it["busy_fraction"].as_f64()).collect();
    assert!(
        matches!(busy[..], [share] if share > 0.01 && share < 1.01),
        "{all}"
    );
    let (_, out, _) = replay_at_one_rate(&folder, &[]);
    assert!(out.contains("constants  one rate for all sizes"), "{out}");
}

/// Of long runs some iterations are looked at, of short ones all.
#[test]
fn what_a_long_replay_extrapolates_is_what_a_short_one_does() {
    let folder = tempfile::tempdir().unwrap();
    let share = |requests: u32| {
        let text: String = (0..requests).map(|i| format!("{i},1500,20\n")).collect();
        let head = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
        written(&folder, "t.csv", &format!("{head}{text}"));
        // One after another, so that all are alike.
        let flags = ["--clients", "1", "--format", "json"];
        let (code, out, _) = replay_at_one_rate(&folder, &flags);
        assert_eq!(code, 0);
        let all = json(&out)["extrapolates"].clone();
        let gemm = all.as_array().expect("a list").iter();
        let mut gemm = gemm.filter(|it| it["curve"] == "compute.gemm.f16");
        gemm.next().expect("products")["busy_fraction"]
            .as_f64()
            .expect("a share")
    };
    let (one, few, many) = (share(1), share(20), share(200));
    assert!((one / few - 1.0).abs() < 0.02 && few < 1.0, "{one} {few}");
    assert!((many / few - 1.0).abs() < 0.1, "{many} {few}");
}

#[test]
fn orca_says_where_it_reserves_far_more_than_requests_have() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,50\n0.5,200,60\n";
    written(&folder, "t.csv", rows);
    let orca = |more: &[&str]| replay(&folder, &[&["--manager", "orca"], more].concat());
    // There is room for more.
    let (code, _, said) = orca(&["--kv-gb", "20"]);
    assert_eq!((code, said.as_str()), (0, ""));
    let (code, out, said) = orca(&["--kv-gb", "3"]);
    assert_eq!((code, said.lines().count()), (0, 1), "{said}");
    for word in ["2048 positions", "more than 260 tokens", "--max-len 260"] {
        assert!(said.contains(word), "{said}");
    }
    assert!(out.contains("orca (max length 2048)"), "{out}");
    let (code, _, said) = orca(&["--kv-gb", "3", "--max-len", "260"]);
    assert_eq!((code, said.as_str()), (0, ""));
}

#[test]
fn s3_says_where_prompts_that_no_room_was_made_for_take_more_than_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let row = "0,500,20\n";
    let rows = "arrived_at,num_prefill_tokens,num_decode_tokens\n".to_owned() + &row.repeat(40);
    written(&folder, "t.csv", &rows);
    for (reserve, lines) in [("output", 1), ("all", 0)] {
        let flags = ["--manager", "s3", "--kv-gb", "1", "--reserve", reserve];
        let (code, _, said) = replay(&folder, &flags);
        assert_eq!((code, said.lines().count()), (0, lines), "{said}");
        assert!(said.is_empty() || said.contains("--reserve all"), "{said}");
    }
}

#[test]
fn what_is_not_served_as_it_was_asked_for_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    written(
        &folder,
        "t.csv",
        &(header.to_owned() + "0,100,20\n0,50,150\n"),
    );
    let s3 = |max_len: &str| {
        let flags = ["--manager", "s3", "--accuracy", "1", "--max-len", max_len];
        let (code, _, said) = replay(&folder, &flags);
        assert_eq!(code, 0, "{said}");
        said
    };
    assert!(s3("100").contains("1 answer of more than the 100 tokens of --max-len"));
    assert_eq!(s3("150"), "");
    let pie = |expansion: &str| {
        let flags = ["--manager", "pie", "--kv-gb", "3", "--expansion", expansion];
        let (code, _, said) = replay(&folder, &flags);
        assert_eq!(code, 0, "{said}");
        said
    };
    assert_eq!(pie("1"), "");
    let said = pie("18");
    assert!(
        said.contains("expansion of 14.67 of 18, the nearest that there is"),
        "{said}"
    );
}

#[test]
fn another_memory_leaves_another_cache() {
    let folder = tempfile::tempdir().unwrap();
    let trace = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,20\n1,10,20\n";
    written(&folder, "t.csv", trace);
    let of = |more: &[&str]| {
        let more = [more, &["--format", "json"]].concat();
        json(&replay(&folder, &more).1)
    };
    let kv = |it: &Value| it["kv_bytes"].as_u64().expect("bytes");
    let (whole, less) = (of(&[]), of(&["--device-gb", "40"]));
    assert!(kv(&less) + (40 << 30) < kv(&whole), "{less}");
    assert_eq!(less["if_it_had"]["device_gb"], 40.0);
    assert_eq!(whole["if_it_had"]["device_gb"], Value::Null);
    let (code, text, _) = replay(&folder, &["--device-gb", "40", "--sweep", "rate=1,2"]);
    assert_eq!(code, 0);
    assert!(
        text.contains("gh200 if it had 40.0 GB of device memory"),
        "{text}"
    );
    let (code, _, said) = replay(&folder, &["--device-gb", "20"]);
    assert_eq!(code, 3, "{said}");
}

#[test]
fn answers_of_one_token_have_nothing_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    written(&folder, "t.csv", &(header.to_owned() + "0,100,1\n1,50,1\n"));
    let (code, out, said) = replay(&folder, &["--per-request", "r.csv"]);
    assert_eq!((code, said.as_str()), (0, ""));
    for name in ["a token after it, s", "between tokens, s"] {
        let line = out.lines().find(|line| line.starts_with(name)).expect(name);
        assert!(line.ends_with(" -") && !line.contains('0'), "{line}");
    }
    assert!(!out.contains("e-"), "differences of times: {out}");
    let rows = fs::read_to_string(folder.path().join("r.csv")).unwrap();
    assert!(rows.starts_with("run,request,"), "{rows}");
    assert!(
        rows.lines()
            .skip(1)
            .all(|row| row.starts_with("predicted,")),
        "{rows}"
    );
}

#[test]
fn weights_that_do_not_fit_may_in_4_bits() {
    let folder = tempfile::tempdir().unwrap();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    written(&folder, "t.csv", &(header.to_owned() + "0,100,20\n"));
    let serve = |model: &str, more: &[&str]| {
        let flags = [
            "replay", "--hw", "rtx4090", "--trace", "t.csv", "--model", model,
        ];
        plimsoll(folder.path(), &[&flags, more].concat())
    };
    let (code, _, said) = serve("qwen3-32b", &[]);
    assert_eq!(code, 3, "{said}");
    assert!(
        said.contains("take --compress-weight (4 bits), a smaller"),
        "{said}"
    );
    let (code, _, said) = serve("opt-175b", &[]);
    assert!(code == 3 && said.contains("take a smaller model"), "{said}");
    let (code, out, said) = serve("qwen3-32b", &["--compress-weight"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("guessed from its memory's rate"), "{said}");
    assert!(
        out.starts_with("qwen3-32b in f16 (weights in 4 bits) on rtx4090"),
        "{out}"
    );
    let (_, out, _) = serve("qwen3-32b", &["--compress-weight", "--format", "json"]);
    assert_eq!(json(&out)["compression"]["weights"], Value::Bool(true));
}

#[test]
fn a_trace_is_served_for_real_as_it_was_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [(0.0, 40, 30), (0.0, 9, 40), (0.001, 1, 25), (0.002, 30, 1)];
    let rows = rows.map(|(at, prompt, answer)| format!("{at},{prompt},{answer}\n"));
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    written(&folder, "t.csv", &(header.to_owned() + &rows.concat()));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("backend/tests/fixtures/tiny-opt");
    let execute = |manager: &[&str]| {
        let model = model.to_str().expect("a path");
        let flags = ["replay", "--hw", "t4", "--trace", "t.csv", "--model", model];
        let rest = ["--dtype", "f32", "--execute", "--format", "json"];
        plimsoll(folder.path(), &[&flags, manager, &rest].concat())
    };
    // Room for 96 tokens: whoever came last has to leave.
    let kv = "0.00015";
    for manager in [
        &["--manager", "vllm", "--kv-gb", kv][..],
        &["--manager", "vllm", "--kv-gb", kv, "--compress-weight"],
        &["--manager", "vllm", "--preemption", "swap", "--kv-gb", kv],
        &["--manager", "orca", "--max-len", "70", "--kv-gb", "0.0003"],
        &["--manager", "pie", "--kv-gb", "0.0003"],
        // Half of the answers outgrow their room: who is sent away comes back with the same iteration.
        &[
            "--manager",
            "s3",
            "--accuracy",
            "0.5",
            "--max-len",
            "128",
            "--kv-gb",
            "0.0002",
        ],
    ] {
        let (code, out, said) = execute(manager);
        // A T4's profile says nothing of this machine.
        let warning = "warning: t4 is not of a machine with this device";
        assert_eq!(code, 0, "{manager:?}: {said}");
        let packed = said.contains("unpacked before each product, as t4 has it");
        assert_eq!(packed, manager.contains(&"--compress-weight"), "{said}");
        assert!(
            said.contains(warning) && said.lines().count() == 1 + usize::from(packed),
            "{said}"
        );
        let out = json(&out);
        assert!(out.get("pace").is_none() && out.get("predicted_at_pace").is_none());
        let measured = &out["measured"];
        for figure in ["completed", "output_tokens"] {
            assert_eq!(out[figure], measured[figure], "{manager:?}, {figure}");
        }
        let preempted = measured["preemptions"].as_u64() > Some(0);
        let leaves = manager.contains(&"vllm") || manager.contains(&"s3");
        assert_eq!(preempted, leaves, "{manager:?}: {out}");
    }
    let (code, _, said) = execute(&["--manager", "s3", "--reserve", "output"]);
    assert_eq!(code, 2);
    assert!(said.contains("--reserve all"), "{said}");
}

/// A column of a table.
fn column(csv: &str, name: &str) -> Vec<String> {
    let mut lines = csv.lines().map(|line| line.split(','));
    let mut header = lines.next().expect("a header");
    let at = header.position(|it| it == name).expect("the column");
    let cells = lines.map(|mut line| line.nth(at).expect("as many columns").to_owned());
    cells.collect()
}

#[test]
fn a_prompt_as_long_as_an_iteration_may_be_is_computed_beside_who_decodes() {
    let folder = tempfile::tempdir().unwrap();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    let rate = |prompt: u32, more: &[&str]| {
        let rows = format!("0,{prompt},200\n").repeat(6);
        written(&folder, "t.csv", &(header.to_owned() + &rows));
        let args = "replay --hw h100 --model llama-3.1-8b --trace t.csv --kv-gb 30 --format json";
        let args: Vec<&str> = args.split(' ').chain(more.iter().copied()).collect();
        let (code, out, said) = plimsoll(folder.path(), &args);
        assert_eq!(code, 0, "{said}");
        json(&out)["output_tokens_per_s"].as_f64().expect("a rate")
    };
    for manager in ["orca", "s3", "vllm"] {
        for prompt in [8190, 8192, 16000] {
            let limits = [
                &["--manager", manager][..],
                &["--manager", manager, "--max-tokens", "17000"],
            ];
            let [usual, all] = limits.map(|flags| rate(prompt, flags));
            assert!(
                (usual / all - 1.0).abs() < 0.1,
                "{manager}, {prompt}: {usual}, {all}"
            );
        }
    }
}

#[test]
fn traffic_is_said_and_what_changes_over_time_is_written_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    written(
        &folder,
        "t.csv",
        &(header.to_owned() + &"0,160,300\n".repeat(200)),
    );
    let pie = ["--manager", "pie", "--kv-gb", "3", "--probe-after", "50"];
    let traffic = ["--traffic", "4..1000:300"];
    let files = ["--per-iteration", "it.csv", "-o", "it.svg", "-o", "it.png"];
    let json_format = ["--format", "json"];
    let (code, out, said) = replay(
        &folder,
        &[&pie[..], &traffic, &files, &json_format].concat(),
    );
    assert_eq!((code, said.as_str()), (0, ""));
    let out = json(&out);
    let expected =
        serde_json::json!([{"from_s": 4.0, "to_s": 1000.0, "gb_s": 300.0, "ways": "both ways"}]);
    assert_eq!(out["traffic"], expected);
    let csv = fs::read_to_string(folder.path().join("it.csv")).unwrap();
    let iterations = column(&csv, "iteration");
    assert_eq!(Some(iterations.len() as u64), out["iterations"].as_u64());
    let number = |cell: &String| cell.parse::<f64>().expect("a number");
    let [began, expansion] = ["began_s", "expansion"].map(|name| {
        let cells = column(&csv, name);
        cells.iter().map(number).collect::<Vec<f64>>()
    });
    let at = |time: f64| expansion[began.partition_point(|began| *began <= time) - 1];
    let calm = replay(&folder, &[&pie[..], &json_format].concat()).1;
    let last = |out: &Value| {
        out["layers"]["expansions"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .clone()
    };
    assert!(at(4.0) > 1.0 && expansion.last() < Some(&at(4.0)), "{out}");
    assert!(last(&json(&calm))[1].as_f64() > last(&out)[1].as_f64());
    let svg = fs::read_to_string(folder.path().join("it.svg")).unwrap();
    assert!(svg.contains("waiting, % of time") && svg.contains("predicted"));
    assert!(folder.path().join("it.png").metadata().unwrap().len() > 1000);
    let text = replay(&folder, &[&pie[..], &traffic].concat()).1;
    assert!(
        text.contains("300 GB/s both ways from 4 s to 1000 s"),
        "{text}"
    );
    for (wrong, expected) in [
        ("4..3:1", "FROM..TO:GB_S"),
        ("0..1:9000", "leave nothing of h2d"),
        ("0..1:9000:d2h", "leave nothing of d2h"),
    ] {
        let (code, _, said) = replay(&folder, &["--traffic", wrong]);
        assert_eq!(code, 2);
        assert!(
            said.contains(expected) && said.contains("--traffic"),
            "{said}"
        );
    }
}

#[test]
fn a_run_beside_traffic_is_compared_at_the_machines_pace() {
    let folder = tempfile::tempdir().unwrap();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    written(
        &folder,
        "t.csv",
        &(header.to_owned() + &"0,9,40\n".repeat(6)),
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let [model, hw] = [
        "backend/tests/fixtures/tiny-opt",
        "experiments/cpu-validation/2026-11-22/profile.toml",
    ]
    .map(|path| root.join(path).display().to_string());
    let run = |more: &[&str]| {
        let flags = [
            "replay",
            "--hw",
            &hw,
            "--trace",
            "t.csv",
            "--model",
            &model,
            "--execute",
        ];
        let pie = ["--manager", "pie", "--kv-gb", "0.0003", "--dtype", "f32"];
        plimsoll(folder.path(), &[&flags[..], &pie, more].concat())
    };
    let traffic = ["--traffic", "0..60:0.01"];
    let (code, _, said) = run(&traffic);
    assert_eq!(code, 2);
    assert!(said.contains("--h2d-gb-s"), "{said}");
    let links = ["--h2d-gb-s", "0.1", "--d2h-gb-s", "0.1"];
    let rest = ["--format", "json", "-o", "it.csv"];
    let (code, out, said) = run(&[&traffic[..], &links, &rest].concat());
    assert_eq!((code, said.as_str()), (0, ""));
    let out = json(&out);
    assert!(out["carried_bytes"].as_u64() > Some(0));
    for of in [&out, &out["measured"], &out["predicted_at_pace"]] {
        assert_eq!(of["completed"], 6, "{out}");
    }
    let csv = fs::read_to_string(folder.path().join("it.csv")).unwrap();
    let mut runs = column(&csv, "run");
    runs.dedup();
    assert_eq!(runs, ["predicted", "predicted at this pace", "measured"]);
}

#[test]
fn another_machine_does_not_say_how_much_cache_this_one_has() {
    let folder = tempfile::tempdir().unwrap();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    written(&folder, "t.csv", &(header.to_owned() + "0,9,4\n"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = root.join("backend/tests/fixtures/tiny-opt");
    let model = model.display().to_string();
    let run = |more: &[&str]| {
        let flags = [
            "replay", "--hw", "t4", "--trace", "t.csv", "--model", &model,
        ];
        let all = [&flags[..], &["--execute", "--dtype", "f32"], more].concat();
        plimsoll(folder.path(), &all)
    };
    let (code, _, said) = run(&[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("t4") && said.contains("--kv-gb"), "{said}");
    let (code, _, said) = run(&["--kv-gb", "0.001"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("warning: t4"), "{said}");
}

#[test]
fn a_window_that_slides_is_said_to_be_taken_for_all_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    let said = |prompt: u32| {
        written(&folder, "t.csv", &format!("{header}0,{prompt},4\n"));
        let args = "replay --hw h100 --model mistral-7b --trace t.csv --kv-gb 30";
        let args: Vec<&str> = args.split(' ').collect();
        plimsoll(folder.path(), &args).2
    };
    assert_eq!(said(4000), "");
    assert!(said(5000).contains("the last 4096 tokens"));
}
