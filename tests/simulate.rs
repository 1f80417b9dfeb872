//! `plimsoll simulate`: its keys, terms that are switched off, many rounds.

mod common;

use common::{POLICY, Place, tiny_plan};
use serde_json::Value;

#[test]
fn a_plan_whose_profile_does_not_ship_asks_for_its_file() {
    let place = Place::new();
    tiny_plan(&place);
    let words = [
        "plan.json: the plan was made for `small`",
        "give --hw with the file",
    ];
    place.refused("simulate --plan plan.json", 2, &words);
    place.text("simulate --plan plan.json --hw small.toml");
}

#[test]
fn simulate_prints_the_keys_that_are_documented() {
    let place = Place::new();
    let result = place.json(
        "simulate --hw t4.toml --model opt-30b --prompt-len 512 --gen-len 4 --gpu-batch-size 48 \
         --num-gpu-batches 3 --percent 20 80 0 100 0 100 --no-overlap --cpu-compute on \
         --format json --trace trace.json",
    );
    let prediction = &result["prediction"];
    for key in ["throughput_tok_s", "latency_s", "prefill_s", "decode_s"] {
        assert!(prediction[key].as_f64().unwrap() > 0.0, "{key}");
    }
    for tier in ["device", "host", "disk"] {
        assert!(prediction["peak_bytes"][tier].is_u64(), "{tier}");
    }
    for resource in ["gpu", "h2d", "d2h", "disk_read", "disk_write", "cpu"] {
        let share = prediction["busy_fraction"][resource].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&share), "{resource}");
    }
    assert!(prediction["bottleneck"].is_string());
    for key in ["throughput_tok_s", "latency_s"] {
        let value = prediction[key].as_f64().unwrap();
        let end = |end: &str| prediction["interval"][key][end].as_f64().unwrap();
        assert!(end("low") < value && value < end("high"), "{key}");
    }
    // The t4's rates are constants, and decode of 48 sequences is not what they were taken from.
    let gemm = prediction["extrapolates"].as_array().unwrap().iter();
    let gemm = gemm
        .clone()
        .find(|e| e["curve"] == "compute.gemm.f16")
        .unwrap();
    assert_eq!(gemm["known"]["low"], gemm["known"]["high"]);
    let share = gemm["busy_fraction"].as_f64().unwrap();
    assert!(share > 0.0 && share <= prediction["busy_fraction"]["gpu"].as_f64().unwrap());
    assert_eq!(result["policy"]["overlap"], false);
    assert_eq!(result["policy"]["cpu_attention"], true);
    let trace = std::fs::read_to_string(place.path("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 1000);
}

#[test]
fn an_unprofiled_machine_has_no_interval() {
    let place = Place::new();
    let line = |hw: &str| format!("simulate --hw {hw} --model opt-1.3b {POLICY}");
    let text = place.text(&line("a10"));
    assert!(text.contains("interval   none, unprofiled"), "{text}");
    assert!(!text.contains("90%: "), "{text}");
    let json = place.json(&(line("a10") + " --format json"));
    assert!(json["prediction"]["interval"].is_null());
    let text = place.text(&line("t4"));
    assert!(text.contains("tok/s (90%: ") && text.contains("errors of measured runs"));
    assert!(text.contains("constants  one rate for all sizes"), "{text}");
}

#[test]
fn a_term_is_switched_off_by_name() {
    let place = Place::new();
    let line = format!("simulate --hw t4 --model opt-1.3b {POLICY} --format json");
    let rate = |result: &Value| result["prediction"]["throughput_tok_s"].as_f64().unwrap();
    let whole = place.json(&line);
    assert!(whole["prediction"]["without"].is_null());
    let free = place.json(&format!(
        "{line} --without fixed-costs --without contention"
    ));
    assert!(rate(&free) > rate(&whole));
    let said = free["prediction"]["without"].as_array().unwrap();
    assert_eq!(said, &["fixed-costs", "contention"]);
    assert!(free["prediction"]["interval"].is_null());
    place.refused(
        &format!("{line} --without friction"),
        2,
        &["--without", "fixed-costs"],
    );
    let no_nominal = line.replace("--hw t4", "--hw a10");
    let key = "links.disk_read.nominal_bytes_per_s";
    place.refused(
        &format!("{no_nominal} --without disk-rate"),
        4,
        &["a10", key],
    );
}

#[test]
fn sparse_attention_is_asked_for_and_said() {
    let place = Place::new();
    let plan = "plan --hw t4 --model opt-1.3b --prompt-len 64 --gen-len 4";
    let dense = place.json(&format!("{plan} --format json"));
    assert!(
        dense["policy"]["sparse_attention"].is_null(),
        "a default is not written"
    );
    let text = place.text(&format!("{plan} --sparse-attention 0.1 -o plan.json"));
    for word in ["10% of the values", "not judged"] {
        assert!(text.contains(word), "no `{word}` in\n{text}");
    }
    let again = place.json("simulate --plan plan.json --hw t4 --format json");
    assert_eq!(again["policy"]["sparse_attention"], 0.1);
    let line = "simulate --hw t4 --model opt-1.3b --prompt-len 256 --gen-len 4 --gpu-batch-size 16 \
                --percent 100 0 0 100 100 0 --format json";
    let seconds = |flags: &str| {
        let result = place.json(&format!("{line} {flags}"));
        result["prediction"]["decode_s"].as_f64().unwrap()
    };
    assert!(seconds("--sparse-attention 0.1") < 0.75 * seconds(""));
    assert_eq!(seconds("--sparse-attention 1"), seconds(""));
}

#[test]
fn shares_are_shown_as_whole_sequences_and_heads_come_to() {
    let place = Place::new();
    let of = |sequences: u32, percent: &str| {
        let line = format!(
            "simulate --hw t4 --model opt-125m --gen-len 4 --gpu-batch-size {sequences} --percent {percent}"
        );
        place.text(&line)
    };
    let said = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.expect("a row for it")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let one = of(1, "100 0 51 0 50 0");
    assert_eq!(
        said(&one, "activations"),
        "activations 100% 0% 0% (whole sequences, for 50%/0%/50%)"
    );
    assert_eq!(
        said(&one, "cache"),
        "cache 50% 0% 50% (whole heads of sequences, for 51%/0%/49%)"
    );
    let of_two = of(2, "100 0 50 0 50 0 --num-prompts 1");
    assert_eq!(
        said(&of_two, "activations"),
        "activations 100% 0% 0% (whole sequences, for 50%/0%/50%)"
    );
    let two = of(2, "100 0 50 0 50 0");
    assert_eq!(said(&two, "activations"), "activations 50% 0% 50%");
    assert_eq!(said(&two, "cache"), "cache 50% 0% 50%");
}

#[test]
fn prompts_beyond_number_are_refused_before_they_are_listed() {
    let place = Place::new();
    let line = "simulate --hw t4 --model opt-125m --prompt-len 8 --gen-len 2 --num-prompts 1000000000000 \
                --gpu-batch-size 1 --percent 100 0 100 0 100 0";
    place.refused(
        line,
        2,
        &[
            "GPU batches of all prompts",
            "rounds repeat: state fewer prompts",
        ],
    );
}

#[test]
fn many_rounds_are_simulated_as_they_are_planned() {
    let place = Place::new();
    let asked = "--hw t4 --model opt-1.3b --num-prompts 200000";
    place.text(&format!("plan {asked} -o plan.json"));
    let planned: Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("plan.json")).unwrap()).unwrap();
    let again = place.json("simulate --hw t4 --plan plan.json --format json");
    assert_eq!(
        planned["prediction"]["latency_s"],
        again["prediction"]["latency_s"]
    );
}

#[test]
fn a_plan_file_is_simulated_with_other_memory_page_locked() {
    let place = Place::new();
    let throughput = |args: &str| {
        let plan = place.json(&format!("simulate --hw t4.toml {args} --format json"));
        let cache = plan["policy"]["page_locked"]["cache"].as_bool().unwrap();
        (
            cache,
            plan["prediction"]["throughput_tok_s"].as_f64().unwrap(),
        )
    };
    let locked = throughput(
        "--model opt-30b --prompt-len 512 --gen-len 4 --gpu-batch-size 48 --num-gpu-batches 3 \
         --percent 20 80 0 100 0 100 --page-lock all -o plan.json",
    );
    assert_eq!(throughput("--plan plan.json"), locked);
    let pageable = throughput("--plan plan.json --page-lock flexgen");
    assert!(locked.0 && !pageable.0);
    assert!(pageable.1 < locked.1, "{pageable:?} beside {locked:?}");
}

#[test]
fn percents_that_fit_the_model_and_no_layer_are_told_of_the_other_rounding() {
    let place = Place::new();
    let line = |percent: &str, more: &str| {
        format!(
            "simulate --hw rtx4090 --model llama-3-70b --gpu-batch-size 1 --percent {percent} 0 100 100 0 \
             --cpu-compute off --barrier off --page-lock all{more}"
        )
    };
    place.refused(&line("14 39", ""), 3, &["host", "--granularity spread"]);
    place.text(&line("14 39", " --granularity spread"));
    // Another tier lacks little then.
    let said = place.refused(
        &line("15 43", ""),
        3,
        &["host", "put 0%/66%/34%", "for 15%/43%/42%"],
    );
    assert!(
        said.contains("spread, which comes closer to these percents"),
        "{said}"
    );
    // Where that does not help, nobody is sent there.
    let said = place.refused(&line("14 60", ""), 3, &["host"]);
    assert!(!said.contains("granularity"), "{said}");
}

/// A memory of few bytes more than a plan locks is what bounds it.
#[test]
fn what_is_page_locked_is_said_where_it_is_nearly_all_that_may_be() {
    let place = Place::new();
    let tiers = |bytes: f64| {
        let lockable = format!("page_lockable_bytes = {{ value = {bytes}, source = \"mine\" }}");
        let source = "[sources.mine]\nkind = \"datasheet\"\nfrom = \"a test\"\ndate = \"2026\"\n";
        format!("name = \"mine\"\nextends = \"t4\"\n{source}[tiers]\n{lockable}\n")
    };
    let said = |bytes: f64| {
        place.write("mine.toml", &tiers(bytes));
        let policy = "--gpu-batch-size 4 --percent 0 100 100 0 100 0 --page-lock all";
        place.text(&format!(
            "simulate --hw mine.toml --model opt-1.3b {policy}"
        ))
    };
    let all = said(64e9);
    let locked = all.split("page-locked on the host: ").nth(1).expect("said");
    let gb: f64 = locked
        .split(['(', ' '])
        .find_map(|word| word.parse().ok())
        .expect("GB");
    assert!(!all.contains("nearly all of the"), "{all}");
    assert!(said(1.02e9 * gb).contains("nearly all of the"), "{gb}");
    assert!(said(0.9e9 * gb).contains("is known to allow"), "{gb}");
}
