//! The driver: a GPU, its memory, streams, events and modules.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUresult};
use plimsoll_core::units::Bytes;

use super::{Library, cubin};
use crate::cuda::CudaError;

/// What a GPU says of itself.
pub use sys::CUdevice_attribute as Attribute;

/// From this compute capability on a kernel may be launched before the kernel before it ends, and code for earlier ones does not wait
/// for that.
pub const BEGINS_EARLY: i32 = 90;

fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: the text is a constant of the driver.
    let why = unsafe {
        let known = sys::cuGetErrorString(result, &raw mut text) == CUresult::CUDA_SUCCESS;
        (known && !text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    let why = why.unwrap_or_else(|| format!("{result:?}"));
    Err(CudaError::Call { call, why })
}

/// Calls a function of the driver, whose name is that of the error.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: handles are alive while the values that own them are, out-pointers point to locals, and
        // ranges of memory have been checked by who calls.
        check(stringify!($name), unsafe { sys::$name($($argument),*) })
    };
}

/// A GPU and its context, which all that it gives out keeps alive.
#[derive(Debug)]
pub struct Device {
    number: sys::CUdevice,
    context: sys::CUcontext,
    /// Kernels may begin before what came before them has ended.
    begins_early: bool,
}

// SAFETY: contexts may be used from any thread that makes them current, which each entry does.
unsafe impl Send for Device {}
// SAFETY: the driver locks what threads share.
unsafe impl Sync for Device {}

impl Device {
    /// The driver's version, as 1000 * major + 10 * minor, and how many GPUs it finds.
    ///
    /// # Errors
    /// [`CudaError::Missing`] without a driver; what the driver says where it does not start.
    pub fn count() -> Result<(i32, u32), CudaError> {
        Library::Driver.need()?;
        let (mut version, mut count) = (0, 0);
        call!(cuInit(0))?;
        call!(cuDriverGetVersion(&raw mut version))?;
        call!(cuDeviceGetCount(&raw mut count))?;
        Ok((version, count as u32))
    }

    /// GPU `index`, with its primary context.
    ///
    /// # Errors
    /// As [`Device::count`]; [`CudaError::NoGpu`].
    pub fn open(index: u32) -> Result<Arc<Device>, CudaError> {
        let (_, count) = Device::count()?;
        if index >= count {
            return Err(CudaError::NoGpu { index, count });
        }
        let (mut number, mut context) = (0, ptr::null_mut());
        call!(cuDeviceGet(&raw mut number, index as i32))?;
        call!(cuDevicePrimaryCtxRetain(&raw mut context, number))?;
        let mut device = Device {
            number,
            context,
            begins_early: false,
        };
        device.begins_early = device.capability()? >= BEGINS_EARLY;
        Ok(Arc::new(device))
    }

    /// Makes the context that of the calling thread.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        call!(cuCtxSetCurrent(self.context))
    }

    /// Its name.
    ///
    /// # Errors
    /// What the driver says.
    pub fn name(&self) -> Result<String, CudaError> {
        let mut bytes = [0_u8; 128];
        let text = bytes.as_mut_ptr().cast::<c_char>();
        call!(cuDeviceGetName(text, bytes.len() as i32 - 1, self.number))?;
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// What the driver says.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32, CudaError> {
        let mut value = 0;
        call!(cuDeviceGetAttribute(&raw mut value, attribute, self.number))?;
        Ok(value)
    }

    /// Its compute capability, 10 * major + minor.
    ///
    /// # Errors
    /// What the driver says.
    pub fn capability(&self) -> Result<i32, CudaError> {
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(10 * major + minor)
    }

    /// Bytes of memory that are free, and all.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory(&self) -> Result<[usize; 2], CudaError> {
        let (mut free, mut total) = (0, 0);
        self.enter()?;
        call!(cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok([free, total])
    }

    /// Where it is on the bus, as the system names it: `0000:01:00.0`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn bus_address(&self) -> Result<String, CudaError> {
        use Attribute::{
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID as BUS, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID as DEVICE,
            CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID as DOMAIN,
        };
        let (domain, bus) = (self.attribute(DOMAIN)?, self.attribute(BUS)?);
        let device = self.attribute(DEVICE)?;
        Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
    }

    /// Writes memory of the GPU, and returns when that is done. Whoever calls answers for the address.
    ///
    /// # Errors
    /// What the driver says.
    pub fn write(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.enter()?;
        let source = bytes.as_ptr().cast::<c_void>();
        call!(cuMemcpyHtoD_v2(to, source, bytes.len()))?;
        // The call may return when the bytes have been taken, before they are there; streams do not wait for that.
        self.synchronise()
    }

    /// Waits for all that was ever given to it.
    ///
    /// # Errors
    /// Where any of it failed.
    pub fn synchronise(&self) -> Result<(), CudaError> {
        self.enter()?;
        call!(cuCtxSynchronize())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure.
        let _ = call!(cuDevicePrimaryCtxRelease_v2(self.number));
    }
}

/// Memory of a GPU. It waits for the GPU before it is given back.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Arc<Device>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    /// Takes memory.
    ///
    /// # Errors
    /// Where there is not as much.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<DeviceMemory, CudaError> {
        let mut address = 0;
        device.enter()?;
        call!(cuMemAlloc_v2(&raw mut address, bytes.max(1))).map_err(|error| {
            CudaError::Memory {
                wanted: Bytes(bytes as u64),
                why: error.to_string(),
            }
        })?;
        let device = Arc::clone(device);
        Ok(DeviceMemory {
            device,
            address,
            bytes,
        })
    }

    /// Its first byte's address on the GPU.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How much it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of a range that must be in it.
    fn place(&self, range: &Range<usize>) -> Result<sys::CUdeviceptr, CudaError> {
        within("device memory", range, self.bytes)?;
        Ok(self.address + range.start as u64)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _ = self.device.synchronise();
        let _ = call!(cuMemFree_v2(self.address));
    }
}

fn within(what: &str, range: &Range<usize>, bytes: usize) -> Result<(), CudaError> {
    if range.start <= range.end && range.end <= bytes {
        return Ok(());
    }
    Err(CudaError::Call {
        call: "a copy",
        why: format!("bytes {range:?} of {bytes} bytes of {what}"),
    })
}

/// Page-locked memory of the host, which copies run to and from at full speed. It waits for the GPU before
/// it is given back.
#[derive(Debug)]
pub struct HostMemory {
    device: Arc<Device>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: it is plain memory.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// Takes memory that the processor caches, as any other: write-combined memory would be slow to read, and this
    /// is read by the CPU's attention and by the disk.
    ///
    /// # Errors
    /// Where the system does not lock as much.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<HostMemory, CudaError> {
        let mut start = ptr::null_mut();
        device.enter()?;
        call!(cuMemHostAlloc(
            &raw mut start,
            bytes.max(1),
            sys::CU_MEMHOSTALLOC_PORTABLE
        ))?;
        // SAFETY: as many bytes have just been allocated.
        unsafe { ptr::write_bytes(start.cast::<u8>(), 0, bytes.max(1)) };
        Ok(HostMemory {
            device: Arc::clone(device),
            start: start.cast(),
            bytes,
        })
    }

    /// Its bytes. What a copy to it brings is there once the copy has ended.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as many were allocated and set.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// Its bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as many were allocated and set, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let _ = self.device.synchronise();
        let _ = call!(cuMemFreeHost(self.start.cast()));
    }
}

/// Memory of the host that was taken elsewhere and is page-locked while this lives, so that copies run to and from
/// it at full speed and behind the host's back.
#[derive(Debug)]
pub struct LockedPages {
    device: Arc<Device>,
    start: u64,
    bytes: usize,
}

impl LockedPages {
    /// Locks memory, which must stay until this is gone.
    ///
    /// # Errors
    /// Where the system does not lock as much.
    pub fn new(device: &Arc<Device>, start: u64, bytes: usize) -> Result<LockedPages, CudaError> {
        device.enter()?;
        call!(cuMemHostRegister_v2(
            start as *mut c_void,
            bytes.max(1),
            sys::CU_MEMHOSTREGISTER_PORTABLE
        ))?;
        let device = Arc::clone(device);
        Ok(LockedPages {
            device,
            start,
            bytes,
        })
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        let _ = self.device.synchronise();
        let _ = call!(cuMemHostUnregister(self.start as *mut c_void));
    }
}

/// A copy of rows, with the driver to tell memories apart by their addresses. Every field is stated: zeros are no kind of memory.
fn rows_of(
    to: u64,
    from: u64,
    [bytes, rows, to_pitch, from_pitch]: [usize; 4],
) -> sys::CUDA_MEMCPY2D {
    let unified = sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED;
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: unified,
        srcHost: ptr::null(),
        srcDevice: from,
        srcArray: ptr::null_mut(),
        srcPitch: from_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: unified,
        dstHost: ptr::null_mut(),
        dstDevice: to,
        dstArray: ptr::null_mut(),
        dstPitch: to_pitch,
        WidthInBytes: bytes,
        Height: rows,
    }
}

/// A queue of work, which the GPU takes in order.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    stream: sys::CUstream,
    /// Whether it was told to wait since the last launch.
    waits: AtomicBool,
}

// SAFETY: the driver locks what threads share.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A queue that waits for no other.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Arc<Device>) -> Result<Stream, CudaError> {
        let mut stream = ptr::null_mut();
        device.enter()?;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        call!(cuStreamCreate(&raw mut stream, flags))?;
        let device = Arc::clone(device);
        Ok(Stream {
            device,
            stream,
            waits: AtomicBool::new(false),
        })
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.stream
    }

    /// Copies from the host and returns when that is done.
    ///
    /// # Errors
    /// A range that is not in the memory; what the driver says.
    pub fn write(&self, to: &DeviceMemory, at: usize, from: &[u8]) -> Result<(), CudaError> {
        let place = to.place(&(at..at + from.len()))?;
        self.device.enter()?;
        let source = from.as_ptr().cast::<c_void>();
        call!(cuMemcpyHtoDAsync_v2(place, source, from.len(), self.stream))?;
        self.synchronise()
    }

    /// Copies to the host and returns when that is done.
    ///
    /// # Errors
    /// A range that is not in the memory; what the driver says.
    pub fn read(&self, from: &DeviceMemory, at: usize, to: &mut [u8]) -> Result<(), CudaError> {
        let place = from.place(&(at..at + to.len()))?;
        self.device.enter()?;
        let into = to.as_mut_ptr().cast::<c_void>();
        call!(cuMemcpyDtoHAsync_v2(into, place, to.len(), self.stream))?;
        self.synchronise()
    }

    /// Sets bytes, behind what the stream has to do before.
    ///
    /// # Errors
    /// A range that is not in the memory; what the driver says.
    pub fn fill(
        &self,
        memory: &DeviceMemory,
        range: Range<usize>,
        value: u8,
    ) -> Result<(), CudaError> {
        let place = memory.place(&range)?;
        self.device.enter()?;
        call!(cuMemsetD8Async(place, value, range.len(), self.stream))
    }

    /// Copies rows between memories of the GPU and of the host, which the driver tells apart by their addresses, for which
    /// whoever calls answers: bytes of a row, rows, and bytes from a row to the next of the target and of the source.
    ///
    /// # Errors
    /// What the driver says.
    pub fn copy_rows(
        &self,
        to: u64,
        from: u64,
        [bytes, rows, to_pitch, from_pitch]: [usize; 4],
    ) -> Result<(), CudaError> {
        self.device.enter()?;
        if rows == 1 || [to_pitch, from_pitch] == [bytes; 2] {
            return call!(cuMemcpyAsync(to, from, bytes * rows, self.stream));
        }
        let copy = rows_of(to, from, [bytes, rows, to_pitch, from_pitch]);
        call!(cuMemcpy2DAsync_v2(&raw const copy, self.stream))
    }

    /// Lets the stream wait for an event, not the host.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        self.device.enter()?;
        call!(cuStreamWaitEvent(self.stream, event.event, 0))?;
        self.waits.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Launches a kernel, which may begin `early` where the GPU can and it waits for what came before itself: the kernel before, and
    /// no documentation says whether an event besides, so the first one behind an event never does. Whoever calls
    /// answers for that and for the addresses in `arguments`: a wrong one is an error of the GPU, which all later calls report.
    ///
    /// # Errors
    /// [`CudaError::NoKernel`]; what the driver says.
    pub fn launch(
        &self,
        (module, kernel): (&Module, &str),
        (grid, threads, shared_bytes): ([u32; 3], u32, u32),
        (arguments, early): (&[u64], bool),
    ) -> Result<(), CudaError> {
        self.device.enter()?;
        let function = module.function(kernel)?;
        if shared_bytes > 48 << 10 {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            call!(cuFuncSetAttribute(function, most, shared_bytes as i32))?;
        }
        let mut parameters = [arguments.as_ptr().cast_mut().cast::<c_void>()];
        let [x, y, z] = grid;
        let parameters = parameters.as_mut_ptr();
        let behind_event = self.waits.swap(false, Ordering::Relaxed);
        if early && self.device.begins_early && !behind_event {
            let mut attribute = may_begin_early();
            let config = sys::CUlaunchConfig {
                gridDimX: x,
                gridDimY: y,
                gridDimZ: z,
                blockDimX: threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: shared_bytes,
                hStream: self.stream,
                attrs: &raw mut attribute,
                numAttrs: 1,
            };
            let none = ptr::null_mut();
            return call!(cuLaunchKernelEx(
                &raw const config,
                function,
                parameters,
                none
            ));
        }
        call!(cuLaunchKernel(
            function,
            x,
            y,
            z,
            threads,
            1,
            1,
            shared_bytes,
            self.stream,
            parameters,
            ptr::null_mut()
        ))
    }

    /// Waits for all that the stream has to do.
    ///
    /// # Errors
    /// Where any of it failed.
    pub fn synchronise(&self) -> Result<(), CudaError> {
        self.device.enter()?;
        call!(cuStreamSynchronize(self.stream))
    }
}

/// What lets a kernel begin before the one before it in its stream has ended.
fn may_begin_early() -> sys::CUlaunchAttribute {
    use sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.programmaticStreamSerializationAllowed = 1;
    sys::CUlaunchAttribute {
        id: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value,
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.device.enter();
        let _ = call!(cuStreamDestroy_v2(self.stream));
    }
}

/// A moment in a stream.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    event: sys::CUevent,
}

// SAFETY: the driver locks what threads share.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// One that has not been.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Arc<Device>) -> Result<Event, CudaError> {
        Event::with(device, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// One for which a thread sleeps that waits for it, and leaves its core to others.
    ///
    /// # Errors
    /// What the driver says.
    pub fn blocking(device: &Arc<Device>) -> Result<Event, CudaError> {
        Event::with(device, sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC)
    }

    fn with(device: &Arc<Device>, flags: sys::CUevent_flags) -> Result<Event, CudaError> {
        let mut event = ptr::null_mut();
        device.enter()?;
        call!(cuEventCreate(&raw mut event, flags as u32))?;
        let device = Arc::clone(device);
        Ok(Event { device, event })
    }

    /// Is when the stream has done all that it has to do by now.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.device.enter()?;
        call!(cuEventRecord(self.event, stream.stream))
    }

    /// Waits until it has been.
    ///
    /// # Errors
    /// Where the GPU failed.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.device.enter()?;
        call!(cuEventSynchronize(self.event))
    }

    /// Milliseconds since an earlier event, by the GPU's clock. Both have been.
    ///
    /// # Errors
    /// What the driver says; [`CudaError::Old`] where it has no such call under either name.
    pub fn elapsed_ms(&self, since: &Event) -> Result<f32, CudaError> {
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
        self.device.enter()?;
        // Newer drivers have it under a second name; the bindings panic where theirs is missing.
        // SAFETY: both names are of this type; the driver is never unloaded.
        let found = unsafe {
            let driver = sys::culib();
            driver
                .get::<Elapsed>(b"cuEventElapsedTime_v2\0")
                .or_else(|_| driver.get::<Elapsed>(b"cuEventElapsedTime\0"))
                .map(|symbol| *symbol)
        };
        let elapsed = found.map_err(|_| CudaError::Old {
            library: Library::Driver.name(),
            symbol: "cuEventElapsedTime",
        })?;
        let mut milliseconds = 0.0;
        // SAFETY: both handles are alive, and the result is a local.
        let result = unsafe { elapsed(&raw mut milliseconds, since.event, self.event) };
        check("cuEventElapsedTime", result)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.device.enter();
        let _ = call!(cuEventDestroy_v2(self.event));
    }
}

/// Kernels that were loaded to a GPU.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    module: sys::CUmodule,
    /// Those that were asked for.
    functions: Mutex<HashMap<String, Function>>,
}

#[derive(Debug, Clone, Copy)]
struct Function(sys::CUfunction);

// SAFETY: it is a name for code of the module, which outlives it.
unsafe impl Send for Function {}

// SAFETY: the driver locks what threads share.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a CUBIN, or PTX that ends with a zero.
    ///
    /// # Errors
    /// One that is for other GPUs.
    pub fn new(device: &Arc<Device>, code: &[u8]) -> Result<Module, CudaError> {
        let mut module = ptr::null_mut();
        device.enter()?;
        call!(cuModuleLoadData(&raw mut module, code.as_ptr().cast()))?;
        let module = Module {
            device: Arc::clone(device),
            module,
            functions: Mutex::default(),
        };
        if !load_functions(module.module) {
            // One that cannot be found now is missed where it is launched; PTX's kernels come then.
            for kernel in cubin::kernels(code) {
                let _ = module.function(kernel);
            }
        }
        Ok(module)
    }

    fn function(&self, kernel: &str) -> Result<sys::CUfunction, CudaError> {
        let mut known = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(Function(function)) = known.get(kernel) {
            return Ok(*function);
        }
        let missing = || CudaError::NoKernel(kernel.to_owned());
        let name = CString::new(kernel).map_err(|_| missing())?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is alive, the name ends in 0, and the result is a local.
        let result =
            unsafe { sys::cuModuleGetFunction(&raw mut function, self.module, name.as_ptr()) };
        // Else it may be of a kernel before, which a context reports in whatever is called next.
        if result == CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(missing());
        }
        check("cuModuleGetFunction", result)?;
        known.insert(kernel.to_owned(), Function(function));
        Ok(function)
    }
}

/// Has a module's kernels loaded now: left alone, the driver loads each when it is first looked up or launched, inside somebody's clock.
/// False where the driver cannot be told so (before 12.4), or does not do it.
fn load_functions(module: sys::CUmodule) -> bool {
    type Count = unsafe extern "C" fn(*mut u32, sys::CUmodule) -> CUresult;
    type Enumerate = unsafe extern "C" fn(*mut sys::CUfunction, u32, sys::CUmodule) -> CUresult;
    type Load = unsafe extern "C" fn(sys::CUfunction) -> CUresult;
    // SAFETY: the names are of these types; the driver is never unloaded.
    let found = unsafe {
        let driver = sys::culib();
        let count = driver.get::<Count>(b"cuModuleGetFunctionCount\0");
        let enumerate = driver.get::<Enumerate>(b"cuModuleEnumerateFunctions\0");
        let load = driver.get::<Load>(b"cuFuncLoad\0");
        match (count, enumerate, load) {
            (Ok(count), Ok(enumerate), Ok(load)) => Some((*count, *enumerate, *load)),
            _ => None,
        }
    };
    let Some((count, enumerate, load)) = found else {
        return false;
    };
    let mut number = 0;
    // SAFETY: the module is loaded, and the result is a local.
    if unsafe { count(&raw mut number, module) } != CUresult::CUDA_SUCCESS {
        return false;
    }
    let mut functions = vec![ptr::null_mut(); number as usize];
    // SAFETY: there is room for as many as are asked for.
    if unsafe { enumerate(functions.as_mut_ptr(), number, module) } != CUresult::CUDA_SUCCESS {
        return false;
    }
    // SAFETY: a function of the module. One that is not loaded now is when it is launched.
    let loaded = |function| unsafe { load(function) } == CUresult::CUDA_SUCCESS;
    functions.into_iter().all(loaded)
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.device.synchronise();
        let _ = call!(cuModuleUnload(self.module));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_rows_says_what_is_asked() {
        let copy = rows_of(1 << 40, 2 << 40, [8, 3, 16, 24]);
        assert_eq!([copy.dstDevice, copy.srcDevice], [1 << 40, 2 << 40]);
        assert_eq!([copy.WidthInBytes, copy.Height], [8, 3]);
        assert_eq!([copy.dstPitch, copy.srcPitch], [16, 24]);
    }
}
