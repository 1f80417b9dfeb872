//! Who gets room in the KV cache.

mod orca;
mod queue;
mod s3;
mod vllm;

use std::fmt::Debug;

pub use orca::Orca;
pub use s3::{Reserve, S3};
pub use vllm::{BLOCK_TOKENS, Preemption, Vllm};

use super::predict::Score;
use super::{Request, Running};

/// Decides which requests have room. The scheduler asks for each iteration: first who has to leave so that those who
/// run have room for their next token, then who joins.
pub trait KvManager: Debug {
    /// Tokens whose keys and values it has room for.
    fn capacity_tokens(&self) -> u64;

    /// Tokens that it has given away the room of.
    fn reserved_tokens(&self) -> u64;

    /// Whether a request would ever have room, if it were alone.
    ///
    /// # Errors
    /// Why not, and what would help.
    fn check(&self, request: &Request) -> Result<(), String>;

    /// A request has come.
    fn enqueue(&mut self, id: u32, running: &Running);

    /// A request that had to leave waits again.
    fn put_back(&mut self, id: u32, running: &Running);

    /// How many wait.
    fn waiting(&self) -> usize;

    /// Gives room to the next that is to join, if it has room and asks for no more tokens to be computed than this.
    fn admit(&mut self, running: &Running, tokens_max: u32) -> Option<u32>;

    /// One that was admitted has joined.
    fn joined(&mut self, id: u32, running: &Running);

    /// Makes room for an iteration's token of each that runs: says who must leave first, if anybody, and is asked again.
    fn make_room(&mut self, iteration: i64, running: &mut Running) -> Option<u32>;

    /// Takes the room back of one that has left.
    fn release(&mut self, id: u32, running: &Running);

    /// The cache has room for another number of tokens from now on. Requests are refused by the least that it had.
    fn resize(&mut self, capacity_tokens: u64);

    /// Whether the cache of those that must leave goes to the host; else it is computed again.
    fn swaps(&self) -> bool {
        false
    }

    /// Who is to join next, whether or not there is room; where those that wait have an order.
    fn next(&self) -> Option<u32> {
        None
    }

    /// Whether there is no room for that one.
    fn lacks_room(&self, _running: &Running) -> bool {
        false
    }

    /// How good its predictions of answers' lengths have been, where it learns them.
    fn prediction_score(&self) -> Option<Score> {
        None
    }
}
