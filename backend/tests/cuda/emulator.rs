//! Compiles the kernels' sources as C++ and runs them.
#![allow(dead_code)] // each test file uses a part

use std::collections::BTreeSet;
use std::env;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;
use plimsoll_backend::cuda::raw::Product;
use plimsoll_backend::cuda::sources::SOURCES;
use plimsoll_backend::cuda::{CudaError, KernelDevice, Launch};

type Emulate = unsafe extern "C" fn(
    *const c_char,
    *const u32,
    u32,
    u32,
    *const c_void,
    usize,
) -> *const c_char;
type KernelName = unsafe extern "C" fn(usize) -> *const c_char;

/// A CPU that runs CUDA kernels, one test at a time: its threads are the library's globals.
pub struct Emulator {
    library: &'static Library,
    /// What was taken, each with an address that is a multiple of 16.
    memory: Vec<Vec<u128>>,
    /// Kernels that ran.
    pub launched: BTreeSet<String>,
    _alone: MutexGuard<'static, ()>,
}

/// Which tensor cores there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// Those of f16 alone, as on a T4: some kernels compute otherwise there, and some of their code is only theirs.
    Turing,
    /// Those of bf16 and TF32 as well.
    Ampere,
}

/// The emulator; none, said aloud, on a machine without a C++ compiler.
pub fn emulator() -> Option<Emulator> {
    emulator_of(Generation::Ampere)
}

/// The same of a generation.
pub fn emulator_of(generation: Generation) -> Option<Emulator> {
    static ALONE: Mutex<()> = Mutex::new(());
    static LIBRARIES: [OnceLock<Option<Library>>; 2] = [OnceLock::new(), OnceLock::new()];
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let library = LIBRARIES[generation as usize]
        .get_or_init(|| compiler().map(|compiler| compile(&compiler, generation)));
    if library.is_none() {
        let line = "SKIPPED: no C++ compiler to run CUDA kernels with; install g++, or set CXX\n";
        // Past what the test harness keeps to itself of tests that pass.
        let _ = io::stderr().write_all(line.as_bytes());
    }
    Some(Emulator {
        library: library.as_ref()?,
        memory: Vec::new(),
        launched: BTreeSet::new(),
        _alone: alone,
    })
}

fn compiler() -> Option<String> {
    let named = env::var("CXX").ok();
    let candidates = named
        .into_iter()
        .chain(["c++", "g++", "clang++"].map(String::from));
    let mut there = candidates.filter(|name| {
        let mut asked = Command::new(name);
        asked
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        asked.status().is_ok_and(|status| status.success())
    });
    there.next()
}

fn compile(compiler: &str, generation: Generation) -> Library {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let includes = SOURCES.map(|source| format!("#include \"{}\"\n", source.name));
    let named = |ending: &str| folder.join(format!("kernels-{generation:?}.{ending}"));
    let all = named("cpp");
    fs::write(
        &all,
        format!("#include \"emulator.h\"\n{}", includes.concat()),
    )
    .unwrap();
    let library = named("so");
    let compiled = Command::new(compiler)
        .arg(match generation {
            Generation::Turing => "-DLIKE_TURING",
            Generation::Ampere => "-ULIKE_TURING",
        })
        .args([
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fPIC",
            "-shared",
            "-w",
        ])
        .arg("-I")
        .arg(root.join("tests/cuda"))
        .arg("-I")
        .arg(root.join("src/cuda/kernels"))
        .arg("-o")
        .args([&library, &all])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    // SAFETY: its initialisers register kernels and do nothing else.
    unsafe { Library::new(library).unwrap() }
}

impl Emulator {
    /// All kernels.
    pub fn names(&self) -> Vec<String> {
        // SAFETY: the function is of this type, and its texts end with a zero.
        unsafe {
            let name = self.library.get::<KernelName>(b"kernel_name").unwrap();
            let names = (0..).map(|number| name(number));
            let names = names.take_while(|name| !name.is_null());
            names
                .map(|name| CStr::from_ptr(name).to_str().unwrap().to_owned())
                .collect()
        }
    }
}

impl KernelDevice for Emulator {
    fn take(&mut self, bytes: usize) -> Result<u64, CudaError> {
        let words = vec![u128::MAX; bytes.div_ceil(16)];
        let address = words.as_ptr() as u64;
        self.memory.push(words);
        Ok(address)
    }

    fn clear(&mut self) {
        self.memory.clear();
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: as many were taken.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        Ok(())
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        let from = address as *const u8;
        // SAFETY: as many were taken.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), CudaError> {
        let name = CString::new(launch.kernel.as_str()).unwrap();
        self.launched.insert(launch.kernel.clone());
        let arguments = &launch.arguments;
        // SAFETY: the function is of this type; what addresses lead to was taken.
        unsafe {
            let emulate = self.library.get::<Emulate>(b"emulate").unwrap();
            let wrong = emulate(
                name.as_ptr(),
                launch.grid.as_ptr(),
                launch.threads,
                launch.shared_bytes,
                arguments.words().as_ptr().cast(),
                arguments.size(),
            );
            if wrong.is_null() {
                return Ok(());
            }
            let why = CStr::from_ptr(wrong).to_string_lossy().into_owned();
            Err(CudaError::Call {
                call: "a launch",
                why,
            })
        }
    }

    fn multiply(&mut self, _: &Product) -> Result<bool, CudaError> {
        Ok(false)
    }
}
