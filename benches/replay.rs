//! How fast traces are served in modelled time: 100,000 requests, every manager, on one core, in CPU time.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use plimsoll::serve::gpus::Gpus;
use plimsoll::serve::replay::{Expansion, Manager, Prediction, Server};
use plimsoll::serve::workload::{Arrivals, Generator};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::embedded;
use plimsoll_core::model::registry;
use plimsoll_core::serve::pie::Settings;
use plimsoll_core::serve::predict::{Buckets, Wrong};
use plimsoll_core::serve::{Limits, Preemption, Request, Reserve};
use plimsoll_core::traffic::Background;
use plimsoll_core::units::Bytes;

const REQUESTS: usize = 100_000;

/// The fastest of so many counts: others use the machine too.
const REPEATS: usize = 2;

/// Seconds that this thread has computed, or that have passed where the system does not count them.
fn cpu_seconds(since: Instant) -> f64 {
    let counted = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = counted.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    nanos.map_or(since.elapsed().as_secs_f64(), |nanos| nanos / 1e9)
}

fn managers() -> [(&'static str, Manager); 7] {
    let s3 = |prediction| Manager::S3 {
        prediction,
        reserve: Reserve::All,
    };
    let classifier = Prediction::Classifier {
        buckets: Buckets {
            max_len: 2048,
            count: 10,
        },
        accuracy: 0.986,
        wrong: Wrong::Either,
        distance: 1.03,
        seed: 0,
    };
    let vllm = |preemption| Manager::Vllm { preemption };
    [
        ("orca", Manager::Orca { max_len: 2048 }),
        ("vllm, recompute", vllm(Preemption::Recompute)),
        ("vllm, swap", vllm(Preemption::Swap)),
        ("s3, oracle", s3(Prediction::Oracle)),
        ("s3, classifier", s3(classifier)),
        ("pie, expansion 2", Manager::Pie(Expansion::Fixed(2.0))),
        (
            "pie, adaptive",
            Manager::Pie(Expansion::Auto(Settings::default())),
        ),
    ]
}

fn server(hw: &str, model: &str, kv_gb: Option<f64>, manager: Manager) -> Server {
    let profile = embedded::profile(hw).expect("embedded");
    let model = registry::find(model).expect("registered");
    let left = Gpus::One.kv_left(&profile, &model, Dtype::F16);
    let asked = kv_gb.map(|gb| Bytes((gb * 1e9) as u64));
    Server {
        gpus: Gpus::One,
        kv_bytes: asked.or(left).expect("it fits"),
        profile,
        model,
        dtype: Dtype::F16,
        compression: Compression::default(),
        manager,
        limits: Limits {
            sequences: 256,
            tokens: 2048,
        },
        clients: None,
        slo_s: 0.1875,
        traffic: Background::default(),
        logged: false,
    }
}

/// Alpaca's lengths, or exponential ones of ShareGPT's means, so many a second.
fn requests(data: &str, rate: f64) -> Vec<Request> {
    let (prompt, output) = match data {
        "alpaca" => ("alpaca-prompt", "alpaca-output"),
        _ => ("exponential:161.31", "exponential:337.99"),
    };
    let generator = Generator {
        arrivals: Arrivals::Poisson { rate },
        prompt: prompt.parse().expect("known"),
        output: output.parse().expect("known"),
        total_max: Some(2048),
        requests: REQUESTS,
        seed: 0,
    };
    generator.requests().expect("lengths that fit")
}

fn count(name: &str, server: &Server, (data, rate): (&str, f64)) {
    let requests = requests(data, rate);
    let once = |_| {
        let since = Instant::now();
        let before = cpu_seconds(since);
        let replayed = black_box(server.replay(&requests).expect("served"));
        (cpu_seconds(since) - before, replayed.summary)
    };
    let runs = (0..REPEATS).map(once);
    let (seconds, summary) = runs.min_by(|a, b| a.0.total_cmp(&b.0)).expect("some");
    println!(
        "| {} on {}, {data}, {rate}/s | {name} | {} | {:.1} | {seconds:.2} | {:.0} |",
        server.model.name,
        server.profile.name,
        summary.iterations,
        summary.average_batch,
        REQUESTS as f64 / seconds
    );
}

fn main() {
    println!("| what is served | manager | iterations | batch | CPU s | requests per CPU-second |");
    println!("|---|---|--:|--:|--:|--:|");
    // Below and above what the machine can serve.
    for asked in [("alpaca", 20.0), ("sharegpt", 5.0), ("sharegpt", 20.0)] {
        for (name, manager) in managers() {
            count(name, &server("a100-80", "llama-13b", None, manager), asked);
        }
    }
    // Where Pie swaps: a cache that requests saturate, on its own machine.
    for asked in [("alpaca", 60.0), ("sharegpt", 4.0)] {
        for (name, manager) in managers() {
            count(
                name,
                &server("gh200-vllm", "opt-13b", Some(3.0), manager),
                asked,
            );
        }
    }
}
