//! What is asked of the machine: prompts in, tokens out.

use serde::{Deserialize, Serialize};

use crate::units::Seconds;

/// Prompts of one padded length, each answered with the same number of tokens (FlexGen section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Tokens in each prompt, after padding.
    pub prompt_len: u32,
    /// Tokens generated for each prompt.
    pub gen_len: u32,
    /// How many prompts there are. `None`: endless, so a block is always full.
    #[serde(default)]
    pub num_prompts: Option<u64>,
}

impl Workload {
    /// Cache positions that a sequence needs: the last generated token is never read back.
    pub fn cache_len(&self) -> u32 {
        self.prompt_len
            .saturating_add(self.gen_len)
            .saturating_sub(1)
    }
}

/// One request of a serving workload, arriving on its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Identity in reports.
    pub id: u64,
    /// When it arrives, on the executor's clock.
    pub arrived_at_s: Seconds,
    /// Tokens in the prompt.
    pub prompt_len: u32,
    /// Tokens that it will generate.
    pub gen_len: u32,
}
