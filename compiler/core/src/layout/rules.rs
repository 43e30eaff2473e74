//! Rules as the partitioner reads them, and the checks that need no values.

use super::mesh::{mesh_of, named_mesh, with_axes_of};
use crate::program::Program;
use meshwright_diag::{Diagnostic, Outcome, Span, codes, has_errors, nearest};
use meshwright_ops::Class;
use meshwright_plan::{Axis, Dim, Mesh};
use meshwright_syntax::ast::{DimPattern, LayoutFile, LayoutKind, MeshOption, Rule as AstRule, ScopeKind};

/// Which dim a rule speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleDim {
    /// One dim.
    Dim(Dim),
    /// `*`: each value's largest dim that is free.
    Any,
}

/// The kind of values a scope speaks of.
pub type ScopeClass = ScopeKind;

/// Which values a rule speaks of: all, those of a kind, those under a path, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// `params`, `grads` or `moments`.
    pub kind: Option<ScopeClass>,
    /// A path glob.
    pub path: Option<String>,
}

/// One dim over some axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which values.
    pub scope: Scope,
    /// Which dim.
    pub dim: RuleDim,
    /// Its axes, major first; empty for `dim -> -`.
    pub axes: Vec<Axis>,
    /// Whether it yields (`when free`).
    pub free: bool,
    /// Where it stands.
    pub span: Span,
    /// Its number in the file, from 1.
    pub number: usize,
    /// Its text, for messages.
    pub text: String,
}

/// A layout for one program: mesh, rules, and permitted gathers.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The mesh.
    pub mesh: Mesh,
    /// Rules in order.
    pub rules: Vec<Rule>,
    /// Dims that may be gathered although no rule implies it.
    pub gathers: Vec<Dim>,
}

impl Layout {
    /// Whether any rule speaks of a path.
    pub fn has_paths(&self) -> bool {
        self.rules.iter().any(|r| r.scope.path.is_some())
    }

    /// The same without axes of size 1 in its rules: they split nothing.
    pub fn effective(&self) -> Layout {
        let mut out = self.clone();
        for r in &mut out.rules {
            r.axes.retain(|a| self.mesh.size(*a) > 1);
        }
        out
    }
}

/// Reads a layout for a program. `mesh` overrides the file's; `shared` says that the rules come from a file that several
/// models share, where a rule for a dim that this model lacks is only noted.
pub fn layout(
    file: &LayoutFile,
    mesh: Option<&MeshOption>,
    program: &Program,
    shared: bool,
) -> Outcome<Layout> {
    let mut out = Vec::new();
    let given = mesh.is_some();
    let over = mesh.and_then(|option| named_mesh(option, file, &mut out));
    if given && over.is_none() {
        return (None, out);
    }
    let Some(mesh) = mesh_of(file, over.as_ref(), &mut out) else { return (None, out) };
    let declared = given.then(|| with_axes_of(file, &mesh)).flatten();
    let mut layout = Layout { mesh, ..Layout::default() };
    let mut missing = Vec::new();
    for item in &file.items {
        match &item.kind {
            LayoutKind::Mesh(_) => {}
            LayoutKind::Rule(rule) => {
                for name in rule.axes.iter().filter(|name| layout.mesh.find(&name.text).is_none()) {
                    out.push(unknown_axis(&name.text, name.span, &layout.mesh, declared.as_ref()));
                }
                read_rule(rule, item.span, program, shared, &mut layout, &mut missing, &mut out);
            }
            LayoutKind::Gather(names) => {
                for n in names {
                    let foreign = if shared { Foreign::Unlike } else { Foreign::Never };
                    if let Some(d) = dim(&n.text, n.span, program, foreign, &mut missing, &mut out) {
                        layout.gathers.push(d);
                    }
                }
            }
            LayoutKind::Microbatches { .. } => out.push(not_yet("microbatches", item.span)),
            LayoutKind::Schedule(_) => out.push(not_yet("schedule", item.span)),
            LayoutKind::Recompute(_) => out.push(not_yet("recompute", item.span)),
        }
    }
    out.extend(all_missing(&missing, program));
    super::unmatched::unmatched(file, program, shared, &mut out);
    placed_twice(&layout, &mut out);
    super::empty::empty_shards(&layout, program, &mut out);
    if has_errors(&out) { (None, out) } else { (Some(layout), out) }
}

fn not_yet(what: &str, span: Span) -> Diagnostic {
    Diagnostic::error(codes::E0190, format!("`{what}` is not implemented yet"))
        .at(span, "parsed, but not implemented yet")
        .help("leave it out: the step then runs in one piece and keeps its activations")
}

/// Where a name that the model lacks is no mistake: in a file that several models share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Foreign {
    /// Nowhere: the rules are for this model.
    Never,
    /// Here, unless it is close to a dim of the model, and so likely misspelled.
    Unlike,
    /// Here: `hidden, hidden1 -> c` names the dims of several models, of which this one has another.
    Fine,
}

/// The dim of that name. One that the model lacks is an error, or, where that is no mistake, is added to `missing`.
fn dim<'a>(
    name: &'a str,
    span: Span,
    program: &Program,
    foreign: Foreign,
    missing: &mut Vec<(&'a str, Span)>,
    out: &mut Vec<Diagnostic>,
) -> Option<Dim> {
    let found = program.graph.dims.find(name);
    if found.is_none() {
        let close = nearest(name, program.graph.dims.iter().map(|d| d.1));
        let close = close.filter(|_| foreign != Foreign::Fine);
        if foreign != Foreign::Never && close.is_none() {
            missing.push((name, span));
            return None;
        }
        let text = format!("the model `{}` has no dim `{name}`", program.model);
        let d = Diagnostic::error(codes::E0302, text).at(span, "no such dim").note(dims_of(program));
        out.push(match close {
            Some(c) => d.fix(format!("did you mean `{c}`?"), span, c, c.sure),
            None => d.help("name one of them, or leave the rule out: it would split nothing"),
        });
    }
    found
}

fn dims_of(program: &Program) -> String {
    let all: Vec<String> = program.graph.dims.iter().map(|d| format!("`{}`", d.1)).collect();
    format!("its dims are {}", all.join(", "))
}

/// One note on all dims that a shared file names and this model lacks.
fn all_missing(missing: &[(&str, Span)], program: &Program) -> Option<Diagnostic> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in missing {
        let name = format!("`{name}`");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let dims = if names.len() == 1 { "dim" } else { "dims" };
    let text = format!("the model `{}` has no {dims} {}", program.model, names.join(", "));
    let mut missing = missing.iter();
    let d = Diagnostic::note_message(codes::E0302, text).at(missing.next()?.1, "no such dim");
    let d = missing.fold(d, |d, (_, span)| d.and(*span, "nor this one"));
    Some(d.note(dims_of(program)).help("what the rules say of them splits nothing here"))
}

fn read_rule<'a>(
    rule: &'a AstRule,
    span: Span,
    program: &Program,
    shared: bool,
    layout: &mut Layout,
    missing: &mut Vec<(&'a str, Span)>,
    out: &mut Vec<Diagnostic>,
) {
    let mut axes = Vec::new();
    for name in &rule.axes {
        match layout.mesh.find(&name.text) {
            None => {}
            Some(a) if axes.contains(&a) => out.push(
                Diagnostic::error(codes::E0305, format!("a rule names the axis `{}` twice", name.text))
                    .at(name.span, "the second time")
                    .help("a dim is split over an axis once; leave one out"),
            ),
            Some(a) => axes.push(a),
        }
    }
    let kind = rule.scope.kind.map(|k| k.0);
    let scope = Scope { kind, path: rule.scope.path.as_ref().map(|p| p.text.clone()) };
    let number = layout.rules.iter().map(|r| r.number).max().unwrap_or(0) + 1;
    let known = |p: &DimPattern| match p {
        DimPattern::Any(_) => false,
        DimPattern::Dim(n) => program.graph.dims.find(&n.text).is_some(),
    };
    let foreign = match shared {
        false => Foreign::Never,
        true if rule.dims.iter().any(known) => Foreign::Fine,
        true => Foreign::Unlike,
    };
    for pattern in &rule.dims {
        let dim = match pattern {
            DimPattern::Any(_) => Some(RuleDim::Any),
            DimPattern::Dim(n) => dim(&n.text, n.span, program, foreign, missing, out).map(RuleDim::Dim),
        };
        let Some(dim) = dim else { continue };
        let name = match dim {
            RuleDim::Any => "*".to_string(),
            RuleDim::Dim(d) => program.graph.dims.name(d).to_string(),
        };
        let to: Vec<&str> = axes.iter().map(|a| layout.mesh.name(*a)).collect();
        let to = if to.is_empty() { "-".to_string() } else { to.join(", ") };
        let prefix = match (&scope.kind, &scope.path) {
            (None, None) => String::new(),
            (Some(k), None) => format!("{}: ", k.word()),
            (None, Some(p)) => format!("{p}: "),
            (Some(k), Some(p)) => format!("{} {p}: ", k.word()),
        };
        let text =
            format!("{prefix}{name} -> {to}{}", if rule.when_free.is_some() { " when free" } else { "" });
        layout.rules.push(Rule {
            scope: scope.clone(),
            dim,
            axes: axes.clone(),
            free: rule.when_free.is_some(),
            span,
            number,
            text,
        });
    }
}

/// `declared` is the mesh with the axes of the layout's own, where another was given in its place.
fn unknown_axis(name: &str, span: Span, mesh: &Mesh, declared: Option<&Mesh>) -> Diagnostic {
    let all: Vec<String> = mesh.axes.iter().map(|a| format!("`{}` = {}", a.name, a.size)).collect();
    let has = if all.is_empty() {
        "the mesh has no axes".into()
    } else {
        format!("the mesh has {}", all.join(", "))
    };
    let d = Diagnostic::error(codes::E0301, format!("no mesh axis `{name}`: {has}")).at(span, "no such axis");
    if let Some(declared) = declared.filter(|m| m.find(name).is_some()) {
        let help = format!(
            "the layout's mesh has this axis, and `--mesh` takes its place: `--mesh {}`",
            declared.option()
        );
        return d.help(help);
    }
    match nearest(name, mesh.axes.iter().map(|a| a.name.as_str())) {
        Some(c) => d.fix(format!("did you mean `{c}`?"), span, c, c.sure),
        None if mesh.axes.is_empty() => {
            d.help(format!("declare it: `mesh {name} = 2`, or `--mesh {name}=2`"))
        }
        None => d.help("name an axis of the mesh, or declare this one in the mesh"),
    }
}

/// Two rules of one scope for one dim, of which neither yields.
fn placed_twice(layout: &Layout, out: &mut Vec<Diagnostic>) {
    for (i, r) in layout.rules.iter().enumerate() {
        for s in &layout.rules[..i] {
            if r.scope == s.scope && r.dim == s.dim && !r.free && !s.free && r.dim != RuleDim::Any {
                let name = r.text.rsplit(": ").next().unwrap_or("").split(" ->").next().unwrap_or("");
                let mut axes: Vec<&str> = Vec::new();
                for a in s.axes.iter().chain(&r.axes) {
                    if !axes.contains(&layout.mesh.name(*a)) {
                        axes.push(layout.mesh.name(*a));
                    }
                }
                out.push(
                    Diagnostic::error(
                        codes::E0303,
                        format!("`{name}` is placed twice (rules {} and {})", s.number, r.number),
                    )
                    .at(r.span, format!("`{}`", r.text))
                    .and(s.span, format!("`{}`", s.text))
                    .help(format!(
                        "to split it over several axes write `{name} -> {}`; else drop one rule",
                        axes.join(", ")
                    )),
                );
            }
        }
    }
}

/// The kinds of scope that a value of a class looks at, the most specific first.
pub(super) fn chain(class: Class) -> &'static [ScopeClass] {
    match class {
        Class::Value => &[],
        Class::Param => &[ScopeKind::Params],
        Class::Grad => &[ScopeKind::Grads, ScopeKind::Moments, ScopeKind::Params],
        Class::OptimizerState => &[ScopeKind::Moments, ScopeKind::Grads, ScopeKind::Params],
    }
}
