//! Streams over a long run and through failures, on a card without a GPU that computes nothing: nothing hangs, and times stay right
//! when the clock is set anew.
#![allow(unsafe_code)]

mod common;
mod cuda {
    pub mod card;
    pub mod emulator;
}

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use common::{plan, tiny_opt};
use cuda::card::{FakeCard, Fault};
use plimsoll_backend::cpu::{CpuExecutor, CpuOptions};
use plimsoll_backend::probe::PaceMeter;
use plimsoll_backend::weights::Synthetic;
use plimsoll_core::Dtype;
use plimsoll_core::executor::{ExecutionError, Executor, Until};
use plimsoll_core::lower::Lowering;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{
    Access, Arg, Buffer, BufferId, Cell, Content, HostPages, NewTask, Op, Program, ResourceKind,
    TaskId,
};
use plimsoll_core::tier::Tier;
use plimsoll_core::trace::Trace;
use plimsoll_core::units::Bytes;
use plimsoll_core::verify::Verifier;
use plimsoll_core::workload::Workload;

/// Pairs of copies: several times what streams are given ahead.
const PAIRS: u32 = 1000;

/// Longer than any of these takes.
const A_WHILE: Duration = Duration::from_secs(30);

/// Does something that might hang.
fn in_a_while<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, ended) = sync_channel(1);
    let thread = std::thread::spawn(move || done.send(work()));
    match ended.recv_timeout(A_WHILE) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(RecvTimeoutError::Disconnected) => {
            resume_unwind(thread.join().expect_err("it did not send"))
        }
    }
}

fn small_plan() -> Plan {
    let percent = [0.0, 100.0, 100.0, 0.0, 100.0, 0.0];
    let policy = Policy::from_percent(1, 1, percent).expect("a policy");
    let workload = Workload {
        prompt_len: 4,
        gen_len: 2,
        num_prompts: Some(1),
    };
    plan(&tiny_opt(), Dtype::F16, policy, workload)
}

/// Copies to the device and back, each behind the one before on the other stream.
fn to_and_fro(plan: &Plan) -> Program {
    let machine = plan.machine();
    let mut program = Program::new();
    let mut place = |tier: Tier, offset: u64| {
        program.buffer(Buffer {
            arena: machine.arena(tier, 0).expect("all tiers"),
            offset: Bytes(offset),
            bytes: Bytes(64),
            content: Content::Workspace,
            resident: true,
        })
    };
    let (host, device) = (place(Tier::Host, 0), place(Tier::Device, 0));
    let back = place(Tier::Host, 64);
    let op = program.op(Op::Move {
        bytes: Bytes(64),
        from: Bytes::ZERO,
        to: Bytes::ZERO,
        host: HostPages::Locked,
    });
    let arg = |buffer: BufferId, access| Arg { buffer, access };
    let mut last: Option<TaskId> = None;
    for _ in 0..PAIRS {
        for (kind, from, to) in [
            (ResourceKind::H2d, host, device),
            (ResourceKind::D2h, device, back),
        ] {
            last = Some(program.push(NewTask {
                op,
                resource: machine.resource(kind, 0).expect("a link"),
                cell: Cell::default(),
                deps: last.as_slice(),
                args: &[arg(from, Access::Read), arg(to, Access::Write)],
                takes: &[],
                gives: &[],
            }));
        }
    }
    Verifier::new(&machine).check(&program).expect("a program");
    program
}

/// Runs the copies on a card.
fn run(card: &Arc<FakeCard>) -> Result<Trace, ExecutionError> {
    let plan = small_plan();
    let lowering = Lowering::new(&plan).expect("it fits");
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        card: Some(Arc::clone(card) as _),
        whole_tiers: true,
        ..CpuOptions::new(dir.path())
    };
    let source = Synthetic { seed: 1 };
    let executor = CpuExecutor::new(&plan, lowering.placement(), &source, &options);
    let mut executor = executor.expect("an executor");
    executor.submit(Arc::new(to_and_fro(&plan)))?;
    executor.wait(Until::Idle)?;
    Ok(executor.trace().clone())
}

/// Once a run is long its times are told from a later event, which its stream must not use again meanwhile; where no task takes
/// long after that, the stream must get it back all the same.
#[test]
fn a_clock_that_is_set_anew_keeps_no_stream_waiting() {
    let leap = Fault::Leaps {
        after: 40,
        by_ms: 30_000,
    };
    let (card, trace) = in_a_while(move || {
        let card = FakeCard::idle_with(leap);
        let trace = run(&card).expect("it runs");
        (card, trace)
    });
    let stamps = card.stamps();
    let machine = small_plan().machine();
    let of = |kind| usize::from(machine.resource(kind, 0).expect("a link").0);
    let streams = [ResourceKind::H2d, ResourceKind::D2h].map(|kind| &stamps[of(kind)]);
    let mut latest = 0.0_f64;
    for (id, span) in trace.spans() {
        let (pair, way) = (id.0 as usize / 2, id.0 as usize % 2);
        let ended = (streams[way][pair].ended_ms - card.zero_ms()) / 1e3;
        assert!(
            (span.end.0 - ended).abs() < 1e-4,
            "{id:?}: {} and {ended}",
            span.end.0
        );
        assert!(
            span.start.0 <= span.end.0 && span.end.0 > latest - 1e-4,
            "{id:?}"
        );
        latest = span.end.0;
    }
    assert_eq!(trace.spans().count(), 2 * PAIRS as usize);
    assert!((30.0..60.0).contains(&latest), "{latest}");
}

/// On a clock that goes a thousand times faster, hardly a task goes by without setting it anew.
#[test]
fn a_clock_that_is_set_anew_all_the_time_is_right() {
    let (card, trace) = in_a_while(|| {
        let card = FakeCard::idle();
        let trace = run(&card).expect("it runs");
        (card, trace)
    });
    let last = trace.spans().last().expect("it ran").1.end.0;
    let d2h = small_plan().machine().resource(ResourceKind::D2h, 0);
    let stamps = &card.stamps()[usize::from(d2h.expect("a link").0)];
    let ended = (stamps[PAIRS as usize - 1].ended_ms - card.zero_ms()) / 1e3;
    assert!((last / ended - 1.0).abs() < 1e-4, "{last} and {ended}");
}

/// What fails on the device, what it refuses, and what panics behind the executor's back end the run with an error that names a
/// task; streams that are full by then, and wait for an event to be free, are let go of.
#[test]
fn a_task_that_fails_ends_the_run_and_nothing_hangs() {
    for fault in [
        Fault::FailsAt(1),
        Fault::FailsAt(600),
        Fault::RefusesAt(1),
        Fault::RefusesAt(700),
        Fault::PanicsAt(1),
        Fault::PanicsAt(900),
    ] {
        let ended = in_a_while(move || run(&FakeCard::idle_with(fault)).map(|_| ()));
        let Err(ExecutionError::Task { what, source, .. }) = ended else {
            panic!("{fault:?}: {ended:?}");
        };
        assert!(what.starts_with("move of 64 B on "), "{fault:?}: {what}");
        assert!(
            source.to_string().contains("as it was asked to"),
            "{fault:?}: {source}"
        );
    }
}

/// The links' pace is timed by copies of both kinds each way, on a card that is left without any of its memory; one that fails has
/// none.
#[test]
fn links_are_timed_where_they_are_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let meter = |card: &Arc<FakeCard>| {
        let options = CpuOptions {
            card: Some(Arc::clone(card) as _),
            ..CpuOptions::new(dir.path())
        };
        PaceMeter::new(&options).expect("memory")
    };
    let card = FakeCard::idle();
    let mut asked = meter(&card);
    assert_eq!(asked.now().links_s, None);
    asked.watch_links(true);
    for way in asked.now().links_s.expect("it was asked for") {
        assert!(way.page_locked > 0.0 && way.pageable > 0.0, "{way:?}");
    }
    let (locked, pageable) = card.page_locked(0);
    assert!(locked > 0 && pageable > 0, "{locked} {pageable}");
    assert_eq!(card.taken(), 0);
    asked.watch_links(false);
    assert_eq!(asked.now().links_s, None);
    let mut failing = meter(&FakeCard::idle_with(Fault::RefusesAt(3)));
    failing.watch_links(true);
    assert_eq!(failing.now().links_s, None);
}
