//! The memories: bounded arenas for device and host, a file for the disk, and what copies between
//! them. Asking for more than a tier has is an error, never a spill.

mod arena;
mod copy;
mod disk;
mod error;
mod memory;
mod noise;
mod pace;

pub use arena::{Arena, Region, check_memory};
pub use copy::copy;
pub use disk::{ALIGNMENT, DiskMode, DiskTier, free_bytes, report_files_too_large};
pub use error::TierError;
pub use memory::{available_memory, memory_limit, total_memory};
pub(crate) use noise::fill_with_noise;
pub use pace::{Pace, sharpen_timers};
