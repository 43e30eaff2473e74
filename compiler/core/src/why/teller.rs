//! The chain from a value to what decided.

use super::report::{Fact, Link, PlaceOf, Why};
use crate::layout::Layout;
use crate::partition::{CopyId, Instr, Reason, Spmd};
use crate::rows::Rows;
use meshwright_diag::Location;
use meshwright_ops::Id;
use meshwright_plan::{Axis, Dim, largest_shard};
use std::collections::{BTreeMap, BTreeSet};

/// A partitioned step of which something is asked.
pub(super) struct Teller<'a> {
    pub(super) spmd: &'a Spmd,
    pub(super) layout: &'a Layout,
    pub(super) place_of: &'a PlaceOf<'a>,
    pub(super) rows: Rows,
    pub(super) paths: BTreeMap<String, Vec<Id>>,
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
        self.tell(id, dim, &mut chain, &mut BTreeSet::new());
        Why {
            id: id.0,
            value: self.describe(id),
            path: self.rows.path(id).unwrap_or_else(|| g.path(id)).into(),
            dim: g.dims.name(dim).into(),
            size: g.dims.size(dim),
            axes: self.axis_names(axes),
            shard: largest_shard(g.dims.size(dim), axes, &self.spmd.mesh),
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

    pub(super) fn tell(&self, id: Id, dim: Dim, chain: &mut Vec<Link>, told: &mut BTreeSet<(Id, Dim)>) {
        if !told.insert((id, dim)) {
            return;
        }
        let g = &self.spmd.step.graph;
        let mut facts = Vec::new();
        let mut next = Vec::new();
        if !g.ty(id).dims.contains(&dim) {
            let text = format!("the result of `{}` no longer has it", g.node(id).op.name());
            facts.push(Fact { kind: "gone", text, rule: None });
        }
        for reason in self.spmd.reasons(id) {
            self.facts(id, dim, reason, &mut facts, &mut next);
        }
        chain.push(Link {
            value: self.describe(id),
            dim: g.dims.name(dim).into(),
            op: g.node(id).op.name().into(),
            place: self.place(id),
            facts,
        });
        for (id, dim) in next {
            self.tell(id, dim, chain, told);
        }
    }
}
