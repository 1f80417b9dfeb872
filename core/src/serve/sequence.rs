//! What becomes of a request: how far its answer is, and the times that are told of it.

use super::Request;
use crate::units::Seconds;

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It has not come, or waits.
    Waiting,
    /// It is computed with every iteration.
    Running,
    /// Its answer is whole.
    Done,
    /// It can never have room.
    Refused,
}

/// A request, and what has become of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sequence {
    /// What is asked.
    pub request: Request,
    /// Where it is.
    pub state: State,
    /// Tokens of its answer that there were when it last joined or left.
    pub made: u32,
    /// Tokens whose keys and values it had when it last left.
    pub held: u32,
    /// Whether these lie on the host; else they are to be computed again.
    pub on_host: bool,
    /// The iteration with which it last joined.
    pub joined: i64,
    /// Its tokens in the cache in iteration `i`, that iteration's among them, are `base + i`.
    pub base: i64,
    /// The iteration that makes its last token.
    pub ends: i64,
    /// How often it had to leave before its end.
    pub preemptions: u32,
    /// Time of the iterations that computed it, as far as it has left them; less the clock of iterations at its joining
    /// while it runs.
    pub computed: Seconds,
    /// When its first token was there.
    pub first_token: Seconds,
    /// When its last token so far was there, as of its last leaving.
    pub last_token: Seconds,
}

impl Sequence {
    pub(super) fn new(request: Request) -> Sequence {
        Sequence {
            request,
            state: State::Waiting,
            made: 0,
            held: 0,
            on_host: false,
            joined: 0,
            base: 0,
            ends: 0,
            preemptions: 0,
            computed: Seconds::ZERO,
            first_token: Seconds(f64::NAN),
            last_token: Seconds(f64::NAN),
        }
    }

    /// Tokens in the cache in an iteration, that iteration's among them, while it runs.
    pub fn tokens_at(&self, iteration: i64) -> u32 {
        (self.base + iteration) as u32
    }

    /// Tokens to be computed when it joins: all that it has, or one where the others come back from the host.
    pub fn to_compute(&self) -> u32 {
        match self.on_host {
            true => 1,
            false => self.request.prompt_len + self.made,
        }
    }

    /// Tokens that need room in the iteration with which it joins.
    pub fn to_hold(&self) -> u32 {
        match self.on_host {
            true => self.held + 1,
            false => self.request.prompt_len + self.made,
        }
    }

    /// From its coming to its end.
    pub fn latency(&self) -> Seconds {
        self.last_token - self.request.arrival
    }
}
