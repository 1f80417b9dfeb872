//! Attention of all queries of a prompt over their cache.

use plimsoll_core::Dtype;

use super::attention::{HeldAs, check_cache, kept_name};
use super::{launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};

/// As in `prompt.cu`: threads of a block, its queries, and the positions that it takes at a time.
const THREADS: usize = 256;
const QUERIES: usize = 16;
const KEYS: usize = 16;

/// The operands of a prompt's attention.
#[derive(Debug, Clone, Copy)]
pub struct PromptAttention {
    /// Of queries and results, and of a whole cache.
    pub dtype: Dtype,
    /// What the cache keeps.
    pub held: HeldAs,
    /// `[sequences, query_len, heads, head_dim]`; the results take their place, but for queries of padding.
    pub queries: u64,
    /// u64 `[page_count]`: addresses, multiples of 16.
    pub pages: u64,
    /// u32 `[page_count]`: past the last position of each.
    pub page_ends: u64,
    /// u32 `[sequences]`: the first position seen; 0: all see from the first.
    pub firsts: u64,
    /// Pages.
    pub page_count: usize,
    /// The first row of the cache that lies here.
    pub row_start: usize,
    /// Rows that lie here.
    pub rows: usize,
    /// Key/value heads a sequence.
    pub kv_heads: usize,
    /// Query heads a key/value head.
    pub group: usize,
    /// Elements a head, at most 256.
    pub head_dim: usize,
    /// Queries a sequence.
    pub query_len: usize,
    /// The position of the first.
    pub start: usize,
    /// Positions that are seen; 0: all.
    pub window: usize,
    /// Bytes from a position to the next, as in [`Attention`](super::Attention).
    pub record_bytes: usize,
    /// The factor of the scores.
    pub scale: f32,
}

impl PromptAttention {
    /// The kernel.
    ///
    /// # Errors
    /// [`CudaError::Type`]; [`CudaError::Shape`].
    pub fn launch(&self) -> Result<Launch, CudaError> {
        check_cache(self.held, self.head_dim, self.record_bytes)?;
        let arguments = Arguments::new()
            .wides([self.queries, self.pages, self.page_ends, self.firsts])
            .counts([self.page_count, self.row_start, self.rows])
            .counts([self.kv_heads, self.group, self.head_dim, self.query_len])
            .counts([self.start, self.window, self.record_bytes])
            .float(self.scale);
        let kernel = named("attend_prompt", self.dtype)?;
        let kernel = format!("{kernel}_{}", kept_name(self.held, self.head_dim));
        let grid = [self.rows, self.query_len.div_ceil(QUERIES), self.group];
        let floats = (QUERIES + 2 * KEYS) * self.head_dim + KEYS + QUERIES * KEYS;
        Ok(Launch {
            shared_bytes: (4 * floats) as u32,
            ..launch("prompt", kernel, (grid, THREADS), arguments)
        })
    }
}
