//! The low rooms of Plimsoll: memory tiers of a stated size and the arithmetic of a decoder.

pub mod kernels;
pub mod tiers;
