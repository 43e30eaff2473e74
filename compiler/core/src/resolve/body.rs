//! Statements of models and layers.

use super::Resolver;
use super::call::calls::calls_of;
use super::declarations::declare::Variety;
use super::number::Konst;
use super::report::{counted, listed};
use super::scope::{Local, NameScope, ScopeKind, Val};
use crate::program::LossDecl;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Const, Id};
use meshwright_syntax::ast::{Better, Binding, Expr, ExprKind, Model, Name, Statement, StatementKind};

/// The three kinds of named results.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ResultKind {
    Loss,
    Metric(Option<Better>),
    Output,
}

impl<'a> Resolver<'a> {
    /// The model itself.
    pub(super) fn model(&mut self, model: &'a Model) {
        let title = model.name.text.as_str();
        self.scopes.push(NameScope::new(ScopeKind::Model, title, model.name.span, "".into()));
        self.body(&model.body);
        let scope = self.scopes.pop();
        for (name, local) in scope.iter().flat_map(|s| s.locals.iter().filter(|(n, _)| s.inputs.contains(*n)))
        {
            // Where there are errors, what reads it may be among them.
            if !local.used && !self.report.any_error() {
                self.report.push(
                    Diagnostic::warning(codes::E0221, format!("input `{name}` is not used"))
                        .at(local.span, "read from the data for nothing")
                        .help("leave it out"),
                );
            }
        }
    }

    /// The statements of a scope. What is returned; `None` where nothing is.
    pub(super) fn body(&mut self, body: &'a [Statement]) -> Option<Val> {
        for (i, s) in body.iter().enumerate() {
            if self.ended() {
                return Some(Val::Poison);
            }
            if let StatementKind::Return(values) = &s.kind {
                if self.scope().kind != ScopeKind::Layer {
                    self.misplaced(
                        "return",
                        s.span,
                        "a layer returns; a model has `loss`, `metric` and `output`",
                    );
                    continue;
                }
                if let Some(next) = body.get(i + 1) {
                    self.error(
                        Diagnostic::error(
                            codes::E0218,
                            "a statement follows `return`: it would never be reached",
                        )
                        .at(next.span, "behind the end")
                        .and(s.span, "ends the layer")
                        .help("move it before `return`, or leave it out"),
                    );
                }
                return Some(self.returned(values));
            }
            self.statement(s);
        }
        if self.ended() { Some(Val::Poison) } else { None }
    }

    fn returned(&mut self, values: &'a [Expr]) -> Val {
        self.begin(values, None);
        self.scope().name = "".into();
        if let [one] = values {
            self.scope().value = self.scope().result.clone();
            return self.eval(one);
        }
        let eval = |(i, e): (usize, &'a Expr)| {
            let scope = self.scope();
            scope.value = match scope.results_named.get(i) {
                Some(name) => name.clone(),
                None => format!("{}.{i}", scope.own).into(),
            };
            self.eval(e)
        };
        Val::Tuple(values.iter().enumerate().map(eval).collect())
    }

    fn misplaced(&mut self, what: &str, span: Span, help: &str) {
        let scope = &self.scopes[self.scopes.len() - 1];
        let place = if scope.kind == ScopeKind::Layer { "layer" } else { "model" };
        let d = Diagnostic::error(codes::E0218, format!("`{what}` stands in {place} `{}`", scope.title))
            .at(span, "not here")
            .help(help);
        self.error(d);
    }

    /// Starts a statement: what its values are called, and how many of its calls hold parameters.
    fn begin(&mut self, values: &'a [Expr], name: Option<&'a str>) {
        let mut owning = 0;
        for v in values {
            calls_of(v, &mut |c| {
                owning += usize::from(self.globals.layers.owning.contains(c.name.text.as_str()))
            });
        }
        let scope = self.scope();
        scope.statement = name;
        scope.owning_calls = owning;
        scope.names.clear();
        scope.whole = if let [one] = values { Some(one.span) } else { None };
        if let Some(name) = name {
            scope.call_values(name);
        }
    }

    pub(super) fn statement(&mut self, s: &'a Statement) {
        let in_layer = self.scope().kind == ScopeKind::Layer;
        match &s.kind {
            StatementKind::Let { names, value } => self.bind_names(names, value),
            StatementKind::Assign { names, value } if self.assigns_carried(names, value) => {}
            StatementKind::Assign { names, value } if self.assigns_states(names, value) => {}
            StatementKind::Assign { names, value } => {
                let name = names.first().map_or("x", |n| n.text.as_str());
                let new_name = Span { end: s.span.start, ..s.span };
                let local = self.scope().locals.get(name).map(|l| (l.span, "the value of this name"));
                let taken = local.or_else(|| self.global_value(name));
                let d = match self.open_repeat() {
                    Some(open) => {
                        let text =
                            format!("`{name}` is not declared before this `repeat`, so it cannot be carried");
                        Diagnostic::error(codes::E0218, text)
                            .at(s.span, "would carry a value to the next iteration")
                            .and(open, "the loop")
                    }
                    None => Diagnostic::error(
                        codes::E0218,
                        format!("`{name} = …` stands outside of `repeat`"),
                    )
                    .at(
                        s.span,
                        "carries a value to the next iteration of a `repeat`, or a `state` to the next step",
                    ),
                };
                self.error(match taken {
                    Some(_) if local.is_some() && self.open_repeat().is_some() => {
                        d.help(format!("a name of the body ends with the iteration: call the new value otherwise, or declare `{name}` before the loop"))
                    }
                    Some((first, what)) => d.and(first, what).help(format!(
                        "a name has one value: give the new one a name of its own, as in `let {name}2 = …`, and use that from here on"
                    )),
                    None => d.fix("declare a new name", new_name, "let ", false),
                });
                self.begin(std::slice::from_ref(value), None);
                self.eval_any(value);
                self.poison(names);
            }
            StatementKind::Param(p) => self.variable(p, Variety::Param),
            StatementKind::State(v) => self.variable(v, Variety::State),
            StatementKind::Input(i) if in_layer => {
                self.misplaced("input", s.span, "declare it in the model and pass it to the layer");
                self.define(&i.name, Val::Poison);
            }
            StatementKind::Input(i) => self.input(i),
            StatementKind::Loss(b) => self.result(b, ResultKind::Loss, s.span),
            StatementKind::Metric(m) => self.result(&m.binding, ResultKind::Metric(m.better), s.span),
            StatementKind::Output(b) => self.result(b, ResultKind::Output, s.span),
            StatementKind::Repeat(r) => self.repeat(r, s.span),
            StatementKind::Return(_) => {}
        }
    }

    /// The names have values that cannot be known.
    /// Names whose values are not known, for a reason that was given.
    pub(super) fn poison(&mut self, names: &'a [Name]) {
        for n in names {
            let unknown = Local { val: Val::Poison, span: n.span, used: true };
            self.scope().locals.entry(n.text.as_str()).or_insert(unknown).val = Val::Poison;
        }
    }

    fn bind_names(&mut self, names: &'a [Name], value: &'a Expr) {
        let values = self.bound_values(names, value, "");
        for (n, v) in names.iter().zip(values) {
            self.define(n, v);
        }
    }

    /// The value of each name in `names = value`. `prefix` comes before the paths of the values: `new ` where the names are
    /// of states.
    pub(super) fn bound_values(&mut self, names: &'a [Name], value: &'a Expr, prefix: &str) -> Vec<Val> {
        let single = if let [one] = names { Some(one.text.as_str()) } else { None };
        self.begin(std::slice::from_ref(value), single);
        let scope = self.scope();
        if let (None, Some(first)) = (single, names.first()) {
            scope.call_values(&first.text);
            scope.names = names.iter().map(|n| n.text.as_str()).collect();
        }
        if !prefix.is_empty() {
            scope.value = format!("{prefix}{}", scope.value).into();
            scope.names.clear();
        }
        let val = match single {
            Some(_) => self.eval(value),
            None => self.eval_any(value),
        };
        self.scope().statement = None;
        if single.is_some() {
            return vec![val];
        }
        match val {
            Val::Tuple(values) if values.len() == names.len() => values,
            Val::Poison => vec![Val::Poison; names.len()],
            other => {
                let given = if let Val::Tuple(v) = &other { v.len() } else { 1 };
                let text = format!("{} for {}", counted(names.len(), "name"), counted(given, "value"));
                let all = names[0].span.to(names[names.len() - 1].span);
                let mut d = Diagnostic::error(codes::E0212, text)
                    .at(all, counted(names.len(), "name"))
                    .and(value.span, counted(given, "value"));
                if let ExprKind::Call(c) = &value.kind
                    && let Some(layer) = self.globals.layers.by_name.get(c.name.text.as_str())
                    && let Some(last) =
                        layer.body.iter().rfind(|s| matches!(s.kind, StatementKind::Return(_)))
                {
                    d = d.and(last.span, "returned here");
                }
                self.error(d.help(format!(
                    "write {}",
                    if given == 1 { "one name".into() } else { counted(given, "name") }
                )));
                vec![Val::Poison; names.len()]
            }
        }
    }

    /// Gives a name to a value. A name has one meaning in a scope, and in a model none that the file has given it.
    pub(super) fn define(&mut self, name: &'a Name, val: Val) {
        let text = name.text.as_str();
        self.fact(name.span, &val);
        let error = |what: &str, first: Span, label: &str| {
            Diagnostic::error(codes::E0210, format!("`{text}` is {what} already"))
                .at(name.span, "declared again here")
                .and(first, label)
                .help("give one of them another name")
        };
        if let Some(first) = self.scope().locals.get(text) {
            let d = error("declared", first.span, "first declared here");
            self.error(d);
            // Which of the two is meant from here on is open.
            if let Some(local) = self.scope().locals.get_mut(text) {
                local.val = Val::Poison;
                local.used = true;
            }
            return;
        }
        if let Some((first, what)) = self.global_value(text) {
            self.error(error(what, first, "declared here"));
        }
        // A value of the body of a loop is there in each iteration anew.
        if let Val::Tensor(id) = &val
            && self.graph.scope.is_none()
        {
            let (path, id) = (self.scope().path_of(text), *id);
            self.named.insert(path, id);
        }
        self.scope().locals.insert(text, Local { val, span: name.span, used: false });
    }

    /// The dim or const that has a name which no value of a model may have too; layers may have such values.
    fn global_value(&self, name: &str) -> Option<(Span, &'static str)> {
        let model = self.scopes.last().is_some_and(|s| s.kind == ScopeKind::Model);
        let dim = self.globals.dims.get(name).map(|d| (d.0, "a dim"));
        let found = dim.or_else(|| self.globals.consts.get(name).map(|c| (c.0, "a const")));
        found.filter(|_| model)
    }

    /// `loss`, `metric` or `output`.
    fn result(&mut self, b: &'a Binding, kind: ResultKind, span: Span) {
        let word = match kind {
            ResultKind::Loss => "loss",
            ResultKind::Metric(_) => "metric",
            ResultKind::Output => "output",
        };
        let name = b.name.text.as_str();
        if self.scope().kind == ScopeKind::Layer {
            self.misplaced(word, span, "return the value, and declare it in the model");
            return;
        }
        self.begin(std::slice::from_ref(&b.value), None);
        self.scope().call_values(name);
        let val = self.eval(&b.value);
        let id = match val {
            Val::Tensor(id) => Some(id),
            Val::Konst(k) => self.constant(k, b.value.span),
            _ => None,
        };
        if let Some(first) = self.scope().results.get(name) {
            let d = Diagnostic::error(codes::E0210, format!("`{name}` is declared already"))
                .at(b.name.span, "declared again here")
                .and(first.span, "first declared here")
                .help("give one of them another name");
            self.error(d);
            return;
        }
        let id = id.filter(|id| kind == ResultKind::Output || self.is_scalar(*id, b, word));
        self.fact(b.name.span, &id.map_or(Val::Poison, Val::Tensor));
        let local = Local { val: id.map_or(Val::Poison, Val::Tensor), span: b.name.span, used: true };
        self.scope().results.insert(name, local);
        if id.is_none() {
            self.poisoned.insert(name.to_string());
        }
        let list = match kind {
            ResultKind::Loss => &mut self.losses,
            ResultKind::Metric(_) => &mut self.metrics,
            ResultKind::Output => &mut self.outputs,
        };
        if let Some(id) = id {
            let better = match kind {
                ResultKind::Loss => Some(Better::Less),
                ResultKind::Metric(better) => better,
                ResultKind::Output => None,
            };
            list.push(LossDecl { name: name.into(), id, span: b.name.span, better });
        }
    }

    /// A number as a value of the graph.
    pub(super) fn constant(&mut self, k: Konst, at: Span) -> Option<Id> {
        let holds = self.holds(k.num().f64(), (self.float, "a value"), at);
        if holds { self.float_setting(k, at) } else { None }
    }

    /// The same of an optimizer's setting. One that is too large shows in the run, by a loss that is not finite.
    pub(super) fn float_setting(&mut self, k: Konst, at: Span) -> Option<Id> {
        let float = self.float;
        match self.make(&[], at, |g| Ok(g.op(Const::new(k.num().f64(), float), &[]))) {
            Val::Tensor(id) => Some(id),
            _ => None,
        }
    }

    /// Losses and metrics are one float each.
    fn is_scalar(&mut self, id: Id, b: &'a Binding, word: &str) -> bool {
        let ty = self.graph.ty(id).clone();
        let name = &b.name.text;
        let d = if !ty.dims.is_empty() {
            let dims: Vec<String> = ty.dims.iter().map(|d| self.graph.dims.name(*d).to_string()).collect();
            let left = listed(dims.iter().map(String::as_str));
            let dims = dims.join(", ");
            let d = Diagnostic::error(
                codes::E0216,
                format!("{word} `{name}` is not one number: it has the dims {left}"),
            )
            .at(b.value.span, format!("this is {}", self.shape(id)));
            match &b.value.kind {
                ExprKind::Name(n) => {
                    let whole = format!("mean[{dims}]({n})");
                    d.fix(format!("take the mean over {left}"), b.value.span, whole, false)
                }
                _ => d.help(format!("take the mean: `{word} {name} = mean[{dims}](…)`")),
            }
        } else if !ty.dtype.is_float() {
            Diagnostic::error(codes::E0202, format!("{word} `{name}` is {}, not a float", ty.dtype))
                .at(b.value.span, format!("this is {}", self.shape(id)))
                .help(format!("convert it: `{word} {name} = cast(…, float)`"))
        } else {
            return true;
        };
        let d = self.declared(d, &b.value);
        self.error(d);
        false
    }
}
