//! Attention of one query a sequence over its cache, split over positions.

use plimsoll_core::Dtype;

use super::{launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};

const THREADS: usize = 128;

/// Queries that share a block where a key/value head has more than one.
pub(crate) const HEADS: usize = 4;

/// What a cache keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldAs {
    /// Elements of the model's type.
    Whole,
    /// Groups of 4-bit codes.
    Packed,
}

/// Which kernel of those that attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Partial softmax with a running maximum.
    Synchronised,
    /// Partial sums that share phi.
    Unified,
    /// The first, for queries whose scores left the range of the second.
    Again,
}

/// The unified maximum of a model's scores (FlashDecoding++ section 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// What is taken off every score.
    pub phi: f32,
    /// The paper's a: scores at most this above phi are computed again.
    pub low: f32,
    /// The paper's b: scores at least this above phi are computed again.
    pub high: f32,
}

/// The operands of an attention.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Of queries and results, and of a whole cache.
    pub dtype: Dtype,
    /// What the cache keeps.
    pub held: HeldAs,
    /// `[sequences, heads, head_dim]`.
    pub queries: u64,
    /// u64 `[page_count]`: addresses, multiples of 16.
    pub pages: u64,
    /// u32 `[page_count]`: past the last position of each.
    pub page_ends: u64,
    /// u32 `[sequences]`: the first position seen; 0: all see from the first.
    pub firsts: u64,
    /// f32 `[rows, group, splits, head_dim]`.
    pub numerators: u64,
    /// f32 `[rows, group, splits]`.
    pub denominators: u64,
    /// f32 `[rows, group, splits]`.
    pub maxima: u64,
    /// u32 `[rows, group]`, zero before and after: 1 where a score left the range.
    pub overflow: u64,
    /// f32 phi, low and high ([`Range`]), for [`Way::Unified`]: where low is not below high, all queries are computed again.
    pub range: u64,
    /// u32, to which queries that were computed again are added; 0: nobody asks.
    pub recomputed: u64,
    /// `[sequences, heads, head_dim]`.
    pub y: u64,
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
    /// Positions, the query's own included.
    pub context_len: usize,
    /// Positions that are seen; 0: all.
    pub window: usize,
    /// Bytes from a position to the next: whole 16 bytes where heads are whole eights, else whole elements or, packed, words.
    pub record_bytes: usize,
    /// Parts of the positions, a block each.
    pub splits: usize,
    /// The factor of the scores.
    pub scale: f32,
}

impl Range {
    /// As it lies on the device.
    pub fn words(&self) -> [f32; 3] {
        [self.phi, self.low, self.high]
    }
}

/// How heads lie, in the names of kernels.
pub(super) fn kept_name(held: HeldAs, head_dim: usize) -> &'static str {
    match held {
        HeldAs::Whole if !head_dim.is_multiple_of(8) => "ragged",
        HeldAs::Whole => "whole",
        HeldAs::Packed => "packed",
    }
}

/// That kernels which attend read heads and records of these sizes.
///
/// # Errors
/// [`CudaError::Shape`].
pub fn check_cache(held: HeldAs, head_dim: usize, record_bytes: usize) -> Result<(), CudaError> {
    if head_dim == 0 || head_dim > 256 {
        return Err(CudaError::Shape {
            what: "the size of a head",
            found: head_dim,
            takes: "up to 256",
        });
    }
    let (unit, takes) = match kept_name(held, head_dim) {
        "whole" => (16, "multiples of 16"),
        "packed" => (4, "multiples of 4"),
        _ => (2, "multiples of 2"),
    };
    if !record_bytes.is_multiple_of(unit) {
        return Err(CudaError::Shape {
            what: "the record of a position, in bytes,",
            found: record_bytes,
            takes,
        });
    }
    Ok(())
}

impl Attention {
    fn check(&self) -> Result<(), CudaError> {
        check_cache(self.held, self.head_dim, self.record_bytes)
    }

    fn arguments(&self) -> Arguments {
        Arguments::new()
            .wides([self.queries, self.pages, self.page_ends, self.firsts])
            .wides([self.numerators, self.denominators, self.maxima])
            .wides([self.overflow, self.range, self.recomputed, self.y])
            .counts([self.page_count, self.row_start, self.rows])
            .counts([self.kv_heads, self.group, self.head_dim])
            .counts([self.context_len, self.window])
            .counts([self.record_bytes, self.splits])
            .float(self.scale)
    }

    /// Partial sums of each split.
    ///
    /// # Errors
    /// [`CudaError::Type`]; [`CudaError::Shape`].
    pub fn attend(&self, way: Way) -> Result<Launch, CudaError> {
        self.check()?;
        let name = match way {
            Way::Synchronised => "attend",
            Way::Unified => "attend_unified",
            Way::Again => "attend_again",
        };
        let held = kept_name(self.held, self.head_dim);
        let heads = if self.group == 1 { 1 } else { HEADS };
        let kernel = format!("{}_{held}_h{heads}", named(name, self.dtype)?);
        let grid = [self.rows, self.splits, self.group.div_ceil(heads)];
        Ok(launch(
            "attention",
            kernel,
            (grid, THREADS),
            self.arguments(),
        ))
    }

    /// The results, of what the splits found.
    ///
    /// # Errors
    /// [`CudaError::Type`]; [`CudaError::Shape`].
    pub fn combine(&self, way: Way) -> Result<Launch, CudaError> {
        self.check()?;
        let name = match way {
            Way::Synchronised => "combine",
            Way::Unified | Way::Again => "combine_unified",
        };
        let shape = ([self.rows * self.group, 1, 1], THREADS);
        Ok(launch(
            "attention",
            named(name, self.dtype)?,
            shape,
            self.arguments(),
        ))
    }

    /// All kernels of an attention, in their order. The unified way computes again what left its range without asking
    /// the host.
    ///
    /// # Errors
    /// As [`Attention::attend`].
    pub fn launches(&self, unified: bool) -> Result<Vec<Launch>, CudaError> {
        if !unified {
            let way = Way::Synchronised;
            return Ok(vec![self.attend(way)?, self.combine(way)?]);
        }
        Ok(vec![
            self.attend(Way::Unified)?,
            self.attend(Way::Again)?,
            self.combine(Way::Unified)?,
        ])
    }
}
