//! What keys and values are stored as.

use plimsoll_formats::Dtype;

use crate::groups::{self, PackedHead};
use crate::row::Row;
use crate::simd::Stored;
use crate::{ElementsMut, KernelError};

/// What keys and values are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheType {
    /// Element by element.
    Whole(Dtype),
    /// In groups of 4-bit codes.
    Packed,
}

impl CacheType {
    /// Bytes of the smallest thing that a buffer has whole.
    pub(super) fn unit_bytes(self) -> usize {
        match self {
            CacheType::Whole(dtype) => dtype.size_bytes() as usize,
            CacheType::Packed => 1,
        }
    }

    /// Bytes of a head's keys, or values, at one position.
    pub fn head_bytes(self, head_dim: usize) -> usize {
        match self {
            CacheType::Whole(dtype) => head_dim * dtype.size_bytes() as usize,
            CacheType::Packed => groups::head_bytes(head_dim),
        }
    }

    /// Writes heads, `[head][head_dim]`, to exactly their bytes.
    ///
    /// # Errors
    /// [`KernelError::Shape`] and [`KernelError::Cast`] where `into` does not fit them.
    pub fn write(self, heads: &[f32], head_dim: usize, into: &mut [u8]) -> Result<(), KernelError> {
        match self {
            CacheType::Whole(dtype) => {
                ElementsMut::from_bytes(into, dtype)?.store(0..heads.len(), heads);
                Ok(())
            }
            CacheType::Packed => groups::pack_heads(heads, head_dim, into),
        }
    }
}

/// What a buffer of a cache is made of: elements, or bytes of groups.
pub(super) trait Unit: Copy + Send + Sync + 'static {
    /// A head's keys, or values, at one position.
    type Row<'a>: Row;
    /// Units of so many elements.
    fn count(elements: usize) -> usize;
    /// Sees the units of a head.
    fn row(units: &[Self]) -> Self::Row<'_>;
}

impl<W: Stored> Unit for W {
    type Row<'a> = &'a [W];

    #[inline(always)]
    fn count(elements: usize) -> usize {
        elements
    }

    #[inline(always)]
    fn row(units: &[W]) -> &[W] {
        units
    }
}

impl Unit for u8 {
    type Row<'a> = PackedHead<'a>;

    #[inline(always)]
    fn count(elements: usize) -> usize {
        groups::head_bytes(elements)
    }

    #[inline(always)]
    fn row(units: &[u8]) -> PackedHead<'_> {
        PackedHead::new(units)
    }
}
