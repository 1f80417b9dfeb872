//! `plan --prompt-lens`: prompts of different lengths, padded to the longest or in buckets.

mod common;

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

/// Few long prompts among many short ones.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lengths = (0..40).map(|i| if i % 8 == 0 { 1024 } else { 64 + i });
    let lines: Vec<String> = lengths.map(|length| length.to_string()).collect();
    let write = |name: &str, text: String| {
        std::fs::write(folder.path().join(name), text).expect("a file in a temporary folder");
    };
    write("plain.txt", lines.join("\n"));
    let rows: Vec<String> = lines.iter().map(|line| format!("0.5,{line},9")).collect();
    let header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
    write("trace.csv", format!("{header}{}\n", rows.join("\n")));
    write("wrong.csv", "prompt_len\n12\nmany\n".to_owned());
    write("unnamed.csv", "words,lines\n12,3\n".to_owned());
    write("two.csv", "prompt_len,input_length\n12,3\n".to_owned());
    write("large.txt", "99999999999\n12\n".to_owned());
    write(
        "spaced.csv",
        "# of a day\n\nprompt_len\n12\n\n\nmany\n".to_owned(),
    );
    write("spaced.txt", "\r\n12\r\n# noon\r\n\r\nmany\r\n".to_owned());
    folder
}

fn plan(folder: &Path, flags: &str) -> Output {
    let mut command = common::program();
    command.current_dir(folder);
    command.args(["plan", "--hw", "t4", "--model", "opt-6.7b"]);
    command.args(flags.split_whitespace());
    command.output().expect("the program starts")
}

fn json(folder: &Path, flags: &str) -> Value {
    let output = plan(folder, &format!("{flags} --format json"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{flags}\n{said}");
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}

fn number(answer: &Value, key: &str) -> f64 {
    answer["totals"][key].as_f64().expect("a total")
}

#[test]
fn buckets_waste_less_than_the_longest_prompt() {
    let folder = folder();
    let longest = json(folder.path(), "--prompt-lens plain.txt");
    let buckets = json(folder.path(), "--prompt-lens plain.txt --padding buckets");
    assert_eq!(longest["buckets"].as_array().map(Vec::len), Some(1));
    let parts = buckets["buckets"].as_array().expect("a list");
    assert!(parts.len() > 1, "{buckets}");
    let prompts = parts.iter().map(|part| part["bucket"]["prompts"].as_u64());
    assert_eq!(prompts.sum::<Option<u64>>(), Some(40));
    for key in ["efficiency", "actual_tok_s", "throughput_tok_s"] {
        let (less, more) = (number(&longest, key), number(&buckets, key));
        assert!(more > less, "{key}: {less} and {more}");
    }
    let ratio = number(&longest, "actual_tok_s") / number(&longest, "padded_tok_s");
    assert!((ratio - number(&longest, "efficiency")).abs() < 1e-9);
}

#[test]
fn a_trace_of_a_serving_system_is_understood() {
    let folder = folder();
    let plain = json(folder.path(), "--prompt-lens plain.txt");
    assert_eq!(json(folder.path(), "--prompt-lens trace.csv"), plain);
}

#[test]
fn each_bucket_has_a_plan_file() {
    let folder = folder();
    let flags = "--prompt-lens plain.txt --padding buckets -o out.json";
    let answer = json(folder.path(), flags);
    for part in answer["buckets"].as_array().expect("a list") {
        let name = format!("out.{}.json", part["bucket"]["prompt_len"]);
        let text = std::fs::read_to_string(folder.path().join(&name)).expect("a plan a bucket");
        let plan: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(plan["workload"], part["plan"]["workload"], "{name}");
    }
}

#[test]
fn wrong_lengths_are_refused_by_line() {
    let folder = folder();
    for (flags, code, word) in [
        ("--prompt-lens wrong.csv", 4, "line 3"),
        ("--prompt-lens spaced.csv", 4, "line 7"),
        ("--prompt-lens spaced.txt", 4, "line 5"),
        ("--prompt-lens unnamed.csv", 4, "no column"),
        ("--prompt-lens two.csv", 4, "several columns"),
        ("--prompt-lens large.txt", 4, "line 1: `99999999999`"),
        ("--prompt-lens gone.txt", 4, "gone.txt"),
        (
            "--prompt-lens plain.txt --num-prompts 3",
            2,
            "--num-prompts",
        ),
        ("--padding buckets", 2, "--prompt-lens"),
    ] {
        let output = plan(folder.path(), flags);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{flags}\n{said}");
        assert!(
            said.contains(word) && said.lines().count() == 1,
            "{flags}\n{said}"
        );
    }
}
