//! The driver: GPUs, memory that is the host's, streams and events.

use crate::capture::{CAPTURED_EVENT, UNCAPTURED, UNSUPPORTED, is_prohibited};
use crate::faults::memory_limit;
use crate::kernels::{RUN, unless_faulted, unless_faulted_on};
use crate::stream::{Event, Moment, Stream};
use crate::{lock, setting};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;
const INVALID_CONTEXT: c_int = 201;
const NOT_READY: c_int = 600;

/// The primary context of a GPU.
#[derive(Default)]
pub(crate) struct Context {
    pub(crate) ordinal: c_int,
    state: Mutex<CudaState>,
}

#[derive(Default)]
struct CudaState {
    streams: Vec<Arc<Stream>>,
    /// What all later work waits for, that of streams yet to come included.
    gates: Vec<Arc<Moment>>,
    users: usize,
}

static CONTEXTS: Mutex<BTreeMap<c_int, &'static Context>> = Mutex::new(BTreeMap::new());
/// Where each piece starts, how many bytes it has, and whose it is.
static MEMORY: Mutex<BTreeMap<usize, (usize, c_int)>> = Mutex::new(BTreeMap::new());
/// Whose memory pinned memory of the host is.
pub(crate) const HOST: c_int = -1;
static TAKES_ALL: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<Option<&'static Context>> = const { Cell::new(None) };
}

pub(crate) fn current() -> Option<&'static Context> {
    CURRENT.get()
}

fn gpus() -> c_int {
    setting("FAKE_NCCL_GPUS", 1024)
}

/// Takes all memory for that of a GPU, for engines that allocate the host's.
#[unsafe(no_mangle)]
pub extern "C" fn fakeTakesHostMemory() {
    TAKES_ALL.store(true, Ordering::Relaxed);
}

/// Whether all of it is memory of a GPU.
pub(crate) fn is_device_memory(address: usize, bytes: usize) -> bool {
    if TAKES_ALL.load(Ordering::Relaxed) {
        return true;
    }
    let memory = lock(&MEMORY);
    memory.range(..=address).next_back().is_some_and(|(start, (size, _))| address + bytes <= start + size)
}

/// The memory of a GPU that was allocated in one piece and has this address in it, as where it starts and ends.
pub(crate) fn piece(address: usize) -> Option<(usize, usize)> {
    if TAKES_ALL.load(Ordering::Relaxed) {
        return Some((0, usize::MAX));
    }
    let memory = lock(&MEMORY);
    let (start, (size, _)) = memory.range(..=address).next_back()?;
    (address < start + size).then_some((*start, start + size))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    if gpus() > 0 { SUCCESS } else { NO_DEVICE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = setting("FAKE_CUDA_VERSION", 13000) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    unsafe { *count = gpus() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    if !(0..gpus()).contains(&ordinal) {
        return INVALID_DEVICE;
    }
    unsafe { *device = ordinal };
    SUCCESS
}

unsafe fn write_text(to: *mut c_char, room: c_int, text: &str) -> c_int {
    if text.len() >= room as usize {
        return INVALID_VALUE;
    }
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        *to.add(text.len()) = 0;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, _device: c_int) -> c_int {
    unsafe { write_text(name, room, "Fake GPU") }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, room: c_int, device: c_int) -> c_int {
    unsafe { write_text(id, room, &format!("{:04X}:{:02X}:00.0", device >> 8, device & 255)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_int {
    unsafe { *bytes = (setting("FAKE_CUDA_MEMORY", 1) as usize) << 30 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_int, device: c_int) -> c_int {
    // As of an H200, by the numbers of the enumeration.
    let known = match which {
        // Threads of a block, and along each of its sides.
        1..=3 => 1024,
        4 => 64,
        // Blocks of a grid along its sides.
        5 => i32::MAX,
        6 | 7 => 65_535,
        // Of a warp.
        10 => 32,
        // Multiprocessors: few of them make small problems large.
        16 => setting("FAKE_CUDA_MULTIPROCESSORS", 132),
        // The bus, the slot and the domain of the device's address.
        33 => device & 255,
        34 => 0,
        50 => device >> 8,
        75 => capability().0,
        76 => capability().1,
        // Bytes of shared memory that a block can ask for.
        97 if capability() < (9, 0) => 163 << 10,
        97 => 227 << 10,
        // Memory in the order of streams.
        115 => 1,
        _ => return INVALID_VALUE,
    };
    unsafe { *value = known };
    SUCCESS
}

/// The compute capability: 9.0, or what the variable says, such as 8.0.
fn capability() -> (c_int, c_int) {
    let said = std::env::var("FAKE_CUDA_CAPABILITY").ok();
    let parts = said.as_deref().and_then(|said| said.split_once('.'));
    parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?))).unwrap_or((9, 0))
}

fn error(code: c_int) -> (&'static std::ffi::CStr, &'static std::ffi::CStr) {
    match code {
        INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        46 => (c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"CUDA-capable device(s) is/are busy or unavailable"),
        NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        INVALID_DEVICE => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        INVALID_CONTEXT => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        214 => (c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"),
        218 => (c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
        500 => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        700 => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        702 => (c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated"),
        716 => (c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
        719 => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        NOT_READY => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        UNSUPPORTED => {
            (c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing")
        }
        901 => (
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation failed due to a previous error during capture",
        ),
        904 => (c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work"),
        UNCAPTURED => (
            c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
            c"dependency created on uncaptured work in another stream",
        ),
        CAPTURED_EVENT => (
            c"CUDA_ERROR_CAPTURED_EVENT",
            c"operation not permitted on an event last recorded in a capturing stream",
        ),
        _ => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_int, text: *mut *const c_char) -> c_int {
    unsafe { *text = error(code).0.as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: c_int, text: *mut *const c_char) -> c_int {
    unsafe { *text = error(code).1.as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *const Context, device: c_int) -> c_int {
    let mut contexts = lock(&CONTEXTS);
    let known = contexts
        .entry(device)
        .or_insert_with(|| Box::leak(Box::new(Context { ordinal: device, ..Context::default() })));
    lock(&known.state).users += 1;
    unsafe { *context = *known };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    match lock(&CONTEXTS).get(&device) {
        Some(context) if lock(&context.state).users > 0 => {
            lock(&context.state).users -= 1;
            SUCCESS
        }
        _ => INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: *const Context) -> c_int {
    CURRENT.set(unsafe { context.as_ref() });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> c_int {
    let Some(context) = current() else { return INVALID_CONTEXT };
    if is_prohibited() {
        return UNSUPPORTED;
    }
    finish(context);
    unless_faulted(SUCCESS)
}

/// Waits for all streams.
fn finish(context: &Context) {
    let event = Event::new();
    let streams = lock(&context.state).streams.clone();
    event.record(&streams);
    event.last().wait();
}

/// The priorities of streams, as on NVIDIA's GPUs: from the last to the first.
pub(crate) const PRIORITIES: [c_int; 2] = [0, -5];

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> c_int {
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    unsafe { (*least, *greatest) = (PRIORITIES[0], PRIORITIES[1]) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut *const Stream, flags: c_uint) -> c_int {
    unsafe { cuStreamCreateWithPriority(stream, flags, PRIORITIES[0]) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut *const Stream,
    _flags: c_uint,
    priority: c_int,
) -> c_int {
    let Some(context) = current() else { return INVALID_CONTEXT };
    let new = Stream::new(context.ordinal, priority);
    let mut state = lock(&context.state);
    state.gates.retain(|g| !g.is_done());
    for gate in state.gates.clone() {
        new.push(move || gate.wait());
    }
    state.streams.push(new.clone());
    unsafe { *stream = Arc::into_raw(new) };
    SUCCESS
}

/// Another hold on a stream.
pub(crate) unsafe fn shared(stream: *const Stream) -> Arc<Stream> {
    unsafe {
        Arc::increment_strong_count(stream);
        Arc::from_raw(stream)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: *const Stream) -> c_int {
    let Some(context) = current() else { return INVALID_CONTEXT };
    lock(&context.state).streams.retain(|s| Arc::as_ptr(s) != stream);
    unsafe { Arc::from_raw(stream) }.close();
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: *const Stream) -> c_int {
    if unsafe { &*stream }.is_capturing() || is_prohibited() {
        return UNSUPPORTED;
    }
    let event = Event::new();
    event.record(&[unsafe { shared(stream) }]);
    event.last().wait();
    unless_faulted_on(unsafe { &*stream }.gpu, SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: *const Stream, event: *const Event, _: c_uint) -> c_int {
    let (event, stream) = unsafe { (&*event, &*stream) };
    if let Some(captured) = event.captured() {
        return stream.wait_captured(&captured).map_or_else(|code| code, |()| SUCCESS);
    }
    let moment = event.last();
    // The driver refuses also what is done: here that passes.
    if stream.is_capturing() && !moment.is_done() {
        return UNCAPTURED;
    }
    stream.push(move || moment.wait());
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut *const Event, _flags: c_uint) -> c_int {
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    unsafe { *event = Box::into_raw(Box::new(Event::new())) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: *mut Event) -> c_int {
    drop(unsafe { Box::from_raw(event) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: *const Event, stream: *const Stream) -> c_int {
    unsafe { &*event }.record_on(unsafe { shared(stream) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: *const Event) -> c_int {
    let event = unsafe { &*event };
    if event.captured().is_some() {
        return CAPTURED_EVENT;
    }
    if is_prohibited() {
        return UNSUPPORTED;
    }
    let code = if event.last().is_done() { SUCCESS } else { NOT_READY };
    unless_faulted_on(event.gpu.load(Ordering::Relaxed), code)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxRecordEvent(context: *const Context, event: *const Event) -> c_int {
    let state = lock(unsafe { &(*context).state });
    if state.streams.iter().any(|stream| stream.is_capturing()) {
        return UNSUPPORTED;
    }
    unsafe { &*event }.record(&state.streams);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxWaitEvent(context: *const Context, event: *const Event) -> c_int {
    let moment = unsafe { &*event }.last();
    let mut state = lock(unsafe { &(*context).state });
    if state.streams.iter().any(|stream| stream.is_capturing()) {
        return UNSUPPORTED;
    }
    for stream in &state.streams {
        let moment = moment.clone();
        stream.push(move || moment.wait());
    }
    state.gates.retain(|g| !g.is_done());
    state.gates.push(moment);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: *const Stream,
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> c_int {
    let data = data as usize;
    unsafe { &*stream }.push(move || unsafe { function(data as *mut c_void) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    let Some(context) = current() else { return INVALID_CONTEXT };
    if bytes == 0 {
        return INVALID_VALUE;
    }
    if is_prohibited() {
        return UNSUPPORTED;
    }
    unsafe { allocate(address, bytes, context.ordinal) }
}

/// Bytes of a GPU that are in use.
pub(crate) fn in_use(gpu: c_int) -> usize {
    lock(&MEMORY).values().filter(|(_, of)| *of == gpu).map(|(bytes, _)| bytes).sum()
}

/// Memory of a GPU, or why there is none.
pub(crate) unsafe fn allocate(address: *mut u64, bytes: usize, gpu: c_int) -> c_int {
    if memory_limit(gpu).is_some_and(|limit| in_use(gpu) + bytes > limit) {
        return OUT_OF_MEMORY;
    }
    unsafe { *address = allocated(bytes, gpu) as u64 };
    unless_faulted_on(gpu, SUCCESS)
}

/// Memory, of a GPU or of the host.
pub(crate) fn allocated(bytes: usize, of: c_int) -> usize {
    let words = bytes.div_ceil(8);
    // Where kernels run not zero, so that what nobody wrote shows. Else the system gives memory when it is touched, which may
    // be never.
    let memory = if *RUN { vec![0xa5a5_a5a5_a5a5_a5a5u64; words] } else { vec![0; words] };
    let memory = Box::leak(memory.into_boxed_slice());
    let start = memory.as_mut_ptr() as usize;
    lock(&MEMORY).insert(start, (bytes, of));
    start
}

/// Waits for all work of the GPU before it frees where kernels run, as the driver does: they may still use the memory. Not for
/// that of other GPUs, which may wait in a collective for this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    if is_prohibited() {
        return UNSUPPORTED;
    }
    if *RUN {
        let of = lock(&MEMORY).get(&(address as usize)).map(|known| known.1);
        let context = of.and_then(|gpu| lock(&CONTEXTS).get(&gpu).copied());
        context.into_iter().for_each(finish);
    }
    freed(address)
}

/// Frees in the order of a stream.
pub(crate) fn freed(address: u64) -> c_int {
    let Some((bytes, _)) = lock(&MEMORY).remove(&(address as usize)) else { return INVALID_VALUE };
    let words = std::ptr::slice_from_raw_parts_mut(address as *mut u64, bytes.div_ceil(8));
    drop(unsafe { Box::from_raw(words) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize) -> c_int {
    if !is_device_memory(to as usize, bytes) {
        return INVALID_VALUE;
    }
    unsafe { std::ptr::copy(from, to as *mut u8, bytes) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize) -> c_int {
    if !is_device_memory(from as usize, bytes) {
        return INVALID_VALUE;
    }
    unsafe { std::ptr::copy(from as *const u8, to, bytes) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: u64,
    from: u64,
    bytes: usize,
    stream: *const Stream,
) -> c_int {
    if !is_device_memory(from as usize, bytes) || !is_device_memory(to as usize, bytes) {
        return INVALID_VALUE;
    }
    unsafe { &*stream }.launch(move || unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) });
    SUCCESS
}
