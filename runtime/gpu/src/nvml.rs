//! NVIDIA's management library: what the driver's interface does not tell.

use super::load::{Library, LibraryKind, LoadError, Paths, functions};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

type NvmlDevice = *mut c_void;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

functions! {
    /// NVML's functions.
    Functions needs "a driver of CUDA 11.0" {
        init = "nvmlInit_v2" () -> c_int;
        driver_version = "nvmlSystemGetDriverVersion" (*mut c_char, c_uint) -> c_int;
        handle = "nvmlDeviceGetHandleByPciBusId_v2" (*const c_char, *mut NvmlDevice) -> c_int;
        memory = "nvmlDeviceGetMemoryInfo" (NvmlDevice, *mut MemoryInfo) -> c_int;
        peers = "nvmlDeviceGetP2PStatus" (NvmlDevice, NvmlDevice, c_int, *mut c_int) -> c_int;
    }
}

/// `NVML_P2P_CAPS_INDEX_NVLINK`.
const NVLINK: c_int = 2;

/// The library, initialized.
pub(super) struct Nvml {
    f: Functions,
}

#[expect(unsafe_code, reason = "functions of NVML")]
impl Nvml {
    pub(super) fn open(paths: &Paths) -> Result<Nvml, String> {
        let f = Library::open(LibraryKind::Nvml, paths).and_then(|library| Functions::load(&library));
        let f = f.map_err(|e: LoadError| e.to_string())?;
        // SAFETY: may be called at any time, and more than once.
        match unsafe { (f.init)() } {
            0 => Ok(Nvml { f }),
            code => Err(format!("`nvmlInit` failed with error {code}")),
        }
    }

    /// Version of the driver, such as `580.95.05`.
    pub(super) fn driver_version(&self) -> Option<String> {
        let mut text = [0u8; 96];
        // SAFETY: writes a text that ends with 0 into at most the given bytes; the last byte is left out.
        let code = unsafe { (self.f.driver_version)(text.as_mut_ptr().cast(), 95) };
        let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| code == 0)?;
        Some(text.to_string_lossy().into_owned())
    }

    fn handle(&self, bus_id: &str) -> Option<NvmlDevice> {
        let bus_id = CString::new(bus_id).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: reads a text that ends with 0, writes a handle.
        let code = unsafe { (self.f.handle)(bus_id.as_ptr(), &raw mut handle) };
        (code == 0).then_some(handle)
    }

    /// Bytes of a GPU's memory that nobody uses.
    pub(super) fn free(&self, bus_id: &str) -> Option<u64> {
        let handle = self.handle(bus_id)?;
        let mut memory = MemoryInfo::default();
        // SAFETY: a handle that it gave; writes a struct.
        let code = unsafe { (self.f.memory)(handle, &raw mut memory) };
        (code == 0).then_some(memory.free)
    }

    /// Whether two GPUs reach each other by NVLink, directly or through a switch.
    pub(super) fn linked(&self, a: &str, b: &str) -> bool {
        let (Some(a), Some(b)) = (self.handle(a), self.handle(b)) else { return false };
        let mut status = -1;
        // SAFETY: handles that it gave; writes an integer.
        let code = unsafe { (self.f.peers)(a, b, NVLINK, &raw mut status) };
        code == 0 && status == 0
    }
}
