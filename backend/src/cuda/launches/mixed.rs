//! Sequences at different places, each with blocks of the cache of its own: attention, and fresh keys and values.

use plimsoll_core::Dtype;

use super::attention::{Attention, HeldAs, check_cache};
use super::prompt::PromptAttention;
use super::{WARP, launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};

/// Where the blocks of some sequences are, one sequence after another, and which of the new tokens are whose.
#[derive(Debug, Clone, Copy)]
pub struct OwnBlocks {
    /// u64: addresses, multiples of 16, of each sequence in the order of positions.
    pub blocks: u64,
    /// u32 `[sequences]`: which of them is the first of each.
    pub starts: u64,
    /// u32 `[sequences]`: positions of each, the newest included.
    pub contexts: u64,
    /// u32 `[sequences + 1]`: each one's first new token among all, and past the last.
    pub tokens: u64,
    /// Positions that a block holds.
    pub block_tokens: usize,
}

impl OwnBlocks {
    /// Behind the arguments that name pages which all share.
    fn behind(&self, arguments: Arguments) -> Arguments {
        arguments
            .wides([self.blocks, self.starts, self.contexts, self.tokens])
            .counts([self.block_tokens])
    }
}

/// A cache in blocks is whole: there is no kernel for packed ones.
fn check(held: HeldAs, head_dim: usize, record_bytes: usize) -> Result<(), CudaError> {
    match held {
        HeldAs::Whole => check_cache(held, head_dim, record_bytes),
        HeldAs::Packed => Err(CudaError::NoKernel(
            "attend_mixed, of a packed cache".to_owned(),
        )),
    }
}

/// The variant of a prompt's kernel over blocks, on tensor cores or not.
fn mixed_name(kernel: &str) -> String {
    let named = kernel.replacen("attend_prompt", "attend_prompt_mixed", 1);
    named.replacen("attend_tiles", "attend_tiles_mixed", 1)
}

impl Attention {
    /// The kernel of an attention of one new token a sequence over its own blocks. Of pages and padding nothing is read.
    ///
    /// # Errors
    /// As [`Attention::launch`].
    pub fn mixed(&self, own: &OwnBlocks) -> Result<Launch, CudaError> {
        check(self.held, self.head_dim, self.record_bytes)?;
        self.launch_of("attend_mixed", own.behind(self.arguments()))
    }
}

impl PromptAttention {
    /// The kernel, of prompts of different lengths over their own blocks: `query_len` is the longest's. Of pages, padding and
    /// the first position nothing is read.
    ///
    /// # Errors
    /// As [`PromptAttention::launch`].
    pub fn mixed(&self, own: &OwnBlocks) -> Result<Launch, CudaError> {
        check(self.held, self.head_dim, self.record_bytes)?;
        let attend = self.launch()?;
        Ok(Launch {
            kernel: mixed_name(&attend.kernel),
            arguments: own.behind(attend.arguments),
            ..attend
        })
    }
}

/// Fresh keys and values of tokens of sequences at different places, and where they go.
#[derive(Debug, Clone, Copy)]
pub struct MixedAppend {
    /// Of keys and values.
    pub dtype: Dtype,
    /// `[tokens, kv_heads, head_dim]`.
    pub keys: u64,
    /// The same.
    pub values: u64,
    /// Where the sequences' blocks are.
    pub own: OwnBlocks,
    /// u32 `[tokens]`: whose each is.
    pub sequences: u64,
    /// u32 `[tokens]`: in its sequence.
    pub positions: u64,
    /// Tokens.
    pub count: usize,
    /// Key/value heads a sequence.
    pub kv_heads: usize,
    /// Elements a head.
    pub head_dim: usize,
    /// Bytes from a position to the next.
    pub record_bytes: usize,
}

impl MixedAppend {
    /// The kernel.
    ///
    /// # Errors
    /// [`CudaError::Type`].
    pub fn launch(&self) -> Result<Launch, CudaError> {
        let arguments = Arguments::new()
            .wides([self.keys, self.values, self.own.blocks, self.own.starts])
            .wides([self.sequences, self.positions])
            .counts([self.kv_heads, self.head_dim])
            .counts([self.own.block_tokens, self.record_bytes]);
        let kernel = named("append_mixed", self.dtype)?;
        let shape = ([self.count, self.kv_heads, 1], 2 * WARP);
        Ok(launch("append", kernel, shape, arguments))
    }
}
