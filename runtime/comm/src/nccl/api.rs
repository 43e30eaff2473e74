//! NCCL's functions, as its header `nccl.h` declares them.

use meshwright_gpu::devices::{OLDEST_NCCL, nccl_version, too_old};
use meshwright_gpu::load::FoundLibrary;
use meshwright_gpu::load::{Library, LibraryKind, LoadError, Paths, functions};
use std::ffi::{CStr, c_char, c_int, c_void};

/// Result codes of `nccl.h`.
pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;

/// Oldest version with everything used here.
pub(super) const OLDEST: u32 = OLDEST_NCCL;
/// Oldest version that lets several ranks share a GPU.
pub(super) const OLDEST_SHARING: u32 = 23003;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId {
    pub(super) bytes: [u8; 128],
}

/// `ncclConfig_t` of 2.18; a newer library takes what is missing as not set. The last field is none of 2.18's, where padding
/// is: NCCL 2.26 copies as many bytes as `size` says without a look at `version`, and has its traffic class there.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
}

// The size of 2.18's, padding included.
const _: () = assert!(size_of::<Config>() == 48);

impl Config {
    /// Everything as the library likes it, but that no call blocks.
    pub(super) fn not_blocking() -> Config {
        const UNSET: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST,
            blocking: 0,
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: UNSET,
            net_name: std::ptr::null(),
            split_share: UNSET,
            traffic_class: UNSET,
        }
    }
}

/// `ncclComm_t`.
pub(super) type CommHandle = *mut c_void;
/// `cudaStream_t`, which is the driver's `CUstream`.
pub(super) type Stream = *mut c_void;
type Address = *const c_void;

functions! {
    /// NCCL's functions.
    pub(super) Functions needs "NCCL 2.18" {
        version = "ncclGetVersion" (*mut c_int) -> c_int;
        unique_id = "ncclGetUniqueId" (*mut UniqueId) -> c_int;
        init = "ncclCommInitRankConfig" (*mut CommHandle, c_int, UniqueId, c_int, *mut Config) -> c_int;
        split = "ncclCommSplit" (CommHandle, c_int, c_int, *mut CommHandle, *mut Config) -> c_int;
        finalize = "ncclCommFinalize" (CommHandle) -> c_int;
        destroy = "ncclCommDestroy" (CommHandle) -> c_int;
        abort = "ncclCommAbort" (CommHandle) -> c_int;
        async_error = "ncclCommGetAsyncError" (CommHandle, *mut c_int) -> c_int;
        error_text = "ncclGetErrorString" (c_int) -> *const c_char;
        last_error = "ncclGetLastError" (CommHandle) -> *const c_char;
        group_start = "ncclGroupStart" () -> c_int;
        group_end = "ncclGroupEnd" () -> c_int;
        all_reduce = "ncclAllReduce" (Address, Address, usize, c_int, c_int, CommHandle, Stream) -> c_int;
        all_gather = "ncclAllGather" (Address, Address, usize, c_int, CommHandle, Stream) -> c_int;
        reduce_scatter = "ncclReduceScatter" (Address, Address, usize, c_int, c_int, CommHandle, Stream) -> c_int;
        broadcast = "ncclBroadcast" (Address, Address, usize, c_int, c_int, CommHandle, Stream) -> c_int;
        reduce = "ncclReduce" (Address, Address, usize, c_int, c_int, c_int, CommHandle, Stream) -> c_int;
        send = "ncclSend" (Address, usize, c_int, c_int, CommHandle, Stream) -> c_int;
        receive = "ncclRecv" (Address, usize, c_int, c_int, CommHandle, Stream) -> c_int;
    }
}

/// What NCCL refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) function: &'static str,
    pub(super) code: c_int,
}

/// NCCL, open.
#[derive(Clone)]
pub(super) struct Nccl {
    pub(super) f: Functions,
    path: String,
    version: u32,
}

impl Nccl {
    /// Opens it. A version that is too old is refused with what is needed.
    #[expect(unsafe_code, reason = "a function of NCCL")]
    pub(super) fn open(paths: &Paths) -> Result<Nccl, String> {
        let library = Library::open(LibraryKind::Nccl, paths).map_err(|e: LoadError| e.to_string())?;
        let f = Functions::load(&library).map_err(|e| e.to_string())?;
        let mut version = 0;
        // SAFETY: writes an integer.
        unsafe { (f.version)(&raw mut version) };
        let version = u32::try_from(version).unwrap_or(0);
        let path = library.path().to_owned();
        if version < OLDEST {
            return Err(too_old(&FoundLibrary { version: nccl_version(version), path }));
        }
        Ok(Nccl { f, path, version })
    }

    pub(super) fn version(&self) -> u32 {
        self.version
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// An error in NCCL's words: what the code means, and what it said last.
    #[expect(unsafe_code, reason = "texts that NCCL owns")]
    pub(super) fn explain(&self, refused: &Refused, comm: CommHandle) -> String {
        let text = |text: *const c_char| {
            // SAFETY: null or a text that NCCL keeps.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        // SAFETY: any code has a text.
        let meaning = text(unsafe { (self.f.error_text)(refused.code) }).unwrap_or_default();
        // SAFETY: a communicator that is not freed, or null for the last error of all.
        let last = text(unsafe { (self.f.last_error)(comm) }).unwrap_or_default();
        let (function, last) = (refused.function, last.trim());
        if last.is_empty() {
            format!("`{function}` of NCCL failed: {meaning}")
        } else {
            format!("`{function}` of NCCL failed: {meaning}: {last}")
        }
    }
}
