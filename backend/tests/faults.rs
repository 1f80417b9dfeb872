//! What goes wrong is an error that says what and where, and leaves nothing behind.
#![allow(unsafe_code)] // an open file is swapped for one that cannot be read

mod common;

use std::error::Error;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{execute, fixture, plan, prompts, tiny_opt};
use plimsoll_backend::cpu::{CpuError, CpuExecutor, CpuOptions, Throttles};
use plimsoll_backend::weights::{Safetensors, Synthetic, WeightError, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::control::drive;
use plimsoll_core::executor::{ExecutionError, Executor, Until};
use plimsoll_core::lower::Lowering;
use plimsoll_core::model::{ModelSpec, TensorSpec, registry};
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{
    Access, Arg, AttentionPart, Buffer, BufferId, Cell, Content, HostPages, Machine, NewTask, Op,
    Program, ResourceKind,
};
use plimsoll_core::tier::Tier;
use plimsoll_core::units::{Bytes, BytesPerSecond};
use plimsoll_core::workload::Workload;

const WORKLOAD: Workload = Workload {
    prompt_len: 8,
    gen_len: 4,
    num_prompts: Some(4),
};

fn mixed() -> Plan {
    let percent = [30.0, 40.0, 30.0, 40.0, 30.0, 40.0];
    let policy = Policy::from_percent(2, 2, percent).expect("a policy");
    plan(&tiny_opt(), Dtype::F32, policy, WORKLOAD)
}

fn placement(plan: &Plan) -> WeightPlacement {
    Lowering::new(plan).expect("it fits").placement().clone()
}

/// Runs a plan with weights from a folder; the error that the first piece meets.
fn first_error(model: &ModelSpec, folder: &Path) -> String {
    let plan = plan(model, Dtype::F32, mixed().policy, WORKLOAD);
    let source = match Safetensors::open(folder, model) {
        Ok(source) => source,
        Err(error) => return error.to_string(),
    };
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let placement = placement(&plan);
    let mut executor = CpuExecutor::new(&plan, &placement, &source, &options).expect("an executor");
    let piece = Lowering::new(&plan)
        .expect("it fits")
        .next_pass()
        .expect("a pass");
    executor
        .submit(Arc::new(piece))
        .expect_err("damaged")
        .to_string()
}

fn copy_of_fixture() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let from = fixture("tiny-opt").join("model.safetensors");
    fs::copy(from, dir.path().join("model.safetensors")).expect("copied");
    dir
}

#[test]
fn a_truncated_checkpoint_is_named() {
    let dir = copy_of_fixture();
    let path = dir.path().join("model.safetensors");
    let length = fs::metadata(&path).expect("there").len();
    let file = fs::File::options()
        .write(true)
        .open(&path)
        .expect("writable");
    file.set_len(length - 1).expect("cut");
    let error = first_error(&tiny_opt(), dir.path());
    assert!(
        error.contains("model.safetensors: not a whole safetensors file"),
        "{error}"
    );
    assert!(error.contains("fetch it again"), "{error}");
    file.set_len(5).expect("cut");
    assert!(first_error(&tiny_opt(), dir.path()).contains("it has 5 bytes"));
}

#[test]
fn a_header_that_lies_about_its_length_is_refused() {
    let dir = copy_of_fixture();
    let path = dir.path().join("model.safetensors");
    let mut bytes = fs::read(&path).expect("read");
    bytes[..8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
    fs::write(&path, bytes).expect("written");
    let error = first_error(&tiny_opt(), dir.path());
    assert!(
        error.contains("its header claims 1152921504606846976"),
        "{error}"
    );
}

#[test]
fn a_header_of_something_else_is_refused_in_plain_words() {
    let dir = copy_of_fixture();
    for (header, said) in [
        ("no header", "its header is no JSON"),
        (
            r#"{"a": 1}"#,
            "its header does not give each tensor a dtype, a shape and data_offsets",
        ),
        (
            r#"{"a": {"dtype": "F32"}}"#,
            "its header does not give each tensor a dtype, a shape and data_offsets",
        ),
    ] {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        fs::write(dir.path().join("model.safetensors"), bytes).expect("written");
        let error = first_error(&tiny_opt(), dir.path());
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_folder_without_weights_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let error = first_error(&tiny_opt(), dir.path());
    assert!(error.contains("model.safetensors: No such file"), "{error}");
}

#[test]
fn a_missing_tensor_is_named() {
    let dir = copy_of_fixture();
    let path = dir.path().join("model.safetensors");
    let mut bytes = fs::read(&path).expect("read");
    let (from, to) = (b"layers.1.fc1.weight", b"layers.1.fcX.weight");
    let at = bytes
        .windows(from.len())
        .position(|w| w == from)
        .expect("the name");
    bytes[at..at + to.len()].copy_from_slice(to);
    fs::write(&path, bytes).expect("written");
    let error = first_error(&tiny_opt(), dir.path());
    assert!(
        error.contains("no tensor `model.decoder.layers.1.fc1.weight`"),
        "{error}"
    );
}

#[test]
fn weights_of_another_shape_are_named() {
    let model = ModelSpec {
        intermediate_size: 128,
        ..tiny_opt()
    };
    let error = first_error(&model, &fixture("tiny-opt"));
    assert!(
        error.contains("fc2.weight` has shape [64, 256], the model needs [64, 128]"),
        "{error}"
    );
}

#[test]
fn sharded_names_without_prefix_and_other_types_are_read() {
    let tensor = &tiny_opt().tensors(1)[2];
    let bf16: Vec<u8> = (0..tensor.elements())
        .flat_map(|i| [(i % 128) as u8, 0x3f])
        .collect();
    let dir = tempfile::tempdir().expect("a directory");
    let shape: Vec<usize> = vec![tensor.rows as usize, tensor.cols as usize];
    let name = tensor.name.to_string();
    let bare = name.strip_prefix("model.").expect("prefixed");
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, shape, &bf16);
    let file = safetensors::serialize([(bare, view.expect("a tensor"))], None).expect("a file");
    fs::write(dir.path().join("part-1.safetensors"), file).expect("written");
    let index = serde_json::json!({ "weight_map": { bare: "part-1.safetensors" } });
    fs::write(
        dir.path().join("model.safetensors.index.json"),
        index.to_string(),
    )
    .expect("written");
    let source = Safetensors::open(dir.path(), &tiny_opt()).expect("a checkpoint");
    let mut words = vec![0_u32; tensor.elements() as usize];
    source
        .load(tensor, Dtype::F32, bytemuck::cast_slice_mut(&mut words))
        .expect("there");
    assert_eq!(f32::from_bits(words[3]), f32::from_bits(0x3f03_0000));
    assert!(
        words
            .iter()
            .enumerate()
            .all(|(i, w)| *w == (0x3f00_0000 | ((i as u32 % 128) << 16)))
    );
}

#[test]
fn a_tier_that_is_too_small_is_named() {
    let mut plan = mixed();
    let placement = placement(&plan);
    plan.capacity_bytes.host = Bytes(plan.capacity_bytes.host.0 - 1);
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let source = Synthetic { seed: 1 };
    let error = CpuExecutor::new(&plan, &placement, &source, &options)
        .err()
        .expect("too small");
    assert!(
        error.to_string().starts_with("the host tier holds"),
        "{error}"
    );
}

#[test]
fn a_disk_directory_that_cannot_be_written_is_named() {
    let plan = mixed();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("a-file");
    fs::write(&file, "no directory").expect("written");
    let options = CpuOptions::new(&file);
    let source = Synthetic { seed: 1 };
    let error = CpuExecutor::new(&plan, &placement(&plan), &source, &options)
        .err()
        .expect("no directory");
    assert!(
        error.to_string().contains("a-file: no disk tier"),
        "{error}"
    );
    assert!(error.to_string().contains("--disk-dir"), "{error}");
}

#[test]
fn a_model_that_is_only_simulated_says_what_is_missing() {
    let model = registry::find("gpt-neox-20b").expect("registered");
    let mut plan = mixed();
    let weights = placement(&plan);
    plan.model = model;
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let source = Synthetic { seed: 1 };
    let error = CpuExecutor::new(&plan, &weights, &source, &options)
        .err()
        .expect("fused matrices");
    assert!(
        error
            .to_string()
            .contains("not executed: fused query, key and value matrices, a parallel residual"),
        "{error}"
    );
}

/// Weights that make every activation a NaN.
struct NotANumber;

impl WeightSource for NotANumber {
    fn load(&self, _: &TensorSpec, _: Dtype, into: &mut [u8]) -> Result<(), WeightError> {
        into.fill(0xff);
        Ok(())
    }
}

#[test]
fn a_task_that_fails_is_named_and_ends_the_run() {
    let plan = mixed();
    let mut lowering = Lowering::new(&plan).expect("it fits");
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let placement = lowering.placement().clone();
    let mut executor =
        CpuExecutor::new(&plan, &placement, &NotANumber, &options).expect("an executor");
    let texts = lowering.texts().clone();
    executor
        .set_prompts(&texts, &prompts(4, 8, 512))
        .expect("prompts");
    let error = drive(&mut lowering, &mut executor).expect_err("no number");
    let source = error.source().map(ToString::to_string);
    assert!(
        error
            .to_string()
            .contains("head on gpu, round 0, pass 0, block 4, batch 0"),
        "{error}"
    );
    assert!(
        error.to_string().contains("not a number"),
        "{error} {source:?}"
    );
    assert!(executor.generated(&texts).iter().all(Vec::is_empty));
    let later = executor.wait(Until::Idle).expect_err("stopped");
    assert!(later.to_string().contains("earlier failure"), "{later}");
}

/// The error of the first task that fails with weights that are no numbers.
fn not_a_number(dtype: Dtype, compression: Compression) -> String {
    let policy = Policy {
        compression,
        ..mixed().policy
    };
    let plan = plan(&tiny_opt(), dtype, policy, WORKLOAD);
    let mut lowering = Lowering::new(&plan).expect("it fits");
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let placement = lowering.placement().clone();
    let texts = lowering.texts().clone();
    let mut executor =
        CpuExecutor::new(&plan, &placement, &NotANumber, &options).expect("an executor");
    executor
        .set_prompts(&texts, &prompts(4, 8, 512))
        .expect("prompts");
    let error = drive(&mut lowering, &mut executor).expect_err("no number");
    error.to_string()
}

#[test]
fn what_is_no_number_is_not_hidden_in_4_bits() {
    for compression in Compression::ALL {
        let error = not_a_number(Dtype::F16, compression);
        assert!(error.contains("head on gpu, round 0, pass 0"), "{error}");
    }
}

#[test]
fn what_helps_against_what_is_no_number_depends_on_the_type() {
    for (dtype, words) in [
        (Dtype::F16, "past what f16 holds; run in bf16 or f32"),
        (Dtype::Bf16, "past what bf16 holds; get other weights"),
        (Dtype::F32, "past what f32 holds; get other weights"),
    ] {
        let error = not_a_number(dtype, Compression::default());
        assert!(
            error.contains("logit 0 of sequence 0 of the batch"),
            "{error}"
        );
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_compressed_plan_runs_in_less_and_in_exactly_what_it_says() {
    let all = Policy::from_percent(2, 2, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]).expect("a policy");
    let of = |compression| {
        let policy = Policy { compression, ..all };
        plan(&tiny_opt(), Dtype::F32, policy, WORKLOAD)
    };
    let whole = of(Compression::default()).capacity_bytes.device;
    let mut plan = of(Compression::of(true, true));
    // The room of the largest unpacked matrix is in it, which is much of so small a model.
    let packed = plan.capacity_bytes.device;
    assert!(packed.as_f64() < 0.6 * whole.as_f64(), "{packed} {whole}");

    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        whole_tiers: true,
        ..CpuOptions::new(dir.path())
    };
    let source = Synthetic { seed: 1 };
    let outcome = execute(&plan, &source, &prompts(4, 8, 512), &options);
    assert!(outcome.tokens.iter().all(|tokens| tokens.len() == 4));

    plan.capacity_bytes.device = Bytes(packed.0 - 1);
    let placement = WeightPlacement::of(&plan);
    let error = CpuExecutor::new(&plan, &placement, &source, &options);
    let error = error.err().expect("too small").to_string();
    assert!(error.starts_with("the device tier holds"), "{error}");
}

#[test]
fn prompts_that_were_not_planned_for_are_refused() {
    let plan = mixed();
    let lowering = Lowering::new(&plan).expect("it fits");
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions::new(dir.path());
    let source = Synthetic { seed: 1 };
    let mut executor =
        CpuExecutor::new(&plan, lowering.placement(), &source, &options).expect("an executor");
    let refused = |prompts: &[Vec<u32>], executor: &mut CpuExecutor<'_>| {
        executor
            .set_prompts(lowering.texts(), prompts)
            .expect_err("refused")
            .to_string()
    };
    assert!(refused(&prompts(3, 8, 512), &mut executor).starts_with("prompts: 3 given"));
    for length in [0, 9] {
        let said = refused(&prompts(4, length, 512), &mut executor);
        assert!(
            said.starts_with(&format!("tokens in a prompt: {length} given")),
            "{said}"
        );
    }
    assert!(
        refused(&vec![vec![512; 8]; 4], &mut executor).starts_with("the largest token id: 512")
    );
    let piece = Lowering::new(&plan)
        .expect("it fits")
        .next_pass()
        .expect("a pass");
    let error = executor.submit(Arc::new(piece)).expect_err("no prompts");
    let ExecutionError::Executor(error) = error else {
        panic!("{error}")
    };
    assert!(matches!(error.downcast_ref(), Some(CpuError::NoPrompts)));
}

#[test]
fn an_interruption_keeps_what_was_generated() {
    let workload = Workload {
        gen_len: 100,
        ..WORKLOAD
    };
    let plan = plan(&tiny_opt(), Dtype::F32, mixed().policy, workload);
    let mut lowering = Lowering::new(&plan).expect("it fits");
    let dir = tempfile::tempdir().expect("a directory");
    let interrupt = Arc::new(AtomicBool::new(false));
    let options = CpuOptions {
        interrupt: Arc::clone(&interrupt),
        ..CpuOptions::new(dir.path())
    };
    let source = Synthetic { seed: 1 };
    let placement = lowering.placement().clone();
    let texts = lowering.texts().clone();
    let mut executor = CpuExecutor::new(&plan, &placement, &source, &options).expect("an executor");
    executor
        .set_prompts(&texts, &prompts(4, 8, 512))
        .expect("prompts");
    let mut pieces = std::iter::from_fn(|| lowering.next_pass()).map(Arc::new);
    let first = pieces.next().expect("prefill");
    let end = plimsoll_core::program::TaskId(first.end_task().0 - 1);
    executor.submit(first).expect("taken");
    pieces.for_each(|piece| executor.submit(piece).expect("taken"));
    executor.wait(Until::Task(end)).expect("prefilled");
    interrupt.store(true, Ordering::Relaxed);
    let error = executor.wait(Until::Idle).expect_err("interrupted");
    assert!(matches!(error, ExecutionError::Interrupted), "{error}");
    let tokens = executor.generated(&texts);
    assert!(
        tokens.iter().all(|t| !t.is_empty() && t.len() < 100),
        "{tokens:?}"
    );
    assert!(executor.trace().span(end).is_some());
}

/// The nameless file that this process has open in a folder, as /proc names it.
fn disk_file(dir: &Path) -> PathBuf {
    let open = fs::read_dir("/proc/self/fd").expect("this process's files");
    let ours = open.filter_map(|entry| Some(entry.ok()?.path()));
    let mut ours = ours.filter(|path| fs::read_link(path).is_ok_and(|to| to.starts_with(dir)));
    ours.next().expect("the disk tier's file")
}

#[test]
fn a_disk_that_was_cut_is_named_with_the_task_that_reads_it() {
    let cut = |disk: &Path| {
        let file = fs::File::options().write(true).open(disk);
        file.expect("opened").set_len(0).expect("truncated");
    };
    assert_disk_failure_is_named(&cut, "was it truncated?");
}

#[test]
fn a_disk_that_cannot_be_read_is_named_with_the_task_that_reads_it() {
    // Every read of a folder fails, as every read of a broken disk does.
    let broken = |disk: &Path| {
        let number = disk.file_name().and_then(|name| name.to_str());
        let number: i32 = number.expect("a name").parse().expect("a number");
        let folder = fs::File::open("/").expect("a folder");
        // SAFETY: the number is that of the executor's open file, which stays open under it.
        let code = unsafe { libc::dup2(folder.as_raw_fd(), number) };
        assert_eq!(code, number);
    };
    assert_disk_failure_is_named(&broken, "read at byte");
}

/// Does `harm` to the disk tier of a run after its prefill.
fn assert_disk_failure_is_named(harm: &dyn Fn(&Path), expected: &str) {
    // Only weights are on the disk: what is stored there would make a cut file long again.
    let percent = [30.0, 40.0, 60.0, 40.0, 60.0, 40.0];
    let policy = Policy::from_percent(2, 2, percent).expect("a policy");
    let plan = plan(&tiny_opt(), Dtype::F32, policy, WORKLOAD);
    let mut lowering = Lowering::new(&plan).expect("it fits");
    let dir = tempfile::tempdir().expect("a directory");
    let (source, options) = (Synthetic { seed: 1 }, CpuOptions::new(dir.path()));
    let placement = lowering.placement().clone();
    let mut executor = CpuExecutor::new(&plan, &placement, &source, &options).expect("an executor");
    let prompts = prompts(4, 8, 512);
    executor
        .set_prompts(lowering.texts(), &prompts)
        .expect("prompts");
    let mut pieces = std::iter::from_fn(|| lowering.next_pass()).map(Arc::new);
    executor
        .submit(pieces.next().expect("prefill"))
        .expect("taken");
    // Between two pieces: a quick machine may have read all of one before it is harmed.
    executor.wait(Until::Idle).expect("prefilled");
    harm(&disk_file(dir.path()));
    executor
        .submit(pieces.next().expect("decode"))
        .expect("taken");
    let error = executor.wait(Until::Idle).expect_err("nothing to read");
    assert!(matches!(error, ExecutionError::Task { .. }), "{error}");
    let text = error.to_string();
    for words in [
        "on disk_read, round 0, pass 1",
        expected,
        &dir.path().display().to_string(),
    ] {
        assert!(text.contains(words), "`{words}` is not in: {text}");
    }
}

/// So slow that no copy over it ever ends.
const FROZEN: Throttles = Throttles {
    h2d: Some(BytesPerSecond(1e-9)),
    d2h: None,
    disk_read: Some(BytesPerSecond(1e-9)),
    disk_write: None,
    cpu: None,
};

/// More than stopping takes on a busy machine.
const PROMPT: Duration = Duration::from_secs(5);

/// A copy on each of two links, and an attention of more queries than positions, which no kernel computes.
fn copies_and_a_bad_task(machine: &Machine) -> Program {
    let mut program = Program::new();
    let mut page = |tier: Tier, offset: u64| {
        program.buffer(Buffer {
            arena: machine.arena(tier, 0).expect("a tier"),
            offset: Bytes(offset),
            bytes: Bytes(4096),
            content: Content::Workspace,
            resident: true,
        })
    };
    let sent = [page(Tier::Host, 0), page(Tier::Device, 0)];
    let read = [page(Tier::Disk, 0), page(Tier::Host, 4096)];
    let copy = program.op(Op::Move {
        bytes: Bytes(4096),
        from: Bytes(0),
        to: Bytes(0),
        host: HostPages::Locked,
    });
    let bad = program.op(Op::Attention {
        part: AttentionPart::Whole,
        rows: 1,
        group: 1,
        head_dim: 16,
        query_len: 2,
        context_len: 1,
        seen_len: 1,
        value_len: 1,
        element_bytes: 4,
        compressed: false,
    });
    let args = |[from, to]: [BufferId; 2]| {
        [(from, Access::Read), (to, Access::Write)].map(|(buffer, access)| Arg { buffer, access })
    };
    let tasks = [
        (ResourceKind::H2d, copy, args(sent).to_vec()),
        (ResourceKind::DiskRead, copy, args(read).to_vec()),
        (ResourceKind::Gpu, bad, Vec::new()),
    ];
    for (kind, op, args) in tasks {
        program.push(NewTask {
            op,
            resource: machine.resource(kind, 0).expect("a resource"),
            cell: Cell::default(),
            deps: &[],
            args: &args,
            takes: &[],
            gives: &[],
        });
    }
    program
}

#[test]
fn a_failure_stops_workers_that_would_be_busy_for_ever() {
    let plan = mixed();
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        throttles: FROZEN,
        ..CpuOptions::new(dir.path())
    };
    let source = Synthetic { seed: 1 };
    let placement = placement(&plan);
    let mut executor = CpuExecutor::new(&plan, &placement, &source, &options).expect("an executor");
    let piece = copies_and_a_bad_task(&Machine::single_gpu(plan.capacity_bytes));
    executor.submit(Arc::new(piece)).expect("taken");
    let begun = Instant::now();
    let error = executor.wait(Until::Idle).expect_err("it cannot be done");
    assert!(
        error
            .to_string()
            .starts_with("task 2 (attention on gpu, round 0"),
        "{error}"
    );
    // Where arithmetic is checked, the task panics.
    assert_eq!(
        error.to_string().contains("it panicked"),
        cfg!(debug_assertions)
    );
    assert!(
        executor.trace().spans().next().is_none(),
        "half a copy is none"
    );
    drop(executor);
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
}

#[test]
fn an_interruption_does_not_wait_for_a_frozen_link() {
    let plan = mixed();
    let mut lowering = Lowering::new(&plan).expect("it fits");
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        throttles: FROZEN,
        ..CpuOptions::new(dir.path())
    };
    let source = Synthetic { seed: 1 };
    let (placement, texts) = (lowering.placement().clone(), lowering.texts().clone());
    let mut executor = CpuExecutor::new(&plan, &placement, &source, &options).expect("an executor");
    executor
        .set_prompts(&texts, &prompts(4, 8, 512))
        .expect("prompts");
    let begun = Instant::now();
    let user = std::thread::spawn({
        let interrupt = Arc::clone(&options.interrupt);
        move || {
            std::thread::sleep(Duration::from_millis(100));
            interrupt.store(true, Ordering::Relaxed);
        }
    });
    let error = drive(&mut lowering, &mut executor).expect_err("interrupted");
    assert!(error.to_string().starts_with("interrupted"), "{error}");
    assert!(executor.generated(&texts).iter().all(Vec::is_empty));
    drop(executor);
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
    user.join().expect("the user is there");
}

#[test]
fn results_of_a_run_that_never_began_are_none() {
    let plan = mixed();
    let mut lowering = Lowering::new(&plan).expect("it fits");
    let dir = tempfile::tempdir().expect("a directory");
    let (source, options) = (Synthetic { seed: 1 }, CpuOptions::new(dir.path()));
    let (placement, texts) = (lowering.placement().clone(), lowering.texts().clone());
    let mut executor = CpuExecutor::new(&plan, &placement, &source, &options).expect("an executor");
    executor
        .set_prompts(&texts, &prompts(4, 8, 512))
        .expect("prompts");
    let piece = lowering.next_pass().expect("a pass");
    executor.submit(Arc::new(piece)).expect("taken");
    assert!(executor.generated(&texts).iter().all(Vec::is_empty));
}
