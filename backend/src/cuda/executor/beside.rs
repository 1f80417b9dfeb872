//! What lies on the device beside a plan's arena: tables, logits, and partial sums of attention.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_core::Dtype;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;

use super::supported::held;
use crate::cpu::CpuError;
use crate::cuda::launches::{Blocks, HeldAs, PAGES_MOST, PagesTable, SCORE_BINS};
use crate::cuda::{Card, CudaError, Launch};
use crate::decoder::Decoder;
use crate::kernels::rotary::Rotary;

/// Sequences whose logits are there at once.
pub(super) const HEAD_ROWS: usize = 64;

/// Words of the unified maximum and what goes with it.
pub(super) const RANGE_WORDS: usize = 4;

/// Where choices that the host makes pass through.
#[derive(Debug)]
pub(super) struct Chosen {
    /// Page-locked, and so never moved: logits, f32 `[HEAD_ROWS, vocabulary]`, then tokens, u32 `[HEAD_ROWS]`.
    pub words: Mutex<Vec<u32>>,
    /// The word at which the tokens begin.
    pub tokens_at: usize,
}

/// How much is computed at most: what decides how much lies beside the arena.
#[derive(Debug)]
pub(super) struct Extent<'m> {
    pub model: &'m ModelSpec,
    pub dtype: Dtype,
    /// What the cache keeps.
    pub held: HeldAs,
    pub rotary: Option<&'m Rotary>,
    /// Prompts of a run, in front of which padding may be.
    pub prompts: usize,
    /// Sequences of a batch.
    pub sequences: usize,
    /// Tokens of a batch.
    pub tokens: usize,
    /// Positions of a text.
    pub positions: usize,
    /// Bytes of inputs of split linear layers in the stored type.
    pub stored_inputs: usize,
}

impl<'m> Extent<'m> {
    pub(super) fn of_plan(plan: &'m Plan, decoder: &'m Decoder, prompts: usize) -> Extent<'m> {
        let batch = plan.policy.gpu_batch_size as usize;
        Extent {
            model: &plan.model,
            dtype: plan.dtype,
            held: held(plan.policy.compression),
            rotary: decoder.rotary(),
            prompts,
            sequences: batch,
            tokens: batch * plan.workload.prompt_len as usize,
            positions: plan.workload.cache_len() as usize + 1,
            stored_inputs: super::parts::inputs_bytes(plan),
        }
    }

    /// Sequences whose logits are there at once.
    fn head_rows(&self) -> usize {
        HEAD_ROWS.min(self.sequences)
    }
}

/// Rotary positions, as tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct RotaryTables {
    /// f32 `[positions, pairs]`.
    pub cosines: u64,
    /// The same.
    pub sines: u64,
    pub pairs: usize,
    pub adjacent: bool,
}

/// Addresses of what lies beside the arena.
#[derive(Debug)]
pub(super) struct Beside {
    /// u32, by prompt: the padding in front of each.
    pub(super) firsts: u64,
    /// Whether any prompt has some.
    padded: AtomicBool,
    /// u32 `[tokens]`: positions in their texts.
    pub(super) places: u64,
    /// What wrote them last.
    placed: Mutex<Option<Launch>>,
    pub(super) table: PagesTable,
    pub(super) rotary: Option<RotaryTables>,
    /// f32 `[HEAD_ROWS, vocabulary]`.
    pub(super) logits: u64,
    /// u32 `[HEAD_ROWS]`.
    pub(super) not_a_number: u64,
    /// f32 `[queries, splits, head_dim]`.
    pub(super) numerators: u64,
    /// f32 `[queries, splits]`.
    pub(super) denominators: u64,
    /// f32 `[queries, splits]`.
    pub(super) maxima: u64,
    /// u32 `[queries]`: zero but while an attention waits for its blocks.
    pub(super) arrived: u64,
    /// u32 `[queries]`: zero but while an attention computes some again.
    pub(super) overflow: u64,
    /// u32 `[SCORE_BINS]`: counts of the scores of first steps.
    pub(super) bins: u64,
    /// f32 phi, low and high, found in these ([`Range`](crate::cuda::launches::Range)), and u32: how many queries were computed again.
    pub(super) range: u64,
    /// `[tokens, embedding_size]`, then `[tokens, hidden_size]`, of a model that projects its embeddings; else nothing.
    pub(super) embedded: [u64; 2],
    /// Inputs of split linear layers in the stored type (`parts.rs`); else nothing.
    pub(super) stored_inputs: u64,
    /// None where the device chooses.
    pub(super) chosen: Option<Chosen>,
    multiprocessors: usize,
}

/// Places in memory that is yet to be taken.
#[derive(Default)]
struct Bump(usize);

impl Bump {
    fn place(&mut self, bytes: usize) -> usize {
        let start = self.0.next_multiple_of(crate::cuda::arena::ALIGNMENT);
        self.0 = start + bytes;
        start
    }
}

/// Bytes of what lies beside the arena, in the order of [`Beside`].
fn sizes(extent: &Extent<'_>, multiprocessors: usize) -> [usize; 18] {
    let (model, tokens) = (extent.model, extent.tokens);
    let rows = extent.sequences * model.num_key_value_heads as usize;
    let group = (model.num_attention_heads / model.num_key_value_heads) as usize;
    let blocks = Blocks::of(extent.held, group, model.head_dim as usize);
    let sums = blocks.partial_sums(rows, group, multiprocessors);
    let angles = extent.positions * extent.rotary.map_or(0, Rotary::pairs);
    let projects = usize::from(model.embedding_size != model.hidden_size);
    let element = extent.dtype.size_bytes() as usize;
    let embedded = [model.embedding_size, model.hidden_size];
    let embedded = embedded.map(|width| projects * tokens * width as usize * element);
    [
        4 * extent.prompts,
        4 * tokens,
        8 * PAGES_MOST,
        4 * PAGES_MOST,
        4 * angles,
        4 * angles,
        4 * extent.head_rows() * model.vocab_size as usize,
        4 * HEAD_ROWS,
        4 * sums * model.head_dim as usize,
        4 * sums,
        4 * sums,
        4 * rows * group,
        4 * rows * group,
        4 * SCORE_BINS,
        4 * RANGE_WORDS,
        embedded[0],
        embedded[1],
        extent.stored_inputs,
    ]
}

/// Writes the tables of rotary positions, where the model has these.
fn rotary(
    card: &dyn Card,
    extent: &Extent<'_>,
    [cosines, sines]: [u64; 2],
) -> Result<Option<RotaryTables>, CudaError> {
    let Some(rotary) = extent.rotary else {
        return Ok(None);
    };
    let tables = rotary.tables(extent.positions);
    for (to, table) in [cosines, sines].into_iter().zip(&tables) {
        card.write(to, bytemuck::cast_slice(table))?;
    }
    Ok(Some(RotaryTables {
        cosines,
        sines,
        pairs: rotary.pairs(),
        adjacent: rotary.is_adjacent(),
    }))
}

impl Beside {
    /// Bytes that it takes.
    pub(super) fn bytes(card: &dyn Card, extent: &Extent<'_>) -> usize {
        let mut bump = Bump::default();
        for bytes in sizes(extent, card.multiprocessors()) {
            bump.place(bytes);
        }
        bump.0
    }

    /// Takes the memory and writes the tables that stay.
    pub(super) fn new(
        card: &dyn Card,
        extent: &Extent<'_>,
        host_chooses: bool,
    ) -> Result<Beside, CpuError> {
        let multiprocessors = card.multiprocessors();
        let mut bump = Bump::default();
        let sizes = sizes(extent, multiprocessors);
        let places = sizes.map(|bytes| bump.place(bytes) as u64);
        let base = card.take(bump.0)?;
        let [
            firsts,
            tokens,
            pages,
            page_ends,
            cosines,
            sines,
            logits,
            not_a_number,
            numerators,
            denominators,
            maxima,
            arrived,
            overflow,
            bins,
            range,
            narrow,
            wide,
            stored_inputs,
        ] = places.map(|place| base + place);
        let rotary = rotary(card, extent, [cosines, sines])?;
        // Nothing has arrived, was computed again, counted or found yet.
        card.write(arrived, &vec![0; (narrow - arrived) as usize])?;
        // Last, since nothing may fail once its pages are locked.
        let chosen = host_chooses.then(|| {
            let vocabulary = extent.model.vocab_size as usize;
            Chosen::new(card, extent.head_rows(), vocabulary)
        });
        Ok(Beside {
            firsts,
            padded: AtomicBool::new(false),
            places: tokens,
            placed: Mutex::default(),
            table: PagesTable { pages, page_ends },
            rotary,
            logits,
            not_a_number,
            numerators,
            denominators,
            maxima,
            arrived,
            overflow,
            bins,
            range,
            embedded: [narrow, wide],
            stored_inputs,
            chosen: chosen.transpose()?,
            multiprocessors,
        })
    }

    /// Says how much padding is in front of each prompt.
    pub(super) fn pad(&self, card: &dyn Card, padding: &[u32]) -> Result<(), CudaError> {
        let padded = padding.iter().any(|tokens| *tokens > 0);
        self.padded.store(padded, Ordering::Relaxed);
        *self.placed() = None;
        card.write(self.firsts, bytemuck::cast_slice(padding))
    }

    /// What wrote the positions last, for who writes them next. All is given to one stream, in this order.
    pub(super) fn placed(&self) -> MutexGuard<'_, Option<Launch>> {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the padding of prompts from a number on is; 0 where there is none.
    pub(super) fn firsts_from(&self, prompt: u64) -> u64 {
        match self.padded.load(Ordering::Relaxed) {
            true => self.firsts + 4 * prompt,
            false => 0,
        }
    }

    /// How many multiprocessors there are.
    pub(super) fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }
}

impl Chosen {
    fn new(card: &dyn Card, rows: usize, vocabulary: usize) -> Result<Chosen, CpuError> {
        let tokens_at = rows * vocabulary;
        let words = vec![0_u32; tokens_at + HEAD_ROWS];
        card.lock_pages(words.as_ptr() as u64, 4 * words.len())?;
        let words = Mutex::new(words);
        Ok(Chosen { words, tokens_at })
    }
}
