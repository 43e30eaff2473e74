//! NVIDIA's management library: facts that the driver's interface lacks.

use super::health::{DeviceMemory, EccErrors, GpuHealth, RemappedRows};
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
/// `NVML_ERROR_GPU_IS_LOST`.
const GPU_IS_LOST: c_int = 15;
/// `NVML_MEMORY_ERROR_TYPE_UNCORRECTED`.
const UNCORRECTED: c_int = 1;
/// `NVML_VOLATILE_ECC`: since the driver was loaded.
const VOLATILE: c_int = 0;
/// `NVML_AGGREGATE_ECC`: in the life of the GPU.
const AGGREGATE: c_int = 1;
/// `nvmlEventTypeXidCriticalError`.
const XID_ERRORS: u64 = 8;
/// The most errors that are read at once. A driver that repeats one would otherwise never come to an end.
const MOST_EVENTS: usize = 64;

type EccFunction = unsafe extern "C" fn(NvmlDevice, c_int, c_int, *mut u64) -> c_int;
type RowsFunction =
    unsafe extern "C" fn(NvmlDevice, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint) -> c_int;

/// Functions that drivers may lack, needed only after a failure.
#[derive(Clone, Copy)]
struct Diagnostics {
    ecc: Option<EccFunction>,
    rows: Option<RowsFunction>,
    events: Option<EventFunctions>,
}

functions! {
    /// The functions for reading the errors of a GPU.
    EventFunctions needs "a driver of CUDA 11.0" {
        create = "nvmlEventSetCreate" (*mut *mut c_void) -> c_int;
        register = "nvmlDeviceRegisterEvents" (NvmlDevice, u64, *mut c_void) -> c_int;
        wait = "nvmlEventSetWait_v2" (*mut c_void, *mut EventData, c_uint) -> c_int;
    }
}

/// `nvmlEventData_t`.
#[repr(C)]
struct EventData {
    device: NvmlDevice,
    kind: u64,
    data: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

impl Diagnostics {
    #[expect(unsafe_code, reason = "types of functions as the library's headers give them")]
    fn load(library: &Library) -> Diagnostics {
        // SAFETY: the types are those of the library's headers.
        unsafe {
            Diagnostics {
                ecc: library.find("nvmlDeviceGetTotalEccErrors"),
                rows: library.find("nvmlDeviceGetRemappedRows"),
                events: EventFunctions::load(library).ok(),
            }
        }
    }
}

/// The critical errors of a GPU, which NVML keeps from the moment when this is made.
pub(super) struct XidEvents(*mut c_void);

#[expect(unsafe_code, reason = "a handle that the library allows to be used from every thread")]
// SAFETY: as said.
unsafe impl Send for XidEvents {}

/// The library, initialized.
pub(super) struct Nvml {
    f: Functions,
    more: Diagnostics,
}

#[expect(unsafe_code, reason = "functions of NVML")]
impl Nvml {
    pub(super) fn open(paths: &Paths) -> Result<Nvml, String> {
        let library = Library::open(LibraryKind::Nvml, paths).map_err(|e: LoadError| e.to_string())?;
        let (f, more) = (Functions::load(&library).map_err(|e| e.to_string())?, Diagnostics::load(&library));
        // SAFETY: may be called at any time, and more than once.
        match unsafe { (f.init)() } {
            0 => Ok(Nvml { f, more }),
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

    fn memory_info(&self, handle: NvmlDevice) -> Result<DeviceMemory, c_int> {
        let mut memory = MemoryInfo::default();
        // SAFETY: a handle that it gave; writes a struct.
        match unsafe { (self.f.memory)(handle, &raw mut memory) } {
            0 => Ok(DeviceMemory { total: memory.total, free: memory.free }),
            code => Err(code),
        }
    }

    /// A GPU's memory, all processes taken together.
    pub(super) fn memory(&self, bus_id: &str) -> Option<DeviceMemory> {
        self.memory_info(self.handle(bus_id)?).ok()
    }

    /// Starts to keep the critical errors of a GPU; none where the driver cannot.
    pub(super) fn xid_events(&self, bus_id: &str) -> Option<XidEvents> {
        let (f, handle) = (self.more.events?, self.handle(bus_id)?);
        let mut set = std::ptr::null_mut();
        // SAFETY: writes a handle; registers it for a GPU whose handle the library gave.
        let codes = unsafe {
            match (f.create)(&raw mut set) {
                0 => (f.register)(handle, XID_ERRORS, set),
                code => code,
            }
        };
        (codes == 0).then_some(XidEvents(set))
    }

    /// Faults of a GPU by NVML, with the critical errors in `events` since it was last read.
    pub(super) fn health(&self, bus_id: &str, events: Option<&XidEvents>) -> GpuHealth {
        let xids = events.map(|events| self.xids(events)).unwrap_or_default();
        let mut handle = std::ptr::null_mut();
        let Ok(id) = CString::new(bus_id) else { return GpuHealth { xids, ..GpuHealth::default() } };
        // SAFETY: reads a text that ends with 0, writes a handle.
        match unsafe { (self.f.handle)(id.as_ptr(), &raw mut handle) } {
            0 => {}
            code => return GpuHealth { lost: code == GPU_IS_LOST, xids, ..GpuHealth::default() },
        }
        let lost = self.memory_info(handle) == Err(GPU_IS_LOST);
        GpuHealth { lost, ecc: self.ecc(handle), rows: self.rows(handle), xids }
    }

    fn xids(&self, events: &XidEvents) -> Vec<u64> {
        let Some(f) = self.more.events else { return vec![] };
        let mut found = vec![];
        for _ in 0..MOST_EVENTS {
            let device = std::ptr::null_mut();
            let mut event = EventData { device, kind: 0, data: 0, gpu_instance: 0, compute_instance: 0 };
            // SAFETY: a handle that it gave; writes a struct, and does not wait.
            let code = unsafe { (f.wait)(events.0, &raw mut event, 0) };
            if code != 0 {
                break;
            }
            if event.kind == XID_ERRORS && !found.contains(&event.data) {
                found.push(event.data);
            }
        }
        found
    }

    /// Uncorrected errors of memory; none where the GPU or its driver does not count them.
    fn ecc(&self, handle: NvmlDevice) -> Option<EccErrors> {
        let f = self.more.ecc?;
        let counted = |counter| {
            let mut errors = 0;
            // SAFETY: a handle that the library gave; writes a number.
            (unsafe { f(handle, UNCORRECTED, counter, &raw mut errors) } == 0).then_some(errors)
        };
        Some(EccErrors { volatile: counted(VOLATILE)?, aggregate: counted(AGGREGATE)? })
    }

    /// Rows of memory that others replace; none where the GPU replaces none, or its driver does not tell.
    fn rows(&self, handle: NvmlDevice) -> Option<RemappedRows> {
        let f = self.more.rows?;
        let [mut corrected, mut uncorrected, mut pending, mut failed] = [0; 4];
        // SAFETY: a handle that the library gave; writes numbers.
        let code =
            unsafe { f(handle, &raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed) };
        let rows =
            RemappedRows { uncorrected: uncorrected.into(), pending: pending != 0, failed: failed != 0 };
        (code == 0).then_some(rows)
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
