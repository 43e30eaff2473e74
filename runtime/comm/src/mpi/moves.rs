//! A collective that all members have come to (or may be taken to come to), as operations of the library.
//!
//! - Reductions are the library's own, except those whose result depends on the order of the members: maxima and minima
//!   of floats (which of several NaN, which zero), and all folds of floats where a fixed order is asked for. These fold
//!   here (`super::ordered`). The library folds `bf16`, pairs and truth values by functions of ours.
//! - All-to-all and permute are sends and receives. Their tags tell collectives apart, so several may be in flight.
//! - A call of the library counts elements by `i32`, so buffers are cut where they have more ([`Kit::limit`]); gathers and
//!   scatters, whose offsets are `i32` too, become sends, receives and folds piece by piece.

use super::ordered::{Ordered, Slice};
use super::sys::{Comm, Fold, Requests, Type, operands};
use crate::call::lengths;
use crate::fold::fold;
use crate::{Call, Part, Slot};
use ::mpi::ffi;
use meshwright_plan::{DType, Monoid};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Buckets' buffers of at most so many bytes are copied together, and reduced by one call of the library.
const PACKED: usize = 64 * 1024;

/// What all collectives of a process use.
pub(super) struct Kit {
    /// Most elements in one call of the library.
    pub(super) limit: usize,
    /// Whether floats are folded in group order.
    pub(super) deterministic: bool,
    sixteen: Type,
    folds: BTreeMap<(Monoid, DType), Fold>,
}

/// What of a group its collectives need.
pub(super) struct Place {
    pub(super) comm: Comm,
    pub(super) position: usize,
    pub(super) members: usize,
    /// Number of the collective on this group.
    pub(super) number: u64,
}

/// A collective under way.
pub(super) struct Run {
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
unsafe impl Send for Run {}

/// Memory for elements of any type.
pub(super) struct Staging(Vec<u64>);

impl Staging {
    pub(super) fn new(bytes: usize) -> Staging {
        Staging(vec![0; bytes.div_ceil(8)])
    }

    pub(super) fn at(&self, byte: usize) -> *const u8 {
        self.0.as_ptr().cast::<u8>().wrapping_add(byte)
    }

    pub(super) fn at_mut(&mut self, byte: usize) -> *mut u8 {
        self.0.as_mut_ptr().cast::<u8>().wrapping_add(byte)
    }

    pub(super) fn bytes(&self, at: usize, n: usize) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[at..at + n]
    }

    pub(super) fn bytes_mut(&mut self, at: usize, n: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[at..at + n]
    }
}

/// Copies between memory of ours and that of a call.
///
/// # Safety
/// Both are valid for so many bytes, and do not overlap.
#[expect(unsafe_code, reason = "copies to and from the memory of a call")]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

#[expect(unsafe_code, reason = "called by the library with its memory")]
unsafe extern "C" fn user_fold<const M: usize, const D: usize>(
    a: *mut c_void,
    b: *mut c_void,
    len: *mut c_int,
    _: *mut ffi::MPI_Datatype,
) {
    let (monoid, dtype) = USER_FOLDS[M * 2 + D];
    // SAFETY: the library passes two buffers of so many elements, of which the second takes the result; the fold is one
    // of `can_fold`.
    unsafe {
        let (a, b, n) = operands(a, b, len);
        fold(monoid, dtype, &[a, b.cast_const()], &[b], n);
    }
}

const USER_FOLDS: [(Monoid, DType); 8] = [
    (Monoid::Sum, DType::BF16),
    (Monoid::Prod, DType::BF16),
    (Monoid::ArgMax, DType::PairF32),
    (Monoid::ArgMin, DType::PairF32),
    (Monoid::ArgMax, DType::PairF64),
    (Monoid::ArgMin, DType::PairF64),
    (Monoid::And, DType::Bool),
    (Monoid::Or, DType::Bool),
];

impl Kit {
    pub(super) fn new(limit: usize, deterministic: bool) -> Result<Kit, String> {
        let functions = [
            user_fold::<0, 0>,
            user_fold::<0, 1>,
            user_fold::<1, 0>,
            user_fold::<1, 1>,
            user_fold::<2, 0>,
            user_fold::<2, 1>,
            user_fold::<3, 0>,
            user_fold::<3, 1>,
        ];
        let mut folds = BTreeMap::new();
        for (key, function) in USER_FOLDS.into_iter().zip(functions) {
            folds.insert(key, Fold::new(function)?);
        }
        Ok(Kit {
            limit: limit.clamp(1, c_int::MAX as usize),
            deterministic,
            sixteen: Type::bytes(16)?,
            folds,
        })
    }

    /// Elements as the library moves them.
    pub(super) fn opaque(&self, dtype: DType) -> Result<Type, String> {
        if dtype.bytes() == 16 { Ok(self.sixteen) } else { Type::bytes(dtype.bytes()) }
    }

    /// Elements and fold as the library reduces them.
    fn reduction(&self, monoid: Monoid, dtype: DType) -> Result<(Type, Fold), String> {
        if let Some(fold) = self.folds.get(&(monoid, dtype)) {
            return Ok((self.opaque(dtype)?, *fold));
        }
        let fold = match monoid {
            Monoid::Sum => Fold::sum(),
            Monoid::Prod => Fold::product(),
            Monoid::Max => Fold::max(),
            _ => Fold::min(),
        };
        Ok(match dtype {
            DType::F64 | DType::F32 => (Type::float(dtype.bytes()), fold),
            // Sums and products wrap, which C does for unsigned numbers only; the bits are the same.
            DType::I32 if matches!(monoid, Monoid::Sum | Monoid::Prod) => (Type::bytes(4)?, fold),
            DType::I32 => (Type::i32(), fold),
            _ => (self.opaque(dtype)?, fold),
        })
    }

    /// Whether results depend on the order of the members.
    fn is_ordered(&self, monoid: Monoid, dtype: DType) -> bool {
        dtype.is_float() && (self.deterministic || matches!(monoid, Monoid::Max | Monoid::Min))
    }

    /// Ranges of at most `limit`.
    pub(super) fn chunks(&self, len: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let limit = self.limit;
        (0..len).step_by(limit).map(move |at| (at, limit.min(len - at)))
    }
}

impl Place {
    /// Tag of the messages of one of four stages. Tags of collectives that are in flight together differ.
    pub(super) fn tag(&self, stage: i32) -> i32 {
        (self.number % 8000) as i32 * 4 + stage
    }

    /// Positions of the other members, beginning with the next one, so that not all send to the same.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (here, n) = (self.position, self.members);
        (1..n).map(move |i| (here + i) % n)
    }
}

/// Where each piece begins.
fn starts(counts: &[usize]) -> Vec<usize> {
    let running = counts.iter().scan(0, |end, n| {
        *end += n;
        Some(*end - n)
    });
    running.collect()
}

fn ints(counts: &[usize]) -> Result<Vec<c_int>, String> {
    counts.iter().map(|n| c_int::try_from(*n).map_err(|e| e.to_string())).collect()
}

#[expect(unsafe_code, reason = "hands the memory of a call to the library")]
impl Run {
    /// A run of nothing yet.
    pub(super) fn new() -> Run {
        Run {
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
        call: &Call<'static>,
        kit: &Kit,
        place: &Place,
        agreed: bool,
    ) -> Result<(), String> {
        let run = self;
        // SAFETY: the caller's promise; `Call::check` has compared counts and ranges with the buffers.
        unsafe {
            match call {
                Call::AllReduce { monoid, bucket } => run.all_reduce(*monoid, bucket, kit, place)?,
                Call::AllGather { input, counts, output } => {
                    let (from, to) = (input.as_ptr(), output.address());
                    run.all_gather(from, to, input.dtype(), counts, kit, place)?;
                }
                Call::ReduceScatter { monoid, input, counts, output } => {
                    let (from, to) = (input.as_ptr(), output.address());
                    run.reduce_scatter((*monoid, input.dtype()), (from, to), counts, kit, place)?;
                }
                Call::AllToAll { input, send, output, receive } => {
                    let range = |starts: Vec<usize>, counts: &[usize]| -> Vec<Part> {
                        let ranges = starts.into_iter().zip(counts).enumerate();
                        ranges.map(|(peer, (at, n))| Part { peer, range: at..at + n }).collect()
                    };
                    let (send, receive) = (range(starts(send), send), range(starts(receive), receive));
                    let (from, to) = (input.as_ptr(), output.address());
                    run.permute((from, &send), (to, &receive), input.dtype(), kit, place)?;
                }
                Call::Permute { input, send, output, receive } => {
                    let (from, to) = (input.as_ptr(), output.address());
                    run.permute((from, send), (to, receive), input.dtype(), kit, place)?;
                }
                Call::Broadcast { root, buffer } => {
                    let (dtype, of) = (buffer.dtype(), kit.opaque(buffer.dtype())?);
                    for (at, n) in kit.chunks(buffer.len()) {
                        let part = buffer.address().wrapping_add(at * dtype.bytes());
                        run.requests.broadcast(place.comm, (part, n, of), *root)?;
                    }
                }
                Call::Barrier if agreed => {}
                Call::Barrier => run.requests.barrier(place.comm)?,
            }
        }
        Ok(())
    }

    /// Goes on where the library has done its part. True at the end, after which no memory is touched.
    ///
    /// # Safety
    /// As [`Run::start`].
    pub(super) unsafe fn advance(&mut self, kit: &Kit, place: &Place) -> Result<bool, String> {
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
                // SAFETY: `from` is in `staging`, `to` in the call's memory, both of so many bytes.
                unsafe { copy(from, to, bytes) };
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// # Safety
    /// As [`Run::start`]; so are those below.
    unsafe fn all_reduce(
        &mut self,
        monoid: Monoid,
        bucket: &[Slot<'static>],
        kit: &Kit,
        place: &Place,
    ) -> Result<(), String> {
        let slots = || bucket.iter().filter(|slot| !slot.is_empty());
        let ordered = |slot: &&Slot<'_>| kit.is_ordered(monoid, slot.dtype());
        let slices: Vec<Slice> = slots()
            .filter(ordered)
            .map(|slot| Slice::of_slot(slot.source(), slot.target(), slot.dtype(), slot.len(), place.members))
            .collect();
        let mut packs: BTreeMap<DType, Vec<&Slot<'_>>> = BTreeMap::new();
        for slot in slots().filter(|slot| !ordered(slot)) {
            if slot.len() * slot.dtype().bytes() <= PACKED {
                packs.entry(slot.dtype()).or_default().push(slot);
                continue;
            }
            // A result that takes the place of its input: the library's mark for that differs from build to build.
            let mut from = slot.source();
            if from == slot.target().cast_const() {
                let bytes = slot.len() * slot.dtype().bytes();
                let mut staging = Staging::new(bytes);
                // SAFETY: the slot has so many bytes, and so has the staging.
                unsafe { copy(from, staging.at_mut(0), bytes) };
                from = staging.at(0);
                self.staging.push(staging);
            }
            // SAFETY: both have that length; the staging lives as long as the run.
            unsafe {
                self.reduce_chunks((monoid, slot.dtype()), (from, slot.target()), slot.len(), kit, place)?
            };
        }
        for (dtype, slots) in packs {
            let len: usize = slots.iter().map(|slot| slot.len()).sum();
            let (mut from, mut to) = (Staging::new(len * dtype.bytes()), Staging::new(len * dtype.bytes()));
            let mut at = 0;
            for slot in slots {
                let bytes = slot.len() * dtype.bytes();
                // SAFETY: the slot has so many bytes, and the staging those of all slots.
                unsafe { copy(slot.source(), from.at_mut(at), bytes) };
                self.copies.push((to.at(at), slot.target(), bytes));
                at += bytes;
            }
            let ends = (from.at(0), to.at_mut(0));
            self.staging.extend([from, to]);
            // SAFETY: both have that length, and live as long as the run: a `Vec` that moves keeps its contents in place.
            unsafe { self.reduce_chunks((monoid, dtype), ends, len, kit, place)? };
        }
        if !slices.is_empty() {
            let ordered = self.ordered.insert(Ordered::new(monoid, slices));
            // SAFETY: the caller's promise.
            unsafe { ordered.start(&mut self.requests, kit, place)? };
        }
        Ok(())
    }

    unsafe fn reduce_chunks(
        &mut self,
        (monoid, dtype): (Monoid, DType),
        (from, to): (*const u8, *mut u8),
        len: usize,
        kit: &Kit,
        place: &Place,
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

    unsafe fn all_gather(
        &mut self,
        from: *const u8,
        to: *mut u8,
        dtype: DType,
        counts: &[usize],
        kit: &Kit,
        place: &Place,
    ) -> Result<(), String> {
        let (here, starts, total) = (place.position, starts(counts), counts.iter().sum::<usize>());
        if total == 0 {
            return Ok(());
        }
        if total <= kit.limit {
            let (own, of) = (counts[here], kit.opaque(dtype)?);
            self.counts = vec![ints(counts)?, ints(&starts)?];
            let whole = (to, self.counts[0].as_slice(), self.counts[1].as_slice());
            // SAFETY: the caller's promise; counts and starts live as long as the run.
            unsafe { self.requests.all_gather(place.comm, (from, own), whole, of)? };
            return Ok(());
        }
        let parts = |peer: usize, range: Range<usize>| Part { peer, range };
        let send: Vec<Part> = (0..place.members).map(|peer| parts(peer, 0..counts[here])).collect();
        let receive: Vec<Part> =
            (0..place.members).map(|m| parts(m, starts[m]..starts[m] + counts[m])).collect();
        // SAFETY: the caller's promise.
        unsafe { self.permute((from, &send), (to, &receive), dtype, kit, place) }
    }

    unsafe fn reduce_scatter(
        &mut self,
        (monoid, dtype): (Monoid, DType),
        (from, to): (*const u8, *mut u8),
        counts: &[usize],
        kit: &Kit,
        place: &Place,
    ) -> Result<(), String> {
        let (starts, total) = (starts(counts), counts.iter().sum::<usize>());
        if total == 0 {
            return Ok(());
        }
        if kit.is_ordered(monoid, dtype) {
            let shares = starts.iter().zip(counts).map(|(at, n)| *at..at + n).collect();
            let slice = Slice::of_pieces(from, to, dtype, shares);
            let ordered = self.ordered.insert(Ordered::new(monoid, vec![slice]));
            // SAFETY: the caller's promise.
            return unsafe { ordered.start(&mut self.requests, kit, place) };
        }
        let reduction = kit.reduction(monoid, dtype)?;
        if total <= kit.limit {
            self.counts = vec![ints(counts)?];
            let pieces = (from, to, self.counts[0].as_slice());
            // SAFETY: the caller's promise; the counts live as long as the run.
            return unsafe { self.requests.reduce_scatter(place.comm, pieces, reduction) };
        }
        for (root, (start, count)) in starts.iter().zip(counts).enumerate() {
            for (at, n) in kit.chunks(*count) {
                let from = from.wrapping_add((start + at) * dtype.bytes());
                // Elsewhere than on the root it is not used.
                let to = if root == place.position { to.wrapping_add(at * dtype.bytes()) } else { to };
                // SAFETY: the caller's promise.
                unsafe { self.requests.reduce(place.comm, (from, to, n), reduction, root)? };
            }
        }
        Ok(())
    }

    /// Messages between a pair arrive in the order in which they are sent, so the k-th part meets the k-th.
    unsafe fn permute(
        &mut self,
        (from, send): (*const u8, &[Part]),
        (to, receive): (*mut u8, &[Part]),
        dtype: DType,
        kit: &Kit,
        place: &Place,
    ) -> Result<(), String> {
        let (size, of, tag, here) = (dtype.bytes(), kit.opaque(dtype)?, place.tag(0), place.position);
        let of_peer = |parts: &[Part], peer: usize| -> Vec<Range<usize>> {
            parts.iter().filter(|p| p.peer == peer).map(|p| p.range.clone()).collect()
        };
        debug_assert!(lengths(send, here).eq(lengths(receive, here)));
        for Part { peer, range } in receive.iter().filter(|p| p.peer != here) {
            for (at, n) in kit.chunks(range.len()) {
                let to = to.wrapping_add((range.start + at) * size);
                // SAFETY: the caller's promise; received ranges do not overlap.
                unsafe { self.requests.receive(place.comm, (to, n, of), *peer, tag)? };
            }
        }
        for peer in place.others() {
            for range in of_peer(send, peer) {
                for (at, n) in kit.chunks(range.len()) {
                    let from = from.wrapping_add((range.start + at) * size);
                    // SAFETY: the caller's promise.
                    unsafe { self.requests.send(place.comm, (from, n, of), peer, tag)? };
                }
            }
        }
        for (sent, received) in of_peer(send, here).into_iter().zip(of_peer(receive, here)) {
            let (from, to) = (from.wrapping_add(sent.start * size), to.wrapping_add(received.start * size));
            // SAFETY: of equal length, and input and output do not overlap, since the latter is borrowed exclusively.
            unsafe { copy(from, to, sent.len() * size) };
        }
        Ok(())
    }
}
