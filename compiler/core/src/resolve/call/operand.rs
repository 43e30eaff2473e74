//! Operands of calls, and where the parts of a call are written.

use meshwright_diag::Span;
use meshwright_ops::Spot;
use meshwright_ops::Value;
use meshwright_syntax::ast::{DimItem, Expr, ExprKind};

/// An operand of an op, with what messages need to know of it.
#[derive(Clone, Copy)]
pub(in crate::resolve) struct Operand<'e> {
    pub(in crate::resolve) value: Value,
    pub(in crate::resolve) span: Span,
    /// The name, where the operand is nothing but one.
    pub(in crate::resolve) name: Option<&'e str>,
}

impl<'e> Operand<'e> {
    pub(in crate::resolve) fn of(value: Value, e: &'e Expr) -> Operand<'e> {
        let name = match &e.kind {
            ExprKind::Name(n) => Some(n.as_str()),
            _ => None,
        };
        Operand { value, span: e.span, name }
    }

    pub(in crate::resolve) fn made(value: Value, span: Span) -> Operand<'e> {
        Operand { value, span, name: None }
    }
}

/// The places that a refusal may be about.
pub(in crate::resolve) struct Places<'s, 'e> {
    pub(in crate::resolve) operands: &'s [Operand<'e>],
    pub(in crate::resolve) groups: &'s [Vec<DimItem>],
    pub(in crate::resolve) options: &'s [(&'static str, Span)],
}

impl Places<'_, '_> {
    /// Where that is, if it is not all of the call.
    pub(in crate::resolve) fn at(&self, spot: Spot) -> Option<Span> {
        match spot {
            Spot::All | Spot::Operand(_) => None,
            Spot::Piece(k, i) => self.groups.get(k)?.get(i).map(|item| item.span),
            Spot::Option(name) => self.options.iter().find(|o| o.0 == name).map(|o| o.1),
        }
    }
}
