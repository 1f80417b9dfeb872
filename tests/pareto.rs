//! `plimsoll pareto`: what it draws, and what it refuses.

mod common;

use common::{Place, SMALL, small_machine};

#[test]
fn pareto_draws_each_system_and_says_what_does_not_fit() {
    let place = Place::new();
    place.write(
        "small.toml",
        &small_machine(&SMALL.replace("60e6", "400e6")),
    );
    let line = "pareto --hw small.toml --model opt-125m --prompt-len 16 --gen-len 3";
    let files = "-o p.svg -o p.png -o p.csv";
    let said = place.text(&format!(
        "{line} {files} --systems flexgen,deepspeed,accelerate --batches 1,2,4096"
    ));
    for words in [
        "deepspeed",
        "OOM",
        "out of memory: device needs",
        "points in",
    ] {
        assert!(said.contains(words), "no `{words}` in\n{said}");
    }
    let csv = std::fs::read_to_string(place.path("p.csv")).unwrap();
    let header = "system,effective_batch,latency_s,throughput_tok_s,low_tok_s,high_tok_s,on_frontier,\
                  gpu_batch_size,num_gpu_batches,wg,wc,cg,cc,hg,hc,cpu_compute,schedule,overlap,barrier,\
                  granularity,stored_scores,page_lock,without,compress_weight,compress_cache,exceeds,needed_bytes,capacity_bytes";
    assert_eq!(csv.lines().next(), Some(header));
    assert_eq!(csv.lines().count(), 1 + 3 * 3);
    let svg = std::fs::read_to_string(place.path("p.svg")).unwrap();
    assert!(svg.contains("out of memory at 4096 (device)"));
    let png = std::fs::read(place.path("p.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG"));
    let report = place.json(&format!("{line} --systems accelerate --format json"));
    assert_eq!(report["points"][0]["on_frontier"], true);
    assert_eq!(report["points"][0]["wc"], 0.0);
}

#[test]
fn weights_of_split_layers_are_where_they_lie() {
    let place = Place::new();
    let line = "pareto --hw a10 --device-gb 8 --model llama-2-13b --gen-len 8 --batches 1 --systems hetegen";
    let point = &place.json(&format!("{line} --format json"))["points"][0];
    let [on_device, on_host] = ["wg", "wc"].map(|key| point[key].as_f64().expect("a percentage"));
    assert!(
        on_device < 50.0 && (on_device + on_host - 100.0).abs() < 1e-6,
        "{point}"
    );
    let text = place.text(line);
    assert!(
        text.lines()
            .any(|it| it.starts_with("hetegen") && it.ends_with(" split")),
        "{text}"
    );
}

/// As `plan` does, of the machine and not of the plan.
#[test]
fn split_layers_on_a_cpu_of_unknown_speed_are_said_to_be_an_upper_bound() {
    let place = Place::new();
    let line = "--model opt-125m --prompt-len 16 --gen-len 3";
    for (flags, is_said) in [
        ("--hw t4 --x device-memory --systems hetegen", true),
        ("--hw t4 --systems hetegen --batches 1", true),
        ("--hw t4 --systems flexgen --batches 1", false),
        ("--hw a10 --x device-memory --systems hetegen", false),
    ] {
        let said = place.text(&format!("pareto {line} {flags}"));
        assert_eq!(
            said.contains("compute.cpu_gemm"),
            is_said,
            "{flags}: {said}"
        );
    }
}

#[test]
fn points_of_a_frontier_can_be_simulated_again() {
    let place = Place::new();
    place.write(
        "small.toml",
        "name = \"small\"\nextends = \"a10\"\n[sources.cut]\nkind = \"datasheet\"\nfrom = \"a test\"\ndate = \"2026\"\n\
         [tiers]\ndevice_capacity_bytes = { value = 2e9, source = \"cut\" }\n",
    );
    let again = |asked: &str, points: &str| again(&place, asked, points);
    again(
        "--hw t4 --model opt-30b --prompt-len 64 --gen-len 8",
        "--systems plimsoll,flexgen --batches 64",
    );
    // A plan of half layers whose CPU attends to the cache itself, and not to a copy as FlexGen's does.
    let small = "--hw small.toml --model opt-13b --prompt-len 512 --gen-len 8";
    let without = again(small, "--systems plimsoll,flexgen --batches 1");
    assert_eq!(without, ["cache-workspace", "null"]);
    // Half layers whose scores are not stored, and would have no room.
    again(
        "--hw small.toml --model opt-13b --prompt-len 1400 --gen-len 8",
        "--systems plimsoll --batches 1",
    );
    // Some of the host page-locked.
    place.write(
        "locks.toml",
        "name = \"locks\"\nextends = \"t4\"\n[sources.cut]\nkind = \"datasheet\"\nfrom = \"a test\"\ndate = \"2026\"\n\
         [tiers]\npage_lockable_bytes = { value = 40e9, source = \"cut\" }\n",
    );
    again(
        "--hw locks.toml --model opt-30b --prompt-len 512 --gen-len 8",
        "--systems plimsoll,flexgen --batches 64",
    );
}

/// What the points are without, of FlexGen's steps; their throughput is as when they are simulated.
fn again(place: &Place, asked: &str, points: &str) -> Vec<String> {
    let report = place.json(&format!("pareto {asked} {points} --format json"));
    let mut all_without = Vec::new();
    for point in report["points"].as_array().unwrap() {
        let word = |key: &str| point[key].to_string().replace('"', "");
        let switch = |key: &str| if point[key] == true { "on" } else { "off" };
        let percent = ["wg", "wc", "cg", "cc", "hg", "hc"].map(word).join(" ");
        let mut line = format!("simulate {asked} --percent {percent}");
        for (flag, key) in [
            ("--cpu-compute", "cpu_compute"),
            ("--barrier", "barrier"),
            ("--stored-scores", "stored_scores"),
        ] {
            line += &format!(" {flag} {}", switch(key));
        }
        for (flag, key) in [
            ("--gpu-batch-size", "gpu_batch_size"),
            ("--num-gpu-batches", "num_gpu_batches"),
            ("--schedule", "schedule"),
            ("--granularity", "granularity"),
            ("--page-lock", "page_lock"),
        ] {
            line += &format!(" {flag} {}", word(key));
        }
        let without = word("without");
        for term in without.split(',').filter(|term| *term != "null") {
            line += &format!(" --without {term}");
        }
        all_without.push(without);
        assert_eq!(point["overlap"], true);
        assert_eq!(point["compress_weight"], false);
        let again = place.json(&format!("{line} --format json"));
        let again = again["prediction"]["throughput_tok_s"].as_f64().unwrap();
        let there = point["throughput_tok_s"].as_f64().unwrap();
        // A diagonal's block by itself is not quite one among many.
        assert!(
            (again / there - 1.0).abs() < 0.02,
            "{line}: {again}, not {there}"
        );
    }
    all_without
}

#[test]
fn pareto_refuses_what_it_does_not_know() {
    let place = Place::new();
    let line = "pareto --hw t4 --model opt-125m";
    let words = ["--systems", "flexgenn", "did you mean `flexgen`"];
    place.refused(&format!("{line} --systems flexgenn"), 2, &words);
    place.refused(&format!("{line} --systems zzz"), 2, &["deepspeed"]);
    place.refused(&format!("{line} -o p.gif"), 2, &["p.gif", ".svg"]);
    place.refused(&format!("{line} -o no/p.svg"), 2, &["no/p.svg", "folder"]);
    place.refused(&format!("{line} --batches 0"), 2, &["--batches"]);
    place.refused(&format!("{line} --prompt-len 9000"), 2, &["positions"]);
    place.refused(&format!("{line} --published p.csv"), 4, &["p.csv"]);
}

#[test]
fn a_system_that_page_locks_more_than_is_known_to_be_allowed_is_named() {
    let place = Place::new();
    let line = "pareto --hw t4 --model opt-66b --batches 4 --systems";
    let said = place.text(&format!("{line} deepspeed"));
    assert!(said.contains("deepspeed page-locks up to 132 GB"), "{said}");
    let said = place.text(&format!("{line} plimsoll,accelerate"));
    assert!(!said.contains("page-locks up to"), "{said}");
}

#[test]
fn rates_of_another_type_are_said() {
    let place = Place::new();
    let gemm = "[[compute.gemm]]\ndtype = \"f32\"\nflops_per_s = { points = [[512, 8e12]], source = \"stated\" }\n";
    place.write("my.toml", &(small_machine(SMALL) + gemm));
    let words = "small has no rates of matrix products in f16: predicted with those in f32";
    let lengths = "--hw my.toml --model opt-125m --prompt-len 16 --gen-len 4";
    let all = [
        format!("pareto {lengths} --systems flexgen --batches 2"),
        format!("pareto {lengths} --systems flexgen --x device-memory"),
        "score --hw my.toml --runs runs.csv".to_owned(),
    ];
    place.write(
        "runs.csv",
        "model,prompt_len,gen_len,gpu_batch_size,num_gpu_batches,wg,wc,cg,cc,hg,hc,latency_s\n\
         opt-125m,32,4,1,1,100,0,100,0,100,0,1\n",
    );
    for line in all {
        let text = place.text(&line);
        assert!(text.contains(words), "{line}\n{text}");
        let json = place.json(&format!("{line} --format json"));
        assert!(json["rates"].to_string().contains(words), "{line}\n{json}");
        let known = place.text(&line.replace("my.toml", "t4"));
        assert!(!known.contains("no rates"), "{known}");
    }
}

#[test]
fn a_file_that_cannot_be_written_does_not_cost_the_points() {
    let place = Place::new();
    std::os::unix::fs::symlink("/dev/full", place.path("full.csv")).expect("a link");
    let line = "pareto --hw t4 --model opt-1.3b --systems deepspeed --batches 1 -o full.csv";
    let output = place.run(line);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("deepspeed"), "{printed}");
}
