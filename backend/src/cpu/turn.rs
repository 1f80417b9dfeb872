//! A task whose turn it is, its operands by what they hold, and how its batch is split over the tiers: what computing it
//! needs to know, on a CPU or on a GPU.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_core::batch_shape::BatchShape;
use plimsoll_core::program::{Cell, Content};
use plimsoll_core::tier::Tier;

use super::engine::Engine;
use super::error::TaskError;
use super::memory::Operands;
use crate::decoder::{Batch, Padding};

/// A task with its operands at hand.
pub(crate) struct Turn<'a> {
    pub engine: &'a Engine,
    pub cell: Cell,
    pub operands: Operands<'a>,
    /// How the batch is split over the tiers.
    pub shape: BatchShape,
    /// Padding in front of each sequence.
    pub padding: Arc<[u32]>,
}

impl Turn<'_> {
    /// The rows of the batch that live in a tier.
    pub(crate) fn rows_in(&self, tier: Tier) -> Range<usize> {
        let rows = self.shape.rows_in(tier);
        rows.start as usize..rows.end as usize
    }

    pub(crate) fn rows_off_device(&self) -> usize {
        self.shape.rows_off_device() as usize
    }

    pub(crate) fn batch(&self, position: u32) -> Batch<'_> {
        let query_len = match position {
            0 => self.engine.plan.workload.prompt_len,
            _ => 1,
        };
        Batch {
            sequences: self.shape.sequences as usize,
            query_len: query_len as usize,
            position: position as usize,
            padding: Padding(&self.padding),
        }
    }

    pub(crate) fn find(&self, wanted: impl Fn(Content) -> bool) -> Option<usize> {
        self.operands.find(|operand| wanted(operand.content))
    }

    pub(crate) fn need(
        &self,
        what: &'static str,
        wanted: impl Fn(Content) -> bool,
    ) -> Result<usize, TaskError> {
        self.find(wanted).ok_or(TaskError::NoOperand(what))
    }

    /// The activations in each tier, and how many elements of each buffer are meant.
    pub(crate) fn hidden_parts(
        &self,
        batch: Batch<'_>,
    ) -> impl Iterator<Item = (Option<usize>, usize)> + '_ {
        let width = batch.query_len * self.engine.plan.model.hidden_size as usize;
        let tiers = Tier::ALL
            .into_iter()
            .filter(|tier| self.shape.hidden[*tier] > 0);
        tiers.map(move |tier| {
            let wanted = move |c| matches!(c, Content::Hidden { home, .. } if home == tier);
            (self.find(wanted), self.shape.hidden[tier] as usize * width)
        })
    }

    pub(crate) fn mid(&self, tier: Tier) -> Option<usize> {
        self.find(|content| matches!(content, Content::Mid { home, .. } if home == tier))
    }

    /// The buffers of a tier's rows of the cache in the order of positions, each with its first.
    pub(crate) fn cache(&self, tier: Tier) -> Vec<(usize, u32)> {
        let start = |content| match content {
            Content::Cache { home, start, .. } if home == tier => Some(start),
            _ => None,
        };
        let all = self.operands.all().iter().enumerate();
        let found = all.filter_map(|(index, o)| Some((index, start(o.content)?)));
        found.collect()
    }

    /// Bytes from a position to the next of the rows of a tier.
    pub(crate) fn record_bytes(&self, tier: Tier) -> usize {
        self.shape.record[tier].0 as usize
    }

    /// The same of new keys and values behind queries, on their way to rows that are off the device.
    pub(crate) fn new_record_bytes(&self) -> usize {
        self.shape.record_of_rows_off_device().0 as usize
    }

    /// Elements of queries in the device's own buffer.
    pub(crate) fn mid_elements(&self, batch: Batch<'_>) -> usize {
        let rows = match self.mid(Tier::Host) {
            Some(_) => self.rows_in(Tier::Device).len(),
            None => batch.sequences * self.engine.plan.model.num_key_value_heads as usize,
        };
        rows * batch.query_len * self.engine.row_elements()
    }

    /// The numbers of the batch's prompts among those of the run.
    pub(crate) fn prompts(&self) -> Range<u64> {
        let cell = self.cell;
        let (earlier, rest) = self.engine.rounds.split_at(cell.round as usize);
        let round = rest.iter().flat_map(|round| &round.batches);
        let before = earlier.iter().flat_map(|round| &round.batches);
        let before = before.chain(round.take(cell.batch as usize));
        let first = before.map(|n| u64::from(*n)).sum::<u64>();
        first..first + u64::from(self.shape.sequences)
    }

    /// The numbers that decide the next tokens of the batch, where tokens are drawn.
    pub(crate) fn uniforms(&self) -> Vec<f64> {
        let Some(draws) = &self.engine.draws else {
            return Vec::new();
        };
        let token = u64::from(self.cell.pass);
        let prompts = self.prompts().map(|prompt| draws.first_prompt + prompt);
        prompts
            .map(|prompt| draws.sampling.uniform(prompt, token))
            .collect()
    }

    /// The next tokens of the batch, where they are given.
    pub(crate) fn given(&self) -> Option<Vec<u32>> {
        let answers = self.engine.given.as_ref()?;
        let of_batch = self.prompts().map(|prompt| answers.get(prompt as usize));
        let token = self.cell.pass as usize;
        of_batch.map(|answer| answer?.get(token).copied()).collect()
    }
}
