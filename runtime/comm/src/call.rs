//! A collective with its memory, as one member calls it.

use crate::signature::{Extent, Invalid, Layout, Part, Signature};
use crate::{Buf, BufMut, CallName, CollectiveKind, CommError, Group, MemorySpace, Tag};
use meshwright_plan::{DType, Monoid};
use std::sync::Arc;

/// One buffer of a call.
#[derive(Debug)]
pub enum Slot<'a> {
    /// The result takes the place of the input.
    InPlace(BufMut<'a>),
    /// Input and result apart, of equal dtype.
    Apart(Buf<'a>, BufMut<'a>),
}

/// A collective as one member calls it. [`Call::new`] makes it, or [`Call::all_gather`] and its like. Counts are elements, one
/// for each member in group order, and may be 0.
#[derive(Debug)]
pub struct Call<'a> {
    /// Which collective.
    pub kind: CollectiveKind,
    /// The fold of all members' inputs; none for a copy.
    pub monoid: Option<Monoid>,
    /// The only member that sends, by position in the group; none where all do.
    pub root: Option<usize>,
    /// The part of every input for each receiver.
    pub send: Layout,
    /// The part of every output from each sender.
    pub receive: Layout,
    /// The buffers, which may be of different dtypes.
    pub slots: Vec<Slot<'a>>,
}

impl<'a> Slot<'a> {
    /// The result.
    pub fn output(&mut self) -> &mut BufMut<'a> {
        match self {
            Slot::InPlace(b) | Slot::Apart(_, b) => b,
        }
    }

    /// Number of elements of the result.
    pub fn len(&self) -> usize {
        self.result().len()
    }

    /// Whether the result has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.result().dtype()
    }

    fn result(&self) -> &BufMut<'a> {
        match self {
            Slot::InPlace(b) | Slot::Apart(_, b) => b,
        }
    }

    fn places(&self) -> [MemorySpace; 2] {
        match self {
            Slot::InPlace(b) => [b.place(), b.place()],
            Slot::Apart(a, b) => [a.place(), b.place()],
        }
    }

    fn extent(&self) -> Extent {
        let (dtype, output) = (self.dtype(), self.len());
        match self {
            Slot::InPlace(_) => Extent { dtype, input: output, output },
            Slot::Apart(a, _) => Extent { dtype, input: a.len(), output },
        }
    }

    fn addresses(&self) -> Addresses {
        let target = self.result().address();
        let source = match self {
            Slot::InPlace(_) => target.cast_const(),
            Slot::Apart(a, _) => a.as_ptr(),
        };
        Addresses { source, target: Some(target) }
    }
}

impl<'a> Call<'a> {
    /// A collective that copies; with [`Call::folded`] one that folds.
    pub fn new(kind: CollectiveKind, [send, receive]: [Layout; 2], slots: Vec<Slot<'a>>) -> Call<'a> {
        Call { kind, monoid: None, root: None, send, receive, slots }
    }

    /// The same, with what all members send to one folded.
    #[must_use]
    pub fn folded(self, monoid: Monoid) -> Call<'a> {
        Call { monoid: Some(monoid), ..self }
    }

    /// Folds each slot over all members. Slots may be empty and of different dtypes.
    pub fn all_reduce(monoid: Monoid, slots: Vec<Slot<'a>>) -> Call<'a> {
        Call::new(CollectiveKind::AllReduce, [Layout::Whole, Layout::Whole], slots).folded(monoid)
    }

    /// Joins the members' pieces in group order: `input` is this member's piece, `counts` has the elements of each.
    pub fn all_gather(input: Buf<'a>, counts: impl Into<Arc<[usize]>>, output: BufMut<'a>) -> Call<'a> {
        let layouts = [Layout::Whole, Layout::Pieces(counts.into())];
        Call::new(CollectiveKind::AllGather, layouts, vec![Slot::Apart(input, output)])
    }

    /// Sends a piece to each member; pieces lie in group order on both sides.
    pub fn all_to_all(
        (input, send): (Buf<'a>, impl Into<Arc<[usize]>>),
        (output, receive): (BufMut<'a>, impl Into<Arc<[usize]>>),
    ) -> Call<'a> {
        let layouts = [Layout::Pieces(send.into()), Layout::Pieces(receive.into())];
        Call::new(CollectiveKind::AllToAll, layouts, vec![Slot::Apart(input, output)])
    }

    /// Copies ranges between members. The k-th range sent to a member meets the k-th that it receives from the sender.
    /// Sent ranges may overlap, received ones must not; elements in no range keep their values.
    pub fn permute(
        (input, send): (Buf<'a>, impl Into<Arc<[Part]>>),
        (output, receive): (BufMut<'a>, impl Into<Arc<[Part]>>),
    ) -> Call<'a> {
        let layouts = [Layout::Parts(send.into()), Layout::Parts(receive.into())];
        Call::new(CollectiveKind::Permute, layouts, vec![Slot::Apart(input, output)])
    }

    /// Copies the buffer of the member at position `root` to all.
    pub fn broadcast(root: usize, buffer: BufMut<'a>) -> Call<'a> {
        let slots = vec![Slot::InPlace(buffer)];
        let call = Call::new(CollectiveKind::Broadcast, [Layout::Whole, Layout::Whole], slots);
        Call { root: Some(root), ..call }
    }

    /// Waits for all.
    pub fn barrier() -> Call<'a> {
        Call::new(CollectiveKind::Barrier, [Layout::Whole, Layout::Whole], vec![])
    }

    /// Its name in errors.
    pub fn name(&self, tag: &Tag) -> CallName {
        CallName::new(self.kind, tag)
    }

    /// The memory of the call; none if it has no memory.
    ///
    /// # Errors
    /// [`CommError::InvalidCall`] where it is in two places.
    pub fn place(&self, group: &Group, tag: &Tag) -> Result<Option<MemorySpace>, CommError> {
        let mut places = self.slots.iter().flat_map(Slot::places);
        let Some(first) = places.next() else { return Ok(None) };
        match places.find(|p| *p != first) {
            None => Ok(Some(first)),
            Some(other) => {
                Err(invalid(group, self.name(tag), format!("part of the memory is {first}, part {other}")))
            }
        }
    }

    /// The first result with an element, on the host.
    pub(crate) fn first_result(&self) -> Option<BufMut<'static>> {
        let result = self.slots.iter().map(Slot::result).find(|b| !b.is_empty());
        result.filter(|b| b.place() == MemorySpace::Host).map(BufMut::alias)
    }

    /// The call for a transport of the host that keeps it until the collective ends: checked against the group, in
    /// which `rank` of a world of `size` must be the caller, and without the lifetime of its memory.
    ///
    /// # Errors
    /// [`CommError::InvalidCall`] and [`CommError::NoFold`] where the call makes no sense by itself.
    pub fn checked(
        self,
        group: &Group,
        tag: &Tag,
        (rank, size): (usize, usize),
    ) -> Result<PostedCall, CommError> {
        match self.place(group, tag)? {
            None | Some(MemorySpace::Host) => self.checked_anywhere(group, tag, (rank, size)),
            Some(place) => {
                let problem = format!("{place}, which this transport cannot reach");
                Err(CommError::InvalidCall { rank, call: self.name(tag), problem })
            }
        }
    }

    /// As [`Call::checked`], wherever the memory is.
    pub(crate) fn checked_anywhere(
        self,
        group: &Group,
        tag: &Tag,
        (rank, size): (usize, usize),
    ) -> Result<PostedCall, CommError> {
        let name = || self.name(tag);
        if let Some(problem) = group.problem(rank, size) {
            return Err(CommError::InvalidCall { rank, call: name(), problem });
        }
        for slot in &self.slots {
            if let Slot::Apart(from, to) = slot
                && from.dtype() != to.dtype()
            {
                let problem = format!("the input is {} and the output is {}", from.dtype(), to.dtype());
                return Err(invalid(group, name(), problem));
            }
        }
        let memory = self.slots.iter().map(Slot::addresses).collect();
        let buffers = self.slots.iter().map(Slot::extent).collect();
        let Call { kind, monoid, root, send, receive, .. } = self;
        let signature = Signature { kind, monoid, root, send, receive, buffers };
        check(&signature, group, tag)?;
        Ok(PostedCall { signature, memory })
    }
}

fn invalid(group: &Group, call: CallName, problem: String) -> CommError {
    CommError::InvalidCall { rank: group.rank(), call, problem }
}

/// Whether a call of this member makes sense by itself.
///
/// # Errors
/// [`CommError::InvalidCall`] and [`CommError::NoFold`] where it does not.
pub fn check(signature: &Signature, group: &Group, tag: &Tag) -> Result<(), CommError> {
    signature.check(group.position(), group.size()).map_err(|e| match e {
        Invalid::NoFold(monoid, dtype) => CommError::NoFold { call: signature.name(tag), monoid, dtype },
        Invalid::Arguments(problem) => invalid(group, signature.name(tag), problem),
    })
}

/// Address of a buffer of a posted call.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The input. Of a member that sends nothing it is not used.
    pub source: *const u8,
    /// The output; none where nobody here wants it, since the member is another process's.
    pub target: Option<*mut u8>,
}

/// A checked call without the lifetime of its memory, as transports keep it until the collective ends: the caller of
/// [`crate::Transport::post`] has promised that the memory lives that long.
#[derive(Debug)]
pub struct PostedCall {
    /// The call without its memory.
    pub signature: Signature,
    /// For each buffer of the signature.
    pub memory: Vec<Addresses>,
}

#[expect(unsafe_code, reason = "addresses of the memory of a call")]
// SAFETY: the memory is the collective's own, from any thread, by the promise of `Transport::post`.
unsafe impl Send for PostedCall {}
#[expect(unsafe_code, reason = "addresses of the memory of a call")]
// SAFETY: as above; a shared `PostedCall` gives addresses and sizes only.
unsafe impl Sync for PostedCall {}

impl PostedCall {
    /// Each buffer with its sizes.
    pub fn buffers(&self) -> impl Iterator<Item = (&Extent, Addresses)> {
        self.signature.buffers.iter().zip(self.memory.iter().copied())
    }
}
