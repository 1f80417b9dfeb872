//! What lies on the device beside a plan's arena: tables, logits, and partial sums of attention.

use std::ops::Range;
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
pub(super) struct Addresses {
    /// u32, by prompt: the padding in front of each.
    pub firsts: u64,
    /// u32 `[tokens]`: positions in their texts.
    pub places: u64,
    pub table: PagesTable,
    /// f32 `[positions, pairs]` each, of rotary positions: cosines, then sines.
    angles: [u64; 2],
    /// f32 `[HEAD_ROWS, vocabulary]`.
    pub logits: u64,
    /// u32 `[HEAD_ROWS]`.
    pub not_a_number: u64,
    /// f32 `[queries, splits, head_dim]`.
    pub numerators: u64,
    /// f32 `[queries, splits]`.
    pub denominators: u64,
    /// f32 `[queries, splits]`.
    pub maxima: u64,
    /// u32 `[queries]`: zero but while an attention waits for its blocks.
    pub arrived: u64,
    /// u32 `[queries]`: zero but while an attention computes some again.
    pub overflow: u64,
    /// u32 `[SCORE_BINS]`: counts of the scores of first steps.
    pub bins: u64,
    /// f32 phi, low and high, found in these ([`Range`](crate::cuda::launches::Range)), and u32: how many queries were computed again.
    pub range: u64,
    /// `[tokens, embedding_size]`, then `[tokens, hidden_size]`, of a model that projects its embeddings; else nothing.
    pub embedded: [u64; 2],
    /// Inputs of split linear layers in the stored type (`parts.rs`); else nothing.
    pub stored_inputs: u64,
}

/// What lies beside the arena.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) at: Addresses,
    /// Whether any prompt has padding in front of it.
    padded: AtomicBool,
    /// What wrote the positions last.
    placed: Mutex<Option<Launch>>,
    pub(super) rotary: Option<RotaryTables>,
    /// None where the device chooses.
    pub(super) chosen: Option<Chosen>,
    multiprocessors: usize,
}

/// Places in memory, one after another.
struct Bump {
    base: u64,
    taken: usize,
}

impl Bump {
    fn from(base: u64) -> Bump {
        Bump { base, taken: 0 }
    }

    fn place(&mut self, bytes: usize) -> u64 {
        let start = self.taken.next_multiple_of(crate::cuda::arena::ALIGNMENT);
        self.taken = start + bytes;
        self.base + start as u64
    }
}

/// Places what lies beside the arena, and says which bytes are zero before anything runs: those of what has arrived, was computed
/// again, counted or found.
fn lay(bump: &mut Bump, extent: &Extent<'_>, multiprocessors: usize) -> (Addresses, Range<u64>) {
    let (model, tokens) = (extent.model, extent.tokens);
    let rows = extent.sequences * model.num_key_value_heads as usize;
    let group = (model.num_attention_heads / model.num_key_value_heads) as usize;
    let blocks = Blocks::of(extent.held, group, model.head_dim as usize);
    let sums = blocks.partial_sums(rows, group, multiprocessors);
    let angles = extent.positions * extent.rotary.map_or(0, Rotary::pairs);
    let projects = usize::from(model.embedding_size != model.hidden_size);
    let element = extent.dtype.size_bytes() as usize;
    let mut place = |bytes| bump.place(bytes);
    let addresses = Addresses {
        firsts: place(4 * extent.prompts),
        places: place(4 * tokens),
        table: PagesTable {
            pages: place(8 * PAGES_MOST),
            page_ends: place(4 * PAGES_MOST),
        },
        angles: [4 * angles, 4 * angles].map(&mut place),
        logits: place(4 * extent.head_rows() * model.vocab_size as usize),
        not_a_number: place(4 * HEAD_ROWS),
        numerators: place(4 * sums * model.head_dim as usize),
        denominators: place(4 * sums),
        maxima: place(4 * sums),
        arrived: place(4 * rows * group),
        overflow: place(4 * rows * group),
        bins: place(4 * SCORE_BINS),
        range: place(4 * RANGE_WORDS),
        embedded: [model.embedding_size, model.hidden_size]
            .map(|width| place(projects * tokens * width as usize * element)),
        stored_inputs: place(extent.stored_inputs),
    };
    let zero = addresses.arrived..addresses.range + 4 * RANGE_WORDS as u64;
    (addresses, zero)
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
        let mut bump = Bump::from(0);
        lay(&mut bump, extent, card.multiprocessors());
        bump.taken
    }

    /// Takes the memory and writes the tables that stay.
    pub(super) fn new(
        card: &dyn Card,
        extent: &Extent<'_>,
        host_chooses: bool,
    ) -> Result<Beside, CpuError> {
        let multiprocessors = card.multiprocessors();
        let base = card.take(Beside::bytes(card, extent))?;
        let (at, zero) = lay(&mut Bump::from(base), extent, multiprocessors);
        let rotary = rotary(card, extent, at.angles)?;
        card.write(zero.start, &vec![0; (zero.end - zero.start) as usize])?;
        // Last, since nothing may fail once its pages are locked.
        let chosen = host_chooses.then(|| {
            let vocabulary = extent.model.vocab_size as usize;
            Chosen::new(card, extent.head_rows(), vocabulary)
        });
        Ok(Beside {
            at,
            padded: AtomicBool::new(false),
            placed: Mutex::default(),
            rotary,
            chosen: chosen.transpose()?,
            multiprocessors,
        })
    }

    /// Says how much padding is in front of each prompt.
    pub(super) fn pad(&self, card: &dyn Card, padding: &[u32]) -> Result<(), CudaError> {
        let padded = padding.iter().any(|tokens| *tokens > 0);
        self.padded.store(padded, Ordering::Relaxed);
        *self.placed() = None;
        card.write(self.at.firsts, bytemuck::cast_slice(padding))
    }

    /// What wrote the positions last, for who writes them next. All is given to one stream, in this order.
    pub(super) fn placed(&self) -> MutexGuard<'_, Option<Launch>> {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the padding of prompts from a number on is; 0 where there is none.
    pub(super) fn firsts_from(&self, prompt: u64) -> u64 {
        match self.padded.load(Ordering::Relaxed) {
            true => self.at.firsts + 4 * prompt,
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
