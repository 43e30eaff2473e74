//! Rules that speak of nothing: a path that no value has, or a dim that none of the values they speak of has.

use crate::program::Program;
use crate::resolve::matches;
use meshwright_diag::{Diagnostic, Severity, codes, nearest};
use meshwright_ops::{InputOpKind, Kind, union};
use meshwright_plan::Dim;
use meshwright_syntax::ast::{DimPattern, LayoutFile, LayoutKind, Rule, ScopeKind};
use std::collections::{BTreeMap, BTreeSet};

/// Dims that the values of each path have, or that the ops making them run over.
type DimsByPath<'a> = BTreeMap<&'a str, BTreeSet<Dim>>;

/// Every rule of a layout that speaks of no value of a program: an error, in a `shared` file a note.
pub(super) fn unmatched(file: &LayoutFile, program: &Program, shared: bool, out: &mut Vec<Diagnostic>) {
    let g = &program.graph;
    let (mut values, mut params) = (DimsByPath::new(), DimsByPath::new());
    for id in g.ids() {
        let n = g.node(id);
        let dims = union(g.input_types(id).into_iter().chain([&n.ty]));
        values.entry(&n.origin.path).or_default().extend(&dims);
        if matches!(n.op.kind(), Kind::Input(InputOpKind::Param { .. } | InputOpKind::State { .. })) {
            params.entry(&n.origin.path).or_default().extend(&dims);
        }
    }
    for item in &file.items {
        let LayoutKind::Rule(rule) = &item.kind else { continue };
        let paths = if rule.scope.kind.is_some() { &params } else { &values };
        let before = out.len();
        check(rule, program, paths, out);
        for d in out[before..].iter_mut().filter(|_| shared) {
            d.severity = Severity::Note;
        }
    }
}

/// `parameter`, or what else a rule speaks of.
fn word(kind: Option<ScopeKind>) -> &'static str {
    match kind {
        None => "value",
        Some(ScopeKind::Params) => "parameter",
        Some(ScopeKind::Grads) => "gradient",
        Some(ScopeKind::Moments) => "moment",
    }
}

fn check(rule: &Rule, program: &Program, paths: &DimsByPath<'_>, out: &mut Vec<Diagnostic>) {
    let word = word(rule.scope.kind.map(|k| k.0));
    let glob = rule.scope.path.as_ref();
    let spoken = || paths.iter().filter(|p| glob.is_none_or(|g| matches(&g.text, p.0)));
    if let Some(glob) = glob
        && spoken().next().is_none()
    {
        let text = format!("no {word} of the model `{}` has a path like `{}`", program.model, glob.text);
        let d = Diagnostic::error(codes::E0302, text).at(glob.span, "matches nothing");
        let all = patterns(paths);
        let close = nearest(&glob.text, all.iter().map(String::as_str)).map(|c| c.to_string());
        out.push(match close {
            Some(c) => d.fix(format!("did you mean `{c}`?"), glob.span, c, false),
            None => {
                let some: Vec<String> =
                    paths.keys().filter(|p| !p.is_empty()).take(12).map(|p| format!("`{p}`")).collect();
                let d = if some.is_empty() { d } else { d.note(format!("paths: {}", some.join(", "))) };
                d.help("name a path of the model, or leave the rule out: it would split nothing")
            }
        });
        return;
    }
    for pattern in &rule.dims {
        let DimPattern::Dim(name) = pattern else { continue };
        let Some(dim) = program.graph.dims.find(&name.text) else { continue };
        if spoken().any(|p| p.1.contains(&dim)) {
            continue;
        }
        let place = glob.map_or(String::new(), |g| format!(" under `{}`", g.text));
        let has: BTreeSet<&str> = spoken().flat_map(|p| p.1).map(|d| program.graph.dims.name(*d)).collect();
        let has: Vec<String> = has.into_iter().map(|d| format!("`{d}`")).collect();
        let mut d = Diagnostic::error(codes::E0302, format!("no {word}{place} has the dim `{}`", name.text))
            .at(name.span, "splits nothing");
        if !has.is_empty() {
            d = d.note(format!("dims there: {}", has.join(", ")));
        }
        out.push(d.help("name one that is there, or leave the rule out"));
    }
}

/// Every path, and for what lies below each layer `layer.*`.
fn patterns(paths: &DimsByPath<'_>) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for path in paths.keys().filter(|p| !p.is_empty()) {
        out.insert(path.to_string());
        out.extend(path.match_indices('.').map(|(i, _)| format!("{}.*", &path[..i])));
        out.extend(path.rsplit_once('.').map(|(_, last)| format!("*.{last}")));
    }
    out
}
