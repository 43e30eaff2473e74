//! The calls inside of statements and expressions, without evaluating them.

use meshwright_syntax::ast::{At, Call, Expr, ExprKind, Statement, StatementKind};

/// Calls `f` with every `name(…)` inside of `e`.
pub(in crate::resolve) fn calls_of<'e>(e: &'e Expr, f: &mut dyn FnMut(&'e Call)) {
    match &e.kind {
        ExprKind::Unary { operand, .. } => calls_of(operand, f),
        ExprKind::Binary { lhs, rhs, .. } => {
            calls_of(lhs, f);
            calls_of(rhs, f);
        }
        ExprKind::Call(call) => {
            f(call);
            call.args.iter().for_each(|a| calls_of(&a.value, f));
        }
        ExprKind::DimOp(op) => {
            op.groups.iter().flatten().for_each(|item| at(item.at.as_ref(), f));
            op.args.iter().for_each(|a| calls_of(&a.value, f));
        }
        ExprKind::Index { base, items } => {
            calls_of(base, f);
            items.iter().for_each(|item| at(item.at.as_ref(), f));
        }
        _ => {}
    }
}

fn at<'e>(at: Option<&'e At>, f: &mut dyn FnMut(&'e Call)) {
    match at {
        Some(At::Value(e)) => calls_of(e, f),
        Some(At::Range(low, high)) => {
            calls_of(low, f);
            calls_of(high, f);
        }
        None => {}
    }
}

/// What a list of statements holds that matters for parameters.
#[derive(Default)]
pub(in crate::resolve) struct Contents<'e> {
    /// Calls of layers and functions.
    pub(in crate::resolve) calls: Vec<&'e Call>,
    /// Whether it declares a parameter itself.
    pub(in crate::resolve) declares: bool,
}

/// Adds what `body` holds.
pub(in crate::resolve) fn contents<'e>(body: &'e [Statement], out: &mut Contents<'e>) {
    for s in body {
        let mut add = |e: &'e Expr| calls_of(e, &mut |c| out.calls.push(c));
        match &s.kind {
            StatementKind::Let { value, .. } | StatementKind::Assign { value, .. } => add(value),
            StatementKind::Loss(b) | StatementKind::Output(b) => add(&b.value),
            StatementKind::Metric(m) => add(&m.binding.value),
            StatementKind::Return(values) => values.iter().for_each(add),
            StatementKind::Param(_) | StatementKind::State(_) => out.declares = true,
            StatementKind::Input(_) => {}
            StatementKind::Repeat(r) => contents(&r.body, out),
        }
    }
}
