//! A program: tasks on named resources, interpreted by every executor.
//!
//! A program is submitted in pieces. Task and buffer numbers run on through the pieces, so a task
//! may wait for one of an earlier piece that is still in flight. A program holds shapes, never times.

mod op;

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

pub use crate::machine::{Arena, ArenaId, Machine, Resource, ResourceId, ResourceKind};
use crate::placement::LayerPart;
use crate::roster::Roster;
use crate::split::Module;
use crate::tier::Tier;
use crate::units::Bytes;
pub use op::{AttentionPart, Gemm, Gemms, HostPages, Op, Span, Stage, Strided};

/// A task's number, in program order over all pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

/// A buffer's number over all pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// An operation's number in its piece: tasks of the same shape share one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u32);

/// What a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    /// The tensors of a block that live in the buffer's tier, one after another.
    Weights {
        /// Model block: 0 the embedding, then the layers, then the head.
        block: u16,
        /// Which of them: at home all.
        part: LayerPart,
        /// The tier they live in (where staged, not the tier of the buffer).
        home: Tier,
    },
    /// Rows of the KV cache of one layer and GPU batch: `[position][K|V][row][head_dim]`. At home they lie
    /// in one buffer or more, one after another.
    Cache {
        /// Model block.
        block: u16,
        /// GPU batch.
        batch: u16,
        /// The tier the rows live in.
        home: Tier,
        /// The position that the buffer begins with.
        start: u32,
    },
    /// Sequences of the activations of a GPU batch: `[sequence][position][hidden_size]`.
    Hidden {
        /// GPU batch.
        batch: u16,
        /// The tier the sequences live in.
        home: Tier,
    },
    /// Queries, then the attention's output in their place: `[sequence][token][heads * head_dim]`.
    /// In a decode pass these are rows of the cache, `[row][group * head_dim]`. For rows that the CPU
    /// attends to their new keys and values follow, `[K|V][row][head_dim]`; for rows whose values are
    /// collected, what [`Picked`](crate::sparse::Picked) says.
    Mid {
        /// GPU batch.
        batch: u16,
        /// `Host` for cache rows off the device that the CPU attends to or whose values it collects,
        /// else `Device`.
        home: Tier,
    },
    /// Token ids, `u32`, of a GPU batch.
    Tokens {
        /// GPU batch.
        batch: u16,
    },
    /// Prompt token ids, `u32`, `[sequence][position]`.
    Prompt {
        /// GPU batch.
        batch: u16,
    },
    /// Generated token ids, `u32`, `[pass][sequence]`.
    Generated {
        /// GPU batch.
        batch: u16,
    },
    /// What split linear layers read, `[token][k]` in f32.
    Input {
        /// GPU batch.
        batch: u16,
    },
    /// What a part of a split linear layer gives, `[token][row]` in f32, without its bias.
    Outputs {
        /// GPU batch.
        batch: u16,
        /// Which linear layer.
        module: Module,
        /// `Host` for the first rows, which the CPU computes; `Device` for the others.
        by: Tier,
    },
    /// The device's rows of a split linear layer, as stored: all, or in page-locked memory some.
    Rows {
        /// Model block.
        block: u16,
        /// Which linear layer.
        module: Module,
    },
    /// Scratch of the kernels.
    Workspace,
}

/// A region of an arena, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Where.
    pub arena: ArenaId,
    /// First byte in the arena.
    pub offset: Bytes,
    /// Length.
    pub bytes: Bytes,
    /// What for.
    pub content: Content,
    /// Whether it is filled before the program starts and stays to its end (weights, prompts).
    pub resident: bool,
}

/// How a task touches a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Overwrites it, or a part of it.
    Write,
    /// Reads and changes it.
    Update,
}

/// An operand of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arg {
    /// The buffer.
    pub buffer: BufferId,
    /// How it is touched.
    pub access: Access,
}

/// The square of FlexGen's figure 2 that a task belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cell {
    /// Which block of GPU batches, from 0 on.
    pub round: u32,
    /// Which pass over the layers in the round: 0 is prefill, then one a token.
    pub pass: u16,
    /// Model block: 0 the embedding, then the layers, then the head.
    pub block: u16,
    /// GPU batch in the round.
    pub batch: u16,
}

/// One task. Its lists are ranges in the piece's pools; see [`Program`]'s accessors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// What it does.
    pub op: OpId,
    /// Where it runs.
    pub resource: ResourceId,
    /// What it is a part of.
    pub cell: Cell,
    deps: u32,
    args: u32,
    takes: u32,
    gives: u32,
}

/// What a new task needs; see [`Program::push`].
#[derive(Debug, Clone, Copy)]
pub struct NewTask<'a> {
    /// What it does.
    pub op: OpId,
    /// Where it runs.
    pub resource: ResourceId,
    /// What it is a part of.
    pub cell: Cell,
    /// Tasks that must end before it starts.
    pub deps: &'a [TaskId],
    /// Operands, in the operation's order.
    pub args: &'a [Arg],
    /// Buffers that come to life when it starts.
    pub takes: &'a [BufferId],
    /// Buffers that are given back when it ends.
    pub gives: &'a [BufferId],
}

/// A piece of a program.
#[derive(Debug, Clone, Default)]
pub struct Program {
    first_task: u32,
    first_buffer: u32,
    tasks: Vec<Task>,
    ops: Vec<Op>,
    known_ops: FxHashMap<Op, OpId>,
    /// By operation, the one that came after it last.
    followed_by: Vec<OpId>,
    last_op: OpId,
    buffers: Vec<Buffer>,
    deps: Vec<TaskId>,
    args: Vec<Arg>,
    takes: Vec<BufferId>,
    gives: Vec<BufferId>,
    /// Who takes part, where the piece is an iteration of a serving system.
    roster: Option<Arc<Roster>>,
}

impl Program {
    /// An empty first piece.
    pub fn new() -> Program {
        Program::default()
    }

    /// An empty piece whose numbers begin with these.
    pub fn numbered(first_task: TaskId, first_buffer: BufferId) -> Program {
        Program {
            first_task: first_task.0,
            first_buffer: first_buffer.0,
            ..Program::default()
        }
    }

    /// An empty piece whose numbers run on from this one.
    pub fn next_piece(&self) -> Program {
        // Passes are nearly alike: room for as much again, and a little more, is never copied.
        fn room<T>(list: &[T]) -> Vec<T> {
            Vec::with_capacity(list.len() + list.len() / 16)
        }
        let mut known_ops = FxHashMap::default();
        known_ops.reserve(self.ops.len());
        Program {
            first_task: self.end_task().0,
            first_buffer: self.first_buffer + self.buffers.len() as u32,
            tasks: room(&self.tasks),
            ops: room(&self.ops),
            known_ops,
            followed_by: room(&self.followed_by),
            last_op: OpId(0),
            buffers: room(&self.buffers),
            deps: room(&self.deps),
            args: room(&self.args),
            takes: room(&self.takes),
            gives: room(&self.gives),
            roster: None,
        }
    }

    /// Says who takes part in an iteration of a serving system.
    pub fn set_roster(&mut self, roster: Roster) {
        self.roster = Some(Arc::new(roster));
    }

    /// Who takes part, where the piece is an iteration of a serving system and somebody has said so.
    pub fn roster(&self) -> Option<&Arc<Roster>> {
        self.roster.as_ref()
    }

    /// The number of its first task.
    #[inline]
    pub fn first_task(&self) -> TaskId {
        TaskId(self.first_task)
    }

    /// One past its last task.
    #[inline]
    pub fn end_task(&self) -> TaskId {
        TaskId(self.first_task + self.tasks.len() as u32)
    }

    /// The number of its first buffer.
    pub fn first_buffer(&self) -> BufferId {
        BufferId(self.first_buffer)
    }

    /// Its tasks in program order.
    #[inline]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The same, each with its number.
    pub fn numbered_tasks(&self) -> impl Iterator<Item = (TaskId, &Task)> + '_ {
        let numbered = self.tasks.iter().enumerate();
        numbered.map(|(index, task)| (TaskId(self.first_task().0 + index as u32), task))
    }

    /// Its distinct operations, by [`OpId`].
    #[inline]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The buffers it declares, from [`Program::first_buffer`] on.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The operation of a task of this piece.
    #[inline]
    pub fn op_of(&self, task: &Task) -> &Op {
        &self.ops[task.op.0 as usize]
    }

    /// Adds an operation, or finds the same one.
    pub fn op(&mut self, op: Op) -> OpId {
        let last = self.last_op.0 as usize;
        // GPU batches and layers are alike: mostly the same comes next again, and need not be looked up.
        if let Some(&guess) = self.followed_by.get(last)
            && self.ops[guess.0 as usize] == op
        {
            self.last_op = guess;
            return guess;
        }
        let id = *self.known_ops.entry(op).or_insert_with(|| {
            self.ops.push(op);
            let id = OpId(self.ops.len() as u32 - 1);
            self.followed_by.push(id);
            id
        });
        self.followed_by[last] = id;
        self.last_op = id;
        id
    }

    /// Declares a buffer.
    pub fn buffer(&mut self, buffer: Buffer) -> BufferId {
        self.buffers.push(buffer);
        BufferId(self.first_buffer + self.buffers.len() as u32 - 1)
    }

    /// Appends a task.
    pub fn push(&mut self, new: NewTask<'_>) -> TaskId {
        let task = Task {
            op: new.op,
            resource: new.resource,
            cell: new.cell,
            deps: self.deps.len() as u32,
            args: self.args.len() as u32,
            takes: self.takes.len() as u32,
            gives: self.gives.len() as u32,
        };
        self.deps.extend_from_slice(new.deps);
        self.args.extend_from_slice(new.args);
        self.takes.extend_from_slice(new.takes);
        self.gives.extend_from_slice(new.gives);
        self.tasks.push(task);
        TaskId(self.end_task().0 - 1)
    }

    fn range(&self, index: usize, start: impl Fn(&Task) -> u32, len: usize) -> Range<usize> {
        let from = start(&self.tasks[index]) as usize;
        let to = self.tasks.get(index + 1).map_or(len, |t| start(t) as usize);
        from..to
    }

    /// What its tasks wait for, task by task.
    pub fn deps(&self) -> &[TaskId] {
        &self.deps
    }

    /// What the `index`-th task of the piece waits for.
    #[inline]
    pub fn deps_at(&self, index: usize) -> &[TaskId] {
        &self.deps[self.range(index, |t| t.deps, self.deps.len())]
    }

    /// The operands of the `index`-th task of the piece.
    #[inline]
    pub fn args_at(&self, index: usize) -> &[Arg] {
        &self.args[self.range(index, |t| t.args, self.args.len())]
    }

    /// The buffers that the `index`-th task of the piece brings to life.
    #[inline]
    pub fn takes_at(&self, index: usize) -> &[BufferId] {
        &self.takes[self.range(index, |t| t.takes, self.takes.len())]
    }

    /// The buffers that the `index`-th task of the piece gives back.
    #[inline]
    pub fn gives_at(&self, index: usize) -> &[BufferId] {
        &self.gives[self.range(index, |t| t.gives, self.gives.len())]
    }
}
