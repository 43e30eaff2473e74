//! The cheapest chain of reshard steps between two placements (`docs/partition.md`, "Reshard paths"): Dijkstra over placements.

use meshwright_ops::Type;
use meshwright_plan::{Axis, Collective, Dim, Dims, Mesh, Monoid, Placement, Window};
use meshwright_sorted::{SortedMap, SortedSet};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One step of a reshard path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reshard {
    /// Devices talk to each other.
    Collective(Collective),
    /// Each device keeps its shard of a dim.
    Slice {
        /// The axis.
        axis: Axis,
        /// The dim that is split.
        dim: Dim,
    },
    /// Each device keeps what a loop needs of a dim that is whole.
    SliceWindow {
        /// The axes of the loop, major first.
        axes: Vec<Axis>,
        /// The dim.
        dim: Dim,
        /// The needed window.
        window: Window,
    },
}

impl Reshard {
    /// The placement after it; `None` where it does not apply to `p`.
    pub fn apply(&self, p: &Placement) -> Option<Placement> {
        let mut q = p.clone();
        match self {
            Reshard::Collective(c) => return c.apply(p),
            Reshard::SliceWindow { axes, dim, window } => {
                (p.axes(*dim).is_empty() && !axes.is_empty()).then_some(())?;
                for a in axes {
                    (!q.uses(*a)).then_some(())?;
                    q.push(*dim, *a);
                }
                q.windows.insert(*dim, *window);
            }
            Reshard::Slice { axis, dim } => {
                // A copy with a window belongs to one op: only its other dims still move.
                (!p.uses(*axis) && !p.windows.contains_key(dim)).then_some(())?;
                q.push(*dim, *axis);
            }
        }
        Some(q)
    }

    /// The collective, where devices talk to each other.
    pub fn collective(&self) -> Option<&Collective> {
        match self {
            Reshard::Collective(c) => Some(c),
            Reshard::Slice { .. } | Reshard::SliceWindow { .. } => None,
        }
    }

    /// See [`Collective::wire_bytes`]; a slice costs nothing.
    pub fn wire_bytes(&self, dims: &Dims, mesh: &Mesh, before: usize, after: usize) -> u64 {
        self.collective().map_or(0, |c| c.wire_bytes(dims, mesh, before, after))
    }
}

impl From<Collective> for Reshard {
    fn from(c: Collective) -> Reshard {
        Reshard::Collective(c)
    }
}

/// Cost and steps; `None` without a path.
type Found = Option<(u64, Vec<Reshard>)>;

/// A memo of reshard paths, by dims, bytes of an element, and both placements.
#[derive(Default)]
pub(super) struct ReshardPaths {
    memo: SortedMap<(Vec<Dim>, usize, Placement, Placement), Found>,
}

impl ReshardPaths {
    /// The cheapest steps from `src` to `dst` and their cost (bytes on the wire in quarters); `None` if there are none.
    pub(super) fn cheapest(
        &mut self,
        ty: &Type,
        dims: &Dims,
        mesh: &Mesh,
        src: &Placement,
        dst: &Placement,
    ) -> Option<(u64, Vec<Reshard>)> {
        if src == dst {
            return Some((0, Vec::new()));
        }
        let key = (ty.dims.clone(), ty.dtype.bytes(), src.clone(), dst.clone());
        if let Some(found) = self.memo.get(&key) {
            return found.clone();
        }
        // A path over shards larger than both ends is taken only without another one.
        let bound = bytes(ty, dims, mesh, src).max(bytes(ty, dims, mesh, dst));
        let found =
            search(ty, dims, mesh, src, dst, bound).or_else(|| search(ty, dims, mesh, src, dst, usize::MAX));
        self.memo.insert(key, found.clone());
        found
    }
}

fn bytes(ty: &Type, dims: &Dims, mesh: &Mesh, p: &Placement) -> usize {
    p.elements(&ty.dims, dims, mesh) * ty.dtype.bytes()
}

/// The cheapest path on which no shard is larger than `bound` bytes.
fn search(ty: &Type, dims: &Dims, mesh: &Mesh, src: &Placement, dst: &Placement, bound: usize) -> Found {
    let axes: Vec<Axis> =
        mesh.iter().filter(|a| mesh.size(*a) > 1 && (src.uses(*a) || dst.uses(*a))).collect();
    let mut best: SortedMap<Placement, u64> = SortedMap::from([(src.clone(), 0)]);
    let mut paths: Vec<(Placement, Vec<Reshard>)> = vec![(src.clone(), Vec::new())];
    // Cost, number of steps, order of discovery: a total order, so that the result does not depend on the heap.
    let mut heap = BinaryHeap::from([Reverse((0u64, 0usize, 0usize))]);
    while let Some(Reverse((cost, moves, i))) = heap.pop() {
        let (p, path) = paths[i].clone();
        if p == *dst {
            return Some((cost, path));
        }
        if best.get(&p).is_some_and(|b| cost > *b) {
            continue;
        }
        let before = bytes(ty, dims, mesh, &p);
        for m in edges(ty, &axes, &p, dst) {
            let Some(q) = m.apply(&p) else { continue };
            let after = bytes(ty, dims, mesh, &q);
            let c = cost + m.wire_bytes(dims, mesh, before, after);
            if after <= bound && best.get(&q).is_none_or(|b| c < *b) {
                best.insert(q.clone(), c);
                let mut longer = path.clone();
                longer.push(m);
                paths.push((q, longer));
                heap.push(Reverse((c, moves + 1, paths.len() - 1)));
            }
        }
    }
    None
}

/// Number of axes up to which all paths are tried. Beyond, a dim gets only the axis that it needs next, and loses none
/// that it may keep: few paths are left for any number of axes, and a cheaper one with alternating dims may be missed.
const FEW: usize = 3;

/// The steps of a path from `p` to `dst`. `axes` are the axes of its two ends: an axis of neither is not used on the
/// path.
fn edges(ty: &Type, axes: &[Axis], p: &Placement, dst: &Placement) -> Vec<Reshard> {
    let mut out = Vec::new();
    for (dim, window) in dst.windows.iter().filter(|(d, _)| !p.windows.contains_key(d)) {
        let (axes, dim, window) = (dst.axes(*dim).to_vec(), *dim, *window);
        if p.axes(dim).is_empty() {
            out.push(Reshard::SliceWindow { axes, dim, window });
        } else {
            out.push(Collective::Permute { axes, dim, window }.into());
        }
    }
    let open: Vec<(Axis, Monoid)> =
        p.partial.iter().filter(|(a, _)| !dst.partial.contains_key(a)).map(|(a, m)| (*a, *m)).collect();
    out.extend(all_reduces(&open, dst));
    // Axes that a dim may get, and dims that may lose their last axis.
    let few = axes.len() <= FEW;
    let gets = |d: Dim, a: Axis| {
        few || dst.axes(d).strip_prefix(p.axes(d)).and_then(|rest| rest.first()) == Some(&a)
    };
    // The elements of a window are fetched from their devices: a gather fetches no less.
    let fetches = |d: Dim| dst.windows.contains_key(&d) && p.axes(d) == dst.axes(d);
    let loses = |d: Dim| (few || !dst.axes(d).starts_with(p.axes(d))) && !fetches(d);
    for axis in axes {
        for dim in ty.dims.iter().filter(|d| gets(**d, *axis)) {
            match open.iter().find(|o| o.0 == *axis) {
                Some((_, monoid)) => {
                    out.push(
                        Collective::ReduceScatter { axis: *axis, monoid: *monoid, dims: vec![*dim] }.into(),
                    );
                }
                None if !p.uses(*axis) => out.push(Reshard::Slice { axis: *axis, dim: *dim }),
                None => {}
            }
        }
    }
    for (dim, split) in p.splits.iter().filter(|(d, _)| loses(**d)) {
        let Some(axis) = split.last().copied() else { continue };
        out.push(Collective::AllGather { axis, dims: vec![*dim] }.into());
        for to in ty.dims.iter().filter(|to| *to != dim && gets(**to, axis)) {
            out.push(Collective::AllToAll { axis, join: *dim, split: *to }.into());
        }
    }
    out
}

/// All-reduces of partial axes with the same fold: of all of them, of the axes that the destination does not split over,
/// and of each alone.
fn all_reduces(open: &[(Axis, Monoid)], dst: &Placement) -> Vec<Reshard> {
    let mut sets: SortedSet<(Vec<Axis>, Monoid)> = SortedSet::new();
    for (axis, monoid) in open {
        let alike = || open.iter().filter(|o| o.1 == *monoid).map(|o| o.0);
        sets.insert((vec![*axis], *monoid));
        sets.insert((alike().collect(), *monoid));
        sets.insert((alike().filter(|a| !dst.split_axes().any(|s| s == *a)).collect(), *monoid));
    }
    sets.into_iter()
        .filter(|s| !s.0.is_empty())
        .map(|(axes, monoid)| Collective::AllReduce { axes, monoid }.into())
        .collect()
}

#[cfg(test)]
#[path = "tests/paths.rs"]
mod tests;
