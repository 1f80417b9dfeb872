//! The command line, end to end: flags, outputs, exit codes and one-line errors.

mod common;

use std::process::Stdio;

use common::{POLICY, Place, SlowRun, tiny_plan};
use serde_json::Value;

/// The exit code of a command whose standard output nobody reads.
fn unread(place: &Place, line: &str) -> Option<i32> {
    let mut command = common::program();
    let mut child = command
        .args(line.split(' '))
        .current_dir(place.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("runs");
    drop(child.stdout.take());
    child.wait().expect("ends").code()
}

#[test]
fn files_and_exit_codes_are_as_if_somebody_read() {
    let place = Place::new();
    let columns =
        "model,prompt_len,gen_len,gpu_batch_size,num_gpu_batches,wg,wc,cg,cc,hg,hc,latency_s";
    let run = "opt-1.3b,128,4,4,1,0,100,100,0,100,0,3";
    place.write("runs.csv", &format!("{columns}\n{run}\n"));
    let calibrate =
        "calibrate --hw t4 --runs runs.csv --constants links.h2d.page_locked -o mine.toml";
    assert_eq!(unread(&place, calibrate), Some(0));
    assert!(place.read("mine.toml").contains("name = \"mine\""));
    place.write(
        "t.csv",
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0,16,4\n",
    );
    let replay = "replay --hw gh200 --model opt-13b --trace t.csv --per-request each.csv";
    assert_eq!(unread(&place, replay), Some(0));
    assert_eq!(place.read("each.csv").lines().count(), 2);
    let too_small = "plan --hw t4 --model opt-175b --host-gb 1 --disk-gb 1 --format json";
    assert_eq!(unread(&place, too_small), Some(3));
}

#[test]
fn wrong_flags_are_refused_in_a_line() {
    let place = Place::new();
    let line = |percent: &str| {
        format!("simulate --hw t4 --model opt-125m --gpu-batch-size 2 --percent {percent}")
    };
    place.refused(
        &line("120 0 0 100 0 100"),
        2,
        &["--percent", "weights", "120%"],
    );
    place.refused(&line("60 60 0 100 0 100"), 2, &["--percent", "weights"]);
    place.refused(&line(".2 .8 0 1 0 1"), 2, &["--percent", "fractions"]);
    place.text(&line("1 0 0 0 0 0"));
    place.refused(
        &line("-5 80 0 100 0 100"),
        2,
        &["--percent", "weights", "-5%"],
    );
    place.refused(&line("nan 80 0 100 0 100"), 2, &["--percent", "weights"]);
    place.refused(&line("20 80 0 100"), 2, &["--percent"]);
    place.refused(
        "simulate --hw t4 --model opt-125m",
        2,
        &["--percent", "--gpu-batch-size"],
    );
    for share in ["0", "-0.1", "1.5", "nan", "all"] {
        for command in [
            line("0 100 0 100 0 100"),
            "plan --hw t4 --model opt-125m".to_owned(),
        ] {
            let line = format!("{command} --sparse-attention {share}");
            place.refused(&line, 2, &["--sparse-attention", "above 0 and at most 1"]);
        }
    }
    place.refused("simulate --hww t4", 2, &["--hww"]);
    place.refused("simulat", 2, &["simulat", "simulate"]);
    let long = format!("{} --prompt-len 4000", line("100 0 100 0 100 0"));
    place.refused(&long, 2, &["4000", "opt-125m"]);
    let zero = "simulate --hw t4 --model opt-125m --gpu-batch-size 0 --percent 1 1 1 1 1 1";
    place.refused(zero, 2, &["--gpu-batch-size"]);
    for wrong in ["nan", "-5", "0"] {
        let slow = format!("plan --hw t4 --model opt-125m --max-latency-s {wrong}");
        place.refused(&slow, 2, &["--max-latency-s", "above 0"]);
        let link = format!("run --hw t4 --model opt-125m --h2d-gb-s {wrong}");
        place.refused(&link, 2, &["--h2d-gb-s", "above 0"]);
    }
}

#[test]
fn what_cannot_be_written_in_the_end_is_printed_none_the_less() {
    let place = Place::new();
    tiny_plan(&place);
    std::os::unix::fs::symlink("/dev/full", place.path("full")).unwrap();
    let plan = "plan --hw t4 --model opt-125m --num-prompts 4 --gen-len 4";
    for (line, key) in [
        ("run --plan plan.json -o full", "outputs"),
        ("run --plan plan.json --trace full", "outputs"),
        (
            "simulate --hw small.toml --plan plan.json -o full",
            "prediction",
        ),
        (
            "simulate --hw small.toml --plan plan.json --trace full",
            "prediction",
        ),
        (&format!("{plan} -o full"), "prediction"),
    ] {
        let output = place.run(&format!("{line} --format json"));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let words = "error: full: cannot be written: No space left";
        assert!(said.starts_with(words), "{said}");
        assert!(said.contains("make room"), "{said}");
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(!result[key].is_null(), "{line}");
    }
}

#[test]
fn an_interrupted_profile_is_not_said_to_be_kept() {
    let place = Place::new();
    let run = SlowRun::of(&place, "profile --quick -o my.toml");
    run.tell("kill", &["-INT"]);
    let said = run.ended(130);
    assert_eq!(said, "error: interrupted; nothing was written\n");
    assert!(!place.path("my.toml").exists());
}

#[test]
fn what_cannot_be_written_is_refused_before_the_work() {
    let place = Place::new();
    let model = "--hw t4 --model opt-125m";
    let nowhere = ["nowhere/file", "cannot be written", "make it"];
    for (command, flag) in [
        (format!("plan {model}"), "--output"),
        (format!("simulate {model} {POLICY}"), "--output"),
        (format!("simulate {model} {POLICY}"), "--trace"),
        (format!("run {model}"), "--output"),
        (format!("run {model}"), "--trace"),
        ("profile".to_owned(), "--output"),
    ] {
        let line = format!("{command} {flag} nowhere/file");
        let said = place.refused(&line, 2, &nowhere);
        assert!(said.contains(flag), "{said}");
    }
    let folder = format!("plan {model} -o .");
    place.refused(&folder, 2, &["--output .", "a file in it"]);
    assert_eq!(std::fs::read_dir(place.folder.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_that_is_there_is_not_said_to_be_missing() {
    let place = Place::new();
    let said = place.refused("plan --hw t4 --model opt-125m -o /proc/x", 2, &["/proc/x"]);
    assert!(!said.contains("folder"), "{said}");
}

#[test]
fn what_a_plan_says_is_planned_again() {
    let place = Place::new();
    tiny_plan(&place);
    for (flags, names) in [
        ("run --plan plan.json --gen-len 24", "--gen-len"),
        (
            "run --plan plan.json --gen-len 24 --dtype f32",
            "--gen-len and --dtype",
        ),
        ("simulate --plan plan.json --num-prompts 7", "--num-prompts"),
    ] {
        let remedy = format!("the plan says it; leave {names} out, or plan again with {names}");
        place.refused(flags, 2, &["--plan", &remedy]);
    }
    let percent = "simulate --plan plan.json --gpu-batch-size 4";
    let remedy = "leave --gpu-batch-size out, or leave --plan out";
    place.refused(percent, 2, &["--plan", remedy]);
    let both = "run --prompt x --prompts - --hw t4 --model opt-125m";
    place.refused(both, 2, &["--prompts", "see --help"]);
}

#[test]
fn memory_that_nobody_has_is_refused_with_the_most() {
    let place = Place::new();
    for flag in ["--host-gb", "--device-gb", "--disk-gb"] {
        let line = format!("plan --hw t4 --model opt-125m {flag} 1e30");
        place.refused(&line, 2, &[flag, "at most 1000000000"]);
    }
}

#[test]
fn two_outputs_are_two_files() {
    let place = Place::new();
    std::fs::create_dir(place.path("sub")).unwrap();
    let model = "--hw t4 --model opt-125m";
    for command in [format!("simulate {model} {POLICY}"), format!("run {model}")] {
        let line = format!("{command} -o x.json --trace sub/../x.json");
        place.refused(&line, 2, &["--output", "--trace", "x.json", "its own"]);
    }
    assert!(!place.path("x.json").exists());
}

#[test]
fn a_file_may_be_our_own_output() {
    let place = Place::new();
    std::os::unix::fs::symlink("/proc/self/fd/1", place.path("out")).unwrap();
    let line = format!("simulate --hw t4 --model opt-125m {POLICY} -o out");
    let piped = place.text(&line);
    assert!(piped.starts_with('{') && piped.contains("\npredicted\n"));
    let mut command = common::program();
    command.current_dir(place.folder.path());
    command.args(line.split_whitespace());
    command.stdout(std::fs::File::create(place.path("all")).unwrap());
    assert!(command.status().unwrap().success());
    let written = std::fs::read_to_string(place.path("all")).unwrap();
    assert_eq!(written, piped);
    assert!(place.path("out").is_symlink());
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for line in [
        "models list --format json",
        "man",
        "completions bash",
        "--help",
        "workload generate --rate 5 --requests 1000 -o -",
        "workload generate --rate 5 --requests 1000 -o /dev/stdout",
    ] {
        let mut command = common::program();
        command.args(line.split_whitespace());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(output.stderr.is_empty(), "{line}");
    }
}

#[test]
fn help_completions_and_the_manual_come_from_one_definition() {
    let place = Place::new();
    let help = place.text("--help");
    for words in ["infeasible", "bad input", "130", "simulate", "completions"] {
        assert!(help.contains(words), "{words}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = place.text(&format!("completions {shell}"));
        assert!(script.contains("num-gpu-batches"), "{shell}");
    }
    let manual = place.text("man");
    for words in [
        ".TH",
        "PLIMSOLL SIMULATE",
        "PLIMSOLL HW SHOW",
        "gpu\\-batch\\-size",
        "infeasible",
    ] {
        assert!(manual.contains(words), "{words}");
    }
    assert!(!manual.contains("(1)"), "there is no other page");
    assert!(place.text("--version").starts_with("plimsoll "));
    let output = place.run("");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_output_does_not_take_an_inputs_place() {
    let place = Place::new();
    place.write("lengths.csv", "12\n30\n");
    let asked =
        "plan --hw t4 --model opt-125m --gen-len 4 --prompt-lens lengths.csv -o lengths.csv";
    place.refused(asked, 2, &["--output", "--prompt-lens", "lengths.csv"]);
    assert_eq!(
        std::fs::read_to_string(place.path("lengths.csv")).unwrap(),
        "12\n30\n"
    );
    place.write("p.jsonl", "{\"id\": 1, \"prompt_token_ids\": [2]}\n");
    for out in ["-o p.jsonl", "--trace p.jsonl"] {
        let asked = format!("run --hw t4 --model opt-125m --gen-len 2 --prompts p.jsonl {out}");
        place.refused(&asked, 2, &["--prompts", "p.jsonl"]);
    }
    place.write("my.toml", &common::small_machine(common::SMALL));
    for (asked, input) in [
        ("plan --hw my.toml --model opt-125m -o", "my.toml"),
        ("plan --hw ./my --model opt-125m -o", "my.toml"),
        ("plan --hw t4 --model my.toml -o", "my.toml"),
        ("bench --hw my.toml --model opt-125m -o", "my.toml"),
        ("profile --model my.toml -o", "my.toml"),
        ("calibrate --hw t4 --runs runs.csv -o", "runs.csv"),
        ("score --hw t4 --runs runs.csv -o", "runs.csv"),
        ("simulate --plan plan.json --trace", "plan.json"),
        (
            "pareto --hw t4 --model opt-125m --published runs.csv -o",
            "runs.csv",
        ),
    ] {
        place.write(input, &common::small_machine(common::SMALL));
        let said = place.refused(&format!("{asked} {input}"), 2, &["the same file", input]);
        let kept = std::fs::read_to_string(place.path(input)).unwrap();
        assert_eq!(kept, common::small_machine(common::SMALL), "{said}");
    }
    let twice = "pareto --hw t4 --model opt-125m -o p.svg -o p.png -o ./p.svg";
    place.refused(twice, 2, &["--output", "p.svg", "is given twice"]);
}

#[test]
fn a_profile_is_found_without_its_end_and_an_empty_table_is_said_to_be() {
    let place = Place::new();
    place.write("my.toml", &common::small_machine(common::SMALL));
    let shown = |hw: &str| place.text(&format!("hw show {hw} --format toml"));
    assert_eq!(shown("./my"), shown("my.toml"));
    place.write("runs.csv", "");
    place.refused(
        "score --hw t4 --runs runs.csv",
        4,
        &["is empty", "prompt_len"],
    );
    let unknown = "bench --model opt-125m -o x.pdf";
    place.refused(unknown, 2, &["x.pdf", ".csv"]);
}

#[test]
fn a_dash_is_our_own_output() {
    let place = Place::new();
    let line = format!("simulate --hw t4 --model opt-125m {POLICY} -o");
    assert_eq!(
        place.text(&format!("{line} -")),
        place.text(&format!("{line} /dev/stdout"))
    );
    assert_eq!(std::fs::read_dir(place.folder.path()).unwrap().count(), 0);
    let file = place.text(&format!("{line} plan.json"));
    assert!(file.contains("\nwritten    plan.json, "), "{file}");
}
