//! How numbers lie in memory: what the arithmetic (`plimsoll-kernels`) and the nouns (`plimsoll-core`) must agree on, so
//! that neither has to know the other.

mod dtype;
mod groups;
mod rotary;

pub use dtype::Dtype;
pub use groups::{GROUP_BYTES, GROUP_ELEMENTS};
pub use rotary::{RotaryPairs, RotaryScaling};
