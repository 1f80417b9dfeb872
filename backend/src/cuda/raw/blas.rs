//! cuBLAS: products that are neither flat nor narrow.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use cudarc::cublas::sys::{self, cublasStatus_t};
use plimsoll_core::Dtype;

use super::{Device, Library, Stream};
use crate::cuda::CudaError;

fn check(call: &'static str, status: cublasStatus_t) -> Result<(), CudaError> {
    if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: the text is a constant of the library.
    let why = unsafe { CStr::from_ptr(sys::cublasGetStatusString(status)) };
    let why = why.to_string_lossy().into_owned();
    Err(CudaError::Call { call, why })
}

/// cuBLAS on a GPU.
#[derive(Debug)]
pub struct Blas {
    device: Arc<Device>,
    handle: sys::cublasHandle_t,
}

// SAFETY: a handle may move between threads that do not use it at once.
unsafe impl Send for Blas {}

/// `y [m, n] = x [m, k] times weights [n, k]`, all addresses of the GPU.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// Of x, the weights and y.
    pub addresses: [u64; 3],
    /// m, n and k.
    pub shape: [usize; 3],
    /// Of x and the weights: f16 or bf16. Sums are f32.
    pub dtype: Dtype,
    /// y is f32, and not of their type.
    pub wide: bool,
}

fn type_of(dtype: Dtype) -> sys::cudaDataType {
    match dtype {
        Dtype::F32 => sys::cudaDataType_t::CUDA_R_32F,
        Dtype::F16 => sys::cudaDataType_t::CUDA_R_16F,
        Dtype::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
    }
}

impl Blas {
    /// Its major version, which is CUDA's.
    ///
    /// # Errors
    /// [`CudaError::Missing`]; what the library says.
    pub fn major() -> Result<i32, CudaError> {
        Library::Blas.need()?;
        let mut major = 0;
        let which = sys::libraryPropertyType_t::MAJOR_VERSION;
        // SAFETY: the number is a local.
        check("cublasGetProperty", unsafe {
            sys::cublasGetProperty(which, &raw mut major)
        })?;
        Ok(major)
    }

    /// Starts the library.
    ///
    /// # Errors
    /// [`CudaError::Missing`]; what the library says.
    pub fn new(device: &Arc<Device>) -> Result<Blas, CudaError> {
        Library::Blas.suits(Blas::major()?, Device::count()?.0)?;
        let mut handle = ptr::null_mut();
        device.enter()?;
        // SAFETY: the handle is a local.
        check("cublasCreate", unsafe {
            sys::cublasCreate_v2(&raw mut handle)
        })?;
        let device = Arc::clone(device);
        Ok(Blas { device, handle })
    }

    /// Multiplies behind what the stream has to do.
    ///
    /// # Errors
    /// What the library says.
    pub fn multiply(&self, stream: &Stream, product: &Product) -> Result<(), CudaError> {
        let [m, n, k] = product.shape.map(|size| size as i32);
        let [x, weights, y] = product.addresses;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let stored = type_of(product.dtype);
        let result = type_of(if product.wide {
            Dtype::F32
        } else {
            product.dtype
        });
        // Its matrices go down columns: y seen so is `[n, m]`, the weights' transpose times x.
        use sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
        self.device.enter()?;
        // SAFETY: the handle is alive; scalars are locals that are read before the call returns. A wrong address is
        // an error of the GPU.
        unsafe {
            check(
                "cublasSetStream",
                sys::cublasSetStream_v2(self.handle, stream.handle().cast()),
            )?;
            check(
                "cublasGemmEx",
                sys::cublasGemmEx(
                    self.handle,
                    CUBLAS_OP_T,
                    CUBLAS_OP_N,
                    n,
                    m,
                    k,
                    (&raw const one).cast(),
                    weights as *const _,
                    stored,
                    k,
                    x as *const _,
                    stored,
                    k,
                    (&raw const zero).cast(),
                    y as *mut _,
                    result,
                    n,
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
                ),
            )
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let _ = self.device.synchronise();
        // SAFETY: the handle is alive, and nobody uses it after this.
        let _ = unsafe { sys::cublasDestroy_v2(self.handle) };
    }
}
