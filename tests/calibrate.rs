//! Measured runs: read, scored, and fitted.

use std::fs;
use std::path::PathBuf;

use assert_cmd::Command;
use plimsoll::calibrate::{Constant, FitOptions, Measured, RecordedRun, fit, read_runs};
use plimsoll_core::Dtype;
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_sim::predict;

const HEADER: &str = "model,prompt_len,gen_len,gpu_batch_size,num_gpu_batches,wg,wc,cg,cc,hg,hc";

fn t4() -> HardwareProfile {
    embedded::profile("t4").expect("embedded")
}

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("runs.csv");
    fs::write(&path, text).expect("written");
    (dir, path)
}

fn plimsoll(args: &[&str]) -> (i32, String, String) {
    let output = Command::cargo_bin("plimsoll")
        .expect("built")
        .args(args)
        .output()
        .expect("run");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let code = output.status.code().expect("an exit code");
    (code, text(output.stdout), text(output.stderr))
}

/// Runs that between them are bound by the disk, the link and the GPU.
fn runs() -> Vec<RecordedRun> {
    let (_dir, path) = file(&format!(
        "{HEADER},cpu_compute\n\
         opt-1.3b,128,4,8,2,0,0,100,0,100,0,false\n\
         opt-1.3b,128,4,8,1,0,0,0,0,100,0,false\n\
         opt-1.3b,128,4,4,1,0,100,100,0,100,0,false\n\
         opt-1.3b,256,4,32,1,100,0,100,0,100,0,false\n\
         opt-1.3b,128,4,1,1,100,0,100,0,100,0,false\n"
    ));
    read_runs(&path).expect("runs")
}

#[test]
fn a_fit_finds_the_constants_of_the_machine_that_made_the_runs() {
    let base = t4();
    let constants = ["links.disk_read", "links.h2d.page_locked", "compute.gemm"];
    let constants = constants.map(|name| Constant::named(name).expect("known"));
    let truth = [1.4, 0.7, 0.8];
    let mut machine = base.clone();
    for (constant, factor) in constants.iter().zip(truth) {
        constant.scale(&mut machine, factor);
    }
    let mut runs = runs();
    for run in &mut runs {
        let summary = predict(&run.plan(&machine), &machine).expect("fits");
        run.measured = Some(Measured::ThroughputTokS(summary.throughput_tok_s));
    }
    let options = FitOptions {
        constants: constants.to_vec(),
        prior: 0.5,
        noise: 0.01,
    };
    let found = fit(&base, &runs, &options, &|_, _| {}).expect("fits");
    for (constant, truth) in found.constants.iter().zip(truth) {
        let off = constant.factor / truth - 1.0;
        assert!(off.abs() < 0.03, "{constant:?}, not {truth}");
        assert!(constant.spread_left < 0.5, "{constant:?}");
    }
    assert!(
        found.after.iter().all(|e| e.abs() < 0.01),
        "{:?}",
        found.after
    );
    assert!(found.before.iter().any(|e| e.abs() > 0.1));
}

#[test]
fn what_runs_do_not_say_stays_as_it_was() {
    let base = t4();
    let mut runs = runs();
    runs.retain(|run| run.policy.weights.device == 1.0);
    for run in &mut runs {
        let summary = predict(&run.plan(&base), &base).expect("fits");
        run.measured = Some(Measured::Latency(summary.latency_s * 0.9));
    }
    let disk = Constant::named("links.disk_read").expect("known");
    let options = FitOptions {
        constants: vec![disk],
        prior: 0.3,
        noise: 0.05,
    };
    let found = fit(&base, &runs, &options, &|_, _| {}).expect("fits");
    assert!((found.constants[0].factor - 1.0).abs() < 1e-3);
    assert!(found.constants[0].spread_left > 0.99);
}

#[test]
fn a_wrong_file_is_refused_with_line_column_and_remedy() {
    let good = "opt-125m,32,4,1,1,100,0,100,0,100,0";
    for (text, said) in [
        (
            "model,prompt_len\nopt-125m,3\n".to_owned(),
            "`gen_len` is missing",
        ),
        (
            format!("{HEADER},compress_wieght\n{good},true\n"),
            "did you mean `compress_weight`?",
        ),
        (
            format!("{HEADER},latency_s\n{good},-3\n"),
            "line 2, latency_s",
        ),
        (
            format!("{HEADER}\nopt-125x,32,4,1,1,100,0,100,0,100,0\n"),
            "line 2, model",
        ),
        (
            format!("{HEADER}\nopt-125m,32,4,1,1,100,20,100,0,100,0\n"),
            "line 2, wg to hc",
        ),
        (
            format!("# a comment\n{HEADER}\n# two\n\nopt-125x,32,4,1,1,100,0,100,0,100,0\n"),
            "line 5, model",
        ),
        (format!("{HEADER}\nopt-125m,32\n"), "line 2"),
        (format!("{HEADER}\n"), "no runs"),
        (
            format!("{HEADER},overlap\n{good},maybe\n"),
            "neither true nor false",
        ),
        (
            format!("{HEADER},schedule\n{good},zag\n"),
            "row, zigzag or diagonal",
        ),
        (
            format!("{HEADER},cpu_compute,compress_cache\n{good},true,true\n"),
            "cannot attend to a compressed cache",
        ),
        (
            format!("{HEADER},sparse_attention\n{good},0\n"),
            "sparse_attention is 0",
        ),
        (
            format!("{HEADER},sparse_atention\n{good},0.1\n"),
            "did you mean `sparse_attention`",
        ),
    ] {
        assert_refused(&text, said);
    }
}

#[test]
fn what_means_nothing_is_refused_by_its_line() {
    let good = "opt-125m,32,4,1,1,100,0,100,0,100,0";
    for (text, said) in [
        (
            format!("{HEADER},model\n{good},opt-13b\n"),
            "line 1: the column `model` is there twice",
        ),
        (
            format!(
                "{HEADER}\n{}\n",
                good.replacen("opt-125m,32", "opt-125m,3000", 1)
            ),
            "line 2: prompt_len 3000",
        ),
        (
            format!("{HEADER},dtype\n{good},fp16\n"),
            "give f16, bf16 or f32",
        ),
    ] {
        assert_refused(&text, said);
    }
}

fn assert_refused(text: &str, said: &str) {
    let (_dir, path) = file(text);
    let error = read_runs(&path).expect_err(text).to_string();
    assert!(error.contains(said), "{error}");
    assert!(error.contains("runs.csv"), "{error}");
    let (code, _, stderr) = plimsoll(&["score", "--hw", "t4", "--runs", path.to_str().unwrap()]);
    assert_eq!(code, 4, "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn a_run_may_be_sparse() {
    let (_dir, path) = file(&format!(
        "{HEADER},sparse_attention\n\
         opt-1.3b,128,4,4,1,0,100,0,100,0,100,0.1\n\
         opt-1.3b,128,4,4,1,0,100,0,100,0,100,\n"
    ));
    let runs = read_runs(&path).expect("two runs");
    let shares: Vec<f64> = runs.iter().map(|r| r.policy.sparse_attention).collect();
    assert_eq!(shares, [0.1, 1.0]);
    assert!(runs[0].name.contains("sparse"), "{}", runs[0].name);
}

#[test]
fn a_run_may_be_of_another_type() {
    let row = "opt-1.3b,128,4,4,1,0,100,0,100,0,100";
    let (_dir, path) = file(&format!("{HEADER},dtype\n{row},f32\n{row},\n"));
    let runs = read_runs(&path).expect("two runs");
    let types: Vec<Dtype> = runs.iter().map(|run| run.dtype).collect();
    assert_eq!(types, [Dtype::F32, Dtype::F16]);
    assert!(runs[0].name.ends_with(" f32"), "{}", runs[0].name);
    assert!(!runs[0].is_alike(&runs[1]));
    let t4 = t4();
    let [f32, f16] = [&runs[0], &runs[1]].map(|run| predict(&run.plan(&t4), &t4).expect("fits"));
    assert!(f32.latency_s.0 > 1.5 * f16.latency_s.0, "{f32:?} {f16:?}");
}

#[test]
fn runs_that_nobody_measured_are_not_scored() {
    let (_dir, path) = file(&format!("{HEADER}\nopt-125m,32,4,1,1,100,0,100,0,100,0\n"));
    let (code, _, stderr) = plimsoll(&["score", "--hw", "t4", "--runs", path.to_str().unwrap()]);
    assert_eq!(code, 4, "{stderr}");
    assert!(stderr.contains("throughput_tok_s or latency_s"), "{stderr}");
}

#[test]
fn score_says_how_far_off_each_run_is() {
    let (_dir, path) = file(&format!(
        "{HEADER},throughput_tok_s,my_note\n\
         opt-1.3b,128,4,4,1,100,0,100,0,100,0,10,fast\n\
         opt-1.3b,128,4,4,1,0,100,100,0,100,0,5,\n\
         opt-175b,512,32,48,3,20,80,0,100,0,100,OOM,\n"
    ));
    let runs = path.to_str().unwrap();
    let (code, stdout, _) = plimsoll(&["score", "--hw", "t4", "--runs", runs, "--format", "json"]);
    assert_eq!(code, 0);
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(report["score"]["runs"], 2);
    assert_eq!(report["score"]["out_of_memory_agreed"], 1);
    assert_eq!(report["score"]["with_interval"], 2);
    assert_eq!(report["score"]["within_interval"], 0);
    for row in &report["runs"].as_array().unwrap()[..2] {
        let number = |key: &str| row[key].as_f64().unwrap();
        let error = number("predicted") / number("measured") - 1.0;
        assert!((number("error") - error).abs() < 1e-9);
        assert!(number("low") < number("predicted") && number("predicted") < number("high"));
    }
    let (code, stdout, _) = plimsoll(&["score", "--hw", "t4", "--runs", runs]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("OOM") && stdout.contains("2 runs: |error| median"),
        "{stdout}"
    );
    assert!(
        stdout.contains("out of memory: predicted of 1 of 1 that were"),
        "{stdout}"
    );
}

#[test]
fn calibrate_writes_a_profile_that_score_reads() {
    let (dir, path) = file(&format!(
        "{HEADER},latency_s\nopt-1.3b,128,4,4,1,0,100,100,0,100,0,3\n"
    ));
    let fitted = dir.path().join("mine.toml");
    let (runs, out) = (path.to_str().unwrap(), fitted.to_str().unwrap());
    let (code, stdout, stderr) = plimsoll(&[
        "calibrate",
        "--hw",
        "t4",
        "--runs",
        runs,
        "--constants",
        "links.h2d.page_locked",
        "-o",
        out,
    ]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("links.h2d.page_locked"), "{stdout}");
    let text = fs::read_to_string(&fitted).expect("written");
    assert!(
        text.contains("calibrated") && text.contains("name = \"mine\""),
        "{text}"
    );
    // Those of the t4 are of its constants, and one run makes none.
    assert!(
        t4().residuals.is_some() && !text.contains("[residuals]"),
        "{text}"
    );
    assert!(stdout.contains("no interval from runs"), "{stdout}");
    let (code, ..) = plimsoll(&["score", "--hw", out, "--runs", runs]);
    assert_eq!(code, 0);
    let (code, _, stderr) = plimsoll(&[
        "calibrate",
        "--hw",
        "t4",
        "--runs",
        runs,
        "--constants",
        "links.warp",
    ]);
    assert_eq!(code, 2);
    assert!(stderr.contains("links.disk_read"), "{stderr}");
}

#[test]
fn runs_of_one_configuration_say_nothing_of_each_other_left_out() {
    let (_dir, path) = file(&format!(
        "{HEADER},latency_s\nopt-1.3b,128,4,4,1,0,100,100,0,100,0,3\nopt-1.3b,128,4,4,1,0,100,100,0,100,0,3.01\n"
    ));
    let options = FitOptions {
        constants: vec![Constant::named("links.h2d.page_locked").expect("known")],
        prior: 1.0,
        noise: 0.05,
    };
    let fit = fit(
        &t4(),
        &read_runs(&path).expect("runs"),
        &options,
        &|_, _| (),
    )
    .expect("fits");
    for ((before, after), left_out) in fit.before.iter().zip(&fit.after).zip(&fit.left_out) {
        assert!(after.abs() < 0.2 * before.abs(), "{fit:?}");
        assert!((left_out - before).abs() < 1e-9, "{fit:?}");
    }
}

/// Eleven runs: of five configurations one twice each but for one, and one that is on no machine of ours.
#[test]
fn errors_are_kept_of_configurations_not_of_runs() {
    let run = |batch: u32, seconds: f64| {
        format!("opt-1.3b,128,4,{batch},1,0,100,100,0,100,0,{seconds},1,t4\n")
    };
    let twice = |batch| run(batch, 3.0) + &run(batch, 3.03);
    let calibrated = |batches: &[u32]| {
        let runs: String = batches.iter().copied().map(twice).collect();
        let elsewhere = "opt-1.3b,128,4,4,1,0,100,100,0,100,0,3,4,\n";
        let (dir, path) = file(&format!("{HEADER},latency_s,stages,hw\n{runs}{elsewhere}"));
        let fitted = dir.path().join("mine.toml");
        let (runs, out) = (path.to_str().unwrap(), fitted.to_str().unwrap());
        let constants = ["--constants", "links.h2d.page_locked"];
        let args = ["calibrate", "--hw", "t4", "--runs", runs, "-o", out];
        let (code, _, said) = plimsoll(&[&args[..], &constants].concat());
        assert_eq!(code, 0, "{said}");
        let text = fs::read_to_string(&fitted).expect("written");
        let parent = |_: &str| unreachable!("it extends nothing");
        HardwareProfile::parse(&text, "mine.toml", &parent)
            .expect("a profile")
            .residuals
    };
    assert_eq!(calibrated(&[1, 2, 4, 8]), None);
    let kept = calibrated(&[1, 2, 4, 8, 16]).expect("there are five");
    assert_eq!((kept.runs, kept.of), (5, None));
}

#[test]
fn runs_on_more_gpus_than_the_machine_has_are_refused() {
    let (_dir, path) = file(&format!(
        "{HEADER},stages,throughput_tok_s\nopt-1.3b,128,4,4,1,0,100,100,0,100,0,4,9\n"
    ));
    let runs = path.to_str().unwrap();
    for command in ["score", "calibrate"] {
        let (code, out, said) = plimsoll(&[command, "--hw", "t4", "--runs", runs]);
        assert_eq!((code, out.as_str()), (4, ""), "{said}");
        let words = ["line 2", "stages is 4, and t4 has 1 GPU", "t4x4"];
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    let (code, _, said) = plimsoll(&["score", "--hw", "t4x4", "--runs", runs]);
    assert_eq!(code, 0, "{said}");
}

/// A run that is bound by the link, twice; in f16, as all runs.
#[test]
fn what_runs_do_not_say_is_written_as_it_was() {
    let run = "opt-1.3b,128,4,4,1,0,100,100,0,100,0,3\n";
    let (dir, path) = file(&format!("{HEADER},latency_s\n{run}{run}"));
    let fitted = dir.path().join("mine.toml");
    let (runs, out) = (path.to_str().unwrap(), fitted.to_str().unwrap());
    let calibrate = ["calibrate", "--hw", "t4", "--runs", runs, "-o", out];
    let (code, stdout, stderr) = plimsoll(&calibrate);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("1 of 2 runs repeat others"), "{stdout}");
    assert!(stdout.contains("compute.gemm.f16"), "{stdout}");
    let text = fs::read_to_string(&fitted).expect("written");
    let parent = |_: &str| unreachable!("it extends nothing");
    let after = HardwareProfile::parse(&text, "mine.toml", &parent).expect("a profile");
    let before = t4();
    // The link is what the run says something of; nothing lies on the disk.
    let rates = |it: &HardwareProfile| it.links.h2d.page_locked.clone();
    assert_ne!(rates(&after), rates(&before));
    assert_eq!(rates(&after).source, "calibrated-2");
    assert_eq!(after.links.disk_read, before.links.disk_read);
    assert_eq!(after.compute.barrier, before.compute.barrier);
    assert_eq!(after.sources["calibrated"], before.sources["calibrated"]);
    let of_f32 = |it: &HardwareProfile| {
        let curves = it.compute.gemm.iter();
        let curves = curves.filter(|gemm| gemm.dtype == Dtype::F32);
        curves.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of_f32(&after), of_f32(&before));
    let said = &after.description;
    assert!(
        said.contains("of 1 run on t4: fitted are links.h2d.page_locked"),
        "{said}"
    );
    assert!(!said.contains("Tables"), "{said}");
}
