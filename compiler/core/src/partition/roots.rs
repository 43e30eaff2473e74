//! Values that one stage alone has: what a loop of one iteration leaves as a sum over stages, and what is linear in it.

use super::spmd::CopyId;
use meshwright_ops::{Crossing, Graph, Id, RepeatId};
use meshwright_plan::{Axis, Extent, Mesh, PartialAxes, only_member};
use meshwright_sorted::SortedMap;

/// The members that alone have copies, by position in the group over the axes over which these are partial.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roots(SortedMap<CopyId, usize>);

impl Roots {
    /// The member that alone has a copy.
    pub(crate) fn of(&self, copy: CopyId) -> Option<usize> {
        self.0.get(&copy).copied()
    }

    /// Notes a copy that an op makes, from the partial ones among its operands, in a graph where a loop is split over `axes`.
    pub(crate) fn made(
        &mut self,
        (g, mesh): (&Graph, &Mesh),
        axes: &dyn Fn(RepeatId) -> Vec<Axis>,
        (id, partial, out): (Id, &PartialAxes, CopyId),
        operands: &[(CopyId, &PartialAxes)],
    ) {
        let root = match g.boundary(id) {
            _ if partial.is_empty() => None,
            // A sum over further iterations is for what other stages add, too: it is reduced with theirs.
            Some(b) if b.how == Crossing::Accumulate && operands.is_empty() => {
                let (of, mut over) = (Extent::of(&g.dims, b.dim, &axes(b.of)), axes(b.of));
                over.sort();
                let whole = partial.keys().eq(&over);
                only_member(&of, g.repeats[b.of].from, mesh).filter(|_| whole)
            }
            Some(_) => None,
            None => {
                // Over a further axis all have a part of a sum.
                let root = |(x, of): &(CopyId, &PartialAxes)| self.of(*x).filter(|_| *of == partial);
                let mut roots = operands.iter().map(root);
                roots.next().flatten().filter(|first| roots.all(|root| root == Some(*first)))
            }
        };
        self.0.extend(root.map(|root| (out, root)));
    }

    /// Notes a copy that is made of another one; it may still be partial.
    pub(crate) fn moved(&mut self, from: CopyId, partial: &PartialAxes, out: CopyId) {
        let root = self.of(from).filter(|_| !partial.is_empty());
        self.0.extend(root.map(|root| (out, root)));
    }
}
