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
fn traces_are_known_by_their_header() {
    let folder = tempfile::tempdir().unwrap();
    let texts = [
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,20\n1.5,30,40\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,10,20\n2023-11-16 18:15:47.6805900,30,40\n",
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
        assert_eq!((code, said.as_str()), (0, ""), "{manager:?}");
        let out = json(&out);
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
