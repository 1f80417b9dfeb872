//! `plimsoll run` on broken checkpoints, disks and prompts: one line, its exit code, and no finished row lost.

mod common;

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use common::{Place, SMALL, SlowRun, small_machine, tiny_opt};
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("backend/tests/fixtures");
    fixtures.join(name)
}

/// A copy of a checkpoint in the folder `model`, instead of any before.
fn copied(place: &Place, name: &str) {
    let folder = place.path("model");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).unwrap();
    }
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(fixture(name)).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, folder.join(from.file_name().unwrap())).unwrap();
    }
}

/// Three prompts of a few tokens.
fn few_prompts(place: &Place) {
    let line = |id: u32| json!({ "id": id, "prompt_token_ids": [5, 6 + id, 7] }).to_string() + "\n";
    place.write("prompts.jsonl", &(0..3).map(line).collect::<String>());
}

/// Changes the bytes of a file.
fn edited(path: &Path, harm: &dyn Fn(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    harm(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn edited_json(path: &Path, harm: &dyn Fn(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    harm(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

const SECOND: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

#[test]
fn a_broken_shard_is_refused_before_the_machine_is_measured() {
    let place = Place::new();
    few_prompts(&place);
    place.write("out.jsonl", "earlier\n");
    // Neither a plan nor a machine is given: that it is measured would be a line more.
    let run = "run --model model --prompts prompts.jsonl --gen-len 4 -o out.jsonl";
    let file = |name: &str| place.path("model").join(name);
    let refused = |harm: &dyn Fn(), words: &[&str]| {
        copied(&place, "tiny-llama-3");
        harm();
        place.refused(run, 4, words);
    };
    refused(
        &|| edited(&file(SECOND), &|bytes| bytes.truncate(bytes.len() - 1)),
        &[SECOND, "not a whole safetensors file", "fetch it again"],
    );
    refused(
        &|| edited(&file(SECOND), &|bytes| bytes[..8].fill(0xff)),
        &[SECOND, "its header claims", "fetch it again"],
    );
    refused(
        &|| edited(&file(SECOND), &|bytes| bytes[8] = b'!'),
        &[SECOND, "not a whole safetensors file", "fetch it again"],
    );
    refused(
        &|| std::fs::remove_file(file(SECOND)).unwrap(),
        &[SECOND, "fetch the checkpoint completely"],
    );
    let name = "model.layers.1.mlp.up_proj.weight";
    let left_out = |index: &mut Value| {
        let map = index["weight_map"].as_object_mut().unwrap();
        map.remove(name).expect("it is there");
    };
    refused(
        &|| edited_json(&file(INDEX), &left_out),
        &["model: no tensor", name, "fetch it completely"],
    );
    refused(
        &|| {
            edited_json(&file("config.json"), &|config| {
                config["intermediate_size"] = json!(64)
            })
        },
        &["safetensors: tensor", "has shape", "give the config.json"],
    );
    assert_eq!(place.read("out.jsonl"), "earlier\n");
}

#[test]
fn what_is_no_number_in_a_shard_is_refused_by_name() {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    few_prompts(&place);
    place.write("out.jsonl", "earlier\n");
    let run = "run --hw small.toml --model model --prompts prompts.jsonl --gen-len 4 -o out.jsonl";
    for (value, flags) in [
        (f32::INFINITY, "--dtype f32"),
        (f32::NEG_INFINITY, "--dtype bf16 --compress-weight"),
        (f32::NAN, "--dtype f16 --compress-weight --compress-cache"),
    ] {
        copied(&place, "tiny-llama-3");
        edited(&place.path("model").join(SECOND), &|bytes| {
            let last = bytes.len() - 4;
            bytes[last..].copy_from_slice(&value.to_le_bytes());
        });
        let words = [
            SECOND,
            "tensor `model.",
            "not finite",
            "fetch the file again",
        ];
        place.refused(&format!("{run} {flags}"), 4, &words);
    }
    assert_eq!(place.read("out.jsonl"), "earlier\n");
}

/// Sets all elements of a tensor of an f32 checkpoint to `size`, with signs in turn.
fn enlarged(bytes: &mut [u8], name: &str, size: f32) {
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, data) = bytes[8..].split_at_mut(header_bytes);
    let header: Value = serde_json::from_slice(header).unwrap();
    let offsets = &header[name]["data_offsets"];
    let [from, to] = [0, 1].map(|at| offsets[at].as_u64().unwrap() as usize);
    let elements = data[from..to].as_chunks_mut::<4>().0;
    for (index, element) in elements.iter_mut().enumerate() {
        let sign = if index % 2 == 0 { -1.0 } else { 1.0 };
        *element = (sign * size).to_le_bytes();
    }
}

#[test]
fn activations_that_overflow_their_type_are_no_answer() {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    few_prompts(&place);
    copied(&place, "tiny-opt");
    edited(&place.path("model/model.safetensors"), &|bytes| {
        // An f16 holds it, but not what a layer makes of it.
        enlarged(bytes, "model.decoder.layers.0.fc2.weight", 6e4);
    });
    place.write("out.jsonl", "earlier\n");
    let run = "run --hw small.toml --model model --prompts prompts.jsonl --gen-len 4 -o out.jsonl";
    let words = [
        "head on gpu",
        "not a number",
        "run in bf16 or f32",
        "out.jsonl is left as it was",
    ];
    for flags in ["--dtype f16", "--dtype f16 --compress-weight"] {
        place.refused(&format!("{run} {flags}"), 4, &words);
        assert_eq!(place.read("out.jsonl"), "earlier\n");
    }
    place.text(&format!("{run} --dtype bf16"));
    assert_eq!(place.read("out.jsonl").lines().count(), 3);
}

#[test]
fn answers_and_disk_tiers_that_do_not_fit_are_named() {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    few_prompts(&place);
    place.text(&format!(
        "simulate --hw small.toml --model {} --dtype f32 --prompt-len 3 --gen-len 4 \
         --gpu-batch-size 2 --num-gpu-batches 2 --percent 0 0 0 50 0 100 -o plan.json",
        tiny_opt()
    ));
    let run = format!(
        "run --plan plan.json --model {} --prompts prompts.jsonl",
        tiny_opt()
    );
    let said = place.refused(
        &format!("{run} -o /dev/full"),
        2,
        &["/dev/full: cannot be written", "No space left"],
    );
    assert!(!said.contains("--resume"), "{said}");
    let nowhere = format!("{run} --disk-dir nowhere");
    place.refused(
        &nowhere,
        2,
        &["--disk-dir nowhere: is no folder", "make it"],
    );
    place.write("out.jsonl", "earlier\n");
    let output = place.run_with_small_files(&format!("{run} -o out.jsonl"), 100_000);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("no disk tier of"), "{said}");
    assert!(said.contains("--disk-dir"), "{said}");
    assert_eq!(place.read("out.jsonl"), "earlier\n");
}

#[test]
fn a_disk_that_fails_in_a_later_round_costs_no_finished_row() {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    let line =
        |id: usize| json!({ "id": id, "prompt_token_ids": [5 + id, 6, 7] }).to_string() + "\n";
    place.write("prompts.jsonl", &(0..24).map(line).collect::<String>());
    // Weights are read from disk, and nothing is written there, which would make the file longer again.
    place.text(&format!(
        "simulate --hw small.toml --model {} --dtype f32 --prompt-len 3 --gen-len 6 \
         --gpu-batch-size 2 --num-gpu-batches 2 --percent 20 40 0 100 0 100 -o plan.json",
        tiny_opt()
    ));
    let run = format!(
        "run --plan plan.json --model {} --prompts prompts.jsonl",
        tiny_opt()
    );
    let slow = SlowRun::of(&place, &format!("{run} --h2d-gb-s 0.005 -o out.jsonl"));
    let rows = || std::fs::read_to_string(place.path("out.jsonl")).unwrap_or_default();
    while rows().lines().count() < 4 {
        sleep(Duration::from_millis(20));
    }
    drop(std::fs::File::create(slow.disk_file()).unwrap());
    let said = slow.ended(5);
    assert!(said.contains("was it truncated?"), "{said}");
    assert!(
        said.contains("are kept in out.jsonl; --resume goes on"),
        "{said}"
    );
    let kept = rows();
    let finished = kept.lines().filter(|row| row.contains("\"length\""));
    assert!((4..24).contains(&finished.count()), "{kept}");
    place.text(&format!("{run} -o out.jsonl --resume"));
    place.text(&format!("{run} -o whole.jsonl"));
    assert_eq!(rows(), place.read("whole.jsonl"));
}

#[test]
fn a_tokenizer_of_another_model_is_not_blamed_on_the_prompt() {
    let place = Place::new();
    copied(&place, "tiny-opt");
    place.write("small.toml", &small_machine(SMALL));
    place.write("prompts.jsonl", "{\"id\": 1, \"prompt\": \"a text\"}\n");
    edited_json(&place.path("model/config.json"), &|config| {
        config["vocab_size"] = 4.into();
    });
    let run = "run --model model --hw small.toml --prompts prompts.jsonl --gen-len 4";
    let words = [
        "line 1: prompt",
        "vocabulary",
        "the tokenizer.json that belongs",
    ];
    place.refused(run, 4, &words);
}

#[test]
fn a_prompt_that_is_no_object_of_known_keys_is_told_them() {
    let place = Place::new();
    let all = "known here: id, prompt, prompt_token_ids";
    for (row, words) in [
        (
            "{\"id\": 1, \"max_tokens\": 3}",
            ["unknown key `max_tokens`", all],
        ),
        (
            "{\"id\": 1, \"promt\": \"x\"}",
            ["did you mean `prompt`?", all],
        ),
        (
            "[1, \"x\"]",
            ["line 1: is no object", "{\"id\": 1, \"prompt\": "],
        ),
        (
            "\"x\"",
            ["line 1: is no object", "{\"id\": 1, \"prompt\": "],
        ),
    ] {
        place.write("p.jsonl", row);
        let run = "run --hw t4 --model opt-125m --prompts p.jsonl";
        let said = place.refused(run, 4, &words);
        assert!(!said.contains("did you mean `prompt_token_ids`"), "{said}");
    }
}

#[test]
fn prompts_of_no_tokens_are_refused() {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    // Its tokenizer puts nothing in front of a text, unlike that of OPT.
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/quality/kjv-llama");
    let model = model.display();
    let run = format!("run --hw small.toml --model {model} --prompts prompts.jsonl -o out.jsonl");
    place.write("prompts.jsonl", "{\"id\": 1, \"prompt\": \"\"}\n");
    place.refused(&run, 4, &["prompts.jsonl: line 1: prompt: is empty"]);
    for nothing in ["", "\n \n\n"] {
        place.write("prompts.jsonl", nothing);
        place.refused(
            &run,
            4,
            &["prompts.jsonl", "no prompts", "write lines like"],
        );
    }
    let long = json!({ "id": 1, "prompt": "And it came to pass ".repeat(110) }).to_string();
    place.write("prompts.jsonl", &long);
    place.refused(
        &run,
        4,
        &["line 1: prompt: has", "kjv-llama sees 512 with the 32"],
    );
    assert!(!place.path("out.jsonl").exists());
}
