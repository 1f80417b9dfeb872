//! A program: tasks on named resources, interpreted by every executor.
//!
//! A program is submitted in pieces. Task and buffer numbers run on through the pieces, so a task
//! may wait for one of an earlier piece that is still in flight. A program holds shapes, never times.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

pub use crate::machine::{Arena, ArenaId, Machine, Resource, ResourceId, ResourceKind};
use crate::placement::LayerPart;
use crate::roster::Roster;
use crate::split::Module;
use crate::tier::Tier;
use crate::units::{Bytes, Flops};

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

/// `y[m, n] = x[m, k] * w[n, k]^T`, without `m`, which the operation states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Output features.
    pub n: u32,
    /// Input features.
    pub k: u32,
}

impl Gemm {
    /// Elements of its weights.
    pub fn weights(self) -> u64 {
        u64::from(self.n) * u64::from(self.k)
    }
}

/// Up to four matrix products that share `m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gemms {
    items: [Option<Gemm>; 4],
}

impl Gemms {
    /// Collects the products.
    ///
    /// # Panics
    /// With more than four.
    pub fn new(gemms: &[Gemm]) -> Gemms {
        let mut items = [None; 4];
        for (slot, gemm) in items.iter_mut().zip(gemms) {
            *slot = Some(*gemm);
        }
        assert!(
            gemms.len() <= items.len(),
            "a stage has at most four products"
        );
        Gemms { items }
    }

    /// Each product.
    pub fn iter(&self) -> impl Iterator<Item = Gemm> + '_ {
        self.items.iter().flatten().copied()
    }
}

/// Which part of a decoder a compute task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Normalisation and the query, key and value projections.
    Project,
    /// Output projection, residual, normalisation and the MLP.
    Finish,
    /// Output projection and residual: the first part of [`Stage::Finish`].
    Output,
    /// Normalisation, the MLP and its residual: the rest of it.
    Mlp,
    /// Final normalisation, the vocabulary projection and the choice of the next token.
    Head,
    /// Of a layer whose linear layers are split: the input of its projections, normalised.
    Normalise,
    /// Of such a layer: the attention's output as the input of its projection.
    Attended,
    /// The product of some rows of one linear layer: on the CPU the first, on the device the others.
    Part,
    /// Queries, keys and values of what parts gave: [`Stage::Project`] without its products.
    JoinProject,
    /// The residual of what parts gave, and the MLP's input: [`Stage::Output`] without its product.
    JoinOutput,
    /// The MLP's inner activations of what parts gave.
    JoinInner,
    /// The residual of what parts gave: the end of a layer.
    JoinMlp,
}

impl Stage {
    /// Parts of a layer whose products may have rates of their own.
    pub const RATED: [Stage; 2] = [Stage::Project, Stage::Finish];

    /// The part of a layer whose rates serve its products; none: those of any part.
    pub const fn rated_as(self) -> Option<Stage> {
        match self {
            Stage::Project => Some(Stage::Project),
            Stage::Finish | Stage::Output | Stage::Mlp => Some(Stage::Finish),
            _ => None,
        }
    }

    /// Whether it is of a layer whose linear layers are split.
    pub const fn is_of_split(self) -> bool {
        !matches!(
            self,
            Stage::Project | Stage::Finish | Stage::Output | Stage::Mlp | Stage::Head
        )
    }

    /// The name used in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Project => "project",
            Stage::Finish => "finish",
            Stage::Output => "output",
            Stage::Mlp => "mlp",
            Stage::Head => "head",
            Stage::Normalise => "normalise",
            Stage::Attended => "attended",
            Stage::Part => "part",
            Stage::JoinProject => "join_project",
            Stage::JoinOutput => "join_output",
            Stage::JoinInner => "join_inner",
            Stage::JoinMlp => "join_mlp",
        }
    }
}

/// Which part of an attention a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionPart {
    /// All of it.
    Whole,
    /// All of it but the copy of the cache that it reads, which was made before.
    Copied,
    /// Scores and weights over all keys, and which values are read.
    Scores,
    /// The product of the weights with the values that were picked.
    Values,
}

/// Parts of a buffer at a constant distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strided {
    /// Where the first begins.
    pub start: Bytes,
    /// From one's begin to the next's.
    pub stride: Bytes,
}

impl Strided {
    /// From the first's begin to the last's end, of so many parts.
    pub fn span(self, parts: u32, part: Bytes) -> Bytes {
        match parts {
            0 => Bytes::ZERO,
            _ => self.stride * u64::from(parts - 1) + part,
        }
    }
}

/// What a task does, with its real shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Moves bytes from the first argument to the second; the resource says over which link.
    Move {
        /// How many.
        bytes: Bytes,
        /// From where in the source.
        from: Bytes,
        /// To where in the destination.
        to: Bytes,
        /// Whether the host side is page-locked.
        page_locked: bool,
    },
    /// Moves equal parts from the first argument to the second: keys, or values, of many positions.
    MoveParts {
        /// How many.
        parts: u32,
        /// Bytes of each.
        part: Bytes,
        /// Where they are in the source.
        from: Strided,
        /// Where they go in the destination.
        to: Strided,
        /// Whether the host side is page-locked.
        page_locked: bool,
    },
    /// Collects the values that rows of the cache have picked, from where the cache is.
    Gather {
        /// Rows of the cache.
        rows: u32,
        /// Values of each.
        picks: u32,
        /// Bytes of a value as stored.
        head: Bytes,
    },
    /// Gathers embeddings.
    Embed {
        /// Tokens gathered.
        tokens: u32,
        /// Elements each.
        hidden_size: u32,
        /// Sequence position of the first token of each sequence.
        position: u32,
    },
    /// Matrix products with what stands around them.
    Linear {
        /// Which part of the decoder.
        stage: Stage,
        /// Tokens.
        m: u32,
        /// The products.
        gemms: Gemms,
        /// Cache position of the first new token of each sequence.
        position: u32,
        /// Whether the GPU batch before used the same weights, so that caches may still hold some.
        reused: bool,
        /// Whether the weights are in 4 bits.
        compressed: bool,
        /// New keys and values that are packed into 4 bits after; 0 where the cache is not.
        packed_elements: u64,
    },
    /// Causal attention of the newest tokens over the cache.
    Attention {
        /// Which part of it.
        part: AttentionPart,
        /// Rows of cache read: sequences times key/value heads.
        rows: u32,
        /// Query heads a row.
        group: u32,
        /// Elements a head.
        head_dim: u32,
        /// New tokens a sequence.
        query_len: u32,
        /// Tokens up to the newest, itself among them.
        context_len: u32,
        /// Tokens that a query sees at most, whose keys are read: all, unless a window slides.
        seen_len: u32,
        /// Tokens whose values are read: as many, unless attention is sparse.
        value_len: u32,
        /// Bytes a cache element, unpacked.
        element_bytes: u32,
        /// Whether the cache is unpacked from 4 bits first.
        compressed: bool,
    },
    /// Layers in a row over sequences that are at different places: an iteration of a serving system, or a part of it.
    Span(Span),
    /// Waits for all that came before.
    Barrier,
}

/// Layers in a row over a mixed batch: prompts that are computed whole beside sequences that get their next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// How many layers.
    pub layers: u16,
    /// The products of each.
    pub gemms: Gemms,
    /// Whether the weights are in 4 bits.
    pub compressed: bool,
    /// Whether the embedding stands in front.
    pub embeds: bool,
    /// The vocabulary projection, where the head stands behind.
    pub head: Option<Gemm>,
    /// Sequences, each of which gets a token.
    pub sequences: u32,
    /// Tokens computed.
    pub tokens: u32,
    /// Of them, tokens of prompts.
    pub prompt_tokens: u32,
    /// Pairs of such a token and one that it sees, itself among them.
    pub prompt_pairs: u64,
    /// Tokens whose keys and values the other sequences read.
    pub context_tokens: u64,
    /// Width of all queries of a token, in elements.
    pub q_size: u32,
    /// Width of all keys of a token, in elements.
    pub kv_size: u32,
    /// Bytes of an element.
    pub element_bytes: u32,
}

impl Span {
    /// Elements of all weights of its products.
    pub fn weights(&self) -> u64 {
        let of_layer: u64 = self.gemms.iter().map(Gemm::weights).sum();
        of_layer * u64::from(self.layers) + self.head_weights()
    }

    /// Those of the head.
    pub fn head_weights(&self) -> u64 {
        self.head.map_or(0, Gemm::weights)
    }

    /// Keys and values that sequences past their prompt read in a layer.
    pub fn cache_bytes(&self) -> Bytes {
        let elements = 2 * self.context_tokens * u64::from(self.kv_size);
        Bytes(elements * u64::from(self.element_bytes))
    }

    /// Operations of prompts' attention in a layer: scores and their product with the values, two a multiply-add.
    pub fn prompt_flops(&self) -> Flops {
        Flops(4.0 * self.prompt_pairs as f64 * f64::from(self.q_size))
    }
}

impl Op {
    /// Bytes that a move brings from one tier to another; none for other operations.
    pub fn moved_bytes(&self) -> Option<Bytes> {
        match *self {
            Op::Move { bytes, .. } => Some(bytes),
            Op::MoveParts { parts, part, .. } => Some(part * u64::from(parts)),
            _ => None,
        }
    }

    /// Keys and values of a row, in tokens, that an attention reads; none for other operations.
    fn tokens_read(&self) -> Option<(u32, u32)> {
        match *self {
            Op::Attention {
                part,
                seen_len,
                value_len,
                ..
            } => Some(match part {
                AttentionPart::Whole | AttentionPart::Copied => (seen_len, value_len),
                AttentionPart::Scores => (seen_len, 0),
                AttentionPart::Values => (0, value_len),
            }),
            _ => None,
        }
    }

    /// Elements of keys and values that an attention reads; none for other operations.
    fn cache_elements(&self) -> Option<u64> {
        let (keys, values) = self.tokens_read()?;
        match *self {
            Op::Attention { rows, head_dim, .. } => {
                let tokens = u64::from(keys) + u64::from(values);
                Some(u64::from(rows) * tokens * u64::from(head_dim))
            }
            _ => None,
        }
    }

    /// Bytes of keys and values that an attention reads, unpacked; none for other operations.
    pub fn cache_bytes(&self) -> Option<Bytes> {
        match *self {
            Op::Attention { element_bytes, .. } => {
                Some(Bytes(self.cache_elements()? * u64::from(element_bytes)))
            }
            _ => None,
        }
    }

    /// Elements that are unpacked from 4 bits, or packed into them; none where nothing is compressed.
    pub fn packed_elements(&self) -> u64 {
        match *self {
            Op::Linear {
                gemms,
                compressed,
                packed_elements,
                ..
            } => {
                let weights = gemms.iter().map(Gemm::weights);
                packed_elements + if compressed { weights.sum() } else { 0 }
            }
            Op::Attention {
                compressed: true, ..
            } => self.cache_elements().unwrap_or(0),
            Op::Span(ref it) if it.compressed => it.weights(),
            _ => 0,
        }
    }

    /// Of these, new elements of a cache, which are packed.
    pub fn newly_packed_elements(&self) -> u64 {
        match *self {
            Op::Linear {
                packed_elements, ..
            } => packed_elements,
            _ => 0,
        }
    }

    /// Bytes of a move whose end on the host is not page-locked. None for other operations.
    pub fn pageable_bytes(&self) -> Option<Bytes> {
        match *self {
            Op::Move {
                bytes,
                page_locked: false,
                ..
            } => Some(bytes),
            Op::MoveParts {
                parts,
                part,
                page_locked: false,
                ..
            } => Some(part * u64::from(parts)),
            _ => None,
        }
    }

    /// Operations of an attention's scores and of their product with the values, two a multiply-add.
    /// None for other operations.
    pub fn attention_flops(&self) -> Option<Flops> {
        let (keys, values) = self.tokens_read()?;
        match *self {
            Op::Attention {
                rows,
                group,
                head_dim,
                query_len,
                context_len,
                ..
            } => {
                let past = f64::from(context_len.saturating_sub(query_len));
                let queries = f64::from(query_len);
                // All queries together, each of which sees the tokens up to itself, at most so many.
                let seen = |most: u32| {
                    let most = f64::from(most);
                    let growing = (most - past).clamp(0.0, queries);
                    growing * (past + (growing + 1.0) / 2.0) + (queries - growing) * most
                };
                let heads = f64::from(rows) * f64::from(group);
                let seen = seen(keys) + seen(values);
                Some(Flops(2.0 * heads * f64::from(head_dim) * seen))
            }
            _ => None,
        }
    }
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
