//! What the machine has, and what is said where it has no GPU.

mod common;

use common::Place;
use plimsoll_backend::cuda::check_available;

#[test]
fn every_kernel_of_the_cpu_is_tested_and_every_library_looked_for() {
    let place = Place::new();
    let report = place.json("doctor --format json");
    let names = |list: &str, key: &str| -> Vec<String> {
        let rows = report[list].as_array().expect("a list");
        let names = rows
            .iter()
            .map(|row| row[key].as_str().expect("a name").to_owned());
        names.collect()
    };
    for name in [
        "host memory",
        "locked-memory limit",
        "huge pages",
        "disk tier",
        "io_uring",
    ] {
        assert!(
            names("machine", "name").iter().any(|found| found == name),
            "{name}"
        );
    }
    let kernels = report["kernels"].as_array().expect("a list");
    let cpu = kernels.iter().filter(|row| row["backend"] == "cpu");
    assert!(cpu.clone().count() >= 8);
    for row in kernels {
        assert_eq!(row["passed"], true, "{row}");
        assert!(
            row["worst_error"].as_f64().expect("a number") <= 1.0,
            "{row}"
        );
    }
    let cuda = kernels.iter().any(|row| row["backend"] == "cuda");
    assert_eq!(cuda, report["cuda_not_tested"].is_null());
    assert_eq!(cuda, check_available().is_ok());
    let text = place.text("doctor --backend cpu");
    assert!(
        text.contains("NVIDIA driver") && text.contains("attention"),
        "{text}"
    );
    place.refused("doctor --backend tpu", 2, &["--backend", "cpu", "cuda"]);
}

#[test]
fn a_missing_library_is_named_in_one_line() {
    let Err(missing) = check_available() else {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    };
    let place = Place::new();
    let why = missing.to_string();
    for line in [
        "profile --backend cuda",
        "run --backend cuda --model opt-125m",
        "validate --backend cuda",
        "bench --backend cuda",
        "alpha --backend cuda --model opt-125m",
        "replay --hw gh200 --model opt-125m --trace none.csv --execute --backend cuda",
    ] {
        let started = std::time::Instant::now();
        place.refused(line, 5, &[&why]);
        assert!(
            started.elapsed().as_secs() < 20,
            "{line}: measured before it refused"
        );
    }
    // The report comes first, then what is missing.
    let output = place.run("doctor --backend cuda");
    assert_eq!(output.status.code(), Some(5));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said, format!("error: {why}\n"));
    assert!(!output.stdout.is_empty());
    assert_eq!(
        std::fs::read_dir(place.folder.path())
            .expect("a folder")
            .count(),
        0
    );
}
