//! The memories: bounded arenas for device and host, a file for the disk, and what copies between
//! them. Asking for more than a tier has is an error, never a spill.

mod arena;
mod copy;
mod disk;
mod error;

pub use arena::Arena;
pub use copy::{copy, sharpen_timers};
pub use disk::{ALIGNMENT, DiskMode, DiskTier};
pub use error::TierError;
