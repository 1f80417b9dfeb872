//! The sequences that are computed together, in sums that do not have to be added up anew each time.

use super::calendar::Calendar;
use super::sequence::{Sequence, State};
use crate::roster::Member;

/// All requests, and the sums over those that run.
#[derive(Debug)]
pub struct Running {
    sequences: Vec<Sequence>,
    /// In the order in which they joined. Those that have left stay until nobody is behind them.
    order: Vec<(u32, i64)>,
    count: u32,
    /// Sum of [`Sequence::base`]: with iteration `i` they have `bases + count * i` tokens.
    bases: i64,
    ending: Calendar,
}

impl Running {
    pub(super) fn new(sequences: Vec<Sequence>) -> Running {
        Running {
            sequences,
            order: Vec::new(),
            count: 0,
            bases: 0,
            ending: Calendar::new(),
        }
    }

    /// How many run.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Tokens that they have in the cache in an iteration, that iteration's among them.
    pub fn tokens_at(&self, iteration: i64) -> u64 {
        (self.bases + i64::from(self.count) * iteration) as u64
    }

    /// What an iteration computes of each that runs, in the order in which they joined.
    pub(super) fn members(&self, iteration: i64) -> impl Iterator<Item = Member> + '_ {
        let running = self.order.iter().filter_map(|(id, joined)| {
            let sequence = self.sequence(*id);
            let runs = sequence.state == State::Running && sequence.joined == *joined;
            runs.then_some((*id, sequence))
        });
        running.map(move |(request, sequence)| {
            let all = sequence.tokens_at(iteration);
            let tokens = match sequence.joined == iteration {
                true => sequence.to_compute(),
                false => 1,
            };
            Member {
                request,
                cached: all - tokens,
                tokens,
            }
        })
    }

    /// A request.
    pub fn sequence(&self, id: u32) -> &Sequence {
        &self.sequences[id as usize]
    }

    pub(super) fn sequence_mut(&mut self, id: u32) -> &mut Sequence {
        &mut self.sequences[id as usize]
    }

    /// All requests, in the order of their coming.
    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    /// The one that joined last, of those that run.
    pub fn latest(&mut self) -> Option<u32> {
        while let Some((id, joined)) = self.order.last() {
            let sequence = &self.sequences[*id as usize];
            if sequence.state == State::Running && sequence.joined == *joined {
                return Some(*id);
            }
            self.order.pop();
        }
        None
    }

    /// Adds one that was given room, with an iteration.
    pub(super) fn join(&mut self, id: u32, iteration: i64) {
        let sequence = &mut self.sequences[id as usize];
        sequence.state = State::Running;
        sequence.joined = iteration;
        sequence.base = i64::from(sequence.to_hold()) - iteration;
        let left = sequence.request.output_len - sequence.made;
        let ends = iteration + i64::from(left) - 1;
        // It may have left and come back between two iterations: then its end is noted.
        if ends != sequence.ends {
            sequence.ends = ends;
            self.ending.note(ends, id);
        }
        self.bases += sequence.base;
        self.count += 1;
        // Those that ended long ago, in front of others, would be kept for ever.
        if self.order.len() >= 4 * self.count as usize + 64 {
            let sequences = &self.sequences;
            self.order.retain(|(id, joined)| {
                let of = &sequences[*id as usize];
                of.state == State::Running && of.joined == *joined
            });
        }
        self.order.push((id, iteration));
    }

    /// Takes one out that `iteration` was the last to compute.
    pub(super) fn leave(&mut self, id: u32, iteration: i64, state: State) {
        let sequence = &mut self.sequences[id as usize];
        sequence.state = state;
        sequence.made += (iteration - sequence.joined + 1) as u32;
        sequence.held = sequence.tokens_at(iteration);
        self.bases -= sequence.base;
        self.count -= 1;
    }

    /// Those whose last token an iteration has made.
    pub(super) fn ended(&mut self, iteration: i64, found: &mut Vec<u32>) {
        self.ending.take(iteration, found);
        let sequences = &self.sequences;
        found.retain(|id| {
            let of = &sequences[*id as usize];
            of.state == State::Running && of.ends == iteration
        });
    }
}
