//! What a task does: moves bytes, or computes a stage on the buffers it names.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use plimsoll_core::batch_shape::BatchShape;
use plimsoll_core::compression::{GROUP_BYTES, GROUP_ELEMENTS};
use plimsoll_core::lower::schedule::Round;
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::plan::Plan;
use plimsoll_core::program::{
    AttentionPart, Buffer, BufferId, Cell, Content, Op, Program, ResourceKind, Stage,
};
use plimsoll_core::sparse::{DENSE, Picked};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;

use super::error::TaskError;
use super::memory::{Buffers, Memory, Operands};
use super::texts::Results;
use super::turn::Turn;
use super::worker::{Held, Work};
use super::{CapturedLogits, Draws, Throttles};
use crate::cuda::launches::NO_TOKEN;
use crate::decoder::{
    Batch, BlockTensors, CachePart, Choice, Decoder, NewCachePart, Padding, Sight, Split, SplitMut,
};
use crate::tiers::{Pace, copy};

/// Everything that tasks need and that does not change while they run.
#[derive(Debug)]
pub(crate) struct Engine {
    pub memory: Memory,
    pub decoder: Decoder,
    pub plan: Plan,
    pub placement: WeightPlacement,
    pub rounds: Vec<Round>,
    pub throttles: Throttles,
    pub draws: Option<Draws>,
    /// As many answers as prompts, each of as many tokens as are generated.
    pub given: Option<Arc<[Vec<u32>]>>,
    pub capture_logits: bool,
    /// Whether the device is a GPU: then the CPU has the decoder's threads.
    pub on_card: bool,
    /// Padding in front of each text, by round and GPU batch.
    pub padding: RwLock<Vec<Vec<Arc<[u32]>>>>,
    pub buffers: RwLock<Buffers>,
    pub logits: Mutex<Vec<CapturedLogits>>,
    pub results: Mutex<Results>,
}

impl Engine {
    /// The operands of a task whose turn it is, and of nobody else.
    pub(crate) fn operands(
        &self,
        (piece, index): (&Program, usize),
    ) -> Result<Operands<'_>, TaskError> {
        let buffers = self.buffers.read().unwrap_or_else(PoisonError::into_inner);
        let args = piece.args_at(index);
        // SAFETY: this is the task's turn in a program that was verified; see `Memory::read`.
        #[allow(unsafe_code)]
        unsafe {
            Operands::new(&self.memory, &buffers, args)
        }
    }

    /// A task of a cell with its operands.
    pub(crate) fn turn<'a>(
        &'a self,
        cell: Cell,
        operands: Operands<'a>,
    ) -> Result<Turn<'a>, TaskError> {
        Ok(Turn {
            engine: self,
            cell,
            operands,
            shape: self.shape(cell)?,
            padding: self.padding(cell),
        })
    }

    /// What a product reads of weights, as they are stored.
    pub(super) fn weight_bytes(&self, op: &Op) -> Bytes {
        let Op::Linear {
            gemms, compressed, ..
        } = op
        else {
            return Bytes::ZERO;
        };
        let elements: u64 = gemms.iter().map(|g| u64::from(g.n) * u64::from(g.k)).sum();
        Bytes(match compressed {
            true => elements / GROUP_ELEMENTS * GROUP_BYTES,
            false => elements * self.plan.dtype.size_bytes(),
        })
    }

    fn shape(&self, cell: Cell) -> Result<BatchShape, TaskError> {
        let round = self.rounds.get(cell.round as usize);
        let sequences = round.and_then(|round| round.batches.get(cell.batch as usize));
        let sequences = *sequences.ok_or(TaskError::NoOperand("a GPU batch of the plan"))?;
        Ok(BatchShape::of(&self.plan, sequences))
    }

    /// The padding of a cell's batch; empty where no prompts were set.
    fn padding(&self, cell: Cell) -> Arc<[u32]> {
        let padding = self.padding.read().unwrap_or_else(PoisonError::into_inner);
        let round = padding.get(cell.round as usize);
        let batch = round.and_then(|round| round.get(cell.batch as usize));
        batch.cloned().unwrap_or_default()
    }

    /// Remembers results that were moved to the host; a batch's come token by token.
    pub(crate) fn note_result(
        &self,
        target: Option<BufferId>,
        operands: &Operands<'_>,
        moved: &[u8],
    ) {
        if let (Some(id), Ok(operand)) = (target, operands.get(1))
            && matches!(operand.content, Content::Generated { .. })
        {
            let ids = moved.as_chunks().0.iter();
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            results.add(id, ids.map(|id| u32::from_le_bytes(*id)));
        }
    }

    /// Remembers results that a GPU's task moved to the host, and refuses those that are none: what it chose where no
    /// number was left.
    pub(crate) fn note_moved(&self, (piece, index): (&Program, usize)) -> Result<(), TaskError> {
        let task = &piece.tasks()[index];
        let Op::Move { bytes, to, .. } = *piece.op_of(task) else {
            return Ok(());
        };
        let operands = self.operands((piece, index))?;
        if !matches!(operands.get(1)?.content, Content::Generated { .. }) {
            return Ok(());
        }
        let moved = operands.write_part(1, to, bytes)?;
        let tokens = moved.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id));
        if let Some(sequence) = tokens.enumerate().find(|(_, id)| *id == NO_TOKEN) {
            return Err(TaskError::NotANumber {
                sequence: sequence.0,
                dtype: self.plan.dtype,
            });
        }
        let target = piece.args_at(index).get(1).map(|arg| arg.buffer);
        self.note_result(target, &operands, moved);
        Ok(())
    }

    /// Elements of queries of a row of the cache.
    pub(crate) fn row_elements(&self) -> usize {
        let model = &self.plan.model;
        (model.num_attention_heads / model.num_key_value_heads * model.head_dim) as usize
    }
}

impl Work for Engine {
    fn run(
        &self,
        (piece, index): (&Program, usize),
        kind: ResourceKind,
        turn: Held<'_>,
    ) -> Result<Option<Instant>, TaskError> {
        let op = piece.op_of(&piece.tasks()[index]);
        let rate = self.throttles.of(kind, op);
        let pace = rate.map(|rate| Pace::begin(rate, turn.is_over).since(turn.since));
        self.work((piece, index), kind, pace.as_ref())?;
        let bytes = op.moved_bytes().unwrap_or_else(|| self.weight_bytes(op));
        let held = pace.filter(|_| bytes > Bytes::ZERO);
        Ok(held.and_then(|pace| pace.due(bytes)))
    }
}

impl Engine {
    /// Does a task, at a pace where there is one.
    fn work(
        &self,
        (piece, index): (&Program, usize),
        kind: ResourceKind,
        pace: Option<&Pace<'_>>,
    ) -> Result<(), TaskError> {
        let task = &piece.tasks()[index];
        let args = piece.args_at(index);
        let operands = self.operands((piece, index))?;
        let op = piece.op_of(task);
        if let Op::Move {
            bytes, from, to, ..
        } = *op
        {
            // Beside a GPU the CPU's own copies have the threads that would else emulate the device.
            let with_all = kind == ResourceKind::Cpu && self.on_card && pace.is_none();
            let team = with_all.then_some(&self.decoder);
            let moved = make_move(&operands, (pace, team), (bytes, from, to))?;
            self.note_result(args.get(1).map(|arg| arg.buffer), &operands, moved);
            return Ok(());
        }
        if matches!(op, Op::MoveParts { .. }) {
            return move_parts(&operands, pace, op);
        }
        if *op == Op::Barrier {
            return Ok(());
        }
        let turn = self.turn(task.cell, operands)?;
        match *op {
            Op::Embed { position, .. } => turn.embed(position),
            Op::Linear {
                stage, position, ..
            } => {
                turn.linear((stage, position), (op, kind), pace)?;
                let ends = |pace: &Pace<'_>| pace.end(self.weight_bytes(op));
                Ok(pace.map_or(Ok(()), ends)?)
            }
            Op::Attention { .. } => turn.attention(op, kind),
            Op::Gather { rows, picks, .. } => turn.gather(rows, picks),
            Op::Span(_) => Err(TaskError::NotExecuted("iterations of a serving system")),
            Op::Move { .. } | Op::MoveParts { .. } | Op::Barrier => Ok(()),
        }
    }
}

/// Returns what now is in the second operand, where that is memory.
fn make_move<'m>(
    operands: &Operands<'m>,
    (pace, team): (Option<&Pace<'_>>, Option<&Decoder>),
    (bytes, from, to): (Bytes, Bytes, Bytes),
) -> Result<&'m [u8], TaskError> {
    let (source, target) = (operands.get(0)?, operands.get(1)?);
    match (source.tier, target.tier) {
        (Tier::Disk, Tier::Disk) => Err(TaskError::NoLink {
            from: source.tier,
            to: target.tier,
        }),
        (Tier::Disk, _) => {
            let at = source.part(from, bytes)?.offset;
            let into = operands.write_part(1, to, bytes)?;
            operands.disk(0)?.read_at(at, into)?;
            pace.map_or(Ok(()), |pace| pace.end(bytes))?;
            Ok(into)
        }
        (_, Tier::Disk) => {
            let at = target.part(to, bytes)?.offset;
            let from = operands.read_part(0, from, bytes)?;
            operands.disk(1)?.write_at(at, from)?;
            pace.map_or(Ok(()), |pace| pace.end(bytes))?;
            Ok(&[])
        }
        _ => {
            let from = operands.read_part(0, from, bytes)?;
            let into = operands.write_part(1, to, bytes)?;
            match team {
                Some(team) => team.copy(from, into)?,
                None => copy(from, into, pace)?,
            }
            Ok(into)
        }
    }
}

fn move_parts(operands: &Operands<'_>, pace: Option<&Pace<'_>>, op: &Op) -> Result<(), TaskError> {
    let Op::MoveParts {
        parts,
        part,
        from,
        to,
        ..
    } = *op
    else {
        return Err(TaskError::NoOperand("parts to move"));
    };
    let source = operands.read_part(0, from.start, from.span(parts, part))?;
    let target = operands.write_part(1, to.start, to.span(parts, part))?;
    let mut done = Bytes::ZERO;
    for index in 0..parts as usize {
        let [from_at, to_at] = [from, to].map(|s| index * s.stride.0 as usize);
        let length = part.0 as usize;
        let into = &mut target[to_at..to_at + length];
        into.copy_from_slice(&source[from_at..from_at + length]);
        done += part;
        pace.map_or(Ok(()), |pace| pace.keep(done))?;
    }
    Ok(pace.map_or(Ok(()), |pace| pace.end(done))?)
}

impl<'a> Turn<'a> {
    /// What a decode step sees, by what its operation says.
    fn sight(&self, context_len: u32, (seen_len, value_len): (u32, u32)) -> Sight<'_> {
        Sight {
            context_len: context_len as usize,
            share: match value_len < seen_len {
                true => self.engine.plan.policy.sparse_attention,
                false => DENSE,
            },
            padding: Padding(&self.padding),
        }
    }

    /// The tensors of the cell's block.
    pub(super) fn tensors(&self) -> Result<BlockTensors<'a>, TaskError> {
        let block = self.cell.block;
        let placed = self.engine.placement.blocks.get(block as usize);
        let weights = placed.ok_or(TaskError::NoOperand("a block of the model"))?;
        let (mut slabs, mut starts) = (PerTier::default(), PerTier::default());
        for (index, operand) in self.operands.all().iter().enumerate() {
            match operand.content {
                Content::Weights {
                    block: of,
                    part,
                    home,
                } if of == block => {
                    slabs[home] = Some(self.operands.read(index)?);
                    starts[home] = weights.span(part, home).start;
                }
                _ => {}
            }
        }
        Ok(BlockTensors {
            weights,
            slabs,
            starts,
            dtype: self.engine.plan.dtype,
            compression: self.engine.plan.policy.compression,
        })
    }

    pub(super) fn hidden(&self, batch: Batch<'_>) -> Result<Split<'a>, TaskError> {
        let mut split = Split::default();
        for (index, elements) in self.hidden_parts(batch) {
            let index = index.ok_or(TaskError::NoOperand("a buffer of activations"))?;
            split.push(self.operands.read(index)?, elements, self.engine.plan.dtype)?;
        }
        Ok(split)
    }

    pub(super) fn hidden_mut(&self, batch: Batch<'_>) -> Result<SplitMut<'a>, TaskError> {
        let mut split = SplitMut::default();
        for (index, elements) in self.hidden_parts(batch) {
            let index = index.ok_or(TaskError::NoOperand("a buffer of activations"))?;
            split.push(
                self.operands.write(index)?,
                elements,
                self.engine.plan.dtype,
            )?;
        }
        Ok(split)
    }

    fn cache_parts(&self) -> Result<Vec<CachePart<'a>>, TaskError> {
        let mut parts = Vec::new();
        for tier in Tier::ALL {
            let pages = self.cache(tier);
            let pages = pages.iter().map(|(page, _)| self.operands.read(*page));
            let pages = pages.collect::<Result<Vec<_>, TaskError>>()?;
            if !pages.is_empty() {
                parts.push(CachePart {
                    rows: self.rows_in(tier),
                    record_bytes: self.record_bytes(tier),
                    pages,
                });
            }
        }
        Ok(parts)
    }

    /// The parts of the cache with the tokens from position `first` on to be written: the last page of
    /// each is.
    fn new_cache_parts(&self, first: usize) -> Result<Vec<NewCachePart<'a>>, TaskError> {
        let mut parts = Vec::new();
        for tier in Tier::ALL {
            let pages = self.cache(tier);
            let Some((&(newest, start), before)) = pages.split_last() else {
                continue;
            };
            let before = before.iter().map(|(page, _)| self.operands.read(*page));
            parts.push(NewCachePart {
                rows: self.rows_in(tier),
                record_bytes: self.record_bytes(tier),
                first: first - start as usize,
                bytes: self.operands.write(newest)?,
                before: before.collect::<Result<_, TaskError>>()?,
            });
        }
        Ok(parts)
    }

    fn embed(&self, position: u32) -> Result<(), TaskError> {
        let batch = self.batch(position);
        let ids = self.need("a buffer of token ids", |content| {
            matches!(content, Content::Prompt { .. } | Content::Tokens { .. })
        })?;
        let ids: Vec<u32> = self
            .operands
            .read(ids)?
            .as_chunks()
            .0
            .iter()
            .map(|id| u32::from_le_bytes(*id))
            .collect();
        let mut hidden = self.hidden_mut(batch)?;
        Ok(self
            .engine
            .decoder
            .embed(&self.tensors()?, batch, &ids, &mut hidden)?)
    }

    /// A stage of a layer, or of one whose linear layers are split.
    fn linear(
        &self,
        (stage, position): (Stage, u32),
        (op, kind): (&Op, ResourceKind),
        pace: Option<&Pace<'_>>,
    ) -> Result<(), TaskError> {
        match stage {
            Stage::Project => self.project(position),
            Stage::Finish | Stage::Output => self.finish(position, stage),
            Stage::Mlp => self.mlp(position),
            Stage::Head => self.head(position),
            _ => self.in_parts((op, kind), pace),
        }
    }

    fn project(&self, position: u32) -> Result<(), TaskError> {
        let batch = self.batch(position);
        let hidden = self.hidden(batch)?;
        let (mut queries, mut parts) = self.projected(batch)?;
        let decoder = &self.engine.decoder;
        Ok(decoder.project(&self.tensors()?, batch, &hidden, &mut queries, &mut parts)?)
    }

    /// Where queries, keys and values go.
    pub(super) fn projected(
        &self,
        batch: Batch<'_>,
    ) -> Result<(SplitMut<'a>, Vec<NewCachePart<'a>>), TaskError> {
        let dtype = self.engine.plan.dtype;
        let mut queries = SplitMut::default();
        let elements = self.mid_elements(batch);
        if let Some(index) = self.mid(Tier::Device) {
            queries.push(self.operands.write(index)?, elements, dtype)?;
        }
        let mut parts = self.new_cache_parts(batch.position)?;
        if let Some(index) = self.mid(Tier::Host) {
            let rows = self.rows_off_device();
            let elements = rows * self.engine.row_elements();
            let bytes = self.operands.write(index)?;
            let split = (elements * dtype.size_bytes() as usize).min(bytes.len());
            let (bytes, new) = bytes.split_at_mut(split);
            queries.push(bytes, elements, dtype)?;
            let first_row = self.rows_in(Tier::Host).start;
            // Otherwise the device has a working copy of the cache, among the parts.
            if self.engine.plan.policy.cpu_attention {
                parts.push(NewCachePart {
                    rows: first_row..first_row + rows,
                    record_bytes: self.new_record_bytes(),
                    first: 0,
                    bytes: new,
                    before: Vec::new(),
                });
            }
        }
        Ok((queries, parts))
    }

    /// An attention, or a part of one, where `kind` computes.
    fn attention(&self, op: &Op, kind: ResourceKind) -> Result<(), TaskError> {
        let Op::Attention {
            part,
            rows,
            query_len,
            context_len,
            seen_len,
            value_len,
            ..
        } = *op
        else {
            return Err(TaskError::NoOperand("an attention"));
        };
        let sight = self.sight(context_len, (seen_len, value_len));
        match part {
            AttentionPart::Whole | AttentionPart::Copied if kind == ResourceKind::Cpu => {
                self.attend_on_cpu(sight)
            }
            AttentionPart::Whole => self.attend(context_len - query_len, sight),
            AttentionPart::Copied => Err(TaskError::NoOperand("a copy of the cache on the host")),
            AttentionPart::Scores | AttentionPart::Values => {
                let parts = self.cache_parts()?;
                let picked = self.picked(rows, value_len - 1);
                let mid = self.operands.write(self.mid_off_device()?)?;
                let what = (sight, &picked);
                let decoder = &self.engine.decoder;
                Ok(match part {
                    AttentionPart::Values => decoder.weigh_step(mid, &parts, what),
                    _ => decoder.score_step(mid, &parts, what),
                }?)
            }
        }
    }

    fn picked(&self, rows: u32, picks: u32) -> Picked {
        let model = &self.engine.plan.model;
        Picked {
            rows,
            group: model.num_attention_heads / model.num_key_value_heads,
            picks,
        }
    }

    fn gather(&self, rows: u32, picks: u32) -> Result<(), TaskError> {
        let parts = self.cache_parts()?;
        let mid = self.operands.write(self.mid_off_device()?)?;
        let picked = self.picked(rows, picks);
        Ok(self.engine.decoder.gather_values(mid, &parts, &picked)?)
    }

    /// The buffer of rows off the device that have one of their own.
    fn mid_off_device(&self) -> Result<usize, TaskError> {
        self.mid(Tier::Host)
            .ok_or(TaskError::NoOperand("a buffer of queries"))
    }

    fn attend(&self, position: u32, sight: Sight<'_>) -> Result<(), TaskError> {
        let batch = self.batch(position);
        let index = self
            .mid(Tier::Device)
            .ok_or(TaskError::NoOperand("a buffer of queries"))?;
        let parts = self.cache_parts()?;
        let row_elements = self.engine.row_elements();
        let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
        let mut queries = SplitMut::default();
        let elements = rows * batch.query_len * row_elements;
        queries.push(
            self.operands.write(index)?,
            elements,
            self.engine.plan.dtype,
        )?;
        let decoder = &self.engine.decoder;
        if position == 0 {
            decoder.attend_prompt(batch, &mut queries, &parts)?;
        } else {
            decoder.attend_step(&mut queries, &parts, sight)?;
        }
        Ok(())
    }

    fn attend_on_cpu(&self, sight: Sight<'_>) -> Result<(), TaskError> {
        let mid = self.operands.write(self.mid_off_device()?)?;
        let mut parts = self.new_cache_parts(sight.context_len - 1)?;
        let decoder = &self.engine.decoder;
        let how = (sight, self.engine.on_card);
        Ok(decoder.append_and_attend(mid, &mut parts, how)?)
    }

    /// Ends a layer, or its attention.
    fn finish(&self, position: u32, stage: Stage) -> Result<(), TaskError> {
        let batch = self.batch(position);
        let attended = self.attended(batch)?;
        let mut hidden = self.hidden_mut(batch)?;
        let (decoder, tensors) = (&self.engine.decoder, self.tensors()?);
        decoder.output(&tensors, batch, &attended, &mut hidden)?;
        if stage == Stage::Finish {
            decoder.mlp(&tensors, batch, &mut hidden)?;
        }
        Ok(())
    }

    /// Attention's output.
    pub(super) fn attended(&self, batch: Batch<'_>) -> Result<Split<'a>, TaskError> {
        let dtype = self.engine.plan.dtype;
        let mut attended = Split::default();
        let elements = self.mid_elements(batch);
        if let Some(index) = self.mid(Tier::Device) {
            attended.push(self.operands.read(index)?, elements, dtype)?;
        }
        if let Some(index) = self.mid(Tier::Host) {
            let elements = self.rows_off_device() * self.engine.row_elements();
            attended.push(self.operands.read(index)?, elements, dtype)?;
        }
        Ok(attended)
    }

    fn mlp(&self, position: u32) -> Result<(), TaskError> {
        let batch = self.batch(position);
        let mut hidden = self.hidden_mut(batch)?;
        let decoder = &self.engine.decoder;
        Ok(decoder.mlp(&self.tensors()?, batch, &mut hidden)?)
    }

    fn head(&self, position: u32) -> Result<(), TaskError> {
        let batch = self.batch(position);
        let hidden = self.hidden(batch)?;
        let captures = self.engine.capture_logits;
        let (given, uniforms) = (self.given(), self.uniforms());
        let choice = match (&given, &self.engine.draws) {
            (Some(tokens), _) => Choice::Given(tokens),
            (None, Some(draws)) => Choice::Drawn(&draws.sampling, &uniforms),
            (None, None) => Choice::Greedy,
        };
        let what = (choice, captures);
        let decoder = &self.engine.decoder;
        let output = decoder.head(&self.tensors()?, batch, &hidden, what)?;
        let index = self.need("a buffer of next tokens", |content| {
            matches!(content, Content::Tokens { .. })
        })?;
        let into = self.operands.write(index)?;
        for (into, token) in into.as_chunks_mut().0.iter_mut().zip(&output.tokens) {
            *into = token.to_le_bytes();
        }
        if captures {
            let mut logits = self
                .engine
                .logits
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            logits.push(CapturedLogits {
                cell: self.cell,
                logits: output.logits,
            });
        }
        Ok(())
    }
}

/// Whether a piece's buffers need prompts.
pub(super) fn is_prompt(buffer: &Buffer) -> bool {
    buffer.resident && matches!(buffer.content, Content::Prompt { .. })
}
