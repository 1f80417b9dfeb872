//! Linear layers that the CPU and a GPU compute together (HeteGen), on a card that computes on the CPU: tokens are those of the
//! unsplit run, and everything waits for what it needs.
#![allow(unsafe_code)]

mod common;
mod cuda {
    pub mod card;
    pub mod emulator;
    pub mod runs;
}

use std::sync::Arc;

use common::{Outcome, execute, model, plan, splits, uneven_bands};
use cuda::card::{Call, FakeCard, Fault, Order};
use cuda::runs::{
    beside_launches, early, off_by, on_card_with, said, subject, ties, uneven, unordered, workload,
};
use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::dispatch::Dispatch;
use plimsoll_backend::weights::{Synthetic, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::control::DriveError;
use plimsoll_core::lower::footprint;
use plimsoll_core::model::{ModelSpec, NormPosition};
use plimsoll_core::placement::{PAGE_BYTES, WeightPlacement};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::program::{Op, ResourceKind, Stage};
use plimsoll_core::split::{PerModule, Route, SplitLinears};
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;

const DEVICE: [f64; 6] = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
const MIXED: [f64; 6] = [100.0, 0.0, 40.0, 60.0, 50.0, 50.0];

const WHOLE: Compression = Compression::of(false, false);
const PACKED: Compression = Compression::of(true, false);
const CACHE_PACKED: Compression = Compression::of(false, true);
const ALL_PACKED: Compression = Compression::of(true, true);

/// What is computed, whatever computes which part of it.
struct Subject {
    model: ModelSpec,
    source: Box<dyn WeightSource>,
    dtype: Dtype,
    compression: Compression,
    sequences: u32,
    workload: Workload,
}

impl Subject {
    fn of(name: &str, dtype: Dtype, compression: Compression) -> Subject {
        let (model, source) = subject(name);
        Subject {
            model,
            source,
            dtype,
            compression,
            sequences: 2,
            workload: workload(7, 4, 3),
        }
    }

    fn plan(&self, percent: [f64; 6], split: Option<SplitLinears>, cpu_attention: bool) -> Plan {
        let policy = Policy {
            barrier: false,
            compression: self.compression,
            split,
            cpu_attention,
            ..Policy::from_percent(self.sequences, 1, percent).expect("a policy")
        };
        plan(&self.model, self.dtype, policy, self.workload)
    }

    fn prompts(&self) -> Vec<Vec<u32>> {
        let count = self.workload.num_prompts.expect("stated") as u32;
        uneven(count, self.workload.prompt_len, &self.model)
    }

    /// Runs a plan on a card. What of it could have gone wrong without being seen is looked for.
    fn on(&self, card: &Arc<FakeCard>, plan: &Plan, options: &CpuOptions) -> Outcome {
        let split = plan.policy.split;
        let found = self.tried_on(card, plan, options);
        let found = found.unwrap_or_else(|error| panic!("{split:?}: {}", said(&error)));
        let none = Vec::<String>::new();
        assert_eq!(unordered(&found.run, card), none, "{split:?}");
        assert_eq!(early(&found.run), none, "{split:?}");
        found
    }

    fn tried_on(
        &self,
        card: &Arc<FakeCard>,
        plan: &Plan,
        options: &CpuOptions,
    ) -> Result<Outcome, DriveError> {
        let on = (card, Dispatch::default());
        on_card_with(plan, &*self.source, &self.prompts(), on, options)
    }

    /// Runs splits on a card and holds their tokens against those of the unsplit run there, and against the CPU executor's,
    /// which may be others where two are as likely as each other. Returns how many sequences have others than the unsplit run's.
    fn splits_change_nothing(&self, card: &Arc<FakeCard>, splits: &[SplitLinears]) -> usize {
        let dir = tempfile::tempdir().expect("a directory");
        let mut options = CpuOptions::new(dir.path());
        // The CPU has them for its rows.
        options.device_threads = 2;
        let unsplit = self.plan(DEVICE, None, false);
        let whole = self.on(card, &unsplit, &options).tokens;
        options.capture_logits = true;
        let on_cpu = execute(&unsplit, &*self.source, &self.prompts(), &options);
        options.capture_logits = false;
        let mut others = 0;
        for (index, split) in splits.iter().enumerate() {
            let percent = if index % 2 == 0 { DEVICE } else { MIXED };
            let attends = index % 3 == 1 && !self.compression.cache;
            let plan = self.plan(percent, Some(*split), attends);
            let found = self.on(card, &plan, &options).tokens;
            let parted = found.iter().zip(&whole).filter(|(a, b)| a != b).count();
            // Rounded sooner than on the CPU, a key may fall to another 4-bit code.
            let near = match self.compression.cache {
                true => Vec::new(),
                false => ties(&found, &on_cpu, (self.sequences, self.dtype)),
            };
            if parted > 0 || !near.is_empty() {
                let of = (&self.model.name, self.dtype, self.compression, index);
                println!("{of:?}: {parted} are not the unsplit run's; on the CPU {near:?}");
            }
            others += parted;
        }
        others
    }
}

/// All splits that there are tests of, of two models: shares from 0 to 1, and each of HeteGen's parts taken out (modules on the
/// device, page-locked buffers, buffers that are filled ahead, buffers that are handed on, a share for each module).
#[test]
fn tokens_are_those_of_the_unsplit_run() {
    let Some(card) = FakeCard::new(Order::Random(11)) else {
        return;
    };
    for (name, dtype) in [("tiny-opt", Dtype::F16), ("tiny-llama-3", Dtype::Bf16)] {
        let subject = Subject::of(name, dtype, WHOLE);
        let all = splits(subject.model.num_hidden_layers);
        assert_eq!(subject.splits_change_nothing(&card, &all), 0, "{name}");
    }
}

/// The other checkpoints, weights and cache in 4 bits, and what no checkpoint has.
#[test]
fn every_kind_of_model_is_split() {
    let Some(card) = FakeCard::new(Order::Random(12)) else {
        return;
    };
    let of = Subject::of;
    let made = |seed, dtype, compression, model| Subject {
        model,
        source: Box::new(Synthetic { seed }),
        ..of("tiny-opt", dtype, compression)
    };
    let opt = || model("tiny-opt");
    let after = ModelSpec {
        norm_position: NormPosition::After,
        ..opt()
    };
    let wide = ModelSpec {
        num_hidden_layers: 1,
        ..uneven_bands()
    };
    for subject in [
        of("tiny-opt-projected", Dtype::F16, WHOLE),
        of("tiny-opt-f16", Dtype::Bf16, WHOLE),
        of("tiny-llama", Dtype::F16, WHOLE),
        of("tiny-llama-f16", Dtype::F16, WHOLE),
        of("tiny-mistral", Dtype::F16, WHOLE),
        of("tiny-qwen2", Dtype::Bf16, WHOLE),
        of("tiny-qwen2", Dtype::F16, PACKED),
        of("tiny-qwen3", Dtype::F16, WHOLE),
        of("tiny-llama-3", Dtype::F16, PACKED),
        of("tiny-opt", Dtype::F16, CACHE_PACKED),
        made(3, Dtype::F16, PACKED, wide),
        made(4, Dtype::F16, WHOLE, after),
    ] {
        let all = splits(subject.model.num_hidden_layers);
        let some = [all[1], all[2]];
        assert_eq!(
            subject.splits_change_nothing(&card, &some),
            0,
            "{}",
            subject.model.name
        );
    }
}

/// Where the GPU has all rows, it computes the very numbers of whole layers, in as many parts as they come in.
#[test]
fn rows_that_all_come_give_the_bits_of_whole_layers() {
    let Some(card) = FakeCard::new(Order::Random(13)) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = CpuOptions::new(dir.path());
    options.capture_logits = true;
    for (name, dtype, compression) in [
        ("tiny-opt", Dtype::F16, WHOLE),
        ("tiny-llama-3", Dtype::Bf16, WHOLE),
        ("tiny-llama", Dtype::F16, PACKED),
    ] {
        let subject = Subject::of(name, dtype, compression);
        let run = |split| subject.on(&card, &subject.plan(DEVICE, split, false), &options);
        let whole = run(None);
        let layers = subject.model.num_hidden_layers;
        let all_on_device = SplitLinears {
            layers_on_device: PerModule::from_fn(|_| layers),
            ..SplitLinears::even(0.5)
        };
        for split in [SplitLinears::even(1.0), all_on_device] {
            let found = run(Some(split));
            assert_eq!(found.tokens, whole.tokens, "{name}, {split:?}");
            assert_eq!(found.logits, whole.logits, "{name}, {split:?}");
        }
    }
}

/// Where tokens are given, logits are near those of the unsplit run, also where codes of a cache fall otherwise since the CPU does not
/// round its 4-bit weights before it multiplies.
#[test]
fn logits_are_near_those_of_the_unsplit_run() {
    let Some(card) = FakeCard::new(Order::Random(17)) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    for (name, dtype, compression, within) in [
        ("tiny-opt", Dtype::F16, ALL_PACKED, 0.08),
        ("tiny-llama-3", Dtype::F16, PACKED, 0.004),
        ("tiny-mistral", Dtype::Bf16, WHOLE, 0.04),
    ] {
        let subject = Subject::of(name, dtype, compression);
        let whole = subject.plan(DEVICE, None, false);
        let mut options = CpuOptions::new(dir.path());
        options.given = Some(subject.on(&card, &whole, &options).tokens.into());
        options.capture_logits = true;
        let whole = subject.on(&card, &whole, &options);
        let split = splits(subject.model.num_hidden_layers)[1];
        let plan = subject.plan(MIXED, Some(split), false);
        let found = subject.on(&card, &plan, &options);
        assert_eq!(found.tokens, whole.tokens, "{name}");
        let worst = off_by(&found, &whole);
        println!("{name}, {dtype:?}: logits off by {worst} of the largest");
        assert!(worst < within, "{name}, {dtype:?}: {worst}");
    }
}

/// A prompt with more tokens than a part converts at once.
#[test]
fn many_tokens_are_computed_some_at_a_time() {
    let Some(card) = FakeCard::new(Order::Random(14)) else {
        return;
    };
    let subject = Subject {
        sequences: 30,
        workload: workload(9, 2, 30),
        ..Subject::of("tiny-llama-3", Dtype::F16, WHOLE)
    };
    let split = SplitLinears {
        prefill_share: 0.6,
        ..SplitLinears::even(0.6)
    };
    assert_eq!(subject.splits_change_nothing(&card, &[split]), 0);
}

/// A plan in which all engines have work: half of the cache is on the host, where the CPU attends to it.
fn busy() -> (Subject, Plan) {
    let subject = Subject {
        sequences: 1,
        ..Subject::of("tiny-llama-3", Dtype::F16, WHOLE)
    };
    let split = SplitLinears {
        prefill_share: 0.4,
        ..SplitLinears::even(0.5)
    };
    let plan = subject.plan(MIXED, Some(split), true);
    (subject, plan)
}

#[test]
fn no_order_of_streams_changes_a_token() {
    let (subject, plan) = busy();
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let expected = execute(&plan, &*subject.source, &subject.prompts(), &options);
    let machine = plan.machine();
    let of = |kind| usize::from(machine.resource(kind, 0).expect("there").0);
    use ResourceKind::{D2h, Gpu, H2d};
    let held_back = [Gpu, H2d, D2h].map(|kind| Order::Last(of(kind)));
    for order in [Order::Random(7)].into_iter().chain(held_back) {
        let Some(card) = FakeCard::new(order) else {
            return;
        };
        let found = subject.on(&card, &plan, &options);
        assert_eq!(found.tokens, expected.tokens, "{order:?}");
    }
}

#[test]
fn streams_that_forget_to_wait_are_found() {
    let (subject, plan) = busy();
    let h2d = plan.machine().resource(ResourceKind::H2d, 0);
    let order = Order::Last(usize::from(h2d.expect("a link").0));
    let Some(card) = FakeCard::with(order, Fault::ForgetsWaits) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    // What was not there yet is a NaN, so that it may not come to an end at all.
    match subject.tried_on(&card, &plan, &CpuOptions::new(dir.path())) {
        Ok(found) => assert_ne!(unordered(&found.run, &card), Vec::<String>::new()),
        Err(error) => assert!(said(&error).contains("not all numbers"), "{}", said(&error)),
    }
}

/// The GPU computes with each part of the rows as it comes, the CPU with its own; and while they do, nothing is allocated, locked
/// or written, and who issues waits for no event but the end of copies down to pageable memory.
#[test]
fn each_computes_its_rows_and_nobody_waits_for_more_than_that() {
    let (subject, plan) = busy();
    let Some(card) = FakeCard::new(Order::Random(9)) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let found = subject.on(&card, &plan, &CpuOptions::new(dir.path()));
    let calls = card.calls();
    let pageable = found.run.tasks().filter(|(_, op, resource, _)| {
        let kind = found.run.machine.resources[*resource].kind;
        kind == ResourceKind::D2h && op.pageable_bytes().is_some()
    });
    assert_eq!(beside_launches(&calls), (Vec::new(), pageable.count()));
    let parts = |wanted: ResourceKind| {
        let of_kind = found.run.tasks().filter(|(_, op, resource, _)| {
            let is_part = matches!(op, Op::Linear { stage, .. } if *stage == Stage::Part);
            is_part && found.run.machine.resources[*resource].kind == wanted
        });
        of_kind.count()
    };
    let is_part = |call: &Call| match call {
        Call::Launch(launch) => launch.kernel == "to_stored_f16",
        _ => false,
    };
    let launched = calls.iter().filter(|(call, _)| is_part(call)).count();
    assert_eq!(launched, parts(ResourceKind::Gpu));
    let passes = 3 * plan.workload.gen_len as usize;
    let modules = 7 * plan.model.num_hidden_layers as usize * passes;
    assert_eq!(parts(ResourceKind::Cpu), modules);
    assert!(launched > modules, "rows come in parts");
}

/// Homes of rows stay pageable where the plan has them so: what is locked is what they pass through, and nothing else is copied from.
/// Straight from their homes they come from pageable memory, or from locked homes.
#[test]
fn rows_come_from_page_locked_staging() {
    let Some(card) = FakeCard::new(Order::Random(15)) else {
        return;
    };
    let (subject, plan) = busy();
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let h2d = plan.machine().resource(ResourceKind::H2d, 0);
    let h2d = usize::from(h2d.expect("a link").0);
    let run = |route, weights| {
        let mut plan = plan.clone();
        plan.policy.page_locked = PageLocked {
            weights,
            ..PageLocked::ALL
        };
        let split = plan.policy.split.as_mut().expect("a split");
        split.route = route;
        plan.capacity_bytes = footprint(&plan).expect("a policy");
        let tokens = subject.on(&card, &plan, &options).tokens;
        let (locked, pageable) = card.page_locked(h2d);
        (
            tokens,
            plan.capacity_bytes.host.0 as usize - locked,
            pageable,
        )
    };
    let homes = WeightPlacement::of(&plan);
    let homes = homes
        .blocks
        .iter()
        .map(|b| b.slab.host.align_up(PAGE_BYTES));
    let homes = homes.sum::<Bytes>().0 as usize;
    assert!(homes > 0);
    let (tokens, unlocked, pageable) = run(Route::Ahead, false);
    assert_eq!((unlocked, pageable), (homes, 0));
    let (direct, unlocked, pageable) = run(Route::Direct, false);
    assert_eq!((direct == tokens, unlocked), (true, homes));
    assert!(pageable > 0);
    let (direct, unlocked, pageable) = run(Route::Direct, true);
    assert_eq!((direct == tokens, unlocked, pageable), (true, 0, 0));
}
