//! The CUDA driver: which GPUs there are.

use super::load::{Library, LibraryKind, LoadError, Paths, functions};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Result of a driver's function, 0 for success.
pub type CuResult = c_int;

/// `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: CuResult = 600;

functions! {
    /// The functions for listing GPUs.
    pub(super) Queries needs "a driver of CUDA 11.0" {
        init = "cuInit" (c_uint) -> CuResult;
        version = "cuDriverGetVersion" (*mut c_int) -> CuResult;
        count = "cuDeviceGetCount" (*mut c_int) -> CuResult;
        get = "cuDeviceGet" (*mut c_int, c_int) -> CuResult;
        name = "cuDeviceGetName" (*mut c_char, c_int, c_int) -> CuResult;
        memory = "cuDeviceTotalMem_v2" (*mut usize, c_int) -> CuResult;
        attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int) -> CuResult;
        bus_id = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int) -> CuResult;
        error_name = "cuGetErrorName" (CuResult, *mut *const c_char) -> CuResult;
        error_text = "cuGetErrorString" (CuResult, *mut *const c_char) -> CuResult;
        capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_int) -> CuResult;
    }
}

functions! {
    /// The functions for waiting on a stream.
    Waiting needs "a driver of CUDA 11.0" {
        synchronize = "cuStreamSynchronize" (*mut c_void) -> CuResult;
    }
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_MODE_RELAXED: c_int = 2;

const MULTIPROCESSORS: c_int = 16;
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;

/// An error of the driver, or of a library below it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The library is missing or too old.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A function failed.
    #[error("`{function}` failed: {text}")]
    Call {
        /// The function that failed.
        function: &'static str,
        /// The driver's name and explanation of the error.
        text: String,
    },
}

/// The driver, initialized.
#[derive(Clone)]
pub struct Driver {
    opened: Library,
    f: Queries,
}

/// Properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Compute capability, such as (9, 0).
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub units: u32,
    /// Its place on the PCI bus, such as `0000:1b:00.0`, in lower case.
    pub bus_id: String,
}

impl Driver {
    /// Opens and initializes it.
    #[expect(unsafe_code, reason = "a function of the driver")]
    pub fn open(paths: &Paths) -> Result<Driver, DriverError> {
        let opened = Library::open(LibraryKind::Cuda, paths)?;
        let driver = Driver { f: Queries::load(&opened)?, opened };
        // SAFETY: may be called at any time.
        driver.check("cuInit", unsafe { (driver.f.init)(0) })?;
        Ok(driver)
    }

    /// The open library.
    pub fn opened(&self) -> &Library {
        &self.opened
    }

    /// The driver's name of an error, such as `CUDA_ERROR_OUT_OF_MEMORY`; none where it has none.
    pub fn error_name(&self, code: CuResult) -> Option<String> {
        self.said_of(code, self.f.error_name)
    }

    #[expect(unsafe_code, reason = "texts that the driver owns")]
    fn said_of(
        &self,
        code: CuResult,
        get: unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult,
    ) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: writes the address of a static text, or leaves null.
        let found = unsafe { get(code, &raw mut text) };
        // SAFETY: as said.
        (found == 0 && !text.is_null())
            .then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// An error with the driver's own words, where `code` is one.
    pub fn check(&self, function: &'static str, code: CuResult) -> Result<(), DriverError> {
        if code == 0 {
            return Ok(());
        }
        let text = match (self.error_name(code), self.said_of(code, self.f.error_text)) {
            (Some(name), Some(words)) => format!("{name} ({words})"),
            _ => format!("error {code}"),
        };
        Err(DriverError::Call { function, text })
    }

    /// Waits until a stream of the current context has done all that was put on it.
    ///
    /// # Safety
    /// It is a stream.
    #[expect(unsafe_code, reason = "a stream is known by its address")]
    pub unsafe fn wait(&self, stream: *mut c_void) -> Result<(), DriverError> {
        let waiting = Waiting::load(&self.opened)?;
        // SAFETY: the caller's promise.
        self.check("cuStreamSynchronize", unsafe { (waiting.synchronize)(stream) })
    }

    /// Lets this thread ask for memory and for the state of events while any thread records a graph; by default the driver
    /// refuses that, and breaks off the recording.
    ///
    /// # Errors
    /// Errors of the driver.
    #[expect(unsafe_code, reason = "a function of the driver")]
    pub fn allow_calls_during_captures(&self) -> Result<(), DriverError> {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: reads the mode, and writes the one that was before.
        let code = unsafe { (self.f.capture_mode)(&raw mut mode) };
        self.check("cuThreadExchangeStreamCaptureMode", code)
    }

    /// Version of CUDA that the driver offers, as 1000 * major + 10 * minor.
    #[expect(unsafe_code, reason = "a function of the driver")]
    pub fn version(&self) -> Result<u32, DriverError> {
        let mut version = 0;
        // SAFETY: writes an integer.
        self.check("cuDriverGetVersion", unsafe { (self.f.version)(&raw mut version) })?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// Number of GPUs that this process sees.
    #[expect(unsafe_code, reason = "a function of the driver")]
    pub fn count(&self) -> Result<u32, DriverError> {
        let mut count = 0;
        // SAFETY: writes an integer.
        self.check("cuDeviceGetCount", unsafe { (self.f.count)(&raw mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The driver's handle of a GPU.
    #[expect(unsafe_code, reason = "a function of the driver")]
    pub fn device(&self, ordinal: u32) -> Result<c_int, DriverError> {
        let mut device = 0;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: writes an integer; the driver rejects a number without a GPU.
        self.check("cuDeviceGet", unsafe { (self.f.get)(&raw mut device, ordinal) })?;
        Ok(device)
    }

    /// The properties of a GPU.
    #[expect(unsafe_code, reason = "functions of the driver")]
    pub fn properties(&self, ordinal: u32) -> Result<Properties, DriverError> {
        let device = self.device(ordinal)?;
        let mut memory = 0;
        // SAFETY: writes an integer.
        self.check("cuDeviceTotalMem", unsafe { (self.f.memory)(&raw mut memory, device) })?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: writes an integer.
            let code = unsafe { (self.f.attribute)(&raw mut value, which, device) };
            self.check("cuDeviceGetAttribute", code).map(|()| u32::try_from(value).unwrap_or(0))
        };
        let capability = (attribute(COMPUTE_CAPABILITY_MAJOR)?, attribute(COMPUTE_CAPABILITY_MINOR)?);
        let units = attribute(MULTIPROCESSORS)?;
        let name = self.text("cuDeviceGetName", self.f.name, device)?;
        let bus_id = self.text("cuDeviceGetPCIBusId", self.f.bus_id, device)?.to_ascii_lowercase();
        Ok(Properties { name, memory: memory as u64, capability, units, bus_id })
    }

    #[expect(unsafe_code, reason = "a function of the driver")]
    fn text(
        &self,
        function: &'static str,
        get: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> CuResult,
        device: c_int,
    ) -> Result<String, DriverError> {
        let mut text = [0u8; 256];
        // SAFETY: writes a text that ends with 0 into at most the given bytes; the last byte is left out.
        let code = unsafe { get(text.as_mut_ptr().cast(), 255, device) };
        self.check(function, code)?;
        Ok(CStr::from_bytes_until_nul(&text).map(|t| t.to_string_lossy().into_owned()).unwrap_or_default())
    }
}
