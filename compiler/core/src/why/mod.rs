//! Why a dim of a value is split as it is: the reasons that the partitioner kept, as a chain from the value to the rules, and
//! the collectives that follow. Nothing is decided again here.

mod caused;
mod facts;
mod find;
mod text;

pub use text::text;

use crate::layout::Layout;
use crate::partition::{CopyId, Instr, Reason, Spmd};
use crate::rows::Rows;
use meshwright_diag::{Diagnostic, Location, Span};
use meshwright_ops::Id;
use meshwright_plan::{Axis, Dim, Phase, largest_shard};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Where a span stands; `None` for a place that is nowhere.
pub type PlaceOf<'a> = dyn Fn(Span) -> Option<Location> + 'a;

/// A rule that is spoken of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleReport {
    /// Its number in the layout, from 1.
    pub number: usize,
    /// Its text, for one dim.
    pub text: String,
    /// Where it stands.
    pub place: Option<Location>,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fact {
    /// `rule`, `overridden`, `yielded`, `elsewhere`, `no_rule`, `replicated`, `followed`, `refused`, `wanted`, `renamed`,
    /// `partial`, `reduced`, `gone` or `rematerializable`.
    pub kind: &'static str,
    /// It in words.
    pub text: String,
    /// The rule it is about, if it is about one.
    pub rule: Option<RuleReport>,
}

/// What is known of a dim of one value of the chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The value.
    pub value: String,
    /// The dim.
    pub dim: String,
    /// The op that makes it.
    pub op: String,
    /// Where the model says so.
    pub place: Option<Location>,
    /// The facts, in the order in which they were decided.
    pub facts: Vec<Fact>,
}

/// A collective that the split brings about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Caused {
    /// `all_reduce` and so on.
    pub op: String,
    /// Its axes.
    pub axes: Vec<String>,
    /// Bytes of one device's buffer: what goes in, or for an all-gather what comes out.
    pub bytes: usize,
    /// Part of the step.
    pub phase: Phase,
    /// The value that is moved.
    pub value: String,
    /// Where the model says so.
    pub place: Option<Location>,
    /// Why.
    pub because: String,
}

/// The answer for one dim of a value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Why {
    /// The value, by its number in the partitioned step.
    pub id: u32,
    /// Its path with its dims.
    pub value: String,
    /// Its path.
    pub path: String,
    /// The dim.
    pub dim: String,
    /// Its size.
    pub size: usize,
    /// Axes that split it where the value is made, major first.
    pub axes: Vec<String>,
    /// The largest shard of it on one device.
    pub shard: usize,
    /// The whole placement, as `explain` shows it.
    pub split_by: String,
    /// From the value to what decided, the value itself first.
    pub chain: Vec<Link>,
    /// Collectives that the split brings about, in order.
    pub collectives: Vec<Caused>,
}

/// Answers `PATH.DIM` for a partitioned step, or `PATH` for each of its dims. PATH may lack its first elements where that
/// leaves no doubt; that of a layer call stands for the last value in it.
///
/// # Errors
/// Where no value has that path, several end so, or it has no such dim.
pub fn why(
    spmd: &Spmd,
    layout: &Layout,
    question: &str,
    place_of: &PlaceOf,
) -> Result<Vec<Why>, Box<Diagnostic>> {
    let rows = Rows::of(spmd);
    let paths = find::paths(spmd, &rows);
    let t = Teller { spmd, layout, place_of, rows, paths };
    Ok(t.find(question)?.into_iter().map(|(id, dim)| t.answer(id, dim)).collect())
}

struct Teller<'a> {
    spmd: &'a Spmd,
    layout: &'a Layout,
    place_of: &'a PlaceOf<'a>,
    rows: Rows,
    paths: BTreeMap<String, Vec<Id>>,
}

impl Teller<'_> {
    fn describe(&self, id: Id) -> String {
        let g = &self.spmd.step.graph;
        match self.rows.path(id) {
            Some(path) => format!("{path}{}", g.dims.list(&g.ty(id).dims)),
            None => g.describe(id),
        }
    }

    /// The version in which a value is made.
    fn made(&self, id: Id) -> Option<CopyId> {
        let moved = |i: &&Instr| !matches!(i, Instr::Reshard { .. });
        let mut outs = self.spmd.instrs.iter().filter(moved).map(Instr::out);
        outs.find(|v| self.spmd.copy(*v).value == id)
    }

    fn axes(&self, id: Id, dim: Dim) -> &[Axis] {
        self.made(id).map_or(&[], |v| self.spmd.copy(v).placement.axes(dim))
    }

    fn place(&self, id: Id) -> Option<Location> {
        (self.place_of)(self.spmd.step.graph.node(id).origin.span)
    }

    fn answer(&self, id: Id, dim: Dim) -> Why {
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

    fn axis_names(&self, axes: &[Axis]) -> Vec<String> {
        axes.iter().map(|a| self.spmd.mesh.name(*a).to_string()).collect()
    }

    // --------------------------------------------------------------------------------------------- the chain

    /// The axes that the rules give a dim of a value.
    fn ruled(&self, id: Id, dim: Dim) -> Vec<Axis> {
        let said = self.spmd.reasons(id).iter().filter_map(|r| match r {
            Reason::Rules { said, .. } => said.splits.get(&dim),
            _ => None,
        });
        said.flatten().copied().collect()
    }

    fn tell(&self, id: Id, dim: Dim, chain: &mut Vec<Link>, told: &mut BTreeSet<(Id, Dim)>) {
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
