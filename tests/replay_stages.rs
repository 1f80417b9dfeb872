//! `replay --stages`: a model on several GPUs, and what these do not do together.

mod common;

use common::Place;

fn trace(place: &Place) {
    let rows = (0..40).map(|i| format!("0,{},{}\n", 20 + i, 60 + i % 7));
    let rows: String = rows.collect();
    place.write(
        "t.csv",
        &format!("arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}"),
    );
}

fn number(json: &serde_json::Value, key: &str) -> f64 {
    json[key].as_f64().expect("a number")
}

#[test]
fn batches_follow_each_other_through_stages() {
    let place = Place::new();
    trace(&place);
    let served = |flags: &str| -> serde_json::Value {
        let all = "replay --hw t4x4 --model opt-6.7b --trace t.csv --manager orca --max-len 128";
        let said = place.text(&format!("{all} {flags} --format json"));
        serde_json::from_str(&said).expect("JSON")
    };
    let one = served("--stages 4 --kv-gb 0.1 --micro-batches 1");
    let four = served("--stages 4 --kv-gb 0.1");
    assert_eq!(
        (four["stages"].as_u64(), four["micro_batches"].as_u64()),
        (Some(4), Some(4))
    );
    // 0.1 GB on each GPU hold 8 layers of 762 tokens: 5 requests of 128, one in each of four batches.
    assert_eq!(number(&one, "largest_batch"), 5.0);
    assert_eq!(number(&four, "largest_batch"), 1.0);
    for all in [&one, &four] {
        assert_eq!(number(all, "completed"), 40.0);
    }
    assert!(number(&four, "output_tokens_per_s") > 0.7 * number(&one, "output_tokens_per_s"));
    let text = place.text(
        "replay --hw t4x4 --model opt-6.7b --trace t.csv --stages 2 --micro-batches 3 --per-request r.csv",
    );
    assert!(text.contains("in 2 stages, 3 batches in flight"), "{text}");
    let rows = std::fs::read_to_string(place.path("r.csv")).unwrap();
    assert_eq!(rows.lines().count(), 41);
}

#[test]
fn what_does_not_fit_one_gpu_fits_several() {
    let place = Place::new();
    trace(&place);
    let all = "replay --hw a100x12-s3 --model gpt-3-175b --trace t.csv";
    place.refused(all, 3, &["gpt-3-175b", "more --stages"]);
    // Of stages, the one that is short is named, and more of them are where there are GPUs.
    let opt = "--model opt-30b --trace t.csv";
    let short = [
        "stage 1 of 4 has 15.5 GB of opt-30b's weights in f16",
        " MB too little",
    ];
    let all_gpus = place.refused(&format!("replay --hw t4x4 {opt} --stages 4"), 3, &short);
    let one_gpu = place.refused(
        &format!("replay --hw t4 {opt}"),
        3,
        &["59.9 GB of opt-30b's weights", "44.5 GB too little"],
    );
    for said in [all_gpus, one_gpu] {
        assert!(!said.contains("--stages"), "{said}");
    }
    let some = format!("replay --hw t4x4 {opt} --stages 2");
    place.refused(&some, 3, &["more --stages: t4x4 has 4 GPUs"]);
    place.refused(
        &format!("{all} --stages 4"),
        3,
        &["stage 1 of 4", "more --stages"],
    );
    place.refused(
        &format!("{all} --stages 6 --kv-gb 30"),
        3,
        &["--kv-gb 30", "give less"],
    );
    let said = place.text(&format!("{all} --stages 6"));
    assert!(said.contains("in 6 stages, 6 batches in flight"), "{said}");
}

#[test]
fn what_several_gpus_do_not_do_together_is_refused() {
    let place = Place::new();
    trace(&place);
    let on = |flags: &str| format!("replay --hw t4x4 --model opt-1.3b --trace t.csv {flags}");
    for (flags, words) in [
        ("--stages 5", &["--stages 5", "t4x4 has 4 GPUs"]),
        (
            "--stages 2 --manager pie",
            &["--manager pie", "leave out --stages"],
        ),
        (
            "--stages 2 --manager s3 --predictor learned",
            &["--predictor learned", "leave out --stages"],
        ),
        (
            "--stages 2 --clients 4",
            &["--clients", "leave out --stages"],
        ),
        ("--stages 2 --execute", &["--execute", "leave out --stages"]),
        (
            "--stages 1 --micro-batches 4",
            &["--micro-batches", "give more --stages"],
        ),
        ("--micro-batches 4", &["required", "--stages"]),
        (
            "--stages 4 --last-stage-layers 24",
            &["24 layers", "--last-stage-layers"],
        ),
    ] {
        place.refused(&on(flags), 2, words);
    }
}
