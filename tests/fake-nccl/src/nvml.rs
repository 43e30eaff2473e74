//! NVML: what a machine has, and what is wrong with its GPUs.

use crate::cuda::in_use;
use crate::faults::memory_limit;
use crate::setting;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const TIMEOUT: c_int = 10;
const FUNCTION_NOT_FOUND: c_int = 13;
const GPU_IS_LOST: c_int = 15;
const XID_ERRORS: u64 = 8;

/// Whether the driver is one that lacks what came later.
fn is_old() -> bool {
    setting("FAKE_NVML_OLD", 0) == 1
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, room: c_uint) -> c_int {
    let version = c"580.95.05".to_bytes_with_nul();
    if room as usize >= version.len() {
        unsafe { std::ptr::copy_nonoverlapping(version.as_ptr().cast(), text, version.len()) };
    }
    0
}

/// A handle is the number of the GPU, from 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, handle: *mut usize) -> c_int {
    let id = unsafe { CStr::from_ptr(id) }.to_string_lossy();
    let mut parts = id.split(':').map(|part| usize::from_str_radix(part, 16).ok());
    let (Some(Some(domain)), Some(Some(bus))) = (parts.next(), parts.next()) else { return NOT_FOUND };
    unsafe { *handle = (domain << 8 | bus) + 1 };
    0
}

#[repr(C)]
pub struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// A number of a GPU in the environment, as `1` for all or `1:gpu2` for that one.
fn of_gpu(name: &str, handle: usize) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let mut parts = text.split(':');
    let number = parts.next()?.parse().ok()?;
    let gpu = parts.next().map(|gpu| gpu.trim_start_matches("gpu").parse::<usize>().ok());
    gpu.is_none_or(|gpu| gpu == Some(handle - 1)).then_some(number)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: usize, memory: *mut MemoryInfo) -> c_int {
    if of_gpu("FAKE_NVML_LOST", handle).is_some() {
        return GPU_IS_LOST;
    }
    let gpu = (handle - 1) as c_int;
    let total = (setting("FAKE_CUDA_MEMORY", 1) as u64) << 30;
    let free = memory_limit(gpu).map_or(total / 4 * 3, |limit| limit.saturating_sub(in_use(gpu)) as u64);
    unsafe { *memory = MemoryInfo { total, free, used: total.saturating_sub(free) } };
    0
}

/// Uncorrected errors of memory: `FAKE_NVML_ECC` since the driver was loaded, and two more in the GPU's life.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    handle: usize,
    kind: c_int,
    counter: c_int,
    errors: *mut u64,
) -> c_int {
    if is_old() {
        return FUNCTION_NOT_FOUND;
    }
    let found = of_gpu("FAKE_NVML_ECC", handle).filter(|_| kind == 1);
    unsafe { *errors = found.map_or(0, |n| if counter == 0 { n } else { n + 2 }) };
    0
}

/// Rows of memory wait for a reset where `FAKE_NVML_PENDING_ROWS` says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    handle: usize,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> c_int {
    if is_old() {
        return FUNCTION_NOT_FOUND;
    }
    let waiting = of_gpu("FAKE_NVML_PENDING_ROWS", handle).unwrap_or(0) as c_uint;
    unsafe { (*corrected, *uncorrected, *pending, *failed) = (0, waiting, c_uint::from(waiting > 0), 0) };
    0
}

/// A set of events: the GPU that is registered, and whether its error was given.
#[derive(Default)]
pub struct EventSet {
    handle: AtomicUsize,
    given: AtomicBool,
}

/// `nvmlEventData_t`.
#[repr(C)]
pub struct EventData {
    device: usize,
    kind: u64,
    data: u64,
    instances: [c_uint; 2],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut *const EventSet) -> c_int {
    if is_old() {
        return FUNCTION_NOT_FOUND;
    }
    unsafe { *set = Box::leak(Box::default()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceRegisterEvents(handle: usize, kinds: u64, set: *const EventSet) -> c_int {
    if kinds != XID_ERRORS {
        return NOT_SUPPORTED;
    }
    unsafe { &*set }.handle.store(handle, Ordering::Relaxed);
    0
}

/// `FAKE_NVML_XID`, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: *const EventSet,
    data: *mut EventData,
    _ms: c_uint,
) -> c_int {
    let set = unsafe { &*set };
    let device = set.handle.load(Ordering::Relaxed);
    let Some(xid) = of_gpu("FAKE_NVML_XID", device) else { return TIMEOUT };
    if set.given.swap(true, Ordering::Relaxed) {
        return TIMEOUT;
    }
    unsafe { *data = EventData { device, kind: XID_ERRORS, data: xid, instances: [0; 2] } };
    0
}

/// GPUs 0 and 1 are linked, 2 and 3, and so on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    a: usize,
    b: usize,
    what: c_int,
    status: *mut c_int,
) -> c_int {
    let linked = what == 2 && a != b && (a - 1) / 2 == (b - 1) / 2 && setting("FAKE_NCCL_NVLINK", 1) == 1;
    unsafe { *status = if linked { 0 } else { 5 } };
    0
}
