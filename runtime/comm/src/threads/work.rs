//! An operation that all members have entered, cut into tasks that any thread may do.

use crate::call::PostedCall;
use crate::fold::fold;
use crate::signature::{Division, Layout};
use meshwright_plan::{DType, Monoid};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of one buffer that a task covers: a fold reads as much from each member. Small enough for the second-level cache,
/// large enough that claiming a task costs nothing beside it.
const CHUNK: usize = 32 * 1024;

/// What remains to be done.
pub(crate) struct Work {
    folds: Vec<BufferFold>,
    tasks: Vec<WorkTask>,
    bytes: usize,
    next: AtomicUsize,
    finished: AtomicUsize,
}

/// Elements that are folded: where each member's are, in group order, and where the result goes.
struct BufferFold {
    monoid: Monoid,
    dtype: DType,
    sources: Vec<*const u8>,
    targets: Vec<*mut u8>,
}

/// Offsets and lengths are bytes, multiples of the size of an element.
enum WorkTask {
    /// Folds a chunk of all members into all targets.
    Fold { fold: usize, at: usize, bytes: usize },
    /// Copies.
    Copy { from: *const u8, to: *mut u8, bytes: usize },
}

#[expect(unsafe_code, reason = "addresses in the memory of several devices")]
// SAFETY: the addresses stay valid, and are touched by this operation alone, until `run` has reported its end (the
// promise of `Transport::post`); tasks touch disjoint outputs, and no task's output is another's input.
unsafe impl Send for Work {}
#[expect(unsafe_code, reason = "addresses in the memory of several devices")]
// SAFETY: as above; `next` gives each task to one thread.
unsafe impl Sync for Work {}

impl Work {
    /// The tasks for calls that were checked and compared, one for each member in group order. Results that nobody here wants
    /// are left out.
    pub(crate) fn new(calls: &[&PostedCall]) -> Work {
        let mut work = Work {
            folds: Vec::new(),
            tasks: Vec::new(),
            bytes: 0,
            next: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
        };
        if let Some(first) = calls.first() {
            for buffer in 0..first.signature.buffers.len() {
                match first.signature.monoid {
                    Some(monoid) => work.folds_of(buffer, monoid, calls),
                    None => work.copies_of(buffer, calls),
                }
            }
        }
        work
    }

    fn folds_of(&mut self, buffer: usize, monoid: Monoid, calls: &[&PostedCall]) {
        let dtype = calls[0].signature.buffers[buffer].dtype;
        let sent: Vec<Division<'_>> = calls.iter().map(|call| call.signature.input(buffer)).collect();
        // What goes to all alike is folded once.
        let alike = matches!(calls[0].signature.send, Layout::Whole);
        let step = if alike { calls.len() } else { 1 };
        for receivers in (0..calls.len()).map(|first| first..first + step).step_by(step) {
            let first = receivers.start;
            let bytes = calls[first].signature.buffers[buffer].output * dtype.bytes();
            let targets: Vec<*mut u8> =
                calls[receivers].iter().filter_map(|call| call.memory[buffer].target).collect();
            let source = |(call, sent): (&&PostedCall, &Division<'_>)| {
                let start = sent.ranges(first).next().map_or(0, |range| range.start);
                call.memory[buffer].source.wrapping_add(start * dtype.bytes())
            };
            let sources: Vec<*const u8> = calls.iter().zip(&sent).map(source).collect();
            // Alone and in place there is nothing to do.
            let there = sources.len() == 1 && targets.iter().all(|t| t.cast_const() == sources[0]);
            if targets.is_empty() || there {
                continue;
            }
            let fold = self.folds.len();
            self.folds.push(BufferFold { monoid, dtype, sources, targets });
            self.bytes += bytes * calls.len();
            self.tasks.extend(chunks(bytes).map(|(at, bytes)| WorkTask::Fold { fold, at, bytes }));
        }
    }

    fn copies_of(&mut self, buffer: usize, calls: &[&PostedCall]) {
        let received: Vec<Division<'_>> = calls.iter().map(|call| call.signature.output(buffer)).collect();
        let mut runs: Vec<(*const u8, *mut u8, usize)> = Vec::new();
        for (i, sender) in calls.iter().enumerate().filter(|(i, call)| call.signature.sends(*i)) {
            let size = sender.signature.buffers[buffer].dtype.bytes();
            let sent = sender.signature.input(buffer);
            runs.clear();
            for (j, receiver) in calls.iter().enumerate() {
                let Some(target) = receiver.memory[buffer].target else { continue };
                for (from, to) in sent.ranges(j).zip(received[j].ranges(i)) {
                    let source = sender.memory[buffer].source.wrapping_add(from.start * size);
                    let target = target.wrapping_add(to.start * size);
                    if source != target.cast_const() {
                        runs.push((source, target, from.len() * size));
                    }
                }
            }
            // Chunk by chunk to all members, so that what goes to several is read from memory once.
            let longest = runs.iter().map(|run| run.2).max().unwrap_or(0);
            for at in (0..longest).step_by(CHUNK) {
                for (from, to, bytes) in runs.iter().filter(|run| run.2 > at) {
                    let bytes = CHUNK.min(bytes - at);
                    self.bytes += bytes;
                    let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
                    self.tasks.push(WorkTask::Copy { from, to, bytes });
                }
            }
        }
    }

    /// Bytes read.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of tasks.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether some task is yet to be claimed.
    pub(super) fn unclaimed(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.tasks.len()
    }

    /// Does tasks until none is left to claim. True for the one thread that finished the last task of all, after which
    /// nobody touches any member's memory.
    pub(crate) fn run_all(&self) -> bool {
        let mut last = false;
        // The guard keeps a thread that comes late, again and again, from counting `next` round to the beginning.
        while self.unclaimed() {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = self.tasks.get(i) else { break };
            self.run(task);
            // Whoever sees the last count also sees what all others have written.
            last = self.finished.fetch_add(1, Ordering::AcqRel) + 1 == self.tasks.len();
        }
        last
    }

    fn run(&self, task: &WorkTask) {
        match *task {
            WorkTask::Fold { fold, at, bytes } => self.folds[fold].chunk(at, bytes),
            #[expect(unsafe_code, reason = "copies between the memory of several devices")]
            // SAFETY: see `Send for Work`; the ranges were checked against both buffers, which do not overlap, since one
            // of them is borrowed exclusively.
            WorkTask::Copy { from, to, bytes } => unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) },
        }
    }
}

/// Does the collective of a group of one, by a call that was checked.
///
/// # Safety
/// The memory of the call is valid, and nobody else uses it meanwhile.
#[expect(unsafe_code, reason = "uses the memory of a call")]
pub unsafe fn run_alone(call: &PostedCall) {
    Work::new(&[call]).run_all();
}

impl BufferFold {
    fn chunk(&self, at: usize, bytes: usize) {
        on_stack(&self.sources, at, |sources| {
            on_stack(&self.targets, at, |targets| {
                #[expect(unsafe_code, reason = "folds the memory of several devices")]
                // SAFETY: see `Send for Work`; the check of the call has allowed this fold of this dtype, the range is within
                // all buffers, and sources and targets are the same slot of an in-place fold or borrowed apart.
                unsafe {
                    fold(self.monoid, self.dtype, sources, targets, bytes / self.dtype.bytes());
                }
            });
        });
    }
}

/// Addresses moved by `at` bytes, without an allocation for groups of usual size.
fn on_stack<P: Pointer>(base: &[P], at: usize, then: impl FnOnce(&[P])) {
    let mut few = [P::NULL; 16];
    if let Some(few) = few.get_mut(..base.len()) {
        for (moved, base) in few.iter_mut().zip(base) {
            *moved = base.plus(at);
        }
        then(few);
    } else {
        then(&base.iter().map(|p| p.plus(at)).collect::<Vec<_>>());
    }
}

trait Pointer: Copy {
    const NULL: Self;
    fn plus(self, bytes: usize) -> Self;
}

impl Pointer for *const u8 {
    const NULL: Self = std::ptr::null();
    fn plus(self, bytes: usize) -> Self {
        self.wrapping_add(bytes)
    }
}

impl Pointer for *mut u8 {
    const NULL: Self = std::ptr::null_mut();
    fn plus(self, bytes: usize) -> Self {
        self.wrapping_add(bytes)
    }
}

/// Offset and length of each chunk of so many bytes.
fn chunks(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(CHUNK).map(move |at| (at, CHUNK.min(bytes - at)))
}
