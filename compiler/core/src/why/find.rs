//! The values that a question names.

use super::Teller;
use crate::explain::shown;
use crate::partition::{Instr, Spmd};
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_ops::Id;
use meshwright_plan::Dim;
use std::collections::{BTreeMap, BTreeSet};

/// Every name with the values that bear it, in order.
pub(super) fn names(spmd: &Spmd) -> BTreeMap<String, Vec<Id>> {
    let g = &spmd.step.graph;
    let mut out: BTreeMap<String, Vec<Id>> = BTreeMap::new();
    let mut rest: BTreeMap<String, Vec<Id>> = BTreeMap::new();
    let mut told = BTreeSet::new();
    for instr in spmd.instrs.iter().filter(|i| !matches!(i, Instr::Reshard { .. })) {
        let id = spmd.copy(instr.out()).value;
        if !told.insert(id) {
            continue;
        }
        let n = g.node(id);
        let path = &*n.origin.path;
        let full = |name: &str| match path {
            "" => None,
            _ if name.starts_with(path) => None,
            _ => Some(format!("{path}.{name}")),
        };
        if let Some(name) = shown(g, id, spmd) {
            out.entry(name.clone()).or_default().push(id);
            out.extend(full(&name).map(|f| (f, vec![id])));
        }
        if !n.origin.name.is_empty() {
            for name in full(&n.origin.name).into_iter().chain([n.origin.name.to_string()]) {
                rest.entry(name).or_default().push(id);
            }
        }
    }
    // A value that a name is shown for comes before those it is made of.
    for (name, ids) in rest {
        let mine = out.entry(name).or_default();
        let more: Vec<Id> = ids.into_iter().rev().filter(|i| !mine.contains(i)).collect();
        mine.extend(more);
    }
    out
}

impl Teller<'_> {
    /// The values and the dim of `VALUE.DIM`.
    pub(super) fn find(&self, question: &str) -> Result<(Vec<Id>, Dim), Box<Diagnostic>> {
        let g = &self.spmd.step.graph;
        let error = |text: String| Diagnostic::error(codes::E0523, text);
        let dims_of = |value: &str| {
            let mut dims: Vec<&str> = Vec::new();
            for id in self.names.get(value).into_iter().flatten() {
                for d in &g.ty(*id).dims {
                    if !dims.contains(&g.dims.name(*d)) {
                        dims.push(g.dims.name(*d));
                    }
                }
            }
            dims
        };
        let (value, dim) = question.rsplit_once('.').unwrap_or((question, ""));
        // `h.w` is a value, and what is missing is its dim.
        if let Some(first) = dims_of(question).first()
            && (!self.names.contains_key(value) || !dims_of(value).contains(&dim))
        {
            return Err(Box::new(
                error(format!("`{question}` is a value: of which of its dims do you ask?"))
                    .help(format!("such as `--why '{question}.{first}'`")),
            ));
        }
        let Some(ids) = self.names.get(value) else {
            let d = error(format!("no value is called `{value}`"));
            let near = nearest(value, self.names.keys().map(String::as_str));
            let under: Vec<&str> =
                self.names.keys().filter(|n| n.ends_with(&format!(".{value}"))).map(String::as_str).collect();
            return Err(Box::new(match (near, under.first()) {
                (Some(near), _) => d.help(format!("did you mean `{near}`?")),
                (None, Some(first)) => d.help(format!("did you mean `{first}`?")),
                (None, None) => d.help("`meshwright explain MODEL` lists the values"),
            }));
        };
        let having =
            |dim: Dim| ids.iter().copied().filter(|i| g.ty(*i).dims.contains(&dim)).collect::<Vec<_>>();
        let found = g.dims.find(dim).map(|d| (d, having(d))).filter(|f| !f.1.is_empty());
        let Some((d, having)) = found else {
            let dims = dims_of(value);
            let e = error(format!("`{value}` has no dim `{dim}`"));
            let e = match dims.as_slice() {
                [] => e.note("it is a single number: there is nothing to split"),
                all => e.note(format!("its dims are {}", all.join(", "))),
            };
            return Err(Box::new(match nearest(dim, dims.iter().copied()) {
                Some(near) => e.help(format!("did you mean `{value}.{near}`?")),
                None => e,
            }));
        };
        // Of several calls of a layer each value that bears the name; else the last that it is made of.
        let mut ids: Vec<Id> = having.iter().copied().filter(|i| self.is_shown(*i, value)).collect();
        if ids.is_empty() {
            ids.extend(having.first());
        }
        Ok((ids, d))
    }

    /// Whether `explain` shows the value by that name.
    fn is_shown(&self, id: Id, value: &str) -> bool {
        let name = shown(&self.spmd.step.graph, id, self.spmd);
        name.is_some_and(|n| n == value || value.ends_with(&format!(".{n}")))
    }
}
