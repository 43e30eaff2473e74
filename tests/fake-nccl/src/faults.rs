//! Faults on purpose.

use crate::lock;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::{LazyLock, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FakeFault {
    Stall,
    Error,
    Refuse,
    Slow,
}

#[derive(Default)]
struct Faults {
    /// By GPU and call.
    known: BTreeMap<(c_int, u64), FakeFault>,
    calls: BTreeMap<c_int, u64>,
    environment_read: bool,
}

static FAULTS: Mutex<Faults> =
    Mutex::new(Faults { known: BTreeMap::new(), calls: BTreeMap::new(), environment_read: false });

fn parse(text: &str) -> Option<((c_int, u64), FakeFault)> {
    let mut parts = text.trim().split(':');
    let fault = match parts.next()? {
        "stall" => FakeFault::Stall,
        "error" => FakeFault::Error,
        "refuse" => FakeFault::Refuse,
        "slow" => FakeFault::Slow,
        _ => return None,
    };
    let gpu = parts.next()?.strip_prefix("gpu")?.parse().ok()?;
    let call = parts.next()?.strip_prefix("call")?.parse().ok()?;
    Some(((gpu, call), fault))
}

/// Adds a fault; 1 where the text is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeFault(text: *const c_char) -> c_int {
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    match parse(&text) {
        Some((at, fault)) => {
            lock(&FAULTS).known.insert(at, fault);
            0
        }
        None => 1,
    }
}

/// Counts a call of a GPU, and says what goes wrong with it.
pub(crate) fn next(gpu: c_int) -> Option<FakeFault> {
    let mut faults = lock(&FAULTS);
    if !faults.environment_read {
        faults.environment_read = true;
        let text = std::env::var("FAKE_NCCL_FAULT").unwrap_or_default();
        for fault in text.split(';').filter(|t| !t.is_empty()) {
            match parse(fault) {
                Some((at, fault)) => {
                    faults.known.insert(at, fault);
                }
                None => panic!("FAKE_NCCL_FAULT: no fault: {fault}"),
            }
        }
    }
    let calls = faults.calls.entry(gpu).or_default();
    let call = *calls;
    *calls += 1;
    faults.known.get(&(gpu, call)).copied()
}

/// What goes wrong with a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelFault {
    /// The driver's number of the error that every later call returns.
    Error(c_int),
    /// It never ends.
    Stall,
}

/// Of a GPU the first kernel with a fault, and the fault; `FAKE_CUDA_FAULT`.
static KERNEL_FAULT: LazyLock<Option<(c_int, u64, KernelFault)>> = LazyLock::new(|| {
    let text = std::env::var("FAKE_CUDA_FAULT").ok()?;
    let parsed = || {
        let mut parts = text.split(':');
        let fault = match parts.next()? {
            "stall" => KernelFault::Stall,
            code => KernelFault::Error(code.parse().ok()?),
        };
        let gpu = parts.next()?.strip_prefix("gpu")?.parse().ok()?;
        Some((gpu, parts.next()?.strip_prefix("kernel")?.parse().ok()?, fault))
    };
    Some(parsed().unwrap_or_else(|| panic!("FAKE_CUDA_FAULT: no fault: {text}")))
});

/// Kernels that each GPU has run, and the error that one of them made.
static KERNELS: Mutex<BTreeMap<c_int, u64>> = Mutex::new(BTreeMap::new());
static ERRORS: Mutex<BTreeMap<c_int, c_int>> = Mutex::new(BTreeMap::new());

/// Counts a kernel of a GPU, and says what goes wrong with it. An error stays, as on a GPU.
pub(crate) fn kernel_fault(gpu: c_int) -> Option<KernelFault> {
    let mut kernels = lock(&KERNELS);
    let run = kernels.entry(gpu).or_default();
    *run += 1;
    let (_, _, fault) = (*KERNEL_FAULT).filter(|(of, kernel, _)| *of == gpu && *kernel < *run)?;
    if let KernelFault::Error(code) = fault {
        set_error(gpu, code);
    }
    Some(fault)
}

/// A kernel of a GPU has made an error: each later call that could tell of it returns it.
pub(crate) fn set_error(gpu: c_int, code: c_int) {
    lock(&ERRORS).entry(gpu).or_insert(code);
}

/// The error that a kernel of a GPU has made.
pub(crate) fn error_of(gpu: c_int) -> Option<c_int> {
    lock(&ERRORS).get(&gpu).copied()
}

/// Bytes that each GPU gives, where these are fewer than it says that it has; `FAKE_CUDA_LIMIT`, as `BYTES` or `BYTES:gpuN`.
static LIMIT: LazyLock<Option<(usize, Option<c_int>)>> = LazyLock::new(|| {
    let text = std::env::var("FAKE_CUDA_LIMIT").ok()?;
    let mut parts = text.split(':');
    let bytes = parts.next().and_then(|n| n.parse().ok());
    let gpu = parts.next().map(|gpu| gpu.strip_prefix("gpu").and_then(|n| n.parse().ok()));
    match (bytes, gpu) {
        (Some(bytes), None) => Some((bytes, None)),
        (Some(bytes), Some(Some(gpu))) => Some((bytes, Some(gpu))),
        _ => panic!("FAKE_CUDA_LIMIT: no limit: {text}"),
    }
});

/// Bytes that a GPU gives at most; none for as many as anybody wants.
pub(crate) fn memory_limit(gpu: c_int) -> Option<usize> {
    (*LIMIT).filter(|(_, of)| of.is_none_or(|of| of == gpu)).map(|(bytes, _)| bytes)
}
