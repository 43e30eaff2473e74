//! `name[dims](…)`: built-in ops over dims. A sum of a product is one contraction.

use super::Resolver;
use super::expr::Operand;
use super::foreign;
use super::number::{self, Konst, Num};
use super::report::{counted, counted_any, nearest};
use super::scope::{ScopeKind, Val};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Contract, Family, Form, Type, Value, arities, families, family, union};
use meshwright_plan::Dim;
use meshwright_syntax::ast::{BinaryOp, DimItem, DimOp, Expr, ExprKind, Name, UnaryOp};
use std::sync::Arc;

/// Folds: over no dims at all they give their operand.
const FOLDS: [&str; 7] = ["sum", "mean", "max", "min", "prod", "all", "any"];

/// A product in parts: tensors, and a number `times / over`.
struct Product<'e> {
    factors: Vec<Operand<'e>>,
    times: Num,
    over: Num,
    poison: bool,
}

impl<'a> Resolver<'a> {
    /// The dims of names, lists spread out; `None` where one is unknown or in error.
    pub(super) fn dims_of(&mut self, names: &[Name]) -> Option<Vec<Dim>> {
        let mut out = Some(Vec::new());
        for n in names {
            match (self.dims_named(&n.text, n.span), &mut out) {
                (Some(dims), Some(all)) => all.extend(dims),
                (None, _) => out = None,
                _ => {}
            }
        }
        out
    }

    /// The dim, or the list of dims, of a name.
    pub(super) fn dims_named(&mut self, name: &str, at: Span) -> Option<Vec<Dim>> {
        let scope = self.scope();
        let local = scope.locals.get_mut(name);
        match local {
            Some(local) if matches!(local.val, Val::Dims(_) | Val::Poison) => {
                local.used = true;
                return if let Val::Dims(dims) = &local.val { Some(dims.clone()) } else { None };
            }
            _ => {}
        }
        if let Some((_, dim)) = self.globals.dims.get(name) {
            return dim.map(|d| vec![d]);
        }
        let scope = &self.scopes[self.scopes.len() - 1];
        let d = if let Some(local) = scope.locals.get(name) {
            let what = match &local.val {
                Val::Tensor(id) => format!("a tensor, {}", self.shape(*id)),
                Val::Konst(k) => format!("the number {k}"),
                _ => "no dim".to_string(),
            };
            let d = Diagnostic::error(codes::E0213, format!("`{name}` stands where a dim is needed"))
                .at(at, what)
                .and(local.span, "declared here");
            d.help("name a dim, or pass a list of dims to the layer: `[d, e]`")
        } else if let Some((span, _)) = self.globals.consts.get(name) {
            Diagnostic::error(codes::E0213, format!("`{name}` stands where a dim is needed"))
                .at(at, "a const")
                .and(*span, "declared here")
                .help(format!("declare it as a dim: `dim {name} = …`"))
        } else {
            let lists = scope.locals.iter().filter(|(_, l)| matches!(l.val, Val::Dims(_))).map(|(n, _)| *n);
            let near = nearest(name, lists.chain(self.globals.dims.keys().copied()));
            let d =
                Diagnostic::error(codes::E0201, format!("there is no dim `{name}`")).at(at, "not declared");
            match near {
                Some(near) => {
                    let d = match self.globals.dims.get(near.name) {
                        Some((span, _)) => d.and(*span, format!("`{near}` is declared here")),
                        None => d,
                    };
                    d.fix(format!("write `{near}`"), at, near, near.sure)
                }
                None => d.help(format!("declare it: `dim {name} = SIZE`")),
            }
        };
        self.error(d);
        // A parameter of a layer is one thing or the other: its further uses are not reported too.
        let scope = self.scope();
        if let (ScopeKind::Layer, Some(local)) = (scope.kind, scope.locals.get_mut(name)) {
            local.val = Val::Poison;
        }
        None
    }

    /// `name[dims](…)`.
    pub(super) fn over_dims(&mut self, op: &'a DimOp, span: Span) -> Val {
        let name = op.name.text.as_str();
        if let Some(f) = families().find(|f| f.name == name && matches!(f.form, Form::Bracket { .. })) {
            return self.over_pieces(f, op, span);
        }
        if matches!(name, "random_uniform" | "random_normal") {
            let dims = self.plain_dims(op);
            return self.random(name, dims, &op.args, span);
        }
        let found = families().find(|f| f.name == name && matches!(f.form, Form::OverDims(_)));
        let Some(f) = found else { return self.no_such_op(op, span) };
        let arities = arities(name, true);
        let dims = self.plain_dims(op);
        if let Some(named) = op.args.iter().find_map(|a| a.name.as_ref()) {
            self.no_named(name, named);
            return Val::Poison;
        }
        if !arities.contains(&op.args.len()) {
            let takes = counted_any(&arities, "argument");
            let text = format!("`{name}[…]` takes {takes}, not {}", op.args.len());
            let d = Diagnostic::error(codes::E0212, text)
                .at(span, format!("{} here", counted(op.args.len(), "argument")))
                .note(f.doc);
            let d = match family(name, false).map(|f| f.form) {
                Some(Form::Function(n)) if n == op.args.len() => {
                    d.help(format!("element by element it is written `{name}(x, y)`"))
                }
                _ => d,
            };
            self.error(d);
            return Val::Poison;
        }
        if name == "sum" {
            return self.sum(&op.args[0].value, dims, op, span);
        }
        let operands: Vec<Option<Operand<'a>>> = op.args.iter().map(|a| self.operand(&a.value)).collect();
        let (Some(operands), Some(dims)) = (operands.into_iter().collect::<Option<Vec<_>>>(), dims) else {
            return Val::Poison;
        };
        if let ([o], true) = (operands.as_slice(), self.folds_nothing(op, &dims)) {
            return self.as_value(o.value);
        }
        self.build_family(f, name, &operands, &dims, span)
    }

    /// Whether a fold names lists of dims that are all empty.
    fn folds_nothing(&self, op: &DimOp, dims: &[Dim]) -> bool {
        dims.is_empty() && FOLDS.contains(&op.name.text.as_str()) && op.groups.iter().any(|g| !g.is_empty())
    }

    fn as_value(&self, v: Value) -> Val {
        match v {
            Value::Tensor(id) => Val::Tensor(id),
            Value::Number(v) => Val::Konst(Konst::Num(Num::real(v))),
            Value::Bool(b) => Val::Konst(Konst::Bool(b)),
        }
    }

    fn no_such_op(&mut self, op: &'a DimOp, span: Span) -> Val {
        let name = op.name.text.as_str();
        for a in &op.args {
            // Words such as `same` may stand here.
            if a.name.is_none() {
                self.eval(&a.value);
            }
        }
        let function = self.globals.layers.by_name.contains_key(name)
            || name == "dropout"
            || families().any(|f| f.name == name && matches!(f.form, Form::Function(_)));
        if function {
            let text = format!("`{name}` is not an op over dims");
            self.error(
                Diagnostic::error(codes::E0212, text)
                    .at(span, "with dims")
                    .help(format!("it is written `{name}(x)`, without brackets")),
            );
            return Val::Poison;
        }
        let over =
            families().filter(|f| matches!(f.form, Form::OverDims(_) | Form::Bracket { .. })).map(|f| f.name);
        let d = Diagnostic::error(codes::E0201, format!("there is no op `{name}` over dims"))
            .at(op.name.span, "not known");
        let along = |f: &str| {
            let bracket = |g: &Family| g.name == f && matches!(g.form, Form::Bracket { .. });
            arities(f, true).contains(&op.args.len()) || families().any(bracket)
        };
        let (d, known) = foreign::advised(d, name, op.name.span, along, |f| format!("{f}(x)"));
        if known {
            self.error(d);
            return Val::Poison;
        }
        let d = match nearest(name, over.chain(["random_uniform", "random_normal"])) {
            Some(near) => d.fix(format!("write `{near}`"), op.name.span, near, near.sure),
            None => d,
        };
        self.error(d);
        Val::Poison
    }

    /// What stands in the brackets of an op that takes dims and nothing else.
    fn plain_dims(&mut self, op: &'a DimOp) -> Option<Vec<Dim>> {
        let name = op.name.text.as_str();
        if let [_, second, ..] = op.groups.as_slice() {
            let at = second.first().map_or(op.name.span, |i| i.span);
            self.error(
                Diagnostic::error(codes::E0203, format!("`{name}[…]` takes one list of dims, without `;`"))
                    .at(at, "a second list")
                    .help("separate dims by commas"),
            );
            return None;
        }
        let mut out = Some(Vec::new());
        for item in op.groups.iter().flatten() {
            let plain =
                item.dims.len() == 1 && item.at.is_none() && item.to.is_empty() && item.window.is_none();
            let dims = if plain {
                self.dims_of(&item.dims)
            } else {
                self.not_plain(name, item);
                None
            };
            match (dims, &mut out) {
                (Some(dims), Some(all)) => all.extend(dims),
                (None, _) => out = None,
                _ => {}
            }
        }
        out
    }

    fn not_plain(&mut self, name: &str, item: &DimItem) {
        self.error(
            Diagnostic::error(codes::E0203, format!("`{name}[…]` takes dims and nothing else"))
                .at(item.span, "more than the name of a dim")
                .help("rename, index or slice the operand instead: `x[seq -> key]`"),
        );
    }

    /// `sum[dims](e)`. Where `e` is a product, one contraction makes both; numbers are multiplied to the result.
    fn sum(&mut self, e: &'a Expr, dims: Option<Vec<Dim>>, op: &'a DimOp, span: Span) -> Val {
        let mut p = Product { factors: Vec::new(), times: Num::ONE, over: Num::ONE, poison: false };
        self.factors(e, &mut p);
        let Some(dims) = dims else { return Val::Poison };
        if p.poison {
            return Val::Poison;
        }
        let empty = self.folds_nothing(op, &dims);
        let sum = match p.factors.as_slice() {
            [] => {
                let value = number::binary(BinaryOp::Div, Konst::Num(p.times), Konst::Num(p.over));
                let Val::Konst(k) = self.folded(value, e.span) else { return Val::Poison };
                if empty {
                    return Val::Konst(k);
                }
                return self.build("sum", true, &[Operand::of(k.value(), e)], &dims, span);
            }
            [one] if empty => self.as_value(one.value),
            [one] => {
                let one = *one;
                self.build("sum", true, &[one], &dims, span)
            }
            _ => self.contraction(&p.factors, &dims, empty, span),
        };
        self.scaled(sum, p.times, p.over, e.span, span)
    }

    fn contraction(&mut self, factors: &[Operand<'a>], dims: &[Dim], empty: bool, span: Span) -> Val {
        let args: Vec<Value> = factors.iter().map(|o| o.value).collect();
        let float = self.float;
        self.make(factors, span, |g| {
            let call =
                meshwright_ops::Call { name: "sum", args: &args, dims, groups: &[], named: &[], float };
            let x = meshwright_ops::Call { name: "*", ..call.clone() }.unified(g, true)?;
            let all = union(x.iter().map(|i| g.ty(*i)));
            if !empty {
                let product = Type::new(g.ty(x[0]).dtype, all.clone());
                call.check_dims(g, &product).map_err(|mut e| {
                    // It is the product that lacks the dim, not its first factor.
                    e.operand = None;
                    e
                })?;
            }
            let out: Vec<Dim> = all.into_iter().filter(|d| !dims.contains(d)).collect();
            g.add_op(Arc::new(Contract { out }), &x)
        })
    }

    /// `x * times / over`.
    fn scaled(&mut self, x: Val, times: Num, over: Num, at: Span, span: Span) -> Val {
        let mut x = x;
        for (name, n) in [("*", times), ("/", over)] {
            let (Val::Tensor(id), true) = (&x, n.f64() != 1.0) else { continue };
            let operands =
                [Operand::made(Value::Tensor(*id), span), Operand::made(Value::Number(n.f64()), at)];
            x = self.build(name, false, &operands, &[], span);
        }
        x
    }

    /// Takes a product apart: through parentheses, signs, and divisions by numbers.
    fn factors(&mut self, e: &'a Expr, p: &mut Product<'a>) {
        if !self.enter(e.span) {
            p.poison = true;
            return;
        }
        match &e.kind {
            ExprKind::Binary { op: BinaryOp::Mul, lhs, rhs, .. } => {
                self.factors(lhs, p);
                self.factors(rhs, p);
            }
            ExprKind::Binary { op: BinaryOp::Div, lhs, rhs, .. } => self.quotient(e, lhs, rhs, p),
            ExprKind::Unary { op: UnaryOp::Neg, operand } => {
                p.times = number::neg(p.times);
                self.factors(operand, p);
            }
            _ => match self.operand(e) {
                Some(o) => self.factor(o, p),
                None => p.poison = true,
            },
        }
        self.leave();
    }

    fn factor(&mut self, o: Operand<'a>, p: &mut Product<'a>) {
        match o.value {
            Value::Tensor(_) => p.factors.push(o),
            Value::Number(v) => self.multiply(true, Num::real(v), o.span, p),
            Value::Bool(b) => self.multiply(true, Konst::Bool(b).num(), o.span, p),
        }
    }

    fn multiply(&mut self, times: bool, n: Num, at: Span, p: &mut Product<'a>) {
        let old = if times { p.times } else { p.over };
        let product = number::binary(BinaryOp::Mul, Konst::Num(old), Konst::Num(n));
        match self.folded(product, at) {
            Val::Konst(k) if times => p.times = k.num(),
            Val::Konst(k) => p.over = k.num(),
            _ => p.poison = true,
        }
    }

    /// `lhs / rhs` inside of a product: a number divides the whole, a tensor makes the quotient one factor.
    fn quotient(&mut self, e: &'a Expr, lhs: &'a Expr, rhs: &'a Expr, p: &mut Product<'a>) {
        let Some(divisor) = self.operand(rhs) else {
            p.poison = true;
            return;
        };
        let n = match divisor.value {
            Value::Number(v) => Num::real(v),
            Value::Bool(b) => Konst::Bool(b).num(),
            Value::Tensor(_) => {
                let Some(dividend) = self.operand(lhs) else {
                    p.poison = true;
                    return;
                };
                match self.build("/", false, &[dividend, divisor], &[], e.span) {
                    Val::Tensor(id) => p.factors.push(Operand::of(Value::Tensor(id), e)),
                    _ => p.poison = true,
                }
                return;
            }
        };
        let before = p.factors.len();
        self.factors(lhs, p);
        if p.factors.len() == before {
            // A number over a number keeps its own rules: no division by zero.
            let value = number::binary(BinaryOp::Div, Konst::Num(Num::ONE), Konst::Num(n));
            match self.folded(value, e.span) {
                Val::Konst(_) => {}
                _ => p.poison = true,
            }
        }
        self.multiply(false, n, rhs.span, p);
    }
}
