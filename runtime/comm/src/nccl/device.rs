//! One GPU as the transport uses it: its primary context, streams of our own, and events.

use meshwright_gpu::devices::CUDA_OF_CONTEXT_EVENTS;
use meshwright_gpu::driver::{CuResult, Driver, DriverError, NOT_READY};
use meshwright_gpu::load::functions;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

type ContextHandle = *mut c_void;
pub(super) type StreamHandle = *mut c_void;
type EventHandle = *mut c_void;

functions! {
    /// What ordering work needs.
    pub(super) Work needs "a driver of CUDA 11.0" {
        retain = "cuDevicePrimaryCtxRetain" (*mut ContextHandle, c_int) -> CuResult;
        release = "cuDevicePrimaryCtxRelease_v2" (c_int) -> CuResult;
        set_current = "cuCtxSetCurrent" (ContextHandle) -> CuResult;
        synchronize = "cuCtxSynchronize" () -> CuResult;
        priorities = "cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int) -> CuResult;
        stream_create = "cuStreamCreateWithPriority" (*mut StreamHandle, c_uint, c_int) -> CuResult;
        stream_destroy = "cuStreamDestroy_v2" (StreamHandle) -> CuResult;
        stream_wait = "cuStreamWaitEvent" (StreamHandle, EventHandle, c_uint) -> CuResult;
        event_create = "cuEventCreate" (*mut EventHandle, c_uint) -> CuResult;
        event_destroy = "cuEventDestroy_v2" (EventHandle) -> CuResult;
        event_record = "cuEventRecord" (EventHandle, StreamHandle) -> CuResult;
        event_query = "cuEventQuery" (EventHandle) -> CuResult;
        copy = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, StreamHandle) -> CuResult;
        allocate = "cuMemAlloc_v2" (*mut u64, usize) -> CuResult;
        free = "cuMemFree_v2" (u64) -> CuResult;
        upload = "cuMemcpyHtoD_v2" (u64, *const c_void, usize) -> CuResult;
        download = "cuMemcpyDtoH_v2" (*mut c_void, u64, usize) -> CuResult;
    }
}

type ContextEvent = unsafe extern "C" fn(ContextHandle, EventHandle) -> CuResult;

/// Events of a whole context, which CUDA has since 12.5.
#[derive(Clone, Copy)]
struct ContextEvents {
    record: ContextEvent,
    wait: ContextEvent,
}

const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;

/// A stream of our own of one [`Gpu`], which lives as long as that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnStream(StreamHandle);

#[expect(unsafe_code, reason = "a handle that the driver allows to be used from every thread")]
// SAFETY: as said.
unsafe impl Send for OwnStream {}

impl OwnStream {
    pub(super) fn handle(self) -> StreamHandle {
        self.0
    }
}

/// The stream at an address.
pub(super) fn stream_at(address: u64) -> StreamHandle {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// An event of one [`Gpu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceEvent(EventHandle);

#[expect(unsafe_code, reason = "a handle that the driver allows to be used from every thread")]
// SAFETY: as said.
unsafe impl Send for DeviceEvent {}

/// A GPU. Its functions need it to be current: see [`Gpu::bind`].
pub(super) struct Gpu {
    driver: Driver,
    f: Work,
    context_events: Option<ContextEvents>,
    device: c_int,
    context: ContextHandle,
    /// Those of ours.
    streams: Mutex<Vec<OwnStream>>,
    pub(super) ordinal: u32,
    pub(super) bus_id: String,
}

#[expect(unsafe_code, reason = "handles that the driver allows to be used from every thread")]
// SAFETY: as said.
unsafe impl Send for Gpu {}
#[expect(unsafe_code, reason = "handles that the driver allows to be used from every thread")]
// SAFETY: as said.
unsafe impl Sync for Gpu {}

#[expect(unsafe_code, reason = "functions of the driver, with handles that it gave")]
impl Gpu {
    /// Takes part in the primary context of a GPU.
    pub(super) fn open(driver: Driver, ordinal: u32) -> Result<Gpu, DriverError> {
        let f = Work::load(driver.opened())?;
        let library = driver.opened();
        // SAFETY: the types are those of `cuda.h`.
        let (record, wait) = unsafe {
            (library.find::<ContextEvent>("cuCtxRecordEvent"), library.find::<ContextEvent>("cuCtxWaitEvent"))
        };
        let context_events = match (record, wait) {
            (Some(record), Some(wait)) if driver.version()? >= CUDA_OF_CONTEXT_EVENTS => {
                Some(ContextEvents { record, wait })
            }
            _ => None,
        };
        let device = driver.device(ordinal)?;
        let bus_id = driver.properties(ordinal)?.bus_id;
        let mut context = std::ptr::null_mut();
        // SAFETY: writes a handle.
        driver.check("cuDevicePrimaryCtxRetain", unsafe { (f.retain)(&raw mut context, device) })?;
        // From here on the drop releases what there is.
        let streams = Mutex::default();
        let gpu = Gpu { driver, f, context_events, device, context, streams, ordinal, bus_id };
        gpu.bind()?;
        Ok(gpu)
    }

    /// A new stream. It needs the GPU to be current.
    pub(super) fn new_stream(&self) -> Result<OwnStream, DriverError> {
        let (mut last, mut first, mut stream) = (0, 0, std::ptr::null_mut());
        // SAFETY: the context is current; writes two integers.
        let told = unsafe { (self.f.priorities)(&raw mut last, &raw mut first) };
        self.check("cuCtxGetStreamPriorityRange", told)?;
        // What computes leaves units to collectives as soon as some are free: others wait for these.
        // SAFETY: as above; writes a handle.
        let made = unsafe { (self.f.stream_create)(&raw mut stream, STREAM_NON_BLOCKING, first) };
        self.check("cuStreamCreateWithPriority", made)?;
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(OwnStream(stream));
        Ok(OwnStream(stream))
    }

    fn check(&self, function: &'static str, code: CuResult) -> Result<(), DriverError> {
        self.driver.check(function, code)
    }

    pub(super) fn has_context_events(&self) -> bool {
        self.context_events.is_some()
    }

    /// Makes it the current GPU of this thread, which may call everything while graphs are recorded.
    pub(super) fn bind(&self) -> Result<(), DriverError> {
        self.driver.allow_calls_during_captures()?;
        // SAFETY: the context is retained as long as `self` lives.
        self.check("cuCtxSetCurrent", unsafe { (self.f.set_current)(self.context) })
    }

    /// Waits for all work of the context.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: waits for the current context.
        self.check("cuCtxSynchronize", unsafe { (self.f.synchronize)() })
    }

    pub(super) fn event(&self) -> Result<DeviceEvent, DriverError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: writes a handle; the context is current.
        self.check("cuEventCreate", unsafe { (self.f.event_create)(&raw mut event, EVENT_DISABLE_TIMING) })?;
        Ok(DeviceEvent(event))
    }

    /// Frees an event.
    pub(super) fn destroy_event(&self, event: DeviceEvent) {
        // SAFETY: events are given back once, and the driver frees them after their last use. Nothing can be done about a
        // failure.
        let _ = unsafe { (self.f.event_destroy)(event.0) };
    }

    /// `event` is done when all work is that a stream of ours has now.
    pub(super) fn record(&self, own: OwnStream, event: DeviceEvent) -> Result<(), DriverError> {
        // SAFETY: both handles are ours.
        self.check("cuEventRecord", unsafe { (self.f.event_record)(event.0, own.0) })
    }

    /// A stream of ours goes on when all work is done that another stream has now. A graph that is recorded there has the work of
    /// ours too, from now until [`Gpu::stream_waits`].
    ///
    /// # Safety
    /// It is a stream of this GPU.
    pub(super) unsafe fn after_stream(
        &self,
        own: OwnStream,
        stream: StreamHandle,
        event: DeviceEvent,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.record_on(stream, event) }?;
        // SAFETY: handles of ours.
        self.check("cuStreamWaitEvent", unsafe { (self.f.stream_wait)(own.0, event.0, 0) })
    }

    /// What is put on another stream from now on waits for `event`.
    ///
    /// # Safety
    /// It is a stream of this GPU.
    pub(super) unsafe fn stream_waits(
        &self,
        stream: StreamHandle,
        event: DeviceEvent,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        self.check("cuStreamWaitEvent", unsafe { (self.f.stream_wait)(stream, event.0, 0) })
    }

    /// `event` is done when all work is that another stream has now.
    ///
    /// # Safety
    /// It is a stream of this GPU.
    pub(super) unsafe fn record_on(
        &self,
        stream: StreamHandle,
        event: DeviceEvent,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        self.check("cuEventRecord", unsafe { (self.f.event_record)(event.0, stream) })
    }

    /// A stream of ours goes on when all work is done that the context has now. Needs events of contexts.
    pub(super) fn after_context(&self, own: OwnStream, event: DeviceEvent) -> Result<(), DriverError> {
        let Some(events) = self.context_events else {
            unreachable!("chosen only where there are such events")
        };
        // SAFETY: handles of ours.
        self.check("cuCtxRecordEvent", unsafe { (events.record)(self.context, event.0) })?;
        // SAFETY: as above.
        self.check("cuStreamWaitEvent", unsafe { (self.f.stream_wait)(own.0, event.0, 0) })
    }

    /// What is submitted to the context from now on waits for `event`. Needs events of contexts.
    pub(super) fn context_waits(&self, event: DeviceEvent) -> Result<(), DriverError> {
        let Some(events) = self.context_events else {
            unreachable!("chosen only where there are such events")
        };
        // SAFETY: handles of ours.
        self.check("cuCtxWaitEvent", unsafe { (events.wait)(self.context, event.0) })
    }

    /// Whether `event` is done.
    pub(super) fn is_done(&self, event: DeviceEvent) -> Result<bool, DriverError> {
        // SAFETY: a handle of ours.
        match unsafe { (self.f.event_query)(event.0) } {
            NOT_READY => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// New memory of at least one byte.
    pub(super) fn allocate(&self, bytes: usize) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: writes an address.
        self.check("cuMemAlloc", unsafe { (self.f.allocate)(&raw mut address, bytes) }).map(|()| address)
    }

    /// Frees what [`Gpu::allocate`] gave.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub(super) unsafe fn free(&self, address: u64) {
        // SAFETY: the caller's promise. Nothing can be done about a failure.
        let _ = unsafe { (self.f.free)(address) };
    }

    /// Copies to the GPU. The context's later work comes after it.
    ///
    /// # Safety
    /// There is room at `to`, and nothing in flight uses it.
    pub(super) unsafe fn upload(&self, from: &[u8], to: u64) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        self.check("cuMemcpyHtoD", unsafe { (self.f.upload)(to, from.as_ptr().cast(), from.len()) })
    }

    /// Copies from the GPU.
    ///
    /// # Safety
    /// There are as many bytes at `from`, and nothing in flight writes to them.
    pub(super) unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        self.check("cuMemcpyDtoH", unsafe { (self.f.download)(to.as_mut_ptr().cast(), from, to.len()) })
    }

    /// Copies within the GPU, on a stream of ours.
    ///
    /// # Safety
    /// Both ranges are memory of this GPU, and the stream's order makes the copy come at its time.
    pub(super) unsafe fn copy(
        &self,
        (from, to): (*const u8, *mut u8),
        bytes: usize,
        own: OwnStream,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.f.copy)(to.addr() as u64, from.addr() as u64, bytes, own.0) };
        self.check("cuMemcpyDtoDAsync", code)
    }
}

impl Drop for Gpu {
    #[expect(unsafe_code, reason = "gives back what `open` took")]
    fn drop(&mut self) {
        let streams = std::mem::take(self.streams.get_mut().unwrap_or_else(PoisonError::into_inner));
        let bound = streams.is_empty() || self.bind().is_ok();
        // SAFETY: handles of ours, used no more. Nothing can be done about a failure.
        unsafe {
            for stream in streams.into_iter().filter(|_| bound) {
                let _ = (self.f.stream_destroy)(stream.0);
            }
            let _ = (self.f.release)(self.device);
        }
    }
}
