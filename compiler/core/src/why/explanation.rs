//! The chain from a value to what decided.

use super::report::{Fact, Link, PlaceOf, Why};
use crate::layout::Layout;
use crate::partition::{CopyId, Instr, Reason, Spmd};
use crate::rows::Rows;
use meshwright_diag::Location;
use meshwright_ops::{Boundary, Crossing, Id};
use meshwright_plan::{Axis, Dim, Extent};
use meshwright_sorted::{SortedMap, SortedSet};

/// A partitioned step of which something is asked.
pub(super) struct Teller<'a> {
    pub(super) spmd: &'a Spmd,
    pub(super) layout: &'a Layout,
    pub(super) place_of: &'a PlaceOf<'a>,
    pub(super) rows: Rows,
    pub(super) paths: SortedMap<String, Vec<Id>>,
}

impl Teller<'_> {
    pub(super) fn describe(&self, id: Id) -> String {
        let g = &self.spmd.step.graph;
        match self.rows.path(id) {
            Some(path) => format!("{path}{}", g.dims.list(&g.ty(id).dims)),
            None => g.describe(id),
        }
    }

    /// The version in which a value is made.
    pub(super) fn made(&self, id: Id) -> Option<CopyId> {
        let moved = |i: &&Instr| !matches!(i, Instr::Reshard { .. });
        let mut outs = self.spmd.instrs.iter().filter(moved).map(Instr::out);
        outs.find(|v| self.spmd.copy(*v).value == id)
    }

    pub(super) fn axes(&self, id: Id, dim: Dim) -> &[Axis] {
        self.made(id).map_or(&[], |v| self.spmd.copy(v).placement.axes(dim))
    }

    pub(super) fn place(&self, id: Id) -> Option<Location> {
        (self.place_of)(self.spmd.step.graph.node(id).origin.span)
    }

    pub(super) fn answer(&self, id: Id, dim: Dim) -> Why {
        let g = &self.spmd.step.graph;
        let axes = self.axes(id, dim);
        let placement = self.made(id).map(|v| self.spmd.copy(v).placement.clone()).unwrap_or_default();
        let mut chain = Vec::new();
        self.tell(id, dim, &mut chain, &mut SortedSet::new());
        Why {
            id: id.0,
            value: self.describe(id),
            path: self.rows.path(id).unwrap_or_else(|| g.path(id)).into(),
            dim: g.dims.name(dim).into(),
            size: g.dims.size(dim),
            axes: self.axis_names(axes),
            shard: Extent::of(&g.dims, dim, axes).largest(&self.spmd.mesh),
            split_by: placement.describe(&g.dims, &self.spmd.mesh),
            chain,
            collectives: self.caused(id, dim),
        }
    }

    pub(super) fn axis_names(&self, axes: &[Axis]) -> Vec<String> {
        axes.iter().map(|a| self.spmd.mesh.name(*a).to_string()).collect()
    }

    // --------------------------------------------------------------------------------------------- the chain

    /// The axes that the rules give a dim of a value.
    pub(super) fn ruled(&self, id: Id, dim: Dim) -> Vec<Axis> {
        let said = self.spmd.reasons(id).iter().filter_map(|r| match r {
            Reason::Rules { said, .. } => said.splits.get(&dim),
            _ => None,
        });
        said.flatten().copied().collect()
    }

    pub(super) fn tell(&self, id: Id, dim: Dim, chain: &mut Vec<Link>, told: &mut SortedSet<(Id, Dim)>) {
        if !told.insert((id, dim)) {
            return;
        }
        let g = &self.spmd.step.graph;
        let mut facts = Vec::new();
        let mut next = Vec::new();
        if !g.ty(id).dims.contains(&dim) {
            let text = format!("the result of `{}` no longer has it", g.spelled(id));
            facts.push(Fact { kind: "gone", text, rule: None });
        }
        for reason in self.spmd.reasons(id) {
            self.facts(id, dim, reason, &mut facts, &mut next);
        }
        if let Some(boundary) = g.boundary(id).filter(|_| facts.is_empty()) {
            facts.push(self.crossing(id, dim, boundary, &mut next));
        }
        chain.push(Link {
            value: self.describe(id),
            dim: g.dims.name(dim).into(),
            op: g.spelled(id).into(),
            place: self.place(id),
            facts,
        });
        for (id, dim) in next {
            self.tell(id, dim, chain, told);
        }
    }

    /// What crosses the boundary of a loop is split as it is on the other side.
    fn crossing(&self, id: Id, dim: Dim, boundary: Boundary, next: &mut Vec<(Id, Dim)>) -> Fact {
        let g = &self.spmd.step.graph;
        let (of, over) = (g.node(id).inputs[0], g.dims.name(boundary.dim));
        let value = self.describe(of);
        let what = match boundary.how {
            _ if dim == boundary.dim => {
                let text = format!("`{over}` is the dim of the loop, whose iterations every device runs");
                return Fact { kind: "loop", text, rule: None };
            }
            Crossing::Carry(_) => format!("the loop over `{over}` begins with `{value}` and carries it on"),
            Crossing::Slice => format!("it is `{value}` at the position of the iteration of `{over}`"),
            Crossing::Final => format!("it is `{value}` after the last iteration of `{over}`"),
            Crossing::Stack => format!("it is `{value}` of all iterations of `{over}`"),
            Crossing::Accumulate => format!("it is the sum of `{value}` over all iterations of `{over}`"),
        };
        next.push((of, dim));
        Fact { kind: "loop", text: format!("{what}; it is split as that is"), rule: None }
    }
}
