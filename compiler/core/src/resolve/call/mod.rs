//! `name(…)`: layers, element-wise functions, and the few functions that read dims or dtypes.

pub(super) mod args;
pub(super) mod brackets;
pub(super) mod built_in;
pub(super) mod calls;
pub(super) mod operand;
pub(super) mod over_dims;
pub(super) mod positions;
pub(super) mod random;
pub(super) mod share;

use super::Resolver;
use super::number::{Konst, Num};
use super::report::{listed, nearest};
use super::scope::{Local, NameScope, ScopeKind, Val};
use args::{Callee, Slot, bind};
use built_in::Site;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::family::written;
use meshwright_ops::{Const, Value};
use meshwright_plan::{DType, Dim};
use meshwright_syntax::ast::{Call, Expr, ExprKind, Layer, Name};
use std::sync::Arc;

/// The dtypes that `cast` makes, as written.
const CASTS: [&str; 5] = ["float", "f32", "f64", "i32", "bool"];

impl<'a> Resolver<'a> {
    /// A call.
    pub(super) fn call(&mut self, call: &'a Call, span: Span) -> Val {
        let name = call.name.text.as_str();
        if let Some(d) = args::misplaced_dim(name, &call.args) {
            self.error(d);
            return Val::Poison;
        }
        if let Some(layer) = self.globals.layers.by_name.get(name).copied() {
            return self.call_layer(layer, call, span);
        }
        if let Some(label) = &call.label {
            let does = if label.shares { "shares" } else { "names" };
            let word = if label.shares { "sharing" } else { "as" };
            self.error(
                Diagnostic::error(
                    codes::E0212,
                    format!("`{name}` is no layer, so `{word} {}` {does} nothing", label.name.text),
                )
                .at(label.name.span, format!("{does} the parameters of a layer"))
                .help("leave it out, or put it behind the call of a layer"),
            );
        }
        let in_train = self.scopes.last().is_some_and(|s| s.kind == ScopeKind::Train);
        match name {
            "size" => self.size(call, span),
            "index" => self.index(call, span),
            "cast" => self.cast(call, span),
            "dropout" => self.dropout(call, span),
            "random_uniform" | "random_normal" => self.random(name, Some(Vec::new()), &call.args, span),
            _ if in_train && super::train::learning_rate::is_learning_rate(name) => {
                self.learning_rate(call, span)
            }
            _ => {
                let site = Site { name: &call.name, groups: &[], args: &call.args, span };
                match written(name, false) {
                    Some(f) => self.built_in(f, site),
                    None => self.unknown_call(site, false),
                }
            }
        }
    }

    pub(super) fn no_named(&mut self, name: &str, named: &Name) {
        self.error(
            Diagnostic::error(codes::E0212, format!("`{name}` has no parameter `{}`", named.text))
                .at(named.span, "no such parameter")
                .help("its arguments have no names"),
        );
    }

    /// `size(a, b)`: the product of the sizes.
    fn size(&mut self, call: &'a Call, span: Span) -> Val {
        let Some(dims) = self.dim_arguments(call, span) else { return Val::Poison };
        self.graph.captured.extend(&dims);
        let product = dims.iter().try_fold(1i128, |p, d| p.checked_mul(self.graph.dims.size(*d) as i128));
        let value = product.map(|p| Konst::Num(Num::int(p)));
        self.folded(value.ok_or_else(|| "this product of sizes is too large".to_string()), span)
    }

    /// `index(d)`: the position along a dim.
    fn index(&mut self, call: &'a Call, span: Span) -> Val {
        let Some(dims) = self.dim_arguments(call, span) else { return Val::Poison };
        let [dim] = dims.as_slice() else {
            let text =
                format!("`index` is the position along one dim, not along {}", self.graph.dims.list(&dims));
            self.error(Diagnostic::error(codes::E0212, text).at(span, "one dim is needed"));
            return Val::Poison;
        };
        self.index_of(*dim, span)
    }

    fn dim_arguments(&mut self, call: &'a Call, span: Span) -> Option<Vec<Dim>> {
        let name = call.name.text.as_str();
        if call.args.is_empty() {
            let text = format!("`{name}` is called without a dim");
            self.error(
                Diagnostic::error(codes::E0212, text)
                    .at(span, "a dim is missing")
                    .help(format!("write `{name}(d)`")),
            );
            return None;
        }
        let mut out = Some(Vec::new());
        for a in &call.args {
            if let Some(n) = &a.name {
                self.no_named(name, n);
                out = None;
                continue;
            }
            match (self.dim_argument(name, &a.value), &mut out) {
                (Some(dims), Some(all)) => all.extend(dims),
                (None, _) => out = None,
                _ => {}
            }
        }
        out
    }

    /// The dims of an argument that is a dim or a list of them.
    pub(super) fn dim_argument(&mut self, what: &str, e: &'a Expr) -> Option<Vec<Dim>> {
        match &e.kind {
            ExprKind::Name(n) => self.dims_named(n, e.span),
            ExprKind::DimList(names) => self.dims_of(names),
            _ => {
                let text = format!("`{what}` takes dims");
                self.error(Diagnostic::error(codes::E0213, text).at(e.span, "no dim"));
                None
            }
        }
    }

    /// `cast(x, float)`.
    fn cast(&mut self, call: &'a Call, span: Span) -> Val {
        if let Some(within) = args::cast_dtype(&call.args).and_then(|a| a.within.as_ref()) {
            return self.cast_to_positions(call, within, span);
        }
        let slots = [Slot::built_in("x", true), Slot::built_in("dtype", true)];
        let Some(args) = self.bound("cast", span, None, &slots, &call.args) else { return Val::Poison };
        let (Some(x), Some(to)) = (args[0], args[1]) else { return Val::Poison };
        let value = self.operand(x);
        let word = match &to.kind {
            ExprKind::Name(word) => word.as_str(),
            _ => "",
        };
        let to_dtype = match word {
            "float" => self.float,
            "f32" => DType::F32,
            "f64" => DType::F64,
            "i32" => DType::I32,
            "bool" => DType::Bool,
            "bf16" | "f16" => {
                self.error(not_yet(&format!("`{word}`"), to.span).help("write `float` or `f32` until then"));
                return Val::Poison;
            }
            _ => {
                let d = Diagnostic::error(codes::E0202, format!("`cast` makes {}", listed(CASTS)))
                    .at(to.span, if word == "u8" { "only inputs are `u8`" } else { "not one of them" });
                let d = match nearest(word, CASTS) {
                    Some(near) => d.fix(format!("write `{near}`"), to.span, near, near.sure),
                    None if word == "u8" => d.help("write `i32`"),
                    None => d,
                };
                self.error(d);
                return Val::Poison;
            }
        };
        let Some(o) = value else { return Val::Poison };
        let number = match o.value {
            Value::Tensor(id) => return self.make(&[o], span, |g| Ok(g.cast(id, to_dtype))),
            Value::Number(v) => v,
            Value::Bool(b) => f64::from(u8::from(b)),
        };
        let number = match to_dtype {
            DType::I32 => f64::from(number as i32),
            DType::Bool => f64::from(u8::from(number != 0.0)),
            _ => number,
        };
        self.make(&[], span, |g| Ok(g.op(Const::new(number, to_dtype), &[])))
    }

    /// The expressions given for each parameter; mistakes are reported.
    pub(super) fn bound(
        &mut self,
        name: &str,
        at: Span,
        declared: Option<Span>,
        slots: &[Slot<'_>],
        args: &'a [meshwright_syntax::ast::Arg],
    ) -> Option<Vec<Option<&'a Expr>>> {
        let mut errors = Vec::new();
        let callee = Callee { name, form: None, at, declared };
        let out = bind(&callee, slots, &args::written(args), &mut errors);
        errors.into_iter().for_each(|d| self.error(d));
        out
    }

    /// The result of a layer: its body, written out here.
    fn call_layer(&mut self, layer: &'a Layer, call: &'a Call, span: Span) -> Val {
        let name = layer.name.text.as_str();
        if self.scopes.last().is_some_and(|s| s.kind == ScopeKind::Train) {
            self.error(
                Diagnostic::error(codes::E0213, format!("layer `{name}` is called in a `train` block"))
                    .at(span, "not a number or a learning-rate schedule")
                    .help("call layers in the model"),
            );
            return Val::Poison;
        }
        let slots: Vec<Slot<'_>> =
            layer.params.iter().map(|p| Slot::declared(&p.name, p.default.is_none())).collect();
        let Some(given) = self.bound(name, span, Some(layer.name.span), &slots, &call.args) else {
            return Val::Poison;
        };
        let values: Vec<Option<Val>> = given.iter().map(|e| e.map(|e| self.argument(e))).collect();
        if self.globals.layers.endless.contains(name) {
            return Val::Poison;
        }
        let mut path = self.call_path(layer, call);
        let Some((shared, outside)) = self.shares(layer, call, &mut path, span) else { return Val::Poison };
        let mut scope = NameScope::new(ScopeKind::Layer, name, span, path);
        self.name_results(layer, call, &mut scope, span);
        (scope.shared, scope.outside) = (shared, outside);
        scope.label = match &call.label {
            Some(label) => Some((label.span, "")),
            // Behind parentheses around the call a label cannot stand.
            None => (span.start == call.name.span.start).then_some((Span { start: span.end, ..span }, " ")),
        };
        let mut defaults = Vec::new();
        for (p, v) in layer.params.iter().zip(values) {
            match (v, &p.default) {
                (Some(val), _) => {
                    self.fact(p.name.span, &val);
                    scope.locals.insert(&p.name.text, Local { val, span: p.name.span, used: false });
                }
                (None, default) => defaults.extend(default.as_ref().map(|d| (p, d))),
            }
        }
        self.scopes.push(scope);
        for (p, default) in defaults {
            let val = self.argument(default);
            self.fact(p.name.span, &val);
            let local = Local { val, span: p.name.span, used: false };
            self.scope().locals.entry(&p.name.text).or_insert(local);
        }
        let result = self.body(&layer.body);
        let own = self.scope().own.clone();
        self.scopes.pop();
        if let Some(Val::Tensor(id)) = &result
            && self.graph.scope.is_none()
        {
            self.named.entry(own).or_insert(*id);
        }
        result.unwrap_or_else(|| {
            self.error(
                Diagnostic::error(codes::E0213, format!("layer `{name}` returns nothing"))
                    .at(span, "a value is needed")
                    .and(layer.name.span, "declared without `return`")
                    .help("end its body with `return …`"),
            );
            Val::Poison
        })
    }

    /// An argument of a layer: a value, or dims.
    fn argument(&mut self, e: &'a Expr) -> Val {
        let dims = match &e.kind {
            ExprKind::DimList(names) => self.dims_of(names),
            ExprKind::Name(name) => {
                let scope = &self.scopes[self.scopes.len() - 1];
                match scope.locals.get(name.as_str()).map(|l| &l.val) {
                    Some(Val::Dims(dims)) => Some(dims.clone()),
                    Some(_) => return self.eval(e),
                    None if scope.results.contains_key(name.as_str()) => return self.eval(e),
                    None => match self.globals.dims.get(name.as_str()) {
                        Some((_, dim)) => dim.map(|d| vec![d]),
                        None => return self.eval(e),
                    },
                }
            }
            _ => return self.eval(e),
        };
        dims.map_or(Val::Poison, Val::Dims)
    }

    /// Gives the values of a call paths of their own. Where a call without a label is all of a statement's value, what a layer
    /// without parameters of its own returns bears the name of the statement, as what an op makes does.
    fn name_results(&mut self, layer: &'a Layer, call: &'a Call, scope: &mut NameScope<'a>, span: Span) {
        let owning = self.globals.layers.owning.contains(layer.name.text.as_str());
        let element = scope.path.rsplit('.').next().unwrap_or("").to_string();
        let own = self.scope().path_of(&element);
        let calls = self.calls.entry(own.clone()).or_insert(0);
        *calls += 1;
        scope.own = if *calls == 1 { own } else { format!("{own}#{calls}").into() };
        let caller = self.scope();
        scope.results_named = caller.names.iter().map(|n| caller.path_of(n)).collect();
        let unnamed = call.label.as_ref().map_or(!owning, |l| l.shares);
        let named_by_statement = unnamed && caller.whole == Some(span);
        scope.result = if named_by_statement { caller.value.clone() } else { scope.own.clone() };
        scope.value = scope.result.clone();
    }

    /// The path of a call: that of its caller, and an element of its own.
    fn call_path(&mut self, layer: &'a Layer, call: &'a Call) -> Arc<str> {
        let owning = self.globals.layers.owning.contains(layer.name.text.as_str());
        let scope = self.scope();
        let element = match (&call.label, scope.statement) {
            (Some(label), _) => label.name.text.as_str(),
            (None, Some(name)) if owning && scope.owning_calls == 1 => name,
            _ => layer.name.text.as_str(),
        };
        if scope.path.is_empty() { element.into() } else { format!("{}.{element}", scope.path).into() }
    }
}

/// What this version cannot do yet.
pub(super) fn not_yet(what: &str, at: Span) -> Diagnostic {
    Diagnostic::error(codes::E0190, format!("{what} is not implemented yet")).at(at, "not in this version")
}
