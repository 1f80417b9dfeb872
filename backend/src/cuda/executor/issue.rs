//! A task becomes commands of a stream.

use std::cell::Cell as Shared;
use std::sync::Arc;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::machine::Machine;
use plimsoll_core::model::{ModelSpec, TensorRole, TensorSpec};
use plimsoll_core::program::{AttentionPart, Content, Op, Program, Stage, Strided};
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;

use super::beside::{Beside, Extent, RANGE_WORDS};
use super::ground::Ground;
use super::lanes::{Issue, events, streams_of};
use super::timing::{load, time};
use crate::cpu::CpuError;
use crate::cpu::engine::Engine;
use crate::cpu::error::TaskError;
use crate::cpu::memory::Operands;
use crate::cpu::turn::Turn;
use crate::cuda::launches::Range;
use crate::cuda::{Card, CopyRows, CudaError, Launch};
use crate::decoder::DecoderError;
use crate::dispatch::{Dispatch, Weights};

/// The event that is the zero of the clock.
pub(super) const ZERO: usize = 0;

/// The event after which the host may choose tokens.
pub(super) const CHOICE: usize = 1;

/// Behind the unified maximum: how many queries were computed again.
pub(crate) const RECOMPUTED_AT: u64 = 12;

/// The unified maximum of a run so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnifiedMaximum {
    /// Its range; none: scores are too wide apart for one, or none were measured.
    pub range: Option<Range>,
    /// Queries of which a score left it, computed again by the synchronised way.
    pub recomputed: u32,
}

/// What kernels take addresses and rows to be multiples of.
const ALIGNMENT: u64 = 16;

/// A GPU that computes one model, by a plan or for who asks.
#[derive(Debug)]
pub(crate) struct CardDevice {
    pub(crate) card: Arc<dyn Card>,
    pub(super) beside: Beside,
    pub(super) dispatch: Dispatch,
}

/// A plan's tasks on a GPU.
pub(crate) struct Planned {
    pub engine: Arc<Engine>,
    pub device: Arc<CardDevice>,
}

impl Issue for Planned {
    fn card(&self) -> &dyn Card {
        &*self.device.card
    }

    fn issue(&self, stream: usize, task: (&Program, usize)) -> Result<(), TaskError> {
        self.device.issue(&self.engine, stream, task)
    }

    fn ended(&self, task: (&Program, usize)) -> Result<(), TaskError> {
        self.engine.note_moved(task)
    }
}

/// A task on its way to a stream.
pub(super) struct Work<'a, G = Turn<'a>> {
    pub device: &'a CardDevice,
    pub turn: G,
    pub stream: usize,
    /// From where to where there is room for what lies between two products, and what is free of it.
    workspace: (u64, u64),
    scratch: Shared<(u64, u64)>,
}

/// A tensor on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tensor<'a> {
    pub address: u64,
    pub spec: &'a TensorSpec,
    pub packed: bool,
}

/// Some neighbouring sequences' activations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub address: u64,
    /// Its first token, of those of the batch.
    pub first: usize,
    pub tokens: usize,
}

impl CardDevice {
    /// Opens the card for a machine's streams, measures a model's products where that is asked for, and has those of so many rows
    /// loaded: before the arena takes its memory.
    pub(crate) fn open(
        card: &dyn Card,
        dispatch: &Dispatch,
        machine: &Machine,
        (model, dtype, compression): (&ModelSpec, Dtype, Compression),
        rows: &[usize],
    ) -> Result<(), CpuError> {
        card.open(machine.resources.len(), events(streams_of(machine)))?;
        let mut shapes = Weights::of_model_on_card_and_joined(model, dtype);
        if compression.weights {
            shapes = Weights::whole_then_in_groups(shapes);
        }
        dispatch.learn(shapes, |weights| time(card, dispatch, weights))?;
        Ok(load(card, dispatch, (model, dtype, rows))?)
    }

    /// Takes what lies beside the plan's arena on a card that is open.
    pub(crate) fn new(
        card: Arc<dyn Card>,
        dispatch: &Dispatch,
        engine: &Engine,
    ) -> Result<CardDevice, CpuError> {
        let batches = engine.rounds.iter().flat_map(|round| &round.batches);
        let prompts = batches.sum::<u32>() as usize;
        let host_chooses =
            engine.draws.is_some() || engine.given.is_some() || engine.capture_logits;
        let extent = Extent::of_plan(&engine.plan, &engine.decoder, prompts);
        let beside = Beside::new(&*card, &extent, host_chooses)?;
        Ok(CardDevice::with(card, dispatch, beside))
    }

    /// With what lies beside the arena.
    pub(super) fn with(card: Arc<dyn Card>, dispatch: &Dispatch, beside: Beside) -> CardDevice {
        CardDevice {
            card,
            beside,
            dispatch: dispatch.clone(),
        }
    }

    /// Sets the zero of the clock to about now.
    pub(crate) fn start_clock(&self) -> Result<(), CudaError> {
        // The first one has the way to the GPU paid for.
        for _ in 0..2 {
            self.card.record(0, ZERO)?;
            self.card.await_event(ZERO)?;
        }
        Ok(())
    }

    /// What was found of attention's scores. For when nothing runs.
    pub(crate) fn unified_maximum(&self) -> Result<UnifiedMaximum, CudaError> {
        let mut words = vec![0_u32; RANGE_WORDS];
        let to = words.as_mut_ptr() as u64;
        let copy = CopyRows::of(to, self.beside.at.range, 4 * RANGE_WORDS);
        self.card.copy(0, &copy)?;
        self.card.record(0, CHOICE)?;
        self.card.await_event(CHOICE)?;
        let [phi, low, high] = [0, 1, 2].map(|at| f32::from_bits(words[at]));
        let recomputed = words[RANGE_WORDS - 1];
        let range = Range { phi, low, high };
        Ok(UnifiedMaximum {
            range: (low < high).then_some(range),
            recomputed,
        })
    }

    /// Says how much padding is in front of each prompt.
    pub(crate) fn pad(&self, padding: &[u32]) -> Result<(), CpuError> {
        Ok(self.beside.pad(&*self.card, padding)?)
    }

    /// Gives a stream a task's commands.
    pub(super) fn issue(
        &self,
        engine: &Engine,
        stream: usize,
        (piece, index): (&Program, usize),
    ) -> Result<(), TaskError> {
        let task = &piece.tasks()[index];
        let operands = engine.operands((piece, index))?;
        match *piece.op_of(task) {
            Op::Barrier => Ok(()),
            Op::Move { .. } | Op::MoveParts { .. } => {
                let copy = copy_of(&operands, piece.op_of(task))?;
                Ok(self.card.copy(stream, &copy)?)
            }
            ref op => Work::of_plan(self, engine.turn(task.cell, operands)?, stream)?.compute(op),
        }
    }
}

/// The rows that a move copies.
fn copy_of(operands: &Operands<'_>, op: &Op) -> Result<CopyRows, TaskError> {
    let (to, from, bytes, rows) = match *op {
        Op::Move {
            bytes, from, to, ..
        } => {
            let one = |start| Strided {
                start,
                stride: bytes,
            };
            (one(to), one(from), bytes, 1)
        }
        Op::MoveParts {
            parts,
            part,
            from,
            to,
            ..
        } => (to, from, part, parts),
        _ => return Err(TaskError::NoOperand("bytes to move")),
    };
    let place = |index: usize, strided: Strided| {
        let span = strided.span(rows, bytes);
        operands.get(index)?.part(strided.start, span)?;
        Ok::<u64, TaskError>(operands.address(index)? + strided.start.0)
    };
    Ok(CopyRows {
        to: place(1, to)?,
        from: place(0, from)?,
        bytes: bytes.0 as usize,
        rows: rows as usize,
        to_pitch: to.stride.0 as usize,
        from_pitch: from.stride.0 as usize,
    })
}

impl<'a> Work<'a> {
    fn of_plan(
        device: &'a CardDevice,
        turn: Turn<'a>,
        stream: usize,
    ) -> Result<Work<'a>, TaskError> {
        let workspace = turn.find(|content| content == Content::Workspace);
        let workspace = match workspace {
            Some(index) => {
                let address = turn.operands.address(index)?;
                (address, address + turn.operands.get(index)?.bytes)
            }
            None => (0, 0),
        };
        Ok(Work::new((device, stream), turn, workspace))
    }

    fn compute(&self, op: &Op) -> Result<(), TaskError> {
        match *op {
            Op::Embed { position, .. } => self.embed(position),
            Op::Linear {
                stage, position, ..
            } => match stage {
                Stage::Project => self.project(position),
                Stage::Output => self.output(position),
                Stage::Mlp => self.mlp(position),
                Stage::Finish => {
                    self.output(position)?;
                    self.free_workspace();
                    self.mlp(position)
                }
                Stage::Head => self.head(position),
                _ => self.in_parts(op),
            },
            Op::Attention {
                part: AttentionPart::Whole,
                query_len,
                context_len,
                ..
            } => self.attend(query_len as usize, context_len as usize),
            _ => Err(TaskError::NoOperand("an operation that GPUs compute")),
        }
    }
}

impl<'a, G: Ground> Work<'a, G> {
    pub(super) fn new(
        (device, stream): (&'a CardDevice, usize),
        turn: G,
        workspace: (u64, u64),
    ) -> Work<'a, G> {
        Work {
            device,
            turn,
            stream,
            workspace,
            scratch: Shared::new(workspace),
        }
    }

    /// Makes all of the workspace free again: what was there is not needed any more.
    pub(super) fn free_workspace(&self) {
        self.scratch.set(self.workspace);
    }

    /// Room for so many elements of the stored type in the plan's workspace.
    pub(super) fn room(&self, elements: usize) -> Result<u64, TaskError> {
        let (free, end) = self.scratch.get();
        let start = free.next_multiple_of(ALIGNMENT);
        let bytes = elements as u64 * self.turn.dtype().size_bytes();
        if start + bytes > end {
            return Err(TaskError::PastEnd {
                bytes: Bytes(start + bytes - free),
                room: Bytes(end - free),
            });
        }
        self.scratch.set((start + bytes, end));
        Ok(start)
    }

    /// Room for a matrix of so many elements at the end of the workspace, until the next one's.
    pub(super) fn matrix_room(&self, elements: usize) -> Result<u64, TaskError> {
        let (free, end) = self.scratch.get();
        let bytes = elements as u64 * self.turn.dtype().size_bytes();
        let start = end.checked_sub(bytes).map(|it| it / ALIGNMENT * ALIGNMENT);
        let start = start.filter(|start| *start >= free);
        start.ok_or(TaskError::PastEnd {
            bytes: Bytes(bytes),
            room: Bytes(end - free),
        })
    }

    pub(super) fn launch(&self, launch: &Launch) -> Result<(), TaskError> {
        Ok(self.device.card.launch(self.stream, launch)?)
    }

    /// Copies elements of the stored type between places on the device.
    pub(super) fn copy(&self, to: u64, from: u64, elements: usize) -> Result<(), TaskError> {
        let bytes = elements * self.element();
        let copy = CopyRows::of(to, from, bytes);
        Ok(self.device.card.copy(self.stream, &copy)?)
    }

    /// Bytes of an element of the stored type.
    pub(super) fn element(&self) -> usize {
        self.turn.dtype().size_bytes() as usize
    }

    /// A tensor of the block at hand, if the model has it.
    pub(super) fn tensor(&self, role: TensorRole) -> Result<Option<Tensor<'_>>, TaskError> {
        self.turn.tensor(role)
    }

    /// A tensor that the stage cannot do without.
    pub(super) fn need(&self, role: TensorRole) -> Result<Tensor<'_>, TaskError> {
        let tensor = self.tensor(role)?;
        Ok(tensor.ok_or(DecoderError::NoTensor { role })?)
    }

    /// A vector's address; 0 where the model has none.
    pub(super) fn vector(&self, role: TensorRole) -> Result<u64, TaskError> {
        Ok(self.tensor(role)?.map_or(0, |tensor| tensor.address))
    }

    /// The batch's activations, in the order of its sequences.
    pub(super) fn hidden(&self, position: u32) -> Result<Vec<Piece>, TaskError> {
        self.turn.hidden(position)
    }

    /// How many tokens the batch has.
    pub(super) fn tokens(&self, position: u32) -> usize {
        self.turn.tokens(position)
    }

    /// Writes the positions of the batch's tokens in their texts, where they are not there already.
    pub(super) fn put_places(&self, position: u32) -> Result<(), TaskError> {
        let beside = &self.device.beside;
        let Some(launch) = self.turn.places(beside, position) else {
            return Ok(());
        };
        let mut placed = beside.placed();
        if placed.as_ref() != Some(&launch) {
            self.launch(&launch)?;
            *placed = Some(launch);
        }
        Ok(())
    }
}

impl Work<'_> {
    /// A buffer of queries and results of attention, if the task has it.
    pub(super) fn mid(&self, tier: Tier) -> Result<Option<u64>, TaskError> {
        let index = self.turn.mid(tier);
        index
            .map(|index| self.turn.operands.address(index))
            .transpose()
    }

    /// Where the padding of the batch's sequences is; 0 where there is none.
    pub(super) fn firsts(&self) -> u64 {
        let first = self.turn.prompts().start;
        self.device.beside.firsts_from(first)
    }
}
