//! What is asked of a serving system.

use crate::units::Seconds;

/// A request: when it comes, and how long its texts are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// When it comes, since the start.
    pub arrival: Seconds,
    /// Tokens in its prompt, at least 1.
    pub prompt_len: u32,
    /// Tokens that its answer will have, at least 1. Nobody but an oracle knows it beforehand.
    pub output_len: u32,
}

impl Request {
    /// Tokens of prompt and answer.
    pub fn total_len(&self) -> u32 {
        self.prompt_len.saturating_add(self.output_len)
    }

    /// Tokens whose keys and values lie in the cache when its last token is made: all but that one.
    pub fn cached_len(&self) -> u32 {
        self.total_len() - 1
    }
}
