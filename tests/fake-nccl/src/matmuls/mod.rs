//! cuBLASLt: products of matrices in memory of the host, on streams of the stand-in or, on none, at once.
//!
//! What is refused is what cuBLASLt refuses: attributes of another size, layouts that do not fit together, too little room
//! between rows, an algorithm that was proposed for another product.

mod task;

use self::task::Task;
use crate::cuda::is_device_memory;
use crate::elements::{Kind, kind};
use crate::setting;
use crate::stream::Stream;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const SUCCESS: c_int = 0;
const NOT_INITIALIZED: c_int = 1;
const INVALID_VALUE: c_int = 7;
const NOT_SUPPORTED: c_int = 15;

/// What the first word of an algorithm begins with.
const MARK: u64 = 0x6d77 << 48;
/// How many ways are proposed. The last of them needs a workspace.
const WAYS: u64 = 3;
const ROOM: usize = 1 << 12;

/// Of an epilogue: a vector is added, something beside is written or read, a factor is summed.
const BIAS: u32 = 4;
const AUX: u32 = 128;
/// The gradient of `gelu`, which reads elements beside; all others have bits there.
const GELU_KEEPING: u32 = 160;
const GELU_GRAD: u32 = 192;
const SUMS: u32 = 256 | 512;

static DONE: AtomicU64 = AtomicU64::new(0);
static MULTIPLIED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static HANDLES: AtomicU64 = AtomicU64::new(0);
/// From which handle on each has a way of its own that is fast.
static DIFFER: AtomicU64 = AtomicU64::new(u64::MAX);
/// Of those handles: how often each took which way.
static WAYS_TAKEN: Mutex<Vec<[u64; WAYS as usize]>> = Mutex::new(Vec::new());

/// From now on each new handle finds another way fast: handle `n` from here way `n` (modulo the ways without workspace).
#[unsafe(no_mangle)]
pub extern "C" fn fakeWaysDiffer() {
    DIFFER.store(HANDLES.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// How often handle `n` since then took a way.
#[unsafe(no_mangle)]
pub extern "C" fn fakeWaysTaken(handle: u64, way: u64) -> u64 {
    let taken = WAYS_TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    taken.get(handle as usize).map_or(0, |ways| ways[way as usize])
}

/// Where ways differ: counts, and takes its time for what is slow.
fn take(handle: u64, way: u64) {
    let Some(n) = handle.checked_sub(DIFFER.load(Ordering::SeqCst)) else { return };
    let mut taken = WAYS_TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let len = taken.len().max(n as usize + 1);
    taken.resize(len, [0; WAYS as usize]);
    taken[n as usize][way as usize] += 1;
    drop(taken);
    if way != n % (WAYS - 1) {
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
}

/// How many products were computed.
#[unsafe(no_mangle)]
pub extern "C" fn fakeProducts() -> u64 {
    DONE.load(Ordering::SeqCst)
}

/// How many multiplications were done that the kernels of a Hopper GPU refuse, and how many in all.
#[unsafe(no_mangle)]
pub extern "C" fn fakeMultiplications(refused: bool) -> u64 {
    if refused { REFUSED.load(Ordering::SeqCst) } else { MULTIPLIED.load(Ordering::SeqCst) }
}

#[derive(Clone, Copy, Default)]
pub struct Description {
    compute: c_int,
    scale: c_int,
    transposed: [bool; 2],
    follows: u32,
    bias: usize,
    /// Elements from the bias or the sums of one batch to those of the next.
    bias_stride: i64,
    bias_type: c_int,
    /// Where bits or elements beside are, and how many there are from one column to the next.
    aux: usize,
    aux_leading: i64,
    /// Where the scales of A and B are; 0 where they have none.
    scales: [usize; 2],
}

impl Description {
    /// Whether what is beside the result is elements, and not bits.
    fn keeps_elements(&self) -> bool {
        matches!(self.follows & !BIAS, GELU_KEEPING | GELU_GRAD)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    dtype: c_int,
    rows: u64,
    columns: u64,
    leading: i64,
    batches: c_int,
    stride: i64,
}

impl Layout {
    /// Bytes from the first element to the last.
    fn bytes(&self) -> usize {
        let elements = i64::from(self.batches - 1) * self.stride
            + (self.columns as i64 - 1) * self.leading
            + self.rows as i64;
        elements as usize * kind(self.dtype).map_or(0, Kind::bytes)
    }
}

#[derive(Default)]
pub struct Preference {
    room: usize,
    reductions: u32,
    alignments: [u32; 4],
}

#[repr(C)]
pub struct Proposal {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtCreate(handle: *mut *mut u64) -> c_int {
    let number = HANDLES.fetch_add(1, Ordering::SeqCst);
    // As a library does whose version the driver does not know.
    if number < setting("FAKE_CUBLASLT_REFUSED", 0) as u64 {
        return NOT_INITIALIZED;
    }
    unsafe { *handle = Box::into_raw(Box::new(number)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtDestroy(handle: *mut u64) -> c_int {
    drop(unsafe { Box::from_raw(handle) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    crate::setting("FAKE_CUBLASLT_VERSION", 130_200) as usize
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusString(status: c_int) -> *const c_char {
    let text = match status {
        SUCCESS => c"success",
        INVALID_VALUE => c"an unsupported value or parameter was passed to the function",
        NOT_SUPPORTED => c"the functionality requested is not supported",
        _ => c"an internal operation failed",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescCreate(
    made: *mut *mut Description,
    compute: c_int,
    scale: c_int,
) -> c_int {
    if !matches!((compute, scale), (68 | 77, 0) | (70, 1)) {
        return NOT_SUPPORTED;
    }
    let description = Description { compute, scale, follows: 1, bias_type: -1, ..Description::default() };
    unsafe { *made = Box::into_raw(Box::new(description)) };
    SUCCESS
}

unsafe fn number<T: Copy>(value: *const c_void, bytes: usize) -> Option<T> {
    (bytes == size_of::<T>()).then(|| unsafe { value.cast::<T>().read_unaligned() })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    description: *mut Description,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    let d = unsafe { &mut *description };
    let done = unsafe {
        match attribute {
            3 | 4 => number::<c_int>(value, bytes).map(|v| d.transposed[attribute as usize - 3] = v == 1),
            7 => number(value, bytes).map(|v| d.follows = v),
            8 => number(value, bytes).map(|v| d.bias = v),
            10 => number(value, bytes).map(|v| d.bias_stride = v),
            11 => number(value, bytes).map(|v| d.aux = v),
            12 => number(value, bytes).map(|v| d.aux_leading = v),
            17 | 18 => number(value, bytes).map(|v| d.scales[attribute as usize - 17] = v),
            26 => number(value, bytes).map(|v| d.bias_type = v),
            _ => None,
        }
    };
    if done.is_some() { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescDestroy(description: *mut Description) -> c_int {
    drop(unsafe { Box::from_raw(description) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    made: *mut *mut Layout,
    dtype: c_int,
    rows: u64,
    columns: u64,
    leading: i64,
) -> c_int {
    if kind(dtype).is_none() {
        return INVALID_VALUE;
    }
    let layout = Layout { dtype, rows, columns, leading, batches: 1, stride: 0 };
    unsafe { *made = Box::into_raw(Box::new(layout)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutSetAttribute(
    layout: *mut Layout,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    let l = unsafe { &mut *layout };
    let done = unsafe {
        match attribute {
            5 => number(value, bytes).map(|v| l.batches = v),
            6 => number(value, bytes).map(|v| l.stride = v),
            _ => None,
        }
    };
    if done.is_some() { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutDestroy(layout: *mut Layout) -> c_int {
    drop(unsafe { Box::from_raw(layout) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceCreate(made: *mut *mut Preference) -> c_int {
    unsafe { *made = Box::into_raw(Box::default()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    preference: *mut Preference,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    let p = unsafe { &mut *preference };
    let done = unsafe {
        match attribute {
            1 => number(value, bytes).map(|v| p.room = v),
            3 => number(value, bytes).map(|v| p.reductions = v),
            5..=8 => number(value, bytes).map(|v| p.alignments[attribute as usize - 5] = v),
            _ => None,
        }
    };
    if done.is_some() { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceDestroy(preference: *mut Preference) -> c_int {
    drop(unsafe { Box::from_raw(preference) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _: *mut u8,
    d: *const Description,
    a: *const Layout,
    b: *const Layout,
    c: *const Layout,
    out: *const Layout,
    preference: *const Preference,
    room: c_int,
    proposals: *mut Proposal,
    many: *mut c_int,
) -> c_int {
    let (task, p) = unsafe { (Task::new(&*d, &*a, &*b, &*c, &*out), &*preference) };
    unsafe { *many = 0 };
    let Some(task) = task else { return NOT_SUPPORTED };
    // Sums of parts in the type of the result would be rounded too often.
    if p.reductions != 2 || p.alignments.iter().any(|a| !a.is_power_of_two()) {
        return INVALID_VALUE;
    }
    if task.is_fp8() && p.alignments.iter().any(|a| *a < 16) {
        return NOT_SUPPORTED;
    }
    let ways = if p.room >= ROOM { WAYS } else { WAYS - 1 };
    for way in 0..ways.min(room as u64) {
        let mut algorithm = [0; 8];
        algorithm[0] = task.mark() | way;
        let workspace = if way == WAYS - 1 { ROOM } else { 0 };
        let proposal = Proposal { algorithm, workspace, state: SUCCESS, waves: 1.0, reserved: [0; 4] };
        unsafe {
            proposals.add(way as usize).write(proposal);
            *many = way as c_int + 1;
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoCheck(
    _: *mut u8,
    d: *const Description,
    a: *const Layout,
    b: *const Layout,
    c: *const Layout,
    out: *const Layout,
    algorithm: *const [u64; 8],
    found: *mut Proposal,
) -> c_int {
    let Some(task) = (unsafe { Task::new(&*d, &*a, &*b, &*c, &*out) }) else { return INVALID_VALUE };
    let algorithm = unsafe { *algorithm };
    let way = algorithm[0] ^ task.mark();
    if way >= WAYS {
        return NOT_SUPPORTED;
    }
    let workspace = if way == WAYS - 1 { ROOM } else { 0 };
    unsafe { found.write(Proposal { algorithm, workspace, state: SUCCESS, waves: 1.0, reserved: [0; 4] }) };
    SUCCESS
}

/// Of the attributes of an algorithm only its number is asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoConfigGetAttribute(
    algorithm: *const [u64; 8],
    attribute: c_int,
    value: *mut c_int,
    bytes: usize,
    written: *mut usize,
) -> c_int {
    if attribute != 0 || bytes != size_of::<c_int>() {
        return INVALID_VALUE;
    }
    unsafe {
        *value = ((*algorithm)[0] & 0xffff) as c_int;
        *written = bytes;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmul(
    handle: *const u64,
    d: *const Description,
    alpha: *const c_void,
    left: *const c_void,
    a: *const Layout,
    right: *const c_void,
    b: *const Layout,
    beta: *const c_void,
    added: *const c_void,
    c: *const Layout,
    result: *mut c_void,
    out: *const Layout,
    algorithm: *const [u64; 8],
    workspace: *mut c_void,
    bytes: usize,
    stream: *const Stream,
) -> c_int {
    let Some(task) = (unsafe { Task::new(&*d, &*a, &*b, &*c, &*out) }) else { return INVALID_VALUE };
    let scales = unsafe {
        match task.d.scale {
            1 => (alpha.cast::<f64>().read_unaligned(), beta.cast::<f64>().read_unaligned()),
            _ => (
                f64::from(alpha.cast::<f32>().read_unaligned()),
                f64::from(beta.cast::<f32>().read_unaligned()),
            ),
        }
    };
    let way = unsafe { (*algorithm)[0] } ^ task.mark();
    let enough = way + 1 < WAYS || bytes >= ROOM && is_device_memory(workspace as usize, bytes);
    let places = [left as usize, right as usize, result as usize, task.d.bias];
    // Nobody here scales.
    let added = (scales.1 == 1.0).then_some(added as usize);
    // What is added is the result's memory, or memory of that layout apart from it.
    let bytes = task.out.bytes();
    let beside = |added: usize| {
        added == result as usize || added.abs_diff(result as usize) >= bytes && is_device_memory(added, bytes)
    };
    if !matches!(scales, (1.0, 0.0 | 1.0))
        || !added.is_none_or(beside)
        || way >= WAYS
        || !enough
        || task.is_fp8() && !task.is_for_hopper([left as usize, right as usize, result as usize])
        || !task.is_within(places)
    {
        return INVALID_VALUE;
    }
    take(unsafe { *handle }, way);
    task.count([left as usize, right as usize, result as usize]);
    let computes = setting("FAKE_CUBLASLT_COMPUTES", 1) == 1;
    let run = move || {
        if computes {
            unsafe { task.run(places, added) }
        }
    };
    match unsafe { stream.as_ref() } {
        Some(stream) => stream.launch(run),
        None => run(),
    }
    SUCCESS
}
