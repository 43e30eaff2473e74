//! Rules that speak of nothing: a path that no value has, or a dim that none of the values they speak of has.

use super::index::{DimIndex, first_of};
use super::recompute_paths::recomputed_names;
use crate::program::Program;
use crate::resolve::{PathIndex, matches};
use meshwright_diag::{Diagnostic, MAX_REPORTED, Severity, codes, nearest};
use meshwright_ops::{InputOpKind, Kind, union};
use meshwright_plan::Dim;
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_syntax::ast::{DimPattern, LayoutFile, LayoutKind, PathGlob, Rule, ScopeKind};

/// Dims that the values of each path have, or that the ops making them run over.
type DimsByPath<'a> = SortedMap<&'a str, SortedSet<Dim>>;

/// Every rule of a layout that speaks of no value of a program: an error, in a `shared` file a note.
pub(super) fn unmatched(file: &LayoutFile, index: &DimIndex<'_>, shared: bool, out: &mut Vec<Diagnostic>) {
    let g = &index.program.graph;
    let (mut values, mut params) = (DimsByPath::new(), DimsByPath::new());
    for id in g.ids() {
        let n = g.node(id);
        let dims = union(g.input_types(id).into_iter().chain([&n.ty]));
        values.entry(&n.origin.path).or_default().extend(&dims);
        if matches!(n.op.kind(), Kind::Input(InputOpKind::Param { .. } | InputOpKind::State { .. })) {
            params.entry(&n.origin.path).or_default().extend(&dims);
        }
    }
    let (values, params) = (Spoken::new(values), Spoken::new(params));
    let (names, kept) = names_of(index.program);
    let computed = Spoken::new(names.iter().map(|n| (n.as_str(), SortedSet::new())).collect());
    let kept = PathIndex::new(kept);
    for item in &file.items {
        if out.len() >= MAX_REPORTED {
            return;
        }
        let before = out.len();
        match &item.kind {
            LayoutKind::Rule(rule) => {
                let paths = if rule.scope.kind.is_some() { &params } else { &values };
                check(rule, index, paths, out);
            }
            LayoutKind::KeepParams(globs) => {
                let unknown = globs.iter().filter(|g| params.index.matching(&g.text).is_empty());
                let told = |g| no_such_path(g, "parameter", "it would keep nothing", &params, index.program);
                out.extend(unknown.take(MAX_REPORTED).map(told));
            }
            LayoutKind::Recompute(globs) => {
                let unknown = globs.iter().filter_map(|g| not_recomputed(g, &computed, &kept, index.program));
                out.extend(unknown.take(MAX_REPORTED));
            }
            _ => continue,
        }
        for d in out[before..].iter_mut().filter(|_| shared) {
            d.severity = Severity::Note;
        }
    }
}

/// What `recompute` may name, and what it may not: parameters and inputs.
fn names_of(program: &Program) -> (SortedSet<String>, SortedSet<&str>) {
    let (mut computed, mut kept) = (SortedSet::new(), SortedSet::new());
    for id in program.graph.ids() {
        let node = program.graph.node(id);
        if let Some(mine) = recomputed_names(node) {
            computed.extend(mine.map(|n| n.into_owned()));
        } else if matches!(node.op.kind(), Kind::Input(_)) {
            kept.extend([&*node.origin.path, &*node.origin.name]);
        }
    }
    // The path of the model itself is empty.
    (computed, kept.into_iter().filter(|n| !n.is_empty()).collect())
}

/// The error for a pattern of `recompute` that matches no `computed` value, and maybe something that is `kept`.
fn not_recomputed(
    glob: &PathGlob,
    computed: &Spoken<'_>,
    kept: &PathIndex<'_>,
    program: &Program,
) -> Option<Diagnostic> {
    if !computed.index.matching(&glob.text).is_empty() {
        return None;
    }
    if kept.matching(&glob.text).is_empty() {
        return Some(no_such_path(glob, "value", "it would compute nothing again", computed, program));
    }
    let text =
        format!("`{}` names nothing that is computed: parameters and inputs are there anyway", glob.text);
    let d = Diagnostic::error(codes::E0302, text).at(glob.span, "computes nothing again");
    Some(with_paths(d, computed).help("name a value or the path of a layer, or `*` for all that is computed"))
}

fn with_paths(d: Diagnostic, paths: &Spoken<'_>) -> Diagnostic {
    let some: Vec<String> = paths.paths().take(12).map(|p| format!("`{p}`")).collect();
    if some.is_empty() { d } else { d.note(format!("paths: {}", some.join(", "))) }
}

/// What rules of one kind may speak of.
struct Spoken<'a> {
    /// The dims of each path, in the order of the paths.
    by_path: Vec<(&'a str, SortedSet<Dim>)>,
    index: PathIndex<'a>,
    /// The dims of all paths.
    all: SortedSet<Dim>,
}

impl<'a> Spoken<'a> {
    fn new(paths: DimsByPath<'a>) -> Self {
        let all = paths.values().flatten().copied().collect();
        let index = PathIndex::new(paths.keys().copied());
        Spoken { by_path: paths.into_iter().collect(), index, all }
    }

    /// All paths but the model's own, which is empty.
    fn paths(&self) -> impl Iterator<Item = &'a str> {
        self.by_path.iter().map(|p| p.0).filter(|p| !p.is_empty())
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

fn check(rule: &Rule, index: &DimIndex<'_>, paths: &Spoken<'_>, out: &mut Vec<Diagnostic>) {
    let program = index.program;
    let word = word(rule.scope.kind.map(|k| k.0));
    let glob = rule.scope.path.as_ref();
    let spoken = glob.map(|g| paths.index.matching(&g.text));
    if let (Some(glob), Some([])) = (glob, spoken.as_deref()) {
        return out.push(no_such_path(glob, word, "it would split nothing", paths, program));
    }
    let named = rule.dims.iter().filter_map(|pattern| match pattern {
        DimPattern::Dim(name) => Some((name, index.find(&name.text)?)),
        DimPattern::Any(_) => None,
    });
    let has = |dim: &Dim| match &spoken {
        None => paths.all.contains(dim),
        Some(at) => at.iter().any(|i| paths.by_path[*i].1.contains(dim)),
    };
    let mut told = SortedSet::new();
    for (name, dim) in named {
        if !told.insert(dim) || has(&dim) {
            continue;
        }
        if out.len() >= MAX_REPORTED {
            return;
        }
        let place = glob.map_or(String::new(), |g| format!(" under `{}`", g.text));
        let there = match &spoken {
            None => paths.all.clone(),
            Some(at) => at.iter().flat_map(|i| &paths.by_path[*i].1).copied().collect(),
        };
        let names: SortedSet<&str> = there.iter().map(|d| program.graph.dims.name(*d)).collect();
        let mut d = Diagnostic::error(codes::E0302, format!("no {word}{place} has the dim `{}`", name.text))
            .at(name.span, "splits nothing");
        if !names.is_empty() {
            d = d.note(format!("dims there: {}", first_of(names)));
        }
        out.push(d.help("name one that is there, or leave the rule out"));
    }
}

fn no_such_path(
    glob: &PathGlob,
    word: &str,
    does: &str,
    paths: &Spoken<'_>,
    program: &Program,
) -> Diagnostic {
    let text = format!("no {word} of the model `{}` has a path like `{}`", program.model, glob.text);
    let d = Diagnostic::error(codes::E0302, text).at(glob.span, "matches nothing");
    if glob.text.contains('#') {
        return numbered(d, glob, program);
    }
    let all = patterns(paths);
    if let Some(close) = nearest(&glob.text, all.iter().map(String::as_str)).map(|c| c.to_string()) {
        return d.fix(format!("did you mean `{close}`?"), glob.span, close, false);
    }
    with_paths(d, paths).help(format!("name a path of the model, or leave the rule out: {does}"))
}

/// What to write in place of a name as `explain` prints it: numbers tell values of one name apart, and paths of layers have none.
fn numbered(d: Diagnostic, glob: &PathGlob, program: &Program) -> Diagnostic {
    let d = d.note("a number as in `layers#2` is in names of values alone; rules go by the paths of layers");
    let (mut meant, mut others) = (SortedSet::new(), SortedSet::new());
    for id in program.graph.ids() {
        let node = program.graph.node(id);
        let origin = &node.origin;
        // What crosses the boundary of a loop belongs to both sides.
        if !matches!(node.op.kind(), Kind::Compute(_) | Kind::Add | Kind::Rename { .. }) {
            continue;
        }
        if matches(&glob.text, &origin.name) {
            meant.insert(&*origin.path);
        } else if !origin.name.is_empty() {
            others.insert(&*origin.path);
        }
    }
    let alone: Vec<&str> = meant.difference(&others).copied().filter(|p| !p.is_empty()).collect();
    let within = |p: &str, q: &str| p.strip_prefix(q).is_some_and(|rest| rest.starts_with('.'));
    let outermost: Vec<String> =
        alone.iter().filter(|p| !alone.iter().any(|q| within(p, q))).map(|p| format!("{p}.*")).collect();
    match &outermost[..] {
        [] => d.help("name the path of a layer"),
        [one] => d.fix(format!("write `{one}`"), glob.span, one, false),
        several => d.help(format!("write some of `{}`", several.join("`, `"))),
    }
}

/// Every path, and for what lies below each layer `layer.*`.
fn patterns(paths: &Spoken<'_>) -> SortedSet<String> {
    let mut out = SortedSet::new();
    for path in paths.paths() {
        out.insert(path.to_string());
        out.extend(path.match_indices('.').map(|(i, _)| format!("{}.*", &path[..i])));
        out.extend(path.rsplit_once('.').map(|(_, last)| format!("*.{last}")));
    }
    out
}
