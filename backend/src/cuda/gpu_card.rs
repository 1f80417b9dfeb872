//! A real GPU behind the executor's seam.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use plimsoll_core::units::Bytes;

use super::card::{Card, CopyRows};
use super::gpu::Modules;
use super::kernel_cache::KernelCache;
use super::raw::{
    Attribute, Blas, Compiler, Device, DeviceMemory, Event, LockedPages, Product, Stream,
};
use super::{CudaError, Launch, architecture};

/// What a card is taken to have as its last cache at least, where its driver says less or nothing.
const CACHE_BYTES_MIN: usize = 16 << 20;

/// Streams and events, and what is taken: given back in this order.
#[derive(Debug, Default)]
struct Taken {
    streams: Vec<Stream>,
    events: Vec<Arc<Event>>,
    memory: Vec<DeviceMemory>,
    locked: Vec<LockedPages>,
}

/// A GPU that executes plans.
#[derive(Debug)]
pub struct GpuCard {
    taken: RwLock<Taken>,
    modules: OnceLock<Modules>,
    cache: KernelCache,
    blas: Mutex<Option<Blas>>,
    multiprocessors: usize,
    cache_bytes: usize,
    name: String,
    memory: [usize; 2],
    device: Arc<Device>,
}

fn missing(what: &'static str, number: usize) -> CudaError {
    CudaError::Call {
        call: what,
        why: format!("there is no number {number}; this is an error of Plimsoll"),
    }
}

impl GpuCard {
    /// GPU `index`, with kernels from a cache.
    ///
    /// # Errors
    /// [`CudaError::Missing`] where a library is; [`CudaError::NoGpu`].
    pub fn new(index: u32, cache: KernelCache) -> Result<GpuCard, CudaError> {
        super::check_available()?;
        let device = Device::open(index)?;
        architecture::target(&device, Compiler::find()?)?;
        let count = device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let cached = device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        Ok(GpuCard {
            taken: RwLock::default(),
            modules: OnceLock::new(),
            cache,
            blas: Mutex::default(),
            multiprocessors: count.max(1) as usize,
            cache_bytes: (cached.max(0) as usize).max(CACHE_BYTES_MIN),
            name: device.name()?,
            memory: device.memory()?,
            device,
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Does something with a stream.
    fn on<R>(
        &self,
        stream: usize,
        what: impl FnOnce(&Stream, &Taken) -> Result<R, CudaError>,
    ) -> Result<R, CudaError> {
        let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
        let stream = taken.streams.get(stream);
        what(stream.ok_or_else(|| missing("a stream", 0))?, &taken)
    }
}

impl Taken {
    fn event(&self, number: usize) -> Result<&Arc<Event>, CudaError> {
        self.events
            .get(number)
            .ok_or_else(|| missing("an event", number))
    }
}

impl Card for GpuCard {
    fn open(&self, streams: usize, events: usize) -> Result<(), CudaError> {
        if self.modules.get().is_none() {
            let mut modules = Modules::new(&self.device, self.cache.clone())?;
            modules.load_all()?;
            let _ = self.modules.set(modules);
        }
        let mut blas = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        if blas.is_none() {
            *blas = Some(Blas::new(&self.device)?);
        }
        let mut taken = self.taken.write().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..streams {
            taken.streams.push(Stream::new(&self.device)?);
        }
        for _ in 0..events {
            taken.events.push(Arc::new(Event::blocking(&self.device)?));
        }
        Ok(())
    }

    fn take(&self, bytes: usize) -> Result<u64, CudaError> {
        let memory = DeviceMemory::new(&self.device, bytes)?;
        let address = memory.address();
        let mut taken = self.taken.write().unwrap_or_else(PoisonError::into_inner);
        taken.memory.push(memory);
        Ok(address)
    }

    fn give_back(&self, address: u64) {
        let mut taken = self.taken.write().unwrap_or_else(PoisonError::into_inner);
        taken.memory.retain(|memory| memory.address() != address);
    }

    fn lock_pages(&self, address: u64, bytes: usize) -> Result<(), CudaError> {
        // Gigabytes take a while, in which the streams go on.
        let locked = LockedPages::new(&self.device, address, bytes);
        let mut taken = self.taken.write().unwrap_or_else(PoisonError::into_inner);
        let locked = locked.map_err(|error| CudaError::PageLock {
            wanted: Bytes(bytes as u64),
            locked: Bytes(taken.locked.iter().map(|it| it.bytes() as u64).sum()),
            why: error.to_string(),
        })?;
        taken.locked.push(locked);
        Ok(())
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.device.write(to, bytes)
    }

    fn copy(&self, stream: usize, copy: &CopyRows) -> Result<(), CudaError> {
        self.on(stream, |stream, _| {
            for copy in copy.in_reach() {
                let sizes = [copy.bytes, copy.rows, copy.to_pitch, copy.from_pitch];
                stream.copy_rows(copy.to, copy.from, sizes)?;
            }
            Ok(())
        })
    }

    fn launch(&self, stream: usize, launch: &Launch) -> Result<(), CudaError> {
        let modules = self.modules.get();
        let modules = modules.ok_or_else(|| CudaError::NoKernel(launch.kernel.clone()))?;
        self.on(stream, |stream, _| {
            let shape = (launch.grid, launch.threads, launch.shared_bytes);
            let kernel = (modules.find(launch.source)?, launch.kernel.as_str());
            stream.launch(kernel, shape, launch.given())
        })
    }

    fn multiply(&self, stream: usize, product: &Product) -> Result<(), CudaError> {
        let blas = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        let blas = blas.as_ref().ok_or_else(|| missing("a product", 0))?;
        self.on(stream, |stream, _| blas.multiply(stream, product))
    }

    fn record(&self, stream: usize, event: usize) -> Result<(), CudaError> {
        self.on(stream, |stream, taken| taken.event(event)?.record(stream))
    }

    fn wait_for(&self, stream: usize, event: usize) -> Result<(), CudaError> {
        self.on(stream, |stream, taken| stream.wait_for(taken.event(event)?))
    }

    fn await_event(&self, event: usize) -> Result<(), CudaError> {
        let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
        let event = Arc::clone(taken.event(event)?);
        // Who waits keeps nobody from taking memory.
        drop(taken);
        event.wait()
    }

    fn elapsed_ms(&self, since: usize, event: usize) -> Result<f32, CudaError> {
        let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
        taken.event(event)?.elapsed_ms(taken.event(since)?)
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn memory(&self) -> [usize; 2] {
        self.memory
    }

    fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    fn close(&self) {
        // What failed was said by whoever waited for it.
        let _ = self.device.synchronise();
        let mut taken = self.taken.write().unwrap_or_else(PoisonError::into_inner);
        *taken = Taken::default();
    }
}
