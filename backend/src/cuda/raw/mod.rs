//! The lowest layer: calls of the three libraries. Nothing above it is unsafe.
//!
//! The bindings load a library when it is first called, and panic where it is not there or lacks a symbol. So what is called
//! here has been in every driver since CUDA 10, but for what is looked up by hand, and nobody gets a value
//! through which calls are made without [`Library::need`] having found its library.

mod blas;
pub mod cubin;
mod driver;
mod nvrtc;

pub use blas::{Blas, Product};
pub use driver::{
    Attribute, BEGINS_EARLY, Device, DeviceMemory, Event, HostMemory, LockedPages, Module, Stream,
};
pub use nvrtc::{Compiler, OPTIONS};

/// The libraries, what each is for, and how to get it.
pub const LIBRARIES: [Library; 3] = [Library::Driver, Library::Compiler, Library::Blas];

/// A library that is loaded at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// The driver.
    Driver,
    /// What compiles kernels.
    Compiler,
    /// The vendor's matrix products.
    Blas,
}

impl Library {
    /// Its file's name.
    pub fn name(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so.1",
            Library::Compiler => "libnvrtc.so",
            Library::Blas => "libcublas.so",
        }
    }

    /// How to get it.
    pub fn remedy(self) -> &'static str {
        match self {
            Library::Driver => "install the NVIDIA driver (it comes with it), or use --backend cpu",
            Library::Compiler => {
                "install CUDA's NVRTC, of the driver's CUDA (`pip install nvidia-cuda-nvrtc`, with `-cu12` where that is 12; or the CUDA toolkit) and put its folder into LD_LIBRARY_PATH"
            }
            Library::Blas => {
                "install cuBLAS, of the driver's CUDA (`pip install nvidia-cublas`, with `-cu12` where that is 12; or the CUDA toolkit) and put its folder into LD_LIBRARY_PATH"
            }
        }
    }

    /// An error where it is of a later CUDA than a driver of this version (1000 * major + 10 * minor): that loads no kernels and
    /// starts no library of a later major version, but those of all earlier ones.
    ///
    /// # Errors
    /// [`CudaError::Newer`](super::CudaError::Newer).
    pub fn suits(self, major: i32, driver_version: i32) -> Result<(), super::CudaError> {
        let driver = driver_version / 1000;
        match major <= driver {
            true => Ok(()),
            false => Err(super::CudaError::Newer {
                library: self.name(),
                found: major,
                driver,
            }),
        }
    }

    /// Whether it can be loaded.
    #[allow(unsafe_code)]
    pub fn is_present(self) -> bool {
        // SAFETY: loads the library, which runs its initialisers, as any program that links it does.
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Compiler => cudarc::nvrtc::sys::is_culib_present(),
                Library::Blas => cudarc::cublas::sys::is_culib_present(),
            }
        }
    }

    /// An error unless it can be loaded.
    ///
    /// # Errors
    /// [`CudaError::Missing`](super::CudaError::Missing).
    pub fn need(self) -> Result<(), super::CudaError> {
        match self.is_present() {
            true => Ok(()),
            false => Err(super::CudaError::Missing {
                library: self.name(),
                remedy: self.remedy(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_takes_libraries_of_its_own_cuda_and_of_earlier_ones() {
        for (major, driver) in [(12, 12020), (11, 12020), (13, 13000)] {
            assert_eq!(Library::Compiler.suits(major, driver), Ok(()));
        }
        let error = Library::Blas.suits(13, 12080).unwrap_err().to_string();
        for part in ["libcublas.so is of CUDA 13", "for CUDA 12", "nvrtc-cu12"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
