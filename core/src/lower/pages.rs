//! How a home of the KV cache is cut into pages, and which pages each GPU batch holds.
//!
//! In the diagonal block schedule (FlexGen appendix A.2.1) the GPU batches of a block are at different
//! tokens, so their caches are never all full. A home's first page holds the prompt and the tokens up
//! to the next admission; the pages after it are taken when tokens first need them, and go to other
//! batches when theirs leaves. Finer pages would not lower the peak by much, and each is a copy of its
//! own where the cache is loaded. In the other schedules all batches are at the same token: one page.

use std::collections::VecDeque;
use std::ops::Range;

use super::schedule::{Passes, Turn};
use crate::policy::{Policy, Schedule};
use crate::workload::Workload;

/// Pages of a home at most: each is a copy where the cache is loaded, and an eighth of what a batch
/// generates is little beside what it holds.
const PAGES_MAX: u32 = 8;

/// Where homes are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Positions of the first page.
    pub first: u64,
    /// Positions of each further page, which is also how many passes lie between two of them.
    pub further: u64,
}

impl Cut {
    pub(super) fn new(policy: &Policy, workload: &Workload) -> Cut {
        let pages = match policy.schedule {
            Schedule::Row | Schedule::ZigZag => 1,
            // The peak comes just before an admission, and pages that end there are full.
            Schedule::Diagonal => policy.num_gpu_batches.clamp(1, PAGES_MAX),
        };
        let further = u64::from(workload.gen_len.div_ceil(pages)).max(1);
        Cut {
            first: (u64::from(workload.prompt_len) + further).saturating_sub(1),
            further,
        }
    }

    /// The page of a position.
    pub(super) fn page_of(&self, position: u64) -> usize {
        match position.checked_sub(self.first) {
            Some(behind) => (behind / self.further) as usize + 1,
            None => 0,
        }
    }

    /// The first position of a page.
    pub(super) fn start(&self, page: usize) -> u64 {
        match page as u64 {
            0 => 0,
            page => self.first + (page - 1) * self.further,
        }
    }

    /// Positions of a page.
    pub(super) fn length(&self, page: usize) -> u64 {
        match page {
            0 => self.first,
            _ => self.further,
        }
    }

    /// The positions in each page of a cache that holds so many.
    pub(super) fn filled(self, positions: u64) -> impl Iterator<Item = Range<u64>> {
        let starts = (0..).map(move |page| self.start(page));
        let starts = starts
            .take_while(move |start| *start < positions)
            .enumerate();
        starts.map(move |(page, start)| start..positions.min(start + self.length(page)))
    }

    /// Pages beside the first that a batch holds in the pass in which a token comes out.
    pub(super) fn further_pages(&self, token: u64) -> u64 {
        token / self.further
    }
}

/// The pages beside the first that each GPU batch holds, by its place in the block. All layers of a
/// batch hold as many, so a number here stands for a page of each layer.
#[derive(Debug)]
pub(super) struct PageTable {
    cut: Cut,
    count: usize,
    held: Vec<Vec<u32>>,
    /// The one that was given back first is taken first.
    free: VecDeque<u32>,
    /// Places whose batch had its last pass.
    left: Vec<usize>,
    last_token: u32,
}

impl PageTable {
    /// All pages free; see [`Passes::most_pages`] for how many there must be.
    pub(super) fn new(cut: Cut, places: usize, pages: u64, gen_len: u32) -> PageTable {
        PageTable {
            cut,
            count: pages as usize,
            held: vec![Vec::new(); places],
            free: (0..pages as u32).collect(),
            left: Vec::new(),
            last_token: gen_len.saturating_sub(1),
        }
    }

    /// GPU batches at a time.
    pub(super) fn places(&self) -> usize {
        self.held.len()
    }

    /// Pages in all.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes what the batches of the next pass need, after those that left have given back theirs.
    ///
    /// # Panics
    /// Where pages run out, which no plan can bring about: their number is the most over all passes.
    pub(super) fn begin_pass(&mut self, turns: &[Turn]) {
        for place in self.left.drain(..) {
            self.free.extend(self.held[place].drain(..));
        }
        for turn in turns {
            let held = &mut self.held[usize::from(turn.batch)];
            while (held.len() as u64) < self.cut.further_pages(u64::from(turn.token)) {
                let page = self.free.pop_front();
                held.push(page.expect("a page is free: there are as many as passes need at most"));
            }
            if turn.token == self.last_token {
                self.left.push(usize::from(turn.batch));
            }
        }
    }

    /// The pages of a batch, in the order of their positions.
    pub(super) fn of(&self, batch: u16) -> &[u32] {
        &self.held[usize::from(batch)]
    }
}

/// Positions of the cache that a block sets aside for one sequence of each of its GPU batches, in all:
/// in a zig-zag schedule as many for each batch as it needs at its last token, in a diagonal about
/// those of half of its tokens (FlexGen appendix A.2.1).
pub fn cache_positions(policy: &Policy, workload: &Workload) -> u64 {
    let passes = Passes::new(policy, workload);
    let places = super::most_batches(passes.rounds()) as u64;
    let cut = Cut::new(policy, workload);
    places * cut.first + passes.most_pages(cut) * cut.further
}
