//! The low rooms of Plimsoll: memory tiers of a stated size and the arithmetic of a decoder.

pub mod bench;
pub mod cpu;
pub mod cuda;
pub mod decoder;
pub mod digest;
pub mod dispatch;
pub mod machine;
mod pin;
pub mod probe;
pub mod selftest;
pub mod serving;
pub mod tiers;
pub mod weights;

pub use plimsoll_kernels as kernels;
