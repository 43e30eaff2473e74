//! `name[dims](…)`: built-in ops over dims. A sum of a product is one contraction.

use super::built_in::{Site, as_value, folds_nothing};
use super::operand::{Operand, Places};
use crate::resolve::Resolver;
use crate::resolve::number::{self, Konst, Num};
use crate::resolve::report::nearest;
use crate::resolve::scope::{ScopeKind, Val};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::Spot;
use meshwright_ops::family::written;
use meshwright_ops::{Contract, Family, OpCall, Piece, Type, Value, union};
use meshwright_plan::Dim;
use meshwright_syntax::ast::{BinaryOp, DimOp, Expr, ExprKind, Name, UnaryOp};
use std::sync::Arc;

/// A product in parts: tensors, and a number `times / over`.
struct Product<'e> {
    factors: Vec<Operand<'e>>,
    times: Num,
    over: Num,
    poison: bool,
}

impl<'a> Resolver<'a> {
    /// The dims of names, lists spread out; `None` where one is unknown or in error.
    pub(in crate::resolve) fn dims_of(&mut self, names: &[Name]) -> Option<Vec<Dim>> {
        let mut out = Some(Vec::new());
        for n in names {
            if self.ended() {
                return None;
            }
            match (self.dims_named(&n.text, n.span), &mut out) {
                (Some(dims), Some(all)) => all.extend(dims),
                (None, _) => out = None,
                _ => {}
            }
        }
        out
    }

    /// The dim, or the list of dims, of a name.
    pub(in crate::resolve) fn dims_named(&mut self, name: &str, at: Span) -> Option<Vec<Dim>> {
        let scope = self.scope();
        let local = scope.locals.get_mut(name);
        match local {
            Some(local) if matches!(local.val, Val::Dims(_) | Val::Poison) => {
                local.used = true;
                let val = local.val.clone();
                self.fact(at, &val);
                return if let Val::Dims(dims) = val { Some(dims) } else { None };
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
    pub(in crate::resolve) fn over_dims(&mut self, op: &'a DimOp, span: Span) -> Val {
        let name = op.name.text.as_str();
        let site = Site { name: &op.name, groups: &op.groups, args: &op.args, span };
        if let Some(d) = super::args::misplaced_dim(name, &op.args) {
            self.error(d);
            return Val::Poison;
        }
        if matches!(name, "random_uniform" | "random_normal") {
            let dims = self.plain_dims(site);
            return self.random(name, dims, &op.args, span);
        }
        match written(name, true) {
            Some(f) => self.built_in(f, site),
            None => self.unknown_call(site, true),
        }
    }

    /// What stands in the brackets of what is drawn: dims and nothing else.
    fn plain_dims(&mut self, site: Site<'a>) -> Option<Vec<Dim>> {
        let (_, groups) = self.brackets_of(site, false);
        let groups = groups?;
        let plain = |p: &Piece| p.to.is_empty() && p.by.is_none();
        if groups.len() > 1 || !groups.iter().flatten().all(plain) {
            let text = format!("`{}[…]` takes one list of dims and nothing else", site.name.text);
            self.error(Diagnostic::error(codes::E0203, text).at(site.span, "more than dims"));
            return None;
        }
        Some(groups.into_iter().flatten().flat_map(|p| p.dims).collect())
    }

    /// `sum[dims](e)`. Where `e` is a product, one contraction makes both; numbers are multiplied to the result.
    pub(in crate::resolve) fn sum(
        &mut self,
        f: &'static Family,
        e: &'a Expr,
        groups: Option<Vec<Vec<Piece>>>,
        site: Site<'a>,
    ) -> Val {
        let mut p = Product { factors: Vec::new(), times: Num::ONE, over: Num::ONE, poison: false };
        self.factors(e, &mut p);
        let Some(groups) = groups else { return Val::Poison };
        if p.poison {
            return Val::Poison;
        }
        let empty = folds_nothing(f, &groups);
        let factors = match p.factors.as_slice() {
            [] => {
                let value = number::binary(BinaryOp::Div, Konst::Num(p.times), Konst::Num(p.over));
                let Val::Konst(k) = self.folded(value, e.span) else { return Val::Poison };
                if empty {
                    return Val::Konst(k);
                }
                (p.times, p.over) = (Num::ONE, Num::ONE);
                vec![Operand::of(k.value(), e)]
            }
            all => all.to_vec(),
        };
        let places = Places { operands: &factors, groups: site.groups, options: &[] };
        let args = factors.iter().map(|o| o.value).collect();
        let call = OpCall { groups, ..OpCall::of(args, self.float) };
        let sum = match factors.as_slice() {
            [one] if empty => as_value(one.value),
            [_] => self.call_family(f, call, &places, site.span),
            _ => self.contraction(f, call, &places, empty, site.span),
        };
        self.scaled(sum, p.times, p.over, e.span, site.span)
    }

    fn contraction(
        &mut self,
        f: &'static Family,
        mut call: OpCall,
        places: &Places<'_, '_>,
        empty: bool,
        span: Span,
    ) -> Val {
        self.make_at(places, span, |g| {
            call.name = "*";
            let x = call.unified(g, true)?;
            call.name = f.name;
            let all = union(x.iter().map(|i| g.ty(*i)));
            if !empty {
                let product = Type::new(g.ty(x[0]).dtype, all.clone());
                call.args.truncate(1);
                // It is the product that lacks a dim, not its first factor.
                f.signature.bind_over(g, &mut call, &product).map_err(|e| match e.spot {
                    Spot::Operand(_) => e.at(Spot::All),
                    _ => e,
                })?;
            }
            let dims = call.dims();
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
            x = self.build(name, &operands, span);
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
                match self.build("/", &[dividend, divisor], e.span) {
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
