//! Folds from left to right in group order, with the same bits as those of devices that are threads.
//!
//! Every member gets its share of all members' elements, folds it by [`meshwright_comm::fold`], and (in an all-reduce) sends it
//! to all: each byte is sent twice, as by the library's own ring. A bucket with few bytes goes whole to everybody, who fold it
//! themselves: half of the messages one after the other. All of it are sends and receives, so that collectives that are in flight
//! together may come to their second stage in different orders on different members.

use crate::collective_state::{Kit, Member, Staging, copy};
use crate::sys::{Requests, Type};
use meshwright_comm::fold::fold;
use meshwright_plan::{DType, Monoid};
use std::ops::Range;

/// Most bytes of a bucket that is sent whole to all members.
const WHOLE: usize = 8 * 1024;

/// Elements that are folded.
pub(super) struct FoldSlice {
    dtype: DType,
    source: *const u8,
    /// Elements that each member folds.
    shares: Vec<Range<usize>>,
    /// Target of all results, or only of this member's share.
    target: *mut u8,
    all: bool,
}

/// A fold under way.
pub(super) struct Ordered {
    monoid: Monoid,
    slices: Vec<FoldSlice>,
    stage: Stage,
    /// Memory to send.
    mine: Vec<Staging>,
    /// Memory received from each member; none from itself.
    theirs: Vec<Staging>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Everything from everybody.
    Whole,
    /// This member's share from everybody.
    Share,
    /// Each member's folded share from that member.
    Results,
    Done,
}

impl FoldSlice {
    /// A buffer of an all-reduce.
    pub(super) fn of_slot(
        source: *const u8,
        target: *mut u8,
        dtype: DType,
        len: usize,
        members: usize,
    ) -> FoldSlice {
        let (each, more) = (len / members, len % members);
        let start = |m: usize| m * each + m.min(more);
        let shares = (0..members).map(|m| start(m)..start(m + 1)).collect();
        FoldSlice { dtype, source, shares, target, all: true }
    }

    /// The buffer of a reduce-scatter.
    pub(super) fn of_pieces(
        source: *const u8,
        target: *mut u8,
        dtype: DType,
        shares: Vec<Range<usize>>,
    ) -> FoldSlice {
        FoldSlice { dtype, source, shares, target, all: false }
    }

    fn len(&self) -> usize {
        self.shares.last().map_or(0, |share| share.end)
    }

    /// The part of it that belongs to a member; all of it for `None`.
    fn share(&self, member: Option<usize>) -> Range<usize> {
        member.map_or(0..self.len(), |m| self.shares[m].clone())
    }
}

/// Offsets of each slice's share in a message, and the length of the message. Elements are aligned.
fn layout(slices: &[FoldSlice], member: Option<usize>) -> (Vec<usize>, usize) {
    let mut end = 0;
    let offsets = slices.iter().map(|slice| {
        let start = end;
        end += (slice.share(member).len() * slice.dtype.bytes()).next_multiple_of(8);
        start
    });
    (offsets.collect(), end)
}

#[expect(unsafe_code, reason = "hands the memory of a call to the library, and folds it")]
impl Ordered {
    pub(super) fn new(monoid: Monoid, slices: Vec<FoldSlice>) -> Ordered {
        let bytes: usize = slices.iter().map(|slice| slice.len() * slice.dtype.bytes()).sum();
        let whole = bytes <= WHOLE && slices.iter().all(|slice| slice.all);
        let stage = if whole { Stage::Whole } else { Stage::Share };
        Ordered { monoid, slices, stage, mine: Vec::new(), theirs: Vec::new() }
    }

    /// Posts what comes first. Where it fails, this must be kept all the same.
    ///
    /// # Safety
    /// The memory of the slices stays valid and the caller's until this has ended, or the library is not called any more.
    pub(super) unsafe fn start(
        &mut self,
        requests: &mut Requests,
        kit: &Kit,
        place: &Member,
    ) -> Result<(), String> {
        let whole = self.stage == Stage::Whole;
        self.receive(requests, kit, place, |_| (!whole).then_some(place.position))?;
        if whole {
            // SAFETY: the caller's promise.
            let message = unsafe { self.pack(None, |slice| slice.source) };
            return self.send(message, place.others(), requests, kit, place);
        }
        for peer in place.others() {
            // SAFETY: the caller's promise.
            let message = unsafe { self.pack(Some(peer), |slice| slice.source) };
            self.send(message, [peer], requests, kit, place)?;
        }
        Ok(())
    }

    /// Goes on when all requests have ended. Whether there is more to wait for.
    ///
    /// # Safety
    /// As [`Ordered::start`].
    pub(super) unsafe fn advance(
        &mut self,
        requests: &mut Requests,
        kit: &Kit,
        place: &Member,
    ) -> Result<bool, String> {
        match self.stage {
            Stage::Whole => {
                // SAFETY: the caller's promise; all has been received.
                unsafe { self.fold(None, place) };
                self.stage = Stage::Done;
            }
            Stage::Share => {
                // SAFETY: the caller's promise; all has been received.
                unsafe { self.fold(Some(place.position), place) };
                if !self.slices.iter().all(|slice| slice.all) {
                    self.stage = Stage::Done;
                    return Ok(false);
                }
                self.stage = Stage::Results;
                self.mine.clear();
                self.receive(requests, kit, place, Some)?;
                // SAFETY: the caller's promise.
                let message = unsafe { self.pack(Some(place.position), |slice| slice.target.cast_const()) };
                self.send(message, place.others(), requests, kit, place)?;
                return Ok(true);
            }
            Stage::Results => {
                for peer in place.others() {
                    // SAFETY: the caller's promise; all has been received.
                    unsafe { self.unpack(peer) };
                }
                self.stage = Stage::Done;
            }
            Stage::Done => {}
        }
        Ok(false)
    }

    /// Posts the receives of a stage: a member sends the share of `whose(member)`.
    fn receive(
        &mut self,
        requests: &mut Requests,
        kit: &Kit,
        place: &Member,
        whose: impl Fn(usize) -> Option<usize>,
    ) -> Result<(), String> {
        self.theirs.clear();
        for peer in 0..place.members {
            let bytes = if peer == place.position { 0 } else { layout(&self.slices, whose(peer)).1 };
            self.theirs.push(Staging::new(bytes));
        }
        for peer in place.others() {
            let (bytes, tag) = (layout(&self.slices, whose(peer)).1, self.tag(place));
            for (at, n) in kit.chunks(bytes) {
                let to = (self.theirs[peer].at_mut(at), n, Type::bytes(1)?);
                // SAFETY: the staging has `bytes` bytes, and lives as long as this.
                unsafe { requests.receive(place.comm, to, peer, tag)? };
            }
        }
        Ok(())
    }

    fn send(
        &mut self,
        (message, bytes): (Staging, usize),
        peers: impl IntoIterator<Item = usize>,
        requests: &mut Requests,
        kit: &Kit,
        place: &Member,
    ) -> Result<(), String> {
        let start = message.at(0);
        self.mine.push(message);
        for peer in peers {
            for (at, n) in kit.chunks(bytes) {
                let from = (start.wrapping_add(at), n, Type::bytes(1)?);
                // SAFETY: the staging has `bytes` bytes, and lives in `mine`: a `Vec` that moves keeps its contents in
                // place.
                unsafe { requests.send(place.comm, from, peer, self.tag(place))? };
            }
        }
        Ok(())
    }

    fn tag(&self, place: &Member) -> i32 {
        place.tag(if self.stage == Stage::Results { 2 } else { 1 })
    }

    /// The share of a member, from where `from` says each slice begins.
    ///
    /// # Safety
    /// As [`Ordered::start`].
    unsafe fn pack(&self, member: Option<usize>, from: impl Fn(&FoldSlice) -> *const u8) -> (Staging, usize) {
        let (offsets, bytes) = layout(&self.slices, member);
        let mut message = Staging::new(bytes);
        for (slice, offset) in self.slices.iter().zip(offsets) {
            let (share, size) = (slice.share(member), slice.dtype.bytes());
            let from = from(slice).wrapping_add(share.start * size);
            // SAFETY: the share is within the slice, and the message has room for it.
            unsafe { copy(from, message.at_mut(offset), share.len() * size) };
        }
        (message, bytes)
    }

    /// Folds a share of all members' elements to where it belongs.
    ///
    /// # Safety
    /// As [`Ordered::start`]; the others' elements are in `theirs`.
    unsafe fn fold(&mut self, member: Option<usize>, place: &Member) {
        let (offsets, _) = layout(&self.slices, member);
        for (slice, offset) in self.slices.iter().zip(offsets) {
            let (share, size) = (slice.share(member), slice.dtype.bytes());
            let own = slice.source.wrapping_add(share.start * size);
            let from = self.theirs.iter().enumerate();
            let sources: Vec<*const u8> =
                from.map(|(m, s)| if m == place.position { own } else { s.at(offset) }).collect();
            let target = slice.target.wrapping_add(if slice.all { share.start * size } else { 0 });
            // SAFETY: `Call::check` has allowed this fold of this dtype; the share is within the slice, offsets in
            // messages are aligned, and source and target of a slice are equal or do not overlap.
            unsafe { fold(self.monoid, slice.dtype, &sources, &[target], share.len()) };
        }
    }

    /// Puts a member's folded share where it belongs.
    ///
    /// # Safety
    /// As [`Ordered::start`]; the share is in `theirs`.
    unsafe fn unpack(&self, member: usize) {
        let (offsets, _) = layout(&self.slices, Some(member));
        for (slice, offset) in self.slices.iter().zip(offsets) {
            let (share, size) = (slice.share(Some(member)), slice.dtype.bytes());
            let to = slice.target.wrapping_add(share.start * size);
            // SAFETY: the share is within the slice and the message.
            unsafe { copy(self.theirs[member].at(offset), to, share.len() * size) };
        }
    }
}
