//! Attention over the parts of the cache that are on the device.

use std::ops::Range;

use plimsoll_core::tier::Tier;

use super::issue::{RECOMPUTED_AT, Work};
use super::supported::held;
use crate::cpu::error::TaskError;
use crate::cuda::launches::{Attention, PromptAttention, choose_range, count_scores, put_pages};

/// Rows of the cache that live in one tier.
struct Part {
    rows: Range<usize>,
    record_bytes: usize,
    /// Where each page is, and past which position it ends.
    pages: Vec<(u64, usize)>,
}

impl Work<'_> {
    fn parts(&self) -> Result<Vec<Part>, TaskError> {
        let mut parts = Vec::new();
        for tier in Tier::ALL {
            let found = self.turn.cache(tier);
            let next = found.iter().skip(1).map(|(_, start)| *start as usize);
            let ends = next.chain([usize::MAX]);
            let pages = found.iter().zip(ends);
            let pages =
                pages.map(|((index, _), end)| Ok((self.turn.operands.address(*index)?, end)));
            let pages = pages.collect::<Result<Vec<_>, TaskError>>()?;
            if !pages.is_empty() {
                parts.push(Part {
                    rows: self.turn.rows_in(tier),
                    record_bytes: self.turn.record_bytes(tier),
                    pages,
                });
            }
        }
        Ok(parts)
    }

    /// The newest tokens attend; the results take their queries' place.
    pub(super) fn attend(&self, query_len: usize, context_len: usize) -> Result<(), TaskError> {
        let queries = self.mid(Tier::Device)?;
        let queries = queries.ok_or(TaskError::NoOperand("a buffer of queries"))?;
        for part in self.parts()? {
            let table = self.device.beside.at.table;
            self.launch(&put_pages(&part.pages, table)?)?;
            if context_len == query_len {
                self.attend_prompt(queries, &part, query_len)?;
            } else {
                self.attend_step(queries, &part, context_len)?;
            }
        }
        Ok(())
    }

    fn attend_prompt(&self, queries: u64, part: &Part, query_len: usize) -> Result<(), TaskError> {
        let (plan, beside) = (&self.turn.engine.plan, &self.device.beside);
        let model = &plan.model;
        let attention = PromptAttention {
            dtype: plan.dtype,
            held: held(plan.policy.compression),
            queries,
            pages: beside.at.table.pages,
            page_ends: beside.at.table.page_ends,
            firsts: self.firsts(),
            page_count: part.pages.len(),
            row_start: part.rows.start,
            rows: part.rows.len(),
            kv_heads: model.num_key_value_heads as usize,
            group: (model.num_attention_heads / model.num_key_value_heads) as usize,
            head_dim: model.head_dim as usize,
            query_len,
            start: 0,
            window: model.sliding_window.unwrap_or(0) as usize,
            record_bytes: part.record_bytes,
            scale: 1.0 / (model.head_dim as f32).sqrt(),
            cache_bytes: self.device.card.cache_bytes(),
        };
        self.launch(&attention.launch()?)
    }

    fn attend_step(&self, queries: u64, part: &Part, context_len: usize) -> Result<(), TaskError> {
        let (plan, beside) = (&self.turn.engine.plan, &self.device.beside);
        let model = &plan.model;
        let attention = Attention {
            dtype: plan.dtype,
            held: held(plan.policy.compression),
            queries,
            pages: beside.at.table.pages,
            page_ends: beside.at.table.page_ends,
            firsts: self.firsts(),
            numerators: beside.at.numerators,
            denominators: beside.at.denominators,
            maxima: beside.at.maxima,
            arrived: beside.at.arrived,
            overflow: beside.at.overflow,
            range: beside.at.range,
            recomputed: beside.at.range + RECOMPUTED_AT,
            y: queries,
            page_count: part.pages.len(),
            row_start: part.rows.start,
            rows: part.rows.len(),
            kv_heads: model.num_key_value_heads as usize,
            group: (model.num_attention_heads / model.num_key_value_heads) as usize,
            head_dim: model.head_dim as usize,
            context_len,
            window: model.sliding_window.unwrap_or(0) as usize,
            record_bytes: part.record_bytes,
            splits: 1,
            part: 0,
            scale: 1.0 / (model.head_dim as f32).sqrt(),
        }
        .split(beside.multiprocessors());
        if !self.is_first_step(context_len) {
            return self.launch(&attention.launch()?);
        }
        // One GPU batch tells of all, and before the results take the queries' place.
        if self.turn.cell.batch == 0 {
            self.launch(&count_scores(&attention, beside.at.bins)?)?;
            self.launch(&choose_range(beside.at.bins, beside.at.range))?;
        }
        let range = 0;
        self.launch(&Attention { range, ..attention }.launch()?)
    }

    /// Whether this is a step in which a model's scores are measured: the first of the texts of the first round, in every
    /// layer. The first GPU batch's are counted, and steps after it share the maximum that was found (FlashDecoding++ section
    /// 3), which the host need not know.
    fn is_first_step(&self, context_len: usize) -> bool {
        let prompt_len = self.turn.engine.plan.workload.prompt_len as usize;
        self.turn.cell.round == 0 && context_len == prompt_len + 1
    }
}
