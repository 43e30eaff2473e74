//! The values and dims that a question names.

use super::Teller;
use crate::partition::{Instr, Spmd};
use crate::rows::Rows;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_ops::Id;
use meshwright_plan::{Dim, Phase};
use meshwright_sorted::{SortedMap, SortedSet};

/// The most paths that an error lists.
const LISTED: usize = 24;

/// Every path with the values that it was given to: the one that bears it, then the others, the last first. What only brings a
/// value across the boundary of a loop comes behind the value.
pub(super) fn paths(spmd: &Spmd, rows: &Rows) -> SortedMap<String, Vec<Id>> {
    let g = &spmd.step.graph;
    let made = spmd.instrs.iter().filter(|i| !matches!(i, Instr::Reshard { .. }));
    let made: SortedSet<Id> = made.map(|i| spmd.copy(i.out()).value).collect();
    let mut out: SortedMap<String, Vec<Id>> = SortedMap::new();
    for id in &made {
        if let Some(path) = rows.path(*id) {
            out.entry(path.into()).or_default().push(*id);
        }
    }
    for id in made.iter().rev().filter(|id| !g.node(**id).origin.name.is_empty()) {
        let values = out.entry(g.path(*id).into()).or_default();
        if !values.contains(id) {
            values.push(*id);
        }
    }
    out.values_mut().for_each(|values| values.sort_by_key(|id| g.boundary(*id).is_some()));
    out
}

/// `d(b1.up)` in three: what is made of a value, its path, and the rest.
fn parts(path: &str) -> (&str, &str, &str) {
    let start = path.rfind(['(', ' ']).map_or(0, |i| i + 1);
    let end = path[start..].find(')').map_or(path.len(), |i| start + i);
    (&path[..start], &path[start..end], &path[end..])
}

/// Whether `short` is `path` without some of its first elements: `d(up)` for `d(b1.up)`.
fn shortens(short: &str, path: &str) -> bool {
    let (s, p) = (parts(short), parts(path));
    let ends = p.1.strip_suffix(s.1).is_some_and(|rest| rest.ends_with('.'));
    (s.0, s.2) == (p.0, p.2) && ends && !s.1.is_empty()
}

impl Teller<'_> {
    /// The values and dims of `PATH.DIM` or `PATH`, where PATH may lack its first elements if one value alone ends so.
    pub(super) fn find(&self, question: &str) -> Result<Vec<(Id, Dim)>, Box<Diagnostic>> {
        let split = question.rsplit_once('.');
        for whole in [true, false] {
            let called = |name: &str| -> Vec<&str> {
                let all = self.paths.keys().map(String::as_str);
                all.filter(|p| if whole { *p == name } else { shortens(name, p) }).collect()
            };
            if let Some((value, dim)) = split {
                let found: Vec<_> =
                    called(value).into_iter().filter_map(|p| Some((p, self.having(p, dim)?))).collect();
                match found.as_slice() {
                    [] => {}
                    [(_, one)] => return Ok(vec![*one]),
                    all => return Err(ambiguous(value, &all.iter().map(|f| f.0).collect::<Vec<_>>(), dim)),
                }
            }
            match called(question).as_slice() {
                [] => {}
                [one] => return self.all_dims(self.paths[*one][0], question),
                all => return Err(ambiguous(question, all, "")),
            }
        }
        let of_layer = split.and_then(|(path, dim)| self.result_of(path, Some(dim)));
        if let Some(found) = of_layer {
            return Ok(vec![found]);
        }
        if let Some((id, _)) = self.result_of(question, None) {
            return self.all_dims(id, question);
        }
        Err(Box::new(self.unknown(question)))
    }

    /// The value of a path that has a dim, with the dim: where possible the one that bears the path.
    fn having(&self, path: &str, dim: &str) -> Option<(Id, Dim)> {
        let g = &self.spmd.step.graph;
        let dim = g.dims.find(dim)?;
        let id = self.paths.get(path)?.iter().find(|i| g.ty(**i).has(dim))?;
        Some((*id, dim))
    }

    fn all_dims(&self, id: Id, question: &str) -> Result<Vec<(Id, Dim)>, Box<Diagnostic>> {
        let dims = &self.spmd.step.graph.ty(id).dims;
        if dims.is_empty() {
            let d = Diagnostic::error(codes::E0523, format!("`{question}` has no dims"));
            return Err(Box::new(d.note("it is a scalar: there is nothing to split")));
        }
        Ok(dims.iter().map(|d| (id, *d)).collect())
    }

    /// What the call of a layer ends with: the last value of its forward pass, of those that have the dim.
    fn result_of(&self, layer: &str, dim: Option<&str>) -> Option<(Id, Dim)> {
        let g = &self.spmd.step.graph;
        let within = |p: &str| p.strip_prefix(layer).is_some_and(|rest| rest.starts_with('.'));
        let dim = dim.map(|d| g.dims.find(d).ok_or(())).transpose().ok()?;
        let fits = |id: &Id| match dim {
            Some(d) => g.ty(*id).has(d),
            None => !g.ty(*id).dims.is_empty(),
        };
        let shown = self.paths.iter().filter(|(p, _)| within(p)).filter_map(|(_, ids)| ids.first().copied());
        let computed = |id: &Id| !g.node(*id).inputs.is_empty() && g.node(*id).origin.phase == Phase::Forward;
        let last = shown.filter(computed).filter(fits).max()?;
        Some((last, dim.or(g.ty(last).dims.first().copied())?))
    }

    fn unknown(&self, question: &str) -> Diagnostic {
        let g = &self.spmd.step.graph;
        let (value, dim) = question.rsplit_once('.').unwrap_or((question, ""));
        let error = |text: String| Diagnostic::error(codes::E0523, text);
        let Some((path, ids)) = self.paths.iter().find(|(p, _)| *p == value || shortens(value, p)) else {
            let d = error(format!("no value is called `{question}`"));
            let near = [question, value].into_iter().find_map(|q| {
                nearest(q, self.paths.keys().map(String::as_str)).map(|n| match q == question {
                    true => n.to_string(),
                    false => format!("{n}.{dim}"),
                })
            });
            return match near {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None => d.help("`meshwright explain MODEL` lists the values"),
            };
        };
        let mut dims: Vec<&str> = Vec::new();
        for d in ids.iter().flat_map(|id| &g.ty(*id).dims) {
            if !dims.contains(&g.dims.name(*d)) {
                dims.push(g.dims.name(*d));
            }
        }
        let e = error(format!("`{path}` has no dim `{dim}`"));
        let e = match dims.as_slice() {
            [] => e.note("it is a scalar: there is nothing to split"),
            all => e.note(format!("its dims are {}", all.join(", "))),
        };
        match nearest(dim, dims.iter().copied()) {
            Some(near) => e.help(format!("did you mean `{path}.{near}`?")),
            None => e,
        }
    }
}

/// Several values end so.
fn ambiguous(name: &str, paths: &[&str], dim: &str) -> Box<Diagnostic> {
    let dot = if dim.is_empty() { "" } else { "." };
    let mut listed: Vec<String> = paths.iter().take(LISTED).map(|p| format!("`{p}{dot}{dim}`")).collect();
    if paths.len() > LISTED {
        listed.push(format!("{} more", paths.len() - LISTED));
    }
    let d = Diagnostic::error(codes::E0523, format!("{} values are called `{name}`", paths.len()));
    Box::new(d.help(format!("ask for one of them by its path: {}", listed.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::shortens;

    #[test]
    fn a_short_name_is_the_end_of_a_path() {
        for (short, path) in
            [("up", "b1.up"), ("d(up)", "d(b1.up)"), ("new w/m", "new b1.w/m"), ("f.up", "b1.f.up")]
        {
            assert!(shortens(short, path), "{short} of {path}");
        }
        for (short, path) in [
            ("p", "b1.up"),
            ("up", "d(b1.up)"),
            ("d(up)", "b1.up"),
            ("b1", "b1.up"),
            ("", "b1.up"),
            ("up", "up"),
        ] {
            assert!(!shortens(short, path), "{short} of {path}");
        }
    }
}
