//! `param`, `state` and `input`.

use super::fans::BY_FAN;
use crate::program::{ParamDecl, StateDecl};
use crate::resolve::call::args::Slot;
use crate::resolve::call::not_yet;
use crate::resolve::report::{listed, nearest};
use crate::resolve::scope::{ScopeKind, Val};
use crate::resolve::{PathOrigin, Resolver};
use meshwright_diag::foreign::{Advice, WordPlace, advice};
use meshwright_diag::{Diagnostic, Near, Span, codes};
use meshwright_ops::{Class, InputOp, InputOpKind, Origin, RepeatId, Type};
use meshwright_plan::{DType, Dim, Init, InputDecl, Phase};
use meshwright_sorted::SortedSet;
use meshwright_syntax::ast::{ExprKind, Input, Name, Variable};

/// Initializers with their parameters.
pub(crate) const INITIALIZERS: [(&str, [&str; 2]); 3] =
    [("normal", ["mean", "std"]), ("truncated_normal", ["mean", "std"]), ("uniform", ["low", "high"])];

/// What a variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::resolve) enum Variety {
    /// Trained.
    Param,
    /// Kept from step to step, and not trained.
    State,
}

impl Variety {
    fn word(self) -> &'static str {
        match self {
            Variety::Param => "parameter",
            Variety::State => "state",
        }
    }
}

impl<'a> Resolver<'a> {
    /// `param w[in, out] = normal(0, 1)` or `state mean[d] = 0`.
    pub(in crate::resolve) fn variable(&mut self, p: &'a Variable, variety: Variety) {
        let dims = self.dims_of(&p.dims);
        let dims = dims.filter(|dims| self.distinct(dims, &p.dims, &p.name));
        let dtype = p.dtype.as_ref().map_or(Some(self.float), |n| self.float_dtype(n, variety));
        self.scope().statement = None;
        self.scope().call_values(&p.name.text);
        let init = self.initializer(p, dims.as_deref(), variety);
        let (Some(dims), Some(dtype), Some(init)) = (dims, dtype, init) else {
            self.define(&p.name, Val::Poison);
            return;
        };
        let numbers = match init {
            Init::Constant(x) => [x, x],
            Init::Uniform { low, high } => [low, high],
            Init::Normal { mean, std } | Init::TruncatedNormal { mean, std } => [mean, std],
        };
        if !numbers.into_iter().all(|x| self.holds(x, (dtype, "a first value"), p.init.span)) {
            self.define(&p.name, Val::Poison);
            return;
        }
        let path = self.scope().declared_path(&p.name.text);
        let leaf = match variety {
            Variety::Param => InputOpKind::Param { path: path.clone(), init },
            Variety::State => InputOpKind::State { path: path.clone(), init },
        };
        let (all, open) = (self.open_loops(), self.loops_of_variables());
        let dim_of = |of: &RepeatId| self.graph.repeats[*of].dim;
        let (all, open): (Vec<Dim>, Vec<Dim>) =
            (all.iter().map(dim_of).collect(), open.iter().map(dim_of).collect());
        if let Some(dim) = dims.iter().find(|d| all.contains(d)) {
            self.single_position(*dim, p.name.span);
            self.define(&p.name, Val::Poison);
            return;
        }
        // Inside of loops a variable has one value for each iteration.
        let stack = open.len();
        let dims: Vec<Dim> = open.into_iter().chain(dims).collect();
        let leaf = InputOp { input: leaf, ty: Type::new(dtype, dims) };
        if self.scope().shared {
            let val = self.shared_variable(p, &path, &leaf);
            self.define(&p.name, val);
            return;
        }
        let repeated = self.scope().locals.contains_key(p.name.text.as_str());
        if !repeated && !self.new_path(&path, p.name.span, variety) {
            self.define(&p.name, Val::Poison);
            return;
        }
        // A parameter belongs to its own path, for the rules and for messages.
        self.graph.cursor = Origin {
            class: Class::Param,
            phase: Phase::Forward,
            path: path.as_str().into(),
            name: path.as_str().into(),
            span: p.name.span,
            full: false,
            layer: false,
        };
        let before = self.graph.nodes.len();
        let scope = self.graph.scope.take();
        let id = self.graph.op(leaf, &[]);
        self.graph.scope = scope;
        if let Some(origin) = self.paths.get_mut(&path).filter(|_| !repeated) {
            origin.id = Some(id);
        }
        let fits = self.sizes_fit(before, p.name.span);
        let val = if fits { Val::Tensor(self.at_iteration(id, p.name.span)) } else { Val::Poison };
        let span = p.name.span;
        match variety {
            Variety::Param => {
                self.params.push(ParamDecl { stack, ..ParamDecl::new(path, id, span) });
            }
            Variety::State => self.states.push(StateDecl { path, id, span, next: None }),
        }
        self.define(&p.name, val);
    }

    /// Whether nothing has that path yet; the calls that lead to both are what tells them apart.
    fn new_path(&mut self, path: &str, declared: Span, variety: Variety) -> bool {
        let word = variety.word();
        let calls: Vec<Span> =
            self.scopes.iter().filter(|s| s.kind == ScopeKind::Layer).map(|s| s.call).collect();
        let Some(first) = self.paths.get(path) else {
            self.paths.insert(path.to_string(), PathOrigin { calls, id: None });
            return true;
        };
        let differ = calls.iter().zip(&first.calls).position(|(a, b)| a != b);
        let pair = differ.map(|k| (k, calls[k], first.calls[k]));
        let d = Diagnostic::error(codes::E0215, format!("two {word}s have the path `{path}`"));
        let d = match pair {
            Some((k, second, first)) => {
                let element = path.split('.').nth(k).unwrap_or(path);
                let scope = self.scopes.iter().filter(|s| s.kind == ScopeKind::Layer).nth(k);
                let called = scope.map_or("", |s| s.title);
                let d = d
                    .at(second, format!("this call of `{called}` is `{element}` too"))
                    .and(first, format!("this call is `{element}`"))
                    .and(declared, format!("the {word}"))
                    .help(format!(
                        "or give each call a `let` of its own: the {word}s are then called as the `let` is"
                    ));
                let owner: Vec<&str> = path.split('.').take(k + 1).collect();
                let same = self.owners.get(owner.join(".").as_str()).is_some_and(|o| o.0 == called);
                let other = self.free_element(&owner, element);
                match scope.and_then(|s| s.label) {
                    Some((at, before)) => {
                        let title = format!("for {word}s of its own, name this call: `as {other}`");
                        let d = d.fix(title, at, format!("{before}as {other}"), false);
                        if !same {
                            return self.refused(d);
                        }
                        let title = format!("for the {word}s of the first call: `sharing {element}`");
                        d.fix(title, at, format!("{before}sharing {element}"), false)
                    }
                    None => d.help(format!(
                        "for {word}s of its own, name one of the calls, `{called}(…) as {other}`; to share those of the first, `{called}(…) sharing {element}`"
                    )),
                }
            }
            None => d.at(declared, "declared again").help("give one of them another name"),
        };
        self.refused(d)
    }

    fn refused(&mut self, d: Diagnostic) -> bool {
        self.report.push(d);
        false
    }

    /// `element` with the lowest number for which no call at that place has its path.
    fn free_element(&self, owner: &[&str], element: &str) -> String {
        let above = &owner[..owner.len().saturating_sub(1)];
        let path = |e: &str| [above, &[e]].concat().join(".");
        let free = |e: &String| !self.owners.contains_key(path(e).as_str());
        (2..).map(|n| format!("{element}{n}")).find(free).unwrap_or_default()
    }

    /// A tensor never holds one dim twice.
    fn distinct(&mut self, dims: &[Dim], written: &'a [Name], of: &Name) -> bool {
        let mut before = SortedSet::new();
        let Some(k) = dims.iter().position(|d| !before.insert(*d)) else { return true };
        let name = self.graph.dims.name(dims[k]).to_string();
        // Names may be lists, so each dim is traced back to the name it came from.
        let mut places: Vec<(Dim, &Name)> = Vec::new();
        for n in written {
            places.extend(self.dims_named(&n.text, n.span).into_iter().flatten().map(|d| (d, n)));
        }
        let mut hits = places.iter().filter(|p| p.0 == dims[k]).map(|p| p.1);
        let (first, second) = (hits.next(), hits.next());
        let text = format!("`{}` has the dim `{name}` twice: a tensor never holds one dim twice", of.text);
        let mut d = Diagnostic::error(codes::E0203, text);
        if let Some(n) = second {
            let label =
                if n.text == name { "again".to_string() } else { format!("`{}` has `{name}` too", n.text) };
            d = d.at(n.span, label);
        }
        if let Some(n) = first.filter(|f| second.is_none_or(|s| s.span != f.span)) {
            let label =
                if n.text == name { "first".to_string() } else { format!("`{}` has `{name}`", n.text) };
            d = d.and(n.span, label);
        }
        if let Some((span, _)) = self.globals.dims.get(name.as_str()) {
            d = d.and(*span, "the dim is declared here");
        }
        self.error(d.help(format!(
            "declare a second name of the same size, `dim {name}2 = {name}`, use it for one of the two, and rename: `x[{name}2 -> {name}]`"
        )));
        false
    }

    /// The dtype that a parameter or a state pins.
    fn float_dtype(&mut self, n: &Name, variety: Variety) -> Option<DType> {
        match n.text.as_str() {
            "float" => Some(self.float),
            "f32" => Some(DType::F32),
            "f64" => Some(DType::F64),
            "bf16" | "f16" => {
                self.error(not_yet(&format!("`{}`", n.text), n.span).help("write `f32` until then"));
                None
            }
            _ => {
                let d = Diagnostic::error(
                    codes::E0202,
                    format!("a {} is a float, not `{}`", variety.word(), n.text),
                )
                .at(n.span, "`float`, `f32` or `f64`");
                self.error(d.help(format!("leave the dtype out: a {} is `float`", variety.word())));
                None
            }
        }
    }

    fn initializer(&mut self, p: &'a Variable, dims: Option<&[Dim]>, variety: Variety) -> Option<Init> {
        let e = &p.init;
        if let ExprKind::Call(call) = &e.kind {
            let name = call.name.text.as_str();
            if let Some((_, slots)) = INITIALIZERS.iter().find(|i| i.0 == name) {
                let slots = slots.map(|s| Slot::built_in(s, true));
                if let Some(d) = crate::resolve::call::args::misplaced_dim(name, &call.args) {
                    self.error(d);
                    return None;
                }
                let args = self.bound(name, e.span, None, &slots, &call.args)?;
                let a = args[0].and_then(|a| self.konst(a, &format!("`{}` of `{name}`", slots[0].name)));
                let b = args[1].and_then(|b| self.konst(b, &format!("`{}` of `{name}`", slots[1].name)));
                let (a, b) = (a?.num(), b?.num());
                return self.distribution(name, a.f64(), b.f64(), args[1].map_or(e.span, |b| b.span));
            }
            if let Some((_, slots)) = BY_FAN.iter().find(|i| i.0 == name) {
                return self.by_fan(call, e, slots, &p.name, dims);
            }
            let known = || INITIALIZERS.iter().map(|i| i.0).chain(BY_FAN.iter().map(|i| i.0));
            let number = crate::resolve::number::arity(name).is_some() || name == "size";
            if !number && !self.globals.layers.by_name.contains_key(name) {
                let d = Diagnostic::error(codes::E0201, format!("there is no initializer `{name}`"))
                    .at(call.name.span, "not known")
                    .note(format!("initializers: a number, {}", listed(known())));
                if let Some(advice) = advice(WordPlace::Initializer, name.trim_end_matches('_')) {
                    let d = foreign_initializer(d, advice, e.span, &p.dims);
                    self.error(d);
                    return None;
                }
                let drawn = name.strip_prefix("random_").filter(|n| known().any(|k| k == *n));
                let d = match drawn.map(Near::only).or_else(|| nearest(name, known())) {
                    Some(near) => d.fix(format!("write `{near}`"), call.name.span, near, near.sure),
                    None => d,
                };
                self.error(d);
                return None;
            }
        }
        self.konst(e, &format!("the first value of a {}", variety.word()))
            .map(|k| Init::Constant(k.num().f64()))
    }

    /// A distribution with its numbers checked. `name` is `uniform`, `normal` or `truncated_normal`, or one
    /// of the first two behind `random_`.
    pub(in crate::resolve) fn distribution(&mut self, name: &str, a: f64, b: f64, at: Span) -> Option<Init> {
        let wrong = match name.trim_start_matches("random_") {
            "uniform" if a > b => {
                Some(format!("`{name}` from {a} to {b}: the low end is above the high end"))
            }
            "normal" | "truncated_normal" if b < 0.0 => {
                Some(format!("`{name}` with a standard deviation of {b}: it is negative"))
            }
            _ => None,
        };
        if let Some(text) = wrong {
            self.error(Diagnostic::error(codes::E0214, text).at(at, format!("this is {b}")));
            return None;
        }
        Some(match name.trim_start_matches("random_") {
            "uniform" => Init::Uniform { low: a, high: b },
            "normal" => Init::Normal { mean: a, std: b },
            _ => Init::TruncatedNormal { mean: a, std: b },
        })
    }

    /// `input label[batch]: i32 in classes`.
    pub(in crate::resolve) fn input(&mut self, i: &'a Input) {
        let name = i.name.text.as_str();
        let dims = self.dims_of(&i.dims);
        let dims = dims.filter(|dims| self.distinct(dims, &i.dims, &i.name));
        let dtype = self.input_dtype(&i.dtype);
        let range = match &i.range {
            Some(r) => self.dims_named(&r.text, r.span).and_then(|d| d.first().copied()).map(Some),
            None => Some(None),
        };
        if let (Some(r), Some(t)) = (&i.range, dtype)
            && !t.is_int()
        {
            self.error(
                Diagnostic::error(
                    codes::E0205,
                    format!("input `{name}` is {t}, but a position `in {}` is an integer", r.text),
                )
                .at(i.dtype.span, format!("this is {t}"))
                .and(r.span, "positions along this dim")
                .fix("write `i32`", i.dtype.span, "i32", true),
            );
        }
        if i.dims.is_empty() {
            self.error(
                Diagnostic::error(codes::E0203, format!("input `{name}` has no dim"))
                    .at(i.name.span, "its first dim counts the examples")
                    .help(format!("write `input {name}[batch]: {}`", i.dtype.text)),
            );
        }
        let (Some(dims), Some(dtype), Some(range)) = (dims, dtype, range) else {
            self.define(&i.name, Val::Poison);
            return;
        };
        self.one_example_dim(i, &dims);
        self.scope().call_values(name);
        let ty = Type { dtype, dims: dims.clone(), range };
        let leaf = InputOpKind::Input { name: name.to_string() };
        let val = self.make(&[], i.name.span, |g| Ok(g.op(InputOp { input: leaf, ty }, &[])));
        if let Val::Tensor(id) = val {
            let decl = InputDecl { name: name.to_string(), dims, dtype, range };
            self.inputs.push((decl, id, i.name.span));
            self.scope().inputs.insert(name);
        }
        self.define(&i.name, val);
    }

    /// The first dim of every input counts the examples: it must be one dim.
    fn one_example_dim(&mut self, i: &Input, dims: &[Dim]) {
        let (Some(mine), Some((first, _, span))) = (dims.first(), self.inputs.first()) else { return };
        let Some(dim) = first.dims.first().filter(|d| *d != mine) else { return };
        let (mine, dim) = (self.graph.dims.name(*mine), self.graph.dims.name(*dim));
        let (name, other) = (&i.name.text, &first.name);
        let d = Diagnostic::error(
            codes::E0203,
            format!("inputs `{other}` and `{name}` have different first dims: `{dim}` and `{mine}`"),
        )
        .at(i.name.span, format!("counts its examples by `{mine}`"))
        .and(*span, format!("counts its examples by `{dim}`"))
        .note("the first dim of every input counts the examples, which all inputs share")
        .help(format!("write `{dim}` first; the order of the other dims is free"));
        self.error(d);
    }

    fn input_dtype(&mut self, n: &Name) -> Option<DType> {
        const KNOWN: [&str; 6] = ["float", "f32", "f64", "i32", "u8", "bool"];
        Some(match n.text.as_str() {
            "float" => self.float,
            "f32" => DType::F32,
            "f64" => DType::F64,
            "i32" => DType::I32,
            "u8" => DType::U8,
            "bool" => DType::Bool,
            "bf16" | "f16" => {
                self.error(
                    not_yet(&format!("`{}`", n.text), n.span).help("write `float` or `f32` until then"),
                );
                return None;
            }
            other => {
                let d = Diagnostic::error(codes::E0202, format!("there is no dtype `{other}`"))
                    .at(n.span, "not known")
                    .note(format!("dtypes of inputs: {}", listed(KNOWN)));
                let d = match nearest(other, KNOWN) {
                    Some(near) => d.fix(format!("write `{near}`"), n.span, near, near.sure),
                    None => d,
                };
                self.error(d);
                return None;
            }
        })
    }
}

/// What a foreign initializer is written here, for a parameter of those dims.
fn foreign_initializer(d: Diagnostic, advice: Advice, at: Span, dims: &[Name]) -> Diagnostic {
    let Advice::Name(here) = advice else { return d.help(advice.text(str::to_string)) };
    let whole = match dims {
        _ if !BY_FAN.iter().any(|i| i.0 == here) => here.to_string(),
        [ins @ .., out] if !ins.is_empty() => {
            let ins: Vec<&str> = ins.iter().map(|n| n.text.as_str()).collect();
            let ins = if let [one] = ins[..] { one.to_string() } else { format!("[{}]", ins.join(", ")) };
            // The dims that are summed stand before those of the result.
            let out = if here.starts_with("glorot") { format!(", {}", out.text) } else { String::new() };
            format!("{here}({ins}{out})")
        }
        _ => {
            return d.help(format!(
                "`{here}` takes the dims that are summed; here `normal(0, 0.02)` is simplest"
            ));
        }
    };
    d.fix(format!("write `{whole}`"), at, whole, false)
}
