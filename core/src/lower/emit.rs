//! Appends tasks, and orders them as the policy's overlap and barrier ask.

use std::cell::Cell as Spare;

use arrayvec::ArrayVec;

use crate::policy::Policy;
use crate::program::{
    Access, ArenaId, Arg, Buffer, BufferId, Cell, Content, Machine, NewTask, Op, Program,
    ResourceId, ResourceKind, TaskId,
};
use crate::tier::{PerTier, Tier};
use crate::units::Bytes;

/// How tasks of different resources are ordered, beyond what they need of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Only by need.
    Free,
    /// All resources meet after every GPU batch (FlexGen Algorithm 1, `synchronize()`).
    Barrier,
    /// Nothing moves while anything computes: moves between two computations run side by side, as where
    /// FlexGen's overlap is off.
    Serial,
}

impl Mode {
    pub(super) fn of(policy: &Policy) -> Mode {
        match (policy.overlap, policy.barrier) {
            (false, _) => Mode::Serial,
            (true, true) => Mode::Barrier,
            (true, false) => Mode::Free,
        }
    }
}

/// A task about to be emitted; grown operand by operand.
#[derive(Debug)]
pub(super) struct Draft {
    pub on: ResourceKind,
    pub op: Op,
    pub cell: Cell,
    /// Drafts are passed on by value a lot, so what is large in them is not.
    lists: Box<Lists>,
}

/// What a task waits for, touches, takes and gives.
#[derive(Debug, Default)]
struct Lists {
    deps: ArrayVec<TaskId, 16>,
    args: ArrayVec<Arg, 32>,
    takes: ArrayVec<BufferId, 8>,
    gives: ArrayVec<BufferId, 32>,
}

thread_local! {
    /// The lists of the last draft that was emitted, empty: a task more is then not an allocation more.
    static SPARE: Spare<Option<Box<Lists>>> = const { Spare::new(None) };
}

impl Lists {
    fn clear(&mut self) {
        self.deps.clear();
        self.args.clear();
        self.takes.clear();
        self.gives.clear();
    }
}

impl Draft {
    pub(super) fn new(on: ResourceKind, op: Op, cell: Cell) -> Draft {
        Draft {
            on,
            op,
            cell,
            lists: SPARE.take().unwrap_or_default(),
        }
    }

    /// Waits for these.
    pub(super) fn after(mut self, tasks: impl IntoIterator<Item = Option<TaskId>>) -> Draft {
        for task in tasks.into_iter().flatten() {
            if !self.lists.deps.contains(&task) {
                self.lists.deps.push(task);
            }
        }
        self
    }

    /// Has these operands.
    pub(super) fn with(
        mut self,
        access: Access,
        buffers: impl IntoIterator<Item = Option<BufferId>>,
    ) -> Draft {
        for buffer in buffers.into_iter().flatten() {
            self.lists.args.push(Arg { buffer, access });
        }
        self
    }

    /// Moves from this.
    pub(super) fn from(mut self, source: BufferId) -> Draft {
        let access = Access::Read;
        let source = Arg {
            buffer: source,
            access,
        };
        self.lists.args.insert(0, source);
        self
    }

    /// Brings these to life.
    pub(super) fn taking(mut self, buffers: impl IntoIterator<Item = Option<BufferId>>) -> Draft {
        self.lists.takes.extend(buffers.into_iter().flatten());
        self
    }

    /// Gives these back.
    pub(super) fn giving(mut self, buffers: impl IntoIterator<Item = Option<BufferId>>) -> Draft {
        self.lists.gives.extend(buffers.into_iter().flatten());
        self
    }
}

/// Writes the program, for one GPU after another.
#[derive(Debug)]
pub(super) struct Emitter {
    pub program: Program,
    mode: Mode,
    gpus: Vec<OnGpu>,
    /// The GPU that is written for.
    gpu: usize,
}

/// What serves a GPU, and how its tasks are ordered so far.
#[derive(Debug)]
struct OnGpu {
    resources: [Option<ResourceId>; ResourceKind::COUNT],
    arenas: PerTier<Option<ArenaId>>,
    computed: Option<TaskId>,
    barrier: Option<TaskId>,
    /// Since a barrier, or since the last computation, the last task of each resource, and behind them the
    /// last that came from another stage.
    since_barrier: [Option<TaskId>; ResourceKind::COUNT + 1],
}

const ARRIVAL: usize = ResourceKind::COUNT;

impl OnGpu {
    fn new(machine: &Machine, gpu: u8) -> OnGpu {
        OnGpu {
            resources: ResourceKind::ALL.map(|kind| machine.resource(kind, gpu)),
            arenas: PerTier::from_fn(|tier| machine.arena(tier, gpu)),
            computed: None,
            barrier: None,
            since_barrier: [None; ResourceKind::COUNT + 1],
        }
    }
}

impl Emitter {
    pub(super) fn new(machine: &Machine, mode: Mode) -> Emitter {
        let gpus = 0..machine.num_gpus() as u8;
        Emitter {
            program: Program::new(),
            mode,
            gpus: gpus.map(|gpu| OnGpu::new(machine, gpu)).collect(),
            gpu: 0,
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// What is written next is for this GPU.
    pub(super) fn turn_to(&mut self, gpu: usize) {
        self.gpu = gpu;
    }

    /// Declares a buffer in a tier of the GPU.
    pub(super) fn declare(
        &mut self,
        (tier, offset): (Tier, Bytes),
        bytes: Bytes,
        content: Content,
    ) -> BufferId {
        self.buffer((tier, offset), bytes, (content, false))
    }

    /// Declares a buffer that is there as long as the program.
    pub(super) fn declare_resident(
        &mut self,
        place: (Tier, Bytes),
        bytes: Bytes,
        content: Content,
    ) -> BufferId {
        self.buffer(place, bytes, (content, true))
    }

    fn buffer(
        &mut self,
        (tier, offset): (Tier, Bytes),
        bytes: Bytes,
        (content, resident): (Content, bool),
    ) -> BufferId {
        self.program.buffer(Buffer {
            // The machine of a plan has every tier for every GPU.
            arena: self.gpus[self.gpu].arenas[tier].unwrap_or(ArenaId(u8::MAX)),
            offset,
            bytes,
            content,
            resident,
        })
    }

    /// Appends a task.
    pub(super) fn emit(&mut self, draft: Draft) -> TaskId {
        let on = &mut self.gpus[self.gpu];
        let order = match self.mode {
            Mode::Free => None,
            Mode::Barrier => on.barrier,
            Mode::Serial => on.computed,
        };
        let computes = matches!(draft.on, ResourceKind::Gpu | ResourceKind::Cpu);
        let mut draft = draft.after([order]);
        if self.mode == Mode::Serial && computes {
            draft = draft.after(std::mem::take(&mut on.since_barrier));
        }
        let op = self.program.op(draft.op);
        let slot = draft.on as usize;
        let task = self.program.push(NewTask {
            op,
            // The machine of a plan has every kind that a lowering for it uses.
            resource: on.resources[slot].unwrap_or(ResourceId(u8::MAX)),
            cell: draft.cell,
            deps: &draft.lists.deps,
            args: &draft.lists.args,
            takes: &draft.lists.takes,
            gives: &draft.lists.gives,
        });
        draft.lists.clear();
        SPARE.set(Some(draft.lists));
        if self.mode == Mode::Serial && computes {
            on.computed = Some(task);
        } else {
            on.since_barrier[slot] = Some(task);
        }
        task
    }

    /// Says that a task of another GPU brings something to this one, which counts as its own.
    pub(super) fn arrives(&mut self, task: TaskId) {
        self.gpus[self.gpu].since_barrier[ARRIVAL] = Some(task);
    }

    /// Ends the step of one GPU batch: in [`Mode::Barrier`], all resources of the GPU meet.
    pub(super) fn end_step(&mut self, cell: Cell) {
        if self.mode != Mode::Barrier {
            return;
        }
        let met = std::mem::take(&mut self.gpus[self.gpu].since_barrier);
        let draft = Draft::new(ResourceKind::Sync, Op::Barrier, cell).after(met);
        let barrier = self.emit(draft);
        let on = &mut self.gpus[self.gpu];
        on.barrier = Some(barrier);
        on.since_barrier = [None; ResourceKind::COUNT + 1];
    }

    /// Hands over what was written and begins the next piece.
    pub(super) fn cut(&mut self) -> Program {
        let next = self.program.next_piece();
        std::mem::replace(&mut self.program, next)
    }
}
