//! NVRTC: kernels from source to a CUBIN for one architecture, or to PTX where the GPU is newer than the compiler: PTX would be
//! refused by a driver that is older than NVRTC, which a driver of a GPU that NVRTC does not know is not.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use cudarc::nvrtc::sys::{self, nvrtcResult};

use super::Library;
use crate::cuda::CudaError;
use crate::cuda::sources::{HEADERS, Source};

/// What NVRTC is given beside the architecture.
pub const OPTIONS: [&str; 2] = ["--std=c++17", "--device-as-default-execution-space"];

/// The compiler, which is there.
#[derive(Debug, Clone, Copy)]
pub struct Compiler(());

fn check(call: &'static str, result: nvrtcResult) -> Result<(), CudaError> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: the text is a constant of the library.
    let why = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    let why = why.to_string_lossy().into_owned();
    Err(CudaError::Call { call, why })
}

macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: programs are alive until they are destroyed below, texts end with a zero, and what is written has room.
        check(stringify!($name), unsafe { sys::$name($($argument),*) })
    };
}

fn text(text: &str) -> CString {
    CString::new(text).expect("sources and options hold no zero")
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

/// Bytes that are as many as one call says, and are written by another.
fn bytes(
    count: impl FnOnce(&mut usize) -> Result<(), CudaError>,
    write: impl FnOnce(*mut c_char) -> Result<(), CudaError>,
) -> Result<Vec<u8>, CudaError> {
    let mut size = 0;
    count(&mut size)?;
    let mut bytes = vec![0_u8; size];
    write(bytes.as_mut_ptr().cast())?;
    Ok(bytes)
}

struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = call!(nvrtcDestroyProgram(&raw mut self.0));
    }
}

impl Program {
    fn log(&self) -> Result<String, CudaError> {
        let said = bytes(
            |size| call!(nvrtcGetProgramLogSize(self.0, size)),
            |log| call!(nvrtcGetProgramLog(self.0, log)),
        )?;
        let said = String::from_utf8_lossy(&said);
        Ok(said.trim_end_matches('\0').trim().to_owned())
    }

    /// A CUBIN; or PTX, with the zero at its end, by which the driver knows where that is.
    fn code(&self, is_ptx: bool) -> Result<Vec<u8>, CudaError> {
        match is_ptx {
            true => bytes(
                |size| call!(nvrtcGetPTXSize(self.0, size)),
                |ptx| call!(nvrtcGetPTX(self.0, ptx)),
            ),
            false => bytes(
                |size| call!(nvrtcGetCUBINSize(self.0, size)),
                |cubin| call!(nvrtcGetCUBIN(self.0, cubin)),
            ),
        }
    }
}

impl Compiler {
    /// Finds the compiler.
    ///
    /// # Errors
    /// [`CudaError::Missing`].
    pub fn find() -> Result<Compiler, CudaError> {
        Library::Compiler.need().map(|()| Compiler(()))
    }

    /// Its version: major, minor.
    ///
    /// # Errors
    /// What it says.
    pub fn version(self) -> Result<[i32; 2], CudaError> {
        let (mut major, mut minor) = (0, 0);
        call!(nvrtcVersion(&raw mut major, &raw mut minor))?;
        Ok([major, minor])
    }

    /// The compute capabilities that it compiles for, 10 * major + minor, in ascending order; none where it is older
    /// than CUDA 11.2, which does not say.
    ///
    /// # Errors
    /// What it says.
    pub fn capabilities(self) -> Result<Vec<i32>, CudaError> {
        if self.version()? < [11, 2] {
            return Ok(Vec::new());
        }
        let mut count = 0;
        call!(nvrtcGetNumSupportedArchs(&raw mut count))?;
        let mut capabilities = vec![0; count.max(0) as usize];
        call!(nvrtcGetSupportedArchs(capabilities.as_mut_ptr()))?;
        capabilities.sort_unstable();
        Ok(capabilities)
    }

    /// Compiles a source to a CUBIN for an architecture, such as `sm_80`, or to PTX for a virtual one, such as `compute_80`.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with the compiler's words.
    pub fn compile(self, source: &Source, architecture: &str) -> Result<Vec<u8>, CudaError> {
        let (body, name) = (text(source.text), text(source.name));
        let headers: Vec<CString> = HEADERS.iter().map(|header| text(header.text)).collect();
        let names: Vec<CString> = HEADERS.iter().map(|header| text(header.name)).collect();
        let mut program = Program(ptr::null_mut());
        call!(nvrtcCreateProgram(
            &raw mut program.0,
            body.as_ptr(),
            name.as_ptr(),
            headers.len() as i32,
            pointers(&headers).as_ptr(),
            pointers(&names).as_ptr()
        ))?;
        let target = format!("--gpu-architecture={architecture}");
        let options = OPTIONS.iter().copied().chain([target.as_str()]);
        let options: Vec<CString> = options.map(text).collect();
        let given = pointers(&options);
        let outcome = call!(nvrtcCompileProgram(
            program.0,
            given.len() as i32,
            given.as_ptr()
        ));
        if let Err(error) = outcome {
            let said = program.log()?;
            return Err(CudaError::Compile {
                source_name: source.name,
                architecture: architecture.to_owned(),
                log: format!("{error} {said}"),
            });
        }
        program.code(architecture.starts_with("compute"))
    }
}
