//! Rules as the partitioner reads them, and the checks that need no values.

use super::index::{DimIndex, first_of};
use super::mesh::{mesh_of, named_mesh, with_axes_of};
use super::order::OrderRule;
use super::pipeline::{PipelineOrder, PipelineRule};
use super::second_names::second_names;
use crate::program::Program;
use crate::resolve::matches;
use meshwright_diag::{Diagnostic, MAX_REPORTED, Outcome, Span, codes, has_errors, nearest};
use meshwright_ops::Class;
use meshwright_plan::{Axis, Cuts, Dim, Dims, Mesh};
use meshwright_sorted::MapEntry;
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_syntax::ast::{
    DimPattern, LayoutFile, LayoutKind, MeshOption, ReduceWhen, Rule as AstRule, ScopeKind,
};
use std::cmp::Reverse;
use std::sync::Arc;

/// The most rules of a layout, each dim of a line counted.
const MAX_RULES: usize = 4096;
/// Of how many names that a shared file has and the model lacks it is asked whether they are misspelled.
const MAX_COMPARED: usize = 1000;

/// Which dim a rule speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleDim {
    /// One dim.
    Dim(Dim),
    /// `*`: each value's largest dim that is free.
    Any,
}

/// The kind of values a scope speaks of.
pub type ScopeClass = ScopeKind;

/// Which values a rule speaks of: all, those of a kind, those under a path, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// `params`, `grads` or `moments`.
    pub kind: Option<ScopeClass>,
    /// A path glob.
    pub path: Option<Arc<str>>,
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
    /// Its place in the text.
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
    /// The text of each line that is neither a mesh nor a rule, such as `microbatches 8`, in order.
    pub settings: Vec<String>,
    /// Dims that may be gathered although no rule implies it.
    pub gathers: SortedSet<Dim>,
    /// Dims whose shards go around the devices where attention needs all of them, with the place in the layout.
    pub rings: SortedMap<Dim, Span>,
    /// Dims whose positions lie on the devices in another order.
    pub orders: Vec<OrderRule>,
    /// Paths of values that are computed again for the backward pass, instead of kept.
    pub recompute: Vec<Arc<str>>,
    /// In how many parts a training step takes its batch, and where the layout says so.
    pub microbatches: Option<(usize, Span)>,
    /// Parameters whose gathered copies are kept: all, or those of a path; each with its place in the layout.
    pub keep: Vec<(Option<Arc<str>>, Span)>,
    /// The line by which partial sums of gradients are reduced in `bf16`.
    pub reduce_grads: Option<Span>,
    /// When gradients are reduced that rules split, and where the layout says so.
    pub reduce_when: Option<(ReduceWhen, Span)>,
    /// Dims of the loops of the program: `*` stands for none of them.
    pub loops: SortedSet<Dim>,
    /// Dims that the layout has no rule for and that are others under a second name, whose rules they follow.
    pub second_names: SortedMap<Dim, Dim>,
    /// The loop whose iterations are stages of a pipeline.
    pub pipeline: Option<PipelineRule>,
    /// Order of microbatches in the stages.
    pub order: PipelineOrder,
}

impl Layout {
    /// The first item of `keep` by which gathered copies of a parameter are kept.
    pub(crate) fn keeps(&self, parameter: &str) -> Option<usize> {
        self.keep.iter().position(|(path, _)| path.as_deref().is_none_or(|p| matches(p, parameter)))
    }

    /// Gives the dim of the pipeline the lengths that the layout gives its stages. A step without the loop has no stages, but
    /// the states of the loop must have the same places in it as in other steps.
    pub fn cut_stages(&self, dims: &mut Dims) {
        let Some(pipeline) = &self.pipeline else { return };
        if let Some(lengths) = pipeline.lengths.clone() {
            let (axes, chunks) = (pipeline.axes.clone(), self.order.chunks());
            dims.cut(pipeline.dim, Cuts { axes, lengths, chunks });
        }
    }

    /// Whether a dim may be put together although no rule implies it: by gathers or by rings.
    pub(crate) fn joins(&self, dim: Dim) -> bool {
        self.gathers.contains(&dim) || self.rings.contains_key(&dim)
    }

    /// The name under which rules speak of a dim: its own, or that of the dim that it is a second name of.
    pub(crate) fn first_name(&self, dim: Dim) -> Dim {
        self.second_names.get(&dim).copied().unwrap_or(dim)
    }

    /// Second names follow: their rules, gathers and rings are those of the first names.
    fn follow(&mut self, program: &Program) {
        let mut names = second_names(&program.graph);
        names.retain(|dim, _| !self.rules.iter().any(|r| r.dim == RuleDim::Dim(*dim)));
        for (second, first) in &names {
            if self.gathers.contains(first) {
                self.gathers.insert(*second);
            }
            if let Some(at) = self.rings.get(first).copied() {
                self.rings.entry(*second).or_insert(at);
            }
        }
        self.second_names = names;
    }

    /// The text of each line but the mesh: rules, then settings.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|r| r.text.as_str()).chain(self.settings.iter().map(String::as_str))
    }

    /// Whether any rule speaks of a path.
    pub fn has_paths(&self) -> bool {
        self.rules.iter().any(|r| r.scope.path.is_some())
    }

    /// The same as the partitioner reads it. Axes of size 1 are left out of its rules: they split nothing. What is stored over
    /// several axes has the inner axes of the mesh as the major ones, in whatever order its rule names them: so a gather begins
    /// with the outer axis, over which each device then fetches what is its own part alone, and a reduce-scatter ends with it.
    /// But an order stays that a rule for all values gives to the dim too: what is stored is then used in this order.
    pub fn effective(&self) -> Layout {
        let mut out = self.clone();
        let used = |r: &Rule| {
            let mut others = self.rules.iter().filter(|o| o.scope.kind.is_none());
            others
                .any(|o| [r.dim, RuleDim::Any].contains(&o.dim) && o.axes.iter().any(|a| r.axes.contains(a)))
        };
        for r in &mut out.rules {
            if r.scope.kind.is_some() && !used(r) {
                r.axes.sort_by_key(|a| Reverse(*a));
            }
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
    let loops = program.graph.repeats.iter().map(|r| r.dim).collect();
    let mut layout = Layout { mesh, loops, ..Layout::default() };
    let index = DimIndex::new(program);
    let mut read = Read::default();
    for item in &file.items {
        if out.len() >= MAX_REPORTED {
            return (None, out);
        }
        if layout.rules.len() > MAX_RULES {
            out.push(too_many(item.span));
            return (None, out);
        }
        layout.settings.extend(item.kind.setting());
        match &item.kind {
            LayoutKind::Mesh(_) => {}
            LayoutKind::Rule(rule) => {
                let unknown = rule.axes.iter().filter(|name| layout.mesh.find(&name.text).is_none());
                for name in unknown.take(MAX_REPORTED) {
                    out.push(unknown_axis(&name.text, name.span, &layout.mesh, declared.as_ref()));
                }
                read_rule((rule, item.span), &index, shared, &mut layout, &mut read, &mut out);
            }
            LayoutKind::Gather(names) | LayoutKind::Ring(names) => {
                for n in names {
                    let foreign = if shared { Foreign::Unlike } else { Foreign::Never };
                    if out.len() >= MAX_REPORTED {
                        break;
                    }
                    if let Some(d) = dim(&n.text, n.span, &index, foreign, &mut read.missing, &mut out) {
                        match &item.kind {
                            LayoutKind::Ring(_) => drop(layout.rings.entry(d).or_insert(n.span)),
                            _ => drop(layout.gathers.insert(d)),
                        }
                    }
                }
            }
            LayoutKind::Order { dim: of, axes } => {
                let unknown = axes.iter().filter(|name| layout.mesh.find(&name.text).is_none());
                for name in unknown.take(MAX_REPORTED) {
                    out.push(unknown_axis(&name.text, name.span, &layout.mesh, declared.as_ref()));
                }
                let foreign = if shared { Foreign::Unlike } else { Foreign::Never };
                if let Some(d) = dim(&of.text, of.span, &index, foreign, &mut read.missing, &mut out) {
                    let line = (&axes[..], item.span);
                    super::order::read((&of.text, d), line, &layout.mesh, &mut layout.orders, &mut out);
                }
            }
            other => read_setting(other, item.span, &mut layout, &mut out),
        }
    }
    out.extend(all_missing(&read.missing, program));
    super::unmatched_rules::unmatched(file, &index, shared, &mut out);
    placed_twice(&layout, &mut out);
    empty_shards(&layout, program, &mut out);
    layout.follow(program);
    let Layout { order, pipeline, mesh, .. } = &mut layout;
    super::pipeline::settle((order, pipeline.as_mut()), (mesh, &program.graph.dims), &mut out);
    if has_errors(&out) { (None, out) } else { (Some(layout), out) }
}

/// Reads a line that names no dims.
fn read_setting(kind: &LayoutKind, span: Span, layout: &mut Layout, out: &mut Vec<Diagnostic>) {
    match kind {
        LayoutKind::Microbatches { count, count_span } => {
            if let Some((_, first)) = layout.microbatches {
                out.push(parts_twice(first, *count_span));
            }
            // More than there are examples are refused with all that do not divide the batch.
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            layout.microbatches = Some((count, *count_span));
        }
        LayoutKind::KeepParams(paths) => {
            let all = paths.is_empty().then_some((None, span));
            let named = paths.iter().map(|p| (Some(Arc::from(p.text.as_str())), p.span));
            layout.keep.extend(named.chain(all));
        }
        LayoutKind::ReduceGrads => {
            if let Some(first) = layout.reduce_grads {
                out.push(reduced_twice(first, span));
            }
            layout.reduce_grads = Some(span);
        }
        LayoutKind::ReduceWhen(when) => {
            if let Some((_, first)) = layout.reduce_when {
                out.push(reduced_twice(first, span));
            }
            layout.reduce_when = Some((*when, span));
        }
        LayoutKind::Schedule(_) | LayoutKind::Chunks { .. } | LayoutKind::Stages(_) => {
            layout.order.read(kind, span, out);
        }
        LayoutKind::Recompute(paths) => {
            layout.recompute.extend(paths.iter().map(|p| Arc::from(p.text.as_str())));
        }
        LayoutKind::Mesh(_)
        | LayoutKind::Rule(_)
        | LayoutKind::Gather(_)
        | LayoutKind::Ring(_)
        | LayoutKind::Order { .. } => {}
    }
}

fn parts_twice(first: Span, second: Span) -> Diagnostic {
    Diagnostic::error(codes::E0313, "a layout says twice in how many parts a step takes its batch")
        .at(second, "the second time")
        .and(first, "the first time")
        .help("leave one out")
}

fn reduced_twice(first: Span, second: Span) -> Diagnostic {
    Diagnostic::error(codes::E0314, "a layout says twice how gradients are reduced")
        .at(second, "the second time")
        .and(first, "the first time")
        .help("leave one out")
}

/// Severity of a name that the model lacks: not an error in a file that several models share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Foreign {
    /// Nowhere: the rules are for this model.
    Never,
    /// Here, unless it is close to a dim of the model, and so likely misspelled.
    Unlike,
    /// Valid: `hidden, hidden1 -> c` names the dims of several models, and this one has another.
    Fine,
}

/// Parts of a layout besides its rules.
#[derive(Default)]
struct Read<'a> {
    /// Dims that the model lacks, if that is allowed.
    missing: Vec<(&'a str, Span)>,
    /// Rules that yield or are for any dim.
    seen: SortedSet<(Scope, RuleDim, Vec<Axis>, bool)>,
}

fn too_many(at: Span) -> Diagnostic {
    Diagnostic::error(
        codes::E0309,
        format!("the layout is too large: at most {MAX_RULES} rules, one for each dim"),
    )
    .at(at, "the limit is reached here")
    .help("one rule with a `*` in its scope serves many parameters: `params layers.*: rows -> r`")
}

/// The dim of that name. One that the model lacks is an error, or, if that is allowed, is added to `missing`.
fn dim<'a>(
    name: &'a str,
    span: Span,
    index: &DimIndex<'_>,
    foreign: Foreign,
    missing: &mut Vec<(&'a str, Span)>,
    out: &mut Vec<Diagnostic>,
) -> Option<Dim> {
    let (program, found) = (index.program, index.find(name));
    if found.is_none() {
        // A note names the first few, and counts the rest.
        if foreign == Foreign::Fine || foreign == Foreign::Unlike && missing.len() >= MAX_COMPARED {
            missing.push((name, span));
            return None;
        }
        let close = nearest(name, program.graph.dims.iter().map(|d| d.1));
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
    format!("its dims are {}", first_of(program.graph.dims.iter().map(|d| d.1)))
}

/// The beginning of a long text, for messages.
fn shortened(text: &str) -> &str {
    text.char_indices().nth(100).map_or(text, |(end, _)| &text[..end])
}

/// One note on all dims that a shared file names and this model lacks.
fn all_missing(missing: &[(&str, Span)], program: &Program) -> Option<Diagnostic> {
    let mut told = SortedSet::new();
    let names: Vec<&str> = missing.iter().map(|m| m.0).filter(|n| told.insert(*n)).collect();
    let dims = if names.len() == 1 { "dim" } else { "dims" };
    let text = format!("the model `{}` has no {dims} {}", program.model, first_of(names));
    let mut missing = missing.iter().take(MAX_REPORTED);
    let d = Diagnostic::note_message(codes::E0302, text).at(missing.next()?.1, "no such dim");
    let d = missing.fold(d, |d, (_, span)| d.and(*span, "nor this one"));
    Some(d.note(dims_of(program)).help("what the rules say of them splits nothing here"))
}

fn read_rule<'a>(
    (rule, span): (&'a AstRule, Span),
    index: &DimIndex<'_>,
    shared: bool,
    layout: &mut Layout,
    read: &mut Read<'a>,
    out: &mut Vec<Diagnostic>,
) {
    let mut axes = Vec::new();
    for name in &rule.axes {
        if out.len() >= MAX_REPORTED {
            break;
        }
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
    let scope = Scope { kind, path: rule.scope.path.as_ref().map(|p| p.text.as_str().into()) };
    let number = layout.rules.last().map_or(0, |r| r.number) + 1;
    let known = |p: &DimPattern| match p {
        DimPattern::Any(_) => false,
        DimPattern::Dim(n) => index.find(&n.text).is_some(),
    };
    let foreign = match shared {
        false => Foreign::Never,
        true if rule.dims.iter().any(known) => Foreign::Fine,
        true => Foreign::Unlike,
    };
    for pattern in &rule.dims {
        if out.len() >= MAX_REPORTED {
            break;
        }
        let dim = match pattern {
            DimPattern::Any(_) => Some(RuleDim::Any),
            DimPattern::Dim(n) => {
                dim(&n.text, n.span, index, foreign, &mut read.missing, out).map(RuleDim::Dim)
            }
        };
        let Some(dim) = dim else { continue };
        if let RuleDim::Dim(d) = dim
            && layout.loops.contains(&d)
            && !axes.is_empty()
            && !makes_stages(d, (rule, span), &axes, index.program, layout, out)
        {
            continue;
        }
        let free = rule.when_free.is_some();
        // Said again, it adds nothing. A strict rule is then a mistake, which is found later.
        if (free || dim == RuleDim::Any) && !read.seen.insert((scope.clone(), dim, axes.clone(), free)) {
            continue;
        }
        if layout.rules.len() > MAX_RULES {
            return;
        }
        let name = match dim {
            RuleDim::Any => "*".to_string(),
            RuleDim::Dim(d) => index.program.graph.dims.name(d).to_string(),
        };
        let to: Vec<&str> = axes.iter().map(|a| layout.mesh.name(*a)).collect();
        let to = if to.is_empty() { "-".to_string() } else { to.join(", ") };
        let prefix = match (&scope.kind, scope.path.as_deref().map(shortened)) {
            (None, None) => String::new(),
            (Some(k), None) => format!("{}: ", k.word()),
            (None, Some(p)) => format!("{p}: "),
            (Some(k), Some(p)) => format!("{} {p}: ", k.word()),
        };
        let text = format!("{prefix}{name} -> {to}{}", if free { " when free" } else { "" });
        layout.rules.push(Rule { scope: scope.clone(), dim, axes: axes.clone(), free, span, number, text });
    }
}

/// Reads a rule that splits a loop. Gives whether it makes stages of it.
fn makes_stages(
    dim: Dim,
    rule: (&AstRule, Span),
    axes: &[Axis],
    program: &Program,
    layout: &mut Layout,
    out: &mut Vec<Diagnostic>,
) -> bool {
    super::pipeline::splits(dim, rule, axes, program, (&layout.mesh, &mut layout.pipeline), out)
}

/// `declared` is the layout's own mesh, if another one replaces it.
fn unknown_axis(name: &str, span: Span, mesh: &Mesh, declared: Option<&Mesh>) -> Diagnostic {
    let all: Vec<String> = mesh.axes.iter().map(|a| format!("`{}` = {}", a.name, a.size)).collect();
    let name = shortened(name);
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

/// Two strict rules of one scope for one dim. Each is compared with the first.
fn placed_twice(layout: &Layout, out: &mut Vec<Diagnostic>) {
    let mut firsts: SortedMap<(&Scope, RuleDim), &Rule> = SortedMap::new();
    for r in layout.rules.iter().filter(|r| !r.free && r.dim != RuleDim::Any) {
        if out.len() >= MAX_REPORTED {
            return;
        }
        let s = match firsts.entry((&r.scope, r.dim)) {
            MapEntry::Vacant(free) => {
                free.insert(r);
                continue;
            }
            MapEntry::Occupied(first) => *first.get(),
        };
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
            .help(match axes.len() > s.axes.len().max(r.axes.len()) {
                true => {
                    let all = axes.join(", ");
                    format!("to split it over several axes write `{name} -> {all}`; else drop one rule")
                }
                // One of them adds no axis: it says the same, keeps the dim whole, or names an axis that is unknown.
                false => "drop one rule".to_string(),
            }),
        );
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

/// A warning for each dim that a rule splits over more devices than it has elements. That is correct, and wasteful.
fn empty_shards(layout: &Layout, program: &Program, out: &mut Vec<Diagnostic>) {
    let dims = &program.graph.dims;
    let mut said = SortedSet::new();
    for rule in &layout.rules {
        let RuleDim::Dim(dim) = rule.dim else { continue };
        let (size, parts) =
            (dims.size(dim), rule.axes.iter().map(|a| layout.mesh.size(*a)).product::<usize>());
        if size >= parts || !said.insert(dim) {
            continue;
        }
        let axes: Vec<String> = rule.axes.iter().map(|a| format!("`{}`", layout.mesh.name(*a))).collect();
        let axes = axes.join(", ");
        let (name, idle) = (dims.name(dim), parts - size);
        let hold = if idle == 1 { "holds" } else { "hold" };
        let message = format!("{idle} of {parts} devices along {axes} {hold} nothing of `{name}` = {size}");
        let d = Diagnostic::warning(codes::E0312, message).at(rule.span, format!("`{}`", rule.text));
        let other = match size {
            0 | 1 => format!("split another dim over {axes}, or leave the rule out"),
            n => format!("take at most {n} devices along {axes}, or split another dim over it"),
        };
        out.push(d.help(other));
    }
}
