//! The stand-in for CUDA and NCCL of `tests/fake-nccl`: built once, and used by several tests at a time, each on GPUs of
//! its own.

use crate::gpu::load::Paths;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

fn sources(under: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(under).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

/// The library, compiled unless it is there already: its name tells its sources.
pub(super) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fake-nccl/src");
        let mut hasher = DefaultHasher::new();
        for source in sources(&folder) {
            std::fs::read(source).unwrap().hash(&mut hasher);
        }
        // The tests' binary is in `deps` of the target folder.
        let own = std::env::current_exe().unwrap();
        let folder_of_builds = own.parent().unwrap().parent().unwrap().join("fake-nccl");
        std::fs::create_dir_all(&folder_of_builds).unwrap();
        let built = folder_of_builds.join(format!("libfake_nccl-{:016x}.so", hasher.finish()));
        if built.exists() {
            return built;
        }
        let cargo = Path::new(env!("CARGO"));
        let beside = cargo.with_file_name("rustc");
        let rustc = if beside.exists() { beside } else { PathBuf::from("rustc") };
        let half = built.with_extension(format!("{}.so", std::process::id()));
        let done = Command::new(rustc)
            .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "fake_nccl", "-O"])
            .arg(folder.join("lib.rs"))
            .arg("-o")
            .arg(&half)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        // Another process may have built the same meanwhile.
        std::fs::rename(&half, &built).unwrap();
        built
    })
}

pub(super) fn paths() -> Paths {
    Paths::all(library())
}

/// The first of `n` GPUs that no other test of this process uses.
pub(super) fn gpus(n: u32) -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(n, Ordering::Relaxed)
}

fn opened() -> &'static libloading::Library {
    static OPENED: OnceLock<libloading::Library> = OnceLock::new();
    #[expect(unsafe_code, reason = "loading a library")]
    // SAFETY: our own library, without initialisers.
    OPENED.get_or_init(|| unsafe { libloading::Library::new(library()) }.unwrap())
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
        type Launch = unsafe extern "C" fn(
            *mut c_void,
            unsafe extern "C" fn(*mut c_void),
            *mut c_void,
        ) -> c_int;
        let f = function!(b"cuLaunchHostFunc", Launch);
        let task: Task = Box::new(task);
        let data = Box::into_raw(Box::new(task));
        #[expect(unsafe_code, reason = "a function of our own library")]
        // SAFETY: a stream of ours, and a task that is run once.
        let code = unsafe { f(self.stream, run, data.cast()) };
        assert_eq!(code, 0);
    }
}
