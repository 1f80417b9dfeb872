//! Waiting means the same to every executor: one controller that reacts, run by each of them.

use plimsoll_backend::cpu::{CpuExecutor, CpuOptions, Throttles};
use plimsoll_backend::weights::Synthetic;
use plimsoll_core::Dtype;
use plimsoll_core::control::{Controller, Decision, drive};
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::hardware::{HardwareProfile, ProfileError};
use plimsoll_core::lower::Lowering;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{
    Access, Arg, Buffer, BufferId, Cell, Content, HostPages, Machine, NewTask, Op, Program,
    ResourceKind, TaskId,
};
use plimsoll_core::tier::Tier;
use plimsoll_core::trace::Trace;
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};
use plimsoll_core::workload::Workload;
use plimsoll_sim::{CostModel, Simulator};

/// At this rate, the slow copy takes a second.
const H2D: BytesPerSecond = BytesPerSecond(1e6);
const SLOW: Bytes = Bytes(1_000_000);
const QUICK: Bytes = Bytes(64);

/// Before the slow copy ends, and well after it.
const EARLY: Seconds = Seconds(0.1);
const LATE: Seconds = Seconds(1.5);

/// Begins a slow copy, and a quick one beside it once it is [`EARLY`]; then waits until [`LATE`].
struct Reacting {
    machine: Machine,
    pieces: Vec<Program>,
    step: usize,
}

impl Reacting {
    fn new(machine: &Machine) -> Reacting {
        let mut first = Program::new();
        let places = [Tier::Host, Tier::Device].map(|tier| {
            [(0, SLOW), (SLOW.0, QUICK)].map(|(offset, bytes)| {
                first.buffer(Buffer {
                    arena: machine.arena(tier, 0).expect("a tier"),
                    offset: Bytes(offset),
                    bytes,
                    content: Content::Workspace,
                    resident: true,
                })
            })
        });
        let [host, device] = places;
        let copy = |program: &mut Program, kind, bytes, ends| {
            push_copy(program, machine, kind, (bytes, ends))
        };
        copy(&mut first, ResourceKind::H2d, SLOW, [host[0], device[0]]);
        let mut second = first.next_piece();
        copy(&mut second, ResourceKind::D2h, QUICK, [device[1], host[1]]);
        Reacting {
            machine: machine.clone(),
            pieces: vec![second, first],
            step: 0,
        }
    }
}

fn push_copy(
    program: &mut Program,
    machine: &Machine,
    kind: ResourceKind,
    (bytes, [from, to]): (Bytes, [BufferId; 2]),
) {
    let op = program.op(Op::Move {
        bytes,
        from: Bytes(0),
        to: Bytes(0),
        host: HostPages::Locked,
    });
    let arg = |buffer, access| Arg { buffer, access };
    program.push(NewTask {
        op,
        resource: machine.resource(kind, 0).expect("a link"),
        cell: Cell::default(),
        deps: &[],
        args: &[arg(from, Access::Read), arg(to, Access::Write)],
        takes: &[],
        gives: &[],
    });
}

impl Controller for Reacting {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn decide(&mut self, now: Seconds, trace: &Trace) -> Decision {
        let [slow, quick] = [0, 1].map(|task| trace.span(TaskId(task)));
        self.step += 1;
        match self.step {
            1 => Decision::Submit(Box::new(self.pieces.pop().expect("the slow copy"))),
            2 => Decision::Wait(Until::Time(EARLY)),
            3 => {
                assert!(now >= EARLY && slow.is_none(), "{now:?}, {slow:?}");
                Decision::Submit(Box::new(self.pieces.pop().expect("the quick copy")))
            }
            4 => Decision::Wait(Until::Task(TaskId(1))),
            5 => {
                let quick = quick.expect("waited for");
                assert!(quick.start >= EARLY && now >= quick.end);
                assert!(slow.is_none(), "it stays in flight: {slow:?}");
                Decision::Wait(Until::Time(LATE))
            }
            6 => {
                assert!(now >= LATE, "nothing ran any more at {now:?}");
                assert!(slow.is_some_and(|slow| slow.end < LATE), "{slow:?}");
                Decision::Wait(Until::Time(EARLY))
            }
            _ => {
                assert!(now >= LATE, "the clock went back to {now:?}");
                Decision::Done
            }
        }
    }
}

/// What every executor must do. Returns what it says about a wait that would never end.
fn waits_rightly(executor: &mut dyn Executor, machine: &Machine) -> String {
    let run = drive(&mut Reacting::new(machine), executor).expect("runs");
    assert_eq!(run.trace.spans().count(), 2);
    let never = executor
        .wait(Until::Task(TaskId(2)))
        .expect_err("nobody submitted it");
    executor.wait(Until::Task(TaskId(0))).expect("it goes on");
    let none = Until::Time(Seconds(f64::NAN));
    executor.wait(none).expect("no wait");
    never.to_string()
}

fn plan() -> Plan {
    let config = r#"{"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "ffn_dim": 64, "vocab_size": 128,
        "max_position_embeddings": 64, "word_embed_proj_dim": 64}"#;
    let percent = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
    let plan = Plan::given(
        ModelSpec::from_hf_config("small", config).expect("a model"),
        Dtype::F32,
        Workload {
            prompt_len: 4,
            gen_len: 2,
            num_prompts: None,
        },
        Policy::from_percent(1, 1, percent).expect("a policy"),
    );
    let mut plan = plan.with_room().expect("a policy");
    for tier in Tier::ALL {
        plan.capacity_bytes[tier] += Bytes(2 * SLOW.0);
    }
    plan
}

#[test]
fn every_executor_waits_for_tasks_and_times_alike() {
    let plan = plan();
    let machine = Machine::single_gpu(plan.capacity_bytes);

    let no_parent = |name: &str| Err(ProfileError::no_such_profile(name, []));
    let text = include_str!("golden/machine.toml");
    let profile = HardwareProfile::parse(text, "machine.toml", &no_parent).expect("a profile");
    let profile = profile.with_link_cap(Some(H2D), None);
    let mut simulator = Simulator::new(&machine, CostModel::new(&profile, plan.dtype));
    let simulated = waits_rightly(&mut simulator, &machine);

    let dir = tempfile::tempdir().expect("a folder");
    let options = CpuOptions {
        whole_tiers: true,
        throttles: Throttles {
            h2d: Some(H2D),
            ..Throttles::default()
        },
        ..CpuOptions::new(dir.path())
    };
    let (source, placement) = (
        Synthetic { seed: 1 },
        Lowering::new(&plan).expect("fits").placement().clone(),
    );
    let mut executor = CpuExecutor::new(&plan, &placement, &source, &options).expect("an executor");
    let executed = waits_rightly(&mut executor, &machine);

    assert_eq!(simulated, executed);
    assert!(
        executed.starts_with("task 2 was not submitted"),
        "{executed}"
    );
}
