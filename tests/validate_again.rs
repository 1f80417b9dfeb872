//! `plimsoll validate --measured`: recorded runs, predicted by the cost model as it is now.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

fn recorded(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("experiments")
        .join(path)
}

fn validate(backend: &str, [profile, measured]: [&Path; 2], more: &[&str]) -> Output {
    let mut command = common::program();
    command.args(["validate", "--backend", backend, "--format", "json"]);
    command
        .arg("--hw")
        .arg(profile)
        .arg("--measured")
        .arg(measured);
    command.args(more).output().expect("it runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Backend, folder, the file of its cases, whether the grid is the CPU's own, and how many cases.
type Record = (&'static str, &'static str, &'static str, bool, usize);

const CASES: &str = "validate/cases.csv";

#[rustfmt::skip]
const RECORDS: [Record; 6] = [
    ("cuda", "record/nvidia-h200/2026-11-27", CASES, false, 36),
    ("cuda", "record/nvidia-h200/2026-11-27-first", CASES, false, 45),
    ("cuda", "record/nvidia-h100-80gb-hbm3/2026-11-27", CASES, false, 45),
    ("cuda", "record/nvidia-h100-80gb-hbm3/2026-11-26", CASES, false, 45),
    ("cpu", "cpu-validation/2026-11-26-epyc-clone", "cases.csv", true, 54),
    ("cpu", "cpu-validation/2026-11-25-epyc-rows-ahead", "cases.csv", true, 54),
];

/// A change of the cost model that predicts what was measured once less well is to be seen.
#[test]
fn recorded_runs_are_predicted_no_worse_than_they_were() {
    let cpu_grid = recorded("cpu-validation/grid.toml");
    let on_cpu = ["--grid", cpu_grid.to_str().expect("a path")];
    for (backend, folder, cases, has_grid, count) in RECORDS {
        let more: &[&str] = if has_grid { &on_cpu } else { &[] };
        let folder = recorded(folder);
        let files = [folder.join("profile.toml"), folder.join(cases)];
        let output = validate(
            backend,
            [&files[0], &files[1]],
            &[more, &["--p95-max", "25"]].concat(),
        );
        assert!(output.status.success(), "{}", said(&output));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            report["cases"].as_array().map(Vec::len),
            Some(count),
            "{}",
            folder.display()
        );
        for number in ["median_abs_error", "p95_abs_error"] {
            let [now, then] = ["errors", "errors_then"].map(|of| report[of][number].as_f64());
            let (now, then) = (now.expect("a number"), then.expect("a number"));
            assert!(
                now <= then + 0.002,
                "{}: {number} {now}, then {then}",
                folder.display()
            );
        }
    }
}

/// Where nothing but the device works, the cost of its tasks is all that can be wrong.
#[test]
fn what_lies_on_a_gpu_is_predicted_within_8_percent() {
    let h100 = "record/nvidia-h100-80gb-hbm3/2026-11-27";
    let h200 = "record/nvidia-h200/2026-11-27";
    for folder in [h100, h200].map(recorded) {
        let files = [
            folder.join("profile.toml"),
            folder.join("validate/cases.csv"),
        ];
        let output = validate("cuda", [&files[0], &files[1]], &[]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let cases = report["cases"].as_array().expect("cases");
        let on_device: Vec<&Value> = cases.iter().filter(|it| it["group"] == "device").collect();
        assert_eq!(on_device.len(), 9);
        for case in on_device {
            let error = case["error"].as_f64().expect("a number");
            assert!(error.abs() < 0.08, "{case}");
        }
    }
}

/// A cases.csv of these rows, beside a profile of this machine's kind.
fn with(rows: &str, more: &[&str]) -> Output {
    let profile = recorded("cpu-validation/2026-11-26-epyc-clone/profile.toml");
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("cases.csv");
    fs::write(&file, rows).expect("written");
    validate("cpu", [&profile, &file], more)
}

const KNOWN: &str = "opt-h768x3 / device / zigzag / 2x4 / free link";

#[test]
fn files_that_do_not_belong_together_are_told() {
    let refused = |rows: &str, code: i32, words: &[&str]| {
        let output = with(rows, &[]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    let rows = |rows: &str| format!("case,measured_s,error_as_profiled\n{rows}");
    refused(
        "case,measured_s\n",
        4,
        &["line 1", "`error_as_profiled` is missing"],
    );
    refused(&rows(""), 4, &["line 2", "no cases"]);
    refused(&rows("a,b,c\n"), 4, &["line 2"]);
    refused(&rows("a,1,0\nb,0,0.1\n"), 4, &["line 3", "no latency"]);
    refused(&rows("a,1,NaN\n"), 4, &["line 2", "no number"]);
    refused(&rows("a,1,0\na,2,0\n"), 4, &["line 3", "second time"]);
    refused(&rows("a,1,0.1\n"), 4, &["no case of the grid", "--grid"]);
    // A case is scored though others are left out, and held to the tolerance.
    refused(
        &rows(&format!("{KNOWN},1e3,0.1\nanother,1,0\n")),
        6,
        &["out of tolerance"],
    );
    // Of the other kind of machine.
    let gpu = recorded("record/nvidia-h100-80gb-hbm3/2026-11-26");
    let files = [gpu.join("profile.toml"), gpu.join("validate/cases.csv")];
    let output = validate("cpu", [&files[0], &files[1]], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("--backend cuda"),
        "{}",
        said(&output)
    );
}

/// Of cases that have a name alone anything may have been run.
#[test]
fn a_case_whose_plan_is_another_is_left_out() {
    let why = |rows: &str| {
        let loose = ["--median-max", "1e9", "--p95-max", "1e9"];
        let output = with(rows, &loose);
        assert!(output.status.success(), "{}", said(&output));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let left_out = report["left_out"].as_array().expect("a list");
        let other = left_out.iter().find(|it| it["case"] == KNOWN).cloned();
        (
            report["by_plan"].as_bool(),
            other.map(|it| it["why"].clone()),
        )
    };
    let another = "opt-h768x3 / device / row / 2x4 / free link";
    let named = format!("case,measured_s,error_as_profiled\n{KNOWN},1,0\n{another},1,0\n");
    assert_eq!(why(&named), (Some(false), None));
    let told = "case,plan,measured_s,error_as_profiled\n";
    let told = format!("{told}{KNOWN},abc,1,0\n{another},,1,0\n");
    let (_, reason) = why(&told);
    assert_eq!(reason, Some("another plan was run under that name".into()));
}
