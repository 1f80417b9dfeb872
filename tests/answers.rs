//! `plimsoll run --prompts`: texts in, answers out, a row each; killed, gone on with, and refused.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Place, SMALL, small_machine, tiny_opt};
use serde_json::{Value, json};

/// Texts of several lengths, some as ids.
fn prompts(count: usize) -> String {
    let words = "the Work shall mean of any Licence or Contribution to You and under";
    let words: Vec<&str> = words.split(' ').collect();
    let line = |i: usize| {
        let chosen = (0..1 + i * 7 % 5).map(|w| words[(i * 3 + w * 5) % words.len()]);
        let text = chosen.collect::<Vec<_>>().join(" ");
        match i % 4 {
            3 => json!({ "id": i, "prompt_token_ids": [2, 100 + i % 100] }),
            _ => json!({ "id": format!("p{i}"), "prompt": text }),
        }
    };
    let lines = (0..count).map(|i| line(i).to_string() + "\n");
    lines.collect()
}

/// The first flags of a run of `prompts.jsonl`, which has four prompts a round.
fn rounds_of_four(place: &Place, count: usize, gen_len: u32) -> String {
    place.write("small.toml", &small_machine(SMALL));
    place.write("prompts.jsonl", &prompts(count));
    place.text(&format!(
        "simulate --hw small.toml --model {} --dtype f32 --prompt-len 30 --gen-len {gen_len} \
         --gpu-batch-size 2 --num-gpu-batches 2 --percent 20 80 50 50 0 100 -o plan.json",
        tiny_opt()
    ));
    format!(
        "run --plan plan.json --model {} --prompts prompts.jsonl",
        tiny_opt()
    )
}

/// A copy of the checkpoint, with what is to be changed about it.
fn checkpoint(place: &Place, generation: &Value) {
    let folder = place.path("model");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(format!("{}/{name}", tiny_opt()), folder.join(name)).unwrap();
    }
    std::fs::write(
        folder.join("generation_config.json"),
        generation.to_string(),
    )
    .unwrap();
}

fn rows(place: &Place, name: &str) -> Vec<Value> {
    let text = place.read(name);
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

fn ids(row: &Value) -> Vec<u64> {
    let ids = row["generated_token_ids"].as_array().unwrap().iter();
    ids.map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn each_prompt_has_the_answer_that_it_has_alone() {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    place.write("prompts.jsonl", &prompts(9));
    let run = format!(
        "run --hw small.toml --model {} --dtype f32 --gen-len 6 --prompts",
        tiny_opt()
    );
    place.text(&format!("{run} prompts.jsonl -o out.jsonl"));
    let rows = rows(&place, "out.jsonl");
    assert_eq!(rows.len(), 9);
    let mut lengths = Vec::new();
    for (line, row) in prompts(9).lines().zip(&rows) {
        place.write("one.jsonl", line);
        place.text(&format!("{run} one.jsonl -o one.out"));
        let prompt: Value = serde_json::from_str(line).unwrap();
        let alone: Value = serde_json::from_str(&place.read("one.out")).unwrap();
        assert_eq!(&alone, row);
        assert_eq!(row["id"], prompt["id"]);
        assert!(row["text"].is_string() && row["finish_reason"].is_string());
        lengths.push(row["prompt_tokens"].as_u64().unwrap());
        let of_ids = prompt["prompt_token_ids"].as_array();
        assert!(of_ids.is_none_or(|ids| ids.len() as u64 == lengths[lengths.len() - 1]));
    }
    lengths.sort_unstable();
    lengths.dedup();
    assert!(lengths.len() > 4, "{lengths:?}");
}

#[test]
fn an_answer_ends_where_the_checkpoint_says_unless_that_is_ignored() {
    let place = Place::new();
    let run = rounds_of_four(&place, 6, 8).replace(&tiny_opt(), "model");
    checkpoint(&place, &json!({}));
    place.text(&format!("{run} -o long.jsonl"));
    let long = rows(&place, "long.jsonl");
    let end = ids(&long[0])[3];
    checkpoint(&place, &json!({ "eos_token_id": [end, 2] }));
    place.text(&format!("{run} -o short.jsonl"));
    let short = rows(&place, "short.jsonl");
    for (long, short) in long.iter().zip(&short) {
        let (all, kept) = (ids(long), ids(short));
        let stopped = all.iter().position(|id| *id == end || *id == 2);
        assert_eq!(kept, all[..stopped.map_or(8, |last| last + 1)]);
        let reason = if stopped.is_some() { "stop" } else { "length" };
        assert_eq!(short["finish_reason"], reason);
    }
    assert_eq!(short[0]["finish_reason"], "stop");
    place.text(&format!("{run} -o all.jsonl --ignore-eos"));
    let ignored = rows(&place, "all.jsonl");
    assert!(ignored.iter().all(|row| ids(row).len() == 8));
}

#[test]
fn a_row_does_not_wait_for_the_rest_of_its_block() {
    let place = Place::new();
    let run = rounds_of_four(&place, 4, 60).replace(&tiny_opt(), "model");
    checkpoint(&place, &json!({}));
    place.text(&format!("{run} -o long.jsonl"));
    let long = rows(&place, "long.jsonl");
    // A token that ends the first answer early, and not all of them.
    let end = ids(&long[0])[3];
    let early = |row| ids(row).contains(&end);
    let ended = long.iter().take_while(|row| early(row)).count();
    assert!((1..4).contains(&ended), "{ended}");
    checkpoint(&place, &json!({ "eos_token_id": end }));
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(format!("{run} -o out.jsonl --h2d-gb-s 0.002").split_whitespace());
    command.current_dir(place.folder.path());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let has_row = || std::fs::metadata(place.path("out.jsonl")).is_ok_and(|file| file.len() > 0);
    while !has_row() && child.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(5));
    }
    child.kill().expect("killed, or it had ended");
    assert_eq!(child.wait().unwrap().signal(), Some(9), "its block goes on");
    let rows = rows(&place, "out.jsonl");
    assert!(!rows.is_empty() && rows.len() <= ended, "{rows:?}");
    assert_eq!(rows[0]["finish_reason"], "stop");
}

#[test]
fn drawn_tokens_are_those_of_their_seed_whatever_the_plan() {
    let place = Place::new();
    let run = rounds_of_four(&place, 6, 8);
    let drawn = |flags: &str| {
        place.text(&format!("{run} -o out.jsonl {flags}"));
        place.read("out.jsonl")
    };
    let hot = "--temperature 0.9 --top-k 40 --top-p 0.95";
    let one = drawn(&format!("{hot} --seed 5"));
    assert_ne!(one, drawn(&format!("{hot} --seed 6")));
    assert_ne!(one, drawn(""));
    assert_eq!(drawn(""), drawn("--temperature 0"));
    let other = run.replace(
        "--plan plan.json",
        "--hw small.toml --dtype f32 --gen-len 8",
    );
    place.text(&format!("{other} {hot} --seed 5 -o out.jsonl"));
    assert_eq!(one, place.read("out.jsonl"));
    let checkpoint_says = run.replace(&tiny_opt(), "model");
    checkpoint(
        &place,
        &json!({ "do_sample": true, "temperature": 0.9, "top_k": 40, "top_p": 0.95 }),
    );
    place.text(&format!("{checkpoint_says} --seed 5 -o out.jsonl"));
    assert_eq!(one, place.read("out.jsonl"));
}

/// Runs a line, and kills it after a time if it has not ended.
fn killed_after(place: &Place, line: &str, after: Duration) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(line.split_whitespace());
    command.current_dir(place.folder.path());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    sleep(after);
    child.kill().expect("killed, or it had ended");
    let output = child.wait_with_output().expect("it ended");
    let said = String::from_utf8_lossy(&output.stderr);
    let killed = output.status.signal() == Some(9);
    assert!(killed || output.status.success(), "{said}");
}

/// Numbers in 0..1 that differ from run to run.
fn at_random() -> impl FnMut() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let state = RandomState::new();
    let mut count = 0_u64;
    move || {
        count += 1;
        state.hash_one(count) as f64 / u64::MAX as f64
    }
}

#[test]
fn killed_at_ten_moments_and_gone_on_with_it_is_the_same_to_the_byte() {
    let place = Place::new();
    let run = rounds_of_four(&place, 24, 12) + " --temperature 0.8 --h2d-gb-s 0.05";
    let begun = Instant::now();
    place.text(&format!("{run} -o whole.jsonl"));
    let took = begun.elapsed();
    let whole = place.read("whole.jsonl");
    assert_eq!(whole.lines().count(), 24);
    let mut random = at_random();
    for _ in 0..10 {
        let after = took.mul_f64(0.5 * random());
        killed_after(&place, &format!("{run} -o out.jsonl --resume"), after);
        let so_far = std::fs::read_to_string(place.path("out.jsonl")).unwrap_or_default();
        assert!(whole.starts_with(&so_far), "{so_far}");
        // As a system leaves it that fails in the middle of a row.
        if !so_far.is_empty() && so_far != whole {
            let torn = &whole[..so_far.len() + 10];
            place.write("out.jsonl", torn);
        }
    }
    place.text(&format!("{run} -o out.jsonl --resume"));
    assert_eq!(place.read("out.jsonl"), whole);
    let again = place.text(&format!("{run} -o out.jsonl --resume"));
    assert!(
        again.contains("all 24 answers are there already"),
        "{again}"
    );
    let again = place.json(&format!("{run} -o out.jsonl --resume --format json"));
    assert_eq!(again["answers_kept"], 24);
    assert_eq!(place.read("out.jsonl"), whole);
}

#[test]
fn a_run_goes_on_without_a_plan_and_with_another() {
    let place = Place::new();
    let planned = rounds_of_four(&place, 10, 5);
    let own = planned.replace("--plan plan.json", "--dtype f32 --gen-len 5");
    place.text(&format!("{own} --hw small.toml -o whole.jsonl"));
    let whole = place.read("whole.jsonl");
    let half: String = whole.split_inclusive('\n').take(3).collect();
    let left = |rows: &str| {
        place.write("out.jsonl", rows);
        std::fs::copy(
            place.path("whole.jsonl.run.json"),
            place.path("out.jsonl.run.json"),
        )
        .unwrap();
    };
    // Without a machine: it is not measured again.
    for line in [&own, &planned] {
        left(&half);
        place.text(&format!("{line} -o out.jsonl --resume"));
        assert_eq!(place.read("out.jsonl"), whole, "{line}");
    }
    left(&half);
    let went_on = place.run(&format!("{own} --schedule row -o out.jsonl --resume"));
    assert_eq!(place.read("out.jsonl"), whole);
    let said = String::from_utf8_lossy(&went_on.stderr).into_owned();
    assert!(said.contains("not as --schedule would have it"), "{said}");
    left(&half);
    let longer = own.replace("--gen-len 5", "--gen-len 6");
    place.refused(
        &format!("{longer} -o out.jsonl --resume"),
        4,
        &["--gen-len"],
    );
    let seeded = format!("{own} --temperature 0.5 -o out.jsonl --resume");
    place.refused(&seeded, 4, &["out.jsonl", "sampling"]);
    place.write("prompts.jsonl", &prompts(11));
    let words = ["11 prompts", "made of 10", "the same file as then"];
    place.refused(&format!("{own} -o out.jsonl --resume"), 4, &words);
    assert_eq!(place.read("out.jsonl"), half);
    std::fs::remove_file(place.path("out.jsonl.run.json")).unwrap();
    let words = ["out.jsonl", "out.jsonl.run.json", "without --resume"];
    place.refused(&format!("{own} -o out.jsonl --resume"), 4, &words);
    place.refused(&format!("{own} --resume"), 2, &["--output"]);
    place.refused(
        &format!("{own} -o - --resume"),
        2,
        &["--resume", "give a file"],
    );
}

#[test]
fn what_a_run_reads_or_another_writes_is_not_overwritten() {
    let place = Place::new();
    rounds_of_four(&place, 2, 3);
    checkpoint(&place, &json!({}));
    let own = "run --hw small.toml --model model --prompts prompts.jsonl --gen-len 3";
    std::fs::hard_link(place.path("prompts.jsonl"), place.path("linked.jsonl")).unwrap();
    let inputs = [
        ("model/config.json", "--model"),
        ("model/model.safetensors", "--model"),
        ("model/tokenizer.json", "--model"),
        ("small.toml", "--hw"),
        ("linked.jsonl", "--prompts"),
    ];
    for (file, flag) in inputs {
        let before = std::fs::read(place.path(file)).unwrap();
        for output in ["-o", "--trace"] {
            let words = [file, flag, "are the same file"];
            place.refused(&format!("{own} {output} {file}"), 2, &words);
        }
        assert_eq!(std::fs::read(place.path(file)).unwrap(), before);
    }
    // The record beside the rows would take the place of prompts of that name.
    place.write("kept.jsonl.run.json", &prompts(1));
    let onto = "run --model model --prompts kept.jsonl.run.json -o kept.jsonl";
    let words = [
        "the record of --output and --prompts",
        "write to another file",
    ];
    place.refused(onto, 2, &words);
    assert_eq!(place.read("kept.jsonl.run.json"), prompts(1));
    let record = format!("{own} -o out.jsonl --trace out.jsonl.run.json");
    place.refused(&record, 2, &["--trace", "the record of --output"]);
    place.text(&format!("{own} -o out.jsonl"));
    let rows = place.read("out.jsonl");
    let held = std::fs::File::open(place.path("out.jsonl")).unwrap();
    held.lock().unwrap();
    for flags in ["", " --resume", " --seed 4"] {
        let words = ["out.jsonl", "another run is writing to it"];
        place.refused(&format!("{own} -o out.jsonl{flags}"), 2, &words);
    }
    drop(held);
    place.text(&format!("{own} -o out.jsonl"));
    assert_eq!(place.read("out.jsonl"), rows);
    // What another program wrote, whose lines might be rows that have not ended.
    place.write("mine.jsonl", &prompts(2));
    let words = ["mine.jsonl", "no mine.jsonl.run.json says what made it"];
    place.refused(&format!("{own} -o mine.jsonl --resume"), 4, &words);
    assert_eq!(place.read("mine.jsonl"), prompts(2));
}

/// A run of some prompts is timed from its start to its end, however many a plan for prompts without end has.
#[test]
fn as_many_prompts_as_a_steady_state_has_are_all_counted() {
    let place = Place::new();
    rounds_of_four(&place, 12, 3);
    let mut plan: Value = serde_json::from_str(&place.read("plan.json")).unwrap();
    plan["policy"]["schedule"] = json!("diagonal");
    plan["workload"]["num_prompts"] = Value::Null;
    place.write("plan.json", &plan.to_string());
    let mut tokens = Vec::new();
    for count in 4..=12 {
        place.write("prompts.jsonl", &prompts(count));
        let line = format!(
            "run --plan plan.json --model {} --prompts prompts.jsonl --ignore-eos --format json",
            tiny_opt()
        );
        let generated = &place.json(&line)["measured"]["generated_tokens"];
        tokens.push(generated.as_u64().unwrap());
    }
    let all: Vec<u64> = (4..=12).map(|count| 3 * count).collect();
    assert_eq!(tokens, all);
    // Their texts and answers are more than there is room for.
    let needed = plan["capacity_bytes"]["host"].clone();
    plan["capacity_bytes"]["host"] = json!(300_000);
    assert!(needed.as_u64().unwrap() > 300_000);
    place.write("plan.json", &plan.to_string());
    place.write("prompts.jsonl", &prompts(4000));
    let line = format!(
        "run --plan plan.json --model {} --prompts prompts.jsonl",
        tiny_opt()
    );
    place.refused(&line, 3, &["host", "plan with --num-prompts 4000"]);
}

/// A folder is a checkpoint; only its config.json asked for by itself has weights that are made up.
#[test]
fn a_folder_without_weights_answers_nothing() {
    let place = Place::new();
    rounds_of_four(&place, 2, 3);
    checkpoint(&place, &json!({}));
    std::fs::remove_file(place.path("model/model.safetensors")).unwrap();
    let own = "run --hw small.toml --model model --prompts prompts.jsonl --gen-len 3 -o out.jsonl";
    place.refused(own, 4, &["has no weights", "config.json for synthetic"]);
    place.write("model/pytorch_model.bin", "");
    place.refused(own, 4, &["has no weights", "convert pytorch_model.bin"]);
    assert!(!place.path("out.jsonl").exists());
}

#[test]
fn an_id_is_a_text_or_a_whole_number() {
    let place = Place::new();
    let planned = rounds_of_four(&place, 1, 5);
    let refused = |line: &str, words: &[&str]| {
        place.write("prompts.jsonl", line);
        place.refused(&format!("{planned} -o out.jsonl"), 4, words);
    };
    for unfit in ["true", "[2]", r#"{"a": 2}"#, "1e3", "18446744073709551616"] {
        let line = format!(r#"{{"id": {unfit}, "prompt_token_ids": [5]}}"#);
        refused(&line, &["line 1: id", "no text and no whole number"]);
    }
    let list = r#"[{"id": 2, "prompt_token_ids": [5]}]"#;
    refused(list, &["line 1", "is no object"]);
}

#[test]
fn wrong_prompts_are_refused_by_line_and_lose_nothing() {
    let place = Place::new();
    let planned = rounds_of_four(&place, 1, 5);
    let own = planned.replace("--plan plan.json", "--hw small.toml --gen-len 30");
    place.write("out.jsonl", "earlier\n");
    let refused = |run: &str, line: &str, words: &[&str]| {
        let good = json!({ "id": 1, "prompt_token_ids": [5] });
        place.write("prompts.jsonl", &format!("{good}\n{line}\n"));
        let all: Vec<&str> = ["prompts.jsonl: line 2"]
            .iter()
            .chain(words)
            .copied()
            .collect();
        place.refused(&format!("{run} -o out.jsonl"), 4, &all);
    };
    let ids = |count: usize| json!({ "id": 2, "prompt_token_ids": vec![7; count] }).to_string();
    refused(&planned, &ids(31), &["31 tokens", "at most 30"]);
    refused(
        &own,
        &ids(99),
        &["99 tokens", "tiny-opt sees 128", "--gen-len"],
    );
    refused(&own, &ids(0), &["prompt_token_ids: is empty"]);
    let long = json!({ "id": 2, "prompt": "long ".repeat(200) }).to_string();
    refused(&own, &long, &["prompt: has", "shorten it"]);
    refused(&own, r#"{"id": 2}"#, &["neither prompt nor"]);
    refused(
        &own,
        r#"{"id": 2, "prompt": "x", "prompt_token_ids": [5]}"#,
        &["both"],
    );
    refused(
        &own,
        r#"{"id": 2, "promt": "x"}"#,
        &["did you mean `prompt`"],
    );
    let twice = r#"{"id": 1, "prompt": "x"}"#;
    refused(
        &own,
        twice,
        &["id: 1 is the id of line 1 as well", "of its own"],
    );
    for nameless in [r#"{"id": null, "prompt": "x"}"#, r#"{"prompt": "x"}"#] {
        refused(&own, nameless, &["id: is missing or null"]);
    }
    refused(
        &own,
        r#"{"id": 2, "prompt_token_ids": ["x"]}"#,
        &["a whole number"],
    );
    let synthetic = own.replace(&tiny_opt(), "opt-125m");
    refused(
        &synthetic,
        r#"{"id": 2, "prompt": "x"}"#,
        &["opt-125m has no tokenizer.json"],
    );
    assert_eq!(place.read("out.jsonl"), "earlier\n");
    // The special token that begins a text is a prompt.
    place.write(
        "prompts.jsonl",
        // Some editors begin a file with a byte order mark.
        &format!("\u{feff}{}", json!({ "id": 2, "prompt": "" })),
    );
    place.text(&format!("{planned} -o out.jsonl"));
    assert_eq!(rows(&place, "out.jsonl")[0]["prompt_tokens"], 1);
}

#[test]
fn a_damaged_checkpoint_is_refused_and_loses_nothing() {
    let place = Place::new();
    let run = rounds_of_four(&place, 2, 5).replace(&tiny_opt(), "model");
    place.write("out.jsonl", "earlier\n");
    let weights = place.path("model/model.safetensors");
    let damaged = |harm: &dyn Fn(&mut Vec<u8>), words: &[&str]| {
        checkpoint(&place, &json!({}));
        let mut bytes = std::fs::read(&weights).unwrap();
        harm(&mut bytes);
        std::fs::write(&weights, bytes).unwrap();
        place.refused(&format!("{run} -o out.jsonl"), 4, words);
    };
    let nan = |bytes: &mut Vec<u8>| {
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    };
    damaged(&nan, &["model.safetensors", "not finite"]);
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(100_000);
    damaged(&cut, &["model.safetensors", "fetch it again"]);
    let torn = |bytes: &mut Vec<u8>| bytes[..4].fill(0xff);
    damaged(&torn, &["model.safetensors"]);
    // Before the machine is measured.
    let unplanned = run.replace("--plan plan.json", "--dtype f32");
    place.refused(&unplanned, 4, &["model.safetensors"]);
    checkpoint(&place, &json!({ "temperature": "hot" }));
    let words = ["generation_config.json", "temperature"];
    place.refused(&format!("{run} -o out.jsonl"), 4, &words);
    checkpoint(&place, &json!({}));
    place.write("model/tokenizer.json", "{");
    place.refused(&format!("{run} -o out.jsonl"), 4, &["tokenizer.json"]);
    assert_eq!(place.read("out.jsonl"), "earlier\n");
}

#[test]
fn where_no_more_rows_fit_the_run_stops_and_goes_on_later() {
    let place = Place::new();
    let run = rounds_of_four(&place, 60, 8);
    place.text(&format!("{run} -o whole.jsonl"));
    let whole = place.read("whole.jsonl");
    assert!(whole.len() > 8_000, "{}", whole.len());
    let output = place.run_with_small_files(&format!("{run} -o out.jsonl"), 6_000);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for words in [
        "out.jsonl: cannot be written",
        "tokens are kept in out.jsonl; --resume goes on",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let kept = place.read("out.jsonl");
    assert!(whole.starts_with(&kept) && kept.ends_with('\n'), "{kept}");
    // All that fit: also of those that ended together with the one that did not.
    let next = whole[kept.len()..].lines().next().unwrap().len() + 1;
    assert!(kept.len() + next > 6_000, "{} bytes and {next}", kept.len());
    place.text(&format!("{run} -o out.jsonl --resume"));
    assert_eq!(place.read("out.jsonl"), whole);
}

#[test]
fn ten_thousand_prompts_are_answered() {
    let place = Place::new();
    place.write("small.toml", &small_machine(SMALL));
    let line = |i: usize| {
        let ids: Vec<usize> = (0..1 + i % 3).map(|t| 4 + (i * 31 + t * 7) % 500).collect();
        json!({ "id": i, "prompt_token_ids": ids }).to_string() + "\n"
    };
    let text: String = (0..10_000).map(line).collect();
    place.write("prompts.jsonl", &text);
    let flags = format!("run --hw small.toml --model {} --dtype f32", tiny_opt());
    let run = format!("{flags} --gen-len 2 --prompts prompts.jsonl -o");
    let peak = common::SlowRun::of(&place, &format!("{run} out.jsonl")).peak_bytes();
    let found = rows(&place, "out.jsonl");
    assert_eq!(found.len(), 10_000);
    assert!(found.iter().enumerate().all(|(i, row)| row["id"] == i));
    println!("10,000 prompts: {} MB at most", peak >> 20);
    // The tiers take 40 MB of it.
    assert!(peak < 200 << 20, "{peak} bytes");
    // The prompts are 1500 different ones, again and again.
    let answers: Vec<Vec<u64>> = found.iter().map(ids).collect();
    assert!(answers.iter().zip(&answers[1500..]).all(|(a, b)| a == b));
    place.write(
        "prompts.jsonl",
        &text.split_inclusive('\n').take(1500).collect::<String>(),
    );
    place.text(&format!("{run} fewer.jsonl"));
    let fewer = rows(&place, "fewer.jsonl");
    assert!(fewer.iter().map(ids).eq(answers[..1500].iter().cloned()));
}

#[test]
fn a_machine_that_nothing_is_known_of_is_measured_first() {
    let place = Place::new();
    place.write("prompts.jsonl", &prompts(2));
    let line = format!(
        "run --model {} --prompts prompts.jsonl -o out.jsonl",
        tiny_opt()
    );
    let run = common::SlowRun::of(&place, &line);
    sleep(Duration::from_millis(200));
    run.tell("kill", &["-INT"]);
    let output = run.child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(
        said.starts_with("measuring this machine, since neither"),
        "{said}"
    );
    assert!(
        said.ends_with("error: interrupted; nothing was run\n"),
        "{said}"
    );
    assert!(!place.path("out.jsonl").exists());
}

#[test]
fn a_token_outside_of_the_vocabulary_ends_no_answer_and_is_named() {
    let place = Place::new();
    let run = rounds_of_four(&place, 4, 2).replace(&tiny_opt(), "model");
    checkpoint(&place, &json!({ "eos_token_id": 999_999 }));
    let output = place.run(&run);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("eos_token_id: token 999999 is outside of"),
        "{said}"
    );
}
