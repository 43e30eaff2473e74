//! Expressions to values.

use super::Resolver;
use super::call::operand::{Operand, Places};
use super::number::{self, Konst, Num};
use super::report::nearest;
use super::scope::{ScopeKind, Val};
use meshwright_diag::{Diagnostic, MAX_REPORTED, Span, codes};
use meshwright_ops::Spot;
use meshwright_ops::{Graph, Id, OpCall, OpError, Origin, Value, family};
use meshwright_plan::{DType, Dim};
use meshwright_syntax::ast::{BinaryOp, Expr, ExprKind, UnaryOp};

/// The most dims of one value: what is said of an op compares each of them with each.
const MAX_DIMS: usize = 64;
/// The most elements of one value, and of the space that one op runs over.
const MAX_ELEMENTS: u64 = 1 << 48;
const MAX_LOOPS: u64 = 1 << 58;

impl<'a> Resolver<'a> {
    /// The value of an expression that stands for one value.
    pub(super) fn eval(&mut self, e: &'a Expr) -> Val {
        match self.eval_any(e) {
            Val::Tuple(values) => {
                let text = format!("this layer gives {} values, where one is needed", values.len());
                self.error(
                    Diagnostic::error(codes::E0213, text)
                        .at(e.span, format!("{} values", values.len()))
                        .help("name them first: `let a, b = …`"),
                );
                Val::Poison
            }
            v => v,
        }
    }

    /// The same, also where a layer gives several values.
    pub(super) fn eval_any(&mut self, e: &'a Expr) -> Val {
        if !self.enter(e.span) {
            return Val::Poison;
        }
        let v = self.eval_kind(e);
        self.leave();
        self.fact(e.span, &v);
        v
    }

    /// An operand of an op; `None` for poison.
    pub(super) fn operand(&mut self, e: &'a Expr) -> Option<Operand<'a>> {
        let value = match self.eval(e) {
            Val::Tensor(id) => Value::Tensor(id),
            Val::Konst(k) => k.value(),
            _ => return None,
        };
        Some(Operand::of(value, e))
    }

    /// A number or truth value known at compile time; a tensor is an error.
    pub(super) fn konst(&mut self, e: &'a Expr, what: &str) -> Option<Konst> {
        match self.eval(e) {
            Val::Konst(k) => Some(k),
            Val::Tensor(id) => {
                let shape = self.shape(id);
                let d =
                    Diagnostic::error(codes::E0213, format!("{what} must be a number known at compile time"))
                        .at(e.span, format!("a tensor, {shape}"))
                        .help("numbers, consts and `size(…)` are known at compile time");
                let d = self.declared(d, e);
                self.error(d);
                None
            }
            _ => None,
        }
    }

    /// `f32 [batch hidden]`.
    pub(super) fn shape(&self, id: Id) -> String {
        let ty = self.graph.ty(id);
        let range = ty.range.map_or(String::new(), |r| format!(" in {}", self.graph.dims.name(r)));
        format!("{}{range} {}", ty.dtype, self.graph.dims.list(&ty.dims))
    }

    /// Adds the place where a name was declared.
    pub(super) fn declared(&self, d: Diagnostic, e: &Expr) -> Diagnostic {
        let ExprKind::Name(name) = &e.kind else { return d };
        self.declared_name(d, name)
    }

    fn declared_name(&self, d: Diagnostic, name: &str) -> Diagnostic {
        let local = self.scopes.last().and_then(|s| s.locals.get(name).or_else(|| s.results.get(name)));
        match local {
            Some(local) => d.and(local.span, format!("`{name}` is declared here")),
            None => d,
        }
    }

    fn eval_kind(&mut self, e: &'a Expr) -> Val {
        let number = |n| Val::Konst(Konst::Num(n));
        match &e.kind {
            ExprKind::Int(v) => number(Num::int(*v)),
            ExprKind::Float(v) => number(Num::real(*v)),
            ExprKind::Bool(b) => Val::Konst(Konst::Bool(*b)),
            ExprKind::Str(_) => {
                self.error(
                    Diagnostic::error(codes::E0213, "a text stands where a value is needed")
                        .at(e.span, "a text")
                        .help("write a number or a name without quotes"),
                );
                Val::Poison
            }
            ExprKind::Name(name) => self.named(name, e.span),
            ExprKind::Unary { op, operand } => self.unary(*op, operand, e.span),
            ExprKind::Binary { op, lhs, rhs, .. } => self.binary(*op, lhs, rhs, e.span),
            ExprKind::Call(call) => self.call(call, e.span),
            ExprKind::DimOp(op) => self.over_dims(op, e.span),
            ExprKind::Index { base, items } => self.brackets(base, items, e.span),
            ExprKind::DimList(_) => {
                self.error(
                    Diagnostic::error(codes::E0213, "a list of dims stands where a value is needed")
                        .at(e.span, "a list of dims")
                        .help("only layers take lists of dims; their product is `size(…)`"),
                );
                Val::Poison
            }
        }
    }

    /// The value of a name.
    fn named(&mut self, name: &str, at: Span) -> Val {
        let scope = self.scope();
        let found = match scope.locals.get_mut(name) {
            Some(local) => Some(local),
            None => scope.results.get_mut(name),
        };
        if let Some(local) = found {
            local.used = true;
            let (val, span) = (local.val.clone(), local.span);
            if let Val::Dims(dims) = &val {
                let size = format!("size({name})");
                self.error(
                    Diagnostic::error(
                        codes::E0213,
                        format!("`{name}` is a list of dims, where a value is needed"),
                    )
                    .at(at, format!("the dims {}", self.graph.dims.list(dims)))
                    .and(span, "declared here")
                    .fix("take the product of their sizes", at, size, false),
                );
                return Val::Poison;
            }
            return match val {
                Val::Tensor(id) => Val::Tensor(self.at_iteration(id, at)),
                val => val,
            };
        }
        if let Some((name, (_, value))) = self.globals.consts.get_key_value(name) {
            let value = *value;
            if self.scopes.last().is_none_or(|s| s.kind != ScopeKind::Train) {
                self.model_consts.insert(name);
            }
            return value.map_or(Val::Poison, Val::Konst);
        }
        if name == "step" && self.scopes.last().is_some_and(|s| s.kind == ScopeKind::Train) {
            return Val::Tensor(self.step_number(at));
        }
        let in_train = self.scopes.last().is_some_and(|s| s.kind == ScopeKind::Train);
        if name == "training" && !in_train && !self.globals.dims.contains_key(name) {
            return Val::Tensor(self.training(at));
        }
        if let Some((span, dim)) = self.globals.dims.get(name) {
            let Some(dim) = dim else { return Val::Poison };
            let d = Diagnostic::error(codes::E0213, format!("dim `{name}` stands where a value is needed"))
                .at(at, "a dim")
                .and(*span, format!("declared here, of size {}", self.graph.dims.size(*dim)))
                .fix(
                    format!("write `size({name})` for {}", self.graph.dims.size(*dim)),
                    at,
                    format!("size({name})"),
                    false,
                )
                .help(format!("`index({name})` is the position along it"));
            self.error(d);
            return Val::Poison;
        }
        self.unknown(name, at)
    }

    fn unknown(&mut self, name: &str, at: Span) -> Val {
        let scope = &self.scopes[self.scopes.len() - 1];
        let candidates = scope.locals.keys().chain(scope.results.keys()).chain(self.globals.consts.keys());
        let near = nearest(name, candidates.copied());
        let d = Diagnostic::error(codes::E0201, format!("nothing is called `{name}` here"))
            .at(at, "not declared");
        let elsewhere = self.scopes[..self.scopes.len() - 1].iter().find_map(|s| s.locals.get(name));
        let d = match (near, elsewhere) {
            (Some(near), _) => d.fix(format!("write `{near}`"), at, near, near.sure),
            (None, Some(outer)) => d
                .and(outer.span, "this one is not visible inside of a layer")
                .help(format!("pass it to `{}` as an argument", scope.title)),
            (None, None) if name == "step" => {
                d.help("`step` is the number of the step, only in a `train` block")
            }
            (None, None)
                if self.globals.layers.by_name.contains_key(name)
                    || family(name, false).is_some_and(|f| f.name == name) =>
            {
                d.help(format!("`{name}` is called with arguments: `{name}(…)`"))
            }
            // No statement of a model stands in a `train` block, and none before it is seen there.
            (None, None) if scope.kind == ScopeKind::Train => {
                d.help(format!("declare it outside of the blocks: `const {name} = …`"))
            }
            (None, None) => d.help(format!("declare it before: `let {name} = …`")),
        };
        self.error(d);
        Val::Poison
    }

    fn unary(&mut self, op: UnaryOp, operand: &'a Expr, span: Span) -> Val {
        match (op, self.eval(operand)) {
            (UnaryOp::Neg, Val::Konst(k)) => Val::Konst(Konst::Num(number::neg(k.num()))),
            (UnaryOp::Not, Val::Konst(Konst::Bool(b))) => Val::Konst(Konst::Bool(!b)),
            (UnaryOp::Not, Val::Konst(k)) => {
                self.error(
                    Diagnostic::error(codes::E0202, format!("`not` takes a truth value, not the number {k}"))
                        .at(operand.span, "a number")
                        .help("compare it: `x == 0`"),
                );
                Val::Poison
            }
            (op, Val::Tensor(id)) => {
                let name = if op == UnaryOp::Neg { "neg" } else { "not" };
                self.build(name, &[Operand::of(Value::Tensor(id), operand)], span)
            }
            _ => Val::Poison,
        }
    }

    fn binary(&mut self, op: BinaryOp, lhs: &'a Expr, rhs: &'a Expr, span: Span) -> Val {
        let (a, b) = (self.eval(lhs), self.eval(rhs));
        let (x, y) = match (a, b) {
            (Val::Konst(a), Val::Konst(b)) => return self.folded(number::binary(op, a, b), span),
            (Val::Tensor(a), Val::Tensor(b)) => (Value::Tensor(a), Value::Tensor(b)),
            (Val::Tensor(a), Val::Konst(b)) => (Value::Tensor(a), b.value()),
            (Val::Konst(a), Val::Tensor(b)) => (a.value(), Value::Tensor(b)),
            _ => return Val::Poison,
        };
        let name = match op {
            BinaryOp::Pow => "pow",
            op => op.symbol(),
        };
        self.build(name, &[Operand::of(x, lhs), Operand::of(y, rhs)], span)
    }

    /// A constant expression's value, or the report that it has none.
    pub(super) fn folded(&mut self, value: Result<Konst, String>, at: Span) -> Val {
        match value {
            Ok(k) => Val::Konst(k),
            Err(text) => {
                self.error(Diagnostic::error(codes::E0214, text).at(at, "has no value"));
                Val::Poison
            }
        }
    }

    /// The value that the operator or function `name` makes of operands.
    pub(super) fn build(&mut self, name: &str, operands: &[Operand<'_>], span: Span) -> Val {
        let Some(f) = family(name, false) else { return Val::Poison };
        let call = OpCall::of(operands.iter().map(|o| o.value).collect(), self.float);
        self.call_family(f, call, &Places { operands, groups: &[], options: &[] }, span)
    }

    /// Adds values to the graph with the origin of the current statement, and checks what comes out.
    pub(super) fn make(
        &mut self,
        operands: &[Operand<'_>],
        span: Span,
        build: impl FnOnce(&mut meshwright_ops::Graph) -> Result<Id, OpError>,
    ) -> Val {
        self.make_at(&Places { operands, groups: &[], options: &[] }, span, build)
    }

    /// The same of a call with more places than those of its operands.
    pub(super) fn make_at(
        &mut self,
        places: &Places<'_, '_>,
        span: Span,
        build: impl FnOnce(&mut meshwright_ops::Graph) -> Result<Id, OpError>,
    ) -> Val {
        let before = self.graph.nodes.len();
        self.point(span);
        match build(&mut self.graph) {
            Ok(id) if self.sizes_fit(before, span) && self.no_loop_dim(before, span) => Val::Tensor(id),
            Ok(_) => Val::Poison,
            Err(e) => {
                self.op_error(e, places, span);
                Val::Poison
            }
        }
    }

    /// Sets the origin of the values that follow.
    pub(super) fn point(&mut self, span: Span) {
        let s = &self.scopes[self.scopes.len() - 1];
        self.graph.cursor =
            Origin { phase: s.phase, path: s.path.clone(), name: s.value.clone(), span, ..Origin::default() };
    }

    /// Numbers that meet integers must fit into 32 bits, and those that meet `f32` must not become infinite in it.
    pub(super) fn numbers_fit(&mut self, name: &str, operands: &[Operand<'_>]) -> bool {
        let of = |is: fn(DType) -> bool| {
            operands.iter().find_map(|o| match o.value {
                Value::Tensor(id) if is(self.graph.ty(id).dtype) => Some((id, o.span)),
                _ => None,
            })
        };
        let Some((id, span)) = of(DType::is_int).or_else(|| of(|d| d == DType::F32)) else { return true };
        let dtype = self.graph.ty(id).dtype;
        let outside = operands.iter().find_map(|o| match o.value {
            Value::Number(v) if v.fract() == 0.0 || dtype.is_float() => {
                NotHeld::of(v, dtype).map(|wrong| (wrong, o.span))
            }
            _ => None,
        });
        let Some((wrong, at)) = outside else { return true };
        let (number, help) = (&wrong.number, wrong.help("the tensor first"));
        let text = format!("`{name}` of {dtype} and {number}: the number does not fit");
        let d = Diagnostic::error(codes::E0202, text).at(at, &wrong.holds);
        self.error(d.and(span, format!("this is {}", self.shape(id))).help(help));
        false
    }

    /// Whether a dtype holds a number; an error where it does not.
    pub(in crate::resolve) fn holds(&mut self, number: f64, (dtype, what): (DType, &str), at: Span) -> bool {
        let Some(wrong) = NotHeld::of(number, dtype) else { return true };
        let text = format!("{} as {what} of {dtype}: the number does not fit", wrong.number);
        self.error(Diagnostic::error(codes::E0202, text).at(at, &wrong.holds).help(wrong.help("it")));
        false
    }

    pub(super) fn sizes_fit(&mut self, before: usize, span: Span) -> bool {
        for i in before..self.graph.nodes.len() {
            let Some((text, dims)) = too_large(&self.graph, Id(i as u32)) else { continue };
            let sizes: Vec<String> = dims
                .iter()
                .take(MAX_REPORTED)
                .map(|d| format!("{} = {}", self.graph.dims.name(*d), self.graph.dims.size(*d)))
                .collect();
            self.error(
                Diagnostic::error(codes::E0219, format!("{text}: no machine holds or does that"))
                    .at(span, format!("over {}", sizes.join(", ")))
                    .help(if dims.len() > MAX_DIMS {
                        "merge dims that belong together"
                    } else {
                        "make a dim smaller"
                    }),
            );
            return false;
        }
        true
    }

    /// An op's refusal, with the places of its operands.
    fn op_error(&mut self, e: OpError, places: &Places<'_, '_>, span: Span) {
        let operands = places.operands;
        let wrong = if let Spot::Operand(i) = e.spot { operands.get(i) } else { None };
        let kind = |r: &Self, o: &Operand<'_>| match o.value {
            Value::Tensor(id) => r.shape(id),
            Value::Number(v) => format!("the number {v}"),
            Value::Bool(b) => format!("the truth value {b}"),
        };
        let in_loop = e.lacks.as_deref().and_then(|(_, dim)| self.open_loop_over(*dim));
        let mut d = match (e.lacks.as_deref(), in_loop) {
            (Some((what, dim)), Some(_)) => {
                let name = self.graph.dims.name(*dim);
                let text = format!("{what} in a loop over `{name}`, where values are at one position of it");
                Diagnostic::error(e.code, text)
            }
            _ => Diagnostic::error(e.code, e.message),
        };
        d = match wrong {
            Some(o) => d.at(o.span, format!("this is {}", kind(self, o))),
            None => d.at(places.at(e.spot).unwrap_or(span), "here"),
        };
        for o in operands {
            if wrong.is_none_or(|w| w.span != o.span) && o.span != span {
                d = d.and(o.span, format!("this is {}", kind(self, o)));
            }
        }
        for (i, o) in operands.iter().enumerate() {
            if let Some(name) = o.name
                && !operands[..i].iter().any(|p| p.name == o.name)
            {
                d = self.declared_name(d, name);
            }
        }
        if let Some(o) = wrong
            && e.code == codes::E0202
            && let (Some(name), Value::Tensor(id)) = (o.name, o.value)
            && !self.graph.ty(id).dtype.is_float()
        {
            d = d.fix(format!("convert `{name}`"), o.span, format!("cast({name}, float)"), false);
        } else if let (Some((_, dim)), Some(head)) = (e.lacks.as_deref(), in_loop) {
            let name = self.graph.dims.name(*dim);
            let help = format!(
                "take it in front of the loop, by `let`; in the loop, `index({name})` is the position"
            );
            d = d.and(head, "the loop").help(help);
        } else if let Some(help) = e.help {
            d = d.help(help);
        }
        self.error(d);
    }
}

/// What of a value is too large, in words, and the dims of which it is.
pub(crate) fn too_large(graph: &Graph, id: Id) -> Option<(String, Vec<Dim>)> {
    let (node, table) = (graph.node(id), &graph.dims);
    if node.ty.dims.len() > MAX_DIMS {
        return Some((format!("a value with more than {MAX_DIMS} dims"), node.ty.dims.clone()));
    }
    let sizes = node.ty.dims.iter().map(|d| table.size(*d) as u64).filter(|size| *size > 0);
    if sizes.fold(1u64, u64::saturating_mul) > MAX_ELEMENTS {
        let text = format!("a value with more than 2^48 = {MAX_ELEMENTS} elements");
        return Some((text, node.ty.dims.clone()));
    }
    let operands = graph.input_types(id);
    let text = || format!("an op that runs over more than 2^58 = {MAX_LOOPS} positions");
    let loops = || meshwright_ops::union(operands.iter().copied().chain([&node.ty]));
    (node.op.positions(&operands, &node.ty, table) > MAX_LOOPS).then(|| (text(), loops()))
}

/// A number that a dtype does not hold.
pub(super) struct NotHeld {
    /// The number.
    pub(super) number: String,
    /// The least and the greatest number of the dtype, as a label.
    pub(super) holds: String,
    dtype: DType,
    negative: bool,
}

impl NotHeld {
    /// `None` where the dtype holds the number, but for rounding.
    pub(super) fn of(number: f64, dtype: DType) -> Option<NotHeld> {
        let (low, high) = match dtype {
            DType::U8 => (0.0, 255.0),
            DType::F32 if (number as f32).is_finite() => return None,
            DType::F32 => (f64::from(f32::MIN), f64::from(f32::MAX)),
            _ if dtype.is_int() => (f64::from(i32::MIN), f64::from(i32::MAX)),
            _ => return None,
        };
        let outside = !(low..=high).contains(&number);
        outside.then(|| NotHeld {
            number: short(number),
            holds: match dtype {
                DType::F32 => format!("f32 holds {:?} to {:?}", f32::MIN, f32::MAX),
                _ => format!("{dtype} holds {low} to {high}"),
            },
            dtype,
            negative: number < 0.0,
        })
    }

    /// What to do, where `what` may be converted.
    pub(super) fn help(&self, what: &str) -> String {
        match (self.dtype, self.negative) {
            (DType::F32, true) => {
                "write a number that f32 holds, such as `-1e30`; or compute in f64: `--precision f64`".into()
            }
            (DType::F32, false) => {
                "write a number that f32 holds, such as `1e30`; or compute in f64: `--precision f64`".into()
            }
            _ => format!("convert {what}: `cast(…, float)`"),
        }
    }
}

/// A number without hundreds of digits: `1e300`.
fn short(v: f64) -> String {
    if v.abs() < 1e16 { v.to_string() } else { format!("{v:e}") }
}
