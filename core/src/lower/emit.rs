//! Appends tasks, and orders them as the policy's overlap and barrier ask.

use arrayvec::ArrayVec;

use crate::policy::Policy;
use crate::program::{
    Access, Arg, BufferId, Cell, Machine, NewTask, Op, Program, ResourceId, ResourceKind, TaskId,
};

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
    args: ArrayVec<Arg, 16>,
    takes: ArrayVec<BufferId, 8>,
    gives: ArrayVec<BufferId, 16>,
}

impl Draft {
    pub(super) fn new(on: ResourceKind, op: Op, cell: Cell) -> Draft {
        Draft {
            on,
            op,
            cell,
            lists: Box::default(),
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

/// Writes the program.
#[derive(Debug)]
pub(super) struct Emitter {
    pub program: Program,
    mode: Mode,
    resources: [Option<ResourceId>; 9],
    computed: Option<TaskId>,
    barrier: Option<TaskId>,
    /// The last task of each resource since a barrier, or since the last computation.
    since_barrier: [Option<TaskId>; 9],
}

impl Emitter {
    pub(super) fn new(machine: &Machine, mode: Mode) -> Emitter {
        use ResourceKind::{Cpu, D2h, DiskRead, DiskWrite, Gpu, H2d, PeerLink, Pin, Sync};
        let kinds = [Gpu, H2d, D2h, DiskRead, DiskWrite, Cpu, Pin, Sync, PeerLink];
        Emitter {
            program: Program::new(),
            mode,
            resources: kinds.map(|kind| machine.resource(kind, 0)),
            computed: None,
            barrier: None,
            since_barrier: [None; 9],
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Appends a task.
    pub(super) fn emit(&mut self, draft: Draft) -> TaskId {
        let order = match self.mode {
            Mode::Free => None,
            Mode::Barrier => self.barrier,
            Mode::Serial => self.computed,
        };
        let computes = matches!(draft.on, ResourceKind::Gpu | ResourceKind::Cpu);
        let mut draft = draft.after([order]);
        if self.mode == Mode::Serial && computes {
            draft = draft.after(std::mem::take(&mut self.since_barrier));
        }
        let op = self.program.op(draft.op);
        let slot = draft.on as usize;
        let task = self.program.push(NewTask {
            op,
            // The machine of a plan has every kind that a lowering of one GPU uses.
            resource: self.resources[slot].unwrap_or(ResourceId(u8::MAX)),
            cell: draft.cell,
            deps: &draft.lists.deps,
            args: &draft.lists.args,
            takes: &draft.lists.takes,
            gives: &draft.lists.gives,
        });
        if self.mode == Mode::Serial && computes {
            self.computed = Some(task);
        } else {
            self.since_barrier[slot] = Some(task);
        }
        task
    }

    /// Ends the step of one GPU batch: in [`Mode::Barrier`], all resources meet.
    pub(super) fn end_step(&mut self, cell: Cell) {
        if self.mode != Mode::Barrier {
            return;
        }
        let met = std::mem::take(&mut self.since_barrier);
        let draft = Draft::new(ResourceKind::Sync, Op::Barrier, cell).after(met);
        self.barrier = Some(self.emit(draft));
        self.since_barrier = [None; 9];
    }

    /// Hands over what was written and begins the next piece.
    pub(super) fn cut(&mut self) -> Program {
        let next = self.program.next_piece();
        std::mem::replace(&mut self.program, next)
    }
}
