//! The calls that every device makes.

use crate::{
    Buf, BufMut, Call, CallName, CollectiveKind, CommError, Group, Part, Slot, Started, Tag, Transport, wire,
};
use meshwright_plan::Monoid;
use meshwright_sorted::SortedMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// All collectives, for every [`Transport`] (also `dyn`). Counts are elements. All of them end with [`CommError`] where
/// members do not come, do not agree, or end.
pub trait Collectives: Transport {
    /// Starts a collective on memory that `owner` owns, to be given back by [`Started::wait`]. `call` borrows the
    /// memory from the owner:
    ///
    /// ```
    /// # use meshwright_comm::{BufMut, Call, Collectives, Group, Slot, Tag, Timeouts, World};
    /// # use meshwright_plan::Monoid;
    /// # let mut transport = World::new(1, Timeouts::default()).remove(0);
    /// # let group = Group::world(1, 0)?;
    /// let tag = Tag::new(0, "gradient of `w`", 12);
    /// let started = transport.start(&group, &tag, vec![1f32, 2.0], |w| {
    ///     Call::all_reduce(Monoid::Sum, vec![Slot::InPlace(BufMut::new(w))])
    /// })?;
    /// // ... compute something else ...
    /// let sum: Vec<f32> = started.wait()?;
    /// # assert_eq!(sum, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn start<B: Send + 'static>(
        &mut self,
        group: &Group,
        tag: &Tag,
        owner: B,
        call: impl for<'x> FnOnce(&'x mut B) -> Call<'x>,
    ) -> Result<Started<B>, CommError> {
        self.try_start(group, tag, owner, |b| Ok::<_, CommError>(call(b)))
    }

    /// [`Collectives::start`] where making the call may fail; the memory is then released.
    fn try_start<B: Send + 'static, E: From<CommError>>(
        &mut self,
        group: &Group,
        tag: &Tag,
        owner: B,
        call: impl for<'x> FnOnce(&'x mut B) -> Result<Call<'x>, E>,
    ) -> Result<Started<B>, E> {
        let (mut started, owner) = Started::new(owner);
        #[expect(unsafe_code, reason = "the borrow outlives this function")]
        // SAFETY: the owner is on the heap behind a raw pointer, where it neither moves nor is used until the handle is
        // complete or dropped; if `started` is leaked, so is the owner. `call` works for any lifetime, so what it returns
        // borrows from the owner or from statics; and `B: 'static`, so the owner borrows from nothing shorter.
        let handle = unsafe { self.post(group, tag, call(&mut *owner.as_ptr())?) }?;
        started.set(handle);
        Ok(started)
    }

    /// Any collective on borrowed memory, from start to end.
    fn call(&mut self, group: &Group, tag: &Tag, call: Call<'_>) -> Result<(), CommError> {
        #[expect(unsafe_code, reason = "the handle does not outlive this function")]
        // SAFETY: the borrows in `call` outlive this function, and the handle ends within it, also by unwinding.
        unsafe { self.post(group, tag, call) }?.wait()
    }

    /// Folds each buffer over all members, in place. Buffers may be empty and of different dtypes.
    fn all_reduce<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        monoid: Monoid,
        bucket: impl IntoIterator<Item = BufMut<'a>>,
    ) -> Result<(), CommError> {
        let slots = bucket.into_iter().map(Slot::InPlace).collect();
        self.call(group, tag, Call::all_reduce(monoid, slots))
    }

    /// Joins the members' pieces in group order; `counts[i]` elements come from member `i`.
    fn all_gather_v<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        input: impl Into<Buf<'a>>,
        counts: impl Into<Arc<[usize]>>,
        output: impl Into<BufMut<'a>>,
    ) -> Result<(), CommError> {
        self.call(group, tag, Call::all_gather(input.into(), counts, output.into()))
    }

    /// Sends `send[i]` elements to member `i` and receives `receive[i]` from it; pieces lie in group order.
    fn all_to_all_v<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        (input, send): (impl Into<Buf<'a>>, impl Into<Arc<[usize]>>),
        (output, receive): (impl Into<BufMut<'a>>, impl Into<Arc<[usize]>>),
    ) -> Result<(), CommError> {
        self.call(group, tag, Call::all_to_all((input.into(), send), (output.into(), receive)))
    }

    /// Copies ranges between members; see [`Call::permute`].
    fn permute<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        (input, send): (impl Into<Buf<'a>>, impl Into<Arc<[Part]>>),
        (output, receive): (impl Into<BufMut<'a>>, impl Into<Arc<[Part]>>),
    ) -> Result<(), CommError> {
        self.call(group, tag, Call::permute((input.into(), send), (output.into(), receive)))
    }

    /// Copies the buffer of the member at position `root` to all members.
    fn broadcast<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        root: usize,
        buffer: impl Into<BufMut<'a>>,
    ) -> Result<(), CommError> {
        self.call(group, tag, Call::broadcast(root, buffer.into()))
    }

    /// Waits until all members have entered.
    fn barrier(&mut self, group: &Group, tag: &Tag) -> Result<(), CommError> {
        self.call(group, tag, Call::barrier())
    }

    /// A value of each member, in group order. Values may have encodings of different lengths.
    ///
    /// # Errors
    /// Also [`CommError::Malformed`] where the value of a member cannot be read.
    fn gather_values<V: Serialize + DeserializeOwned>(
        &mut self,
        group: &Group,
        tag: &Tag,
        mine: &V,
    ) -> Result<Vec<V>, CommError> {
        let all = self.gather_bytes(group, tag, &wire::encode(mine))?;
        let read = |(from, bytes): (&usize, Vec<u8>)| {
            wire::decode(&bytes).map_err(|problem| {
                let call = CallName::new(CollectiveKind::AllGather, tag);
                CommError::Malformed { rank: group.rank(), from: *from, call, problem }
            })
        };
        group.ranks().iter().zip(all).map(read).collect()
    }

    /// Bytes of each member, in group order; lengths, which may differ, are exchanged first.
    fn gather_bytes(&mut self, group: &Group, tag: &Tag, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let mut lengths = vec![0u64; group.size()];
        let (length, counts) = ([mine.len() as u64], vec![size_of::<u64>(); group.size()]);
        let (from, to) = (bytemuck::cast_slice(&length), bytemuck::cast_slice_mut::<u64, u8>(&mut lengths));
        self.all_gather_v(group, tag, Buf::new::<u8>(from), counts, BufMut::new(to))?;
        let counts: Vec<usize> = lengths.iter().map(|n| *n as usize).collect();
        let mut all = vec![0u8; counts.iter().sum()];
        self.all_gather_v(group, tag, Buf::new(mine), counts.as_slice(), BufMut::new(&mut all))?;
        let mut rest = all.as_slice();
        Ok(counts.iter().filter_map(|n| rest.split_off(..*n)).map(<[u8]>::to_vec).collect())
    }

    /// Compares bytes (a Plan's hash) over the group: [`CommError::Disagree`], the same on all members, names the ranks
    /// that differ.
    fn agree(&mut self, group: &Group, tag: &Tag, bytes: &[u8]) -> Result<(), CommError> {
        let all = self.gather_bytes(group, tag, bytes)?;
        let mut holders: SortedMap<&[u8], Vec<usize>> = SortedMap::new();
        for (rank, bytes) in group.ranks().iter().zip(&all) {
            holders.entry(bytes).or_default().push(*rank);
        }
        if holders.len() <= 1 {
            return Ok(());
        }
        holders.values_mut().for_each(|ranks| ranks.sort_unstable());
        // Where no contents prevail, those of the lowest rank count as right.
        let usual = holders.values().max_by_key(|ranks| (ranks.len(), std::cmp::Reverse(ranks[0])));
        let usual = usual.cloned().unwrap_or_default();
        let mut ranks: Vec<usize> = group.ranks().iter().copied().filter(|r| !usual.contains(r)).collect();
        ranks.sort_unstable();
        Err(CommError::Disagree { what: tag.what.to_string(), ranks, like: usual[0] })
    }
}

impl<T: Transport + ?Sized> Collectives for T {}
