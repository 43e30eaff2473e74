//! From rules to splits: which axes each dim of one value gets, and the conflicts that only show on a value.

use super::rules::{Layout, Rule, RuleDim, chain};
use crate::resolve::{PatternIndex, matches};
use meshwright_diag::{Diagnostic, MAX_REPORTED, Span, codes};
use meshwright_ops::{Class, Graph, Id};
use meshwright_plan::{Axis, Dim, Dims, Placement, Splits};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_syntax::ast::ScopeKind;
use std::borrow::Cow;
use std::cmp::Reverse;

/// Axes of each dim, with the rule that gave each axis.
#[derive(Clone, Debug, Default)]
pub struct Assigned {
    /// Axes of each dim, major first.
    pub splits: Splits,
    /// The rule (position in [`Layout::rules`]) by which each axis is used.
    pub by: SortedMap<Axis, usize>,
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

/// The rules of one scope, by the dim that they speak of.
type Level = SortedMap<RuleDim, Vec<usize>>;

/// The rules of a layout, found by what they speak of: a program may have as many values as a layout has rules.
#[derive(Clone, Debug)]
pub struct Rulebook<'a> {
    layout: &'a Layout,
    /// Rules without a path, by the kind of their scope.
    plain: SortedMap<Option<ScopeKind>, Level>,
    /// Rules with a path.
    paths: PatternIndex,
}

impl<'a> Rulebook<'a> {
    /// Of a layout.
    pub fn new(layout: &'a Layout) -> Self {
        let mut plain: SortedMap<Option<ScopeKind>, Level> = SortedMap::new();
        for (i, r) in layout.rules.iter().enumerate().filter(|(_, r)| r.scope.path.is_none()) {
            plain.entry(r.scope.kind).or_default().entry(r.dim).or_default().push(i);
        }
        let paths = layout.rules.iter().enumerate().filter_map(|(i, r)| Some((i, r.scope.path.as_deref()?)));
        Rulebook { layout, plain, paths: PatternIndex::new(paths) }
    }

    /// The layout.
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// The scopes with rules for a class and a path, the most specific first.
    fn levels(&self, class: Class, path: &str) -> Vec<Cow<'_, Level>> {
        let kinds = chain(class);
        let rule = |i: usize| &self.layout.rules[i];
        let candidates = self.paths.candidates(path).into_iter();
        let text = |i: usize| rule(i).scope.path.as_deref().unwrap_or("");
        let mut on_path: Vec<usize> = candidates.filter(|i| matches(text(*i), path)).collect();
        // Of several globs that match, the one with the longest text is the most specific.
        on_path.sort_by_key(|i| Reverse(text(*i).len()));
        let mut levels: Vec<Cow<'_, Level>> = Vec::new();
        for kind in kinds.iter().map(|k| Some(*k)).chain([None]) {
            // Each glob is a scope of its own, in the order of the first rule of each.
            let mut globs: SortedMap<&str, usize> = SortedMap::new();
            for i in on_path.iter().copied().filter(|i| rule(*i).scope.kind == kind) {
                let at = *globs.entry(text(i)).or_insert_with(|| {
                    levels.push(Cow::Owned(Level::new()));
                    levels.len() - 1
                });
                levels[at].to_mut().entry(rule(i).dim).or_default().push(i);
            }
        }
        let plain = kinds.iter().map(|k| Some(*k)).chain([None]).filter_map(|k| self.plain.get(&k));
        levels.extend(plain.map(Cow::Borrowed));
        levels
    }

    /// Rules on values of a class and path with some of these dims, with positions in [`Layout::rules`]: the most
    /// specific for each dim; strict ones first, then yielding ones, each in order of specificity. Each comes with the
    /// dim of the value: its own, or a second name of it; none for `*`. Rules that a more specific one silences go to
    /// `silenced`, with it.
    fn effective(
        &self,
        class: Class,
        path: &str,
        dims: &[Dim],
        silenced: &mut Vec<(usize, usize)>,
    ) -> Vec<(usize, Option<Dim>)> {
        let levels = self.levels(class, path);
        let (mut out, mut silent) = (Vec::new(), Vec::new());
        // Beside its first name, a second one follows nothing.
        let named = dims.iter().map(|d| (*d, self.layout.first_name(*d)));
        let named = named.filter(|(d, first)| d == first || !dims.contains(first));
        for (named, dim) in
            named.map(|(d, first)| (Some(d), RuleDim::Dim(first))).chain([(None, RuleDim::Any)])
        {
            let mut first = None;
            for (level, rules) in levels.iter().enumerate().filter_map(|(k, l)| Some((k, l.get(&dim)?))) {
                match first {
                    Some(other) => silent.extend(rules.iter().map(|i| (level, *i, other))),
                    None => {
                        first = rules.first().copied();
                        out.extend(rules.iter().map(|i| (level, *i, named)));
                    }
                }
            }
        }
        // A rule of a dim comes before one for any dim, so that `*` takes what is left.
        let rank = |i: usize| (self.layout.rules[i].free, self.layout.rules[i].dim == RuleDim::Any);
        out.sort_unstable_by_key(|(level, i, _)| (rank(*i), *level, *i));
        silent.sort_unstable();
        silenced.extend(silent.into_iter().map(|(_, i, other)| (i, other)));
        out.into_iter().map(|(_, i, named)| (i, named)).collect()
    }
}

/// The splits of `dims` (of one value, or of the loops of one op) by the rules.
pub fn assign(rules: &Rulebook<'_>, class: Class, path: &str, dims: &[Dim], table: &Dims) -> Assigned {
    let layout = rules.layout;
    let mut out = Assigned::default();
    for (i, named) in rules.effective(class, path, dims, &mut out.silenced) {
        let rule = &layout.rules[i];
        let largest = || {
            // Of what the compiler added, what counts positions that the program has; and never iterations.
            let meant = |d: &Dim| table.declared(*d).is_some_and(|of| !layout.loops.contains(&of));
            let free = |d: &Dim| !out.splits.contains_key(d) && meant(d);
            dims.iter().copied().filter(free).max_by_key(|d| (table.size(*d), Reverse(*d)))
        };
        let Some(dim) = named.or_else(largest) else { continue };
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

/// Every value whose two dims two strict rules split over one axis; reported once for each pair of rules. Runs on the
/// layout with its axes of size 1, so that the legality of a layout does not depend on sizes.
pub fn check_conflicts(layout: &Layout, graph: &Graph, live: &dyn Fn(Id) -> bool) -> Vec<Diagnostic> {
    let mut out = Vec::new();
    let mut told: SortedSet<(usize, usize)> = SortedSet::new();
    let rules = Rulebook::new(layout);
    for id in graph.ids().filter(|i| live(*i)) {
        if out.len() >= MAX_REPORTED {
            break;
        }
        let node = graph.node(id);
        let got = assign(&rules, node.origin.class, &node.origin.path, &node.ty.dims, &graph.dims);
        for (first, second, axis) in &got.conflicts {
            if told.insert((*first, *second)) {
                out.push(conflict(layout, graph, id, &layout.rules[*first], &layout.rules[*second], *axis));
            }
        }
    }
    out
}

fn conflict(layout: &Layout, graph: &Graph, id: Id, first: &Rule, second: &Rule, axis: Axis) -> Diagnostic {
    let dims = &graph.ty(id).dims;
    let name = |r: &Rule| match r.dim {
        RuleDim::Dim(d) => {
            let here = dims.iter().copied().find(|h| *h == d || layout.first_name(*h) == d);
            graph.dims.name(here.unwrap_or(d)).to_string()
        }
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
    // Stages do not yield, nor can their axis split anything else of theirs.
    if let Some(stages) = layout.pipeline.as_ref().filter(|p| p.axes.contains(&axis)) {
        let (loop_dim, axis) = (graph.dims.name(stages.dim), layout.mesh.name(axis));
        let other = if first.span == stages.span { &b } else { &a };
        return d.help(format!(
            "the stages of `{loop_dim}` are along `{axis}`: give `{other}` another axis of the mesh"
        ));
    }
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
