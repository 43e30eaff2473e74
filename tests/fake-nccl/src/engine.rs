//! What an engine of kernels needs of the driver beside streams: memory in their order, modules, launches and graphs. Kernels
//! compute nothing unless `FAKE_CUDA_KERNELS=run` asks for it: what they would write stays as it is. All else is as the engine
//! asked for it, so that its calls, their order and what they cost the host can be had without a GPU.

use crate::capture::{Graph, UNSUPPORTED, exchange_mode, is_prohibited};
use crate::cuda::{HOST, INVALID_VALUE, SUCCESS, allocate, allocated, cuMemFree_v2, freed, is_device_memory};
use crate::kernels;
use crate::setting;
use crate::stream::{Event, Stream, kernel_ran};
use std::ffi::{c_char, c_float, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Kernels that were launched, those of graphs too; launches of graphs; and graphs that were captured.
static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
const KERNELS: usize = 0;
const REPLAYS: usize = 1;
const GRAPHS: usize = 2;

/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: c_int = 999;

fn count(what: usize) {
    COUNTS[what].fetch_add(1, Ordering::Relaxed);
}

/// Kernels, launches of graphs, and graphs so far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeCounts(counts: *mut u64) {
    for (i, all) in COUNTS.iter().enumerate() {
        unsafe { *counts.add(i) = all.load(Ordering::Relaxed) };
    }
}

/// Adds a line of what went on a stream to the file that `FAKE_CUDA_LOG` names, if it names one.
fn log(what: &str, stream: *const Stream, bytes: usize) {
    static FILE: LazyLock<Option<Mutex<File>>> = LazyLock::new(|| {
        let path = std::env::var_os("FAKE_CUDA_LOG")?;
        let file = File::options().create(true).append(true).open(path);
        Some(Mutex::new(file.unwrap_or_else(|e| panic!("FAKE_CUDA_LOG: {e}"))))
    });
    if let Some(file) = &*FILE {
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        // In one piece: several processes may write.
        let line = format!("{what} {:x} {bytes}\n", stream as usize);
        file.write_all(line.as_bytes()).unwrap_or_else(|e| panic!("FAKE_CUDA_LOG: {e}"));
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: *const Stream) -> c_int {
    // A graph that allocates cannot be launched again.
    if unsafe { &*stream }.is_capturing() {
        return UNSUPPORTED;
    }
    unsafe { allocate(address, bytes, (*stream).gpu) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: u64, stream: *const Stream) -> c_int {
    unsafe { &*stream }.push(move || {
        freed(address);
    });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) -> c_int {
    unsafe { *address = allocated(bytes, HOST) as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> c_int {
    unsafe { cuMemFree_v2(address as u64) }
}

/// Copies in the order of a stream; `device` is the end that must be a GPU's.
unsafe fn copy(stream: *const Stream, (from, to): (usize, usize), device: usize, bytes: usize) -> c_int {
    if !is_device_memory(device, bytes) {
        return INVALID_VALUE;
    }
    let stream = unsafe { &*stream };
    stream.launch(move || unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) });
    kernels::unless_faulted_on(stream.gpu, SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const u8,
    bytes: usize,
    stream: *const Stream,
) -> c_int {
    log("upload", stream, bytes);
    unsafe { copy(stream, (from as usize, to as usize), to as usize, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut u8,
    from: u64,
    bytes: usize,
    stream: *const Stream,
) -> c_int {
    unsafe { copy(stream, (from as usize, to as usize), from as usize, bytes) }
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rectangle {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
}

/// One end of it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Side {
    x: usize,
    y: usize,
    kind: c_uint,
    host: usize,
    device: u64,
    array: usize,
    pitch: usize,
}

impl Side {
    const HOST: c_uint = 1;

    fn row(&self, row: usize) -> usize {
        let base = if self.kind == Side::HOST { self.host } else { self.device as usize };
        base + (self.y + row) * self.pitch + self.x
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Rectangle, stream: *const Stream) -> c_int {
    let all = unsafe { *copy };
    unsafe { &*stream }.launch(move || {
        for row in 0..all.height {
            let (from, to) = (all.from.row(row) as *const u8, all.to.row(row) as *mut u8);
            unsafe { std::ptr::copy(from, to, all.width) };
        }
    });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *const c_void, image: *const c_void) -> c_int {
    if image.is_null() {
        return INVALID_VALUE;
    }
    unsafe { kernels::keep(image) };
    match if *kernels::RUN { unsafe { kernels::load(image) } } else { Ok(image) } {
        Ok(loaded) => {
            unsafe { *module = loaded };
            SUCCESS
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *const c_void,
    module: *const c_void,
    name: *const c_char,
) -> c_int {
    match if *kernels::RUN { unsafe { kernels::find(module, name) } } else { Ok(module) } {
        Ok(found) => {
            unsafe { *function = found };
            SUCCESS
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(_function: *const c_void, _which: c_int, _value: c_int) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *const c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: *const Stream,
    arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> c_int {
    log("kernel", stream, 0);
    let stream = unsafe { &*stream };
    let gpu = stream.gpu;
    if !*kernels::RUN {
        stream.launch(move || {
            count(KERNELS);
            kernel_ran(gpu);
        });
        return kernels::unless_faulted_on(gpu, SUCCESS);
    }
    let sides = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
    match unsafe { kernels::prepared(gpu, function, sides, shared, arguments) } {
        Ok(kernel) => {
            stream.launch(move || {
                kernel();
                count(KERNELS);
                kernel_ran(gpu);
            });
            kernels::unless_faulted_on(gpu, SUCCESS)
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: *const Event) -> c_int {
    if is_prohibited() {
        return UNSUPPORTED;
    }
    let event = unsafe { &*event };
    event.last().wait();
    kernels::unless_faulted_on(event.gpu.load(Ordering::Relaxed), SUCCESS)
}

/// By the clock of the streams, on which each kernel takes 20 ms: long enough for those who measure with ever longer kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(
    milliseconds: *mut c_float,
    from: *const Event,
    to: *const Event,
) -> c_int {
    let [from, to] = [from, to].map(|event| unsafe { &*event }.kernels.load(Ordering::Relaxed));
    unsafe { *milliseconds = 20.0 * to.saturating_sub(from) as c_float };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut c_float,
    from: *const Event,
    to: *const Event,
) -> c_int {
    unsafe { cuEventElapsedTime_v2(milliseconds, from, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: *const Stream, mode: c_uint) -> c_int {
    if unsafe { &*stream }.capture(mode as c_int) { SUCCESS } else { UNSUPPORTED }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_int {
    unsafe { *mode = exchange_mode(*mode) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: *const Stream, graph: *mut *const Graph) -> c_int {
    match unsafe { &*stream }.captured() {
        Some(Ok(captured)) => {
            unsafe { *graph = Box::into_raw(Box::new(captured)) };
            SUCCESS
        }
        Some(Err(code)) => code,
        None => UNSUPPORTED,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: *const Graph, nodes: *mut usize, many: *mut usize) -> c_int {
    let all = unsafe { &*graph }.nodes();
    unsafe { *many = all };
    if !nodes.is_null() {
        (0..all).for_each(|i| unsafe { *nodes.add(i) = i + 1 });
    }
    SUCCESS
}

/// All are kernels: what allocates is refused before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphNodeGetType(_node: usize, kind: *mut c_int) -> c_int {
    unsafe { *kind = 0 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    made: *mut *const Graph,
    graph: *const Graph,
    _flags: u64,
) -> c_int {
    count(GRAPHS);
    if COUNTS[GRAPHS].load(Ordering::Relaxed) <= setting("FAKE_CUDA_GRAPHS_REFUSED", 0) as u64 {
        return UNKNOWN;
    }
    unsafe { *made = Box::into_raw(Box::new((*graph).launchable())) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphUpload(_graph: *const Graph, _stream: *const Stream) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(graph: *const Graph, stream: *const Stream) -> c_int {
    count(REPLAYS);
    log("graph", stream, 0);
    let stream = unsafe { &*stream };
    let launched = unsafe { &*graph }.launch(stream);
    kernels::unless_faulted_on(stream.gpu, launched)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphDestroy(graph: *mut Graph) -> c_int {
    drop(unsafe { Box::from_raw(graph) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecDestroy(graph: *mut Graph) -> c_int {
    unsafe { cuGraphDestroy(graph) }
}
