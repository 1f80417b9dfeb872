//! `plan --against`: why a plan is better than a published one.

mod common;

use std::path::Path;
use std::process::Output;

use serde_json::Value;

fn plimsoll(folder: &Path, line: &str) -> Output {
    let mut command = common::program();
    command.current_dir(folder);
    command.args(line.split_whitespace());
    command.output().expect("the program starts")
}

#[test]
fn the_steps_lead_from_the_published_policy_to_the_plan() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let published = "simulate --hw t4 --model opt-13b --gpu-batch-size 8 --num-gpu-batches 4 \
                     --percent 20 80 0 100 0 100 -o published.json";
    let output = plimsoll(folder.path(), published);
    assert_eq!(output.status.code(), Some(0));
    let line = "plan --hw t4 --model opt-13b --against published.json";
    let output = plimsoll(folder.path(), &format!("{line} --format json"));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let against = &answer["search"]["against"];
    let rate = |value: &Value| value.as_f64().expect("a rate");
    let steps = against["steps"].as_array().expect("steps");
    let gains: f64 = steps.iter().map(|step| rate(&step["gain"])).product();
    let ours = rate(&answer["prediction"]["throughput_tok_s"]);
    let theirs = rate(&against["from_tok_s"]);
    assert!(ours > theirs, "{theirs} and {ours}");
    assert!((theirs * gains / ours - 1.0).abs() < 1e-6, "{against}");
    let text = String::from_utf8(plimsoll(folder.path(), line).stdout).expect("UTF-8");
    let found = text
        .lines()
        .position(|line| line.starts_with("against    published.json:"));
    let found = found.expect("a line of its own");
    assert_eq!(text.lines().count() - found - 1, steps.len(), "{text}");
}

/// Before the search: that takes its time, and would be done in vain.
#[test]
fn a_file_that_is_not_there_is_refused_before_the_search() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let line = "plan --hw t4 --model opt-175b --host-gb 1 --disk-gb 0 --against no.json";
    let output = plimsoll(folder.path(), line);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Searched, no plan would fit.
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("no.json"), "{said}");
}

#[test]
fn a_plan_for_another_model_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = "plan --hw t4 --model opt-1.3b -o other.json";
    assert_eq!(plimsoll(folder.path(), other).status.code(), Some(0));
    let line = "plan --hw t4 --model opt-6.7b --against other.json";
    let output = plimsoll(folder.path(), line);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("opt-1.3b") && said.contains("opt-6.7b"),
        "{said}"
    );
}

#[test]
fn a_plan_that_does_not_fit_here_is_told_by_tier_and_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let large = "simulate --hw gh200 --model opt-13b --gpu-batch-size 1 --percent 100 0 100 0 100 0 \
                 -o large.json";
    assert_eq!(plimsoll(folder.path(), large).status.code(), Some(0));
    let line = "plan --hw t4 --model opt-13b --against large.json";
    let said = plimsoll(folder.path(), line).stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    let against = said.lines().find(|line| line.starts_with("against"));
    let against = against.expect("a line of its own");
    assert!(
        against.contains("device") && against.contains("GB"),
        "{against}"
    );
}

#[test]
fn a_plan_against_itself_is_said_to_be_the_same() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let line = "plan --hw t4 --model opt-125m --num-prompts 4 --gen-len 4";
    let written = plimsoll(folder.path(), &format!("{line} -o own.json"));
    assert_eq!(written.status.code(), Some(0));
    let again = plimsoll(folder.path(), &format!("{line} --against own.json"));
    let text = String::from_utf8(again.stdout).expect("UTF-8");
    let said = text.lines().find(|line| line.starts_with("against"));
    assert!(
        said.is_some_and(|line| line.ends_with("its policy is this plan's")),
        "{text}"
    );
}

/// What this machine cannot run, or was not asked for, is not to be kept, however fast.
#[test]
fn a_plan_that_may_not_run_here_is_not_recommended() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let given = |flags: &str, file: &str| {
        let line = format!("simulate --gen-len 4 --percent 0 100 0 100 0 100 {flags} -o {file}");
        assert_eq!(plimsoll(folder.path(), &line).status.code(), Some(0));
    };
    let text = |line: &str| {
        let output = plimsoll(folder.path(), line);
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8(text).expect("UTF-8"),
        )
    };
    given(
        "--hw t4x4 --model opt-30b --stages 4 --gpu-batch-size 8",
        "four.json",
    );
    let (code, said) = text("plan --hw t4 --model opt-30b --gen-len 4 --against four.json");
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("four.json") && said.contains("t4 has 1 GPU"),
        "{said}"
    );

    let line = "plan --hw t4 --model opt-1.3b --gen-len 4";
    assert_eq!(text(&format!("{line} -o slow.json")).0, Some(0));
    let (code, said) = text(&format!("{line} --max-latency-s 1 --against slow.json"));
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("keep it"), "{said}");
    assert!(said.contains("longer than 1.00 s"), "{said}");
}
