//! A collective without its memory: who sends which elements to whom, and whether what arrives is folded.
//!
//! One description serves all collectives, so that checking a call, comparing the calls of two members, and carrying them out are
//! loops over data. Of each buffer a member sends parts of its input to members, itself included ([`Layout`] of the input),
//! and receives as many parts of its output from them (layout of the output). The k-th range that is sent to a member meets the
//! k-th one that it receives from the sender. With a [`Monoid`] what all members send to one is folded in group order;
//! without, it is copied. With a root only the root sends.
//!
//! Which collective has which, says [`CollectiveKind::traffic`].

use crate::fold::can_fold;
use crate::{CallName, CollectiveKind, Tag};
pub use meshwright_plan::{BufferLayout as Layout, BufferPart as Part};
use meshwright_plan::{DType, Monoid};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Type and sizes of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Type of the elements.
    pub dtype: DType,
    /// Elements of the input.
    pub input: usize,
    /// Elements of the output.
    pub output: usize,
}

/// Kind of a member's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// Which collective.
    pub kind: CollectiveKind,
    /// The fold of what all members send to one; none where it is copied.
    pub monoid: Option<Monoid>,
    /// The only member that sends, by position in the group; none where all do.
    pub root: Option<usize>,
    /// The parts of every input, each with its receiver.
    pub send: Layout,
    /// The parts of every output, each with its sender.
    pub receive: Layout,
    /// Types and sizes of the buffers.
    pub buffers: Vec<Extent>,
}

/// The fault of a call by itself.
pub(crate) enum Invalid {
    NoFold(Monoid, DType),
    Arguments(String),
}

impl From<String> for Invalid {
    fn from(problem: String) -> Self {
        Invalid::Arguments(problem)
    }
}

/// A [`Layout`] of a buffer of some length, with where each piece begins.
pub struct Division<'a> {
    layout: &'a Layout,
    len: usize,
    starts: Vec<usize>,
}

/// Division of a buffer of some length by a layout.
pub(crate) trait Divide {
    fn divide(&self, len: usize) -> Division<'_>;

    /// Lengths of the ranges that concern a member, in order.
    fn lengths(&self, peer: usize, len: usize) -> impl Iterator<Item = usize>;

    fn check(&self, len: usize, size: usize) -> Result<(), String>;

    /// In words, after what it is of; nothing for a whole buffer.
    fn describe(&self, verb: &str) -> String;
}

impl Divide for Layout {
    fn divide(&self, len: usize) -> Division<'_> {
        let starts = match self {
            Layout::Pieces(counts) => starts(counts),
            Layout::Whole | Layout::Parts(_) => Vec::new(),
        };
        Division { layout: self, len, starts }
    }

    fn lengths(&self, peer: usize, len: usize) -> impl Iterator<Item = usize> {
        let (one, parts): (_, &[Part]) = match self {
            Layout::Whole => (Some(len), &[]),
            Layout::Pieces(counts) => (counts.get(peer).copied(), &[]),
            Layout::Parts(parts) => (None, parts),
        };
        let of_peer = parts.iter().filter(move |p| p.peer == peer).map(|p| p.range.len());
        one.into_iter().chain(of_peer)
    }

    fn check(&self, len: usize, size: usize) -> Result<(), String> {
        match self {
            Layout::Whole => Ok(()),
            Layout::Pieces(counts) if counts.len() != size => {
                Err(format!("{} counts for a group of {size}", counts.len()))
            }
            Layout::Pieces(counts) => match counts.iter().try_fold(0usize, |sum, n| sum.checked_add(*n)) {
                Some(sum) if sum == len => Ok(()),
                _ => Err(format!("counts {counts:?} for a buffer of {len} elements")),
            },
            Layout::Parts(parts) => parts.iter().try_for_each(|Part { peer, range }| {
                if *peer >= size {
                    return Err(format!("position {peer} in a group of {size}"));
                }
                match range.start <= range.end && range.end <= len {
                    true => Ok(()),
                    false => Err(format!("range {range:?} of a buffer of {len} elements")),
                }
            }),
        }
    }

    fn describe(&self, verb: &str) -> String {
        match self {
            Layout::Whole => String::new(),
            Layout::Pieces(counts) => format!(", {verb} {counts:?}"),
            Layout::Parts(parts) => {
                let parts: Vec<_> = parts.iter().map(|p| format!("{:?} of {}", p.range, p.peer)).collect();
                format!(", {verb} [{}]", parts.join(", "))
            }
        }
    }
}

/// Start of each piece.
pub fn starts(counts: &[usize]) -> Vec<usize> {
    let running = counts.iter().scan(0, |end, n| {
        *end += n;
        Some(*end - n)
    });
    running.collect()
}

impl Division<'_> {
    /// The ranges that concern a member, in order.
    pub fn ranges(&self, peer: usize) -> impl Iterator<Item = Range<usize>> {
        let (one, parts): (_, &[Part]) = match self.layout {
            Layout::Whole => (Some(0..self.len), &[]),
            Layout::Pieces(counts) => {
                let piece = self.starts.get(peer).zip(counts.get(peer));
                (piece.map(|(start, n)| *start..start + n), &[])
            }
            Layout::Parts(parts) => (None, parts),
        };
        let of_peer = parts.iter().filter(move |p| p.peer == peer).map(|p| p.range.clone());
        one.into_iter().chain(of_peer)
    }
}

impl Signature {
    /// Its name in errors.
    pub fn name(&self, tag: &Tag) -> CallName {
        CallName::new(self.kind, tag)
    }

    /// Division of a buffer's input among its receivers.
    pub fn input(&self, buffer: usize) -> Division<'_> {
        self.send.divide(self.buffers[buffer].input)
    }

    /// Division of a buffer's output among its senders.
    pub fn output(&self, buffer: usize) -> Division<'_> {
        self.receive.divide(self.buffers[buffer].output)
    }

    /// Whether a member sends anything.
    pub fn sends(&self, position: usize) -> bool {
        self.root.is_none_or(|root| root == position)
    }

    /// Bytes of each input, of a member that sends.
    pub fn input_bytes(&self) -> impl Iterator<Item = usize> {
        self.buffers.iter().map(|b| b.input.saturating_mul(b.dtype.bytes()))
    }

    /// Fails unless the call of the member at `here`, one of `size`, is consistent by itself. Then all ranges are
    /// within their buffers, every element is written at most once, and the range that a member sends to itself is the
    /// one that it receives from itself (which no other member could notice).
    pub(crate) fn check(&self, here: usize, size: usize) -> Result<(), Invalid> {
        if let Some(root) = self.root.filter(|root| *root >= size) {
            return Err(format!("position {root} in a group of {size}").into());
        }
        self.check_layouts(size)?;
        for extent in &self.buffers {
            if let Some(monoid) = self.monoid.filter(|m| !can_fold(*m, extent.dtype)) {
                return Err(Invalid::NoFold(monoid, extent.dtype));
            }
            self.send.check(extent.input, size)?;
            self.receive.check(extent.output, size)?;
            let (sent, received): (Vec<_>, Vec<_>) =
                (self.sent(extent, here, here).collect(), self.received(extent, here).collect());
            if sent != received {
                let problem =
                    format!("sends {sent:?} elements to itself, and receives {received:?} from itself");
                return Err(problem.into());
            }
        }
        Ok(())
    }

    /// Fails unless the layouts are consistent.
    fn check_layouts(&self, size: usize) -> Result<(), String> {
        let whole = |layout: &Layout| matches!(layout, Layout::Whole);
        let problem = match (self.monoid, self.root, &self.receive) {
            (Some(_), Some(_), _) => "a fold of one member's elements",
            (Some(_), None, receive) if !whole(receive) || matches!(self.send, Layout::Parts(_)) => {
                "a fold needs a whole output, and a whole input or pieces of it"
            }
            (None, Some(_), receive) if !whole(receive) || !whole(&self.send) => {
                "the root's buffer goes whole to whole buffers"
            }
            (None, None, Layout::Whole) if size > 1 && !self.buffers.is_empty() => {
                "several members would write to the same elements"
            }
            (_, _, Layout::Parts(parts)) => return apart(parts),
            _ => return Ok(()),
        };
        Err(problem.into())
    }

    /// Lengths of what the member at `from` sends to the one at `to`.
    fn sent(&self, extent: &Extent, from: usize, to: usize) -> impl Iterator<Item = usize> {
        self.send.lengths(to, extent.input).filter(move |_| self.sends(from))
    }

    /// Lengths of what a member receives from the one at `from`.
    fn received(&self, extent: &Extent, from: usize) -> impl Iterator<Item = usize> {
        self.receive.lengths(from, extent.output).filter(move |_| self.sends(from))
    }

    /// Contradiction between the calls of two members at positions `a` and `b`, tags included.
    pub fn conflict(
        (at_a, tag_a, a): (usize, &Tag, &Signature),
        (at_b, tag_b, b): (usize, &Tag, &Signature),
    ) -> Option<&'static str> {
        if a.kind != b.kind {
            return Some("kind of collective");
        }
        if tag_a.sequence != tag_b.sequence && (tag_a.control_for.is_none() || tag_b.control_for.is_none()) {
            return Some("sequence number");
        }
        if a.buffers.len() != b.buffers.len() {
            return Some("number of buffers");
        }
        if a.monoid != b.monoid {
            return Some("monoid");
        }
        if a.root != b.root {
            return Some("root");
        }
        let mut buffers = a.buffers.iter().zip(&b.buffers);
        if buffers.clone().any(|(x, y)| x.dtype != y.dtype) {
            return Some("dtype");
        }
        let counts_differ = |(x, y): (&Extent, &Extent)| {
            a.sent(x, at_a, at_b).ne(b.received(y, at_a)) || b.sent(y, at_b, at_a).ne(a.received(x, at_b))
        };
        buffers.any(counts_differ).then_some("counts")
    }

    /// Fold, dtypes and counts in words, for errors.
    pub(crate) fn describe(&self) -> String {
        if self.buffers.is_empty() {
            return "no data".into();
        }
        let one = |b: &Extent| match b.input == b.output {
            true => format!("{} {}", b.input, b.dtype),
            false => format!("{} to {} {}", b.input, b.output, b.dtype),
        };
        let buffers: Vec<String> = self.buffers.iter().map(one).collect();
        let monoid = self.monoid.map(|m| format!("{m} of ")).unwrap_or_default();
        let root = self.root.map(|r| format!(" from position {r}")).unwrap_or_default();
        let (send, receive) = (self.send.describe("sends"), self.receive.describe("receives"));
        format!("{monoid}[{}]{root}{send}{receive}", buffers.join(", "))
    }
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
