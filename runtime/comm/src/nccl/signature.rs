//! Comparing calls over the control plane, before NCCL, which notices no difference, runs them.
//!
//! All calls on the control plane that belong to a call of the device carry its name in their tag, so that an error there
//! can be told as an error of that call.

use crate::{
    Abort, Buf, BufMut, Call, CallName, Collectives, CommError, Group, Kind, Mismatch, Missing, Part, Side,
    Slot, Tag, Transport,
};
use meshwright_plan::{DType, Monoid};

/// Between the parts of a tag that stands for a call of the device.
const MARK: char = '\u{1f}';

/// The tag of a control call on behalf of `name`. All members make these in the same order, so its number says nothing.
pub(super) fn control_tag(name: &CallName) -> Tag {
    let CallName { kind, tag } = name;
    Tag::new(0, format!("{}{MARK}{}{MARK}{}", kind.name(), tag.sequence, tag.what), tag.line)
}

/// The call that a control call was made for; others as they are.
pub(super) fn true_name(name: CallName) -> CallName {
    let mut parts = name.tag.what.splitn(3, MARK);
    let (Some(kind), Some(sequence), Some(what)) = (parts.next(), parts.next(), parts.next()) else {
        return name;
    };
    let kind = Kind::ALL.into_iter().find(|k| k.name() == kind);
    match (kind, sequence.parse()) {
        (Some(kind), Ok(sequence)) => CallName { kind, tag: Tag::new(sequence, what, name.tag.line) },
        _ => name,
    }
}

/// An error of the control plane as one of the calls that it was used for.
pub(super) fn true_error(error: CommError) -> CommError {
    let places = |all: Vec<Missing>| {
        let one = |m: Missing| Missing { at: m.at.map(true_name), ..m };
        all.into_iter().map(one).collect()
    };
    match error {
        CommError::Timeout { rank, call, waited, missing, stuck } => CommError::Timeout {
            rank,
            call: true_name(call),
            waited,
            missing: places(missing),
            stuck: places(stuck),
        },
        CommError::Mismatch(m) => {
            let Mismatch { what, sides } = *m;
            let sides = sides.map(|s| Side { call: true_name(s.call), ..s });
            CommError::Mismatch(Box::new(Mismatch { what, sides }))
        }
        CommError::Aborted { rank, reason, call } => {
            CommError::Aborted { rank, reason, call: call.map(true_name) }
        }
        CommError::Left { rank, call } => CommError::Left { rank, call: true_name(call) },
        CommError::Withdrawn { rank, call } => CommError::Withdrawn { rank, call: true_name(call) },
        CommError::BadCall { rank, call, problem } => {
            CommError::BadCall { rank, call: true_name(call), problem }
        }
        CommError::Library { rank, call, reason } => {
            CommError::Library { rank, call: call.map(true_name), reason }
        }
        CommError::Terminated { rank, call, missing } => {
            CommError::Terminated { rank, call: true_name(call), missing: places(missing) }
        }
        other => other,
    }
}

/// Who has not come to a call, as far as the control plane knows.
pub(super) fn missing(aborter: &dyn Abort, group: &Group, name: &CallName) -> Vec<Missing> {
    let mut others: Vec<usize> = group.ranks().iter().copied().filter(|r| *r != group.rank()).collect();
    others.sort_unstable();
    let known = aborter.whereabouts(&others).unwrap_or_default().into_iter();
    let known = known.map(|m| Missing { at: m.at.map(true_name), ..m });
    let behind = |m: &Missing| m.silent || m.at.as_ref().is_none_or(|at| at.tag.sequence < name.tag.sequence);
    known.filter(behind).collect()
}

/// Compares this member's call with those of all others. Waits until all have come.
pub(super) fn compare(
    control: &mut dyn Transport,
    group: &Group,
    tag: &Tag,
    call: &Call<'_>,
) -> Result<(), CommError> {
    let name = call.name(tag);
    let over = control_tag(&name);
    let mine = encode(tag, call);
    let n = group.size();
    let mut lengths = vec![0i32; n];
    let length = [i32::try_from(mine.len()).unwrap_or(i32::MAX)];
    control
        .all_gather_v(group, &over, Buf::new(&length), vec![1; n], BufMut::new(&mut lengths))
        .map_err(true_error)?;
    let counts: Vec<usize> = lengths.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect();
    let mut all = vec![0u8; counts.iter().sum()];
    control
        .all_gather_v(group, &over, Buf::new(&mine), counts.as_slice(), BufMut::new(&mut all))
        .map_err(true_error)?;
    let mut rest = all.as_slice();
    let mut calls = Vec::with_capacity(n);
    for count in counts {
        let (piece, tail) = rest.split_at(count);
        rest = tail;
        let Some(decoded) = Reader(piece).call() else {
            let reason = "a member sent a description of its call that cannot be read".into();
            return Err(CommError::Library { rank: group.rank(), call: Some(name), reason });
        };
        calls.push(decoded);
    }
    match first_conflict(&calls) {
        None => Ok(()),
        Some((a, b, what)) => {
            let side = |at: usize| {
                let (tag, call) = &calls[at];
                Side { rank: group.ranks()[at], call: call.name(tag), details: call.describe() }
            };
            let mut sides = [side(a), side(b)];
            sides.sort_by_key(|s| s.rank);
            Err(CommError::Mismatch(Box::new(Mismatch { what, sides })))
        }
    }
}

/// The first two positions that contradict each other. Where counts concern pairs of members, all pairs are compared.
fn first_conflict(calls: &[(Tag, Call<'static>)]) -> Option<(usize, usize, &'static str)> {
    let at = |i: usize| (i, &calls[i].0, &calls[i].1);
    let pairwise = calls.iter().any(|(_, c)| matches!(c, Call::AllToAll { .. } | Call::Permute { .. }));
    let firsts = if pairwise { calls.len() } else { 1 };
    let pairs = (0..firsts).flat_map(|a| (a + 1..calls.len()).map(move |b| (a, b)));
    pairs.into_iter().find_map(|(a, b)| Call::conflict(at(a), at(b)).map(|what| (a, b, what)))
}

const DTYPES: [DType; 8] =
    [DType::F64, DType::F32, DType::BF16, DType::I32, DType::U8, DType::Bool, DType::PairF32, DType::PairF64];

fn encode(tag: &Tag, call: &Call<'_>) -> Vec<u8> {
    let mut w = Writer(Vec::new());
    w.index(&Kind::ALL, call.kind());
    w.number(tag.sequence as usize);
    w.number(tag.line as usize);
    w.number(tag.what.len());
    w.0.extend_from_slice(tag.what.as_bytes());
    match call {
        Call::AllReduce { monoid, bucket } => {
            w.index(&Monoid::ALL, *monoid);
            w.number(bucket.len());
            bucket.iter().for_each(|slot| w.buffer(slot.len(), slot.dtype()));
        }
        Call::AllGather { input, counts, output } => {
            w.buffer(input.len(), input.dtype());
            w.numbers(counts);
            w.buffer(output.len(), output.dtype());
        }
        Call::ReduceScatter { monoid, input, counts, output } => {
            w.index(&Monoid::ALL, *monoid);
            w.buffer(input.len(), input.dtype());
            w.numbers(counts);
            w.buffer(output.len(), output.dtype());
        }
        Call::AllToAll { input, send, output, receive } => {
            w.buffer(input.len(), input.dtype());
            w.numbers(send);
            w.buffer(output.len(), output.dtype());
            w.numbers(receive);
        }
        Call::Permute { input, send, output, receive } => {
            w.buffer(input.len(), input.dtype());
            w.parts(send);
            w.buffer(output.len(), output.dtype());
            w.parts(receive);
        }
        Call::Broadcast { root, buffer } => {
            w.number(*root);
            w.buffer(buffer.len(), buffer.dtype());
        }
        Call::Barrier => {}
    }
    w.0
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, n: usize) {
        self.0.extend_from_slice(&(n as u64).to_le_bytes());
    }

    fn numbers(&mut self, all: &[usize]) {
        self.number(all.len());
        all.iter().for_each(|n| self.number(*n));
    }

    fn index<T: PartialEq>(&mut self, all: &[T], one: T) {
        self.number(all.iter().position(|x| *x == one).unwrap_or(usize::MAX));
    }

    fn buffer(&mut self, len: usize, dtype: DType) {
        self.number(len);
        self.index(&DTYPES, dtype);
    }

    fn parts(&mut self, parts: &[Part]) {
        self.number(parts.len());
        for p in parts {
            self.number(p.peer);
            self.number(p.range.start);
            self.number(p.range.end);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Option<usize> {
        let (first, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        usize::try_from(u64::from_le_bytes(*first)).ok()
    }

    /// A length that the rest can hold, each item of at least 8 bytes.
    fn length(&mut self) -> Option<usize> {
        self.number().filter(|n| *n <= self.0.len() / 8)
    }

    fn numbers(&mut self) -> Option<Vec<usize>> {
        let n = self.length()?;
        (0..n).map(|_| self.number()).collect()
    }

    fn one<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(self.number()?).copied()
    }

    fn buffer(&mut self) -> Option<(Buf<'static>, BufMut<'static>)> {
        let len = self.number()?;
        let dtype = self.one(&DTYPES)?;
        Some((Buf::absent(len, dtype), BufMut::absent(len, dtype)))
    }

    fn parts(&mut self) -> Option<Vec<Part>> {
        let n = self.length()?;
        let part = |r: &mut Self| {
            let (peer, start, end) = (r.number()?, r.number()?, r.number()?);
            Some(Part { peer, range: start..end })
        };
        (0..n).map(|_| part(self)).collect()
    }

    /// A call with no memory behind its buffers: good for comparing only.
    fn call(&mut self) -> Option<(Tag, Call<'static>)> {
        let kind = self.one(&Kind::ALL)?;
        let sequence = self.number()? as u64;
        let line = u32::try_from(self.number()?).ok()?;
        let length = self.number()?;
        let what = String::from_utf8(self.0.get(..length)?.to_vec()).ok()?;
        self.0 = &self.0[length..];
        let call = match kind {
            Kind::AllReduce => {
                let monoid = self.one(&Monoid::ALL)?;
                let n = self.length()?;
                let bucket =
                    (0..n).map(|_| self.buffer().map(|b| Slot::InPlace(b.1))).collect::<Option<_>>()?;
                Call::AllReduce { monoid, bucket }
            }
            Kind::AllGather => {
                let (input, counts) = (self.buffer()?.0, self.numbers()?.into());
                Call::AllGather { input, counts, output: self.buffer()?.1 }
            }
            Kind::ReduceScatter => {
                let monoid = self.one(&Monoid::ALL)?;
                let (input, counts) = (self.buffer()?.0, self.numbers()?.into());
                Call::ReduceScatter { monoid, input, counts, output: self.buffer()?.1 }
            }
            Kind::AllToAll => {
                let (input, send) = (self.buffer()?.0, self.numbers()?.into());
                Call::AllToAll { input, send, output: self.buffer()?.1, receive: self.numbers()?.into() }
            }
            Kind::Permute => {
                let (input, send) = (self.buffer()?.0, self.parts()?.into());
                Call::Permute { input, send, output: self.buffer()?.1, receive: self.parts()?.into() }
            }
            Kind::Broadcast => Call::Broadcast { root: self.number()?, buffer: self.buffer()?.1 },
            Kind::Barrier => Call::Barrier,
        };
        Some((Tag::new(sequence, what, line), call))
    }
}
