//! `plimsoll validate` from a grid file to its reports, on a machine profile that is given.

use std::fs;

use assert_cmd::Command;

const GRID: &str = r#"
repeats = 1
dtype = "f32"

[[model]]
name = "tiny"
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 4
vocab_size = 128

[[placement]]
name = "host"
percent = [0, 100, 0, 100, 100, 0]

[[placement]]
name = "disk"
percent = [0, 0, 0, 0, 0, 0]

[[batch]]
name = "2x2"
gpu_batch_size = 2
num_gpu_batches = 2
prompt_len = 8
gen_len = 3

[[machine]]
name = "throttled"
h2d_bytes_per_s = 1e9
device_capacity_bytes = 100000000
"#;

fn validate(grid: &str, more: &[&str]) -> (tempfile::TempDir, std::process::Output) {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("grid.toml"), grid).expect("written");
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/machine.toml");
    let output = Command::cargo_bin("plimsoll")
        .expect("built")
        .current_dir(dir.path())
        .args([
            "validate",
            "--grid",
            "grid.toml",
            "--hw",
            machine,
            "-o",
            "out",
        ])
        .args(more)
        .output()
        .expect("runs");
    (dir, output)
}

#[test]
fn every_case_is_reported_in_every_format() {
    let loose = [
        "--format",
        "json",
        "--median-max",
        "1e9",
        "--p95-max",
        "1e9",
    ];
    let (dir, output) = validate(GRID, &loose);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 2);
    for case in cases {
        for key in ["predicted_s", "measured_s", "error", "error_as_profiled"] {
            assert!(case[key].is_f64(), "{key} in {case}");
        }
        assert!(case["explained_by"].is_string());
    }
    assert!(report["score"]["median_abs_error"].is_f64());
    assert_eq!(report["setting"]["device"], "emulated device");
    for file in [
        "cases.csv",
        "cases.json",
        "profile.toml",
        "scatter.svg",
        "scatter.png",
    ] {
        let bytes = fs::metadata(dir.path().join("out").join(file))
            .expect(file)
            .len();
        assert!(bytes > 0, "{file} is empty");
    }
    let trace = fs::read(dir.path().join("out/trace.json")).expect("a trace");
    let trace: serde_json::Value = serde_json::from_slice(&trace).expect("JSON");
    assert!(
        trace["traceEvents"]
            .as_array()
            .is_some_and(|events| events.len() > 20)
    );
}

#[test]
fn errors_above_the_tolerance_have_their_own_exit_code() {
    let (_dir, output) = validate(GRID, &["--median-max", "0", "--p95-max", "0"]);
    assert_eq!(output.status.code(), Some(6));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.starts_with("error: out of tolerance"), "{errors}");
}

#[test]
fn a_grid_that_is_wrong_or_does_not_fit_says_so() {
    let (_dir, output) = validate(&GRID.replace("prompt_len", "promt_len"), &[]);
    assert_eq!(output.status.code(), Some(4));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("grid.toml") && errors.contains("promt_len"),
        "{errors}"
    );

    let (_dir, output) = validate(&GRID.replace("100000000", "10000"), &[]);
    assert_eq!(output.status.code(), Some(3));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("device tier needs"), "{errors}");
}
