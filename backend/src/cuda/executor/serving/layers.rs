//! The layers of a mixed batch: the stages of a plan, with attention over each sequence's own blocks.

use plimsoll_core::Dtype;
use plimsoll_core::model::{ModelSpec, TensorRole};
use plimsoll_core::units::Bytes;

use super::super::beside::{Beside, HEAD_ROWS};
use super::super::ground::Ground;
use super::super::issue::{Piece, Tensor, Work};
use super::OnCard;
use super::batch::{Batch, Tables};
use crate::cpu::error::TaskError;
use crate::cuda::launches::{Attention, HeldAs, MixedAppend, OwnBlocks, PromptAttention};
use crate::cuda::{CopyRows, Launch};
use crate::kernels::activation::Activation;

/// A block of the model, for a batch.
pub(super) struct Block<'a> {
    pub on: &'a OnCard,
    pub batch: &'a Batch,
    /// Where the tables are on the card.
    pub tables: Tables,
    /// The embedding is the first, the head the last.
    pub number: usize,
    /// Which of the layers that the tables are of.
    pub layer: usize,
}

impl Ground for Block<'_> {
    fn model(&self) -> &ModelSpec {
        &self.on.model
    }

    fn dtype(&self) -> Dtype {
        self.on.dtype
    }

    fn activation(&self) -> Activation {
        self.on.decoder.activation()
    }

    fn tensor(&self, role: TensorRole) -> Result<Option<Tensor<'_>>, TaskError> {
        Ok(self.on.weights.tensor(self.number, role))
    }

    fn tokens(&self, _: u32) -> usize {
        self.batch.tokens()
    }

    fn hidden(&self, _: u32) -> Result<Vec<Piece>, TaskError> {
        Ok(vec![Piece {
            address: self.on.room.hidden,
            first: 0,
            tokens: self.batch.tokens(),
        }])
    }

    fn ids(&self) -> Result<u64, TaskError> {
        Ok(self.table(self.tables.ids))
    }

    /// They came with the tables.
    fn places(&self, _: &Beside, _: u32) -> Option<Launch> {
        None
    }
}

impl Block<'_> {
    fn table(&self, offset: usize) -> u64 {
        self.on.room.tables + offset as u64
    }

    /// The blocks of the sequences from a number on.
    fn own(&self, first: usize) -> OwnBlocks {
        let layer = 8 * self.tables.blocks_a_layer * self.layer;
        let by_sequence = |offset: usize| self.table(offset + 4 * first);
        OwnBlocks {
            blocks: self.table(self.tables.blocks + layer),
            starts: by_sequence(self.tables.starts),
            contexts: by_sequence(self.tables.contexts),
            tokens: by_sequence(self.tables.tokens),
            block_tokens: self.on.cache.block_tokens(),
        }
    }
}

impl Work<'_, Block<'_>> {
    /// Computes a layer.
    pub(super) fn layer(&self) -> Result<(), TaskError> {
        let [q, k, v] = self.to_heads(None, 0)?;
        self.normalise_and_turn([q, k], 0)?;
        self.append_mixed([k, v])?;
        self.attend_steps(q)?;
        self.attend_prompts(q)?;
        self.output_of(q, 0)?;
        self.free_workspace();
        self.mlp(0)
    }

    fn append_mixed(&self, [keys, values]: [u64; 2]) -> Result<(), TaskError> {
        let (model, tables) = (self.turn.model(), &self.turn.tables);
        let append = MixedAppend {
            dtype: self.turn.dtype(),
            keys,
            values,
            own: self.turn.own(0),
            sequences: self.turn.table(tables.sequences),
            positions: self.device.beside.at.places,
            count: self.tokens(0),
            kv_heads: model.num_key_value_heads as usize,
            head_dim: model.head_dim as usize,
            record_bytes: self.turn.on.cache.record_bytes(),
        };
        self.launch(&append.launch()?)
    }

    /// Sequences that get their next token attend; the results take their queries' place.
    fn attend_steps(&self, queries: u64) -> Result<(), TaskError> {
        let (model, beside) = (self.turn.model(), &self.device.beside);
        let batch = self.turn.batch;
        if batch.steps == 0 {
            return Ok(());
        }
        let attention = Attention {
            dtype: self.turn.dtype(),
            held: HeldAs::Whole,
            queries,
            pages: 0,
            page_ends: 0,
            firsts: 0,
            numerators: beside.at.numerators,
            denominators: beside.at.denominators,
            maxima: beside.at.maxima,
            arrived: beside.at.arrived,
            overflow: 0,
            range: 0,
            recomputed: 0,
            y: queries,
            page_count: 0,
            row_start: 0,
            rows: batch.steps * model.num_key_value_heads as usize,
            kv_heads: model.num_key_value_heads as usize,
            group: (model.num_attention_heads / model.num_key_value_heads) as usize,
            head_dim: model.head_dim as usize,
            context_len: batch.longest_context(),
            window: model.sliding_window.unwrap_or(0) as usize,
            record_bytes: self.turn.on.cache.record_bytes(),
            splits: 1,
            part: 0,
            scale: 1.0 / (model.head_dim as f32).sqrt(),
        };
        let attention = attention.split(beside.multiprocessors());
        self.launch(&attention.mixed(&self.turn.own(0))?)
    }

    /// So do those of which more is computed.
    fn attend_prompts(&self, queries: u64) -> Result<(), TaskError> {
        let (model, batch) = (self.turn.model(), self.turn.batch);
        let prompts = batch.members.len() - batch.steps;
        if prompts == 0 {
            return Ok(());
        }
        let attention = PromptAttention {
            dtype: self.turn.dtype(),
            held: HeldAs::Whole,
            queries,
            pages: 0,
            page_ends: 0,
            firsts: 0,
            page_count: 0,
            row_start: 0,
            rows: prompts * model.num_key_value_heads as usize,
            kv_heads: model.num_key_value_heads as usize,
            group: (model.num_attention_heads / model.num_key_value_heads) as usize,
            head_dim: model.head_dim as usize,
            query_len: batch.longest_prompt(),
            start: 0,
            window: model.sliding_window.unwrap_or(0) as usize,
            record_bytes: self.turn.on.cache.record_bytes(),
            scale: 1.0 / (model.head_dim as f32).sqrt(),
            cache_bytes: self.device.card.cache_bytes(),
        };
        self.launch(&attention.mixed(&self.turn.own(batch.steps))?)
    }

    /// The next token of each sequence, which then go to the host.
    pub(super) fn next_tokens(&self) -> Result<(), TaskError> {
        let (batch, room) = (self.turn.batch, &self.turn.on.room);
        let (sequences, row) = (batch.members.len(), self.width() * self.element());
        let last = self.room(sequences * self.width())?;
        let lasts = batch.last_tokens().enumerate();
        let parts = lasts.map(|(sequence, token)| super::copies::Part {
            to: last + (sequence * row) as u64,
            from: room.hidden + (token * row) as u64,
            bytes: row,
        });
        for copy in super::copies::joined(parts, |_| ()) {
            self.device.card.copy(self.stream, &copy)?;
        }
        let x = self.before_head(last, sequences)?;
        for first in (0..sequences).step_by(HEAD_ROWS) {
            let rows = HEAD_ROWS.min(sequences - first);
            self.logits(x, first, rows)?;
            self.choose(room.chosen + 4 * first as u64, rows)?;
        }
        let copy = CopyRows::of(self.turn.on.chosen_at, room.chosen, 4 * sequences);
        Ok(self.device.card.copy(self.stream, &copy)?)
    }
}

/// Elements of room for what lies between two products of a token.
pub(super) fn workspace_elements(model: &ModelSpec) -> usize {
    let (width, inner) = (model.hidden_size as usize, model.intermediate_size as usize);
    let heads = model.q_size() as usize + 2 * model.kv_size() as usize;
    let wide = if model.gated_mlp { 2 * inner } else { inner };
    let before_head = width + model.embedding_size as usize;
    (2 * width + heads).max(width + wide).max(before_head)
}

/// What a batch's activations take.
pub(super) fn hidden_bytes(model: &ModelSpec, dtype: Dtype, tokens: usize) -> Bytes {
    Bytes(u64::from(model.hidden_size) * dtype.size_bytes() * tokens as u64)
}
