//! Expressions.

use super::doc::{Group, Op};
use super::writer::Writer;
use crate::ast::{Arg, At, BinaryOp, Call, CallLabel, DimItem, Expr, ExprKind, Name, UnaryOp};

/// An expression, with its parentheses as they are written.
pub(super) fn expr(w: &mut Writer<'_>, e: &Expr) {
    // Parentheses are in the span of what they enclose; those before the first operand may be the operand's own.
    let inner = match &e.kind {
        ExprKind::Binary { lhs: first, .. } | ExprKind::Index { base: first, .. } => {
            Some(first.span.start as usize)
        }
        ExprKind::Int(_)
        | ExprKind::Float(_)
        | ExprKind::Bool(_)
        | ExprKind::Str(_)
        | ExprKind::Name(_)
        | ExprKind::Unary { .. }
        | ExprKind::Call(_)
        | ExprKind::DimOp(_)
        | ExprKind::DimList(_) => None,
    };
    let mut open = 0;
    while w.peek() == "(" && inner.is_none_or(|start| w.start() < start) {
        w.word("(");
        w.push(Op::Align);
        open += 1;
    }
    kind(w, e);
    for _ in 0..open {
        w.push(Op::End);
        w.word(")");
    }
}

fn kind(w: &mut Writer<'_>, e: &Expr) {
    match &e.kind {
        ExprKind::Int(_) | ExprKind::Float(_) | ExprKind::Bool(_) | ExprKind::Str(_) | ExprKind::Name(_) => {
            w.take();
        }
        ExprKind::Unary { op, operand } => {
            let word = w.peek() == "not";
            w.take();
            match op {
                UnaryOp::Not if word => w.blank(),
                UnaryOp::Not | UnaryOp::Neg => {}
            }
            expr(w, operand);
        }
        ExprKind::Binary { op, .. } => chain(w, *op, e),
        ExprKind::Call(call) => {
            w.take();
            args(w, &call.args);
            label(w, call);
        }
        ExprKind::DimOp(op) => {
            w.take();
            let groups: Vec<&[DimItem]> = op.groups.iter().map(Vec::as_slice).collect();
            bracket(w, &groups);
            args(w, &op.args);
        }
        ExprKind::Index { base, items } => {
            expr(w, base);
            bracket(w, &[items]);
        }
        ExprKind::DimList(names) => dims(w, names),
    }
}

/// How tightly a sign binds; signs that bind alike make one chain.
fn tightness(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::Or => 0,
        BinaryOp::And => 1,
        BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => 2,
        BinaryOp::Add | BinaryOp::Sub => 3,
        BinaryOp::Mul | BinaryOp::Div | BinaryOp::IntDiv | BinaryOp::Rem => 4,
        BinaryOp::Pow => 5,
    }
}

/// `a + b - c`, of which each sign begins a line if one does.
fn chain(w: &mut Writer<'_>, op: BinaryOp, e: &Expr) {
    let level = tightness(op);
    let mut rest = Vec::new();
    let mut first = e;
    while let ExprKind::Binary { op, lhs, rhs, .. } = &first.kind {
        // In parentheses, the tree begins before its first operand.
        let closed = !std::ptr::eq(first, e) && first.span.start < lhs.span.start;
        if closed || tightness(*op) != level {
            break;
        }
        rest.push((*op, rhs.as_ref()));
        first = lhs;
    }
    w.push(Op::Align);
    w.push(Op::Open(Group::Chain));
    expr(w, first);
    for (op, operand) in rest.into_iter().rev() {
        match op {
            // With a blank before it, `//` would be a comment.
            BinaryOp::IntDiv => {
                w.word(op.symbol());
                expr(w, operand);
                continue;
            }
            BinaryOp::Pow => w.blank(),
            BinaryOp::Or
            | BinaryOp::And
            | BinaryOp::Eq
            | BinaryOp::Ne
            | BinaryOp::Lt
            | BinaryOp::Le
            | BinaryOp::Gt
            | BinaryOp::Ge
            | BinaryOp::Add
            | BinaryOp::Sub
            | BinaryOp::Mul
            | BinaryOp::Div
            | BinaryOp::Rem => w.push(Op::Break),
        }
        w.word(op.symbol());
        w.blank();
        expr(w, operand);
    }
    w.push(Op::Close);
    w.push(Op::End);
}

/// `(a, name = b)`.
pub(super) fn args(w: &mut Writer<'_>, args: &[Arg]) {
    w.word("(");
    w.list(args.len(), |w, i| {
        if args[i].name.is_some() {
            w.take();
            equals(w);
        }
        expr(w, &args[i].value);
        if args[i].within.is_some() {
            w.blank();
            w.word("in");
            w.blank();
            w.take();
        }
    });
    w.word(")");
}

/// ` = ` before a value.
pub(super) fn equals(w: &mut Writer<'_>) {
    w.blank();
    w.word("=");
    w.blank();
}

fn label(w: &mut Writer<'_>, call: &Call) {
    if let Some(CallLabel { shares, name: _, span: _ }) = &call.label {
        w.blank();
        w.word(if *shares { "sharing" } else { "as" });
        w.blank();
        w.take();
    }
}

/// `[a, b]`.
pub(super) fn dims(w: &mut Writer<'_>, names: &[Name]) {
    w.word("[");
    w.list(names.len(), |w, _| w.take());
    w.word("]");
}

/// `[rows by kh, cols by kw; in]`.
fn bracket(w: &mut Writer<'_>, groups: &[&[DimItem]]) {
    w.word("[");
    w.push(Op::Align);
    w.push(Op::Open(Group::Fill));
    for (i, group) in groups.iter().enumerate() {
        if i > 0 {
            w.word(";");
            w.push(Op::Break);
        }
        w.list(group.len(), |w, j| item(w, &group[j]));
    }
    w.push(Op::Close);
    w.push(Op::End);
    w.word("]");
}

fn item(w: &mut Writer<'_>, item: &DimItem) {
    let DimItem { dims, at, to, window, span: _ } = item;
    product(w, dims);
    match at {
        None => {}
        Some(At::Value(value)) => {
            equals(w);
            expr(w, value);
        }
        Some(At::Range(low, high)) => {
            equals(w);
            expr(w, low);
            w.word("..");
            expr(w, high);
        }
    }
    if !to.is_empty() {
        w.blank();
        w.word("->");
        w.blank();
        product(w, to);
    }
    if window.is_some() {
        w.blank();
        w.word("by");
        w.blank();
        w.take();
    }
}

/// `heads * d_head`.
fn product(w: &mut Writer<'_>, names: &[Name]) {
    for i in 0..names.len() {
        if i > 0 {
            w.blank();
            w.word("*");
            w.blank();
        }
        w.take();
    }
}
