//! `plimsoll perplexity`: what it computes is what transformers computes, and what it refuses.

mod common;

use std::path::Path;

use common::{Place, tiny_opt};
use serde::Deserialize;
use serde_json::Value;

fn quality(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/quality");
    folder.join(name).display().to_string()
}

/// What transformers computed of a part of the held-out text.
#[derive(Deserialize)]
struct Case {
    bytes: usize,
    context: u32,
    tokens: u64,
    scored: u64,
    perplexity: f64,
}

fn reference() -> Vec<Case> {
    let text = std::fs::read_to_string(quality("reference.json")).unwrap();
    let mut reference: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(reference["cases"].take()).unwrap()
}

/// How far two perplexities are apart at most, as a share.
const TOLERANCE: f64 = 1e-3;

fn assert_near(found: f64, expected: f64) {
    let apart = (found / expected - 1.0).abs();
    assert!(apart < TOLERANCE, "{found} for {expected}");
}

/// The first flags of a run on the first bytes of the held-out text.
fn on_text(place: &Place, bytes: usize) -> String {
    let text = std::fs::read_to_string(quality("held-out.txt")).unwrap();
    place.write("text.txt", &text[..bytes]);
    format!(
        "perplexity --model {} --text text.txt",
        quality("kjv-llama")
    )
}

#[test]
fn perplexity_is_that_of_transformers() {
    let place = Place::new();
    // The whole text takes a release build.
    let cases = reference().into_iter().filter(|case| case.bytes <= 8000);
    let mut compared = 0;
    for case in cases {
        let run = on_text(&place, case.bytes);
        let context = case.context;
        let flags = format!("--dtype f32 --context {context} --format json");
        let report = place.json(&format!("{run} {flags}"));
        assert_eq!(report["tokens"], case.tokens);
        let row = &report["rows"][0];
        assert_eq!(row["scored_tokens"], case.scored);
        assert_near(row["perplexity"].as_f64().unwrap(), case.perplexity);
        compared += 1;
    }
    assert_eq!(compared, 2);
}

#[test]
fn the_recorded_results_are_of_the_committed_model() {
    let mut reader = csv::Reader::from_path(quality("results.csv")).unwrap();
    let rows: Vec<(String, f64, f64, f64, f64, u64)> =
        reader.deserialize().map(Result::unwrap).collect();
    assert_eq!(rows[0].0, "f32, plain");
    let reference = reference();
    let whole = reference.iter().max_by_key(|case| case.bytes).unwrap();
    assert_near(rows[0].1, whole.perplexity);
    let text = std::fs::read_to_string(quality("README.md")).unwrap();
    for (setting, perplexity, change, divergence, same, scored) in &rows {
        assert_eq!(*scored, whole.scored, "{setting}");
        let (change, same) = (100.0 * change, 100.0 * same);
        let line = format!(
            "| {setting} | {perplexity:.3} | {change:+.2}% | {divergence:.5} | {same:.1}% |"
        );
        assert!(text.contains(&line), "README.md lacks {line}");
    }
}

#[test]
fn each_setting_costs_what_it_costs_by_itself_and_together() {
    let place = Place::new();
    let run = on_text(&place, 1500);
    let flags = "--dtype f32,f16,bf16 --context 256 --compress-weight --compress-cache \
                 --sparse-attention 1,0.1";
    let report = place.json(&format!("{run} {flags} --format json"));
    let rows = report["rows"].as_array().unwrap();
    let of = |setting: &str, key: &str| {
        let row = rows.iter().find(|row| row["setting"] == setting);
        row.unwrap_or_else(|| panic!("no {setting} in {report}"))[key]
            .as_f64()
            .unwrap()
    };
    assert_eq!(rows.len(), 10);
    // All values are read: the very same.
    let dense = "f32, sparse attention 1";
    assert_eq!(of(dense, "change"), 0.0);
    assert_eq!(of(dense, "kl_divergence"), 0.0);
    let all = "f32, 4-bit weights and cache";
    let all_dense = "f32, 4-bit weights and cache, sparse attention 1";
    assert_eq!(of(all, "perplexity"), of(all_dense, "perplexity"));
    for (less, more) in [
        ("f32, plain", "f16, plain"),
        ("f16, plain", "bf16, plain"),
        ("bf16, plain", "f32, 4-bit cache"),
        ("f32, 4-bit cache", "f32, 4-bit weights"),
        ("f32, plain", "f32, sparse attention 0.1"),
        (
            "f32, sparse attention 0.1",
            "f32, 4-bit weights and cache, sparse attention 0.1",
        ),
    ] {
        let [less_kl, more_kl] = [less, more].map(|setting| of(setting, "kl_divergence"));
        assert!(less_kl < more_kl, "{less}: {less_kl}, {more}: {more_kl}");
    }
    assert!(of(all, "kl_divergence") < 0.1, "{report}");
    assert!(of(all, "same_token") > 0.8, "{report}");
    let csv = place.text(&format!("{run} --context 256 --format csv"));
    assert!(csv.starts_with("setting,perplexity,change,"), "{csv}");
    assert_eq!(csv.lines().count(), 2);
    let text = place.text(&format!("{run} --context 256 --compress-weight"));
    assert!(text.contains("emulated device"), "{text}");
    // As its config.json says.
    assert!(text.contains("bf16, 4-bit weights"), "{text}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let place = Place::new();
    let run = on_text(&place, 500);
    place.refused(&run, 4, &["text.txt", "a window has 512", "--context"]);
    place.refused(
        &format!("{run} --context 513"),
        2,
        &["--context 513", "kjv-llama sees 512"],
    );
    for wrong in ["3", "-4", "many"] {
        let line = format!("{run} --context {wrong}");
        place.refused(&line, 2, &["--context", "whole number of tokens, from 4"]);
    }
    place.write("empty.txt", "");
    place.refused(
        &run.replace("text.txt", "empty.txt"),
        4,
        &["empty.txt", "has 0 tokens", "give a text"],
    );
    place.refused(
        &format!("{run} --sparse-attention 0"),
        2,
        &["--sparse-attention", "above 0"],
    );
    let text = "--text text.txt";
    place.refused(
        &format!("perplexity --model opt-125m {text}"),
        4,
        &["--model opt-125m", "no weights", "give a folder"],
    );
    let said = place.refused(
        &format!("perplexity --model nodir {text}"),
        4,
        &["--model nodir: is no folder", "model.safetensors"],
    );
    assert!(!said.contains("opt-125m"), "{said}");
    let bare = place.path("bare");
    std::fs::create_dir(&bare).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{}/{name}", tiny_opt()), bare.join(name)).unwrap();
    }
    place.refused(
        &format!("perplexity --model bare {text}"),
        4,
        &["--model bare", "no tokenizer.json"],
    );
    // Of another model, with more tokens.
    std::fs::copy(
        format!("{}/tokenizer.json", quality("kjv-llama")),
        bare.join("tokenizer.json"),
    )
    .unwrap();
    place.refused(
        &format!("perplexity --model bare {text}"),
        4,
        &["text.txt", "outside of bare's vocabulary"],
    );
    place.refused(
        "perplexity --model bare --text none.txt",
        4,
        &["none.txt", "check the path"],
    );
}
