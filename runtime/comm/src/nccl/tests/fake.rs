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

    /// Its address.
    pub(super) fn address(&self) -> u64 {
        self.stream.expose_provenance() as u64
    }

    /// Copies within the GPU in the order of the stream.
    pub(super) fn copy(&self, from: u64, to: u64, bytes: usize) {
        type Copy = unsafe extern "C" fn(u64, u64, usize, *mut c_void) -> c_int;
        let f = function!(b"cuMemcpyDtoDAsync_v2", Copy);
        #[expect(unsafe_code, reason = "a function of our own library")]
        // SAFETY: a stream of ours; the stand-in checks the memory.
        let code = unsafe { f(to, from, bytes, self.stream) };
        assert_eq!(code, 0);
    }

    /// Records what is put on the stream from now on.
    pub(super) fn capture(&self) {
        let f = function!(b"cuStreamBeginCapture_v2", unsafe extern "C" fn(*mut c_void, c_int) -> c_int);
        #[expect(unsafe_code, reason = "a function of our own library")]
        // SAFETY: a stream of ours.
        let code = unsafe { f(self.stream, 0) };
        assert_eq!(code, 0);
    }

    /// What was recorded, or why it cannot be used.
    pub(super) fn captured(&self) -> Result<Graph, c_int> {
        type End = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
        type Make = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, u64) -> c_int;
        let (end, make) =
            (function!(b"cuStreamEndCapture", End), function!(b"cuGraphInstantiateWithFlags", Make));
        let free = function!(b"cuGraphDestroy", unsafe extern "C" fn(*mut c_void) -> c_int);
        let (mut graph, mut made) = (std::ptr::null_mut(), std::ptr::null_mut());
        #[expect(unsafe_code, reason = "functions of our own library")]
        // SAFETY: they write handles; what was recorded is freed when it can be launched.
        unsafe {
            match end(self.stream, &raw mut graph) {
                0 => assert_eq!(make(&raw mut made, graph, 0), 0),
                code => return Err(code),
            }
            assert_eq!(free(graph), 0);
        }
        Ok(Graph(made))
    }

    /// Does all that was recorded, in the order of the stream.
    pub(super) fn launch(&self, graph: &Graph) {
        let f = function!(b"cuGraphLaunch", unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int);
        #[expect(unsafe_code, reason = "a function of our own library")]
        // SAFETY: handles of ours.
        let code = unsafe { f(graph.0, self.stream) };
        assert_eq!(code, 0);
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

/// A graph that can be launched.
pub(super) struct Graph(*mut c_void);

impl Drop for Graph {
    fn drop(&mut self) {
        let f = function!(b"cuGraphExecDestroy", unsafe extern "C" fn(*mut c_void) -> c_int);
        #[expect(unsafe_code, reason = "a function of our own library")]
        // SAFETY: a handle of ours, used no more.
        let code = unsafe { f(self.0) };
        assert_eq!(code, 0);
    }
}
