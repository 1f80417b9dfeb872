//! Attention of one query a sequence over its cache, split over positions.
//!
//! One launch does it all: the block that is the last of its row puts partial sums together. With a unified maximum it computes again
//! what left the range, so nobody asks the host.

use plimsoll_core::Dtype;

use super::{WARP, launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::{CudaError, Launch};

const THREADS: usize = 128;

/// Positions that a warp of [`Kernel::Warps`] takes at a time.
const OF_WARP: usize = 16;

/// Parts that positions are split into, at most.
const PARTS_MOST: usize = 256;

/// Waves of blocks that a split is looked for in.
const WAVES: usize = 4;

/// Positions that a block computes in the time that it takes beside them: until the first are there, and to put sums together.
const BESIDE: usize = 32;

/// What a cache keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldAs {
    /// Elements of the model's type.
    Whole,
    /// Groups of 4-bit codes.
    Packed,
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
    /// u32 `[rows, group]`, zero before and after: blocks that have put their partial sums.
    pub arrived: u64,
    /// u32 `[rows, group]`, zero before and after: 1 where a score left the range.
    pub overflow: u64,
    /// f32 phi, low and high ([`Range`]) of the unified maximum. Where low is not below high, or this is 0, attention is
    /// synchronised.
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
    /// Positions, the query's own included: the longest text's.
    pub context_len: usize,
    /// Positions that are seen; 0: all.
    pub window: usize,
    /// Bytes from a position to the next: whole 16 bytes where heads are whole eights, else whole elements or, packed, words.
    pub record_bytes: usize,
    /// Parts of the positions, a block each, at most ([`Attention::split`]).
    pub splits: usize,
    /// Positions of a part.
    pub part: usize,
    /// The factor of the scores.
    pub scale: f32,
}

impl Range {
    /// As it lies on the device.
    pub fn words(&self) -> [f32; 3] {
        [self.phi, self.low, self.high]
    }
}

/// Which loop a kernel has over positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// On tensor cores.
    Warps,
    /// On CUDA cores, of heads that lie so.
    Teams(&'static str),
}

/// How an attention's work is put on blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    kernel: Kernel,
    /// Query heads of a row that share a block, at most.
    heads: usize,
    /// Positions that a block takes at a time, of which parts have multiples.
    unit: usize,
    /// Blocks that a multiprocessor has registers for.
    at_once: usize,
}

impl Blocks {
    /// One head needs CUDA cores for so little that tensor cores, of whose rows seven of eight would stand empty, gain nothing.
    pub(crate) fn of(held: HeldAs, group: usize, head_dim: usize) -> Blocks {
        let kept = kept_name(held, head_dim);
        if kept == "whole" && group > 1 && matches!(head_dim, 64 | 128) {
            return Blocks {
                kernel: Kernel::Warps,
                heads: 8,
                unit: OF_WARP * THREADS / WARP,
                at_once: if head_dim == 64 { 3 } else { 2 },
            };
        }
        let lanes = head_dim.div_ceil(8).next_power_of_two().max(8);
        let (heads, side_by_side, at_once) = match (kept, group) {
            ("whole", 1) => (1, 8, 4),
            ("packed", 1) => (1, 4, 4),
            (_, 1) => (1, 4, 3),
            _ => (4, 4, 2),
        };
        Blocks {
            kernel: Kernel::Teams(kept),
            heads,
            unit: side_by_side * THREADS / lanes,
            at_once,
        }
    }

    /// How many positions a part has where so many are seen: blocks come in waves of as many as run at once on so many
    /// multiprocessors, and those of some number of waves take the least time.
    fn part(&self, (rows, group): (usize, usize), seen: usize, multiprocessors: usize) -> usize {
        let blocks = (rows * group.div_ceil(self.heads)).max(1);
        let at_once = self.at_once * multiprocessors;
        let part = |waves: usize| {
            let parts = (waves * at_once / blocks).clamp(1, PARTS_MOST);
            let part = seen.div_ceil(parts).next_multiple_of(self.unit);
            part.max(self.unit)
        };
        let takes = |part: &usize| {
            let waves = (blocks * seen.div_ceil(*part)).div_ceil(at_once);
            waves * (part + BESIDE)
        };
        let found = (1..=WAVES).map(part).min_by_key(takes);
        found.unwrap_or(self.unit)
    }

    /// Queries times splits, at most, of up to so many rows.
    pub(crate) fn partial_sums(&self, rows: usize, group: usize, multiprocessors: usize) -> usize {
        let blocks = rows * group.div_ceil(self.heads);
        self.heads * blocks.max(WAVES * self.at_once * multiprocessors)
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
        if self.part == 0 || self.splits * self.part < self.seen() || self.splits > PARTS_MOST {
            return Err(CudaError::Shape {
                what: "positions of the parts of an attention",
                found: self.splits * self.part,
                takes: "as many as are seen",
            });
        }
        check_cache(self.held, self.head_dim, self.record_bytes)
    }

    pub(super) fn arguments(&self) -> Arguments {
        Arguments::new()
            .wides([self.queries, self.pages, self.page_ends, self.firsts])
            .wides([self.numerators, self.denominators, self.maxima])
            .wides([self.arrived, self.overflow, self.range])
            .wides([self.recomputed, self.y])
            .counts([self.page_count, self.row_start, self.rows])
            .counts([self.kv_heads, self.group, self.head_dim])
            .counts([self.context_len, self.window])
            .counts([self.record_bytes, self.splits, self.part])
            .float(self.scale)
    }

    /// Positions that a query sees, at most.
    fn seen(&self) -> usize {
        match self.window {
            0 => self.context_len,
            window => self.context_len.min(window),
        }
    }

    /// The same, split as suits a GPU of so many multiprocessors.
    #[must_use]
    pub fn split(self, multiprocessors: usize) -> Attention {
        let (rows, seen) = ((self.rows, self.group), self.seen());
        let part = self.blocks().part(rows, seen, multiprocessors);
        let splits = seen.div_ceil(part).max(1);
        Attention {
            splits,
            part,
            ..self
        }
    }

    /// How work is put on blocks.
    fn blocks(&self) -> Blocks {
        Blocks::of(self.held, self.group, self.head_dim)
    }

    fn kernel(&self, name: &str) -> Result<String, CudaError> {
        self.check()?;
        let Blocks { kernel, heads, .. } = self.blocks();
        let name = named(name, self.dtype)?;
        Ok(match kernel {
            Kernel::Warps => format!("{name}_d{}", self.head_dim),
            Kernel::Teams(kept) => format!("{name}_{kept}_h{heads}"),
        })
    }

    /// The kernel.
    ///
    /// # Errors
    /// [`CudaError::Type`]; [`CudaError::Shape`].
    pub fn launch(&self) -> Result<Launch, CudaError> {
        self.launch_of("attend", self.arguments())
    }

    /// The kernel of this name, of those for the same heads.
    pub(super) fn launch_of(&self, name: &str, arguments: Arguments) -> Result<Launch, CudaError> {
        let heads = self.blocks().heads;
        let grid = [self.rows, self.splits, self.group.div_ceil(heads)];
        let shape = (grid, THREADS);
        Ok(launch("attention", self.kernel(name)?, shape, arguments))
    }

    /// The same in two launches, synchronised: partial sums, and what puts them together. So it was done before, and so the
    /// benchmark knows what one launch is worth.
    ///
    /// # Errors
    /// As [`Attention::launch`].
    pub fn in_two(&self) -> Result<[Launch; 2], CudaError> {
        let apart = Attention {
            arrived: 0,
            range: 0,
            ..*self
        };
        let grid = [self.rows, self.group, 1];
        let combine = named("combine", self.dtype)?;
        let shape = (grid, THREADS);
        let combine = launch("attention", combine, shape, apart.arguments());
        Ok([apart.launch()?, combine])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: [(HeldAs, usize); 4] = [
        (HeldAs::Whole, 64),
        (HeldAs::Whole, 80),
        (HeldAs::Whole, 12),
        (HeldAs::Packed, 128),
    ];

    #[test]
    fn partial_sums_have_room_whatever_the_batch_and_the_context() {
        for (held, head_dim) in KEPT {
            for multiprocessors in [1, 4, 108] {
                for (most, group) in [(1, 1), (7, 3), (32, 4), (320, 5), (2560, 8)] {
                    let blocks = Blocks::of(held, group, head_dim);
                    let room = blocks.partial_sums(most, group, multiprocessors);
                    for rows in 1..=most {
                        let part = blocks.part((rows, group), 1 << 20, multiprocessors);
                        let parts = (1_usize << 20).div_ceil(part);
                        assert!(
                            rows * group * parts <= room,
                            "{held:?} {head_dim} {rows} {group} {multiprocessors}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn positions_are_split_where_there_is_nothing_else_to_share_out() {
        let blocks = Blocks::of(HeldAs::Whole, 1, 128);
        assert_eq!((blocks.unit, blocks.at_once), (64, 4));
        // As many parts as there is room for blocks, while each is worth one.
        assert_eq!(blocks.part((1, 1), 6400, 108), 64);
        assert_eq!(blocks.part((1, 1), 1, 108), 64);
        assert_eq!(blocks.part((108, 1), 6400, 108), 1600);
        // Where one more wave leaves less standing empty, there are two.
        assert_eq!(blocks.part((32, 1), 1 << 20, 132), 31808);
        // Two waves of which the second is nearly full are as good as four.
        assert_eq!(blocks.part((1024, 1), 4096, 132), 4096);
        // One of which most stands empty is not.
        assert_eq!(blocks.part((540, 1), 4096, 132), 1408);
    }
}
