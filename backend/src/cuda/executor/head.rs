//! The last norm, the vocabulary's product, and the choice of the next token.

use std::sync::PoisonError;

use plimsoll_core::model::TensorRole;
use plimsoll_core::program::Content;

use super::beside::{Chosen, HEAD_ROWS};
use super::ground::Ground;
use super::issue::{CHOICE, Work};
use super::linear::Rows;
use crate::cpu::CapturedLogits;
use crate::cpu::error::TaskError;
use crate::cuda::CopyRows;
use crate::cuda::launches::{Argmax, argmax};
use crate::decoder::Choice;

impl<G: Ground> Work<'_, G> {
    /// What the head multiplies, made of the last token's activations of so many sequences.
    pub(super) fn before_head(&self, last: u64, sequences: usize) -> Result<u64, TaskError> {
        use TensorRole::{FinalNormBias, FinalNormWeight, ProjectOut};
        let model = self.turn.model();
        if model.final_norm {
            let roles = [FinalNormWeight, FinalNormBias];
            self.normalise((last, last), sequences, roles)?;
        }
        if self.tensor(ProjectOut)?.is_none() {
            return Ok(last);
        }
        let rows = Rows {
            x: last,
            y: self.room(sequences * model.embedding_size as usize)?,
            m: sequences,
            wide: false,
        };
        self.linear(rows, ProjectOut, None)?;
        Ok(rows.y)
    }

    /// The logits of some of the sequences, at most [`HEAD_ROWS`].
    pub(super) fn logits(&self, x: u64, first: usize, rows: usize) -> Result<(), TaskError> {
        use TensorRole::{LmHead, LmHeadBias};
        let width = self.need(LmHead)?.spec.cols as usize;
        let rows = Rows {
            x: x + (first * width * self.element()) as u64,
            y: self.device.beside.at.logits,
            m: rows,
            wide: true,
        };
        self.linear(rows, LmHead, Some(LmHeadBias))
    }

    /// The likeliest tokens by these.
    pub(super) fn choose(&self, tokens: u64, rows: usize) -> Result<(), TaskError> {
        self.launch(&argmax(&Argmax {
            logits: self.device.beside.at.logits,
            tokens,
            not_a_number: self.device.beside.at.not_a_number,
            rows,
            vocabulary: self.turn.model().vocab_size as usize,
        }))
    }
}

impl Work<'_> {
    /// The next token of each sequence, by its last token's activations.
    pub(super) fn head(&self, position: u32) -> Result<(), TaskError> {
        let sequences = self.turn.batch(position).sequences;
        let last = self.room(sequences * self.width())?;
        self.gather_last(last, position)?;
        let last = self.before_head(last, sequences)?;
        let into = self.turn.need("a buffer of next tokens", |content| {
            matches!(content, Content::Tokens { .. })
        })?;
        let into = self.turn.operands.address(into)?;
        let mut captured = Vec::new();
        for first in (0..sequences).step_by(HEAD_ROWS) {
            let rows = HEAD_ROWS.min(sequences - first);
            self.logits(last, first, rows)?;
            let tokens = into + 4 * first as u64;
            match &self.device.beside.chosen {
                None => self.choose(tokens, rows)?,
                Some(chosen) => {
                    captured.extend(self.choose_on_host(chosen, tokens, (first, rows))?);
                }
            }
        }
        self.keep(captured);
        Ok(())
    }

    /// Copies the last token's activations of each sequence.
    fn gather_last(&self, to: u64, position: u32) -> Result<(), TaskError> {
        let query_len = self.turn.batch(position).query_len;
        let row = self.width() * self.element();
        let mut done = 0;
        for piece in self.hidden(position)? {
            let rows = piece.tokens / query_len;
            let copy = CopyRows {
                to: to + (done * row) as u64,
                from: piece.address + ((query_len - 1) * row) as u64,
                bytes: row,
                rows,
                to_pitch: row,
                from_pitch: query_len * row,
            };
            self.device.card.copy(self.stream, &copy)?;
            done += rows;
        }
        Ok(())
    }

    /// Brings logits to the host, which chooses, and the tokens back. Returns the logits where they are kept. The one place
    /// where who issues waits for the device.
    fn choose_on_host(
        &self,
        chosen: &Chosen,
        tokens: u64,
        (first, rows): (usize, usize),
    ) -> Result<Vec<f32>, TaskError> {
        let engine = self.turn.engine;
        let card = &self.device.card;
        let count = rows * engine.plan.model.vocab_size as usize;
        let mut words = chosen.words.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, from) = (words.as_ptr() as u64, self.device.beside.at.logits);
        card.copy(self.stream, &CopyRows::of(at, from, 4 * count))?;
        card.record(self.stream, CHOICE)?;
        card.await_event(CHOICE)?;
        let (logits, picked) = words.split_at_mut(chosen.tokens_at);
        let logits: &[f32] = bytemuck::cast_slice(&logits[..count]);
        let (given, uniforms) = (self.turn.given(), self.turn.uniforms());
        let choice = match (&given, &engine.draws) {
            (Some(tokens), _) => Choice::Given(tokens),
            (None, Some(draws)) => Choice::Drawn(&draws.sampling, &uniforms),
            (None, None) => Choice::Greedy,
        };
        picked[..rows].copy_from_slice(&engine.decoder.choose(choice, first, logits)?);
        let from = at + 4 * chosen.tokens_at as u64;
        card.copy(self.stream, &CopyRows::of(tokens, from, 4 * rows))?;
        // The next choice writes over it.
        card.record(self.stream, CHOICE)?;
        card.await_event(CHOICE)?;
        Ok(match engine.capture_logits {
            true => logits.to_vec(),
            false => Vec::new(),
        })
    }

    /// Keeps logits, where that was asked for.
    fn keep(&self, logits: Vec<f32>) {
        if !self.turn.engine.capture_logits {
            return;
        }
        let kept = &self.turn.engine.logits;
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(CapturedLogits {
            cell: self.turn.cell,
            logits,
        });
    }
}
