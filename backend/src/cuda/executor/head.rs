//! The last norm, the vocabulary's product, and the choice of the next token.

use std::sync::PoisonError;

use plimsoll_core::model::TensorRole;
use plimsoll_core::program::Content;

use super::beside::{Chosen, HEAD_ROWS};
use super::issue::{CHOICE, Work};
use super::linear::Rows;
use crate::cpu::CapturedLogits;
use crate::cpu::error::TaskError;
use crate::cuda::CopyRows;
use crate::cuda::launches::{Argmax, argmax};
use crate::decoder::Choice;

impl Work<'_> {
    /// The next token of each sequence, by its last token's activations.
    pub(super) fn head(&self, position: u32) -> Result<(), TaskError> {
        use TensorRole::{FinalNormBias, FinalNormWeight, LmHead, LmHeadBias, ProjectOut};
        let model = &self.turn.engine.plan.model;
        let sequences = self.turn.batch(position).sequences;
        let last = self.room(sequences * self.width())?;
        self.gather_last(last, position)?;
        if model.final_norm {
            let roles = [FinalNormWeight, FinalNormBias];
            self.normalise((last, last), sequences, roles)?;
        }
        let (mut x, mut width) = (last, self.width());
        if self.tensor(ProjectOut)?.is_some() {
            width = model.embedding_size as usize;
            x = self.room(sequences * width)?;
            let rows = Rows {
                x: last,
                y: x,
                m: sequences,
                wide: false,
            };
            self.linear(rows, ProjectOut, None)?;
        }
        let into = self.turn.need("a buffer of next tokens", |content| {
            matches!(content, Content::Tokens { .. })
        })?;
        let into = self.turn.operands.address(into)?;
        let mut captured = Vec::new();
        for first in (0..sequences).step_by(HEAD_ROWS) {
            let rows = Rows {
                x: x + (first * width * self.element()) as u64,
                y: self.device.beside.logits,
                m: HEAD_ROWS.min(sequences - first),
                wide: true,
            };
            self.linear(rows, LmHead, Some(LmHeadBias))?;
            let tokens = into + 4 * first as u64;
            match &self.device.beside.chosen {
                None => self.choose(tokens, rows.m)?,
                Some(chosen) => {
                    captured.extend(self.choose_on_host(chosen, tokens, (first, rows.m))?);
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

    /// The likeliest tokens.
    fn choose(&self, tokens: u64, rows: usize) -> Result<(), TaskError> {
        self.launch(&argmax(&Argmax {
            logits: self.device.beside.logits,
            tokens,
            not_a_number: self.device.beside.not_a_number,
            rows,
            vocabulary: self.turn.engine.plan.model.vocab_size as usize,
        }))
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
        let (at, from) = (words.as_ptr() as u64, self.device.beside.logits);
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
