//! From rules to splits: which axes each dim of one value gets, and the conflicts that only show on a value.

use super::rules::{Layout, Rule, RuleDim, chain};
use crate::resolve::matches;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Class, Graph, Id};
use meshwright_plan::{Axis, Dim, Dims, Placement};
use std::collections::{BTreeMap, BTreeSet};

/// Axes of each dim, with the rule that gave each axis.
#[derive(Clone, Debug, Default)]
pub struct Assigned {
    /// Axes of each dim, major first.
    pub splits: BTreeMap<Dim, Vec<Axis>>,
    /// The rule (position in [`Layout::rules`]) by which each axis is used.
    pub by: BTreeMap<Axis, usize>,
    /// Pairs of strict rules that want one axis: the one that has it, the one that does not, and the axis.
    pub conflicts: Vec<(usize, usize, Axis)>,
    /// Rules that yielded an axis to another: the yielding one, the other, the axis.
    pub yielded: Vec<(usize, usize, Axis)>,
    /// Rules that spoke, in order, with the dim that each spoke of (`*` of one that was free).
    pub spoke: Vec<(usize, Dim)>,
    /// Rules that did not speak, because one of a more specific scope speaks of their dim: the silent one, the other.
    pub silenced: Vec<(usize, usize)>,
}

impl Assigned {
    /// As a placement.
    pub fn placement(&self) -> Placement {
        Placement::split(self.splits.clone())
    }
}

/// Rules that speak of values of a class and path, with positions in [`Layout::rules`]: the most specific for each dim;
/// strict ones first, then those that yield, each in order of specificity. Those that a more specific one silences go to
/// `silenced`, with it.
fn effective(layout: &Layout, class: Class, path: &str, silenced: &mut Vec<(usize, usize)>) -> Vec<usize> {
    let kinds = chain(class);
    let mut scopes: Vec<Vec<usize>> = Vec::new();
    let matching = |f: &dyn Fn(&Rule) -> bool| -> Vec<usize> {
        let mut found: Vec<usize> = (0..layout.rules.len()).filter(|i| f(&layout.rules[*i])).collect();
        // Of several globs that match, the one with the longest text is the most specific.
        found.sort_by_key(|i| std::cmp::Reverse(layout.rules[*i].scope.path.as_ref().map_or(0, String::len)));
        found
    };
    let on_path = |r: &Rule| r.scope.path.as_ref().is_some_and(|p| matches(p, path));
    for k in kinds {
        scopes.push(matching(&|r| r.scope.kind == Some(*k) && on_path(r)));
    }
    scopes.push(matching(&|r| r.scope.kind.is_none() && on_path(r)));
    for k in kinds {
        scopes.push(matching(&|r| r.scope.kind == Some(*k) && r.scope.path.is_none()));
    }
    scopes.push(matching(&|r| r.scope.kind.is_none() && r.scope.path.is_none()));
    let scopes: Vec<Vec<usize>> = scopes.into_iter().flat_map(|s| by_glob(layout, s)).collect();
    let mut out: Vec<usize> = Vec::new();
    for scope in scopes {
        let said = out.len();
        for i in scope {
            match out[..said].iter().find(|o| layout.rules[**o].dim == layout.rules[i].dim) {
                Some(other) => silenced.push((i, *other)),
                None => out.push(i),
            }
        }
    }
    // A rule of a dim comes before one for any dim, so that `*` takes what is left.
    let rank = |i: &usize| (layout.rules[*i].free, layout.rules[*i].dim == RuleDim::Any);
    out.sort_by_key(rank);
    out
}

/// The rules of each glob, in the order of the first of each: each glob is a scope of its own.
fn by_glob(layout: &Layout, rules: Vec<usize>) -> Vec<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = Vec::new();
    let path = |i: usize| layout.rules[i].scope.path.as_ref();
    for i in rules {
        match out.iter_mut().find(|s| path(s[0]) == path(i)) {
            Some(same) => same.push(i),
            None => out.push(vec![i]),
        }
    }
    out
}

/// The splits of `dims` (of one value, or of the loops of one op) by the rules.
pub fn assign(layout: &Layout, class: Class, path: &str, dims: &[Dim], table: &Dims) -> Assigned {
    let mut out = Assigned::default();
    for i in effective(layout, class, path, &mut out.silenced) {
        let rule = &layout.rules[i];
        let dim = match rule.dim {
            RuleDim::Dim(d) => Some(d).filter(|d| dims.contains(d)),
            RuleDim::Any => dims
                .iter()
                .copied()
                .filter(|d| !out.splits.contains_key(d))
                .max_by_key(|d| (table.size(*d), std::cmp::Reverse(*d))),
        };
        let Some(dim) = dim else { continue };
        out.spoke.push((i, dim));
        for a in &rule.axes {
            match out.by.get(a) {
                Some(owner) if rule.dim == RuleDim::Any => out.yielded.push((i, *owner, *a)),
                Some(owner) if rule.free || layout.rules[*owner].free => out.yielded.push((i, *owner, *a)),
                Some(owner) => out.conflicts.push((*owner, i, *a)),
                None => {
                    out.by.insert(*a, i);
                    out.splits.entry(dim).or_default().push(*a);
                }
            }
        }
    }
    out
}

/// Every value of which two strict rules split two dims over one axis; reported once for each pair of rules. Runs on the
/// layout with axes of size 1 in place, so that whether a layout is legal does not depend on sizes.
pub fn check_conflicts(layout: &Layout, graph: &Graph, live: &dyn Fn(Id) -> bool) -> Vec<Diagnostic> {
    let mut out = Vec::new();
    let mut told: BTreeSet<(usize, usize)> = BTreeSet::new();
    for id in graph.ids().filter(|i| live(*i)) {
        let node = graph.node(id);
        let got = assign(layout, node.origin.class, &node.origin.path, &node.ty.dims, &graph.dims);
        for (first, second, axis) in &got.conflicts {
            if told.insert((*first, *second)) {
                out.push(conflict(layout, graph, id, &layout.rules[*first], &layout.rules[*second], *axis));
            }
        }
    }
    out
}

fn conflict(layout: &Layout, graph: &Graph, id: Id, first: &Rule, second: &Rule, axis: Axis) -> Diagnostic {
    let name = |r: &Rule| match r.dim {
        RuleDim::Dim(d) => graph.dims.name(d).to_string(),
        RuleDim::Any => "*".into(),
    };
    let (a, b) = (name(first), name(second));
    let value = graph.describe(id);
    let d = Diagnostic::error(
        codes::E0304,
        format!("`{value}`: `{a}` and `{b}` are both split over `{}`", layout.mesh.name(axis)),
    )
    .at(second.span, format!("rule {}: `{}`", second.number, second.text))
    .and(graph.node(id).origin.span, "a value with both dims");
    if first.number == second.number {
        return d.help(format!(
            "one rule splits both; split only one of `{a}` and `{b}`, or rename one dim of this value"
        ));
    }
    let d = d.and(first.span, format!("rule {}: `{}`", first.number, first.text));
    let end = Span { start: second.span.end, ..second.span };
    let d = d.fix("let the second yield where the first uses the axis", end, " when free", false);
    if first.scope != second.scope {
        let (scope, general) = if first.scope == Default::default() { (second, &a) } else { (first, &b) };
        let word = scope.scope.kind.map_or("params", |k| k.word());
        d.help(format!("or keep the general rule out of this scope: `{word}: {general} -> -`"))
    } else {
        d.help("or give one of them another axis")
    }
}
