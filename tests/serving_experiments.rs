//! `plimsoll experiment` over tables of serving systems: S3's pipelines, Pie's figures.

mod common;

use common::Place;

/// A number of a table by its case and what it is.
fn number(csv: &str, case: &str, metric: &str) -> f64 {
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let rows = reader.records().map(|row| row.expect("a row"));
    let mut its = rows.filter(|row| &row[0] == case && &row[1] == metric);
    let row = its
        .next()
        .unwrap_or_else(|| panic!("no {case}, {metric} in\n{csv}"));
    row[2].parse().expect("a number")
}

fn pipelined(place: &Place, cases: &str) {
    std::fs::create_dir_all(place.path("exp")).unwrap();
    place.write(
        "exp/pipes.toml",
        &format!(
            "kind = \"pipelined\"\ntitle = \"Pipes\"\nhw = \"t4x4\"\nmodel = \"opt-13b\"\norca_over_s3 = 1.1\n\
             s3_batch_over_orca = 2\n{cases}[asked]\nprompt = \"constant:20\"\noutput = \"exponential:60\"\nrequests = 200\n\
             output_tokens = 12000\nlongest = 300\nmax_len = 1000\nbuckets = 10\naccuracy_above_first = 0.5\n"
        ),
    );
}

#[test]
fn pipelines_are_counted_as_the_paper_does_and_as_caches_are_shared() {
    let place = Place::new();
    let cases = "[[case]]\nname = \"few\"\nstages = 4\n[[case]]\nname = \"other\"\nstages = 4\nmemory_layers = 9\n\
                 [[published]]\ncase = \"few\"\nsystem = \"oracle\"\niterations = 300\naverage_batch = 40\n";
    pipelined(&place, cases);
    let said = place.text("experiment exp");
    let csv = place.read("exp/results/pipes.csv");
    let rate =
        |case: &str, account: &str| number(&csv, &format!("{case}, oracle, {account}"), "tokens/s");
    let [paper, shared, alone] = [
        "as the paper counts",
        "batches in flight share the cache",
        "one batch, stage after stage",
    ]
    .map(|account| rate("few", account));
    // Four stages: nobody is more than four times as fast as one batch that goes through all of them, but who counts so is.
    assert!(
        paper > 3.5 * alone && paper < 4.5 * alone,
        "{paper} {alone}"
    );
    assert!(shared < 0.95 * paper, "{shared} {paper}");
    let batch =
        |account: &str, metric: &str| number(&csv, &format!("few, orca, {account}"), metric);
    let whole = batch("as the paper counts", "average batch");
    let part = batch("batches in flight share the cache", "average batch");
    assert!(part < 0.5 * whole, "{part} {whole}");
    // Fewer layers in memory, more room; and only the paper counts so.
    let more = number(&csv, "other, orca, as the paper counts", "average batch");
    assert!(more > whole, "{more} {whole}");
    assert!(!csv.contains("other, orca, one batch"), "{csv}");
    let ratio = number(
        &csv,
        "few, as the paper counts",
        "tokens/s of orca over those of s3 with the fewest GPUs",
    );
    let orca = batch("as the paper counts", "tokens/s");
    let s3 = number(&csv, "few, s3, as the paper counts", "tokens/s");
    assert!((ratio - orca / s3).abs() < 1e-9);
    assert!(
        said.contains("| few, oracle, as the paper counts | iterations |"),
        "{said}"
    );
    assert!(place.path("exp/results/pipes.png").is_file());
    place.text("experiment exp --check");
}

#[test]
fn a_pipeline_that_is_none_is_refused_by_file_and_key() {
    let place = Place::new();
    for (case, words) in [
        ("stages = 5", &["pipes.toml", "case", "5 stages"]),
        (
            "stages = 4\nlast_stage_layers = 40",
            &["pipes.toml", "case", "40 layers"],
        ),
        (
            "stages = 4\nmemory_layers = 48",
            &["pipes.toml", "case", "or none"],
        ),
        (
            "stages = 4\nlayers = 3",
            &["pipes.toml", "layers", "unknown"],
        ),
    ] {
        pipelined(&place, &format!("[[case]]\nname = \"it\"\n{case}\n"));
        place.refused("experiment exp", 4, words);
    }
    pipelined(&place, "case = []\n");
    place.refused("experiment exp", 4, &["case", "there is none"]);
}

const DATA: &str = "prompt = \"constant:40\"\noutput = \"constant:100\"\n";

#[test]
fn a_larger_cache_leaves_pie_less_to_gain() {
    let place = Place::new();
    std::fs::create_dir(place.path("exp")).unwrap();
    let written = |rates: &str| {
        place.write(
            "exp/sizes.toml",
            &format!(
                "kind = \"kv-sizes\"\ntitle = \"Sizes\"\nhw = \"gh200-vllm\"\nkv_gb = [1, 6]\nrequests = 300\n\
                 [[case]]\nname = \"OPT, constant\"\ndata = \"constant\"\nmodel = \"opt-30b\"\n{DATA}rates = {rates}\n\
                 [[published]]\ndata = \"constant\"\nmost = 1.5\n"
            ),
        );
    };
    written("[4, 200]");
    let said = place.text("experiment exp");
    let csv = place.read("exp/results/sizes.csv");
    let gain = |gb: &str| {
        let case = format!("OPT, constant, 4 requests/s, {gb} GB");
        number(&csv, &case, "pie over vllm")
    };
    // 200 requests a second are too many for 6 GB, so 4 were taken; these saturate 1 GB only.
    assert!(gain("1") > 1.2, "{csv}");
    assert!((gain("6") - 1.0).abs() < 0.02, "{csv}");
    assert_eq!(number(&csv, "constant", "most of pie over vllm"), gain("1"));
    assert!(said.contains("](sizes-opt-constant.svg)"), "{said}");
    assert!(place.path("exp/results/sizes-opt-constant.png").is_file());
    written("[200]");
    let said = place.run("experiment exp");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("give lower rates"), "{said}");
}

#[test]
fn gains_over_rates_have_a_row_a_rate_and_a_picture_a_case() {
    let place = Place::new();
    std::fs::create_dir(place.path("exp")).unwrap();
    place.write(
        "exp/rates.toml",
        &format!(
            "kind = \"gains\"\ntitle = \"Rates\"\nhw = \"gh200-vllm\"\nexpansions = [1.5, 2]\nrequests = 200\n\
             [[case]]\nname = \"OPT\"\nmodel = \"opt-30b\"\n{DATA}rates = [0.5, 20]\nkv_gb = 1\n\
             over_rates = {{ saturated = 10, gains = [1.2, 1.9] }}\n"
        ),
    );
    place.text("experiment exp");
    let csv = place.read("exp/results/rates.csv");
    let at = |rate: &str| {
        number(
            &csv,
            &format!("OPT, 1 GB, {rate} requests/s"),
            "best gain at this rate",
        )
    };
    assert!(at("0.5") < 1.05 && at("20") > 1.3, "{csv}");
    let case = "OPT, 1 GB";
    assert_eq!(number(&csv, case, "least best gain"), at("20"));
    assert_eq!(
        number(&csv, case, "rate from which half of the most is gained"),
        20.0
    );
    assert!(place.path("exp/results/rates-opt.svg").is_file());
    assert!(!place.path("exp/results/rates.svg").exists());
}

#[test]
fn padding_costs_flexgen_what_it_adds() {
    let place = Place::new();
    std::fs::create_dir(place.path("exp")).unwrap();
    place.write(
        "exp/against.toml",
        "kind = \"against-flexgen\"\ntitle = \"Against\"\nhw = \"gh200-vllm\"\nflexgen_hw = \"gh200\"\n\
         model = \"opt-6.7b\"\nkv_gb = [4]\nblocks = [4, 16]\nlatency = 60\nrequests = 50\n\
         [[case]]\nname = \"data\"\nprompt = \"constant:30\"\noutput = \"uniform:2,30\"\nrates = [5, 20]\npublished = 7\n",
    );
    let said = place.text("experiment exp");
    let csv = place.read("exp/results/against.csv");
    let ratio = |padding: &str| {
        let case = format!("data, flexgen {padding}");
        number(&csv, &case, "most throughput of pie over flexgen")
    };
    let (padded, mean) = (
        ratio("padded to the longest"),
        ratio("all of the mean length"),
    );
    // About twice the tokens, of which half are of no use.
    assert!(
        padded > 1.5 * mean && padded < 2.5 * mean,
        "{padded} {mean}"
    );
    for file in ["against-data.svg", "against-data-latency.svg"] {
        assert!(said.contains(file) && place.path(&format!("exp/results/{file}")).is_file());
    }
}

/// Tables that take seconds are as they were recorded.
#[test]
fn recorded_tables_are_what_this_version_gives() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    for (folder, tables, published) in [
        ("pie", &["stalls"][..], None),
        ("s3", &["iterations", "figure-2", "tables-2-3"], None),
        ("hetegen", &["table-2"], Some("table-2.csv")),
    ] {
        let place = Place::new();
        std::fs::create_dir_all(place.path("exp/results")).unwrap();
        let each = tables
            .iter()
            .flat_map(|table| [format!("{table}.toml"), format!("results/{table}.csv")]);
        for file in each.chain(published.map(str::to_owned)) {
            let text = std::fs::read_to_string(root.join(folder).join(&file)).unwrap();
            place.write(&format!("exp/{file}"), &text);
        }
        place.text("experiment exp --check");
    }
}

/// Profiles of data sheets, beside what others measured of models that fit, and of models that do not.
#[test]
fn others_runs_on_many_machines_are_predicted_as_recorded() {
    let root = env!("CARGO_MANIFEST_DIR");
    for folder in ["whole", "offloaded"] {
        Place::new().text(&format!("experiment {root}/experiments/{folder} --check"));
    }
}

/// FlashDecoding++'s techniques follow from what `bench` recorded on a GPU.
#[test]
fn what_kernels_are_worth_follows_from_a_recorded_bench() {
    let root = env!("CARGO_MANIFEST_DIR");
    let place = Place::new();
    place.text(&format!(
        "experiment {root}/experiments/flashdecoding --check"
    ));
    let definition = |bench: &str| {
        format!(
            "kind = \"dataflow\"\ntitle = \"Kernels\"\nmodel = \"llama-2-7b\"\nbench = \"{bench}\"\ncontext = 1024\n\
             sequences = [1]\n[published]\nm1 = 2\nvendor_over_gemv = 0.8\ngemv_over_tensor_cores = 0.5\n\
             synchronising = 0.2\ngain = 1.4\n"
        )
    };
    std::fs::create_dir_all(place.path("exp")).unwrap();
    place.write("exp/kernels.toml", &definition("bench.csv"));
    place.refused("experiment exp", 4, &["bench.csv", "check the path"]);
    place.write("exp/bench.csv", "part,n\nproduct,1\n");
    place.refused("experiment exp", 4, &["bench.csv", "plimsoll bench -o"]);
    let head = "part,n,k,rows,context,sequences,way,seconds\n";
    let line = |rows: u32, seconds: &str| format!("product,4096,4096,{rows},,,gemv,{seconds}\n");
    place.write("exp/bench.csv", &(head.to_owned() + &line(1, "1e-5")));
    let words = ["bench.csv", "4096 x 4096", "bench --model llama-2-7b"];
    place.refused("experiment exp", 4, &words);
    place.write("exp/bench.csv", &(head.to_owned() + &line(1, "0")));
    place.refused("experiment exp", 4, &["bench.csv", "line 2", "not above 0"]);
}
