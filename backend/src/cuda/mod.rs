//! NVIDIA GPUs: loaded at run time, so that one binary runs everywhere and says what is missing.
//!
//! Layers, each on the one below:
//! - [`raw`], the only one with `unsafe`: calls of the driver, of NVRTC and of cuBLAS, each library asked for before it
//!   is called, each failure an error;
//! - [`Gpu`] and what it gives out: streams, events, page-locked memory, an [`arena`](arena::DeviceArena) of a stated size, and
//!   kernels, which are compiled from [`sources`] for the very GPU that is there, and kept ([`KernelCache`]);
//! - [`Card`]: what an executor needs of a GPU, which [`GpuCard`] is; and the executor (`executor/`), which gives streams what a program
//!   says;
//! - [`launches`]: which kernel computes what, on how many threads, and [`tile`] and [`crate::dispatch`]: which of those that
//!   compute the same.
//!
//! [`crate::selftest`] holds every kernel against arithmetic in f64, on a GPU or on whatever else is a [`KernelDevice`].

pub mod architecture;
pub mod arena;
pub mod arguments;
mod card;
mod error;
pub(crate) mod executor;
mod gpu;
mod gpu_card;
mod kernel_cache;
pub mod launches;
pub mod raw;
pub mod sources;
pub mod tile;

pub use card::{Card, CopyRows, Moments};
pub use error::CudaError;
pub use executor::{Repeats, UnifiedMaximum};
pub use gpu::{Gpu, KernelDevice, Launch, check_available};
pub use gpu_card::GpuCard;
pub use kernel_cache::{Compile, KernelCache};
