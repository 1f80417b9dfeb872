//! Which kernel computes what, and on how many blocks and threads. Addresses are the device's.

mod attention;
mod cache;
mod elements;
mod mixed;
mod parts;
mod product;
mod prompt;
mod rows;
mod scores;
mod tables;

use plimsoll_core::Dtype;

pub(crate) use attention::Blocks;
pub use attention::{Attention, HeldAs, Range, check_cache};
pub use cache::{Append, matrix_groups};
pub use elements::{Elements, activate_gate, bias_activation, residual};
pub use mixed::{MixedAppend, OwnBlocks};
pub use parts::{Join, Part, to_stored, to_wide};
pub use product::{
    JOINED_ROWS, Product, flat, flat_plain, gemv, gemv_joined, gemv_plain, thin_joined, thin_plain,
};
pub use prompt::PromptAttention;
pub use rows::{
    Argmax, Embed, NO_TOKEN, Norm, Rotary, argmax, embed, layer_norm, rms_norm, rotary,
};
pub use scores::{SCORE_BINS, choose_range, count_scores};
pub use tables::{PAGES_MOST, PagesTable, put_pages, put_places};

use super::arguments::Arguments;
use super::{CudaError, Launch};

/// Lanes of a warp.
pub const WARP: usize = 32;

/// Blocks that any GPU has more threads for than it runs at once, so that a loop does the rest.
const BLOCKS_MAX: usize = 4096;

/// The end of the name of a kernel for a type.
fn named(kernel: &str, dtype: Dtype) -> Result<String, CudaError> {
    match dtype {
        Dtype::F16 => Ok(format!("{kernel}_f16")),
        Dtype::Bf16 => Ok(format!("{kernel}_bf16")),
        Dtype::F32 => Err(CudaError::Type(dtype)),
    }
}

fn blocks(blocks: [usize; 3]) -> [u32; 3] {
    blocks.map(|count| u32::try_from(count).unwrap_or(u32::MAX))
}

/// Kernels wait for what came before them (`KERNEL`), so that they may begin early.
fn launch(
    source: &'static str,
    kernel: String,
    (grid, threads): ([usize; 3], usize),
    arguments: Arguments,
) -> Launch {
    Launch {
        source,
        kernel,
        grid: blocks(grid),
        threads: threads as u32,
        shared_bytes: 0,
        early: true,
        arguments,
    }
}
