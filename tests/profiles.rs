//! `plimsoll hw` and `plimsoll models`: found by name, and refused by key.

mod common;

use common::{POLICY, Place, SMALL, small_machine, tiny_opt};

#[test]
fn both_spellings_of_a_profile_are_the_same() {
    let place = Place::new();
    let line = |hw: &str| format!("simulate --hw {hw} --model opt-1.3b {POLICY} --format json");
    assert_eq!(place.json(&line("t4")), place.json(&line("t4.toml")));
    let shown = place.text("hw show a10");
    place.write("whole.toml", &place.text("hw show t4 --format toml"));
    assert_eq!(place.json(&line("t4")), place.json(&line("whole.toml")));
    assert_eq!(place.text("hw show A10"), shown);
    place.refused(&line("t5"), 2, &["--hw t5", "did you mean `t4"]);
    place.refused(&line("t5.toml"), 4, &["t5.toml"]);
    place.refused(
        &line("nowhere/t4.toml"),
        4,
        &["nowhere/t4.toml", "check the path"],
    );
}

#[test]
fn a_profile_of_the_folder_hides_the_embedded_one() {
    let place = Place::new();
    std::fs::create_dir(place.path("hw-profiles")).unwrap();
    place.write("hw-profiles/small.toml", &small_machine(SMALL));
    let list = place.json("hw list --format json");
    let small = list
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == "small")
        .unwrap();
    assert_eq!(small["device_capacity_bytes"], 60_000_000);
    let shown = place.text("hw show small");
    assert!(shown.contains("tiers.device_capacity_bytes"), "{shown}");
    assert!(shown.contains("published"), "{shown}");
    assert!(shown.contains("a test"), "{shown}");
}

#[test]
fn no_file_comes_between_embedded_profiles() {
    let place = Place::new();
    place.write("mine.toml", "name = \"mine\"\nextends = \"rtx4090\"\n");
    place.refused("hw show mine", 2, &["did you mean `mine.toml`?"]);
    let shown = place.text("hw show mine.toml");
    // What rtx4090 extends has this name, and so has what somebody keeps here.
    place.write("base.toml", &place.text("hw show t4 --format toml"));
    assert_eq!(place.text("hw show mine.toml"), shown);
    // A file may hide an embedded profile and extend it, and be extended.
    place.write("rtx4090.toml", "name = \"x\"\nextends = \"rtx4090\"\n");
    assert_eq!(place.text("hw show mine.toml"), shown);
}

#[test]
fn models_are_listed_and_shown() {
    let place = Place::new();
    let list = place.json("models list --format json");
    assert!(list.as_array().unwrap().len() >= 23);
    let model = place.json("models show opt-125m --format json");
    assert_eq!(model["name"], "opt-125m");
    assert_eq!(model["parameters"], 125_239_296);
    assert_eq!(model["num_hidden_layers"], 12);
    assert_eq!(model["hidden_size"], 768);
    assert_eq!(model["weight_bytes"], 250_478_592);
    assert_eq!(model["kv_bytes_per_token"], 36_864);
    let tiny = place.json(&format!("models show {} --format json", tiny_opt()));
    assert_eq!(tiny["name"], "tiny-opt");
    let config = format!("{}/config.json", tiny_opt());
    assert_eq!(
        tiny,
        place.json(&format!("models show {config} --format json"))
    );
    // The bytes are of the type that its config.json says.
    let stored = std::fs::read_to_string(&config).unwrap();
    let stored = stored.replace("\"float32\"", "\"bfloat16\"");
    place.write("config.json", &stored);
    let shown = |format: &str| place.text(&format!("models show ./config.json{format}"));
    assert!(shown(" --format json").contains("\"dtype\": \"bf16\""));
    assert!(shown("").contains("weights bf16"));
    place.refused(
        "models show opt-31b",
        2,
        &["models show", "opt-31b", "did you mean"],
    );
    let said = place.refused("models show zzz", 2, &["models show:", "zzz", "opt-30b"]);
    assert!(!said.contains("did you mean"), "{said}");
    place.refused("models show no/config.json", 4, &["no/config.json"]);
    let hub = "models show facebook/opt-30b";
    place.refused(hub, 2, &["no such folder", "`opt-30b` for its shape"]);
    let hub = "models show Qwen/Qwen2.5-72B-Instruct";
    place.refused(hub, 2, &["nothing is downloaded", "`qwen2.5-72b` for"]);
    let hub = "models show mistralai/Mixtral-8x7B-v0.1";
    place.refused(hub, 2, &["nothing is downloaded", "mixtures of experts"]);
    place.refused(
        "models show ckpts/mine",
        4,
        &["ckpts/mine", "check the path"],
    );
    // A folder that says nothing does not hide a name.
    std::fs::create_dir(place.path("opt-1.3b")).unwrap();
    place.write("opt-1.3b/x.gguf", "GGUF");
    place.text("models show opt-1.3b");
    std::fs::create_dir(place.path("folder")).unwrap();
    place.write("folder/x.gguf", "GGUF");
    for model in ["folder", "folder/x.gguf"] {
        place.refused(
            &format!("models show {model}"),
            4,
            &["folder/x.gguf: is GGUF", "config.json"],
        );
    }
}

#[test]
fn a_wrong_profile_is_refused_by_key() {
    let place = Place::new();
    let line = format!("simulate --hw small.toml --model opt-125m {POLICY}");
    let with = |key: &str, value: &str| {
        place.write("small.toml", &small_machine(&SMALL.replace(key, value)));
    };
    with("host_capacity_bytes", "host_capasity_bytes");
    let words = [
        "small.toml",
        "host_capasity_bytes",
        "did you mean `host_capacity_bytes`",
    ];
    place.refused(&line, 4, &words);
    for wrong in ["-5", "nan", "0", "inf"] {
        with("400e6", wrong);
        place.refused(&line, 4, &["small.toml", "tiers.host_capacity_bytes"]);
    }
    place.write("small.toml", "name = \"small\"\nextends = ");
    place.refused(&line, 4, &["small.toml", "line 2"]);
    place.write("small.toml", "name = \"small\"\nextends = \"t44\"\n");
    place.refused(&line, 4, &["extends", "t44", "did you mean"]);
    std::fs::write(place.path("small.toml"), [0xff, 0xfe, 0x00]).unwrap();
    place.refused(&line, 4, &["small.toml", "UTF-8"]);
}

#[test]
fn the_key_that_was_written_is_blamed() {
    let place = Place::new();
    let tiny = "device_capacity_bytes = { value = 1000, source = \"stated\" }";
    place.write("small.toml", &small_machine(tiny));
    let words = ["small.toml: tiers.device_capacity_bytes:", "reserved"];
    place.refused("hw show small.toml", 4, &words);
    std::fs::create_dir(place.path("folder")).unwrap();
    place.refused("hw show folder", 4, &["--hw folder: is a folder"]);
    place.refused("hw show ./folder", 4, &["is a folder"]);
}

#[test]
fn a_profile_may_extend_the_embedded_one_of_its_name() {
    let place = Place::new();
    let own = small_machine(SMALL).replace("\"small\"", "\"t4\"");
    place.write("t4.toml", &own);
    let shown = place.json("hw show t4.toml --format json");
    assert_eq!(shown["tiers"]["device_capacity_bytes"]["value"], 60_000_000);
    place.write("own.toml", "name = \"own\"\nextends = \"own\"\n");
    place.refused("hw show own.toml", 4, &["own.toml", "extends itself"]);
}

/// With rates of reading weights by type, with one for all types as they were written before, and with none.
#[test]
fn profiles_of_recorded_experiments_are_read() {
    let place = Place::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in [
        "hetegen-cpu/profile.toml",
        "pie-cpu/profile.toml",
        "cpu-overlap/2026-11-24/profile.toml",
        "cpu-validation/2026-11-25/profile.toml",
        "cpu-validation/2026-11-24/profile.toml",
        "cpu-validation/2026-11-24/large-profile.toml",
        "cpu-validation/2026-11-23/profile.toml",
        "cpu-validation/2026-11-22/profile.toml",
        "cpu-validation/2026-11-20/profile.toml",
    ] {
        let file = root.join("experiments").join(file);
        let text = std::fs::read_to_string(&file).expect("recorded");
        let of_all = text.contains("weight_read_bytes_per_s");
        let shown = place.text(&format!("hw show {}", file.display()));
        for dtype in ["f32", "f16", "bf16"] {
            let own = format!("[[compute.weight_read]]\ndtype = \"{dtype}\"");
            let row = format!("compute.weight_read[{dtype}].bytes_per_s at ");
            let known = of_all || text.contains(&own);
            assert_eq!(shown.contains(&row), known, "{dtype} of {}", file.display());
        }
    }
}
