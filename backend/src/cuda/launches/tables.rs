//! Small tables that other kernels read.

use super::{WARP, launch};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};

/// As in `tables.cu`: the most pages that a cache may lie in.
pub const PAGES_MOST: usize = 16;

const THREADS: usize = 256;

/// Where a cache's pages are, for kernels that read it.
#[derive(Debug, Clone, Copy)]
pub struct PagesTable {
    /// u64 `[PAGES_MOST]`.
    pub pages: u64,
    /// u32 `[PAGES_MOST]`.
    pub page_ends: u64,
}

/// Writes addresses of pages, and past which position each ends, to a table.
///
/// # Errors
/// [`CudaError::Shape`] for more than [`PAGES_MOST`].
pub fn put_pages(pages: &[(u64, usize)], into: PagesTable) -> Result<Launch, CudaError> {
    if pages.len() > PAGES_MOST {
        return Err(CudaError::Shape {
            what: "the number of pages of a cache",
            found: pages.len(),
            takes: "16 at most",
        });
    }
    let padded = || (0..PAGES_MOST).map(|page| pages.get(page).copied().unwrap_or((0, 0)));
    let arguments = Arguments::new()
        .wides(padded().map(|(address, _)| address))
        .counts(padded().map(|(_, end)| end))
        .wides([into.pages, into.page_ends]);
    let shape = ([1, 1, 1], WARP);
    Ok(launch("tables", "put_pages".to_owned(), shape, arguments))
}

/// Writes the position of each token in its own text: u32 `[sequences, query_len]`, for tokens from `position` on and
/// padding `firsts`, u32 `[sequences]` (0: none).
pub fn put_places(
    (firsts, places): (u64, u64),
    [sequences, query_len, position]: [usize; 3],
) -> Launch {
    let count = sequences * query_len;
    let arguments = Arguments::new()
        .wides([firsts, places])
        .counts([count, query_len, position]);
    let shape = ([count.div_ceil(THREADS), 1, 1], THREADS);
    launch("tables", "put_places".to_owned(), shape, arguments)
}
