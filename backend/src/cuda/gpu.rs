//! A GPU with one stream, and kernels that are compiled for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::available_parallelism;

use super::arena::DeviceArena;
use super::arguments::Arguments;
use super::kernel_cache::KernelCache;
use super::raw::{Blas, Compiler, Device, LIBRARIES, Library, Module, Product, Stream};
use super::sources::{SOURCES, Source, source};
use super::{CudaError, architecture};

/// A kernel and how it is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The source that has it, without its ending.
    pub source: &'static str,
    /// Its name.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads a block.
    pub threads: u32,
    /// Shared memory of a size that the kernel does not state itself.
    pub shared_bytes: u32,
    /// It may begin before what its stream was given before has ended, for which all kernels wait themselves.
    pub early: bool,
    /// What it is given.
    pub arguments: Arguments,
}

impl Launch {
    /// Its arguments, and whether it may begin early.
    pub(super) fn given(&self) -> (&[u64], bool) {
        (self.arguments.words(), self.early)
    }
}

/// What kernels run on, as far as their tests go: a GPU, or what emulates one. All is done when a call returns.
pub trait KernelDevice {
    /// Memory for so many bytes, filled with `0xff`: what is not written is a NaN.
    ///
    /// # Errors
    /// Where there is not as much.
    fn take(&mut self, bytes: usize) -> Result<u64, CudaError>;
    /// Gives back all that was taken.
    fn clear(&mut self);
    /// Writes bytes to memory that was taken.
    ///
    /// # Errors
    /// What the device says.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CudaError>;
    /// Reads bytes of memory that was taken.
    ///
    /// # Errors
    /// What the device says.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), CudaError>;
    /// Runs a kernel.
    ///
    /// # Errors
    /// What the device says.
    fn launch(&mut self, launch: &Launch) -> Result<(), CudaError>;
    /// The vendor's product; false where there is none to be tested.
    ///
    /// # Errors
    /// What the library says.
    fn multiply(&mut self, product: &Product) -> Result<bool, CudaError>;
}

/// Whether kernels could run here: the libraries are there, and a GPU.
///
/// # Errors
/// The first thing that is missing.
pub fn check_available() -> Result<(), CudaError> {
    for library in LIBRARIES {
        library.need()?;
    }
    match Device::count()? {
        (_, 0) => Err(CudaError::NoGpu { index: 0, count: 0 }),
        _ => Ok(()),
    }
}

/// Kernels, compiled for the GPU that is there.
#[derive(Debug)]
pub(super) struct Modules {
    loaded: HashMap<&'static str, Module>,
    compiler: Compiler,
    cache: KernelCache,
    architecture: String,
    device: Arc<Device>,
}

impl Modules {
    /// None yet.
    pub(super) fn new(device: &Arc<Device>, cache: KernelCache) -> Result<Modules, CudaError> {
        let compiler = Compiler::find()?;
        Library::Compiler.suits(compiler.version()?[0], Device::count()?.0)?;
        Ok(Modules {
            loaded: HashMap::new(),
            compiler,
            cache,
            architecture: architecture::target(device, compiler)?,
            device: Arc::clone(device),
        })
    }

    /// Compiles a source, by its name without ending, unless it is here, or kept.
    pub(super) fn load(&mut self, stem: &str) -> Result<(), CudaError> {
        if self.loaded.contains_key(stem) {
            return Ok(());
        }
        let found = source(stem).ok_or_else(|| CudaError::NoKernel(stem.to_owned()))?;
        let cubin = self
            .cache
            .cubin(&self.compiler, found, &self.architecture)?;
        let module = Module::new(&self.device, &cubin)?;
        self.loaded
            .insert(found.name.trim_end_matches(".cu"), module);
        Ok(())
    }

    /// Compiles all sources that are not kept, some at a time, and loads them.
    pub(super) fn load_all(&mut self) -> Result<(), CudaError> {
        let at_once = available_parallelism().map_or(1, usize::from);
        let (cache, architecture) = (&self.cache, &self.architecture);
        let compiler = self.compiler;
        let compiled =
            |source: &'static Source| move || cache.cubin(&compiler, source, architecture);
        const ALL: &[Source] = &SOURCES;
        for some in ALL.chunks(at_once) {
            let cubins: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = some.iter().map(|s| scope.spawn(compiled(s))).collect();
                threads.into_iter().map(|thread| thread.join()).collect()
            });
            for (source, cubin) in some.iter().zip(cubins) {
                let cubin = cubin.map_err(|_| CudaError::Call {
                    call: "compiling a kernel",
                    why: "the compiler's thread panicked".to_owned(),
                })?;
                let module = Module::new(&self.device, &cubin?)?;
                self.loaded
                    .insert(source.name.trim_end_matches(".cu"), module);
            }
        }
        Ok(())
    }

    /// The kernels of a source that was compiled.
    pub(super) fn find(&self, stem: &str) -> Result<&Module, CudaError> {
        let found = self.loaded.get(stem);
        found.ok_or_else(|| CudaError::NoKernel(stem.to_owned()))
    }
}

/// A GPU.
#[derive(Debug)]
pub struct Gpu {
    modules: Modules,
    blas: Option<Blas>,
    arena: DeviceArena,
    stream: Stream,
    device: Arc<Device>,
}

impl Gpu {
    /// Opens GPU `index` with an arena of so many bytes, and with kernels from a cache.
    ///
    /// # Errors
    /// [`CudaError::Missing`] where the driver or the compiler is; [`CudaError::NoGpu`]; too little memory.
    pub fn open(index: u32, arena_bytes: usize, cache: KernelCache) -> Result<Gpu, CudaError> {
        let device = Device::open(index)?;
        let mut modules = Modules::new(&device, cache)?;
        // What does not compile is said where it is launched.
        let _ = modules.load_all();
        Ok(Gpu {
            modules,
            blas: None,
            arena: DeviceArena::new(&device, arena_bytes)?,
            stream: Stream::new(&device)?,
            device,
        })
    }

    /// What it is compiled for: `sm_80`.
    pub fn architecture(&self) -> &str {
        &self.modules.architecture
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn offset(&self, address: u64) -> usize {
        address.saturating_sub(self.arena.memory.address()) as usize
    }
}

impl KernelDevice for Gpu {
    fn take(&mut self, bytes: usize) -> Result<u64, CudaError> {
        let start = self.arena.places.take(bytes)?;
        self.stream
            .fill(&self.arena.memory, start..start + bytes, 0xff)?;
        Ok(self.arena.memory.address() + start as u64)
    }

    fn clear(&mut self) {
        self.arena.places.clear();
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.stream
            .write(&self.arena.memory, self.offset(address), bytes)
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.stream
            .read(&self.arena.memory, self.offset(address), bytes)
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), CudaError> {
        self.modules.load(launch.source)?;
        let module = self.modules.find(launch.source)?;
        let shape = (launch.grid, launch.threads, launch.shared_bytes);
        self.stream
            .launch((module, &launch.kernel), shape, launch.given())?;
        self.stream.synchronise()
    }

    fn multiply(&mut self, product: &Product) -> Result<bool, CudaError> {
        let blas = match self.blas.take() {
            Some(blas) => blas,
            None => Blas::new(&self.device)?,
        };
        blas.multiply(&self.stream, product)?;
        self.blas = Some(blas);
        self.stream.synchronise()?;
        Ok(true)
    }
}
