//! What devices of different processes tell each other, where processes have several: their calls with the data, and
//! that they end.

use super::moves::Staging;
use super::wire::{Header, Reader, Writer};
use crate::{Buf, BufMut, Call, Slot, Tag};
use meshwright_plan::DType;
use std::sync::Arc;

/// A letter that has come.
pub(super) enum Letter {
    /// A device has come to a collective: its call, on memory of `data`, with results that nobody wants.
    Came { from: usize, members: Arc<[usize]>, tag: Tag, call: Call<'static>, data: Staging },
    /// A device comes to no further collective. With a reason, everything ends.
    Ended { from: usize, reason: Option<String> },
}

/// What a call reads: an address and a number of bytes for each buffer. Others read of it what is theirs.
fn inputs(call: &Call<'_>, position: usize) -> Vec<(*const u8, usize)> {
    let bytes = |len: usize, dtype: DType| len * dtype.bytes();
    match call {
        Call::AllReduce { bucket, .. } => {
            bucket.iter().map(|slot| (slot.source(), bytes(slot.len(), slot.dtype()))).collect()
        }
        Call::AllGather { input, .. }
        | Call::ReduceScatter { input, .. }
        | Call::AllToAll { input, .. }
        | Call::Permute { input, .. } => vec![(input.as_ptr(), bytes(input.len(), input.dtype()))],
        Call::Broadcast { root, buffer } if *root == position => {
            vec![(buffer.address().cast_const(), bytes(buffer.len(), buffer.dtype()))]
        }
        Call::Broadcast { .. } | Call::Barrier => vec![],
    }
}

/// The call of a device, and what it reads.
///
/// # Safety
/// The memory of the call is valid, and nobody writes to what it reads meanwhile.
#[expect(unsafe_code, reason = "reads the memory of a call")]
pub(super) unsafe fn came(from: usize, members: &[usize], tag: &Tag, call: &Call<'_>) -> Vec<u8> {
    let position = members.iter().position(|m| *m == from).unwrap_or(0);
    let mut w = Writer(Vec::new());
    w.byte(0);
    w.size(from);
    w.sizes(members);
    w.header(tag.clone(), call);
    for (start, bytes) in inputs(call, position) {
        // SAFETY: the caller's promise; where there are no bytes, the address is aligned and not null.
        w.0.extend_from_slice(unsafe { std::slice::from_raw_parts(start, bytes) });
    }
    w.0
}

/// The end of a device.
pub(super) fn ended(from: usize, reason: Option<&str>) -> Vec<u8> {
    let mut w = Writer(vec![1]);
    w.size(from);
    w.option(reason.as_ref(), |w, reason| w.text(reason));
    w.0
}

impl Letter {
    /// `None` for bytes that no process of the same build sends.
    pub(super) fn read(bytes: &[u8]) -> Option<Letter> {
        let mut r = Reader(bytes);
        match r.byte()? {
            0 => {
                let (from, members) = (r.size()?, Arc::<[usize]>::from(r.sizes()?));
                let position = members.iter().position(|m| *m == from)?;
                let Header { tag, call } = r.header()?;
                let lengths: Vec<usize> = inputs(&call, position).iter().map(|(_, n)| *n).collect();
                let mut data = Staging::new(lengths.iter().map(|n| n.next_multiple_of(8)).sum());
                let (mut at, mut rest) = (0, r.0);
                for n in lengths {
                    let (input, more) = rest.split_at_checked(n)?;
                    data.bytes_mut(at, n).copy_from_slice(input);
                    (at, rest) = (at + n.next_multiple_of(8), more);
                }
                let call = reading(call, position, &mut data)?;
                rest.is_empty().then_some(Letter::Came { from, members, tag, call, data })
            }
            1 => {
                let (from, reason) = (r.size()?, r.option(Reader::text)?);
                r.0.is_empty().then_some(Letter::Ended { from, reason })
            }
            _ => None,
        }
    }
}

/// A call of which only dtypes and counts are known, on memory that is here. What it would write stays away.
fn reading(call: Call<'static>, position: usize, data: &mut Staging) -> Option<Call<'static>> {
    let mut at = 0;
    let mut next = |len: usize, dtype: DType| {
        let (start, bytes) = (at, len * dtype.bytes());
        at += bytes.next_multiple_of(8);
        (start, bytes)
    };
    Some(match call {
        Call::AllReduce { monoid, bucket } => {
            let slot = |slot: Slot<'static>| {
                let (start, bytes) = next(slot.len(), slot.dtype());
                let input = Buf::from_bytes(data.bytes(start, bytes), slot.dtype()).ok()?.detach();
                Some(Slot::Apart(input, BufMut::absent(slot.len(), slot.dtype())))
            };
            Call::AllReduce { monoid, bucket: bucket.into_iter().map(slot).collect::<Option<_>>()? }
        }
        Call::AllGather { input, counts, output } => {
            Call::AllGather { input: whole(data, input)?, counts, output }
        }
        Call::ReduceScatter { monoid, input, counts, output } => {
            Call::ReduceScatter { monoid, input: whole(data, input)?, counts, output }
        }
        Call::AllToAll { input, send, output, receive } => {
            Call::AllToAll { input: whole(data, input)?, send, output, receive }
        }
        Call::Permute { input, send, output, receive } => {
            Call::Permute { input: whole(data, input)?, send, output, receive }
        }
        Call::Broadcast { root, buffer } if root == position => {
            let bytes = data.bytes_mut(0, buffer.len() * buffer.dtype().bytes());
            Call::Broadcast { root, buffer: BufMut::from_bytes(bytes, buffer.dtype()).ok()?.detach() }
        }
        same @ (Call::Broadcast { .. } | Call::Barrier) => same,
    })
}

fn whole(data: &Staging, input: Buf<'_>) -> Option<Buf<'static>> {
    let bytes = data.bytes(0, input.len() * input.dtype().bytes());
    Buf::from_bytes(bytes, input.dtype()).ok().map(Buf::detach)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_plan::Monoid;

    #[test]
    #[expect(unsafe_code, reason = "reads the memory of a call")]
    fn calls_come_with_what_they_read() {
        let (a, b) = ([1.0f32, 2.0, 3.0], [7i32]);
        let mut out = ([0f32; 3], [0i32; 1]);
        let bucket = vec![
            Slot::Apart(Buf::new(&a), BufMut::new(&mut out.0)),
            Slot::Apart(Buf::new(&b), BufMut::new(&mut out.1)),
        ];
        let call = Call::AllReduce { monoid: Monoid::Sum, bucket };
        let tag = Tag::new(3, "w", 9);
        // SAFETY: arrays of this function.
        let bytes = unsafe { came(2, &[5, 2], &tag, &call) };
        let Some(Letter::Came { from, members, tag: read, call, data: _data }) = Letter::read(&bytes) else {
            panic!("unread")
        };
        assert_eq!((from, &*members, read), (2, &[5, 2][..], tag));
        let Call::AllReduce { bucket, .. } = call else { panic!("{call:?}") };
        // SAFETY: the letter's memory, in `_data`.
        let read = unsafe {
            let first = std::slice::from_raw_parts(bucket[0].source().cast::<f32>(), 3);
            (first.to_vec(), *bucket[1].source().cast::<i32>())
        };
        assert_eq!(read, (a.to_vec(), 7));
        assert!(bucket.iter().all(|s| crate::buf::is_absent(s.target().cast_const())));
        for end in 0..bytes.len() {
            assert!(Letter::read(&bytes[..end]).is_none(), "{end}");
        }
        for reason in [None, Some("no space left")] {
            let Some(Letter::Ended { from: 4, reason: read }) = Letter::read(&ended(4, reason)) else {
                panic!("unread")
            };
            assert_eq!(read.as_deref(), reason);
        }
    }
}
