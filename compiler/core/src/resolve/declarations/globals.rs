//! Declarations of files: dims, consts, sizes, layers. Dims and consts are expressions over one another, in any order.

use super::layers::Layers;
use super::presets::chosen;
use super::reserved_words::is_built_in;
use crate::program::{Declarations, Declared, Settings};
use crate::resolve::call::calls::{Contents, contents};
use crate::resolve::number::{self, Konst, Num};
use crate::resolve::report::{Report, circle, listed, nearest};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_plan::{Dim, Dims};
use meshwright_sorted::MapEntry;
use meshwright_sorted::SortedMap;
use meshwright_syntax::ast::{
    Binding, Call, Expr, ExprKind, ItemKind, Layer, ModelFile, Name, SizePreset, UnaryOp,
};

/// The deepest nesting of expressions and calls together. The thread that resolves has the stack for it.
pub(in crate::resolve) const MAX_DEPTH: usize = 2048;

/// The largest size of a dim: positions along it are `i32`.
pub(super) const MAX_SIZE: usize = i32::MAX as usize;
/// The longest chain of dims and consts that are each defined by one declared later.
const MAX_CHAIN: usize = 1000;

/// Evaluated declarations of all files.
#[derive(Clone, Default)]
pub(in crate::resolve) struct Globals<'a> {
    /// Dims by name; `None` where the size is in error.
    pub(in crate::resolve) dims: SortedMap<&'a str, (Span, Option<Dim>)>,
    /// Consts by name; `None` where the value is in error.
    pub(in crate::resolve) consts: SortedMap<&'a str, (Span, Option<Konst>)>,
    pub(in crate::resolve) layers: Layers<'a>,
    /// The dims in order of declaration.
    pub(in crate::resolve) names: Dims,
    pub(in crate::resolve) declarations: Declarations,
}

/// All dims, and the consts by name, where some dims have other sizes than they are declared with. `None` where that leaves
/// a dim or const without a value.
pub(crate) fn evaluated(
    declared: &Declarations,
    sizes: &[(String, usize)],
) -> Option<(Dims, SortedMap<String, f64>)> {
    let mut report = Report::default();
    let mut b = Builder::new(&mut report);
    for d in declared.list.iter() {
        let kind = if d.dim { GlobalKind::Dim } else { GlobalKind::Const };
        b.index.insert(&d.name.text, b.entries.len());
        b.entries.push(Declaration { kind, name: &d.name, value: &d.value, state: State::Todo });
    }
    let mut settings = declared.settings.clone();
    settings.dims.extend(sizes.iter().cloned());
    b.overrides(&settings);
    let out = b.finish();
    let consts = out.consts();
    (!report.any_error()).then_some((out.names, consts))
}

impl Globals<'_> {
    /// The consts that have a value, by name.
    pub(in crate::resolve) fn consts(&self) -> SortedMap<String, f64> {
        let value = |(name, (_, value)): (&&str, &(Span, Option<Konst>))| {
            Some((name.to_string(), value.as_ref()?.num().f64()))
        };
        self.consts.iter().filter_map(value).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GlobalKind {
    Dim,
    Const,
}

impl GlobalKind {
    fn word(self) -> &'static str {
        match self {
            GlobalKind::Dim => "dim",
            GlobalKind::Const => "const",
        }
    }
}

enum State {
    Todo,
    Open,
    Done(Option<Konst>),
}

struct Declaration<'a> {
    kind: GlobalKind,
    name: &'a Name,
    value: &'a Expr,
    state: State,
}

struct Builder<'a, 'r> {
    entries: Vec<Declaration<'a>>,
    index: SortedMap<&'a str, usize>,
    /// Entries that are being evaluated.
    open: Vec<usize>,
    /// Nesting of the expressions under evaluation, through all the names that lead on.
    depth: usize,
    /// Whether that was once too deep: it is reported once.
    too_deep: bool,
    report: &'r mut Report,
}

/// Evaluates the declarations of all files under the settings.
pub(in crate::resolve) fn globals<'a>(
    files: &[&'a ModelFile],
    settings: &Settings,
    report: &mut Report,
) -> Globals<'a> {
    let mut b = Builder::new(report);
    let mut layers: SortedMap<&'a str, &'a Layer> = SortedMap::new();
    let mut presets = Presets::default();
    let calls = calls(files);
    for item in files.iter().flat_map(|f| &f.items) {
        match &item.kind {
            ItemKind::Dims(list) => list.iter().for_each(|d| b.declare(GlobalKind::Dim, d)),
            ItemKind::Consts(list) => list.iter().for_each(|c| b.declare(GlobalKind::Const, c)),
            ItemKind::Size(preset) => match presets.by_name.entry(&preset.name.text) {
                MapEntry::Occupied(first) => b.twice("size", &first.get().name, &preset.name),
                MapEntry::Vacant(free) => {
                    free.insert(preset);
                    presets.list.push(preset);
                }
            },
            ItemKind::Layer(layer) => b.layer(layer, &calls, &mut layers),
            _ => {}
        }
    }
    let names: Vec<&str> = presets.list.iter().map(|p| p.name.text.as_str()).collect();
    let size = settings.size.as_deref().and_then(|given| chosen(&names, given, b.report));
    b.presets(&presets.list, size);
    let declarations = b.declarations(&Settings { size: size.map(String::from), ..settings.clone() });
    b.overrides(settings);
    let out = b.finish();
    Globals { layers: Layers::new(layers, b.report), declarations, ..out }
}

/// The blocks `size`, each name once.
#[derive(Default)]
struct Presets<'a> {
    list: Vec<&'a SizePreset>,
    by_name: SortedMap<&'a str, &'a SizePreset>,
}

/// The first call of each name in layers and models.
fn calls<'a>(files: &[&'a ModelFile]) -> SortedMap<&'a str, &'a Call> {
    let mut found = Contents::default();
    for item in files.iter().flat_map(|f| &f.items) {
        match &item.kind {
            ItemKind::Layer(layer) => contents(&layer.body, &mut found),
            ItemKind::Model(model) => contents(&model.body, &mut found),
            _ => {}
        }
    }
    let mut first = SortedMap::new();
    found.calls.into_iter().for_each(|c| {
        first.entry(c.name.text.as_str()).or_insert(c);
    });
    first
}

impl<'a, 'r> Builder<'a, 'r> {
    fn new(report: &'r mut Report) -> Self {
        Builder {
            entries: Vec::new(),
            index: SortedMap::new(),
            open: Vec::new(),
            depth: 0,
            too_deep: false,
            report,
        }
    }

    /// Declarations to evaluate.
    fn declarations(&self, settings: &Settings) -> Declarations {
        let declared = self.entries.iter().map(|e| Declared {
            dim: e.kind == GlobalKind::Dim,
            name: e.name.clone(),
            value: e.value.clone(),
        });
        Declarations { list: declared.collect(), settings: settings.clone() }
    }

    /// The values of all dims and consts.
    fn finish(&mut self) -> Globals<'a> {
        for i in 0..self.entries.len() {
            if self.report.is_full_of_errors() {
                break;
            }
            self.evaluate(i);
        }
        let mut out = Globals::default();
        for e in std::mem::take(&mut self.entries) {
            let value = match e.state {
                State::Done(v) => v,
                _ => None,
            };
            match e.kind {
                GlobalKind::Const => {
                    out.consts.insert(&e.name.text, (e.name.span, value));
                }
                GlobalKind::Dim => {
                    let size = value.and_then(|v| usize::try_from(v.num().whole()?).ok());
                    // A dim in error keeps its number, so that those behind it keep theirs.
                    let dim = out.names.add(e.name.text.as_str(), size.unwrap_or(1));
                    out.dims.insert(&e.name.text, (e.name.span, size.map(|_| dim)));
                }
            }
        }
        out
    }

    fn twice(&mut self, what: &str, first: &Name, second: &Name) {
        self.report.push(
            Diagnostic::error(codes::E0210, format!("{what} `{}` is declared twice", second.text))
                .at(second.span, "declared again here")
                .and(first.span, "first declared here")
                .help("leave one of them out, or give one another name"),
        );
    }

    fn declare(&mut self, kind: GlobalKind, binding: &'a Binding) {
        let name = &binding.name;
        if let Some(first) = self.index.get(name.text.as_str()) {
            let first = &self.entries[*first];
            let (word, first) = (first.kind.word(), first.name);
            if word == kind.word() {
                self.twice(word, first, name);
            } else {
                self.report.push(
                    Diagnostic::error(
                        codes::E0210,
                        format!("`{}` is declared as {word} and as {}", name.text, kind.word()),
                    )
                    .at(name.span, format!("a {} here", kind.word()))
                    .and(first.span, format!("a {word} here"))
                    .help("give one of them another name"),
                );
            }
            return;
        }
        self.index.insert(&name.text, self.entries.len());
        self.entries.push(Declaration { kind, name, value: &binding.value, state: State::Todo });
    }

    fn layer(
        &mut self,
        layer: &'a Layer,
        calls: &SortedMap<&str, &Call>,
        layers: &mut SortedMap<&'a str, &'a Layer>,
    ) {
        let name = &layer.name;
        if is_built_in(&name.text) {
            let text = format!("layer `{0}` has the name of the built-in function `{0}`", name.text);
            let d = Diagnostic::error(codes::E0210, text).at(name.span, "a call could mean either");
            let d = match calls.get(name.text.as_str()) {
                Some(call) => d.and(call.name.span, "such as this one"),
                None => d,
            };
            self.report.push(d.help(format!(
                "rename the layer here and where it is called, for example to `{}_layer`",
                name.text
            )));
        }
        if let Some(first) = layers.get(name.text.as_str()) {
            self.twice("layer", &first.name, name);
        } else {
            layers.insert(&name.text, layer);
        }
        let mut params: SortedMap<&str, &Name> = SortedMap::new();
        for p in &layer.params {
            match params.entry(&p.name.text) {
                MapEntry::Occupied(first) => self.twice("parameter", first.get(), &p.name),
                MapEntry::Vacant(free) => {
                    free.insert(&p.name);
                }
            }
        }
    }

    /// The chosen size takes the place of the declarations; all sizes are checked.
    fn presets(&mut self, presets: &[&'a SizePreset], size: Option<&str>) {
        for preset in presets {
            let chosen = size == Some(&preset.name.text);
            let mut values: SortedMap<&str, &Name> = SortedMap::new();
            for b in &preset.values {
                if self.report.is_full_of_errors() {
                    return;
                }
                match values.entry(&b.name.text) {
                    MapEntry::Occupied(first) => self.twice("value", first.get(), &b.name),
                    MapEntry::Vacant(free) => {
                        free.insert(&b.name);
                    }
                }
                match self.index.get(b.name.text.as_str()) {
                    Some(k) if chosen => self.entries[*k].value = &b.value,
                    Some(_) => {}
                    None => {
                        let text = format!(
                            "size `{}` sets `{}`, which is neither a dim nor a const",
                            preset.name.text, b.name.text
                        );
                        let mut d = Diagnostic::error(codes::E0201, text)
                            .at(b.name.span, "not declared")
                            .and(preset.name.span, "in this size");
                        d = match nearest(&b.name.text, self.index.keys().copied()) {
                            Some(near) => d.fix(format!("write `{near}`"), b.name.span, near, near.sure),
                            None => d.help(format!("declare it: `dim {} = …`", b.name.text)),
                        };
                        self.report.push(d);
                    }
                }
            }
        }
    }

    /// `--dim` and `--set`; of several for one name the last counts.
    fn overrides(&mut self, settings: &Settings) {
        for (name, size) in &settings.dims {
            let written = format!("--dim {name}={size}");
            if *size > MAX_SIZE {
                self.report.push(too_large(&written, None));
            } else if *size == 0 {
                let d = Diagnostic::error(codes::E0204, format!("`{written}`: it has no elements"));
                self.report.push(d.help("write a size of 1 or more"));
            } else if let Some(i) = self.setting(name, GlobalKind::Dim, &written) {
                self.entries[i].state = State::Done(Some(Konst::Num(Num::int(*size as i128))));
            }
        }
        for (name, value) in &settings.consts {
            let written = format!("--set {name}={value}");
            if !value.is_finite() {
                self.report
                    .push(Diagnostic::error(codes::E0214, format!("`{written}`: this is no finite number")));
            } else if let Some(i) = self.setting(name, GlobalKind::Const, &written) {
                let truth =
                    matches!(self.entries[i].value.kind, ExprKind::Bool(_)) && [0.0, 1.0].contains(value);
                let value = if truth { Konst::Bool(*value == 1.0) } else { Konst::Num(Num::real(*value)) };
                self.entries[i].state = State::Done(Some(value));
            }
        }
    }

    fn setting(&mut self, name: &str, kind: GlobalKind, written: &str) -> Option<usize> {
        if let Some(i) = self.index.get(name).copied() {
            let e = &self.entries[i];
            if e.kind == kind {
                return Some(i);
            }
            let option = if e.kind == GlobalKind::Dim { "--dim" } else { "--set" };
            let d = Diagnostic::error(codes::E0213, format!("`{written}`: `{name}` is a {}", e.kind.word()))
                .and(e.name.span, "declared here")
                .help(format!("write `{option} {name}=…`"));
            self.report.push(d);
            return None;
        }
        let names = || self.entries.iter().filter(|e| e.kind == kind).map(|e| e.name.text.as_str());
        let word = kind.word();
        let d = Diagnostic::error(codes::E0201, format!("`{written}`: the model has no {word} `{name}`"))
            .note(format!("its {word}s: {}", listed(names())));
        let d = match nearest(name, names()) {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d,
        };
        self.report.push(d);
        None
    }

    /// The size that a value makes.
    fn size(&mut self, name: &Name, at: Span, value: Konst) -> Option<usize> {
        let Konst::Num(n) = value else {
            self.report.push(
                Diagnostic::error(
                    codes::E0204,
                    format!("dim `{}` is {value}: a size is a number", name.text),
                )
                .at(at, "a truth value"),
            );
            return None;
        };
        let wrong = |why: &str, help: String| {
            Diagnostic::error(codes::E0204, format!("dim `{}` has size {n}: {why}", name.text))
                .at(at, format!("this is {n}"))
                .help(help)
        };
        let d = match n.whole() {
            _ if n.f64() > MAX_SIZE as f64 => too_large(&format!("dim {} = {n}", name.text), Some(at)),
            _ if n.f64() < 0.0 => wrong("it is negative", "write a size of 1 or more".into()),
            Some(0) => wrong("it has no elements", "write a size of 1 or more".into()),
            None => wrong("it is no integer", "`//` divides integers, rounding down".into()),
            Some(n) => return usize::try_from(n).ok(),
        };
        self.report.push(d);
        None
    }

    fn evaluate(&mut self, i: usize) -> Option<Konst> {
        match self.entries[i].state {
            State::Done(v) => return v,
            State::Open => {
                self.circle(i);
                return None;
            }
            State::Todo => {}
        }
        let e = &self.entries[i];
        let (kind, name, value) = (e.kind, e.name, e.value);
        if self.open.len() >= MAX_CHAIN {
            self.report.push(
                Diagnostic::error(
                    codes::E0219,
                    format!("more than {MAX_CHAIN} dims and consts lean on one another"),
                )
                .at(e.name.span, "one too many")
                .help("declare them in the order in which they are used"),
            );
            return None;
        }
        self.entries[i].state = State::Open;
        self.open.push(i);
        let mut v = self.value(value, kind);
        self.open.pop();
        if kind == GlobalKind::Dim {
            v = v.and_then(|v| self.size(name, value.span, v)).map(|size| Konst::Num(Num::int(size as i128)));
        }
        self.entries[i].state = State::Done(v);
        v
    }

    fn circle(&mut self, i: usize) {
        let from = self.open.iter().position(|k| *k == i).unwrap_or(0);
        let members: Vec<&Declaration<'_>> = self.open[from..].iter().map(|k| &self.entries[*k]).collect();
        let way = circle(members.iter().map(|e| e.name.text.as_str()), &self.entries[i].name.text);
        let first = members[0];
        let text = format!("{} `{}` has a cyclic definition: {}", first.kind.word(), first.name.text, way);
        let mut d = Diagnostic::error(codes::E0211, text).at(first.value.span, "leads back to itself");
        for e in members[1..].iter().take(6) {
            d = d.and(e.value.span, format!("through `{}`", e.name.text));
        }
        let d = d.help("give one of them a number");
        self.report.push(d);
    }

    /// The value of an expression over numbers, dims and consts.
    fn value(&mut self, e: &'a Expr, kind: GlobalKind) -> Option<Konst> {
        if self.depth >= MAX_DEPTH {
            if !std::mem::replace(&mut self.too_deep, true) {
                let text = format!(
                    "dims and consts that lean on one another are nested more than {} deep",
                    MAX_DEPTH
                );
                self.report.push(
                    Diagnostic::error(codes::E0219, text)
                        .at(e.span, "the limit is reached here")
                        .help("declare them in the order in which they are used"),
                );
            }
            return None;
        }
        self.depth += 1;
        let v = self.value_of(e, kind);
        self.depth -= 1;
        v
    }

    fn value_of(&mut self, e: &'a Expr, kind: GlobalKind) -> Option<Konst> {
        let error = |text: String, at: Span| Diagnostic::error(codes::E0214, text).at(at, "here");
        match &e.kind {
            ExprKind::Int(v) => Some(Konst::Num(Num::int(*v))),
            ExprKind::Float(v) => Some(Konst::Num(Num::real(*v))),
            ExprKind::Bool(b) => Some(Konst::Bool(*b)),
            ExprKind::Name(name) => self.named(name, e.span, kind),
            ExprKind::Unary { op, operand } => match (op, self.value(operand, kind)?) {
                (UnaryOp::Neg, v) => Some(Konst::Num(number::neg(v.num()))),
                (UnaryOp::Not, Konst::Bool(b)) => Some(Konst::Bool(!b)),
                (UnaryOp::Not, v) => {
                    self.report.push(error(format!("`not` takes a truth value, not {v}"), e.span));
                    None
                }
            },
            ExprKind::Binary { op, lhs, rhs, .. } => {
                let (a, b) = (self.value(lhs, kind), self.value(rhs, kind));
                number::binary(*op, a?, b?).map_err(|text| self.report.push(error(text, e.span))).ok()
            }
            ExprKind::Call(call) => {
                if call.name.text == "size" {
                    let mut size = Konst::Num(Num::ONE);
                    for a in &call.args {
                        let v = self.value(&a.value, GlobalKind::Dim)?;
                        let product = number::binary(meshwright_syntax::ast::BinaryOp::Mul, size, v);
                        size = product.map_err(|text| self.report.push(error(text, e.span))).ok()?;
                    }
                    return Some(size);
                }
                let args: Vec<Option<Konst>> = call.args.iter().map(|a| self.value(&a.value, kind)).collect();
                let args: Vec<Konst> = args.into_iter().collect::<Option<_>>()?;
                match number::function(&call.name.text, &args) {
                    Some(v) => v.map(Konst::Num).map_err(|text| self.report.push(error(text, e.span))).ok(),
                    None => {
                        self.no_function(&call.name, args.len());
                        None
                    }
                }
            }
            _ => {
                self.report.push(
                    Diagnostic::error(codes::E0213, format!("the value of a {} is no number", kind.word()))
                        .at(e.span, "not a number known at compile time")
                        .help("write an expression of numbers, dims and consts"),
                );
                None
            }
        }
    }

    fn no_function(&mut self, name: &Name, given: usize) {
        let known = || number::functions().map(|f| f.0);
        let d = match number::arity(&name.text) {
            Some(arity) => Diagnostic::error(
                codes::E0212,
                format!(
                    "`{}` takes {}, not {given}",
                    name.text,
                    crate::resolve::report::counted(arity, "number")
                ),
            )
            .at(name.span, "wrong number of arguments"),
            None => {
                let d = Diagnostic::error(
                    codes::E0201,
                    format!("there is no function of numbers `{}`", name.text),
                )
                .at(name.span, "not known")
                .note(format!("functions of numbers: {}", listed(known().chain(["size"]))));
                match nearest(&name.text, known()) {
                    Some(near) => d.fix(format!("write `{near}`"), name.span, near, near.sure),
                    None => d,
                }
            }
        };
        self.report.push(d);
    }

    fn named(&mut self, name: &str, at: Span, kind: GlobalKind) -> Option<Konst> {
        let Some(i) = self.index.get(name).copied() else {
            let word = kind.word();
            let d = Diagnostic::error(codes::E0201, format!("no dim or const is called `{name}`"))
                .at(at, "not declared");
            self.report.push(match nearest(name, self.index.keys().copied()) {
                Some(near) => d.fix(format!("write `{near}`"), at, near, near.sure),
                None => d.help(format!("declare it: `{word} {name} = …`")),
            });
            return None;
        };
        let e = &self.entries[i];
        if kind == GlobalKind::Const && e.kind == GlobalKind::Dim {
            self.report.push(
                Diagnostic::error(codes::E0213, format!("dim `{name}` is used as a number"))
                    .at(at, "a dim")
                    .and(e.name.span, "declared here")
                    .fix(format!("write `size({name})`"), at, format!("size({name})"), true),
            );
            return None;
        }
        self.evaluate(i)
    }
}

fn too_large(written: &str, at: Option<Span>) -> Diagnostic {
    let d = Diagnostic::error(codes::E0204, format!("`{written}`: a dim has at most {MAX_SIZE} positions"));
    let d = match at {
        Some(at) => d.at(at, "too large"),
        None => d,
    };
    d.note("positions along a dim are 32-bit integers").help("split it into two dims")
}
