//! Requests that are really served: whoever has to leave, and however, gets the tokens of an unconstrained run.

mod common;

use common::{checkpoint, model, prompts};
use plimsoll_backend::cpu::{CpuOptions, Throttles};
use plimsoll_backend::serving::{Served, ServingExecutor};
use plimsoll_core::Dtype;
use plimsoll_core::control::follow;
use plimsoll_core::machine::Machine;
use plimsoll_core::serve::{
    BLOCK_TOKENS, KvManager, Limits, Orca, Preemption, Request, Scheduler, Shape, State, Vllm,
};
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};

const LIMITS: Limits = Limits {
    sequences: 16,
    tokens: 512,
};

const HOST: Bytes = Bytes(1 << 20);

/// Prompt and answer lengths, and when each comes, in milliseconds.
const REQUESTS: [(u32, u32, u32); 7] = [
    (20, 14, 0),
    (5, 20, 0),
    (1, 9, 0),
    (31, 6, 1),
    (12, 18, 2),
    (7, 1, 3),
    (18, 11, 40),
];

fn requests() -> Vec<Request> {
    let all = REQUESTS.iter().map(|(prompt_len, output_len, ms)| Request {
        arrival: Seconds(f64::from(*ms) / 1e3),
        prompt_len: *prompt_len,
        output_len: *output_len,
    });
    all.collect()
}

/// What came out for each request, and how often one had to leave.
fn served(
    name: &str,
    manager: Box<dyn KvManager>,
    (tokens, block_tokens): (u64, u32),
    throttles: Throttles,
) -> (Vec<Vec<u32>>, u64) {
    let (model, dtype) = (model(name), Dtype::F32);
    let machine = Machine::single_gpu(PerTier::default());
    let shape = Shape::of(&model, dtype);
    let requests = requests();
    let longest = REQUESTS
        .iter()
        .map(|(prompt, ..)| *prompt)
        .max()
        .expect("some");
    let mut texts = prompts(requests.len() as u32, longest, model.vocab_size);
    for (text, request) in texts.iter_mut().zip(&requests) {
        text.truncate(request.prompt_len as usize);
    }
    let served = Served {
        blocks: tokens / u64::from(block_tokens),
        block_tokens,
        host: HOST,
        dtype,
        model,
    };
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        throttles,
        ..CpuOptions::new(dir.path())
    };
    let source = checkpoint(name);
    let mut executor =
        ServingExecutor::new(&machine, &served, texts, &source, &options).expect("an executor");
    let mut scheduler = Scheduler::new(machine, shape, LIMITS, manager, &requests).described();
    follow(&mut scheduler, &mut executor).expect("it is served");
    let done = |id: usize| scheduler.running().sequence(id as u32).state == State::Done;
    assert!((0..requests.len()).all(done));
    (executor.generated(), scheduler.summary(1.0).preemptions)
}

fn vllm(tokens: u64, preemption: Preemption) -> Box<dyn KvManager> {
    Box::new(Vllm::new(tokens, preemption))
}

#[test]
fn recomputed_and_swapped_requests_get_the_tokens_of_an_unconstrained_run() {
    for name in ["tiny-opt", "tiny-llama-3", "tiny-mistral"] {
        let in_blocks = |tokens| (tokens, BLOCK_TOKENS);
        let none = Throttles::default();
        let ample = vllm(1024, Preemption::Recompute);
        let (expected, left) = served(name, ample, in_blocks(1024), none);
        assert_eq!(left, 0);
        let lengths = expected.iter().map(Vec::len);
        assert!(lengths.eq(REQUESTS.iter().map(|(_, answer, _)| *answer as usize)));
        let slow = Throttles {
            h2d: Some(BytesPerSecond(20e6)),
            d2h: Some(BytesPerSecond(20e6)),
            ..none
        };
        for (preemption, throttles) in [
            (Preemption::Recompute, none),
            (Preemption::Swap, none),
            (Preemption::Swap, slow),
        ] {
            let manager = vllm(64, preemption);
            let (found, left) = served(name, manager, in_blocks(64), throttles);
            assert!(left > 0, "{name}, {preemption:?}: nobody had to leave");
            assert_eq!(found, expected, "{name}, {preemption:?}");
        }
        let longest = 64;
        let orca = Box::new(Orca::new(2 * u64::from(longest), longest));
        let (found, left) = served(name, orca, (2 * u64::from(longest), longest), none);
        assert_eq!((found, left), (expected, 0), "{name}, orca");
    }
}
