//! A block a row: embedding, norms, rotary positions, the choice of a token.

use plimsoll_core::Dtype;

use super::{launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};

/// As in `argmax.cu`.
const ARGMAX_THREADS: usize = 1024;

const THREADS: usize = 256;

/// Rows of the token table and of that of learned positions.
#[derive(Debug, Clone, Copy)]
pub struct Embed {
    /// Of y, and of tables that are kept whole.
    pub dtype: Dtype,
    /// The tables are in 4-bit groups.
    pub packed: bool,
    /// u32 `[count]`.
    pub tokens: u64,
    /// u32 `[count]`.
    pub positions: u64,
    /// `[rows, width]`.
    pub table: u64,
    /// `[places, width]`; 0: the model has none.
    pub learned: u64,
    /// `[count, width]`.
    pub y: u64,
    /// Tokens.
    pub count: usize,
    /// Of a row.
    pub width: usize,
    /// Of the token table.
    pub rows: usize,
    /// Rows of the table of positions.
    pub places: usize,
    /// Added to positions.
    pub offset: usize,
}

/// Looks tokens up. A token, or a position, that is in no table becomes no number.
///
/// # Errors
/// [`CudaError::Type`].
pub fn embed(embed: &Embed) -> Result<Launch, CudaError> {
    let arguments = Arguments::new()
        .wides([embed.tokens, embed.positions, embed.table, embed.learned])
        .wide(embed.y)
        .counts([embed.width, embed.rows, embed.places, embed.offset]);
    let name = if embed.packed {
        "embed_packed"
    } else {
        "embed"
    };
    let kernel = named(name, embed.dtype)?;
    let shape = ([embed.count, 1, 1], THREADS);
    Ok(launch("embed", kernel, shape, arguments))
}

/// A norm of each row.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    /// Of all operands.
    pub dtype: Dtype,
    /// `[rows, width]`.
    pub x: u64,
    /// `[width]`.
    pub weight: u64,
    /// `[width]`; 0: none.
    pub bias: u64,
    /// `[rows, width]`.
    pub y: u64,
    /// Rows.
    pub rows: usize,
    /// Of a row.
    pub width: usize,
    /// Under the root.
    pub epsilon: f32,
}

fn norm(kernel: &str, norm: &Norm) -> Result<Launch, CudaError> {
    let arguments = Arguments::new()
        .wides([norm.x, norm.weight, norm.bias, norm.y])
        .counts([norm.width])
        .float(norm.epsilon);
    let kernel = named(kernel, norm.dtype)?;
    Ok(launch(
        "norm",
        kernel,
        ([norm.rows, 1, 1], THREADS),
        arguments,
    ))
}

/// LayerNorm.
///
/// # Errors
/// [`CudaError::Type`].
pub fn layer_norm(of: &Norm) -> Result<Launch, CudaError> {
    norm("layer_norm", of)
}

/// RMSNorm.
///
/// # Errors
/// [`CudaError::Type`].
pub fn rms_norm(of: &Norm) -> Result<Launch, CudaError> {
    norm("rms_norm", of)
}

/// Heads that are turned by their positions.
#[derive(Debug, Clone, Copy)]
pub struct Rotary {
    /// Of the heads.
    pub dtype: Dtype,
    /// `[count, heads, head_dim]`, turned in place.
    pub elements: u64,
    /// u32 `[count]`.
    pub positions: u64,
    /// f32 `[places, pairs]`.
    pub cosines: u64,
    /// f32 `[places, pairs]`.
    pub sines: u64,
    /// Tokens.
    pub count: usize,
    /// Heads a token.
    pub heads: usize,
    /// Elements a head.
    pub head_dim: usize,
    /// Pairs that are turned of a head.
    pub pairs: usize,
    /// Pairs are neighbours, and not half of what is turned apart.
    pub adjacent: bool,
}

/// Turns heads.
///
/// # Errors
/// [`CudaError::Type`].
pub fn rotary(rotary: &Rotary) -> Result<Launch, CudaError> {
    let arguments = Arguments::new()
        .wides([rotary.elements, rotary.positions])
        .wides([rotary.cosines, rotary.sines])
        .counts([rotary.heads, rotary.head_dim, rotary.pairs])
        .counts([usize::from(rotary.adjacent)]);
    let kernel = named("rotary", rotary.dtype)?;
    let shape = ([rotary.count, 1, 1], THREADS);
    Ok(launch("rotary", kernel, shape, arguments))
}

/// What [`argmax`] writes for a row with a NaN: no vocabulary has it.
pub const NO_TOKEN: u32 = u32::MAX;

/// Logits of which the largest is chosen.
#[derive(Debug, Clone, Copy)]
pub struct Argmax {
    /// f32 `[rows, vocabulary]`.
    pub logits: u64,
    /// u32 `[rows]`: [`NO_TOKEN`] where a row holds a NaN.
    pub tokens: u64,
    /// u32 `[rows]`: 1 where a row holds a NaN, else 0.
    pub not_a_number: u64,
    /// Rows.
    pub rows: usize,
    /// Logits a row.
    pub vocabulary: usize,
}

/// The first column of the largest logit.
pub fn argmax(argmax: &Argmax) -> Launch {
    let arguments = Arguments::new()
        .wides([argmax.logits, argmax.tokens, argmax.not_a_number])
        .counts([argmax.vocabulary]);
    let shape = ([argmax.rows, 1, 1], ARGMAX_THREADS);
    launch("argmax", "argmax".to_owned(), shape, arguments)
}
