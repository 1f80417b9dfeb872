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

/// A change of the cost model that predicts what was measured once less well is to be seen.
#[test]
fn recorded_runs_are_predicted_no_worse_than_they_were() {
    let cpu_grid = recorded("cpu-validation/grid.toml");
    let on_cpu = ["--grid", cpu_grid.to_str().expect("a path")];
    let records: [(&str, &str, &str, &[&str], usize); 3] = [
        (
            "cuda",
            "record/nvidia-h100-80gb-hbm3/2026-11-26",
            "validate/cases.csv",
            &[],
            45,
        ),
        (
            "cpu",
            "cpu-validation/2026-11-26-epyc-clone",
            "cases.csv",
            &on_cpu,
            54,
        ),
        (
            "cpu",
            "cpu-validation/2026-11-25-epyc-rows-ahead",
            "cases.csv",
            &on_cpu,
            54,
        ),
    ];
    for (backend, folder, cases, more, count) in records {
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

#[test]
fn files_that_do_not_belong_together_are_told() {
    let folder = recorded("cpu-validation/2026-11-26-epyc-clone");
    let profile = folder.join("profile.toml");
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("cases.csv");
    let refused = |text: &str, code: i32, words: &[&str]| {
        fs::write(&file, text).expect("written");
        let output = validate("cpu", [&profile, &file], &[]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    let header = "case,measured_s,error_as_profiled\n";
    refused(
        "case,measured_s\n",
        4,
        &["line 1", "`error_as_profiled` is missing"],
    );
    refused(&format!("{header}a,b,c\n"), 4, &["line 2"]);
    refused(
        &format!("{header}a,0,0.1\n"),
        4,
        &["a:", "0 s is no latency"],
    );
    refused(
        &format!("{header}a,1,0.1\n"),
        4,
        &["no case of the grid", "--grid"],
    );
    let known = "opt-h768x3 / device / zigzag / 2x4 / free link";
    // A case is scored though others are left out, and held to the tolerance.
    refused(
        &format!("{header}{known},1e3,0.1\nanother,1,0\n"),
        6,
        &["out of tolerance"],
    );
}
