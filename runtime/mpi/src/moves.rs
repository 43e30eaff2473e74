//! A collective that all members have come to (or may be taken to come to), as operations of the library.
//!
//! - Reductions are the library's own, except those whose result depends on the order of the members: maxima and minima
//!   of floats (which of several NaN, which zero), all folds of `bf16` and `f16`, which are rounded once, and all folds of
//!   floats where a fixed order is asked for. These fold here (`crate::ordered_folds`). The library folds pairs and truth
//!   values by functions of ours.
//! - Whatever the library has no call for is sends and receives. Their tags tell collectives apart, so several may be in flight.
//! - A call of the library counts elements by `i32`, so buffers are cut where they have more ([`Kit::limit`]); gathers and
//!   scatters, whose offsets are `i32` too, become sends, receives and folds piece by piece.

use crate::collective_state::{Kit, Member, Staging, copy};
use crate::ordered_folds::{FoldSlice, Ordered};
use crate::sys::Requests;
use meshwright_comm::Layout;
use meshwright_comm::parts::{Addresses, Division, PostedCall, starts};
use meshwright_plan::{DType, Monoid};
use meshwright_sorted::SortedMap;
use std::ffi::c_int;

/// Most bytes of buffers of a bucket that are copied together, and reduced by one call of the library.
const PACKED: usize = 64 * 1024;

/// A buffer of a collective.
#[derive(Clone, Copy)]
struct MpiBuffer {
    dtype: DType,
    source: *const u8,
    target: *mut u8,
}

/// A collective under way.
pub(super) struct RunningCollective {
    requests: Requests,
    /// Memory of ours that the library reads or writes meanwhile.
    staging: Vec<Staging>,
    /// Counts and offsets that the library reads meanwhile.
    counts: Vec<Vec<c_int>>,
    ordered: Option<Ordered>,
    /// From staging to the caller's memory, at the end.
    copies: Vec<(*const u8, *mut u8, usize)>,
}

#[expect(unsafe_code, reason = "holds addresses of the caller's memory")]
// SAFETY: the memory is this collective's own, from any thread, by the promise of `Transport::post`.
unsafe impl Send for RunningCollective {}

fn ints(counts: &[usize]) -> Result<Vec<c_int>, String> {
    counts.iter().map(|n| c_int::try_from(*n).map_err(|e| e.to_string())).collect()
}

#[expect(unsafe_code, reason = "hands the memory of a call to the library")]
impl RunningCollective {
    /// A run of nothing yet.
    pub(super) fn new() -> RunningCollective {
        RunningCollective {
            requests: Requests::new(),
            staging: Vec::new(),
            counts: Vec::new(),
            ordered: None,
            copies: Vec::new(),
        }
    }

    /// Starts a call that was checked. `agreed` says that all members are known to have come. Where it fails, the library
    /// may have begun a part: this must then be kept like one that runs. So whatever the library is given is put here first.
    ///
    /// # Safety
    /// The memory of the call stays valid and its own until this run has ended, or the library is not called any more.
    pub(super) unsafe fn start(
        &mut self,
        call: &PostedCall,
        kit: &Kit,
        place: &Member,
        agreed: bool,
    ) -> Result<(), String> {
        let signature = &call.signature;
        if signature.buffers.is_empty() {
            return if agreed { Ok(()) } else { self.requests.barrier(place.comm) };
        }
        // SAFETY: the caller's promise, for all below.
        if let Some(monoid) = signature.monoid {
            return unsafe { self.reduce(monoid, call, kit, place) };
        }
        for (i, (extent, Addresses { source, target })) in call.buffers().enumerate() {
            let Some(target) = target else { unreachable!("each process gives its own memory") };
            let buffer = MpiBuffer { dtype: extent.dtype, source, target };
            match (signature.root, &signature.send, &signature.receive) {
                (Some(root), ..) => {
                    let of = kit.opaque(extent.dtype)?;
                    // The root sends its operand, which may be apart from its result.
                    let root_here = root == place.position;
                    let memory = if root_here { source.cast_mut() } else { target };
                    if root_here && !std::ptr::eq(source, target) {
                        self.copies.push((source, target, extent.output * extent.dtype.bytes()));
                    }
                    for (at, n) in kit.chunks(extent.output) {
                        let part = memory.wrapping_add(at * extent.dtype.bytes());
                        unsafe { self.requests.broadcast(place.comm, (part, n, of), root)? };
                    }
                }
                (None, Layout::Whole, Layout::Pieces(counts)) if extent.output <= kit.limit => unsafe {
                    self.gather_pieces(buffer, counts, kit, place)?;
                },
                _ => {
                    let (sent, received) = (signature.input(i), signature.output(i));
                    unsafe { self.exchange(buffer, &sent, &received, kit, place)? };
                }
            }
        }
        Ok(())
    }

    /// Goes on where the library has done its part. True at the end, after which no memory is touched.
    ///
    /// # Safety
    /// As [`RunningCollective::start`].
    pub(super) unsafe fn advance(&mut self, kit: &Kit, place: &Member) -> Result<bool, String> {
        while self.requests.test()? {
            // SAFETY: the caller's promise.
            let goes_on = match &mut self.ordered {
                Some(ordered) => unsafe { ordered.advance(&mut self.requests, kit, place)? },
                None => false,
            };
            if goes_on {
                continue;
            }
            for (from, to, bytes) in self.copies.drain(..) {
                // SAFETY: `from` is in `staging`, `to` in the call's memory, both of `bytes` bytes.
                unsafe { copy(from, to, bytes) };
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// # Safety
    /// As [`RunningCollective::start`]; so are those below.
    unsafe fn reduce(
        &mut self,
        monoid: Monoid,
        call: &PostedCall,
        kit: &Kit,
        place: &Member,
    ) -> Result<(), String> {
        let mut slices = Vec::new();
        let mut packs: SortedMap<DType, Vec<(MpiBuffer, usize)>> = SortedMap::new();
        for (extent, Addresses { source, target }) in call.buffers().filter(|(extent, _)| extent.input > 0) {
            let Some(target) = target else { unreachable!("each process gives its own memory") };
            let buffer = MpiBuffer { dtype: extent.dtype, source, target };
            let ordered = kit.is_ordered(monoid, extent.dtype);
            // SAFETY: the caller's promise, here and below.
            match &call.signature.send {
                Layout::Pieces(counts) if ordered => {
                    let shares = starts(counts).into_iter().zip(counts.iter()).map(|(at, n)| at..at + n);
                    slices.push(FoldSlice::of_pieces(source, target, extent.dtype, shares.collect()));
                }
                Layout::Pieces(counts) => unsafe {
                    self.reduce_pieces(monoid, buffer, counts, kit, place)?;
                },
                _ if ordered => {
                    slices.push(FoldSlice::of_slot(
                        source,
                        target,
                        extent.dtype,
                        extent.input,
                        place.members,
                    ));
                }
                _ if extent.input * extent.dtype.bytes() <= PACKED => {
                    packs.entry(extent.dtype).or_default().push((buffer, extent.input));
                }
                _ => unsafe { self.all_reduce(monoid, buffer, extent.input, kit, place)? },
            }
        }
        for (dtype, buffers) in packs {
            // SAFETY: the caller's promise.
            unsafe { self.all_reduce_packed(monoid, dtype, &buffers, kit, place)? };
        }
        if !slices.is_empty() {
            let ordered = self.ordered.insert(Ordered::new(monoid, slices));
            // SAFETY: the caller's promise.
            unsafe { ordered.start(&mut self.requests, kit, place)? };
        }
        Ok(())
    }

    unsafe fn all_reduce(
        &mut self,
        monoid: Monoid,
        MpiBuffer { dtype, mut source, target }: MpiBuffer,
        len: usize,
        kit: &Kit,
        place: &Member,
    ) -> Result<(), String> {
        // A result that takes the place of its input: the library's mark for that differs from build to build.
        if source == target.cast_const() {
            let bytes = len * dtype.bytes();
            let mut staging = Staging::new(bytes);
            // SAFETY: the buffer has `bytes` bytes, and so has the staging.
            unsafe { copy(source, staging.at_mut(0), bytes) };
            source = staging.at(0);
            self.staging.push(staging);
        }
        // SAFETY: both have that length; the staging lives as long as the run.
        unsafe { self.reduce_chunks((monoid, dtype), (source, target), len, kit, place) }
    }

    /// Small buffers, copied together and reduced at once.
    unsafe fn all_reduce_packed(
        &mut self,
        monoid: Monoid,
        dtype: DType,
        buffers: &[(MpiBuffer, usize)],
        kit: &Kit,
        place: &Member,
    ) -> Result<(), String> {
        let len: usize = buffers.iter().map(|(_, len)| len).sum();
        let (mut from, mut to) = (Staging::new(len * dtype.bytes()), Staging::new(len * dtype.bytes()));
        let mut at = 0;
        for (buffer, len) in buffers {
            let bytes = len * dtype.bytes();
            // SAFETY: the buffer has `bytes` bytes, and the staging those of all of them.
            unsafe { copy(buffer.source, from.at_mut(at), bytes) };
            self.copies.push((to.at(at), buffer.target, bytes));
            at += bytes;
        }
        let ends = (from.at(0), to.at_mut(0));
        self.staging.extend([from, to]);
        // SAFETY: both have that length, and live as long as the run: a `Vec` that moves keeps its contents in place.
        unsafe { self.reduce_chunks((monoid, dtype), ends, len, kit, place) }
    }

    unsafe fn reduce_chunks(
        &mut self,
        (monoid, dtype): (Monoid, DType),
        (from, to): (*const u8, *mut u8),
        len: usize,
        kit: &Kit,
        place: &Member,
    ) -> Result<(), String> {
        let (of, fold) = kit.reduction(monoid, dtype)?;
        for (at, n) in kit.chunks(len) {
            let at = at * dtype.bytes();
            let part = (from.wrapping_add(at), to.wrapping_add(at), n);
            // SAFETY: the caller's promise.
            unsafe { self.requests.all_reduce(place.comm, part, of, fold)? };
        }
        Ok(())
    }

    /// Joins a piece of each member.
    unsafe fn gather_pieces(
        &mut self,
        MpiBuffer { dtype, source, target }: MpiBuffer,
        counts: &[usize],
        kit: &Kit,
        place: &Member,
    ) -> Result<(), String> {
        if counts.iter().all(|n| *n == 0) {
            return Ok(());
        }
        let (own, of) = (counts[place.position], kit.opaque(dtype)?);
        let first = self.counts.len();
        self.counts.extend([ints(counts)?, ints(&starts(counts))?]);
        let whole = (target, self.counts[first].as_slice(), self.counts[first + 1].as_slice());
        // SAFETY: the caller's promise; counts and starts live as long as the run: a `Vec` that moves keeps its contents in
        // place.
        unsafe { self.requests.all_gather(place.comm, (source, own), whole, of) }
    }

    /// Folds a piece for each member.
    unsafe fn reduce_pieces(
        &mut self,
        monoid: Monoid,
        MpiBuffer { dtype, source, target }: MpiBuffer,
        counts: &[usize],
        kit: &Kit,
        place: &Member,
    ) -> Result<(), String> {
        let reduction = kit.reduction(monoid, dtype)?;
        if counts.iter().sum::<usize>() <= kit.limit {
            self.counts.push(ints(counts)?);
            let counts = self.counts.last().map_or(&[][..], Vec::as_slice);
            // SAFETY: the caller's promise; the counts live as long as the run, as above.
            return unsafe { self.requests.reduce_scatter(place.comm, (source, target, counts), reduction) };
        }
        for (root, (start, count)) in starts(counts).into_iter().zip(counts).enumerate() {
            for (at, n) in kit.chunks(*count) {
                let from = source.wrapping_add((start + at) * dtype.bytes());
                // Elsewhere than on the root it is not used.
                let to =
                    if root == place.position { target.wrapping_add(at * dtype.bytes()) } else { target };
                // SAFETY: the caller's promise.
                unsafe { self.requests.reduce(place.comm, (from, to, n), reduction, root)? };
            }
        }
        Ok(())
    }

    /// Sends and receives. Messages between a pair arrive in the order in which they are sent, so the k-th range meets the k-th.
    unsafe fn exchange(
        &mut self,
        MpiBuffer { dtype, source, target }: MpiBuffer,
        sent: &Division<'_>,
        received: &Division<'_>,
        kit: &Kit,
        place: &Member,
    ) -> Result<(), String> {
        let (size, of, tag, here) = (dtype.bytes(), kit.opaque(dtype)?, place.tag(0), place.position);
        for peer in place.others() {
            for range in received.ranges(peer) {
                for (at, n) in kit.chunks(range.len()) {
                    let to = target.wrapping_add((range.start + at) * size);
                    // SAFETY: the caller's promise; received ranges do not overlap.
                    unsafe { self.requests.receive(place.comm, (to, n, of), peer, tag)? };
                }
            }
        }
        for peer in place.others() {
            for range in sent.ranges(peer) {
                for (at, n) in kit.chunks(range.len()) {
                    let from = source.wrapping_add((range.start + at) * size);
                    // SAFETY: the caller's promise.
                    unsafe { self.requests.send(place.comm, (from, n, of), peer, tag)? };
                }
            }
        }
        for (sent, received) in sent.ranges(here).zip(received.ranges(here)) {
            let (from, to) =
                (source.wrapping_add(sent.start * size), target.wrapping_add(received.start * size));
            // SAFETY: of equal length, and input and output do not overlap, since the latter is borrowed exclusively.
            unsafe { copy(from, to, sent.len() * size) };
        }
        Ok(())
    }
}
