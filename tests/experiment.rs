//! `plimsoll experiment`: made again, compared, refused.

mod common;

use common::Place;

/// A folder with a table of each kind.
fn tiny_experiment(place: &Place) {
    std::fs::create_dir(place.path("exp")).unwrap();
    place.write(
        "exp/table-1.toml",
        "kind = \"runs\"\ntitle = \"Table 1\"\nfile = \"table-1.csv\"\nhw = \"t4\"\nused_for = \"printed-policies\"\n",
    );
    place.write(
        "exp/table-1.csv",
        "model,prompt_len,gen_len,gpu_batch_size,num_gpu_batches,wg,wc,cg,cc,hg,hc,throughput_tok_s\n\
         opt-125m,16,2,2,1,100,0,100,0,100,0,0.01\n\
         opt-175b,16,2,2,1,100,0,100,0,100,0,OOM\n",
    );
    place.write(
        "exp/table-2.toml",
        "kind = \"systems\"\ntitle = \"Table 2\"\nfile = \"table-2.csv\"\nhw = \"t4\"\nused_for = \"fitting\"\n",
    );
    place.write(
        "exp/table-2.csv",
        "system,model,prompt_len,gen_len,effective_batch,throughput_tok_s,latency_s\n\
         accelerate,opt-125m,16,2,2,100,0.04\n",
    );
    place.write(
        "exp/ablation.toml",
        "kind = \"ablation\"\ntitle = \"Terms\"\n",
    );
    place.write(
        "exp/figure-1.toml",
        "kind = \"pareto\"\ntitle = \"Figure 1\"\nhw = \"t4\"\nmodel = \"opt-125m\"\nprompt_len = 16\n\
         gen_len = 2\nsystems = [\"accelerate\"]\npublished = \"table-2.csv\"\n",
    );
    place.write(
        "exp/diagonal.toml",
        "kind = \"schedules\"\ntitle = \"Blocks\"\nhw = \"t4\"\nmodel = \"opt-125m\"\n\
         gpu_batch_size = 4096\npercent = [100, 0, 100, 0, 100, 0]\nlengths = [[8, 16]]\n",
    );
}

#[test]
fn an_experiment_is_made_again_and_compared() {
    let place = Place::new();
    tiny_experiment(&place);
    place.refused(
        "experiment exp --check",
        4,
        &["ablation.csv", "check the path"],
    );
    let said = place.text("experiment exp");
    let results = std::fs::read_to_string(place.path("exp/results/RESULTS.md")).unwrap();
    assert_eq!(said, results);
    for words in [
        "plimsoll experiment exp",
        "fitting | 1 |",
        "validation, policies printed in the paper | 1 |",
        "of 1 |",
        "| none | the whole model | 0 |",
        "| fixed-costs |",
    ] {
        assert!(said.contains(words), "no `{words}` in\n{said}");
    }
    assert!(
        said.contains("| out of memory |  | out of memory |"),
        "{said}"
    );
    let csv = std::fs::read_to_string(place.path("exp/results/table-1.csv")).unwrap();
    let header = "run,hardware,metric,predicted,low,high,published,error,error_beyond_rounding,fitted,\
                  out_of_memory_agreed,note";
    assert_eq!(csv.lines().next(), Some(header));
    let blocks = std::fs::read_to_string(place.path("exp/results/diagonal.csv")).unwrap();
    let [header, row] = [0, 1].map(|line| blocks.lines().nth(line).unwrap().split(','));
    let column = |name: &str| {
        let at = header.clone().position(|column| column == name).unwrap();
        row.clone().nth(at).unwrap().parse::<f64>().unwrap()
    };
    let more = column("diagonal_block") / column("zigzag_block");
    assert!(
        more > 1.1 && more < 1.1 * column("formula_ratio"),
        "{blocks}"
    );
    assert_eq!(column("block_ratio"), more);
    assert!(said.contains("| 8 + 16 |"), "{said}");
    for file in [
        "ablation.csv",
        "table-2.csv",
        "figure-1.csv",
        "figure-1.svg",
        "figure-1.png",
    ] {
        assert!(
            place.path(&format!("exp/results/{file}")).is_file(),
            "{file}"
        );
    }
    place.text("experiment exp --check");
    place.write("exp/results/table-1.csv", &csv.replace("0.01,", "0.02,"));
    place.refused("experiment exp --check", 6, &["table-1.csv", "line 2"]);
}

#[test]
fn a_wrong_experiment_is_refused_by_file_and_key() {
    let place = Place::new();
    place.refused("experiment nowhere", 4, &["nowhere", "check the path"]);
    std::fs::create_dir(place.path("exp")).unwrap();
    place.refused("experiment exp", 4, &["exp", "*.toml"]);
    let figure = "kind = \"pareto\"\ntitle = \"F\"\nhw = \"t4\"\nmodel = \"opt-125m\"\n";
    place.write(
        "exp/f.toml",
        &format!("{figure}systems = [\"acelerate\"]\n"),
    );
    place.refused(
        "experiment exp",
        4,
        &["f.toml", "did you mean `accelerate`"],
    );
    place.write(
        "exp/f.toml",
        &format!("{figure}system = [\"accelerate\"]\n"),
    );
    place.refused("experiment exp", 4, &["f.toml", "system"]);
    let blocks = "kind = \"schedules\"\ntitle = \"B\"\nhw = \"t4\"\nmodel = \"opt-125m\"\n\
                  gpu_batch_size = 1\npercent = [100, 10, 100, 0, 100, 0]\nlengths = [[8, 8]]\n";
    place.write("exp/f.toml", blocks);
    place.refused("experiment exp", 4, &["f.toml", "percent"]);
    let table = "kind = \"systems\"\ntitle = \"T\"\nfile = \"t.csv\"\nhw = \"t5\"\nused_for = \"fitting\"\n";
    place.write("exp/f.toml", table);
    place.refused("experiment exp", 4, &["t.csv"]);
}
