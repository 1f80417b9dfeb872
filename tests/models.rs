//! Published checkpoints through the command line: what is planned is executed, with the reference's tokens.

mod common;

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

/// A fixture, and the types that its tokens are the reference's in.
const FIXTURES: [(&str, &[&str]); 9] = [
    ("tiny-opt", &["f32"]),
    ("tiny-opt-projected", &["f32"]),
    ("tiny-llama", &["f32"]),
    ("tiny-llama-f16", &["f32", "f16"]),
    ("tiny-llama-bf16", &["f32", "bf16"]),
    ("tiny-llama-3", &["f32"]),
    ("tiny-mistral", &["f32"]),
    ("tiny-qwen2", &["f32"]),
    ("tiny-qwen3", &["f32"]),
];

fn plimsoll(folder: &TempDir, line: &str) -> String {
    let mut command = common::program();
    command.current_dir(folder.path());
    command.args(line.split_whitespace());
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{line}\n{said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn a_checkpoint_of_each_family_runs_as_planned() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("backend/tests/fixtures");
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, dtypes) in FIXTURES {
        let fixture = fixtures.join(name);
        let text = std::fs::read_to_string(fixture.join("reference.json")).expect("the fixture");
        let reference: Value = serde_json::from_str(&text).expect("JSON");
        let list = |key: &str| reference[key].as_array().expect("a list").clone();
        let (prompts, tokens) = (list("prompts"), list("tokens"));
        let lines = prompts.iter().enumerate().map(|(id, ids)| {
            let line = json!({ "id": id, "prompt_token_ids": ids });
            format!("{line}\n")
        });
        std::fs::write(
            folder.path().join("prompts.jsonl"),
            lines.collect::<String>(),
        )
        .expect("written");
        let length = |list: &Value| list.as_array().expect("a list").len();
        for dtype in dtypes {
            plimsoll(
                &folder,
                &format!(
                    "simulate --hw t4 --model {} --dtype {dtype} --prompt-len {} --gen-len {} \
                     --gpu-batch-size 2 --num-gpu-batches 2 --percent 30 40 20 50 60 20 \
                     --cpu-compute on -o plan.json",
                    fixture.display(),
                    length(&prompts[0]),
                    length(&tokens[0]),
                ),
            );
            let said = plimsoll(
                &folder,
                &format!(
                    "run --plan plan.json --model {} --prompts prompts.jsonl --ignore-eos -o out.jsonl",
                    fixture.display()
                ),
            );
            assert!(said.contains("the checkpoint"), "{said}");
            let out = std::fs::read_to_string(folder.path().join("out.jsonl")).expect("written");
            let found: Vec<Value> = out
                .lines()
                .map(|line| serde_json::from_str(line).expect("JSON"))
                .collect();
            let found: Vec<&Value> = found
                .iter()
                .map(|row| &row["generated_token_ids"])
                .collect();
            assert_eq!(
                found,
                tokens.iter().collect::<Vec<_>>(),
                "{name} as {dtype}"
            );
        }
    }
}
