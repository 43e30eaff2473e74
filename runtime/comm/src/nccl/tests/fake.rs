//! The stand-in for CUDA and NCCL of `tests/fake-nccl`: built once, and used by several tests at a time, each on GPUs of
//! its own.

#[path = "../../../../../tests/fake-nccl/built.rs"]
mod built;

use meshwright_gpu::load::Paths;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) fn paths() -> Paths {
    Paths::all(built::library())
}

/// The first of `n` GPUs that no other test of this process uses.
pub(super) fn gpus(n: u32) -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(n, Ordering::Relaxed)
}

fn opened() -> &'static libloading::Library {
    static OPENED: OnceLock<libloading::Library> = OnceLock::new();
    #[expect(unsafe_code, reason = "loading a library")]
    // SAFETY: our own library, without initializers.
    OPENED.get_or_init(|| unsafe { libloading::Library::new(built::library()) }.unwrap())
}

/// A function of the stand-in.
macro_rules! function {
    ($symbol:literal, $t:ty) => {{
        #[expect(unsafe_code, reason = "a function of our own library")]
        // SAFETY: the type is that of the function.
        let f: libloading::Symbol<'_, $t> = unsafe { opened().get($symbol) }.unwrap();
        *f
    }};
}

/// Adds a fault, such as `stall:gpu3:call7`.
pub(super) fn fault(text: &str) {
    let text = CString::new(text).unwrap();
    let f = function!(b"fakeFault", unsafe extern "C" fn(*const c_char) -> c_int);
    #[expect(unsafe_code, reason = "a function of our own library")]
    // SAFETY: a text that ends with 0.
    let code = unsafe { f(text.as_ptr()) };
    assert_eq!(code, 0);
}

/// A stream that stands for that of the engine, which computes what collectives read and reads what they wrote.
pub(super) struct Compute {
    stream: *mut c_void,
}

type Task = Box<dyn FnOnce() + Send>;

#[expect(unsafe_code, reason = "the other side of `Compute::push`")]
unsafe extern "C" fn run(task: *mut c_void) {
    // SAFETY: made by `Compute::push`, and run once.
    let task = unsafe { Box::from_raw(task.cast::<Task>()) };
    task();
}

impl Compute {
    /// On the current GPU of this thread.
    pub(super) fn new() -> Compute {
        let f = function!(b"cuStreamCreate", unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int);
        let mut stream = std::ptr::null_mut();
        #[expect(unsafe_code, reason = "a function of our own library")]
        // SAFETY: writes a handle.
        let code = unsafe { f(&raw mut stream, 0) };
        assert_eq!(code, 0);
        Compute { stream }
    }

    /// Runs a task in the order of the stream.
    pub(super) fn push(&self, task: impl FnOnce() + Send + 'static) {
        type Launch =
            unsafe extern "C" fn(*mut c_void, unsafe extern "C" fn(*mut c_void), *mut c_void) -> c_int;
        let f = function!(b"cuLaunchHostFunc", Launch);
        let task: Task = Box::new(task);
        let data = Box::into_raw(Box::new(task));
        #[expect(unsafe_code, reason = "a function of our own library")]
        // SAFETY: a stream of ours, and a task that is run once.
        let code = unsafe { f(self.stream, run, data.cast()) };
        assert_eq!(code, 0);
    }
}
