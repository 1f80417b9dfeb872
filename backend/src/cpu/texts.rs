//! What goes in and what comes out: prompts, padded in front to the plan's length, and tokens.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};

use plimsoll_core::lower::Texts;
use plimsoll_core::program::BufferId;

use super::{CpuError, CpuExecutor};

/// What stands in front of a shorter prompt. It is computed and nobody sees it, so any id will do.
const PADDING: u32 = 0;

/// Prompts by the buffer that they go to, padded.
pub(super) type Placed = HashMap<BufferId, Vec<u32>>;

/// Token ids that have reached the host.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// Of those GPU batches that were not let go of, by buffer.
    by_buffer: BTreeMap<BufferId, Vec<u32>>,
    /// The first buffer of these, where others were let go of.
    from: Option<BufferId>,
    /// How many there are, with those that were let go of.
    count: usize,
}

impl Results {
    /// Adds a token for each sequence of a GPU batch.
    pub(super) fn add(&mut self, buffer: BufferId, ids: impl ExactSizeIterator<Item = u32>) {
        self.count += ids.len();
        if self.from.is_none_or(|from| from <= buffer) {
            self.by_buffer.entry(buffer).or_default().extend(ids);
        }
    }

    fn forget_before(&mut self, buffer: BufferId) {
        if self.from.is_none_or(|from| from < buffer) {
            self.by_buffer = self.by_buffer.split_off(&buffer);
            self.from = Some(buffer);
        }
    }
}

/// Where a prompt's tokens come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outlet {
    buffer: BufferId,
    /// Its place in the GPU batch.
    sequence: usize,
    /// Sequences of the GPU batch.
    sequences: usize,
}

impl CpuExecutor<'_> {
    /// Says what the prompts are, in the order of rounds, batches and sequences; they are put in place
    /// with the first piece. Those that are shorter than the plan's are padded in front; each gives the
    /// tokens that it gives alone.
    ///
    /// # Errors
    /// Prompts that are not as many as the plan says, empty, longer, or not in the vocabulary; given answers
    /// that are not as many, or as long, or not in the vocabulary.
    pub fn set_prompts(&mut self, texts: &Texts, prompts: &[Vec<u32>]) -> Result<(), CpuError> {
        self.check_prompts(prompts)?;
        let length = self.engine.plan.workload.prompt_len as usize;
        let mut rest = prompts;
        let mut placed = Placed::new();
        let mut padding = Vec::new();
        for (texts, round) in texts.iter().zip(&self.engine.rounds) {
            let mut of_round: Vec<Arc<[u32]>> = Vec::new();
            for ((buffer, _), sequences) in texts.iter().zip(&round.batches) {
                let (own, others) = rest.split_at(*sequences as usize);
                let missing = |prompt: &Vec<u32>| length - prompt.len();
                of_round.push(own.iter().map(|prompt| missing(prompt) as u32).collect());
                let padded = own.iter().flat_map(|prompt| {
                    let front = std::iter::repeat_n(PADDING, missing(prompt));
                    front.chain(prompt.iter().copied())
                });
                placed.insert(*buffer, padded.collect());
                rest = others;
            }
            padding.push(of_round);
        }
        if let Some(device) = &self.device {
            let all = padding.iter().flatten().flat_map(|of| of.iter().copied());
            device.pad(&all.collect::<Vec<u32>>())?;
        }
        let of_engine = &self.engine.padding;
        *of_engine.write().unwrap_or_else(PoisonError::into_inner) = padding;
        self.prompts = Some(placed);
        Ok(())
    }

    fn check_prompts(&self, prompts: &[Vec<u32>]) -> Result<(), CpuError> {
        let check = |what, expected, found, fits| match fits {
            true => Ok(()),
            false => Err(CpuError::Prompts {
                what,
                expected,
                found,
            }),
        };
        let plan = &self.engine.plan;
        let sizes = self.engine.rounds.iter().flat_map(|round| &round.batches);
        let total = sizes.sum::<u32>() as usize;
        let found = prompts.len();
        check("prompts", total, found, found == total)?;
        let (longest, vocabulary) = (plan.workload.prompt_len as usize, plan.model.vocab_size);
        for prompt in prompts {
            let found = prompt.len();
            let fits = (1..=longest).contains(&found);
            check("tokens in a prompt", longest, found, fits)?;
        }
        let gen_len = plan.workload.gen_len as usize;
        let given = self.engine.given.as_deref();
        if let Some(answers) = given {
            check(
                "given answers",
                total,
                answers.len(),
                answers.len() == total,
            )?;
            for found in answers.iter().map(Vec::len) {
                check("tokens in a given answer", gen_len, found, found == gen_len)?;
            }
        }
        let all = prompts.iter().chain(given.unwrap_or_default()).flatten();
        if let Some(id) = all.into_iter().find(|id| **id >= vocabulary) {
            let last = vocabulary as usize - 1;
            check("the largest token id", last, *id as usize, false)?;
        }
        Ok(())
    }

    /// Where the tokens of each prompt come out, in the order of [`CpuExecutor::set_prompts`].
    pub fn outlets(&self, texts: &Texts) -> Vec<Outlet> {
        let sizes = self.engine.rounds.iter().flat_map(|round| &round.batches);
        let batches = texts.iter().flatten().zip(sizes);
        let outlets = batches.flat_map(|((_, buffer), sequences)| {
            (0..*sequences as usize).map(|sequence| Outlet {
                buffer: *buffer,
                sequence,
                sequences: *sequences as usize,
            })
        });
        outlets.collect()
    }

    /// What has come out so far, while the program runs on.
    pub fn so_far(&self, outlet: &Outlet) -> Vec<u32> {
        let results = &self.engine.results;
        let results = results.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = results
            .by_buffer
            .get(&outlet.buffer)
            .map_or(&[][..], Vec::as_slice);
        let own = ids.iter().skip(outlet.sequence).step_by(outlet.sequences);
        own.copied().collect()
    }

    /// Lets go of what has come out, and what still comes out, for the GPU batches before an outlet's.
    pub fn forget_before(&mut self, outlet: &Outlet) {
        let results = &self.engine.results;
        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
        results.forget_before(outlet.buffer);
    }

    /// How many tokens have come out for all prompts.
    pub fn num_generated(&self) -> usize {
        let results = &self.engine.results;
        let results = results.lock().unwrap_or_else(PoisonError::into_inner);
        results.count
    }

    /// What was generated for each prompt that was not let go of, in the order of [`CpuExecutor::set_prompts`]; after an
    /// interruption, as far as it went. Waits until nothing runs.
    pub fn generated(&self, texts: &Texts) -> Vec<Vec<u32>> {
        self.threads.scheduler().quiet();
        let outlets = self.outlets(texts);
        outlets.iter().map(|outlet| self.so_far(outlet)).collect()
    }
}
