//! `bench` on the emulated device: what it measures, and how it says so.

mod common;

use std::collections::HashMap;
use std::fs;

use common::Place;
use plimsoll_backend::cuda::check_available;
use serde_json::Value;

/// A model whose products take no time.
const MODEL: &str = r#"{"model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 160, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}"#;

fn place() -> Place {
    let place = Place::new();
    place.write("config.json", MODEL);
    place
}

fn number(row: &Value, key: &str) -> f64 {
    let number = row[key].as_f64();
    number.unwrap_or_else(|| panic!("{key} of {row}"))
}

#[test]
fn products_and_a_decode_over_the_link_are_measured() {
    let place = place();
    let printed = place.json("bench --model config.json --format json -o bench.json");
    let report: Value = serde_json::from_str(&place.read("bench.json")).expect("JSON");
    assert_eq!(report, printed);
    assert_eq!(report["backend"], "emulated");
    assert_eq!(report["dtype"], "bf16");
    let memory = number(&report, "memory_bytes_per_s");
    assert!((1e8..1e13).contains(&memory), "{memory}");
    let rows = report["products"].as_array().expect("a list");
    // Queries and the output; keys and values; gate and up; down; the head.
    let shapes = [[48, 48], [24, 48], [80, 48], [48, 80], [160, 48]];
    for [n, k] in shapes {
        let of_shape = rows.iter().filter(|row| row["n"] == n && row["k"] == k);
        let rows: Vec<u64> = of_shape
            .map(|row| row["rows"].as_u64().expect("rows"))
            .collect();
        assert_eq!(rows, [1, 2, 4, 8, 16, 32, 64, 128], "{n} x {k}");
    }
    assert_eq!(rows.len(), 8 * shapes.len());
    for row in rows {
        let dispatched = row["dispatched"].as_str().expect("a name");
        let seconds = number(row, &format!("{dispatched}_s"));
        let rate = number(row, "bytes") / seconds;
        assert!(
            (rate / number(row, "bytes_per_s") - 1.0).abs() < 1e-6,
            "{row}"
        );
        let share = number(&row["share_of_memory"], "measured");
        assert!((share * memory / rate - 1.0).abs() < 1e-6, "{row}");
        if let Some(conventional) = row["conventional_s"].as_f64() {
            let over = number(&row["over_conventional"], "measured");
            assert!((over * conventional / seconds - 1.0).abs() < 1e-6, "{row}");
        }
        assert_eq!(row["share_of_memory"]["aim"], Value::Null);
    }
    assert_eq!(report["attention"].as_array().map(Vec::len), Some(0));
    let link = &report["link"];
    assert_eq!(link["layers"], 2);
    // All weights come for each token; the time between two tokens may begin and end at other places of their way.
    let layer = 2 * 48 * 48 + 2 * 24 * 48 + 3 * 80 * 48 + 2 * 48;
    let all = 2 * (2 * layer + 2 * 160 * 48 + 48);
    let bytes = number(link, "bytes_per_token");
    assert!(
        (bytes / f64::from(all) - 1.0).abs() < 0.2,
        "{bytes} of {all}"
    );
    assert!(number(&link["share_of_link"], "measured") > 0.0);
    assert!(number(&link["over_busiest"], "measured") >= 1.0);
}

/// All that was measured as lines of a table, and as a picture.
#[test]
fn what_was_measured_is_a_table_and_a_picture() {
    let place = place();
    let files = "-o bench.csv -o bench.svg -o bench.png -o bench.json";
    place.text(&format!("bench --model config.json {files}"));
    let report: Value = serde_json::from_str(&place.read("bench.json")).expect("JSON");
    let memory = number(&report, "memory_bytes_per_s");
    let text = place.read("bench.csv");
    let mut table = csv::Reader::from_reader(text.as_bytes());
    let lines: Vec<HashMap<String, String>> =
        table.deserialize().map(|l| l.expect("a line")).collect();
    let of = |part: &str| {
        lines
            .iter()
            .filter(|l| l["part"] == part)
            .collect::<Vec<_>>()
    };
    assert_eq!((of("attention").len(), of("link").len()), (0, 1));
    for row in report["products"].as_array().expect("a list") {
        let is_its = |line: &&&HashMap<String, String>| {
            ["n", "k", "rows"]
                .iter()
                .all(|key| line[*key].parse().ok() == row[*key].as_u64())
        };
        let products = of("product");
        let lines: Vec<_> = products.iter().filter(is_its).collect();
        let taken: Vec<_> = lines.iter().filter(|l| l["dispatched"] == "true").collect();
        assert_eq!(taken.len(), 1, "{row}");
        assert_eq!(taken[0]["way"], row["dispatched"].as_str().expect("a name"));
        for line in lines {
            let seconds = number(row, &format!("{}_s", line["way"]));
            let share: f64 = line["share_of_peak"].parse().expect("a number");
            let expected = number(row, "bytes") / seconds / memory;
            assert!((share / expected - 1.0).abs() < 1e-6, "{line:?}");
        }
    }
    let svg = place.read("bench.svg");
    for words in [
        "A: GEMV",
        "C: conventional",
        "what dispatch takes",
        "48 x 80",
    ] {
        assert!(svg.contains(words), "{words}");
    }
    assert!(
        !svg.contains("unified"),
        "an emulated device has one attention"
    );
    assert!(
        fs::read(place.path("bench.png"))
            .expect("a file")
            .starts_with(b"\x89PNG")
    );
}

/// What the figures of a slow link mean; how near to it a decode comes is a machine's own, and no test's.
#[test]
fn a_decode_over_a_slow_link_is_told_beside_what_the_link_carries() {
    let place = place();
    let line = "bench --model config.json --h2d-gb-s 0.002 --format json";
    let link = &place.json(line)["link"];
    let rate = number(link, "link_bytes_per_s");
    // A link that is held back never carries more; how much less, a busy machine decides.
    assert!(rate > 0.0 && rate < 1.1 * 0.002e9, "{rate}");
    assert_eq!(link["busiest"], "h2d");
    let share = number(&link["share_of_link"], "measured");
    let carried = number(link, "bytes_per_token") / number(link, "seconds_per_token");
    assert!((share * rate / carried - 1.0).abs() < 1e-6, "{share}");
    let over = number(&link["over_busiest"], "measured");
    assert!(over >= 1.0, "{over}");
    assert_eq!(link["over_busiest"]["aim"], Value::Null);
}

#[test]
fn people_read_a_table() {
    let place = place();
    let text = place.text("bench --model config.json --dtype f16");
    for words in [
        " in f16 on emulated device; its memory: ",
        "48 x 80",
        "C: conventional",
        "2 layers",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    assert!(!text.contains("aim"), "{text}");
}

#[test]
fn what_cannot_be_measured_is_refused_first() {
    let place = place();
    place.refused("bench --model no-such-model", 2, &["no-such-model"]);
    let line = "bench --model config.json -o no/such/folder.json";
    place.refused(line, 2, &["--output"]);
    if check_available().is_err() {
        place.refused(
            "bench --backend cuda --h2d-gb-s 1",
            5,
            &["is not on this machine"],
        );
    }
}
