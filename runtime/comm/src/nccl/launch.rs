//! A call of the trait as calls of NCCL, on a stream of the transport.
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

use super::api::{CommHandle, Functions, IN_PROGRESS, Refused, SUCCESS};
use super::device::{Gpu, OwnStream};
use crate::Group;
use crate::call::{Addresses, PostedCall};
use crate::signature::{Division, Extent, Layout, Signature, starts};
use meshwright_gpu::driver::DriverError;
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
        DType::F16 => Some(6),
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
    pub(super) comm: Option<CommHandle>,
    pub(super) stream: OwnStream,
    /// Members of the group.
    pub(super) members: usize,
}

/// A buffer of a call, in the memory of this GPU.
#[derive(Clone, Copy)]
struct DeviceBuffer<'a> {
    extent: &'a Extent,
    source: *const u8,
    target: *mut u8,
}

/// The address of element `at`.
fn element(from: *const u8, at: usize, of: DType) -> *const u8 {
    from.wrapping_add(at * of.bytes())
}

fn element_mut(to: *mut u8, at: usize, of: DType) -> *mut u8 {
    to.wrapping_add(at * of.bytes())
}

fn even(counts: &[usize]) -> bool {
    counts.windows(2).all(|w| w[0] == w[1])
}

#[expect(unsafe_code, reason = "hands memory to NCCL, as whoever posted the call allowed")]
impl Launch<'_> {
    /// Puts a call on the stream. The call was checked, so layouts and buffers fit each other.
    ///
    /// # Safety
    /// The memory of the call is this GPU's, and nobody else's until the stream is done with it.
    pub(super) unsafe fn run(&self, group: &Group, call: &PostedCall) -> Result<(), LaunchError> {
        let here = group.position();
        let is_moved = call.signature.monoid.is_none() && call.signature.root.is_none();
        match self.comm {
            Some(comm) => {
                if is_moved && !native_gather(&call.signature) {
                    // SAFETY: the caller's promise.
                    unsafe { self.copy_own(here, call) }?;
                }
                // SAFETY: the caller's promise.
                self.grouped(|| unsafe { self.group_launch(comm, here, call) })
            }
            // A member that is alone keeps what it has, folded or not.
            // SAFETY: the caller's promise.
            None => unsafe { self.copy_own(here, call) },
        }
    }

    /// Copies what this member sends to itself.
    ///
    /// # Safety
    /// As [`Launch::run`].
    unsafe fn copy_own(&self, here: usize, call: &PostedCall) -> Result<(), LaunchError> {
        for (i, (extent, Addresses { source, target })) in call.buffers().enumerate() {
            let (sent, received) = (call.signature.input(i), call.signature.output(i));
            let Some(target) = target.filter(|t| t.cast_const() != source) else { continue };
            for (from, to) in
                sent.ranges(here).zip(received.ranges(here)).filter(|(from, _)| !from.is_empty())
            {
                let (of, bytes) = (extent.dtype, from.len() * extent.dtype.bytes());
                // SAFETY: the caller's promise; the call was checked: ranges lie in the buffers, and have equal lengths.
                unsafe {
                    let ends = (element(source, from.start, of), element_mut(target, to.start, of));
                    self.gpu.copy(ends, bytes, self.stream)
                }?;
            }
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

    /// The calls of NCCL that the other members make too.
    ///
    /// # Safety
    /// As [`Launch::run`].
    unsafe fn group_launch(
        &self,
        comm: CommHandle,
        here: usize,
        call: &PostedCall,
    ) -> Result<(), LaunchError> {
        let signature = &call.signature;
        for (i, (extent, Addresses { source, target })) in call.buffers().enumerate() {
            let Some(target) = target else { unreachable!("the memory of a call on the device is here") };
            let buffer = DeviceBuffer { extent, source, target };
            // SAFETY: the caller's promise.
            unsafe {
                match (signature.monoid, signature.root, &signature.send, &signature.receive) {
                    (Some(monoid), _, Layout::Pieces(counts), _) => {
                        self.reduce_pieces(comm, here, monoid, counts, buffer)
                    }
                    (Some(monoid), ..) => self.all_reduce(comm, monoid, buffer),
                    (None, Some(root), ..) => self.broadcast(comm, root, buffer),
                    (None, None, Layout::Whole, Layout::Pieces(counts)) => {
                        self.gather_pieces(comm, here, counts, buffer)
                    }
                    _ => self.exchange(comm, here, buffer, signature.input(i), signature.output(i)),
                }
            }?;
        }
        Ok(())
    }

    /// # Safety
    /// As [`Launch::run`]; so are those below.
    unsafe fn all_reduce(
        &self,
        comm: CommHandle,
        monoid: Monoid,
        buffer: DeviceBuffer<'_>,
    ) -> Result<(), LaunchError> {
        let ((of, op), n) = (fold(monoid, buffer.extent.dtype), buffer.extent.output);
        if n == 0 {
            return Ok(());
        }
        let (from, to) = (buffer.source.cast(), buffer.target.cast_const().cast());
        // SAFETY: the caller's promise.
        check("ncclAllReduce", unsafe {
            (self.f.all_reduce)(from, to, n, of, op, comm, self.stream.handle())
        })
    }

    /// Folds a piece for each member.
    unsafe fn reduce_pieces(
        &self,
        comm: CommHandle,
        here: usize,
        monoid: Monoid,
        counts: &[usize],
        DeviceBuffer { extent, source, target }: DeviceBuffer<'_>,
    ) -> Result<(), LaunchError> {
        let (of, op) = fold(monoid, extent.dtype);
        let target = target.cast_const();
        if even(counts) {
            if extent.output == 0 {
                return Ok(());
            }
            // SAFETY: the caller's promise; the input has a piece for each member.
            return check("ncclReduceScatter", unsafe {
                let (from, to) = (source.cast(), target.cast());
                (self.f.reduce_scatter)(from, to, extent.output, of, op, comm, self.stream.handle())
            });
        }
        for (root, (at, n)) in
            starts(counts).into_iter().zip(counts).enumerate().filter(|(_, (_, n))| **n > 0)
        {
            let from = element(source, at, extent.dtype);
            // Elsewhere than on the root, the target is not used.
            let to = if root == here { target } else { from };
            // SAFETY: the caller's promise; the piece lies in the input.
            check("ncclReduce", unsafe {
                (self.f.reduce)(from.cast(), to.cast(), *n, of, op, place(root), comm, self.stream.handle())
            })?;
        }
        Ok(())
    }

    unsafe fn broadcast(
        &self,
        comm: CommHandle,
        root: usize,
        buffer: DeviceBuffer<'_>,
    ) -> Result<(), LaunchError> {
        let (of, scale) = moved(buffer.extent.dtype);
        let n = buffer.extent.output * scale;
        if n == 0 {
            return Ok(());
        }
        let (from, to) = (buffer.source.cast(), buffer.target.cast_const().cast());
        // SAFETY: the caller's promise.
        check("ncclBroadcast", unsafe {
            (self.f.broadcast)(from, to, n, of, place(root), comm, self.stream.handle())
        })
    }

    /// Joins a piece of each member.
    unsafe fn gather_pieces(
        &self,
        comm: CommHandle,
        here: usize,
        counts: &[usize],
        DeviceBuffer { extent, source, target }: DeviceBuffer<'_>,
    ) -> Result<(), LaunchError> {
        let (of, scale) = moved(extent.dtype);
        if even(counts) {
            if extent.input == 0 {
                return Ok(());
            }
            // SAFETY: the caller's promise; the output has room for all pieces.
            return check("ncclAllGather", unsafe {
                let (from, to) = (source.cast(), target.cast_const().cast());
                (self.f.all_gather)(from, to, extent.input * scale, of, comm, self.stream.handle())
            });
        }
        for (root, (at, n)) in
            starts(counts).into_iter().zip(counts).enumerate().filter(|(_, (_, n))| **n > 0)
        {
            let to = element_mut(target, at, extent.dtype).cast_const();
            let from = if root == here { source } else { to };
            // SAFETY: the caller's promise; the piece lies in the output.
            check("ncclBroadcast", unsafe {
                (self.f.broadcast)(
                    from.cast(),
                    to.cast(),
                    n * scale,
                    of,
                    place(root),
                    comm,
                    self.stream.handle(),
                )
            })?;
        }
        Ok(())
    }

    /// Sends and receives ranges, all at the same time; what stays is copied elsewhere.
    unsafe fn exchange(
        &self,
        comm: CommHandle,
        here: usize,
        DeviceBuffer { extent, source, target }: DeviceBuffer<'_>,
        sent: Division<'_>,
        received: Division<'_>,
    ) -> Result<(), LaunchError> {
        let (of, scale) = moved(extent.dtype);
        for peer in (0..self.members).filter(|peer| *peer != here) {
            for range in sent.ranges(peer).filter(|range| !range.is_empty()) {
                let from = element(source, range.start, extent.dtype).cast::<c_void>();
                // SAFETY: the caller's promise; the range lies in the input.
                let code = unsafe {
                    (self.f.send)(from, range.len() * scale, of, place(peer), comm, self.stream.handle())
                };
                check("ncclSend", code)?;
            }
            for range in received.ranges(peer).filter(|range| !range.is_empty()) {
                let to = element_mut(target, range.start, extent.dtype).cast_const().cast::<c_void>();
                // SAFETY: the caller's promise; the range lies in the output.
                let code = unsafe {
                    (self.f.receive)(to, range.len() * scale, of, place(peer), comm, self.stream.handle())
                };
                check("ncclRecv", code)?;
            }
        }
        Ok(())
    }
}

/// Whether NCCL has a call of its own that also copies what a member keeps.
fn native_gather(signature: &Signature) -> bool {
    matches!((&signature.send, &signature.receive), (Layout::Whole, Layout::Pieces(_)))
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
