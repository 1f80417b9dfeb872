//! What keeps a GPU from being used.

use plimsoll_core::Dtype;
use plimsoll_core::units::Bytes;
use thiserror::Error;

/// Why CUDA refuses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A library is not on this machine.
    #[error("{library} is not on this machine: {remedy}")]
    Missing {
        /// Its file's name.
        library: &'static str,
        /// How to get it.
        remedy: &'static str,
    },
    /// A library is older than what is called.
    #[error("{library} has no {symbol}: install a newer one")]
    Old {
        /// Its file's name.
        library: &'static str,
        /// What was looked up.
        symbol: &'static str,
    },
    /// A library is of a later CUDA than the driver, which loads nothing that it makes.
    #[error(
        "{library} is of CUDA {found}, and the driver is for CUDA {driver}: install a newer driver, or NVRTC and cuBLAS of CUDA {driver} (`pip install nvidia-cuda-nvrtc-cu{driver} nvidia-cublas-cu{driver}`), and link them as libnvrtc.so and libcublas.so, the names that are tried first, in a folder that LD_LIBRARY_PATH names first"
    )]
    Newer {
        /// Its file's name.
        library: &'static str,
        /// CUDA's major version that it is of.
        found: i32,
        /// The one that the driver is for.
        driver: i32,
    },
    /// Memory of the host that the system does not page-lock.
    #[error(
        "the system does not page-lock {wanted} more of the host's memory, beside {locked} ({why}): state what it locks as tiers.page_lockable_bytes in the profile, and plan again; under WSL that is little"
    )]
    PageLock {
        /// How much.
        wanted: Bytes,
        /// What is locked already.
        locked: Bytes,
        /// The driver's words.
        why: String,
    },
    /// The driver is there, and no GPU.
    #[error(
        "the NVIDIA driver finds no GPU {index} (it finds {count}): see `nvidia-smi`, and CUDA_VISIBLE_DEVICES"
    )]
    NoGpu {
        /// Which was asked for.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// A GPU for which there are no kernels.
    #[error("the GPU's compute capability is {}.{}: {why}", .found / 10, .found % 10)]
    Capability {
        /// 10 * major + minor.
        found: i32,
        /// What is needed, and what to do.
        why: &'static str,
    },
    /// A call failed.
    #[error("{call} failed: {why}")]
    Call {
        /// Which.
        call: &'static str,
        /// The library's words.
        why: String,
    },
    /// Memory of a GPU that cannot be had.
    #[error(
        "{wanted} more of the GPU's memory cannot be had: {why}; see `nvidia-smi` for who else has some, or ask for less"
    )]
    Memory {
        /// How much.
        wanted: Bytes,
        /// The driver's words.
        why: String,
    },
    /// A kernel's source does not compile.
    #[error("{source_name} does not compile for {architecture}: {log}")]
    Compile {
        /// Its file.
        source_name: &'static str,
        /// For which GPUs.
        architecture: String,
        /// What the compiler said.
        log: String,
    },
    /// A kernel is in no source.
    #[error("no kernel is called {0}")]
    NoKernel(String),
    /// An arena has no more room.
    #[error("the device's arena holds {capacity}, and {wanted} more was asked for beside {used}")]
    ArenaFull {
        /// What it holds.
        capacity: Bytes,
        /// What is taken.
        used: Bytes,
        /// What was asked for.
        wanted: Bytes,
    },
    /// Kernels do not compute a type.
    #[error("CUDA kernels compute f16 and bf16, not {}: plan in one of these", .0.name())]
    Type(Dtype),
    /// A shape that no kernel computes.
    #[error("{what} is {found}, and CUDA kernels take {takes}")]
    Shape {
        /// Of what.
        what: &'static str,
        /// What was given.
        found: usize,
        /// What could be.
        takes: &'static str,
    },
}

impl CudaError {
    /// Whether there is too little memory, and nothing else is wrong.
    pub(crate) fn is_of_room(&self) -> bool {
        matches!(self, CudaError::Memory { .. } | CudaError::ArenaFull { .. })
    }
}
