//! A collective with its memory and counts, and the rules by which calls of several members belong together.

use crate::fold::can_fold;
use crate::{Buf, BufMut, CallName, CommError, Group, Kind, Place, Tag};
use meshwright_plan::{DType, Monoid};
use std::ops::Range;
use std::sync::Arc;

/// One buffer of an all-reduce.
#[derive(Debug)]
pub enum Slot<'a> {
    /// The result takes the place of the input.
    InPlace(BufMut<'a>),
    /// Input and result apart, of equal length and dtype.
    Apart(Buf<'a>, BufMut<'a>),
}

/// Part of a permute: a range of elements that goes to, or comes from, a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The other member, by position in the group (it may be the caller itself).
    pub peer: usize,
    /// Elements of the input (sent) or of the output (received).
    pub range: Range<usize>,
}

/// A collective as one member calls it. Counts are elements, one for each member in group order, and may be 0.
#[derive(Debug)]
pub enum Call<'a> {
    /// Folds each slot over all members. Slots may be empty and of different dtypes.
    AllReduce {
        /// How to fold.
        monoid: Monoid,
        /// The buffers.
        bucket: Vec<Slot<'a>>,
    },
    /// Joins the members' pieces in group order.
    AllGather {
        /// This member's piece.
        input: Buf<'a>,
        /// Elements of each member's piece.
        counts: Arc<[usize]>,
        /// All pieces.
        output: BufMut<'a>,
    },
    /// Folds inputs that are pieces in group order, and keeps the piece of this member.
    ReduceScatter {
        /// How to fold.
        monoid: Monoid,
        /// All pieces.
        input: Buf<'a>,
        /// Elements of each piece.
        counts: Arc<[usize]>,
        /// This member's piece.
        output: BufMut<'a>,
    },
    /// Sends a piece to each member; pieces lie in group order on both sides.
    AllToAll {
        /// Pieces by destination.
        input: Buf<'a>,
        /// Elements to each member.
        send: Arc<[usize]>,
        /// Pieces by origin.
        output: BufMut<'a>,
        /// Elements from each member.
        receive: Arc<[usize]>,
    },
    /// Copies ranges between members. The k-th range sent to a member meets the k-th that it receives from the sender.
    Permute {
        /// Source of what is sent; ranges may overlap.
        input: Buf<'a>,
        /// What is sent.
        send: Arc<[Part]>,
        /// Destination of what is received; elements in no range keep their values.
        output: BufMut<'a>,
        /// What is received; ranges must not overlap.
        receive: Arc<[Part]>,
    },
    /// Copies the buffer of one member to all.
    Broadcast {
        /// The member that is copied from, by position in the group.
        root: usize,
        /// Source on the root, destination elsewhere.
        buffer: BufMut<'a>,
    },
    /// Waits for all.
    Barrier,
}

impl Slot<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Slot::InPlace(b) | Slot::Apart(_, b) => b.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Slot::InPlace(b) | Slot::Apart(_, b) => b.dtype(),
        }
    }

    fn places(&self) -> [Place; 2] {
        match self {
            Slot::InPlace(b) => [b.place(), b.place()],
            Slot::Apart(a, b) => [a.place(), b.place()],
        }
    }

    pub(crate) fn source(&self) -> *const u8 {
        match self {
            Slot::InPlace(b) => b.address(),
            Slot::Apart(a, _) => a.as_ptr(),
        }
    }

    pub(crate) fn target(&self) -> *mut u8 {
        match self {
            Slot::InPlace(b) | Slot::Apart(_, b) => b.address(),
        }
    }
}

impl Call<'_> {
    /// Which collective.
    pub fn kind(&self) -> Kind {
        match self {
            Call::AllReduce { .. } => Kind::AllReduce,
            Call::AllGather { .. } => Kind::AllGather,
            Call::ReduceScatter { .. } => Kind::ReduceScatter,
            Call::AllToAll { .. } => Kind::AllToAll,
            Call::Permute { .. } => Kind::Permute,
            Call::Broadcast { .. } => Kind::Broadcast,
            Call::Barrier => Kind::Barrier,
        }
    }

    /// How errors name it.
    pub fn name(&self, tag: &Tag) -> CallName {
        CallName { kind: self.kind(), tag: tag.clone() }
    }

    /// Where all memory of the call is; none where there is no memory. Memory in two places is a bad call.
    pub fn place(&self, group: &Group, tag: &Tag) -> Result<Option<Place>, CommError> {
        let mut first = None;
        let mut second = None;
        let mut note = |place: Place| match first {
            None => first = Some(place),
            Some(known) if known != place => second = Some(place),
            Some(_) => {}
        };
        match self {
            Call::AllReduce { bucket, .. } => bucket.iter().flat_map(Slot::places).for_each(note),
            Call::AllGather { input, output, .. }
            | Call::ReduceScatter { input, output, .. }
            | Call::AllToAll { input, output, .. }
            | Call::Permute { input, output, .. } => {
                [input.place(), output.place()].into_iter().for_each(note)
            }
            Call::Broadcast { buffer, .. } => note(buffer.place()),
            Call::Barrier => {}
        }
        match (first, second) {
            (Some(a), Some(b)) => {
                let problem = format!("part of the memory is {a}, part {b}");
                Err(CommError::BadCall { rank: group.rank(), call: self.name(tag), problem })
            }
            _ => Ok(first),
        }
    }

    /// The first buffer with a result on the host, if it has an element.
    pub(crate) fn result(&self) -> Option<BufMut<'static>> {
        let result = match self {
            Call::AllReduce { bucket, .. } => bucket.iter().find(|s| !s.is_empty()).map(|slot| match slot {
                Slot::InPlace(b) | Slot::Apart(_, b) => b,
            }),
            Call::AllGather { output, .. }
            | Call::ReduceScatter { output, .. }
            | Call::AllToAll { output, .. }
            | Call::Permute { output, .. } => Some(output),
            Call::Broadcast { buffer, .. } => Some(buffer),
            Call::Barrier => None,
        };
        result.filter(|b| !b.is_empty() && b.place() == Place::Host).map(BufMut::alias)
    }

    /// Dtypes and counts in words, for errors.
    pub fn describe(&self) -> String {
        match self {
            Call::AllReduce { monoid, bucket } => {
                let slots: Vec<_> = bucket.iter().map(|s| format!("{} {}", s.len(), s.dtype())).collect();
                format!("{monoid} of [{}]", slots.join(", "))
            }
            Call::AllGather { input, counts, .. } => format!("{} in pieces of {counts:?}", input.dtype()),
            Call::ReduceScatter { monoid, input, counts, .. } => {
                format!("{monoid} of {} in pieces of {counts:?}", input.dtype())
            }
            Call::AllToAll { input, send, receive, .. } => {
                format!("{}, sends {send:?}, receives {receive:?}", input.dtype())
            }
            Call::Permute { input, send, receive, .. } => {
                let parts = |parts: &[Part]| {
                    let parts: Vec<_> =
                        parts.iter().map(|p| format!("{:?} of {}", p.range, p.peer)).collect();
                    parts.join(", ")
                };
                format!("{}, sends [{}], receives [{}]", input.dtype(), parts(send), parts(receive))
            }
            Call::Broadcast { root, buffer } => {
                format!("{} {} from position {root}", buffer.len(), buffer.dtype())
            }
            Call::Barrier => "no data".into(),
        }
    }

    /// Whether the arguments fit each other and the group, and all memory is the host's. Transports check before they
    /// send anything.
    pub fn check(&self, group: &Group, tag: &Tag) -> Result<(), CommError> {
        match self.place(group, tag)? {
            None | Some(Place::Host) => self.check_shape(group, tag),
            Some(place) => {
                let problem = format!("{place}, which this transport cannot reach");
                Err(CommError::BadCall { rank: group.rank(), call: self.name(tag), problem })
            }
        }
    }

    /// Whether the arguments fit each other and the group, wherever the memory is.
    pub(crate) fn check_shape(&self, group: &Group, tag: &Tag) -> Result<(), CommError> {
        let bad =
            |problem: String| Err(CommError::BadCall { rank: group.rank(), call: self.name(tag), problem });
        let foldable = |monoid: Monoid, dtype: DType| match can_fold(monoid, dtype) {
            true => Ok(()),
            false => Err(CommError::NoFold { call: self.name(tag), monoid, dtype }),
        };
        if let Some((from, to)) = self.dtypes().find(|(from, to)| from != to) {
            return bad(format!("the input is {from} and the output is {to}"));
        }
        match self {
            Call::AllReduce { monoid, bucket } => {
                for slot in bucket {
                    foldable(*monoid, slot.dtype())?;
                    if let Slot::Apart(from, to) = slot
                        && from.len() != to.len()
                    {
                        return bad(format!("an input has {} elements, its output {}", from.len(), to.len()));
                    }
                }
                Ok(())
            }
            Call::AllGather { input, counts, output } => {
                pieces(input.len(), output.len(), counts, group).or_else(bad)
            }
            Call::ReduceScatter { monoid, input, counts, output } => {
                foldable(*monoid, input.dtype())?;
                pieces(output.len(), input.len(), counts, group).or_else(bad)
            }
            Call::AllToAll { input, send, output, receive } => covers(input.len(), send, group)
                .and_then(|()| covers(output.len(), receive, group))
                .and_then(|()| to_itself([send[group.position()]], [receive[group.position()]]))
                .or_else(bad),
            Call::Permute { input, send, output, receive } => parts(input.len(), send, group)
                .and_then(|()| parts(output.len(), receive, group))
                .and_then(|()| apart(receive))
                .and_then(|()| {
                    let here = group.position();
                    to_itself(lengths(send, here), lengths(receive, here))
                })
                .or_else(bad),
            Call::Broadcast { root, .. } if *root >= group.size() => {
                bad(format!("position {root} in a group of {}", group.size()))
            }
            Call::Broadcast { .. } | Call::Barrier => Ok(()),
        }
    }

    /// Dtypes of each input with its output.
    fn dtypes(&self) -> impl Iterator<Item = (DType, DType)> {
        let (bucket, pair): (&[Slot<'_>], _) = match self {
            Call::AllReduce { bucket, .. } => (bucket, None),
            Call::AllGather { input, output, .. }
            | Call::ReduceScatter { input, output, .. }
            | Call::AllToAll { input, output, .. }
            | Call::Permute { input, output, .. } => (&[], Some((input.dtype(), output.dtype()))),
            Call::Broadcast { .. } | Call::Barrier => (&[], None),
        };
        let slots = bucket.iter().filter_map(|slot| match slot {
            Slot::Apart(from, to) => Some((from.dtype(), to.dtype())),
            Slot::InPlace(_) => None,
        });
        slots.chain(pair)
    }

    /// What contradicts between the calls of two members at positions `a` and `b`, tags included.
    pub fn conflict(a: (usize, &Tag, &Call<'_>), b: (usize, &Tag, &Call<'_>)) -> Option<&'static str> {
        let ((at_a, tag_a, call_a), (at_b, tag_b, call_b)) = (a, b);
        if call_a.kind() != call_b.kind() {
            return Some("kind of collective");
        }
        if tag_a.sequence != tag_b.sequence {
            return Some("sequence number");
        }
        match (call_a, call_b) {
            (Call::AllReduce { monoid: m, bucket: x }, Call::AllReduce { monoid: n, bucket: y }) => {
                let dtypes = || x.iter().map(Slot::dtype).ne(y.iter().map(Slot::dtype));
                let counts = || x.iter().map(Slot::len).ne(y.iter().map(Slot::len));
                first(&[
                    ("number of buffers", &|| x.len() != y.len()),
                    ("monoid", &|| m != n),
                    ("dtype", &dtypes),
                    ("counts", &counts),
                ])
            }
            (Call::AllGather { input: x, counts: c, .. }, Call::AllGather { input: y, counts: d, .. }) => {
                first(&[("dtype", &|| x.dtype() != y.dtype()), ("counts", &|| c != d)])
            }
            (
                Call::ReduceScatter { monoid: m, input: x, counts: c, .. },
                Call::ReduceScatter { monoid: n, input: y, counts: d, .. },
            ) => first(&[
                ("monoid", &|| m != n),
                ("dtype", &|| x.dtype() != y.dtype()),
                ("counts", &|| c != d),
            ]),
            (
                Call::AllToAll { input: x, send: sx, receive: rx, .. },
                Call::AllToAll { input: y, send: sy, receive: ry, .. },
            ) => first(&[
                ("dtype", &|| x.dtype() != y.dtype()),
                ("counts", &|| sx[at_b] != ry[at_a] || sy[at_a] != rx[at_b]),
            ]),
            (
                Call::Permute { input: x, send: sx, receive: rx, .. },
                Call::Permute { input: y, send: sy, receive: ry, .. },
            ) => first(&[
                ("dtype", &|| x.dtype() != y.dtype()),
                ("counts", &|| {
                    lengths(sx, at_b).ne(lengths(ry, at_a)) || lengths(sy, at_a).ne(lengths(rx, at_b))
                }),
            ]),
            (Call::Broadcast { root: r, buffer: x }, Call::Broadcast { root: s, buffer: y }) => first(&[
                ("root", &|| r != s),
                ("dtype", &|| x.dtype() != y.dtype()),
                ("counts", &|| x.len() != y.len()),
            ]),
            _ => None,
        }
    }

    /// The call without the lifetime of its memory, for a transport that keeps it until the operation ends.
    pub(crate) fn detach(self) -> Call<'static> {
        match self {
            Call::AllReduce { monoid, bucket } => {
                let detach = |slot| match slot {
                    Slot::InPlace(b) => Slot::InPlace(b.detach()),
                    Slot::Apart(a, b) => Slot::Apart(a.detach(), b.detach()),
                };
                Call::AllReduce { monoid, bucket: bucket.into_iter().map(detach).collect() }
            }
            Call::AllGather { input, counts, output } => {
                Call::AllGather { input: input.detach(), counts, output: output.detach() }
            }
            Call::ReduceScatter { monoid, input, counts, output } => {
                Call::ReduceScatter { monoid, input: input.detach(), counts, output: output.detach() }
            }
            Call::AllToAll { input, send, output, receive } => {
                Call::AllToAll { input: input.detach(), send, output: output.detach(), receive }
            }
            Call::Permute { input, send, output, receive } => {
                Call::Permute { input: input.detach(), send, output: output.detach(), receive }
            }
            Call::Broadcast { root, buffer } => Call::Broadcast { root, buffer: buffer.detach() },
            Call::Barrier => Call::Barrier,
        }
    }
}

type Test<'t> = (&'static str, &'t dyn Fn() -> bool);

/// Name of the first test that is true.
fn first(tests: &[Test<'_>]) -> Option<&'static str> {
    tests.iter().find(|(_, differs)| differs()).map(|(what, _)| *what)
}

/// Lengths of the parts that concern a peer, in order.
pub(crate) fn lengths(parts: &[Part], peer: usize) -> impl Iterator<Item = usize> {
    parts.iter().filter(move |p| p.peer == peer).map(|p| p.range.len())
}

fn covers(len: usize, counts: &[usize], group: &Group) -> Result<(), String> {
    if counts.len() != group.size() {
        return Err(format!("{} counts for a group of {}", counts.len(), group.size()));
    }
    match counts.iter().try_fold(0usize, |sum, n| sum.checked_add(*n)) {
        Some(sum) if sum == len => Ok(()),
        _ => Err(format!("counts {counts:?} for a buffer of {len} elements")),
    }
}

fn pieces(piece: usize, whole: usize, counts: &[usize], group: &Group) -> Result<(), String> {
    covers(whole, counts, group)?;
    match counts[group.position()] {
        n if n == piece => Ok(()),
        n => Err(format!("a piece of {piece} elements where the counts say {n}")),
    }
}

fn parts(len: usize, parts: &[Part], group: &Group) -> Result<(), String> {
    for Part { peer, range } in parts {
        if *peer >= group.size() {
            return Err(format!("position {peer} in a group of {}", group.size()));
        }
        if range.start > range.end || range.end > len {
            return Err(format!("range {range:?} of a buffer of {len} elements"));
        }
    }
    Ok(())
}

/// What a member sends to itself is what it receives from itself; no other member could notice.
fn to_itself(
    send: impl IntoIterator<Item = usize>,
    receive: impl IntoIterator<Item = usize>,
) -> Result<(), String> {
    let (send, receive) = (Vec::from_iter(send), Vec::from_iter(receive));
    if send == receive {
        return Ok(());
    }
    Err(format!("sends {send:?} elements to itself, and receives {receive:?} from itself"))
}

/// Two members would write to overlapping parts at the same time.
fn apart(parts: &[Part]) -> Result<(), String> {
    let mut ranges: Vec<_> = parts.iter().map(|p| p.range.clone()).filter(|r| !r.is_empty()).collect();
    ranges.sort_unstable_by_key(|r| r.start);
    match ranges.windows(2).find(|w| w[0].end > w[1].start) {
        Some(w) => Err(format!("ranges {:?} and {:?} are both received, and overlap", w[0], w[1])),
        None => Ok(()),
    }
}
