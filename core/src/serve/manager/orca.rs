//! Orca: each request has the room of the longest there may be, so that its answer can always be ended.

use super::super::{Request, Running};
use super::KvManager;
use super::queue::Queue;

/// Reserves a maximum length for each request. Nobody has to leave.
#[derive(Debug)]
pub struct Orca {
    max_len: u32,
    /// Requests that have room at once.
    seats: u64,
    taken: u64,
    waiting: Queue,
}

impl Orca {
    /// A cache of so many tokens, of which each request gets `max_len`.
    pub fn new(capacity_tokens: u64, max_len: u32) -> Orca {
        Orca {
            max_len,
            seats: capacity_tokens / u64::from(max_len.max(1)),
            taken: 0,
            waiting: Queue::default(),
        }
    }
}

impl KvManager for Orca {
    fn capacity_tokens(&self) -> u64 {
        self.seats * u64::from(self.max_len)
    }

    fn reserved_tokens(&self) -> u64 {
        self.taken * u64::from(self.max_len)
    }

    fn check(&self, request: &Request) -> Result<(), String> {
        let (len, max) = (request.total_len(), self.max_len);
        if len > max {
            return Err(format!(
                "has {len} tokens, and {max} are reserved for each; give a larger --max-len"
            ));
        }
        match self.seats {
            0 => Err(format!(
                "needs the {max} tokens that are reserved for each, and the cache has less; give a larger \
                 --kv-gb or a smaller --max-len"
            )),
            _ => Ok(()),
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

    fn admit(&mut self, running: &Running, tokens_max: u32) -> Option<u32> {
        let id = self.waiting.first()?;
        let fits = self.taken < self.seats && running.sequence(id).to_compute() <= tokens_max;
        if !fits {
            return None;
        }
        self.taken += 1;
        self.waiting.pop()
    }

    fn joined(&mut self, _: u32, _: &Running) {}

    fn make_room(&mut self, _: i64, _: &mut Running) -> Option<u32> {
        None
    }

    fn resize(&mut self, capacity_tokens: u64) {
        self.seats = capacity_tokens / u64::from(self.max_len.max(1));
    }

    fn release(&mut self, _: u32, _: &Running) {
        self.taken -= 1;
    }
}
