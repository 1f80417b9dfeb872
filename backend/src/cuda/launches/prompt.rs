//! Attention of all queries of a prompt over their cache.

use plimsoll_core::Dtype;

use super::attention::{HeldAs, check_cache, kept_name};
use super::{launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};
use crate::kernels::groups::head_bytes;

/// As in `prompt.cu`: threads of a block, its queries, and the positions that it takes at a time.
const THREADS: usize = 256;
const QUERIES: usize = 16;
const KEYS: usize = 16;

/// A kernel of `tiles.cu`: heads are padded to this many elements in shared memory.
struct Tiles {
    width: usize,
}

impl Tiles {
    const THREADS: usize = 128;
    const QUERIES: usize = 64;
    const KEYS: usize = 32;

    /// The one for heads of a size; none where they are larger or no whole eights.
    fn of(head_dim: usize) -> Option<Tiles> {
        let width = [64, 128].into_iter().find(|width| head_dim <= *width)?;
        head_dim.is_multiple_of(8).then_some(Tiles { width })
    }

    /// Keys and values of two tiles, their rows padded so that loads lie in different banks, and where the keys are.
    fn shared_bytes(&self) -> usize {
        let (key, value) = (self.width + 32, self.width + 8);
        2 * Tiles::KEYS * (2 * (key + value) + size_of::<u64>())
    }
}

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
    /// Bytes of the cache between the GPU's memory and its multiprocessors, by which blocks are ordered.
    pub cache_bytes: usize,
}

impl PromptAttention {
    /// The kernel.
    ///
    /// # Errors
    /// [`CudaError::Type`]; [`CudaError::Shape`].
    pub fn launch(&self) -> Result<Launch, CudaError> {
        check_cache(self.held, self.head_dim, self.record_bytes)?;
        match Tiles::of(self.head_dim) {
            Some(tiles) => self.on_tensor_cores(&tiles, "attend_tiles"),
            None => self.on_cuda_cores(),
        }
    }

    /// What stands in for [`PromptAttention::launch`] in bf16 where tensor cores do not know it: whole heads of at most 64
    /// elements.
    ///
    /// # Errors
    /// As [`PromptAttention::launch`].
    pub fn plain(&self) -> Result<Launch, CudaError> {
        check_cache(self.held, self.head_dim, self.record_bytes)?;
        self.on_tensor_cores(&Tiles { width: 64 }, "attend_tiles_plain")
    }

    fn arguments(&self) -> Arguments {
        Arguments::new()
            .wides([self.queries, self.pages, self.page_ends, self.firsts])
            .counts([self.page_count, self.row_start, self.rows])
            .counts([self.kv_heads, self.group, self.head_dim, self.query_len])
            .counts([self.start, self.window, self.record_bytes])
            .float(self.scale)
    }

    /// Blocks of so many queries: heads, their queries, and lots of heads. In the order of a grid each lot begins with those
    /// queries that see the most, so that none of them is left to the end alone. There is one lot, unless keys and values are
    /// more than the cache keeps until other queries of their head come.
    fn grid(&self, queries: usize) -> [usize; 3] {
        let head = match self.held {
            HeldAs::Whole => 2 * self.head_dim,
            HeldAs::Packed => head_bytes(self.head_dim),
        };
        let bytes = 2 * head * (self.start + self.query_len) * self.rows;
        let lots = match bytes <= self.cache_bytes {
            true => 1,
            false => bytes.div_ceil((self.cache_bytes / 2).max(1)),
        };
        let near = self.rows.div_ceil(lots).max(1);
        [
            near * self.group,
            self.query_len.div_ceil(queries),
            self.rows.div_ceil(near),
        ]
    }

    fn on_tensor_cores(&self, tiles: &Tiles, kernel: &str) -> Result<Launch, CudaError> {
        let kernel = format!(
            "{}_w{}_{}",
            named(kernel, self.dtype)?,
            tiles.width,
            kept_name(self.held, self.head_dim)
        );
        let shape = (self.grid(Tiles::QUERIES), Tiles::THREADS);
        Ok(Launch {
            shared_bytes: tiles.shared_bytes() as u32,
            ..launch("tiles", kernel, shape, self.arguments())
        })
    }

    fn on_cuda_cores(&self) -> Result<Launch, CudaError> {
        let kernel = named("attend_prompt", self.dtype)?;
        let kernel = format!("{kernel}_{}", kept_name(self.held, self.head_dim));
        let floats = (QUERIES + 2 * KEYS) * self.head_dim + KEYS + QUERIES * KEYS;
        Ok(Launch {
            shared_bytes: (4 * floats) as u32,
            ..launch(
                "prompt",
                kernel,
                (self.grid(QUERIES), THREADS),
                self.arguments(),
            )
        })
    }
}
