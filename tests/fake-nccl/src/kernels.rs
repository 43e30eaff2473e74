//! Kernels that compute, where `FAKE_CUDA_KERNELS=run` asks for it: modules are parsed, and launches run in the order of their
//! stream. An error of a kernel stays, as on a GPU: each later call that could tell of it returns it.

use crate::cuda::{INVALID_VALUE, current, piece};
use crate::faults::{error_of, set_error};
use crate::ptx::{Kernel, Launch, Memory, Module};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// Whether kernels compute.
pub(crate) static RUN: LazyLock<bool> =
    LazyLock::new(|| std::env::var("FAKE_CUDA_KERNELS").is_ok_and(|v| v == "run"));
static WATCHES: LazyLock<bool> = LazyLock::new(|| std::env::var("FAKE_CUDA_RACES").is_ok_and(|v| v == "1"));

/// Instructions of warps, for which the interpreter takes about a minute.
const LIMIT: u64 = 1 << 31;

const INVALID_PTX: c_int = 218;
const NOT_FOUND: c_int = 500;

/// The code, or that of an error that a kernel of the current GPU made.
pub(crate) fn unless_faulted(code: c_int) -> c_int {
    current().map_or(code, |context| unless_faulted_on(context.ordinal, code))
}

/// The code, or that of an error that a kernel of that GPU made.
pub(crate) fn unless_faulted_on(gpu: c_int, code: c_int) -> c_int {
    error_of(gpu).unwrap_or(code)
}

/// Where memory of a GPU is.
struct Device;

impl Memory for Device {
    fn piece(&self, address: usize) -> Option<(usize, usize)> {
        piece(address)
    }
}

/// Says what is wrong where who runs the tests sees it.
#[allow(clippy::print_stderr, reason = "there is nobody else to tell")]
fn complain(text: &str) {
    eprintln!("stand-in for CUDA: {text}");
}

/// Keeps the text of a module in the folder that `FAKE_CUDA_PTX` names, if it names one.
pub(crate) unsafe fn keep(image: *const c_void) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let Some(folder) = std::env::var_os("FAKE_CUDA_PTX") else { return };
    let (number, process) = (NUMBER.fetch_add(1, Ordering::Relaxed), std::process::id());
    let path = Path::new(&folder).join(format!("{process}-{number}.ptx"));
    let text = unsafe { CStr::from_ptr(image.cast()) };
    std::fs::write(&path, text.to_bytes())
        .unwrap_or_else(|e| panic!("FAKE_CUDA_PTX: {}: {e}", path.display()));
}

/// A module of a text that ends with 0. It stays.
pub(crate) unsafe fn load(image: *const c_void) -> Result<*const c_void, c_int> {
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
    match Module::parse(&text) {
        Ok(module) => Ok(std::ptr::from_ref::<Module>(Box::leak(Box::new(module))).cast()),
        Err(problem) => {
            complain(&format!("PTX: {problem}"));
            Err(INVALID_PTX)
        }
    }
}

/// A kernel of a module. It stays too.
pub(crate) unsafe fn find(module: *const c_void, name: *const c_char) -> Result<*const c_void, c_int> {
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let found = unsafe { &*module.cast::<Module>() }.kernel(&name).ok_or(NOT_FOUND)?;
    Ok(Arc::into_raw(found).cast())
}

/// The arguments of a launch, as they are now, in one piece.
unsafe fn gathered(kernel: &Kernel, arguments: *mut *mut c_void) -> Vec<u8> {
    let mut all = Vec::new();
    for (i, (at, bytes)) in kernel.parameters().iter().enumerate() {
        all.resize(*at, 0);
        let from = unsafe { std::slice::from_raw_parts((*arguments.add(i)).cast::<u8>(), *bytes) };
        all.extend_from_slice(from);
    }
    all
}

/// What runs a kernel of a GPU once, with the arguments of now.
pub(crate) unsafe fn prepared(
    gpu: c_int,
    kernel: *const c_void,
    [grid, block]: [[c_uint; 3]; 2],
    shared: c_uint,
    arguments: *mut *mut c_void,
) -> Result<impl Fn() + Send + Sync + 'static, c_int> {
    let kernel: &'static Kernel = unsafe { &*kernel.cast() };
    if arguments.is_null() && !kernel.parameters().is_empty() {
        return Err(INVALID_VALUE);
    }
    let how = Launch { grid, block, shared: shared as usize, watches: *WATCHES, limit: LIMIT };
    let arguments = unsafe { gathered(kernel, arguments) };
    Ok(move || {
        if error_of(gpu).is_some() {
            return;
        }
        if let Err(fault) = kernel.launch(&how, &arguments, &Device) {
            complain(&fault.text);
            set_error(gpu, fault.code);
        }
    })
}
