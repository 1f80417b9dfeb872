//! `scripts/validate-gpu` with a program that only writes down how it is called: which parts run, in which order.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with a program that fails where `failing` is how it is called.
fn place(failing: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("plimsoll");
    let calls = folder.path().join("calls");
    let text = format!(
        "#!/bin/sh\necho \"$@\" >>'{}'\necho \"of $1\"\n[ \"$1\" != '{failing}' ] || exit 5\n",
        calls.display()
    );
    fs::write(&program, text).expect("a file");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
    folder
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/validate-gpu");
    let mut command = Command::new(script);
    command.current_dir(folder);
    command.args([
        "--binary",
        "./plimsoll",
        "--output",
        "out",
        "--checkpoints",
        "none",
    ]);
    command.args(arguments).output().expect("bash is there")
}

/// What the program was called for, in order.
fn calls(folder: &Path) -> Vec<String> {
    let calls = fs::read_to_string(folder.join("calls")).expect("it was called");
    let first = calls
        .lines()
        .map(|line| line.split(' ').next().unwrap_or("").to_owned());
    first.collect()
}

#[test]
fn all_parts_run_in_order_and_leave_what_they_say() {
    let folder = place("none");
    let output = run(folder.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    let bench = ["bench"; 3];
    let expected = [&["doctor", "doctor", "profile"], &bench[..], &["validate"]].concat();
    assert_eq!(calls(folder.path()), expected);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("SKIPPED: tokens"), "{said}");
    let read =
        |file: &str| fs::read_to_string(folder.path().join("out").join(file)).expect("a file");
    for file in [
        "doctor",
        "bench-llama-2-7b",
        "bench-llama-3-8b",
        "bench-llama-2-7b-4-bit",
        "validate",
    ] {
        let part = file.split('-').next().unwrap_or(file);
        assert_eq!(read(&format!("{file}.txt")), format!("of {part}\n"));
    }
    let times = read("times.txt");
    assert_eq!(times.lines().count(), 5, "{times}");
    let called = fs::read_to_string(folder.path().join("calls")).expect("it was called");
    for file in ["json", "csv", "svg", "png"] {
        let file = format!("-o out/bench-llama-2-7b.{file}");
        assert!(called.contains(&file), "{called}");
    }
}

/// The folder's name is that of the GPU that CUDA counts first.
#[test]
fn what_is_found_is_kept_under_the_gpus_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("plimsoll");
    let rows = "GPU link   good  16 lanes\nGPU   good  10: NVIDIA A2, sm_86, 10 multiprocessors\n\
        GPU                  good  0: NVIDIA H200, sm_90, 132 multiprocessors\n";
    fs::write(&program, format!("#!/bin/sh\nprintf '{rows}'\n")).expect("a file");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/validate-gpu");
    let mut command = Command::new(script);
    command.current_dir(folder.path());
    command.args(["--binary", "./plimsoll", "--only", "doctor"]);
    let output = command.output().expect("bash is there");
    assert!(output.status.success(), "{output:?}");
    let named = folder.path().join("experiments/record/nvidia-h200");
    assert!(named.is_dir(), "{output:?}");
}

#[test]
fn a_part_runs_alone_by_the_profile_that_is_there() {
    let folder = place("none");
    fs::create_dir(folder.path().join("out")).expect("a folder");
    fs::write(folder.path().join("out/profile.toml"), "").expect("a file");
    let output = run(folder.path(), &["--only", "bench", "--model", "opt-1.3b"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(calls(folder.path()), ["doctor", "bench", "bench"]);
    let called = fs::read_to_string(folder.path().join("calls")).expect("it was called");
    assert!(
        called.contains("--model opt-1.3b --dtype f16 --hw out/profile.toml"),
        "{called}"
    );
    let packed = "--model opt-1.3b --compress-weight --dtype f16";
    assert!(called.contains(packed), "{called}");
}

#[test]
fn what_fails_is_told_and_the_others_go_on() {
    let folder = place("doctor");
    let output = run(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(!folder.path().join("out").exists());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("of doctor"), "what it found is shown: {said}");
    let folder = place("bench");
    let output = run(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let expected = ["doctor", "doctor", "profile", "bench", "validate"];
    assert_eq!(calls(folder.path()), expected);
    let times = fs::read_to_string(folder.path().join("out/times.txt")).expect("a file");
    assert!(times.contains("bench FAILED with exit code 5"), "{times}");
    // What a kernel computes wrongly is no reason to lose what else is found.
    let folder = place("none");
    let program = folder.path().join("plimsoll");
    let text = fs::read_to_string(&program).expect("a script") + "[ \"$1\" != doctor ] || exit 1\n";
    fs::write(&program, text).expect("a file");
    let output = run(folder.path(), &["--only", "doctor,validate"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(calls(folder.path()), ["doctor", "doctor", "validate"]);
    // Killed for what it is alone.
    let text = "#!/bin/sh\necho \"$@\" >>calls\n[ \"$1\" != profile ] || kill -SEGV $$\n";
    fs::write(&program, text).expect("a file");
    fs::remove_file(folder.path().join("calls")).expect("it was called");
    let output = run(folder.path(), &["--only", "profile,validate"]);
    assert_eq!(output.status.code(), Some(139), "{output:?}");
    assert_eq!(calls(folder.path()), ["doctor", "profile", "validate"]);
    let output = run(folder.path(), &["--only", "bench,all"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// With a program that takes the CPU for the GPU: all answers of all checkpoints are the same.
#[test]
fn answers_of_both_backends_are_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("plimsoll");
    let text = format!(
        "#!/bin/sh\nfor a in \"$@\"; do [ \"$a\" != cuda ] || a=cpu; shift; set -- \"$@\" \"$a\"; done\nexec '{}' \"$@\"\n",
        env!("CARGO_BIN_EXE_plimsoll")
    );
    fs::write(&program, text).expect("a file");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
    let checkpoints = concat!(env!("CARGO_MANIFEST_DIR"), "/backend/tests/fixtures");
    let output = run(
        folder.path(),
        &["--only", "tokens", "--checkpoints", checkpoints],
    );
    assert!(output.status.success(), "{output:?}");
    let tokens = fs::read_to_string(folder.path().join("out/tokens.txt")).expect("a file");
    let last = tokens.lines().last().expect("a line");
    assert_eq!(last, "tokens: 200 of 200 answers are the CPU's", "{tokens}");
}
