//! Faults of an MPI library, for tests: loaded before the library (`LD_PRELOAD`), it hands calls on to it, but for those that
//! are to fail.
//!
//! **Invariant:** a process in which nothing was to fail does not notice it. After a refusal every call is one too many (the
//! library might touch memory that was taken back), and is told on standard error, once.
//!
//! - A send of [`REFUSED`] elements is refused.
//! - After a send of [`DOUBTED`] elements, the next look at several requests is refused.
//! - Rank 1 is killed where it makes a communicator of some ranks.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So many elements nobody sends by chance.
const REFUSED: c_int = 54_321;
const DOUBTED: c_int = 54_322;

/// How long after a refusal a process may still tell the others that it ends.
const LAST_WORDS: Duration = Duration::from_millis(600);

/// Some error of MPI.
const OTHER: c_int = 16;

static DOUBTS: AtomicBool = AtomicBool::new(false);
static REFUSAL: Mutex<Option<Instant>> = Mutex::new(None);

/// A handle of the library: a number, or an address.
type Handle = *mut c_void;
type Send = unsafe extern "C" fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type TestAll = unsafe extern "C" fn(c_int, *mut Handle, *mut c_int, *mut c_void) -> c_int;
type Probe = unsafe extern "C" fn(c_int, c_int, Handle, *mut c_int, *mut c_void) -> c_int;
type CreateGroup = unsafe extern "C" fn(Handle, Handle, c_int, *mut Handle) -> c_int;

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn kill(process: c_int, signal: c_int) -> c_int;
}

/// The library's own function of a name, which is the next one of those that are loaded.
///
/// # Safety
/// `F` is the type of that function.
unsafe fn own<F: Copy>(name: &CStr) -> F {
    const NEXT: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
    // SAFETY: a name that ends, and an address as large as a function's, which is one by the caller's promise.
    unsafe {
        let found = dlsym(NEXT, name.as_ptr());
        assert!(!found.is_null(), "the library has no such function");
        std::mem::transmute_copy(&found)
    }
}

fn refuse() -> c_int {
    *REFUSAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Instant::now());
    OTHER
}

fn called() {
    let mut refusal = REFUSAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if refusal.is_some_and(|since| since.elapsed() > LAST_WORDS) {
        *refusal = None;
        let _nobody_listens = std::io::stderr().write_all(b"the library is called after it has refused\n");
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Isend(
    from: *const c_void,
    count: c_int,
    of: Handle,
    to: c_int,
    tag: c_int,
    comm: Handle,
    request: *mut Handle,
) -> c_int {
    called();
    match count {
        REFUSED => return refuse(),
        DOUBTED => DOUBTS.store(true, Ordering::Relaxed),
        _ => {}
    }
    // SAFETY: the function's type; the caller's arguments.
    unsafe { own::<Send>(c"MPI_Isend")(from, count, of, to, tag, comm, request) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Testall(
    count: c_int,
    requests: *mut Handle,
    ended: *mut c_int,
    statuses: *mut c_void,
) -> c_int {
    called();
    if count > 1 && DOUBTS.swap(false, Ordering::Relaxed) {
        return refuse();
    }
    // SAFETY: the function's type; the caller's arguments.
    unsafe { own::<TestAll>(c"MPI_Testall")(count, requests, ended, statuses) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Iprobe(
    from: c_int,
    tag: c_int,
    comm: Handle,
    found: *mut c_int,
    status: *mut c_void,
) -> c_int {
    called();
    // SAFETY: the function's type; the caller's arguments.
    unsafe { own::<Probe>(c"MPI_Iprobe")(from, tag, comm, found, status) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Comm_create_group(
    comm: Handle,
    group: Handle,
    tag: c_int,
    new: *mut Handle,
) -> c_int {
    const KILL: c_int = 9;
    if std::env::var("OMPI_COMM_WORLD_RANK").is_ok_and(|rank| rank == "1") {
        // SAFETY: ends this process.
        unsafe { kill(std::process::id() as c_int, KILL) };
    }
    // SAFETY: the function's type; the caller's arguments.
    unsafe { own::<CreateGroup>(c"MPI_Comm_create_group")(comm, group, tag, new) }
}
