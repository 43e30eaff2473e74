//! Collectives: their names, what they do to a placement, and what they cost.

use crate::{Axis, Dim, Dims, Mesh, Monoid, Operand, Placement, Plan, Window};
use serde::{Deserialize, Serialize};

/// Communication over the group of some mesh axes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "collective")]
pub enum Collective {
    /// Folds equal shapes.
    AllReduce {
        /// Over which axes, jointly; ascending.
        axes: Vec<Axis>,
        /// How to fold, in ascending order of the group.
        monoid: Monoid,
    },
    /// Folds, and keeps this device's shard of a dim, to whose axes `axis` is appended.
    ReduceScatter {
        /// Over which axis.
        axis: Axis,
        /// How to fold, in ascending order of the group.
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
        /// What is needed of it.
        window: Window,
    },
}

/// What a transport is asked for: a collective without its attributes, or what programs do around steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    /// See [`Collective::AllReduce`].
    AllReduce,
    /// See [`Collective::ReduceScatter`].
    ReduceScatter,
    /// See [`Collective::AllGather`].
    AllGather,
    /// See [`Collective::AllToAll`].
    AllToAll,
    /// See [`Collective::Permute`].
    Permute,
    /// One member's memory goes to all.
    Broadcast,
    /// All wait for all.
    Barrier,
}

impl CollectiveKind {
    /// Every kind.
    pub const ALL: [CollectiveKind; 7] = [
        CollectiveKind::AllReduce,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllGather,
        CollectiveKind::AllToAll,
        CollectiveKind::Permute,
        CollectiveKind::Broadcast,
        CollectiveKind::Barrier,
    ];

    /// `all_reduce` and so on.
    pub const fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Permute => "permute",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Barrier => "barrier",
        }
    }

    /// Whether results are folds.
    pub const fn folds(self) -> bool {
        matches!(self, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter)
    }

    /// Bytes that a device must send, or receive, at least for each byte of the greater of its buffers (nccl-tests,
    /// `doc/PERFORMANCE.md`).
    pub fn bus_factor(self, members: usize) -> f64 {
        let others = (members as f64 - 1.0) / members as f64;
        match self {
            CollectiveKind::AllReduce => 2.0 * others,
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => others,
            CollectiveKind::Permute | CollectiveKind::Broadcast | CollectiveKind::Barrier => 1.0,
        }
    }

    /// The kind of that name.
    pub fn parse(name: &str) -> Option<CollectiveKind> {
        CollectiveKind::ALL.into_iter().find(|k| k.name() == name)
    }
}

impl std::fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a collective costs before its first byte, as bytes on the wire, in quarters: 4 KiB, what moves in some microseconds.
/// So a way with fewer collectives is taken where blocks are small, and one with fewer bytes where they are large.
const LATENCY: u64 = 4 * 4096;

impl Collective {
    /// An all-gather of one operand.
    pub fn all_gather(axis: Axis, dim: Dim) -> Collective {
        Collective::AllGather { axis, dims: vec![dim] }
    }

    /// A reduce-scatter of one operand.
    pub fn reduce_scatter(axis: Axis, monoid: Monoid, dim: Dim) -> Collective {
        Collective::ReduceScatter { axis, monoid, dims: vec![dim] }
    }

    /// Of a bucket, what happens to its `k`-th operand; `None` where that is not said.
    pub fn part(&self, k: usize) -> Option<Collective> {
        match self {
            Collective::AllReduce { .. } => Some(self.clone()),
            Collective::ReduceScatter { axis, monoid, dims } => {
                Some(Collective::reduce_scatter(*axis, *monoid, *dims.get(k)?))
            }
            Collective::AllGather { axis, dims } => Some(Collective::all_gather(*axis, *dims.get(k)?)),
            Collective::AllToAll { .. } | Collective::Permute { .. } => (k == 0).then(|| self.clone()),
        }
    }

    /// Adds the operands of another bucket of its kind, over the same axes and of the same monoid, behind its own.
    pub fn extend(&mut self, other: Collective) {
        use Collective::{AllGather, ReduceScatter};
        if let (ReduceScatter { dims, .. }, ReduceScatter { dims: more, .. })
        | (AllGather { dims, .. }, AllGather { dims: more, .. }) = (self, other)
        {
            dims.extend(more);
        }
    }

    /// Whether it is of so many operands.
    pub fn takes(&self, operands: usize) -> bool {
        match self {
            Collective::AllReduce { .. } => operands > 0,
            Collective::ReduceScatter { dims, .. } | Collective::AllGather { dims, .. } => {
                operands > 0 && dims.len() == operands
            }
            Collective::AllToAll { .. } | Collective::Permute { .. } => operands == 1,
        }
    }

    /// Without attributes.
    pub fn kind(&self) -> CollectiveKind {
        match self {
            Collective::AllReduce { .. } => CollectiveKind::AllReduce,
            Collective::ReduceScatter { .. } => CollectiveKind::ReduceScatter,
            Collective::AllGather { .. } => CollectiveKind::AllGather,
            Collective::AllToAll { .. } => CollectiveKind::AllToAll,
            Collective::Permute { .. } => CollectiveKind::Permute,
        }
    }

    /// `all_reduce` and so on.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// The axes of its group.
    pub fn axes(&self) -> &[Axis] {
        match self {
            Collective::AllReduce { axes, .. } | Collective::Permute { axes, .. } => axes,
            Collective::ReduceScatter { axis, .. }
            | Collective::AllGather { axis, .. }
            | Collective::AllToAll { axis, .. } => std::slice::from_ref(axis),
        }
    }

    /// Devices of its group.
    pub fn devices(&self, mesh: &Mesh) -> usize {
        self.axes().iter().map(|a| mesh.size(*a)).product()
    }

    /// The placement of the result of its only operand, placed as `p`; `None` where it does not apply. A dim that is stored by a
    /// window is a copy for one op: only other dims of it still move.
    pub fn apply(&self, p: &Placement) -> Option<Placement> {
        let mut q = p.clone();
        let moves = |d: &Dim| (!p.windows.contains_key(d)).then_some(());
        match self {
            Collective::AllReduce { axes, monoid } => {
                for a in axes {
                    (q.partial.remove(a)? == *monoid).then_some(())?;
                }
            }
            Collective::ReduceScatter { axis, monoid, dims } => {
                let [dim] = dims.as_slice() else { return None };
                moves(dim)?;
                (q.partial.remove(axis)? == *monoid).then_some(())?;
                q.push(*dim, *axis);
            }
            Collective::AllGather { axis, dims } => {
                let [dim] = dims.as_slice() else { return None };
                moves(dim)?;
                (q.pop(*dim)? == *axis).then_some(())?;
            }
            Collective::AllToAll { axis, join, split } => {
                moves(join)?;
                moves(split)?;
                (q.pop(*join)? == *axis && join != split).then_some(())?;
                q.push(*split, *axis);
            }
            Collective::Permute { axes, dim, window } => {
                moves(dim)?;
                (p.axes(*dim) == axes).then_some(())?;
                q.windows.insert(*dim, *window);
            }
        }
        Some(q)
    }

    /// The bytes of one device's buffer (the greatest): what goes in, of an all-gather what comes out, of a permute what
    /// comes from others.
    pub fn bytes(&self, plan: &Plan, from: &Operand, to: &Operand) -> usize {
        let whole = |o: &Operand| plan.buffer(o.buf).largest_bytes(&plan.mesh);
        match self {
            Collective::AllGather { .. } => whole(to),
            Collective::AllReduce { .. } | Collective::ReduceScatter { .. } | Collective::AllToAll { .. } => {
                whole(from)
            }
            Collective::Permute { axes, dim, window } => {
                let buffer = plan.buffer(to.buf);
                let along = to.dims.iter().zip(&buffer.extents);
                let elements = along.map(|(d, e)| match d == dim {
                    true => window.missing(e.size, axes, &plan.mesh),
                    false => e.largest(&plan.mesh),
                });
                elements.product::<usize>() * buffer.dtype.bytes()
            }
        }
    }

    /// Bytes on the wire, per device and in quarters of a byte (so that ties are exact), from a block of `before` bytes to
    /// one of `after`, and what starting it costs.
    pub fn wire_bytes(&self, dims: &Dims, mesh: &Mesh, before: usize, after: usize) -> u64 {
        let (before, after) = (before as u64, after as u64);
        let devices = self.devices(mesh).max(1) as u64;
        let sent = |b: u64| 4 * (devices - 1) * b / devices;
        let bytes = match self {
            Collective::AllReduce { .. } => 2 * sent(before),
            Collective::ReduceScatter { .. } | Collective::AllToAll { .. } => sent(before),
            Collective::AllGather { .. } => sent(after),
            Collective::Permute { axes, dim, window } => {
                // What the devices lack on average, as the gather counts it: so where all of them need all, the two tie, and
                // never is a gather, of which a layout must speak, the cheaper way to a halo.
                let all = window.largest(dims.size(*dim), axes, mesh).max(1) as u64;
                let lacking = window.missing_in_all(dims.size(*dim), axes, mesh) as u64;
                4 * (after / all) * lacking / devices
            }
        };
        bytes + LATENCY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in CollectiveKind::ALL {
            assert_eq!(CollectiveKind::parse(kind.name()), Some(kind));
        }
        assert_eq!(CollectiveKind::parse("gather"), None);
    }
}
