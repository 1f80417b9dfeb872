//! Requests that are served on a GPU: its streams, moves and kernels, on a card that computes on the CPU. Whoever has to leave,
//! and however, gets the tokens of an unconstrained run.
#![allow(unsafe_code)]

mod common;
mod cuda {
    pub mod card;
    pub mod emulator;
}
mod serving {
    pub mod runs;
}

use std::collections::HashMap;
use std::sync::Arc;

use common::{checkpoint, execute, model, plan};
use cuda::card::{Call, FakeCard, Fault, Order, Stamp};
use plimsoll_backend::cpu::{CpuOptions, Throttles};
use plimsoll_backend::cuda::Card;
use plimsoll_backend::serving::ServingExecutor;
use plimsoll_backend::weights::{Synthetic, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::machine::Machine;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{Op, Program, ResourceKind, TaskId};
use plimsoll_core::roster::Moved;
use plimsoll_core::serve::predict::{Buckets, Classifier, Wrong};
use plimsoll_core::serve::{Preemption, Reserve, S3, ServeSummary};
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::{Bytes, BytesPerSecond};
use plimsoll_core::workload::Workload;
use serving::runs::{
    EAGER, Outcome, REQUESTS, Setting, Swapping, served_with, setup, texts, traffic, vllm,
};

/// Serves on a card; the error where that fails.
fn on_card(
    setting: Setting,
    source: &dyn WeightSource,
    card: &Arc<FakeCard>,
) -> Result<Outcome, String> {
    let options = CpuOptions {
        card: Some(Arc::clone(card) as Arc<dyn Card>),
        ..CpuOptions::new(".")
    };
    served_with(setting, source, &options)
}

fn narrow(setting: Setting) -> Setting {
    Setting {
        dtype: Dtype::F16,
        ..setting
    }
}

fn ample(model: &ModelSpec) -> Setting {
    narrow(Setting::of(model, vllm(1024, Preemption::Recompute), 1024))
}

/// Tight on room: who has to leave is computed again, or goes to the host.
fn tight(model: &ModelSpec, preemption: Preemption) -> Setting {
    narrow(Setting::of(model, vllm(64, preemption), 64))
}

/// S3 with a predictor that is wrong as often as not: answers outgrow their room.
fn s3(model: &ModelSpec) -> Setting {
    let predictor = Classifier {
        buckets: Buckets {
            max_len: 20,
            count: 10,
        },
        accuracy: 0.2,
        wrong: Wrong::Either,
        distance: 1.0,
        seed: 5,
    };
    let manager = Box::new(S3::new(72, Reserve::All, Box::new(predictor)));
    Setting {
        block_tokens: 1,
        ..narrow(Setting::of(model, manager, 72))
    }
}

fn stream(kind: ResourceKind) -> usize {
    let machine = Machine::single_gpu(PerTier::default());
    usize::from(machine.resource(kind, 0).expect("a GPU's").0)
}

/// What must be ordered: each task behind those that it waits for, a layer behind its move, and its move behind the layer.
fn unordered(pieces: &[Arc<Program>], card: &FakeCard) -> Vec<String> {
    let stamps = card.stamps();
    let mut counts = vec![0; stamps.len()];
    let mut known: HashMap<TaskId, (usize, Stamp)> = HashMap::new();
    // Who touched a layer's cache last.
    let mut touched: HashMap<u16, TaskId> = HashMap::new();
    let mut wrong = Vec::new();
    for piece in pieces {
        let first = piece.first_task().0;
        let moves = &piece.roster().expect("described").moves;
        for (index, task) in piece.tasks().iter().enumerate() {
            let (id, resource) = (TaskId(first + index as u32), usize::from(task.resource.0));
            let Some(own) = stamps[resource].get(counts[resource]) else {
                continue;
            };
            counts[resource] += 1;
            let mut before = piece.deps_at(index).to_vec();
            let layer = moves.iter().find_map(|(of, moved)| match moved {
                Moved::LayerOut(layer) | Moved::LayerIn(layer) if *of == id => Some(*layer),
                _ => None,
            });
            let computed = match piece.op_of(task) {
                Op::Span(span) if span.layers == 1 => task.cell.block.checked_sub(1),
                _ => None,
            };
            if let Some(layer) = layer.or(computed) {
                before.extend(touched.insert(layer, id));
            }
            for earlier in before {
                let (stream, stamp) = &known[&earlier];
                if own.begin[*stream] < stamp.end {
                    wrong.push(format!("{id:?} may begin before {earlier:?} ends"));
                }
            }
            known.insert(id, (resource, own.clone()));
        }
    }
    wrong
}

/// A model with its weights.
#[derive(Clone, Copy)]
struct Subject<'a> {
    name: &'a str,
    model: &'a ModelSpec,
    source: &'a dyn WeightSource,
}

/// Holds answers against others. How products and attention of a sequence are computed goes by who is in the batch with it, so
/// tokens may differ where they are about as likely: where a request's first differ, the logits of both on the CPU have to be within
/// a share of the largest of the likeliest one's, less than rounding between stages moves them by. Gives how many differ.
fn ties(of: Subject<'_>, dtype: Dtype, found: &[Vec<u32>], expected: &[Vec<u32>]) -> usize {
    let within = match dtype {
        Dtype::Bf16 => 0.01,
        _ => 0.001,
    };
    let mut apart = 0;
    for (request, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{}, {request}", of.name);
        let Some(place) = found.iter().zip(expected).position(|(a, b)| a != b) else {
            continue;
        };
        let logits = logits(of, dtype, request, &expected[..=place]);
        let most = |of: &dyn Fn(f32) -> f32| logits.iter().fold(f32::MIN, |m, x| m.max(of(*x)));
        let (likeliest, largest) = (most(&|x| x), most(&f32::abs));
        for token in [found[place], expected[place]] {
            let off = (likeliest - logits[token as usize]) / largest;
            assert!(off < within, "{}, {request}, token {place}: {off}", of.name);
        }
        apart += 1;
    }
    apart
}

/// The CPU's logits of the last of some tokens of a request's answer.
fn logits(of: Subject<'_>, dtype: Dtype, request: usize, answer: &[u32]) -> Vec<f32> {
    let prompts = texts(of.model);
    let workload = Workload {
        prompt_len: prompts[request].len() as u32,
        gen_len: answer.len() as u32,
        num_prompts: Some(1),
    };
    let percent = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
    let policy = Policy::from_percent(1, 1, percent).expect("a policy");
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        given: Some(vec![answer.to_vec()].into()),
        capture_logits: true,
        ..CpuOptions::new(dir.path())
    };
    let plan = plan(of.model, dtype, policy, workload);
    let alone = execute(&plan, of.source, &prompts[request..=request], &options);
    let last = alone.logits.into_iter().last();
    last.expect("of the last token").logits
}

/// Serves on a card, and holds its answers against others and its streams' order against what is promised.
fn assert_same(
    what: &str,
    setting: Setting,
    (of, order): (Subject<'_>, Order),
    expected: &[Vec<u32>],
) -> Option<ServeSummary> {
    let card = FakeCard::new(order)?;
    let dtype = setting.dtype;
    let found = on_card(setting, of.source, &card);
    let found = found.unwrap_or_else(|said| panic!("{what}: {said}"));
    let ties = ties(of, dtype, &found.generated, expected);
    println!(
        "{}, {what}: {ties} of {} answers differ, at ties",
        of.name,
        expected.len()
    );
    assert!(ties <= 1, "{}, {what}: {ties}", of.name);
    let wrong = unordered(&found.pieces, &card);
    assert_eq!(wrong, Vec::<String>::new(), "{}, {what}", of.name);
    Some(found.summary)
}

/// The answers of a run in which nobody has to leave; none without a card.
fn unconstrained(of: Subject<'_>, dtype: Dtype) -> Option<Vec<Vec<u32>>> {
    let card = FakeCard::new(Order::Random(11))?;
    let setting = Setting {
        dtype,
        ..ample(of.model)
    };
    let run = on_card(setting, of.source, &card).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(run.summary.preemptions, 0);
    let lengths = run.generated.iter().map(Vec::len);
    assert!(lengths.eq(REQUESTS.iter().map(|(_, answer, _)| *answer as usize)));
    Some(run.generated)
}

#[test]
fn who_has_to_leave_gets_the_tokens_of_an_unconstrained_run_and_of_the_cpu_executor() {
    let mut apart = 0;
    for name in [
        "tiny-opt",
        "tiny-opt-projected",
        "tiny-llama-3",
        "tiny-mistral",
        "tiny-qwen2",
        "tiny-qwen3",
    ] {
        let (model, source) = (&model(name), &checkpoint(name));
        let of = Subject {
            name,
            model,
            source,
        };
        let Some(expected) = unconstrained(of, Dtype::F16) else {
            return;
        };
        let on_cpu = served_with(ample(model), source, &CpuOptions::new("."));
        let on_cpu = on_cpu.expect("it is served").generated;
        apart += ties(of, Dtype::F16, &expected, &on_cpu);
        for preemption in [Preemption::Recompute, Preemption::Swap] {
            let what = format!("{preemption:?}");
            let with = (of, Order::Random(12));
            let summary = assert_same(&what, tight(model, preemption), with, &expected);
            let preemptions = summary.expect("there was a card").preemptions;
            assert!(preemptions > 0, "{name}, {what}: nobody had to leave");
        }
    }
    println!(
        "{apart} of {} answers differ from the CPU's, at ties",
        4 * REQUESTS.len()
    );
    assert!(apart <= 3, "{apart}");
}

/// Weights in 4 bits are read as they are for few tokens, and unpacked for more.
#[test]
fn weights_in_4_bits_give_the_tokens_of_the_cpu_executor() {
    let mut apart = 0;
    for name in ["tiny-opt", "tiny-llama-3", "tiny-qwen3"] {
        let (model, source) = (&model(name), &checkpoint(name));
        let Some(card) = FakeCard::new(Order::Random(16)) else {
            return;
        };
        let setting = || Setting {
            compression: Compression::of(true, false),
            ..ample(model)
        };
        let found = on_card(setting(), source, &card).unwrap_or_else(|said| panic!("{said}"));
        let on_cpu = served_with(setting(), source, &CpuOptions::new(".")).expect("it is served");
        let same = found.generated.iter().zip(&on_cpu.generated);
        apart += same.filter(|(found, expected)| found != expected).count();
        let calls = card.calls();
        for kernel in ["gemv_packed_f16", "unpack_matrix_f16"] {
            let is_it =
                |call: &Call| matches!(call, Call::Launch(it) if it.kernel.starts_with(kernel));
            assert!(calls.iter().any(|(call, _)| is_it(call)), "{kernel}");
        }
    }
    println!(
        "{apart} of {} answers differ from the CPU's",
        3 * REQUESTS.len()
    );
    assert!(apart <= 2, "{apart}");
}

#[test]
fn s3s_evictions_and_bf16_change_no_token() {
    for (name, dtype) in [("tiny-opt", Dtype::F16), ("tiny-llama", Dtype::Bf16)] {
        let (model, source) = (&model(name), &checkpoint(name));
        let of = Subject {
            name,
            model,
            source,
        };
        let Some(expected) = unconstrained(of, dtype) else {
            return;
        };
        let setting = Setting { dtype, ..s3(model) };
        let summary = assert_same("s3", setting, (of, Order::Random(13)), &expected);
        let preemptions = summary.expect("there was a card").preemptions;
        assert!(preemptions > 0, "{name}: nobody outgrew its room");
    }
}

fn swapped(model: &ModelSpec, swapping: Swapping) -> Setting {
    Setting {
        swapped: Some(swapping),
        ..tight(model, Preemption::Recompute)
    }
}

#[test]
fn layers_that_are_swapped_and_resized_change_no_token_whichever_stream_is_held_back() {
    use ResourceKind::{D2h, Gpu, H2d};
    let model = &ModelSpec {
        num_hidden_layers: 8,
        ..model("tiny-opt")
    };
    let of = Subject {
        name: "eight layers",
        model,
        source: &Synthetic { seed: 3 },
    };
    let Some(expected) = unconstrained(of, Dtype::F16) else {
        return;
    };
    let held_back = |kind| Order::Last(stream(kind));
    let any = Order::Random(14);
    for (what, swapping, order) in [
        ("4 off", Swapping::Fixed(4), any),
        ("all off but two", Swapping::Fixed(8), held_back(D2h)),
        ("adaptive", Swapping::Adaptive(EAGER), held_back(Gpu)),
        ("adaptive", Swapping::Adaptive(EAGER), held_back(H2d)),
    ] {
        let what = format!("{what}, {order:?}");
        let resizes = matches!(swapping, Swapping::Adaptive(_));
        let summary = assert_same(&what, swapped(model, swapping), (of, order), &expected);
        let layers = summary.expect("there was a card").layers;
        let layers = layers.expect("they are swapped");
        assert!(layers.swaps[1] > 0, "{what}: {layers:?}");
        assert_eq!(layers.expansions.len() > 1, resizes, "{what}: {layers:?}");
    }
}

#[test]
fn no_order_of_streams_changes_a_token_of_who_went_to_the_host() {
    use ResourceKind::{D2h, Gpu, H2d};
    let (model, source) = (&model("tiny-opt"), &checkpoint("tiny-opt"));
    let of = Subject {
        name: "tiny-opt",
        model,
        source,
    };
    let Some(expected) = unconstrained(of, Dtype::F16) else {
        return;
    };
    let swaps = || tight(model, Preemption::Swap);
    for (what, setting, kind) in [
        ("vllm", swaps(), Gpu),
        ("vllm", swaps(), H2d),
        ("vllm", swaps(), D2h),
        ("s3", s3(model), H2d),
    ] {
        let with = (of, Order::Last(stream(kind)));
        assert_same(
            &format!("{what}, {}", kind.name()),
            setting,
            with,
            &expected,
        );
    }
}

#[test]
fn a_card_that_forgets_to_wait_is_found() {
    let (model, source) = (&model("tiny-opt"), &checkpoint("tiny-opt"));
    let order = Order::Last(stream(ResourceKind::H2d));
    let Some(card) = FakeCard::with(order, Fault::ForgetsWaits) else {
        return;
    };
    match on_card(tight(model, Preemption::Swap), source, &card) {
        Ok(found) => assert_ne!(unordered(&found.pieces, &card), Vec::<String>::new()),
        Err(said) => assert!(said.contains("not all numbers"), "{said}"),
    }
}

#[test]
fn what_fails_on_the_card_ends_the_run_with_a_name() {
    let (model, source) = (&model("tiny-opt"), &checkpoint("tiny-opt"));
    for fault in [
        Fault::FailsAt(40),
        Fault::RefusesAt(900),
        Fault::PanicsAt(9),
    ] {
        let card = FakeCard::idle_with(fault);
        let said = on_card(ample(model), source, &card)
            .err()
            .expect("a failure");
        assert!(said.contains("layers on gpu"), "{said}");
        assert!(said.contains("as it was asked to"), "{said}");
    }
}

/// What a cache may have is what this leaves.
#[test]
fn what_lies_beside_weights_and_cache_is_known_before_it_is_taken() {
    for (name, packed) in [
        ("tiny-opt", false),
        ("tiny-llama", false),
        ("tiny-opt", true),
    ] {
        let model = &model(name);
        let card = FakeCard::idle();
        let options = CpuOptions {
            card: Some(Arc::clone(&card) as Arc<dyn Card>),
            ..CpuOptions::new(".")
        };
        let setup = setup(Setting {
            compression: Compression::of(packed, false),
            ..ample(model)
        });
        let source = &Synthetic { seed: 3 };
        let served = &setup.served;
        let known = served.beside(&options).expect("a model that is served").0;
        let emulated = served.beside(&CpuOptions::new("."));
        assert_eq!(emulated.unwrap().0, 0);
        let built = ServingExecutor::new(&setup.machine, served, setup.texts, source, &options);
        let executor = built.expect("room for all");
        let weights = served.kept.weights(model).0;
        let beside = card.taken() as u64 - served.kv.0 - weights;
        // Weights begin at round addresses.
        assert!(
            (known..known + 16_384).contains(&beside),
            "{known} {beside}"
        );
        assert!(known > 16_384, "{known}");
        drop(executor);
    }
}

/// Why a card does not serve.
fn refused(setting: Setting) -> String {
    let options = CpuOptions {
        card: Some(FakeCard::idle() as Arc<dyn Card>),
        throttles: setting.throttles,
        ..CpuOptions::new(".")
    };
    let setup = setup(setting);
    let source = &Synthetic { seed: 3 };
    let built = ServingExecutor::new(&setup.machine, &setup.served, setup.texts, source, &options);
    built.err().expect("refused").to_string()
}

#[test]
fn what_is_not_served_on_gpus_is_refused_by_name() {
    let model = &model("tiny-opt");
    let wide = Setting {
        dtype: Dtype::F32,
        ..ample(model)
    };
    let found = refused(wide);
    assert!(
        found.starts_with("CUDA kernels compute f16 and bf16, not f32"),
        "{found}"
    );
    let loaded = Setting {
        traffic: traffic("0..1:1"),
        ..ample(model)
    };
    let found = refused(loaded);
    let expected = "traffic of others on the link is not executed on GPUs yet: leave --traffic out";
    assert!(found.starts_with(expected), "{found}");
    let paced = Setting {
        throttles: Throttles {
            h2d: Some(BytesPerSecond(1e9)),
            ..Throttles::default()
        },
        ..ample(model)
    };
    let found = refused(paced);
    assert!(
        found.starts_with("a limit on the pace of a link is not executed"),
        "{found}"
    );
}

#[test]
fn a_host_without_room_is_named() {
    let (model, source) = (&model("tiny-opt"), &checkpoint("tiny-opt"));
    let Some(card) = FakeCard::new(Order::Random(16)) else {
        return;
    };
    let setting = Setting {
        host: Bytes(1 << 10),
        ..tight(model, Preemption::Swap)
    };
    let said = on_card(setting, source, &card).err().expect("no room");
    assert!(
        said.contains("are to be moved to the host, which has room for"),
        "{said}"
    );
}
