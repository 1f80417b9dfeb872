//! S3: room by the predicted length of the answer, the longest first; a supervisor for those that outgrow it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::super::calendar::Calendar;
use super::super::predict::{Predictor, Score, Tally};
use super::super::{Request, Running, State};
use super::KvManager;

/// What is reserved for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Its answer alone, as the paper's figures have it.
    Output,
    /// Its prompt as well.
    All,
}

/// Reserves what a predictor says (section 3). Who outgrows it goes to the host, is given twice as much, and waits again.
#[derive(Debug)]
pub struct S3 {
    predictor: Box<dyn Predictor>,
    reserve: Reserve,
    capacity: u64,
    free: i64,
    /// By request, the tokens of answer that it has room for; 0 before it came.
    rooms: Vec<u32>,
    /// Those that wait by what they need, the longest first.
    pool: BTreeMap<Reverse<u32>, VecDeque<u32>>,
    waiting: usize,
    outgrown: Calendar,
    found: Vec<u32>,
}

impl S3 {
    /// A cache of so many tokens.
    pub fn new(capacity_tokens: u64, reserve: Reserve, predictor: Box<dyn Predictor>) -> S3 {
        S3 {
            predictor,
            reserve,
            capacity: capacity_tokens,
            free: capacity_tokens as i64,
            rooms: Vec::new(),
            pool: BTreeMap::new(),
            waiting: 0,
            outgrown: Calendar::new(),
            found: Vec::new(),
        }
    }

    /// Tokens that a request's room takes.
    fn taken(&self, room: u32, request: &Request) -> u32 {
        match self.reserve {
            Reserve::Output => room,
            Reserve::All => room + request.prompt_len,
        }
    }

    fn wait(&mut self, id: u32, request: &Request) {
        let key = Reverse(self.taken(self.rooms[id as usize], request));
        self.pool.entry(key).or_default().push_back(id);
        self.waiting += 1;
    }

    /// The most room that makes sense for a request: what the cache has.
    fn most(&self, request: &Request) -> u32 {
        let prompt = match self.reserve {
            Reserve::Output => 0,
            Reserve::All => u64::from(request.prompt_len),
        };
        self.capacity
            .saturating_sub(prompt)
            .min(u64::from(u32::MAX / 2)) as u32
    }
}

impl KvManager for S3 {
    fn capacity_tokens(&self) -> u64 {
        self.capacity
    }

    fn reserved_tokens(&self) -> u64 {
        (self.capacity as i64 - self.free) as u64
    }

    fn check(&self, request: &Request) -> Result<(), String> {
        let needed = u64::from(self.taken(request.output_len, request));
        match needed <= self.capacity {
            true => Ok(()),
            false => Err(format!(
                "needs room for {needed} tokens, and the cache has {}; give a larger --kv-gb",
                self.capacity
            )),
        }
    }

    fn enqueue(&mut self, id: u32, running: &Running) {
        let request = running.sequence(id).request;
        let room = self
            .predictor
            .room(id, &request)
            .clamp(1, self.most(&request));
        self.rooms.resize(self.rooms.len().max(id as usize + 1), 0);
        self.rooms[id as usize] = room;
        self.wait(id, &request);
    }

    fn put_back(&mut self, id: u32, running: &Running) {
        let request = running.sequence(id).request;
        let room = &mut self.rooms[id as usize];
        *room = room.saturating_mul(2);
        self.rooms[id as usize] = self.rooms[id as usize].min(self.most(&request));
        self.wait(id, &request);
    }

    fn waiting(&self) -> usize {
        self.waiting
    }

    fn admit(&mut self, running: &Running, tokens_max: u32) -> Option<u32> {
        // Decreasing first fit: the longest that fits, and of those as long the one that came first.
        let free = u32::try_from(self.free.min(i64::from(u32::MAX))).ok()?;
        let is_computed = |(_, ids): &(&Reverse<u32>, &VecDeque<u32>)| {
            let first = ids.front().map(|id| running.sequence(*id));
            first.map_or(0, |sequence| sequence.to_compute()) <= tokens_max
        };
        let key = *self.pool.range(Reverse(free)..).find(is_computed)?.0;
        let ids = self.pool.get_mut(&key)?;
        let id = ids.pop_front()?;
        if ids.is_empty() {
            self.pool.remove(&key);
        }
        self.waiting -= 1;
        self.free -= i64::from(key.0);
        Some(id)
    }

    fn joined(&mut self, id: u32, running: &Running) {
        let sequence = running.sequence(id);
        let left = self.rooms[id as usize].saturating_sub(sequence.made).max(1);
        let full = sequence.joined + i64::from(left);
        if full <= sequence.ends {
            self.outgrown.note(full, id);
        }
    }

    fn make_room(&mut self, iteration: i64, running: &mut Running) -> Option<u32> {
        self.outgrown.take(iteration, &mut self.found);
        while let Some(id) = self.found.pop() {
            if running.sequence(id).state == State::Running {
                return Some(id);
            }
        }
        None
    }

    fn release(&mut self, id: u32, running: &Running) {
        let sequence = running.sequence(id);
        self.free += i64::from(self.taken(self.rooms[id as usize], &sequence.request));
        if sequence.state == State::Done {
            self.predictor.learn(id, &sequence.request);
        }
    }

    fn resize(&mut self, capacity_tokens: u64) {
        self.free += capacity_tokens as i64 - self.capacity as i64;
        self.capacity = capacity_tokens;
    }

    fn swaps(&self) -> bool {
        true
    }

    fn prediction_score(&self) -> Option<Score> {
        self.predictor.tally().and_then(Tally::score)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::predict::Oracle;
    use super::super::super::sequence::Sequence;
    use super::*;
    use crate::units::Seconds;

    /// Requests of these prompts and answers, all of which wait for a cache of so many tokens.
    fn waiting(tokens: u64, lengths: &[(u32, u32)]) -> (S3, Running) {
        let sequence = |(prompt_len, output_len): &(u32, u32)| {
            Sequence::new(Request {
                arrival: Seconds::ZERO,
                prompt_len: *prompt_len,
                output_len: *output_len,
            })
        };
        let running = Running::new(lengths.iter().map(sequence).collect());
        let mut s3 = S3::new(tokens, Reserve::Output, Box::new(Oracle));
        for id in 0..lengths.len() as u32 {
            s3.enqueue(id, &running);
        }
        (s3, running)
    }

    #[test]
    fn the_longest_that_fits_is_admitted_and_of_those_as_long_who_came_first() {
        let lengths = [(1, 30), (1, 80), (9, 50), (1, 50), (1, 120)];
        let (mut s3, running) = waiting(200, &lengths);
        let mut admitted = |tokens_max| s3.admit(&running, tokens_max);
        assert_eq!([admitted(9), admitted(9)], [Some(4), Some(1)]);
        assert_eq!(admitted(9), None);
        // A smaller cache has less than nothing left.
        s3.resize(150);
        assert_eq!(s3.admit(&running, 9), None);
        s3.resize(400);
        let mut admitted = |tokens_max| s3.admit(&running, tokens_max);
        // Who came first of the longest has a prompt that is too long this time.
        assert_eq!(admitted(8), Some(0));
        assert_eq!([admitted(9), admitted(9)], [Some(2), Some(3)]);
    }

    #[test]
    fn a_cache_of_more_tokens_than_anyone_asks_for_admits_all() {
        let (mut s3, running) = waiting(1 << 40, &[(1, 5), (1, u32::MAX / 2)]);
        let admitted = [(); 3].map(|()| s3.admit(&running, u32::MAX));
        assert_eq!(admitted, [Some(1), Some(0), None]);
    }
}
