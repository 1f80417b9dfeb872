//! The house's rules that a compiler does not keep (ARCHITECTURE.md, "Invariants").

use std::fs;
use std::path::{Path, PathBuf};

const FUNCTION_LINES_MAX: usize = 70;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn all_rust_files() -> Vec<PathBuf> {
    let folders = [
        "formats", "core", "sim", "kernels", "backend", "src", "tests", "benches",
    ];
    folders
        .iter()
        .filter(|f| root().join(f).is_dir())
        .flat_map(|f| rust_files(f))
        .collect()
}

/// Every line that breaks a rule, with its place.
fn complaints(files: &[PathBuf], breaks: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).expect("a text");
        for (index, line) in text.lines().enumerate() {
            if breaks(line) {
                found.push(format!("{}:{}: {line}", file.display(), index + 1));
            }
        }
    }
    found
}

fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

fn dependencies(manifest: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(manifest)).expect("a manifest");
    let table: toml::Table = text.parse().expect("TOML");
    let names = |key: &str| {
        let section = table.get(key).and_then(toml::Value::as_table);
        section
            .map(|s| s.keys().cloned().collect::<Vec<_>>())
            .unwrap_or_default()
    };
    let all = names("dependencies")
        .into_iter()
        .chain(names("dev-dependencies"));
    all.filter(|name| name.starts_with("plimsoll")).collect()
}

#[test]
fn the_rooms_know_only_whom_they_may() {
    let may = [
        ("formats", vec![]),
        ("core", vec!["plimsoll-formats"]),
        ("kernels", vec!["plimsoll-formats"]),
        ("sim", vec!["plimsoll-core"]),
        ("backend", vec!["plimsoll-core", "plimsoll-kernels"]),
    ];
    for (room, knows) in may {
        assert_eq!(dependencies(&format!("{room}/Cargo.toml")), knows, "{room}");
    }
}

#[test]
fn the_planner_knows_no_runtime() {
    let found = complaints(&rust_files("src/planner"), |line| {
        line.contains("plimsoll_backend")
    });
    assert_none("the planner uses the runtime", &found);
}

#[test]
fn core_knows_no_files_clocks_or_threads() {
    let forbidden = [
        "std::fs",
        "std::time",
        "std::thread",
        "std::env",
        "std::net",
    ];
    let found = complaints(&rust_files("core/src"), |line| {
        forbidden.iter().any(|f| line.contains(f))
    });
    assert_none("core does what its callers should", &found);
}

#[test]
fn a_program_holds_shapes_and_never_times() {
    let mut files = rust_files("core/src/program");
    files.push(root().join("core/src/program.rs"));
    let found = complaints(&files, |line| {
        line.contains("Seconds") || line.contains("_s:")
    });
    assert_none("a program knows a duration", &found);
}

#[test]
fn only_the_program_prints_and_exits() {
    let forbidden = ["println!(", "eprintln!(", "print!(", "process::exit"];
    for room in [
        "formats/src",
        "core/src",
        "sim/src",
        "kernels/src",
        "backend/src",
    ] {
        let found = complaints(&rust_files(room), |line| {
            forbidden.iter().any(|f| line.contains(f))
        });
        assert_none("a library prints or exits", &found);
    }
}

#[test]
fn nothing_is_left_for_later() {
    let words = ["todo!(", "unimplemented!(", "#[ignore"].map(|w| w.to_owned());
    let this = Path::new("tests/tidy.rs");
    let files: Vec<PathBuf> = all_rust_files()
        .into_iter()
        .filter(|f| !f.ends_with(this))
        .collect();
    let found = complaints(&files, |line| {
        words.iter().any(|w| line.contains(w.as_str()))
    });
    assert_none("half-done", &found);
}

#[test]
fn a_function_fits_a_screen() {
    let mut found = Vec::new();
    for file in all_rust_files() {
        let text = fs::read_to_string(&file).expect("a text");
        let mut begun: Option<(usize, usize, String)> = None;
        for (index, line) in text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let words = line.trim_start();
            let is_fn = words.starts_with("fn ")
                || ["pub ", "pub(", "const fn", "unsafe fn", "async fn"]
                    .iter()
                    .any(|start| words.starts_with(start))
                    && words
                        .split('(')
                        .next()
                        .is_some_and(|head| head.split_whitespace().any(|word| word == "fn"))
                || words.starts_with("pub(") && words.contains(" fn ");
            if is_fn && begun.is_none() && !words.ends_with(';') {
                begun = Some((index, indent, words.to_owned()));
            }
            let closes = line.trim_end() == format!("{}}}", " ".repeat(indent));
            if let Some((start, depth, name)) = &begun
                && *depth == indent
                && (closes || words.ends_with(';') && index == *start)
            {
                if index - start + 1 > FUNCTION_LINES_MAX {
                    found.push(format!("{}:{}: {name}", file.display(), start + 1));
                }
                begun = None;
            }
        }
    }
    assert_none("longer than a screen", &found);
}

#[test]
fn hardware_numbers_live_in_profiles() {
    let numbers = ["320e9", "13.84e9", "21.24e12", "2039e9", "65e12"];
    for room in ["core/src", "sim/src", "backend/src", "src"] {
        let found = complaints(&rust_files(room), |line| {
            numbers.iter().any(|n| line.contains(n))
        });
        assert_none("a machine's number in code", &found);
    }
}

#[test]
fn the_readme_says_what_is_recorded() {
    let text = |file: &str| fs::read_to_string(root().join(file)).expect("a text");
    let results = text("experiments/flexgen/results/RESULTS.md");
    let readme = text("README.md");
    let begin = readme.find("| all tables used for |");
    let table = readme[begin.expect("the README has the headline")..].lines();
    for line in table.take_while(|line| line.starts_with('|')) {
        assert!(results.contains(line), "not in RESULTS.md: {line}");
    }
}
