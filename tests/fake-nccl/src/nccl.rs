//! NCCL's functions.

use crate::cuda;
use crate::exchange::Meeting;
use crate::ops::{ARGUMENT, Comm, CommState, FakeOp, PROGRESS, SYSTEM, USAGE, What};
use crate::stream::Stream;
use crate::{lock, setting};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    bytes: [u8; 128],
}

/// As of NCCL 2.18; later fields are the caller's business.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// Handles in use: whoever uses another has freed it.
static LIVE: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

thread_local! {
    static GROUP: RefCell<GroupCalls> = const { RefCell::new(GroupCalls { depth: 0, calls: Vec::new() }) };
}

struct GroupCalls {
    depth: usize,
    calls: Vec<(Arc<Comm>, usize, FakeOp)>,
}

fn handle(comm: Arc<Comm>) -> *const Comm {
    let raw = Arc::into_raw(comm);
    lock(&LIVE).insert(raw as usize);
    raw
}

fn live(comm: *const Comm) -> Option<Arc<Comm>> {
    let live = lock(&LIVE);
    live.contains(&(comm as usize)).then(|| unsafe {
        Arc::increment_strong_count(comm);
        Arc::from_raw(comm)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = setting("FAKE_NCCL_VERSION", 23007) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    let random = || RandomState::new().hash_one(std::process::id());
    let name = format!("{:016x}{:016x}", random(), random());
    let mut bytes = [0; 128];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    unsafe { *id = UniqueId { bytes } };
    0
}

fn blocking(config: *const Config) -> Option<bool> {
    // SAFETY: null or a configuration.
    let Some(config) = (unsafe { config.as_ref() }) else { return Some(true) };
    if config.magic != 0xcafe_beef || config.size < 40 || config.version < 21400 {
        return None;
    }
    Some(config.blocking != 0)
}

fn make(name: String, members: usize, me: usize, gpu: c_int, blocking: bool) -> Option<Arc<Comm>> {
    Some(Arc::new(Comm {
        meeting: Meeting::new(&name, me).ok()?,
        name,
        members,
        me,
        gpu,
        blocking,
        state: Mutex::new(CommState::default()),
        aborted: AtomicBool::new(false),
    }))
}

/// Does what may wait for others, at once or meanwhile.
fn later(comm: &Arc<Comm>, work: impl FnOnce(&Arc<Comm>) + Send + 'static) -> c_int {
    if comm.blocking {
        work(comm);
        return lock(&comm.state).error;
    }
    lock(&comm.state).pending += 1;
    let comm = comm.clone();
    std::thread::spawn(move || {
        work(&comm);
        lock(&comm.state).pending -= 1;
    });
    PROGRESS
}

/// All members say who they are.
fn meet(comm: &Arc<Comm>) {
    let said = format!("{} {} {}", comm.members, comm.gpu, std::process::id());
    comm.meeting.offer(&format!("init.{}", comm.me), said.as_bytes());
    let mut gpus = Vec::new();
    for member in 0..comm.members {
        let Some(bytes) = comm.meeting.get(&format!("init.{member}"), || comm.ended()) else { return };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let mut words = text.split(' ').map(str::to_owned);
        if words.next() != Some(comm.members.to_string()) {
            return comm.fail(ARGUMENT, "ranks disagree on the number of ranks");
        }
        let gpu = words.next();
        if gpus.contains(&gpu) && setting("NCCL_MULTI_RANK_GPU_ENABLE", 0) != 1 {
            return comm.fail(USAGE, "Duplicate GPU detected");
        }
        gpus.push(gpu);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    new: *mut *const Comm,
    members: c_int,
    id: UniqueId,
    me: c_int,
    config: *const Config,
) -> c_int {
    let Some(context) = cuda::current() else { return 1 };
    let (Some(blocking), true) = (blocking(config), (0..members).contains(&me)) else { return ARGUMENT };
    let end = id.bytes.iter().position(|b| *b == 0).unwrap_or(128);
    let name = String::from_utf8_lossy(&id.bytes[..end]).into_owned();
    if name.len() != 32 {
        return ARGUMENT;
    }
    let Some(comm) = make(name, members as usize, me as usize, context.ordinal, blocking) else {
        return SYSTEM;
    };
    unsafe { *new = handle(comm.clone()) };
    later(&comm, meet)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    parent: *const Comm,
    color: c_int,
    key: c_int,
    new: *mut *const Comm,
    config: *const Config,
) -> c_int {
    let Some(comm) = live(parent) else { return ARGUMENT };
    let number = {
        let mut state = lock(&comm.state);
        if state.pending > 0 {
            return USAGE;
        }
        state.splits += 1;
        state.splits
    };
    let blocking = if config.is_null() { Some(comm.blocking) } else { blocking(config) };
    let (Some(blocking), true) = (blocking, color >= -1) else { return ARGUMENT };
    unsafe { *new = std::ptr::null() };
    let new = new as usize;
    later(&comm, move |comm| {
        // The new handle is there once the parent is ready again, not before.
        if !comm.blocking {
            std::thread::sleep(Duration::from_micros(300));
        }
        comm.meeting.offer(&format!("split.{number}.{}", comm.me), format!("{color} {key}").as_bytes());
        let mut members = Vec::new();
        for member in 0..comm.members {
            let name = format!("split.{number}.{member}");
            let Some(bytes) = comm.meeting.get(&name, || comm.ended()) else { return };
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let said: Vec<c_int> = text.split(' ').filter_map(|w| w.parse().ok()).collect();
            if said.first() == Some(&color) {
                members.push((said[1], member));
            }
        }
        if color < 0 {
            return;
        }
        members.sort_unstable();
        let Some(me) = members.iter().position(|(_, m)| *m == comm.me) else { return };
        let name = format!("{}-{number}-{color}", comm.name);
        match make(name, members.len(), me, comm.gpu, blocking) {
            Some(child) => {
                unsafe { *(new as *mut *const Comm) = handle(child.clone()) };
                later(&child, meet);
            }
            None => comm.fail(SYSTEM, "no directory to meet in"),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *const Comm, error: *mut c_int) -> c_int {
    let Some(comm) = live(comm) else { return ARGUMENT };
    let state = lock(&comm.state);
    unsafe {
        *error = if state.error != 0 {
            state.error
        } else if state.pending > 0 {
            PROGRESS
        } else {
            0
        }
    };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLastError(comm: *const Comm) -> *const c_char {
    let text = live(comm).map(|c| lock(&c.state).text.clone()).unwrap_or_default();
    CString::into_raw(text)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: *const Comm) -> c_int {
    let Some(comm) = live(comm) else { return ARGUMENT };
    later(&comm, |comm| {
        let waits = |comm: &Arc<Comm>| {
            let state = lock(&comm.state);
            state.running > 0 && !comm.ended() || state.in_graphs > 0
        };
        while waits(comm) {
            std::thread::sleep(Duration::from_micros(100));
        }
    })
}

fn free(comm: *const Comm) {
    if lock(&LIVE).remove(&(comm as usize)) {
        let comm = unsafe { Arc::from_raw(comm) };
        comm.meeting.leave(comm.members);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: *const Comm) -> c_int {
    let Some(known) = live(comm) else { return ARGUMENT };
    if lock(&known.state).is_busy() {
        return USAGE;
    }
    free(comm);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *const Comm) -> c_int {
    let Some(known) = live(comm) else { return ARGUMENT };
    known.aborted.store(true, Ordering::SeqCst);
    // As NCCL does, which waits for the GPU and for graphs: what comes before on the stream ends, or this does not.
    while lock(&known.state).is_busy() {
        std::thread::sleep(Duration::from_micros(100));
    }
    free(comm);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with_borrow_mut(|g| g.depth += 1);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    let calls = GROUP.with_borrow_mut(|g| match g.depth {
        0 => None,
        1 => {
            g.depth = 0;
            Some(std::mem::take(&mut g.calls))
        }
        _ => {
            g.depth -= 1;
            Some(Vec::new())
        }
    });
    match calls {
        Some(calls) => launch(calls),
        None => USAGE,
    }
}

/// Calls of one communicator and stream run together.
fn launch(mut calls: Vec<(Arc<Comm>, usize, FakeOp)>) -> c_int {
    let mut worst = 0;
    while let Some((comm, stream, _)) = calls.first() {
        let (comm, stream) = (comm.clone(), *stream);
        let same = |c: &(Arc<Comm>, usize, FakeOp)| Arc::ptr_eq(&c.0, &comm) && c.1 == stream;
        let (now, rest): (Vec<_>, Vec<_>) = calls.into_iter().partition(same);
        calls = rest;
        let stream = unsafe { cuda::shared(stream as *const Stream) };
        let result = comm.launch(now.into_iter().map(|(_, _, op)| op).collect(), &stream);
        if result != 0 && (worst == 0 || worst == PROGRESS) {
            worst = result;
        }
    }
    worst
}

fn call(comm: *const Comm, stream: *const Stream, op: FakeOp) -> c_int {
    let Some(comm) = live(comm) else { return ARGUMENT };
    {
        let state = lock(&comm.state);
        if state.pending > 0 {
            drop(state);
            comm.fail(USAGE, "a call before the communicator was ready");
            return USAGE;
        }
    }
    if stream.is_null() {
        return ARGUMENT;
    }
    // Others wait for a collective: NCCL would not mind.
    if unsafe { (*stream).priority } != cuda::PRIORITIES[1] {
        comm.fail(USAGE, "a collective on a stream that comes last");
        return USAGE;
    }
    let call = (comm, stream as usize, op);
    let alone = GROUP.with_borrow_mut(|g| {
        if g.depth == 0 {
            return Some(call);
        }
        g.calls.push(call);
        None
    });
    alone.map_or(0, |call| launch(vec![call]))
}

macro_rules! calls {
    ($($symbol:ident($($arg:ident),*) $what:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($arg: calls!(@type $arg),)* comm: *const Comm, stream: *const Stream) -> c_int {
            #[allow(unused_mut, reason = "not every call has every argument")]
            let mut op = FakeOp { what: What::$what, from: 0, to: 0, count: 0, dtype: 0, fold: 0, peer: 0 };
            $(op.$arg = $arg;)*
            call(comm, stream, op)
        }
    )*};
    (@type from) => { usize };
    (@type to) => { usize };
    (@type count) => { usize };
    (@type dtype) => { c_int };
    (@type fold) => { c_int };
    (@type peer) => { c_int };
}

calls! {
    ncclAllReduce(from, to, count, dtype, fold) AllReduce;
    ncclAllGather(from, to, count, dtype) AllGather;
    ncclReduceScatter(from, to, count, dtype, fold) ReduceScatter;
    ncclBroadcast(from, to, count, dtype, peer) Broadcast;
    ncclReduce(from, to, count, dtype, fold, peer) Reduce;
    ncclSend(from, count, dtype, peer) Send;
    ncclRecv(to, count, dtype, peer) Receive;
}
