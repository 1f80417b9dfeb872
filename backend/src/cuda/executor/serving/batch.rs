//! An iteration's sequences in the order in which the card computes them, and the tables that its kernels read.

use plimsoll_core::roster::Member;
use plimsoll_core::units::Bytes;

use super::cache::CardCache;
use crate::cpu::error::TaskError;
use crate::serving::ServingError;
use crate::serving::texts::Texts;
use crate::tiers::Region;

/// What tables begin at multiples of.
const ALIGNMENT: usize = 16;

/// A mixed batch: sequences that get their next token, then those of which more is computed.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub members: Vec<Member>,
    /// How many of them get their next token and no more is computed of them.
    pub steps: usize,
    /// All tokens by their numbers.
    ids: Vec<u32>,
}

impl Batch {
    /// Of these sequences, which get their blocks.
    pub(super) fn new(
        members: &[Member],
        texts: &Texts,
        cache: &CardCache,
    ) -> Result<Batch, ServingError> {
        let (steps, prompts): (Vec<Member>, Vec<Member>) = members
            .iter()
            .copied()
            .partition(|member| member.tokens == 1);
        let mut batch = Batch {
            steps: steps.len(),
            members: [steps, prompts].concat(),
            ids: Vec::new(),
        };
        for member in &batch.members {
            texts.add_new(member, &mut batch.ids)?;
            cache.grow(member.request, (member.cached + member.tokens) as usize)?;
        }
        Ok(batch)
    }

    pub(super) fn tokens(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn requests(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.request).collect()
    }

    /// The longest context of sequences that get their next token.
    pub(super) fn longest_context(&self) -> usize {
        let contexts = self.members[..self.steps].iter().map(|m| m.cached + 1);
        contexts.max().unwrap_or(0) as usize
    }

    /// The most tokens that are computed of a sequence.
    pub(super) fn longest_prompt(&self) -> usize {
        let tokens = self.members[self.steps..].iter().map(|m| m.tokens);
        tokens.max().unwrap_or(0) as usize
    }

    /// Each sequence's last token, among all.
    pub(super) fn last_tokens(&self) -> impl Iterator<Item = usize> + '_ {
        self.members.iter().scan(0, |end, member| {
            *end += member.tokens as usize;
            Some(*end - 1)
        })
    }
}

/// Where tables are, from the first one on, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tables {
    /// u64: blocks of all sequences, layer after layer.
    pub blocks: usize,
    /// How many of them a layer has.
    pub blocks_a_layer: usize,
    /// u32, as [`OwnBlocks`](crate::cuda::launches::OwnBlocks) has them.
    pub starts: usize,
    pub contexts: usize,
    pub tokens: usize,
    /// u32, by token: whose it is, where it is in its text, and its number.
    pub sequences: usize,
    pub positions: usize,
    pub ids: usize,
    /// Bytes of all.
    pub end: usize,
}

impl Tables {
    /// Bytes that tables take at most.
    pub(super) fn most(blocks: usize, sequences: usize, tokens: usize) -> usize {
        8 * blocks + 4 * (3 * sequences + 1 + 3 * tokens) + 7 * ALIGNMENT
    }

    /// Writes the tables of a batch for some layers.
    pub(super) fn write(
        batch: &Batch,
        (cache, layers): (&CardCache, std::ops::Range<usize>),
        into: &mut Region,
    ) -> Result<Tables, TaskError> {
        let requests = batch.requests();
        let mut sheet = Sheet {
            bytes: into.bytes_mut(),
            used: 0,
        };
        let blocks = cache.blocks(layers.clone(), &requests);
        let members = || batch.members.iter();
        let each = |of: fn(&Member, usize) -> Vec<u32>| {
            let all = members().enumerate();
            all.flat_map(move |(sequence, member)| of(member, sequence))
        };
        let counts = cache.counts(&requests).into_iter();
        let positions = each(|m, _| (m.cached..m.cached + m.tokens).collect());
        Ok(Tables {
            blocks_a_layer: blocks.len() / layers.len().max(1),
            blocks: sheet.put(&blocks)?,
            starts: sheet.put(&sums(counts.map(|count| count as u32)))?,
            contexts: sheet.put(&each(|m, _| vec![m.cached + m.tokens]).collect::<Vec<_>>())?,
            tokens: sheet.put(&sums(members().map(|m| m.tokens)))?,
            sequences: sheet
                .put(&each(|m, s| vec![s as u32; m.tokens as usize]).collect::<Vec<_>>())?,
            positions: sheet.put(&positions.collect::<Vec<_>>())?,
            ids: sheet.put(&batch.ids)?,
            end: sheet.used,
        })
    }
}

/// Zero, and each sum of the first counts.
fn sums(counts: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut sums = vec![0];
    sums.extend(counts.scan(0, |sum, count| {
        *sum += count;
        Some(*sum)
    }));
    sums
}

/// Memory that is written from its begin on.
struct Sheet<'m> {
    bytes: &'m mut [u8],
    used: usize,
}

impl Sheet<'_> {
    /// Writes words behind the others; says where.
    fn put<T: bytemuck::NoUninit>(&mut self, words: &[T]) -> Result<usize, TaskError> {
        let words: &[u8] = bytemuck::cast_slice(words);
        let start = self.used.next_multiple_of(ALIGNMENT);
        let room = self.bytes.len();
        let place = self.bytes.get_mut(start..start + words.len());
        let place = place.ok_or(TaskError::PastEnd {
            bytes: Bytes((start + words.len()) as u64),
            room: Bytes(room as u64),
        })?;
        place.copy_from_slice(words);
        self.used = start + words.len();
        Ok(start)
    }
}
