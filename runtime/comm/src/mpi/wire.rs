//! What ranks tell each other beside the data, as bytes.

use crate::buf::{Buf, BufMut};
use crate::{Call, CallName, Kind, Part, Slot, Tag};
use meshwright_plan::{DType, Monoid};
use std::sync::Arc;

const DTYPES: [DType; 8] =
    [DType::F64, DType::F32, DType::BF16, DType::I32, DType::U8, DType::Bool, DType::PairF32, DType::PairF64];

/// The collective of a group, by the number of those before it on that group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) members: Arc<[usize]>,
    pub(super) number: u64,
}

/// A call of another rank: its memory is not here, so only its counts and dtypes may be read.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) tag: Tag,
    pub(super) call: Call<'static>,
}

/// What the first member of a group found when all had come, or before that.
#[derive(Debug)]
pub(super) enum Verdict {
    /// All have come, and their calls belong together.
    Go,
    /// The calls at these positions do not.
    Conflict(Box<[(usize, Header); 2]>),
    /// The member at this position has given the collective up.
    Withdrawn(usize),
}

/// How many collectives a rank has posted on each of its groups.
pub(super) type Posted = Vec<(Arc<[usize]>, u64)>;

/// Where a rank is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// The last collective that it started.
    pub(super) last: Option<CallName>,
    /// The collective that it waits for.
    pub(super) waits: Option<Key>,
    pub(super) posted: Posted,
    /// Its groups without a communicator, in the order in which they will have one.
    pub(super) unmade: Vec<Arc<[usize]>>,
}

#[derive(Debug)]
pub(super) enum Message {
    /// To the first member of a group: a member has come to a collective.
    Header(Key, Header),
    /// From the first member of a group.
    Verdict(Key, Verdict),
    /// To the first member of a group: a member wants to give up.
    Withdraw(Key),
    /// To the first member of a group: the sender's next communicator is that of this group.
    Ready(Arc<[usize]>),
    /// From the first member of a group: all make its communicator now.
    Make(Arc<[usize]>),
    /// Where are you?
    Ask,
    Answer(Status),
    /// Everything ends: who says so, and why.
    Abort(usize, String),
    /// The sender comes to no further collective.
    Left(Posted),
    /// Part of a letter between devices of processes that have several (see [`super::letter`]), and whether more of it
    /// follows.
    Letter(bool, Vec<u8>),
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer(Vec::new());
        match self {
            Message::Header(key, header) => {
                w.byte(0);
                w.key(key);
                w.header(header.tag.clone(), &header.call);
            }
            Message::Verdict(key, verdict) => {
                w.byte(1);
                w.key(key);
                w.verdict(verdict);
            }
            Message::Withdraw(key) => {
                w.byte(2);
                w.key(key);
            }
            Message::Ask => w.byte(3),
            Message::Answer(status) => {
                w.byte(4);
                w.option(status.last.as_ref(), Writer::name);
                w.option(status.waits.as_ref(), Writer::key);
                w.posted(&status.posted);
                w.size(status.unmade.len());
                status.unmade.iter().for_each(|members| w.sizes(members));
            }
            Message::Abort(rank, reason) => {
                w.byte(5);
                w.size(*rank);
                w.text(reason);
            }
            Message::Left(posted) => {
                w.byte(6);
                w.posted(posted);
            }
            Message::Letter(more, part) => return Message::letter(*more, part),
            Message::Ready(members) => {
                w.byte(8);
                w.sizes(members);
            }
            Message::Make(members) => {
                w.byte(9);
                w.sizes(members);
            }
        }
        w.0
    }

    /// Part of a letter.
    pub(super) fn letter(more: bool, part: &[u8]) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(part.len() + 10));
        w.byte(7);
        w.byte(more.into());
        w.bytes(part);
        w.0
    }

    /// The header of a call that this rank makes.
    pub(super) fn header(key: &Key, tag: &Tag, call: &Call<'_>) -> Vec<u8> {
        let mut w = Writer(Vec::new());
        w.byte(0);
        w.key(key);
        w.header(tag.clone(), call);
        w.0
    }

    /// `None` for bytes that no rank of the same build sends.
    pub(super) fn decode(bytes: &[u8]) -> Option<Message> {
        let mut r = Reader(bytes);
        let message = match r.byte()? {
            0 => Message::Header(r.key()?, r.header()?),
            1 => Message::Verdict(r.key()?, r.verdict()?),
            2 => Message::Withdraw(r.key()?),
            3 => Message::Ask,
            4 => {
                let (last, waits) = (r.option(Reader::name)?, r.option(Reader::key)?);
                let posted = r.posted()?;
                let unmade = r.many(Reader::members)?;
                Message::Answer(Status { last, waits, posted, unmade })
            }
            5 => Message::Abort(r.size()?, r.text()?),
            6 => Message::Left(r.posted()?),
            7 => Message::Letter(r.byte()? != 0, r.bytes()?.to_vec()),
            8 => Message::Ready(r.members()?),
            9 => Message::Make(r.members()?),
            _ => return None,
        };
        r.0.is_empty().then_some(message)
    }
}

pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn byte(&mut self, n: u8) {
        self.0.push(n);
    }

    fn number(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    pub(super) fn size(&mut self, n: usize) {
        self.number(n as u64);
    }

    pub(super) fn sizes(&mut self, all: &[usize]) {
        self.size(all.len());
        all.iter().for_each(|n| self.size(*n));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.size(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(super) fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.byte(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn dtype(&mut self, dtype: DType) {
        let index = DTYPES.iter().position(|d| *d == dtype);
        self.byte(index.map_or(u8::MAX, |i| i as u8));
    }

    fn monoid(&mut self, monoid: Monoid) {
        let index = Monoid::ALL.iter().position(|m| *m == monoid);
        self.byte(index.map_or(u8::MAX, |i| i as u8));
    }

    fn kind(&mut self, kind: Kind) {
        let index = Kind::ALL.iter().position(|k| *k == kind);
        self.byte(index.map_or(u8::MAX, |i| i as u8));
    }

    fn tag(&mut self, tag: &Tag) {
        self.number(tag.sequence);
        self.text(&tag.what);
        self.number(tag.line.into());
    }

    fn name(&mut self, name: &CallName) {
        self.kind(name.kind);
        self.tag(&name.tag);
    }

    fn key(&mut self, key: &Key) {
        self.sizes(&key.members);
        self.number(key.number);
    }

    fn posted(&mut self, posted: &Posted) {
        self.size(posted.len());
        for (members, number) in posted {
            self.sizes(members);
            self.number(*number);
        }
    }

    fn parts(&mut self, parts: &[Part]) {
        self.size(parts.len());
        for Part { peer, range } in parts {
            self.sizes(&[*peer, range.start, range.end]);
        }
    }

    fn buffers(&mut self, dtype: DType, lens: &[usize]) {
        self.dtype(dtype);
        self.sizes(lens);
    }

    pub(super) fn header(&mut self, tag: Tag, call: &Call<'_>) {
        self.tag(&tag);
        self.kind(call.kind());
        match call {
            Call::AllReduce { monoid, bucket } => {
                self.monoid(*monoid);
                self.size(bucket.len());
                bucket.iter().for_each(|slot| self.buffers(slot.dtype(), &[slot.len()]));
            }
            Call::AllGather { input, counts, output } => {
                self.buffers(input.dtype(), &[input.len(), output.len()]);
                self.sizes(counts);
            }
            Call::ReduceScatter { monoid, input, counts, output } => {
                self.monoid(*monoid);
                self.buffers(input.dtype(), &[input.len(), output.len()]);
                self.sizes(counts);
            }
            Call::AllToAll { input, send, output, receive } => {
                self.buffers(input.dtype(), &[input.len(), output.len()]);
                self.sizes(send);
                self.sizes(receive);
            }
            Call::Permute { input, send, output, receive } => {
                self.buffers(input.dtype(), &[input.len(), output.len()]);
                self.parts(send);
                self.parts(receive);
            }
            Call::Broadcast { root, buffer } => {
                self.buffers(buffer.dtype(), &[buffer.len()]);
                self.size(*root);
            }
            Call::Barrier => {}
        }
    }

    fn verdict(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Go => self.byte(0),
            Verdict::Conflict(sides) => {
                self.byte(1);
                for (position, header) in sides.iter() {
                    self.size(*position);
                    self.header(header.tag.clone(), &header.call);
                }
            }
            Verdict::Withdrawn(position) => {
                self.byte(2);
                self.size(*position);
            }
        }
    }
}

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    pub(super) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    /// A number of things of which each takes at least a byte.
    fn count(&mut self) -> Option<usize> {
        self.size().filter(|n| *n <= self.0.len())
    }

    fn many<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let n = self.count()?;
        (0..n).map(|_| read(self)).collect()
    }

    pub(super) fn sizes(&mut self) -> Option<Vec<usize>> {
        self.many(Self::size)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.count()?;
        let (bytes, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    pub(super) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.byte()? == 0 { Some(None) } else { read(self).map(Some) }
    }

    fn dtype(&mut self) -> Option<DType> {
        DTYPES.get(usize::from(self.byte()?)).copied()
    }

    fn monoid(&mut self) -> Option<Monoid> {
        Monoid::ALL.get(usize::from(self.byte()?)).copied()
    }

    fn kind(&mut self) -> Option<Kind> {
        Kind::ALL.get(usize::from(self.byte()?)).copied()
    }

    fn tag(&mut self) -> Option<Tag> {
        let (sequence, what) = (self.number()?, self.text()?);
        Some(Tag::new(sequence, what, u32::try_from(self.number()?).ok()?))
    }

    fn name(&mut self) -> Option<CallName> {
        Some(CallName { kind: self.kind()?, tag: self.tag()? })
    }

    /// The members of a group, of which there are some.
    fn members(&mut self) -> Option<Arc<[usize]>> {
        self.sizes().filter(|members| !members.is_empty()).map(Arc::from)
    }

    fn key(&mut self) -> Option<Key> {
        Some(Key { members: self.members()?, number: self.number()? })
    }

    fn posted(&mut self) -> Option<Posted> {
        self.many(|r| Some((r.members()?, r.number()?)))
    }

    fn parts(&mut self) -> Option<Arc<[Part]>> {
        let parts = self.many(|r| match r.sizes()?.as_slice() {
            [peer, start, end] => Some(Part { peer: *peer, range: *start..*end }),
            _ => None,
        });
        parts.map(Arc::from)
    }

    fn pair(&mut self) -> Option<(Buf<'static>, BufMut<'static>)> {
        let dtype = self.dtype()?;
        match self.sizes()?.as_slice() {
            [input, output] => Some((Buf::absent(*input, dtype), BufMut::absent(*output, dtype))),
            _ => None,
        }
    }

    fn single(&mut self) -> Option<BufMut<'static>> {
        let dtype = self.dtype()?;
        match self.sizes()?.as_slice() {
            [len] => Some(BufMut::absent(*len, dtype)),
            _ => None,
        }
    }

    pub(super) fn header(&mut self) -> Option<Header> {
        let tag = self.tag()?;
        let call = match self.kind()? {
            Kind::AllReduce => {
                let monoid = self.monoid()?;
                Call::AllReduce { monoid, bucket: self.many(|r| r.single().map(Slot::InPlace))? }
            }
            Kind::AllGather => {
                let (input, output) = self.pair()?;
                Call::AllGather { input, output, counts: self.sizes()?.into() }
            }
            Kind::ReduceScatter => {
                let monoid = self.monoid()?;
                let (input, output) = self.pair()?;
                Call::ReduceScatter { monoid, input, output, counts: self.sizes()?.into() }
            }
            Kind::AllToAll => {
                let (input, output) = self.pair()?;
                Call::AllToAll { input, output, send: self.sizes()?.into(), receive: self.sizes()?.into() }
            }
            Kind::Permute => {
                let (input, output) = self.pair()?;
                Call::Permute { input, output, send: self.parts()?, receive: self.parts()? }
            }
            Kind::Broadcast => {
                let buffer = self.single()?;
                Call::Broadcast { buffer, root: self.size()? }
            }
            Kind::Barrier => Call::Barrier,
        };
        Some(Header { tag, call })
    }

    fn verdict(&mut self) -> Option<Verdict> {
        match self.byte()? {
            0 => Some(Verdict::Go),
            1 => {
                let mut side = || Some((self.size()?, self.header()?));
                Some(Verdict::Conflict(Box::new([side()?, side()?])))
            }
            2 => Some(Verdict::Withdrawn(self.size()?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key { members: vec![3, 1].into(), number: 7 }
    }

    #[test]
    fn messages_come_back_and_torn_ones_do_not() {
        let part = |peer, range| Part { peer, range };
        let (input, dtype) = (Buf::absent(5, DType::BF16), DType::BF16);
        let calls = [
            Call::AllReduce {
                monoid: Monoid::Max,
                bucket: vec![
                    Slot::InPlace(BufMut::absent(3, DType::F32)),
                    Slot::InPlace(BufMut::absent(0, dtype)),
                ],
            },
            Call::AllGather { input, counts: vec![5, 2].into(), output: BufMut::absent(7, dtype) },
            Call::ReduceScatter {
                monoid: Monoid::Sum,
                input,
                counts: vec![5, 0].into(),
                output: BufMut::absent(5, dtype),
            },
            Call::AllToAll {
                input,
                send: vec![5, 0].into(),
                output: BufMut::absent(1, dtype),
                receive: vec![0, 1].into(),
            },
            Call::Permute {
                input,
                send: vec![part(0, 1..4), part(1, 0..5)].into(),
                output: BufMut::absent(9, dtype),
                receive: vec![part(1, 2..9)].into(),
            },
            Call::Broadcast { root: 1, buffer: BufMut::absent(1 << 40, DType::PairF64) },
            Call::Barrier,
        ];
        let tag = Tag::new(17, "h1", 20);
        let name = CallName { kind: Kind::Permute, tag: tag.clone() };
        let mut messages: Vec<Message> =
            calls.into_iter().map(|call| Message::Header(key(), Header { tag: tag.clone(), call })).collect();
        let barrier = || Header { tag: Tag::new(1, "ä", 0), call: Call::Barrier };
        let status = Status {
            last: Some(name),
            waits: Some(key()),
            posted: vec![(vec![0, 1].into(), 9), (vec![1].into(), 1)],
            unmade: vec![vec![2, 0].into(), vec![0, 1].into()],
        };
        messages.extend([
            Message::Verdict(key(), Verdict::Go),
            Message::Verdict(key(), Verdict::Conflict(Box::new([(0, barrier()), (1, barrier())]))),
            Message::Verdict(key(), Verdict::Withdrawn(1)),
            Message::Withdraw(key()),
            Message::Ready(vec![3, 1].into()),
            Message::Make(vec![0, 2].into()),
            Message::Ask,
            Message::Answer(Status::default()),
            Message::Answer(status),
            Message::Abort(2, "no space left".into()),
            Message::Left(vec![(vec![5, 6].into(), 3)]),
            Message::Letter(true, vec![1, 2, 3]),
        ]);
        for message in messages {
            let bytes = message.encode();
            let back = Message::decode(&bytes).map(|m| m.encode());
            assert_eq!(back.as_ref(), Some(&bytes), "{message:?}");
            for end in 0..bytes.len() {
                assert!(Message::decode(&bytes[..end]).is_none(), "{end} bytes of {message:?}");
            }
        }
    }
}
