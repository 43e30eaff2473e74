//! Collectives: their names, what they do to a placement, and what they cost.

use crate::{Axis, Dim, Dims, Mesh, Monoid, Placement, Window};
use serde::{Deserialize, Serialize};

/// Communication over the group of some mesh axes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "collective")]
pub enum Collective {
    /// Folds equal shapes.
    AllReduce {
        /// Over which axes, jointly; ascending.
        axes: Vec<Axis>,
        /// The reduction, in ascending order of the group.
        monoid: Monoid,
    },
    /// The value of one member goes to all: a sum to which the others add zero.
    Broadcast {
        /// Over which axes, jointly; ascending.
        axes: Vec<Axis>,
        /// The member that has it, by position in the group.
        root: usize,
    },
    /// Folds, and keeps this device's shard of a dim, to whose axes `axis` is appended.
    ReduceScatter {
        /// Over which axis.
        axis: Axis,
        /// The reduction, in ascending order of the group.
        monoid: Monoid,
        /// Which dim is split, of each operand.
        dims: Vec<Dim>,
    },
    /// Joins shards of a dim: the result lacks `axis`, which was the minor-most of the dim.
    AllGather {
        /// Over which axis.
        axis: Axis,
        /// Which dim is joined, of each operand.
        dims: Vec<Dim>,
    },
    /// Joins along one dim and splits along another: `axis` moves from the minor end of `join` to the minor end of `split`.
    AllToAll {
        /// Over which axis.
        axis: Axis,
        /// The dim that becomes less split.
        join: Dim,
        /// The dim that becomes more split.
        split: Dim,
    },
    /// Each device gets what a loop needs of a dim from the devices that hold it (a halo, or blocks with other edges). Over
    /// the group of all axes of `dim`.
    Permute {
        /// The axes of `dim`, major first.
        axes: Vec<Axis>,
        /// Along which dim.
        dim: Dim,
        /// The window that the reader needs.
        window: Window,
    },
    /// Each device gets the shard of a dim that the device after it holds, in the order of the group of all axes of `dim`, the
    /// last one that of the first: see [`crate::Extent::rotated`].
    Rotate {
        /// The axes of `dim`, major first.
        axes: Vec<Axis>,
        /// The dim.
        dim: Dim,
    },
}

/// The portion of a buffer that a member sends to each member, or receives from each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    /// Without a buffer.
    Nothing,
    /// All of it.
    Whole,
    /// A piece for each member, in group order.
    Pieces,
    /// Any ranges.
    Ranges,
}

/// The traffic of a collective: what members send and receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The portion of its input that a member sends to each.
    pub send: Portion,
    /// The portion of its output that a member receives from each.
    pub receive: Portion,
    /// True if the contributions of all members are folded.
    pub folds: bool,
    /// True if one member alone sends.
    pub rooted: bool,
}

const fn copied(send: Portion, receive: Portion) -> Traffic {
    Traffic { send, receive, folds: false, rooted: false }
}

const fn folded(send: Portion, receive: Portion) -> Traffic {
    Traffic { folds: true, ..copied(send, receive) }
}

/// Declares the kinds: the name of each, and what its members send and receive. From this follows what transports, packing and
/// benchmarks need to know of it.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $traffic:expr;)*) => {
        /// A call of a transport: a collective without its attributes, or a call that programs make around steps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum CollectiveKind {
            $($(#[$doc])* $kind,)*
        }

        impl CollectiveKind {
            /// Every kind.
            pub const ALL: [CollectiveKind; [$($name),*].len()] = [$(CollectiveKind::$kind),*];

            /// `all_reduce` and so on.
            pub const fn name(self) -> &'static str {
                match self {
                    $(CollectiveKind::$kind => $name,)*
                }
            }

            /// The traffic of its members.
            pub const fn traffic(self) -> Traffic {
                match self {
                    $(CollectiveKind::$kind => $traffic,)*
                }
            }
        }
    };
}

kinds! {
    /// See [`Collective::AllReduce`].
    AllReduce = "all_reduce", folded(Portion::Whole, Portion::Whole);
    /// See [`Collective::ReduceScatter`].
    ReduceScatter = "reduce_scatter", folded(Portion::Pieces, Portion::Whole);
    /// See [`Collective::AllGather`].
    AllGather = "all_gather", copied(Portion::Whole, Portion::Pieces);
    /// See [`Collective::AllToAll`].
    AllToAll = "all_to_all", copied(Portion::Pieces, Portion::Pieces);
    /// See [`Collective::Permute`] and [`Collective::Rotate`].
    Permute = "permute", copied(Portion::Ranges, Portion::Ranges);
    /// See [`Collective::Broadcast`]: one member's memory goes to all.
    Broadcast = "broadcast", Traffic { rooted: true, ..copied(Portion::Whole, Portion::Whole) };
    /// All wait for all.
    Barrier = "barrier", copied(Portion::Nothing, Portion::Nothing);
}

impl CollectiveKind {
    /// True if results are folds.
    pub const fn folds(self) -> bool {
        self.traffic().folds
    }

    /// The least traffic on the bus.
    pub const fn bus_factor(self) -> BusFactor {
        let Traffic { send, receive, folds, .. } = self.traffic();
        match (folds, send, receive) {
            (true, Portion::Whole, Portion::Whole) => BusFactor::OthersTwice,
            (_, Portion::Pieces, _) | (_, _, Portion::Pieces) => BusFactor::Others,
            _ => BusFactor::One,
        }
    }

    /// The kind of that name.
    pub fn parse(name: &str) -> Option<CollectiveKind> {
        CollectiveKind::ALL.into_iter().find(|k| k.name() == name)
    }

    /// The kind whose members send and receive that.
    pub fn of_traffic(traffic: Traffic) -> Option<CollectiveKind> {
        CollectiveKind::ALL.into_iter().find(|k| k.traffic() == traffic)
    }
}

/// Bytes that a device must send, or receive, at least for each byte of the greater of its buffers (nccl-tests,
/// `doc/PERFORMANCE.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusFactor {
    /// The others' pieces, and then its own piece to them.
    OthersTwice,
    /// The others' pieces.
    Others,
    /// All of it.
    One,
}

impl BusFactor {
    /// In a group of this size.
    pub fn of(self, members: usize) -> f64 {
        let others = (members as f64 - 1.0) / members as f64;
        match self {
            BusFactor::OthersTwice => 2.0 * others,
            BusFactor::Others => others,
            BusFactor::One => 1.0,
        }
    }
}

/// As a formula of the number of members, n.
impl std::fmt::Display for BusFactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BusFactor::OthersTwice => "2(n-1)/n",
            BusFactor::Others => "(n-1)/n",
            BusFactor::One => "1",
        })
    }
}

impl std::fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The latency of a collective, as bytes on the wire, in quarters: 4 KiB, the bytes that move in some microseconds.
/// So a way with fewer collectives is taken where blocks are small, and one with fewer bytes where they are large.
const LATENCY: u64 = 4 * 4096;

/// The effect of a collective on a placement. All other properties of a collective in a Plan follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveSpec<'a> {
    /// Without attributes.
    pub kind: CollectiveKind,
    /// The axes of its group.
    pub axes: &'a [Axis],
    /// The fold that it finishes: the operand is partial over the axes, the result is not.
    pub monoid: Option<Monoid>,
    /// The member that alone has the operand, which is partial over the axes as a sum: the others have zero.
    pub root: Option<usize>,
    /// The dim that is put together, of each operand: it loses the axes. Empty where none is.
    pub join: &'a [Dim],
    /// The dim that is cut, of each operand: it gets the axes. Empty where none is.
    pub split: &'a [Dim],
    /// The dim whose shards become windows.
    pub window: Option<(Dim, Window)>,
    /// The dim whose shards go from each member to the one before it.
    pub rotates: Option<Dim>,
}

impl CollectiveSpec<'_> {
    /// The dim along which each member gets ranges that others hold.
    pub fn moves_ranges(&self) -> Option<Dim> {
        self.window.map(|w| w.0).or(self.rotates)
    }

    /// The partial result that it finishes: a fold, or a sum that one member has.
    fn closes(&self) -> Option<Monoid> {
        self.monoid.or(self.root.map(|_| Monoid::Sum))
    }

    /// True if operands may share a call: each is cut, joined or neither.
    pub fn is_bucketable(&self) -> bool {
        self.moves_ranges().is_none() && (self.join.is_empty() || self.split.is_empty())
    }
}

impl Collective {
    /// Its effect.
    pub fn spec(&self) -> CollectiveSpec<'_> {
        let of = |kind, axes| CollectiveSpec {
            kind,
            axes,
            monoid: None,
            root: None,
            join: &[],
            split: &[],
            window: None,
            rotates: None,
        };
        let one = std::slice::from_ref;
        match self {
            Collective::AllReduce { axes, monoid } => {
                CollectiveSpec { monoid: Some(*monoid), ..of(CollectiveKind::AllReduce, axes) }
            }
            Collective::Broadcast { axes, root } => {
                CollectiveSpec { root: Some(*root), ..of(CollectiveKind::Broadcast, axes) }
            }
            Collective::ReduceScatter { axis, monoid, dims } => CollectiveSpec {
                monoid: Some(*monoid),
                split: dims,
                ..of(CollectiveKind::ReduceScatter, one(axis))
            },
            Collective::AllGather { axis, dims } => {
                CollectiveSpec { join: dims, ..of(CollectiveKind::AllGather, one(axis)) }
            }
            Collective::AllToAll { axis, join, split } => CollectiveSpec {
                join: std::slice::from_ref(join),
                split: std::slice::from_ref(split),
                ..of(CollectiveKind::AllToAll, one(axis))
            },
            Collective::Permute { axes, dim, window } => {
                CollectiveSpec { window: Some((*dim, *window)), ..of(CollectiveKind::Permute, axes) }
            }
            Collective::Rotate { axes, dim } => {
                CollectiveSpec { rotates: Some(*dim), ..of(CollectiveKind::Permute, axes) }
            }
        }
    }

    /// The dim that is cut or joined of each operand, where operands share a call.
    fn dims_mut(&mut self) -> Option<&mut Vec<Dim>> {
        match self {
            Collective::ReduceScatter { dims, .. } | Collective::AllGather { dims, .. } => Some(dims),
            _ => None,
        }
    }

    /// Adds the operands of another bucket of its kind, over the same axes and of the same monoid, behind its own.
    pub fn extend(&mut self, mut other: Collective) {
        if let (Some(dims), Some(more)) = (self.dims_mut(), other.dims_mut()) {
            dims.append(more);
        }
    }

    /// Leaves out operands of a bucket: those for which `keep`, in their order, is false.
    pub fn retain(&mut self, keep: &[bool]) {
        let mut keep = keep.iter();
        if let Some(dims) = self.dims_mut() {
            dims.retain(|_| keep.next().copied().unwrap_or(true));
        }
    }

    /// True if it may have this number of operands.
    pub fn takes(&self, operands: usize) -> bool {
        let c = self.spec();
        match c.is_bucketable() {
            true => operands > 0 && [c.join, c.split].iter().all(|d| d.is_empty() || d.len() == operands),
            false => operands == 1,
        }
    }

    /// Without attributes.
    pub fn kind(&self) -> CollectiveKind {
        self.spec().kind
    }

    /// `all_reduce` and so on.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// The axes of its group.
    pub fn axes(&self) -> &[Axis] {
        self.spec().axes
    }

    /// Devices of its group.
    pub fn devices(&self, mesh: &Mesh) -> usize {
        self.axes().iter().map(|a| mesh.size(*a)).product()
    }

    /// The placement of the result of its only operand, placed as `p`; `None` where it does not apply. A dim that is stored by a
    /// window is a copy for one op: only other dims of it still move. A rotation leaves the placement as it is, and another shard
    /// to each.
    pub fn apply(&self, p: &Placement) -> Option<Placement> {
        self.takes(1).then(|| self.apply_to(0, p))?
    }

    /// The same of its operand at that position.
    pub fn apply_to(&self, operand: usize, p: &Placement) -> Option<Placement> {
        let c = self.spec();
        let at = |dims: &[Dim]| match dims {
            [] => Some(None),
            dims => dims.get(operand).map(|d| Some(*d)),
        };
        let (join, split) = (at(c.join)?, at(c.split)?);
        let mut dims = join.into_iter().chain(split).chain(c.window.map(|w| w.0));
        if dims.any(|d| p.windows.contains_key(&d)) || join.is_some() && join == split {
            return None;
        }
        let mut q = p.clone();
        if let Some(monoid) = c.closes() {
            for a in c.axes {
                (q.partial.remove(a)? == monoid).then_some(())?;
            }
        }
        if let Some(dim) = join {
            for a in c.axes.iter().rev() {
                (q.pop(dim)? == *a).then_some(())?;
            }
        }
        if let Some(dim) = split {
            c.axes.iter().for_each(|a| q.push(dim, *a));
        }
        if let Some(dim) = c.rotates {
            (p.axes(dim) == c.axes && !p.windows.contains_key(&dim)).then_some(())?;
        }
        if let Some((dim, window)) = c.window {
            (p.axes(dim) == c.axes).then_some(())?;
            q.windows.insert(dim, window);
        }
        Some(q)
    }

    /// Bytes on the wire, per device and in quarters of a byte (so that ties are exact), from a block of `before` bytes to
    /// one of `after`, and what starting it costs.
    pub fn wire_bytes(&self, dims: &Dims, mesh: &Mesh, before: usize, after: usize) -> u64 {
        let c = self.spec();
        let (before, after) = (before as u64, after as u64);
        let devices = self.devices(mesh).max(1) as u64;
        if let Some((dim, window)) = c.window {
            // What the devices lack on average, as the gather counts it: so where all of them need all, the two tie, and
            // a gather, which a layout must permit, is never the cheaper way to a halo.
            let all = window.largest(dims.size(dim), c.axes, mesh).max(1) as u64;
            let lacking = window.missing_in_all(dims.size(dim), c.axes, mesh) as u64;
            return 4 * (after / all) * lacking / devices + LATENCY;
        }
        // Each device first sends the others' pieces of what it has, to be folded or joined there, and then its own piece of
        // the result to the others, if they need it too. An all-reduce does both. Of a broadcast each but the root receives all.
        let sent = |b: u64| 4 * (devices - 1) * b / devices;
        let scatters = if c.monoid.is_some() || !c.split.is_empty() { sent(before) } else { 0 };
        let gathers = if c.split.is_empty() { sent(after) } else { 0 };
        scatters + gathers + LATENCY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name_and_by_its_traffic() {
        for kind in CollectiveKind::ALL {
            assert_eq!(CollectiveKind::parse(kind.name()), Some(kind));
            assert_eq!(CollectiveKind::of_traffic(kind.traffic()), Some(kind));
        }
        assert_eq!(CollectiveKind::parse("gather"), None);
    }
}
