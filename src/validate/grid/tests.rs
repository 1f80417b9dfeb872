//! What a grid file may say, and what is said of one that is wrong.

use std::collections::BTreeSet;
use std::path::Path;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::lower::footprint;
use plimsoll_core::policy::{Policy, Schedule};

use super::super::Trial;
use super::{BUILT_IN, BUILT_IN_FOR_GPUS, Grid};
use crate::files::find_profile;

const GRID: &str = "\
[[model]]
name = \"tiny\"
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 4
vocab_size = 128

[[placement]]
name = \"host\"
percent = [0, 100, 0, 100, 100, 0]

[[placement]]
name = \"planned\"

[[batch]]
name = \"2x2\"
gpu_batch_size = 2
num_gpu_batches = 2
prompt_len = 8
gen_len = 3

[[batch]]
name = \"4x1\"
gpu_batch_size = 4
num_gpu_batches = 1
prompt_len = 8
gen_len = 3
machine = \"slow\"

[[machine]]
name = \"fast\"

[[machine]]
name = \"slow\"
h2d_bytes_per_s = 1e9
";

fn names(text: &str) -> Vec<String> {
    let grid = Grid::parse(text, Path::new("grid.toml")).expect("a grid");
    grid.cases.into_iter().map(|case| case.name).collect()
}

/// What is said of the grid with `from` replaced, or with `to` at its end.
fn refusal(from: &str, to: &str) -> String {
    let text = match from {
        "" => format!("{GRID}{to}"),
        _ => GRID.replacen(from, to, 1),
    };
    let error = Grid::parse(&text, Path::new("grid.toml")).expect_err(to);
    error.to_string()
}

/// Where the planner chooses the batches nobody has to say how many; where percentages are stated they are needed.
#[test]
fn batches_are_stated_where_percentages_are() {
    let grid = |placement: &str| {
        let text = format!(
            "repeats = 1\ndtype = \"f32\"\n[[model]]\nname = \"opt-125m\"\nmodel = \"opt-125m\"\n\
             [[placement]]\nname = \"p\"\n{placement}\n\
             [[batch]]\nname = \"b\"\nprompt_len = 8\ngen_len = 3\nnum_prompts = 8\n"
        );
        Grid::parse(&text, Path::new("grid.toml"))
    };
    let chosen = grid("").expect("a grid");
    assert!(chosen.cases.len() == 1 && chosen.cases[0].policy.is_none());
    let error = grid("percent = [0, 100, 0, 100, 0, 100]").expect_err("no batches");
    let said = error.to_string();
    assert!(
        said.contains("batch `b`: gpu_batch_size: is missing"),
        "{said}"
    );
}

#[test]
fn a_grid_is_multiplied_out() {
    let all = names(GRID);
    assert_eq!(all.len(), 2 * 3);
    assert_eq!(all[0], "tiny / host / zigzag / 2x2 / fast");
    assert_eq!(all[5], "tiny / planned / zigzag / 4x1 / slow");
    assert_eq!(names(BUILT_IN).len(), 2 * 5 * 3);
    assert_eq!(names(BUILT_IN_FOR_GPUS).len(), 3 * 5 * 3);
    let recorded = include_str!("../../../experiments/cpu-validation/grid.toml");
    assert_eq!(names(recorded).len(), 3 * 6 * 3);
}

/// Whether a policy has something.
type Shows = fn(&Policy) -> bool;

/// Arenas of a GPU's size, models, placements and schedules, of which a GPU's run takes a part of the eight minutes that
/// `scripts/validate-gpu` has: loading, measuring and the kernels' benchmark have the rest.
#[test]
fn the_grid_for_gpus_has_all_that_it_is_to_show_and_is_short() {
    const SECONDS_MOST: f64 = 120.0;
    let grid = Grid::parse(BUILT_IN_FOR_GPUS, Path::new("the grid for GPUs")).expect("a grid");
    let profile = find_profile("h100").expect("it is embedded");
    let trials = grid.cases.iter().map(|case| Trial::new(case, &profile));
    let trials: Vec<Trial<'_>> = trials.map(|trial| trial.expect("it fits")).collect();
    assert!(trials.len() >= 24, "{}", trials.len());
    let arenas: BTreeSet<u64> = grid
        .cases
        .iter()
        .filter_map(|case| Some(case.limits.capacity_bytes.device?.0 / 1_000_000_000))
        .collect();
    assert_eq!(arenas, BTreeSet::from([8, 16, 24]));
    for trial in &trials {
        let reserved = footprint(&trial.plan).expect("a plan").device;
        let usable = trial.plan.capacity_bytes.device;
        assert!(
            usable.0 < 24_000_000_000 && reserved <= usable,
            "{}",
            trial.case.name
        );
        assert!(trial.case.dtype != Dtype::F32 && trial.case.policy.is_some());
    }
    let widths: BTreeSet<u32> = grid.cases.iter().map(|c| c.model.hidden_size).collect();
    assert_eq!(widths, BTreeSet::from([2048, 4096, 7168]));
    // With every model.
    let shown: [(&str, Shows); 10] = [
        ("weights on the device", |p| p.weights.device == 1.0),
        ("weights on the host", |p| p.weights.host == 1.0),
        ("weights on disk", |p| p.weights.disk > 0.0),
        ("cache on the device", |p| p.cache.device == 1.0),
        ("cache on both", |p| {
            p.cache.device > 0.0 && p.cache.host > 0.0
        }),
        ("attention on the CPU", |p| p.cpu_attention),
        ("4 bits", |p| p.compression == Compression::of(true, true)),
        ("zig-zag", |p| p.schedule == Schedule::ZigZag),
        ("row", |p| p.schedule == Schedule::Row),
        ("diagonal", |p| p.schedule == Schedule::Diagonal),
    ];
    for (what, has) in shown {
        let with = trials.iter().filter(|trial| has(&trial.plan.policy));
        let with: BTreeSet<u32> = with.map(|trial| trial.plan.model.hidden_size).collect();
        assert_eq!(with, widths, "{what}");
    }
    let seconds: f64 = trials.iter().map(|trial| trial.as_profiled_s).sum();
    let seconds = seconds * f64::from(grid.repeats);
    assert!(seconds < SECONDS_MOST, "{seconds} s");
}

#[test]
fn a_case_takes_the_first_of_what_it_does_not_name() {
    let case = |keys: &str| names(&format!("{GRID}[[case]]\n{keys}")).remove(0);
    assert_eq!(case(""), "tiny / host / zigzag / 2x2 / fast");
    let own_machine = case("batch = \"4x1\"\n");
    assert_eq!(own_machine, "tiny / host / zigzag / 4x1 / slow");
}

#[test]
fn a_model_has_its_type_family_and_batches() {
    let llama = "name = \"tiny\"\ndtype = \"bf16\"\nfamily = \"llama\"\nnum_key_value_heads = 2";
    let packed =
        "percent = [0, 100, 0, 100, 100, 0]\ncompress_weight = true\nsparse_attention = 0.5";
    let text = GRID
        .replacen("name = \"tiny\"", llama, 1)
        .replacen("percent = [0, 100, 0, 100, 100, 0]", packed, 1)
        .replacen("\"slow\"\n\n", "\"slow\"\nmodel = \"tiny\"\n\n", 1);
    let opt = "\n[[model]]\nname = \"other\"\nhidden_size = 64\nnum_hidden_layers = 2\n\
               num_attention_heads = 4\nvocab_size = 128\n";
    let grid = Grid::parse(&format!("{text}{opt}"), Path::new("grid.toml")).expect("a grid");
    let cases = |model: &str| {
        grid.cases
            .iter()
            .filter(|c| c.name.starts_with(model))
            .count()
    };
    assert_eq!([cases("tiny"), cases("other")], [6, 4]);
    let [first, last] = [&grid.cases[0], &grid.cases[9]];
    assert_eq!([first.dtype, last.dtype], [Dtype::Bf16, Dtype::F32]);
    assert_eq!(first.model.num_key_value_heads, 2);
    assert_eq!(last.model.num_key_value_heads, 4);
    assert!(first.model.gated_mlp && !last.model.gated_mlp);
    let policy = first.policy.expect("given");
    assert_eq!(policy.compression, Compression::of(true, false));
    assert_eq!(policy.sparse_attention, 0.5);
}

#[test]
fn a_wrong_key_is_named_with_its_line() {
    for (from, to, said) in [
        (
            "prompt_len = 8",
            "promt_len = 8",
            "line 19: promt_len: unknown key `promt_len`; did you mean `prompt_len`?",
        ),
        (
            "percent = [0,",
            "percent = [0.2,",
            "line 8: placement `host`: percent: weights add up to 100.2% over device, host and disk; \
             they must make 100%",
        ),
        (
            "name = \"host\"",
            "name = \"host\"\nsparse_attention = 2",
            "line 8: placement `host`: sparse_attention is 2; give the share of values to read, above 0 and at \
             most 1 (dense)",
        ),
        (
            "name = \"host\"",
            "name = \"host\"\ncpu_attention = true\ncompress_cache = true",
            "line 8: placement `host`: the CPU cannot attend to a compressed cache; turn CPU attention \
             off, or keep the cache as it is",
        ),
        (
            "gpu_batch_size = 2",
            "gpu_batch_size = 0",
            "line 15: batch `2x2`: gpu_batch_size: is 0; give at least 1",
        ),
        (
            "gen_len = 3",
            "gen_len = 0",
            "line 15: batch `2x2`: gen_len: is 0; give at least 1",
        ),
        (
            "1e9",
            "nan",
            "line 33: machine `slow`: h2d_bytes_per_s: is NaN; give at least 1000",
        ),
        (
            "\"4x1\"",
            "\"2x2\"",
            "line 22: batch `2x2`: name: line 15 has the same; give it another name",
        ),
        (
            "vocab_size = 128",
            "",
            "line 1: model `tiny`: vocab_size: is missing; state it, or the name of a known `model`",
        ),
        (
            "vocab_size = 128",
            "model = \"opt-125m\"",
            "line 1: model `tiny`: model: is `opt-125m`, and hidden_size states a shape; \
             keep one of them",
        ),
        (
            "machine = \"slow\"",
            "machine = \"slou\"",
            "line 22: machine: there is no machine `slou`; did you mean `slow`?",
        ),
    ] {
        assert_eq!(refusal(from, to), format!("grid.toml: {said}"));
    }
}

#[test]
fn what_no_machine_could_do_is_blamed_on_the_batch() {
    let long = refusal("prompt_len = 8", "prompt_len = 3000");
    assert!(
        long.starts_with("grid.toml: line 15: batch `2x2`: prompt_len 3000"),
        "{long}"
    );
    assert!(long.contains("2048 positions of tiny"), "{long}");
    let much = refusal("num_gpu_batches = 2", "num_gpu_batches = 70000");
    assert!(
        much.starts_with("grid.toml: line 15: batch `2x2`: the number of"),
        "{much}"
    );
    // Where the planner chooses the batches, the lengths still count.
    let long = refusal(
        "",
        "[[case]]\nplacement = \"planned\"\nbatch = \"long\"\n\
        [[batch]]\nname = \"long\"\ngpu_batch_size = 1\nnum_gpu_batches = 1\n\
        prompt_len = 2000\ngen_len = 50\n",
    );
    assert!(
        long.contains("batch `long`: prompt_len 2000 + gen_len 50"),
        "{long}"
    );
}

#[test]
fn a_case_is_given_once_and_of_known_parts() {
    for (cases, said) in [
        (
            "[[case]]\nbatch = \"2x2\"\n\n[[case]]\n",
            "line 39: case: `tiny / host / zigzag / 2x2 / fast` is in line 36 already; remove one",
        ),
        (
            "[[case]]\nbatch = \"2x3\"\n",
            "line 36: batch: there is no batch `2x3`; did you mean `2x2`?",
        ),
        (
            "[[case]]\nbatch = \"4x1\"\nmachine = \"fast\"\n",
            "line 36: machine: batch `4x1` is for `slow` only; name that, or another batch",
        ),
    ] {
        assert_eq!(refusal("", cases), format!("grid.toml: {said}"));
    }
}

#[test]
fn an_unknown_model_is_the_files_fault() {
    let shape =
        "hidden_size = 64\nnum_hidden_layers = 2\nnum_attention_heads = 4\nvocab_size = 128";
    let said = refusal(shape, "model = \"opt-124m\"");
    assert!(
        said.starts_with("grid.toml: line 1: model `tiny`: model: "),
        "{said}"
    );
    assert!(
        said.contains("opt-125m") && !said.contains("--model"),
        "{said}"
    );
}

#[test]
fn a_width_has_either_name_and_a_wrong_shape_names_its_model_once() {
    let width = |key: &str| {
        let text = GRID.replacen("vocab_size", &format!("{key} = 96\nvocab_size"), 1);
        let grid = Grid::parse(&text, Path::new("grid.toml")).expect("a grid");
        grid.cases[0].model.intermediate_size
    };
    assert_eq!([width("intermediate_size"), width("ffn_dim")], [96, 96]);
    let said = refusal("num_attention_heads = 4", "num_attention_heads = 5");
    assert!(
        said.starts_with("grid.toml: line 1: model `tiny`: `num_attention_heads` is 5, but"),
        "{said}"
    );
}
