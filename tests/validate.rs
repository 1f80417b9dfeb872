//! `plimsoll validate` from a grid file to its reports, on a machine profile that is given.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const GRID: &str = r#"
repeats = 1
dtype = "f32"

[[model]]
name = "tiny"
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 4
vocab_size = 128

[[placement]]
name = "host"
percent = [0, 100, 0, 100, 100, 0]

[[placement]]
name = "disk"
percent = [0, 0, 0, 0, 0, 0]

[[batch]]
name = "2x2"
gpu_batch_size = 2
num_gpu_batches = 2
prompt_len = 8
gen_len = 3

[[machine]]
name = "throttled"
h2d_bytes_per_s = 1e9
device_capacity_bytes = 100000000
"#;

/// Accepts any error.
const LOOSE: [&str; 4] = ["--median-max", "1e9", "--p95-max", "1e9"];

/// A folder with a grid and the profile of a machine of round numbers.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(grid: &str) -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        let round = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/machine.toml");
        let round = fs::read_to_string(round).expect("a profile");
        let emulated = round.replace("kind = \"gpu\"", "kind = \"emulated\"");
        fs::write(folder.path().join("machine.toml"), emulated).expect("written");
        fs::write(folder.path().join("grid.toml"), grid).expect("written");
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn json(&self, name: &str) -> Value {
        let text = fs::read_to_string(self.path(name)).expect(name);
        serde_json::from_str(&text).expect("JSON")
    }

    fn command(&self, line: &str) -> Command {
        let mut command = common::program();
        command.current_dir(self.folder.path());
        command.args(["validate", "--grid", "grid.toml"]);
        command.args(line.split_whitespace());
        command
    }

    fn run(&self, more: &[&str]) -> Output {
        let mut command = self.command("--hw machine.toml -o out");
        command.args(more).output().expect("runs")
    }

    /// The one line that is said with an exit code; it holds all `words`.
    fn refused(&self, line: &str, code: i32, words: &[&str]) {
        let output = self.command(line).output().expect("runs");
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(code), "{line}\n{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        for word in words {
            assert!(said.contains(word), "no `{word}` in {said}");
        }
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_case_is_reported_in_every_format() {
    let place = Place::new(GRID);
    let more = ["--format", "json", "--repeats", "2", "--all-traces"];
    let output = place.run(&[&LOOSE[..], &more].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 2);
    for case in cases {
        for key in ["predicted_s", "measured_s", "error", "error_as_profiled"] {
            assert!(case[key].is_f64(), "{key} in {case}");
        }
        assert!(case["explained_by"].is_string());
        assert!(case["plan"].as_str().is_some_and(|digest| digest.len() > 8));
        let over_busiest = case["measured_over_busiest"].as_f64().expect("a ratio");
        assert!(over_busiest >= 0.999, "{case}");
        // Passes' own busiest resources take at least as long together as the busiest of all.
        let by_pass = case["measured_over_busiest_by_pass"].as_f64();
        assert!(
            by_pass.is_some_and(|it| it > 0.5 && it <= over_busiest + 1e-9),
            "{case}"
        );
        let repeats = case["repeats_s"].as_array().expect("a list");
        assert!(repeats.len() == 2 && repeats.iter().all(Value::is_f64));
    }
    assert!(report["score"]["median_abs_error"].is_f64());
    assert_eq!(report["setting"]["device"], "emulated device");
    assert_eq!(report["coverage"]["runs"], 4);
    assert_eq!(place.json("out/cases.json"), report);
    for file in ["profile.toml", "scatter.svg", "scatter.png"] {
        let bytes = fs::metadata(place.path("out").join(file)).expect(file);
        assert!(bytes.len() > 0, "{file} is empty");
    }
    let table = fs::read_to_string(place.path("out/cases.csv")).expect("a table");
    let columns: Vec<usize> = table.lines().map(|l| l.split(',').count()).collect();
    assert!(
        columns.len() == 3 && columns.iter().all(|c| *c == columns[0]),
        "{table}"
    );
    let trace = place.json("out/trace.json");
    let folder = fs::read_dir(place.path("out/traces")).expect("all traces");
    let mut all: Vec<String> = folder
        .map(|file| {
            file.expect("a file")
                .file_name()
                .into_string()
                .expect("a name")
        })
        .collect();
    all.sort();
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(
        all[0].starts_with("01-") && all[1].starts_with("02-"),
        "{all:?}"
    );
    let of_furthest = all
        .iter()
        .map(|name| place.json(&format!("out/traces/{name}")));
    assert!(of_furthest.into_iter().any(|one| one == trace));
    assert!(
        trace["traceEvents"]
            .as_array()
            .is_some_and(|events| events.len() > 20)
    );
}

#[test]
fn the_profile_keeps_the_errors_of_enough_cases() {
    let profile = |place: &Place| -> toml::Table {
        let text = fs::read_to_string(place.path("out/profile.toml")).expect("a profile");
        text.parse().expect("TOML")
    };
    let few = Place::new(GRID);
    assert!(few.run(&LOOSE).status.success());
    assert!(!profile(&few).contains_key("residuals"));
    let batch = |size: u32| {
        format!(
            "[[batch]]\nname = \"{size}x1\"\ngpu_batch_size = {size}\nnum_gpu_batches = 1\n\
             prompt_len = 8\ngen_len = 3\n"
        )
    };
    let enough = Place::new(&format!("{GRID}{}{}", batch(1), batch(3)));
    assert!(enough.run(&LOOSE).status.success());
    let report = enough.json("out/cases.json");
    let log_errors = report["cases"]
        .as_array()
        .expect("cases")
        .iter()
        .map(|case| {
            // Of rates, where the report's are of latencies.
            -case["error_as_profiled"]
                .as_f64()
                .expect("a number")
                .ln_1p()
        });
    let (low, high) = log_errors.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), error| {
        (low.min(error), high.max(error))
    });
    let residuals = &profile(&enough)["residuals"];
    assert_eq!(residuals["runs"].as_integer(), Some(6));
    let at = |key: &str| residuals[key].as_float().expect("a number");
    let (p05, median, p95) = (
        at("p05_log_error"),
        at("median_log_error"),
        at("p95_log_error"),
    );
    let order = [low - 1e-9, p05, median, p95, high + 1e-9];
    assert!(order.is_sorted() && low < high, "{order:?}");
    let again = enough.command("--hw out/profile.toml -o again").output();
    let again = again.expect("the program starts");
    assert_ne!(again.status.code(), Some(4), "{}", errors(&again));
}

#[test]
fn one_run_of_one_case_claims_no_rank_and_no_spread() {
    let place = Place::new(&format!("{GRID}[[case]]\n"));
    let output = place.run(&LOOSE);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", errors(&output));
    assert!(
        said.contains("\n1 case in 1 run on an emulated device"),
        "{said}"
    );
    for word in ["NaN", "Spearman", "\u{b1}"] {
        assert!(!said.contains(word), "{word} in {said}");
    }
    let report = place.json("out/cases.json");
    assert!(report["score"]["spearman"].is_null());
    assert!(report["cases"][0]["repeat_range"].is_null());
    // The profile does not say how fast its machine went.
    assert!(report["cases"][0]["pace"].is_null());
    assert!(said.contains("pace: not known"), "{said}");
}

#[test]
fn errors_above_the_tolerance_have_their_own_exit_code() {
    let output = Place::new(GRID).run(&["--median-max", "0", "--p95-max", "0"]);
    assert_eq!(output.status.code(), Some(6));
    let said = errors(&output);
    assert!(said.starts_with("error: out of tolerance"), "{said}");
}

#[test]
fn what_can_be_refused_is_refused_before_anything_is_measured() {
    let place = Place::new(GRID);
    let words = [
        "--output grid.toml",
        "cannot be written to",
        "give -o a folder",
    ];
    place.refused("-o grid.toml", 2, &words);
    place.refused("-o /proc/out", 2, &["--output /proc/out"]);
    place.refused("--disk-dir nowhere -o out", 2, &["nowhere", "--disk-dir"]);
    let words = ["with 1 device thread,", "profile --device-threads 2"];
    place.refused("--hw machine.toml --device-threads 2 -o new", 2, &words);
    place.refused("--hw t4 -o new", 2, &["--hw t4", "GPU", "leave --hw out"]);
    assert!(!place.path("new").exists());
    let place = Place::new(&GRID.replace("prompt_len", "promt_len"));
    place.refused(
        "",
        4,
        &["grid.toml", "line 24", "did you mean `prompt_len`"],
    );
    let shape = &GRID[GRID.find("hidden_size").expect("a shape")..];
    let shape = &shape[..shape.find("\n\n").expect("its end")];
    let place = Place::new(&GRID.replace(shape, "model = \"gpt-j-6b\""));
    place.refused("", 5, &["case `tiny / host", "gpt-j-6b"]);
}

#[test]
fn a_case_that_fits_nowhere_is_infeasible() {
    let small = GRID.replace("100000000", "10000");
    let hw = "--hw machine.toml -o out";
    Place::new(&small).refused(
        hw,
        3,
        &["case `tiny / host", "device tier needs", "too little"],
    );
    let planned = small.replace("percent = [0, 100, 0, 100, 100, 0]", "");
    let words = [
        "case `tiny / host",
        "no plan fits",
        "the device tier holds",
        "too much",
    ];
    let place = Place::new(&planned);
    place.refused(hw, 3, &words);
    // An earlier run's profile is that of its tables.
    fs::write(place.path("out/cases.csv"), "earlier").expect("written");
    fs::write(place.path("out/profile.toml"), "earlier").expect("written");
    place.refused(hw, 3, &words);
    let kept = fs::read_to_string(place.path("out/profile.toml"));
    assert_eq!(kept.expect("kept"), "earlier");
}

#[cfg(unix)]
#[test]
fn a_picture_that_cannot_be_written_costs_no_table() {
    let place = Place::new(GRID);
    fs::create_dir(place.path("out")).expect("made");
    std::os::unix::fs::symlink("/dev/full", place.path("out/scatter.png")).expect("linked");
    let output = place.command("--hw machine.toml -o out").output();
    let output = output.expect("runs");
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let words = "error: out/scatter.png: cannot be written: No space left";
    assert!(said.starts_with(words) && said.len() < 130, "{said}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("2 cases in 2 runs"), "{printed}");
    assert!(place.path("out/trace.json").exists());
}

/// A limit on the size of files stands for a full disk.
#[cfg(unix)]
#[test]
fn a_case_that_fails_keeps_the_others() {
    let large = GRID
        .replace("hidden_size = 64", "hidden_size = 256")
        .replace("num_hidden_layers = 2", "num_hidden_layers = 4");
    let cases = "[[case]]\nplacement = \"disk\"\n[[case]]\nplacement = \"host\"\n";
    let place = Place::new(&(large + cases));
    let inner = place.command("--hw machine.toml -o out --repeats 2");
    let mut command = Command::new("sh");
    command.current_dir(place.folder.path());
    command.args(["-c", "trap '' XFSZ; ulimit -f 8192; exec \"$0\" \"$@\""]);
    command.arg(inner.get_program()).args(inner.get_args());
    let output = command.output().expect("runs");
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(5), "{said}");
    for word in [
        "1 of 2 cases in 2 of 4 runs",
        "kept in out",
        "case `tiny / disk",
        "disk tier",
    ] {
        assert!(said.contains(word), "no `{word}` in {said}");
    }
    let report = place.json("out/cases.json");
    assert_eq!(report["cases"][0]["group"], "host");
    assert_eq!(
        report["coverage"]["failures"].as_array().map(Vec::len),
        Some(1)
    );
    assert!(place.path("out/trace.json").exists());
}

/// Waits until something holds while a process runs, then presses Ctrl-C.
fn interrupt_when(mut child: Child, holds: impl Fn() -> bool) -> Output {
    let patience = Instant::now() + Duration::from_secs(300);
    while !holds() {
        assert!(Instant::now() < patience, "it never came to that");
        assert!(child.try_wait().expect("a child").is_none(), "it ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = child.id().to_string();
    let killed = Command::new("kill").args(["-INT", &pid]).status();
    assert!(killed.expect("kill").success());
    child.wait_with_output().expect("ends")
}

fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("starts")
}

#[cfg(unix)]
#[test]
fn an_interruption_before_any_run_says_so() {
    let place = Place::new(GRID);
    let child = start(place.command("-o out"));
    let output = interrupt_when(child, || place.path("out").exists());
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert_eq!(said, "error: interrupted before any case was run\n");
}

#[cfg(unix)]
#[test]
fn an_interruption_keeps_what_had_ended() {
    let place = Place::new(&GRID.replace("1e9", "5e6"));
    let line = "--hw machine.toml -o out --repeats 1000 --format json";
    let runs_so_far = || {
        let text = fs::read(place.path("out/cases.json")).unwrap_or_default();
        let report: Value = serde_json::from_slice(&text).unwrap_or_default();
        report["coverage"]["runs"].as_u64().unwrap_or(0)
    };
    let output = interrupt_when(start(place.command(line)), || runs_so_far() >= 3);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(
        said.contains("interrupted; 2 cases in ") && said.contains(" of 2000 runs"),
        "{said}"
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let coverage = &report["coverage"];
    assert_eq!(coverage["interrupted"], true);
    let written = fs::read(place.path("out/cases.json")).expect("tables");
    let written: Value = serde_json::from_slice(&written).expect("JSON");
    assert_eq!(
        written["coverage"], *coverage,
        "the file says what is printed"
    );
    assert!(
        coverage["runs"]
            .as_u64()
            .is_some_and(|runs| (3..2000).contains(&runs))
    );
    let listed = |case: &Value| case["repeats_s"].as_array().map_or(0, Vec::len) as u64;
    let runs: u64 = report["cases"]
        .as_array()
        .expect("cases")
        .iter()
        .map(listed)
        .sum();
    assert_eq!(coverage["runs"], runs);
    for file in ["cases.csv", "scatter.svg", "scatter.png", "trace.json"] {
        assert!(place.path("out").join(file).exists(), "{file}");
    }
}

#[test]
fn cases_of_types_that_the_profile_does_not_know_are_left_out_beside_others() {
    let shape = GRID.split("[[placement]]").next().expect("a model");
    let shape = &shape[shape.find("[[model]]").expect("a model")..];
    let other = shape.replace("\"tiny\"", "\"half\"\ndtype = \"bf16\"");
    let place = Place::new(&GRID.replacen("[[model]]", &format!("{other}\n[[model]]"), 1));
    let output = place.run(&LOOSE);
    let said = errors(&output);
    assert!(output.status.success(), "{said}");
    for words in ["2 cases left out", "no rates of bf16", "--dtype bf16,f32"] {
        assert!(said.contains(words), "no `{words}` in {said}");
    }
    let cases = place.json("out/cases.json")["cases"].clone();
    let names: Vec<&str> = cases
        .as_array()
        .expect("cases")
        .iter()
        .filter_map(|it| it["case"].as_str())
        .collect();
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|name| name.contains("tiny")), "{names:?}");
}

#[test]
fn what_predictions_rest_on_is_said() {
    // The profile knows products of up to 64 tokens, in f32.
    let longer = GRID.replace("prompt_len = 8", "prompt_len = 60");
    let place = Place::new(&longer.replace("dtype = \"f32\"", "dtype = \"bf16\""));
    let output = place.run(&LOOSE);
    assert!(output.status.success(), "{}", errors(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rates = "has no rates of matrix products in bf16: predicted with those in";
    let beyond = "predicted beyond what the profile measured: ";
    let notes = &place.json("out/cases.json")["notes"];
    for words in [rates, beyond] {
        assert!(text.contains(words), "{text}");
        assert!(notes.to_string().contains(words), "{notes}");
    }
    // An emulated device computes in bf16 as it can.
    assert!(!text.contains("Ampere"), "{text}");
}
