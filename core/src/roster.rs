//! Who takes part in an iteration of a serving system: what an executor needs beside the iteration's sums, which are all
//! that its duration depends on.

use crate::program::TaskId;

/// An iteration's requests by name. Requests are numbered in the order of their coming.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster {
    /// Requests whose room in the cache is free again, since they have ended or had to leave. What one of them has said
    /// so far is kept: it may be computed again.
    pub left: Vec<u32>,
    /// What the moves among the piece's tasks bring where.
    pub moves: Vec<(TaskId, Moved)>,
    /// Those that are computed.
    pub members: Vec<Member>,
}

/// A request that an iteration computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub request: u32,
    /// Tokens that the cache has of it.
    pub cached: u32,
    /// Tokens behind them that are computed: of its prompt, and of its answer so far.
    pub tokens: u32,
}

/// What a move brings where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// The keys and values of a request, of so many tokens, from the device to the host; their room is free with the
    /// move's end.
    Out(u32, u32),
    /// A request's keys and values, back to the device.
    In(u32),
    /// A layer's cache of all requests, from the device to the host.
    LayerOut(u16),
    /// A layer's cache of all requests, back to the device.
    LayerIn(u16),
}

impl Moved {
    /// Whether it waits for another: who comes back may need the room that another leaves, or be who has just left.
    pub fn follows(self, other: Moved) -> bool {
        matches!((self, other), (Moved::In(_), Moved::Out(..)))
    }
}
