//! Requests that are really served: whoever has to leave, and however, gets the tokens of an unconstrained run.

mod common;
mod serving {
    pub mod runs;
}

use common::{checkpoint, model};
use plimsoll_backend::cpu::{CpuOptions, Throttles};
use plimsoll_backend::weights::{Synthetic, WeightSource};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::pie::Settings;
use plimsoll_core::serve::predict::{Buckets, Classifier, Wrong};
use plimsoll_core::serve::{KvManager, Orca, Preemption, Reserve, S3, ServeSummary};
use plimsoll_core::units::BytesPerSecond;
use serving::runs::{EAGER, REQUESTS, Setting, Swapping, served_with, traffic, vllm};

/// What came out for each request, and what became of them.
fn served(setting: Setting, source: &dyn WeightSource) -> (Vec<Vec<u32>>, ServeSummary) {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        throttles: setting.throttles,
        ..CpuOptions::new(dir.path())
    };
    let outcome = served_with(setting, source, &options).expect("it is served");
    (outcome.generated, outcome.summary)
}

const SLOW: Throttles = Throttles {
    h2d: Some(BytesPerSecond(20e6)),
    d2h: Some(BytesPerSecond(20e6)),
    disk_read: None,
    disk_write: None,
    cpu: None,
};

#[test]
fn recomputed_and_swapped_requests_get_the_tokens_of_an_unconstrained_run() {
    for name in [
        "tiny-opt",
        "tiny-llama-3",
        "tiny-mistral",
        "tiny-qwen2",
        "tiny-qwen3",
    ] {
        let (model, source) = (&model(name), &checkpoint(name));
        let ample = vllm(1024, Preemption::Recompute);
        let (expected, summary) = served(Setting::of(model, ample, 1024), source);
        assert_eq!(summary.preemptions, 0);
        let lengths = expected.iter().map(Vec::len);
        assert!(lengths.eq(REQUESTS.iter().map(|(_, answer, _)| *answer as usize)));
        for (preemption, throttles) in [
            (Preemption::Recompute, Throttles::default()),
            (Preemption::Swap, Throttles::default()),
            (Preemption::Swap, SLOW),
        ] {
            let setting = Setting {
                throttles,
                ..Setting::of(model, vllm(64, preemption), 64)
            };
            let (found, summary) = served(setting, source);
            assert!(
                summary.preemptions > 0,
                "{name}, {preemption:?}: nobody had to leave"
            );
            assert_eq!(found, expected, "{name}, {preemption:?}");
        }
        let longest = 64;
        let setting = Setting {
            block_tokens: longest,
            ..Setting::of(model, Box::new(Orca::new(128, longest)), 128)
        };
        let (found, summary) = served(setting, source);
        assert_eq!((found, summary.preemptions), (expected, 0), "{name}, orca");
    }
}

/// Rooms for answers a bucket of 6 tokens too short, for all that are above the first.
fn short_predictions(tokens: u64) -> Box<dyn KvManager> {
    let classifier = Classifier {
        buckets: Buckets {
            max_len: 24,
            count: 4,
        },
        accuracy: 0.0,
        wrong: Wrong::Short,
        distance: 1.0,
        seed: 1,
    };
    Box::new(S3::new(tokens, Reserve::All, Box::new(classifier)))
}

#[test]
fn requests_that_outgrow_their_predicted_room_get_the_tokens_of_an_unconstrained_run() {
    for name in ["tiny-opt", "tiny-llama-3"] {
        let (model, source) = (&model(name), &checkpoint(name));
        let ample = Setting::of(model, vllm(1024, Preemption::Recompute), 1024);
        let (expected, _) = served(ample, source);
        for throttles in [Throttles::default(), SLOW] {
            let setting = Setting {
                block_tokens: 1,
                throttles,
                ..Setting::of(model, short_predictions(96), 96)
            };
            let (found, summary) = served(setting, source);
            // Five answers have more than 6 tokens. Each goes to the host once at least, and comes back.
            assert!(summary.preemptions >= 5, "{name}: {}", summary.preemptions);
            assert_eq!(summary.swaps, [summary.preemptions; 2], "{name}");
            assert!(summary.recomputed_tokens == 0 && summary.swapped_bytes > 0);
            assert_eq!(found, expected, "{name}");
        }
    }
}

fn eight_layers() -> ModelSpec {
    ModelSpec {
        num_hidden_layers: 8,
        ..model("tiny-opt")
    }
}

#[test]
fn layers_of_the_cache_that_take_turns_on_the_device_change_no_token() {
    let model = &eight_layers();
    let source = &Synthetic { seed: 3 };
    let cache = || vllm(64, Preemption::Recompute);
    let (expected, _) = served(
        Setting::of(model, vllm(1024, Preemption::Recompute), 1024),
        source,
    );
    let swappings: [fn(Settings) -> Swapping; 4] = [
        |_| Swapping::Fixed(4),
        |_| Swapping::Fixed(6),
        |_| Swapping::Fixed(8),
        Swapping::Adaptive,
    ];
    for (index, swapping) in swappings.into_iter().enumerate() {
        for throttles in [Throttles::default(), SLOW] {
            let setting = Setting {
                swapped: Some(swapping(EAGER)),
                throttles,
                ..Setting::of(model, cache(), 64)
            };
            let (found, summary) = served(setting, source);
            let layers = summary.layers.expect("they are swapped");
            assert!(layers.swaps[1] > 0, "{index}: {layers:?}");
            assert_eq!(found, expected, "{index}: {layers:?}");
        }
    }
}

#[test]
fn traffic_on_the_link_makes_layers_wait_and_changes_no_token() {
    let model = &eight_layers();
    let source = &Synthetic { seed: 3 };
    let ample = Setting::of(model, vllm(1024, Preemption::Recompute), 1024);
    let (expected, _) = served(ample, source);
    // From the first to after the last has come it leaves a hundredth.
    let traffic = traffic("0..0.15:0.0198");
    for swapped in [Swapping::Fixed(6), Swapping::Adaptive(EAGER)] {
        let fixed = matches!(swapped, Swapping::Fixed(_));
        let setting = Setting {
            swapped: Some(swapped),
            throttles: SLOW,
            traffic: traffic.clone(),
            ..Setting::of(model, vllm(64, Preemption::Recompute), 64)
        };
        let (found, summary) = served(setting, source);
        let layers = summary.layers.expect("they are swapped");
        assert_eq!(found, expected, "{layers:?}");
        // All layers had to move for the first tokens already.
        assert!(!fixed || layers.stalled_s > 0.04, "{layers:?}");
    }
}
