//! NVML, as far as `meshwright devices` asks.

use crate::setting;
use std::ffi::{CStr, c_char, c_int, c_uint};

const NOT_FOUND: c_int = 6;

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

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(_handle: usize, memory: *mut MemoryInfo) -> c_int {
    unsafe { *memory = MemoryInfo { total: 1 << 30, free: 3 << 28, used: 1 << 28 } };
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
