//! Fresh keys and values to a cache; weights to 4-bit groups and back.

use plimsoll_core::Dtype;
use plimsoll_core::compression::GROUP_ELEMENTS;

use super::attention::HeldAs;
use super::elements::blocks_of;
use super::{WARP, launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};

/// Of a block that copies eights, or packs or unpacks weights.
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
    /// Where records are, one a position.
    pub page: u64,
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
    /// The place of the first of them in the page.
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
            .wides([self.keys, self.values, self.page])
            .counts([self.row_start, self.rows])
            .counts([self.kv_heads, self.head_dim, self.query_len])
            .counts([self.start, self.record_bytes]);
        let of_rows = self.rows * self.query_len;
        let kernel = match self.held {
            HeldAs::Whole if self.is_of_eights() => {
                let eights = 2 * of_rows * self.head_dim / 8;
                let shape = ([blocks_of(eights), 1, 1], THREADS);
                let kernel = "append_eights".to_owned();
                return Ok(launch("append", kernel, shape, arguments));
            }
            HeldAs::Whole => named("append", self.dtype)?,
            HeldAs::Packed => named("append_packed", self.dtype)?,
        };
        let shape = ([of_rows, 1, 1], 2 * WARP);
        Ok(launch("append", kernel, shape, arguments))
    }

    /// Whether all heads begin at multiples of 16 bytes and end there.
    fn is_of_eights(&self) -> bool {
        let places = [self.keys, self.values, self.page, self.record_bytes as u64];
        self.head_dim.is_multiple_of(8) && places.iter().all(|place| place.is_multiple_of(16))
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
