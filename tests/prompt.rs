//! Prompts that are in no file: on the command line, and on standard input.

mod common;

use std::io::Write;
use std::process::{Output, Stdio};

use common::{Place, SMALL, program, small_machine};

/// A small trained model with a tokenizer, and a plan for one prompt at a time.
fn place() -> (Place, String) {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    let root = env!("CARGO_MANIFEST_DIR");
    let model = format!("--model {root}/experiments/quality/kjv-llama");
    let policy = "--gpu-batch-size 1 --num-gpu-batches 1 --percent 100 0 100 0 100 0";
    place.text(&format!(
        "simulate --hw small.toml {model} --prompt-len 16 --gen-len 4 {policy} -o plan.json"
    ));
    let run = format!("run --plan plan.json {model}");
    (place, run)
}

/// Runs a line with a last argument that may have spaces, and with something on standard input.
fn run(place: &Place, line: &str, last: &[&str], input: &str) -> Output {
    let mut command = program();
    command.current_dir(place.folder.path());
    command.args(line.split_whitespace()).args(last);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    // Who refuses a flag reads nothing.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

fn worked(output: Output) -> (String, String) {
    let [out, err] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("UTF-8"));
    assert_eq!(output.status.code(), Some(0), "{err}");
    (out, err)
}

const ROWS: &str = "{\"id\": 1, \"prompt\": \"In the beginning\"}\n";

#[test]
fn standard_input_is_as_good_as_a_file() {
    let (place, line) = place();
    place.write("prompts.jsonl", ROWS);
    place.text(&format!("{line} --prompts prompts.jsonl -o file.jsonl"));
    worked(run(
        &place,
        &format!("{line} --prompts - -o input.jsonl"),
        &[],
        ROWS,
    ));
    assert_eq!(place.read("input.jsonl"), place.read("file.jsonl"));
    let resumed = format!("{line} --prompts - -o input.jsonl --resume");
    let (out, _) = worked(run(&place, &resumed, &[], ROWS));
    assert!(out.contains("all 1 answers are there already"), "{out}");
    let wrong = run(&place, &format!("{line} --prompts -"), &[], "{\"id\": 1}\n");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(4), "{said}");
    assert!(
        said.contains("standard input: line 1: has neither"),
        "{said}"
    );
}

#[test]
fn a_single_prompt_is_answered_on_standard_output() {
    let (place, line) = place();
    let asked = ["--prompt", "In the beginning"];
    let (out, err) = worked(run(&place, &line, &asked, ""));
    assert!(err.contains("weights: the checkpoint"), "{err}");
    let (_, said) = (
        worked(run(&place, &format!("{line} -o out.jsonl"), &asked, "")),
        place.read("out.jsonl"),
    );
    let row: serde_json::Value = serde_json::from_str(&said).expect("a row");
    assert_eq!(row["id"], 1);
    assert_eq!(out, format!("{}\n", row["text"].as_str().expect("a text")));
    let resumed = format!("{line} -o out.jsonl --resume");
    worked(run(&place, &resumed, &asked, ""));
    let other = run(&place, &resumed, &["--prompt", "Blessed is"], "");
    assert_eq!(other.status.code(), Some(4));
    let (json, _) = worked(run(&place, &format!("{line} --format json"), &asked, ""));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["outputs"][0]["text"], row["text"]);
}

#[test]
fn rows_on_standard_output_are_alone_there() {
    let (place, line) = place();
    place.write("prompts.jsonl", ROWS);
    let line = format!("{line} --prompts prompts.jsonl");
    place.text(&format!("{line} -o file.jsonl"));
    for flags in [
        "-o -",
        "-o /dev/stdout",
        "-o /dev/fd/1",
        "-o - --format json",
    ] {
        let (out, err) = worked(run(&place, &format!("{line} {flags}"), &[], ""));
        assert_eq!(out, place.read("file.jsonl"), "{flags}");
        let figures = ["weights: the checkpoint", "\"measured\""];
        assert!(figures.iter().any(|it| err.contains(it)), "{flags}\n{err}");
    }
    assert!(!place.path("-").exists());
    let both = "run --hw t4 --plan - --prompts -";
    place.refused(both, 2, &["--plan and --prompts", "standard input"]);
}

#[test]
fn whoever_leaves_before_the_rows_come_ends_the_run_quietly() {
    let (place, line) = place();
    place.write("prompts.jsonl", ROWS);
    let mut command = program();
    command.current_dir(place.folder.path());
    command.args(format!("{line} --prompts prompts.jsonl -o -").split_whitespace());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("error:"), "{said}");
}

#[test]
fn a_prompt_that_cannot_be_run_is_refused_by_its_flag() {
    let (place, line) = place();
    for (last, said) in [
        (
            ["--prompt", ""].as_slice(),
            "--prompt: is empty; give at least one token",
        ),
        (&["--prompt", "In", "--prompts", "-"], "--prompt"),
    ] {
        let refused = run(&place, &line, last, "");
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{error}");
        assert!(
            error.contains(said) && error.lines().count() == 1,
            "{error}"
        );
    }
}
