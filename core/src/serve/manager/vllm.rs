//! vLLM: blocks of a few tokens, taken as they are needed. When none is left the latest has to leave.

use super::super::{Request, Running, Sequence};
use super::KvManager;
use super::queue::Queue;

/// Tokens of a block (vLLM's default).
pub const BLOCK_TOKENS: u32 = 16;

const BLOCK: usize = BLOCK_TOKENS as usize;

/// Of a hundred blocks, how many are kept free when a request joins, so that it need not leave at once (vLLM's
/// watermark).
const WATERMARK_PERCENT: u64 = 1;

/// What becomes of the cache of those that have to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// It is computed again.
    Recompute,
    /// It goes to the host and comes back.
    Swap,
}

/// Gives blocks to requests, first come, first served.
#[derive(Debug)]
pub struct Vllm {
    preemption: Preemption,
    blocks: u64,
    /// The fewest that there have been.
    least: u64,
    /// Below zero where the cache has shrunk under what is in it.
    free: i64,
    waiting: Queue,
    /// How many of those that run have a base of each remainder by the block: they need a new block in the same
    /// iterations.
    phases: [u32; BLOCK],
}

impl Vllm {
    /// A cache of so many tokens.
    pub fn new(capacity_tokens: u64, preemption: Preemption) -> Vllm {
        let blocks = capacity_tokens / u64::from(BLOCK_TOKENS);
        Vllm {
            preemption,
            blocks,
            least: blocks,
            free: blocks as i64,
            waiting: Queue::default(),
            phases: [0; BLOCK],
        }
    }

    /// Whether one that waits may join.
    fn has_room(&self, running: &Running, sequence: &Sequence) -> bool {
        let kept = match running.count() {
            0 => 0,
            _ => (self.blocks * WATERMARK_PERCENT / 100) as i64,
        };
        self.free - blocks_of(sequence.to_hold()) >= kept
    }

    fn phase(base: i64) -> usize {
        base.rem_euclid(BLOCK as i64) as usize
    }
}

fn blocks_of(tokens: u32) -> i64 {
    i64::from(tokens.div_ceil(BLOCK_TOKENS))
}

impl KvManager for Vllm {
    fn capacity_tokens(&self) -> u64 {
        self.blocks * u64::from(BLOCK_TOKENS)
    }

    fn reserved_tokens(&self) -> u64 {
        (self.blocks as i64 - self.free) as u64 * u64::from(BLOCK_TOKENS)
    }

    fn check(&self, request: &Request) -> Result<(), String> {
        let needed = blocks_of(request.cached_len()) as u64;
        match needed <= self.least {
            true => Ok(()),
            false => Err(format!(
                "needs {needed} blocks of {BLOCK_TOKENS} tokens, and the cache has {}; give a larger --kv-gb",
                self.least
            )),
        }
    }

    fn enqueue(&mut self, id: u32, _: &Running) {
        self.waiting.enqueue(id);
    }

    fn put_back(&mut self, id: u32, _: &Running) {
        self.waiting.put_back(id);
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn next(&self) -> Option<u32> {
        self.waiting.first()
    }

    fn lacks_room(&self, running: &Running) -> bool {
        let first = self.waiting.first().map(|id| running.sequence(id));
        first.is_some_and(|sequence| !self.has_room(running, sequence))
    }

    fn admit(&mut self, running: &Running, tokens_max: u32) -> Option<u32> {
        let sequence = running.sequence(self.waiting.first()?);
        if !self.has_room(running, sequence) || sequence.to_compute() > tokens_max {
            return None;
        }
        self.free -= blocks_of(sequence.to_hold());
        self.waiting.pop()
    }

    fn joined(&mut self, id: u32, running: &Running) {
        self.phases[Vllm::phase(running.sequence(id).base)] += 1;
    }

    fn make_room(&mut self, iteration: i64, running: &mut Running) -> Option<u32> {
        // A block begins with the first of its tokens: `base + iteration` is one more than whole blocks.
        let needed = self.phases[Vllm::phase(1 - iteration)];
        if self.free >= i64::from(needed) {
            self.free -= i64::from(needed);
            return None;
        }
        running.latest()
    }

    fn release(&mut self, id: u32, running: &Running) {
        let sequence = running.sequence(id);
        self.phases[Vllm::phase(sequence.base)] -= 1;
        self.free += blocks_of(sequence.held);
    }

    /// Where blocks are taken away that are in use, the latest have to leave.
    fn resize(&mut self, capacity_tokens: u64) {
        let blocks = capacity_tokens / u64::from(BLOCK_TOKENS);
        self.free += blocks as i64 - self.blocks as i64;
        self.blocks = blocks;
        self.least = self.least.min(blocks);
    }

    fn swaps(&self) -> bool {
        self.preemption == Preemption::Swap
    }
}
