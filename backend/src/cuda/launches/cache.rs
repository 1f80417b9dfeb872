//! Fresh keys and values to a cache; weights to 4-bit groups and back.

use plimsoll_core::Dtype;
use plimsoll_core::compression::GROUP_ELEMENTS;

use super::attention::HeldAs;
use super::{WARP, launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};

/// Of a block that packs or unpacks weights.
const THREADS: usize = 256;

/// Fresh keys and values, and where they go.
#[derive(Debug, Clone, Copy)]
pub struct Append {
    /// Of keys and values.
    pub dtype: Dtype,
    /// What the cache keeps.
    pub held: HeldAs,
    /// `[sequences, query_len, kv_heads, head_dim]`.
    pub keys: u64,
    /// The same.
    pub values: u64,
    /// u64 `[page_count]`: addresses.
    pub pages: u64,
    /// u32 `[page_count]`: past the last position of each.
    pub page_ends: u64,
    /// Pages.
    pub page_count: usize,
    /// The first row of the cache that lies here.
    pub row_start: usize,
    /// Rows that lie here.
    pub rows: usize,
    /// Key/value heads a sequence.
    pub kv_heads: usize,
    /// Elements a head.
    pub head_dim: usize,
    /// Fresh positions.
    pub query_len: usize,
    /// The first of them.
    pub start: usize,
    /// Bytes from a position to the next.
    pub record_bytes: usize,
}

impl Append {
    /// The kernel.
    ///
    /// # Errors
    /// [`CudaError::Type`].
    pub fn launch(&self) -> Result<Launch, CudaError> {
        let arguments = Arguments::new()
            .wides([self.keys, self.values, self.pages, self.page_ends])
            .counts([self.page_count, self.row_start, self.rows])
            .counts([self.kv_heads, self.head_dim, self.query_len])
            .counts([self.start, self.record_bytes]);
        let kernel = match self.held {
            HeldAs::Whole => named("append", self.dtype)?,
            HeldAs::Packed => named("append_packed", self.dtype)?,
        };
        let shape = ([self.rows * self.query_len, 1, 1], 2 * WARP);
        Ok(launch("append", kernel, shape, arguments))
    }
}

/// Packs a matrix of weights `[rows, columns]`, or unpacks it.
///
/// # Errors
/// [`CudaError::Type`].
pub fn matrix_groups(
    (dtype, pack): (Dtype, bool),
    [elements, packed]: [u64; 2],
    [rows, columns]: [usize; 2],
) -> Result<Launch, CudaError> {
    let arguments = Arguments::new()
        .wides([elements, packed])
        .counts([rows, columns]);
    let name = if pack { "pack_matrix" } else { "unpack_matrix" };
    // As in `groups.cu`: columns of a thread, and threads that share those of a band.
    let [of_thread, parts] = if pack { [1, 1] } else { [4, 4] };
    let bands = rows.div_ceil(GROUP_ELEMENTS as usize);
    let grid = [columns.div_ceil(THREADS * of_thread), bands, parts];
    Ok(launch(
        "groups",
        named(name, dtype)?,
        (grid, THREADS),
        arguments,
    ))
}
