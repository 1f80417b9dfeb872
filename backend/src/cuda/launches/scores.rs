//! What attention's scores are like, and the unified maximum that they give (FlashDecoding++ section 3).

use super::attention::{Attention, check_cache, kept_name};
use super::{WARP, launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};

/// As in `scores.cu`.
const THREADS: usize = 128;

/// As in `scores.cu`: counts of scores, of which the middle one begins at 0 and each is a unit wide.
pub const SCORE_BINS: usize = 2048;

/// Adds an attention's scores to counts, u32 `[SCORE_BINS]`. Its results, sums and range are not used.
///
/// # Errors
/// [`CudaError::Type`]; [`CudaError::Shape`].
pub fn count_scores(attention: &Attention, bins: u64) -> Result<Launch, CudaError> {
    check_cache(attention.held, attention.head_dim, attention.record_bytes)?;
    let of = attention;
    let arguments = Arguments::new()
        .wides([of.queries, of.pages, of.page_ends, of.firsts, bins])
        .counts([of.page_count, of.row_start, of.rows])
        .counts([of.kv_heads, of.group, of.head_dim])
        .counts([of.context_len, of.window, of.record_bytes])
        .float(of.scale);
    let kernel = named("count_scores", of.dtype)?;
    let kernel = format!("{kernel}_{}", kept_name(of.held, of.head_dim));
    let shape = ([of.rows, of.group, 1], THREADS);
    Ok(launch("scores", kernel, shape, arguments))
}

/// Writes the unified maximum and what may be computed with it, f32 phi, low and high, by counts of scores. Where these are too
/// wide apart for any, low and high are 0.
pub fn choose_range(bins: u64, range: u64) -> Launch {
    let arguments = Arguments::new().wides([bins, range]);
    let shape = ([1, 1, 1], WARP);
    launch("scores", "choose_range".to_owned(), shape, arguments)
}
