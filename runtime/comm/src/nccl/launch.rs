//! A call of the trait as calls of NCCL, on the transport's stream.
//!
//! | call | even pieces | uneven pieces |
//! |---|---|---|
//! | all-reduce | one `ncclAllReduce` for each buffer, in one group | |
//! | all-gather | `ncclAllGather` | an `ncclBroadcast` from each member, in one group |
//! | reduce-scatter | `ncclReduceScatter` | an `ncclReduce` to each member, in one group |
//! | all-to-all, permute | `ncclSend` and `ncclRecv` in one group; what stays is copied | the same |
//! | broadcast | `ncclBroadcast` in place | |
//!
//! Padding would move more and need memory; sends and receives in place of broadcasts would send a piece once for every
//! member. Empty pieces are left out: all members know the counts. Moves of pairs, for which NCCL has no type, are moves of
//! bytes. Conjunction and disjunction are minimum and maximum of bytes that are 0 or 1.

use super::api::{Functions, Handle, IN_PROGRESS, Refused, SUCCESS, Stream};
use super::device::Gpu;
use crate::gpu::driver::DriverError;
use crate::{Buf, BufMut, Call, Group, Part};
use meshwright_plan::{DType, Monoid};
use std::ffi::{c_int, c_void};

/// What failed.
pub(super) enum LaunchError {
    Nccl(Refused),
    Driver(DriverError),
}

impl From<DriverError> for LaunchError {
    fn from(e: DriverError) -> Self {
        LaunchError::Driver(e)
    }
}

/// NCCL's type of an element; none for pairs.
fn dtype(dtype: DType) -> Option<c_int> {
    match dtype {
        DType::U8 | DType::Bool => Some(1),
        DType::I32 => Some(2),
        DType::F32 => Some(7),
        DType::F64 => Some(8),
        DType::BF16 => Some(9),
        DType::PairF32 | DType::PairF64 => None,
    }
}

fn operation(monoid: Monoid) -> Option<c_int> {
    match monoid {
        Monoid::Sum => Some(0),
        Monoid::Prod => Some(1),
        Monoid::Max | Monoid::Or => Some(2),
        Monoid::Min | Monoid::And => Some(3),
        Monoid::ArgMax | Monoid::ArgMin => None,
    }
}

/// Whether NCCL has that fold: all but arg-reductions.
pub(super) fn has_fold(monoid: Monoid, of: DType) -> bool {
    operation(monoid).is_some() && dtype(of).is_some()
}

/// Type and bytes of an element that is moved: of bytes, if NCCL has no such type.
fn moved(of: DType) -> (c_int, usize) {
    match dtype(of) {
        Some(known) => (known, 1),
        None => (1, of.bytes()),
    }
}

/// Where calls go.
pub(super) struct Launch<'a> {
    pub(super) f: &'a Functions,
    pub(super) gpu: &'a Gpu,
    /// None for a group of one, which only copies.
    pub(super) comm: Option<Handle>,
    pub(super) stream: Stream,
}

/// The address of element `at`.
fn element(from: *const u8, at: usize, of: DType) -> *const u8 {
    from.wrapping_add(at * of.bytes())
}

fn element_mut(to: *mut u8, at: usize, of: DType) -> *mut u8 {
    to.wrapping_add(at * of.bytes())
}

/// Pieces in group order: where each begins, and its length.
fn pieces(counts: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    counts.iter().map(move |n| {
        at += n;
        (at - n, *n)
    })
}

fn even(counts: &[usize]) -> bool {
    counts.windows(2).all(|w| w[0] == w[1])
}

#[expect(unsafe_code, reason = "hands memory to NCCL, as whoever posted the call allowed")]
impl Launch<'_> {
    /// Puts a call on the stream. The caller has checked the call, so counts, ranges and buffers fit each other.
    ///
    /// # Safety
    /// The memory of the call is this GPU's, and nobody else's until the stream is done with it.
    pub(super) unsafe fn run(&self, group: &Group, call: &Call<'_>) -> Result<(), LaunchError> {
        match self.comm {
            // SAFETY: the caller's promise.
            Some(comm) => unsafe { self.together(comm, group, call) },
            // SAFETY: the caller's promise.
            None => unsafe { self.alone(call) },
        }
    }

    /// # Safety
    /// As [`Launch::run`].
    unsafe fn copy(&self, from: *const u8, to: *mut u8, len: usize, of: DType) -> Result<(), LaunchError> {
        if len > 0 && from != to.cast_const() {
            // SAFETY: the caller's promise.
            unsafe { self.gpu.copy(from, to, len * of.bytes()) }?;
        }
        Ok(())
    }

    /// A group of one.
    ///
    /// # Safety
    /// As [`Launch::run`].
    unsafe fn alone(&self, call: &Call<'_>) -> Result<(), LaunchError> {
        match call {
            Call::AllReduce { bucket, .. } => {
                for slot in bucket {
                    // SAFETY: the caller's promise.
                    unsafe { self.copy(slot.source(), slot.target(), slot.len(), slot.dtype()) }?;
                }
                Ok(())
            }
            Call::AllGather { input, output, .. }
            | Call::ReduceScatter { input, output, .. }
            | Call::AllToAll { input, output, .. } => {
                // SAFETY: the caller's promise; both have the same length.
                unsafe { self.copy(input.as_ptr(), output.address(), output.len(), output.dtype()) }
            }
            Call::Permute { input, send, output, receive } => {
                // SAFETY: the caller's promise.
                unsafe { self.keep(0, (input, send), (output, receive)) }
            }
            Call::Broadcast { .. } | Call::Barrier => Ok(()),
        }
    }

    /// Copies what a permute sends to this member itself.
    ///
    /// # Safety
    /// As [`Launch::run`].
    unsafe fn keep(
        &self,
        here: usize,
        (input, send): (&Buf<'_>, &[Part]),
        (output, receive): (&BufMut<'_>, &[Part]),
    ) -> Result<(), LaunchError> {
        let own =
            |parts: &[Part]| -> Vec<Part> { parts.iter().filter(|p| p.peer == here).cloned().collect() };
        let of = input.dtype();
        for (from, to) in own(send).into_iter().zip(own(receive)) {
            let source = element(input.as_ptr(), from.range.start, of);
            let target = element_mut(output.address(), to.range.start, of);
            // SAFETY: the caller's promise; the call was checked: ranges lie in the buffers, and have equal lengths.
            unsafe { self.copy(source, target, from.range.len(), of) }?;
        }
        Ok(())
    }

    /// Calls within `ncclGroupStart` and `ncclGroupEnd`. The group is ended whatever fails in it.
    fn grouped(&self, calls: impl FnOnce() -> Result<(), LaunchError>) -> Result<(), LaunchError> {
        // SAFETY: belongs to this thread, and ends below.
        check("ncclGroupStart", unsafe { (self.f.group_start)() })?;
        let called = calls();
        // SAFETY: begun above.
        let ended = check("ncclGroupEnd", unsafe { (self.f.group_end)() });
        called.and(ended)
    }

    /// # Safety
    /// As [`Launch::run`].
    unsafe fn together(&self, comm: Handle, group: &Group, call: &Call<'_>) -> Result<(), LaunchError> {
        let (f, stream, here) = (self.f, self.stream, group.position());
        match call {
            Call::AllReduce { monoid, bucket } => self.grouped(|| {
                for slot in bucket.iter().filter(|s| !s.is_empty()) {
                    let (of, op) = fold(*monoid, slot.dtype());
                    let (from, to) = (slot.source().cast(), slot.target().cast_const().cast());
                    // SAFETY: the caller's promise.
                    let code = unsafe { (f.all_reduce)(from, to, slot.len(), of, op, comm, stream) };
                    check("ncclAllReduce", code)?;
                }
                Ok(())
            }),
            Call::AllGather { input, counts, output } if even(counts) => {
                let (of, scale) = moved(input.dtype());
                if input.is_empty() {
                    return Ok(());
                }
                let (from, to) = (input.as_ptr().cast(), output.address().cast_const().cast());
                // SAFETY: the caller's promise; the output has room for all pieces.
                check("ncclAllGather", unsafe {
                    (f.all_gather)(from, to, input.len() * scale, of, comm, stream)
                })
            }
            Call::AllGather { input, counts, output } => self.grouped(|| {
                let (of, scale) = moved(input.dtype());
                for (root, (at, n)) in pieces(counts).enumerate().filter(|(_, (_, n))| *n > 0) {
                    let to = element_mut(output.address(), at, input.dtype());
                    let from = if root == here { input.as_ptr() } else { to.cast_const() };
                    // SAFETY: the caller's promise; the piece lies in the output.
                    let code = unsafe {
                        let to = to.cast_const().cast();
                        (f.broadcast)(from.cast(), to, n * scale, of, place(root), comm, stream)
                    };
                    check("ncclBroadcast", code)?;
                }
                Ok(())
            }),
            Call::ReduceScatter { monoid, input, counts, output } if even(counts) => {
                let (of, op) = fold(*monoid, input.dtype());
                if output.is_empty() {
                    return Ok(());
                }
                let (from, to) = (input.as_ptr().cast(), output.address().cast_const().cast());
                // SAFETY: the caller's promise; the input has a piece for each member.
                check("ncclReduceScatter", unsafe {
                    (f.reduce_scatter)(from, to, output.len(), of, op, comm, stream)
                })
            }
            Call::ReduceScatter { monoid, input, counts, output } => self.grouped(|| {
                let (of, op) = fold(*monoid, input.dtype());
                for (root, (at, n)) in pieces(counts).enumerate().filter(|(_, (_, n))| *n > 0) {
                    let from = element(input.as_ptr(), at, input.dtype());
                    // Elsewhere than on the root, the target is not used.
                    let to = if root == here { output.address().cast_const() } else { from };
                    // SAFETY: the caller's promise; the piece lies in the input.
                    let code =
                        unsafe { (f.reduce)(from.cast(), to.cast(), n, of, op, place(root), comm, stream) };
                    check("ncclReduce", code)?;
                }
                Ok(())
            }),
            Call::AllToAll { input, send, output, receive } => {
                let parts = |counts: &[usize]| -> Vec<Part> {
                    pieces(counts)
                        .enumerate()
                        .map(|(peer, (at, n))| Part { peer, range: at..at + n })
                        .collect()
                };
                // SAFETY: the caller's promise.
                unsafe { self.exchange(comm, here, (input, &parts(send)), (output, &parts(receive))) }
            }
            Call::Permute { input, send, output, receive } => {
                // SAFETY: the caller's promise.
                unsafe { self.exchange(comm, here, (input, send), (output, receive)) }
            }
            Call::Broadcast { root, buffer } => {
                let (of, scale) = moved(buffer.dtype());
                if buffer.is_empty() {
                    return Ok(());
                }
                let (at, n) = (buffer.address().cast_const().cast(), buffer.len() * scale);
                // SAFETY: the caller's promise.
                check("ncclBroadcast", unsafe { (f.broadcast)(at, at, n, of, place(*root), comm, stream) })
            }
            Call::Barrier => Ok(()),
        }
    }

    /// Sends and receives parts, all at the same time.
    ///
    /// # Safety
    /// As [`Launch::run`].
    unsafe fn exchange(
        &self,
        comm: Handle,
        here: usize,
        (input, send): (&Buf<'_>, &[Part]),
        (output, receive): (&BufMut<'_>, &[Part]),
    ) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.keep(here, (input, send), (output, receive)) }?;
        let (f, stream, (of, scale)) = (self.f, self.stream, moved(input.dtype()));
        let others = |part: &&Part| part.peer != here && !part.range.is_empty();
        if !send.iter().chain(receive).any(|part| others(&part)) {
            return Ok(());
        }
        self.grouped(|| {
            for Part { peer, range } in send.iter().filter(others) {
                let from = element(input.as_ptr(), range.start, input.dtype()).cast::<c_void>();
                // SAFETY: the caller's promise; the range lies in the input.
                let code = unsafe { (f.send)(from, range.len() * scale, of, place(*peer), comm, stream) };
                check("ncclSend", code)?;
            }
            for Part { peer, range } in receive.iter().filter(others) {
                let to =
                    element_mut(output.address(), range.start, input.dtype()).cast_const().cast::<c_void>();
                // SAFETY: the caller's promise; the range lies in the output.
                let code = unsafe { (f.receive)(to, range.len() * scale, of, place(*peer), comm, stream) };
                check("ncclRecv", code)?;
            }
            Ok(())
        })
    }
}

fn check(function: &'static str, code: c_int) -> Result<(), LaunchError> {
    match code {
        SUCCESS | IN_PROGRESS => Ok(()),
        code => Err(LaunchError::Nccl(Refused { function, code })),
    }
}

/// A position in a group as NCCL counts it.
pub(super) fn place(position: usize) -> c_int {
    c_int::try_from(position).unwrap_or(c_int::MAX)
}

/// Type and operation of a fold that NCCL has: the caller has checked it.
fn fold(monoid: Monoid, of: DType) -> (c_int, c_int) {
    match (dtype(of), operation(monoid)) {
        (Some(of), Some(op)) => (of, op),
        _ => unreachable!("calls with folds that NCCL lacks are refused before they are launched"),
    }
}
