//! Attention of a decode step on a GPU: with a unified maximum, and synchronised (FlashDecoding++ section 3), that in one launch as
//! the first, and in two.

use plimsoll_core::Dtype;
use plimsoll_core::model::ModelSpec;

use super::BenchOptions;
use crate::cpu::CpuError;
use crate::cuda::executor::{
    Busy, RECOMPUTED_AT, Taken, Way, apart, copies, in_turns_behind, read, read_numbers,
    with_stream,
};
use crate::cuda::launches::{Attention, Blocks, HeldAs, SCORE_BINS, choose_range, count_scores};
use crate::cuda::{Card, CudaError, Launch};
use crate::probe::{ProbeError, median};

/// Of a card's free memory, caches take so much at most.
const MEMORY_SHARE: usize = 2;

/// Elements of results that are held against each other, at most.
const COMPARED_MOST: usize = 1 << 16;

/// Times of a layer's attention, its cache from memory, over keys and queries whose scores are near each other.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionTimes {
    /// Positions.
    pub context: usize,
    /// Sequences.
    pub sequences: usize,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Parts that positions were split into.
    pub splits: usize,
    /// Seconds of two launches with a running maximum, as Flash-Decoding has them: partial sums, and what puts them together.
    /// Times are the middle of several.
    pub in_two_s: f64,
    /// Seconds of one launch with a running maximum.
    pub synchronised_s: f64,
    /// Seconds of one with a unified maximum, what is computed again included.
    pub unified_s: f64,
    /// Queries that were computed again in a step.
    pub recomputed: u32,
    /// How far results are from each other, as a share of the largest.
    pub apart: f32,
}

impl AttentionTimes {
    /// How much faster the unified maximum is than the two launches that were there before it.
    pub fn gain(&self) -> f64 {
        self.in_two_s / self.unified_s.max(1e-9)
    }

    /// How much faster it is than what has all but the maximum in common with it.
    pub fn gain_by_maximum(&self) -> f64 {
        self.synchronised_s / self.unified_s.max(1e-9)
    }
}

/// All contexts and numbers of sequences that the model has and the card holds; nothing without a card.
pub(super) fn measure(options: &BenchOptions) -> Result<Vec<AttentionTimes>, ProbeError> {
    let mut all = Vec::new();
    let Some(card) = &options.cpu.card else {
        return Ok(all);
    };
    let positions = options.model.max_position_embeddings as usize;
    for context in options.contexts.iter().filter(|c| **c <= positions) {
        for sequences in &options.sequences {
            options.cpu.check_goes_on()?;
            let step = Step::new(options, *context, *sequences);
            if step.bytes() > card.memory()[0] / MEMORY_SHARE {
                continue;
            }
            let measured = with_stream(&**card, || step.measure(&**card, options));
            all.push(measured.map_err(CpuError::from)?);
        }
    }
    Ok(all)
}

/// How softmax is put together.
#[derive(Debug, Clone, Copy)]
enum Maximum {
    /// A running one, in two launches.
    InTwo,
    /// A running one.
    Synchronised,
    Unified,
}

const WAYS: [Maximum; 3] = [Maximum::InTwo, Maximum::Synchronised, Maximum::Unified];

impl Maximum {
    fn launches(self, attention: &Attention) -> Result<Vec<Launch>, CudaError> {
        let range = 0;
        Ok(match self {
            Maximum::InTwo => attention.in_two()?.to_vec(),
            Maximum::Synchronised => vec![
                Attention {
                    range,
                    ..*attention
                }
                .launch()?,
            ],
            Maximum::Unified => vec![attention.launch()?],
        })
    }
}

/// A step's attention in one layer.
struct Step<'o> {
    model: &'o ModelSpec,
    dtype: Dtype,
    context: usize,
    sequences: usize,
    /// Rows of the cache.
    rows: usize,
    /// Queries a row.
    group: usize,
}

/// What its kernels work on.
struct Operands<'c> {
    taken: Taken<'c>,
    busy: Busy,
    /// Bytes of a copy of the cache.
    bytes: usize,
    /// For each copy of the cache.
    attentions: Vec<Attention>,
    bins: u64,
}

impl<'o> Step<'o> {
    fn new(options: &'o BenchOptions, context: usize, sequences: usize) -> Step<'o> {
        let model = &options.model;
        Step {
            model,
            dtype: options.dtype,
            context,
            sequences,
            rows: sequences * model.num_key_value_heads as usize,
            group: (model.num_attention_heads / model.num_key_value_heads) as usize,
        }
    }

    fn head_dim(&self) -> usize {
        self.model.head_dim as usize
    }

    /// Bytes of a position: `[K|V][row][head_dim]`.
    fn record_bytes(&self) -> usize {
        2 * self.rows * self.head_dim() * self.dtype.size_bytes() as usize
    }

    /// Bytes of the cache.
    fn bytes(&self) -> usize {
        self.context * self.record_bytes()
    }

    fn measure(
        &self,
        card: &dyn Card,
        options: &BenchOptions,
    ) -> Result<AttentionTimes, CudaError> {
        let operands = self.operands(card)?;
        let first = &operands.attentions[0];
        card.launch(0, &count_scores(first, operands.bins)?)?;
        card.launch(0, &choose_range(operands.bins, first.range))?;
        let mut results = Vec::new();
        for way in WAYS {
            results.push(operands.result(way, self)?);
        }
        let recomputed = operands.recomputed()?;
        let times = operands.times(options)?;
        let unified = &results[2];
        let off = results.iter().map(|result| apart(result, unified));
        Ok(AttentionTimes {
            context: self.context,
            sequences: self.sequences,
            bytes: self.bytes() as u64,
            splits: first.splits,
            in_two_s: median(&times[0]),
            synchronised_s: median(&times[1]),
            unified_s: median(&times[2]),
            recomputed,
            apart: off.fold(0.0, f32::max),
        })
    }

    fn operands<'c>(&self, card: &'c dyn Card) -> Result<Operands<'c>, CudaError> {
        let mut taken = Taken::new(card);
        let (queries, element) = (self.rows * self.group, self.dtype.size_bytes() as usize);
        let blocks = Blocks::of(HeldAs::Whole, self.group, self.head_dim());
        let sums = blocks.partial_sums(self.rows, self.group, card.multiprocessors());
        let bytes = self.bytes();
        let copies = copies(card, bytes);
        // Rows and whole records begin where kernels may read sixteen bytes.
        let caches = taken.numbers(self.dtype, copies * bytes)?;
        let one = Attention {
            dtype: self.dtype,
            held: HeldAs::Whole,
            queries: taken.numbers(self.dtype, queries * self.head_dim() * element)?,
            pages: 0,
            page_ends: taken.words(&[u32::MAX])?,
            firsts: 0,
            numerators: taken.room(4 * sums * self.head_dim())?,
            denominators: taken.room(4 * sums)?,
            maxima: taken.room(4 * sums)?,
            arrived: taken.words(&vec![0_u32; queries])?,
            overflow: taken.words(&vec![0_u32; queries])?,
            range: taken.words(&[0_u32; 4])?,
            recomputed: 0,
            y: taken.room(queries * self.head_dim() * element)?,
            page_count: 1,
            row_start: 0,
            rows: self.rows,
            kv_heads: self.model.num_key_value_heads as usize,
            group: self.group,
            head_dim: self.head_dim(),
            context_len: self.context,
            window: self.model.sliding_window.unwrap_or(0) as usize,
            record_bytes: self.record_bytes(),
            splits: 1,
            part: 0,
            scale: 1.0 / (self.head_dim() as f32).sqrt(),
        }
        .split(card.multiprocessors());
        let mut attentions = Vec::new();
        for copy in 0..copies {
            attentions.push(Attention {
                pages: taken.words(&[caches + (copy * bytes) as u64])?,
                recomputed: one.range + RECOMPUTED_AT,
                ..one
            });
        }
        let bins = taken.words(&[0_u32; SCORE_BINS])?;
        Ok(Operands {
            busy: Busy::new(&mut taken)?,
            bytes,
            taken,
            attentions,
            bins,
        })
    }
}

impl Operands<'_> {
    /// Results over the first copy of the cache.
    fn result(&self, way: Maximum, step: &Step<'_>) -> Result<Vec<f32>, CudaError> {
        let (card, first) = (self.taken.card, &self.attentions[0]);
        let count = step.rows * step.group * step.head_dim();
        let element = step.dtype.size_bytes() as usize;
        self.taken.poison(first.y, count * element)?;
        for launch in way.launches(first)? {
            card.launch(0, &launch)?;
        }
        read_numbers(card, (first.y, step.dtype), count.min(COMPARED_MOST))
    }

    /// Queries that were computed again so far.
    fn recomputed(&self) -> Result<u32, CudaError> {
        let counted = read::<u32>(self.taken.card, self.attentions[0].recomputed, 1)?;
        Ok(counted[0])
    }

    /// Seconds of each way, each time.
    fn times(&self, options: &BenchOptions) -> Result<Vec<Vec<f64>>, CudaError> {
        let card = self.taken.card;
        let launches = |way: Maximum| -> Result<Vec<Vec<Launch>>, CudaError> {
            let of_copies = self.attentions.iter();
            of_copies.map(|of| way.launches(of)).collect()
        };
        let all: Result<Vec<_>, CudaError> = WAYS.into_iter().map(launches).collect();
        let all = all?;
        let next = std::cell::Cell::new(0);
        let give = |launches: &[Vec<Launch>]| {
            let copy = next.get();
            next.set((copy + 1) % launches.len());
            let mut step = launches[copy].iter();
            step.try_for_each(|launch| card.launch(0, launch))
        };
        let ways: Vec<Way<'_>> = all
            .iter()
            .map(|launches| Box::new(|| give(launches)) as Way<'_>)
            .collect();
        let keep_busy = || self.busy.keep(card, self.bytes);
        in_turns_behind(&keep_busy, card, options.repeats, &ways)
    }
}
