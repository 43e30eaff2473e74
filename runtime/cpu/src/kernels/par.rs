//! Sharing work with the pool that the calling thread is in. Cuts depend on sizes alone.
//!
//! Many operations of a step take less time than waking a thread. So a thread that has helped looks for more work for a
//! while before it sleeps.

use super::shared_tasks::Board;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time for which an idle thread looks for work. Waking one takes some 50 microseconds on a virtual machine.
const LINGER: Duration = Duration::from_micros(300);

/// Below this many elements, work stays on the calling thread.
const LARGE: usize = 1 << 16;

/// Parts that are not cut further.
const PART: usize = 1 << 14;

/// Whether the pool has threads for this number of elements. They are awake then.
pub(super) fn worth(elements: usize) -> bool {
    elements > LARGE && shared()
}

/// Whether the pool has other threads. They are awake then.
pub(super) fn shared() -> bool {
    let shared = rayon::current_thread_index().is_some() && rayon::current_num_threads() > 1;
    if shared {
        awake();
    }
    shared
}

thread_local! {
    /// The board on which threads of this one's pool find work.
    static BOARD: RefCell<Arc<Board>> = RefCell::default();
    static LINGERS: Cell<bool> = const { Cell::new(false) };
}

/// Has the other threads of the pool look for work, from its first thread: that of the device.
fn awake() {
    if rayon::current_thread_index() != Some(0) {
        return;
    }
    let board = BOARD.with_borrow(Arc::clone);
    if !board.told.swap(true, Ordering::Relaxed) {
        rayon::spawn_broadcast(move |context| {
            if context.index() != 0 && !LINGERS.replace(true) {
                linger(&board);
                LINGERS.set(false);
                board.told.store(false, Ordering::Relaxed);
            }
        });
    }
}

/// Works on shared tasks, until there are none for a while.
fn linger(board: &Board) {
    let mut last = Instant::now();
    while last.elapsed() < LINGER {
        let helped = (0..8).any(|_| {
            std::hint::spin_loop();
            board.help()
        });
        match rayon::yield_now() {
            _ if helped => last = Instant::now(),
            Some(rayon::Yield::Executed) => last = Instant::now(),
            _ => {}
        }
    }
}

/// Runs tasks by number, each on the next free thread of the pool. For rows of short operations, for which the pool's
/// own scheduling would take as long as the work: no thread sleeps before all are done.
pub(super) fn tasks(count: usize, task: &(dyn Fn(usize) + Sync)) {
    if shared() && rayon::current_thread_index() == Some(0) {
        BOARD.with_borrow(Arc::clone).share(count, task);
    } else {
        (0..count).for_each(task);
    }
}

/// The split of `len` elements in two, at a multiple of `unit`; `None` if there are few.
pub(super) fn middle(len: usize, unit: usize) -> Option<usize> {
    cut(len, unit, 1)
}

fn cut(len: usize, unit: usize, weight: usize) -> Option<usize> {
    let mid = (len / 2).next_multiple_of(unit.max(1));
    (len.saturating_mul(weight) > PART && 0 < mid && mid < len).then_some(mid)
}

/// Calls `f(base, part)` for parts of an array, cut at multiples of `unit`; `base` is the position of a part's first
/// element. An element counts as `weight` when it is decided whether and how far to cut.
pub(super) fn parts<T: Send>(
    out: &mut [T],
    unit: usize,
    weight: usize,
    f: &(impl Fn(usize, &mut [T]) + Sync),
) {
    // Compiled once for each type of elements: a part is much longer than a call.
    fn go<T: Send>(
        out: &mut [T],
        unit: usize,
        weight: usize,
        base: usize,
        f: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        match cut(out.len(), unit, weight) {
            None => f(base, out),
            Some(mid) => {
                let (a, b) = out.split_at_mut(mid);
                rayon::join(|| go(a, unit, weight, base, f), || go(b, unit, weight, base + mid, f));
            }
        }
    }
    if worth(out.len().saturating_mul(weight)) { go(out, unit, weight, 0, f) } else { f(0, out) }
}
