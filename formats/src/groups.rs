//! The size of a group of 4-bit codes; `plimsoll_core::compression` says how groups lie.

/// Elements that share a scale and a minimum.
pub const GROUP_ELEMENTS: u64 = 64;

/// Packed elements, scale and minimum of a group.
pub const GROUP_BYTES: u64 = GROUP_ELEMENTS / 2 + 4;
