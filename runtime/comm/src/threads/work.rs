//! An operation that all members have come to, cut into tasks that any thread may do.

use crate::buf::is_absent;
use crate::call::Part;
use crate::fold::fold;
use crate::{Call, Slot};
use meshwright_plan::{DType, Monoid};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of one buffer that a task covers: a fold reads as much from each member. Small enough for the second-level cache,
/// large enough that claiming a task costs nothing beside it.
const CHUNK: usize = 32 * 1024;

/// What remains to be done.
pub(crate) struct Work {
    folds: Vec<Fold>,
    tasks: Vec<Task>,
    bytes: usize,
    next: AtomicUsize,
    finished: AtomicUsize,
}

/// One buffer that is folded: where each member's is, in group order.
struct Fold {
    monoid: Monoid,
    dtype: DType,
    sources: Vec<*const u8>,
    targets: Vec<*mut u8>,
}

/// Offsets and lengths are bytes, multiples of the size of an element.
enum Task {
    /// Folds a chunk of all members into all of them.
    FoldForAll { fold: usize, at: usize, bytes: usize },
    /// Folds a chunk of all members into the chunk at `to` of one.
    FoldForOne { fold: usize, at: usize, bytes: usize, member: usize, to: usize },
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
    /// The tasks for calls that were checked and compared, one for each member in group order. Results of members whose
    /// memory is not here are left out.
    pub(crate) fn new(calls: &[&Call<'static>]) -> Work {
        let mut work = Work {
            folds: Vec::new(),
            tasks: Vec::new(),
            bytes: 0,
            next: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
        };
        match calls {
            [Call::AllReduce { monoid, bucket }, ..] => work.all_reduce(*monoid, bucket, calls),
            [Call::AllGather { counts, .. }, ..] => work.all_gather(counts, calls),
            [Call::ReduceScatter { monoid, counts, input, .. }, ..] => {
                work.reduce_scatter(*monoid, input.dtype(), counts, calls);
            }
            [Call::AllToAll { .. }, ..] => work.all_to_all(calls),
            [Call::Permute { .. }, ..] => work.permute(calls),
            [Call::Broadcast { root, .. }, ..] => work.broadcast(*root, calls),
            [Call::Barrier, ..] | [] => {}
        }
        work
    }

    fn all_reduce(&mut self, monoid: Monoid, bucket: &[Slot<'_>], calls: &[&Call<'_>]) {
        // Alone and in place there is nothing to do.
        let alone_in_place = |slot: &Slot<'_>| calls.len() == 1 && matches!(slot, Slot::InPlace(_));
        for (i, slot) in bucket.iter().enumerate().filter(|(_, s)| !s.is_empty() && !alone_in_place(s)) {
            let slots = || {
                calls.iter().filter_map(|call| match call {
                    Call::AllReduce { bucket, .. } => Some(&bucket[i]),
                    _ => None,
                })
            };
            let here = |target: &*mut u8| !is_absent(target.cast_const());
            let (sources, targets) =
                (slots().map(Slot::source).collect(), slots().map(Slot::target).filter(here).collect());
            let fold = self.folds.len();
            self.folds.push(Fold { monoid, dtype: slot.dtype(), sources, targets });
            let whole = slot.len() * slot.dtype().bytes();
            self.bytes += whole * calls.len();
            let chunk = |(at, bytes)| Task::FoldForAll { fold, at, bytes };
            self.tasks.extend(chunks(whole).map(chunk));
        }
    }

    fn reduce_scatter(&mut self, monoid: Monoid, dtype: DType, counts: &[usize], calls: &[&Call<'_>]) {
        let buffers = calls.iter().filter_map(|call| match call {
            Call::ReduceScatter { input, output, .. } => Some((input.as_ptr(), output.address())),
            _ => None,
        });
        let (sources, targets): (_, Vec<*mut u8>) = buffers.unzip();
        let here: Vec<bool> = targets.iter().map(|target| !is_absent(target.cast_const())).collect();
        self.folds.push(Fold { monoid, dtype, sources, targets });
        let mut start = 0;
        for (member, count) in counts.iter().enumerate() {
            let piece = count * dtype.bytes();
            let chunk = |(to, bytes)| Task::FoldForOne { fold: 0, at: start + to, bytes, member, to };
            if here[member] {
                self.tasks.extend(chunks(piece).map(chunk));
            }
            start += piece;
        }
        self.bytes += start * calls.len();
    }

    fn all_gather(&mut self, counts: &[usize], calls: &[&Call<'_>]) {
        let mut start = 0;
        for (call, count) in calls.iter().zip(counts) {
            let Call::AllGather { input, .. } = call else { continue };
            let piece = count * input.dtype().bytes();
            // Chunk by chunk to all members, so that it is read from memory once.
            for (at, bytes) in chunks(piece) {
                for call in calls {
                    let Call::AllGather { output, .. } = call else { continue };
                    self.copy((input.as_ptr(), at), (output.address(), start + at), bytes);
                }
            }
            start += piece;
        }
    }

    fn all_to_all(&mut self, calls: &[&Call<'_>]) {
        for (i, sender) in calls.iter().enumerate() {
            for (j, receiver) in calls.iter().enumerate() {
                let Call::AllToAll { input, send, .. } = sender else { continue };
                let Call::AllToAll { output, receive, .. } = receiver else { continue };
                let size = input.dtype().bytes();
                let from = send[..j].iter().sum::<usize>() * size;
                let to = receive[..i].iter().sum::<usize>() * size;
                self.copy_chunks((input.as_ptr(), from), (output.address(), to), send[j] * size);
            }
        }
    }

    fn permute(&mut self, calls: &[&Call<'_>]) {
        fn of(parts: &[Part], peer: usize) -> impl Iterator<Item = &Part> {
            parts.iter().filter(move |p| p.peer == peer)
        }
        for (i, sender) in calls.iter().enumerate() {
            for (j, receiver) in calls.iter().enumerate() {
                let Call::Permute { input, send, .. } = sender else { continue };
                let Call::Permute { output, receive, .. } = receiver else { continue };
                let size = input.dtype().bytes();
                for (sent, received) in of(send, j).zip(of(receive, i)) {
                    let from = (input.as_ptr(), sent.range.start * size);
                    let to = (output.address(), received.range.start * size);
                    self.copy_chunks(from, to, sent.range.len() * size);
                }
            }
        }
    }

    fn broadcast(&mut self, root: usize, calls: &[&Call<'_>]) {
        let Call::Broadcast { buffer, .. } = calls[root] else { return };
        for (at, bytes) in chunks(buffer.len() * buffer.dtype().bytes()) {
            for call in calls.iter().enumerate().filter(|(i, _)| *i != root).map(|(_, call)| call) {
                let Call::Broadcast { buffer: target, .. } = call else { continue };
                self.copy((buffer.address().cast_const(), at), (target.address(), at), bytes);
            }
        }
    }

    fn copy_chunks(&mut self, from: (*const u8, usize), to: (*mut u8, usize), bytes: usize) {
        for (at, bytes) in chunks(bytes) {
            self.copy((from.0, from.1 + at), (to.0, to.1 + at), bytes);
        }
    }

    /// From an offset of a buffer to one of another.
    fn copy(&mut self, from: (*const u8, usize), to: (*mut u8, usize), bytes: usize) {
        if is_absent(to.0.cast_const()) {
            return;
        }
        self.bytes += bytes;
        let (from, to) = (from.0.wrapping_add(from.1), to.0.wrapping_add(to.1));
        self.tasks.push(Task::Copy { from, to, bytes });
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

    fn run(&self, task: &Task) {
        match *task {
            Task::FoldForAll { fold, at, bytes } => {
                let fold = &self.folds[fold];
                on_stack(&fold.targets, at, |targets| fold.chunk(at, targets, bytes));
            }
            Task::FoldForOne { fold, at, bytes, member, to } => {
                let fold = &self.folds[fold];
                fold.chunk(at, &[fold.targets[member].wrapping_add(to)], bytes);
            }
            #[expect(unsafe_code, reason = "copies between the memory of several devices")]
            // SAFETY: see `Send for Work`; the ranges were checked against both buffers, which do not overlap, since one
            // of them is borrowed exclusively.
            Task::Copy { from, to, bytes } => unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) },
        }
    }
}

impl Fold {
    fn chunk(&self, at: usize, targets: &[*mut u8], bytes: usize) {
        on_stack(&self.sources, at, |sources| {
            #[expect(unsafe_code, reason = "folds the memory of several devices")]
            // SAFETY: see `Send for Work`; `Call::check` has allowed this fold of this dtype, the range is within all
            // buffers, and sources and targets are the same slot of an in-place fold or borrowed apart.
            unsafe {
                fold(self.monoid, self.dtype, sources, targets, bytes / self.dtype.bytes());
            }
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
